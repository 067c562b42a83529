"""Chaos: many faults of all kinds under one stream, and nothing is lost, changed or doubled. And the checker."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos import run
from tests.chaos.faults import FAULTS
from tests.chaos.ledger import LAWS, Landed, Ledger, Outcome, Row, Sample, batch, check, rows
from tests.chaos.schedule import LEAST, schedule
from tests.kit.proxy import Proxy, open_proxy

SEED = 7


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.process
@pytest.mark.timeout(1500)
def test_faults_of_all_kinds_under_a_stream_lose_change_and_double_nothing(
    tmp_path: Path, bare_python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.kit.spark import needs_spark

    needs_spark()
    pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED") or int.from_bytes(os.urandom(2)))
    with capsys.disabled():
        print(f"\nPENSTOCK_CHAOS_SEED={seed}")  # noqa: T201  # also where the run is killed

    report = run.run(seed, tmp_path, bare_python)

    with capsys.disabled():
        print(report)  # noqa: T201  # its line is a figure of the documentation
    assert {law: found[:20] for law, found in report.broken.items() if found} == {}, report
    assert report.uncalled() == []
    assert report.faults.total() >= 40
    assert set(report.faults) == set(LEAST)


# --- the proxy ---------------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[Proxy, socket.socket, socket.socket]]:
    """A proxy, and the two ends of a connection through it."""
    with open_proxy() as found, socket.create_server(("127.0.0.1", 0)) as door:
        found.target = door.getsockname()[1]
        with socket.create_connection(("127.0.0.1", int(found.url.rpartition(":")[2])), 10) as near:
            far, _ = door.accept()
            with far:
                far.settimeout(10)
                near.sendall(b"x")
                assert far.recv(9) == b"x"
                yield found, near, far


def test_a_reset_connection_is_reset_at_both_ends(ends: tuple[Proxy, socket.socket, socket.socket]) -> None:
    found, *both = ends
    found.reset()
    for end in both:
        with pytest.raises(ConnectionResetError):
            end.recv(9)


def test_what_is_sent_into_a_half_open_connection_never_comes(ends: tuple[Proxy, socket.socket, socket.socket]) -> None:
    found, near, far = ends
    with found.half_open():
        near.sendall(b"y")
        far.settimeout(0.2)
        with pytest.raises(TimeoutError):
            far.recv(9)
        far.settimeout(10)
    with pytest.raises(ConnectionResetError):
        far.recv(9)


def test_a_cut_connection_ends_at_both_ends_and_the_next_one_passes(
    ends: tuple[Proxy, socket.socket, socket.socket],
) -> None:
    found, near, far = ends
    found.cut()
    assert near.recv(9) == far.recv(9) == b""
    with socket.create_server(("127.0.0.1", 0)) as door:
        found.target = door.getsockname()[1]
        with socket.create_connection(("127.0.0.1", int(found.url.rpartition(":")[2])), 10) as again:
            other, _ = door.accept()
            with other:
                again.sendall(b"z")
                assert other.recv(9) == b"z"


# --- the schedule ------------------------------------------------------------------------------


def test_a_seed_makes_the_same_schedule_each_time_and_another_seed_another_one() -> None:
    assert schedule(SEED, 200_000, 50) == schedule(SEED, 200_000, 50)
    assert schedule(SEED, 200_000, 50) != schedule(SEED + 1, 200_000, 50)


def test_a_schedule_has_each_kind_its_least_in_the_order_of_the_rows() -> None:
    moments = schedule(SEED, 200_000, 50)
    assert len(moments) == 50
    assert not Counter(LEAST) - Counter(moment.kind for moment in moments)
    assert [moment.rows for moment in moments] == sorted(moment.rows for moment in moments)
    assert set(LEAST) == set(FAULTS)


# --- the checker -------------------------------------------------------------------------------


def at(row: Row, shard: int, offset: int) -> Landed:
    return Landed(shard, offset, row.seq, row.key, row.crc)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Two runs that were answered for, one that wasn't and is there, one that wasn't and isn't."""
    found = Ledger(tmp_path / "ledger.jsonl")
    for number in range(4):
        sent = found.send(f"run-{number}", some(number))
        if number < 2:
            found.answer(sent)
    yield found
    found.close()


def some(number: int) -> list[Row]:
    """A run's rows, of one key."""
    return [row._replace(key=1) for row in rows(SEED, 0, number * 10, 10)]


