"""A real Spark Connect server: queries, errors, interrupts, checkpoints, cuts."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
import pytest

import penstock
import penstock.spark
from penstock.client.client import Client
from penstock.errors import LimitExceeded, TimedOut
from penstock.spark import protos
from penstock.spark.errors import InvalidPlan, Remote, SessionLost, Transport
from penstock.spark.results import Progress, Result
from penstock.spark.session import Session
from tests.kit.connect import ConnectServer, connect_server, needs_connect
from tests.kit.proxy import Proxy, open_proxy
from tests.kit.wait import eventually

pytestmark = [pytest.mark.spark, pytest.mark.process]

log = logging.getLogger(__name__)
ROWS = 1_000_000
QUERY = f"select id, id * 2 as twice, cast(id as string) as text from range(0, {ROWS}, 1, 4)"
ENDLESS = "select count(*) from range(0, 1000000, 1, 2) a cross join range(0, 1000000) b where a.id * b.id % 7 = 3"


def check_rows(result: Result, rows: int = ROWS) -> None:
    """Read all rows, and check that each came once and whole."""
    count = total = 0
    for batch in result:
        count += batch.num_rows
        total += pc.sum(batch["id"]).as_py()
        assert pc.sum(batch["twice"]).as_py() == 2 * pc.sum(batch["id"]).as_py()
        assert batch["text"][0].as_py() == str(batch["id"][0].as_py())
    assert (count, total) == (rows, rows * (rows - 1) // 2)


def run(session: Session, command: str) -> None:
    """Run a command of Spark's SQL."""
    relation = protos.Relation(sql=protos.SQL(query=command))
    with session.execute(protos.Command(sql_command=protos.SqlCommand(input=relation))) as result:
        assert list(result) == []


def test_a_session_asks_for_the_version(remote: Session) -> None:
    assert remote.version == pyspark.__version__


def test_a_query_streams(remote: Session) -> None:
    assert remote.sql("select 1 as one").to_arrow().to_pylist() == [{"one": 1}]
    told: list[Progress] = []
    with remote.sql(QUERY).stream(tag="nightly", on_progress=told.append) as result:
        assert result.schema.names == ["id", "twice", "text"]
        check_rows(result)
    assert result.rows == ROWS
    assert result.bytes > 20_000_000
    empty = remote.sql("select id from range(0)").to_arrow()
    assert (empty.num_rows, empty.schema.field("id").type) == (0, pa.int64())


def test_settings_are_the_sessions(remote: Session) -> None:
    remote.conf.set("spark.sql.shuffle.partitions", 3)
    assert remote.conf.get("spark.sql.shuffle.partitions") == "3"
    assert remote.conf.all("spark.sql.shuffle.")["spark.sql.shuffle.partitions"] == "3"
    remote.conf.unset("spark.sql.shuffle.partitions")
    assert remote.conf.get("spark.sql.shuffle.partitions") != "3"
    assert remote.conf.get("spark.no.such", "mine") == "mine"
    with pytest.raises(Remote) as unknown:
        remote.conf.get("spark.no.such")
    assert unknown.value.error_class == "SQL_CONF_NOT_FOUND"


def test_a_clone_begins_with_the_settings(remote: Session) -> None:
    remote.conf.set("spark.sql.shuffle.partitions", 3)
    run(remote, "create temp view cloned as select 7 as seven")
    with remote.clone() as clone:
        assert clone.conf.get("spark.sql.shuffle.partitions") == "3"
        assert clone.sql("select * from cloned").to_arrow().to_pylist() == [{"seven": 7}]
        clone.conf.set("spark.sql.shuffle.partitions", 4)
    assert remote.conf.get("spark.sql.shuffle.partitions") == "3"


