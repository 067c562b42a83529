"""The pages are true: their code runs, their links lead somewhere, what they list exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.client import Client
from penstock.flight_server.server import PenstockServer
from scripts.demo import trips as make_trips
from tests.fix_server import process_server

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/wire.md"])
def test_python_on_a_page_runs_as_it_stands(
    page: str, server: PenstockServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", str(server.url))
    names = {"url": server.url}
    for code in blocks(page, "python"):
        exec(compile(code, page, "exec"), names)


def test_a_plain_clients_put_without_its_trailer_is_an_error(server: PenstockServer, client: Client) -> None:
    """As the wire page says in its first lines."""
    code = blocks("docs/wire.md", "python")[0]
    without = code.replace("writer.write_metadata(json.dumps(trailer).encode())\n", "")
    assert without != code
    with pytest.raises(Exception, match="ended without its trailer"):
        exec(compile(without, "wire.md", "exec"), {"url": server.url})
    assert len(client.list()) == len(client.list("write/")) == 0


@pytest.mark.process
def test_the_readmes_command_lines_run_word_for_word(tmp_path: Path) -> None:
    """All but make, which runs the server and the demo themselves."""
    trips = make_trips(20_000)
    pq.write_table(trips, tmp_path / "trips.parquet")
    lines = [line for block in blocks("README.md", "sh") for line in block.splitlines() if line.startswith("penstock")]
    assert len(lines) >= 5
    with process_server(tmp_path / "data") as server:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        for line in lines:
            done = subprocess.run(
                line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
                env={**os.environ, "PENSTOCK_URL": server.url, "PATH": path},
            )  # fmt: skip
            assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
    assert pq.read_table(tmp_path / "out.parquet").equals(trips)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_place_on_the_walk_exists() -> None:
    """docs/walk.md lists `file:function` in the order in which a table meets them."""
    places = re.findall(r"`(penstock/[\w/]+\.py):(?:(\w+)\.)?(\w+)`", (ROOT / "docs/walk.md").read_text())
    assert len(places) > 20
    for file, owner, name in places:
        text = (ROOT / file).read_text()
        if owner:
            text = text[re.search(rf"^class {owner}\b", text, re.MULTILINE).start() :]  # type: ignore[union-attr]
        assert re.search(rf"^\s*(def|class) {name}\b", text, re.MULTILINE), f"{file} has no {name}"


def test_every_promise_names_a_test_and_a_planted_bug_that_exist() -> None:
    page = (ROOT / "docs/guarantees.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(rows) > 10
    for row in rows:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row):
            assert re.search(rf"(def|class) {name}\b", (ROOT / file).read_text()) if name else (ROOT / file).exists(), (
                row
            )
        for bug in re.findall(r"`([\w-]+)\.patch`", row):
            assert (ROOT / "scripts/planted" / f"{bug}.patch").exists(), row
