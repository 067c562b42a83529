"""Parts in this process's memory, without a copy; those beyond its bound go to disk."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.store import records
from penstock.store.disk import DiskMedium
from penstock.store.medium import NotOnDisk, Part, Room, StoredPart
from penstock.store.records import Label


class MemoryMedium(NotOnDisk):
    """A bounded dict of parts over a folder for the rest. Both end with the process."""

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self.incarnation = uuid.uuid4().hex[:12]
        self._spill = DiskMedium(folder, gone="it was in the memory of a server that has stopped")
        self._drop_spilled()
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # _parts, _bytes
        self._parts: dict[str, _MemoryPart] = {}
        self._bytes = 0

    def __repr__(self) -> str:
        return "memory:"

    def write(
        self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], label: Label | None = None
    ) -> Part:
        """Keep the batches themselves, without a copy; a part beyond the bound goes to disk."""
        table = pa.Table.from_batches(batches, schema)
        batches = table.to_batches()
        written = records.write(None, schema, batches)
        part = _MemoryPart(schema, written.rows, written.bytes, written.digest, table)
        with self._lock:
            before = self._parts.pop(name, None)
            self._bytes -= before.bytes if before else 0
            fits = self._bytes + part.bytes <= self._max_bytes
            if fits:
                self._bytes += part.bytes
                self._parts[name] = part
        if not fits:
            return self._spill.write(name, schema, batches, label)
        return Part(name, part.rows, part.bytes, part.digest)

    def room(self) -> Room:
        """Return the room of memory and of the disk together."""
        spill = self._spill.room()
        with self._lock:
            return Room(self._max_bytes + spill.total, self._max_bytes - self._bytes + spill.free)

    def open(self, name: str) -> StoredPart:
        with self._lock:
            part = self._parts.get(name)
        return self._spill.open(name) if part is None else part

    def missing(self, names: Collection[str]) -> list[str]:
        return []

    def delete(self, name: str) -> None:
        with self._lock:
            part = self._parts.pop(name, None)
            self._bytes -= part.bytes if part else 0
        self._spill.delete(name)

    def names(self, *, before: float = math.inf) -> Iterator[tuple[str, int]]:
        """Give all parts, whatever `before` is: those in memory were made by this process."""
        with self._lock:
            sizes = [(name, part.bytes) for name, part in self._parts.items()]
        yield from sizes
        yield from self._spill.names(before=before)

    def quarantined(self) -> list[str]:
        """Return those of the disk; these files outlive the process."""
        return self._spill.quarantined()

    def close(self) -> None:
        with self._lock:
            self._parts.clear()
            self._bytes = 0
        self._drop_spilled()
        self._spill.close()

    def _drop_spilled(self) -> None:
        for name, _ in list(self._spill.names()):
            self._spill.delete(name)


@dataclass(frozen=True, slots=True)
class _MemoryPart:
    schema: pa.Schema
    rows: int
    bytes: int
    digest: str
    table: pa.Table
    label: None = None

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        return (self.table if columns is None else self.table.select(list(columns))).to_reader()

    def descriptor(self) -> None:
        return None
