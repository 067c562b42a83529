"""What every command shares: the server's address, JSON or words, and the completion of paths."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

import penstock

if TYPE_CHECKING:
    from penstock.client import Client

RETRY_FOR = 5.0
"""Seconds for which a busy server is tried again: somebody is looking at the prompt."""


@dataclass
class Session:
    """What holds for the whole command line."""

    url: str | None = None
    json: bool = False

    @contextmanager
    def connect(self, *, timeout: float = 60.0, retry_for: float | None = None) -> Iterator[Client]:
        """A client of the chosen server."""
        patience = RETRY_FOR if retry_for is None else retry_for
        with penstock.connect(self.url, timeout=timeout, retry_for=patience) as client:
            yield client


_F = TypeVar("_F", bound=Callable[..., Any])
pass_session = click.make_pass_decorator(Session, ensure=True)


def _session(context: click.Context) -> Session:
    return context.find_root().ensure_object(Session)


def _url(context: click.Context, _: click.Parameter, value: str | None) -> None:
    session = _session(context)
    session.url = value or session.url


def _json(context: click.Context, _: click.Parameter, value: bool) -> None:  # click's signature
    session = _session(context)
    session.json = value or session.json


def shared(command: _F) -> _F:
    """--url and --json: before the command's name or after it."""
    command = click.option("--json", is_flag=True, expose_value=False, callback=_json, help="JSON lines, for scripts.")(
        command
    )
    return click.option(
        "--url",
        metavar="URL",
        expose_value=False,
        callback=_url,
        help="The server; else PENSTOCK_URL, else grpc://127.0.0.1:8815.",
    )(command)


def example(*lines: str) -> str:
    """A command's epilog."""
    first, *more = lines
    return "\n".join(["\b", f"Example: {first}", *(f"         {line}" for line in more)])


def completed(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The paths at the server that begin so; nothing where it doesn't answer at once."""
    folder, slash, _name = incomplete.rpartition("/")
    if not slash:
        return [CompletionItem(kind) for kind in ("store/", "write/") if kind.startswith(incomplete)]
    with contextlib.suppress(Exception), _session(context).connect(timeout=1.0, retry_for=0.0) as client:
        return [CompletionItem(e.path) for e in client.list(folder + "/") if e.path.startswith(incomplete)]
    return []
