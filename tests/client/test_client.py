"""The client: what goes in, what comes out, what is tried again, and what is seen when it fails."""

from __future__ import annotations

import errno
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from penstock.client import get, local
from penstock.client.client import Client, connect
from penstock.client.connection import _KEEPALIVE, Connection
from penstock.errors import (
    AlreadyExists,
    Denied,
    InvalidRequest,
    NotFound,
    PenstockError,
    SchemaMismatch,
    StoreFull,
    TimedOut,
    Unavailable,
    WriteEnded,
)
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.local import LocalDoor
from penstock.flight_server.server import PenstockServer
from penstock.store.disk import DiskMedium
from tests.kit.proxy import Proxy
from tests.kit.server import process_server
from tests.kit.wait import descriptors, eventually

TABLE = pa.table({"id": [1, 2, 3], "city": ["Bergen", "Oslo", None]})


class Capsule:
    """Anything that hands out an Arrow stream, as pandas, polars and DuckDB do."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


KINDS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.to_batches()[0],
    "reader": TABLE.to_reader,
    "capsule": lambda: Capsule(TABLE),
    "iterator": lambda: iter(TABLE.to_batches()),
    "list": TABLE.to_batches,
    "dicts": TABLE.to_pylist,
    "iterator of dicts": lambda: iter(TABLE.to_pylist()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_put_takes_whatever_holds_arrow_data(client: Client, kind: str) -> None:
    receipt = client.put("store/t", KINDS[kind]())
    assert receipt.rows == 3
    assert client.get("store/t").read_all() == TABLE


@pytest.mark.parametrize("wrong", [{"a": [1]}, "rows", 7, [7], [{"a": 1}, 7]])
def test_put_refuses_what_it_can_not_send_and_names_it(client: Client, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected"):
        client.put("store/t", wrong)


def test_dicts_need_not_have_the_same_columns(client: Client) -> None:
    client.put("store/t", [{"id": 1}, {"city": "Oslo"}, {}])
    assert client.get("store/t").read_all().to_pydict() == {"id": [1, None, None], "city": [None, "Oslo", None]}
    narrow = pa.schema([("city", pa.string()), ("id", pa.int16())])
    client.put("store/narrow", [{"id": 1}], schema=narrow)
    assert client.get("store/narrow").read_all().equals(pa.table({"city": [None], "id": [1]}, narrow))


@pytest.mark.parametrize(("rows", "schema", "message"), [
    ([{"id": 1}, {"id": "x"}], None, "the column 'id' can't be put: "),
    ([{"id": 1}, {"ID": 2}], pa.schema([("id", pa.int64())]), "the rows have a column 'ID', which schema= lacks"),
    ([{"id": 300}], pa.schema([("id", pa.int8())]), "the column 'id' can't be put: .*300"),
])  # fmt: skip
def test_dicts_that_are_no_rows_are_refused(client: Client, rows: Any, schema: pa.Schema, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        client.put("store/t", rows, schema=schema)
    assert len(client.list()) == 0


def test_an_empty_iterator_needs_a_schema(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="schema="):
        client.put("store/t", iter([]))
    client.put("store/t", iter([]), schema=TABLE.schema)
    assert client.get("store/t").read_all() == TABLE.schema.empty_table()


def test_a_partition_is_overwritten_alone(client: Client) -> None:
    for day in ("mon", "tue", "mon"):
        client.put("store/a", TABLE, mode="append", partition=day)
    client.put("store/a", TABLE.slice(0, 1), mode="overwrite", partition="mon", run="r")
    client.put("store/a", TABLE.slice(0, 2), mode="overwrite", partition="mon", run="r")
    assert client.get("store/a").read_all()["id"].to_pylist() == [1, 2, 3, 1]
    with client.writer("store/a", TABLE.schema, mode="overwrite", partition="tue") as writer:
        writer.write(TABLE.slice(1, 1))
    assert client.get("store/a").read_all()["id"].to_pylist() == [1, 2]
    described = client.call("describe", {"path": "store/a"})["partitions"]
    assert [(each["partition"], each["rows"]) for each in described] == [("mon", 1), ("tue", 1)]


def test_partitions_and_times_are_those_of_datasets(client: Client) -> None:
    for path, options in (("topic/x", {"partition": "p"}), ("topic/x", {"ttl": 5.0}), ("publish/p/t", {"ttl": 5.0})):
        with pytest.raises(InvalidRequest, match="only a dataset has partitions and a time to live"):
            client.put(path, TABLE, **options)
    with pytest.raises(InvalidRequest, match="only a dataset"):
        client.call("write.open", {"path": "topic/x", "dataset": {"ttl": 5.0}})
    for ttl in (0, -1.0):
        with pytest.raises(InvalidRequest, match=r"ttl=.*: expected a number of seconds above 0"):
            client.put("store/a", TABLE, ttl=ttl)
    with pytest.raises(InvalidRequest, match="the partition has no name"):
        client.put("store/a", TABLE, partition="")
    client.put("store/a", TABLE, partition="p", run="r")
    with pytest.raises(InvalidRequest, match="run 'r' of store/a was opened with"):
        client.put("store/a", TABLE, partition="q", run="r")


def test_a_dataset_lives_for_a_time(server: PenstockServer, client: Client) -> None:
    client.put("store/a", TABLE, ttl=3_600)
    client.put("store/b", TABLE, ttl=0.001)

    def listed() -> list[str]:
        server.state.sweeper.soon()
        return [entry.path for entry in client.list()]

    eventually(lambda: listed() == ["store/a"], what="the second one is past its time")
    client.put("store/b", TABLE)
    assert client.info("store/b").rows == 3


def test_modes(client: Client) -> None:
    client.put("store/t", TABLE)
    with pytest.raises(AlreadyExists, match="append"):
        client.put("store/t", TABLE)
    client.put("store/t", TABLE, mode="append")
    assert client.get("store/t").read_all() == pa.concat_tables([TABLE, TABLE])
    client.put("store/t", TABLE.slice(1), mode="overwrite")
    assert client.get("store/t").read_all() == TABLE.slice(1)


def test_a_run_is_written_once(client: Client) -> None:
    first = client.put("store/t", TABLE, mode="append", run="day-1")
    assert client.put("store/t", TABLE.slice(1), mode="append", run="day-1") == first
    assert client.info("store/t").rows == 3


def test_another_schema_is_refused_with_the_difference(client: Client) -> None:
    client.put("store/t", TABLE)
    with pytest.raises(SchemaMismatch, match=r"id is int64, got string.*"):
        client.put("store/t", pa.table({"id": ["x"], "city": ["y"]}), mode="append")


@pytest.mark.parametrize("limit", [0, 1, 4, 5, 100])
@pytest.mark.parametrize("mapped", [True, False])
def test_a_limit_holds_over_several_parts(
    client: Client, limit: int, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not mapped:
        monkeypatch.setattr(local.LocalParts, "open", lambda self, ticket: ([], 0))
    for start in range(0, 9, 3):
        client.put("store/t", pa.table({"n": range(start, start + 3)}), mode="append")
    table = client.get("store/t", limit=limit).read_all()
    assert table["n"].to_pylist() == list(range(9))[:limit]


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("store", ["disk:", "memory:"])
@pytest.mark.parametrize("parallel", [1, 3])
def test_rows_come_back_in_order_by_map_and_by_do_get(
    make_server: Callable[..., PenstockServer], mapped: bool, store: str, parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not mapped:
        monkeypatch.setattr(local.LocalParts, "__init__", lambda self, name: setattr(self, "_socket", None))
    server = make_server(store=store)
    table = pa.table({"n": np.arange(5_000_000), "s": pa.array(["a", "b"] * 2_500_000).dictionary_encode()})
    with connect(server.url) as client:
        client.put("store/t", table)
        assert client.info("store/t").parts > 3
        assert client.get("store/t", parallel=parallel).read_all().equals(table)
    assert ("\npenstock_maps_total 0.0\n" not in server.state.metrics.text()) == (mapped and store == "disk:")


def test_parts_are_fetched_side_by_side_with_parallel(
    make_server: Callable[..., PenstockServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.LocalParts, "__init__", lambda self, name: setattr(self, "_socket", None))
    both, fetch = threading.Barrier(2, timeout=30), get.fetch

    def met(connection: Connection, ticket: bytes) -> Iterator[pa.RecordBatch]:
        both.wait()
        return fetch(connection, ticket)

    monkeypatch.setattr(get, "fetch", met)
    with connect(make_server().url) as client:
        client.put("store/t", pa.table({"n": [1]}))
        client.put("store/t", pa.table({"n": [2], "more": ["x"]}), mode="append")  # another schema: another endpoint
        assert client.get("store/t", parallel=2).read_all()["n"].to_pylist() == [1, 2]


def test_many_parts_are_mapped_without_a_descriptor_for_each(client: Client) -> None:
    for number in range(60):
        client.put("store/t", pa.table({"n": [number]}), mode="append")
    before = descriptors(os.getpid())
    table = client.get("store/t").read_all()
    eventually(lambda: descriptors(os.getpid()) < before + 30, what="the door has closed its own")
    assert table["n"].to_pylist() == list(range(60))


def test_a_late_door_is_left_for_do_get(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.put("store/t", TABLE)
    open_for = LocalDoor._opened
    shut = threading.Event()

    def late(*arguments: Any) -> Any:
        shut.wait(20)
        return open_for(*arguments)

    monkeypatch.setattr(local, "_TIMEOUT", 0.1)
    monkeypatch.setattr(LocalDoor, "_opened", late)
    assert client.get("store/t").read_all() == TABLE
    shut.set()


def test_a_reader_out_of_descriptors_is_left_for_do_get(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.put("store/t", TABLE)
    monkeypatch.setattr(local, "_map", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    assert client.get("store/t").read_all() == TABLE


def test_one_part_by_number(client: Client) -> None:
    for n in range(3):
        client.put("store/t", pa.table({"n": [n]}), mode="append")
    assert client.get("store/t", part=1).read_all()["n"].to_pylist() == [1]
    with pytest.raises(NotFound, match="it has 3"):
        client.get("store/t", part=3)


def test_a_reader_outlives_overwrite_and_delete(client: Client) -> None:
    client.put("store/t", TABLE)
    before = client.get("store/t")
    client.put("store/t", TABLE.slice(2), mode="overwrite")
    client.delete("store/t")
    assert before.read_all() == TABLE


class TestWriter:
    def test_leaving_commits(self, client: Client) -> None:
        with client.writer("store/t", TABLE.schema) as writer:
            writer.write(TABLE)
            writer.write(TABLE.to_batches()[0])
        assert writer.receipt is not None
        assert writer.receipt.rows == 6
        assert client.info("store/t").rows == 6

    def test_leaving_by_exception_writes_nothing_and_raises_it(self, client: Client) -> None:
        with pytest.raises(ZeroDivisionError), client.writer("store/t", TABLE.schema) as writer:
            writer.write(TABLE)
            _ = 1 / 0
        assert len(client.list()) == len(client.list("write/")) == 0

    def test_a_refusal_says_the_servers_reason(self, client: Client) -> None:
        client.put("store/t", TABLE)
        writer = client.writer("store/t", TABLE.schema)
        with pytest.raises(AlreadyExists):
            for _ in range(1_000):
                writer.write(TABLE)

    def test_a_closed_writer_takes_no_more(self, client: Client) -> None:
        writer = client.writer("store/t", TABLE.schema)
        assert writer.close() == writer.close()
        with pytest.raises(InvalidRequest, match="closed"):
            writer.write(TABLE)

    def test_an_iterator_that_fails_leaves_nothing(self, client: Client) -> None:
        def broken() -> Iterator[pa.RecordBatch]:
            yield TABLE.to_batches()[0]
            raise KeyError("the user's own")

        with pytest.raises(KeyError, match="own"):
            client.put("store/t", broken())
        assert len(client.list()) == 0


class TestPrinting:
    def test_a_listing_is_a_table_and_html_in_a_notebook(self, client: Client) -> None:
        client.put("store/a/t", TABLE)
        listing = client.list()
        assert "store/a/" in repr(listing)
        assert "3" in repr(listing)
        assert listing._repr_html_().startswith("<table>")
        assert [entry.path for entry in client.list("store/a")] == ["store/a/t"]
        assert [entry.path for entry in client.list(recursive=True)] == ["store/a/t"]

    def test_an_info_shows_rows_and_columns(self, client: Client) -> None:
        client.put("store/t", TABLE)
        assert repr(client.info("store/t")) == (
            f"store/t: 3 rows, {client.info('store/t').bytes} B in 1 part\n  id: int64\n  city: string"
        )

    def test_a_secret_is_never_printed(self) -> None:
        client = connect("grpc://127.0.0.1:1", token="canary-canary-canary")
        assert "canary" not in repr(client) + repr(client.settings)

    def test_a_token_read_from_a_file_may_end_its_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert connect("grpc://127.0.0.1:1", token="canary\n").settings.token == "canary"
        monkeypatch.setenv("PENSTOCK_TOKEN", "canary\n")
        assert connect("grpc://127.0.0.1:1").settings.token == "canary"
        for token in ("two\nlines", "café", "nul\0"):
            with pytest.raises(InvalidRequest, match="token: expected one line of printable ASCII"):
                connect("grpc://127.0.0.1:1", token=token)


@pytest.mark.faults
class TestTryingAgain:
    def test_settings_pickle_and_connect_elsewhere(self, client: Client) -> None:
        client.put("store/t", TABLE)
        with pickle.loads(pickle.dumps(client)) as other:
            assert other.get("store/t").read_all() == TABLE

    def test_a_server_that_is_not_there_gives_up_with_the_cure(self) -> None:
        with connect("grpc://127.0.0.1:1", retry_for=0.2) as client, pytest.raises(Unavailable, match="penstock serve"):
            client.list()

    def test_a_late_answer_is_awaited_again_where_that_is_safe(self, client: Client) -> None:
        late = Mock(side_effect=[TimedOut("late"), Unavailable("away"), "done"])
        assert client.connection.retry(late) == "done"
        with pytest.raises(TimedOut, match=r"^late$"):
            client.connection.retry(Mock(side_effect=TimedOut("late", request="7")), safe=lambda refused: refused)
        with pytest.raises(TimedOut, match=r"^late$"):
            client.connection.retry(Mock(side_effect=TimedOut("late")), retry_for=0.1)

    @pytest.mark.parametrize("data", [TABLE, Capsule(TABLE)], ids=["read again", "read once"])
    def test_one_stream_too_many_is_tried_again_until_there_is_room(
        self, make_server: Callable[..., PenstockServer], data: Any
    ) -> None:
        server = make_server(limits=ServerLimits(streams=1))
        with connect(server.url, retry_for=20) as client:
            holding = client.writer("store/a", TABLE.schema)
            holding.write(TABLE)
            eventually(lambda: server.state.streams.open_streams == 1)
            with ThreadPoolExecutor(1) as pool:
                second = pool.submit(client.put, "store/b", data)
                eventually(lambda: 'code="unavailable",verb="do_put"' in server.state.metrics.text())
                holding.close()
                assert second.result(20).rows == 3

    def test_a_one_shot_source_is_not_put_without_its_first_rows(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server refuses it behind some rows; what is left is no whole."""
        write, fail = DiskMedium.write, [True]

        def fails_once(*arguments: Any) -> Any:
            if fail.pop() if fail else False:
                raise Unavailable("the disk failed", retry_after=0.01)
            return write(*arguments)

        monkeypatch.setattr(DiskMedium, "write", fails_once)
        with pytest.raises(Unavailable, match="the disk failed"):
            client.put("store/t", iter(TABLE.to_batches(max_chunksize=1)))
        assert len(client.list()) == 0
        fail.append(True)
        assert client.put("store/t", TABLE).rows == 3  # which can be read again, and was

    def test_a_full_store_is_not_tried_again(self, make_server: Callable[..., PenstockServer]) -> None:
        with connect(make_server(quota=10).url) as client, pytest.raises(StoreFull, match="quota"):
            client.put("store/t", TABLE)

    @pytest.mark.process
    def test_a_restarted_server_is_found_again(self, tmp_path: Path) -> None:
        with process_server(tmp_path / "data") as first:
            client = connect(first.url, retry_for=30)
            client.put("store/t", TABLE)
            info = client.info("store/t")
            first.kill()
        with process_server(tmp_path / "data", listen=first.url.replace("+tcp", "")):
            assert client.get("store/t").read_all() == TABLE
            tickets = [endpoint.ticket for endpoint in info.endpoints]
            assert sum(batch.num_rows for ticket in tickets for batch in client.fetch(ticket.ticket)) == 3

    @pytest.mark.process
    def test_a_put_whose_answer_was_lost_happens_once(self, tmp_path: Path) -> None:
        """The server dies after the transaction and before the answer; the second try finds the run done."""
        with process_server(tmp_path / "data", crash_at="put.recorded") as first:
            client = connect(first.url, retry_for=60)
            with ThreadPoolExecutor(1) as pool:
                receipt = pool.submit(client.put, "store/t", TABLE, mode="append")
                first.process.wait(30)
                with process_server(tmp_path / "data", listen=first.url.replace("+tcp", "")):
                    assert receipt.result(60).rows == 3
                    assert client.info("store/t").rows == 3

    def test_a_stream_that_can_not_be_read_twice_is_not_sent_twice(self, client: Client) -> None:
        taken: list[int] = []

        def once() -> Iterator[pa.RecordBatch]:
            taken.append(1)
            yield TABLE.to_batches()[0]
            raise Unavailable("as if the connection broke")

        with pytest.raises(Unavailable):
            client.put("store/t", once())
        assert taken == [1]


