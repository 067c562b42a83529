"""`serve`: its options and variables, its signals, and what it refuses."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest

from penstock.cli import app, serve
from penstock.client.client import connect
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.server import PenstockServer
from penstock.store.open import parse_bytes
from scripts.child import free_port
from tests.kit.cli import LIMIT, Run, run_process, serving
from tests.kit.server import token_file

ANY = ("--listen", "grpc://127.0.0.1:0", "--http", "off")
MISTAKES = [
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
    (("--client-ca", __file__), "--client-ca needs TLS"),
    (("--tls-cert", __file__), "TLS needs all of"),
    (("--listen", "grpc://127.0.0.1:99999"), "grpc://host:port"),
    (("--advertise", "flight.example"), "--advertise 'flight.example': expected grpc://host:port"),
    (("--memory-limit", "0"), "at least 128 MiB"),
    (("--memory-limit", "60MB"), "at least 128 MiB"),
    (("--limit", "put_idle=10MB"), "90s, 10m or 12h"),
    (("--limit", "streams=10s"), "a number from 1"),
    (("--limit", "streams=0"), "a number from 1"),
    (("--http", "off", "--http-token-file", __file__), "--http is off"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=str)
def test_serve_refuses_what_cannot_be_meant(penstock: Run, arguments: tuple[str, ...], message: str) -> None:
    done = penstock("serve", *arguments)
    assert (done.code, message in done.err) == (app.USAGE, True), done.err


@pytest.mark.parametrize(
    ("memory", "limit", "streams"),
    [("960MiB", (), 10), ("64GiB", (), 128), ("100MiB", (), 4), ("off", (), 128), ("960MiB", ("streams=50",), 50)],
)
def test_the_memory_says_how_many_streams_there_are(memory: str, limit: tuple[str, ...], streams: int) -> None:
    size = memory if memory == "off" else parse_bytes(memory)
    assert serve._settings(limit=limit, memory_limit=size).limits.streams == streams


def test_the_m_of_a_limit_is_a_minute_or_a_million() -> None:
    limits = serve._settings(limit=("put_idle=10m", "get_idle=90", "put_rows=10m"), memory_limit=None).limits
    assert (limits.put_idle, limits.get_idle, limits.put_rows) == (600, 90, 10_000_000)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_serves_until_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    for kept in (0, 2):
        flags = (*ANY, "--data", str(tmp_path / "data"))
        with serving(tmp_path / "log", *flags) as served, connect(served.url, retry_for=5) as client:
            assert sum(entry.rows for entry in client.list()) == kept
            client.put("store/a", pa.table({"x": [1, 2]}), mode="overwrite")
            served.process.send_signal(number)
            assert served.process.wait(LIMIT) == 0


@pytest.mark.process
def test_every_flag_of_serve_is_also_a_variable(tmp_path: Path) -> None:
    """And half of the memory is the limit, where none is named."""
    token, http = token_file(tmp_path), free_port()
    with serving(
        tmp_path / "log",
        PENSTOCK_LISTEN="grpc://127.0.0.1:0", PENSTOCK_HTTP=f"127.0.0.1:{http}", PENSTOCK_STORE="memory:?max=1GB",
        PENSTOCK_DATA=str(tmp_path / "data"), PENSTOCK_TOKEN_FILE=str(token), PENSTOCK_LIMIT="streams=7 put_rows=3",
        PENSTOCK_LOG_LEVEL="error", PENSTOCK_QUOTA="5MB", PENSTOCK_DRAIN="2s", PENSTOCK_TICKET_LIFE="30m",
    ) as served:  # fmt: skip
        assert "store memory:?max=1GB" in served.log
        with urlopen(f"http://127.0.0.1:{http}/readyz", timeout=LIMIT) as answer:
            assert answer.read() == b"ready\n"
        put = ("--url", served.url, "put", "store/a", "-")
        done = run_process(*put, stdin=b"x\n1\n2\n3\n4\n", PENSTOCK_TOKEN=token.read_text())
        assert (done.returncode, b"put_rows" in done.stderr) == (app.USAGE, True)
        assert run_process("--url", served.url, "ls").returncode == app.DENIED
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert resource.prlimit(served.server() or 0, resource.RLIMIT_DATA)[0] == memory // 2


@pytest.mark.process
@pytest.mark.parametrize(("flag", "limit"), [("off", resource.RLIM_INFINITY), ("3GiB", 3 << 30)])
def test_the_memory_limit_is_the_processs_own(tmp_path: Path, flag: str, limit: int) -> None:
    flags = (*ANY, "--data", str(tmp_path / "data"), "--memory-limit", flag)
    with serving(tmp_path / "log", *flags) as served:
        server = served.server() or 0
        assert resource.prlimit(server, resource.RLIMIT_DATA)[0] == limit
        assert resource.prlimit(server, resource.RLIMIT_STACK)[0] <= 1 << 20, "each thread's stack counts"


@pytest.mark.process
def test_serve_says_what_it_cannot_have(tmp_path: Path, server: PenstockServer) -> None:
    """A port, a port for HTTP, a data folder: each stays in use for 10 s, and no traceback says so.

    Nor is a server that refuses to start started again.
    """
    own = str(server.url).replace("+tcp", "")
    with socket.create_server(("127.0.0.1", 0)) as http, ThreadPoolExecutor(3) as pool:
        port = http.getsockname()[1]
        cases = {
            "doctor": ("--data", str(tmp_path / "b"), "--http", "off", "--listen", own),
            "--http off": ("--data", str(tmp_path / "c"), "--http", f"127.0.0.1:{port}", "--listen", ANY[1]),
            "--data": ("--data", str(tmp_path / "data"), *ANY),
        }
        began = time.monotonic()
        all_done = list(pool.map(lambda flags: run_process("serve", *flags), cases.values()))
        assert time.monotonic() - began >= ServerConfig().patience
    for message, done in zip(cases, all_done, strict=True):
        said = re.findall(r"^penstock: .*", done.stderr.decode(), re.MULTILINE)
        assert (done.returncode, len(said), message in said[0]) == (app.UNAVAILABLE, 1, True), done.stderr
        assert b"Traceback" not in done.stderr
