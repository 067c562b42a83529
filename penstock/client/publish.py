"""Puts to publish/…: staged at the server, and done once Pub/Sub has all of it."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import Any

import pyarrow as pa

from penstock.client.connection import Connection
from penstock.client.put import batches_to_put, open_attempt
from penstock.client.settings import LONG_RETRY_FOR
from penstock.errors import PenstockError, TimedOut, Unavailable
from penstock.wire.actions import ABORT_WRITE, FINISH_WRITE, OPEN_WRITE, AbortWrite, FinishWrite, OpenWrite, Summary
from penstock.wire.publish import PublishOptions
from penstock.wire.put import Mode, Receipt


def finish_write(connection: Connection, request: FinishWrite, *, retry_for: float | None = None) -> Summary:
    """Finish a write; of one that is published wait until all of it is, for as long as that goes on."""
    patience = max(LONG_RETRY_FOR, retry_for or 0.0)
    published, moved = -1, time.monotonic()
    while True:
        answer = connection.call(FINISH_WRITE, request, retry_for=retry_for)
        if answer.state != "open":
            return answer
        if (now := answer.published or 0) != published:
            published, moved = now, time.monotonic()
        if time.monotonic() - moved > patience:
            raise TimedOut(
                f"{answer.path}: Pub/Sub has taken nothing for {patience:g} s; {published:,} of {answer.rows:,} "
                f"messages are published, and the server goes on: penstock show write/{answer.write}"
            )


def publish(
    connection: Connection,
    path: str,
    data: Any,
    *,
    mode: Mode,
    run: str | None,
    schema: pa.Schema | None,
    options: PublishOptions,
) -> Receipt:
    """Publish rows: stage them as one attempt, then finish the write.

    The finish can be repeated, so that whatever breaks after the rows are staged changes nothing of what is published.
    """
    schema, batches = batches_to_put(data, schema)
    name = f"put-{uuid.uuid4().hex}" if run is None else run  # so that it can be retried
    opened = connection.call(OPEN_WRITE, OpenWrite(path, mode, run=name, publish=options))
    attempts: tuple[str, ...] = ()
    if opened.state == "open" and opened.summary.published is None:  # else this run's rows are there
        with open_attempt(connection, opened.ticket, schema) as writer:
            for batch in batches:
                writer.write(batch)
        attempts = (writer.close().attempt,)
    try:
        done = finish_write(connection, FinishWrite(opened.ticket, attempts))
    except (Unavailable, TimedOut):  # the server goes on
        raise
    except PenstockError:
        with suppress(PenstockError):  # a named run is finished by whoever puts it again
            connection.call(ABORT_WRITE, AbortWrite(opened.ticket))
        raise
    return Receipt(done.write, next(iter(attempts), ""), done.rows, done.bytes, done.parts, "")
