"""do_action: the verbs with JSON bodies. `list_actions` says each in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import steps
from penstock.errors import InvalidRequest, NotFound
from penstock.flight_server import consuming
from penstock.flight_server.gate import Call
from penstock.flight_server.limits import Limits, Streams, check, draining
from penstock.flight_server.put import mode_at
from penstock.flight_server.tickets import Signer, WriteTicket
from penstock.ledger.ledger import Ledger
from penstock.ledger.sweep import Sweeper
from penstock.queue.topics.topic import Topic
from penstock.queue.topics.topics import Topics
from penstock.rows import schemas
from penstock.wire import paths
from penstock.wire.actions import AbortWrite, CreateTopic, FinishWrite, OpenedWrite, OpenWrite, Target


@dataclass(frozen=True, slots=True)
class Actions:
    """What actions need of the server."""

    ledger: Ledger
    signer: Signer
    most: Limits
    streams: Streams
    sweeper: Sweeper
    report: Callable[[], dict[str, Any]]
    advertised: str | None
    topics: Topics
    desk: consuming.Desk

    def run(self, call: Call, name: str, body: bytes) -> dict[str, Any]:
        """Carry out an action."""
        body = body or b'{"v":1}'
        if name in consuming.TABLE:
            return consuming.TABLE[name][1](self.desk, call, body)
        if name in _TABLE:
            return _TABLE[name][1](self, call, body)
        raise NotFound(f"no action {name[:80]!r}: there are {', '.join(name for name, _ in sentences())}")

    def open(self, call: Call, body: bytes) -> dict[str, Any]:
        """write.open."""
        call.must_be_known()
        if self.streams.closed:
            raise draining()
        asked = OpenWrite.decode(body)
        path = paths.parse(asked.path)
        if path.kind == "write":
            raise InvalidRequest(f"{path} can't be written to: expected store/… or topic/…")
        schema = None if asked.schema is None else schemas.from_json(asked.schema)
        if schema is not None:
            check(len(schema), self.most.columns, "columns", "columns")
            schemas.check_names(schema)
        write = self.ledger.open_write(str(path), mode=mode_at(path, asked.mode), run=asked.run, schema=schema)
        ticket = self.signer.sign(WriteTicket(write.id, write.opener)).decode()
        summary = self.ledger.summary(write.id)
        return OpenedWrite(write.id, ticket, write.state, summary, self.advertised).to_json()

    def finish(self, call: Call, body: bytes) -> dict[str, Any]:
        """write.finish."""
        asked = FinishWrite.decode(body)
        write = self.signer.open_write(asked.ticket.encode()).put
        summary = self.ledger.finish(write, [attempt.replace("-", "") for attempt in asked.attempts], run=asked.run)
        steps.passed("finish.done")
        self.sweeper.soon()
        return summary.to_json()

    def abort(self, call: Call, body: bytes) -> dict[str, Any]:
        """write.abort."""
        ticket = self.signer.open_write(AbortWrite.decode(body).ticket.encode())
        summary = self.ledger.abort(ticket.put, opener=ticket.opener)
        self.sweeper.soon()
        return summary.to_json()

    def create(self, call: Call, body: bytes) -> dict[str, Any]:
        """topic.create."""
        call.must_be_known()
        asked = CreateTopic.decode(body)
        path = paths.parse(asked.path)
        if path.kind != "topic":
            raise InvalidRequest(f"{path} can't be a topic: expected topic/…")
        schema = schemas.from_json(asked.schema)
        check(len(schema), self.most.columns, "columns", "columns")
        return described(
            self.topics.create(
                str(path), schema, key=asked.key, shards=asked.shards,
                keep_seconds=asked.keep_seconds, keep_bytes=asked.keep_bytes,
            )
        )  # fmt: skip

    def delete(self, call: Call, body: bytes) -> dict[str, Any]:
        """delete."""
        call.must_be_known()
        path = paths.parse(Target.decode(body).path)
        if path.kind == "write":
            answer = self.ledger.abort(path.key).to_json()
        elif path.kind == "topic":
            topic = self.topics.remove(str(path))
            answer = {"path": topic.path, "rows": topic.rows, "bytes": topic.bytes, "parts": topic.part_count}
        else:
            gone = self.ledger.delete(str(path))
            answer = {"path": gone.path, "rows": gone.rows, "bytes": gone.bytes, "parts": gone.part_count}
        steps.passed("delete.done")
        self.sweeper.soon()
        return answer

    def describe(self, call: Call, body: bytes) -> dict[str, Any]:
        """describe."""
        call.must_be_known()
        path = paths.parse(Target.decode(body).path)
        if path.kind == "write":
            return {"kind": "write", **self.ledger.summary(path.key).to_json()}
        if path.kind == "topic":
            topic = self.topics.topic(str(path))
            return {**described(topic), **self.desk.read_by(topic)}
        found = self.ledger.dataset(str(path))
        return {
            "kind": "dataset", "path": found.path, "rows": found.rows, "bytes": found.bytes, "parts": found.part_count,
            "changed": found.changed, "lost": found.lost, "schema": list(schemas.to_json(found.schema)),
        }  # fmt: skip

    def health(self, call: Call, body: bytes) -> dict[str, Any]:
        """health."""
        report = self.report()
        return report if call.known else {"state": report["state"]}


_TABLE: dict[str, tuple[str, Callable[[Actions, Call, bytes], dict[str, Any]]]] = {
    "write.open": (
        "Begin a write, or join the open one of its run: {path, mode, schema, run} -> {write, ticket, state, …}.",
        Actions.open,
    ),
    "write.finish": (
        "Make exactly these attempts the dataset, once per run: {ticket, attempts, run} -> the write's summary.",
        Actions.finish,
    ),
    "write.abort": ("End a write with nothing to show for it: {ticket} -> the write's summary.", Actions.abort),
    "topic.create": (
        "Make a topic, or change what one keeps: {path, schema, key, shards, keep_seconds, keep_bytes} -> what it is.",
        Actions.create,
    ),
    "delete": ("Delete a dataset or a topic, or abort a write: {path} -> what it was.", Actions.delete),
    "describe": ("All that is known of a dataset, a topic or a write: {path}.", Actions.describe),
    "health": ("Version, state and store of the server: {}.", Actions.health),
}


def described(topic: Topic) -> dict[str, Any]:
    """All that is known of a topic."""
    return {
        "kind": "topic", "path": topic.path, "journal": topic.journal, "epoch": topic.epoch, "rows": topic.rows,
        "bytes": topic.bytes, "parts": topic.part_count, "changed": topic.changed, "key": topic.key,
        "keep_seconds": topic.keep_seconds, "keep_bytes": topic.keep_bytes,
        "shards": [{"shard": each.number, "first": each.first, "next": each.next} for each in topic.shards],
        "schema": list(schemas.to_json(topic.schema)),
    }  # fmt: skip


def sentences() -> list[tuple[str, str]]:
    """Every action with its sentence, for list_actions."""
    return [(name, sentence) for table in (_TABLE, consuming.TABLE) for name, (sentence, _) in table.items()]
