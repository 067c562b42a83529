"""Batches become files of every format, which other programs read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli import writers
from penstock.errors import InvalidRequest
from tests.kit.cli import TRIPS

RICH = pa.table(
    {
        "bytes": pa.array([b"\xff\x00"]),
        "list": pa.array([[1, None]]),
        "struct": pa.array([{"day": 1_780_275_723_000_400_000}], pa.struct([("day", pa.timestamp("ns"))])),
        "map": pa.array([[("a", 1.5)]], pa.map_(pa.string(), pa.float64())),
        "price": pa.array([Decimal("12.50")]),
        "ns": pa.array([1], pa.timestamp("ns")),
        "word": pa.array(["x"]).dictionary_encode(),
        "nan": pa.array([float("nan")]),
        "nans": pa.array([[float("inf")]]),
        "step": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    }
)


def written(file_format: str, table: pa.Table) -> str:
    sink = io.BytesIO()
    writers.write(file_format, sink, table.schema, table.to_batches())
    return sink.getvalue().decode()


def test_json_holds_every_type() -> None:
    assert json.loads(written("json", RICH)) == {
        "bytes": "/wA=", "list": [1, None], "struct": {"day": "2026-06-01 01:02:03.000400000"}, "map": [["a", 1.5]],
        "price": "12.50", "ns": "1970-01-01 00:00:00.000000001", "word": "x", "nan": None, "nans": [None],
        "step": [1, 2, 3],
    }  # fmt: skip


def test_csv_holds_every_type() -> None:
    [row] = csv.DictReader(io.StringIO(written("csv", RICH)))
    assert (row["bytes"], row["price"], row["word"], row["step"]) == ("/wA=", "12.50", "x", "[1, 2, 3]")
    assert json.loads(row["list"]) == [1, None]
    assert json.loads(row["struct"]) == {"day": "2026-06-01 01:02:03.000400000"}


def test_people_see_times_without_empty_fractions() -> None:
    times = pa.array([0, 1_500_000, None], pa.timestamp("us", "UTC"))
    assert writers.cells(times) == ["1970-01-01 00:00:00Z", "1970-01-01 00:00:01.500000Z", None]
    assert writers.cells(RICH["step"]) == ["[1, 2, 3]"]
    assert writers.cells(pa.array([True, None])) == ["true", None]


@pytest.mark.parametrize("file_format", ["arrow", "arrows", "parquet", "csv", "json"])
def test_few_batches_are_held_at_a_time(file_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_ROW_GROUP", 1 << 20)
    schema = pa.schema([("x", pa.string())])
    before = most = pa.total_allocated_bytes()

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(60):
            yield pa.record_batch([pa.array([f"{number} {row:>250}" for row in range(1_000)])], schema=schema)
            most = max(most, pa.total_allocated_bytes())

    with (tmp_path / "out").open("wb") as sink:
        writers.write(file_format, sink, schema, batches())
    assert most - before < 4 << 20, "of 15 MB in all"


def test_small_batches_make_one_row_group(tmp_path: Path) -> None:
    batches = [batch for _ in range(9) for batch in TRIPS.to_batches()]
    writers.save(str(tmp_path / "a.parquet"), "parquet", TRIPS.schema, batches)
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    assert (metadata.num_rows, metadata.num_row_groups) == (900, 1)


def test_a_failure_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    """A file of the Arrow format can't replace a dictionary, so the second batch fails after the first was written."""
    target = tmp_path / "a.arrow"
    target.write_text("precious")
    batches = [pa.record_batch({"w": pa.array([word]).dictionary_encode()}) for word in "xy"]
    with pytest.raises(InvalidRequest, match=r"\.arrows"):
        writers.save(str(target), "arrow", batches[0].schema, batches)
    assert (target.read_text(), [path.name for path in tmp_path.iterdir()]) == ("precious", ["a.arrow"])
    writers.save(str(tmp_path / "a.arrows"), "arrows", batches[0].schema, batches)
    with pa.ipc.open_stream(tmp_path / "a.arrows") as stream:
        assert stream.read_all()["w"].to_pylist() == ["x", "y"]
