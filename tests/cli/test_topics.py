"""Topics on the command line: text in the topic's own types, ranges, following, and what `show` says."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from datetime import time as datetime_time
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli import app, look, publish
from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from tests.kit.cli import COMMAND, ROOT, TRIP_TABLE, WRITERS, Run, environment
from tests.kit.server import process_server

LIMIT = 30.0
Plan = Callable[[Callable[[], object]], None]
ORDERS = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
        ("total", pa.decimal128(10, 2)),
        ("city", pa.string()),
    ]
)


def create(client: Client, schema: pa.Schema, path: str = "topic/x", **options: Any) -> None:
    client.create_topic(path, schema, **options)


def file_of(folder: Path, *text: str, name: str = "a.jsonl") -> str:
    (folder / name).write_text("".join(f"{line}\n" for line in text))
    return str(folder / name)


def wait(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} didn't come to be in {LIMIT:g} s")


# --- put: files ------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", list(WRITERS))
def test_a_file_of_every_format_makes_a_topic_and_is_appended_to_it(
    here: Run, client: Client, tmp_path: Path, extension: str
) -> None:
    WRITERS[extension](TRIP_TABLE, str(tmp_path / f"a{extension}"))
    for _ in range(2):
        done = here("put", "topic/x", str(tmp_path / f"a{extension}"))
        assert (done.code, done.err) == (0, "")
        assert re.fullmatch(r"topic/x: 100 rows, [\d.]+ k?B in [\d.]+ s \(.*B/s\)\n", done.text)
    assert client.get("topic/x").read_all().equals(pa.concat_tables([TRIP_TABLE, TRIP_TABLE]).combine_chunks())


def test_json_is_read_as_the_topics_types_whatever_its_own_would_be(here: Run, client: Client, tmp_path: Path) -> None:
    create(client, ORDERS)
    file = file_of(
        tmp_path,
        '{"id": 1, "at": "2026-11-18T20:00:00.5Z", "total": 12.10, "city": "0017"}',
        '{"city": "2026-11-18", "total": "3.5", "at": "2026-11-18 21:00:00+01:00", "id": 2.0}',
        "",
        '{"total": 7, "id": "3", "at": null}',
    )
    assert here("put", "topic/x", file).code == 0
    found = client.get("topic/x").read_all()
    assert found.schema == ORDERS
    day = datetime(2026, 11, 18, 20, tzinfo=UTC)
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (1, day + timedelta(seconds=0.5), Decimal("12.10"), "0017"),
        (2, day, Decimal("3.50"), "2026-11-18"),
        (3, None, Decimal("7.00"), None),
    ]


def test_csv_is_read_as_the_topics_types_whatever_its_own_would_be(here: Run, client: Client, tmp_path: Path) -> None:
    create(client, ORDERS)
    file = file_of(tmp_path, "city,id,total", "0017,1,12.10", "true, 2 ,3", '"",3,', name="a.csv")
    assert here("put", "topic/x", file).code == 0
    assert [tuple(row.values()) for row in client.get("topic/x").read_all().to_pylist()] == [
        (1, None, Decimal("12.10"), "0017"),
        (2, None, Decimal("3.00"), "true"),
        (3, None, None, ""),
    ]


VALUES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int8(), -128, -128),
    (pa.uint64(), 2**64 - 1, 2**64 - 1),
    (pa.float32(), 0.5, 0.5),
    (pa.float64(), 3, 3.0),
    (pa.bool_(), True, True),
    (pa.string(), 5, "5"),
    (pa.large_string(), "ä", "ä"),
    (pa.decimal128(38, 10), "12345678901234567890123456.0000000001", Decimal("12345678901234567890123456.0000000001")),
    (pa.date32(), "2026-11-18", date(2026, 11, 18)),
    (pa.timestamp("ms"), "2026-11-18T20:00:00.123", datetime.fromisoformat("2026-11-18T20:00:00.123")),
    (pa.timestamp("us", "Europe/Oslo"), "2026-11-18T20:00:00Z", datetime(2026, 11, 18, 20, tzinfo=UTC)),
    (pa.time64("us"), "20:00:01.5", datetime_time(20, 0, 1, 500000)),
    (pa.binary(), "/wA=", b"\xff\x00"),
    (pa.dictionary(pa.int32(), pa.string()), "word", "word"),
    (pa.list_(pa.int8()), [1, None], [1, None]),
    (
        pa.struct([("day", pa.date32()), ("n", pa.int8())]),
        {"day": "2026-11-18"},
        {"day": date(2026, 11, 18), "n": None},
    ),
    (pa.map_(pa.string(), pa.float64()), {"a": 1}, [("a", 1.0)]),
    (pa.map_(pa.string(), pa.float64()), [["a", 1.5]], [("a", 1.5)]),
]


@pytest.mark.parametrize(("kind", "said", "found"), VALUES, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("format_", ["json", "csv"])
def test_each_type_takes_what_loses_nothing(
    here: Run, client: Client, tmp_path: Path, format_: str, kind: pa.DataType, said: Any, found: Any
) -> None:
    schema = pa.schema([("n", pa.int64()), ("x", kind)])
    client.put("topic/x", pa.table({"n": [], "x": []}, schema))
    if format_ == "json":
        file = file_of(tmp_path, json.dumps({"x": said}), "{}")
    else:
        cell = said if isinstance(said, str) else json.dumps(said)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([["x", "n"], [cell, ""], ["", "1"]])
        file = file_of(tmp_path, text.getvalue().rstrip("\n"), name="a.csv")
    done = here("put", "topic/x", file)
    assert (done.code, done.err) == (0, "")
    assert client.get("topic/x").read_all()["x"].to_pylist() == [found, None]


UNFIT: list[tuple[pa.DataType, Any, str]] = [
    (pa.int32(), 3_000_000_000, "int32"),
    (pa.int32(), 1.5, "it has a fraction"),
    (pa.uint8(), -1, "uint8"),
    (pa.int32(), "one", "int32"),
    (pa.int32(), True, "int32"),
    (pa.bool_(), 1, "bool"),
    (pa.decimal128(10, 2), "12.345", r"decimal128\(10, 2\)"),
    (pa.decimal128(4, 2), 123.45, r"decimal128\(4, 2\)"),
    (pa.float32(), 1e39, "too large"),
    (pa.date32(), "2026-13-01", "date32"),
    (pa.timestamp("us", "UTC"), "2026-11-18T20:00:00", "time with its zone"),
    (pa.timestamp("us"), "2026-11-18T20:00:00Z", "time without a zone"),
    (pa.timestamp("s"), "2026-11-18T20:00:00.5", r"timestamp\[s\]"),
    (pa.timestamp("us", "UTC"), 1_795_000_000, "without its unit"),
    (pa.binary(), "?", "base64"),
    (pa.list_(pa.int8()), [1, 300], "list<item: int8>"),
    (pa.struct([("n", pa.int8())]), {"m": 1}, "no field 'm'"),
    (pa.string(), {"a": 1}, "string"),
]


@pytest.mark.parametrize(("kind", "said", "why"), UNFIT, ids=lambda value: str(value)[:40])
def test_a_value_that_would_lose_something_is_named_with_row_and_column_and_nothing_is_put(
    here: Run, client: Client, tmp_path: Path, kind: pa.DataType, said: Any, why: str
) -> None:
    client.put("topic/x", pa.table({"n": [], "x": []}, pa.schema([("n", pa.int64()), ("x", kind)])))
    good = [f'{{"n": {n}}}' for n in range(37)]
    done = here("put", "topic/x", file_of(tmp_path, *good, json.dumps({"x": said}), *good, json.dumps({"x": said})))
    assert (done.code, done.out, client.info("topic/x").rows) == (app.CONFLICT, b"", 0)
    assert re.search(rf"a\.jsonl: line 38: x of topic/x is .*, got '.*{why}|{why}.*, got '", done.err), done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "line",
    [
        '{"n": 1} {"n": 2}',
        '{"n": 1, "n": 2}',
        '{"f": NaN}',
        '{"f": 1e400}',
        '{"n": 1',
        "[]",
        "7",
        '{"n": 01}',
        '{"s": "\\ud800"}',
    ],
)
def test_a_line_that_is_no_object_of_json_is_named(here: Run, client: Client, tmp_path: Path, line: str) -> None:
    """Arrow's own reader lets some of these pass, and would read the wrong number of rows."""
    plain = pa.schema([("n", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
    client.put("topic/x", pa.table({"n": [], "f": [], "s": []}, plain))
    done = here("put", "topic/x", file_of(tmp_path, '{"n": 1}', "", line))
    assert done.code in (app.USAGE, app.CONFLICT)
    assert ("a.jsonl: line 3" in done.err, client.info("topic/x").rows) == (True, 0)


NO_UTF8 = [
    (b'{"n": 1, "s": "caf\xe9"}', r"s isn't text in UTF-8, got 'caf\\udce9'"),
    (b'{"n": 1, "s": "\xed\xa0\x80"}', r"s isn't text in UTF-8"),
    (b'{"n": 1, "s": "\\ud800"}', r"s isn't text in UTF-8, got '\\ud800'"),
    (b'{"n": 1, "s": 7, "d": "\xff"}', r"d isn't text in UTF-8"),
    (b'{"n": 1, "s": 7, "new": "\xff"}', r"new isn't text in UTF-8"),
    (b'{"n": 1, "caf\xe9": 7}', r"caf\\udce9 isn't text in UTF-8, got '7'"),
]


@pytest.mark.parametrize(("line", "said"), NO_UTF8, ids=ascii)
@pytest.mark.parametrize("exact", [False, True], ids=["plain", "exact"])
def test_text_that_is_not_utf8_is_named_by_line_and_column_and_the_rows_before_it_are_put(
    here: Run, client: Client, tmp_path: Path, line: bytes, said: str, exact: bool
) -> None:
    """Arrow's own reader takes any bytes for text, and the server would refuse the batch."""
    columns = [("n", pa.int64()), ("s", pa.string())] + [("d", pa.date32())] * exact
    good = [b'{"n": 1, "s": "\xc3\xa9\\u00e9"}'] * 37
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*good, line, *good]))
    create(client, pa.schema(columns))
    done = here("put", "topic/x", str(tmp_path / "a.jsonl"))
    assert (done.code, client.info("topic/x").rows) == (app.USAGE, 0)
    assert re.search(rf"a\.jsonl: line 38: {said}", done.err), done.err
    done = here("put", "topic/x", "-", stdin=b"\n".join([*good, line, *good]))
    assert done.code == app.USAGE
    assert re.search(rf"stdin: line 38: {said}.* 37 rows are in topic/x", done.err), done.err
    assert client.get("topic/x").read_all()["s"].to_pylist() == ["éé"] * 37


