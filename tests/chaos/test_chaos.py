"""Chaos: under many faults of all kinds nothing is lost, changed or doubled. And the rig's own tests."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from tests.chaos import faults, oracle, topic_stream
from tests.chaos.oracle import Row, SentRows, Usage, batch, check, rows, sent_runs, ten_rows
from tests.chaos.rig import Rig
from tests.chaos.run import ROWS, check_survival
from tests.chaos.schedule import schedule
from tests.chaos.stream import Landed, Sample, StreamOutcome
from tests.chaos.topic_stream import TopicStream
from tests.kit.proxy import Proxy, open_proxy
from tests.kit.spark import needs_spark

SEED = 7
PLAN = TopicStream.plan
SHORT = ROWS * len(PLAN.least) // PLAN.faults
"""Rows of a run with one fault of each kind: as many between two faults."""
LAWS = {**oracle.LAWS, **TopicStream.laws}


class ShortStream(TopicStream):
    """Each fault falls once, under a Spark of one executor: to start another takes seconds of a processor."""

    plan = PLAN.once()
    kept = TopicStream.kept * 3 // 2  # its batches are as large as those of longer runs, and are repeated

    def __init__(self, rig: Rig, python: Path) -> None:
        super().__init__(rig, python, "local-cluster[1,2,1024]")


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.process
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("workload", "count"), [(ShortStream, SHORT), pytest.param(TopicStream, ROWS, marks=pytest.mark.soak)]
)
def test_rows_survive_faults_of_all_kinds(
    tmp_path: Path, bare_python: Path, capsys: pytest.CaptureFixture[str], workload: type[TopicStream], count: int
) -> None:
    """Faults of all kinds fall under a stream: no row is lost, changed or doubled."""
    needs_spark()
    pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
    check_survival(
        tmp_path, partial(workload, python=bare_python), capsys, PLAN, least=workload.plan.faults, rows=count
    )


# --- the proxy ---------------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[Proxy, socket.socket, socket.socket]]:
    """A proxy, and the two ends of a connection through it."""
    with open_proxy() as proxy, socket.create_server(("127.0.0.1", 0)) as door:
        proxy.target = door.getsockname()[1]
        with socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2])), 10) as near:
            far, _ = door.accept()
            with far:
                far.settimeout(10)
                near.sendall(b"x")
                assert far.recv(9) == b"x"
                yield proxy, near, far


def test_a_reset_connection_is_reset_at_both_ends(ends: tuple[Proxy, socket.socket, socket.socket]) -> None:
    proxy, *both = ends
    proxy.reset()
    for end in both:
        with pytest.raises(ConnectionResetError):
            end.recv(9)


def test_what_is_sent_into_a_half_open_connection_never_comes(ends: tuple[Proxy, socket.socket, socket.socket]) -> None:
    proxy, near, far = ends
    with proxy.half_open():
        near.sendall(b"y")
        far.settimeout(0.2)
        with pytest.raises(TimeoutError):
            far.recv(9)
        far.settimeout(10)
    with pytest.raises(ConnectionResetError):
        far.recv(9)


def test_a_cut_ends_both_ends_and_the_next_connection_passes(ends: tuple[Proxy, socket.socket, socket.socket]) -> None:
    proxy, near, far = ends
    proxy.cut()
    assert near.recv(9) == far.recv(9) == b""
    with socket.create_server(("127.0.0.1", 0)) as door:
        proxy.target = door.getsockname()[1]
        with socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2])), 10) as again:
            other, _ = door.accept()
            with other:
                again.sendall(b"z")
                assert other.recv(9) == b"z"


# --- the schedule ------------------------------------------------------------------------------


def test_a_seed_determines_the_schedule() -> None:
    assert schedule(SEED, 200_000, PLAN) == schedule(SEED, 200_000, PLAN)
    assert schedule(SEED, 200_000, PLAN) != schedule(SEED + 1, 200_000, PLAN)


def test_a_schedule_has_enough_of_each_kind_in_order_of_rows() -> None:
    moments = schedule(SEED, 200_000, PLAN)
    assert len(moments) == PLAN.faults
    assert not Counter(PLAN.least) - Counter(moment.kind for moment in moments)
    assert [moment.rows for moment in moments] == sorted(moment.rows for moment in moments)
    assert set(PLAN.least) == {*faults.FAULTS, *topic_stream.FAULTS}


# --- the checker -------------------------------------------------------------------------------


def at(row: Row, shard: int, offset: int) -> Landed:
    return Landed(shard, offset, row.seq, row.key, row.crc)


RUNS = [ten_rows(number, key=1) for number in range(4)]


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[SentRows]:
    """Return two runs that were answered for, one that wasn't and is there, one that wasn't and isn't."""
    with sent_runs(tmp_path, *RUNS, answered=2) as sent:
        yield sent


def good() -> StreamOutcome:
    """Return what three of the four runs left: all of them in the sink, and all but 5 in a shard."""
    landed = [at(row, 2, offset) for offset, row in enumerate(chain(*RUNS[:3]))]
    usage, places = Usage(20, 40, 100 << 20), {"journal": landed[5:], "sink": landed}
    samples = [Sample({"c": {2: offset}}, offset + 5) for offset in (0, 10, 10, 25)]
    return StreamOutcome(places, places, [usage], usage, usage, [], {2: 30}, samples, is_ordered=True)


