"""Limits: a stream above one is refused by the limit's name, and other streams are not affected."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.client import connect
from penstock.errors import StoreFull
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.server import PenstockServer
from penstock.rows import schemas
from penstock.store.disk import DiskMedium
from penstock.store.medium import Room
from tests.kit.raw_flight import RawFlight, flight_data
from tests.kit.server import process_server
from tests.kit.wait import descriptors, eventually, files, peak_memory, threads
from tests.kit.wire import (
    TRIPS,
    at,
    attempt_of,
    call,
    error_code,
    error_details,
    ids,
    info,
    list_paths,
    new_attempt,
    put,
    read,
    refused,
    trailer,
    trips,
)

pytestmark = pytest.mark.faults  # seconds of them

Make = Callable[..., PenstockServer]


@pytest.mark.parametrize(
    ("limit", "amount", "batches"),
    [("batch_rows", 2, [trips(1), trips(2, 3, 4)]),
     ("batch_bytes", 100, [trips(1), trips(*range(20))]),
     ("put_rows", 4, [trips(1, 2), trips(3, 4), trips(5)]),
     ("put_bytes", 300, [trips(*range(5)), trips(*range(5)), trips(*range(5)), trips(*range(5))]),
     ("put_batches", 2, [trips(1), trips(2), trips(3)]),
     ("columns", 1, [trips(1)]),
     ("schema_bytes", 999, [trips(1).replace_schema_metadata({"x": "y" * 1_000})])],
)  # fmt: skip
def test_more_than_a_limit_is_refused_by_the_limits_name(
    make_server: Make, tmp_path: Path, limit: str, amount: int, batches: list[pa.RecordBatch]
) -> None:
    server = make_server(limits=ServerLimits(**{limit: amount}))
    with flight.connect(server.url) as bare:
        with refused("limit", f"--limit {limit}=", f"{amount}"):
            put(bare, at("store/x"), batches)
        assert list_paths(bare) == list_paths(bare, b"write/") == []
        put(bare, at("store/x"), [trips(1).select(["id"])])
        assert ids(bare, "store/x") == [1]
    assert len(files(tmp_path / "data" / "parts")) == 1


def test_a_schema_is_4_mib_at_most(bare: flight.FlightClient) -> None:
    """With metadata and names, in a put and in an announcement."""
    large = pa.schema([("x" * (5 << 20), pa.int8())])
    with refused("limit", "bytes in a schema with its metadata", "--limit schema_bytes="):
        put(bare, at("store/x"), [], schema=large)
    with refused("limit", "bytes in a schema with its metadata"):
        call(bare, "write.open", path="store/x", schema=schemas.encode(large))


@pytest.mark.parametrize("verb", ["put", "write.open", "write.finish"])
def test_a_run_has_1024_bytes_at_most(bare: flight.FlightClient, verb: str) -> None:
    opened = call(bare, "write.open", path="store/x")
    with refused("invalid", "run: expected a string of at most 1,024 bytes"):
        put_run(bare, verb, opened["ticket"], "ä" * 512 + "x")
    put_run(bare, verb, opened["ticket"], "ä" * 512)


def put_run(bare: flight.FlightClient, verb: str, ticket: str, run: str) -> None:
    if verb == "put":
        put(bare, at("store/y", attempt=new_attempt(), run=run), [trips(1)])
    elif verb == "write.open":
        call(bare, verb, path="store/y", run=run)
    else:
        put(bare, attempt_of(ticket, attempt := new_attempt()), [trips(1)])
        call(bare, verb, ticket=ticket, attempts=[attempt], run=run)


def test_a_dictionary_that_batches_share_is_stored_once(bare: flight.FlightClient, server: PenstockServer) -> None:
    """Once in a part: 8 MB of words and 200 batches of one row were 800 MB on disk."""
    words = pa.array([f"{number:0100}" for number in range(80_000)])
    columns = [pa.DictionaryArray.from_arrays(pa.array([number], pa.int32()), words) for number in range(200)]
    nested = [pa.StructArray.from_arrays([column], ["word"]) for column in columns]
    for each in (columns, nested):
        batches = [pa.record_batch({"x": column}) for column in each]
        put(bare, at("store/x", attempt=new_attempt(), mode="overwrite"), batches)
        assert read(bare, "store/x").to_pylist() == pa.Table.from_batches(batches).to_pylist()
        assert server.state.ledger.dataset("store/x").bytes < 40 << 20


def test_a_new_dictionary_in_each_batch_fills_parts(bare: flight.FlightClient, server: PenstockServer) -> None:
    batches = [
        pa.record_batch({"x": pa.array([f"{start + number:0100}" for number in range(40_000)]).dictionary_encode()})
        for start in range(0, 200_000, 40_000)
    ]
    put(bare, at("store/x"), batches)
    assert server.state.ledger.dataset("store/x").part_count >= 2
    assert read(bare, "store/x").num_rows == 200_000


def test_exactly_the_limit_is_taken(make_server: Make) -> None:
    with flight.connect(
        make_server(limits=ServerLimits(batch_rows=3, put_rows=6, put_batches=2, columns=2)).url
    ) as bare:
        put(bare, at("store/x"), [trips(1, 2, 3), trips(4, 5, 6)])
        assert ids(bare, "store/x") == [1, 2, 3, 4, 5, 6]


def test_a_batch_of_very_many_nulls_is_refused_by_default(bare: flight.FlightClient) -> None:
    """The batch has no bytes and 2^27 rows."""
    with refused("limit", "batch_rows"):
        put(bare, at("store/x"), [pa.RecordBatch.from_arrays([pa.nulls(1 << 27)], names=["n"])])


@pytest.mark.parametrize(
    ("quota", "numbers"),
    [(1_000_000, r"the store has 9.* of 1,000,000 bytes in use, no room for 15,625 more"),
     (None, r"no room on the disk for 15,625 bytes: it has [0-9,]{1,6},")],
    ids=["quota", "disk"],
)  # fmt: skip
def test_an_attempt_waits_for_room_before_its_first_byte(
    make_server: Make, monkeypatch: pytest.MonkeyPatch, quota: int | None, numbers: str
) -> None:
    """It goes on once something is deleted; one that waits too long fails with the numbers."""
    if quota is None:
        monkeypatch.setattr(
            DiskMedium, "room", lambda medium: Room(1_000_000, 1_000_000 - sum(size for _, size in medium.names()))
        )
    server = make_server(quota=quota, ticket_life=0.1)
    full = pa.table({"x": pa.array(range(124_000))})
    with connect(server.url, retry_for=60) as client:
        client.put("store/full", full)
        opened = client.call("write.open", {"path": "store/x"})
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(client.attempt, opened["ticket"], full.schema)
            try:
                eventually(lambda: 'penstock_errors_total{code="full",verb="do_put"}' in server.state.metrics.text())
                assert not waiting.done()
            finally:
                client.delete("store/full")
                with waiting.result(60) as writer:
                    writer.write(full.slice(0, 10_000))
        assert client.call("write.finish", {"ticket": opened["ticket"], "attempts": [writer.close().attempt]})
        assert client.get("store/x").read_all().equals(full.slice(0, 10_000))
    with connect(server.url, retry_for=1) as client:
        client.put("store/full", full.slice(0, 114_000))
        opened = client.call("write.open", {"path": "store/y"})
        with pytest.raises(StoreFull, match=f"stayed busy for 1 s: {numbers}"):
            client.attempt(opened["ticket"], full.schema)
    assert server.state.store._admitted == 0


def test_a_full_quota_refuses_a_put_until_something_is_deleted(make_server: Make, tmp_path: Path) -> None:
    table = pa.table({"n": range(10_000)})
    with flight.connect(make_server(quota=100_000).url) as bare:
        put(bare, at("store/a"), table.to_batches())
        with refused("full", "quota", "penstock rm"):
            put(bare, at("store/b"), table.to_batches())
        assert list_paths(bare) == ["store/a"]
        assert len(files(tmp_path / "data" / "parts")) == 1

        call(bare, "delete", path="store/a", now=True)
        eventually(lambda: call(bare, "health")["store_bytes"] == 0)
        put(bare, at("store/b"), table.to_batches())
        assert list_paths(bare) == ["store/b"]


def test_every_limit_is_in_the_operators_table_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page, re.MULTILINE))
    assert ServerLimits() == ServerLimits(**dict.fromkeys(told, 0)).changed(told)
    assert set(told) == {field.name for field in fields(ServerLimits)}


# --- how many, how long --------------------------------------------------------------------


@contextmanager
def idle_put(client: flight.FlightClient, path: str = "store/idle") -> Iterator[Any]:
    """Begin a put that sends one batch and nothing more; it fails when the block ends."""
    writer, _ = client.do_put(at(path), TRIPS)
    writer.write_batch(trips(1))
    with pytest.raises(flight.FlightError) as ended:
        try:
            yield ended
        finally:
            writer.close()


def test_one_stream_too_many_is_refused_until_another_ends(make_server: Make) -> None:
    server = make_server(limits=ServerLimits(streams=2))
    with flight.connect(server.url) as bare:
        with idle_put(bare, "store/one"), idle_put(bare, "store/two"):
            eventually(lambda: server.state.streams.open_streams == 2)
            for verb in (
                lambda: put(bare, at("store/x"), [trips(1)]),
                lambda: bare.do_get(flight.Ticket(b"-")).read_all(),
            ):
                with refused("unavailable", "2 streams open", "streams="):
                    verb()
            assert call(bare, "health")["open_streams"] == 2

        eventually(lambda: server.state.streams.open_streams == 0)
        put(bare, at("store/x"), [trips(1)])


def test_a_refusal_at_the_gate_has_a_retry_time_and_a_request_id(
    make_server: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "penstock"), flight.connect(make_server(limits=ServerLimits(streams=0)).url) as bare:
        with pytest.raises(flight.FlightUnavailableError) as caught:
            put(bare, at("store/x"), [trips(1)])
        assert error_details(caught.value)["retry_after"] > 0
        assert error_details(caught.value)["request"] in caplog.text


def test_a_silent_put_is_cut_and_leaves_nothing(make_server: Make, tmp_path: Path) -> None:
    server = make_server(limits=ServerLimits(put_idle=3), watch_every=0.1)
    with flight.connect(server.url) as silent, flight.connect(server.url) as other:
        assert list_paths(other) == []
        with idle_put(silent) as ended:
            eventually(lambda: list_paths(other, b"write/"), what="the put is open")
            eventually(lambda: server.state.streams.open_streams == 0, what="it was cut")
        assert ended.type is flight.FlightUnavailableError

        assert list_paths(other) == list_paths(other, b"write/") == []
        assert files(tmp_path / "data" / "parts") == files(tmp_path / "data" / "tmp") == set()
        put(other, at("store/idle"), [trips(2)])
        assert ids(other, "store/idle") == [2]


def test_a_put_is_cut_once_a_descriptor_is_free(
    make_server: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever opens connections until none is left must not end the watch for good."""

    def none_is_free(fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    server = make_server(limits=ServerLimits(put_idle=1), watch_every=0.1)
    with flight.connect(server.url) as silent, idle_put(silent) as ended:
        with monkeypatch.context() as exhausted:
            exhausted.setattr(os, "dup", none_is_free)
            eventually(lambda: "can't be cut for now" in caplog.text)
        eventually(lambda: server.state.streams.open_streams == 0, what="it was cut")
    assert ended.type is flight.FlightUnavailableError


def test_a_put_that_takes_too_long_is_cut(make_server: Make) -> None:
    server = make_server(limits=ServerLimits(put_time=1), watch_every=0.1)
    with flight.connect(server.url) as bare, flight.connect(server.url) as other:
        writer, _ = bare.do_put(at("store/x"), TRIPS)
        give_up = time.monotonic() + 30
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            while time.monotonic() < give_up:
                writer.write_batch(trips(1))
                time.sleep(0.01)
        eventually(lambda: server.state.streams.open_streams == 0)
        assert list_paths(other) == list_paths(other, b"write/") == []


def test_a_put_that_goes_on_sending_is_not_cut(make_server: Make) -> None:
    server = make_server(limits=ServerLimits(put_idle=3), watch_every=0.1)
    with flight.connect(server.url) as bare:
        writer, reader = bare.do_put(at("store/x"), TRIPS)
        began, sent = time.monotonic(), 0
        while time.monotonic() < began + 4:
            writer.write_batch(trips(sent))
            sent += 1
            time.sleep(0.1)
        writer.write_metadata(trailer(sent, sent))
        writer.done_writing()
        reader.read()
        writer.close()
        assert ids(bare, "store/x") == list(range(sent))


def test_a_put_that_sends_its_descriptor_alone_is_cut(make_server: Make) -> None:
    server = make_server(limits=ServerLimits(put_idle=1), watch_every=0.1)
    with RawFlight(str(server.url)) as silent:
        silent.begin([flight_data(path=("store", "x"))])
        eventually(lambda: server.state.streams.open_streams == 1)
        eventually(lambda: server.state.streams.open_streams == 0)


def test_cutting_a_put_leaves_no_descriptor_behind(make_server: Make, tmp_path: Path) -> None:
    server = make_server(limits=ServerLimits(put_idle=1), watch_every=0.1)

    def ledgers_open() -> int:
        links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
        return sum(os.path.lexists(link) and os.readlink(link).endswith("ledger.db") for link in links)

    before = ledgers_open()
    for _ in range(3):
        with flight.connect(server.url) as silent, idle_put(silent):
            eventually(lambda: server.state.streams.open_streams == 1)
            eventually(lambda: server.state.streams.open_streams == 0)
    assert ledgers_open() == before


# --- three hundred -------------------------------------------------------------------------


def stalled(url: str, count: int) -> list[tuple[flight.FlightClient, list[Any]]]:
    """Begin `count` idle puts over a few connections."""
    clients = [flight.connect(url) for _ in range(6)]
    return [
        (client, [client.do_put(at(f"store/idle/{number}"), TRIPS)[0] for number in range(at_, count, len(clients))])
        for at_, client in enumerate(clients)
    ]


def outcomes(puts: list[tuple[flight.FlightClient, list[Any]]]) -> list[str]:
    """Close each put without its trailer; return the codes of their errors."""
    codes = []
    for client, writers in puts:
        for writer in writers:
            with pytest.raises(flight.FlightError) as caught:
                writer.close()
            codes.append(error_code(caught.value))
        client.close()
    return codes


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize(("streams", "admitted"), [(128, 128), (400, 300)])
def test_of_three_hundred_idle_puts_only_the_limit_is_admitted(tmp_path: Path, streams: int, admitted: int) -> None:
    """The server has 1 GB of memory, and each call's thread takes its stack of it."""
    with (
        process_server(tmp_path / "d", memory_limit=1 << 30, limits={"streams": streams}) as server,
        flight.connect(server.url) as bare,
    ):
        put(bare, at("store/x"), [trips(1, 2)])
        ticket = info(bare, "store/x").endpoints[0].ticket
        base = threads(server.pid), descriptors(server.pid)

        puts = stalled(server.url, 300)
        eventually(lambda: call(bare, "health")["open_streams"] == admitted)

        assert call(bare, "describe", path="store/x")["rows"] == 2
        if admitted < streams:
            assert len(list_paths(bare)) == 1
            assert bare.do_get(ticket).read_all().num_rows == 2
            put(bare, at("store/y"), [trips(1)])
        codes = outcomes(puts)
        puts.clear()
        assert (codes.count("invalid"), codes.count("unavailable")) == (admitted, 300 - admitted)
        eventually(lambda: call(bare, "health")["open_streams"] == 0)
        assert ids(bare, "store/x") == [1, 2]
        assert list_paths(bare, b"write/") == []
        eventually(lambda: threads(server.pid) <= base[0] + 8, what=f"threads back to {base[0]}")
        eventually(lambda: descriptors(server.pid) <= base[1] + 4, what=f"descriptors back to {base[1]}")
        assert peak_memory(server.pid) < 600 << 20
