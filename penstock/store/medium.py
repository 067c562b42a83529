"""The seam of the store: a medium holds bytes under names, and decides nothing."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.errors import Lost, PenstockError, StoreFull, Unavailable


@dataclass(frozen=True, slots=True)
class Part:
    """A part at rest, as its writer got it back."""

    name: str
    rows: int
    bytes: int
    digest: str
    """Identifies the bytes; two parts with one digest hold the same rows in the same order."""


class OpenPart(Protocol):
    """A part whose bytes were found whole."""

    @property
    def schema(self) -> pa.Schema:
        """As it was written."""
        ...

    @property
    def rows(self) -> int:
        """How many."""
        ...

    @property
    def bytes(self) -> int:
        """Length of the IPC stream."""
        ...

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """All rows, of these columns in this order; may be called again and again."""
        ...

    def descriptor(self) -> tuple[int, int] | None:
        """A new read-only file descriptor and how many bytes from its start are the IPC stream; None without a file."""
        ...


class Medium(Protocol):
    """Where parts lie. A name is [A-Za-z0-9.-]{1,80}, made by penstock and used for one part only."""

    incarnation: str
    """Empty where bytes outlive the process, else what tells this process's bytes from the last one's."""

    def write(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Part:
        """Keep a part. Once it returns the part outlives a power cut; if it raises, or after a crash, nothing is kept.

        A name left over from an attempt that crashed is replaced.
        """
        ...

    def open(self, name: str) -> OpenPart:
        """The part, every byte checked. Lost if it is gone or quarantined; a corrupt one is quarantined here."""
        ...

    def delete(self, name: str) -> None:
        """Forget the part; one that is gone, or quarantined, is no error."""
        ...

    def names(self, *, before: float = math.inf) -> Iterator[tuple[str, int]]:
        """Every part kept since before that time, with the bytes that it takes; quarantined ones are not among them."""
        ...

    def quarantined(self) -> list[str]:
        """The names of the parts that were found corrupt and are kept aside."""
        ...

    def close(self) -> None:
        """Let go of what is open. Readers that were handed out go on."""
        ...


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def disk_error(error: OSError, doing: str) -> PenstockError:
    """What the caller may do about an error of the disk. EFBIG is how RLIMIT_FSIZE says full."""
    if error.errno in _FULL:
        return StoreFull(
            f"no room on the disk while {doing}: nothing of it was kept. Free some space, then try again", retry_after=5
        )
    why = os.strerror(error.errno or errno.EIO)  # pyarrow's own words have the file's path
    return Unavailable(f"the disk failed ({why}) while {doing}: nothing of it was kept", retry_after=5)


def lost(name: str, why: str) -> Lost:
    """The named loss of a part."""
    return Lost(f"part {name} is lost: {why}")
