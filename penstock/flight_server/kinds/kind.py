"""A kind of path, such as topic/…: one class, which answers Flight's verbs for the paths that begin with its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import InvalidRequest
from penstock.flight_server.exchange import Stream
from penstock.flight_server.gate import Call
from penstock.flight_server.state import State
from penstock.flight_server.upload import Admit, Upload
from penstock.ledger.writes import Write
from penstock.wire.actions import (
    Action,
    AnswerT,
    Deleted,
    Description,
    FinishWrite,
    OpenWrite,
    RequestT,
    Summary,
)
from penstock.wire.paths import Path
from penstock.wire.put import PutCommand, Receipt
from penstock.wire.read import ReadCommand
from penstock.wire.rights import Right


@dataclass(frozen=True, slots=True)
class Handler(Generic[RequestT, AnswerT]):
    """An action, and the function that carries it out once request and access are checked."""

    action: Action[RequestT, AnswerT]
    run: Callable[[Call, RequestT], AnswerT]


Handlers = Iterable[Handler[Any, Any]]


class Kind:
    """The base of all kinds: refuses each verb that a kind does not override.

    A kind is made when the server starts. Its verbs are called by many threads, with a path of its own whose key is
    valid; what they raise reaches the caller as a Flight error.
    """

    name: ClassVar[str]
    """The first name of its paths."""
    seen_with: ClassVar[Right] = "read"
    """The right at a path without which a listing doesn't name it."""

    def __init__(self, state: State) -> None:
        self.state = state

    def start(self) -> None:
        """Start the threads of this kind, before the first call."""

    def close(self) -> None:
        """Stop them, once no call is left or the drain's deadline has passed."""

    def drain(self) -> None:
        """End what calls this server of its own accord, while it is still answered."""

    def tend(self, stop: Callable[[], bool]) -> None:
        """Do the regular work of this kind, about once a minute, until it is done or `stop` says so."""

    def totals(self) -> dict[str, int]:
        """Return this kind's counts for health and metrics, besides the ledger's own."""
        return {}

    def actions(self) -> Handlers:
        """Return the actions of this kind alone."""
        return ()

    def deciding(self, path: Path) -> Path:
        """Return the path whose rights decide about a path or a folder of this kind."""
        return path

    # --- reading ----------------------------------------------------------------------------

    def info(
        self, call: Call, path: Path, command: ReadCommand, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return schema, size and endpoints; what the tickets name stays readable for their life."""
        raise self._refusal(path, Kind.info, "read")

    def schema(self, path: Path, command: ReadCommand) -> pa.Schema:
        """Return the schema that `info` would have, without a ticket."""
        raise self._refusal(path, Kind.schema, "read")

    def flights(self, folder: Path, *, folders: bool) -> Iterator[flight.FlightInfo]:
        """List what lies below a folder; with `folders`, directly in it. The path of one thing lists that."""
        raise self._refusal(folder, Kind.flights, "listed")

    def describe(self, path: Path) -> Description:
        """Return all that is known of the thing at a path."""
        raise self._refusal(path, Kind.describe, "described")

    # --- writing ----------------------------------------------------------------------------

    def delete(self, path: Path) -> Deleted:
        """Remove the thing at a path; what read tickets name stays readable for their life."""
        raise self._refusal(path, Kind.delete, "deleted")

    def delete_now(self, path: Path) -> Deleted:
        """Delete the thing, and keep nothing for `undelete`."""
        return self.delete(path)

    def undelete(self, path: Path) -> Description:
        """Make a deleted thing what it was, while its bytes are kept."""
        raise self._refusal(path, Kind.undelete, "brought back")

    def delete_source(self, path: Path) -> None:
        """Delete what fills the thing at a path, wherever that is; `delete` is called afterwards."""
        raise self._refusal(path, Kind.delete_source, "deleted with its source")

    def open(self, path: Path, request: OpenWrite, schema: pa.Schema | None) -> Write:
        """Open a write to a path, or join the open one of its run."""
        raise self._refusal(path, Kind.open, "written")

    def attempt(self, write: Write, upload: Upload) -> Receipt:
        """Store one attempt of an open write: durable, and not visible before the write is finished."""
        raise self._refusal(Path(self.name), Kind.attempt, "written")

    def finish_write(self, write: Write, attempts: Sequence[str], request: FinishWrite) -> Summary:
        """Make these attempts of a write, and no others, what it is to be; once the answer's state is finished."""
        return self.state.ledger.finish(write.id, attempts, run=request.run, receipts=request.receipts)

    def put(self, path: Path, command: PutCommand, admit: Admit) -> Receipt:
        """Take a put that belongs to no open write: durable and visible when it returns."""
        raise self._refusal(path, Kind.put, "written")

    def put_many(self, folder: Path, command: PutCommand, admit: Admit) -> Receipt:
        """Take many things in one stream, each at a path of its own below the folder of this kind."""
        raise self._refusal(folder, Kind.put_many, "written")

    def exchange(self, path: Path, stream: Stream) -> None:
        """Serve a stream of appends until the client ends it."""
        raise self._refusal(path, Kind.exchange, "appended to by do_exchange")

    def _refusal(self, path: Path, verb: Callable[..., object], done: str) -> InvalidRequest:
        others = [
            f"{name}/…" for name, kind in self.state.kinds.items() if getattr(type(kind), verb.__name__) is not verb
        ]
        return InvalidRequest(f"{path} can't be {done}: expected {' or '.join(others) or 'another path'}")
