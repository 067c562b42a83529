"""Clients in other languages, built once from their sources into the user's cache; no code of penstock's is in them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts import java, maven
from scripts.kafka_broker import cache

SOURCES = Path(__file__).parents[1] / "clients"
_FETCH = 300.0  # seconds for modules or jars, which took 10
_BUILD = 600.0  # seconds, of which 40 were enough on two free cores
_ADD_OPENS = "--add-opens=java.base/java.nio=ALL-UNNAMED"


@pytest.fixture(scope="session")
def go_client() -> list[str]:
    """Return the command of the client in Go."""
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        pytest.skip("the client in Go needs go: apt install golang, 1.24 or newer")
    folder = SOURCES / "go"
    with _built(folder, "go") as target:
        program = target / "wire"
        if not program.exists():
            _fetched("Go's modules", [go, "mod", "download"], folder)
            _run([go, "build", "-trimpath", "-o", str(target / "wire.new"), "."], folder)
            (target / "wire.new").rename(program)
    return [str(program)]


@pytest.fixture(scope="session")
def java_client() -> list[str]:
    """Return the command of the client in Java."""
    if (lack := java.missing("the client in Java", 11)) is not None:
        pytest.skip(lack)
    javac = shutil.which("javac", path=os.pathsep.join((str(Path(java.program()).parent), os.environ["PATH"])))
    if javac is None:
        pytest.skip("the client in Java needs javac: apt install openjdk-17-jdk-headless")
    folder = SOURCES / "java"
    with _built(folder, "java") as target:
        if lack := maven.fetch("Arrow's jars", (folder / "pom.xml").read_text(), target / "libs", limit=_FETCH):
            pytest.skip(lack)
        if not (target / "classes").exists():
            _run([javac, "-cp", f"{target}/libs/*", "-d", str(target / "classes.new"), "Wire.java"], folder)
            (target / "classes.new").rename(target / "classes")
    return [java.program(), "-XX:TieredStopAtLevel=1", _ADD_OPENS, "-cp", f"{target}/classes:{target}/libs/*", "Wire"]


@contextmanager
def _built(folder: Path, name: str) -> Iterator[Path]:
    """Give the folder for what is built of these sources, to one process at a time."""
    digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in sorted(folder.iterdir()))).hexdigest()
    target = cache() / f"client-{name}-{digest[:16]}"
    target.mkdir(parents=True, exist_ok=True)
    with open(target / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield target


def _fetched(what: str, command: Sequence[str], folder: Path) -> None:
    try:
        subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=_FETCH)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as failed:
        pytest.skip(f"{what} aren't here, and can't be fetched: {str(failed.stderr or failed)[-300:]}")


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_BUILD)
    assert done.returncode == 0, done.stderr[-3000:]
