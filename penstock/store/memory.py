"""Parts in this process's memory, as they came; the ones for which there is no room go to disk."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.store import records
from penstock.store.disk import DiskMedium
from penstock.store.medium import OpenPart, Part


class MemoryMedium:
    """A bounded dict of parts over a folder to spill to. Everything in both ends with the process."""

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self.incarnation = uuid.uuid4().hex[:12]
        self._spill = DiskMedium(folder, gone="it was in the memory of a server that has ended")
        self._drop_spilled()
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # _parts, _bytes
        self._parts: dict[str, _HeldPart] = {}
        self._bytes = 0

    def __repr__(self) -> str:
        return "memory:"

    def write(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Part:
        """Keep the batches themselves, no copy; a part beyond the bound is spilled."""
        table = pa.Table.from_batches(batches, schema)
        held = _HeldPart(schema, table.num_rows, table.nbytes, table)
        with self._lock:
            before = self._parts.pop(name, None)
            self._bytes -= before.bytes if before else 0
            room = self._bytes + held.bytes <= self._max_bytes
            if room:
                self._bytes += held.bytes
                self._parts[name] = held
        if not room:
            return self._spill.write(name, schema, table.to_batches())
        return Part(name, held.rows, held.bytes, records.write(None, schema, table.to_batches()).digest)

    def open(self, name: str) -> OpenPart:
        with self._lock:
            held = self._parts.get(name)
        if held is not None:
            return held
        return self._spill.open(name)

    def delete(self, name: str) -> None:
        with self._lock:
            held = self._parts.pop(name, None)
            self._bytes -= held.bytes if held else 0
        self._spill.delete(name)

    def names(self, *, before: float = math.inf) -> Iterator[tuple[str, int]]:
        """All of them, whatever `before` is: what is in memory was made by this process."""
        with self._lock:
            held = [(name, part.bytes) for name, part in self._parts.items()]
        yield from held
        yield from self._spill.names(before=before)

    def quarantined(self) -> list[str]:
        """Of the spilled ones; these files outlive the process."""
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
class _HeldPart:
    schema: pa.Schema
    rows: int
    bytes: int
    table: pa.Table

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        return (self.table if columns is None else self.table.select(list(columns))).to_reader()

    def descriptor(self) -> None:
        return None
