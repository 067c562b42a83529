"""`get` and `put`: every format in and out, files that are whole or not there, previews that fit."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from penstock.cli import app
from penstock.client.client import Client
from tests.kit.cli import READERS, TRIP_TABLE, WRITERS, Run, write_arrows

# --- put and get ---------------------------------------------------------------------------


EXACT = list(WRITERS)


@pytest.mark.parametrize("extension", EXACT)
def test_a_file_goes_in_and_comes_out_the_same(here: Run, client: Client, tmp_path: Path, extension: str) -> None:
    source, target = str(tmp_path / f"in{extension}"), str(tmp_path / f"out{extension}")
    WRITERS[extension](TRIP_TABLE, source)
    done = here("put", "store/a", source)
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"store/a: 100 rows, [\d.]+ k?B in [\d.]+ s \(.*B/s\)\n", done.text)
    assert client.get("store/a").read_all().equals(TRIP_TABLE)
    assert here("get", "store/a", "-o", target).code == 0
    assert READERS[extension](target).equals(TRIP_TABLE)


TEXT = pa.table(
    {
        "n": pa.array([1, None, 3], pa.int64()),
        "said": pa.array(['a "word", with\na line', "", None]),
        "yes": pa.array([True, False, None]),
        "x": pa.array([0.5, None, -2.0]),
    }
)


@pytest.mark.parametrize("extension", [".csv", ".json", ".jsonl", ".ndjson"])
def test_text_files_come_back_with_their_nulls_and_empty_strings(
    here: Run, client: Client, tmp_path: Path, extension: str
) -> None:
    client.put("store/a", TEXT)
    file = str(tmp_path / f"a{extension}")
    assert here("get", "store/a", "-o", file).code == 0
    assert here("put", "store/b", file).code == 0
    assert client.get("store/b").read_all().equals(TEXT)


def test_csv_is_what_another_reader_takes_for_csv(here: Run, client: Client) -> None:
    client.put("store/a", TEXT)
    heads, *rows = csv.reader(io.StringIO(here("get", "store/a", "-o", "-").text, newline=""))
    assert heads == ["n", "said", "yes", "x"]
    assert rows == [["1", 'a "word", with\na line', "true", "0.5"], ["", "", "false", ""], ["3", "", "", "-2"]]


def test_a_quoted_line_end_may_lie_anywhere_in_csv(
    here: Run, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of the pieces ends in which the file is parsed."""
    monkeypatch.setattr("penstock.cli.reading._BLOCK", 64)
    (tmp_path / "a.csv").write_text("n,said\n" + "".join(f'{n},"{n}\n\n,and"\n' for n in range(99)))
    assert here("put", "store/a", str(tmp_path / "a.csv")).code == 0
    assert client.get("store/a").read_all().to_pydict() == {
        "n": list(range(99)), "said": [f"{n}\n\n,and" for n in range(99)],
    }  # fmt: skip


def test_a_column_of_nulls_in_csv_keeps_its_rows(here: Run, client: Client) -> None:
    """A null alone on its line is an empty line."""
    client.put("store/a", TEXT.select(["n"]))
    assert here("put", "store/b", "-", stdin=here("get", "store/a").out).code == 0
    assert client.get("store/b").read_all().equals(TEXT.select(["n"]))


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
    }
)


def test_json_holds_every_type(here: Run, client: Client) -> None:
    client.put("store/rich", RICH)
    [row] = here("get", "store/rich", "--format", "json").json
    assert row == {
        "bytes": "/wA=", "list": [1, None], "struct": {"day": "2026-06-01 01:02:03.000400000"}, "map": [["a", 1.5]],
        "price": "12.50", "ns": "1970-01-01 00:00:00.000000001", "word": "x", "nan": None, "nans": [None],
    }  # fmt: skip


def test_csv_holds_every_type(here: Run, client: Client) -> None:
    client.put("store/rich", RICH)
    [row] = csv.DictReader(io.StringIO(here("get", "store/rich").text))
    assert (row["bytes"], row["price"], row["word"]) == ("/wA=", "12.50", "x")
    assert json.loads(row["list"]) == [1, None]
    assert json.loads(row["struct"]) == {"day": "2026-06-01 01:02:03.000400000"}


