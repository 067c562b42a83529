"""The window of a partition: which of its records are done, as the consumer group's commit tells it to others.

The committed offset is the first record that isn't done; those done beyond it are bits of the commit's metadata.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterable, Sequence

MOST_METADATA = 4096
"""Bytes that a broker takes with a committed offset."""
_MOST_BITS = (MOST_METADATA - 2) // 4 * 3 * 8
FULL = _MOST_BITS * 2 // 3
"""Offsets between the first record that isn't done and the last that is, from which on only the first is claimed:
the rest is for what is claimed already."""


class Window:
    """The records of a partition that were read and aren't done, and those that are done beyond the first of these."""

    def __init__(self, next_offset: int, committed: int = 0, done: Iterable[int] = ()) -> None:
        self.next = self.noted = next_offset
        """The offset to read on from, and the one that the ledger has."""
        self._marker = False
        """Whether the end of a transaction of ours follows, which takes an offset."""
        self._committed = committed
        """The offset that the group had committed at the start."""
        self._waiting: deque[int] = deque()
        self._done = set(done)
        """Offsets from the first waiting one on."""

    def read(self, waiting: Iterable[int], next_offset: int) -> None:
        """Note records that were read, in their order, and aren't done."""
        self._waiting.extend(waiting)
        self.next = next_offset
        self._marker = False

    def is_next(self, sent: Sequence[int]) -> bool:
        """Whether records of ours are the next ones, so that none of others lies before or between them."""
        first = sent[0]
        return 0 <= first - self.next <= self._marker and list(sent) == list(range(first, first + len(sent)))

    def add(self, sent: Sequence[int], *, marker: bool) -> None:
        """Note records of ours that are the next ones, in a transaction or not."""
        self.read(sent, sent[-1] + 1)
        self._marker = marker

    def is_committed(self, offset: int) -> bool:
        """Whether the group has committed a record as done."""
        return offset < self._committed or offset in self._done

    def end(self, offsets: Iterable[int]) -> None:
        """Note records as done."""
        self._done.update(offsets)
        while self._waiting and self._waiting[0] in self._done:
            self._done.discard(self._waiting.popleft())

    @property
    def first(self) -> int:
        """The first offset that isn't done."""
        return self._waiting[0] if self._waiting else self.next

    @property
    def is_full(self) -> bool:
        """Whether so much is done beyond the first record that isn't that it alone is to be claimed."""
        return bool(self._done) and max(self._done) - self.first > FULL

    def commit(self) -> tuple[int, str]:
        """Return the offset and the metadata of a commit. What has no room in it is committed once `first` moves on."""
        first = self.first
        self._done = {offset for offset in self._done if offset > first}
        bits = bytearray(_MOST_BITS // 8)
        for offset in self._done:
            if offset - first < _MOST_BITS:
                bits[offset - first >> 3] |= 1 << (offset - first & 7)
        packed = bits.rstrip(b"\0")
        return first, f"1:{base64.b64encode(packed).decode()}" if packed else ""


def done_beyond(first: int, metadata: str) -> set[int]:
    """Return the offsets that a commit's metadata calls done; of another consumer's metadata none."""
    if not metadata.startswith("1:"):
        return set()
    bits = int.from_bytes(base64.b64decode(metadata[2:]), "little")
    return {first + bit for bit in range(bits.bit_length()) if bits >> bit & 1}
