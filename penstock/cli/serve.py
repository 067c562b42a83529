"""`serve`: run a server. Parses, and leaves the rest to the server's own life cycle."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.session import example
from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.flight_server.settings import Settings

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_LEVELS = ("debug", "info", "warning", "error")


def seconds(text: str) -> float:
    """30, 90s, 30m, 12h or 2d."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|m|h|d|)\s*", text)
    if not found:
        raise click.BadParameter(f"{text!r}: expected seconds, or a time such as 90s, 30m, 12h or 2d")
    return float(found[1]) * _SECONDS[found[2]]


def size(text: str) -> int:
    """512MB or 2GiB."""
    from penstock.store.open import parse_bytes

    try:
        return parse_bytes(text)
    except InvalidRequest as wrong:
        raise click.BadParameter(str(wrong)) from wrong


def size_or_off(text: str) -> int | str:
    """A size, or off."""
    return text if text == "off" else size(text)


def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """An option that is also the variable PENSTOCK_<NAME>."""
    variable = "PENSTOCK_" + names[0].removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=variable, **settings)


@click.command(
    epilog=example("penstock serve --listen grpc://127.0.0.1:8815 --data /var/lib/penstock"), short_help="Run a server."
)
@option(
    "--listen",
    metavar="URL",
    help="Where Flight clients connect: grpc:// or grpc+tls://host:port.  [default: grpc://127.0.0.1:8815]",
)
@option("--http", metavar="HOST:PORT", help="For /healthz /readyz /metrics, or 'off'.  [default: 127.0.0.1:8816]")
@option(
    "--store",
    metavar="URL",
    help="Where the bytes lie: disk:, disk:/a/folder, memory: or memory:?max=2GiB.  [default: disk:]",
)
@option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The data folder; one server has it.  [default: ~/.local/share/penstock]",
)
@option("--advertise", metavar="URL", help="The address that clients are told to read from, if it isn't --listen.")
@option(
    "--memory-limit",
    type=size_or_off,
    metavar="SIZE",
    help="Private memory of the process, or 'off'.  [default: half of the machine's]",
)
@option(
    "--ticket-life",
    type=seconds,
    metavar="TIME",
    default="12h",
    show_default=True,
    help="How long a read ticket is good, and what it names stays.",
)
@option("--quota", type=size, metavar="SIZE", help="Bytes that the store may hold.")
@option(
    "--drain",
    type=seconds,
    metavar="TIME",
    default="30s",
    show_default=True,
    help="What running calls get when the server is told to stop.",
)
@option("--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Certificate chain, PEM.")
@option("--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its key, PEM.")
@option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the token that callers must show; mode 600.",
)
@option("--insecure", is_flag=True, help="Listen for other machines without TLS and token.")
@option(
    "--limit",
    "limits",
    metavar="NAME=VALUE",
    multiple=True,
    help="Such as streams=32, put_bytes=10GB or put_idle=60; repeatable.",
)
@option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True, help="The log goes to stderr.")
def serve(*, log_level: str, **given: Any) -> int:
    """Run a server until SIGTERM or Ctrl-C; it lets running calls end. The exit code is 3 if some were cut off.

    Every option is also a variable: --listen is PENSTOCK_LISTEN, --memory-limit PENSTOCK_MEMORY_LIMIT.
    """
    from penstock.flight_server import lifecycle

    settings = _settings(given)
    settings.check()
    lifecycle.lean_memory()
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    return lifecycle.run(settings)


def _settings(given: dict[str, Any]) -> Settings:
    """The server's settings; what wasn't given has its default there."""
    from penstock.flight_server.limits import Limits
    from penstock.flight_server.settings import Settings

    limit = given.pop("memory_limit")
    chosen = {name: value for name, value in given.items() if value is not None}
    chosen["memory_limit"] = _half_the_memory() if limit is None else None if limit == "off" else limit
    chosen["limits"] = Limits().changed(dict(_pair(text) for text in chosen["limits"]))
    if chosen.get("http") == "off":
        chosen["http"] = None
    if "data" in chosen:
        chosen["data"] = chosen["data"].expanduser()  # no shell has done it for PENSTOCK_DATA
    return Settings(**chosen)


def _half_the_memory() -> int:
    from penstock.store.open import physical_memory

    return physical_memory() // 2


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"--limit {text!r}: expected NAME=VALUE, such as streams=32")
    return name, value
