"""The command line in processes of its own: pipes, terminals, the interpreter's start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli import app
from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from tests.kit.cli import LIMIT, PENSTOCK, ROOT, environment, on_a_terminal, run_process, started

pytestmark = pytest.mark.process


def test_a_reader_that_has_enough_is_no_fault(server: PenstockServer, client: Client) -> None:
    """`penstock get … | head`."""
    client.put("store/long", pa.table({"x": range(1_000_000)}))
    with started("--url", str(server.url), "get", "store/long") as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b'{"x": 0}\n'
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(LIMIT) == app.BROKEN_PIPE


def test_a_server_without_tls_is_told_of_by_us_alone(server: PenstockServer) -> None:
    """Without gRPC's own lines about the handshake."""
    done = run_process("--url", f"grpc+tls://{str(server.url).rpartition('//')[2]}", "ls")
    assert done.stderr.startswith(b"penstock: grpc+tls://"), done.stderr


def test_get_writes_to_a_pipe_by_its_name(server: PenstockServer, client: Client) -> None:
    """A shell's `>(…)` is /dev/fd/N, a link to what has no path; of stdout nothing else is written to it."""
    client.put("store/a", pa.table({"x": [1, 2]}))
    get = ("--url", str(server.url), "get", "store/a", "--format", "csv", "-o")
    done = run_process(*get, "/dev/stdout")
    assert (done.returncode, done.stdout) == (0, b'"x"\n1\n2\n'), done.stderr
    source, target = os.pipe()
    with open(source, "rb") as pipe:
        command = [*PENSTOCK, *get, f"/dev/fd/{target}"]
        code = subprocess.run(
            command, pass_fds=[target], env=environment(), cwd=ROOT, timeout=60, stdout=subprocess.PIPE, check=False
        ).returncode
        os.close(target)
        assert (code, pipe.read()) == (0, b'"x"\n1\n2\n')


def test_a_terminal_shows_progress_and_colours(server: PenstockServer, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(50), "y": ["z"] * 50}), tmp_path / "a.parquet")
    url = ("--url", str(server.url))
    code, screen = on_a_terminal(*url, "put", "store/a", str(tmp_path / "a.parquet"))
    assert (code, "━" in screen) == (0, True)
    code, screen = on_a_terminal(*url, "put", "topic/x", "-", stdin=b'{"id": 1}\n' * 2_500)
    assert (code, "topic/x: 2,500 rows durable" in screen, "topic/x: 2,500 rows, " in screen) == (0, True, True)
    code, screen = on_a_terminal(*url, "get", "store/a")
    assert (code, "20 of 50 rows" in screen, "\x1b[1m" in screen) == (0, True, True)
    assert len(re.findall(r"^ +\d+  z\s*$", screen, re.MULTILINE)) == 20
    code, screen = on_a_terminal(*url, "get", "store/none")
    assert (code, screen.startswith("\x1b[31mpenstock: ")) == (app.NOT_FOUND, True)


def python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)


def test_help_starts_without_pyarrow_and_tables() -> None:
    done = python(
        "import sys; from penstock.cli.app import run; run(['--help']); run(['get', '--help']);"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {"click", "penstock"} <= loaded
    assert not {"pyarrow", "rich", "sqlite3", "numpy"} & loaded


@pytest.mark.parametrize("missing", ["click", "rich"])
@pytest.mark.parametrize(("verb", "extras"), [("ls", "cli"), ("serve", "cli,serve")])
def test_without_the_extra_it_says_how_to_get_it(missing: str, verb: str, extras: str) -> None:
    done = python(
        f"import sys; sys.modules[{missing!r}] = None; from penstock.cli.app import run; sys.exit(run([{verb!r}]))"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pip install 'penstock-flight[{extras}]'" in done.stderr
    assert "Traceback" not in done.stderr
