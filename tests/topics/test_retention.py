"""Rows that are removed from a topic, parts that are rewritten: retention, lost memory, compaction, forgotten puts."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock import steps
from penstock.client.client import Client
from penstock.errors import InvalidRequest, Lost, NotFound
from penstock.flight_server.server import PenstockServer
from penstock.ledger import ledger, merging
from penstock.ledger.sweep import TEND_EVERY
from penstock.queue.topics.compaction import Compactor
from penstock.queue.topics.consumers import UNSEEN, Consumers
from penstock.queue.topics.retention import retain
from penstock.rows import slices
from penstock.store.memory import MemoryMedium
from penstock.text import format_size
from tests.kit.faults import Crash, crash_at, fail_first_write, varied
from tests.kit.server import named_parts, process_server, served
from tests.kit.topics import TOPIC, Reach
from tests.kit.wait import eventually, files
from tests.kit.wire import TRIPS, at, fetch, ids, info, new_attempt, put, read, trips

HOUR = 3600.0
NOT_USED_AGAIN = "Their offsets are not used again"


def attempt_for(shard: int) -> str:
    """Return the id of a new attempt, whose first digits choose this shard."""
    return f"{shard:08x}{uuid.uuid4().hex[8:]}"


def consumer_at(reach: Reach, position: dict[int, int], path: str = TOPIC) -> Consumers:
    """Attach a live consumer at this position."""
    consumers = Consumers(reach.ledger, reach.topics)
    consumers.attach(reach.topic(path), "c", "session", initial={}, position=position)
    return consumers


# --- by time ---------------------------------------------------------------------------------


def test_rows_are_removed_once_they_are_too_old(reach: Reach, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(4):
        reach.put(number)
        reach.clock.advance(HOUR)
    reach.clock.advance(22 * HOUR + 1)  # the first is 26 hours old, the third 24

    size = reach.topic().bytes * 3 // 4
    with caplog.at_level(logging.INFO, "penstock"):
        assert retain(reach.ledger) == 3

    assert reach.read() == [(0, 3, 3, reach.clock.now() - 23 * HOUR - 1)]
    assert (reach.topic().earliest(), reach.topic().latest()) == ({0: 3}, {0: 4})
    assert [record.message for record in caplog.records if "retention removed" in record.message] == [
        f"topic/x: retention removed the oldest 3 rows ({format_size(size)})"
    ]
    assert retain(reach.ledger) == 0


def test_each_topic_keeps_rows_for_its_own_time(reach: Reach) -> None:
    reach.create(keep_seconds=60)
    reach.create("topic/y", keep_seconds=7 * 24 * HOUR)
    for path in (TOPIC, "topic/y"):
        reach.put(1, path=path)
    reach.clock.advance(60)
    assert retain(reach.ledger) == 0
    reach.clock.advance(1)
    assert retain(reach.ledger) == 1
    reach.clock.advance(6 * 24 * HOUR)
    assert retain(reach.ledger) == 0
    assert reach.ids("topic/y") == [1]


def test_whole_parts_are_removed_from_the_front(reach: Reach) -> None:
    """An old part behind a young one, which a clock that was set back makes, stays: there is never a hole."""
    reach.create(shards=2)
    for shard, ages in ((0, [30, 1, 30]), (1, [30, 30, 1])):
        for number, age in enumerate(ages):
            reach.clock.advance(-age * HOUR)
            reach.put(10 * shard + number, attempt=attempt_for(shard))
            reach.clock.advance(age * HOUR)
    assert retain(reach.ledger) == 3
    assert reach.ids() == [1, 2, 12]
    assert reach.topic().earliest() == {0: 1, 1: 2}


def test_an_empty_shard_continues_at_its_end(reach: Reach) -> None:
    reach.put(1, 2, 3)
    reach.clock.advance(25 * HOUR)
    retain(reach.ledger)
    assert reach.topic().earliest() == reach.topic().latest() == {0: 3}
    assert reach.read() == []
    reach.restart()
    reach.put(4)
    assert [row[:3] for row in reach.read()] == [(0, 3, 4)]


def test_removed_parts_keep_their_bytes_for_tickets(reach: Reach) -> None:
    reach.put(1)
    (part,) = reach.parts()
    reach.clock.advance(23 * HOUR)
    reach.read(ticketed_until=reach.clock.now() + 12 * HOUR)
    reach.clock.advance(2 * HOUR)
    assert retain(reach.ledger) == 1
    assert reach.free() == 0
    assert reach.store.open(part).rows == 1
    reach.clock.advance(11 * HOUR)
    assert reach.free() == 1
    assert reach.kept() == set()


# --- by size ---------------------------------------------------------------------------------


def test_the_oldest_rows_are_removed_until_the_rest_fits(reach: Reach) -> None:
    """Age and size count over all shards."""
    reach.put(0, path="topic/measure")
    part_bytes = reach.topic("topic/measure").bytes
    reach.create(shards=2, keep_bytes=3 * part_bytes)
    for number, shard in enumerate([0, 0, 1, 0, 1, 1]):
        reach.put(number, attempt=attempt_for(shard))
        reach.clock.advance(1)
    assert retain(reach.ledger) == 3
    assert sorted(reach.ids()) == [3, 4, 5]
    assert reach.topic().earliest() == {0: 2, 1: 1}
    assert retain(reach.ledger) == 0
    assert reach.ids("topic/measure") == [0]


def test_the_error_names_the_size_that_is_kept(reach: Reach) -> None:
    reach.create(keep_bytes=1)
    reach.put(1)
    retain(reach.ledger)
    assert reach.read() == []
    with pytest.raises(Lost, match="they are kept for 24 h and up to 1 B"):
        reach.read(start={0: 0})


# --- never past a live consumer --------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"keep_bytes": 1}])
def test_rows_stay_until_a_live_consumer_has_committed_them(reach: Reach, options: dict[str, Any]) -> None:
    reach.create(**options)
    for number in range(0, 10, 2):
        reach.put(number, number + 1)
    consumers = consumer_at(reach, {0: 5})
    reach.clock.advance(30 * HOUR)

    assert retain(reach.ledger) == 4  # the part with offset 4 has 5, too
    assert reach.ids() == [4, 5, 6, 7, 8, 9]
    consumers.commit(reach.topic(), "c", "session", {0: 8})
    assert retain(reach.ledger) == 4
    assert reach.ids() == [8, 9]


def test_an_absent_consumer_holds_no_rows_beyond_the_size(reach: Reach) -> None:
    """Where the topic says so. Those that are only old stay, and all if a present one has to read them."""
    reach.create(keep_bytes=1, keep_absent=False)
    reach.create("topic/y", keep_absent=False)
    consumers = Consumers(reach.ledger, reach.topics, steady=reach.clock.now)
    for path in (TOPIC, "topic/y"):
        for number in range(4):
            reach.put(number, path=path)
        consumers.attach(reach.topic(path), f"absent-{path[-1]}", "s", initial={}, position={0: 1})
        consumers.attach(reach.topic(path), f"present-{path[-1]}", "s", initial={}, position={0: 3})
    assert retain(reach.ledger, present_since=consumers.present_since()) == 1  # nobody is absent at a start
    reach.clock.advance(30 * HOUR)
    for name, path in (("x", TOPIC), ("y", "topic/y")):
        consumers.heard(reach.topic(path), f"present-{name}", "s")
    assert retain(reach.ledger, present_since=consumers.present_since()) == 3
    assert (reach.ids(), reach.ids("topic/y")) == ([3], [1, 2, 3])


# --- lost with a server's memory -------------------------------------------------------------


@pytest.fixture
def in_memory(reach: Reach) -> Reach:
    """Restart with an empty store in memory."""
    reach.restart(medium(reach))
    return reach


def medium(reach: Reach) -> MemoryMedium:
    return MemoryMedium(reach.folder / "spill", max_bytes=1 << 20)


def test_rows_in_memory_are_lost_by_name_at_the_next_start(in_memory: Reach, caplog: pytest.LogCaptureFixture) -> None:
    in_memory.create(shards=2)
    for shard in (0, 0, 1):
        in_memory.put(1, 2, attempt=attempt_for(shard))
    in_memory.put(7, path="topic/y")

    in_memory.restart(medium(in_memory))

    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    reason = "in the memory of a server that has stopped"
    assert warnings == [
        f"topic/x: 6 rows are lost, {reason}: shard 0 from 0 up to 4, shard 1 from 0 up to 2. {NOT_USED_AGAIN}",
        f"topic/y: 1 row is lost, {reason}: shard 0 from 0 up to 1. {NOT_USED_AGAIN}",
    ]
    topic = in_memory.topic()
    assert (topic.epoch, topic.rows, topic.earliest(), topic.latest()) == (1, 0, {0: 4, 1: 2}, {0: 4, 1: 2})
    in_memory.put(3, attempt=attempt_for(0))
    assert [row[:3] for row in in_memory.read()] == [(0, 4, 3)]
    with pytest.raises(
        Lost, match=r"3 rows from offset 1 on are gone, lost with the memory of a server that has stopped"
    ):
        in_memory.read(start={0: 1})


def test_a_start_that_loses_nothing_logs_nothing(in_memory: Reach, caplog: pytest.LogCaptureFixture) -> None:
    in_memory.put(1)
    in_memory.restart(medium(in_memory))
    caplog.clear()
    in_memory.restart(medium(in_memory))
    assert (in_memory.topic().epoch, caplog.records) == (1, [])


def test_the_error_tells_lost_rows_from_expired_ones(in_memory: Reach) -> None:
    in_memory.put(1, 2)
    in_memory.restart(medium(in_memory))
    in_memory.put(3, 4)
    in_memory.clock.advance(25 * HOUR)
    retain(in_memory.ledger)
    with pytest.raises(Lost, match=r"the ones before 2 lost with the memory .*; of the others, they are kept for 24 h"):
        in_memory.read(start={0: 0})
    with pytest.raises(Lost, match=r"from offset 3 on is gone, they are kept for 24 h: of"):
        in_memory.read(start={0: 3})


def test_rows_on_disk_stay_when_those_in_memory_are_lost(reach: Reach) -> None:
    """One data folder, served with a memory store in between."""
    reach.put(1)
    reach.restart(medium(reach))
    reach.put(2)
    reach.restart()
    assert reach.read(end={0: 1})[0][:3] == (0, 0, 1)
    with pytest.raises(Lost):
        reach.read()
    reach.clock.advance(25 * HOUR)
    retain(reach.ledger)
    reach.put(3)
    assert [row[:3] for row in reach.read()] == [(0, 2, 3)]


# --- compaction ------------------------------------------------------------------------------


def put_parts(reach: Reach, count: int, *, start: int = 0) -> None:
    """Put so many parts of 1 to 3 rows, a second apart."""
    for number in range(start, start + count):
        reach.put(*range(10 * number, 10 * number + 1 + number % 3))
        reach.clock.advance(1)


def test_compaction_keeps_the_same_rows_in_order(reach: Reach) -> None:
    """One part replaces the small ones, with the same offsets and times."""
    put_parts(reach, 20)
    before, old = reach.read(), reach.parts()

    assert Compactor(reach.ledger, reach.store).compact() == 20

    assert reach.read() == before
    assert len(reach.parts()) == 1
    assert reach.free() == 20
    assert reach.kept() == set(reach.parts())
    assert not set(old) & reach.kept()
    for start, end in ((0, 1), (3, 9), (7, 8), (len(before) - 1, len(before)), (5, 5)):
        assert reach.read(start={0: start}, end={0: end}) == before[start:end]
    topic = reach.topic()
    assert (topic.rows, topic.part_count, topic.latest()) == (len(before), 1, {0: len(before)})
    assert topic.schema.equals(TRIPS, check_metadata=True)


def test_few_parts_stay_as_they_are(reach: Reach) -> None:
    put_parts(reach, 15)
    before = reach.parts()
    assert Compactor(reach.ledger, reach.store).compact() == 0
    assert reach.parts() == before


def test_few_parts_are_compacted_if_they_fill_a_large_one(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "PART_BYTES", 3_000)
    put_parts(reach, 14)
    before = reach.read()
    assert Compactor(reach.ledger, reach.store).compact() > 4
    assert 2 <= len(reach.parts()) < 10
    assert reach.read() == before


def test_a_compacted_part_has_one_shard_and_one_schema(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large parts are left out."""
    monkeypatch.setattr(merging, "SMALL", 4_000)
    monkeypatch.setattr(merging, "MANY", 3)
    reach.create(shards=2)
    wider = pa.RecordBatch.from_pydict({"id": [5], "city": ["x"], "more": ["y"]})

    def puts(shard: int, *kinds: str) -> None:
        for kind in kinds:
            rows = wider if kind == "wider" else trips(*range(500 if kind == "large" else 2))
            reach.put(rows=rows, attempt=attempt_for(shard))

    puts(0, "small", "small", "small", "large", "small", "small", "wider", "wider", "wider", "small", "small")
    puts(1, "small", "small")
    before = reach.read()
    assert Compactor(reach.ledger, reach.store).compact() == 6
    assert reach.read() == before
    assert [reach.store.open(part).rows for part in reach.parts()] == [6, 500, 2, 2, 3, 2, 2, 2, 2]


