"""The protocol of a medium: it holds bytes under names, and decides nothing."""

from __future__ import annotations

import errno
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from penstock.errors import Lost, PenstockError, StoreFull, Unavailable
from penstock.store.records import Label


@dataclass(frozen=True, slots=True)
class Part:
    """A part at rest, as its write returned it."""

    name: str
    rows: int
    bytes: int
    digest: str
    """Identifies the bytes; two parts with one digest hold the same rows in the same order."""


@dataclass(frozen=True, slots=True)
class Room:
    """The bytes that a medium has for parts: in all, and still free."""

    total: int
    free: int


class OpenPart(Protocol):
    """A part whose bytes have been verified."""

    @property
    def schema(self) -> pa.Schema:
        """The schema that it was written with."""
        ...

    @property
    def rows(self) -> int:
        """The number of its rows."""
        ...

    @property
    def bytes(self) -> int:
        """The length of its IPC stream."""
        ...

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Return all rows, of these columns in this order; may be called again and again."""
        ...

    def descriptor(self) -> tuple[int, int, int] | None:
        """Return a new read-only descriptor, and where in it the IPC stream begins and its length; None without one."""
        ...


class StoredPart(OpenPart, Protocol):
    """One that a medium has."""

    @property
    def digest(self) -> str:
        """As its write returned it."""
        ...

    @property
    def label(self) -> Label | None:
        """What it says of itself; None in memory, and of format 1."""
        ...


@dataclass(frozen=True, slots=True)
class NewPart:
    """A part that is to be written together with others."""

    schema: pa.Schema
    batches: list[pa.RecordBatch]
    label: Label
    """Its name is the medium's affair."""


class Medium(Protocol):
    """Where parts are kept. A name is [A-Za-z0-9.-]{1,80}, made by penstock and used for one part only."""

    incarnation: str
    """Empty where bytes outlive the process, else what tells this process's bytes from the last one's."""

    def write(
        self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], label: Label | None = None
    ) -> Part:
        """Keep a part. Once it returns the part outlives a power cut; if it raises, or after a crash, nothing is kept.

        A name left over from an attempt that crashed is replaced.
        """
        ...

    def write_together(self, file: str, new: Sequence[NewPart]) -> list[Part]:
        """Keep parts that are durable together, as `write` does; a disk has them in one file, see `file_of`."""
        ...

    def room(self) -> Room:
        """Return what it has for parts now: other programs may fill a disk."""
        ...

    def open(self, name: str) -> StoredPart:
        """Return the part, every byte verified. Lost if it is gone or corrupt, which quarantines it."""
        ...

    def missing(self, names: Collection[str]) -> list[str]:
        """Return the written parts that another process had, and lost; what a disk has lost is found on reading."""
        ...

    def delete(self, name: str) -> None:
        """Delete the part, with those of its file; one that is gone, or quarantined, is no error."""
        ...

    def names(self, *, before: float = math.inf) -> Iterator[tuple[str, int]]:
        """Give every file of parts written before that time and its bytes, without the quarantined ones."""
        ...

    def label(self, name: str) -> Label | None:
        """Return what a part at rest says of itself; None where it says nothing, or can't be read."""
        ...

    def set_aside(self, name: str) -> None:
        """Hide a part; `drop_set_aside` deletes it."""
        ...

    def drop_set_aside(self, *, before: float) -> int:
        """Delete the parts that were set aside before that time; return how many."""
        ...

    def quarantined(self) -> list[str]:
        """Return the names of the parts that were found corrupt and are kept aside."""
        ...

    def close(self) -> None:
        """Close what is open. Readers that were handed out keep working."""
        ...


class NotOnDisk(ABC):
    """What a medium does that ends with a process: nobody can look into a part once that has ended."""

    def write_together(self, file: str, new: Sequence[NewPart]) -> list[Part]:
        """Keep each part alone: nothing is gained by a file."""
        kept: list[Part] = []
        try:
            for number, each in enumerate(new):
                name = f"{file}-{number}"
                kept.append(self.write(name, each.schema, each.batches, replace(each.label, name=name)))
        except BaseException:
            for part in kept:
                self.delete(part.name)
            raise
        return kept

    @abstractmethod
    def write(
        self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], label: Label | None = None
    ) -> Part: ...

    def label(self, name: str) -> Label | None:
        return None

    def set_aside(self, name: str) -> None:
        """Delete the part."""
        self.delete(name)

    @abstractmethod
    def delete(self, name: str) -> None: ...

    def drop_set_aside(self, *, before: float) -> int:
        return 0

    def quarantined(self) -> list[str]:
        return []


def file_of(part: str) -> str:
    """Return the name of the file that a part is in: its own, or of one that has several, as FILE.START-LENGTH."""
    return part.partition(".")[0]


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def disk_error(error: OSError, action: str) -> PenstockError:
    """Return the disk's error as penstock's: full, or failing. EFBIG is how RLIMIT_FSIZE says full."""
    if error.errno in _FULL:
        return StoreFull(
            f"no room on the disk while {action}: nothing of it was kept. Free some space, then try again",
            retry_after=5,
        )
    why = os.strerror(error.errno or errno.EIO)  # pyarrow's own words have the file's path
    return Unavailable(f"the disk failed ({why}) while {action}: nothing of it was kept", retry_after=5)


def lost(name: str, why: str) -> Lost:
    """Return the named loss of a part."""
    return Lost(f"part {name} is lost: {why}")
