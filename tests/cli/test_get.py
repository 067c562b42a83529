"""`get`: rows and columns that are wanted, into a pipe, a file, or a preview that fits the terminal."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.cli import app
from penstock.client.client import Client
from tests.kit.cli import TRIPS, Run


def test_into_a_pipe_go_all_rows_as_json(here: Run, trips: str) -> None:
    assert [row["id"] for row in here("get", trips).json] == list(range(100))


def test_one_format_is_the_default_with_and_without_f(here: Run, ten: str) -> None:
    """And `put` takes it, for a topic too."""
    rows = here("get", ten, "-n", "3")
    assert (
        here("get", "-f", ten, "--start", "earliest", "-n", "3").out == rows.out == here("get", ten, "-n3", "-o-").out
    )
    assert here("put", "topic/again", "-", stdin=rows.out).code == 0
    assert here("get", "topic/again").out == rows.out


def test_other_readers_take_the_csv(here: Run, client: Client) -> None:
    client.put("store/a", pa.table({"n": [1, None], "said": ['a "word", with\na line', ""], "yes": [True, None]}))
    text = here("get", "store/a", "-o", "-", "--format", "csv").text
    heads, *rows = csv.reader(io.StringIO(text, newline=""))
    assert (heads, rows) == (["n", "said", "yes"], [["1", 'a "word", with\na line', "true"], ["", "", ""]])


def test_rows_and_columns_are_chosen(here: Run, trips: str, tmp_path: Path) -> None:
    assert here("get", trips, "-n", "2", "-c", "fare,id").text == '{"fare": 0.0, "id": 0}\n{"fare": 0.25, "id": 1}\n'
    assert here("get", trips, "-n", "0", "-c", "id").text == ""
    assert here("get", trips, "-n", "0", "-c", "id", "--format", "csv").text == '"id"\n'
    assert here("get", trips, "-n", "3", "-c", "to, id", "-o", str(tmp_path / "a.parquet")).code == 0
    assert pq.read_table(tmp_path / "a.parquet").equals(TRIPS.select(["to", "id"]).slice(0, 3))


def test_a_filter_chooses_rows_at_the_server(here: Run, trips: str) -> None:
    shown = here("get", trips, "--filter", "id >= 97", terminal=True)
    assert [row.split()[0] for row in shown.text.splitlines()[2:]] == ["97", "98", "99"]
    assert shown.err.strip() == "3 of 100 rows"
    done = here("get", trips, "--filter", "id in (3, 5)", "-c", "id", "--format", "csv")
    assert done.text.split() == ['"id"', "3", "5"]


def test_bytes_are_kept_from_the_terminal(here: Run, trips: str) -> None:
    done = here("get", trips, "-o", "-", "--format", "parquet", terminal=True)
    assert (done.code, done.out) == (app.USAGE, b"")


# --- the preview ----------------------------------------------------------------------------


def test_a_preview_has_20_rows_and_their_number(here: Run, trips: str) -> None:
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
    client.put("store/empty", TRIPS.slice(0, 0))
    shown = here("get", "store/empty", terminal=True)
    assert (shown.text.split()[:4], shown.err.strip()) == (["id", "at", "to", "fare"], "0 of 0 rows")


def test_a_preview_of_small_batches_is_one_table(here: Run, client: Client) -> None:
    batches = (batch for _ in range(9) for batch in TRIPS.slice(0, 1).to_batches())
    client.put("store/small", batches, schema=TRIPS.schema)
    assert len(here("get", "store/small", terminal=True).text.splitlines()) == 2 + 9


def test_a_long_preview_comes_in_tables_of_1000_rows(here: Run, client: Client) -> None:
    client.put("store/long", pa.table({"x": range(2_500)}))
    lines = here("get", "store/long", "-n", "2500", terminal=True).text.splitlines()
    assert [at for at, line in enumerate(lines) if line.strip() == "x"] == [0, 1_003, 2_006]
    assert [int(line) for line in lines if line.strip().isdigit()] == list(range(2_500))


def test_a_wide_preview_says_what_is_hidden(here: Run, client: Client) -> None:
    wide = pa.table({"words": ["many words " * 30], **{f"number_{n}": [1.25] for n in range(20)}})
    client.put("store/wide", wide)
    shown = here("get", "store/wide", terminal=True)
    assert max(len(line) for line in shown.text.splitlines()) <= 100
    assert "…" in shown.text.splitlines()[2]
    visible = shown.text.split()[0 : shown.text.split().index("string")]
    hidden = re.search(r"no room for (\d+) more columns: (.*); -c", shown.err)
    assert hidden
    assert visible + hidden[2].split(", ") == wide.column_names
    assert int(hidden[1]) == len(wide.column_names) - len(visible)


def test_a_terminal_is_sent_nothing_that_it_obeys(here: Run, client: Client) -> None:
    client.put("store/evil", pa.table({"a\x1b[2J": ["\x1b]0;title\x07 and\nmore"]}))
    for command in (("get", "store/evil"), ("show", "store/evil")):
        text = here(*command, terminal=True).text
        assert not any(sign in text for sign in ("\x1b]", "\x1b[2J", "\x07"))
    assert r"\x1b]0;title\x07 and\nmore" in here("get", "store/evil", terminal=True).text