def test_columns_of_every_layout_are_compacted_unchanged(reach: Reach) -> None:
    batches = varied().to_batches()
    for number in range(16):
        reach.put(rows=batches[number % 2])
    before = [row for part in reach.parts() for row in reach.store.open(part).reader().read_all().to_pylist()]
    assert Compactor(reach.ledger, reach.store).compact() == 16
    (part,) = reach.parts()
    table = reach.store.open(part).reader().read_all()
    assert table.drop_columns(["_time"]).to_pylist() == before
    assert table.drop_columns(["_time"]).schema.equals(batches[0].schema)


def test_a_time_is_found_within_a_compacted_part(reach: Reach) -> None:
    reach.clock.advance(0.123456)
    put_parts(reach, 20)
    before = reach.read()

    def expected(moment: float) -> int:
        return next((offset for _, offset, _, when in before if when >= moment), len(before))

    moments = [when + change for _, _, _, when in before for change in (-0.5, -1e-6, 0, 1e-6)] + [0, 2e9]
    exact = [reach.topics.at(reach.topic(), moment)[0] for moment in moments]
    Compactor(reach.ledger, reach.store).compact()
    assert [reach.topics.at(reach.topic(), moment)[0] for moment in moments] == exact
    assert exact == [expected(moment) for moment in moments]


