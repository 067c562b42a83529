"""get_flight_info and list_flights: what there is, and the tickets to read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import InvalidRequest, Lost, NotFound
from penstock.flight_server.columns import Columns
from penstock.flight_server.endpoints import Endpoints
from penstock.flight_server.ranges import Ranges
from penstock.ledger.datasets import Dataset, Folder
from penstock.ledger.ledger import Ledger
from penstock.ledger.parts import Slice
from penstock.wire import paths
from penstock.wire.actions import Summary
from penstock.wire.read import Entry, ListCommand, ReadCommand

_NO_SCHEMA = pa.schema([])


@dataclass(frozen=True, slots=True)
class Lister:
    """What listing needs of the server."""

    ledger: Ledger
    endpoints: Endpoints
    ranges: Ranges
    local: str | None

    def info(self, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """A dataset's schema, size and endpoints, each a run of parts; their bytes now stay for a ticket's life."""
        command = _command(descriptor)
        if paths.is_topic(command.path):
            return self.ranges.info(command, descriptor)
        _no_range(command)
        expires = self.endpoints.expiry()
        dataset, parts = self.ledger.snapshot(command.path, ticketed_until=expires)
        if dataset.lost:
            raise Lost(
                f"{dataset.path} is lost: its {dataset.rows:,} rows were in the memory of a server that has stopped. "
                "Write it again with mode 'overwrite', or delete it"
            )
        columns = Columns.of(dataset)
        columns.check(command)
        laid = _chosen(dataset, parts, command.part)
        return self.endpoints.info(descriptor, command, columns, laid, self._entry(dataset), expires)

    def schema(self, descriptor: flight.FlightDescriptor) -> pa.Schema:
        """What `info` would say of the columns, with no ticket given out."""
        command = _command(descriptor)
        if paths.is_topic(command.path):
            return self.ranges.schema(command)
        columns = Columns.of(self.ledger.dataset(command.path))
        columns.check(command)
        return columns.schema(command)

    def flights(self, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """What lies below a path, without endpoints: ask get_flight_info for those."""
        command = _criteria(criteria)
        folder = paths.parse_folder(command.path) if command.path else None
        if folder is not None and folder.kind == "write":
            for write in [self.ledger.summary(folder.key)] if folder.key else self.ledger.open_writes():
                yield _flight(_write_entry(write), _NO_SCHEMA)
            return
        if folder is not None and folder.kind == "topic":
            yield from self._topics(str(folder))
            return
        below = str(folder) if folder else "store/"
        found: list[Dataset] | list[Dataset | Folder] = (
            self.ledger.folder(below) if command.folders else self.ledger.datasets(below)
        )
        if not found and folder is not None and folder.key:
            found = [self.ledger.dataset(below)]  # the path itself, or the error that nothing is there
        for item in found:
            yield _flight(self._entry(item), item.schema if isinstance(item, Dataset) else _NO_SCHEMA)

    def _topics(self, folder: str) -> Iterator[flight.FlightInfo]:
        topics = self.ranges.topics
        for topic in topics.below(folder) or ([topics.topic(folder)] if not folder.endswith("/") else []):
            yield _flight(self.ranges.entry(topic), topic.schema)

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


def _chosen(dataset: Dataset, parts: list[Slice], number: int | None) -> list[Slice]:
    if number is None:
        return parts
    if number >= len(parts):
        raise NotFound(f"{dataset.path} has no part {number}: it has {len(parts)}, counted from 0")
    return parts[number : number + 1]


def _no_range(command: ReadCommand) -> None:
    if (command.start, command.end, command.since, command.journal) != (None, None, None, None):
        raise InvalidRequest(f"{command.path} is a dataset and has no offsets: start and end are for topic/…")


def _command(descriptor: flight.FlightDescriptor) -> ReadCommand:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        path = paths.from_descriptor(descriptor.path)
        command = ReadCommand(str(path))
    else:
        command = ReadCommand.decode(descriptor.command)
        path = paths.parse(command.path)
    if path.kind == "write":
        raise InvalidRequest(
            f"{path} can't be read as rows: expected store/… or topic/… (describe tells about a write)"
        )
    return replace(command, path=str(path))


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
