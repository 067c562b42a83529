"""A disk that is full or fails: a clear error, nothing kept by halves, no help needed once the disk works again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.flight as flight
import pytest

from penstock.client.client import connect
from penstock.errors import StoreFull
from tests.kit.faults import failing_server, files_at_most
from tests.kit.server import ProcessServer, named_parts, process_server
from tests.kit.wait import eventually, files
from tests.kit.wire import (
    at,
    attempt_of,
    call,
    error_details,
    ids,
    list_paths,
    new_attempt,
    put,
    read,
    refused,
    trips,
    wide_trips,
)

pytestmark = [pytest.mark.process, pytest.mark.faults]

MIB = 1 << 20


PATHS = pytest.mark.parametrize("path", ["store/x", "topic/x"])


def assert_rows(server: ProcessServer, bare: flight.FlightClient, path: str, *expected: int) -> None:
    """Check that the rows are these, in a topic from offset 0 on, that files and rows agree, and no write is open."""
    assert ids(bare, path) == list(expected)
    if path.startswith("topic/"):
        assert read(bare, path, columns=["_offset"])["_offset"].to_pylist() == list(range(len(expected)))
    eventually(lambda: files(server.data / "parts") == named_parts(server.data))
    assert files(server.data / "tmp") == set()
    assert list_paths(bare, b"write/") == []


def append(path: str, **options: str) -> flight.FlightDescriptor:
    return at(path, attempt=new_attempt(), mode="append", **options)


@PATHS
def test_parts_are_refused_while_the_disk_has_no_room(tmp_path: Path, path: str) -> None:
    with process_server(tmp_path / "d") as server, flight.connect(server.url) as bare:
        put(bare, at(path), [trips(0)])

        with files_at_most(server, 3 * MIB):
            for _ in range(3):
                with refused("full", "no room on the disk", "nothing of it was kept"):
                    put(bare, append(path), wide_trips(*range(90, 110)))
            put(bare, append(path), [trips(1)])
            assert_rows(server, bare, path, 0, 1)

        put(bare, append(path), wide_trips(*range(2, 22)))
        assert_rows(server, bare, path, *range(22))


def test_an_attempt_refused_for_room_may_be_put_again(tmp_path: Path) -> None:
    """The error says when, and the write stays open."""
    with process_server(tmp_path / "d") as server, flight.connect(server.url) as bare:
        ticket = call(bare, "write.open", path="store/x")["ticket"]
        attempt = new_attempt()
        with files_at_most(server, MIB), pytest.raises(flight.FlightUnavailableError) as caught:
            put(bare, attempt_of(ticket, attempt), wide_trips(*range(4)))
        assert error_details(caught.value)["retry_after"] > 0

        put(bare, attempt_of(ticket, attempt), wide_trips(*range(4)))
        call(bare, "write.finish", ticket=ticket, attempts=[attempt])
        assert read(bare, "store/x").num_rows == 4


@PATHS
def test_a_ledger_without_room_changes_nothing(tmp_path: Path, path: str) -> None:
    """The bytes would fit, the row that names them does not. Rows are still read, though no ticket's time is noted."""
    with process_server(tmp_path / "d") as server, flight.connect(server.url) as bare:
        put(bare, at(path), [trips(0)])
        with files_at_most(server, (server.data / "ledger.db-wal").stat().st_size):
            for _ in range(3):
                with refused("full", "no room on the disk for the ledger"):
                    put(bare, append(path), [trips(90)])
            with refused("full", "ledger"):
                call(bare, "delete", path=path)
            assert ids(bare, path) == [0]

        put(bare, append(path), [trips(1)])
        assert_rows(server, bare, path, 0, 1)
        call(bare, "delete", path=path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root, and a system that allows it")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_takes_puts_again_after_a_delete(small_disk: Path) -> None:
    disk = small_disk
    with process_server(disk / "d") as server, flight.connect(server.url) as bare:
        put(bare, at("store/kept"), [trips(1, 2)])
        number = 0
        with refused("full", "no room on the disk"):
            for number in range(10):
                put(bare, at(f"store/fill/{number}"), wide_trips(*range(5)))
        assert 2 <= number <= 4
        assert_rows(server, bare, "store/kept", 1, 2)
        assert ids(bare, "store/fill/0") == list(range(5))

        call(bare, "delete", path="store/fill/1")
        put(bare, at("store/again"), wide_trips(*range(5)))
        assert ids(bare, "store/again") == list(range(5))


def test_a_server_starts_and_reads_on_a_full_disk(small_disk: Path) -> None:
    """A crash has cut a put: its end, which the ledger has no room for, is noted when there is room."""
    data, filler = small_disk / "d", small_disk / "filler"
    with process_server(data) as server, connect(server.url) as client:
        client.put("store/kept", trips(1, 2))
        client.put("topic/kept", trips(1))
        with flight.connect(server.url) as bare:
            cut = at("store/cut", attempt=new_attempt(), run="nightly")
            writer, _ = bare.do_put(cut, trips(1).schema)
            for batch in wide_trips(1, 2, 3):
                writer.write_batch(batch)
            eventually(lambda: client.list("write"))
            server.kill()
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    with process_server(data) as server, connect(server.url, retry_for=0) as client:
        assert client.get("store/kept").read_all()["id"].to_pylist() == [1, 2]
        assert client.get("topic/kept").read_all()["id"].to_pylist() == [1]
        with pytest.raises(StoreFull):
            client.put("store/more", trips(1))
        filler.unlink()
        client.put("store/more", trips(1))  # a sweep follows it
        eventually(lambda: not client.list("write"))
        client.put("store/cut", trips(1, 2), run="nightly")
        assert client.get("store/cut").read_all()["id"].to_pylist() == [1, 2]


def test_rm_works_on_a_disk_that_others_have_filled(small_disk: Path) -> None:
    data, filler = small_disk / "d", small_disk / "filler"
    with process_server(data) as server, connect(server.url, retry_for=0) as client:
        for number in range(3):
            client.put(f"store/{number}", wide_trips(*range(5)))
        eventually((data / "reserve").exists)
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        client.delete("store/0")
        eventually(lambda: client.call("health")["retired_bytes"] == 0)
        client.put("store/again", trips(1))
        client.delete("store/1")


def test_more_parts_are_read_than_files_may_be_open(tmp_path: Path) -> None:
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))"
    with process_server(tmp_path / "d", prelude=few) as server, flight.connect(server.url) as bare:
        for part in range(200):
            put(bare, at("store/x", mode="append", attempt=new_attempt()), [trips(part)])
        for _ in range(2):
            assert ids(bare, "store/x") == list(range(200))


