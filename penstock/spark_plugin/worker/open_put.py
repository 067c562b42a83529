"""A write whose attempts Spark's tasks make: a value, and the calls that finish or abort it, in whichever process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from penstock.client.connection import Connection
from penstock.client.put import describe_write, finish_write
from penstock.client.settings import LONG_RETRY_FOR
from penstock.errors import InvalidRequest, PenstockError, TimedOut, WriteEnded
from penstock.spark_plugin.worker.tasks import RECEIPTS
from penstock.text import counted
from penstock.wire import actions
from penstock.wire.actions import FinishWrite, OpenedWrite, Summary

log = logging.getLogger("penstock")
Run = str | tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class OpenPut:
    """A write from open to finish. It pickles without a token: its ticket is enough to put, finish and abort."""

    path: str
    write: str
    ticket: str
    location: str | None
    """The server's address for tasks on other hosts."""
    named: bool
    """Whether the caller named the run: then another driver may finish it."""
    schema_attempt: str | None = None
    """The attempt without rows by which the driver has put the schema."""
    summary: Summary | None = None
    """The tasks' part of the finished write."""
    repeated: bool = False
    """Whether another write of this run has its rows: then this one adds nothing."""

    @classmethod
    def of(cls, path: str, opened: OpenedWrite, *, named: bool) -> OpenPut:
        """Return the write that the server has opened, or the finished one of the same run."""
        put = cls(path, opened.write, opened.ticket, opened.location, named)
        return put.done_elsewhere(opened.summary) if opened.state == "finished" else put

    def finish_request(self, receipts: Iterable[Any], run: Run | None = None) -> FinishWrite:
        """Return the request that makes the attempts of these receipts the dataset."""
        own = [] if self.schema_attempt is None else [self.schema_attempt]
        attempts = (*own, *self._attempts(receipts))
        return FinishWrite(self.ticket, attempts, None if run is None else run_name(run))

    def finished(self, answer: Summary) -> OpenPut:
        """Return the write as the server has finished it; a second answer changes nothing."""
        return self if self.summary is not None else replace(self, summary=self.tasks_part(answer))

    def done_elsewhere(self, summary: Summary) -> OpenPut:
        """Return the write as the repetition of another one."""
        return replace(self, summary=summary, repeated=True)

    def tasks_part(self, summary: Summary) -> Summary:
        """Return the summary without the attempt that put the schema."""
        return replace(summary, attempts=summary.attempts - (self.schema_attempt is not None))

    def left_out(self, receipts: Iterable[Any], answer: Summary) -> str | None:
        """Return a warning if the run was written before, by another write with another number of rows."""
        if answer.write == self.write or answer.rows == (rows := sum(receipt["rows"] for receipt in receipts)):
            return None
        return (
            f"{self.path}: run {answer.run} was written before, with {counted(answer.rows, 'row')}, and the "
            f"{counted(rows, 'row that comes now is', 'rows that come now are')} left out. Two drivers have "
            "copies of one checkpoint, or this query's rows differ each time that a batch is repeated"
        )

    def _attempts(self, receipts: Iterable[Any]) -> Iterator[str]:
        for receipt in receipts:
            try:
                write, attempt = receipt["write"], receipt["attempt"]
            except (KeyError, TypeError, ValueError, IndexError) as wrong:
                raise InvalidRequest(
                    f"finish of {self.path}: expected the receipts that mapInArrow(put, put.schema) returns, with the "
                    f"columns {', '.join(RECEIPTS.names)}, got {str(receipt)[:120]}"
                ) from wrong
            if write != self.write:
                raise InvalidRequest(
                    f"finish of {self.path}: a receipt is of write/{write}, this is write/{self.write}. Each do_put "
                    "has a frame of its own: collect this one's"
                )
            yield attempt


def run_name(run: Run) -> str:
    """Return a run's name at the server: the parts of a tuple, with slashes within a part escaped."""
    parts = run if isinstance(run, tuple) else (run,)
    if not all(type(part) in (str, int) and str(part) for part in parts or ("",)):
        raise InvalidRequest(f"run={run!r}: expected a text such as 'orders-7', or a tuple such as ('orders', 7)")
    if isinstance(run, tuple):
        parts = tuple(str(part).replace("%", "%25").replace("/", "%2F") for part in parts)
    return "/".join(map(str, parts))


def finish_put(connection: Connection, put: OpenPut, receipts: Iterable[Any], run: Run | None = None) -> OpenPut:
    """Make the attempts of these receipts the dataset, all or nothing; again with the same ones: the same answer.

    With other receipts the server rejects it, but where another driver has finished this run: then the write is the
    repetition of that one. `run` names a run that was not known when the write was opened.
    """
    if put.repeated:
        return put
    receipts = list(receipts)
    request = put.finish_request(receipts, run)
    retry_for = max(connection.settings.retry_seconds(), LONG_RETRY_FOR)
    try:
        answer = finish_write(connection, request, retry_for=retry_for)
    except TimedOut as late:
        raise TimedOut(
            f"{put.path}: the server did not answer in time whether write/{put.write} is finished; `penstock show "
            f"write/{put.write}` does. It is safe to finish again with the same receipts"
        ) from late
    except WriteEnded:
        with contextlib.suppress(PenstockError):  # at Spark's commit there is no token to ask with
            if (
                put.named
                and put.summary is None
                and (summary := describe_write(connection, put.write)).state == "finished"
            ):
                return put.done_elsewhere(summary)
        raise
    if warning := put.left_out(receipts, answer):
        log.warning("%s", warning)
    return put.finished(answer)


def abort_put(connection: Connection, put: OpenPut, *, retry_for: float | None = None) -> None:
    """Abort the write: nothing of it becomes visible. A finished one stays, and the server rejects this."""
    connection.call(actions.ABORT_WRITE, actions.AbortWrite(put.ticket), retry_for=retry_for)
