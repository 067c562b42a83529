"""What happens to the server, the wire and the disk while Spark writes or reads: the rows once, or a clear error."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client, connect
from penstock.flight_server.server import PenstockServer
from penstock.flight_server.tickets import ReadTicket, Signer
from penstock.flight_server.tokens import Tokens
from tests.kit.faults import files_at_most
from tests.kit.proxy import Proxy
from tests.kit.server import NO_LOCAL_READS, RestartingServer, leftover_files, named_parts, process_server
from tests.kit.spark import collected_rows, expected_rows, row_batch, row_frame, server_paths, stored_rows
from tests.kit.spark_faults import FaultyGet, FaultyPut, Marks, Once, widen
from tests.kit.wait import eventually, files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.process, pytest.mark.usefixtures("nothing_stays")]


# --- the server dies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "on"), [("part.named", 2), ("put.durable", 3), ("put.recorded", 2), ("finish.shown", 1)]
)
def test_a_killed_server_costs_a_write_no_rows(spark: SparkSession, tmp_path: Path, step: str, on: int) -> None:
    """It dies at a step, and comes back."""
    server = RestartingServer(tmp_path / "d", crash_at=step, crash_on=on)

    with server.living():
        put = penstock.do_put("store/x", url=server.url)
        put.finish(row_frame(spark, 800, 6).mapInArrow(put, put.schema))

        eventually(lambda: server.lives == 2, what="the step is passed, and it is back")
        assert stored_rows("store/x", server.url) == expected_rows(800)
        eventually(lambda: len(files(server.data / "parts")) == 6, what="one part of each partition, and no other")


@pytest.mark.usefixtures("small_batches")
def test_a_server_killed_in_the_middle_of_a_put(spark: SparkSession, tmp_path: Path, marks: Marks) -> None:
    """It has a part of an open stream on its disk, and rows of it are to come."""
    server = RestartingServer(tmp_path / "d")

    with server.living():
        put = penstock.do_put("store/x", url=server.url)
        task = FaultyPut(put, Once(marks, {("half", 2): marks.ask_and_wait}))
        task.half = 9 << 20  # of 15 MB, and a part has 8 MiB
        killer = server.killed_at(marks, lambda: files(server.data / "parts") - named_parts(server.data))
        put.finish(widen(row_frame(spark, 600, 4), 100_000).mapInArrow(task, put.schema).collect())
        killer.join(30)

        eventually(lambda: server.lives == 2, what="it is back")
        assert stored_rows("store/x", server.url) == expected_rows(600)


def test_a_server_restarted_between_the_receipts_and_finish(spark: SparkSession, tmp_path: Path) -> None:
    server = RestartingServer(tmp_path / "d")

    with server.living():
        put = penstock.do_put("store/x", url=server.url)
        receipts = row_frame(spark, 800, 4).mapInArrow(put, put.schema).collect()
        server.kill()
        put.finish(receipts)

        eventually(lambda: server.lives == 2, what="it is back")
        assert stored_rows("store/x", server.url) == expected_rows(800)


def test_a_server_killed_in_the_middle_of_a_read(spark: SparkSession, tmp_path: Path, marks: Marks) -> None:
    """Rows of a ticket are in Spark's hands, and others to come: it has 30 MB. A second ticket is got after that."""
    server = RestartingServer(tmp_path / "d", prelude=NO_LOCAL_READS)

    with server.living(), connect(server.url) as client:
        penstock.write(widen(row_frame(spark, 800, 4), 75_000), "store/x", url=server.url, progress=False)
        get = penstock.do_get("store/x", url=server.url)
        task = FaultyGet(get, Once(marks, {("half", 0): marks.ask_and_wait}))
        killer = server.killed_at(marks, lambda: client.call("health")["open_streams"])
        found = collected_rows(get.tickets(spark).mapInArrow(task, get.schema).select("id", "text"))
        killer.join(30)

        eventually(lambda: server.lives == 2, what="it is back")
        assert found == expected_rows(800)


# --- the wire is cut ----------------------------------------------------------------------------


@pytest.mark.parametrize("after", [100_000, 1_500_000, 3_000_000])
def test_a_wire_cut_in_the_middle_of_a_put(spark: SparkSession, proxied: Proxy, after: int) -> None:
    put = penstock.do_put("store/x", url=proxied.url)
    proxied.cut_after(after)

    put.finish(widen(row_frame(spark, 400, 4), 10_000).mapInArrow(put, put.schema))

    assert proxied.cuts == 1
    assert stored_rows("store/x", proxied.url) == expected_rows(400)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("after", [1_000_000, 3_500_000])
def test_a_wire_cut_in_the_middle_of_a_read(spark: SparkSession, proxied: Proxy, after: int) -> None:
    penstock.write(widen(row_frame(spark, 400, 4), 10_000), "store/x", url=proxied.url, progress=False)
    frame = penstock.read(spark, "store/x", url=proxied.url)
    proxied.cut_after(after)

    found = collected_rows(frame)

    assert proxied.cuts == 1
    assert found == expected_rows(400)


# --- no room, no right ---------------------------------------------------------------------------


