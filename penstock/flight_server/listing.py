"""get_flight_info and list_flights: what there is, and the tickets to read it."""

from __future__ import annotations

import base64
import difflib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as flight

from penstock import paths, projection
from penstock.bodies import Summary
from penstock.errors import InvalidRequest, Lost
from penstock.queue.ledger import Ledger
from penstock.queue.writes import Dataset, Folder, HeldPart
from penstock.tickets import ReadTicket, Signer
from penstock.wire import EndpointNote, Entry, ListCommand, ReadCommand

_NO_SCHEMA = pa.schema([])


@dataclass(frozen=True, slots=True)
class Lister:
    """What listing needs of the server."""

    ledger: Ledger
    signer: Signer
    ticket_life: float
    location: str | None
    local: str | None

    def info(self, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """A dataset's schema, size and endpoints, one for each part; their bytes now stay for a ticket's life."""
        command = _command(descriptor)
        expires = time.time() + self.ticket_life
        dataset, parts = self.ledger.snapshot(command.path, ticketed_until=expires)
        if dataset.lost:
            raise Lost(
                f"{dataset.path} is lost: its {dataset.rows:,} rows were in the memory of a server that has ended. "
                "Write it again with mode 'overwrite', or delete it"
            )
        _check_columns(dataset, command.columns)
        chosen = list(_first_parts(parts, command.limit))
        endpoints = [self._endpoint(dataset, part, limit, command, expires) for part, limit in chosen]
        return flight.FlightInfo(
            projection.select(dataset.schema, command.columns),
            descriptor,
            endpoints,
            sum(part.rows if limit is None else limit for part, limit in chosen),
            sum(part.bytes for part, _ in chosen),
            ordered=True,
            app_metadata=self._entry(dataset).encode(),
        )

    def flights(self, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """What lies below a path, without endpoints: ask get_flight_info for those."""
        command = _criteria(criteria)
        folder = paths.parse_folder(command.path) if command.path else None
        if folder is not None and folder.kind == "write":
            for write in self.ledger.writes():
                yield _flight(_write_entry(write), _NO_SCHEMA)
            return
        below = str(folder) if folder else "store/"
        found: list[Dataset] | list[Dataset | Folder] = (
            self.ledger.folder(below) if command.folders else self.ledger.datasets(below)
        )
        if not found and folder is not None and folder.key:
            found = [self.ledger.dataset(below)]  # the path itself, or the error that nothing is there
        for item in found:
            yield _flight(self._entry(item), item.schema if isinstance(item, Dataset) else _NO_SCHEMA)

    def _endpoint(
        self, dataset: Dataset, part: HeldPart, limit: int | None, command: ReadCommand, expires: float
    ) -> flight.FlightEndpoint:
        narrower = not part.schema.equals(dataset.schema)
        schema = base64.b64encode(dataset.schema.serialize()).decode() if narrower else None
        ticket = ReadTicket(part.name, dataset.path, round(expires, 3), command.columns, limit, schema)
        return flight.FlightEndpoint(
            self.signer.sign(ticket),
            [self.location] if self.location else [],
            pa.scalar(int(expires * 1e6), pa.timestamp("us", "UTC")),
            EndpointNote(part.rows if limit is None else limit, part.bytes).encode(),
        )

    def _entry(self, item: Dataset | Folder) -> Entry:
        if isinstance(item, Folder):
            return Entry(
                item.path,
                "folder",
                item.rows,
                item.bytes,
                item.part_count,
                item.changed,
                "1 dataset" if item.datasets == 1 else f"{item.datasets:,} datasets",
            )
        state = "lost" if item.lost else None
        return Entry(item.path, "dataset", item.rows, item.bytes, item.part_count, item.changed, state, self.local)


def _first_parts(parts: list[HeldPart], limit: int | None) -> Iterator[tuple[HeldPart, int | None]]:
    """The parts that hold the first rows, and how many of the last one's: planned without touching the bytes."""
    left = limit
    for part in parts:
        if left is None or part.rows <= left:
            yield part, None
        elif left > 0:
            yield part, left
        if left is not None:
            left -= min(left, part.rows)
            if left == 0:
                return


def _check_columns(dataset: Dataset, columns: tuple[str, ...] | None) -> None:
    if columns is None:
        return
    if not columns or len(set(columns)) < len(columns):
        raise InvalidRequest(f"columns {list(columns)}: expected one or more names of {dataset.path}, each once")
    for name in columns:
        if name not in dataset.schema.names:
            near = difflib.get_close_matches(name, dataset.schema.names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(dataset.schema.names[:20])}"
            raise InvalidRequest(f"{dataset.path} has no column {name[:80]!r}; {hint}")


def _command(descriptor: flight.FlightDescriptor) -> ReadCommand:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        path = paths.from_descriptor(descriptor.path)
        command = ReadCommand(str(path))
    else:
        command = ReadCommand.decode(descriptor.command)
        path = paths.parse(command.path)
    if path.kind != "store":
        raise InvalidRequest(f"{path} can't be read as rows: expected store/… (describe tells about a write)")
    return ReadCommand(str(path), command.columns, command.limit)


def _criteria(criteria: bytes) -> ListCommand:
    """Nothing, a path as it is, or JSON."""
    if criteria.startswith(b"{"):
        return ListCommand.decode(criteria)
    try:
        return ListCommand(criteria.decode())
    except UnicodeDecodeError as broken:
        raise InvalidRequest("the criteria of list_flights are a path such as store/demo/, or JSON") from broken


def _write_entry(write: Summary) -> Entry:
    state = f"{write.state}, {write.mode} to {write.path}"
    return Entry(f"write/{write.write}", "write", write.rows, write.bytes, write.parts, write.touched, state)


def _flight(entry: Entry, schema: pa.Schema) -> flight.FlightInfo:
    descriptor = flight.FlightDescriptor.for_path(*entry.path.removesuffix("/").split("/"))
    return flight.FlightInfo(schema, descriptor, [], entry.rows, entry.bytes, app_metadata=entry.encode())
