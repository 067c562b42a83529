"""`serve`: run a server. It parses the options; the server's own life cycle does the rest."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.invocation import duration, example, size
from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.flight_server.config import ServerConfig
    from penstock.flight_server.supervisor import Attachment

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LEVELS = click.Choice(("debug", "info", "warning", "error"))
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_LISTEN = "Where Flight clients connect: grpc:// or grpc+tls://host:port.  [default: grpc://127.0.0.1:8815]"
_HTTP = "For /healthz /readyz /metrics, or 'off'.  [default: 127.0.0.1:8816]"
_STORE = "Where the bytes lie: disk:, disk:/a/folder, memory:, memory:?max=2GiB or ray:.  [default: disk:]"
_DATA = "The data folder; one server at a time has it.  [default: ~/.local/share/penstock]"
_ADVERTISE = "The address that clients are told to read from, if it isn't --listen."
_MEMORY = "The most private memory that the server may take, or 'off'.  [default: half of the machine's]"
_LIFE = "How long a read ticket is valid; deleted rows that it names stay as long.  [default: 12h]"
_EVICT = "A full store deletes the datasets that were used longest ago and nobody needs; with --quota."
_DRAIN = "Time for running calls to end when the server is told to stop.  [default: 30s]"
_PULLERS = "Processes that pull each subscription.  [default: 1]"
_LEASE = "When Pub/Sub redelivers the messages of a puller that has died.  [default: 60]"
_CREDENTIALS = "A service account's key for Pub/Sub, file or JSON (better: the variable).  [default: ADC]"
_IMPERSONATE = "Call Pub/Sub as this service account."
_ENDPOINT = "Pub/Sub's address, such as europe-west1-pubsub.googleapis.com:443."
_EMULATOR = "Call the emulator at --pubsub-endpoint or PUBSUB_EMULATOR_HOST instead of Google."
_KAFKA = "The broker that queues may be on, such as kafka://127.0.0.1:9092."
_TOKENS = "In place of --token-file: callers and their rights, TOML; SIGHUP has it read again."
_LIMIT = "Such as streams=32, put_bytes=10GB or put_idle=10m; repeatable."


@click.command(
    epilog=example("penstock serve --listen grpc://127.0.0.1:8815 --data /var/lib/penstock"),
    short_help="Run a server.",
    context_settings={"auto_envvar_prefix": "PENSTOCK"},  # an option's variable is PENSTOCK_ and its name
)
@click.option("--listen", metavar="URL", help=_LISTEN)
@click.option("--http", metavar="HOST:PORT", help=_HTTP)
@click.option("--store", metavar="URL", help=_STORE)
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help=_DATA)
@click.option("--advertise", metavar="URL", help=_ADVERTISE)
@click.option("--memory-limit", type=lambda text: text if text == "off" else size(text), metavar="SIZE", help=_MEMORY)
@click.option("--ticket-life", type=duration, metavar="TIME", help=_LIFE)
@click.option("--quota", type=size, metavar="SIZE", help="Bytes that the store may hold.")
@click.option("--evict", type=click.Choice(("lru",)), help=_EVICT)
@click.option("--drain", type=duration, metavar="TIME", help=_DRAIN)
@click.option("--tls-cert", type=_FILE, help="Certificate chain, PEM.")
@click.option("--tls-key", type=_FILE, help="Its key, PEM.")
@click.option("--client-ca", type=_FILE, help="Take only callers with a certificate of these authorities, PEM.")
@click.option("--token-file", type=_FILE, help="File with the token that callers must show; mode 600.")
@click.option("--tokens", type=_FILE, help=_TOKENS)
@click.option("--http-tls", is_flag=True, help="Serve --http with the same certificate.")
@click.option("--http-token-file", type=_FILE, help="File with the token that shows names in /metrics; mode 600.")
@click.option("--insecure", is_flag=True, help="Listen for other machines without TLS and token.")
@click.option("--accept-loss", is_flag=True, help="Start with what is left, although changes or parts are gone.")
@click.option("--pullers", type=click.IntRange(0), help=_PULLERS)
@click.option("--pubsub-lease", type=click.IntRange(10, 600), metavar="SECONDS", help=_LEASE)
@click.option("--pubsub-credentials", metavar="KEY", help=_CREDENTIALS)
@click.option("--pubsub-impersonate", metavar="EMAIL", help=_IMPERSONATE)
@click.option("--pubsub-endpoint", metavar="HOST:PORT", help=_ENDPOINT)
@click.option("--allow-emulator", is_flag=True, help=_EMULATOR)
@click.option("--kafka", metavar="URL", help=_KAFKA)
@click.option("--limit", metavar="NAME=VALUE", multiple=True, help=_LIMIT)
@click.option("--log-level", type=_LEVELS, default="info", show_default=True, help="The log goes to stderr.")
def serve(*, log_level: str, **options: Any) -> int:
    """Run a server until SIGTERM or Ctrl-C, which let running calls end. The exit code is 3 if some were cut off.

    A small supervisor starts the server again, on the same ports, if it crashes or is killed. It doesn't if the server
    exits by itself, such as for a data folder that another one has.

    Every option is also a variable: --listen is PENSTOCK_LISTEN, --memory-limit PENSTOCK_MEMORY_LIMIT.
    """
    from penstock.flight_server import supervisor

    attachment = supervisor.attachment()
    if attachment is not None:
        attachment.end_with_supervisor()
    settings = _settings(**options)
    settings.check()
    if attachment is None:
        supervisor.supervise()
    return _run(settings, attachment, log_level)


def _run(settings: ServerConfig, attachment: Attachment, log_level: str) -> int:
    """Run the server itself, in a process that a supervisor has started."""
    try:
        from penstock.flight_server import lifecycle
    except ImportError as missing:  # of an extra, with the cure
        raise InvalidRequest(str(missing)) from missing

    logging.basicConfig(level=log_level.upper(), stream=sys.stderr, format=_LOG_FORMAT)
    if attachment.port:
        settings = settings.restarted(attachment.port, attachment.http_port)
    return lifecycle.run(settings, lambda server, http: attachment.report(server.port, http.port if http else 0))


def _settings(*, limit: tuple[str, ...], memory_limit: int | str | None, **options: Any) -> ServerConfig:
    """Return the server's settings; an absent option has its default there."""
    from penstock.flight_server.config import ServerConfig
    from penstock.flight_server.limits import ServerLimits
    from penstock.store.open import physical_memory

    present = {name: value for name, value in options.items() if value is not None}
    if present.get("http") == "off":
        present["http"] = None
    if "data" in present:
        present["data"] = present["data"].expanduser()  # no shell has done it for PENSTOCK_DATA
    for text in limit:
        if "=" not in text:
            raise InvalidRequest(f"--limit {text!r}: expected NAME=VALUE, such as streams=32")
    memory_limit = physical_memory() // 2 if memory_limit is None else memory_limit
    memory = None if memory_limit == "off" else int(memory_limit)
    limits = ServerLimits() if memory is None else ServerLimits().within(memory)
    limits = limits.changed(dict(text.split("=", 1) for text in limit))
    return ServerConfig(**present, memory_limit=memory, limits=limits)
