"""A worker: the loop over the splits of one queue, the same in a thread, a process, and wherever a pool starts it."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from penstock.client.claim import Claims
from penstock.client.client import Client
from penstock.client.lease import Lease, Split, failure_of
from penstock.client.settings import ConnectSettings
from penstock.errors import LeaseLost, PenstockError, TimedOut, Unavailable
from penstock.pipeline.operator import Work
from penstock.pipeline.sources import read_split
from penstock.rows.slices import size_of_table
from penstock.wire.queue import LeaseKey

log = logging.getLogger(__name__)
PREFETCH = 2
_OF_THE_SERVER = (Unavailable, TimedOut)
"""Errors that are no split's mistake: the server was away, or its disk full, for long."""
_PAUSE = 1.0
"""Seconds before a split is claimed again after such an error."""


@dataclass(frozen=True, slots=True)
class Task:
    """All that a worker needs to know, in any process."""

    settings: ConnectSettings
    queue: str
    work: Work
    name: str
    """The operator's, for errors."""
    to: tuple[str, ...] = ()
    retries: bool = True
    """Whether a split that fails is given back; otherwise it is set aside at once."""
    prefetch: int = PREFETCH
    is_single: bool = False
    """Whether the worker takes splits one by one, though its operator takes several: one of them kills workers."""
    room: tuple[int, int] | None = None
    """Messages and bytes that may wait in a queue of `to` before the worker waits."""
    worker: str | None = None
    """What the queue knows it by, so that its driver can give back what it had when it died."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """What a pool that reserves something reserves for a worker: num_cpus, num_gpus, memory."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A worker has begun a split."""

    lease: LeaseKey
    at: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker has ended a split."""

    message_id: str
    began: float
    seconds: float
    outcome: Literal["done", "failed", "lost"]
    rows_in: int = 0
    bytes_in: int = 0
    rows_out: int = 0
    bytes_out: int = 0
    error: str | None = None


Event = Begun | Ended


class Control:
    """How a worker and its driver reach each other: events go out, a stop comes in."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.tell = tell
        self.stopping = False
        self._claims: Claims | None = None
        self._lock = threading.Lock()  # all that follows
        self._rooms: list[tuple[int, int] | None] = []
        """The bound that was set last, if one was."""

    def stop(self) -> None:
        """End the loop behind the present split; what was loaded ahead is given back. From any thread."""
        self.stopping = True
        if self._claims is not None:
            self._claims.stop()

    def set_room(self, room: tuple[int, int] | None) -> None:
        """Change the bound of the queues that the worker fills; None for no bound. From any thread."""
        with self._lock:
            self._rooms = [room]
            if self._claims is not None:
                self._claims.set_room(room)

    def attach(self, claims: Claims) -> None:
        """Take the claims to be stopped."""
        with self._lock:
            self._claims = claims
            for room in self._rooms:
                claims.set_room(room)
        if self.stopping:
            claims.stop()


def work(task: Task, control: Control) -> None:
    """Process the splits of a queue until it is complete, or the driver stops the worker.

    1. The operator is opened. Then, for each split, or several of them at once: 2. It is claimed, and its payload
    loaded, ahead of the operator. 3. The driver is told that it begins, so that a worker's death has a cause. 4. A
    source's rows are read. 5. The operator processes it. 6. What comes out is forwarded, or put. 7. That is stored and
    pushed and the split acked, in one transaction, behind the next splits. 8. The driver is told how it ended; whether
    it counts, the queue knows.
    """
    with Client(task.settings) as client:
        with _without_exit(task):
            task.work.open(client)  # 1.
        try:
            claims = client.claim(
                task.queue, prefetch=task.prefetch, to=task.to, room=task.room, worker=task.worker
            )  # fmt: skip
            control.attach(claims)
            for leases in claims.batches(1 if task.is_single else task.work.batch, linger=task.work.linger):  # 2.
                for lease in leases:
                    control.tell(Begun(lease.key, time.time()))  # 3.
                for ended in _process(task, client, leases):
                    control.tell(ended)  # 8.
        finally:
            task.work.close()


