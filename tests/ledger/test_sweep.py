"""The sweep removes bytes that nothing names any more, and only those; a start removes what a crash left."""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import steps
from penstock.errors import Lost, Unavailable
from penstock.ledger import tables
from penstock.ledger.attempts import Attempt
from penstock.ledger.ledger import IDLE, Ledger
from penstock.ledger.sweep import Sweeper, free, recover
from penstock.queue.topics import journal
from penstock.store import payloads
from penstock.store.database import Database
from penstock.store.disk import DiskMedium
from penstock.store.payloads import SplitPayloadStore
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.rows import assert_same, numbers

PATH = "store/a"


class House:
    """A ledger and a store over one folder, as a server has them."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        self.start()

    def start(self) -> None:
        self.database = Database(self.folder / "ledger.db", tables.TABLES, journal.TABLES, payloads.TABLES)
        self.ledger = Ledger(self.database, {"topic": journal}, now=self.clock.now)
        self.store = SplitPayloadStore(DiskMedium(self.folder), self.database, url="test:", now=self.clock.now)

    def restart(self) -> None:
        self.store.close()
        self.database.close()
        self.start()

    def attempt(self, *rows: int) -> Attempt:
        name, schema = uuid.uuid4().hex, numbers(0).schema
        parts = [self.store.write(f"{name}-{at}", schema, numbers(n).to_batches()) for at, n in enumerate(rows)]
        return Attempt(name, schema, sum(rows), tuple(parts))

    def wrote(self, *rows: int, mode: str = "append") -> list[str]:
        """A finished write of one attempt; the names of its parts."""
        attempt = self.attempt(*rows)
        self.ledger.finish_single(self.ledger.open_write(PATH, mode=mode).id, attempt)  # type: ignore[arg-type]
        return [part.name for part in attempt.parts]

    def kept(self) -> set[str]:
        return {name for name, _ in self.store.medium.names()}


@pytest.fixture
def house(tmp_path: Path, clock: Clock) -> Iterator[House]:
    found = House(tmp_path, clock)
    yield found
    found.store.close()
    found.database.close()


@pytest.fixture
def stopped() -> Iterator[list[Sweeper]]:
    """Sweepers that end with the test."""
    started: list[Sweeper] = []
    yield started
    for sweeper in started:
        sweeper.close()


def test_bytes_of_deleted_and_overwritten_datasets_go(house: House) -> None:
    old = house.wrote(3, 4)
    new = house.wrote(5, mode="overwrite")
    assert free(house.ledger, house.store) == 2
    assert house.kept() == set(new)
    assert house.ledger.part_names() == new
    house.ledger.delete(PATH)
    assert free(house.ledger, house.store) == 1
    assert house.kept() == set()
    assert house.store.used == 0
    with pytest.raises(Lost):
        house.store.open(old[0])


def test_bytes_of_attempts_that_were_not_chosen_go(house: House) -> None:
    write, one, two = house.ledger.open_write(PATH).id, house.attempt(3), house.attempt(4)
    house.ledger.record(write, one)
    house.ledger.record(write, two)
    assert free(house.ledger, house.store) == 0
    house.ledger.finish(write, [one.id])
    assert free(house.ledger, house.store) == 1
    assert house.kept() == {part.name for part in one.parts}


def test_what_a_ticket_names_is_still_served_until_its_time(house: House, clock: Clock) -> None:
    (name,) = house.wrote(3)
    house.ledger.snapshot(PATH, ticketed_until=clock.now() + 600)
    house.ledger.delete(PATH)
    clock.advance(600)
    assert free(house.ledger, house.store) == 0
    assert_same(house.store.open(name).reader().read_all(), numbers(3))
    clock.advance(120)
    assert free(house.ledger, house.store) == 1
    assert house.kept() == set()


def test_what_is_visible_open_or_a_payload_is_left_alone(house: House) -> None:
    visible = house.wrote(1, 2)
    open_attempt = house.attempt(3)
    house.ledger.record(house.ledger.open_write("store/b").id, open_attempt)
    house.store.store("k", numbers(4))
    before = house.kept()
    assert len(before) == 4
    assert free(house.ledger, house.store) == 0
    assert recover(house.ledger, house.store) == 0
    house.restart()
    assert recover(house.ledger, house.store) == 0
    assert house.kept() == before
    assert set(visible) < before


def test_a_start_removes_the_parts_of_puts_that_a_crash_cut(house: House) -> None:
    kept = house.wrote(1)
    for _ in range(3):
        house.attempt(5, 6)  # durable, never recorded
    house.restart()
    assert recover(house.ledger, house.store) == 6
    assert house.kept() == set(kept)
    assert recover(house.ledger, house.store) == 0


def test_a_start_ends_the_puts_that_were_writes_of_their_own_and_no_other_write(house: House) -> None:
    own = [house.ledger.open_write(path, own=True).id for path in ("store/b", "store/c")]
    finished = house.ledger.open_write("store/d", own=True).id
    house.ledger.finish_single(finished, house.attempt(1))
    driven = house.ledger.open_write("store/e").id
    house.restart()
    recover(house.ledger, house.store)
    assert [house.ledger.summary(write).state for write in own] == ["aborted", "aborted"]
    assert house.ledger.summary(finished).state == "finished"
    assert [write.write for write in house.ledger.open_writes()] == [driven]


def test_a_crash_between_bytes_and_rows_is_ended_by_the_next_sweep(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.wrote(1, 2)
    house.ledger.delete(PATH)

    monkeypatch.setattr(steps, "passed", crash_at("sweep.deleted"))
    with pytest.raises(Crash):
        free(house.ledger, house.store)
    monkeypatch.undo()
    house.restart()
    assert house.kept() == set()
    assert free(house.ledger, house.store) == 2
    assert house.ledger.part_names() == []
    assert free(house.ledger, house.store) == 0


def test_rows_go_after_their_bytes_and_stay_if_a_byte_cannot_go(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    names = house.wrote(1, 2)
    house.ledger.delete(PATH)
    with monkeypatch.context() as patch:
        patch.setattr(DiskMedium, "delete", _cannot)
        with pytest.raises(Unavailable, match="the disk failed"):
            free(house.ledger, house.store)
    assert sorted(house.ledger.part_names()) == sorted(names)
    assert free(house.ledger, house.store) == 2


def _cannot(medium: DiskMedium, name: str) -> None:
    raise Unavailable("the disk failed")


def test_a_disk_that_fails_at_a_delete_says_so_by_a_type(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.wrote(1)
    house.ledger.delete(PATH)

    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path), missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(Unavailable, match="deleting part"):
            free(house.ledger, house.store)
    assert free(house.ledger, house.store) == 1


def test_many_parts_are_forgotten_in_some_transactions(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ledger.sweep._BATCH", 3)
    kept = house.wrote(1)
    for _ in range(10):
        write, one = house.ledger.open_write("store/b").id, house.attempt(1)
        house.ledger.record(write, one)
        house.ledger.abort(write)
    assert free(house.ledger, house.store) == 10
    assert house.kept() == set(kept)


# --- the thread ----------------------------------------------------------------------------


class Swept:
    """Told by the ledger whenever a sweep is over."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        self._times = threading.Semaphore(0)
        sweep = house.store.sweep

        def swept() -> int:
            try:
                return sweep()
            finally:
                self._times.release()

        monkeypatch.setattr(house.store, "sweep", swept)

    def wait(self) -> None:
        assert self._times.acquire(timeout=20), "no sweep within 20 s"


