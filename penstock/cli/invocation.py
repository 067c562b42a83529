"""What commands share: --url, --json, an example in their help, times and sizes, and the completion of paths."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

import penstock
from penstock.cli.kinds import KINDS
from penstock.errors import InvalidRequest
from penstock.text import parse_seconds

if TYPE_CHECKING:
    from penstock.client.client import Client

RETRY_FOR = 5.0
"""Seconds for which a busy server is tried again: somebody is looking at the prompt."""


@dataclass
class Invocation:
    """The options that hold for the whole command line."""

    url: str | None = None
    json: bool = False

    def connect(self, *, timeout: float = 60.0, retry_for: float | None = None) -> Client:
        """Return a client of the chosen server."""
        return penstock.connect(self.url, timeout=timeout, retry_for=RETRY_FOR if retry_for is None else retry_for)


def command(summary: str, *examples: str, hidden: bool = False) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function that takes an `Invocation` and options of its own."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        passing = click.make_pass_decorator(Invocation, ensure=True)(function)
        made = click.command(short_help=summary, epilog=example(*examples), hidden=hidden)(passing)
        made.params += shared_options()
        return made

    return decorate


def example(*lines: str) -> str:
    """Return the end of a command's help."""
    return "\b\nExample: " + "\n         ".join(lines)


def shared_options() -> list[click.Parameter]:
    """Return --url and --json; behind the command's name they win over those before it."""

    def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
        if value:  # an absent option changes nothing
            setattr(context.find_root().ensure_object(Invocation), str(option.name), value)

    server = "The server; else PENSTOCK_URL, else grpc://127.0.0.1:8815."
    return [
        click.Option(["--url"], metavar="URL", expose_value=False, callback=keep, help=server),
        click.Option(["--json"], is_flag=True, expose_value=False, callback=keep, help="JSON lines, for scripts."),
    ]


def duration(text: str) -> float:
    """Parse 30, 90s, 30m, 12h or 2d."""
    seconds = parse_seconds(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r}: expected seconds, or a time such as 90s, 30m, 12h or 2d")
    return seconds


def size(text: str) -> int:
    """Parse 512MB or 2GiB."""
    from penstock.store.open import parse_bytes

    try:
        return parse_bytes(text)
    except InvalidRequest as error:
        raise click.BadParameter(str(error)) from error


def complete_path(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the paths at the server that begin so; none where it doesn't answer at once."""
    paths = [f"{kind.root}/" for kind in KINDS if kind.root]
    folder, slash, _name = incomplete.rpartition("/")
    if slash:
        paths, invocation = [], context.find_root().ensure_object(Invocation)
        with contextlib.suppress(Exception), invocation.connect(timeout=1.0, retry_for=0.0) as client:
            paths = [entry.path for entry in client.list(folder + "/")]
    return [CompletionItem(path) for path in paths if path.startswith(incomplete)]
