"""The rules of a write, one by one, on a ledger alone: no server, no bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import AlreadyExists, InvalidRequest, NotFound, WriteEnded
from penstock.ledger.attempts import Attempt
from penstock.ledger.ledger import Ledger
from tests.kit.ledger import OTHER, PATH, SCHEMA, finish_write, make_attempt, part_names, visible_parts

# --- open, record, finish --------------------------------------------------------------------


def test_finish_shows_the_listed_attempts_in_their_order(ledger: Ledger) -> None:
    """It shows no other attempt, and counts theirs alone."""
    write = ledger.open_write(PATH)
    one, two, three = make_attempt(5, 6), make_attempt(7), make_attempt(8)
    for attempt in (one, two, three):
        ledger.record(write.id, attempt)
    summary = ledger.finish(write.id, [three.id, one.id])
    assert visible_parts(ledger) == part_names(three, one)
    assert (summary.state, summary.attempts, summary.rows, summary.bytes, summary.parts) == ("finished", 2, 19, 190, 3)
    dataset = ledger.dataset(PATH)
    assert (dataset.rows, dataset.bytes, dataset.part_count, dataset.schema) == (19, 190, 3, SCHEMA)


def test_a_receipt_says_what_was_recorded(ledger: Ledger) -> None:
    write, one = ledger.open_write(PATH).id, make_attempt(5, 6)
    receipt = ledger.record(write, one)
    assert (receipt.write, receipt.attempt, receipt.rows, receipt.bytes, receipt.parts) == (write, one.id, 11, 110, 2)
    assert receipt.digest != ledger.record(write, make_attempt(5, 6)).digest


def test_an_attempt_recorded_again_gets_its_first_receipt(ledger: Ledger) -> None:
    write, one = ledger.open_write(PATH).id, make_attempt(5)
    first = ledger.record(write, one)
    parts = tuple(replace(part, name=f"{part.name}-again") for part in one.parts)
    assert ledger.record(write, replace(one, parts=parts)) == first
    assert ledger.finish(write, [one.id]).rows == 5
    assert visible_parts(ledger) == part_names(one)


@pytest.mark.parametrize("rows", [(9,), (5,), (2, 3), ()])
def test_an_attempt_recorded_again_with_other_rows_is_refused(ledger: Ledger, rows: tuple[int, ...]) -> None:
    """The first rows stay."""
    write, one = ledger.open_write(PATH).id, make_attempt(5)
    ledger.record(write, one)
    other = Attempt(one.id, SCHEMA, sum(rows), make_attempt(*rows).parts)
    message = f"attempt {one.id} .* recorded with 5 rows .* the {sum(rows)} rows .* new UUID"
    with pytest.raises(AlreadyExists, match=message):
        ledger.record(write, other)
    assert ledger.summary(write).rows == 5
    ledger.finish(write, [one.id])
    assert visible_parts(ledger) == part_names(one)


def test_an_attempt_belongs_to_one_write(ledger: Ledger) -> None:
    one, first, second = make_attempt(5), ledger.open_write("store/a").id, ledger.open_write("store/b").id
    ledger.record(first, one)
    with pytest.raises(AlreadyExists, match="belongs to another write"):
        ledger.record(second, one)
    with pytest.raises(NotFound, match="no whole attempt"):
        ledger.finish(second, [one.id])


def test_finish_refuses_attempts_that_are_not_whole(ledger: Ledger) -> None:
    """A refused finish changes nothing: the write stays open."""
    write, one = ledger.open_write(PATH).id, make_attempt(5)
    ledger.record(write, one)
    with pytest.raises(NotFound, match="no whole attempt 'feed'"):
        ledger.finish(write, [one.id, "feed"])
    assert visible_parts(ledger) == []
    assert ledger.summary(write).state == "open"
    ledger.finish(write, [one.id])
    assert visible_parts(ledger) == part_names(one)


def test_a_repeated_finish_gets_the_first_answer(ledger: Ledger) -> None:
    """The list may be in another order; another list is refused."""
    write, one, two = ledger.open_write(PATH).id, make_attempt(5), make_attempt(6)
    ledger.record(write, one)
    ledger.record(write, two)
    summary = ledger.finish(write, [one.id, two.id])
    assert ledger.finish(write, [two.id, one.id, two.id]) == summary
    for other in ([one.id], [], [one.id, two.id, "feed"]):
        with pytest.raises(WriteEnded, match="finished with another list"):
            ledger.finish(write, other)
    assert visible_parts(ledger) == part_names(one, two)


def test_a_write_that_has_ended_records_nothing(ledger: Ledger) -> None:
    finished, aborted = finish_write(ledger, make_attempt(5)), ledger.open_write("store/b").id
    ledger.abort(aborted)
    for write, state in ((finished, "finished"), (aborted, "aborted")):
        with pytest.raises(WriteEnded, match=f"is {state}"):
            ledger.record(write, make_attempt(1))
        with pytest.raises(WriteEnded, match=f"is {state}"):
            ledger.touch(write)


def test_a_single_put_is_recorded_and_finished_at_once(ledger: Ledger) -> None:
    write, one = ledger.open_write(PATH), make_attempt(5)
    receipt = ledger.finish_single(write.id, one)
    assert visible_parts(ledger) == part_names(one)
    assert ledger.finished_receipt(write.id) == receipt


def test_a_single_put_that_cannot_finish_records_nothing(ledger: Ledger) -> None:
    write = ledger.open_write(PATH)
    finish_write(ledger, make_attempt(5))
    with pytest.raises(AlreadyExists):
        ledger.finish_single(write.id, make_attempt(6))
    assert ledger.summary(write.id).attempts == 0


def test_an_unknown_write_is_named(ledger: Ledger) -> None:
    for method in (ledger.write, ledger.summary, ledger.touch, ledger.abort, lambda write: ledger.finish(write, [])):
        with pytest.raises(NotFound, match="no write/5d41"):
            method("5d41")


# --- an empty dataset ------------------------------------------------------------------------


def test_an_empty_finish_without_a_schema_is_refused(ledger: Ledger) -> None:
    """Nothing says which columns a dataset at the new path has."""
    write = ledger.open_write(PATH).id
    with pytest.raises(InvalidRequest, match=r"has no attempt, .* name the columns"):
        ledger.finish(write, [])
    assert ledger.datasets("store/") == []


def test_an_empty_finish_with_a_schema_makes_an_empty_dataset(ledger: Ledger) -> None:
    ledger.finish(ledger.open_write(PATH, schema=SCHEMA).id, [])
    assert (ledger.dataset(PATH).rows, ledger.dataset(PATH).schema) == (0, SCHEMA)
    assert visible_parts(ledger) == []


def test_an_empty_append_changes_nothing(ledger: Ledger) -> None:
    """An empty overwrite removes all rows."""
    one = make_attempt(5)
    finish_write(ledger, one)
    ledger.finish(ledger.open_write(PATH, mode="append").id, [])
    assert visible_parts(ledger) == part_names(one)
    ledger.finish(ledger.open_write(PATH, mode="overwrite", schema=OTHER).id, [])
    assert visible_parts(ledger) == []
    assert ledger.dataset(PATH).schema == OTHER


# --- modes -----------------------------------------------------------------------------------


def test_mode_error_refuses_a_taken_path_at_open(ledger: Ledger) -> None:
    finish_write(ledger, make_attempt(1))
    with pytest.raises(AlreadyExists, match="choose mode 'append' or 'overwrite'"):
        ledger.open_write(PATH)


def test_mode_error_refuses_a_taken_path_at_finish(ledger: Ledger) -> None:
    """The path was taken after the write had been opened."""
    one, two = make_attempt(1), make_attempt(2)
    first, second = ledger.open_write(PATH).id, ledger.open_write(PATH).id
    ledger.record(first, one)
    ledger.record(second, two)
    ledger.finish(second, [two.id])
    with pytest.raises(AlreadyExists):
        ledger.finish(first, [one.id])
    assert visible_parts(ledger) == part_names(two)
    ledger.abort(first)
