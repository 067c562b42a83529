"""do_action: the verbs with JSON bodies. `list_actions` says each in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import paths, schemas
from penstock.bodies import AbortWrite, FinishWrite, OpenedWrite, OpenWrite, Target
from penstock.errors import InvalidRequest, NotFound
from penstock.flight_server.access import Call
from penstock.flight_server.limits import Limits, Streams, check, draining
from penstock.queue.ledger import Ledger
from penstock.queue.sweep import Sweeper
from penstock.tickets import Signer, WriteTicket


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

    def run(self, call: Call, name: str, body: bytes) -> dict[str, Any]:
        """Carry out an action."""
        if name not in _TABLE:
            raise NotFound(f"no action {name[:80]!r}: there are {', '.join(_TABLE)}")
        _, handler = _TABLE[name]
        return handler(self, call, body or b'{"v":1}')

    def open(self, call: Call, body: bytes) -> dict[str, Any]:
        """write.open."""
        call.must_be_known()
        if self.streams.closed:
            raise draining()
        asked = OpenWrite.decode(body)
        path = paths.parse(asked.path)
        if path.kind != "store":
            raise InvalidRequest(f"{path} can't be written to: expected store/…")
        schema = None if asked.schema is None else schemas.from_json(asked.schema)
        if schema is not None:
            check(len(schema), self.most.columns, "columns", "columns")
            schemas.check_names(schema)
        write = self.ledger.open_write(
            str(path), mode=asked.mode, run=asked.run, schema=schema, most_datasets=self.most.datasets
        )
        ticket = self.signer.sign(WriteTicket(write.id, write.opener)).decode()
        summary = self.ledger.summary(write.id)
        return OpenedWrite(write.id, ticket, write.state, summary.to_json(), self.advertised).to_json()

    def finish(self, call: Call, body: bytes) -> dict[str, Any]:
        """write.finish."""
        asked = FinishWrite.decode(body)
        write = self.signer.open_write(asked.ticket.encode()).put
        summary = self.ledger.finish(write, [attempt.replace("-", "") for attempt in asked.attempts])
        self.sweeper.soon()
        return summary.to_json()

    def abort(self, call: Call, body: bytes) -> dict[str, Any]:
        """write.abort."""
        ticket = self.signer.open_write(AbortWrite.decode(body).ticket.encode())
        summary = self.ledger.abort(ticket.put, opener=ticket.opener)
        self.sweeper.soon()
        return summary.to_json()

    def delete(self, call: Call, body: bytes) -> dict[str, Any]:
        """delete."""
        call.must_be_known()
        path = paths.parse(Target.decode(body).path)
        if path.kind == "write":
            answer = self.ledger.abort(path.key).to_json()
        else:
            gone = self.ledger.delete(str(path))
            answer = {"path": gone.path, "rows": gone.rows, "bytes": gone.bytes, "parts": gone.part_count}
        self.sweeper.soon()
        return answer

    def describe(self, call: Call, body: bytes) -> dict[str, Any]:
        """describe."""
        call.must_be_known()
        path = paths.parse(Target.decode(body).path)
        if path.kind == "write":
            return {"kind": "write", **self.ledger.summary(path.key).to_json()}
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
        "Make exactly these attempts the dataset: {ticket, attempts} -> the write's summary.",
        Actions.finish,
    ),
    "write.abort": ("End a write with nothing to show for it: {ticket} -> the write's summary.", Actions.abort),
    "delete": ("Delete a dataset, or abort a write: {path} -> what it was.", Actions.delete),
    "describe": ("All that is known of a dataset or a write: {path}.", Actions.describe),
    "health": ("Version, state and store of the server: {}.", Actions.health),
}


def sentences() -> list[tuple[str, str]]:
    """Every action with its sentence, for list_actions."""
    return [(name, sentence) for name, (sentence, _) in _TABLE.items()]
