"""`doctor`: what this machine has of what penstock needs, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

import click

import penstock
from penstock.cli import tables
from penstock.cli.app import FAILED
from penstock.cli.session import Session, example, pass_session, shared
from penstock.errors import Denied, PenstockError
from penstock.text import format_size

_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}
_NEEDED_DISK = 1 << 30
_USUAL = "grpc://127.0.0.1:8815"
_JAVA = 17  # the oldest that Spark 4 runs on
_JAVA_BEFORE_42 = 21  # the newest that Spark runs on before 4.2: tried with 25, where 3.5, 4.0 and 4.1 fail


class Finding(NamedTuple):
    """One line: what was looked at, what was seen, what to do."""

    state: Literal["ok", "note", "problem"]
    what: str
    said: str


@click.command(epilog=example("penstock doctor"), short_help="Check this machine and the server; say what to do.")
@shared
@pass_session
def doctor(session: Session) -> int:
    """Check Python, packages, Java, ports, disk and the server; say what to do. The exit code is 1 for a problem."""
    code = 0
    for state, what, said in _findings(session):
        if session.json:
            tables.lines({"check": what, "state": state, "said": said})
        else:
            click.echo(f"{click.style(state.ljust(7), fg=_COLOURS[state])}  {what.ljust(11)}  {said}")
        code = FAILED if state == "problem" else code
    return code


def _findings(session: Session) -> Iterator[Finding]:
    yield _python()
    yield from _packages()
    yield _java()
    yield _data_folder()
    url = session.url or os.environ.get("PENSTOCK_URL") or _USUAL
    server = list(_server(session, url))
    yield from _ports(_address(url) if len(server) > 1 or server[0].what == "token" else None)
    yield from server


def _python() -> Finding:
    """pip refuses an older one, but a checkout on PYTHONPATH runs with any."""
    version = platform.python_version()
    if tuple(map(int, platform.python_version_tuple()[:2])) < (3, 11):
        return Finding("problem", "Python", f"{version}: penstock needs 3.11 or newer")
    return Finding("ok", "Python", version)


def _packages() -> Iterator[Finding]:
    yield Finding("ok", "penstock", f"{penstock.__version__}, pyarrow {_version('pyarrow')}")
    for extra, needed in sorted(_extras().items()):
        lacking = [name for name in needed if _version(name) is None]
        cure = f"lacks {', '.join(lacking)}: pip install 'penstock[{extra}]'"
        found = ", ".join(f"{name} {_version(name)}" for name in needed)
        yield Finding("note" if lacking else "ok", f"extra {extra}", cure if lacking else found)


def _extras() -> dict[str, list[str]]:
    """The extras that penstock was installed with a choice of, and the packages of each."""
    found: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("penstock") or []:
        matched = re.match(r"([\w.-]+)(\[.*?\])?.*;.*\bextra == ['\"](\w+)['\"]", requirement)
        if matched and matched[1] != "penstock" and matched[3] != "dev":
            found.setdefault(matched[3], []).append(matched[1])
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java") or "java"
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=20, check=False)  # noqa: S603  # the user's own Java
    except (OSError, subprocess.TimeoutExpired):
        cure = f"apt install openjdk-{_JAVA}-jre-headless, or alike"
        return Finding("note", "Java", f"none found; only Spark needs it: {cure}")
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)  # 8 called itself 1.8
    version = int(found[1]) if found else 0
    if version < _JAVA:
        return Finding("note", "Java", f"{version or 'unknown'} at {program}; Spark needs {_JAVA} or newer (JAVA_HOME)")
    spark = _version("pyspark")
    if version > _JAVA_BEFORE_42 and spark and tuple(map(int, spark.split(".")[:2])) < (4, 2):
        cure = f"set JAVA_HOME to a {_JAVA} or {_JAVA_BEFORE_42}, or take Spark 4.2 or newer"
        return Finding("note", "Java", f"{version} at {program}: Spark {spark} doesn't run on it; {cure}")
    return Finding("ok", "Java", str(version))


def _data_folder() -> Finding:
    from penstock.flight_server.config import default_data

    folder = Path(os.environ.get("PENSTOCK_DATA") or default_data())
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return Finding("problem", "data folder", f"{folder} can't be written: choose one with serve --data")
    free = shutil.disk_usage(there).free
    text = f"{folder}, {format_size(free)} free"
    if free < _NEEDED_DISK:
        return Finding("problem", "data folder", f"{text}: make room, or choose another with serve --data")
    return Finding("ok", "data folder", text)


def _ports(reached: tuple[str, int] | None) -> Iterator[Finding]:
    """The ports that `serve` would take, by its variables or defaults; a server was reached at one of them, or not."""
    from penstock.flight_server import config

    listen = os.environ.get("PENSTOCK_LISTEN") or config.DEFAULT_LISTEN
    http = os.environ.get("PENSTOCK_HTTP") or config.DEFAULT_HTTP
    where = _address(listen)
    yield _port("--listen", listen, ours=bool(reached and where and reached[1] == where[1]))
    if http != "off":
        yield _port("--http", f"http://{http}", ours=_is_healthy(f"http://{http}/healthz"))


def _port(option: str, url: str, *, ours: bool) -> Finding:
    address = _address(url)
    if address is None:
        return Finding("problem", f"serve {option}", f"{url!r} has no host and port")
    what = f"port {address[1]}"
    try:
        with socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET):
            return Finding("ok", what, "free")
    except OSError as refused:
        cure = f"{refused.strerror}: end what has it, or choose another with serve {option}"
        return Finding("ok", what, "a penstock server has it") if ours else Finding("problem", what, cure)


def _address(url: str) -> tuple[str, int] | None:
    where = urlsplit(url)
    try:
        return (where.hostname, where.port) if where.hostname and where.port else None
    except ValueError:  # a port that is no number
        return None


def _is_healthy(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as answer:  # noqa: S310  # http, see above
            return bool(answer.read() == b"ok\n")
    except (OSError, ValueError):
        return False


def _server(session: Session, url: str) -> Iterator[Finding]:
    """Whether the server answers, is of this version, and lets us in."""
    try:
        with session.connect(timeout=5.0, retry_for=0.0) as client:
            client.list("write/")
            yield Finding("ok", "token", "taken" if client.settings.token else "none needed")
            health = client.call("health")
            same = health["version"] == penstock.__version__
            other = f"{url} is {health['version']}, this is {penstock.__version__}: use the same"
            said = f"{url}: {health['state']}, store {health['store']}" if same else other
            yield Finding("ok" if same else "note", "server", said)
            if corrupt := health["quarantined_parts"]:
                cure = "reads of what had them fail by name; write those datasets again, see the disk"
                yield Finding("problem", "parts", f"{corrupt} corrupt: {cure}")
    except Denied as refused:
        yield Finding("problem", "token", str(refused))
    except PenstockError as away:
        if url == _USUAL:  # how everybody begins; at a place that was named it is a fault
            yield Finding("note", "server", f"none at {url}: penstock serve starts one")
        else:
            yield Finding("problem", "server", f"none answers at {url}: look for the address and its log ({away})")
