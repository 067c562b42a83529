"""The pages are true: their code runs, their links lead to files, and the things that they list exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from penstock.wire.read import ReadCommand
from scripts.demo import trips as make_trips
from scripts.planted import run as planting
from tests.kit.connect import ConnectServer
from tests.kit.pages import blocks, run_all
from tests.kit.pubsub.emulator import emulator_process
from tests.kit.server import process_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def pages_with(kind: str) -> list[str]:
    """Return the pages that have such blocks."""
    return [str(page.relative_to(ROOT)) for page in PAGES if blocks(page, kind)]


@pytest.mark.parametrize("page", pages_with("python"))
@pytest.mark.usefixtures("capsys")
def test_python_on_a_page_runs_as_it_stands(page: str, server: PenstockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    run_all(page, "python", {"url": server.url})


@pytest.mark.spark
@pytest.mark.parametrize("page", pages_with("python spark"))
@pytest.mark.usefixtures("capsys")
def test_spark_code_on_a_page_runs_as_it_stands(
    page: str, spark: SparkSession, server: PenstockServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs together with the page's plain Python, and leaves no write open."""
    if spark.version.startswith("3.") and any("penstock.DataSource" in code for code in blocks(page, "python spark")):
        pytest.skip("Spark 3.5 has no data sources in Python")
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    run_all(page, "python|python spark", {"spark": spark, "penstock": penstock})
    assert len(client.list("write/")) == 0