@pytest.mark.parametrize(("line", "said"), NO_UTF8, ids=ascii)
def test_text_that_is_not_utf8_makes_no_topic_but_of_the_lines_before_it(
    here: Run, client: Client, line: bytes, said: str
) -> None:
    done = here("put", "topic/x", "-", stdin=b'{"n": 1, "s": "a"}\n' + line)
    assert done.code == app.USAGE
    assert re.search(rf"stdin: line 2: {said}.* 1 rows are in topic/x", done.err), done.err
    assert client.get("topic/x").read_all().to_pydict() == {"n": [1], "s": ["a"]}


@pytest.mark.parametrize("path", ["topic/x", "store/x"])
def test_a_file_with_text_that_is_not_utf8_makes_nothing_and_its_row_is_named(
    here: Run, client: Client, tmp_path: Path, path: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1, "s": "a"}\n' * 5 + b'{"n": 1, "s": "caf\xe9"}\n')
    done = here("put", path, str(tmp_path / "a.jsonl"))
    assert (done.code, "a.jsonl: row 6: 's' isn't text in UTF-8" in done.err) == (app.USAGE, True), done.err
    (tmp_path / "a.jsonl").write_bytes(b'{"n\xe9": 1}\n')
    done = here("put", path, str(tmp_path / "a.jsonl"))
    assert (done.code, "a.jsonl can't be read: 'utf-8'" in done.err) == (app.USAGE, True), done.err
    assert len(client.list("topic/")) == len(client.list("store/")) == 0


