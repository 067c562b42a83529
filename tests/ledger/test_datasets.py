"""What may be at a path, in which schema, how many datasets there may be, and how long bytes stay."""

from __future__ import annotations

import uuid
from unittest.mock import Mock

import pytest

from penstock.errors import AlreadyExists, LimitExceeded, NotFound, SchemaMismatch, StoreFull
from penstock.ledger import parts, writes
from penstock.ledger.attempts import Attempt
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from tests.kit.clock import Clock
from tests.kit.ledger import OTHER, PATH, SCHEMA, WIDER, finish_write, make_attempt, part_names, visible_parts

# --- a path is a dataset or a folder ---------------------------------------------------------


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
@pytest.mark.parametrize(
    ("taken", "new"), [("store/a/b", "store/a"), ("store/a", "store/a/b"), ("store/a", "store/a/b/c/d")]
)
def test_a_path_is_a_dataset_or_a_folder_never_both(ledger: Ledger, taken: str, new: str, mode: str) -> None:
    finish_write(ledger, make_attempt(1), path=taken)
    with pytest.raises(AlreadyExists, match=r"folder|nothing can be below"):
        ledger.open_write(new, mode=mode)  # type: ignore[arg-type]


def test_a_common_prefix_makes_no_folder(ledger: Ledger) -> None:
    for path in ("store/a", "store/a.b", "store/a-b/c", "store/aa", "store/a=1"):
        finish_write(ledger, make_attempt(1), path=path)
    paths = [dataset.path for dataset in ledger.datasets("store/")]
    assert paths == ["store/a", "store/a-b/c", "store/a.b", "store/a=1", "store/aa"]


def test_a_folder_is_gone_with_its_last_dataset(ledger: Ledger) -> None:
    finish_write(ledger, make_attempt(1), path="store/a/b")
    with pytest.raises(NotFound, match="store/a is a folder"):
        ledger.dataset("store/a")
    ledger.delete("store/a/b")
    with pytest.raises(NotFound, match="no dataset at store/a"):
        ledger.dataset("store/a")
    finish_write(ledger, make_attempt(1), path="store/a")


def test_a_folder_sums_up_the_datasets_below(ledger: Ledger) -> None:
    for path, rows in (("store/x", 1), ("store/a/b", 2), ("store/a/c/d", 4), ("store/ab", 8)):
        finish_write(ledger, make_attempt(rows), path=path)
    entries = [(entry.path, entry.rows) for entry in ledger.folder("store/")]
    assert entries == [("store/a/", 6), ("store/ab", 8), ("store/x", 1)]
    assert [entry.path for entry in ledger.folder("store/a")] == ["store/a/b", "store/a/c/"]
    assert [entry.path for entry in ledger.datasets("store/a/")] == ["store/a/b", "store/a/c/d"]


# --- schemas ---------------------------------------------------------------------------------


def test_another_schema_is_refused(ledger: Ledger) -> None:
    """Refused when a write announces it at open, when an attempt is recorded, and at finish."""
    finish_write(ledger, make_attempt(1))
    with pytest.raises(SchemaMismatch, match="id is int64, got string"):
        ledger.open_write(PATH, mode="append", schema=OTHER)
    write = ledger.open_write(PATH, mode="append").id
    with pytest.raises(SchemaMismatch, match="id is int64, got string"):
        ledger.record(write, make_attempt(1, schema=OTHER))
    fresh = ledger.open_write("store/b").id
    one, two = make_attempt(1), make_attempt(1, schema=OTHER)
    ledger.record(fresh, one)
    ledger.record(fresh, two)
    with pytest.raises(SchemaMismatch):
        ledger.finish(fresh, [one.id, two.id])
    ledger.finish(fresh, [two.id])
    assert ledger.dataset("store/b").schema == OTHER


def test_an_announced_schema_binds_the_attempts(ledger: Ledger) -> None:
    write = ledger.open_write(PATH, schema=SCHEMA).id
    with pytest.raises(SchemaMismatch):
        ledger.record(write, make_attempt(1, schema=OTHER))


def test_added_nullable_columns_are_accepted(ledger: Ledger) -> None:
    """Older parts keep their schema."""
    one, two = make_attempt(1), make_attempt(2, schema=WIDER)
    finish_write(ledger, one)
    write = ledger.open_write(PATH, mode="append").id
    ledger.record(write, two)
    ledger.finish(write, [two.id])
    dataset, parts = ledger.snapshot(PATH, ticketed_until=0)
    assert dataset.schema == WIDER
    assert [part.schema for part in parts] == [SCHEMA, WIDER]


def test_an_overwrite_may_bring_another_schema(ledger: Ledger) -> None:
    finish_write(ledger, make_attempt(1))
    write, one = ledger.open_write(PATH, mode="overwrite").id, make_attempt(1, schema=OTHER)
    ledger.record(write, one)
    ledger.finish(write, [one.id])
    assert ledger.dataset(PATH).schema == OTHER


def test_the_schema_is_checked_again_at_finish(ledger: Ledger) -> None:
    """Another write has made the dataset in the meantime."""
    write, one = ledger.open_write(PATH, mode="append").id, make_attempt(1, schema=OTHER)
    ledger.record(write, one)
    finish_write(ledger, make_attempt(1), mode="append")
    with pytest.raises(SchemaMismatch):
        ledger.finish(write, [one.id])