@pytest.mark.spark
def test_the_readmes_spark_code_writes_and_reads_what_it_says(
    spark: SparkSession,
    server: PenstockServer,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    names = run_all("README.md", "python spark", {"spark": spark})

    rows = [(n, n % 7, n % 1000 / 10) for n in range(100_000)]
    cheap = [(n, fare) for n, day, fare in rows if fare < 0.5 and day in (5, 6)]
    printed = capsys.readouterr().out
    assert re.match(r"job/score: done in ", printed)
    scored = client.get("store/scored").read_all().sort_by("id").to_pylist()
    assert scored == [{"id": n, "fare": fare, "score": 2 * fare} for n, _, fare in rows]
    assert re.search(rf"^store/readme/fares: 100,000 rows, .*\n{len(cheap)}\n", printed, re.MULTILINE)
    assert sorted(tuple(row) for row in names["cheap"].collect()) == cheap
    table = client.get("store/readme/fares").read_all()
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == rows  # written twice


@pytest.mark.spark
@pytest.mark.parametrize("page", ["README.md", "docs/spark.md"])
def test_a_batch_that_a_stream_repeats_is_written_once(
    page: str,
    spark: SparkSession,
    server: PenstockServer,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run the page's foreachBatch in a query that fails between a batch's write and its commit, and starts again."""
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    (code,) = [code for code in blocks(page, "python") if "save = penstock.foreach_batch(" in code]
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec"), names)
    for number in range(3):
        pq.write_table(pa.table({"id": [number * 10, number * 10 + 1]}), tmp_path / f"{number}.parquet")
    batches: list[int] = []

    def save(df: DataFrame, batch: int) -> None:
        batches.append(batch)
        names["save"](df, batch)
        if batches == [0, 1]:
            raise RuntimeError("ended before its commit")

    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path))
    writer = stream.writeStream.foreachBatch(save).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match="ended before its commit"):
        writer.trigger(availableNow=True).start().awaitTermination(100)
    assert [entry.rows for entry in client.list("store/", recursive=True)] == [4]
    writer.trigger(availableNow=True).start().awaitTermination(100)

    assert batches == [0, 1, 1, 2]
    (orders,) = client.list("store/", recursive=True)
    assert sorted(client.get(orders.path).read_all()["id"].to_pylist()) == [0, 1, 10, 11, 20, 21]


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.parametrize("page", pages_with("python pubsub"))
@pytest.mark.usefixtures("capsys")
def test_pubsub_code_on_a_page_runs_as_it_stands(
    page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an emulator of its own, as the page names the subscription."""
    if spark.version.startswith("3."):
        pytest.skip("Spark 3.5 has no data sources in Python")
    with emulator_process() as emulator:
        from tests.kit.pubsub.client import connected

        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.address)
        with connected(emulator.address) as broker, process_server(tmp_path / "data", allow_emulator=True) as server:
            for topic in ("orders", "clean"):
                broker.create_topic(f"projects/p/topics/{topic}")
            broker.create_subscription("projects/p/subscriptions/orders", "projects/p/topics/orders")
            broker.publish("projects/p/topics/orders", [b"%d" % number for number in range(500)])
            monkeypatch.setenv("PENSTOCK_URL", server.url)
            run_all(page, "python pubsub", {"spark": spark})
            with penstock.connect() as client:
                (landed,) = client.list("store/", recursive=True)
                assert landed.rows == 500


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.parametrize("page", pages_with("python connect"))
@pytest.mark.usefixtures("capsys")
def test_connect_code_on_a_page_runs_as_it_stands(
    page: str, spark_server: ConnectServer, server: PenstockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its orders are a folder of Parquet where Spark looks for relative paths."""
    (spark_server.folder / "orders").mkdir(exist_ok=True)
    orders = pa.table({"country": ["NO", "PL", "NO"], "amount": [120.0, 80.0, 300.0]})
    pq.write_table(orders, spark_server.folder / "orders" / "part.parquet")
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{spark_server.port}")
    run_all(page, "python connect", {})["spark"].close()
    with penstock.connect() as client:
        (landed,) = client.list("store/", recursive=True)
        assert landed.rows > 0


def test_a_plain_clients_put_without_its_trailer_is_an_error(server: PenstockServer, client: Client) -> None:
    """The wire page says so in its first lines."""
    code = blocks("docs/wire.md", "python")[0]
    without = code.replace("writer.write_metadata(json.dumps(trailer).encode())\n", "")
    assert without != code
    with pytest.raises(Exception, match="ended without its trailer"):
        exec(compile(without, "wire.md", "exec"), {"url": server.url})
    assert len(client.list()) == len(client.list("write/")) == 0


@pytest.mark.process
@pytest.mark.parametrize("page", ["README.md", "docs/topics.md"])
def test_command_lines_on_a_page_run_word_for_word(page: str, tmp_path: Path) -> None:
    """Run all lines but those of make, which start the server and the demo."""
    trips = make_trips(20_000)
    pq.write_table(trips, tmp_path / "trips.parquet")
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if not line.startswith("make")]
    assert len([line for line in lines if line.startswith("penstock")]) >= 5
    with process_server(tmp_path / "data") as server:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        for line in lines:
            done = subprocess.run(
                line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
                env={**os.environ, "PENSTOCK_URL": server.url, "PATH": path},
            )  # fmt: skip
            assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
            assert not done.stderr, f"$ {line}\n{done.stderr}"
    if page == "README.md":
        assert pq.read_table(tmp_path / "out.parquet").equals(trips)


def test_the_wire_page_has_every_action_and_every_code(client: Client) -> None:
    page = (ROOT / "docs/wire.md").read_text()
    for name in client.actions():
        assert f"| `{name}` |" in page
    for kind in vars(penstock.errors).values():
        if isinstance(kind, type) and issubclass(kind, penstock.errors.PenstockError) and kind.code != "error":
            assert f"`{kind.code}`" in page


def test_the_wire_page_has_every_field_of_a_read() -> None:
    page = (ROOT / "docs/wire.md").read_text()
    for field in fields(ReadCommand):
        assert re.search(rf"[{{ ]{field.name}[,}}]", page), field.name


def test_every_place_on_the_walk_exists() -> None:
    """docs/walk.md lists `file:function` in the order in which a table meets them."""
    places = re.findall(r"`(penstock/[\w/]+\.py):(?:(\w+)\.)?(\w+)`", (ROOT / "docs/walk.md").read_text())
    assert len(places) > 20
    for file, owner, name in places:
        text = (ROOT / file).read_text()
        if owner:
            text = text[re.search(rf"^class {owner}\b", text, re.MULTILINE).start() :]  # type: ignore[union-attr]
        assert re.search(rf"^\s*(def|class) {name}\b", text, re.MULTILINE), f"{file} has no {name}"


def test_every_planted_bug_fits_the_code(tmp_path: Path) -> None:
    """`make planted`, which takes longer, looks for each of them."""
    shutil.copytree(ROOT / "penstock", tmp_path / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    originals = {file: file.read_text() for file in tmp_path.rglob("*.py")}
    for patch in (ROOT / "scripts/planted").glob("*.patch"):
        planting.plant(text := patch.read_text(), tmp_path)
        for file in map(tmp_path.joinpath, re.findall(r"^== (\S+)", text, re.MULTILINE)):
            file.write_text(originals[file])


@pytest.mark.parametrize("page", ["guarantees", "connect"])
def test_every_promise_names_existing_tests_and_bugs(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(rows) > 10
    for row in rows:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row):
            assert (ROOT / file).exists(), row
            assert not name or re.search(rf"(def|class) {name}\b", (ROOT / file).read_text()), row
        for bug in re.findall(r"`([\w-]+)\.patch`", row):
            assert (ROOT / "scripts/planted" / f"{bug}.patch").exists(), row


@pytest.mark.process
def test_every_planted_bug_is_looked_for_by_some_test() -> None:
    """A name that no test has any more would select none, and find nothing. Few are parameters', or a contract's."""

    def is_named(arguments: list[str], names: Callable[[str], list[str]]) -> bool:
        word = arguments[-1].lower() if "-k" in arguments else ""
        places = [argument.partition("::") for argument in arguments if ".py" in argument]
        return any(word in name and test.lower() in name for file, _, test in places for name in names(file))

    def defined(file: str) -> list[str]:
        return re.findall(r"^ *(?:def|class) (test\w*)", (ROOT / file).read_text().lower(), re.MULTILINE)

    bugs = {patch.stem: planting.read(patch).tests for patch in (ROOT / "scripts/planted").glob("*.patch")}
    others = {bug: arguments for bug, arguments in bugs.items() if not is_named(arguments, defined)}
    files = sorted(
        {argument.partition("::")[0] for tests in others.values() for argument in tests if ".py" in argument}
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "soak or not soak",
    ]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    collected = done.stdout.lower().splitlines()
    for bug, arguments in others.items():
        assert is_named(arguments, lambda file: [line for line in collected if line.startswith(f"{file}::")]), bug
    assert len(others) < 20, "to collect a file takes seconds"


def test_every_planted_bug_is_found_by_its_promises_tests() -> None:
    """Else `make planted` could be green while the tests named for a promise miss its bug."""
    bugs = {patch.stem: planting.read(patch).tests for patch in (ROOT / "scripts/planted").glob("*.patch")}
    promised = set()
    for row in (ROOT / "docs/guarantees.md").read_text().splitlines():
        if ".patch`" not in row:
            continue
        _, _, proof, broken, _ = row.split("|")
        named = set(re.findall(r"tests/[\w/]+\.py", proof))
        for bug in re.findall(r"`([\w-]+)\.patch`", broken):
            searched = {argument.partition("::")[0] for argument in bugs[bug]}
            assert named & searched, f"{bug} is looked for by {bugs[bug]}: {row}"
            promised.add(bug)
    assert promised == set(bugs), "these bugs have no promise"