@pytest.mark.parametrize("format_", ["arrow", "arrows", "parquet", "csv", "json"])
def test_stdout_of_one_is_stdin_of_another(here: Run, client: Client, format_: str) -> None:
    """stdin's format is found out by its beginning."""
    table = TRIP_TABLE.select(["id", "to", "fare"])
    client.put("store/a", table)
    piped = here("get", "store/a", "-o", "-", "--format", format_)
    assert here("put", "store/b", "-", stdin=piped.out).code == 0
    assert client.get("store/b").read_all().equals(table)


class Dribble(io.RawIOBase):
    """A pipe whose writer sends a byte at a time."""

    def __init__(self, data: bytes) -> None:
        self._rest = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        return self._rest.readinto(memoryview(target)[:1])


def test_stdin_is_recognised_however_slowly_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.cli.reading import Files

    data = pa.BufferOutputStream()
    pq.write_table(TRIP_TABLE, data)
    dribble = io.BufferedReader(Dribble(data.getvalue().to_pybytes()))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(dribble))
    assert pa.Table.from_batches(Files(["-"])).equals(TRIP_TABLE)


def test_into_a_pipe_go_all_rows_as_csv(here: Run, trips: str) -> None:
    rows = list(csv.reader(io.StringIO(here("get", trips).text)))
    assert [row[0] for row in rows[1:]] == [str(n) for n in range(100)]


def test_rows_and_columns_are_chosen(here: Run, trips: str, tmp_path: Path) -> None:
    assert here("get", trips, "-n", "2", "-c", "fare,id").text == '"fare","id"\n0,0\n0.25,1\n'
    assert here("get", trips, "-n", "0", "-c", "id").text == '"id"\n'
    assert here("get", trips, "-n", "3", "-c", "to, id", "-o", str(tmp_path / "a.parquet")).code == 0
    assert pq.read_table(tmp_path / "a.parquet").equals(TRIP_TABLE.select(["to", "id"]).slice(0, 3))


def test_format_rules_over_the_extension(here: Run, trips: str, client: Client, tmp_path: Path) -> None:
    assert here("get", trips, "-o", str(tmp_path / "a.txt"), "--format", "arrows").code == 0
    assert READERS[".arrows"](str(tmp_path / "a.txt")).equals(TRIP_TABLE)
    assert here("put", "store/b", str(tmp_path / "a.txt"), "--format", "arrows").code == 0
    assert client.get("store/b").read_all().equals(TRIP_TABLE)


@pytest.mark.parametrize(("extension", "other"), [(".arrow", ".arrows"), (".arrows", ".arrow")])
def test_an_arrow_file_named_a_stream_is_read_all_the_same(
    here: Run, client: Client, tmp_path: Path, extension: str, other: str
) -> None:
    WRITERS[extension](TRIP_TABLE, str(tmp_path / f"a{other}"))
    assert here("put", "store/a", str(tmp_path / f"a{other}")).code == 0
    assert client.get("store/a").read_all().equals(TRIP_TABLE)


def test_several_files_are_one_write(here: Run, client: Client, parquet: str, tmp_path: Path) -> None:
    write_arrows(TRIP_TABLE, str(tmp_path / "b.arrows"))
    assert here("put", "store/a", parquet, str(tmp_path / "b.arrows")).code == 0
    assert (
        client.get("store/a")
        .read_all()
        .combine_chunks()
        .equals(pa.concat_tables([TRIP_TABLE, TRIP_TABLE]).combine_chunks())
    )


def test_a_later_text_file_is_read_with_the_first_ones_types(here: Run, client: Client, tmp_path: Path) -> None:
    """Alone, the second file's column would be one of integers."""
    (tmp_path / "a.csv").write_text("x\n1.5\n")
    (tmp_path / "b.csv").write_text("x\n2\n")
    (tmp_path / "c.json").write_text('{"x": 3}\n')
    assert here("put", "store/a", *(str(tmp_path / name) for name in ("a.csv", "b.csv", "c.json"))).code == 0
    assert client.get("store/a").read_all().to_pydict() == {"x": [1.5, 2.0, 3.0]}


