"""Writes through the wire: attempts and the finish that lists them, runs, modes, paths and schemas."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from penstock.flight_server.server import PenstockServer
from tests.kit import wire
from tests.kit.wait import eventually, files
from tests.kit.wire import TRIPS, at, attempt_of, call, ids, new_attempt, put, refused, trailer, trips


def stored_files(folder: Path) -> set[str]:
    """Return the names of the files that puts have left in the data folder."""
    return files(folder / "data" / "parts") | files(folder / "data" / "tmp")


def test_finish_shows_the_listed_attempts_in_their_order(bare: flight.FlightClient) -> None:
    ticket = call(bare, "write.open", path="store/x")["ticket"]
    first, second, third = (new_attempt() for _ in range(3))
    for attempt, batch in ((first, trips(1, 2)), (second, trips(3)), (third, trips(4))):
        put(bare, attempt_of(ticket, attempt), [batch])
    assert wire.list_paths(bare) == []

    summary = call(bare, "write.finish", ticket=ticket, attempts=[third, first, second])

    assert (summary["state"], summary["rows"], summary["attempts"]) == ("finished", 4, 3)
    assert ids(bare, "store/x") == [4, 1, 2, 3]


def test_an_attempt_put_twice_counts_once(bare: flight.FlightClient, tmp_path: Path) -> None:
    """The repeat gets the first receipt; other rows are refused."""
    ticket = call(bare, "write.open", path="store/x")["ticket"]
    attempt = new_attempt()

    once = put(bare, attempt_of(ticket, attempt), [trips(1, 2)])
    again = put(bare, attempt_of(ticket, attempt), [trips(1, 2)])
    for others in (trips(2, 1), trips(1, 2, 3), trips()):
        with refused("exists", str(once["attempt"]), "recorded with 2 rows", f"the {others.num_rows} rows"):
            put(bare, attempt_of(ticket, attempt), [others])
    call(bare, "write.finish", ticket=ticket, attempts=[attempt, attempt])

    assert once == again
    assert ids(bare, "store/x") == [1, 2]
    assert len(stored_files(tmp_path)) == 1


def test_a_memory_store_compares_the_rows_of_an_attempt(
    make_server: Callable[..., PenstockServer], tmp_path: Path
) -> None:
    """The first rows are in memory, the repeated ones may be spilled to the disk."""
    rows = trips(*range(50))
    server = make_server(data=tmp_path / "memory", store=f"memory:?max={rows.nbytes * 3 // 2}")
    with flight.connect(server.url) as bare:
        ticket, attempt = call(bare, "write.open", path="store/x")["ticket"], new_attempt()
        once = put(bare, attempt_of(ticket, attempt), [rows])
        assert put(bare, attempt_of(ticket, attempt), [rows]) == once
        with refused("exists", "recorded with 50 rows"):
            put(bare, attempt_of(ticket, attempt), [trips(*range(1, 51))])


def test_an_attempt_put_many_times_at_once_counts_once(
    bare: flight.FlightClient, server: PenstockServer, tmp_path: Path
) -> None:
    ticket = call(bare, "write.open", path="store/x")["ticket"]
    attempt = new_attempt()

    def put_again(number: int) -> dict[str, Any] | None:
        with flight.connect(server.url) as other, contextlib.suppress(flight.FlightServerError):
            return put(other, attempt_of(ticket, attempt), [trips(number)] * 50)
        return None

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(put_again, [7, 7, 7, 7, 8, 8]))
    call(bare, "write.finish", ticket=ticket, attempts=[attempt])

    receipts = [receipt for receipt in results if receipt is not None]
    rows = ids(bare, "store/x")
    assert receipts == [receipts[0]] * (4 if rows[0] == 7 else 2), "puts of other rows are refused"
    assert rows == [rows[0]] * 50
    eventually(lambda: len(stored_files(tmp_path)) == 1)


def test_finish_refuses_broken_and_foreign_attempts(bare: flight.FlightClient) -> None:
    ticket = call(bare, "write.open", path="store/x")["ticket"]
    other = call(bare, "write.open", path="store/y")["ticket"]
    foreign, broken = new_attempt(), new_attempt()
    put(bare, attempt_of(other, foreign), [trips(1)])
    with refused("invalid"):
        put(bare, attempt_of(ticket, broken), [trips(1)], end=trailer(9, 9))

    for attempt in (foreign, broken, new_attempt(), "nonsense"):
        with refused("not-found", "no whole attempt"):
            call(bare, "write.finish", ticket=ticket, attempts=[attempt])
    with refused("exists"):
        put(bare, attempt_of(ticket, foreign), [trips(1)])
    assert wire.list_paths(bare) == []


def test_an_empty_finish_has_the_columns_of_its_open(bare: flight.FlightClient) -> None:
    columns = base64.b64encode(TRIPS.serialize()).decode()
    ticket = call(bare, "write.open", path="store/x", schema=columns)["ticket"]
    call(bare, "write.finish", ticket=ticket, attempts=[])

    assert wire.read(bare, "store/x").schema == TRIPS


# --- runs ----------------------------------------------------------------------------------


def test_only_the_last_opener_of_a_run_may_abort_it(bare: flight.FlightClient) -> None:
    first = call(bare, "write.open", path="store/x", run="r")
    last = call(bare, "write.open", path="store/x", run="r")

    with refused("write-ended", "later opener"):
        call(bare, "write.abort", ticket=first["ticket"])
    assert call(bare, "write.abort", ticket=last["ticket"])["state"] == "aborted"
    assert call(bare, "write.open", path="store/x", run="r")["write"] != first["write"]


def test_an_aborted_write_takes_no_put_and_no_finish(bare: flight.FlightClient, tmp_path: Path) -> None:
    """Its bytes are removed."""
    ticket = call(bare, "write.open", path="store/x")["ticket"]
    attempt = new_attempt()
    put(bare, attempt_of(ticket, attempt), [trips(1)])

    assert call(bare, "write.abort", ticket=ticket)["state"] == "aborted"
    assert call(bare, "write.abort", ticket=ticket)["state"] == "aborted"

    with refused("write-ended", "aborted"):
        put(bare, attempt_of(ticket, new_attempt()), [trips(1)])
    with refused("write-ended", "aborted"):
        call(bare, "write.finish", ticket=ticket, attempts=[attempt])
    eventually(lambda: stored_files(tmp_path) == set())
    assert wire.list_paths(bare) == []


# --- modes, paths, schemas -----------------------------------------------------------------


def test_two_columns_of_one_name_are_refused(bare: flight.FlightClient) -> None:
    twins = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with refused("invalid", "'a'", "more than once"):
        put(bare, at("store/x"), [twins])
    assert wire.list_paths(bare, b"write/") == []
