"""Callers without the token: their answers, and how many streams they can occupy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.flight as flight
import pytest

from penstock.flight_server.gate import Gate, Streams
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.metrics import Metrics
from penstock.flight_server.server import PenstockServer
from penstock.flight_server.tokens import Tokens
from tests.kit.raw_flight import RawFlight
from tests.kit.server import TOKEN, process_server, token_file
from tests.kit.wait import eventually
from tests.kit.wire import TRIPS, at, attempt_of, call, new_attempt, put, refused, trailer, trips

KNOWN = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())], timeout=60)
UNKNOWN = flight.FlightCallOptions(timeout=60)  # or a put that a failed test leaves open holds the server's end


@pytest.fixture
def token(tmp_path: Path) -> Path:
    return token_file(tmp_path)


@pytest.fixture
def small(make_server: Callable[..., PenstockServer], token: Path) -> PenstockServer:
    """A server of four streams."""
    return make_server(token_file=token, limits=ServerLimits(streams=4))


@pytest.fixture
def there(small: PenstockServer) -> Iterator[flight.FlightClient]:
    with flight.connect(small.url) as client:
        yield client


def test_health_tells_strangers_the_state_and_nothing_else(there: flight.FlightClient) -> None:
    put(there, at("store/x"), [trips(1)], options=KNOWN)
    assert call(there, "health") == {"state": "serving"}
    assert call(there, "health", KNOWN)["rows"] == 1


def test_puts_by_ticket_alone_may_take_every_stream(small: PenstockServer, there: flight.FlightClient) -> None:
    """Their first message has come: they are not counted as silent strangers."""
    ticket = call(there, "write.open", KNOWN, path="store/x")["ticket"]
    attempts, puts = [new_attempt() for _ in range(4)], []
    for attempt in attempts:
        puts.append(there.do_put(attempt_of(ticket, attempt), TRIPS, UNKNOWN))
        eventually(lambda: small.state.streams.open_streams == len(puts))
        eventually(lambda: small.state.streams.strangers["silent"] == 0)

    for writer, reader in puts:
        writer.write_batch(trips(1))
        writer.write_metadata(trailer(1, 1))
        writer.done_writing()
        assert reader.read() is not None
        writer.close()
    assert call(there, "write.finish", ticket=ticket, attempts=attempts)["rows"] == 4


@pytest.fixture
def gate() -> Gate:
    """The gate of a server of four streams."""
    streams = Streams(4)
    streams.admit()
    return Gate(Tokens(TOKEN), streams, Metrics())


@pytest.mark.parametrize("verb", [flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_EXCHANGE])
def test_silent_strangers_may_take_half_of_the_streams(gate: Gate, verb: flight.FlightMethod) -> None:
    silent, speaks = (gate.start_call(flight.CallInfo(verb), {}) for _ in range(2))

    with refused("unavailable", "2 calls without the server's token", "try again"):
        gate.start_call(flight.CallInfo(verb), {})
    for _ in range(2):
        gate.start_call(flight.CallInfo(verb), {"authorization": [f"Bearer {TOKEN}"]})
    assert gate.streams.open_streams == 4

    speaks.heard()
    speaks.call_completed(None)
    gate.start_call(flight.CallInfo(verb), {}).call_completed(None)
    silent.call_completed(None)
    assert gate.streams.open_streams == 2
    assert gate.streams.strangers == {"silent": 0, "reading": 0}


@pytest.mark.parametrize(("streams", "admitted"), [(1, 1), (2, 1), (3, 1), (5, 2)])
def test_strangers_may_take_half_rounded_down_but_always_one(streams: int, admitted: int) -> None:
    """A task has a ticket and no token, so it counts as one until its first message has come."""
    few = Gate(Tokens(TOKEN), counted := Streams(streams), Metrics())
    counted.admit()
    for _ in range(admitted):
        few.start_call(flight.CallInfo(flight.FlightMethod.DO_PUT), {})
    with refused("unavailable", "try again"):
        few.start_call(flight.CallInfo(flight.FlightMethod.DO_PUT), {})


def test_readers_by_ticket_alone_may_take_half_of_the_streams(gate: Gate) -> None:
    first, _ = (gate.start_call(flight.CallInfo(flight.FlightMethod.DO_GET), {}) for _ in range(2))

    with refused("unavailable", "2 calls without the server's token are reading", "try again"):
        gate.start_call(flight.CallInfo(flight.FlightMethod.DO_GET), {})
    gate.start_call(flight.CallInfo(flight.FlightMethod.DO_GET), {"authorization": [f"Bearer {TOKEN}"]})

    first.heard()
    assert gate.streams.strangers["reading"] == 2, "a reader counts until its end"
    first.call_completed(None)
    gate.start_call(flight.CallInfo(flight.FlightMethod.DO_GET), {})


def test_strangers_of_both_sorts_leave_a_stream_to_the_known(gate: Gate) -> None:
    """Those who send nothing don't keep the others from reading, and the reverse."""
    for verb in (flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_PUT, flight.FlightMethod.DO_GET):
        gate.start_call(flight.CallInfo(verb), {})
    with refused("unavailable", "3 calls without the server's token"):
        gate.start_call(flight.CallInfo(flight.FlightMethod.DO_GET), {})
    gate.start_call(flight.CallInfo(flight.FlightMethod.DO_GET), {"authorization": [f"Bearer {TOKEN}"]})