def test_a_second_file_with_other_columns_leaves_nothing(
    here: Run, client: Client, parquet: str, tmp_path: Path
) -> None:
    pq.write_table(TRIP_TABLE.select(["id"]), tmp_path / "b.parquet")
    done = here("put", "store/a", parquet, str(tmp_path / "b.parquet"))
    assert (done.code, len(client.list()), len(client.list("write/"))) == (app.CONFLICT, 0, 0)
    assert "b.parquet has other columns than" in done.err


def test_files_that_differ_in_metadata_alone_are_one_write(here: Run, client: Client, tmp_path: Path) -> None:
    """pandas, Spark and others note something of their own in each."""
    for name in ("a", "b"):
        field = pa.field("x", pa.int64(), metadata={"of": name})
        pq.write_table(pa.table({"x": [1]}, pa.schema([field], {"of": name})), tmp_path / f"{name}.parquet")
    assert here("put", "store/a", str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")).code == 0
    assert client.get("store/a").read_all().to_pydict() == {"x": [1, 1]}


def test_modes(here: Run, trips: str, client: Client, parquet: str) -> None:
    refused = here("put", trips, parquet)
    assert (refused.code, "append" in refused.err) == (app.CONFLICT, True)
    assert here("put", trips, parquet, "--mode", "append").code == 0
    assert client.info(trips).rows == 200
    assert here("put", trips, parquet, "--mode", "overwrite").code == 0
    assert client.info(trips).rows == 100


def test_a_run_happens_once(here: Run, client: Client, parquet: str) -> None:
    for _ in range(2):
        assert here("put", "store/a", parquet, "--mode", "append", "--run", "monday").code == 0
    assert client.info("store/a").rows == 100


def test_a_get_that_fails_leaves_the_file_that_was_there(here: Run, client: Client, tmp_path: Path) -> None:
    """A file of the Arrow format can't replace a dictionary, so the second part fails after the first was written."""
    target = tmp_path / "a.arrow"
    target.write_text("precious")
    for word in "xy":
        client.put("store/d", pa.table({"w": pa.array([word]).dictionary_encode()}), mode="append")
    done = here("get", "store/d", "-o", str(target))
    assert (done.code, target.read_text(), [p.name for p in tmp_path.glob("*a.arrow*")]) == (
        app.USAGE, "precious", ["a.arrow"],
    )  # fmt: skip
    assert ".arrows" in done.err
    assert here("get", "store/d", "-o", str(tmp_path / "a.arrows")).code == 0


@pytest.mark.parametrize("format_", ["arrow", "arrows", "parquet", "csv", "json"])
def test_writing_holds_a_few_batches_at_a_time(format_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.cli import writing

    monkeypatch.setattr(writing, "_ROW_GROUP", 1 << 20)
    schema = pa.schema([("x", pa.string())])
    before = most = pa.total_allocated_bytes()

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(60):
            yield pa.record_batch([pa.array([f"{number} {row:>250}" for row in range(1_000)])], schema=schema)
            most = max(most, pa.total_allocated_bytes())

    with (tmp_path / "out").open("wb") as sink:
        writing.write(format_, sink, schema, batches())
    assert most - before < 4 << 20, "of 15 MB in all"


def test_a_parquet_file_is_read_in_pieces(tmp_path: Path) -> None:
    from penstock.cli.reading import Files

    pq.write_table(pa.table({"x": range(300_000)}), tmp_path / "a.parquet")
    files = Files([str(tmp_path / "a.parquet")])
    begun = iter(files)
    assert next(begun).num_rows < 100_000
    assert 0 < files.done < (files.total or 0) / 2
    assert sum(batch.num_rows for batch in begun) < 300_000
    assert files.done == files.total


# --- the preview ---------------------------------------------------------------------------


def test_on_a_terminal_get_shows_20_rows_and_says_how_many_there_are(here: Run, trips: str) -> None:
    shown = here("get", trips, terminal=True)
    heads, types, *rows = shown.text.splitlines()
    assert heads.split() == ["id", "at", "to", "fare"]
    assert types.split() == ["int64", "timestamp[us,", "t…", "string", "double"]
    assert [row.split()[0] for row in rows] == [str(n) for n in range(20)]
    assert rows[1].split() == ["1", "2026-06-01", "12:00:01Z", "zone", "1", "0.25"]
    assert "null" in rows[0]
    assert "20 of 100 rows" in shown.err
    assert "-o FILE" in shown.err


def test_a_preview_is_as_long_as_it_is_told(here: Run, trips: str) -> None:
    shown = here("get", trips, "-n", "33", terminal=True)
    assert len(shown.text.splitlines()) == 2 + 33
    assert shown.err.strip() == "33 of 100 rows"


def test_a_preview_of_nothing_shows_the_heads(here: Run, client: Client) -> None:
    client.put("store/empty", TRIP_TABLE.slice(0, 0))
    shown = here("get", "store/empty", terminal=True)
    assert (shown.text.split()[:4], shown.err.strip()) == (["id", "at", "to", "fare"], "0 of 0 rows")


def test_a_preview_of_many_small_batches_is_one_table(here: Run, client: Client) -> None:
    client.put(
        "store/small",
        (batch for _ in range(9) for batch in TRIP_TABLE.slice(0, 1).to_batches()),
        schema=TRIP_TABLE.schema,
    )
    assert len(here("get", "store/small", terminal=True).text.splitlines()) == 2 + 9


def test_a_long_preview_comes_in_tables_of_1000_rows(here: Run, client: Client) -> None:
    client.put("store/long", pa.table({"x": range(2_500)}))
    lines = here("get", "store/long", "-n", "2500", terminal=True).text.splitlines()
    assert [at for at, line in enumerate(lines) if line.strip() == "x"] == [0, 1_003, 2_006]
    assert [int(line) for line in lines if line.strip().isdigit()] == list(range(2_500))


def test_a_wide_table_is_cut_and_says_what_is_hidden(here: Run, client: Client) -> None:
    wide = pa.table({"words": ["many words " * 30], **{f"number_{n}": [1.25] for n in range(20)}})
    client.put("store/wide", wide)
    shown = here("get", "store/wide", terminal=True)
    assert max(len(line) for line in shown.text.splitlines()) <= 100
    assert "many words many…" in shown.text or "…" in shown.text.splitlines()[2]
    visible = shown.text.split()[0 : shown.text.split().index("string")]
    hidden = re.search(r"no room for (\d+) more columns: (.*); -c", shown.err)
    assert hidden
    assert visible + hidden[2].split(", ") == wide.column_names
    assert int(hidden[1]) == len(wide.column_names) - len(visible)


def test_a_terminal_is_not_sent_what_it_would_obey(here: Run, client: Client) -> None:
    client.put("store/evil", pa.table({"a\x1b[2J": ["\x1b]0;title\x07 and\nmore"]}))
    for command in (("get", "store/evil"), ("show", "store/evil")):
        shown = here(*command, terminal=True)
        assert "\x1b]" not in shown.text
        assert "\x1b[2J" not in shown.text
        assert "\x07" not in shown.text
    assert r"\x1b]0;title\x07 and\nmore" in here("get", "store/evil", terminal=True).text


def test_bytes_are_kept_from_the_terminal(here: Run, trips: str) -> None:
    done = here("get", trips, "-o", "-", "--format", "parquet", terminal=True)
    assert (done.code, done.out) == (app.USAGE, b"")


def test_a_filter_chooses_rows_at_the_server(here: Run, trips: str) -> None:
    shown = here("get", trips, "--filter", "id >= 97", terminal=True)
    assert [row.split()[0] for row in shown.text.splitlines()[2:]] == ["97", "98", "99"]
    assert shown.err.strip() == "3 of 100 rows"
    assert here("get", trips, "--filter", "id in (3, 5)", "-c", "id", "--format", "csv").text.split() == [
        '"id"',
        "3",
        "5",
    ]