def good() -> Outcome:
    """What three of the four runs left: a shard with all of them, and the sink."""
    topic = [at(row, 2, offset) for offset, row in enumerate([*some(0), *some(1), *some(2)])]
    idle = Sample({"c": {2: 30}}, 30, 20, 40, 100 << 20)
    samples = [idle._replace(positions={"c": {2: offset}}, landed=offset + 5) for offset in (0, 10, 10, 25)]
    return Outcome(topic, list(topic), list(topic), samples, base=idle, idle=idle, is_ordered=True)


Change = Callable[[Outcome], Outcome]


def other(row: Landed) -> Landed:
    return row._replace(crc=row.crc ^ 1)


def swapped(some: list[Landed]) -> list[Landed]:
    """Two rows of a key change their places."""
    first, second = some[3], some[4]
    return [*some[:3], second._replace(offset=3), first._replace(offset=4), *some[5:]]


STRANGER = at(Row(999, 1, None, 0.0), 2, 30)
BREAKS: list[tuple[str, str, Change]] = [
    ("lost", "an answered row isn't in the topic", lambda o: replace(o, topic=o.topic[1:])),
    ("lost", "a row hasn't landed", lambda o: replace(o, landed=o.landed[:-1])),
    ("unpublished", "a stranger in the topic", lambda o: replace(o, topic=[*o.topic, STRANGER])),
    ("unpublished", "a stranger in the sink", lambda o: replace(o, landed=[*o.landed, STRANGER])),
    ("changed", "in the topic", lambda o: replace(o, topic=[other(o.topic[0]), *o.topic[1:]])),
    ("changed", "in the sink", lambda o: replace(o, landed=[*o.landed[1:], other(o.landed[0])])),
    ("changed", "a key", lambda o: replace(o, landed=[*o.landed[1:], o.landed[0]._replace(key=9)])),
    ("doubled", "in the topic", lambda o: replace(o, topic=[*o.topic, o.topic[4]._replace(offset=30)])),
    ("doubled", "in the sink", lambda o: replace(o, landed=[*o.landed, o.landed[4]])),
    ("misplaced", "a gap", lambda o: replace(o, topic=[*o.topic[:5], *o.topic[6:]])),
    ("misplaced", "an offset twice", lambda o: replace(o, topic=[*o.topic[:5], o.topic[5]._replace(offset=4)])),
    ("misplaced", "other rows after a restart", lambda o: replace(o, again=swapped(o.again))),
    ("misplaced", "other rows when Spark read them", lambda o: replace(o, landed=swapped(o.landed))),
    ("went back", "a position", lambda o: replace(o, samples=[*o.samples, o.samples[0]])),
    (
        "too early",
        "a position before its rows",
        lambda o: replace(o, samples=[o.samples[0]._replace(positions={"c": {2: 6}})]),
    ),
    ("disordered", "in the topic", lambda o: replace(o, topic=swapped(o.topic))),
    ("disordered", "in the sink", lambda o: replace(o, landed=swapped(o.landed))),
    ("disordered", "a key in two shards", lambda o: replace(o, topic=[o.topic[0]._replace(shard=1), *o.topic[1:]])),
    ("kept", "threads", lambda o: replace(o, idle=o.idle._replace(threads=99))),
    ("kept", "descriptors", lambda o: replace(o, samples=[o.idle._replace(descriptors=9_999)])),
    ("kept", "memory", lambda o: replace(o, idle=o.idle._replace(memory=2 << 30))),
    ("kept", "a file", lambda o: replace(o, litter=["tmp/x"])),
]


def test_what_was_sent_landed_in_its_order_and_all_else_unbroken_is_good(ledger: Ledger) -> None:
    assert check(ledger, good()) == {law: [] for law in LAWS}


@pytest.mark.parametrize(("law", "what", "change"), BREAKS, ids=[f"{law}: {what}" for law, what, _ in BREAKS])
def test_a_broken_law_is_found(ledger: Ledger, law: str, what: str, change: Change) -> None:
    assert check(ledger, change(good()))[law] != []


def test_each_law_is_broken_by_a_test() -> None:
    assert {law for law, _, _ in BREAKS} == set(LAWS)


def test_rows_of_unknown_outcome_may_be_out_of_order(ledger: Ledger) -> None:
    """Their sender went on before they came."""
    late = [at(row, 2, offset) for offset, row in enumerate([*some(0), *some(2), *some(1)])]
    assert check(ledger, replace(good(), topic=late, again=late, landed=late))["disordered"] == []


def test_a_checksum_is_of_all_that_a_row_holds() -> None:
    row = rows(SEED, 0, 5, 1)[0]
    others = [row._replace(seq=6), row._replace(key=0), row._replace(text=None), row._replace(amount=row.amount + 1)]
    assert row.crc not in [each.crc for each in others]
    assert [Row(*each.values()) for each in batch([row]).to_pylist()] == [row]
