"""A worker: the loop over the splits of one queue, the same in a thread, a process, and wherever a pool starts it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from penstock.client.claim import Claims, Lease, failure_of
from penstock.client.client import Client
from penstock.client.settings import ConnectSettings
from penstock.errors import LeaseLost, PenstockError, TimedOut, Unavailable
from penstock.pipeline.operator import Work
from penstock.pipeline.sources import read_split
from penstock.rows.slices import size_of_table
from penstock.wire.queue import LeaseKey

PREFETCH = 2


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

    def stop(self) -> None:
        """End the loop behind the present split; what was loaded ahead is given back. From any thread."""
        self.stopping = True
        if self._claims is not None:
            self._claims.stop()

    def attach(self, claims: Claims) -> None:
        """Take the claims to be stopped."""
        self._claims = claims
        if self.stopping:
            claims.stop()


def work(task: Task, control: Control) -> None:
    """Process the splits of a queue until it is complete, or the driver stops the worker.

    1. The operator is opened. Then, for each split: 2. It is claimed, and its payload loaded, ahead of the operator.
    3. The driver is told that it begins, so that a worker's death has a cause. 4. A source's rows are read. 5. The
    operator processes it. 6. What comes out is forwarded, or put. 7. Leaving the block has that stored and pushed and
    the split acked, in one transaction, behind the next split. 8. The driver is told how it ended; whether it counts,
    the queue knows.
    """
    with Client(task.settings) as client:
        task.work.open(client)  # 1.
        try:
            claims = client.claim(task.queue, prefetch=task.prefetch, to=task.to)
            control.attach(claims)
            for lease in claims:  # 2.
                control.tell(Begun(lease.key, time.time()))  # 3.
                control.tell(_process(task, client, lease))
        finally:
            task.work.close()


def _process(task: Task, client: Client, lease: Lease) -> Ended:
    """Process one split; return how it ended."""
    began, clock = time.time(), time.monotonic()
    inputs: list[Any] = []
    outputs: list[Any] = []
    error: Exception | None = None
    with lease as claimed:
        try:
            split = read_split(client, claimed)  # 4.
            inputs = [split.loaded]
            outputs = task.work(lease, split)  # 5., 6.
        except Exception as failed:
            error = failed
            failed.add_note(f"split {lease.key.message_id} of {lease.key.queue}, operator {task.name}")
            if task.retries or lease.lost or isinstance(failed, Unavailable | TimedOut):
                raise  # the split is given back; of a server that was away for long it is no one's mistake
            with suppress(PenstockError):  # the lease is over, or ends by itself
                lease.drop(failure_of(failed))
    # 7. is under way
    outcome: Literal["done", "failed", "lost"] = (
        "done" if error is None else "lost" if isinstance(error, LeaseLost) else "failed"
    )
    rows_in, bytes_in = _size_of(inputs)
    rows_out, bytes_out = _size_of(outputs)
    text = None if error is None else "".join(traceback.format_exception_only(error)).strip()
    return Ended(
        lease.key.message_id, began, time.monotonic() - clock, outcome, rows_in, bytes_in, rows_out, bytes_out, text
    )


def _size_of(payloads: Iterable[Any]) -> tuple[int, int]:
    """Return the rows and bytes of payloads and tables."""
    tables = [each for payload in payloads if isinstance(each := getattr(payload, "data", payload), pa.Table)]
    return sum(table.num_rows for table in tables), sum(map(size_of_table, tables))
