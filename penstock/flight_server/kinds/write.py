"""write/…: writes by their ids, and the actions from `write.open` to `write.finish`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.flight as flight

from penstock import steps
from penstock.errors import InvalidRequest
from penstock.flight_server import endpoints
from penstock.flight_server.gate import Call, not_serving
from penstock.flight_server.kinds.kind import Handler, Handlers, Kind
from penstock.flight_server.limits import check_schema
from penstock.flight_server.put import check_dataset_options
from penstock.flight_server.tickets import WriteTicket
from penstock.rows import schemas
from penstock.wire import actions as wire
from penstock.wire.paths import Path, parse
from penstock.wire.read import Entry


class WriteKind(Kind):
    """Writes: all attempts at one path, from open to finish. What a write is to is another kind's."""

    name = "write"
    seen_with = "write"

    def deciding(self, path: Path) -> Path:
        """Return where a write leads to; of all writes together only who may do everything has rights."""
        return parse(self.state.ledger.write(path.key).path) if path.key else path

    def actions(self) -> Handlers:
        yield Handler(wire.OPEN_WRITE, self.open_write)
        yield Handler(wire.FINISH_WRITE, self.finish)
        yield Handler(wire.TOUCH_WRITE, self.touch)
        yield Handler(wire.ABORT_WRITE, self.abort)

    def flights(self, folder: Path, *, folders: bool) -> Iterator[flight.FlightInfo]:
        ledger = self.state.ledger
        for write in [ledger.summary(folder.key)] if folder.key else ledger.open_writes():
            state = f"{write.state}, {write.mode} to {write.path}"
            yield endpoints.listed(
                Entry(f"write/{write.write}", "write", write.rows, write.bytes, write.parts, write.touched, state)
            )

    def describe(self, path: Path) -> wire.Description:
        return wire.Description.from_json({"kind": "write", **self.state.ledger.summary(path.key).to_json()})

    def delete(self, path: Path) -> wire.Deleted:
        """Abort the write, even if another client has opened it."""
        ended = self.state.ledger.abort(path.key)
        return wire.Deleted(ended.path, ended.rows, ended.bytes, ended.parts, ended.write, ended.state)

    def open_write(self, call: Call, request: wire.OpenWrite) -> wire.OpenedWrite:
        """Open a write to a path of any kind that can be written."""
        state = self.state
        if state.streams.state != "serving":
            raise not_serving()
        kind, path = state.locate(request.path)
        schema = None if request.schema is None else schemas.decode(request.schema)
        if schema is not None:
            check_schema(schema, state.limits)
        if request.split_rows is not None and (request.queue is None or request.split_rows < 1):
            raise InvalidRequest(
                f"{path}: split_rows={request.split_rows} cuts the splits of a queue: expected 1 row or more, and "
                "queue='queue/…' with it"
            )
        if request.release != "finish" and request.queue is None:
            raise InvalidRequest(
                f"{path}: release={request.release!r} gives splits to a queue: expected queue='queue/…' with it"
            )
        check_dataset_options(path, request.dataset)
        write = kind.open(path, request, schema)
        ticket = state.signer.sign(WriteTicket(write.id, write.opener, write.path, call.who or None)).decode()
        return wire.OpenedWrite(write.id, ticket, write.state, state.ledger.summary(write.id), state.config.advertise)

    def finish(self, call: Call, request: wire.FinishWrite) -> wire.Summary:
        """Make the listed attempts visible, and no others; if their bytes are still there."""
        if request.receipts is not None:
            self.state.check(call, "read", request.receipts)
            self.state.check(call, "write", request.receipts)
        ledger, attempts = self.state.ledger, [attempt.replace("-", "") for attempt in request.attempts]
        if ledger.incarnation:
            ledger.note_lost(self.state.store.medium.missing(ledger.parts_of_write(call.ticket.put)))
        write = ledger.write(call.ticket.put)
        kind, _ = self.state.locate(write.path)
        summary = kind.finish_write(write, attempts, request)
        steps.passed("finish.done")
        self.state.sweeper.soon()
        return summary

    def touch(self, call: Call, request: wire.TouchWrite) -> wire.Nothing:
        """Note that the driver of an open write lives."""
        self.state.ledger.touch(call.ticket.put, "its driver")
        return wire.Nothing()

    def abort(self, call: Call, request: wire.AbortWrite) -> wire.Summary:
        """End the write of the ticket, if no later one has joined it."""
        summary = self.state.ledger.abort(call.ticket.put, opener=call.ticket.opener)
        self.state.sweeper.soon()
        return summary