def test_the_sweeper_sweeps_at_its_start_and_soon_after_it_is_told(
    house: House, stopped: list[Sweeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    house.wrote(1)
    house.ledger.delete(PATH)
    swept = Swept(house, monkeypatch)
    sweeper = Sweeper(house.ledger, house.store, every=3_600)
    stopped.append(sweeper)
    sweeper.start()
    swept.wait()
    assert house.kept() == set()
    house.wrote(1)
    house.ledger.delete(PATH)
    sweeper.soon()
    swept.wait()
    assert house.kept() == set()


def test_the_sweeper_expires_idle_writes_and_payloads(
    house: House, clock: Clock, stopped: list[Sweeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, one = house.ledger.open_write(PATH).id, house.attempt(3)
    house.ledger.record(write, one)
    house.store.store("k", numbers(1), ttl=60)
    clock.advance(IDLE + 1)
    swept = Swept(house, monkeypatch)
    stopped.append(Sweeper(house.ledger, house.store, every=0.01))
    stopped[0].start()
    swept.wait()
    assert house.ledger.summary(write).state == "expired"
    assert house.kept() == set()


def test_a_sweep_that_fails_is_tried_again(
    house: House, stopped: list[Sweeper], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house.wrote(1)
    house.ledger.delete(PATH)
    delete, tries = DiskMedium.delete, iter(range(100))

    def fails_twice(medium: DiskMedium, name: str) -> None:
        if next(tries) < 2:
            raise Unavailable("the disk failed")
        delete(medium, name)

    monkeypatch.setattr(DiskMedium, "delete", fails_twice)
    swept = Swept(house, monkeypatch)
    stopped.append(Sweeper(house.ledger, house.store, every=0.01))
    stopped[0].start()
    swept.wait()  # the first sweep that came this far
    assert house.kept() == set()
    assert [record.getMessage() for record in caplog.records].count("sweep: the disk failed") == 2


def test_a_sweeper_that_never_began_may_be_closed(house: House) -> None:
    Sweeper(house.ledger, house.store).close()
