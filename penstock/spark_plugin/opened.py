"""A write that Spark's tasks make, from open to finish, in whichever processes Spark does that."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock import client as clients
from penstock.bodies import OpenedWrite
from penstock.errors import InvalidRequest
from penstock.spark_plugin.tasks import RECEIPTS, PutPartition
from penstock.views import Written
from penstock.wire import Mode

Run = str | tuple[object, ...]


class OpenPut:
    """An open write. It pickles without the token: its ticket is enough for all that is left to do."""

    def __init__(
        self, client: clients.Client, path: str, mode: Mode, run: Run | None, schema: pa.Schema | None
    ) -> None:
        self.path = path
        self._client, self._schema = client, schema
        self._began = time.monotonic()
        name = "/".join(map(str, run)) if isinstance(run, tuple) else run
        # A run of our own makes it safe to ask again where a server is away
        body = {"path": path, "mode": mode, "run": name or f"put-{uuid.uuid4().hex}"}
        self._opened = OpenedWrite.from_json(client.call("write.open", body))
        self.finished = Written.of(self._opened.summary) if self._opened.state == "finished" else None
        """What an earlier write of this run has written; then there is nothing left to do."""
        self._first: list[str] = []
        if schema is not None and self.finished is None:
            self._first.append(self._without_rows(schema))

    @property
    def write(self) -> str:
        """The write's id: `penstock show write/ID`."""
        return self._opened.write

    @property
    def task(self) -> PutPartition:
        """What puts a partition."""
        settings = self._client.settings.for_tasks(self._opened.location)
        return PutPartition(settings, self._opened.ticket if self.finished is None else None, self._schema)

    def finish(self, receipts: Iterable[Any]) -> Written:
        """Make what these receipts name the dataset, all or nothing. Again with the same receipts: the same answer."""
        if self.finished is not None:
            return self.finished
        body = {"ticket": self._opened.ticket, "attempts": [*self._first, *self._attempts(receipts)]}
        answer = self._client.call("write.finish", body)
        self.finished = Written.of(answer, seconds=time.monotonic() - self._began)
        return self.finished

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
        return {**vars(self), "_client": clients.Client(public)}

    def _without_rows(self, schema: pa.Schema) -> str:
        """An attempt that only has a schema: the dataset's, if Spark runs no task. One that doesn't fit ends here."""
        try:
            return self._client.attempt(self._opened.ticket, schema).close().attempt
        except BaseException:
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
