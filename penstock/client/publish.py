"""Puts to publish/…: staged at the server, and done once Pub/Sub has all of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

import pyarrow as pa

from penstock.client.connection import Connection
from penstock.client.put import batches_to_put, describe_write, finish_write, open_attempt, wait_until_published
from penstock.errors import InvalidRequest, PenstockError, StoreFull, TimedOut, Unavailable, WriteEnded
from penstock.rows.to_json import JsonEncoding
from penstock.text import suggest
from penstock.wire.actions import (
    ABORT_WRITE,
    OPEN_WRITE,
    REDRIVE_ROWS,
    AbortWrite,
    FinishWrite,
    OpenWrite,
    RedrivenRows,
    RedriveRows,
    Summary,
)
from penstock.wire.publish import Compression, PublishOptions
from penstock.wire.put import Mode, Receipt

Encoding = Literal["json", "avro", "protobuf"]


class PublishArguments(TypedDict, total=False):
    """The arguments of a write to publish/… alone."""

    encode: Encoding | None
    """`json`, `avro`, `protobuf`: each row becomes the data of a message, without its columns attributes and
    ordering_key, which stay. The last two by the topic's own schema, at the server."""
    id_attribute: bool
    """Whether each message has the attribute penstock-id, the same however often it is published."""
    compression: Compression | None
    """Of the requests to Pub/Sub."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """How rows become messages, and how these are published."""

    encoding: JsonEncoding | None
    options: PublishOptions | None

    @classmethod
    def of(cls, path: str, arguments: Mapping[str, Any]) -> Publishing:
        """Return what these arguments say; reject unknown ones, and any for another kind of path."""
        known = PublishArguments.__annotations__
        given = {name: value for name, value in arguments.items() if value not in (None, False)}
        for name in arguments:
            if name not in known:
                raise InvalidRequest(f"{path}: no argument is called {name!r}; {suggest(name, known)}")
        if not path.startswith("publish/"):
            if given:
                raise InvalidRequest(f"{path}: {', '.join(given)} says how messages are published: omit it")
            return cls(None, None)
        if given.get("compression", "gzip") != "gzip":
            raise InvalidRequest(f"{path}: compression={given['compression']!r:.80}: expected 'gzip'")
        encode = given.get("encode")
        if encode not in (None, *get_args(Encoding)):
            raise InvalidRequest(
                f"{path}: encode={encode!r:.80}: expected {' or '.join(map(repr, get_args(Encoding)))}"
            )
        at_server = None if encode == "json" else encode
        options = PublishOptions(bool(given.get("id_attribute")), given.get("compression"), at_server)
        return cls(JsonEncoding(path) if encode == "json" else None, options)


def publish(
    connection: Connection,
    path: str,
    data: Any,
    *,
    mode: Mode,
    run: str | None,
    schema: pa.Schema | None,
    publishing: Publishing,
) -> Receipt:
    """Publish rows: stage them as one attempt, then finish the write.

    The finish can be repeated, so that whatever breaks after the rows are staged changes nothing of what is published.
    """
    schema, batches = batches_to_put(data, schema)
    encoding = publishing.encoding
    put_schema = schema if encoding is None else encoding.schema(schema)
    name = f"put-{uuid.uuid4().hex}" if run is None else run  # so that it can be retried
    opened = connection.call(OPEN_WRITE, OpenWrite(path, mode, run=name, publish=publishing.options))
    attempts: tuple[str, ...] = ()
    try:
        if opened.state == "open" and opened.summary.published is None:  # else this run's rows are there
            with open_attempt(connection, opened.ticket, put_schema) as writer:
                for batch in batches if encoding is None else encoding.batches(batches, put_schema):
                    writer.write(batch)
            attempts = (writer.close().attempt,)
        done = _finish(connection, FinishWrite(opened.ticket, attempts), opened.write, run)
    except WriteEnded:
        done = describe_write(connection, opened.write)
        if done.state != "finished":  # by another put of this run
            raise
    except BaseException as error:
        if isinstance(error, StoreFull) or not isinstance(error, Unavailable | TimedOut):  # else the server goes on
            with suppress(PenstockError):  # a named run is finished by whoever puts it again
                connection.call(ABORT_WRITE, AbortWrite(opened.ticket))
        raise
    return Receipt(done.write, next(iter(attempts), ""), done.rows, done.bytes, done.parts, "")


def redrive(connection: Connection, path: str, to: str, consumer: str | None) -> RedrivenRows:
    """Put dead rows into another topic, or publish them; then return once Pub/Sub has them."""
    done, name = RedrivenRows(consumer or "", 0), uuid.uuid4().hex  # an answer that is lost is given again

    def ask() -> Summary | None:
        nonlocal done
        done = connection.call(REDRIVE_ROWS, RedriveRows(path, to, done.consumer or None, name))
        return done.write

    wait_until_published(ask)
    return done


def _finish(connection: Connection, request: FinishWrite, write: str, run: str | None) -> Summary:
    try:
        return finish_write(connection, request)
    except (Unavailable, TimedOut) as left:
        again = "pass run= to be able to repeat a put" if run is None else f"put run {run!r} again to wait for it"
        text = f"{left}. What the server was told to finish of write/{write} goes on by itself; {again}"
        raise type(left)(text, request=left.request, retry_after=left.retry_after) from left
