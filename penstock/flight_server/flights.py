"""get_flight_info, get_schema and list_flights: a path is parsed here, and its kind answers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import InvalidRequest
from penstock.flight_server.state import State
from penstock.wire import paths
from penstock.wire.read import ListCommand, ReadCommand

_ROOT = "store/"
"""What is listed without a path."""


def info(state: State, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
    """Return schema, size and endpoints of the rows that a descriptor names."""
    command = _read_command(descriptor)
    kind, path = state.locate(command.path, splits=True)
    return kind.info(path, command, descriptor)


def schema(state: State, descriptor: flight.FlightDescriptor) -> pa.Schema:
    """Return the schema that `info` would have."""
    command = _read_command(descriptor)
    kind, path = state.locate(command.path, splits=True)
    return kind.schema(path, command)


def flights(state: State, criteria: bytes) -> Iterator[flight.FlightInfo]:
    """List what lies below a path, or directly in it."""
    command = _list_command(criteria)
    folder = paths.parse_folder(command.path or _ROOT)
    return state.kind_of(folder).flights(folder, folders=command.folders)


def _read_command(descriptor: flight.FlightDescriptor) -> ReadCommand:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return ReadCommand(paths.join_descriptor(descriptor.path))
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
