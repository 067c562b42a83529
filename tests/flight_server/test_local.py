"""The local door: tickets are answered with file descriptors, and no reader blocks the others."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.flight_server import local
from tests.kit.wait import eventually
from tests.kit.wire import at, info, put, trips

Knock = Callable[[], socket.socket]


@pytest.fixture
def ticket(bare: flight.FlightClient) -> bytes:
    """The ticket of a dataset of two rows."""
    put(bare, at("store/x"), [trips(1, 2)])
    raw: bytes = info(bare, "store/x").endpoints[0].ticket.ticket
    return raw


@pytest.fixture
def knock(bare: flight.FlightClient, ticket: bytes) -> Iterator[Knock]:
    """Makes connections to the door, as docs/wire.md describes; they are closed with the test."""
    name = json.loads(info(bare, "store/x").app_metadata)["local"]
    with ExitStack() as stack:

        def connection() -> socket.socket:
            peer = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            peer.settimeout(20)
            peer.connect(f"\0{name}")
            return peer

        yield connection


def asks(peer: socket.socket, ticket: bytes) -> int | None:
    """Send a ticket; return how many rows the descriptor of the answer has, None if the door disconnects."""
    try:
        peer.send(ticket)
        answer, fds, _, _ = socket.recv_fds(peer, 65_536, 8)
    except ConnectionError:
        return None
    if not answer:
        return None
    [(start, length)] = json.loads(answer)["ranges"]
    with os.fdopen(fds[0], "rb") as file:
        file.seek(start)
        return int(pa.ipc.open_stream(pa.py_buffer(file.read(length))).read_all().num_rows)


def test_each_ticket_is_answered_with_a_read_only_descriptor(knock: Knock, ticket: bytes) -> None:
    peer = knock()
    assert [asks(peer, ticket) for _ in range(3)] == [2, 2, 2]
    peer.send(ticket)
    _, (fd,), _, _ = socket.recv_fds(peer, 65_536, 8)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(fd, b"x")
    os.close(fd)


def test_a_forged_or_filtered_ticket_gets_no_descriptor(knock: Knock, ticket: bytes, bare: flight.FlightClient) -> None:
    forged = ticket[:-1] + (b"0" if ticket[-1:] != b"0" else b"1")
    for without in (forged, info(bare, "store/x", filter="id = 1").endpoints[0].ticket.ticket):
        peer = knock()
        peer.send(without)
        answer, fds, _, _ = socket.recv_fds(peer, 65_536, 8)
        assert (json.loads(answer), fds) == ({"v": 1, "bytes": [], "ranges": []}, [])


def test_one_reader_too_many_is_disconnected_until_one_leaves(
    knock: Knock, ticket: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is disconnected reads by do_get."""
    monkeypatch.setattr(local, "_MOST_PEERS", 2)
    first, second = knock(), knock()
    assert (asks(first, ticket), asks(second, ticket)) == (2, 2)
    assert asks(knock(), ticket) is None
    assert asks(second, ticket) == 2

    first.close()
    assert asks(second, ticket) == 2  # the door has noticed it since
    assert asks(knock(), ticket) == 2


def test_a_silent_reader_is_disconnected_and_others_are_not(
    knock: Knock, ticket: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_IDLE", 3.0)
    asking, silent = knock(), knock()
    assert (asks(asking, ticket), asks(silent, ticket)) == (2, 2)

    silent.setblocking(False)

    def sent_away() -> bool:
        assert asks(asking, ticket) == 2
        try:
            return silent.recv(1) == b""
        except BlockingIOError:
            return False

    eventually(sent_away)
    assert asks(asking, ticket) == 2


def test_the_last_silent_reader_is_disconnected(knock: Knock, ticket: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_IDLE", 0.1)
    assert knock().recv(1) == b""
    monkeypatch.setattr(local, "_IDLE", 20.0)
    assert asks(knock(), ticket) == 2


def test_the_door_survives_accepts_that_fail(
    knock: Knock, ticket: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a process without free descriptors: a waiting reader connects once there are some."""
    accept, failures = socket.socket.accept, [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED]

    def failing(listener: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise OSError(number := failures.pop(), os.strerror(number))
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    assert asks(knock(), ticket) == 2
    assert not failures
    assert caplog.text.count("could not connect") == 3
