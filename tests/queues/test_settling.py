"""Blocks that have ended are acked behind the next one: what is under way when a loop, a worker or a server ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client import settling
from penstock.client.client import Client, connect
from penstock.client.lease import Lease
from penstock.client.push import settle
from penstock.errors import Denied, LeaseLost, Unavailable
from penstock.flight_server.server import PenstockServer
from tests.kit.queues import IN, OUT, counts, drained, line, numbered, states, work, worker
from tests.kit.server import ProcessServer, process_server
from tests.kit.wait import eventually

LEASE = 1.0


class Gate:
    """Holds up the calls that settle blocks until it is opened, and notes how many leases each brings."""

    def __init__(self, settle: Callable[..., Any]) -> None:
        self.opened = threading.Event()
        self.calls: list[int] = []
        self._settle = settle

    def __call__(self, connection: object, made: Sequence[Any], **settings: Any) -> Any:
        self.calls.append(len(made))
        assert self.opened.wait(30)
        return self._settle(connection, made, **settings)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate before the server; it is opened where the loop ends."""
    gate, close = Gate(settle), settling.Settler.close

    def open_and_close(settler: settling.Settler) -> None:
        gate.opened.set()
        close(settler)

    monkeypatch.setattr(settling, "settle", gate)
    monkeypatch.setattr(settling.Settler, "close", open_and_close)
    return gate


def through(client: Client, number: int, gate: Gate, *, to: str = OUT) -> list[Lease]:
    """Forward what comes, and break behind so many blocks, of which the first one is under way."""
    leases: list[Lease] = []
    for lease in client.claim(IN, prefetch=number):
        with lease as split:
            lease.forward(to, split.payload)
        leases.append(lease)
        eventually(lambda: gate.calls)
        if len(leases) == number:
            break
    return leases


def test_blocks_that_wait_are_acked_in_one_stream(client: Client, gate: Gate) -> None:
    """Each output is named after its own message; a block without output is acked along."""
    client.push(IN, numbered(*range(5)), finish=True)
    names = []
    for lease in client.claim(IN, prefetch=5, to=[OUT]):
        with lease as split:
            [x] = split.payload.data["x"].to_pylist()
            if x != 3:
                names.append(split.message.message_id)
                lease.forward(OUT, split.payload.data)
        eventually(lambda: gate.calls)
        if x == 4:
            assert states(client) == (0, 5, 0, 0)
            gate.opened.set()
    assert gate.calls == [1, 4]
    assert states(client) == (0, 0, 5, 0)
    outputs = client.get(OUT).read_all().to_pylist()
    assert [each["message_id"] for each in outputs] == [f"{name}/j/out/0" for name in names]
    assert drained(client, OUT) == [0, 1, 2, 4]


def test_leaving_the_loop_waits_for_what_is_under_way(client: Client, gate: Gate) -> None:
    client.push(IN, numbered(*range(4)))
    leases = through(client, 3, gate)
    assert states(client)[2:] == (3, 0)
    assert all(lease.ended for lease in leases)
    assert counts(client, OUT)["pending"] == 3


def test_an_error_in_the_loop_waits_for_what_is_under_way(client: Client, gate: Gate) -> None:
    """Its own message, if it is within a block, comes again."""
    client.push(IN, numbered(*range(4)))

    def work() -> None:
        for number, lease in enumerate(client.claim(IN, prefetch=4)):
            with lease:
                if number == 2:
                    raise KeyboardInterrupt
            eventually(lambda: gate.calls)

    with pytest.raises(KeyboardInterrupt):
        work()
    eventually(lambda: states(client) == (2, 0, 2, 0))


def test_stop_waits_for_what_is_under_way(client: Client, gate: Gate) -> None:
    client.push(IN, numbered(*range(4)))
    claims = client.claim(IN, prefetch=4)
    for number, lease in enumerate(claims):
        with lease:
            if number == 2:
                claims.stop()
        eventually(lambda: gate.calls)
    eventually(lambda: states(client) == (1, 0, 3, 0))


def test_a_lease_knows_its_end_behind_the_block(client: Client, gate: Gate) -> None:
    """`ended` waits for the answer; an explicit ack is durable when it returns."""
    client.push(IN, numbered(1, 2), finish=True)
    asked: list[bool] = []
    for lease in client.claim(IN):
        with lease:
            pass
        asker = threading.Thread(target=lambda lease=lease: asked.append(lease.ended))
        asker.start()
        if not gate.opened.is_set():
            eventually(lambda: gate.calls)
            assert not asked
            gate.opened.set()
        asker.join()
    assert asked == [True, True]

    client.push("queue/j/other", numbered(1), finish=True)
    for lease in client.claim("queue/j/other"):
        with lease:
            lease.ack()
            assert states(client, "queue/j/other") == (0, 0, 1, 0)


