"""A position: the next offset of each shard of a journal. Integers inside; on the wire JSON, whose names are text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.errors import InvalidRequest

MAX_OFFSET = 2**63 - 1
"""The ledger keeps an offset in 64 bits."""
_LIFE = 40  # characters
EXPECTED = 'an offset for each shard, such as {"0": 500}'


class Position(Mapping[int, int]):
    """Shard -> the offset of the next row. Reads like a dict, and never changes.

    `life` names the server's life, from one start to the next, that wrote the last of the rows before it: a data folder
    that was put back to an older state hasn't got that life. None where nobody knows it; two positions with the same
    offsets are equal.
    """

    __slots__ = ("_offsets", "life")

    def __init__(self, offsets: Mapping[int, int], life: str | None = None) -> None:
        self._offsets = dict(offsets)
        self.life = life

    def __getitem__(self, shard: int) -> int:
        return self._offsets[shard]

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def __hash__(self) -> int:
        return hash(frozenset(self._offsets.items()))

    def __repr__(self) -> str:
        return f"Position({self._offsets})"

    def moved(self, shard: int, offset: int) -> Position:
        """Return the same position with another offset for one shard."""
        return Position({**self._offsets, shard: offset}, self.life)

    def to_json(self) -> dict[str, Any]:
        """Return the object that crosses the wire: {"0": 5, "life": "5f0c…"}."""
        offsets = {str(shard): offset for shard, offset in self._offsets.items()}
        return offsets if self.life is None else {**offsets, "life": self.life}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Position:
        """Return the position of such an object; InvalidRequest names the shard at fault."""
        life = value.get("life")
        offsets = {shard: offset for shard, offset in value.items() if shard != "life"}
        if not (life is None or (isinstance(life, str) and len(life) <= _LIFE)):
            raise InvalidRequest(f"life {str(life)[:20]!r}: expected the text that came with the offsets")
        for shard, offset in offsets.items():
            if not (shard.isascii() and shard.isdecimal() and len(shard) <= 9 and str(int(shard)) == shard):
                raise InvalidRequest(f"no shard {shard[:20]!r}: expected {EXPECTED}")
            if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
                raise InvalidRequest(f"shard {shard}: expected an offset from 0, got {str(offset)[:20]!r}")
        return cls({int(shard): offset for shard, offset in offsets.items()}, life)