def test_where_no_token_is_set_nobody_is_a_stranger() -> None:
    open_to_all = Gate(Tokens(), streams := Streams(4), Metrics())
    streams.admit()
    for _ in range(4):
        open_to_all.start_call(flight.CallInfo(flight.FlightMethod.DO_PUT), {})
    assert streams.strangers == {"silent": 0, "reading": 0}


@pytest.mark.process
@pytest.mark.faults
def test_three_hundred_silent_strangers_hold_half_of_the_streams(tmp_path: Path, token: Path) -> None:
    with (
        process_server(tmp_path / "d", token_file=str(token), limits={"streams": 128}) as server,
        flight.connect(server.url) as there,
    ):

        def open_streams() -> int:
            return int(call(there, "health", KNOWN)["open_streams"])

        opened = call(there, "write.open", KNOWN, path="store/later")
        put(there, at("store/x"), [trips(1, 2)], options=KNOWN)
        running, receipt = there.do_put(attempt_of(opened["ticket"], early := new_attempt()), TRIPS)
        running.write_batch(trips(1))
        eventually(lambda: open_streams() == 1)
        flood = [RawFlight(server.url) for _ in range(3)]
        for connection in flood:
            for _ in range(100):
                connection.begin([])
        eventually(lambda: open_streams() == 65)

        put(there, at("store/y"), [trips(1)], options=KNOWN)
        assert names_known(there) == {"store/x", "store/y"}
        ticket = there.get_flight_info(at("store/x"), KNOWN).endpoints[0].ticket
        assert there.do_get(ticket).read_all().num_rows == 2, "readers go on"
        with refused("unavailable", "64 calls without the server's token have sent nothing"):
            put(there, attempt_of(opened["ticket"], new_attempt()), [trips(2)])
        running.write_metadata(trailer(1, 1))
        running.done_writing()
        assert receipt.read() is not None, "a put that has begun goes on"
        running.close()
        assert open_streams() == 64, "and all silent ones are still open"

        for connection in flood:
            connection.close()
        eventually(lambda: open_streams() == 0)
        put(there, attempt_of(opened["ticket"], late := new_attempt()), [trips(2)])
        assert call(there, "write.finish", ticket=opened["ticket"], attempts=[early, late])["rows"] == 2


def names_known(client: flight.FlightClient) -> set[str]:
    return {
        "/".join(part.decode() for part in listed.descriptor.path) for listed in client.list_flights(b"store/", KNOWN)
    }