@pytest.mark.parametrize(
    ("query", "error_class", "sql_state", "fragment"),
    [
        ("select nope from range(3)", "UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703", "nope"),
        ("select 1 frm range(3)", "PARSE_SYNTAX_ERROR", "42601", ""),
        ("select 1 / 0", "DIVIDE_BY_ZERO", "22012", "1 / 0"),
        ("select cast('a' as int)", "CAST_INVALID_INPUT", "22018", "cast('a' as int)"),
        ("select raise_error('mine')", "USER_RAISED_EXCEPTION", "P0001", ""),
    ],
)
def test_sparks_errors_are_typed(remote: Session, query: str, error_class: str, sql_state: str, fragment: str) -> None:
    with pytest.raises(Remote) as failed:
        remote.sql(query).to_arrow()
    assert (failed.value.error_class, failed.value.sql_state) == (error_class, sql_state)
    assert failed.value.operation_id is not None
    if fragment:
        (context,) = failed.value.query_contexts
        assert context.fragment == fragment
        assert query[context.start : context.stop + 1] == fragment


def test_a_query_is_interrupted(remote: Session) -> None:
    """By its tag, its id, or with all; the reader learns it."""
    for how in ("tag", "operation", "all"):
        result = remote.sql(ENDLESS).stream(tag="nightly")
        with ThreadPoolExecutor(1, thread_name_prefix="reader") as pool:
            rows = pool.submit(list, result)
            names = {"tag": {"tag": "nightly"}, "operation": {"operation": result.operation_id}, "all": {}}[how]
            assert remote.interrupt(**names) == [result.operation_id]
            with pytest.raises(Remote) as ended:
                rows.result(60)
        assert (ended.value.error_class, ended.value.sql_state) == ("OPERATION_CANCELED", "HY008")


def test_a_query_that_is_left_ends_at_the_server(remote: Session) -> None:
    result = remote.sql(ENDLESS).stream()
    result.close()
    eventually(lambda: result.operation_id not in remote.interrupt())


def test_a_query_has_a_deadline(remote: Session) -> None:
    with pytest.raises(TimedOut, match="timeout=1 s"):
        list(remote.sql(ENDLESS).stream(timeout=1))


def test_too_large_a_result_is_refused(remote: Session) -> None:
    with pytest.raises(LimitExceeded, match="max_rows=10,000"):
        remote.sql(QUERY).to_arrow(max_rows=10_000)


REST = """
import json, sys, penstock
with penstock.spark_connect(sys.argv[1]) as session, session.resume(sys.argv[2]) as rest:
    ids = [number for batch in rest for number in batch["id"].to_pylist()]
print(json.dumps([rest.rows, len(ids), sum(ids)]))
"""


def test_a_result_goes_on_in_another_process(spark_server: ConnectServer, remote: Session) -> None:
    """By its token alone; what was read behind the checkpoint comes again."""
    result = remote.sql(QUERY).stream()
    read = [result.read_next_batch() for _ in range(3)]
    token = result.checkpoint()
    result.read_next_batch()
    uri = f"sc://127.0.0.1:{spark_server.port}"
    done = subprocess.run([sys.executable, "-c", REST, uri, token], capture_output=True, text=True, check=True)
    rows, count, total = json.loads(done.stdout)
    result.close()
    assert rows == count + sum(batch.num_rows for batch in read) == ROWS
    assert total + sum(pc.sum(batch["id"]).as_py() for batch in read) == ROWS * (ROWS - 1) // 2


def test_a_large_cell_comes_in_chunks(remote: Session) -> None:
    table = remote.sql("select repeat('penstock', 2000000) as cell, 7 as seven").to_arrow()
    assert table["cell"][0].as_py() == "penstock" * 2_000_000
    assert table["seven"].to_pylist() == [7]


def test_a_result_is_put_into_penstock(remote: Session, client: Client, url_variable: None) -> None:
    assert remote.sql(QUERY).put("store/numbers").rows == ROWS
    assert client.get("store/numbers", columns=["id"]).read_all().num_rows == ROWS


def test_a_released_session_is_refused(spark_server: ConnectServer, remote: Session) -> None:
    """Also by the server, to whoever has its id."""
    uri = f"sc://127.0.0.1:{spark_server.port}/;session_id={remote.session_id}"
    assert remote.version
    with penstock.spark_connect(uri, user_id=remote.client.identity.user_id) as twin:
        remote.close()
        with pytest.raises(SessionLost) as lost:
            twin.sql("select 1").stream()
        assert lost.value.error_class == "INVALID_HANDLE.SESSION_CLOSED"
    with pytest.raises(SessionLost, match="was released"):
        remote.sql("select 1").stream()


