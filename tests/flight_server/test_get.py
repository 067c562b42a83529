"""do_get: exactly the rows of the ticket, for the ticket's life."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.flight_server.server import PenstockServer
from tests.kit.wait import eventually, files
from tests.kit.wire import (
    TRIPS,
    at,
    attempt_of,
    call,
    fetch,
    ids,
    info,
    list_paths,
    new_attempt,
    put,
    read,
    refused,
    trips,
)

Make = Callable[..., PenstockServer]


def make_parts(client: flight.FlightClient, path: str, *batches: pa.RecordBatch) -> None:
    """Write a dataset with one part for each batch."""
    opened = call(client, "write.open", path=path)
    attempts = [new_attempt() for _ in batches]
    for attempt, batch in zip(attempts, batches, strict=True):
        put(client, attempt_of(opened["ticket"], attempt), [batch])
    call(client, "write.finish", ticket=opened["ticket"], attempts=attempts)


def ends(flight_info: flight.FlightInfo) -> float:
    """Return when the tickets expire."""
    when: float = flight_info.endpoints[0].expiration_time.as_py().timestamp()
    return when


def notes(flight_info: flight.FlightInfo) -> list[tuple[int, int]]:
    """Return the rows and parts of each endpoint."""
    read = [json.loads(endpoint.app_metadata) for endpoint in flight_info.endpoints]
    return [(note["rows"], note["parts"]) for note in read]


def noted_bytes(flight_info: flight.FlightInfo) -> int:
    """Return the bytes of all endpoints."""
    return sum(json.loads(endpoint.app_metadata)["bytes"] for endpoint in flight_info.endpoints)


def test_parts_that_follow_each_other_share_an_endpoint(bare: flight.FlightClient, server: PenstockServer) -> None:
    make_parts(bare, "store/x", trips(1, 2, 3), trips(4), trips(5, 6))

    flight_info = info(bare, "store/x")

    assert notes(flight_info) == [(6, 3)]
    assert [notes(info(bare, "store/x", part=part)) for part in range(3)] == [[(3, 1)], [(1, 1)], [(2, 1)]]
    assert (flight_info.total_records, flight_info.ordered, flight_info.schema) == (6, True, TRIPS)
    assert flight_info.total_bytes == noted_bytes(flight_info) > 0
    assert [location.uri.decode() for location in flight_info.endpoints[0].locations] == [server.url]
    assert time.time() + 11.9 * 3600 < ends(flight_info) < time.time() + 12.1 * 3600
    assert [bare.do_get(endpoint.ticket).read_all().num_rows for endpoint in flight_info.endpoints] == [6]


def test_large_parts_have_endpoints_of_32_mib(bare: flight.FlightClient) -> None:
    batch = pa.record_batch([np.arange(1 << 20)], ["n"])  # 8 MiB
    put(bare, at("store/x"), [batch] * 9)

    flight_info = info(bare, "store/x")

    assert [parts for _, parts in notes(flight_info)] == [3, 3, 3]
    assert flight_info.total_bytes == noted_bytes(flight_info)
    assert fetch(bare, flight_info).column("n").to_numpy().sum() == 9 * batch.column("n").to_numpy().sum()


def test_an_unknown_part_is_refused(bare: flight.FlightClient) -> None:
    put(bare, at("store/x"), [trips(1)])
    with refused("not-found", "no part 1", "it has 1"):
        info(bare, "store/x", part=1)


def test_columns_come_in_the_requested_order(bare: flight.FlightClient) -> None:
    batch = pa.RecordBatch.from_pydict({name: [name] for name in "abcd"})
    put(bare, at("store/x"), [batch, batch])

    for columns in (["d", "a"], ["a", "d"], ["c"], ["b", "d", "a", "c"]):
        flight_info = info(bare, "store/x", columns=columns)
        assert flight_info.schema.names == columns
        assert fetch(bare, flight_info).to_pylist() == [{name: name for name in columns}] * 2


def test_unknown_columns_are_refused_with_a_hint(bare: flight.FlightClient) -> None:
    put(bare, at("store/x"), [trips(1)])

    with refused("invalid", "no column 'citty'", "did you mean 'city'"):
        info(bare, "store/x", columns=["citty"])
    for wrong in ([], ["id", "id"]):
        with refused("invalid", "each once"):
            info(bare, "store/x", columns=wrong)


@pytest.mark.parametrize(("limit", "parts"), [(0, 0), (1, 1), (5, 1), (6, 2), (10, 2), (12, 3), (15, 3), (99, 3)])
def test_a_limit_is_planned_over_the_parts(bare: flight.FlightClient, limit: int, parts: int) -> None:
    numbers = list(range(15))
    make_parts(bare, "store/x", *(trips(*numbers[start : start + 5]) for start in (0, 5, 10)))

    flight_info = info(bare, "store/x", limit=limit)

    assert notes(flight_info) == ([(min(limit, 15), parts)] if parts else [])
    assert flight_info.total_records == min(limit, 15)
    assert fetch(bare, flight_info).column("id").to_pylist() == numbers[:limit]


def test_a_malformed_limit_is_refused(bare: flight.FlightClient) -> None:
    put(bare, at("store/x"), [trips(1)])
    for wrong in (-1, 1.5, "7", True, 1 << 70):
        with refused("invalid", "limit"):
            info(bare, "store/x", limit=wrong)


def test_parts_older_than_a_column_read_null_in_it(bare: flight.FlightClient) -> None:
    put(bare, at("store/x"), [trips(1)])
    wider = trips(2).append_column("tip", pa.array([0.5]))
    put(bare, at("store/x", attempt=new_attempt(), mode="append"), [wider])

    flight_info = info(bare, "store/x")

    assert all(bare.do_get(endpoint.ticket).schema == wider.schema for endpoint in flight_info.endpoints)
    assert read(bare, "store/x").column("tip").to_pylist() == [None, 0.5]
    assert read(bare, "store/x", columns=["tip", "id"]).to_pylist() == [{"tip": None, "id": 1}, {"tip": 0.5, "id": 2}]
    assert read(bare, "store/x", columns=["tip"], limit=1).to_pylist() == [{"tip": None}]


def test_a_part_serves_many_readers_at_once(bare: flight.FlightClient) -> None:
    put(bare, at("store/x"), [trips(number) for number in range(50)])
    (endpoint,) = info(bare, "store/x").endpoints

    readers = [bare.do_get(endpoint.ticket) for _ in range(8)]

    assert [reader.read_all().column("id").to_pylist() for reader in readers] == [list(range(50))] * 8


# --- tickets -------------------------------------------------------------------------------


def test_an_expired_ticket_is_refused_as_expired(make_server: Make) -> None:
    with flight.connect(make_server(ticket_life=0.2).url) as bare:
        put(bare, at("store/x"), [trips(1)])
        flight_info = info(bare, "store/x")
        eventually(lambda: time.time() > ends(flight_info))
        with refused("expired", "store/x", "read again"):
            bare.do_get(flight_info.endpoints[0].ticket).read_all()

        def again() -> bool:
            with suppress(flight.FlightServerError):  # it took longer than the new one's life, too
                return ids(bare, "store/x") == [1]
            return False

        eventually(again)


def test_a_ticket_is_good_for_its_own_verb_alone(bare: flight.FlightClient) -> None:
    put(bare, at("store/x"), [trips(1)])
    to_read = info(bare, "store/x").endpoints[0].ticket.ticket
    to_write = call(bare, "write.open", path="store/y")["ticket"]

    with refused("denied", "ReadTicket"):
        bare.do_get(flight.Ticket(to_write.encode())).read_all()
    with refused("denied", "WriteTicket"):
        put(bare, attempt_of(to_read.decode(), new_attempt()), [trips(1)])
    with refused("denied", "WriteTicket"):
        call(bare, "write.finish", ticket=to_read.decode(), attempts=[])


# --- bytes that outlive their dataset ------------------------------------------------------


@pytest.mark.parametrize("way", ["delete", "overwrite"])
def test_bytes_stay_for_a_tickets_life_and_no_longer(
    bare: flight.FlightClient, server: PenstockServer, tmp_path: Path, way: str
) -> None:
    make_parts(bare, "store/x", trips(1, 2), trips(3))
    before = files(tmp_path / "data" / "parts")
    flight_info = info(bare, "store/x")

    if way == "delete":
        assert call(bare, "delete", path="store/x")["rows"] == 3
        assert list_paths(bare) == []
    else:
        put(bare, at("store/x", attempt=new_attempt(), mode="overwrite"), [trips(9)])
        assert ids(bare, "store/x") == [9]
    sweep_at(server, ends(flight_info) - 1)
    assert fetch(bare, flight_info).column("id").to_pylist() == [1, 2, 3]

    sweep_at(server, ends(flight_info) + 120)

    assert not before & files(tmp_path / "data" / "parts")
    with refused("lost", "is gone"):
        fetch(bare, flight_info)


def sweep_at(server: PenstockServer, now: float) -> None:
    """Sweep at this time."""
    server.state.ledger.now = lambda: now
    server.state.sweeper._sweep()
    server.state.ledger.now = time.time


# --- what is lost is lost by name ----------------------------------------------------------


def test_rows_in_the_memory_of_a_stopped_server_are_lost_by_name(make_server: Make, tmp_path: Path) -> None:
    first = make_server(store="memory:", data=tmp_path / "m")
    with flight.connect(first.url) as bare:
        put(bare, at("store/x"), [trips(1, 2)])
        assert ids(bare, "store/x") == [1, 2]
        ticket = info(bare, "store/x").endpoints[0].ticket
    restarted = restart(first, make_server, store="memory:", data=tmp_path / "m")

    with flight.connect(restarted.url) as bare:
        with refused("lost", "store/x is lost", "2 rows", "overwrite"):
            info(bare, "store/x")
        with refused("lost", "server that has stopped"):
            bare.do_get(ticket).read_all()
        (entry,) = (json.loads(listed.app_metadata) for listed in bare.list_flights())
        assert (entry["path"], entry["state"], entry["rows"]) == ("store/x", "lost", 2)
        assert call(bare, "describe", path="store/x")["lost"] is True
        put(bare, at("store/x", attempt=new_attempt(), mode="overwrite"), [trips(3)])
        assert ids(bare, "store/x") == [3]


def restart(server: PenstockServer, make_server: Make, **settings: object) -> PenstockServer:
    """Stop a server and start another on its data folder, in this process."""
    server.close(5)
    server.state.store.close()
    server.state.ledger.close()
    (Path(str(settings["data"])) / "lock").unlink()  # the fixture holds it until the test's end
    return make_server(**settings)


def test_a_part_whose_file_changed_is_never_served(bare: flight.FlightClient, tmp_path: Path) -> None:
    make_parts(bare, "store/x", trips(1, 2), trips(3))
    whole, hit = (info(bare, "store/x", part=part).endpoints[0].ticket for part in range(2))
    assert bare.do_get(hit).read_all().num_rows == 1
    (name,) = json.loads(hit.ticket.rpartition(b".")[0])["get"]
    (file,) = (tmp_path / "data" / "parts").rglob(name)
    with file.open("r+b") as writable:  # in place: a map of a file that is cut ends the process that reads it
        writable.seek(file.stat().st_size // 2)
        byte = writable.read(1)[0]
        writable.seek(-1, 1)
        writable.write(bytes([byte ^ 1]))

    for _ in range(2):
        with refused("lost", name, "quarantine"):
            bare.do_get(hit).read_all()
    assert bare.do_get(whole).read_all().num_rows == 2
    with refused("lost", name):  # after the rows of the whole one: an error, never fewer rows
        read(bare, "store/x")
    assert name in files(tmp_path / "data" / "quarantine")
