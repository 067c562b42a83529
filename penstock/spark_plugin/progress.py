"""How far a write is, while Spark works: a line on a terminal, an output that changes in a notebook."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import PenstockError
from penstock.text import format_size

_EVERY = 0.5
Show = Callable[[str], None]


@contextmanager
def shown(path: str, ask: Callable[[], dict[str, Any]], *, wanted: bool | None) -> Iterator[None]:
    """While the block runs, say what `ask` (a write's summary) tells: where somebody may be looking, or if `wanted`."""
    show = None if wanted is False else _place(always=wanted is True)
    if show is None:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_follow, args=(path, ask, show, done), name="penstock-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(2)  # its last question may wait for a server that is away


def _follow(path: str, ask: Callable[[], dict[str, Any]], show: Show, done: threading.Event) -> None:
    began = time.monotonic()
    while not done.wait(_EVERY):
        try:
            found = ask()
        except PenstockError:  # the write itself tells what is wrong
            continue
        if done.is_set():
            break
        seconds = time.monotonic() - began
        amount = f"{found['rows']:,} rows, {format_size(found['bytes'])}"
        show(f"{path}: {amount} of {found['attempts']:,} partitions are there, {seconds:.0f} s")
    show("")


def _place(*, always: bool) -> Show | None:
    if "ipykernel" in sys.modules:
        from IPython import get_ipython
        from IPython.display import HTML, display

        if get_ipython() is not None:  # another library may have loaded it where no notebook is
            place = display(HTML(""), display_id=True)
            return lambda text: place.update(HTML(f"<small>{text}</small>"))
    if always or sys.stderr.isatty():
        return _on_terminal
    return None


def _on_terminal(text: str) -> None:
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()
