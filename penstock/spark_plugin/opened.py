"""A write that Spark's tasks make, from open to finish, in whichever processes Spark does that."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.client.client import Client
from penstock.client.settings import PATIENCE
from penstock.client.views import Written
from penstock.errors import InvalidRequest, PenstockError, TimedOut, WriteEnded
from penstock.spark_plugin.worker.tasks import RECEIPTS, PutPartition
from penstock.wire.actions import OpenedWrite
from penstock.wire.put import Mode

log = logging.getLogger("penstock")
Run = str | tuple[str | int, ...]


class OpenPut:
    """An open write. It pickles without the token: its ticket is enough for all that is left to do."""

    def __init__(
        self,
        client: Client,
        path: str,
        mode: Mode,
        run: Run | None,
        schema: pa.Schema | None,
        *,
        ahead: bool = True,
    ) -> None:
        """With `ahead` the schema is put before the tasks begin: a frame without rows has it, too."""
        self.path = path
        self._client, self._schema = client, schema
        self._began = time.monotonic()
        if schema is not None and not schema.names:
            raise InvalidRequest(
                f"{path}: a frame without columns can't be written, as Spark hands out none of its rows"
            )
        self._named = run is not None
        # A run of our own makes it safe to ask again where a server is away
        body = {"path": path, "mode": mode, "run": f"put-{uuid.uuid4().hex}" if run is None else run_name(run)}
        self._opened = OpenedWrite.from_json(client.call("write.open", body))
        self.before = Written.of(self._opened.summary.to_json()) if self._opened.state == "finished" else None
        """What an earlier write of this run has written; then there is nothing left to do."""
        self.finished = self.before
        self._first: list[str] = []
        if ahead and schema is not None and self.finished is None:
            self._first.append(self._without_rows(schema))

    @property
    def write(self) -> str:
        """The write's id: `penstock show write/ID`."""
        return self._opened.write

    @property
    def task(self) -> PutPartition:
        """What puts a partition."""
        settings = self._client.settings.for_tasks(self._opened.location)
        return PutPartition(settings, self._opened.ticket if self.before is None else None, self._schema)

    def finish(self, receipts: Iterable[Any]) -> Written:
        """Make what these receipts name the dataset, all or nothing. Again with the same receipts: the same answer.

        With others it is refused, but where another driver has finished this run: then the answer is what that wrote.
        """
        return self.finish_as(None, receipts)

    def finish_as(self, run: Run | None, receipts: Iterable[Any]) -> Written:
        """The same, as a run that wasn't known at the start: one that is written already adds nothing."""
        if self.before is not None:
            return self.before
        receipts = list(receipts)
        attempts = [*self._first, *self._attempts(receipts)]
        try:
            body = {"ticket": self._opened.ticket, "attempts": attempts}
            answer = self._answered(body if run is None else body | {"run": run_name(run)})
        except WriteEnded:
            self.before = self._by_another() if self._named and self.finished is None else None
            if self.before is None:
                raise
            self.finished = self.before
            return self.before
        if answer["write"] != self.write and answer["rows"] != (came := sum(each["rows"] for each in receipts)):
            log.warning(
                "%s: run %s was written before, with %s rows, and the %s rows that come now are left out. Two drivers "
                "have copies of one checkpoint, or this query's rows differ each time that a batch is repeated",
                self.path, run, f"{answer['rows']:,}", f"{came:,}",
            )  # fmt: skip
        tasks = {"attempts": answer["attempts"] - len(self._first)}
        self.finished = self.finished or Written.of({**answer, **tasks}, seconds=time.monotonic() - self._began)
        return self.finished

    def _by_another(self) -> Written | None:
        """What another driver wrote under this run; None also where there is no token to ask with (Spark's commit)."""
        with contextlib.suppress(PenstockError):
            found = self._client.call("describe", {"path": f"write/{self.write}"})
            return Written.of(found) if found["state"] == "finished" else None
        return None

    def _answered(self, body: dict[str, Any]) -> dict[str, Any]:
        """write.finish, asked again while the server is away or late: the same list is the same finish."""
        settings = self._client.settings
        patience = max(settings.retry_for, PATIENCE)
        give_up = time.monotonic() + patience
        with Client(replace(settings, retry_for=patience)) as patient:
            while True:
                try:
                    return patient.call("write.finish", body)
                except TimedOut as late:
                    if time.monotonic() > give_up:
                        raise TimedOut(
                            f"{self.path}: whether write/{self.write} is finished the server didn't say in time; "
                            f"`penstock show write/{self.write}` does. To finish again with the same receipts is safe"
                        ) from late

    def abort(self) -> None:
        """End the write with nothing to show for it; a finished one stays, and this is refused."""
        self._client.call("write.abort", {"ticket": self._opened.ticket})

    def so_far(self) -> dict[str, Any]:
        """What the server has whole by now of the tasks': attempts, rows, bytes."""
        found = self._client.call("describe", {"path": f"write/{self.write}"})
        return {**found, "attempts": found["attempts"] - len(self._first)}

    def __getstate__(self) -> dict[str, Any]:
        settings = self._client.settings
        public = replace(settings.for_tasks(self._opened.location), retry_for=settings.retry_for)
        return {**vars(self), "_client": Client(public)}

    def _without_rows(self, schema: pa.Schema) -> str:
        """An attempt that only has a schema: the dataset's, if Spark runs no task. One that doesn't fit ends here."""
        try:
            return self._client.attempt(self._opened.ticket, schema).close().attempt
        except BaseException:
            with contextlib.suppress(PenstockError):  # which would hide what is wrong
                self.abort()
            raise

    def _attempts(self, records: Iterable[Any]) -> Iterator[str]:
        for record in records:
            try:
                write, attempt = record["write"], record["attempt"]
            except (KeyError, TypeError, ValueError, IndexError) as other:
                raise InvalidRequest(
                    f"finish of {self.path}: expected the receipts that mapInArrow(put, put.schema) gives, with the "
                    f"columns {', '.join(RECEIPTS.names)}, got {str(record)[:120]}"
                ) from other
            if write != self.write:
                raise InvalidRequest(
                    f"finish of {self.path}: a receipt is of write/{write}, this is write/{self.write}. They "
                    "belong to the do_put whose frame made them: collect this one's"
                )
            yield attempt


def run_name(run: Run) -> str:
    """A run as the server knows it: the tuple's parts, which a slash within them doesn't make others."""
    parts = run if isinstance(run, tuple) else (run,)
    if not all(type(part) in (str, int) and str(part) for part in parts or ("",)):
        raise InvalidRequest(f"run={run!r}: expected a text such as 'orders-7', or a tuple such as ('orders', 7)")
    if isinstance(run, tuple):
        parts = tuple(str(part).replace("%", "%25").replace("/", "%2F") for part in parts)
    return "/".join(map(str, parts))
