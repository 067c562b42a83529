"""Within the server's process: faults that the files of a folder switch on and off while it runs.

`clock` has seconds by which the time is wrong, `crash` the step at which the process kills itself, `fsync` the word
"fails", or the seconds that an fsync takes longer. With `wired` nobody maps parts: all that is read is sent.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

from penstock import steps
from penstock.flight_server.local import LocalDoor
from penstock.ledger.ledger import Ledger
from penstock.store.payloads import SplitPayloadStore


def plant(folder: Path) -> None:
    """Put the hooks in place; as long as there are no files they do nothing."""
    wall, fsync = time.time, os.fsync

    def told(name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (folder / name).read_text()
        return ""

    def now() -> float:
        return wall() + float(told("clock") or 0)

    def slow_or_failing(fd: int) -> None:
        if (how := told("fsync")) == "fails":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if how:
            time.sleep(float(how))
        fsync(fd)

    def passed(step: str) -> None:
        if told("crash") == step:
            (folder / "crash").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    time.time, os.fsync, steps.passed = now, slow_or_failing, passed  # type: ignore[assignment]
    for each in (Ledger, SplitPayloadStore):  # which have their default from before
        defaults = each.__init__.__kwdefaults__
        assert defaults is not None
        assert defaults["now"] is wall
        defaults["now"] = now
    if told("wired"):
        shut_the_door()


def shut_the_door() -> None:
    """The server tells nobody of a door for its own host."""
    made = LocalDoor.__init__

    def shut(self: LocalDoor, *given: Any) -> None:
        made(self, *given)
        self.name = None

    LocalDoor.__init__ = shut  # type: ignore[assignment, method-assign]