def test_parts_removed_during_compaction_stay_removed(reach: Reach) -> None:
    put_parts(reach, 20)

    def remove_rows(step: str) -> None:
        if step == "compact.durable":
            reach.clock.advance(25 * HOUR)
            reach.put(999)
            retain(reach.ledger)

    with mock.patch.object(steps, "passed", remove_rows):
        assert Compactor(reach.ledger, reach.store).compact() == 0
    assert reach.ids() == [999]
    reach.free()
    assert reach.kept() == set(reach.parts())


def test_a_topic_made_anew_during_compaction_is_unchanged(reach: Reach) -> None:
    put_parts(reach, 20)

    def make_anew(step: str) -> None:
        if step == "compact.durable":
            reach.topics.remove(TOPIC)
            reach.put(1)

    with mock.patch.object(steps, "passed", make_anew):
        assert Compactor(reach.ledger, reach.store).compact() == 0
    assert reach.ids() == [1]


def test_an_unreadable_part_stays_and_is_logged_once(reach: Reach, caplog: pytest.LogCaptureFixture) -> None:
    put_parts(reach, 20)
    broken = reach.parts()[3]
    (file,) = reach.folder.rglob(broken)
    file.write_bytes(file.read_bytes()[:-30] + b"x" * 30)
    before = reach.parts()
    compactor = Compactor(reach.ledger, reach.store)
    for _ in range(3):
        assert compactor.compact() in (0, 16)

    assert [record.message for record in caplog.records if "can't be read" in record.message] == [mock.ANY], "once"
    assert f"offsets 6 up to 7 can't be read, and no other part is made of that: part {broken} is lost" in caplog.text
    assert broken in reach.parts()
    assert reach.parts()[:4] == before[:4]
    assert len(reach.parts()) == 5, "the 16 behind it are one"
    with pytest.raises(Lost, match=broken):
        reach.read()
    assert [row[2] for row in reach.read(start={0: 7})][:1] == [40]