@pytest.mark.faults
def test_cuts_cost_no_rows(spark_server: ConnectServer) -> None:
    """Connections end within a frame, while the reader is slower than the server."""
    check_cuts(spark_server, rows=ROWS, every=20)


def check_cuts(server: ConnectServer, *, rows: int, every: int) -> None:
    """Read rows by this client while the connection is cut four times; each comes once."""
    with open_proxy() as proxy:
        proxy.target = server.port
        query = QUERY.replace(str(ROWS), str(rows))
        with (
            penstock.spark_connect(proxy.url.replace("grpc", "sc"), retry_for=60) as session,
            session.sql(query).stream() as result,
        ):
            check_each_once(read_cut(proxy, result, every=every), rows)
            assert result.reattaches >= 4


def read_cut(proxy: Proxy, batches: Iterable[pa.RecordBatch], *, every: int) -> list[pa.Array]:
    """Read ids slowly; cut the connection four times, each within the bytes of the next batches."""
    ids = []
    for number, batch in enumerate(batches):
        if number % every == 3 and number < 4 * every:
            proxy.cut_after(700_000)
        ids.append(batch["id"])
        time.sleep(0.004)  # a reader that works
    return ids


def check_each_once(ids: list[pa.Array], rows: int) -> None:
    """Check that these are the numbers up to `rows`, each once."""
    every_id = pa.chunked_array(ids)
    assert len(every_id) == pc.count_distinct(every_id).as_py() == rows
    assert pc.sum(every_id).as_py() == rows * (rows - 1) // 2


@pytest.mark.soak
@pytest.mark.faults
def test_a_server_that_dies_takes_the_session_along(quick_spark: None, tmp_path: Path, bare_python: Path) -> None:
    """A query ends with an error, and the session after the restart says what was lost."""
    with connect_server(tmp_path, bare_python) as server:
        session = penstock.spark_connect(f"sc://127.0.0.1:{server.port}", retry_for=2)
        session.conf.set("spark.sql.shuffle.partitions", 3)
        with session.sql(QUERY).stream() as result:
            result.read_next_batch()
            server.kill()
            with pytest.raises(Transport, match="could not reach"):
                list(result)
        server.start()
        with pytest.raises(SessionLost, match=r"spark\.sql\.shuffle\.partitions.*connect again"):
            eventually(lambda: session.sql("select 1").to_arrow())
        session.close()
        with penstock.spark_connect(f"sc://127.0.0.1:{server.port}") as again:
            assert again.sql("select 1 as one").to_arrow().num_rows == 1


@pytest.mark.soak
@pytest.mark.faults
def test_a_session_that_nobody_used_is_lost(quick_spark: None, tmp_path: Path, bare_python: Path) -> None:
    """Spark ends it after a time; what uses it then is told what was lost."""
    manager = "spark.connect.session.manager"
    confs = {f"{manager}.defaultSessionTimeout": "3s", f"{manager}.maintenanceInterval": "500ms"}
    with (
        connect_server(tmp_path, bare_python, confs) as server,
        penstock.spark_connect(f"sc://127.0.0.1:{server.port}") as session,
    ):
        session.conf.set("spark.sql.shuffle.partitions", 3)
        run(session, "create temp view mine as select 7 as seven")
        time.sleep(6)  # any call would keep the session
        with pytest.raises(SessionLost, match=r"spark\.sql\.shuffle\.partitions.*connect again"):
            session.sql("select * from mine").to_arrow()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_pages_bound_what_the_driver_holds(quick_spark: None, tmp_path: Path, bare_python: Path) -> None:
    """The driver may hold 128 MB of a result of 280 MB; a page has 64."""
    query = "select id, repeat(string(id), 20) as text from range(0, 2000000, 1, 40)"
    confs = {"spark.driver.maxResultSize": "128m", "spark.sql.execution.arrow.maxRecordsPerBatch": "10000"}
    with (
        connect_server(tmp_path, bare_python, confs) as server,
        penstock.spark_connect(f"sc://127.0.0.1:{server.port}") as session,
    ):
        with pytest.raises(Remote, match="maxResultSize"), session.sql(query).stream() as result:
            list(result)
        with session.sql(query).stream(paged="partition") as pages:
            ids = [batch["id"] for batch in pages]
        check_each_once(ids, 2_000_000)
        assert pages.bytes > 200_000_000


