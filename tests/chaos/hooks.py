"""Faults within the server's process, switched on and off by the files of a folder while it runs.

`clock` has seconds by which the time is wrong, `crash` the step at which the process kills itself, `fsync` the word
"fails", or the seconds that an fsync takes longer. With `wired` no client maps parts: all reads go over the wire.
Pullers are `tests.chaos.puller`, and `puller-crash` has the step at which the next one kills itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from penstock import steps
from penstock.flight_server.local import LocalDoor
from penstock.flight_server.pullers import Pullers
from penstock.ledger import sweep
from penstock.ledger.ledger import Ledger
from penstock.store.payloads import Store


def plant(folder: Path) -> None:
    """Put the hooks in place; they do nothing as long as the folder is empty. Topics are tended every second."""
    sweep.TEND_EVERY = 1.0
    wall, fsync = time.time, os.fsync

    def switch(name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (folder / name).read_text()
        return ""

    def now() -> float:
        return wall() if is_grpc(sys._getframe(1)) else wall() + float(switch("clock") or 0)

    def slow_or_failing(fd: int) -> None:
        if (how := switch("fsync")) == "fails":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if how:
            time.sleep(float(how))
        fsync(fd)

    def passed(step: str) -> None:
        if switch("crash") == step:
            (folder / "crash").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    time.time, os.fsync, steps.passed = now, slow_or_failing, passed  # type: ignore[assignment]
    for each in (Ledger, Store):  # their defaults were bound before
        defaults = each.__init__.__kwdefaults__
        assert defaults is not None
        assert defaults["now"] is wall
        defaults["now"] = now
    if switch("wired"):
        close_local_door()
    hook_pullers(folder)


def is_grpc(caller: FrameType) -> bool:
    """Whether the caller makes a deadline for gRPC's core, whose clock would jump with it."""
    return str(caller.f_globals["__name__"]).startswith("grpc")


def hook_pullers(folder: Path) -> None:
    """Let the server start pullers and publishers that can be told to die."""
    started = Pullers.watch

    def watch(self: Pullers, now: float, wanted: int) -> int | None:
        if (ours := "tests.chaos.puller") not in self.command:
            verb = next(at for at, word in enumerate(self.command) if word in ("pull", "publisher"))
            self.command = [sys.executable, "-m", ours, str(folder), *self.command[verb:]]
        return started(self, now, wanted)

    Pullers.watch = watch  # type: ignore[method-assign]


def close_local_door() -> None:
    """Let the server name no door for clients on its own host."""
    init = LocalDoor.__init__

    def init_without_name(self: LocalDoor, *arguments: Any) -> None:
        init(self, *arguments)
        self.name = None

    LocalDoor.__init__ = init_without_name  # type: ignore[assignment, method-assign]