def test_a_full_store_is_a_clear_error_and_leaves_nothing(
    spark: SparkSession, make_server: Callable[..., PenstockServer], tmp_path: Path
) -> None:
    server = make_server(quota=2_000_000)

    with pytest.raises(Exception, match=r"StoreFull.*quota"):
        penstock.write(widen(row_frame(spark, 400, 4), 10_000), "store/x", url=server.url)

    assert server_paths(server.url) == server_paths(server.url, b"write/") == []
    eventually(lambda: files(tmp_path / "data" / "parts") == set())
    penstock.write(row_frame(spark, 100, 2), "store/x", url=server.url)
    assert stored_rows("store/x", server.url) == expected_rows(100)


def failed_tasks(spark: SparkSession, group: str) -> int:
    """Count the failed tasks of a group's jobs."""
    status = spark.sparkContext.statusTracker()
    jobs = [status.getJobInfo(job) for job in status.getJobIdsForGroup(group)]
    stages = [status.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    assert stages
    return sum(stage.numFailedTasks for stage in stages if stage is not None)


def test_tasks_wait_without_failing_until_there_is_room(
    spark: SparkSession, make_server: Callable[..., PenstockServer]
) -> None:
    server = make_server(quota=2_000_000, ticket_life=0.1)
    with connect(server.url) as client, ThreadPoolExecutor() as pool:
        client.put("store/full", pa.table({"id": range(248_000)}))
        put = penstock.do_put("store/x", url=server.url)

        def collect() -> list[Any]:
            spark.sparkContext.setJobGroup("waiting", "puts while the store is full")
            return row_frame(spark, 100, 4).mapInArrow(put, put.schema).collect()

        receipts = pool.submit(collect)
        try:
            eventually(lambda: 'penstock_errors_total{code="full",verb="do_put"}' in server.state.metrics.text())
        finally:
            client.delete("store/full")
        put.finish(receipts.result(120))
    assert stored_rows("store/x", server.url) == expected_rows(100)
    assert failed_tasks(spark, "waiting") == 0


def test_a_full_disk_is_a_clear_error_and_the_path_is_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    with process_server(tmp_path / "d") as server:
        penstock.write(row_frame(spark, 100, 2), "store/x", url=server.url)
        kept = files(server.data / "parts")

        with files_at_most(server, 3 << 20), pytest.raises(Exception, match=r"StoreFull.*no room on the disk"):
            penstock.write(widen(row_frame(spark, 2000, 4), 10_000), "store/x", mode="overwrite", url=server.url)

        assert stored_rows("store/x", server.url) == expected_rows(100)
        assert server_paths(server.url, b"write/") == []
        eventually(lambda: files(server.data / "parts") == kept, what="what was aborted is swept")
        penstock.write(widen(row_frame(spark, 2000, 4), 10_000), "store/x", mode="overwrite", url=server.url)
        assert stored_rows("store/x", server.url) == expected_rows(2000)
        assert leftover_files(server.url, server.data) == set()


def test_a_ticket_without_the_right(spark: SparkSession, server: PenstockServer) -> None:
    put = penstock.do_put("store/x", url=server.url)
    own = put._put
    read = (
        Signer(b"another key of thirty-two bytes!", Tokens())
        .sign(ReadTicket(("x",), "store/x", time.time() + 60))
        .decode()
    )

    for ticket in (own.ticket[:-4] + "AAAA", read):
        put._put = dataclasses.replace(own, ticket=ticket)
        with pytest.raises(Exception, match="Denied"):
            row_frame(spark, 100, 2).mapInArrow(put, put.schema).collect()

    assert server_paths(server.url) == []


# --- changed while it is read -----------------------------------------------------------------------


def replace(client: Client) -> None:
    client.put("store/x", pa.Table.from_batches([row_batch(7)]), mode="overwrite")


def remove(client: Client) -> None:
    client.delete("store/x")


@pytest.mark.parametrize("change", [replace, remove])
def test_a_frame_reads_what_was_there_when_it_was_made(
    spark: SparkSession, server: PenstockServer, change: Callable[[Any], None]
) -> None:
    penstock.write(row_frame(spark, 800, 4), "store/x", url=server.url)
    frame = penstock.read(spark, "store/x", url=server.url)

    with connect(server.url) as client:
        change(client)

    assert collected_rows(frame) == collected_rows(frame) == expected_rows(800)
    with connect(server.url) as client:
        assert [entry.rows for entry in client.list()] == ([1] if change is replace else [])


@pytest.mark.parametrize("change", [replace, remove])
def test_a_frame_whose_tickets_expired_says_read_again(
    spark: SparkSession, make_server: Callable[..., PenstockServer], change: Callable[[Any], None]
) -> None:
    server = make_server(ticket_life=1.0)
    penstock.write(row_frame(spark, 800, 4), "store/x", url=server.url)
    frame = penstock.read(spark, "store/x", url=server.url)
    made = time.time()
    with connect(server.url) as client:
        change(client)
    eventually(lambda: time.time() > made + 1.1)

    with pytest.raises(Exception, match="read again"):
        frame.collect()

    with connect(server.url) as client:
        assert [entry.rows for entry in client.list()] == ([1] if change is replace else []), "as it is now"
