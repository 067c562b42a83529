"""`pull`: lease a subscription's messages from Google Pub/Sub, and bring them to a server."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import click

from penstock.cli import terminal
from penstock.cli.invocation import Invocation, command, complete_path
from penstock.errors import InvalidRequest
from penstock.flight_server.supervisor import end_with
from penstock.wire.paths import parse

_GARBAGE = 100_000
"""New objects that start a look for cycles of garbage: messages come by thousands and are never part of one, and looks
at them took half of the processor's time."""
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LEVELS = ("debug", "info", "warning", "error")
_LEASE = "How long Pub/Sub waits for a puller that has died, before it sends its messages again."
_CREDENTIALS = "A service account's key, file or JSON (better: PENSTOCK_PUBSUB_CREDENTIALS).  [default: ADC]"
_ENDPOINT = "Pub/Sub's address, such as europe-west1-pubsub.googleapis.com:443."
_EMULATOR = "Call the emulator at --endpoint or PUBSUB_EMULATOR_HOST instead of Google."


def access_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say as whom Pub/Sub is called, and which server has started the process."""
    for option in (
        click.option("--parent", type=int, hidden=True, help="The server that starts it: it ends with that process."),
        click.option("--server-name", hidden=True, help="The name in the server's certificate, if not that of --url."),
        click.option("--log-level", type=click.Choice(_LEVELS), default="info", hidden=True),
        click.option("--allow-emulator", is_flag=True, help=_EMULATOR),
        click.option("--endpoint", metavar="HOST:PORT", help=_ENDPOINT),
        click.option("--pubsub-impersonate", "impersonate", metavar="EMAIL", help="Act as this service account."),
        click.option("--pubsub-credentials", "credentials", envvar="PENSTOCK_PUBSUB_CREDENTIALS", help=_CREDENTIALS),
    ):
        function = option(function)
    return function


@command("Pull a subscription's messages to a server.", "penstock pull subscription/my-project/orders --streams 2")
@click.argument("path", shell_complete=complete_path)
@click.option("--pull", "method", type=click.Choice(("streaming", "unary")), default="streaming", show_default=True)
@click.option("--streams", type=click.IntRange(1, 64), default=1, show_default=True, help="10 MB/s each, at Google.")
@click.option("--lease", type=click.IntRange(10, 600), default=60, show_default=True, metavar="SECONDS", help=_LEASE)
@access_options
def pull(
    invocation: Invocation,
    path: str,
    method: Literal["streaming", "unary"],
    streams: int,
    lease: int,
    log_level: str,
    server_name: str | None,
    parent: int | None,
    **access: Any,
) -> None:
    """Pull the messages of subscription/PROJECT/NAME to the server, until SIGTERM or Ctrl-C.

    Each is acked once the server has it on disk and every consumer is done with it; until then its lease is extended.
    A puller has nothing to lose: what it held comes again, and the server recognises it. Start as many as you like,
    on any host; the server starts its own by itself.

    Errors that another try may mend are retried. Exit codes 2, 3 and 6 are refusals (options, subscription,
    permission), 5 is a server that was away for ten minutes.
    """
    begin(log_level, parent)
    from penstock.client.exchange import Exchange, Listener  # and pyarrow, which --help doesn't need

    try:
        from penstock.queue.pubsub.pull import Puller, PullOptions
        from penstock.queue.pubsub.registry import google_name
        from penstock.queue.pubsub.transport import Access, PubSub
    except ImportError as missing:
        raise InvalidRequest(
            f"pull needs Google's client, and {missing.name} is missing: pip install 'penstock-flight[cli,pubsub]'"
        ) from missing

    class ListeningPuller(Puller, Listener):
        """A puller as the listener of its exchange: a room below the client's knows no `Listener`."""

    subscription = google_name(parse(path))
    with invocation.connect() as client:
        settings = replace(client.settings, server_name=server_name)
    puller: ListeningPuller = ListeningPuller(
        PubSub(Access(**access), subscription),
        lambda: Exchange(settings, path, puller),
        PullOptions(method, streams, lease),
    )
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    with until_told(parent) as is_told:
        puller.run(is_told)


def begin(log_level: str, parent: int | None) -> None:
    """Log to stderr; if a server has started this process, end with it, and without its --memory-limit.

    That one bounds what its callers make it hold.
    """
    if parent is not None:
        end_with(parent)
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    logging.basicConfig(level=log_level.upper(), stream=sys.stderr, format=_LOG_FORMAT)


@contextmanager
def until_told(parent: int | None) -> Iterator[Callable[[], bool]]:
    """Yield whether this process is to end: after SIGTERM or Ctrl-C, and once the server that started it is gone."""
    stops: list[bool] = []  # no event: a signal's handler must not take a lock
    with terminal.on_signal(lambda: stops.append(True), signal.SIGTERM, signal.SIGINT):
        yield lambda: bool(stops) or (parent is not None and os.getppid() != parent)
