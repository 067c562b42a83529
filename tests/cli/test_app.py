"""The command line as a whole: exit codes, mistakes, help, completion."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import app
from penstock.cli.group import cli
from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from tests.kit.cli import NOWHERE, Complete, Run
from tests.kit.server import TOKEN, token_file

MISTAKES = [
    (("put", "store/a", "{tmp}/none.parquet"), app.NOT_FOUND, "none.parquet: no such file"),
    (("put", "store/a", "{tmp}"), app.USAGE, "folder"),
    (("put", "store/a", "{tmp}/a.parket"), app.USAGE, "did you mean '.parquet'?"),
    (("put", "store/a", "{tmp}/a.xyz"), app.USAGE, ".parquet, .csv"),
    (("put", "store/a", "{tmp}/damaged.parquet"), app.USAGE, "damaged.parquet can't be read"),
    (("put", "store/a", "{tmp}/empty.csv"), app.USAGE, "empty.csv: it is empty"),
    (("put", "store/a", "{tmp}/array.json"), app.USAGE, "an object per line"),
    (("put", "store/a", "{tmp}/torn.csv"), app.USAGE, "torn.csv can't be read"),
    (("put", "store/a", "-", "-"), app.USAGE, "once"),
    (("put", "store/a", "-"), app.USAGE, "stdin: it is empty"),
    (("put", "elsewhere/a", "{tmp}/good.csv"), app.USAGE, "store/"),
    (("put", "store/a", "{tmp}/good.csv", "--mode", "apend"), app.USAGE, "append"),
    (("put", "store/a"), app.USAGE, "FILE"),
    (("put", "topic/n", "-", "-"), app.USAGE, "once"),
    (("put", "topic/n", "-"), app.USAGE, "stdin: it is empty"),
    (("put", "topic/n", "-", "--run", "r"), app.USAGE, "stdin: it is empty"),
    (("put", "topic/n", "{tmp}/empty.csv"), app.USAGE, "empty.csv: it is empty"),
    (("put", "topic/n", "{tmp}/array.json"), app.USAGE, "an object per line"),
    (("put", "topic/n", "{tmp}/good.csv", "--mode", "overwrite"), app.USAGE, "only grows"),
    (("get", "store/none"), app.NOT_FOUND, "no dataset at store/none"),
    (("get", "store/none", "-o", "{tmp}/none.csv"), app.NOT_FOUND, "no dataset at store/none"),
    (("get", "store/demo/trips", "-o", "{tmp}/a.xls"), app.USAGE, ".xls"),
    (("get", "store/demo/trips", "-o", "{tmp}/no/a.csv"), app.NOT_FOUND, "no folder"),
    (("get", "store/demo/trips", "-o", "{tmp}", "--format", "csv"), app.USAGE, "is a folder"),
    (("get", "store/demo/trips", "-c", "id,fair"), app.USAGE, "did you mean 'fare'?"),
    (("get", "store/demo/trips", "-n", "-1"), app.USAGE, "-1"),
    *((("get", "store/demo/trips", *span), app.USAGE, "topic") for span in (
        ("--start", "latest"), ("--since", "1h"), ("--end", "0:1"), ("-f",),
    )),
    *(((*verb, "topic/n"), app.NOT_FOUND, "topic/n") for verb in (("get",), ("show",), ("rm", "-y"), ("get", "-f"))),
    (("show", "store/none"), app.NOT_FOUND, "store/none"),
    (("show", "write/none"), app.NOT_FOUND, "write/none"),
    (("ls", "write/abc"), app.NOT_FOUND, "no write/abc"),
    (("ls", "stor"), app.USAGE, "store/"),
    (("call", "healt"), app.NOT_FOUND, "health"),
    (("call", "describe", "{{"), app.USAGE, "isn't JSON"),
    (("call", "describe", "[]"), app.USAGE, "no object"),
    (("lss",), app.USAGE, "Did you mean 'ls'?"),
    (("ls", "--recursiv"), app.USAGE, "--recursive"),
    (("--url", "http://x", "ls"), app.USAGE, "grpc://host:port"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "message"), MISTAKES, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_a_mistake_is_one_clear_line(
    here: Run, client: Client, trips: str, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and no more")
    for name in ("empty.csv", "a.parket", "a.xyz"):
        (tmp_path / name).touch()
    (tmp_path / "array.json").write_text('[{"x": 1}]')
    (tmp_path / "torn.csv").write_text("a,b\n1,2\n3\n")
    (tmp_path / "good.csv").write_text("a,b\n1,2\n")
    files = sorted(tmp_path.iterdir())
    done = here(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert (done.code, done.out) == (code, b"")
    assert done.err.startswith("penstock: ")
    assert message in done.err
    assert "Traceback" not in done.err
    listed = [entry.path for root in ("store/", "topic/", "write/") for entry in client.list(root)]
    assert listed == ["store/demo/"]
    assert sorted(tmp_path.iterdir()) == files


def test_a_server_that_is_away_is_5(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.invocation.RETRY_FOR", 0.0)
    done = penstock("--url", NOWHERE, "ls")
    assert (done.code, done.out) == (app.UNAVAILABLE, b"")
    assert "penstock serve" in done.err


def test_a_wrong_token_is_6(
    make_server: Callable[..., PenstockServer], penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", str(make_server(token_file=token_file(tmp_path)).url))
    assert penstock("ls").code == app.DENIED
    monkeypatch.setenv("PENSTOCK_TOKEN", "another one of some length")
    assert penstock("ls").code == app.DENIED
    assert penstock("doctor").code == app.FAILED
    monkeypatch.setenv("PENSTOCK_TOKEN", TOKEN)
    assert penstock("ls").code == 0


def test_the_address_may_stand_before_and_after_the_verb(server: PenstockServer, penstock: Run) -> None:
    url = str(server.url)
    assert penstock("--url", url, "ls").code == 0
    assert penstock("ls", "--url", url).code == 0
    assert penstock("--url", NOWHERE, "call", "health", "--url", url).code == 0


def test_json_is_for_scripts(here: Run, parquet: str, tmp_path: Path) -> None:
    [put] = here("put", "store/a", parquet, "--json").json
    assert {"path", "write", "attempt", "rows", "bytes", "parts", "digest", "seconds"} == set(put)
    assert (put["path"], put["rows"]) == ("store/a", 100)
    assert [row["id"] for row in here("--json", "get", "store/a", "-n", "3").json] == [0, 1, 2]
    [got] = here("--json", "get", "store/a", "-o", str(tmp_path / "o.csv")).json
    assert (got["rows"], got["bytes"]) == (100, (tmp_path / "o.csv").stat().st_size)
    assert here("rm", "-y", "--json", "store/a").json[0]["rows"] == 100


# --- help and completion --------------------------------------------------------------------


@pytest.mark.parametrize("name", list(cli.commands))
def test_every_command_has_an_example(penstock: Run, name: str) -> None:
    text = penstock(name, "--help").text
    assert re.search(rf"^  Example: .*penstock {name}", text, re.MULTILINE)
    assert text.count("Example") == 1
    assert "\\b" not in text


def test_help_has_the_exit_codes(penstock: Run) -> None:
    shown = penstock("--help")
    assert (shown.code, "Exit codes" in shown.text) == (0, True)
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", penstock("--version").text)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_how_to_install_itself(penstock: Run, shell: str) -> None:
    first, *script = penstock("completion", shell).text.splitlines()
    assert first.startswith("# to install: ")
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in "\n".join(script)
    assert ("compopt -o nospace" in "\n".join(script)) == (shell == "bash")


def test_paths_of_the_server_are_completed(server: PenstockServer, trips: str, ten: str, complete: Complete) -> None:
    url = ("--url", str(server.url))
    assert complete(*url, "get", "st") == ["store/"]
    assert complete(*url, "get", "store/") == ["store/demo/"]
    assert complete(*url, "get", "store/demo/t") == [trips]
    assert complete(*url, "get", "store/demo/x") == []
    assert complete(*url, "get", "to") == ["topic/"]
    assert complete(*url, "get", "topic/") == [ten]
    assert complete(*url, "ls", "w") == ["write/"]
    assert complete("sh") == ["show"]


def test_completion_is_silent_without_a_server(complete: Complete) -> None:
    assert complete("--url", NOWHERE, "get", "store/") == []


def test_no_command_at_all_is_answered_with_the_help(penstock: Run) -> None:
    done = penstock()
    assert (done.code, done.err.startswith("Usage: penstock [OPTIONS] COMMAND")) == (app.USAGE, True), done.err
