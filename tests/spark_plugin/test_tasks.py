"""What a task does with one partition, or one ticket, called here as a worker calls it."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import Expired, LimitExceeded, Lost, WriteEnded
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.server import PenstockServer
from tests.kit.certificates import Certificates
from tests.kit.server import served
from tests.kit.spark import expected_rows, row_batch, server_paths, stored_rows
from tests.kit.wait import eventually

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.usefixtures("url_variable")]


def test_a_receipt_leaves_only_when_its_attempt_is_whole() -> None:
    put = penstock.do_put("store/x")

    next(put(iter([row_batch(1, 2)])))  # and no more: a limit ends a task here

    assert put.progress().attempts == 1


def test_each_evaluation_is_an_attempt_of_its_own() -> None:
    put = penstock.do_put("store/x")
    task = put.task  # Spark pickles it once, and evaluates it often

    receipts = [receipt for some in (row_batch(1), row_batch(2)) for receipt in task(iter([some]))]

    assert put.finish(pa.Table.from_batches(receipts)).rows == 2
    assert stored_rows("store/x") == expected_rows(3, 1)


def test_tasks_connect_with_the_drivers_certificate(
    make_server: Callable[..., PenstockServer], certificates: Certificates, tmp_path: Path
) -> None:
    """They have it as text: they run where its file isn't."""
    url = make_server(data=tmp_path / "mutual", **certificates.of_server, client_ca=certificates.ca).url
    put = penstock.do_put("store/x", url=url, **certificates.of_client)
    task = pickle.loads(pickle.dumps(put.task))
    certificates.key.unlink()

    put.finish(pa.Table.from_batches(task(iter([row_batch(1)]))))

    assert put.finished is not None
    assert put.finished.rows == row_batch(1).num_rows


def test_a_zombie_that_ends_after_finish_changes_nothing() -> None:
    put = penstock.do_put("store/x")
    begun, finished = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    def slow() -> Iterator[pa.RecordBatch]:
        yield row_batch(1)
        begun.set()
        finished.wait(30)

    def zombie() -> None:
        try:
            list(put(slow()))
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    assert begun.wait(30)
    put.finish(pa.Table.from_batches(put(iter([row_batch(1)]))))
    finished.set()
    thread.join(30)

    assert [type(error) for error in ended] == [WriteEnded]
    assert stored_rows("store/x") == expected_rows(2, 1)


def test_a_task_whose_rows_came_too_slowly_is_told_the_limit(
    make_server: Callable[..., PenstockServer], tmp_path: Path
) -> None:
    """The server shuts the connection, on which it can't say why."""
    server = make_server(data=tmp_path / "hasty", limits=ServerLimits(put_idle=1), watch_every=0.1)
    put = penstock.do_put("store/x", url=server.url)

    def slow() -> Iterator[pa.RecordBatch]:
        yield row_batch(1)
        eventually(lambda: server.state.streams.open_streams == 1)
        eventually(lambda: server.state.streams.open_streams == 0, what="it was cut")
        yield from (row_batch(number) for number in range(2, 1_000))

    with pytest.raises(LimitExceeded, match=r"sent nothing for 1 s.*maxRecordsPerBatch.*--limit put_idle="):
        list(put(slow()))
    assert put.progress().attempts == 0
    put.finish(pa.Table.from_batches(put(iter([row_batch(1)]))))
    assert server_paths(server.url) == ["store/x"]


def test_the_tickets_name_all_of_a_dataset(client: Client) -> None:
    third = 4_200_000
    table = pa.table({"id": pa.array(range(3 * third), pa.int64())})
    for at in range(3):
        client.put("store/x", table.slice(at * third, third), mode="append")
    assert len(client.info("store/x").endpoints) >= 3

    get = penstock.do_get("store/x")

    assert sum(rows.num_rows for rows in get(get._tickets)) == 3 * third
    assert len(get._tickets) >= 3
    assert len(penstock.do_get("store/x", filter="id < 7")._tickets) == 1, "looking through them costs less than a task"


def test_only_the_rows_that_a_filter_keeps_are_got(client: Client) -> None:
    client.put("store/x", pa.Table.from_batches([row_batch(*range(100))]))

    get = penstock.do_get("store/x", filter="id >= 98")

    assert [one for rows in get(get._tickets) for one in rows["id"].to_pylist()] == [98, 99]


def test_a_ticket_that_has_ended_never_reads_as_fewer_rows(
    make_server: Callable[..., PenstockServer], tmp_path: Path
) -> None:
    server = make_server(data=tmp_path / "short", ticket_life=0.5)
    with penstock.connect(server.url) as client:
        client.put("store/x", pa.Table.from_batches([row_batch(1, 2)]))
    get, made = penstock.do_get("store/x", url=server.url), time.time()
    eventually(lambda: time.time() > made + 0.6)

    with pytest.raises(Expired, match="read again"):
        list(get(get._tickets))


def test_rows_lost_with_a_memory_store_are_rejected_at_finish(tmp_path: Path) -> None:
    data, memory = tmp_path / "memory", "memory:"
    with served(data, store=memory) as server:
        put = penstock.do_put("store/x", url=server.url)
        receipts = pa.Table.from_batches(put(iter([row_batch(1, 2)])))

    with served(data, store=memory, listen=f"grpc://127.0.0.1:{server.port}"):
        with pytest.raises(Lost, match="Write them again"):
            put.finish(receipts)
        assert server_paths(server.url) == []
