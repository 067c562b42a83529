"""The sweep removes bytes that no row names any more, and no others; a start removes what a crash left behind."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import steps
from penstock.errors import Lost, StoreFull, Unavailable
from penstock.ledger import sweep
from penstock.ledger.attempts import Attempt
from penstock.ledger.ledger import IDLE, REMEMBERED, Ledger
from penstock.ledger.sweep import Sweeper, drop_schemas, free, recover
from penstock.ledger.tables import to_schema
from penstock.queue.topics.topics import Topics
from penstock.store.disk import DiskMedium
from penstock.store.payload_table import PayloadRow
from penstock.store.payloads import Store
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.rows import numbers
from tests.kit.topics import Reach
from tests.kit.wait import eventually

PATH = "store/a"


def named_schemas(folder: DataFolder) -> list[str]:
    """Return the first column of each schema that the ledger has."""
    rows = folder.ledger.database.rows("SELECT ipc FROM schemas")
    return sorted(to_schema(row["ipc"]).names[0] for row in rows)


class DataFolder(Reach):
    """A ledger and a store over one folder, as a server has them."""

    def reopen(self) -> None:
        """Open the folder again as a process that starts, before it recovers."""
        self.close()
        self.start(DiskMedium(self.folder))

    def recover(self) -> int:
        return recover(self.ledger, self.store)

    def attempt(self, *rows: int) -> Attempt:
        name, schema = uuid.uuid4().hex, numbers(0).schema
        parts = [
            self.store.write(f"{name}-{at}", schema, numbers(n).to_batches(), path="store/a")
            for at, n in enumerate(rows)
        ]
        return Attempt(name, schema, sum(rows), tuple(parts))

    def payload(self, key: str, rows: int, *, ttl: float | None = None) -> None:
        """Store a payload that has a part."""
        table = numbers(rows)
        part = self.store.write(uuid.uuid4().hex, table.schema, table.to_batches(), path=f"store/{key}")
        expires = None if ttl is None else self.ledger.now() + ttl
        row = PayloadRow(key, part.name, None, rows, part.bytes, expires, schema=table.schema)
        self.ledger.bind_payloads([row])

    def write(self, *rows: int, mode: str = "append") -> list[str]:
        """Finish a write of one attempt, and return the names of its parts."""
        attempt = self.attempt(*rows)
        self.ledger.finish_single(self.ledger.open_write(PATH, mode=mode).id, attempt)  # type: ignore[arg-type]
        return [part.name for part in attempt.parts]


@pytest.fixture
def folder(tmp_path: Path, clock: Clock) -> Iterator[DataFolder]:
    folder = DataFolder(tmp_path, clock)
    yield folder
    folder.close()


@pytest.fixture
def sweepers() -> Iterator[list[Sweeper]]:
    """Close the sweepers that a test starts."""
    sweepers: list[Sweeper] = []
    yield sweepers
    for sweeper in sweepers:
        sweeper.close()


def test_bytes_of_deleted_and_overwritten_datasets_are_removed(folder: DataFolder) -> None:
    old = folder.write(3, 4)
    new = folder.write(5, mode="overwrite")
    assert folder.free() == 2
    assert folder.kept() == set(new)
    assert folder.ledger.part_names() == new
    folder.ledger.delete(PATH)
    assert folder.free() == 1
    assert folder.kept() == set()
    assert folder.store.used == 0
    with pytest.raises(Lost):
        folder.store.open(old[0])


def test_bytes_of_unlisted_attempts_are_removed(folder: DataFolder) -> None:
    write, one, two = folder.ledger.open_write(PATH).id, folder.attempt(3), folder.attempt(4)
    folder.ledger.record(write, one)
    folder.ledger.record(write, two)
    assert folder.free() == 0
    folder.ledger.finish(write, [one.id])
    assert folder.free() == 1
    assert folder.kept() == {part.name for part in one.parts}


def test_visible_parts_open_attempts_and_payloads_stay(folder: DataFolder) -> None:
    visible = folder.write(1, 2)
    open_attempt = folder.attempt(3)
    folder.ledger.record(folder.ledger.open_write("store/b").id, open_attempt)
    folder.payload("k", 4)
    before = folder.kept()
    assert len(before) == 4
    assert folder.free() == 0
    assert folder.recover() == 0
    folder.reopen()
    assert folder.recover() == 0
    assert folder.kept() == before
    assert set(visible) < before


def test_a_start_removes_the_parts_of_interrupted_puts(folder: DataFolder) -> None:
    kept = folder.write(1)
    for _ in range(3):
        folder.attempt(5, 6)  # durable, never recorded
    folder.reopen()
    assert folder.recover() == 6
    assert folder.kept() == set(kept)
    assert folder.recover() == 0


def test_a_start_aborts_single_puts_and_no_other_write(folder: DataFolder) -> None:
    single = [folder.ledger.open_write(path, own=True).id for path in ("store/b", "store/c")]
    finished = folder.ledger.open_write("store/d", own=True).id
    folder.ledger.finish_single(finished, folder.attempt(1))
    opened = folder.ledger.open_write("store/e").id
    folder.reopen()
    folder.recover()
    assert [folder.ledger.summary(write).state for write in single] == ["aborted", "aborted"]
    assert folder.ledger.summary(finished).state == "finished"
    assert [write.write for write in folder.ledger.open_writes()] == [opened]


def test_the_next_sweep_completes_one_that_crashed(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The crash fell between the bytes and the rows that name them."""
    folder.write(1, 2)
    folder.ledger.delete(PATH)

    monkeypatch.setattr(steps, "passed", crash_at("sweep.deleted"))
    with pytest.raises(Crash):
        folder.free()
    monkeypatch.undo()
    folder.reopen()
    assert folder.kept() == set()
    assert folder.free() == 2
    assert folder.ledger.part_names() == []
    assert folder.free() == 0