Change = Callable[[StreamOutcome], StreamOutcome]


def placed(place: str, change: Callable[[list[Landed]], list[Landed]]) -> Change:
    """Change the rows of one place, before and after the restart."""

    def changed(outcome: StreamOutcome) -> StreamOutcome:
        places = {**outcome.places, place: change(outcome.places[place])}
        return replace(outcome, places=places, before=places)

    return changed


def other(row: Landed) -> Landed:
    return row._replace(crc=row.crc ^ 1)


def swapped(some: list[Landed]) -> list[Landed]:
    """Let two rows of a key change their places."""
    first, second = some[8], some[9]
    return [*some[:8], second._replace(offset=first.offset), first._replace(offset=second.offset), *some[10:]]


def absent(outcome: StreamOutcome) -> StreamOutcome:
    """Take a row out of both places."""
    without = placed("journal", lambda rows: rows[:4] + rows[5:])(outcome)
    return placed("sink", lambda rows: rows[:9] + rows[10:])(without)


STRANGER = at(Row(999, 1, None, 0.0), 2, 30)
BREAKS: list[tuple[str, str, Change]] = [
    ("lost", "an answered row is at no place", absent),
    ("lost", "a row hasn't landed", placed("sink", lambda rows: rows[:-1])),
    ("unpublished", "a stranger in the journal", placed("journal", lambda rows: [*rows, STRANGER])),
    ("unpublished", "a stranger in the sink", placed("sink", lambda rows: [*rows, STRANGER])),
    ("changed", "in the journal", placed("journal", lambda rows: [other(rows[0]), *rows[1:]])),
    ("changed", "in the sink", placed("sink", lambda rows: [*rows[1:], other(rows[0])])),
    ("changed", "a key", placed("sink", lambda rows: [*rows[1:], rows[0]._replace(key=9)])),
    ("doubled", "in the journal", placed("journal", lambda rows: [*rows, rows[4]._replace(offset=30)])),
    ("doubled", "in the sink", placed("sink", lambda rows: [*rows, rows[4]])),
    ("misplaced", "a gap", placed("journal", lambda rows: [*rows[:5], *rows[6:]])),
    ("misplaced", "an offset twice", placed("journal", lambda rows: [*rows[:5], *rows[4:-1]])),
    ("misplaced", "a row removed before it landed", placed("sink", lambda rows: rows[1:])),
    ("retained", "all rows in the journal", placed("journal", lambda rows: good().places["sink"])),
    (
        "misplaced",
        "other rows after a restart",
        lambda o: replace(o, before={**o.before, "journal": swapped(o.before["journal"])}),
    ),
    ("misplaced", "other rows when Spark read them", placed("sink", swapped)),
    ("went back", "a position", lambda o: replace(o, samples=[*o.samples, o.samples[0]])),
    ("too early", "a position before its rows", lambda o: replace(o, samples=[Sample({"c": {2: 6}}, 5)])),
    ("disordered", "in the journal", placed("journal", swapped)),
    ("disordered", "in the sink", placed("sink", swapped)),
    ("disordered", "a key in two shards", placed("journal", lambda rows: [rows[0]._replace(shard=1), *rows[1:]])),
    ("kept", "threads", lambda o: replace(o, idle=o.idle._replace(threads=99))),
    ("kept", "descriptors", lambda o: replace(o, usage=[o.idle._replace(descriptors=9_999)])),
    ("kept", "memory", lambda o: replace(o, idle=o.idle._replace(memory=2 << 30))),
    ("kept", "a file", lambda o: replace(o, litter=["tmp/x"])),
]


def test_an_outcome_without_a_fault_breaks_no_law(sent: SentRows) -> None:
    assert check(sent, good(), TopicStream.laws) == {law: [] for law in LAWS}


@pytest.mark.parametrize(("law", "what", "change"), BREAKS, ids=[f"{law}: {what}" for law, what, _ in BREAKS])
def test_a_broken_law_is_found(sent: SentRows, law: str, what: str, change: Change) -> None:
    assert check(sent, change(good()), TopicStream.laws)[law] != []


def test_each_law_is_broken_by_a_test() -> None:
    assert {law for law, _, _ in BREAKS} == set(LAWS)


def test_rows_of_unknown_outcome_may_be_out_of_order(sent: SentRows) -> None:
    """Their sender went on before they came."""
    late = [at(row, 2, offset) for offset, row in enumerate([*RUNS[0], *RUNS[2], *RUNS[1]])]
    outcome = replace(good(), places={"journal": late[5:], "sink": late})
    assert check(sent, outcome, TopicStream.laws)["disordered"] == []


def test_a_checksum_is_of_all_that_a_row_holds() -> None:
    row = rows(SEED, 0, 5, 1)[0]
    others = [row._replace(seq=6), row._replace(key=0), row._replace(text=None), row._replace(amount=row.amount + 1)]
    assert row.crc not in [each.crc for each in others]
    assert [Row(*each.values()) for each in batch([row]).to_pylist()] == [row]
