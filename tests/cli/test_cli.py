"""The command line against a real server: what it lists, removes, completes and refuses, and its exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.cli import app, serve
from penstock.cli.group import cli
from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from penstock.store.open import parse_bytes
from tests.kit.cli import NOWHERE, TRIP_TABLE, Run, open_write

# --- ls, show, rm, call --------------------------------------------------------------------


def test_ls_shows_folders_first_with_sizes_and_ages(here: Run, client: Client) -> None:
    for path in ("store/b/one", "store/b/two", "store/a"):
        client.put(path, TRIP_TABLE)
    heads, first, second = here("ls").text.splitlines()
    assert heads.split() == ["path", "rows", "size", "parts", "changed"]
    assert re.match(r"store/b/ +200 +[\d.]+ kB +2 +\d+ s ago", first)
    assert re.match(r"store/a +100 +[\d.]+ kB +1 +\d+ s ago", second)
    assert [line["path"] for line in here("--json", "ls", "-r", "store/").json] == [
        "store/a",
        "store/b/one",
        "store/b/two",
    ]


def test_ls_of_nothing_says_so_and_stays_parsable(here: Run) -> None:
    assert (here("ls").out, here("ls", "--json").out, here("ls", "write").out) == (b"", b"", b"")
    assert "nothing here" in here("ls").err


def test_ls_write_says_what_for_and_why_its_rows_are_not_visible(here: Run, client: Client) -> None:
    empty = open_write(client, "store/a", whole=False)
    whole = open_write(client, "store/b", whole=True, mode="append", run="q-7")
    listed = {line.split()[0]: line for line in here("ls", "write").text.splitlines()[1:]}
    assert set(listed) == {f"write/{empty}", f"write/{whole}"}
    assert re.search(r" store/a +0 +0 B +\d+ s ago +\d+ s ago +no, no attempt is whole$", listed[f"write/{empty}"])
    assert re.search(
        r" store/b \(append, run q-7\) +100 +[\d.]+ kB .* no, 1 whole attempt until finish$", listed[f"write/{whole}"]
    )
    assert here("ls", f"write/{empty}", "--json").json[0]["write"] == empty
    assert {line["write"]: line["attempts"] for line in here("ls", "write", "--json").json} == {empty: 0, whole: 1}


def test_show_describes_a_dataset_with_its_schema(here: Run, client: Client) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    client.put("store/a", pa.table({"id": [1, 2], "name": ["x", None]}, schema=schema))
    lines = here("show", "store/a").text.splitlines()
    assert lines[0] == "store/a"
    assert [" ".join(line.split()) for line in lines if line.startswith("    ")] == ["id int64 not null", "name string"]
    assert re.fullmatch(r" +rows +2", lines[1])
    [found] = here("show", "store/a", "--json").json
    assert (found["rows"], [column["name"] for column in found["schema"]]) == (2, ["id", "name"])


def test_show_describes_a_folder_and_a_write(here: Run, client: Client, trips: str) -> None:
    assert re.search(r"datasets +1\n +rows +100\n", here("show", "store/demo").text)
    write = open_write(client, "store/b", whole=True)
    assert re.search(r"state +open\n(.*\n)+ +rows +100 \([\d.]+ kB in 1 part\)\n", here("show", f"write/{write}").text)
    client.delete(f"write/{write}")
    assert "never, it was aborted" in here("show", f"write/{write}").text


@pytest.mark.parametrize("root", ["store", "store/"])
def test_show_describes_the_folder_of_everything(here: Run, client: Client, root: str) -> None:
    assert re.search(r"^store/\n +datasets +0\n +rows +0\n", here("show", root).text)
    client.put("store/a", TRIP_TABLE)
    client.put("store/b/c", TRIP_TABLE)
    assert re.search(r"^store/\n +datasets +2\n +rows +200\n", here("show", root).text)
    assert here("show", root, "--json").json[0]["kind"] == "folder"


def test_ls_of_a_write_that_is_not_there_is_not_found(here: Run) -> None:
    done = here("ls", "write/abc")
    assert (done.code, done.out) == (app.NOT_FOUND, b"")
    assert "no write/abc" in done.err


def test_rm_deletes_datasets_and_goes_on_past_what_it_cannot(here: Run, client: Client) -> None:
    for path in ("store/a", "store/b"):
        client.put(path, TRIP_TABLE)
    done = here("rm", "store/a", "store/nothing", "store/b")
    assert (done.code, len(client.list())) == (app.NOT_FOUND, 0)
    assert re.findall(r"deleted (\S+): 100 rows", done.text) == ["store/a", "store/b"]
    assert done.err.startswith("penstock: no dataset at store/nothing")


def test_rm_takes_a_folder_only_with_r(here: Run, client: Client, trips: str) -> None:
    refused = here("rm", "store/demo")
    assert (refused.code, len(client.list())) == (app.USAGE, 1)
    assert "rm -r store/demo/" in refused.err
    assert (here("rm", "-r", "store/demo").code, len(client.list())) == (0, 0)


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 1), (b"\n", 1), (b"y\n", 0)])
def test_rm_asks_on_a_terminal(here: Run, client: Client, trips: str, answer: bytes, left: int) -> None:
    asked = here("rm", "-r", "store/demo", stdin=answer, terminal=True)
    assert (asked.code, len(client.list())) == (0, left)
    assert "Delete 1 dataset in store/demo/?" in asked.err


def test_rm_does_not_ask_twice(here: Run, client: Client, trips: str) -> None:
    assert (here("rm", "-r", "-y", "store/demo", terminal=True).code, len(client.list())) == (0, 0)


def test_rm_ends_a_write(here: Run, client: Client) -> None:
    write = open_write(client, "store/a", whole=True)
    assert here("rm", f"write/{write}").text == f"ended write/{write} to store/a\n"
    assert len(client.list("write/")) == 0


def test_call_lists_the_actions_and_calls_them(here: Run, trips: str, client: Client) -> None:
    assert {"write.open", "describe", "health"} <= {line["action"] for line in here("call", "--json").json}
    assert all(re.match(r"\S+ +\S.*\.$", line) for line in here("call").text.splitlines()[1:])
    assert json.loads(here("call", "describe", '{"path": "store/demo/trips"}').text)["rows"] == 100
    assert here("call", "describe", "-", "--json", stdin=b'{"path": "store/demo/trips"}').json[0]["rows"] == 100


# --- for scripts ---------------------------------------------------------------------------


def test_json_of_put_get_and_rm(here: Run, parquet: str, tmp_path: Path) -> None:
    [put] = here("put", "store/a", parquet, "--json").json
    assert {"path", "write", "attempt", "rows", "bytes", "parts", "digest", "seconds"} == set(put)
    assert (put["path"], put["rows"]) == ("store/a", 100)
    assert [row["id"] for row in here("--json", "get", "store/a", "-n", "3").json] == [0, 1, 2]
    [got] = here("--json", "get", "store/a", "-o", str(tmp_path / "o.csv")).json
    assert (got["rows"], got["bytes"]) == (100, (tmp_path / "o.csv").stat().st_size)
    assert here("rm", "--json", "store/a").json[0]["rows"] == 100


def test_the_address_is_taken_before_and_after_the_verb(server: PenstockServer, penstock: Run) -> None:
    assert server.url
    assert penstock("--url", server.url, "ls").code == 0
    assert penstock("ls", "--url", server.url).code == 0
    assert penstock("--url", NOWHERE, "call", "health", "--url", server.url).code == 0


# --- mistakes ------------------------------------------------------------------------------

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
    (("get", "store/none"), app.NOT_FOUND, "no dataset at store/none"),
    (("get", "store/none", "-o", "{tmp}/none.csv"), app.NOT_FOUND, "no dataset at store/none"),
    (("get", "store/demo/trips", "-o", "{tmp}/a.xls"), app.USAGE, ".xls"),
    (("get", "store/demo/trips", "-o", "{tmp}/no/a.csv"), app.NOT_FOUND, "no folder"),
    (("get", "store/demo/trips", "-o", "{tmp}", "--format", "csv"), app.USAGE, "is a folder"),
    (("get", "store/demo/trips", "-c", "id,fair"), app.USAGE, "did you mean 'fare'?"),
    (("get", "store/demo/trips", "-n", "-1"), app.USAGE, "-1"),
    (("show", "store/none"), app.NOT_FOUND, "store/none"),
    (("show", "write/none"), app.NOT_FOUND, "write/none"),
    (("ls", "stor"), app.USAGE, "store/"),
    (("call", "healt"), app.NOT_FOUND, "health"),
    (("call", "describe", "{{"), app.USAGE, "isn't JSON"),
    (("call", "describe", "[]"), app.USAGE, "no object"),
    (("lss",), app.USAGE, "Did you mean 'ls'?"),
    (("ls", "--recursiv"), app.USAGE, "--recursive"),
    (("--url", "http://x", "ls"), app.USAGE, "grpc://host:port"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "said"), MISTAKES, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_a_mistake_is_one_clear_line(
    here: Run, client: Client, trips: str, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
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
    assert said in done.err
    assert "Traceback" not in done.err
    assert ([entry.path for entry in client.list()], len(client.list("write/"))) == (["store/demo/"], 0)
    assert sorted(tmp_path.iterdir()) == files


def test_a_server_that_is_away_is_5(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.session.RETRY_FOR", 0.0)
    done = penstock("--url", NOWHERE, "ls")
    assert (done.code, done.out) == (app.UNAVAILABLE, b"")
    assert "penstock serve" in done.err


def test_a_wrong_token_is_6(
    make_server: Callable[..., PenstockServer], penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("a secret of enough length")
    token.chmod(0o600)
    server = make_server(token_file=token)
    assert server.url
    monkeypatch.setenv("PENSTOCK_URL", server.url)
    assert penstock("ls").code == app.DENIED
    monkeypatch.setenv("PENSTOCK_TOKEN", "another one of some length")
    assert penstock("ls").code == app.DENIED
    assert penstock("doctor").code == app.FAILED
    monkeypatch.setenv("PENSTOCK_TOKEN", "a secret of enough length")
    assert penstock("ls").code == 0


SERVE_MISTAKES = [
    (("--listen", "grpc://0.0.0.0:0"), "--insecure"),
    (("--listen", "8815"), "grpc://host:port"),
    (("--limit", "steams=3"), "did you mean 'streams'?"),
    (("--limit", "streams"), "NAME=VALUE"),
    (("--ticket-life", "soon"), "12h"),
    (("--quota", "lots"), "2GiB"),
    (("--memory-limit", "half"), "2GiB"),
    (("--token", "abc"), "--token-file"),
    (("--token-file", "/nowhere/token"), "does not exist"),
    (("--http", "8816"), "host:port"),
]


@pytest.mark.parametrize(
    ("arguments", "said"), SERVE_MISTAKES, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_serve_refuses_what_cannot_be_meant(penstock: Run, arguments: tuple[str, ...], said: str) -> None:
    done = penstock("serve", *arguments)
    assert (done.code, said in done.err) == (app.USAGE, True), done.err


@pytest.mark.parametrize(
    ("memory", "limit", "streams"),
    [("960MiB", (), 10), ("64GiB", (), 128), ("100MiB", (), 4), ("off", (), 128), ("960MiB", ("streams=50",), 50)],
)
def test_a_server_takes_as_many_streams_as_its_memory_is_enough_for(
    memory: str, limit: tuple[str, ...], streams: int
) -> None:
    size = memory if memory == "off" else parse_bytes(memory)
    assert serve._settings(limit=limit, memory_limit=size).limits.streams == streams


# --- help and completion -------------------------------------------------------------------


@pytest.mark.parametrize("name", list(cli.commands))
def test_every_command_has_an_example(penstock: Run, name: str) -> None:
    shown = penstock(name, "--help").text
    assert re.search(rf"^  Example: .*penstock {name}", shown, re.MULTILINE)
    assert shown.count("Example") == 1
    assert "\\b" not in shown


def test_help_and_version(penstock: Run) -> None:
    shown = penstock("--help")
    assert (shown.code, "Exit codes" in shown.text) == (0, True)
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", penstock("--version").text)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_and_how_to_install_it(penstock: Run, shell: str) -> None:
    first, *script = penstock("completion", shell).text.splitlines()
    assert first.startswith("# to install: ")
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in "\n".join(script)
    assert ("compopt -o nospace" in "\n".join(script)) == (shell == "bash")


@pytest.fixture
def complete(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What bash would offer for the last of these words."""

    def offered(*words: str) -> list[str]:
        monkeypatch.setenv("_PENSTOCK_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["penstock", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with CliRunner().isolation() as (out, _, _), pytest.raises(SystemExit):
            app.run([])
        return [line.partition(",")[2] for line in out.getvalue().decode().splitlines() if line]

    return offered


def test_paths_are_completed_by_asking_the_server(
    server: PenstockServer, trips: str, complete: Callable[..., list[str]]
) -> None:
    url = ("--url", str(server.url))
    assert complete(*url, "get", "st") == ["store/"]
    assert complete(*url, "get", "store/") == ["store/demo/"]
    assert complete(*url, "get", "store/demo/t") == [trips]
    assert complete(*url, "get", "store/demo/x") == []
    assert complete("sh") == ["show"]


def test_completion_is_silent_where_the_server_is_away(complete: Callable[..., list[str]]) -> None:
    assert complete("--url", NOWHERE, "get", "store/") == []
