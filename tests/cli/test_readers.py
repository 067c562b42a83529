"""Files and stdin become one stream of batches, piece by piece."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.readers import InputFiles
from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.rows.converter import Converter
from tests.kit.cli import TRIPS, text_file, write_table


def read(*files: str) -> pa.Table:
    rows = InputFiles(files)
    return pa.Table.from_batches(rows.batches(), rows.schema)


@pytest.mark.parametrize(("extension", "other"), [(".arrow", ".arrows"), (".arrows", ".arrow")])
def test_an_arrow_file_may_be_named_a_stream(tmp_path: Path, extension: str, other: str) -> None:
    Path(write_table(TRIPS, tmp_path / f"a{extension}")).rename(tmp_path / f"b{other}")
    assert read(str(tmp_path / f"b{other}")).equals(TRIPS)


def test_a_quoted_line_end_may_lie_anywhere_in_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one of the pieces ends in which the file is parsed."""
    monkeypatch.setattr("penstock.cli.readers._BLOCK", 64)
    (tmp_path / "a.csv").write_text("n,said\n" + "".join(f'{n},"{n}\n\n,and"\n' for n in range(99)))
    assert read(str(tmp_path / "a.csv")).to_pydict() == {
        "n": list(range(99)), "said": [f"{n}\n\n,and" for n in range(99)],
    }  # fmt: skip


def test_json_is_read_in_pieces_of_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.readers._BLOCK", 64)
    file = text_file(tmp_path, *(f'{{"n": {n}, "s": "{"é" * (n % 40)}"}}' for n in range(99)))
    assert read(file).to_pydict() == {"n": list(range(99)), "s": ["é" * (n % 40) for n in range(99)]}


