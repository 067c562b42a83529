"""The file of a part: an IPC stream that any Arrow reader reads, then checksums that reveal every changed byte."""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store import records
from penstock.store.disk import DiskMedium
from penstock.store.records import Damaged, Written
from tests.kit import rows
from tests.kit.rows import SHAPES, assert_same, numbers


def write_part(table: pa.Table) -> tuple[bytes, Written]:
    """Write a part; return its file's bytes and what `records` says of it."""
    fd = os.memfd_create("part")
    try:
        written = records.write(fd, table.schema, table.to_batches())
        return os.pread(fd, os.fstat(fd).st_size, 0), written
    finally:
        os.close(fd)


def record_table(raw: bytes) -> tuple[dict[str, Any], int, int]:
    """Return the table of records, its first byte and its CRC, read by the format's definition and not by our code."""
    length, crc, magic = struct.unpack("<II8s", raw[-16:])
    assert magic == b"PENSTOCK"
    start = len(raw) - 16 - length
    return json.loads(raw[start:-16]), start, crc


def crc32c(data: bytes) -> int:
    """Compute CRC-32C by its definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


READERS: dict[str, Callable[[bytes], pa.RecordBatchReader]] = {
    "a buffer": lambda raw: pa.ipc.open_stream(pa.py_buffer(raw)),
    "a Python file": lambda raw: pa.ipc.open_stream(io.BytesIO(raw)),
}


@pytest.mark.parametrize("reader", ["a buffer", "a Python file"])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_arrow_reader_reads_the_file_as_a_stream(shape: str, reader: str) -> None:
    """It stops at the end of the stream, before the checksums."""
    raw, written = write_part(SHAPES[shape])
    assert_same(READERS[reader](raw).read_all(), SHAPES[shape])
    assert_same(READERS[reader](raw[: written.bytes]).read_all(), SHAPES[shape])


@given(rows.tables())
def test_a_table_of_any_shape_is_read_back_and_verified(table: pa.Table) -> None:
    raw, written = write_part(table)
    assert records.verify(memoryview(raw)) == written
    assert written.rows == table.num_rows
    assert_same(pa.ipc.open_stream(raw[: written.bytes]).read_all(), table)


@given(rows.tables())
def test_the_record_table_covers_every_byte_of_the_stream(table: pa.Table) -> None:
    raw, written = write_part(table)
    index, start, crc = record_table(raw)
    assert (index["v"], index["crc"]) == (2, "crc32c")
    assert sum(size for size, _, _ in index["records"]) == start == written.bytes
    assert sum(rows for _, rows, _ in index["records"]) == written.rows
    assert crc == crc32c(raw[start:-16])
    start_of_record = 0
    for size, _, expected in index["records"]:
        assert crc32c(raw[start_of_record : start_of_record + size]) == expected
        start_of_record += size


@given(rows.tables(), st.data())
def test_a_flipped_bit_is_found_wherever_it_is(table: pa.Table, data: st.DataObject) -> None:
    raw, _ = write_part(table)
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged):
        records.verify(memoryview(changed))


@given(rows.tables(), st.data())
def test_a_cut_is_found_wherever_it_is(table: pa.Table, data: st.DataObject) -> None:
    raw, _ = write_part(table)
    with pytest.raises(Damaged):
        records.verify(memoryview(raw[: data.draw(st.integers(0, len(raw) - 1))]))


@given(st.binary(max_size=300), st.binary(max_size=40))
def test_bytes_that_were_never_a_part_are_damaged(body: bytes, end: bytes) -> None:
    for raw in (body, body + end + b"PENSTOCK", body + struct.pack("<II8s", len(end), crc32c(end), b"PENSTOCK")):
        with pytest.raises(Damaged):
            records.verify(memoryview(raw))


def test_swapped_records_are_found() -> None:
    raw, _ = write_part(pa.concat_tables([numbers(10), numbers(10, 10), numbers(10, 20)]))
    first, second, third = (size for size, rows, _ in record_table(raw)[0]["records"] if rows)
    middle, end = first + second, first + second + third
    swapped = raw[:first] + raw[middle:end] + raw[first:middle] + raw[end:]
    assert swapped != raw
    with pytest.raises(Damaged, match=r"record \d at byte \d+ has another checksum"):
        records.verify(memoryview(swapped))


def test_two_parts_in_one_file_are_damaged() -> None:
    raw, _ = write_part(numbers(10))
    with pytest.raises(Damaged):
        records.verify(memoryview(raw + raw))


def resealed(raw: bytes, **changed: Any) -> bytes:
    """Return the part with a changed table of records whose own checksum is right."""
    index, start, _ = record_table(raw)
    table = json.dumps({**index, **changed}, separators=(",", ":")).encode()
    return raw[:start] + table + struct.pack("<II8s", len(table), crc32c(table), b"PENSTOCK")


@pytest.mark.parametrize("changed", [{"v": 3}, {"crc": "crc32"}, {"crc": "xxh3"}])
def test_another_format_is_refused_by_name(changed: dict[str, Any]) -> None:
    raw, _ = write_part(numbers(10))
    records.verify(memoryview(resealed(raw)))
    with pytest.raises(Damaged, match="this penstock reads 1 to 2 with crc32c"):
        records.verify(memoryview(resealed(raw, **changed)))


def test_the_checksum_is_not_zlibs() -> None:
    raw, _ = write_part(numbers(10))
    (size, _, crc), *_ = (record for record in record_table(raw)[0]["records"] if record[0])
    assert crc == crc32c(raw[:size]) != zlib.crc32(raw[:size])


def test_more_buffers_than_one_writev_takes_are_written(tmp_path: Path) -> None:
    table = pa.table({f"column {n}": pa.array([n, None, n]) for n in range(3_000)})
    medium = DiskMedium(tmp_path)
    medium.write("wide", table.schema, table.to_batches())
    assert_same(medium.open("wide").reader().read_all(), table)


def test_a_part_is_not_compressed_so_that_it_can_be_mapped() -> None:
    raw, _ = write_part(pa.table({"zeros": pa.array([0] * 10_000)}))
    assert len(raw) > 80_000
