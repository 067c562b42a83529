"""Results: batches assembled and checked, limits, files; whatever a server sends, never other rows."""

from __future__ import annotations

import gc
import inspect
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import grpc
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import InvalidRequest, LimitExceeded, PenstockError
from penstock.spark import protos
from penstock.spark.collecting import MAX_BYTES, row_groups
from penstock.spark.errors import CorruptResponse
from penstock.spark.frame import Frame
from penstock.spark.results import Progress, decode_batches
from penstock.spark.session import Session
from tests.kit.fake_connect import Cut, FakeConnect, fake_connect, ipc, note_timeouts, numbers, spark_failure
from tests.kit.wait import eventually

ALL = list(range(50))


def ids(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].to_pylist()]


def with_responses(fake: FakeConnect, *changed: Any) -> None:
    """Serve these messages in place of the first batches, and nothing of the others."""

    def change(number: int, raw: bytes) -> bytes:
        response = protos.ExecutePlanResponse.FromString(raw)
        if 1 <= number <= len(changed):
            response.ClearField("response_type")
            response.MergeFrom(changed[number - 1])
        elif response.HasField("arrow_batch"):
            response.ClearField("response_type")
            response.execution_progress.SetInParent()
        return bytes(response.SerializeToString())

    fake.change = change


def batch_message(data: bytes, rows: int, **fields: int) -> Any:
    return protos.ExecutePlanResponse(
        arrow_batch=protos.ExecutePlanResponse.ArrowBatch(row_count=rows, data=data, **fields)
    )


def test_a_result_is_a_stream_of_arrow(session: Session) -> None:
    with session.sql("select 1").stream() as result:
        assert result.schema.names == ["id", "text"]
        assert (result.rows, result.reattaches) == (0, 0)
        first = result.read_next_batch()
        assert ids([first, *result]) == ALL
        with pytest.raises(StopIteration):
            result.read_next_batch()
        assert (result.rows, result.bytes > 1_000) == (50, True)
        assert "complete" in repr(result)


def test_foreign_libraries_read_a_result(session: Session) -> None:
    assert pl.DataFrame(session.sql("select 1"))["id"].to_list() == ALL
    with duckdb.connect() as database:
        database.register("result", session.sql("select 1").stream())
        assert database.execute("select sum(id) from result").fetchall() == [(sum(ALL),)]
    assert session.sql("select 1").to_polars()["text"][7] == "row 7"
    assert session.sql("select 1").to_pandas()["id"].tolist() == ALL


def test_columns_begin_at_whole_words(session: Session) -> None:
    """Not every reader of Arrow takes others, and protobuf's fields begin anywhere."""
    for batch in session.sql("select 1").stream():
        addresses = [buffer.address for column in batch.columns for buffer in column.buffers() if buffer is not None]
        assert all(address % 8 == 0 for address in addresses)