@pytest.mark.parametrize("error", [Unavailable("away"), Denied("no")])
@pytest.mark.parametrize("leaves", [False, True])
def test_a_server_that_is_away_ends_the_loop(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, leaves: bool
) -> None:
    """The error comes with the next message, or at the end; behind a break it is logged."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    client.push(IN, numbered(1, 2))
    monkeypatch.setattr(settling, "settle", refuse)

    def work() -> None:
        for lease in client.claim(IN):
            with lease:
                pass
            assert not lease.ended
            assert not lease.lost
            if leaves:
                break

    if leaves:
        work()
        assert f"not acked, so their messages come again: {error}" in caplog.text
    else:
        with pytest.raises(type(error)):
            work()
    assert states(client)[2:] == (0, 0)


# --- what is refused, one by one ----------------------------------------------------------------


def test_a_lost_lease_takes_no_other_with_it(
    client: Client, server: PenstockServer, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it counts, and the bytes of its outputs go; each is too large to share a file."""
    large = [pa.table({"x": range(first, first + 150_000)}) for first in range(4)]
    client.push(IN, large)
    leases: list[Lease] = []
    for lease in client.claim(IN, prefetch=4):
        with lease as split:
            lease.forward(OUT, split.payload)
        leases.append(lease)
        eventually(lambda: gate.calls)
        if len(leases) == 4:
            released = {"leases": [leases[2].key.to_json()], "delay": 3600}
            client.call("queue.release", released)
            break
    assert [lease.lost for lease in leases] == [False, False, True, False]
    assert "is over" in caplog.text
    with pytest.raises(LeaseLost):
        leases[2].ack()
    assert (states(client), gate.calls) == ((1, 0, 3, 0), [1, 3])
    client.call("queue.finish", {"path": OUT})
    outputs = client.get(OUT).read_all()
    assert outputs.num_rows == 3
    eventually(lambda: len(list(server.state.store.medium.names())) == 4)


def test_an_output_that_is_refused_fails_its_message_alone(client: Client, gate: Gate) -> None:
    client.push(IN, numbered(*range(4)))
    for number, lease in enumerate(client.claim(IN, prefetch=4)):
        with lease as split:
            lease.forward("queue/j/dead" if number == 2 else OUT, split.payload)
        eventually(lambda: gate.calls)
        if number == 3:
            break
    assert gate.calls == [1, 3, 1, 1, 1]
    assert (states(client), counts(client, OUT)["pending"]) == ((1, 0, 3, 0), 3)
    [failed] = client.get(IN).read_all().to_pylist()
    assert failed["error"].endswith("InvalidRequest")


def test_blocks_with_other_schemas_are_acked_together(client: Client, gate: Gate) -> None:
    client.push(IN, numbered(*range(3)), finish=True)
    tables = [pa.table({"a": [1]}), pa.table({"b": ["b"]}), pa.table({"a": [2]})]
    for number, lease in enumerate(client.claim(IN, prefetch=3)):
        with lease:
            lease.forward(OUT, [tables[number], tables[1]])
        eventually(lambda: gate.calls)
        if number == 2:
            break
    assert gate.calls == [1, 2]
    client.call("queue.finish", {"path": OUT})
    rows = []
    for lease in client.claim(OUT):
        with lease as split:
            assert split.message.split_id == split.payload.split_id == split.message.message_id
            rows.append((split.message.message_id[-1], split.payload.data.to_pylist()))
    b = ("1", [{"b": "b"}])
    assert rows == [("0", [{"a": 1}]), b, ("0", [{"b": "b"}]), b, ("0", [{"a": 2}]), b]


# --- leases -------------------------------------------------------------------------------------


@pytest.fixture
def quick(make_server: Callable[..., PenstockServer]) -> Iterator[Client]:
    """A client of a server whose leases are short."""
    with connect(make_server(queue_lease=LEASE).url, retry_for=5) as client:
        yield client


@pytest.mark.parametrize("beats", [True, False])
def test_a_lease_is_extended_until_it_is_settled(
    quick: Client, gate: Gate, monkeypatch: pytest.MonkeyPatch, beats: bool
) -> None:
    """Without heartbeats it lapses: another worker has the message, and what was made of it doesn't count."""
    if not beats:
        monkeypatch.setattr("penstock.client.heartbeats.Heartbeats.watch", lambda *_: None)
    quick.push(IN, numbered(1))
    for lease in quick.claim(IN, to=[OUT]):
        with lease:
            lease.forward(OUT, numbered(7))
        until = time.monotonic() + 3 * LEASE
        eventually(lambda: time.monotonic() > until)  # noqa: B023
        claimed = quick.call("queue.claim", {"path": IN, "claim": "other", "worker": "w"})["messages"]
        assert len(claimed) == (not beats)
        break
    assert (lease.ended, lease.lost) == (beats, not beats)
    assert states(quick, OUT) == ((1, 0, 0, 0) if beats else (0, 0, 0, 0))


# --- processes ----------------------------------------------------------------------------------


@contextmanager
def suspended(server: ProcessServer) -> Iterator[None]:
    """Let a server do nothing: what is sent to it waits."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.fixture
def server_process(tmp_path: Path) -> Iterator[ProcessServer]:
    """A server in a process of its own, with short leases."""
    with process_server(tmp_path / "data", queue_lease=LEASE) as server:
        yield server


@pytest.mark.process
@pytest.mark.faults
def test_what_a_killed_worker_had_under_way_comes_once(server_process: ProcessServer) -> None:
    with connect(server_process.url) as c:
        c.push(IN, numbered(*range(40)), finish=True)
        with worker(server_process.url) as killed:
            assert line(killed)[0] == "claimed"
            with suspended(server_process):
                assert line(killed)[0] == "claimed"
                killed.kill()
        work(c)
        assert drained(c, OUT) == [2 * x for x in range(40)]
        assert states(c) == (0, 0, 40, 0)


@pytest.mark.process
@pytest.mark.faults
def test_sigterm_waits_for_what_is_under_way(server_process: ProcessServer) -> None:
    """As many are done as blocks have begun."""
    with connect(server_process.url) as c:
        c.push(IN, numbered(*range(40)))
        with worker(server_process.url) as ended:
            assert line(ended)[0] == "claimed"
            with suspended(server_process):
                ended.send_signal(signal.SIGTERM)
            begun = 1
            while line(ended):
                begun += 1
            assert ended.wait(30) == 128 + signal.SIGTERM
        assert states(c) == (40 - begun, 0, begun, 0)
        assert counts(c, OUT)["pending"] == begun
