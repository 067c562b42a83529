"""`publisher`: publishes to a topic what is written to publish/… at a server, which starts it by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.invocation import Invocation, command
from penstock.cli.pull import access_options, begin, until_told
from penstock.errors import InvalidRequest
from penstock.wire.paths import parse

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.connection import Connection
    from penstock.wire.publish import AskParts, NotePublished, PartsToPublish, StagedPart


@command(
    "Publish what is written to publish/PROJECT/TOPIC.", "penstock publisher publish/my-project/clean", hidden=True
)
@click.argument("path")
@access_options
def publisher(
    invocation: Invocation, path: str, log_level: str, server_name: str | None, parent: int | None, **access: Any
) -> None:
    """Publish the staged rows of finished writes to publish/PROJECT/TOPIC, until SIGTERM.

    The server starts one for each topic that is written to. It has nothing to lose: what Pub/Sub has answered is noted
    at the server, and another publisher goes on from there.
    """
    begin(log_level, parent)
    try:
        from penstock.queue.pubsub.publish import Publisher
        from penstock.queue.pubsub.transport import Access, Topic
    except ImportError as missing:
        raise InvalidRequest(
            f"publishing needs Google's client, and {missing.name} is missing at the server: pip install "
            "'penstock-flight[serve,pubsub]'"
        ) from missing
    from penstock.client.connection import Connection  # and pyarrow, which --help doesn't need

    project, _, topic = parse(path).key.partition("/")
    with invocation.connect() as client:
        settings = replace(client.settings, server_name=server_name)
    connection = Connection(settings)
    published = Topic(Access(**access), f"projects/{project}/topics/{topic}")
    with until_told(parent) as is_told:
        Publisher(path, published, ServerConnection(connection)).run(is_told)


_NOTED_WITHIN = 24 * 3600.0
"""Seconds for which a full disk is waited for: a publisher that ends has its successor publish these rows again."""


class ServerConnection:
    """A publisher's server, over a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def next_parts(self, request: AskParts) -> PartsToPublish:
        from penstock.wire.actions import ASK_PARTS

        return self._connection.call(ASK_PARTS, request)

    def note(self, request: NotePublished) -> None:
        from penstock.wire.actions import NOTE_PUBLISHED

        self._connection.call(NOTE_PUBLISHED, request, retry_for=_NOTED_WITHIN, waits_for_room=True)

    def read(self, part: StagedPart, local: str | None) -> Iterator[pa.RecordBatch]:
        from penstock.client.get import read_tickets

        return read_tickets(self._connection, [(part.ticket.encode(), part.rows)], local=local, columns=None)
