"""Callers that don't read their answers: they are cut, and hold up neither others nor the server's end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.server import PenstockServer
from tests.kit.server import TOKEN, token_file
from tests.kit.wait import eventually
from tests.kit.wire import at, put, refused, trips

pytestmark = pytest.mark.faults  # each waits for limits to pass

KNOWN = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())], timeout=60)
PIECE = pa.record_batch({"x": np.arange(1 << 18)})  # 2 MiB
ROWS = 12 << 18
IDLE = 4
UNBUFFERED: dict[str, Any] = {"generic_options": [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]}
"""A client that takes no more than it is asked for: by default gRPC's takes all 24 MiB ahead, on a loaded machine."""
Make = Callable[..., PenstockServer]


@pytest.fixture
def there(make_server: Make, tmp_path: Path) -> Iterator[tuple[PenstockServer, flight.FlightClient]]:
    """A server of eight streams that waits four seconds for readers, with one endpoint of 24 MiB."""
    limits = ServerLimits(streams=8, get_idle=IDLE)
    server = make_server(token_file=token_file(tmp_path), limits=limits, watch_every=0.1)
    with flight.connect(server.url) as bare:
        put(bare, at("store/x"), [PIECE] * 12, options=KNOWN)
        yield server, bare


def open_streams(server: PenstockServer) -> int:
    return server.state.streams.open_streams


def ticket(bare: flight.FlightClient, **options: Any) -> flight.Ticket:
    return bare.get_flight_info(at("store/x", **options), KNOWN).endpoints[0].ticket


@contextmanager
def readers_that_stop(
    client: flight.FlightClient, named: flight.Ticket, count: int
) -> Iterator[list[flight.FlightStreamReader]]:
    """Begin to read, and stop; at the end the calls are cancelled, as a server would wait for them for ever."""
    readers = [client.do_get(named) for _ in range(count)]
    try:
        assert all(reader.read_chunk().data.num_rows for reader in readers)
        yield readers
    finally:
        for reader in readers:
            with suppress(flight.FlightError):
                reader.cancel()


@pytest.mark.parametrize("options", [{}, {"limit": ROWS - 1}, {"filter": "x >= 0"}], ids=["whole", "cut", "filtered"])
def test_a_reader_that_stops_is_cut(
    there: tuple[PenstockServer, flight.FlightClient], caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    server, bare = there
    named = ticket(bare, **options)
    with flight.connect(server.url, **UNBUFFERED) as other, readers_that_stop(other, named, 4) as readers:
        assert open_streams(server) == 4
        with refused("unavailable", "4 calls without the server's token are reading"):
            bare.do_get(named).read_all()
        assert bare.do_get(named, KNOWN).read_all().num_rows >= ROWS - 1, "the known are answered meanwhile"
        eventually(lambda: open_streams(server) == 0)
        with pytest.raises(flight.FlightError):
            readers[0].read_all()
    assert f"read nothing of its answer for {IDLE} s" in caplog.text
    assert bare.do_get(named).read_all().num_rows >= ROWS - 1


def test_a_slow_reader_goes_on(there: tuple[PenstockServer, flight.FlightClient]) -> None:
    """It takes longer than the limit in all, and never for one batch."""
    _, bare = there
    reader, rows = bare.do_get(ticket(bare)), 0
    began = time.monotonic()
    for chunk in reader:
        rows += chunk.data.num_rows
        time.sleep(0.4)
    assert time.monotonic() - began > IDLE
    assert rows == ROWS


def test_a_reader_that_stops_does_not_stretch_the_drain(make_server: Make) -> None:
    server = make_server(watch_every=0.1)
    with flight.connect(server.url, **UNBUFFERED) as bare:
        put(bare, at("store/x"), [PIECE] * 12)
        named = bare.get_flight_info(at("store/x")).endpoints[0].ticket
        with readers_that_stop(bare, named, 1):
            began = time.monotonic()
            assert server.close(40) == 0, "no call is left"
            assert time.monotonic() - began < 30


def test_a_listing_takes_a_stream(make_server: Make) -> None:
    server = make_server(limits=ServerLimits(streams=1))
    with flight.connect(server.url) as bare:
        writer, _ = bare.do_put(at("store/x"), trips(1).schema)
        writer.write_batch(trips(1))
        eventually(lambda: open_streams(server) == 1)
        with refused("unavailable", "open streams, its limit"):
            list(bare.list_flights())
        with pytest.raises(flight.FlightError, match="trailer"):
            writer.close()
        assert list(bare.list_flights()) == []
