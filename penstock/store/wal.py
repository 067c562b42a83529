"""The end of SQLite's write-ahead log: where SQLite stops reading, and the commits behind that it would drop.

SQLite takes the first frame with a wrong checksum for the end, and says nothing: with one flipped bit every later
commit is gone. Format: https://sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

_HEADER = struct.Struct(">8I")  # magic, version, page size, number of checkpoints, two salts, two sums
_FRAME = struct.Struct(">6I")  # page, pages of the database at a commit or else 0, two salts, two sums
_MAGICS = {0x377F0682: "<", 0x377F0683: ">"}
"""The byte order of the words that the sums are of."""


def damage(log: Path) -> str | None:
    """Say what is damaged in a log that holds commits behind the damage; None where SQLite reads all of them.

    A crash leaves frames without a commit at the end, and those of an earlier round, which have other salts: neither
    was ever answered.
    """
    try:
        with log.open("rb") as file:
            return _damage(file)
    except FileNotFoundError:
        return None


def _damage(file: BinaryIO) -> str | None:
    head = file.read(_HEADER.size)
    following = file.read(1)
    if not following:  # no frame
        return None
    magic, _, page_size, _, *salts, first, second = _HEADER.unpack(head)
    order = _MAGICS.get(magic, ">")
    if magic not in _MAGICS or _add(order, (0, 0), head[:24]) != (first, second):
        return "its header is damaged, and SQLite would read none of its commits"
    file.seek(_HEADER.size)
    sums, number, damaged, dropped = (first, second), 0, 0, 0
    while len(frame := file.read(_FRAME.size + page_size)) == _FRAME.size + page_size:
        number += 1
        page, committed, *frame_salts, first, second = _FRAME.unpack(frame[: _FRAME.size])
        if not damaged:
            sums = _add(order, _add(order, sums, frame[:8]), frame[_FRAME.size :])
            damaged = 0 if page and frame_salts == salts and sums == (first, second) else number
        if damaged and committed and any(map(int.__eq__, frame_salts, salts)):  # one of them may be what is damaged
            dropped += 1
    return f"frame {damaged} is damaged, and SQLite would drop {dropped} commits from there on" if dropped else None


def _add(order: str, sums: tuple[int, int], data: bytes) -> tuple[int, int]:
    """Add bytes to a log's two running sums: 1,000 frames take 0.1 s, and only after a crash."""
    first, second = sums
    for one, other in struct.iter_unpack(f"{order}2I", data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