def test_a_value_of_csv_is_named_by_its_row(here: Run, client: Client, tmp_path: Path) -> None:
    create(client, ORDERS)
    done = here("put", "topic/x", file_of(tmp_path, "id,total", "1,2", "2,2.555", "3,x", name="a.csv"))
    assert (done.code, client.info("topic/x").rows) == (app.CONFLICT, 0)
    assert "a.csv: row 2: total of topic/x is decimal128(10, 2), got '2.555'" in done.err


@pytest.mark.parametrize("format_", ["json", "csv", "parquet"])
def test_a_column_that_may_not_be_null_is_missed_by_its_name(
    here: Run, client: Client, tmp_path: Path, format_: str
) -> None:
    create(client, ORDERS)
    if format_ == "parquet":
        pq.write_table(pa.table({"city": ["a"]}), tmp_path / "a.parquet")
        file = str(tmp_path / "a.parquet")
    else:
        file = file_of(tmp_path, *(['{"city": "a"}'] if format_ == "json" else ["city", "a"]), name=f"a.{format_}")
    done = here("put", "topic/x", file)
    assert (done.code, client.info("topic/x").rows) == (app.CONFLICT, 0)
    assert "lacks the column 'id', which is never null in topic/x" in done.err


def test_a_parquet_file_has_its_columns_put_in_order_and_its_types_as_they_are(
    here: Run, client: Client, tmp_path: Path
) -> None:
    create(client, ORDERS)
    pq.write_table(pa.table({"city": ["a"], "id": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    assert here("put", "topic/x", str(tmp_path / "a.parquet")).code == 0
    assert client.get("topic/x").read_all().to_pylist() == [{"id": 1, "at": None, "total": None, "city": "a"}]
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), tmp_path / "b.parquet")
    done = here("put", "topic/x", str(tmp_path / "b.parquet"))
    assert (done.code, "id is int32, got int64" in done.err) == (app.CONFLICT, True)
    assert client.info("topic/x").rows == 1


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_a_new_column_is_added_and_null_in_older_rows(here: Run, client: Client, tmp_path: Path, format_: str) -> None:
    client.put("topic/x", pa.table({"id": [1]}))
    text = ['{"id": 2}', '{"weight": 1.5, "id": 3}'] if format_ == "json" else ["weight,id", ",2", "1.5,3"]
    assert here("put", "topic/x", file_of(tmp_path, *text, name=f"a.{format_}")).code == 0
    assert client.get("topic/x").read_all().to_pydict() == {"id": [1, 2, 3], "weight": [None, None, 1.5]}


@pytest.mark.parametrize(("name", "meant"), [("ID", "id"), ("cty", "city")])
@pytest.mark.parametrize("format_", ["json", "csv"])
def test_a_column_that_is_one_of_the_topics_misspelt_is_not_added(
    here: Run, client: Client, tmp_path: Path, format_: str, name: str, meant: str
) -> None:
    client.put("topic/x", pa.table({"id": [1], "city": ["a"]}))
    text = [json.dumps({name: "5"})] if format_ == "json" else [f"{name},", "5,"]
    done = here("put", "topic/x", file_of(tmp_path, *text, name=f"a.{format_}"))
    assert (done.code, client.info("topic/x").schema.names) == (app.CONFLICT, ["id", "city"])
    assert f"has a column '{name}', which topic/x lacks: did you mean '{meant}'?" in done.err


@pytest.mark.parametrize("extension", ["csv", "arrows"])
def test_a_column_that_is_there_twice_is_refused_and_not_read_as_null(
    here: Run, client: Client, tmp_path: Path, extension: str
) -> None:
    client.put("topic/x", pa.table({"id": [1], "city": ["a"]}))
    file = str(tmp_path / f"a.{extension}")
    if extension == "csv":
        file_of(tmp_path, "id,city,city", "2,b,c", name="a.csv")
    else:
        WRITERS[".arrows"](pa.table([[2], ["b"], ["c"]], names=["id", "city", "city"]), file)
    done = here("put", "topic/x", file)
    assert (done.code, client.info("topic/x").rows) == (app.USAGE, 1)
    assert "'city' is there more than once" in done.err


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_a_column_that_text_cannot_tell_may_be_null(here: Run, client: Client, tmp_path: Path, format_: str) -> None:
    client.put("topic/x", pa.table({"id": [1], "took": pa.array([5], pa.duration("s"))}))
    text = ['{"id": 2}', '{"took": null, "id": 3}'] if format_ == "json" else ["took,id", ",2", ",3"]
    assert here("put", "topic/x", file_of(tmp_path, *text, name=f"a.{format_}")).code == 0
    assert client.get("topic/x").read_all()["took"].to_pylist() == [timedelta(seconds=5), None, None]
    done = here("put", "topic/x", file_of(tmp_path, '{"id": 4}', '{"id": 5, "took": "7"}', name="b.json"))
    assert (done.code, "line 2: took of topic/x is duration[s], got '7'" in done.err) == (app.CONFLICT, True)


def test_a_topic_is_not_made_with_a_column_of_no_type(here: Run, client: Client, tmp_path: Path) -> None:
    for arguments in ((file_of(tmp_path, '{"id": 1, "city": null}'),), ("-",)):
        done = here("put", "topic/x", *arguments, stdin=b'{"id": 1, "city": null}\n')
        assert (done.code, len(client.list("topic/"))) == (app.USAGE, 0)
        assert "the type of 'city' isn't known" in done.err
        assert "a Parquet or Arrow file has types" in done.err


def test_several_files_are_one_write_and_a_run_happens_once(here: Run, client: Client, tmp_path: Path) -> None:
    create(client, ORDERS)
    files = [file_of(tmp_path, '{"id": 1}'), file_of(tmp_path, "total,id", "2.5,2", name="b.csv")]
    for _ in range(2):
        assert here("put", "topic/x", *files, "--run", "monday").code == 0
    assert client.get("topic/x").read_all()["id"].to_pylist() == [1, 2]
    bad = file_of(tmp_path, '{"id": "x"}', name="c.json")
    assert here("put", "topic/x", files[0], bad).code == app.CONFLICT
    assert client.info("topic/x").rows == 2


def test_a_long_file_is_the_same_by_the_fast_way_and_by_the_slow_one(
    here: Run, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain types are read by Arrow itself, piece by piece; one odd value takes its piece the other way."""
    monkeypatch.setattr("penstock.cli.reading._BLOCK", 1_000)
    client.put("topic/x", pa.table({"n": pa.array([], pa.int32()), "s": pa.array([], pa.string())}))
    text = [f'{{"s": "{n}", "n": {n}{".0" if n == 500 else ""}}}' for n in range(1_000)]
    assert here("put", "topic/x", file_of(tmp_path, *text)).code == 0
    assert client.get("topic/x").read_all().to_pydict() == {
        "n": list(range(1_000)), "s": [str(n) for n in range(1_000)],
    }  # fmt: skip


# --- put: lines from stdin ------------------------------------------------------------------


def test_lines_from_stdin_are_put_in_batches(here: Run, client: Client) -> None:
    create(client, ORDERS)
    text = "".join(f'{{"id": {n}, "total": {n}.25}}\n' for n in range(2_500)) + '{"id": 2500}'
    [done] = here("--json", "put", "topic/x", "-", stdin=text.encode()).json
    assert (done["rows"], done["puts"]) == (2_501, 3)
    found = client.get("topic/x").read_all()
    assert found["id"].to_pylist() == list(range(2_501))
    assert found["total"][7].as_py() == Decimal("7.25")


def test_the_first_lines_make_the_topic_that_the_others_are_fitted_to(here: Run, client: Client) -> None:
    text = "".join(f'{{"id": {n}, "city": "a"}}\n' for n in range(1_500)) + '{"city": "b", "id": "7"}\n'
    assert here("put", "topic/x", "-", stdin=text.encode()).code == 0
    assert client.info("topic/x").schema == pa.schema([("id", pa.int64()), ("city", pa.string())])
    assert client.get("topic/x").read_all()["id"].to_pylist() == [*range(1_500), 7]


def test_a_line_that_is_no_row_ends_it_behind_the_rows_before_it(here: Run, client: Client) -> None:
    create(client, ORDERS)
    good = [f'{{"id": {n}}}' for n in range(1_700)]
    for bad, said in (('{"id": "x"}', "id of topic/x is int32, got 'x'"), ("{", "isn't JSON"), ("5", "no object")):
        done = here("put", "topic/x", "-", stdin="\n".join([*good, bad, '{"id": 9}', bad]).encode())
        assert done.code in (app.CONFLICT, app.USAGE)
        assert re.match(rf"penstock: stdin: line 1701\W.*{said}.* 1,700 rows are in topic/x", done.err), done.err
        assert client.get("topic/x").read_all()["id"].to_pylist() == list(range(1_700))
        client.delete("topic/x")
        create(client, ORDERS)


def test_a_column_of_a_line_that_is_not_put_is_not_added(here: Run, client: Client) -> None:
    client.put("topic/x", pa.table({"id": [0]}))
    done = here("put", "topic/x", "-", stdin=b'{"id": 1}\n{"id": "x", "weight": 1}\n')
    assert (done.code, client.info("topic/x").schema.names) == (app.CONFLICT, ["id"])
    assert here("put", "topic/x", "-", stdin=b'{"id": 1}\n{"id": 2, "weight": 1}\n').code == 0
    assert client.get("topic/x").read_all().to_pydict() == {"id": [0, 1, 1, 2], "weight": [None, None, None, 1]}


def test_stdin_under_a_run_or_in_another_format_is_one_write(here: Run, client: Client) -> None:
    for _ in range(2):
        done = here("put", "topic/x", "-", "--run", "r", "--json", stdin=b'{"id": 1}\n{"id": 2}\n')
        assert "puts" not in done.json[0]
    for _ in range(2):
        assert here("put", "topic/x", "-", stdin=b"id\n3\n").code == 0
    assert client.get("topic/x").read_all()["id"].to_pylist() == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (("-",), b"", "stdin: it is empty"),
        (("-",), b'[{"id": 1}]', "expected an object per line"),
        (("-", "-"), b'{"id": 1}', "once"),
        (("{tmp}/empty.json",), b"", "empty.json: it is empty"),
        (("{tmp}/array.json",), b"", "expected an object per line"),
        (("{tmp}/a.jsonl", "--mode", "overwrite"), b"", "only grows"),
        (("-", "--mode", "overwrite"), b'{"id": 1}', "only grows"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_mistake_is_one_clear_line(
    here: Run, client: Client, tmp_path: Path, arguments: tuple[str, ...], stdin: bytes, said: str, exists: bool
) -> None:
    if exists:
        create(client, ORDERS)
    (tmp_path / "empty.json").touch()
    file_of(tmp_path, '[{"id": 1}]', name="array.json")
    file_of(tmp_path, '{"id": 1}')
    done = here("put", "topic/x", *(argument.format(tmp=tmp_path) for argument in arguments), stdin=stdin)
    assert (done.code, done.out, said in done.err) == (app.USAGE, b"", True), done.err
    assert sum(entry.rows for entry in client.list("topic/")) == 0


@pytest.mark.faults
@pytest.mark.process
def test_what_comes_slowly_is_there_before_stdin_ends(server: PenstockServer, client: Client) -> None:
    command = [*COMMAND, "--url", str(server.url), "put", "topic/x", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), cwd=ROOT)
    assert process.stdin is not None
    try:
        for number in range(3):
            process.stdin.write(f'{{"id": {number}}}\n{{"half": '.encode())
            process.stdin.flush()
            wait(lambda: [e.rows for e in client.list("topic/")] == [number * 2 + 1], f"row {number}")  # noqa: B023
            process.stdin.write(b'"line"}\n')
            process.stdin.flush()
            wait(lambda: [e.rows for e in client.list("topic/")] == [number * 2 + 2], f"row {number}")  # noqa: B023
        out, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out.startswith(b"topic/x: 6 rows")) == (0, True)


@pytest.mark.process
def test_ctrl_c_says_how_many_rows_are_in_and_those_are(server: PenstockServer, client: Client) -> None:
    command = [*COMMAND, "--url", str(server.url), "put", "topic/x", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=ROOT)
    assert process.stdin is not None
    try:
        process.stdin.write(b'{"id": 1}\n{"id": 2}\n')
        process.stdin.flush()
        wait(lambda: [e.rows for e in client.list("topic/")] == [2], "two rows")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err.decode().strip()) == (app.INTERRUPTED, "topic/x: 2 rows are in")


@pytest.mark.parametrize(("times", "said"), [(1, "2 rows are in"), (2, "0 rows are in, and maybe those of a put")])
def test_ctrl_c_in_the_middle_of_a_put_waits_for_its_answer_once(
    here: Run, client: Client, monkeypatch: pytest.MonkeyPatch, times: int, said: str
) -> None:
    honest = Client.put

    def interrupted(*arguments: Any, **options: Any) -> Any:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return honest(*arguments, **options)

    monkeypatch.setattr(Client, "put", interrupted)
    done = here("put", "topic/x", "-", stdin=b'{"id": 1}\n{"id": 2}\n')
    assert (done.code, done.err.strip().startswith(f"topic/x: {said}")) == (app.INTERRUPTED, True), done.err
    assert [entry.rows for entry in client.list("topic/")] == ([2] if times == 1 else [])
    assert signal.getsignal(signal.SIGINT) is not None


def test_a_line_without_end_is_refused(here: Run, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_LONGEST", 100)
    monkeypatch.setattr(publish, "_CHUNK", 60)
    done = here("put", "topic/x", "-", stdin=b'{"id": 1}\n{"id": "' + b"x" * 500)
    assert (done.code, "line 2 has more than" in done.err) == (app.USAGE, True)


def test_a_terminal_sees_how_much_is_durable(here: Run, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.publish._EVERY", 0.0)
    done = here("put", "topic/x", "-", stdin=b'{"id": 1}\n' * 2_500, terminal=True)
    assert re.findall(r"topic/x: ([\d,]+) rows, [\d.]+ kB durable, [\d,]+ rows/s", done.err) == [
        "1,000", "2,000", "2,500",
    ]  # fmt: skip


# --- ls, show, rm ----------------------------------------------------------------------------


def test_ls_shows_datasets_and_topics(here: Run, client: Client) -> None:
    client.put("topic/a", TRIP_TABLE)
    client.put("store/z", TRIP_TABLE)
    create(client, ORDERS, "topic/k", key="city", shards=3)
    assert [line["path"] for line in here("ls", "--json").json] == ["store/z", "topic/a", "topic/k"]
    assert [line.split()[0] for line in here("ls").text.splitlines()[1:]] == ["store/z", "topic/a", "topic/k"]
    assert [line.split()[0] for line in here("ls", "topic/").text.splitlines()[1:]] == ["topic/a", "topic/k"]
    assert here("ls", "topic/k").text.splitlines()[1].endswith("3 shards by city")
    assert here("ls", "store/").text.count("\n") == 2


def test_show_tells_all_of_a_topic(here: Run, client: Client) -> None:
    create(client, ORDERS, key="city", shards=2, keep_seconds=7200, keep_bytes=5_000_000)
    client.put("topic/x", pa.table({"id": [1, 2, 3], "city": ["a", "a", "a"]}, schema=pa.schema(
        [pa.field("id", pa.int32(), nullable=False), ("city", pa.string())])))  # fmt: skip
    shown = here("show", "topic/x").text
    facts = {line.split()[0]: " ".join(line.split()[1:]) for line in shown.splitlines() if line.startswith("  ")}
    assert shown.startswith("topic/x\n")
    assert (facts["rows"], facts["key"], facts["kept"]) == ("3", "city", "2 h, 5.0 MB at most")
    assert re.fullmatch(r"[0-9a-f]{32}, epoch 0", facts["journal"])
    assert (facts["id"], facts["city"]) == ("int32 not null", "string")
    places = re.search(r"  2 shards\n +shard +first +next +rows\n( +\d.*\n)( +\d.*\n)", shown)
    assert places
    assert sorted(tuple(map(int, line.split()[1:])) for line in places.groups()) == [(0, 0, 0), (0, 3, 3)]
    assert here("show", "topic/x", "--json").json[0]["shards"] == client.call("describe", {"path": "topic/x"})["shards"]


def test_show_of_a_topic_that_keeps_no_number_of_bytes(here: Run, client: Client) -> None:
    client.put("topic/x", TRIP_TABLE)
    assert re.search(r"^  kept +24 h$", here("show", "topic/x").text, re.MULTILINE)


def test_show_lists_consumers_with_their_lag_the_last_one_first(capsys: pytest.CaptureFixture[str]) -> None:
    lag = {"lag_rows": 12_345, "lag_bytes": 2_000_000, "lag_seconds": 600.0}
    near = {"consumer": "near", "lag_rows": 0, "lag_bytes": 0, "lag_seconds": 0.0, "seen": time.time(), "state": "live"}
    look._show_consumers([near, {"consumer": "far\x1b[2J", **lag, "seen": time.time() - 7200, "state": "expired"}])
    title, heads, far, last = capsys.readouterr().out.splitlines()
    assert title == "  2 consumers"
    assert heads.split() == ["consumer", "behind", "size", "oldest", "seen"]
    assert re.fullmatch(r" +far\\x1b\[2J +12,345 +2\.0 MB +10 min +2 h ago +expired", far)
    assert re.fullmatch(r" +near +0 +0 B +0 s ago +live", last)
    look._show_consumers(None)
    assert capsys.readouterr().out == ""


def test_show_tells_how_far_a_consumer_is_behind(here: Run, client: Client) -> None:
    client.put("topic/x", TRIP_TABLE)
    journal = client.call("describe", {"path": "topic/x"})["journal"]
    reader = {"path": "topic/x", "journal": journal, "consumer": "reader-of-orders", "session": "one"}
    client.call("consumer.attach", {**reader, "initial": {"0": 0}})
    assert re.search(
        r"1 consumer\n.*\n +reader-of-orders +100 +[\d.]+ kB +\d+ s +\d+ s ago ", here("show", "topic/x").text
    )
    client.call("consumer.commit", {**reader, "position": {"0": 100}})
    assert re.search(r"1 consumer\n.*\n +reader-of-orders +0 +0 B +\d+ s ago ", here("show", "topic/x").text)


def test_show_describes_the_folder_of_all_topics(here: Run, client: Client) -> None:
    client.put("topic/a/b", TRIP_TABLE)
    for path in ("topic", "topic/", "topic/a"):
        assert re.search(r"^topic/(a/)?\n +topics +1\n +rows +100\n", here("show", path).text)


def test_rm_deletes_a_topic_and_folders_of_them_only_with_r(here: Run, client: Client) -> None:
    for path in ("topic/x", "topic/f/a", "topic/f/b"):
        client.put(path, TRIP_TABLE)
    assert here("rm", "topic/x").text.startswith("deleted topic/x: 100 rows, ")
    refused = here("rm", "topic/f")
    assert (refused.code, "topic/f/ is a folder with 2 topics" in refused.err) == (app.USAGE, True)
    assert here("rm", "-r", "topic/f").code == 0
    assert len(client.list("topic/")) == 0


def test_a_topic_that_is_not_there_is_not_found(here: Run) -> None:
    for arguments in (("get", "topic/n"), ("show", "topic/n"), ("rm", "topic/n"), ("get", "-f", "topic/n")):
        done = here(*arguments)
        assert (done.code, done.out) == (app.NOT_FOUND, b"")
        assert "topic/n" in done.err


# --- get: ranges -----------------------------------------------------------------------------


@pytest.fixture
def ten(client: Client) -> str:
    """A topic of ten rows, put one by one."""
    for number in range(10):
        client.put("topic/x", pa.table({"id": [number]}))
    return "topic/x"


def got(done: Any) -> list[int]:
    assert (done.code, done.err) == (0, "")
    return [int(line.split(",")[0]) for line in done.text.splitlines()[1:]]


def test_ranges_are_said_by_offsets(here: Run, ten: str) -> None:
    assert got(here("get", ten, "-n", "4")) == [0, 1, 2, 3]
    assert got(here("get", ten, "--start", "0:7")) == [7, 8, 9]
    assert got(here("get", ten, "--start", "0:2", "--end", "0:5")) == [2, 3, 4]
    assert got(here("get", ten, "--start", "0:2", "-n", "2")) == [2, 3]
    assert got(here("get", ten, "--start", "earliest", "--end", "0:2")) == [0, 1]
    assert got(here("get", ten, "--end", "latest")) == list(range(10))
    assert got(here("get", ten, "--end", "earliest")) == got(here("get", ten, "--start", "latest")) == []


def test_a_shard_that_is_not_named_is_read_whole(here: Run, client: Client) -> None:
    create(client, pa.schema([("id", pa.int64())]), key="id", shards=2)
    client.put("topic/x", pa.table({"id": range(40)}))
    found = client.get("topic/x", columns=["id", "_shard", "_offset"]).read_all().to_pylist()
    from_1 = [row["id"] for row in found if row["_shard"] == 1 or row["_offset"] >= 3]
    below_3 = [row["id"] for row in found if row["_shard"] == 1 or row["_offset"] < 3]
    assert got(here("get", "topic/x", "--start", "0:3")) == from_1
    assert got(here("get", "topic/x", "--end", "0:3")) == below_3
    assert len(from_1) < 40 > len(below_3)


def test_ranges_are_said_by_times(here: Run, client: Client, ten: str) -> None:
    times = client.get(ten, columns=["_time"]).read_all()["_time"].to_pylist()
    middle = (times[6] - timedelta(microseconds=1)).isoformat()
    assert got(here("get", ten, "--since", middle)) == [6, 7, 8, 9]
    assert got(here("get", ten, "--start", middle)) == [6, 7, 8, 9]
    assert got(here("get", ten, "--end", middle)) == [0, 1, 2, 3, 4, 5]
    assert got(here("get", ten, "--start", middle, "--end", "0:8")) == [6, 7]
    local = (times[6] - timedelta(microseconds=1)).astimezone().replace(tzinfo=None).isoformat()
    assert got(here("get", ten, "--since", local)) == [6, 7, 8, 9]
    for ago in ("1h", "10m", "90min", "3600s", "2d"):
        assert got(here("get", ten, "--since", ago)) == list(range(10))
        assert got(here("get", ten, "--end", ago)) == []


def test_columns_of_the_servers_are_there_for_who_names_them(here: Run, ten: str, tmp_path: Path) -> None:
    heads, *rows = here("get", ten, "-c", "_offset,id,_shard,_time").text.splitlines()
    assert heads == '"_offset","id","_shard","_time"'
    assert [row.split(",")[:3] for row in rows] == [[str(n), str(n), "0"] for n in range(10)]
    assert here("get", ten, "-o", str(tmp_path / "a.parquet"), "--start", "0:8").code == 0
    assert pq.read_table(tmp_path / "a.parquet").to_pydict() == {"id": [8, 9]}


def test_a_preview_counts_the_range(here: Run, ten: str) -> None:
    shown = here("get", ten, "--start", "0:4", terminal=True)
    assert [line.strip() for line in shown.text.splitlines()[2:]] == [str(n) for n in range(4, 10)]
    assert shown.err.strip() == "6 of 6 rows"
    assert here("get", ten, "-n", "2", terminal=True).err.strip() == "2 of 10 rows"


PLACES = [
    (("--start", "5"), "0:5"),
    (("--start", "yesterday"), "earliest, latest, a time"),
    (("--start", "0:1,0:2"), "twice"),
    (("--start", "0:1,x"), "0:500,1:70"),
    (("--since", "earliest"), "10m"),
    (("--since", "0:5"), "10m"),
    (("--start", "0:1", "--since", "1h"), "give one"),
    (("--start", "0:11"), "0 to 10 are left"),
    (("--start", "7:1"), "shards 0 to 0"),
    (("--end", "later"), "--end 'later'"),
    (("--strat", "0:1"), "--start"),
    (("-f", "--end", "0:3"), "-f has no --end"),
]


@pytest.mark.parametrize(("arguments", "said"), PLACES, ids=str)
def test_a_place_that_is_none_is_one_clear_line(here: Run, ten: str, arguments: tuple[str, ...], said: str) -> None:
    done = here("get", ten, *arguments)
    assert (done.code, done.out, said in done.err) == (app.USAGE, b"", True), done.err


@pytest.mark.parametrize("arguments", [("--start", "latest"), ("--since", "1h"), ("--end", "0:1"), ("-f",)])
def test_a_dataset_has_no_places(here: Run, trips: str, arguments: tuple[str, ...]) -> None:
    done = here("get", trips, *arguments)
    assert (done.code, "for topic/…" in done.err) == (app.USAGE, True)


# --- get -f ----------------------------------------------------------------------------------


def test_follow_ends_after_n_rows_and_begins_where_it_is_told(here: Run, ten: str) -> None:
    assert [row["id"] for row in here("get", "-f", ten, "-n", "10", "--start", "earliest").json] == list(range(10))
    assert [row["id"] for row in here("get", "-f", ten, "-n", "2", "--start", "0:7").json] == [7, 8]
    assert here("get", "-f", ten, "-n", "0").out == b""
    assert [row["_offset"] for row in here("get", "-f", ten, "-n", "3", "--since", "1h", "-c", "_offset").json] == [
        0, 1, 2,
    ]  # fmt: skip
    found = here("get", "-f", ten, "-n", "2", "--start", "earliest", "--filter", "id > 6", "--format", "csv")
    assert found.text.split() == ['"id"', "7", "8"]


@pytest.fixture
def once_followed(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Do it as soon as the command line follows, from another thread."""

    def plan(do: Callable[[], object]) -> None:
        follow, waiting = Client.follow, [do]

        def followed(self: Client, *given: Any, **options: Any) -> Any:
            follower = follow(self, *given, **options)
            if waiting:
                threading.Thread(target=waiting.pop()).start()
            return follower

        monkeypatch.setattr(Client, "follow", followed)

    return plan


def test_follow_begins_now_and_writes_a_file_that_is_whole_when_it_ends(
    here: Run, client: Client, ten: str, tmp_path: Path, once_followed: Plan
) -> None:
    once_followed(lambda: [client.put(ten, pa.table({"id": [100 + number]})) for number in range(3)])
    done = here("get", "-f", ten, "-n", "3", "-o", str(tmp_path / "a.parquet"))
    assert (done.code, re.match(r"\S+a\.parquet: 3 rows", done.text) is not None) == (0, True)
    assert pq.read_table(tmp_path / "a.parquet").to_pydict() == {"id": [100, 101, 102]}


def test_a_followed_file_keeps_its_columns_when_the_topic_gets_more(
    here: Run, client: Client, ten: str, tmp_path: Path, once_followed: Plan
) -> None:
    once_followed(lambda: client.put(ten, pa.table({"id": [10], "new": ["n"]})))
    for name in ("a.csv", "b.arrow"):
        done = here("get", "-f", ten, "-n", "11", "--start", "earliest", "-o", str(tmp_path / name))
        assert done.code == 0
    assert (tmp_path / "a.csv").read_text().split() == ['"id"', *map(str, range(11))]


def test_a_followed_file_takes_nulls_where_there_were_none(
    here: Run, client: Client, tmp_path: Path, once_followed: Plan
) -> None:
    create(client, pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    once_followed(lambda: client.put("topic/x", pa.table({"id": [1, None]})))
    assert here("get", "-f", "topic/x", "-n", "2", "-o", str(tmp_path / "a.parquet")).code == 0
    assert pq.read_table(tmp_path / "a.parquet").to_pydict() == {"id": [1, None]}


class Tail:
    """`penstock get -f` in a process of its own."""

    def __init__(self, url: str, *arguments: str) -> None:
        command = [*COMMAND, "--url", url, "get", "-f", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(PYTHONUNBUFFERED=""), cwd=ROOT
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.text = b""

    def rows(self) -> list[dict[str, Any]]:
        """What it has printed so far."""
        assert self.process.stdout is not None
        self.text += self.process.stdout.read() or b""
        return [json.loads(line) for line in self.text.splitlines()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow_prints_at_once_and_ends_well_with_ctrl_c(
    server: PenstockServer, client: Client, ten: str, number: signal.Signals
) -> None:
    with Tail(str(server.url), ten, "--start", "0:9") as tail:
        wait(lambda: tail.rows() == [{"id": 9}], "the first row")
        client.put(ten, pa.table({"id": [10]}))
        wait(lambda: tail.rows() == [{"id": 9}, {"id": 10}], "the next row")
        tail.process.send_signal(number)
        assert tail.process.wait(LIMIT) == 0
        assert tail.process.stderr is not None
        assert tail.process.stderr.read() == b""
    assert client.info(ten).rows == 11


@pytest.mark.process
def test_ctrl_c_leaves_a_file_that_is_whole(server: PenstockServer, client: Client, ten: str, tmp_path: Path) -> None:
    target = tmp_path / "a.arrow"
    client.put(ten, pa.table({"id": range(10, 100_000)}))
    with Tail(str(server.url), ten, "--start", "earliest", "-o", str(target)) as tail:
        wait(lambda: any(part.stat().st_size > 500_000 for part in tmp_path.glob(".a.arrow.*")), "its beginning")
        tail.process.send_signal(signal.SIGINT)
        assert tail.process.wait(LIMIT) == 0
    with pa.memory_map(str(target)) as file:
        assert pa.ipc.open_file(file).read_all()["id"].to_pylist() == list(range(100_000))
    assert list(tmp_path.glob(".a.arrow.*")) == []


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.faults
def test_follow_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    from penstock.client.client import connect

    with process_server(tmp_path / "data") as server, connect(server.url, retry_for=LIMIT) as client:
        client.put("topic/x", pa.table({"id": [1]}))
        with Tail(server.url, "topic/x", "--start", "earliest") as tail:
            wait(lambda: tail.rows() == [{"id": 1}], "the first row")
            server.kill()
            with process_server(tmp_path / "data", listen=server.url):
                client.put("topic/x", pa.table({"id": [2]}))
                wait(lambda: tail.rows() == [{"id": 1}, {"id": 2}], "the row after the restart")
                tail.process.send_signal(signal.SIGINT)
                assert tail.process.wait(LIMIT) == 0


# --- completion ------------------------------------------------------------------------------


def test_topics_are_completed(server: PenstockServer, here: Run, ten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    for word, offered in (("to", ["topic/"]), ("topic/", [ten])):
        monkeypatch.setenv("_PENSTOCK_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", f"penstock get {word}")
        monkeypatch.setenv("COMP_CWORD", "2")
        with CliRunner().isolation() as (out, _, _), pytest.raises(SystemExit):
            app.run([])
        assert [line.partition(",")[2] for line in out.getvalue().decode().splitlines() if line] == offered
