"""Parts as objects of Ray, which an actor of the store owns: they outlive whoever brought them, and end with the store.

Since Ray 2.56 a producer can't give an object to another owner (`ray.put(_owner=)`), and an object is lost with its
owner: so a part's bytes go to the actor, which puts them. They are those of a file of `disk:`, and verified as such.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import tempfile
import uuid
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidRequest, StoreFull, Unavailable
from penstock.store import records
from penstock.store.medium import NotOnDisk, Part, Room, disk_error, lost
from penstock.store.records import Label
from penstock.store.verified_part import VerifiedPart

try:
    import ray
    from ray.exceptions import GetTimeoutError, ObjectLostError, ObjectStoreFullError, OutOfDiskError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as missing:
    raise ImportError("a store ray: needs Ray: pip install 'penstock-flight[ray]'") from missing

_NAMESPACE = "penstock"
_INLINE = 99 << 10
"""Bytes of a part that the actor keeps itself: Ray sends 100 KiB within a call, and an object costs both ends more."""
_SHARED = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108  # Linux has memory there
_TIMEOUT = 60.0
"""Seconds for one answer of Ray: its object store may have to spill first."""


class RayMedium(NotOnDisk):
    """The parts of one actor, on this node. `attach` reaches them from any process of this node."""

    def __init__(self) -> None:
        """Start the actor; it ends with this process, or at `close`."""
        _connect()
        self.incarnation = uuid.uuid4().hex[:12]
        node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor: Any = ray.remote(PartsActor).options(
            name=self.incarnation, namespace=_NAMESPACE, num_cpus=0, max_restarts=-1, max_task_retries=-1,
            scheduling_strategy=node,
        )  # fmt: skip
        self._use(actor.remote(), is_owner=True)

    @classmethod
    def attach(cls, incarnation: str) -> RayMedium:
        """Return the medium of an actor that another process has started."""
        _connect()
        medium = object.__new__(cls)
        medium.incarnation = incarnation
        try:
            medium._use(ray.get_actor(incarnation, namespace=_NAMESPACE), is_owner=False)
        except ValueError as gone:
            raise Unavailable("the process that opened this store ray: has ended, and its payloads with it") from gone
        return medium

    def _use(self, actor: Any, *, is_owner: bool) -> None:
        here = ray.get_runtime_context().get_node_id()
        nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes()}
        self._actor, self._is_owner = actor, is_owner
        self._total = int(nodes[here].get("object_store_memory", 0))
        self._used = self._ask(actor.used.remote(), "opening the store")

    def __repr__(self) -> str:
        return "ray:"

    def write(
        self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], label: Label | None = None
    ) -> Part:
        """Hand a part to the actor in shared memory; it puts the part into the object store once it has answered.

        As an argument of the call the part would be an object of its own first: a copy and two round trips more.
        """
        action = f"storing part {name}"
        try:
            with tempfile.TemporaryFile(dir=_SHARED) as file:  # without a name, so nothing stays if this is killed
                written = records.write(file.fileno(), schema, batches, label)
                path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
                self._used = self._ask(self._actor.keep.remote(name, path), action)
            if written.bytes > _INLINE:
                self._actor.put.remote(name)
        except OSError as error:
            raise disk_error(error, action) from error
        return Part(name, written.rows, written.bytes, written.digest)

    def room(self) -> Room:
        """Return the room of this node's object store, without that of Ray's other objects: Ray spills those."""
        return Room(self._total, max(0, self._total - self._used))

    def open(self, name: str) -> VerifiedPart:
        action = f"reading part {name}"
        parts = self._ask(self._actor.find.remote(name), action)
        if not parts:
            raise lost(name, "it was an object of a Ray store that has stopped")
        try:
            part = parts[0] if isinstance(parts[0], pa.Buffer) else self._ask(parts[0], action)
            return VerifiedPart(name, part)
        except records.Damaged as damage:
            raise lost(name, str(damage)) from damage
        except ObjectLostError as gone:
            raise lost(name, "Ray has lost its object") from gone

    def missing(self, names: Collection[str]) -> list[str]:
        found: list[str] = self._ask(self._actor.missing.remote(list(names)), "looking for parts") if names else []
        return found

    def delete(self, name: str) -> None:
        self._used = self._ask(self._actor.drop.remote(name), f"deleting part {name}")

    def names(self, *, before: float = math.inf) -> Iterator[tuple[str, int]]:
        """Give all parts, whatever `before` is: none is older than the store."""
        sizes: dict[str, int] = self._ask(self._actor.sizes.remote(), "listing the parts")
        yield from sizes.items()

    def close(self) -> None:
        """End the actor, and with it the objects; a process that has attached to it leaves it alone."""
        if self._is_owner:
            ray.kill(self._actor)

    def _ask(self, answer: Any, action: str) -> Any:
        try:
            return ray.get(answer, timeout=_TIMEOUT)
        except (ObjectStoreFullError, OutOfDiskError) as full:
            raise StoreFull(
                f"no room in Ray's object store while {action}: try again once some is free", retry_after=5
            ) from full
        except GetTimeoutError as late:
            raise Unavailable(f"Ray did not answer within {_TIMEOUT:g} s while {action}", retry_after=5) from late
        except ObjectLostError:
            raise
        except RayError as error:  # such as the end of the actor's owner
            if isinstance(cause := getattr(error, "cause", None), InvalidRequest):
                raise cause from error
            raise Unavailable(f"Ray failed while {action}: {type(error).__name__}", retry_after=1) from error


class PartsActor:
    """Owns the objects. Each process that reads one borrows it, and keeps its memory for as long as it maps it.

    If it dies, Ray starts it again without its parts, and repeats the calls that were under way: each may be repeated.
    """

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._used = 0

    def keep(self, name: str, file: str) -> int:
        """Take the part that an open file of a process of this host has; return the bytes of all."""
        try:
            with open(file, "rb") as shared:
                part = pa.py_buffer(mmap.mmap(shared.fileno(), 0, access=mmap.ACCESS_READ))
        except (PermissionError, FileNotFoundError) as hidden:
            raise InvalidRequest(
                f"Ray runs as user {os.getuid()}, who can't open {file} of the process that stores part {name}: start "
                "Ray and what uses the store ray: as one user, in one container"
            ) from hidden
        if part.size <= _INLINE:
            part = pa.py_buffer(part.to_pybytes())
        self.drop(name)
        self._parts[name], self._sizes[name] = part, part.size
        self._used += part.size
        return self._used

    def put(self, name: str) -> None:
        """Put a part into the object store, unless it is there or too small; if that is full, it stays here."""
        part = self._parts.get(name)
        if isinstance(part, pa.Buffer) and part.size > _INLINE:
            self._parts[name] = ray.put(part)

    def find(self, name: str) -> list[Any]:
        """Return a part or its reference, if there is one; in a list, as Ray would wait for a bare one's object."""
        self.put(name)
        return [self._parts[name]] if name in self._parts else []

    def missing(self, names: list[str]) -> list[str]:
        """Return those of these parts that are not here."""
        return [name for name in names if name not in self._parts]

    def drop(self, name: str) -> int:
        """Forget a part, which frees it once nobody reads it; return the bytes of all."""
        self._parts.pop(name, None)
        self._used -= self._sizes.pop(name, 0)
        return self._used

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each part."""
        return self._sizes

    def used(self) -> int:
        """Return the bytes of all parts."""
        return self._used


def _connect() -> None:
    """Connect this process to the Ray that runs here, or at RAY_ADDRESS."""
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError as missing:
            raise InvalidRequest(
                "store ray: no Ray runs here: start one (ray start --head), or name one (RAY_ADDRESS)"
            ) from missing
