"""Workers as actors of Ray, on whichever host has what they need; they end with the driver."""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from typing import Any

from penstock.errors import Unavailable
from penstock.pipeline.pools import Exit, describe
from penstock.pipeline.worker import Control, Event, Task, work

try:
    import ray
    from ray.exceptions import RayError
except ImportError as missing:
    raise ImportError("workers in Ray need Ray: pip install 'penstock-flight[ray]'") from missing

_LOOK = 30.0
"""Seconds that an actor waits for an event before it answers without."""
_NODE_LOOK = 2.0
"""Seconds between two looks at the driver's own node."""


class RayPool:
    """Workers as actors, with the num_cpus, num_gpus and memory that their stage names, or Ray's own defaults."""

    def __init__(self) -> None:
        """Join the Ray that this process has, that runs here, or that RAY_ADDRESS names; start one if there is none."""
        if not ray.is_initialized():
            ray.init(log_to_driver=False)
        self._node = ray.get_runtime_context().get_node_id()
        self._looked = 0.0
        self._has_ended = False

    def start(self, task: Task, name: str) -> RayWorker:
        """Start an actor; the operator travels as Ray's own functions do. Unavailable once this Ray has ended."""
        if self.has_ended():
            raise Unavailable("the raylet of the driver's host has died, and this Ray with it: start another Ray")
        return RayWorker(self, task, name)

    def has_ended(self) -> bool:
        """Whether the driver's node is dead: its actors' answers don't come any more, and no actor starts."""
        if not self._has_ended and time.monotonic() - self._looked > _NODE_LOOK:
            self._looked = time.monotonic()
            self._has_ended = not any(node["NodeID"] == self._node and node["Alive"] for node in ray.nodes())
        return self._has_ended


class RayWorker:
    """An actor, as its driver sees it. Nothing here waits: what an actor will answer is looked at later."""

    def __init__(self, pool: RayPool, task: Task, name: str) -> None:
        self.name = name
        self._pool = pool
        actor: Any = ray.remote(WorkerActor)
        self._actor = actor.options(max_concurrency=3, **task.resources).remote()  # run, take, one more
        self._end = self._actor.run.remote(task)
        self._next = self._actor.take.remote()
        self._placed = self._actor.be_placed.remote()
        self._error: str | None = None
        self._is_ended = self._is_killed = False

    def is_placed(self) -> bool:
        return bool(ray.wait([self._placed], timeout=0)[0])

    def stop(self) -> None:
        self._actor.stop.remote()

    def set_room(self, room: tuple[int, int] | None) -> None:
        self._actor.set_room.remote(room)

    def kill(self) -> None:
        self._is_killed = True
        ray.kill(self._actor)

    def events(self) -> list[Event]:
        taken: list[Event] = []
        while not self._is_ended and ray.wait([self._next], timeout=0)[0]:
            try:
                some, is_last = ray.get(self._next)
                taken += some
                if is_last:
                    self._error = ray.get(self._end)
                    self._is_ended = True
                else:
                    self._next = self._actor.take.remote()
                    break
            except RayError as died:
                self._error = f"its actor ended: {type(died).__name__}"
                self._is_ended = True
        if not self._is_ended and self._pool.has_ended():
            self._error, self._is_ended = "its Ray has ended", True
        return taken

    def exit(self) -> Exit | None:
        if not self._is_ended:
            return None
        if not self._is_killed:
            ray.kill(self._actor)  # gives back what it has reserved
        return Exit(None if self._is_killed else self._error)


class WorkerActor:
    """A worker in its actor: one thread runs it, one tells what it does, one may stop it."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._control = Control(self._events.put)

    def run(self, task: Task) -> str | None:
        """Run the worker; return why it ended before its queue did."""
        try:
            work(task, self._control)
        except Exception as failed:
            return describe(failed)
        finally:
            self._events.put(None)
        return None

    def take(self) -> tuple[list[Event], bool]:
        """Wait for an event; return those that there are, and whether they are the last."""
        taken = []
        with suppress(queue.Empty):
            event = self._events.get(timeout=_LOOK)
            while event is not None:
                taken.append(event)
                event = self._events.get_nowait()
            return taken, True
        return taken, False

    def be_placed(self) -> None:
        """Answer, which an actor without a place doesn't."""

    def set_room(self, room: tuple[int, int] | None) -> None:
        """Change the bound of the queues that the worker fills."""
        self._control.set_room(room)

    def stop(self) -> None:
        """End the loop behind the present split."""
        self._control.stop()
