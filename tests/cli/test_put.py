"""`put`: files and stdin into datasets and topics, all or nothing; lines from stdin as they come."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli import app
from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from tests.kit.cli import LIMIT, ORDERS, TRIPS, Run, create_topic, read_table, started, text_file, write_table
from tests.kit.wait import eventually

TEXT = pa.table(
    {
        "n": pa.array([1, None, 3], pa.int64()),
        "said": pa.array(['a "word", with\na line', "", None]),
        "yes": pa.array([True, False, None]),
        "x": pa.array([0.5, None, -2.0]),
    }
)
NO_UTF8 = b'{"id": 1, "city": "caf\xe9"}'


@pytest.mark.parametrize("extension", [".arrow", ".feather", ".arrows", ".parquet"])
@pytest.mark.parametrize("path", ["store/a", "topic/x"])
def test_rows_of_a_file_come_back(here: Run, client: Client, tmp_path: Path, path: str, extension: str) -> None:
    source, target = write_table(TRIPS, tmp_path / f"in{extension}"), tmp_path / f"out{extension}"
    for _ in range(2):
        done = here("put", path, source, "--mode", "append")
        assert (done.code, done.err) == (0, "")
        assert re.fullmatch(rf"{path}: 100 rows, [\d.]+ k?B in [\d.]+ s \(.*B/s\)\n", done.text)
    done = here("get", path, "-o", str(target))
    assert re.fullmatch(rf"{target}: 200 rows, [\d.]+ k?B in [\d.]+ s \(.*B/s\)\n", done.text)
    twice = pa.concat_tables([TRIPS, TRIPS]).combine_chunks()
    assert read_table(target).combine_chunks().equals(twice)
    assert client.get(path).read_all().combine_chunks().equals(twice)


@pytest.mark.parametrize("extension", [".csv", ".json", ".jsonl", ".ndjson"])
def test_text_keeps_nulls_and_empty_strings(here: Run, client: Client, tmp_path: Path, extension: str) -> None:
    client.put("store/a", TEXT)
    file = str(tmp_path / f"a{extension}")
    assert here("get", "store/a", "-o", file).code == 0
    assert here("put", "store/b", file).code == 0
    assert client.get("store/b").read_all().equals(TEXT)
    assert here("get", "store/a", "-c", "n", "-o", file).code == 0  # a null alone on its line of CSV is an empty line
    assert here("put", "store/c", file).code == 0
    assert client.get("store/c").read_all().equals(TEXT.select(["n"]))


@pytest.mark.parametrize("file_format", ["arrow", "arrows", "parquet", "csv", "json"])
def test_stdout_of_one_is_stdin_of_another(here: Run, client: Client, file_format: str) -> None:
    table = TRIPS.select(["id", "to", "fare"])
    client.put("store/a", table)
    piped = here("get", "store/a", "-o", "-", "--format", file_format)
    assert here("put", "store/b", "-", stdin=piped.out).code == 0
    assert client.get("store/b").read_all().equals(table)


def test_the_option_rules_over_the_extension(here: Run, trips: str, client: Client, tmp_path: Path) -> None:
    assert here("get", trips, "-o", str(tmp_path / "a.txt"), "--format", "arrows").code == 0
    assert here("put", "store/b", str(tmp_path / "a.txt"), "--format", "arrows").code == 0
    assert client.get("store/b").read_all().equals(TRIPS)


def test_several_files_are_one_write(here: Run, client: Client, parquet: str, tmp_path: Path) -> None:
    assert here("put", "store/a", parquet, write_table(TRIPS, tmp_path / "b.arrows")).code == 0
    assert client.get("store/a").read_all().combine_chunks().equals(pa.concat_tables([TRIPS, TRIPS]).combine_chunks())
    pq.write_table(TRIPS.select(["id"]), tmp_path / "b.parquet")
    done = here("put", "store/b", parquet, str(tmp_path / "b.parquet"))
    assert (done.code, len(client.list()), len(client.list("write/"))) == (app.CONFLICT, 1, 0)
    assert "b.parquet has other columns than" in done.err


def test_modes(here: Run, trips: str, client: Client, parquet: str) -> None:
    refused = here("put", trips, parquet)
    assert (refused.code, "append" in refused.err) == (app.CONFLICT, True)
    assert here("put", trips, parquet, "--mode", "append").code == 0
    assert client.info(trips).rows == 200
    assert here("put", trips, parquet, "--mode", "overwrite").code == 0
    assert client.info(trips).rows == 100


def test_a_partition_and_a_time_to_live(here: Run, client: Client, parquet: str) -> None:
    for day in ("mon", "tue"):
        assert here("put", "store/a", parquet, "--mode", "append", "--partition", day, "--ttl", "1h").code == 0
    assert here("put", "store/a", parquet, "--mode", "overwrite", "--partition", "mon").code == 0
    assert client.info("store/a").rows == 200
    shown = here("show", "store/a").text
    assert re.search(r"^ +partitions +mon \(100 rows\), tue \(100 rows\)$", shown, re.MULTILINE), shown
    assert re.search(r"^ +expires +in (1 h|60 min|59 min)", shown, re.MULTILINE), shown
    refused = here("put", "topic/x", "-", "--partition", "mon", stdin=b'{"id": 1}')
    assert (refused.code, "only a dataset has partitions" in refused.err) == (app.USAGE, True), refused.err
    assert here("put", "store/b", parquet, "--ttl", "soon").code == app.USAGE


def test_a_run_happens_once(here: Run, client: Client, parquet: str, tmp_path: Path) -> None:
    create_topic(client, ORDERS)
    files = [text_file(tmp_path, '{"id": 1}'), text_file(tmp_path, "total,id", "2.5,2", name="b.csv")]
    for _ in range(2):
        assert here("put", "store/a", parquet, "--mode", "append", "--run", "monday").code == 0
        assert here("put", "topic/x", *files, "--run", "monday").code == 0
        done = here("put", "topic/y", "-", "--run", "r", "--json", stdin=b'{"id": 1}\n{"id": 2}\n')
        assert "puts" not in done.json[0]
        assert here("put", "topic/y", "-", "--format", "csv", stdin=b"id\n3\n").code == 0
    assert client.info("store/a").rows == 100
    assert client.get("topic/x").read_all().select(["id", "total"]).to_pydict() == {
        "id": [1, 2], "total": [None, Decimal("2.50")],
    }  # fmt: skip
    assert client.get("topic/y").read_all()["id"].to_pylist() == [1, 2, 3, 3]


def test_a_row_that_does_not_fit_leaves_nothing(here: Run, client: Client, tmp_path: Path) -> None:
    create_topic(client, ORDERS)
    good, bad = text_file(tmp_path, '{"id": 1}'), text_file(tmp_path, '{"id": 2}', '{"id": "x"}', name="b.json")
    done = here("put", "topic/x", good, bad)
    assert (done.code, done.out, client.info("topic/x").rows) == (app.CONFLICT, b"", 0)
    assert re.match(r"penstock: .*b\.json: line 2: id of topic/x is int32, got 'x'\n", done.err)


@pytest.mark.parametrize("path", ["topic/x", "store/x"])
def test_a_file_that_is_not_utf8_makes_nothing(here: Run, client: Client, tmp_path: Path, path: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1, "city": "a"}\n' + NO_UTF8)
    done = here("put", path, str(tmp_path / "a.jsonl"))
    assert (done.code, "a.jsonl: line 2: city isn't text in UTF-8" in done.err) == (app.USAGE, True), done.err
    assert len(client.list("topic/")) == len(client.list("store/")) == 0


@pytest.mark.parametrize("value", ["null", "[]", "{}", '[{"a": []}]'])
def test_a_topic_is_not_made_of_a_column_without_type(here: Run, client: Client, tmp_path: Path, value: str) -> None:
    line = f'{{"id": 1, "city": {value}}}'
    for file, code in ((text_file(tmp_path, line), app.USAGE), ("-", app.FAILED)):
        done = here("put", "topic/x", file, stdin=line.encode())
        assert (done.code, len(client.list("topic/"))) == (code, 0)
        assert "'city' has no value that tells its type" in done.err
        assert "penstock topic create topic/x --schema" in done.err


@pytest.mark.parametrize("exists", [True, False])
def test_a_topic_refuses_what_it_cannot_mean(here: Run, client: Client, exists: bool) -> None:
    if exists:
        create_topic(client, ORDERS)
    for arguments, stdin, code, message in (
        (("-",), b"", app.USAGE, "stdin: it is empty"),
        (("-",), b'[{"id": 1}]', app.FAILED, "expected an object per line"),
        (("-",), b"garbage\n", app.FAILED, "stdin: line 1 isn't JSON"),
        (("-",), b"id\n3\n", app.FAILED, "stdin to a topic is JSON lines, unless --format says otherwise"),
        (("-", "--run", "r"), b"id\n3\n", app.USAGE, "stdin: line 1 isn't JSON"),
        (("-", "-"), b'{"id": 1}', app.USAGE, "once"),
        (("-", "--mode", "overwrite"), b'{"id": 1}', app.USAGE, "only grows"),
    ):
        done = here("put", "topic/x", *arguments, stdin=stdin)
        assert (done.code, done.out, message in done.err) == (code, b"", True), done.err
    assert sum(entry.rows for entry in client.list("topic/")) == 0


def test_lines_are_put_in_batches(here: Run, client: Client) -> None:
    create_topic(client, ORDERS)
    text = "".join(f'{{"id": {n}, "total": {n}.25}}\n' for n in range(2_500)) + '{"id": 2500}'
    [done] = here("--json", "put", "topic/x", "-", stdin=text.encode()).json
    assert done["rows"] == 2_501
    assert 3 <= done["puts"] < 20  # 1,000 lines each, or those of 0.2 s
    table = client.get("topic/x").read_all()
    assert table["id"].to_pylist() == list(range(2_501))
    assert table["total"][7].as_py() == Decimal("7.25")


def test_the_first_lines_make_the_topic(here: Run, client: Client) -> None:
    text = "".join(f'{{"id": {n}, "city": "a"}}\n' for n in range(1_500)) + '\n\n{"city": "b", "id": "7"}\n'
    assert here("put", "topic/x", "-", stdin=text.encode()).code == 0
    assert client.info("topic/x").schema == pa.schema([("id", pa.int64()), ("city", pa.string())])
    assert client.get("topic/x").read_all()["id"].to_pylist() == [*range(1_500), 7]


FILES = {
    "a.jsonl": [
        '{"at": "2026-11-18T20:00:00Z", "n": 1, "f": 2.5, "in": {"at": "2026-11-18T20:00:00.5+01:00", "to": ["a"]}}',
        '{"f": NaN, "n": null, "yes": true, "naive": "2026-11-18 20:00:00", "big": 12345678901234567890.5, "no": ""}',
    ],
    "a.csv": [
        "at,n,f,naive,day,time,yes,text,big",
        "2026-11-18T20:00:00Z,1,2.5,2026-11-18 20:00:00,2026-11-18,20:00:00,true,0017x,12345678901234567890",
        "2026-11-18T20:00:00.5+01:00,,nan,2026-11-18 20:00:00.25,,20:00:01,FALSE,,1",
    ],
}


@pytest.mark.parametrize(("name", "lines"), FILES.items(), ids=FILES)
@pytest.mark.parametrize("path", ["topic/x", "store/x"])
def test_the_same_file_is_taken_again(
    here: Run, client: Client, tmp_path: Path, path: str, name: str, lines: list[str]
) -> None:
    file = text_file(tmp_path, *lines, name=name)
    for times in (1, 2):
        done = here("put", path, file, "--mode", "append")
        assert done.code == 0, done.err
        assert client.info(path).rows == 2 * times
    table = client.get(path).read_all()
    assert str(table.slice(0, 2).to_pydict()) == str(table.slice(2).to_pydict())
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    assert table.schema.field("naive").type == pa.timestamp("us")
    if path == "topic/x" and name == "a.jsonl":
        assert here("put", path, "-", stdin="\n".join(lines).encode()).code == 0
        assert client.info(path).rows == 6


BAD_LINES = {
    b'{"id": "x"}': "id of topic/x is int32, got 'x'",
    b"{": "isn't JSON",
    b"5": "no object",
    NO_UTF8: "city isn't text in UTF-8, got 'caf",
    b'{"id": 1, "weight": 5, "at": 5}': "a number tells no time",
}


@pytest.mark.parametrize(("line", "message"), BAD_LINES.items(), ids=ascii)
def test_a_bad_line_ends_it_after_the_rows_before(here: Run, client: Client, line: bytes, message: str) -> None:
    create_topic(client, ORDERS)
    good = [f'{{"id": {n}}}'.encode() for n in range(1_700)]
    done = here("put", "topic/x", "-", stdin=b"\n".join([*good, b"", line, b'{"id": 9, "weight": 5}', line]))
    assert done.code == app.FAILED
    assert re.match(rf"penstock: stdin: line 1702\W.*{message}.* 1,700 rows in topic/x", done.err), done.err
    table = client.get("topic/x").read_all()
    assert (table["id"].to_pylist(), table.schema) == (list(range(1_700)), ORDERS)


def test_a_bad_line_makes_a_topic_of_the_rows_before(here: Run, client: Client) -> None:
    """A later line may bring another column."""
    done = here("put", "topic/x", "-", stdin=b'{"id": 1, "city": "a"}\n' + NO_UTF8)
    assert done.code == app.FAILED
    assert re.search(r"stdin: line 2: city isn't text in UTF-8.* 1 row in topic/x", done.err), done.err
    assert here("put", "topic/x", "-", stdin=b'{"id": 2}\n{"id": 3, "weight": 1}\n').code == 0
    assert client.get("topic/x").read_all().to_pydict() == {
        "id": [1, 2, 3], "city": ["a", None, None], "weight": [None, None, 1],
    }  # fmt: skip


def test_a_line_without_end_is_refused(here: Run, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.append._LONGEST_LINE", 100)
    monkeypatch.setattr("penstock.cli.append._CHUNK", 60)
    done = here("put", "topic/x", "-", stdin=b'{"id": 1}\n{"id": "' + b"x" * 500)
    assert (done.code, "line 2 has more than" in done.err) == (app.FAILED, True)


@pytest.mark.parametrize(("times", "said"), [(1, "2 rows in"), (2, "0 rows in, and maybe those of a put")])
def test_ctrl_c_waits_once_for_the_put_under_way(
    here: Run, client: Client, monkeypatch: pytest.MonkeyPatch, times: int, said: str
) -> None:
    put, handler = Client.put, signal.getsignal(signal.SIGINT)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return put(*arguments, **options)

    monkeypatch.setattr(Client, "put", interrupted)
    done = here("put", "topic/x", "-", stdin=b'{"id": 1}\n{"id": 2}\n')
    assert (done.code, done.err.strip().startswith(f"topic/x: {said}")) == (app.INTERRUPTED, True), done.err
    assert [entry.rows for entry in client.list("topic/")] == ([2] if times == 1 else [])
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.fixture
def rows(client: Client) -> Callable[[int], None]:
    """Waits until the topics have so many rows."""
    return lambda count: eventually(lambda: [entry.rows for entry in client.list("topic/")] == [count], within=LIMIT)


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("interrupted", [False, True])
def test_slow_lines_are_in_before_stdin_ends(
    server: PenstockServer, rows: Callable[[int], None], interrupted: bool
) -> None:
    with started("--url", str(server.url), "put", "topic/x", "-") as process:
        assert process.stdin is not None
        for number in range(3):
            process.stdin.write(f'{{"id": {number}}}\n{{"half": '.encode())
            process.stdin.flush()
            rows(number * 2 + 1)
            process.stdin.write(b'"line"}\n')
            process.stdin.flush()
            rows(number * 2 + 2)
        if interrupted:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    if interrupted:
        assert (process.returncode, err.decode().strip()) == (app.INTERRUPTED, "topic/x: 6 rows in")
    else:
        assert (process.returncode, out.startswith(b"topic/x: 6 rows")) == (0, True)


@pytest.mark.process
def test_ctrl_c_leaves_nothing_of_a_dataset(server: PenstockServer, client: Client) -> None:
    with started("--url", str(server.url), "put", "store/a", "-") as process:
        assert process.stdin is not None
        process.stdin.write(b"x\n" + b"1\n" * (8 << 20))  # more than a pipe, a head and a block hold
        process.stdin.flush()
        eventually(lambda: len(client.list("write/")) == 1, within=LIMIT)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, b"Traceback" in err) == (app.INTERRUPTED, False), err
    eventually(lambda: len(client.list("write/")) == 0, within=LIMIT)
    assert len(client.list()) == 0
