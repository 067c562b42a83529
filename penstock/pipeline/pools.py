"""Pools: where workers run. A pool starts them, and a worker is what its driver sees of one."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import pickle
import signal
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Protocol

from penstock.errors import InvalidRequest
from penstock.pipeline.worker import Control, Event, Task, work

_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker has ended."""

    error: str | None = None
    """Why it ended before its queue did; None where it was drained, or the queue is complete."""


class Worker(Protocol):
    """A worker, as its driver sees it."""

    name: str

    def is_placed(self) -> bool:
        """Whether there is room for it: a pool of many hosts may have none, and it waits."""
        ...

    def stop(self) -> None:
        """Let it end behind its present split, and give back what it has claimed ahead."""
        ...

    def set_room(self, room: tuple[int, int] | None) -> None:
        """Change the bound of the queues that it fills; None for no bound."""
        ...

    def kill(self) -> None:
        """End it at once where that is possible; what it still makes of its split is refused by the lease."""
        ...

    def events(self) -> list[Event]:
        """Return what it has told since the last call."""
        ...

    def exit(self) -> Exit | None:
        """Return how it has ended, once all its events were returned; None while it runs."""
        ...


class Pool(Protocol):
    """Starts workers."""

    def start(self, task: Task, name: str) -> Worker:
        """Start a worker; Unavailable if none can be started here any more."""
        ...


def open_pool(workers: str) -> Pool:
    """Return the pool of a name."""
    if workers == "threads":
        return ThreadPool()
    if workers == "processes":
        return ProcessPool()
    if workers == "ray":
        from penstock.pipeline.ray_pool import RayPool

        return RayPool()
    raise InvalidRequest(f"workers={workers!r}: expected 'threads', 'processes' or 'ray'")


# --- threads -------------------------------------------------------------------------------


class ThreadPool:
    """Workers as threads of the driver's process: they start at once, and share its interpreter and its fate."""

    def start(self, task: Task, name: str) -> Worker:
        """Start a thread."""
        return ThreadWorker(task, name)


class ThreadWorker:
    """A worker in a thread. Python can't end one: a killed worker is abandoned, and its lease with it."""

    def __init__(self, task: Task, name: str) -> None:
        self.name = name
        self._events: deque[Event] = deque()
        self._control = Control(self._events.append)
        self._exit: Exit | None = None
        self._thread = threading.Thread(target=self._run, args=(task,), name=f"penstock-{name}", daemon=True)
        self._thread.start()

    def _run(self, task: Task) -> None:
        error = None
        try:
            work(task, self._control)
        except Exception as failed:  # the driver decides what follows
            error = describe(failed)
        finally:
            self._exit = Exit(error)

    def is_placed(self) -> bool:
        return True

    def stop(self) -> None:
        self._control.stop()

    def set_room(self, room: tuple[int, int] | None) -> None:
        self._control.set_room(room)

    def kill(self) -> None:
        self._control.stop()
        self._exit = self._exit or Exit()

    def events(self) -> list[Event]:
        return _drained(self._events)

    def exit(self) -> Exit | None:
        return None if self._events else self._exit


def _drained(events: deque[Event]) -> list[Event]:
    taken = []
    with suppress(IndexError):
        while True:
            taken.append(events.popleft())
    return taken


def describe(error: BaseException) -> str:
    """Return an error and its notes on a line."""
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}{notes}"


# --- processes -----------------------------------------------------------------------------


class ProcessPool:
    """Workers as processes of their own: each has an interpreter, and dies alone. They end with the driver."""

    def start(self, task: Task, name: str) -> Worker:
        """Start a process; InvalidRequest if the operator can't travel to it."""
        return ProcessWorker(pack(task), name)


def pack(task: Task) -> bytes:
    """Return a task as bytes for another process of this host.

    An operator travels by its import path. One of a notebook has none, so that it needs cloudpickle, which Spark
    brings, too.
    """
    module = "pickle" if hasattr(sys.modules["__main__"], "__file__") else _cloudpickle()
    try:
        return importlib.import_module(module).dumps(task)  # type: ignore[no-any-return]
    except Exception as failed:
        raise InvalidRequest(
            f"the operator {task.name} can't be sent to a process ({failed}): define it at the top of a module, make "
            "what doesn't travel in its open(), or use workers='threads'"
        ) from failed


def _cloudpickle() -> str:
    """Return the name of the module that packs functions of a notebook."""
    known = next((name for name in ("cloudpickle", "pyspark") if importlib.util.find_spec(name) is not None), None)
    if known is None:
        raise InvalidRequest(
            "a notebook's functions need cloudpickle to reach processes: pip install cloudpickle, import the operator "
            "from a module, or use workers='threads'"
        )
    return "cloudpickle" if known == "cloudpickle" else "pyspark.cloudpickle"


class ProcessWorker:
    """A worker in a process; events and the stop go through a pipe, whose end tells either that the other is gone."""

    def __init__(self, task: bytes, name: str) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(
            target=run_process, args=(task, theirs), name=f"penstock-{name}", daemon=True
        )
        self._process.start()
        theirs.close()
        self._exit: Exit | None = None
        """What it has told of its end."""
        self._is_ended = False
        self._is_killed = False

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid or 0

    def is_placed(self) -> bool:
        return True

    def stop(self) -> None:
        with suppress(OSError):  # it has ended
            self._pipe.send("stop")

    def set_room(self, room: tuple[int, int] | None) -> None:
        with suppress(OSError):  # it has ended
            self._pipe.send(room)

    def kill(self) -> None:
        self._is_killed = True
        self._process.kill()

    def events(self) -> list[Event]:
        taken: list[Event] = []
        while not self._is_ended:
            try:
                if not self._pipe.poll():
                    break
                told = self._pipe.recv()
            except (EOFError, OSError):
                self._is_ended = True
                break
            if isinstance(told, Exit):
                self._exit = told
            else:
                taken.append(told)
        return taken

    def exit(self) -> Exit | None:
        if not self._is_ended or self._process.exitcode is None:
            return None
        code = self._process.exitcode
        self._pipe.close()
        if self._exit is not None or self._is_killed or code == _TERMINATED:
            return self._exit or Exit()
        if code < 0:
            return Exit(f"its process was killed by {signal.Signals(-code).name}")
        return Exit(f"its process ended with exit code {code}")


def run_process(packed: bytes, pipe: Connection) -> None:
    """Run a worker as the main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: the driver stops them
    control = Control(pipe.send)
    threading.Thread(target=_listen, args=(pipe, control), name="penstock-control", daemon=True).start()
    try:
        work(pickle.loads(packed), control)  # noqa: S301  # by the process that started this one
        with suppress(OSError):
            pipe.send(Exit())
    except BrokenPipeError:  # the driver is gone: whoever continues the job claims the rest
        sys.exit(1)
    except Exception as failed:
        with suppress(OSError):
            pipe.send(Exit(describe(failed)))
        sys.exit(1)


def _listen(pipe: Connection, control: Control) -> None:
    """Hear bounds of the driver; stop the worker when the driver says so, or is gone."""
    with suppress(EOFError, OSError):
        while (told := pipe.recv()) != "stop":
            control.set_room(told)
    control.stop()