# --- a disk that fails ---------------------------------------------------------------------


@PATHS
@pytest.mark.parametrize(
    ("system_call", "code", "words"),
    [("fsync", "errno.EIO", "the disk failed (Input/output error)"), ("writev", "errno.EIO", "the disk failed"),
     ("rename", "errno.EIO", "the disk failed"), ("writev", "errno.ENOSPC", "no room on the disk"),
     ("fsync", "errno.EDQUOT", "no room on the disk"), ("open", "errno.EIO", "the disk failed")],
)  # fmt: skip
def test_a_put_to_a_failing_disk_is_refused(tmp_path: Path, path: str, system_call: str, code: str, words: str) -> None:
    """A run of one row, a large put, and the run again: once the disk works each is there, once."""
    puts = [(append(path, run="the run"), [trips(2)]), (append(path), wide_trips(*range(3, 15)))]
    puts.append(puts[0])
    with failing_server(tmp_path / "d", system_call, code) as (server, flag), flight.connect(server.url) as bare:
        put(bare, at(path), [trips(0, 1)])
        flag.touch()
        for descriptor, rows in puts:
            with refused("full" if "room" in words else "unavailable", words, "nothing of it was kept"):
                put(bare, descriptor, rows)
        flag.unlink()
        assert_rows(server, bare, path, 0, 1)

        for descriptor, rows in puts:
            put(bare, descriptor, rows)
        assert_rows(server, bare, path, *range(15))


def test_a_sweep_on_a_failing_disk_is_repeated(tmp_path: Path) -> None:
    with failing_server(tmp_path / "d", "unlink") as (server, flag), flight.connect(server.url) as bare:
        put(bare, at("store/x"), [trips(1)])
        put(bare, at("store/kept"), [trips(2)])
        flag.touch()
        call(bare, "delete", path="store/x", now=True)
        eventually(lambda: "Input/output error" in server.log(), what="the sweep meets the error")
        assert len(files(server.data / "parts")) == 2
        flag.unlink()

        put(bare, at("store/y"), [trips(3)])  # each put wakes the sweep
        eventually(
            lambda: files(server.data / "parts") == named_parts(server.data) and len(named_parts(server.data)) == 2
        )


def test_an_unreadable_part_is_an_error_and_not_a_loss(tmp_path: Path) -> None:
    with process_server(tmp_path / "d") as server, flight.connect(server.url) as bare:
        put(bare, at("store/x"), [trips(1, 2)])
        (part,) = (server.data / "parts").rglob("*-*")
        away = part.rename(tmp_path / "away")
        part.mkdir()
        with refused("unavailable", "the disk failed"):
            read(bare, "store/x")
        part.rmdir()
        away.rename(part)
        assert ids(bare, "store/x") == [1, 2]
