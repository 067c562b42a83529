"""Exchanges call gRPC only as it allows: a call too many at one moment aborts the process, client or server."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.client.client import connect
from penstock.client.exchange import Exchange, Listener
from penstock.errors import Fenced
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.server import PenstockServer
from tests.kit.proxy import Proxy, open_proxy
from tests.kit.server import process_server
from tests.kit.topics import TOPIC
from tests.kit.wait import eventually
from tests.kit.wire import trips

SOON = {"limits": ServerLimits(exchange_idle=1), "watch_every": 0.05}


@pytest.fixture
def server(make_server: Callable[..., PenstockServer]) -> PenstockServer:
    return make_server(**SOON)


def await_no_stream(server: PenstockServer) -> None:
    eventually(lambda: server.state.streams.open_streams == 0)


@pytest.mark.parametrize("end", [Exchange.finish, Exchange.close, Exchange.abandon])
def test_an_exchange_ends_by_legal_calls(
    server: PenstockServer, illegal_calls: list[str], end: Callable[[Exchange], None]
) -> None:
    ended = threading.Event()

    class Told(Listener):
        def ended(self, error: Exception | None) -> None:
            assert error is None
            ended.set()

    with connect(server.url) as client:
        exchange = Exchange(client.settings, TOPIC, Told())
        exchange.send(trips(1))
        end(exchange)
        assert ended.wait(20)
        end(exchange)
    await_no_stream(server)
    assert illegal_calls == []


def test_a_drain_ends_exchanges_by_legal_calls(server: PenstockServer, illegal_calls: list[str]) -> None:
    """The producer goes on, on another stream."""
    with connect(server.url) as client, client.producer(TOPIC) as p:
        for n in range(5):
            stream = p._exchange
            p.send(trips(n))
            server.state.watch.drain(20)
            eventually(lambda stream=stream: p._exchange is not stream)  # type: ignore[misc]
        p.flush()
    await_no_stream(server)
    assert illegal_calls == []


def test_a_fence_ends_exchanges_by_legal_calls(server: PenstockServer, illegal_calls: list[str]) -> None:
    with connect(server.url) as client, pytest.raises(Fenced), client.producer(TOPIC) as p:
        p.send(trips(1)).result(20)
        Exchange(client.settings, TOPIC, Listener(), producer=p.id, acked=1).close()
        p.send(trips(2)).result(20)
    await_no_stream(server)
    assert illegal_calls == []


@pytest.mark.faults
@pytest.mark.parametrize("how", ["cut", "reset", "half open"])
def test_broken_exchanges_end_by_legal_calls(server: PenstockServer, illegal_calls: list[str], how: str) -> None:
    with open_proxy() as proxy, connect(proxy.url, timeout=5) as client:
        proxy.target = server.port
        with client.producer(TOPIC, max_in_flight=16) as p:
            for n in range(200):
                p.send(trips(n))
                if n % 50 == 25:
                    stream = p._exchange
                    if how == "half open":
                        with proxy.half_open():
                            eventually(lambda stream=stream: p._exchange is not stream)  # type: ignore[misc]
                    else:
                        proxy.cut() if how == "cut" else proxy.reset()
    await_no_stream(server)
    assert illegal_calls == []


def break_at_random(proxies: list[Proxy], seconds: float) -> int:
    """Break connections again and again, in the midst of what goes through; return how often."""
    dice, give_up, breaks = random.Random(7), time.monotonic() + seconds, 0
    while time.monotonic() < give_up:
        time.sleep(dice.uniform(0.01, 0.1))
        proxy, how = dice.choice(proxies), dice.choice(["cut", "reset", "cut after"])
        if how == "cut after":
            proxy.cut_after(dice.randrange(500_000))
        else:
            proxy.cut() if how == "cut" else proxy.reset()
        breaks += 1
    return breaks


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [8, pytest.param(600, marks=pytest.mark.soak)])
def test_breaks_at_random_crash_neither_end(tmp_path: Path, seconds: int) -> None:
    """Four clients, whose connections break about five times a second; each row is stored once, in order."""
    paths = [f"topic/x{number}" for number in range(4)]
    proxies: list[Proxy] = []
    with process_server(tmp_path / "d") as server, ExitStack() as stack:
        port, clients = int(server.url.rpartition(":")[2]), []
        for path in paths:
            proxy = stack.enter_context(open_proxy())
            proxy.target = port
            proxies.append(proxy)
            program = [sys.executable, "-m", "tests.kit.programs.clients", "append", proxy.url, path, str(seconds)]
            process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
            clients.append(stack.enter_context(process))
            stack.callback(process.kill)
        assert break_at_random(proxies, seconds) > 5 * seconds
        for process in clients:
            assert process.wait(60) == 0
        assert server.process.poll() is None
        with connect(server.url) as client:
            for path, process in zip(paths, clients, strict=True):
                assert process.stdout is not None
                ids = client.get(path, columns=["id"]).read_all()["id"].to_pylist()
                assert ids == list(range(int(process.stdout.read())))
