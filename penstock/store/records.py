"""Bytes at rest: an Arrow IPC stream, then a table with length and CRC of every record in it.

    | IPC stream: schema, dictionaries, batches, end |  any Arrow reader can read this far
    | table: JSON {v, crc, records: [[bytes, rows, crc], …], part: {ledger, path, name, commits}} |
    | length of the table, CRC of the table, magic |  16 bytes

The records follow each other without gaps, so that the table covers every byte of the
stream and the CRC of the table covers the part. Arrow itself finds no corruption (1,092 of
3,000 single bit flips were read as wrong values), and a stream cut between two messages
reads as a shorter one. `part` binds the bytes to their name: a file under another's name is
recognized. Format 1 had none.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from crc32c import crc32c

CRC = "crc32c"
_OLDEST, FORMAT = 1, 2
_TAIL = struct.Struct("<II8s")
_MAGIC = b"PENSTOCK"
_IOV_MAX = 1_024  # buffers that Linux takes in one writev


class Damaged(Exception):
    """The bytes are not those that were written."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a part's file says of itself."""

    ledger: str
    """The id of the ledger whose part it is."""
    path: str
    """The path that its rows were put to."""
    name: str
    commits: int
    """The ledger's count of commits when the part was written."""


@dataclass(frozen=True, slots=True)
class Written:
    """The content of a part's file."""

    rows: int
    batches: int
    bytes: int
    """The length of the stream, without table and tail."""
    digest: str
    """Identifies the rows, whichever medium holds them, under whatever name."""
    label: Label | None = None


def write(
    to: int | None,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    label: Label | None = None,
) -> Written:
    """Write one part to an empty file, which the caller makes durable; without one, measure it.

    Arrow's buffers go to the file as they are, with no copy in between: the writer hands
    them to `_Gather`, which checksums them and passes them on by writev.
    """
    sink = _Gather(to)
    records: list[tuple[int, int, int]] = []
    rows = 0
    with pa.PythonFile(sink, mode="w") as file, pa.ipc.new_stream(file, schema) as writer:
        records.append(sink.flush_record(0))
        for batch in batches:
            writer.write_batch(batch)
            records.append(sink.flush_record(batch.num_rows))
            rows += batch.num_rows
    records.append(sink.flush_record(0))
    if to is not None:
        part = None if label is None else asdict(label)
        table = _to_json({"v": FORMAT, "crc": CRC, "records": records, "part": part})
        _write_all(to, [table, _TAIL.pack(len(table), crc32c(table), _MAGIC)])
    return _written(records, label)


def verify(view: memoryview) -> Written:
    """Verify every byte of a part; Damaged names the first fault."""
    content, length = _table(view)
    start = 0
    for number, (size, _, expected) in enumerate(content["records"]):
        if crc32c(view[start : start + size]) != expected:
            raise Damaged(f"record {number} at byte {start} has another checksum than at writing")
        start += size
    if start + length + _TAIL.size != len(view):
        raise Damaged(f"it has {len(view)} bytes where {start + length + _TAIL.size} were written")
    return _written(content["records"], _label(content))


def read_label(view: memoryview) -> Label | None:
    """Return what a part says of itself, its rows unverified; None of format 1."""
    return _label(_table(view)[0])


def _table(view: memoryview) -> tuple[dict[str, Any], int]:
    """Return the table of records and its length."""
    if len(view) < _TAIL.size:
        raise Damaged(f"it has {len(view)} bytes, too few for any part")
    length, crc, magic = _TAIL.unpack(view[-_TAIL.size :])
    table = view[max(0, len(view) - _TAIL.size - length) : -_TAIL.size]
    if magic != _MAGIC or len(table) != length:
        raise Damaged("its end is missing")
    if crc32c(table) != crc:
        raise Damaged("its table of records has another checksum than at writing")
    try:
        content = json.loads(bytes(table))
        form = (content["v"], content["crc"])
    except (ValueError, TypeError, KeyError) as broken:  # eight zeros are the length and the CRC of no table at all
        raise Damaged("its table of records is none") from broken
    if form not in ((_OLDEST, CRC), (FORMAT, CRC)):
        raise Damaged(f"it has format {form[0]} with {form[1]}; this penstock reads {_OLDEST} to {FORMAT} with {CRC}")
    return content, length


def _label(content: Mapping[str, Any]) -> Label | None:
    part = content.get("part")
    return None if part is None else Label(**part)


def _written(records: Sequence[Sequence[int]], label: Label | None) -> Written:
    size = sum(record[0] for record in records)
    crc = crc32c(_to_json({"v": 1, "crc": CRC, "records": records}))  # as format 1 had it, for attempts recorded then
    return Written(sum(record[1] for record in records), len(records) - 2, size, f"{size:x}-{crc:08x}", label)


def _to_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class _Gather:
    """A file object that keeps the buffers of one record until they can be written together."""

    def __init__(self, to: int | None) -> None:
        self._to = to
        self._buffers: list[pa.Buffer | bytes] = []
        self.closed = False

    def write(self, data: pa.Buffer | bytes) -> int:
        self._buffers.append(data)
        return len(data)

    def flush_record(self, rows: int) -> tuple[int, int, int]:
        size = crc = 0
        for buffer in self._buffers:
            crc = crc32c(buffer, crc)
            size += len(buffer)
        _write_all(self._to, self._buffers)
        self._buffers = []
        return size, rows, crc

    def flush(self) -> None:
        """Do nothing: no bytes wait between records."""

    def close(self) -> None:
        self.closed = True


def _write_all(to: int | None, buffers: Iterable[pa.Buffer | bytes]) -> None:
    """writev until all is written: a full disk shows as a short write first (100 of 900 bytes)."""
    if to is None:
        return
    left = [memoryview(buffer) for buffer in buffers if len(buffer)]
    at = 0
    while at < len(left):
        done = os.writev(to, left[at : at + _IOV_MAX])
        while at < len(left) and done >= len(left[at]):
            done -= len(left[at])
            at += 1
        if done:
            left[at] = left[at][done:]