def test_threads_share_a_client(client: Client) -> None:
    def work(n: int) -> int:
        client.put(f"store/t{n}", pa.table({"n": [n]}))
        number: int = client.get(f"store/t{n}").read_all()["n"][0].as_py()
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(40))) == list(range(40))
    assert len(client.list()) == 40
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-get")]


def test_every_error_is_one_of_ours(client: Client) -> None:
    for call in (
        lambda: client.get("store/none"),
        lambda: client.get("queue/none"),
        lambda: client.delete("store/none"),
        lambda: client.delete("write/none"),
        lambda: client.list("nothing/"),
        lambda: client.call("write.open", {"path": "store/x", "mode": "upsert"}),
        lambda: list(client.fetch(b"forged")),
    ):
        with pytest.raises(PenstockError) as seen:
            call()
        assert seen.value.request
        assert not isinstance(seen.value, Denied) or "get a new one" in str(seen.value)


# --- many attempts, many processes ---------------------------------------------------------------


def test_attempts_are_written_by_ticket_and_read_by_ticket(client: Client, server: PenstockServer) -> None:
    opened = client.call("write.open", {"path": "store/x"})
    elsewhere = Client(client.settings.for_tasks(opened.get("location")))
    receipts = []
    for start in (0, 10):
        with elsewhere.attempt(opened["ticket"], pa.schema({"id": pa.int64()})) as writer:
            writer.write(pa.table({"id": range(start, start + 10)}))
        receipts.append(writer.close())
    client.call("write.finish", {"ticket": opened["ticket"], "attempts": [receipt.attempt for receipt in receipts]})

    tickets = [endpoint.ticket.ticket for endpoint in client.info("store/x").endpoints]
    rows = [row for ticket in tickets for batch in elsewhere.fetch(ticket) for row in batch["id"].to_pylist()]
    assert sorted(rows) == list(range(20))
    assert elsewhere.settings.token is None