@pytest.mark.parametrize("sizes", [1, 7, 100, 10_000])
def test_a_batch_in_chunks_is_one_batch(fake: FakeConnect, session: Session, sizes: int) -> None:
    data = ipc(numbers(0, 1000))
    chunks = [data[start : start + len(data) // sizes + 1] for start in range(0, len(data), len(data) // sizes + 1)]
    fake.__init__(len(chunks), 1)  # type: ignore[misc]
    fake.port = int(session.client.uri.port)
    with_responses(fake, *(
        batch_message(chunk, 1000, start_offset=0, chunk_index=number, num_chunks_in_batch=len(chunks))
        for number, chunk in enumerate(chunks)
    ))  # fmt: skip
    (batch,) = session.sql("select 1").stream()
    assert batch["id"].to_pylist() == list(range(1000))


DATA = ipc(numbers(0, 10))


def chunk(data: bytes, number: int, chunks: int) -> Any:
    return batch_message(data, 10, chunk_index=number, num_chunks_in_batch=chunks)


@pytest.mark.parametrize(
    "messages",
    [
        [batch_message(DATA, 9)],
        [batch_message(DATA, 10, start_offset=1)],
        [batch_message(DATA, 10), batch_message(DATA, 10, start_offset=0)],
        [batch_message(DATA, 10), batch_message(DATA, 10, start_offset=20)],
        [batch_message(DATA[:-20], 10)],
        [chunk(DATA[:100], 0, 2)],
        [chunk(DATA[:100], 1, 2)],
        [chunk(DATA[100:], 0, 2), chunk(DATA[:100], 1, 2)],
        [chunk(DATA[:100], 0, 3), chunk(DATA[200:], 2, 3)],
        [batch_message(DATA, 10), batch_message(ipc(pa.record_batch({"other": [1]})), 1)],
        [batch_message(b"", 0)],
        [batch_message(b"no arrow at all", 10)],
        [protos.ExecutePlanResponse(get_resources_command_result={})],
    ],
)  # fmt: skip
def test_a_result_that_does_not_add_up_is_refused(fake: FakeConnect, session: Session, messages: list[Any]) -> None:
    with_responses(fake, *messages)
    with pytest.raises(CorruptResponse):
        session.sql("select 1").to_arrow()


def test_a_result_that_failed_does_not_go_on(fake: FakeConnect, session: Session) -> None:
    """What follows a batch that was refused would be taken for the rest, or the end."""
    with_responses(fake, batch_message(DATA, 10), batch_message(DATA, 9), batch_message(DATA, 10, start_offset=10))
    with session.range(20).stream() as result:
        result.read_next_batch()
        with pytest.raises(CorruptResponse) as first:
            result.read_next_batch()
        with pytest.raises(CorruptResponse) as second:
            result.read_next_batch()
    assert first.value is second.value


def test_text_that_is_no_text_is_refused() -> None:
    batch = pa.record_batch({"text": pa.array([b"\xff\xfe"]).view(pa.string())})
    with pytest.raises(CorruptResponse, match="UTF8"):
        decode_batches([pa.py_buffer(ipc(batch))], 1, None)


def test_an_empty_result_keeps_its_schema(fake: FakeConnect, session: Session) -> None:
    with_responses(fake, batch_message(ipc(numbers(0, 0)), 0))
    table = session.sql("select 1 where false").to_arrow()
    assert (table.num_rows, table.schema.names) == (0, ["id", "text"])


def mutations(raw: bytes, number: int, seed: float) -> Iterator[bytes]:
    """Return changed responses: flipped bits, cut, grown, spliced and repeated bytes."""
    chance = random.Random(seed)
    for _ in range(number):
        changed = bytearray(raw)
        place = chance.randrange(len(raw))
        match chance.randrange(5):
            case 0:
                changed[place] ^= 1 << chance.randrange(8)
            case 1:
                del changed[place:]
            case 2:
                changed[place:place] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                del changed[place : place + chance.randrange(1, 9)]
            case 4:
                changed[place : place + 8] = raw[place + 8 : place + 16]
        if bytes(changed) != raw:
            yield bytes(changed)


class Gone(grpc.RpcError):
    """What a server says of an operation that it has forgotten."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INTERNAL

    def details(self) -> str:
        return "gone"

    def trailing_metadata(self) -> tuple[()]:
        return ()


class Served:
    """A stream that has been received already."""

    def __init__(self, responses: list[bytes]) -> None:
        self._responses = iter(responses)

    def __next__(self) -> bytes:
        return next(self._responses)

    def cancel(self) -> None:
        """Nothing is under way."""


@pytest.mark.faults
def test_mutated_responses_are_errors_or_whole(
    fake: FakeConnect, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 of them: an error of ours, or as many rows, each of them valid.

    Spark sends no checksum: a value that changed into another valid one can't be known.
    """
    monkeypatch.setattr(uuid, "uuid4", lambda: "one-operation")
    frame = session.sql("select 1")
    frame.to_arrow()
    whole = fake.responses(fake.named("ExecutePlan")[0])

    def stream(name: str, *_: object, **__: object) -> Served:
        if name != "ExecutePlan":
            raise Gone
        responses = [*whole]
        place = chance.randrange(len(responses))
        responses[place] = next(mutations(responses[place], 1, chance.random()), responses[place])
        return Served(responses)

    monkeypatch.setattr(session.client, "stream", stream)
    monkeypatch.setattr(session.client, "call_later", lambda *_: None)
    monkeypatch.setattr(session.client, "call_once", lambda *_, **__: None)
    chance, refused = random.Random(17), 0
    for _ in range(2_000):
        try:
            table = frame.to_arrow()
        except (PenstockError, Gone):
            refused += 1
            continue
        assert table.schema.equals(numbers(0, 1).schema)
        assert table.num_rows == 50
        table.validate(full=True)
    assert refused > 1_000


# --- limits -------------------------------------------------------------------------------


@pytest.mark.parametrize(("limits", "name"), [({"max_rows": 25}, "max_rows=25"), ({"max_bytes": 500}, "max_bytes=500")])
@pytest.mark.parametrize("how", ["to_arrow", "to_polars", "to_pandas"])
def test_a_large_result_is_refused(
    fake: FakeConnect, session: Session, limits: dict[str, int], name: str, how: str
) -> None:
    """Before it is held, with the cure; the query is interrupted."""
    with pytest.raises(LimitExceeded, match=rf"{name}.*stream\(\) it"):
        getattr(session.sql("select 1"), how)(**limits)
    assert len(fake.named("Interrupt")) == 1


def test_a_large_batch_is_refused_before_it_is_whole(fake: FakeConnect, session: Session) -> None:
    """Its chunks alone are too many: the last one isn't waited for."""
    with_responses(fake, chunk(DATA[:400], 0, 3), chunk(DATA[400:], 1, 3))
    with pytest.raises(LimitExceeded, match="max_bytes=500"):
        session.range(10).to_arrow(max_bytes=500)


def test_rows_of_python_have_a_smaller_limit() -> None:
    """As objects they take ten times the bytes."""
    assert inspect.signature(Frame.collect).parameters["max_bytes"].default * 10 <= MAX_BYTES


def test_limits_that_suffice_are_no_limits(session: Session) -> None:
    assert session.sql("select 1").to_arrow(max_rows=50, max_bytes=10_000).num_rows == 50
    assert session.sql("select 1").to_arrow(max_rows=None, max_bytes=None).num_rows == 50


# --- files and penstock -------------------------------------------------------------------


def test_a_result_becomes_a_file_of_parquet(fake: FakeConnect, session: Session, tmp_path: Path) -> None:
    file = tmp_path / "orders.parquet"
    assert session.sql("select 1").to_parquet(file) == 50
    assert pq.read_table(file)["id"].to_pylist() == ALL
    fake.cuts = [Cut(3, spark_failure("OPERATION_CANCELED"))]
    with pytest.raises(PenstockError):
        session.sql("select 1").to_parquet(tmp_path / "other.parquet")
    with pytest.raises(InvalidRequest, match="folder"):
        session.sql("select 1").to_parquet(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["orders.parquet"]


def test_row_groups_are_large() -> None:
    batches = [numbers(number, 10) for number in range(0, 100, 10)]
    tables = list(row_groups(iter(batches), size=batches[0].nbytes * 4))
    assert [table.num_rows for table in tables] == [40, 40, 20]
    assert ids(tables) == list(range(100))


def test_a_result_is_put_into_penstock(fake: FakeConnect, session: Session, client: Client, url_variable: None) -> None:
    """All or nothing."""
    receipt = session.sql("select 1").put("store/orders")
    assert receipt.rows == 50
    assert sorted(client.get("store/orders").read_all()["id"].to_pylist()) == ALL
    fake.cuts = [Cut(3, spark_failure("OPERATION_CANCELED"))]
    with pytest.raises(PenstockError, match="OPERATION_CANCELED"):
        session.sql("select 1").put("store/other")
    assert [entry.path for entry in client.list("store/")] == ["store/orders"]


# --- pages --------------------------------------------------------------------------------


@pytest.fixture
def pages(fake: FakeConnect) -> FakeConnect:
    """A server whose kept frame has two partitions, with the whole result each."""
    changes = []
    kept = protos.ExecutePlanResponse(checkpoint_command_result={"relation": {"relation_id": "kept"}})
    progress = protos.ExecutePlanResponse(execution_progress={})
    progress.execution_progress.stages.add(num_tasks=1)
    for message in (kept, batch_message(ipc(pa.record_batch({"partition": [0, 1], "count": [50, 50]})), 2)):
        with_responses(fake, message, progress)
        changes.append(fake.change)

    def change(number: int, raw: bytes) -> bytes:
        plan = fake.named("ExecutePlan")[-1].plan
        if plan.command.HasField("checkpoint_command"):
            return changes[0](number, raw)
        return changes[1](number, raw) if plan.root.HasField("sort") else raw

    fake.change = change
    return fake


def removed(fake: FakeConnect) -> int:
    commands = [request.plan.command for request in fake.named("ExecutePlan")]
    return sum(command.HasField("remove_cached_remote_relation_command") for command in commands)


def test_the_options_are_those_of_all_pages(
    pages: FakeConnect, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = note_timeouts(session, monkeypatch)
    told: list[Progress] = []
    pages.cuts = [Cut(9), Cut(9), Cut(3)]
    result = session.range(100).stream(paged="partition", tag="nightly", timeout=60.0, on_progress=told.append)
    assert len(ids(result)) == 100
    queries = pages.named("ExecutePlan")[:4]
    assert [list(request.tags) for request in queries] == 4 * [["nightly"]]
    assert (len(limits), limits) == (5, sorted(limits, reverse=True))
    assert limits[0] <= 60.0
    assert told[0] == Progress(1, 1, 0, 0, 0)
    assert (result.reattaches, result.operation_id, result.progress) == (1, queries[3].operation_id, None)


@pytest.mark.parametrize("how", ["read", "dropped", "left", "failed"])
def test_kept_rows_are_removed(pages: FakeConnect, session: Session, how: str) -> None:
    if how == "failed":
        pages.cuts = [Cut(9), Cut(1, spark_failure("OPERATION_CANCELED"))]
        with pytest.raises(PenstockError, match="OPERATION_CANCELED"):
            session.range(100).stream(paged="partition")
    else:
        result = session.range(100).stream(paged="partition")
        for _ in range(10 if how == "read" else 1):
            result.read_next_batch()
        if how == "read":
            with pytest.raises(StopIteration):
                result.read_next_batch()
        for _ in result if how == "left" else ():
            break
        if how == "dropped":
            del result
            gc.collect()
    eventually(lambda: removed(pages))
    assert removed(pages) == 1


# --- telemetry ----------------------------------------------------------------------------


def test_progress_is_told(fake: FakeConnect, session: Session) -> None:
    progress = protos.ExecutePlanResponse(execution_progress={"num_inflight_tasks": 2})
    for number in range(2):
        progress.execution_progress.stages.add(
            stage_id=number, num_tasks=4, num_completed_tasks=number, input_bytes_read=10
        )
    with_responses(fake, progress, batch_message(DATA, 10))
    told: list[Progress] = []
    with session.sql("select 1").stream(on_progress=told.append) as result:
        assert len(ids(result)) == 10
    assert told[0] == Progress(stages=2, tasks=8, done=1, running=2, bytes_read=20)
    assert result.progress == told[-1]


def test_a_stalled_reader_holds_little(session: Session) -> None:
    """One batch is decoded at a time."""
    with session.sql("select 1").stream() as result:
        result.read_next_batch()
        assert len(result._decoded) == 0


def test_a_command_has_an_answer(session: Session) -> None:
    with fake_connect(batches=1) as fake, penstock.spark_connect(fake.uri) as other:
        relation = protos.Relation(sql=protos.SQL(query="show tables"))
        with_responses(fake, protos.ExecutePlanResponse(sql_command_result={"relation": relation}))
        command = protos.Command(sql_command=protos.SqlCommand(input=relation))
        with other.execute(command) as result:
            assert list(result) == []
        assert result.answer.relation == relation
    with pytest.raises(InvalidRequest, match="expected a Plan"):
        session.execute(protos.SQL(query="select 1"))
