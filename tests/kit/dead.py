"""Topics whose payloads don't all decode, and consumers that commit past them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.client.client import Client
from penstock.decode.decoding import plan
from penstock.flight_server.server import PenstockServer
from penstock.queue.topics import dead
from penstock.wire import actions
from penstock.wire.position import Position
from tests.kit.wait import eventually

TOPIC = "topic/orders"
PAYLOADS = [b'{"id": 1}', b"oops", b'{"id": "x"}', b'{"id": 4}']


def put(client: Client, *payloads: bytes, path: str = TOPIC) -> None:
    client.put(path, pa.table({"data": pa.array(payloads, pa.binary()), "key": ["k"] * len(payloads)}))


class Consumer:
    """A session of a consumer that decodes."""

    def __init__(self, client: Client, name: str = "c", schema: str = "id long", mode: str | None = None) -> None:
        self.client, self.name = client, name
        decoding = plan(TOPIC, client.info(TOPIC).schema.names, "json", schema, mode).to_wire()
        self.journal = client.call(actions.ASK_OFFSETS, actions.AskOffsets(TOPIC)).journal
        start = Position({0: 0})
        request = actions.AttachConsumer(TOPIC, self.journal, name, "s", start, start, decoding=decoding)
        client.call(actions.ATTACH_CONSUMER, request)

    def commit(self, offset: int) -> None:
        request = actions.CommitPosition(TOPIC, self.journal, self.name, "s", Position({0: offset}))
        self.client.call(actions.COMMIT_POSITION, request)

    def dead(self) -> int:
        request = actions.AskOffsets(TOPIC, consumer=self.name)
        return self.client.call(actions.ASK_OFFSETS, request).dead


def looked_at(server: PenstockServer) -> None:
    """Wait until all that was committed has been looked at."""
    eventually(lambda: not dead.pending(server.state.ledger.database))


def rows(client: Client, path: str = f"{TOPIC}/dead") -> list[dict[str, Any]]:
    return list(client.get(path).read_all().to_pylist())