# --- delete, and parts that tickets name -----------------------------------------------------


@pytest.mark.parametrize("end", ["delete", "overwrite"])
def test_bytes_that_a_ticket_names_stay_until_it_expires(ledger: Ledger, clock: Clock, end: str) -> None:
    one = make_attempt(1)
    finish_write(ledger, one)
    until = clock.now() + 3_600
    ledger.snapshot(PATH, ticketed_until=until)
    if end == "delete":
        ledger.delete(PATH)
    else:
        finish_write(ledger, make_attempt(2), mode="overwrite")
    clock.set(until)
    assert ledger.freeable() == []
    clock.advance(120)
    assert ledger.freeable() == part_names(one)


@pytest.mark.parametrize("noted", [0, 100])
def test_a_ticket_that_could_not_be_noted_holds_its_bytes(
    ledger: Ledger, clock: Clock, noted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the ticket's time is to be noted, with or without an earlier ticket there."""
    finish_write(ledger, make_attempt(1))
    if noted:
        ledger.snapshot(PATH, ticketed_until=clock.now() + noted)
    until = clock.now() + 3_600
    with monkeypatch.context() as full:
        full.setattr(ledger.database, "run", Mock(side_effect=StoreFull("no room")))
        assert ledger.snapshot(PATH, ticketed_until=until)[0].rows == 1
    ledger.delete(PATH)
    clock.set(until)
    assert ledger.freeable() == []
    clock.advance(120)
    assert len(ledger.freeable()) == 1


def test_a_sweep_looks_at_each_shared_file_once(ledger: Ledger) -> None:
    """Of 500 parts in a file all but the last are retired: whether they are free is one question, not 499."""
    names = [f"f.{number:03x}-1" for number in range(500)]
    steps = Mock(return_value=0)

    def retire(t: Transaction) -> None:
        for name in names:
            parts.add_payload(t, name, f"store/{name}", rows=1, bytes=1, schema=SCHEMA, digest=None)
        parts.retire(t, names[:-1], "store/f")
        t.sql.set_progress_handler(steps, 100)
        assert parts.freeable(t, t.now) == []
        t.sql.set_progress_handler(None, 0)
        parts.retire(t, names[-1:], "store/f")

    ledger.change(retire)
    assert sorted(ledger.freeable()) == names
    assert steps.call_count < 1_000  # of 100 steps: 225; 22,579 where each part asks


def test_bytes_held_by_tickets_alone_are_counted(ledger: Ledger, clock: Clock) -> None:
    """The count comes with the time at which the last of those tickets expires."""
    assert ledger.held_by_tickets() == (0, 0)
    start = clock.now()
    for path, rows, seconds in (("store/a", 1, 500), ("store/b", 2, 100), ("store/c", 4, 0), ("store/d", 8, 900)):
        finish_write(ledger, make_attempt(rows), path=path)
        ledger.snapshot(path, ticketed_until=start + seconds)
    assert ledger.held_by_tickets() == (0, 0)
    for path in ("store/a", "store/b"):
        ledger.delete(path)
    assert ledger.held_by_tickets() == (30, start + 560)
    clock.set(start + 161)
    assert ledger.held_by_tickets() == (10, start + 560)
    clock.set(start + 561)
    assert ledger.held_by_tickets() == (0, 0)


def test_visible_parts_are_never_forgotten(ledger: Ledger) -> None:
    one = make_attempt(1, 2)
    finish_write(ledger, one)
    ledger.forget(part_names(one))
    assert visible_parts(ledger) == part_names(one)


# --- limits ----------------------------------------------------------------------------------


def test_one_dataset_too_many_is_refused(ledger: Ledger) -> None:
    """Existing datasets still take writes, and a deleted one makes room."""
    for path in ("store/a", "store/b"):
        finish_write(ledger, make_attempt(1), path=path)
    ledger.most_paths = 2
    with pytest.raises(LimitExceeded, match="takes 2 datasets"):
        ledger.open_write("store/c")
    ledger.open_write("store/b", mode="append")
    ledger.delete("store/a")
    ledger.open_write("store/c")


def test_thousands_of_attempts_are_finished_in_one_go(ledger: Ledger) -> None:
    write = ledger.open_write(PATH, schema=SCHEMA).id
    attempts = [Attempt(uuid.uuid4().hex, SCHEMA, 0, ()) for _ in range(2_000)]
    ledger.change(lambda t: [writes.record(t, write, attempt) for attempt in attempts])
    assert ledger.finish(write, [attempt.id for attempt in attempts[:-1]]).attempts == 1_999


def test_totals_count_datasets_rows_writes_and_bytes(ledger: Ledger) -> None:
    finish_write(ledger, make_attempt(1, 2), path="store/a")
    finish_write(ledger, make_attempt(4), path="store/b")
    ledger.open_write("store/c")
    ledger.delete("store/a")
    totals = ledger.totals()
    sums = {"datasets": 1, "rows": 4, "dataset_parts": 1, "compacted": 0}
    assert totals == {**sums, "open_writes": 1, "visible_bytes": 40, "retired_bytes": 30}