def test_rows_stay_while_their_bytes_cannot_be_deleted(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    names = folder.write(1, 2)
    folder.ledger.delete(PATH)
    with monkeypatch.context() as patch:
        patch.setattr(DiskMedium, "delete", _delete_fails)
        with pytest.raises(Unavailable, match="the disk failed"):
            folder.free()
    assert sorted(folder.ledger.part_names()) == sorted(names)
    assert folder.free() == 2


def _delete_fails(medium: DiskMedium, name: str) -> None:
    raise Unavailable("the disk failed")


def test_a_failed_delete_raises_unavailable(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(1)
    folder.ledger.delete(PATH)

    def unlink(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(Unavailable, match="deleting part"):
            folder.free()
    assert folder.free() == 1


def test_a_schema_goes_with_the_last_row_that_names_it(folder: DataFolder, clock: Clock) -> None:
    """Datasets, topics, open writes and attempts name schemas, and parts for as long as tickets hold them."""
    schemas = [pa.schema([(f"x{number}", pa.int64())]) for number in range(5)]
    Topics(folder.ledger).create("topic/x", schemas[0])
    open_write = folder.ledger.open_write("store/open", schema=schemas[1])
    for number in (2, 3):
        write = folder.ledger.open_write(f"store/{number}", schema=schemas[number])
        folder.ledger.finish(write.id, [])
    aborted = folder.ledger.open_write("store/aborted", schema=schemas[4])
    folder.ledger.abort(aborted.id)
    folder.write(1)
    drop_schemas(folder.ledger)
    kept = numbers(0).schema
    assert named_schemas(folder) == sorted([kept.names[0], "x0", "x1", "x2", "x3", "x4"])

    folder.ledger.delete("store/3")
    folder.ledger.hold(PATH, clock.now() + 2 * REMEMBERED)
    folder.ledger.delete(PATH)
    clock.advance(REMEMBERED - IDLE + 2)
    folder.ledger.touch(open_write.id)
    clock.advance(IDLE - 1)
    folder.ledger.expire()
    drop_schemas(folder.ledger)
    assert named_schemas(folder) == sorted([kept.names[0], "x0", "x1", "x2"])
    clock.advance(2 * REMEMBERED)
    free(folder.ledger, folder.store)
    drop_schemas(folder.ledger)
    assert named_schemas(folder) == ["x0", "x1", "x2"]


def test_a_schema_that_is_named_again_meanwhile_stays(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write is opened with it, after it was found unused."""
    schema = pa.schema([("x", pa.int64())])
    folder.ledger.change(lambda t: t.schema_id(schema))
    assert folder.ledger.unused_schemas(10)
    writes = []
    monkeypatch.setattr(steps, "passed", lambda step: writes.append(folder.ledger.open_write(PATH, schema=schema).id))
    drop_schemas(folder.ledger)
    assert [folder.ledger.write(write).schema for write in writes] == [schema]
    monkeypatch.undo()
    folder.ledger.abort(writes[0])


def test_many_parts_are_forgotten_in_several_transactions(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ledger.sweep._BATCH", 3)
    kept = folder.write(1)
    for _ in range(10):
        write, one = folder.ledger.open_write("store/b").id, folder.attempt(1)
        folder.ledger.record(write, one)
        folder.ledger.abort(write)
    assert folder.free() == 10
    assert folder.kept() == set(kept)


# --- the thread ----------------------------------------------------------------------------


class Sweeps:
    """Lets a test wait for the end of each sweep."""

    def __init__(self, folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ended = threading.Semaphore(0)
        free = sweep.free

        def free_and_count(ledger: Ledger, store: Store) -> int:
            freed = free(ledger, store)
            self._ended.release()
            return freed

        monkeypatch.setattr(sweep, "free", free_and_count)

    def wait(self) -> None:
        assert self._ended.acquire(timeout=20), "no sweep within 20 s"


def test_the_sweeper_sweeps_at_its_start_and_on_demand(
    folder: DataFolder, sweepers: list[Sweeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write(1)
    folder.ledger.delete(PATH)
    sweeps = Sweeps(folder, monkeypatch)
    sweeper = Sweeper(folder.ledger, folder.store, every=3_600)
    sweepers.append(sweeper)
    sweeper.start()
    sweeps.wait()
    assert folder.kept() == set()
    folder.write(1)
    folder.ledger.delete(PATH)
    sweeper.soon()
    sweeps.wait()
    assert folder.kept() == set()


def test_the_sweeper_expires_idle_writes_and_payloads(
    folder: DataFolder, clock: Clock, sweepers: list[Sweeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, one = folder.ledger.open_write(PATH).id, folder.attempt(3)
    folder.ledger.record(write, one)
    folder.payload("k", 1, ttl=60)
    clock.advance(IDLE + 1)
    sweeps = Sweeps(folder, monkeypatch)
    sweepers.append(Sweeper(folder.ledger, folder.store, every=0.01))
    sweepers[0].start()
    sweeps.wait()
    assert folder.ledger.summary(write).state == "expired"
    assert folder.kept() == set()


def test_bytes_are_freed_where_nothing_can_expire(
    folder: DataFolder, sweepers: list[Sweeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the ledger can't note what expires, and deleting bytes is what makes room."""

    def has_no_room(ledger: Ledger) -> list[str]:
        raise StoreFull("no room on the disk")

    folder.write(1)
    folder.ledger.delete(PATH)
    monkeypatch.setattr(Ledger, "expire", has_no_room)
    sweepers.append(Sweeper(folder.ledger, folder.store, every=3_600))
    sweepers[0].start()
    eventually(lambda: folder.kept() == set())


def test_a_sweep_that_fails_is_retried(
    folder: DataFolder, sweepers: list[Sweeper], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write(1)
    folder.ledger.delete(PATH)
    delete, tries = DiskMedium.delete, iter(range(100))

    def fails_twice(medium: DiskMedium, name: str) -> None:
        if next(tries) < 2:
            raise Unavailable("the disk failed")
        delete(medium, name)

    monkeypatch.setattr(DiskMedium, "delete", fails_twice)
    sweeps = Sweeps(folder, monkeypatch)
    sweepers.append(Sweeper(folder.ledger, folder.store, every=0.01))
    sweepers[0].start()
    sweeps.wait()  # for the first sweep that came so far
    assert folder.kept() == set()
    assert [record.getMessage() for record in caplog.records].count("sweep: the disk failed") == 2


def test_a_sweeper_that_was_never_started_may_be_closed(folder: DataFolder) -> None:
    Sweeper(folder.ledger, folder.store).close()


def test_few_long_schemas_are_kept_in_memory() -> None:
    """A schema may have 4 MiB: of long ones the last four are kept, of short ones a thousand."""
    short, *others = (pa.schema([(f"x{number}", pa.int8())]).serialize().to_pybytes() for number in range(500))
    long, *more = (pa.schema([("x" * 20_000, pa.int8())], {"n": str(n)}).serialize().to_pybytes() for n in range(5))
    kept, dropped = to_schema(short), to_schema(long)
    for ipc in (*others, *more):
        to_schema(ipc)
    assert to_schema(short) is kept
    assert to_schema(long) is not dropped
    assert to_schema(long).equals(dropped, check_metadata=True)
