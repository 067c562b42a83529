"""Small parts of a dataset become one: the same rows in the same order, for readers with tickets and without."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import steps
from penstock.client.client import Client
from penstock.errors import Lost, PenstockError, StoreFull
from penstock.flight_server.server import PenstockServer
from penstock.ledger import merging, parts
from penstock.ledger.datasets import SmallPart
from penstock.ledger.ledger import REMEMBERED
from penstock.ledger.verify import verify
from penstock.queue.destinations import DESTINATIONS, TABLES
from penstock.queue.work import work_queues
from penstock.store import database
from penstock.store.database import FORMAT, Database
from penstock.store.disk import DiskMedium
from penstock.store.medium import Medium
from penstock.store.memory import MemoryMedium
from tests.kit.clock import Clock
from tests.kit.datasets import PATH, Datasets
from tests.kit.faults import Crash, crash_at, fail_first_write, varied
from tests.kit.profiles import examples
from tests.kit.rows import numbers
from tests.kit.server import named_parts, process_server, served
from tests.kit.wait import eventually
from tests.kit.wire import at, fetch, ids, info, new_attempt, put, trips

HOUR = 3600.0
_VISIBLE = "state = 'visible'"


@pytest.fixture
def folder(tmp_path: Path, clock: Clock) -> Iterator[Datasets]:
    folder = Datasets(tmp_path, clock)
    yield folder
    folder.close()


# --- which parts ---------------------------------------------------------------------------


def small(*sizes: int) -> list[SmallPart]:
    return [SmallPart(str(seq), seq, 1, 1, size, 0, None) for seq, size in enumerate(sizes)]


def chosen(*sizes: int) -> list[list[int]]:
    """Return the places of the parts in each run that is worth it."""
    return [[part.seq for part in run] for run in merging.runs(small(*sizes), merging._follows)]


def test_many_small_parts_are_worth_it_and_few_are_not() -> None:
    assert chosen(*[1_000] * 15) == []
    assert chosen(*[1_000] * 16) == [[*range(16)]]
    assert chosen(*[1_000] * 300) == [[*range(256)], [*range(256, 300)]]


def test_few_parts_are_worth_it_if_they_fill_a_part() -> None:
    assert chosen(*[900_000] * 8) == []
    assert chosen(*[900_000] * 10) == [[*range(10)]]


def test_a_large_part_waits_until_as_much_is_behind_it() -> None:
    assert chosen(900_000, *[1_000] * 20) == [[*range(1, 21)]]
    assert chosen(900_000, 500_000, 400_000, *[1_000] * 15) == [[*range(18)]]
    assert chosen(900_000, 300_000, *[1_000] * 15) == []


@settings(max_examples=examples(10))
@given(st.data())
def test_rows_are_written_again_only_so_often_as_parts_double(data: st.DataObject) -> None:
    """Parts stay few whatever their sizes, and what is written again is a few times what was appended."""
    dice = random.Random(data.draw(st.integers(0, 2**32)))
    largest, every = data.draw(st.sampled_from([1_000, 20_000, 300_000])), data.draw(st.sampled_from([1, 16, 40]))
    now: list[SmallPart] = []
    appended = written = 0
    for seq in range(600):
        size = dice.randrange(600, largest + 1)
        appended += size
        now.append(SmallPart(str(seq), seq, 1, 1, size, 0, None))
        if seq % every == 0:
            for run in list(merging.runs([part for part in now if part.bytes < merging.SMALL], merging._follows)):
                total = sum(part.bytes for part in run)
                merged = SmallPart("m", run[0].seq, run[-1].end - run[0].seq, len(run), total, 0, None)
                written += total
                first = now.index(run[0])
                now[first : first + len(run)] = [merged]
    assert [part.end for part in now[:-1]] == [part.seq for part in now[1:]]
    assert written <= 8 * appended + (64 << 10) * 600 / 15
    left = [part for part in now if part.bytes < merging.SMALL]
    large = len(now) - len(left)
    assert len(left) <= (large + 1) * 40 + every


# --- the same rows -------------------------------------------------------------------------


class MergingContract:
    """What every medium has to bear: parts of it are merged, and the parts before stay for as long as tickets."""

    def medium(self, folder: Path) -> Medium:
        raise NotImplementedError

    @pytest.fixture
    def folder(self, tmp_path: Path, clock: Clock) -> Iterator[Datasets]:
        with contextlib.closing(Datasets(tmp_path, clock, self.medium(tmp_path))) as folder:
            yield folder

    def test_one_part_has_the_same_rows_in_order(self, folder: Datasets) -> None:
        folder.append(20)
        old, before = folder.parts(), folder.table()
        changed = folder.ledger.dataset(PATH).changed
        folder.clock.advance(5)
        assert folder.compactor.compact() == 20
        assert folder.table().equals(before)
        (part,) = folder.slices()
        dataset = folder.ledger.dataset(PATH)
        assert (dataset.part_count, dataset.rows, dataset.bytes) == (1, 20, part.bytes)
        assert (dataset.changed, dataset.compacted) == (changed, folder.clock.now())
        assert folder.free() == 0, "a backup may be copying them"
        folder.clock.advance(60)
        assert folder.free() == 20
        assert folder.kept() == {part.part}
        assert part.part not in old
        assert folder.store.used == part.bytes

    def test_tickets_keep_the_parts_that_they_name(self, folder: Datasets) -> None:
        folder.append(20)
        read = folder.slices(ticketed_until=folder.clock.now() + HOUR)
        before = folder.table_of(read)
        folder.compactor.compact()
        folder.append(20, start=20)
        folder.compactor.compact()
        assert folder.free() == 0
        assert folder.table_of(read).equals(before)
        folder.clock.advance(HOUR - 1)
        assert folder.free() == 0
        folder.clock.advance(120)
        assert folder.free() == 41
        assert folder.kept() == set(folder.parts())


class TestOnDisk(MergingContract):
    def medium(self, folder: Path) -> Medium:
        return DiskMedium(folder)


class TestInMemory(MergingContract):
    def medium(self, folder: Path) -> Medium:
        return MemoryMedium(folder / "spill", max_bytes=1 << 30)


def test_columns_of_every_layout_are_merged_unchanged(folder: Datasets) -> None:
    batches = [pa.Table.from_batches([batch]) for batch in varied().to_batches()]
    for number in range(16):
        folder.write(batches[number % 2])
    before = folder.table()
    assert folder.compactor.compact() == 16
    assert len(folder.parts()) == 1
    assert folder.table().to_pylist() == before.to_pylist()
    assert folder.table().schema.equals(before.schema, check_metadata=True)


def test_merged_parts_are_merged_again_as_they_are_many(folder: Datasets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MANY", 4)
    monkeypatch.setattr(merging, "MOST", 5)
    folder.append(50)
    assert [folder.compactor.compact() for _ in range(3)] == [50, 10, 0]
    assert folder.table()["n"].to_pylist() == list(range(50))


def test_parts_of_another_schema_are_left_apart(folder: Datasets) -> None:
    """An append may add nullable columns: rows before it are null there, when they are read."""
    folder.append(20)
    for number in range(20, 40):
        folder.write(numbers(1, number).append_column("more", pa.array([number])))
    assert folder.compactor.compact() == 40
    assert [each.rows for each in folder.slices()] == [20, 20]
    assert [each.schema.names for each in folder.slices()] == [["n", "s"], ["n", "s", "more"]]
    assert folder.table()["n"].to_pylist() == list(range(40))
    assert folder.table()["more"].to_pylist() == [None] * 20 + list(range(20, 40))
    assert folder.compactor.compact() == 0


def test_large_parts_part_the_small_ones(folder: Datasets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "SMALL", 3_000)
    monkeypatch.setattr(merging, "MANY", 3)
    for number, rows in enumerate([1, 1, 1, 500, 1, 1, 500, 1, 1, 1, 1]):
        folder.write(numbers(rows, 1_000 * number))
    before = folder.table()
    folder.compactor.compact()
    assert [each.rows for each in folder.slices()] == [3, 500, 1, 1, 500, 4]
    assert folder.table().equals(before)


def test_rows_without_columns_stay_as_they_are(folder: Datasets) -> None:
    for _ in range(20):
        folder.write(numbers(2).select([]))
    for _ in range(2):
        assert folder.compactor.compact() == 0
    assert sum(each.rows for each in folder.slices()) == 40


def test_parts_that_arrow_cannot_merge_hold_up_no_others(folder: Datasets, caplog: pytest.LogCaptureFixture) -> None:
    for path in ("store/a", "store/b"):
        folder.append(20, path=path)
    write = folder.store.write

    def rejects_a(*arguments: Any, path: str) -> Any:
        if path == "store/a":
            raise pa.ArrowNotImplementedError("no such thing")
        return write(*arguments, path=path)

    with mock.patch.object(folder.store, "write", rejects_a):
        assert [folder.compactor.compact() for _ in range(3)] == [20, 0, 0]
    assert [len(folder.parts(path)) for path in ("store/a", "store/b")] == [20, 1]
    assert caplog.text.count("store/a: 20 parts stay small, as Arrow can't write them as one: no such thing") == 1


# --- what has named a part -----------------------------------------------------------------


def test_parts_that_messages_name_are_never_merged(folder: Datasets) -> None:
    """Also once no message names them: a job that is resumed pushes the same splits again."""
    folder.append(60)
    named = folder.parts()[20:22]
    folder.ledger.change(lambda t: parts.hold(t, named))
    for name in named:
        folder.ledger.change(partial(parts.let_go, name=name))
    before = folder.table()
    assert folder.compactor.compact() == 58
    assert folder.parts()[1:3] == named
    assert [each.rows for each in folder.slices()] == [20, 1, 1, 38]
    assert folder.table().equals(before)


def test_a_part_named_by_its_number_keeps_it(folder: Datasets) -> None:
    folder.append(20)
    before = folder.parts()
    folder.ledger.pin(PATH)
    folder.append(20, start=20)
    assert folder.compactor.compact() == 20
    assert folder.parts()[:20] == before
    assert folder.table()["n"].to_pylist() == list(range(40))


def test_payloads_of_users_are_never_merged(folder: Datasets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MANY", 1)
    from penstock.store.payload_table import PayloadRow

    table = numbers(3)
    part = folder.store.write("a" * 32, table.schema, table.to_batches(), path="store/k")
    folder.ledger.bind_payloads([PayloadRow("k", part.name, None, 3, part.bytes, None, schema=table.schema)])
    assert folder.compactor.compact() == 0


# --- runs ----------------------------------------------------------------------------------


def test_a_run_stays_written_when_its_parts_are_merged(folder: Datasets) -> None:
    writes = [folder.write(numbers(1, epoch), run=f"query/{epoch}") for epoch in range(20)]
    assert folder.compactor.compact() == 20
    folder.clock.advance(60)
    assert folder.free() == 20
    folder.restart()
    assert [folder.write(numbers(1, 99), run=f"query/{epoch}") for epoch in range(20)] == writes
    assert folder.table()["n"].to_pylist() == list(range(20))
    assert folder.ledger.last_epochs(PATH)[0].epoch == 19
    folder.clock.advance(REMEMBERED + 1)
    folder.ledger.expire()
    assert folder.table()["n"].to_pylist() == list(range(20))


# --- what happens meanwhile ----------------------------------------------------------------


def during(step: str, action: Callable[[], object]) -> Any:
    """Do something when a step is passed first."""
    first = iter([True])
    return mock.patch.object(steps, "passed", lambda name: action() if name == step and next(first, False) else None)


@pytest.mark.parametrize(
    ("action", "left"),
    [
        (lambda folder: folder.write(numbers(1, 99), mode="overwrite"), [99]),
        (lambda folder: (folder.ledger.delete(PATH), folder.append(20, start=50)), [*range(50, 70)]),
        (lambda folder: folder.ledger.pin(PATH), [*range(20)]),
        (lambda folder: folder.ledger.change(lambda t: parts.hold(t, folder.parts()[7:8])), [*range(20)]),
    ],
    ids=["overwrite", "delete and anew", "pin", "message"],
)
def test_what_has_changed_meanwhile_is_not_replaced(
    folder: Datasets, action: Callable[[Datasets], object], left: list[int]
) -> None:
    after: list[str] = []

    def change() -> None:
        action(folder)
        after.extend(folder.parts())

    folder.append(20)
    with during("compact.durable", change):
        assert folder.compactor.compact() == 0
    folder.clock.advance(60)
    folder.free()
    assert folder.parts() == after
    assert folder.table()["n"].to_pylist() == left
    assert folder.kept() == set(after)


def test_appends_meanwhile_stay_behind(folder: Datasets) -> None:
    folder.append(20)
    with during("compact.durable", lambda: folder.append(3, start=20)):
        assert folder.compactor.compact() == 20
    assert [each.rows for each in folder.slices()] == [20, 1, 1, 1]
    assert folder.table()["n"].to_pylist() == list(range(23))


def test_two_compactors_replace_a_run_once(folder: Datasets) -> None:
    folder.append(20)
    other = merging.Compactor(folder.ledger, folder.store)
    with during("compact.durable", other.compact):
        assert folder.compactor.compact() == 0
    folder.clock.advance(60)
    folder.free()
    assert folder.table()["n"].to_pylist() == list(range(20))
    assert folder.kept() == set(folder.parts())


def test_a_stop_is_heeded_between_two_runs(folder: Datasets) -> None:
    for path in ("store/a", "store/b"):
        folder.append(20, path=path)
    stops = iter([False, True])
    assert folder.compactor.compact(lambda: next(stops)) == 20


def test_only_datasets_that_have_grown_are_looked_at(folder: Datasets) -> None:
    for path in ("store/a", "store/b"):
        folder.append(20, path=path)
    folder.ledger.take_grown()
    folder.append(1, start=20, path="store/b")
    assert folder.compactor.compact(everywhere=False) == 21
    assert folder.compactor.compact(everywhere=False) == 0
    assert folder.compactor.compact() == 20


# --- faults --------------------------------------------------------------------------------


def test_an_unreadable_part_stays_and_is_logged_once(folder: Datasets, caplog: pytest.LogCaptureFixture) -> None:
    folder.append(20)
    broken = folder.parts()[3]
    (file,) = folder.folder.rglob(broken)
    file.write_bytes(file.read_bytes()[:-30] + b"x" * 30)
    assert [folder.compactor.compact() for _ in range(3)] == [0, 16, 0]
    assert [record.message for record in caplog.records if "can't be read" in record.message] == [mock.ANY], "once"
    assert f"store/a: 1 row can't be read, and no other part is made of that: part {broken} is lost" in caplog.text
    assert folder.parts()[3] == broken
    with pytest.raises(Lost, match=broken):
        folder.table()


def test_lost_memory_is_not_merged(folder: Datasets) -> None:
    for _ in range(2):
        folder.restart(MemoryMedium(folder.folder / "spill", max_bytes=1 << 30))
        if not folder.ledger.datasets("store/"):
            folder.append(20)
    assert folder.compactor.compact() == 0
    assert folder.ledger.dataset(PATH).lost
    with pytest.raises(Lost):
        folder.append(1)
    folder.write(numbers(1, 7), mode="overwrite")
    assert folder.table()["n"].to_pylist() == [7]


def test_small_parts_stay_where_there_is_little_room(folder: Datasets) -> None:
    """Tickets may hold the parts before for long: puts need the room more."""
    folder.append(20)
    size = folder.ledger.dataset(PATH).bytes
    folder.store.quota = folder.store.used + 2 * size
    assert folder.compactor.compact() == 0
    assert len(folder.kept()) == 20
    folder.store.quota = None
    assert folder.compactor.compact() == 20


def test_a_failed_merge_does_not_stop_the_next_dataset(
    folder: Datasets, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("store/a", "store/b"):
        folder.append(20, path=path)
    fail_first_write(folder.store, monkeypatch)
    assert folder.compactor.compact() == 20
    assert "store/a: its parts stay small for now: no room" in caplog.text
    assert [len(folder.parts(path)) for path in ("store/a", "store/b")] == [20, 1]


def test_a_change_that_fails_leaves_no_bytes(folder: Datasets, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.append(20)

    def fails(function: object) -> None:
        raise StoreFull("no room for the ledger")

    with monkeypatch.context() as patch:
        patch.setattr(folder.ledger, "change", fails)
        folder.compactor.compact()
    assert folder.kept() == set(folder.parts())


@pytest.mark.parametrize("step", ["part.synced", "part.named", "compact.durable", "compact.shown"])
def test_a_crash_while_merging_changes_nothing(folder: Datasets, step: str) -> None:
    folder.append(20)
    before, kept = folder.table(), folder.parts()
    with (
        mock.patch.object(steps, "passed", crash_at(step)),
        mock.patch.object(type(folder.store), "discard"),  # a dead process cleans nothing up
        pytest.raises(Crash),
    ):
        folder.compactor.compact()
    assert len(folder.kept()) == (20 if step == "part.synced" else 21)
    folder.restart()
    assert folder.table().equals(before)
    assert folder.kept() == set(folder.parts()) == set(kept)


def test_merged_parts_are_verified_as_any(folder: Datasets) -> None:
    folder.append(20)
    folder.compactor.compact()
    (name,) = folder.parts()

    def losses() -> tuple[str, ...]:
        return verify(folder.folder, DiskMedium(folder.folder), DESTINATIONS, work_queues, is_served=True).losses

    assert losses() == ()
    (file,) = folder.folder.rglob(name)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 3] ^= 1
    file.write_bytes(raw)
    assert name in " ".join(losses())


# --- a server ------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("step", ["compact.durable", "compact.shown", "sweep.deleted"])
def test_a_kill_while_merging_changes_no_row(tmp_path: Path, step: str) -> None:
    """Appends go on meanwhile: each that was answered is there once, each other one at most once."""
    data, answered, number = tmp_path / "d", [], 0
    prelude = "from penstock.ledger import datasets; datasets._GRACE = 0"
    with process_server(data, crash_at=step, prelude=prelude) as killed, flight.connect(killed.url) as bare:
        while killed.process.poll() is None:
            with contextlib.suppress(flight.FlightError, pa.ArrowException, AssertionError):
                put(bare, at(PATH, attempt=new_attempt(), mode="append", run=f"run-{number}"), [trips(number)])
                answered.append(number)
            number += 1
        assert killed.process.wait(20) == -9

    with served(data) as restarted, flight.connect(restarted.url) as bare:
        rows = ids(bare, PATH)
        assert sorted(set(rows)) == rows
        assert set(answered) <= set(rows) <= set(range(number))
        for again in rows:
            put(bare, at(PATH, attempt=new_attempt(), mode="append", run=f"run-{again}"), [trips(again)])
        assert ids(bare, PATH) == rows
        eventually(lambda: len(named_parts(data, _VISIBLE)) < 16, what="the parts are merged")
        assert ids(bare, PATH) == rows


def test_a_server_merges_what_is_appended(server: PenstockServer, client: Client) -> None:
    """Readers with tickets from before read what they were promised."""
    with flight.connect(server.url) as bare:
        for number in range(40):
            put(bare, at(PATH, attempt=new_attempt(), mode="append"), [trips(number)])
            if number == 9:
                earlier = info(bare, PATH)
        eventually(lambda: client.call("describe", {"path": PATH})["parts"] < 16, what="the parts are merged")
        described = client.call("describe", {"path": PATH})
        assert described["rows"] == 40
        assert described["compacted"] > 0
        assert ids(bare, PATH) == list(range(40))
        assert fetch(bare, earlier)["id"].to_pylist() == list(range(10))
        health = client.call("health", {})
        assert health["dataset_parts"] == described["parts"]
        assert health["compacted"] > 0


def test_a_start_merges_what_an_earlier_server_has_left(tmp_path: Path) -> None:
    with mock.patch.object(merging.Compactor, "compact", return_value=0), served(tmp_path / "d") as server:
        with flight.connect(server.url) as bare:
            for number in range(20):
                put(bare, at(PATH, attempt=new_attempt(), mode="append"), [trips(number)])
        assert len(named_parts(tmp_path / "d", _VISIBLE)) == 20
    with served(tmp_path / "d") as server, flight.connect(server.url) as bare:
        eventually(lambda: len(named_parts(tmp_path / "d", _VISIBLE)) == 1, what="the parts are merged")
        assert ids(bare, PATH) == list(range(20))


def test_a_job_pushes_the_same_splits_after_a_compaction(server: PenstockServer, client: Client) -> None:
    """What was pushed up to an end is never merged; what wasn't may be, and is pushed whole."""
    for number in range(5):
        client.put(PATH, numbers(1, number), mode="append")
    end = client.call("describe", {"path": PATH})["last"]
    push = {"path": "queue/j/in", "dataset": PATH, "last": end}
    assert client.call("queue.push_dataset", push)["messages"] == 5
    for number in range(5, 45):
        client.put(PATH, numbers(1, number), mode="append")
    eventually(lambda: client.call("describe", {"path": PATH})["parts"] < 25, what="the parts behind are merged")
    assert client.call("queue.push_dataset", push)["messages"] == 0
    client.call("queue.finish", {"path": "queue/j/in"})
    rows = []
    for lease in client.claim("queue/j/in"):
        with lease as split:
            rows += split.payload.data["n"].to_pylist()
    assert sorted(rows) == list(range(5))
    assert client.call("queue.push_dataset", push)["messages"] == 0, "nor once their messages are done"
    push = {"path": "queue/j/other", "dataset": PATH, "last": client.call("describe", {"path": PATH})["last"]}
    client.put(PATH, numbers(1), mode="overwrite")
    with pytest.raises(PenstockError, match="it was overwritten since"):
        client.call("queue.push_dataset", push)


