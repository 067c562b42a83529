"""How a write ends, how it is repeated, and what is known of it after a crash or a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import Lost, NotFound, PenstockError, WriteEnded
from penstock.ledger import tables
from penstock.ledger.attempts import Attempt
from penstock.ledger.ledger import IDLE, REMEMBERED, Ledger
from penstock.store.database import Database
from penstock.wire.put import Mode
from tests.kit.clock import Clock
from tests.kit.ledger import PATH, SCHEMA, finish_write, make_attempt, part_names, visible_parts

# --- abort, expire ---------------------------------------------------------------------------


def test_finish_and_abort_exclude_each_other(ledger: Ledger) -> None:
    finished, aborted, one = finish_write(ledger, make_attempt(5)), ledger.open_write("store/b").id, make_attempt(1)
    ledger.record(aborted, one)
    ledger.abort(aborted)
    with pytest.raises(WriteEnded, match="is finished: it can't be aborted"):
        ledger.abort(finished)
    with pytest.raises(WriteEnded, match="is aborted"):
        ledger.finish(aborted, [one.id])
    assert ledger.dataset(PATH).rows == 5


def test_a_write_that_is_idle_for_a_day_expires(ledger: Ledger, clock: Clock) -> None:
    write, one = ledger.open_write(PATH).id, make_attempt(5)
    ledger.record(write, one)
    clock.advance(IDLE)
    assert ledger.expire() == []
    clock.advance(1)
    assert ledger.expire() == [write]
    assert ledger.expire() == []
    assert ledger.freeable() == part_names(one)
    for call in (
        lambda: ledger.finish(write, [one.id]),
        lambda: ledger.record(write, make_attempt(1)),
        lambda: ledger.touch(write),
    ):
        with pytest.raises(WriteEnded, match="is expired"):
            call()


@pytest.mark.parametrize("use", ["touch", "record", "join"])
def test_each_use_keeps_a_write_from_expiring(ledger: Ledger, clock: Clock, use: str) -> None:
    write = ledger.open_write(PATH, run="r").id
    for _ in range(3):
        clock.advance(IDLE - 1)
        if use == "touch":
            ledger.touch(write)
        elif use == "record":
            ledger.record(write, make_attempt(1))
        else:
            ledger.open_write(PATH, run="r")
        assert ledger.expire() == []


def test_finished_writes_are_known_for_a_month(ledger: Ledger, clock: Clock) -> None:
    """Their datasets stay."""
    one = make_attempt(5)
    write = finish_write(ledger, one)
    clock.advance(REMEMBERED)
    ledger.expire()
    assert ledger.summary(write).state == "finished"
    clock.advance(1)
    ledger.expire()
    with pytest.raises(NotFound):
        ledger.summary(write)
    assert visible_parts(ledger) == part_names(one)
    assert ledger.freeable() == []


def test_open_writes_are_listed_the_latest_first(ledger: Ledger, clock: Clock) -> None:
    finish_write(ledger, make_attempt(1))
    first = ledger.open_write("store/b").id
    clock.advance(1)
    second = ledger.open_write("store/c").id
    ledger.abort(ledger.open_write("store/d").id)
    assert [write.write for write in ledger.open_writes()] == [second, first]


# --- runs ------------------------------------------------------------------------------------


def test_opening_a_finished_run_returns_its_write(ledger: Ledger) -> None:
    write, one = ledger.open_write(PATH, run="night 7").id, make_attempt(5)
    ledger.record(write, one)
    ledger.finish(write, [one.id])
    again = ledger.open_write(PATH, run="night 7")
    assert (again.id, again.state) == (write, "finished")
    assert ledger.open_writes() == []


def test_opening_an_open_run_joins_it(ledger: Ledger) -> None:
    first, second = ledger.open_write(PATH, run="r"), ledger.open_write(PATH, run="r")
    assert (second.id, second.state) == (first.id, "open")
    assert second.opener != first.opener
    one, two = make_attempt(1), make_attempt(2)
    ledger.record(first.id, one)
    ledger.record(second.id, two)
    assert ledger.finish(second.id, [two.id]) == ledger.finish(first.id, [two.id])
    assert visible_parts(ledger) == part_names(two)


def test_only_the_last_opener_of_a_run_may_abort_it(ledger: Ledger) -> None:
    first, last = ledger.open_write(PATH, run="r"), ledger.open_write(PATH, run="r")
    with pytest.raises(WriteEnded, match="joined by a later opener"):
        ledger.abort(first.id, opener=first.opener)
    assert ledger.write(first.id).state == "open"
    assert ledger.abort(first.id, opener=last.opener).state == "aborted"


def finish_run(ledger: Ledger, run: str, *, mode: Mode = "append") -> tuple[str, Attempt]:
    """Finish a write of one attempt under this run, and return its id and the attempt."""
    write, one = ledger.open_write(PATH, mode=mode, run=run).id, make_attempt(1)
    ledger.record(write, one)
    ledger.finish(write, [one.id])
    return write, one


def test_a_delete_forgets_the_runs_of_its_dataset(ledger: Ledger) -> None:
    """They may be written again."""
    before = [finish_run(ledger, run)[0] for run in ("batch 1", "batch 2")]
    ledger.delete(PATH)
    write, one = finish_run(ledger, "batch 1")
    assert write not in before
    assert visible_parts(ledger) == part_names(one)
    assert ledger.open_write(PATH, mode="append", run="batch 1").id == write
    assert ledger.open_write(PATH, mode="append", run="batch 2").state == "open"


def test_a_delete_keeps_open_runs_and_those_of_other_paths(ledger: Ledger) -> None:
    finish_run(ledger, "r")
    unfinished = ledger.open_write(PATH, mode="append", run="s")
    other = ledger.open_write("store/other", run="r", schema=SCHEMA)
    ledger.finish(other.id, [])
    ledger.delete(PATH)
    assert ledger.open_write(PATH, mode="append", run="s").id == unfinished.id
    assert ledger.open_write("store/other", run="r").state == "finished"


def test_an_overwrite_forgets_no_run(ledger: Ledger) -> None:
    first, _ = finish_run(ledger, "r")
    last, one = finish_run(ledger, "s", mode="overwrite")
    assert ledger.open_write(PATH, mode="append", run="r").id == first
    assert ledger.open_write(PATH, mode="overwrite", run="s").id == last
    assert visible_parts(ledger) == part_names(one)


def test_a_repeated_finish_is_answered_after_a_delete(ledger: Ledger) -> None:
    write, one = finish_run(ledger, "r")
    summary = ledger.summary(write)
    ledger.delete(PATH)
    assert ledger.finish(write, [one.id]) == replace(summary, run=None)
    assert visible_parts(ledger) == []


# --- restarts, crashes -----------------------------------------------------------------------


def test_rows_in_the_memory_of_an_earlier_server_are_lost(reopen: Callable[..., Ledger]) -> None:
    """The dataset is listed as lost, until it is overwritten."""
    ledger = reopen("first-life")
    finish_write(ledger, make_attempt(1))
    assert not ledger.dataset(PATH).lost
    ledger.close()
    again = reopen("second-life")
    assert again.dataset(PATH).lost
    assert [dataset.lost for dataset in again.datasets("store/")] == [True]
    with pytest.raises(Lost, match="can't be appended to"):
        again.open_write(PATH, mode="append")
    finish_write(again, make_attempt(2), mode="overwrite")
    assert not again.dataset(PATH).lost


def test_a_run_whose_rows_are_lost_may_be_written_again(reopen: Callable[..., Ledger]) -> None:
    """So may the other runs of its dataset."""
    ledger = reopen("first-life")
    before = {run: finish_run(ledger, run)[0] for run in ("batch 1", "batch 2")}
    assert {run: ledger.open_write(PATH, mode="append", run=run).id for run in before} == before
    ledger.close()
    again = reopen("second-life")

    with pytest.raises(Lost, match="write it again with mode 'overwrite'"):
        again.open_write(PATH, mode="append", run="batch 1")
    _, one = finish_run(again, "batch 1", mode="overwrite")
    _, two = finish_run(again, "batch 2")
    assert visible_parts(again) == part_names(one, two)
    assert again.open_write(PATH, mode="append", run="batch 2").state == "finished"


def test_a_lost_dataset_is_not_reported_as_existing(reopen: Callable[..., Ledger]) -> None:
    """`AlreadyExists` would advise the caller to append, which is refused, too."""
    ledger = reopen("first-life")
    finish_write(ledger, make_attempt(1))
    ledger.close()
    with pytest.raises(Lost, match="write it again with mode 'overwrite'"):
        reopen("second-life").open_write(PATH)


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not SQLite at all, " * 100)
    with pytest.raises(PenstockError, match="can't be read"):
        Database(tmp_path / "ledger.db", tables.TABLES)


def test_only_its_owner_may_read_the_ledger(ledger: Ledger, tmp_path: Path) -> None:
    finish_write(ledger, make_attempt(1))
    for file in tmp_path.glob("ledger.db*"):
        assert file.stat().st_mode & 0o077 == 0, file