@pytest.mark.parametrize(("line", "value"), [
    (b'{"n": 1, "s": "caf\xe9"}', r"s isn't text in UTF-8, got 'caf\\udce9'"),
    (b'{"n\xe9": 1}', r"n\\udce9 isn't text in UTF-8"),
    (b'{"n": 1.5}', r"n of .*a\.jsonl is int64, got '1.5' \(it has a fraction\)"),
    (b'{"n": 1, "new": 1}', "has a column 'new', which the beginning lacks"),
    (b'{"n": 1', "isn't JSON"),
])  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, value: str) -> None:
    monkeypatch.setattr("penstock.cli.readers._BLOCK", 10)
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1, "s": "a"}\n' * 5 + line + b"\n")
    with pytest.raises(InvalidRequest, match=rf"a\.jsonl: line 6\W.*{value}"):
        read(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(("values", "kind"), [
    (["2026-11-18T20:00:00Z", "", "2026-11-18 20:00:00.25+01:00"], pa.timestamp("us", "UTC")),
    (["2026-11-18T20:00:00", "2026-11-18T20:00:00"], pa.timestamp("us")),
    (["2026-11-18T20:00:00.5", ""], pa.timestamp("us")),
    (["2026-11-18", "2026-11-19"], pa.date32()),
    (["2026-11-18T20:00:00Z", "2026-11-18T20:00:00"], pa.string()),
])  # fmt: skip
def test_times_of_csv_keep_their_zone(tmp_path: Path, values: list[str], kind: pa.DataType) -> None:
    for lines in (values, [*values] * 2):
        table = read(text_file(tmp_path, "n,at", *(f"1,{value}" for value in lines), name="a.csv"))
        assert table.schema == pa.schema([("n", pa.int64()), ("at", kind)])
    if kind == pa.timestamp("us", "UTC"):
        hours = [value and value.hour for value in table["at"].to_pylist()]
        assert hours == [20, None, 19] * 2


FIELDS = [
    "", '""', "x", "0017", "null", "1", "-5", "+7", " 1", "1.5", "1e3", "-.5", "nan", "-inf", "12345678901234567890",
    "true", "FALSE", "2026-11-18", "2026-11-18T20:00", "2026-11-18T20:00:00Z", "2026-11-18 20:00:00.25+01:00",
    "20:00:00", "20:00:00.5", "2026-11-18T20:00:00", "2026-11-18T20:00:00.123456789", "2026-11-18T20:00:00+0100",
]  # fmt: skip


@given(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3))
def test_csv_is_taken_in_the_types_that_it_made(values: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = text_file(Path(folder), "n,x", *(f"1,{value}" for value in values), name="a.csv")
        table = read(file)
        again = InputFiles([file], converter=Converter("topic/x", table.schema))
        assert str(pa.Table.from_batches(again.batches(), again.schema).to_pydict()) == str(table.to_pydict())


def test_csv_may_have_heads_alone(tmp_path: Path) -> None:
    assert read(text_file(tmp_path, "n,at", name="a.csv")).schema.names == ["n", "at"]


def test_text_is_read_in_the_types_of_the_first_file(tmp_path: Path) -> None:
    """Alone, the second file's column would be one of integers."""
    files = [
        text_file(tmp_path, "x", "1.5", name="a.csv"),
        text_file(tmp_path, "x", "2", name="b.csv"),
        text_file(tmp_path, '{"x": 3}', name="c.json"),
    ]
    assert read(*files).to_pydict() == {"x": [1.5, 2.0, 3.0]}


def test_files_are_of_one_schema(tmp_path: Path) -> None:
    """But may differ in metadata: pandas, Spark and others note something of their own in each."""
    files = []
    for name in ("a", "b"):
        field = pa.field("x", pa.int64(), metadata={"of": name})
        files.append(write_table(pa.table({"x": [1]}, pa.schema([field], {"of": name})), tmp_path / f"{name}.parquet"))
    assert read(*files).to_pydict() == {"x": [1, 1]}
    narrow = write_table(pa.table({"x": pa.array([2], pa.int8())}), tmp_path / "narrow.parquet")
    assert read(files[0], narrow).schema == read(files[0]).schema
    with pytest.raises(SchemaMismatch, match=r"column x is int64, and can't be cast to int8: .*300"):
        read(narrow, write_table(pa.table({"x": [300]}), tmp_path / "wide.parquet"))
    files.append(write_table(pa.table({"x": [1], "y": ["s"]}), tmp_path / "c.parquet"))
    with pytest.raises(SchemaMismatch, match=r"c\.parquet has other columns than .*a\.parquet: y: string, not nothing"):
        read(*files)
    with pytest.raises(SchemaMismatch, match=r"b\.parquet has other columns than .*c\.parquet: nothing, not y: string"):
        read(*reversed(files))


class Dribble(io.RawIOBase):
    """A pipe whose writer sends a byte at a time."""

    def __init__(self, data: bytes) -> None:
        self._rest = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        return self._rest.readinto(memoryview(target)[:1])


def test_stdin_is_recognised_however_slowly_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pa.BufferOutputStream()
    pq.write_table(TRIPS, data)
    dribble = io.BufferedReader(Dribble(data.getvalue().to_pybytes()))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(dribble))
    assert read("-").equals(TRIPS)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl"])
def test_progress_is_told_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("penstock.cli.readers._BLOCK", 100_000)
    if name == "a.parquet":
        write_table(pa.table({"x": range(300_000)}), tmp_path / name)
    elif name == "a.arrow":
        write_table(pa.table({"x": pa.chunked_array([[n] * 999 for n in range(9)])}), tmp_path / name)
    else:
        text_file(tmp_path, *[f'{{"x": {10**9}}}'] * 30_000)
    files = InputFiles([str(tmp_path / name)])
    size, done = float((tmp_path / name).stat().st_size), list[float]()
    rows = sum(batch.num_rows for batch in files.batches(done.append))
    assert rows in (300_000, 9 * 999, 30_000)
    assert 0 < done[0] < size / 2
    assert (done[-1], files.total) == (size, size)
    assert done == sorted(done)