@pytest.mark.soak
@pytest.mark.faults
@pytest.mark.timeout(300)
def test_a_driver_out_of_memory_is_an_error(quick_spark: None, tmp_path: Path, bare_python: Path) -> None:
    """Whether the server's JVM lives on or not: no rows, no wait without end."""
    with connect_server(tmp_path, bare_python, {"spark.driver.memory": "600m"}) as server:
        session = penstock.spark_connect(f"sc://127.0.0.1:{server.port}", retry_for=5)
        with pytest.raises((Remote, Transport), match=r"memory|could not reach"):
            session.sql("select collect_list(repeat(string(id), 200)) as cell from range(3000000)").to_arrow()
        session.client.close()


@pytest.mark.soak
@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_cuts_cost_no_rows_twenty_times(spark_server: ConnectServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Four cuts each, with a slow reader. How many pyspark's own client gets through is printed."""
    theirs = 0
    for _ in range(20):
        check_cuts(spark_server, rows=5 * ROWS, every=100)
        theirs += is_read_by_pyspark(spark_server, rows=5 * ROWS, every=100)
    with capsys.disabled():
        sys.stdout.write(f"\n20 of 20 complete; of pyspark's own client {theirs} of 20\n")


def is_read_by_pyspark(server: ConnectServer, *, rows: int, every: int) -> bool:
    """Whether pyspark's own client, which streams by a private iterator alone, has each row once, too."""
    from pyspark.sql.connect.session import SparkSession

    with open_proxy() as proxy:
        proxy.target = server.port
        spark = SparkSession.builder.remote(proxy.url.replace("grpc", "sc")).create()
        try:
            frame: Any = spark.sql(QUERY.replace(str(ROWS), str(rows)))  # typed as classic Spark's, which has no plan
            plan = frame._plan.to_proto(spark.client)
            tables = (each for each in spark.client.to_table_as_iterator(plan, {}) if isinstance(each, pa.Table))
            batches = (batch for table in tables for batch in table.to_batches())
            check_each_once(read_cut(proxy, batches, every=every), rows)
        except Exception as failed:
            log.info("pyspark's client: %.300s", failed)
            return False
        finally:
            proxy.cut_after(None)
            spark.client.close()
    return True


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_cell_of_300_mb_arrives(quick_spark: None, tmp_path: Path, bare_python: Path) -> None:
    confs = {"spark.driver.memory": "8g", "spark.driver.maxResultSize": "0"}
    with (
        connect_server(tmp_path, bare_python, confs) as server,
        penstock.spark_connect(f"sc://127.0.0.1:{server.port}") as session,
    ):
        (batch,) = session.sql("select repeat('penstock', 37500000) as cell").stream()
        assert batch["cell"][0].as_buffer().size == 300_000_000


@pytest.mark.parametrize("kind", ["query", "view"])
def test_pysparks_frames_are_streamed(spark_server: ConnectServer, kind: str) -> None:
    """By its session, with its temporary views and settings."""
    needs_connect()
    theirs = spark_server.connect()
    theirs.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    frame = theirs.sql(QUERY) if kind == "query" else theirs.range(ROWS)
    if kind == "view":
        frame.selectExpr("id", "id * 2 as twice", "string(id) as text").createOrReplaceTempView("numbers")
        frame = theirs.table("numbers")
    check_rows(penstock.spark.stream(frame))
    (batch,) = penstock.spark.stream(theirs.sql("select current_timestamp() as now"))
    assert batch.schema.field("now").type == pa.timestamp("us", "Asia/Tokyo")
    deep = theirs.range(3)
    for _ in range(80):  # protobuf parses 100 levels
        deep = deep.filter("id >= 0")
    assert sum(batch.num_rows for batch in penstock.spark.stream(deep)) == theirs.range(3).count() == 3


def test_other_frames_are_refused() -> None:
    with pytest.raises(InvalidPlan, match=r"SparkSession\.builder\.remote"):
        penstock.spark.stream(pa.table({"id": [1]}))