def test_a_reader_by_number_finds_the_same_rows_later(client: Client) -> None:
    for number in range(10):
        client.put(PATH, numbers(1, number), mode="append")
    first = [client.get(PATH, part=number).read_all() for number in range(10)]
    for number in range(10, 50):
        client.put(PATH, numbers(1, number), mode="append")
    eventually(lambda: client.call("describe", {"path": PATH})["parts"] < 40, what="the parts behind are merged")
    assert [client.get(PATH, part=number).read_all() for number in range(10)] == first


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_5000_appends_leave_few_parts(server: PenstockServer, client: Client) -> None:
    with flight.connect(server.url) as bare:
        for number in range(5_000):
            put(bare, at(PATH, attempt=new_attempt(), mode="append"), [trips(number)])
            if number % 500 == 0:
                assert ids(bare, PATH) == list(range(number + 1))
        eventually(lambda: client.call("describe", {"path": PATH})["parts"] < 64, what="the parts are merged")
        assert len(info(bare, PATH).endpoints) == 1
        assert ids(bare, PATH) == list(range(5_000))


# --- data folders of before ----------------------------------------------------------------


def test_parts_that_messages_named_before_are_pinned(tmp_path: Path, clock: Clock) -> None:
    """In a folder of format 10, also those of messages that are done, and of writes with a queue."""
    with mock.patch.object(database, "FORMAT", 10):
        old = Database(tmp_path / "ledger.db", *TABLES)
    writes = "id, path, mode, state, opener, opened, touched, queue"
    parts_ = "name, attempt, number, rows, bytes, schema, incarnation, state, path, seq, held"
    messages = "queue, message_id, split_id, payload_key, metadata, timestamp, bytes, part, pushed, state"
    statements = [
        "INSERT INTO schemas(id, ipc) VALUES (1, x'')",
        f"INSERT INTO writes({writes}) VALUES ('w', 'store/a', 'append', 'finished', '', 0, 0, 'queue/x')",
        "INSERT INTO attempts(id, write, schema, rows, bytes, parts, digest) VALUES ('x', 'w', 1, 1, 1, 1, '')",
        f"INSERT INTO messages({messages}) VALUES (1, 'm', 's', 'k', '{{}}', 0, 1, 'c', 0, 'done')",
    ]
    for seq, (name, attempt, held) in enumerate([("a", "x", 0), ("b", "y", 1), ("c", "z", 0), ("d", "v", 0)]):
        values = f"'{name}', '{attempt}', 0, 1, 1, 1, '', 'visible', 'store/a', {seq}, {held}"
        statements.append(f"INSERT INTO parts({parts_}) VALUES ({values})")
    for statement in statements:
        old.run(lambda sql, text=statement: sql.execute(text) and None)  # type: ignore[misc]
    old.close()
    with contextlib.closing(Database(tmp_path / "ledger.db", *TABLES)) as new:
        assert [row["name"] for row in new.rows("SELECT name FROM parts WHERE pinned ORDER BY name")] == ["a", "b", "c"]
        assert FORMAT >= 11
