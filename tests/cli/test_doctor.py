"""`doctor`: what it finds, and that it says what to do."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli import app
from penstock.client.client import Client
from penstock.errors import PenstockError
from penstock.flight_server.server import PenstockServer
from tests.kit.cli import NOWHERE, Ran, Run


@pytest.fixture
def free_ports(penstock: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """doctor looks at ports and at a folder that this test alone has, where `penstock` has put away the user's own."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        listen, http = one.getsockname()[1], two.getsockname()[1]
    monkeypatch.setenv("PENSTOCK_LISTEN", f"grpc://127.0.0.1:{listen}")
    monkeypatch.setenv("PENSTOCK_HTTP", f"127.0.0.1:{http}")
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "new" / "data"))


def checks(done: Ran) -> dict[str, tuple[str, str]]:
    """doctor's lines by what was checked."""
    return {line["check"]: (line["state"], line["said"]) for line in done.json}


def java_says(home: Path, said: str) -> None:
    """A Java that only tells its version."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o700)


@pytest.mark.usefixtures("free_ports")
def test_doctor_finds_all_in_order(here: Run, server: PenstockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    done = here("doctor", "--json")
    found = checks(done)
    assert done.code == 0
    assert [state for what, (state, _) in found.items() if what != "Java"] == ["ok"] * (len(found) - 1)
    assert {"Python", "penstock", "extra cli", "Java", "data folder", "server", "token"} < set(found)
    monkeypatch.setenv("PENSTOCK_LISTEN", str(server.url))
    assert checks(here("doctor", "--json"))[f"port {server.port}"] == ("ok", "a penstock server has it")
    assert re.match(r"ok +Python +3\.\d+\.\d+\n", here("doctor").text)


@pytest.mark.usefixtures("free_ports")
def test_doctor_says_what_to_do_about_a_server_that_is_away(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    done = penstock("--url", NOWHERE, "doctor", "--json")
    assert (done.code, checks(done)["server"][0]) == (app.FAILED, "problem")
    monkeypatch.setattr("penstock.cli.doctor._USUAL", NOWHERE)
    done = penstock("--url", NOWHERE, "doctor", "--json")
    assert (done.code, checks(done)["server"][0]) == (0, "note")
    assert "penstock serve" in checks(done)["server"][1]


@pytest.mark.usefixtures("free_ports")
def test_doctor_finds_a_port_that_another_program_has(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("PENSTOCK_LISTEN", f"grpc://127.0.0.1:{port}")
        done = here("doctor", "--json")
    assert (done.code, checks(done)[f"port {port}"][0]) == (app.FAILED, "problem")
    assert "serve --listen" in checks(done)[f"port {port}"][1]


@pytest.mark.usefixtures("free_ports")
@pytest.mark.parametrize(("name", "value"), [("PENSTOCK_LISTEN", "grpc://127.0.0.1:http"), ("PENSTOCK_HTTP", "8816")])
def test_doctor_finds_an_address_that_is_none(
    here: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    done = here("doctor", "--json")
    option = name.replace("PENSTOCK_", "serve --").lower()
    assert (done.code, checks(done)[option][0]) == (app.FAILED, "problem")
    assert value in checks(done)[option][1]


@pytest.mark.usefixtures("free_ports")
def test_doctor_finds_a_folder_that_cannot_be_written(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch(0o700)
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path / "file"))
    done = here("doctor", "--json")
    assert (done.code, checks(done)["data folder"][0]) == (app.FAILED, "problem")


@pytest.mark.usefixtures("free_ports")
@pytest.mark.parametrize(
    ("said", "state"),
    [
        ('openjdk version "21.0.2" 2024', "ok"),
        ('java version "1.8.0_392"', "note"),
        ("nothing", "note"),
        (None, "note"),
    ],
)
def test_doctor_wants_java_17_for_spark_alone(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None, state: str
) -> None:
    if said is not None:
        java_says(tmp_path, said)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = here("doctor", "--json")
    assert (done.code, checks(done)["Java"][0]) == (0, state)


@pytest.mark.usefixtures("free_ports")
@pytest.mark.parametrize(
    ("java", "spark", "state"),
    [
        ("17.0.15", "3.5.9", "ok"),
        ("21.0.2", "4.1.4", "ok"),
        ("25", "4.1.4", "note"),
        ("25.0.3", "3.5.9", "note"),
        ("25.0.3", "4.2.1", "ok"),
        ("25.0.3", "10.0.0.dev1", "ok"),
        ("25.0.3", None, "ok"),
    ],
)
def test_doctor_knows_which_spark_runs_on_which_java(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: str, spark: str | None, state: str
) -> None:
    java_says(tmp_path, f'openjdk version "{java}" 2026')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("penstock.cli.doctor._version", lambda package: spark if package == "pyspark" else "1.0")
    found = checks(here("doctor", "--json"))["Java"]
    assert (found[0], "JAVA_HOME" in found[1]) == (state, state == "note")


def test_doctor_counts_what_is_quarantined(here: Run, client: Client, tmp_path: Path) -> None:
    client.put("store/x", pa.table({"id": [1, 2, 3]}))
    (part,) = [file for file in (tmp_path / "data" / "parts").rglob("*") if file.is_file()]
    damaged = bytearray(part.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    part.write_bytes(damaged)
    with pytest.raises(PenstockError):
        client.get("store/x").read_all()

    assert checks(here("doctor", "--json"))["parts"][0] == "problem"