def test_an_attempt_waits_until_the_server_has_room(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(limits=ServerLimits(streams=1))
    with connect(server.url, retry_for=20) as client:
        opened = client.call("write.open", {"path": "store/x"})
        schema = pa.schema({"id": pa.int64()})
        first = client.attempt(opened["ticket"], schema)
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(client.attempt, opened["ticket"], schema)
            time.sleep(0.2)  # it may be refused in the meantime, and then asks again
            assert not second.done()
            receipt = first.close()
            with second.result(20) as writer:
                writer.write(pa.table({"id": [1]}))
        assert {receipt.rows, writer.close().rows} == {0, 1}


def test_an_attempt_of_an_ended_write_is_rejected_at_once(client: Client) -> None:
    opened = client.call("write.open", {"path": "store/x"})
    client.call("write.abort", {"ticket": opened["ticket"]})
    with pytest.raises(WriteEnded):
        client.attempt(opened["ticket"], pa.schema({"id": pa.int64()}))


def test_the_advertised_address_is_what_tasks_are_told(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(advertise="grpc://127.0.0.1:1")
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        opened = client.call("write.open", {"path": "store/x"})
    assert opened["location"] == "grpc://127.0.0.1:1"
    assert client.settings.for_tasks(opened["location"]).url == "grpc://127.0.0.1:1"


def test_a_stream_whose_other_end_vanishes_without_a_word_breaks(
    proxied: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.connection._KEEPALIVE", [(name, 500) for name, _ in _KEEPALIVE])
    with connect(proxied.url, retry_for=0) as client:
        writer = client.writer("store/x", TABLE.schema)
        writer.write(TABLE)
        with proxied.half_open(), pytest.raises(Unavailable):
            writer.close()
