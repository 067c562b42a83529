"""The command line in processes of its own: `serve` and its signals, pipes, terminals, the interpreter's start."""

from __future__ import annotations

import os
import pty
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli import app
from penstock.client.client import connect
from penstock.flight_server.server import PenstockServer
from tests.kit.cli import COMMAND, ROOT, environment
from tests.kit.server import free_port

pytestmark = pytest.mark.process

LIMIT = 30.0  # seconds for anything that is waited for


def run(*arguments: str, stdin: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    """A command line, to its end."""
    command = [*COMMAND, *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, env=environment(**variables), cwd=ROOT, timeout=60, check=False
    )


@contextmanager
def serving(log: Path, *arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """`penstock serve`, once it says where; its process, its address, what it has said."""
    with log.open("wb") as file:
        process = subprocess.Popen([*COMMAND, "serve", *arguments], stderr=file, env=environment(**variables), cwd=ROOT)
    try:
        yield process, wait_for(r"^penstock serves (\S+)", log, process), log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(LIMIT)


def wait_for(pattern: str, log: Path, process: subprocess.Popen[bytes]) -> str:
    """The group that the pattern finds in the log, once it is there."""
    give_up = time.monotonic() + LIMIT
    while time.monotonic() < give_up:
        if found := re.search(pattern + r".*\n", log.read_text(), re.MULTILINE):
            return found[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.01)
    raise AssertionError(f"no {pattern} in {log.read_text()}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_serves_until_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    table = pa.table({"x": [1, 2]})
    flags = ("--listen", "grpc://127.0.0.1:0", "--http", "off", "--data", str(tmp_path / "data"))
    for kept in (0, 2):
        with serving(tmp_path / "log", *flags) as (process, url, _), connect(url, retry_for=5) as client:
            assert sum(entry.rows for entry in client.list()) == kept
            client.put("store/a", table, mode="overwrite")
            process.send_signal(number)
            assert process.wait(LIMIT) == 0


def test_every_flag_of_serve_is_also_a_variable(tmp_path: Path) -> None:
    """And half of the memory is the limit, where none is named."""
    token, http = tmp_path / "token", free_port()
    token.write_text("a secret of enough length")
    token.chmod(0o600)
    with serving(
        tmp_path / "log",
        PENSTOCK_LISTEN="grpc://127.0.0.1:0", PENSTOCK_HTTP=f"127.0.0.1:{http}", PENSTOCK_STORE="memory:?max=1GB",
        PENSTOCK_DATA=str(tmp_path / "data"), PENSTOCK_TOKEN_FILE=str(token), PENSTOCK_LIMIT="streams=7 put_rows=3",
        PENSTOCK_LOG_LEVEL="error", PENSTOCK_QUOTA="5MB", PENSTOCK_DRAIN="2s", PENSTOCK_TICKET_LIFE="30m",
    ) as (process, url, said):  # fmt: skip
        assert "store memory:?max=1GB" in said
        with urlopen(f"http://127.0.0.1:{http}/readyz", timeout=LIMIT) as answer:
            assert answer.read() == b"ready\n"
        done = run("--url", url, "put", "store/a", "-", stdin=b"x\n1\n2\n3\n4\n", PENSTOCK_TOKEN=token.read_text())
        assert (done.returncode, b"put_rows" in done.stderr) == (app.USAGE, True)
        assert run("--url", url, "ls").returncode == app.DENIED
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert resource.prlimit(process.pid, resource.RLIMIT_DATA)[0] == memory // 2


@pytest.mark.parametrize(("given", "limit"), [("off", resource.RLIM_INFINITY), ("3GiB", 3 << 30)])
def test_the_memory_limit_is_the_processs_own(tmp_path: Path, given: str, limit: int) -> None:
    flags = ("--listen", "grpc://127.0.0.1:0", "--http", "off", "--data", str(tmp_path / "data"))
    with serving(tmp_path / "log", *flags, "--memory-limit", given) as (process, _, _):
        assert resource.prlimit(process.pid, resource.RLIMIT_DATA)[0] == limit
        assert resource.prlimit(process.pid, resource.RLIMIT_STACK)[0] <= 1 << 20, "each thread's stack counts"


def test_serve_says_what_it_cannot_have(tmp_path: Path, server: PenstockServer) -> None:
    """A port, a port for HTTP, a data folder: each is in use, and no traceback says so."""
    data = ("--data", str(tmp_path / "other"))
    with socket.create_server(("127.0.0.1", 0)) as http:
        port = http.getsockname()[1]
        for flags, said in (
            ((*data, "--http", "off", "--listen", str(server.url).replace("+tcp", "")), "doctor"),
            ((*data, "--http", f"127.0.0.1:{port}", "--listen", "grpc://127.0.0.1:0"), "--http off"),
            (("--data", str(tmp_path / "data"), "--http", "off", "--listen", "grpc://127.0.0.1:0"), "--data"),
        ):
            done = run("serve", *flags)
            assert (done.returncode, said in done.stderr.decode()) == (app.UNAVAILABLE, True), done.stderr
            assert b"Traceback" not in done.stderr


def test_a_reader_that_has_enough_is_no_fault(server: PenstockServer) -> None:
    """`penstock get … | head`."""
    url = str(server.url)
    with connect(url) as client:
        client.put("store/long", pa.table({"x": range(1_000_000)}))
    process = subprocess.Popen(
        [*COMMAND, "--url", url, "get", "store/long"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=ROOT,
    )  # fmt: skip
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline() == b'"x"\n'
    process.stdout.close()
    with process.stderr as errors:
        assert errors.read() == b""
    assert process.wait(LIMIT) == app.BROKEN_PIPE


def test_get_writes_to_a_pipe_by_its_name(server: PenstockServer) -> None:
    """A shell's `>(…)` is /dev/fd/N, a link to what has no path; of stdout nothing else is written to it."""
    with connect(url := str(server.url)) as client:
        client.put("store/a", pa.table({"x": [1, 2]}))
    done = run("--url", url, "get", "store/a", "-o", "/dev/stdout", "--format", "csv")
    assert (done.returncode, done.stdout) == (0, b'"x"\n1\n2\n'), done.stderr
    source, target = os.pipe()
    with open(source, "rb") as pipe:
        command = [*COMMAND, "--url", url, "get", "store/a", "-o", f"/dev/fd/{target}", "--format", "csv"]
        code = subprocess.run(
            command, pass_fds=[target], env=environment(), cwd=ROOT, timeout=60, stdout=subprocess.PIPE, check=False
        ).returncode
        os.close(target)
        assert (code, pipe.read()) == (0, b'"x"\n1\n2\n')


def test_ctrl_c_ends_a_put_with_130_and_leaves_nothing(server: PenstockServer) -> None:
    url = str(server.url)
    process = subprocess.Popen(
        [*COMMAND, "--url", url, "put", "store/a", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), cwd=ROOT,
    )  # fmt: skip
    assert process.stdin
    with connect(url) as client:
        process.stdin.write(b"x\n" + b"1\n" * (8 << 20))  # more than a pipe, a head and a block hold
        process.stdin.flush()
        until(lambda: len(client.list("write/")) == 1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT)
        assert (process.returncode, b"Traceback" in said) == (app.INTERRUPTED, False), said
        until(lambda: len(client.list("write/")) == 0)
        assert len(client.list()) == 0


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def on_a_terminal(*arguments: str, **variables: str) -> tuple[int, str]:
    """Exit code and screen of a command line whose three streams are a terminal of 24 x 80."""
    parent, child = pty.openpty()
    os.set_inheritable(child, True)
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=child, stdout=child, stderr=child, cwd=ROOT,
        env=environment(TERM="xterm-256color", **variables),
    )  # fmt: skip
    os.close(child)
    seen = b""
    give_up = time.monotonic() + LIMIT
    while time.monotonic() < give_up:
        if not select.select([parent], [], [], 0.1)[0]:
            continue
        try:
            seen += os.read(parent, 65_536)
        except OSError:  # EIO: the other end is closed
            break
    os.close(parent)
    return process.wait(LIMIT), seen.decode()


def test_a_terminal_is_shown_a_preview_and_progress_in_colour(server: PenstockServer, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(50), "y": ["z"] * 50}), tmp_path / "a.parquet")
    url = str(server.url)
    code, screen = on_a_terminal("--url", url, "put", "store/a", str(tmp_path / "a.parquet"))
    assert (code, "━" in screen) == (0, True)
    code, screen = on_a_terminal("--url", url, "get", "store/a")
    assert (code, "20 of 50 rows" in screen, "\x1b[1m" in screen) == (0, True, True)
    assert len(re.findall(r"^ +\d+  z\s*$", screen, re.MULTILINE)) == 20
    code, screen = on_a_terminal("--url", url, "get", "store/none")
    assert (code, screen.startswith("\x1b[31mpenstock: ")) == (app.NOT_FOUND, True)


def test_help_starts_without_pyarrow_and_tables() -> None:
    code = (
        "import sys; from penstock.cli.app import run; run(['--help']); run(['get', '--help']);"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {"click", "penstock"} <= loaded
    assert not {"pyarrow", "rich", "sqlite3", "numpy"} & loaded


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_it_says_how_to_get_it(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from penstock.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'penstock[cli]'" in done.stderr
    assert "Traceback" not in done.stderr
