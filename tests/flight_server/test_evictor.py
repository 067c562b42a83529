"""`serve --evict lru`: a full server makes room, and keeps what a write, a message or a reader needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from penstock.client.client import Client, connect
from penstock.errors import InvalidRequest, NotFound, StoreFull
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.server import PenstockServer
from penstock.wire.actions import FINISH_WRITE, OPEN_WRITE, FinishWrite, OpenWrite

ROWS = pa.table({"id": range(50_000)})  # 400 kB


@pytest.fixture
def cache(make_server: Callable[..., PenstockServer]) -> PenstockServer:
    """A server with room for nine datasets of ROWS."""
    return make_server(quota=4_000_000, evict="lru")


@pytest.fixture
def client(cache: PenstockServer) -> Iterator[Client]:
    with connect(cache.url, retry_for=2) as client:
        yield client


def fill(client: Client, count: int = 20) -> None:
    for number in range(count):
        client.put(f"store/cached/{number:02}", ROWS)


def attempt(client: Client, ticket: str) -> str:
    with client.attempt(ticket, ROWS.schema) as writer:
        writer.write(ROWS)
    return writer.close().attempt


def left(client: Client) -> list[str]:
    return [entry.path for entry in client.list(recursive=True)]


def test_a_put_takes_the_room_of_the_oldest(cache: PenstockServer, client: Client) -> None:
    fill(client)
    paths = left(client)
    assert 7 <= len(paths) <= 9
    assert paths == [f"store/cached/{number:02}" for number in range(20 - len(paths), 20)]
    assert client.get("store/cached/19").read_all().equals(ROWS)
    with pytest.raises(NotFound):
        client.get("store/cached/00")
    assert cache.state.store.used <= 4_000_000
    (evicted,) = re.findall(r"^penstock_evictions_total (\S+)$", cache.state.metrics.text(), re.MULTILINE)
    assert float(evicted) == 20 - len(paths)


def test_what_was_read_stays(client: Client) -> None:
    client.put("store/read", ROWS)
    table = client.get("store/read")
    fill(client)
    assert "store/read" in left(client)
    assert table.read_all().equals(ROWS)


def test_what_a_message_needs_stays(client: Client) -> None:
    """The rows of a write with a queue, and the payload that a message names by its key."""
    write = client.call(OPEN_WRITE, OpenWrite("store/j/in", queue="queue/j/in"))
    client.call(FINISH_WRITE, FinishWrite(write.ticket, (attempt(client, write.ticket),)))
    fill(client)
    rows = 0
    for lease in client.claim("queue/j/in"):
        with lease as split:
            rows += split.payload.data.num_rows
    assert rows == ROWS.num_rows
    assert "store/j/in" in left(client)


def test_what_a_write_needs_stays(client: Client) -> None:
    client.put("store/kept", ROWS)
    write = client.call(OPEN_WRITE, OpenWrite("store/kept", mode="append"))
    fill(client)
    client.call(FINISH_WRITE, FinishWrite(write.ticket, (attempt(client, write.ticket),)))
    assert client.info("store/kept").rows == 100_000


def test_puts_side_by_side_find_room(client: Client) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: client.put(f"store/cached/{number}", ROWS), range(40)))
    assert 1 <= len(left(client)) <= 9


def test_nothing_goes_for_what_can_not_fit(client: Client) -> None:
    client.put("topic/x", pa.table({"id": range(400_000)}))
    fill(client, 1)
    with pytest.raises(StoreFull, match="quota"):
        client.put("store/large", pa.table({"id": range(400_000)}))
    assert client.info("topic/x").rows == 400_000
    assert left(client) == ["store/cached/00"]


def test_a_cache_has_a_quota() -> None:
    with pytest.raises(InvalidRequest, match="--evict lru makes room within a quota: say --quota too"):
        ServerConfig(evict="lru").check()
