"""`doctor`: what this machine has of what penstock needs, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

import click

import penstock
from penstock.cli import terminal
from penstock.cli.app import FAILED
from penstock.cli.invocation import Invocation, command
from penstock.client.diagnosis import is_penstock, join
from penstock.errors import Denied, InvalidRequest, PenstockError
from penstock.text import format_size

_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}
_DISTRIBUTION = "penstock-flight"
_FREE_DISK = 1 << 30
_DEFAULT_URL = "grpc://127.0.0.1:8815"
_JAVA = 17  # the oldest that Spark 4 runs on
_JAVA_BEFORE_42 = 21  # the newest that Spark runs on before 4.2: tried with 25, where 3.5, 4.0 and 4.1 fail


class Finding(NamedTuple):
    """One line: what was checked, how it is, and what to do."""

    state: Literal["ok", "note", "problem"]
    check: str
    text: str


@command("Check this machine and the server; say what to do.", "penstock doctor")
def doctor(invocation: Invocation) -> int:
    """Check Python, packages, Java, ports, disk and the server; say what to do. The exit code is 1 for a problem."""
    url = invocation.url or os.environ.get("PENSTOCK_URL") or _DEFAULT_URL
    code = 0
    for state, check, text in (*_packages(), _java(), _data_folder(), *_ports(), *_server(invocation, url)):
        if invocation.json:
            terminal.print_json({"check": check, "state": state, "said": text})
        else:
            click.echo(f"{click.style(state.ljust(7), fg=_COLOURS[state])}  {check.ljust(12)}  {text}")
        code = FAILED if state == "problem" else code
    return code


def _packages() -> Iterator[Finding]:
    yield Finding("ok", "Python", platform.python_version())  # pip refuses one that is too old
    yield Finding("ok", "penstock", f"{penstock.__version__}, pyarrow {_version('pyarrow')}")
    extras: dict[str, list[str]] = {}
    for requirement in _requirements():
        match = re.match(r"([\w.-]+)(\[.*?\])?.*;.*\bextra == ['\"](\w+)['\"]", requirement)
        if match and match[1] != _DISTRIBUTION and match[3] != "dev":
            extras.setdefault(match[3], []).append(match[1])
    for extra, packages in sorted(extras.items()):
        missing = [name for name in packages if _version(name) is None]
        if missing:
            yield Finding(
                "note", f"extra {extra}", f"lacks {', '.join(missing)}: pip install '{_DISTRIBUTION}[{extra}]'"
            )
        else:
            yield Finding("ok", f"extra {extra}", ", ".join(f"{name} {_version(name)}" for name in packages))


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # not installed: a checkout on PYTHONPATH
        return []


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java") or "java"
    try:
        java = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=20, check=False)  # noqa: S603  # the user's own Java
    except (OSError, subprocess.TimeoutExpired):
        return Finding("note", "Java", f"there is none; only Spark needs it: apt install openjdk-{_JAVA}-jre-headless")
    match = re.search(r'version "(?:1\.)?(\d+)', java.stderr + java.stdout)  # 8 called itself 1.8
    version, spark = int(match[1]) if match else 0, _version("pyspark")
    if version < _JAVA:
        return Finding("note", "Java", f"{version or 'unknown'} at {program}; Spark needs {_JAVA} or newer (JAVA_HOME)")
    if version > _JAVA_BEFORE_42 and spark and tuple(map(int, spark.split(".")[:2])) < (4, 2):
        cure = f"set JAVA_HOME to a {_JAVA} or {_JAVA_BEFORE_42}, or take Spark 4.2 or newer"
        return Finding("note", "Java", f"{version} at {program}: Spark {spark} doesn't run on it; {cure}")
    return Finding("ok", "Java", str(version))


def _data_folder() -> Finding:
    from penstock.flight_server.config import default_data

    folder = Path(os.environ.get("PENSTOCK_DATA") or default_data()).expanduser()
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return Finding("problem", "data folder", f"{folder} can't be written: choose one with serve --data")
    free = shutil.disk_usage(existing).free
    text = f"{folder}, {format_size(free)} free"
    if free < _FREE_DISK:
        return Finding("problem", "data folder", f"{text}: make room, or choose another with serve --data")
    return Finding("ok", "data folder", text)


def _ports() -> Iterator[Finding]:
    """Check the ports that `serve` would take."""
    from penstock.flight_server.config import DEFAULT_HTTP, DEFAULT_LISTEN

    listen = os.environ.get("PENSTOCK_LISTEN") or DEFAULT_LISTEN
    yield _port("--listen", listen, _address(listen), is_penstock)
    http = os.environ.get("PENSTOCK_HTTP") or DEFAULT_HTTP
    if http != "off":
        yield _port("--http", http, _address(f"http://{http}"), _is_healthy)


def _is_healthy(host: str, port: int) -> bool:
    """Whether a penstock's pages are there."""
    with suppress(OSError, ValueError), urlopen(f"http://{join(host, port)}/healthz", timeout=2) as answer:
        return bool(answer.read() == b"ok\n")
    return False


def _port(option: str, url: str, address: tuple[str, int] | None, is_ours: Callable[[str, int], bool]) -> Finding:
    if address is None:
        return Finding("problem", f"serve {option}", f"{url!r} has no host and port")
    check = f"port {address[1]}"
    try:
        with socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET):
            return Finding("ok", check, "free")
    except OSError as error:
        if is_ours(*address):
            return Finding("ok", check, "a penstock server has it")
        cure = f"stop the program that has it, or choose another: serve {option}"
        return Finding("problem", check, f"{error.strerror}: {cure}")


def _address(url: str) -> tuple[str, int] | None:
    parts = urlsplit(url)
    with suppress(ValueError):  # of a port that is no number
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    return None


def _server(invocation: Invocation, url: str) -> Iterator[Finding]:
    """Check whether the server answers, takes the token, and is of this version."""
    try:
        with invocation.connect(timeout=5.0, retry_for=0.0) as client:
            client.list("write/")
            yield Finding("ok", "token", "taken" if client.settings.token else "none needed")
            health = client.call("health")
    except Denied as error:
        yield Finding("problem", "token", str(error))
    except InvalidRequest as error:  # the address, or TLS
        yield Finding("problem", "server", str(error))
    except PenstockError as error:
        if url == _DEFAULT_URL:  # how everybody begins; at an address that was chosen it is a fault
            yield Finding("note", "server", f"none at {url}: penstock serve starts one")
        else:
            cure = "check the address and the server's log"
            yield Finding("problem", "server", f"none answers at {url}: {cure} ({error})")
    else:
        if health["version"] == penstock.__version__:
            yield Finding("ok", "server", f"{url}: {health['state']}, store {health['store']}")
        else:
            versions = f"version {health['version']}, here it is {penstock.__version__}"
            yield Finding("note", "server", f"{url} has {versions}: use the same")
        if corrupt := health["quarantined_parts"]:
            cure = "datasets that had them can't be read: write those again, and look at the disk"
            yield Finding("problem", "parts", f"{corrupt} corrupt: {cure}")