@dataclass(slots=True)
class _Processed:
    """A split, and what became of it."""

    lease: Lease
    split: Split | None = None
    outputs: list[Any] = field(default_factory=list)
    error: Exception | None = None

    def ended(self, began: float, seconds: float) -> Ended:
        """Return it as the driver is told."""
        outcome: Literal["done", "failed", "lost"] = (
            "done" if self.error is None else "lost" if isinstance(self.error, LeaseLost) else "failed"
        )
        rows_in, bytes_in = _size_of([] if self.split is None else [self.split.loaded])
        rows_out, bytes_out = _size_of(self.outputs)
        text = None if self.error is None else "".join(traceback.format_exception_only(self.error)).strip()
        return Ended(
            self.lease.key.message_id, began, seconds, outcome, rows_in, bytes_in, rows_out, bytes_out, text
        )  # fmt: skip


def _process(task: Task, client: Client, leases: list[Lease]) -> list[Ended]:
    """Process splits; return how each ended."""
    began, clock = time.time(), time.monotonic()
    try:
        splits = [_read(client, lease) for lease in leases]  # 4.
        _work_on(task, [each for each in splits if each.error is None])  # 5., 6.
        _settle(task, splits)  # 7.
    except BaseException:  # the worker's end, by itself
        for lease in leases:
            with suppress(PenstockError):
                lease.release()
        raise
    seconds = (time.monotonic() - clock) / len(splits)
    return [each.ended(began + number * seconds, seconds) for number, each in enumerate(splits)]


def _read(client: Client, lease: Lease) -> _Processed:
    try:
        return _Processed(lease, read_split(client, lease.split))
    except Exception as failed:
        return _Processed(lease, error=failed)


def _work_on(task: Task, splits: list[_Processed]) -> None:
    """Process splits at once; if that fails, one by one, as only one of them may be why."""
    if not splits:
        return
    try:
        with _without_exit(task):
            made = task.work([each.lease for each in splits], [each.split for each in splits if each.split is not None])
    except Exception as failed:
        is_theirs = not isinstance(failed, _OF_THE_SERVER)
        for each in splits:
            each.lease.outputs = []
            if len(splits) > 1 and is_theirs:
                _work_on(task, [each])
            else:
                each.error = failed
        return
    for each, outputs in zip(splits, made, strict=True):
        each.outputs = outputs


@contextmanager
def _without_exit(task: Task) -> Iterator[None]:
    """Make an error of an operator's sys.exit(), by which its worker would end and the split come again, for ever."""
    try:
        yield
    except SystemExit as ended:
        raise RuntimeError(f"{task.name} called sys.exit({ended.code!r}): raise an error in place of it") from ended


def _settle(task: Task, splits: list[_Processed]) -> None:
    """Have what was made of splits stored, and the splits acked; give those back that have failed."""
    done = [each.lease for each in splits if each.error is None]
    if task.work.ends_together and len(done) > 1:
        done.pop().end_with(done)
        done = []
    for lease in done:
        with lease:
            pass
    for each in splits:
        if each.error is not None:
            with each.lease:
                _fail(task, each.lease, each.error)


def _fail(task: Task, lease: Lease, error: Exception) -> None:
    """Set a split aside, or raise the error, by which its block gives it back; errors of the server count as no try."""
    error.add_note(f"split {lease.key.message_id} of {lease.key.queue}, operator {task.name}")
    if isinstance(error, _OF_THE_SERVER) and not lease.lost:
        log.warning("%s, so it will be tried again: %s", error.__notes__[-1], error)
        lease.release(_PAUSE)
    elif task.retries or lease.lost:
        raise error
    else:
        lease.drop(failure_of(error))


def _size_of(payloads: Iterable[Any]) -> tuple[int, int]:
    """Return the rows and bytes of payloads and tables."""
    tables = [each for payload in payloads if isinstance(each := getattr(payload, "data", payload), pa.Table)]
    return sum(table.num_rows for table in tables), sum(map(size_of_table, tables))
