"""`doctor`: what it checks, and that it says what to do."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli import app
from penstock.client.client import Client
from penstock.errors import PenstockError
from penstock.flight_server.server import PenstockServer
from tests.kit.certificates import Certificates
from tests.kit.cli import NOWHERE, Run
from tests.kit.server import token_file

Check = Callable[..., tuple[int, dict[str, tuple[str, str]]]]


@pytest.fixture
def check(here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Check:
    """doctor's exit code and lines by what was checked; of ports and a folder that this test alone has."""
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PENSTOCK_LISTEN", f"grpc://127.0.0.1:{one.getsockname()[1]}")
        monkeypatch.setenv("PENSTOCK_HTTP", f"127.0.0.1:{two.getsockname()[1]}")
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "new" / "data"))

    def run(*arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
        done = here(*arguments, "doctor", "--json")
        return done.code, {line["check"]: (line["state"], line["said"]) for line in done.json}

    return run


def install_java(home: Path, output: str) -> None:
    """A Java that only tells its version."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    java.chmod(0o700)


def test_doctor_finds_all_in_order(
    check: Check, here: Run, server: PenstockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, checks = check()
    assert code == 0
    assert [state for what, (state, _) in checks.items() if what != "Java"] == ["ok"] * (len(checks) - 1)
    assert {"Python", "penstock", "extra cli", "Java", "data folder", "server", "token"} < set(checks)
    monkeypatch.setenv("PENSTOCK_LISTEN", str(server.url))
    assert check()[1][f"port {server.port}"] == ("ok", "a penstock server has it")
    assert re.match(r"ok +Python +3\.\d+\.\d+\n", here("doctor").text)


def test_another_distribution_of_that_name_stops_no_doctor(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index has another penstock, and a build leaves an egg-info beside an editable install."""
    info = tmp_path / "penstock-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("penstock\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert check()[1]["extra cli"][0] == "ok"


def test_doctor_says_how_to_start_a_server(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    code, checks = check("--url", NOWHERE)
    assert (code, checks["server"][0]) == (app.FAILED, "problem")
    monkeypatch.setattr("penstock.cli.doctor._DEFAULT_URL", NOWHERE)
    code, checks = check("--url", NOWHERE)
    assert (code, checks["server"][0], "penstock serve" in checks["server"][1]) == (0, "note", True)


def test_doctor_finds_a_port_that_is_taken(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("PENSTOCK_LISTEN", f"grpc://127.0.0.1:{port}")
        code, checks = check()
    state, text = checks[f"port {port}"]
    assert (code, state, "serve --listen" in text) == (app.FAILED, "problem", True)


@pytest.mark.parametrize(("name", "value", "what"), [
    ("PENSTOCK_LISTEN", "grpc://127.0.0.1:http", "serve --listen"), ("PENSTOCK_HTTP", "8816", "serve --http"),
    ("PENSTOCK_DATA", __file__, "data folder"),
])  # fmt: skip
def test_doctor_finds_a_variable_that_is_wrong(
    check: Check, monkeypatch: pytest.MonkeyPatch, name: str, value: str, what: str
) -> None:
    monkeypatch.setenv(name, value)
    code, checks = check()
    assert (code, checks[what][0], value in checks[what][1]) == (app.FAILED, "problem", True)


@pytest.mark.parametrize(("output", "state"), [
    ('openjdk version "21.0.2" 2024', "ok"), ('java version "1.8.0_392"', "note"), ("nothing", "note"), (None, "note"),
])  # fmt: skip
def test_doctor_wants_java_17_for_spark_alone(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str | None, state: str
) -> None:
    if output is not None:
        install_java(tmp_path, output)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, checks = check()
    assert (code, checks["Java"][0]) == (0, state)


@pytest.mark.parametrize(("java", "spark", "state"), [
    ("17.0.15", "3.5.9", "ok"), ("21.0.2", "4.1.4", "ok"), ("25", "4.1.4", "note"), ("25.0.3", "3.5.9", "note"),
    ("25.0.3", "4.2.1", "ok"), ("25.0.3", "10.0.0.dev1", "ok"), ("25.0.3", None, "ok"),
])  # fmt: skip
def test_doctor_knows_which_spark_runs_on_which_java(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: str, spark: str | None, state: str
) -> None:
    install_java(tmp_path, f'openjdk version "{java}" 2026')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("penstock.cli.doctor._version", lambda package: spark if package == "pyspark" else "1.0")
    assert check()[1]["Java"][0] == state
    assert ("JAVA_HOME" in check()[1]["Java"][1]) == (state == "note")


def test_doctor_recognises_a_penstock_that_keeps_it_out(
    check: Check, make_server: Callable[..., PenstockServer], certificates: Certificates, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    guarded = make_server(data=tmp_path / "g", **certificates.of_server, token_file=token_file(tmp_path))
    monkeypatch.setenv("PENSTOCK_LISTEN", f"grpc+tls://127.0.0.1:{guarded.port}")
    code, checks = check("--url", NOWHERE)
    assert checks[f"port {guarded.port}"] == ("ok", "a penstock server has it")
    code, checks = check("--url", f"grpc://127.0.0.1:{guarded.port}")
    assert (code, checks["server"][0], "is a server with TLS" in checks["server"][1]) == (app.FAILED, "problem", True)


def test_doctor_counts_quarantined_parts(check: Check, client: Client, tmp_path: Path) -> None:
    client.put("store/x", pa.table({"id": [1, 2, 3]}))
    (part,) = [file for file in (tmp_path / "data" / "parts").rglob("*") if file.is_file()]
    damaged = bytearray(part.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    part.write_bytes(damaged)
    with pytest.raises(PenstockError):
        client.get("store/x").read_all()
    assert check()[1]["parts"][0] == "problem"
