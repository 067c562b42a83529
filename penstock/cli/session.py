"""What commands share: the server's address, JSON or words, the completion of paths, and Ctrl-C in good order."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

import penstock

if TYPE_CHECKING:
    from penstock.client.client import Client

RETRY_FOR = 5.0
"""Seconds for which a busy server is tried again: somebody is looking at the prompt."""
CTRL_C = (signal.SIGINT,)
ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Session:
    """What holds for the whole command line."""

    url: str | None = None
    json: bool = False

    def connect(self, *, timeout: float = 60.0, retry_for: float | None = None) -> Client:
        """A client of the chosen server."""
        return penstock.connect(self.url, timeout=timeout, retry_for=RETRY_FOR if retry_for is None else retry_for)


_F = TypeVar("_F", bound=Callable[..., Any])
pass_session = click.make_pass_decorator(Session, ensure=True)


def _session(context: click.Context) -> Session:
    return context.find_root().ensure_object(Session)


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Before the command's name or after it: what is given later wins, what isn't given changes nothing."""
    if value:
        setattr(_session(context), str(option.name), value)


def shared(command: _F) -> _F:
    """--url and --json, as every command has them."""
    where = "The server; else PENSTOCK_URL, else grpc://127.0.0.1:8815."
    url = click.option("--url", metavar="URL", expose_value=False, callback=_keep, help=where)
    as_json = click.option("--json", is_flag=True, expose_value=False, callback=_keep, help="JSON lines, for scripts.")
    return url(as_json(command))


def example(*lines: str) -> str:
    """A command's epilog."""
    return "\b\nExample: " + "\n         ".join(lines)


def completed(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The paths at the server that begin so; nothing where it doesn't answer at once."""
    folder, slash, _name = incomplete.rpartition("/")
    found = ["store/", "topic/", "write/"]
    if slash:
        found = []
        with contextlib.suppress(Exception), _session(context).connect(timeout=1.0, retry_for=0.0) as client:
            found = [entry.path for entry in client.list(folder + "/")]
    return [CompletionItem(path) for path in found if path.startswith(incomplete)]


@contextlib.contextmanager
def heeding(numbers: tuple[signal.Signals, ...], does: Callable[[], None]) -> Iterator[None]:
    """While the block runs, the first of these signals does this, which may raise; the second one waits for nothing."""
    asked: list[bool] = []

    def heed(*_: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)
        does()

    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield
        return
    before = {number: signal.signal(number, heed) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
