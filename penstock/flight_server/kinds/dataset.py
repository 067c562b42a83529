"""store/…: datasets, the parts of finished writes; and payloads, which are put many at once and found by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import InvalidRequest, Lost, NotFound
from penstock.flight_server import endpoints, payloads
from penstock.flight_server.gate import Call
from penstock.flight_server.kinds.kind import Handler, Handlers, Kind
from penstock.flight_server.put import keep, own_write
from penstock.flight_server.selection import select
from penstock.flight_server.upload import Admit, Upload
from penstock.ledger.datasets import Dataset, Folder
from penstock.ledger.parts import Slice
from penstock.ledger.payloads import ListedPayload
from penstock.ledger.writes import Write
from penstock.rows import schemas
from penstock.store.payload_table import InlinePart
from penstock.text import counted
from penstock.wire import actions as wire
from penstock.wire.actions import Deleted, Description, OpenWrite
from penstock.wire.paths import Path
from penstock.wire.put import PutCommand, Receipt
from penstock.wire.read import Entry, ReadCommand


class DatasetKind(Kind):
    """Datasets: a put is a write, whose parts are visible once it is finished. Payloads: one stream is one change."""

    name = "store"

    def actions(self) -> Handlers:
        yield Handler(wire.FIND_PAYLOADS, lambda call, request: payloads.find(self.state, call, request))
        yield Handler(wire.LIST_PAYLOADS, lambda call, request: payloads.keys(self.state, request))
        yield Handler(wire.CLEAR_PAYLOADS, lambda call, request: payloads.clear(self.state, request))

    def info(
        self, call: Call, path: Path, command: ReadCommand, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        if (command.start, command.end, command.since, command.journal, command.shards) != (None,) * 5:
            raise InvalidRequest(f"{path} is a dataset and has no offsets: read a topic with start and end")
        expires = self.state.ticket_expiry()
        payload = self._payload(path, expires)
        if payload is not None:
            selection = select(command, str(path), payload.schema)
            entry = Entry(str(path), "payload", payload.rows, payload.bytes, 1, local=self.state.local)
            return endpoints.readable(self.state, call, descriptor, selection, [payload], entry, expires)
        if command.part is not None:
            self.state.ledger.pin(str(path))
        dataset, parts = self.state.ledger.snapshot(str(path), ticketed_until=expires)
        if dataset.lost:
            raise Lost(
                f"{path} is lost: its {counted(dataset.rows, 'row was', 'rows were')} in the memory of a server that "
                "has stopped. Write it again with mode 'overwrite', or delete it"
            )
        selection = select(command, dataset.path, dataset.schema)
        if command.part is not None:
            if command.part >= len(parts):
                raise NotFound(f"{path} has no part {command.part}: it has {len(parts)}, counted from 0")
            parts = [parts[command.part]]
        return endpoints.readable(self.state, call, descriptor, selection, parts, self._entry(dataset), expires)

    def schema(self, path: Path, command: ReadCommand) -> pa.Schema:
        payload = self._payload(path, 0.0)
        if payload is not None:
            return select(command, str(path), payload.schema).schema
        dataset = self.state.ledger.dataset(str(path))
        return select(command, dataset.path, dataset.schema).schema

    def flights(self, folder: Path, *, folders: bool) -> Iterator[flight.FlightInfo]:
        ledger, path = self.state.ledger, str(folder)
        items: list[Dataset] | list[Dataset | Folder] = ledger.folder(path) if folders else ledger.datasets(path)
        payloads_below = _listed(path, ledger.payloads(path), folders=folders)
        if not items and not payloads_below and folder.key:
            alone = self._payload(folder, 0.0)
            if alone is not None:
                payloads_below = [Entry(path, "payload", alone.rows, alone.bytes, int(alone.inline is None))]
            else:
                items = [ledger.dataset(path)]  # or the error that there is none
        lines = {
            item.path: (_folder_entry(item), endpoints.NO_SCHEMA)
            if isinstance(item, Folder)
            else (self._entry(item), item.schema)
            for item in items
        }
        for entry in payloads_below:
            both = _sum(lines[entry.path][0], entry) if entry.path in lines else entry
            lines[entry.path] = (both, endpoints.NO_SCHEMA)
        for _, line in sorted(lines.items()):
            yield endpoints.listed(*line)

    def describe(self, path: Path) -> Description:
        payload = self._payload(path, 0.0)
        if payload is not None:
            columns = schemas.to_json(payload.schema)
            return Description("payload", str(path), payload.rows, payload.bytes, 1, None, columns)
        dataset = self.state.ledger.dataset(str(path))
        return Description(
            "dataset", dataset.path, dataset.rows, dataset.bytes, dataset.part_count, dataset.changed,
            schemas.to_json(dataset.schema), dataset.lost, dataset.end, compacted=dataset.compacted,
            queries=self.state.ledger.last_epochs(dataset.path), expires=dataset.expires,
            used=dataset.used,
            partitions=self.state.ledger.partitions(dataset.path) or None,
        )  # fmt: skip

    def delete(self, path: Path) -> Deleted:
        is_kept = not self.state.store.medium.incarnation and self.state.store.why_full() is None
        return self._delete(path, self.state.ticket_expiry() if is_kept else None)

    def delete_now(self, path: Path) -> Deleted:
        return self._delete(path, None)

    def _delete(self, path: Path, until: float | None) -> Deleted:
        """Delete a payload, or a dataset, which may come back until then."""
        payload = self.state.ledger.remove_payload(path.key)
        if payload is not None:
            return Deleted(str(path), payload.rows, payload.bytes, int(payload.part is not None))
        dataset = self.state.ledger.delete(str(path), until=until or 0.0)
        return Deleted(dataset.path, dataset.rows, dataset.bytes, dataset.part_count, until=until)

    def undelete(self, path: Path) -> Description:
        self.state.ledger.undelete(str(path), self.state.store.has)
        return self.describe(path)

    def open(self, path: Path, request: OpenWrite, schema: pa.Schema | None) -> Write:
        return self.state.ledger.open_write(
            str(path), mode=request.mode, run=request.run, schema=schema, queue=request.queue,
            split_rows=request.split_rows, release=request.release, dataset=request.dataset,
        )  # fmt: skip

    def attempt(self, write: Write, upload: Upload) -> Receipt:
        return self._keep(write, upload, own=False)

    def put(self, path: Path, command: PutCommand, admit: Admit) -> Receipt:
        if command.create is not None:
            raise InvalidRequest(f"{path} is a dataset: `create` makes a topic, expected topic/…")
        mode = command.mode or "error"
        with own_write(self.state, str(path), mode, command.run, dataset=command.dataset) as write, admit() as upload:
            return self._keep(write, upload, own=True)

    def put_many(self, folder: Path, command: PutCommand, admit: Admit) -> Receipt:
        if (command.mode, command.run, command.create, command.dataset) != (None, None, None, None):
            raise InvalidRequest(
                f"{folder}: payloads are put without mode, run, create or dataset: each replaces its key's"
            )
        with admit() as upload:
            return payloads.put_payloads(self.state, upload)

    def _payload(self, path: Path, expires: float) -> Slice | None:
        """Return the rows of a payload or of a split; a part stays until then, whatever happens to the path."""
        held = str(path).partition("@")[0]
        [located] = self.state.ledger.look_up_payloads([path.key], ticketed_until=expires, held=held)
        if located is None:
            return None
        if located.inline is not None:
            small = InlinePart(located.inline)
            return Slice("", small.rows, small.bytes, small.schema, small.rows, inline=pa.py_buffer(located.inline))
        part = self.state.store.open(located.part or "", path=held, rows=located.rows, digest=located.digest)
        return Slice(located.part or "", part.rows, part.bytes, part.schema, part.rows, digest=located.digest)

    def _keep(self, write: Write, upload: Upload, *, own: bool) -> Receipt:
        if write.state == "open":
            mode = "append" if write.keeps_rows else write.mode
            upload.cast_to(self.state.ledger.fit_schema(write.path, upload.sent, mode, write.schema))
        pieces = ((None, batches) for batches in upload.parts(write.split_rows))
        return keep(self.state, write, upload, pieces, schema=upload.schema, own=own)

    def _entry(self, dataset: Dataset) -> Entry:
        state = "lost" if dataset.lost else None
        return Entry(
            dataset.path, "dataset", dataset.rows, dataset.bytes, dataset.part_count, dataset.changed, state,
            self.state.local,
        )  # fmt: skip


def _listed(folder: str, listed: Iterable[ListedPayload], *, folders: bool) -> list[Entry]:
    """Return payloads as lines of a listing; with `folders` a line for each folder of payloads."""
    start = len(folder.rstrip("/")) + 1
    entries = []
    for path, group in groupby(listed, lambda each: _child(each.path, start) if folders else each.path):
        some = list(group)
        rows, size, parts = (sum(getattr(each, name) for each in some) for name in ("rows", "bytes", "part_count"))
        changed = max(each.changed for each in some)
        kind, state = ("folder", counted(len(some), "payload")) if path.endswith("/") else ("payload", None)
        entries.append(Entry(path, kind, rows, size, parts, changed, state))
    return entries


def _sum(folder: Entry, other: Entry) -> Entry:
    """Return one line for a folder that has datasets and payloads."""
    changed = max(folder.changed or 0.0, other.changed or 0.0)
    return Entry(
        folder.path, folder.kind, folder.rows + other.rows, folder.bytes + other.bytes, folder.parts + other.parts,
        changed, f"{folder.state}, {other.state}",
    )  # fmt: skip


def _child(path: str, start: int) -> str:
    """Return the first name of a path behind a folder's, with its slash if the path goes on."""
    name, slash, _ = path[start:].partition("/")
    return path[:start] + name + slash


def _folder_entry(folder: Folder) -> Entry:
    state = "1 dataset" if folder.datasets == 1 else f"{folder.datasets:,} datasets"
    return Entry(folder.path, "folder", folder.rows, folder.bytes, folder.part_count, folder.changed, state)
