"""The data source's objects on their way through Spark's processes: they arrive, and the token doesn't."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import Denied, InvalidRequest, SchemaMismatch
from tests.kit.certificates import Certificates
from tests.kit.server import TOKEN

pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")

from pyspark import cloudpickle
from pyspark.sql import datasource as sql
from pyspark.sql.types import LongType, StructField, StructType

pytestmark = pytest.mark.spark

SCHEMA = StructType([StructField("id", LongType(), False)])
ROWS = pa.table({"id": [1, 2, 3]}, schema=pa.schema([pa.field("id", pa.int64(), False)]))


@pytest.fixture
def guarded(token_client: Client) -> Client:
    """A client of a server with a token, and with rows at store/x."""
    token_client.put("store/x", ROWS)
    return token_client


def sent(thing: Any) -> tuple[Any, bytes]:
    """What arrives in Spark's next process, and the bytes in between."""
    raw = cloudpickle.dumps(thing)
    return pickle.loads(raw), raw


def made(options: dict[str, str]) -> Any:
    return sent(penstock.DataSource)[0](options=options)


def test_the_environment_counts_where_the_class_is_registered(guarded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, _ = sent(penstock.DataSource)
    monkeypatch.setenv("PENSTOCK_URL", "grpc://127.0.0.1:1")
    monkeypatch.setenv("PENSTOCK_TOKEN", "another-token-of-16-characters")

    assert issubclass(kind, sql.DataSource)
    assert (kind.name(), kind(options={"path": "store/x"}).schema()) == ("penstock", SCHEMA)


def test_options_go_before_the_environment(guarded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Denied):
        made({"path": "store/x", "token": "wrong"}).schema()
    url = str(guarded.settings.url)
    monkeypatch.setenv("PENSTOCK_URL", "grpc://127.0.0.1:1")
    monkeypatch.delenv("PENSTOCK_TOKEN")
    assert made({"path": "store/x", "token": TOKEN, "url": url}).schema() == SCHEMA


def test_certificates_and_key_travel_as_text(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files needn't be on Spark's host."""
    for name, file in certificates.of_client.items():
        monkeypatch.setenv(f"PENSTOCK_{name.upper()}", file)
    kind, _ = sent(penstock.DataSource)
    for name, file in certificates.of_client.items():
        assert getattr(kind.here, name) == Path(file).read_text()
    assert "PRIVATE KEY" not in repr(kind.here)

    monkeypatch.setenv("PENSTOCK_CA", str(tmp_path / "none.pem"))
    with pytest.raises(InvalidRequest, match=r"none\.pem.*expected a file of certificates"):
        sent(penstock.DataSource)


@pytest.mark.parametrize("options", [{}, {"token": TOKEN}], ids=["environment", "option"])
def test_no_task_has_the_token_of_a_read(options: dict[str, str], guarded: Client) -> None:
    """Spark sends the source along with its reader; before planning it is needed."""
    source, raw = sent(made({"path": "store/x", **options}))
    assert TOKEN.encode() in raw
    reader = source.reader(SCHEMA)
    partitions = reader.partitions()
    (reader, source, partitions), raw = sent((reader, source, partitions))

    assert TOKEN.encode() not in raw
    assert source.name() == "penstock"
    assert pa.Table.from_batches(batch for one in partitions for batch in reader.read(one)).equals(ROWS)


def test_no_task_nor_commit_has_the_token_of_a_write(guarded: Client) -> None:
    writer = made({"path": "store/y", "token": TOKEN}).writer(SCHEMA, False)
    task, raw = sent(writer)
    message, _ = sent(task.write(iter(ROWS.to_batches())))
    at_commit, more = sent(sent(writer)[0])
    at_commit.commit([message])

    assert TOKEN.encode() not in raw + more
    assert guarded.get("store/y").read_all().equals(ROWS)
    assert TOKEN not in repr(made({"path": "store/y"}).here)


def test_an_abort_after_the_finish_changes_nothing(guarded: Client) -> None:
    """Spark calls it when the answer to a commit was lost."""
    writer = made({"path": "store/x"}).writer(SCHEMA, True)
    message = writer.write(iter(ROWS.slice(0, 1).to_batches()))
    sent(writer)[0].commit([message])
    sent(writer)[0].abort([message])

    assert guarded.get("store/x").read_all().num_rows == 1
    sent(writer)[0].commit([message])
    assert guarded.get("store/x").read_all().num_rows == 1


def test_an_abort_needs_no_messages(guarded: Client) -> None:
    """Spark has None for a task without one."""
    writer = made({"path": "store/y"}).writer(SCHEMA, False)
    writer.write(iter(ROWS.to_batches()))
    sent(writer)[0].abort([None, None])
    assert len(guarded.list("write/")) == 0
    with pytest.raises(penstock.errors.WriteEnded):
        sent(writer)[0].commit([])


def test_a_commit_that_is_refused_leaves_what_was(guarded: Client) -> None:
    """Someone else made the path a dataset of another schema, meanwhile."""
    writer = made({"path": "store/y"}).writer(SCHEMA, False)
    message = writer.write(iter(ROWS.to_batches()))
    other = pa.table({"name": ["a"]})
    guarded.put("store/y", other)
    with pytest.raises(SchemaMismatch, match="store/y has another schema: lacks name string"):
        sent(writer)[0].commit([message])
    sent(writer)[0].abort([message])

    assert guarded.get("store/y").read_all().equals(other)
    assert len(guarded.list("write/")) == 0


def test_a_dataset_replaced_while_planning_is_an_error(guarded: Client) -> None:
    reader = made({"path": "store/x"}).reader(SCHEMA)
    guarded.put("store/x", pa.table({"id": ["a"]}), mode="overwrite")
    with pytest.raises(SchemaMismatch, match="replaced by rows of another schema"):
        reader.partitions()


def test_an_empty_dataset_has_a_partition_without_rows(guarded: Client) -> None:
    guarded.put("store/e", ROWS.slice(0, 0))
    reader = made({"path": "store/e"}).reader(SCHEMA)
    assert [list(reader.read(one)) for one in reader.partitions()] == [[]]
