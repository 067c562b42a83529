"""get_flight_info, get_schema and list_flights: a path is parsed here, and its kind answers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import InvalidRequest
from penstock.flight_server import endpoints
from penstock.flight_server.gate import Call
from penstock.flight_server.state import State
from penstock.wire import paths
from penstock.wire.paths import Path
from penstock.wire.read import Entry, ListCommand, ReadCommand

NO_SQL = (
    "penstock has no SQL: read a dataset by its path with get_flight_info and do_get (columns, filter and limit are in "
    "docs/wire.md), and query it with DuckDB, Spark or polars"
)
_FLIGHT_SQL = b"type.googleapis.com/arrow.flight.protocol.sql."
_LONGEST_NAME = 100
"""Bytes of a command that its name is looked for in: it stands at the beginning."""


def info(state: State, call: Call, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
    """Return schema, size and endpoints of the rows that a descriptor names."""
    call.check_known()
    command = _read_command(descriptor)
    kind, path = state.locate(command.path, splits=True)
    state.check(call, "read", command.path)
    return kind.info(call, path, command, descriptor)


def schema(state: State, call: Call, descriptor: flight.FlightDescriptor) -> pa.Schema:
    """Return the schema that `info` would have."""
    call.check_known()
    command = _read_command(descriptor)
    kind, path = state.locate(command.path, splits=True)
    state.check(call, "read", command.path)
    return kind.schema(path, command)


def flights(state: State, call: Call, criteria: bytes) -> Iterator[flight.FlightInfo]:
    """List what lies below a path, or directly in it; without a path, all that there is of every kind."""
    call.check_known()
    command = _list_command(criteria)
    folders = [paths.parse_folder(command.path)] if command.path else [Path(name) for name in state.kinds]
    for folder in folders:
        if state.tokens.file is None:
            yield from state.kind_of(folder).flights(folder, folders=command.folders)
        else:
            yield from _readable(state, call, folder, command)


def _readable(state: State, call: Call, folder: Path, command: ListCommand) -> Iterator[flight.FlightInfo]:
    """List what the caller may see; a folder of which that is a part has a line without sums.

    A line of write/… or consumer/… is no folder: rights below where it belongs don't show it.
    """
    kind, caller = state.kind_of(folder), state.tokens.of(call.who)
    right = kind.seen_with
    if folder.key and not caller.may_within(right, kind.deciding(folder)):
        state.check(call, right, str(folder))
    for each in kind.flights(folder, folders=command.folders):
        path = paths.parse_folder("/".join(name.decode() for name in each.descriptor.path))
        place = kind.deciding(path)
        if caller.may(right, place):
            yield each
        elif place == path and caller.may_within(right, place):
            yield endpoints.listed(Entry(f"{path}/", "folder"))


def check_not_sql(command: bytes) -> None:
    """Reject a command of Flight SQL, which ADBC and JDBC send: its name tells it from JSON."""
    if _FLIGHT_SQL in command[:_LONGEST_NAME]:
        raise InvalidRequest(NO_SQL)


def _read_command(descriptor: flight.FlightDescriptor) -> ReadCommand:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return ReadCommand(paths.join_descriptor(descriptor.path))
    check_not_sql(descriptor.command)
    return ReadCommand.decode(descriptor.command)


def _list_command(criteria: bytes) -> ListCommand:
    """Return criteria that are empty, a path, or JSON."""
    if criteria.startswith(b"{"):
        return ListCommand.decode(criteria)
    try:
        return ListCommand(criteria.decode())
    except UnicodeDecodeError as malformed:
        raise InvalidRequest(
            "the criteria of list_flights: expected a path such as store/demo/, or JSON"
        ) from malformed
