"""The bodies of actions. Apart from `wire`, so that who only puts and gets doesn't wait for them at import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.wire import Body, Mode, State

SchemaJson = tuple[dict[str, Any], ...]
"""A list of {name, type, nullable}; `penstock.schemas` turns it into an Arrow schema and back."""


@dataclass(frozen=True, slots=True)
class OpenWrite(Body):
    """write.open: begin a write, or join the open one of the same `run`."""

    path: str
    mode: Mode = "error"
    schema: SchemaJson | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Summary(Body):
    """A write as it stands; a finished one's never changes."""

    write: str
    path: str
    mode: Mode
    state: State
    attempts: int = 0
    rows: int = 0
    bytes: int = 0
    parts: int = 0
    run: str | None = None
    opened: float | None = None
    touched: float | None = None


@dataclass(frozen=True, slots=True)
class OpenedWrite(Body):
    """write.open's answer. A state of `finished` means that this run is done: put nothing."""

    write: str
    ticket: str
    state: State
    summary: dict[str, Any]
    location: str | None = None
    """Where others than the opener reach the server, as it was told by --advertise."""


@dataclass(frozen=True, slots=True)
class FinishWrite(Body):
    """write.finish: exactly these attempts become the dataset."""

    ticket: str
    attempts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AbortWrite(Body):
    """write.abort: nothing of this write will ever be seen."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Target(Body):
    """describe, delete: the thing that a path names."""

    path: str
