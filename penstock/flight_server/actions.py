"""do_action: the verbs with JSON bodies. `list_actions` says each in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock import paths, schemas
from penstock.errors import InvalidRequest, NotFound
from penstock.flight_server.access import Call
from penstock.flight_server.limits import Limits, Streams, draining
from penstock.queue.ledger import Ledger
from penstock.queue.sweep import Sweeper
from penstock.tickets import Signer, WriteTicket
from penstock.wire import AbortWrite, FinishWrite, OpenedWrite, OpenWrite, Target


@dataclass(frozen=True, slots=True)
class Actions:
    """What actions need of the server."""

    ledger: Ledger
    signer: Signer
    most: Limits
    streams: Streams
    sweeper: Sweeper
    health: Callable[[], dict[str, Any]]

    TABLE: ClassVar[dict[str, str]] = {
        "write.open": "Begin a write, or join the open one of the same run: {path, mode, schema, run} -> {write, ticket, state, summary}.",
        "write.finish": "Make exactly these attempts the dataset: {ticket, attempts} -> the write's summary.",
        "write.abort": "End a write with nothing to show for it: {ticket} -> the write's summary.",
        "delete": "Delete a dataset, or abort a write: {path} -> what it was.",
        "describe": "All that is known of a dataset, a folder or a write: {path}.",
        "health": "Version, state and store of the server: {}.",
    }

    def run(self, call: Call, name: str, body: bytes) -> dict[str, Any]:
        """Carry out an action."""
        handlers = {
            "write.open": self._open,
            "write.finish": self._finish,
            "write.abort": self._abort,
            "delete": self._delete,
            "describe": self._describe,
            "health": lambda call, body: self.health(),
        }
        if name not in handlers:
            raise NotFound(f"no action {name[:80]!r}: there are {', '.join(handlers)}")
        return handlers[name](call, body or b'{"v":1}')

    def _open(self, call: Call, body: bytes) -> dict[str, Any]:
        call.must_be_known()
        if self.streams.closed:
            raise draining()
        asked = OpenWrite.decode(body)
        path = paths.parse(asked.path)
        if path.kind != "store":
            raise InvalidRequest(f"{path} can't be written to: expected store/…")
        schema = None if asked.schema is None else schemas.from_json(asked.schema)
        write = self.ledger.open_write(
            str(path), mode=asked.mode, run=asked.run, schema=schema, most_datasets=self.most.datasets
        )
        ticket = self.signer.sign(WriteTicket(write.id, write.opener)).decode()
        summary = self.ledger.summary(write.id)
        return OpenedWrite(write.id, ticket, write.state, summary.to_json()).to_json()

    def _finish(self, call: Call, body: bytes) -> dict[str, Any]:
        asked = FinishWrite.decode(body)
        write = self.signer.open_write(asked.ticket.encode()).put
        summary = self.ledger.finish(write, [attempt.replace("-", "") for attempt in asked.attempts])
        self.sweeper.soon()
        return summary.to_json()

    def _abort(self, call: Call, body: bytes) -> dict[str, Any]:
        ticket = self.signer.open_write(AbortWrite.decode(body).ticket.encode())
        summary = self.ledger.abort(ticket.put, opener=ticket.opener)
        self.sweeper.soon()
        return summary.to_json()

    def _delete(self, call: Call, body: bytes) -> dict[str, Any]:
        call.must_be_known()
        path = paths.parse(Target.decode(body).path)
        if path.kind == "write":
            answer = self.ledger.abort(path.key).to_json()
        else:
            gone = self.ledger.delete(str(path))
            answer = {"path": gone.path, "rows": gone.rows, "bytes": gone.bytes, "parts": gone.part_count}
        self.sweeper.soon()
        return answer

    def _describe(self, call: Call, body: bytes) -> dict[str, Any]:
        call.must_be_known()
        path = paths.parse(Target.decode(body).path)
        if path.kind == "write":
            return {"kind": "write", **self.ledger.summary(path.key).to_json()}
        found = self.ledger.dataset(str(path))
        return {
            "kind": "dataset", "path": found.path, "rows": found.rows, "bytes": found.bytes, "parts": found.part_count,
            "changed": found.changed, "lost": found.lost, "schema": list(schemas.to_json(found.schema)),
        }  # fmt: skip