def test_a_full_store_leaves_small_parts_as_they_are(reach: Reach) -> None:
    put_parts(reach, 20)
    before = reach.read()
    reach.store.quota = reach.store.used + 10
    assert Compactor(reach.ledger, reach.store).compact() == 0
    assert reach.read() == before
    assert len(reach.kept()) == 20


def test_a_failed_compaction_does_not_stop_the_next_shard(
    reach: Reach, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("topic/a", "topic/b"):
        for number in range(20):
            reach.put(number, path=path)
    fail_first_write(reach.store, monkeypatch)
    assert Compactor(reach.ledger, reach.store).compact() == 20
    assert "topic/a: parts of shard 0 stay small for now: no room" in caplog.text
    assert [reach.topic(path).part_count for path in ("topic/a", "topic/b")] == [20, 1]


def test_compaction_opens_a_bounded_number_of_parts(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "MOST", 20)
    put_parts(reach, 50)
    before = reach.read()
    assert Compactor(reach.ledger, reach.store).compact() == 40
    assert reach.topic().part_count == 12
    assert reach.read() == before


@pytest.mark.parametrize("step", ["compact.durable", "compact.shown"])
def test_a_crash_while_compacting_changes_nothing(reach: Reach, step: str) -> None:
    put_parts(reach, 20)
    before, parts = reach.read(), reach.parts()
    with (
        mock.patch.object(steps, "passed", crash_at(step)),
        mock.patch.object(type(reach.store), "discard"),  # a dead process cleans nothing up
        pytest.raises(Crash),
    ):
        Compactor(reach.ledger, reach.store).compact()
    assert len(reach.kept()) == 21
    reach.restart()
    assert (reach.read(), reach.parts()) == (before, parts)
    assert reach.kept() == set(parts)


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("step", ["compact.durable", "compact.shown", "sweep.deleted"])
def test_a_kill_while_compacting_changes_no_row(tmp_path: Path, step: str) -> None:
    data, kept = tmp_path / "d", Path(tmp_path / "kept")
    with served(kept) as server, flight.connect(server.url) as bare:
        for number in range(20):
            put(bare, at(TOPIC), [trips(number, number + 100)])
        before = read(bare, TOPIC, columns=["id", "city", "_shard", "_offset", "_time"])
    shutil.copytree(kept, data)
    prelude = (  # compact at each sweep but the first, which runs before the server prints its address
        "import penstock.ledger.sweep as sweep\n"
        "from penstock.queue.topics.compaction import Compactor\n"
        "sweep.TEND_EVERY, compact, first = 0, Compactor.compact, iter([True])\n"
        "Compactor.compact = lambda compactor, stop: 0 if next(first, False) else compact(compactor, stop)"
    )
    if step == "sweep.deleted":  # no ticket may hold the parts
        prelude += "\nimport sqlite3\nledger = sqlite3.connect({!r})\nledger.execute('DELETE FROM ticketed')\n"
        prelude = prelude.format(str(data / "ledger.db")) + "ledger.commit(); ledger.close()"
    with process_server(data, crash_at=step, prelude=prelude) as killed, flight.connect(killed.url) as bare:
        while killed.process.poll() is None:
            with contextlib.suppress(flight.FlightError, pa.ArrowException, AssertionError):
                put(bare, at("store/wakes", attempt=new_attempt(), mode="append"), [trips(1)])
        assert killed.process.wait(20) == -9

    with served(data) as restarted, flight.connect(restarted.url) as bare:
        eventually(lambda: files(data / "parts") == named_parts(data), what="each part has bytes, and all bytes a part")
        assert read(bare, TOPIC, columns=before.column_names).equals(before)
        eventually(lambda: info(bare, TOPIC).endpoints and len(parts_of(data)) == 1, what="the parts are compacted")
        assert read(bare, TOPIC, columns=before.column_names).equals(before)


def parts_of(data: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(data / "ledger.db")) as ledger:
        return [name for (name,) in ledger.execute("SELECT part FROM journal")]


# --- through the server ----------------------------------------------------------------------


def test_readers_see_no_difference_after_compaction(tmp_path: Path) -> None:
    with served(tmp_path / "d") as server, flight.connect(server.url) as bare:
        for number in range(20):
            put(bare, at(TOPIC), [trips(number, number + 100)])
        requests: list[dict[str, Any]] = [
            {}, {"columns": ["city"]}, {"columns": ["_time", "id"]}, {"columns": ["id", "_offset", "_shard", "_time"]},
            {"start": {"0": 7}, "end": {"0": 30}}, {"start": {"0": 7}, "limit": 5, "columns": ["_offset", "_time"]},
            {"filter": "id > 100"}, {"filter": "_offset >= 30", "columns": ["id", "_time"]},
        ]  # fmt: skip
        flight_info = info(bare, TOPIC)
        before = [read(bare, TOPIC, **options) for options in requests]
        assert Compactor(server.state.ledger, server.state.store).compact() == 20
        tail = [put(bare, at(TOPIC), [trips(999)]), put(bare, at(TOPIC), [trips(1000)])]

        end = {"end": {"0": 40}}
        assert len(tail) == 2
        for options, table in zip(requests, before, strict=True):
            assert read(bare, TOPIC, **{**end, **options}).equals(table), options
            assert read(bare, TOPIC, **{**end, **options}).schema.equals(table.schema), options
        assert ids(bare, TOPIC) == [*before[0]["id"].to_pylist(), 999, 1000]
        assert fetch(bare, flight_info).equals(before[0]), "tickets from before are still good"
        assert len(info(bare, TOPIC).endpoints) == 1, "the compacted part has the same schema"


def test_a_filter_by_time_sees_each_rows_own_time(tmp_path: Path) -> None:
    with served(tmp_path / "d") as server, flight.connect(server.url) as bare:
        for number in range(20):
            put(bare, at(TOPIC), [trips(number)])
        times = read(bare, TOPIC, columns=["_time"])["_time"].cast(pa.int64()).to_pylist()
        assert sorted(set(times)) == times
        Compactor(server.state.ledger, server.state.store).compact()
        since = read(bare, TOPIC, since=times[11] / 1e6, columns=["id", "_offset"])
        assert since.to_pylist() == [{"id": number, "_offset": number} for number in range(11, 20)]


def test_a_sweep_of_the_server_tends_its_topics(server: PenstockServer, client: Client) -> None:
    """It expires consumers, removes old rows and compacts parts."""
    client.put(TOPIC, trips(0))
    journal = client.call("describe", {"path": TOPIC})["journal"]
    client.call("consumer.attach", {"path": TOPIC, "journal": journal, "consumer": "c", "session": "s"})
    consumers = server.state.journals.consumers
    consumers.expire()
    server.state.ledger.now = lambda: time.time() + UNSEEN + 1
    consumers._steady = lambda: time.monotonic() + UNSEEN + 1
    for number in range(1, 21):
        client.put(TOPIC, trips(number))

    server.state.sweeper._tended = -TEND_EVERY  # as if a minute had passed
    server.state.sweeper.soon()

    eventually(lambda: client.call("describe", {"path": TOPIC})["parts"] == 1)
    topic = client.call("describe", {"path": TOPIC})
    assert (topic["shards"][0]["first"], topic["rows"]) == (1, 20)
    assert [consumer["state"] for consumer in topic["consumers"]] == ["expired"]


# --- the ledger stays small ------------------------------------------------------------------


def count_rows(reach: Reach, table: str) -> int:
    return int(reach.database.rows(f"SELECT count(*) AS n FROM {table}")[0]["n"])


def test_small_puts_are_forgotten_after_an_hour(reach: Reach) -> None:
    """Their rows stay; named runs are known for a month."""
    reach.put(1, attempt="a" * 32)
    reach.put(2, run=f"put-{0:032x}")
    named = reach.put(3, run="orders 7")
    opened = reach.ledger.open_write(TOPIC, mode="append", schema=TRIPS).id
    reach.ledger.finish(reach.ledger.open_write("store/y", schema=TRIPS, own=True).id, [])
    reach.clock.advance(ledger.REMEMBERED_BRIEFLY)
    reach.ledger.expire()
    assert count_rows(reach, "writes") == 5
    assert reach.put(1, attempt="a" * 32).attempt == "a" * 32

    reach.clock.advance(1)
    reach.ledger.expire()
    assert (count_rows(reach, "writes"), count_rows(reach, "attempts")) == (3, 1)
    assert reach.ledger.summary(opened).state == "open"
    assert reach.put(3, run="orders 7") == named
    assert reach.ids() == [1, 2, 3]
    reach.restart()
    assert reach.ids() == [1, 2, 3]

    reach.clock.advance(ledger.REMEMBERED)
    reach.ledger.expire()
    assert (count_rows(reach, "writes"), count_rows(reach, "attempts")) == (1, 0)  # the open write, now expired
    assert reach.ids() == [1, 2, 3]


def test_a_delete_removes_all_parts_and_frees_the_path(reach: Reach) -> None:
    put_parts(reach, 20)
    Compactor(reach.ledger, reach.store).compact()
    put_parts(reach, 3, start=20)
    first = reach.topics.remove(TOPIC)
    reach.clock.advance(100)
    assert reach.free() == 24
    with pytest.raises(NotFound):
        reach.topic()
    reach.put(1)
    assert reach.topic().journal != first.journal
    assert [row[:3] for row in reach.read()] == [(0, 0, 1)]


def test_offsets_past_the_end_are_refused_with_those_left(reach: Reach) -> None:
    reach.put(1, 2)
    with pytest.raises(InvalidRequest, match=r"has no offsets 1 to 9: of shard 0 the offsets 0 to 2 are left"):
        reach.read(start={0: 1}, end={0: 9})
