"""Rights: what each request needs at which paths. `admin` includes the other two; `write` doesn't include `read`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from penstock.wire.actions import AttachSubscription, DeleteTarget, OpenWrite, RedriveRows, Target
    from penstock.wire.job import StartJob
    from penstock.wire.payloads import FindPayloads
    from penstock.wire.publish import AskParts, NotePublished
    from penstock.wire.queue import ClaimMessages, PushDataset

Right = Literal["read", "write", "admin"]
Need = tuple[Right, str]
"""A right, and the path or the folder where a request needs it; that of write/ID is needed where the write leads to,
that of consumer/topic/x/NAME at topic/x."""


def at_path(right: Right) -> Callable[[Any], Iterator[Need]]:
    """Return what a request needs that is about its `path` alone."""

    def needs(request: Any) -> Iterator[Need]:
        yield right, request.path

    return needs


def at_prefix(right: Right) -> Callable[[Any], Iterator[Need]]:
    """Return what a request needs that is about all payloads whose keys begin with its `prefix`."""

    def needs(request: Any) -> Iterator[Need]:
        yield right, f"store/{request.prefix.rpartition('/')[0]}"

    return needs


def to_open(request: OpenWrite) -> Iterator[Need]:
    """Open a write, whose finish may fill a queue."""
    yield "write", request.path
    if request.queue is not None:
        yield "write", request.queue


def to_describe(request: Target) -> Iterator[Need]:
    """Describe; a write is its writers' to look at."""
    yield "write" if request.path.startswith("write/") else "read", request.path


def to_delete(request: DeleteTarget) -> Iterator[Need]:
    """Delete; a job with its queues. An open write is aborted, as who may write could do."""
    kind, _, key = request.path.partition("/")
    yield "write" if kind == "write" else "admin", request.path
    if kind == "job":
        yield "admin", f"queue/{key}"


def to_redrive_rows(request: RedriveRows) -> Iterator[Need]:
    """Copy rows that the consumer was to read."""
    yield "read", request.path
    yield "write", request.to


def to_attach(request: AttachSubscription) -> Iterator[Need]:
    """Attach with defaults, as the first reader does; what is said changes it for everybody."""
    is_plain = all(value == request.path for value in request.to_json().values())
    yield "read" if is_plain else "admin", request.path


def to_claim(request: ClaimMessages) -> Iterator[Need]:
    """Take messages with their payloads."""
    yield "read", request.path
    yield "write", request.path
    for queue in request.to:
        yield "write", queue


def of_leases(request: Any) -> Iterator[Need]:
    """End leases, or let them last."""
    for queue in {lease.queue for lease in request.leases}:
        yield "write", queue


def to_push_dataset(request: PushDataset) -> Iterator[Need]:
    """Push messages that name a dataset's parts: who claims them reads these."""
    yield "write", request.path
    yield "read", request.dataset


def to_start_job(request: StartJob) -> Iterator[Need]:
    """Make a job and its queues."""
    yield "write", request.path
    yield "write", f"queue/{request.path.partition('/')[2]}"


def to_find(request: FindPayloads) -> Iterator[Need]:
    """Read payloads."""
    for key in request.keys:
        yield "read", f"store/{key}"


def to_publish(request: AskParts) -> Iterator[Need]:
    """Read what is published, as the server's own publishers do."""
    yield "admin", request.path
    if request.write is not None:
        yield "admin", f"write/{request.write}"


def to_note(request: NotePublished) -> Iterator[Need]:
    """Say what is published."""
    yield "admin", f"write/{request.write}"
