"""Partitions of a dataset, one of which is overwritten in one step; and datasets that live for a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import NotFound, SchemaMismatch
from penstock.ledger.sweep import free
from penstock.wire.actions import Partition
from tests.kit.clock import Clock
from tests.kit.datasets import PATH, Datasets
from tests.kit.rows import numbers


@pytest.fixture
def folder(tmp_path: Path, clock: Clock) -> Iterator[Datasets]:
    with closing(Datasets(tmp_path, clock)) as folder:
        yield folder


def ids(folder: Datasets) -> list[int]:
    return [int(number) for number in folder.table()["n"].to_pylist()]


# --- partitions ----------------------------------------------------------------------------


def test_an_overwrite_of_a_partition_leaves_the_others(folder: Datasets) -> None:
    folder.write(numbers(2, 0), partition="mon")
    folder.write(numbers(2, 10), partition="tue")
    folder.write(numbers(1, 20))
    end = folder.ledger.dataset(PATH).end
    folder.write(numbers(1, 2), partition="mon")
    assert folder.ledger.dataset(PATH).end.partition(".")[0] == end.partition(".")[0]
    folder.write(numbers(3, 30), partition="mon", mode="overwrite")
    assert ids(folder) == [10, 11, 20, 30, 31, 32]
    dataset = folder.ledger.dataset(PATH)
    assert (dataset.rows, dataset.part_count) == (6, 3)
    assert dataset.end.partition(".")[0] != end.partition(".")[0], "rows up to the old end are gone"
    assert [(each.partition, each.rows, each.parts) for each in folder.ledger.partitions(PATH)] == [
        ("mon", 3, 1), ("tue", 2, 1),
    ]  # fmt: skip
    folder.write(numbers(1, 40), partition="wed", mode="overwrite")
    assert ids(folder)[-1] == 40
    folder.write(numbers(1, 50), mode="overwrite")
    assert ids(folder) == [50]
    assert folder.ledger.partitions(PATH) == ()


def test_a_partition_that_tickets_name_stays_readable(folder: Datasets) -> None:
    folder.write(numbers(2, 0), partition="mon")
    before = folder.slices(ticketed_until=folder.clock.now() + 100)
    folder.write(numbers(1, 9), partition="mon", mode="overwrite")
    assert free(folder.ledger, folder.store) == 0
    assert folder.table_of(before).num_rows == 2
    folder.clock.advance(200)
    assert free(folder.ledger, folder.store) == 1


def test_a_partition_has_the_columns_of_its_dataset(folder: Datasets) -> None:
    folder.write(numbers(2, 0), partition="mon")
    with pytest.raises(SchemaMismatch):
        folder.write(pa.table({"n": ["text"]}), partition="mon", mode="overwrite")
    assert ids(folder) == [0, 1]


def test_small_parts_of_one_partition_are_merged(folder: Datasets) -> None:
    """And never those of two: an overwrite of one would take rows of the other, or leave some."""
    for number in range(40):
        folder.write(numbers(1, number), partition="mon" if number < 20 else "tue")
    assert folder.compactor.compact() == 40
    assert [(each.partition, each.rows, each.parts) for each in folder.ledger.partitions(PATH)] == [
        ("mon", 20, 1), ("tue", 20, 1),
    ]  # fmt: skip
    folder.write(numbers(1, 99), partition="mon", mode="overwrite")
    assert ids(folder) == [*range(20, 40), 99]


def test_a_partition_outlives_a_restart(folder: Datasets) -> None:
    folder.write(numbers(2, 0), partition="mon", ttl=100)
    folder.restart()
    (partition,) = folder.ledger.partitions(PATH)
    assert partition == Partition("mon", 2, folder.ledger.dataset(PATH).bytes, 1)
    assert folder.ledger.dataset(PATH).expires == folder.clock.now() + 100


# --- time to live --------------------------------------------------------------------------


def expired(folder: Datasets) -> list[str]:
    return [dataset.path for dataset in folder.ledger.delete_expired()]


def test_a_dataset_is_deleted_after_its_time(folder: Datasets) -> None:
    folder.write(numbers(1), ttl=100, run="r")
    folder.write(numbers(1), path="store/b")
    folder.clock.advance(99)
    assert expired(folder) == []
    before = folder.slices(ticketed_until=folder.clock.now() + 50)
    folder.clock.advance(1)
    assert expired(folder) == [PATH]
    assert expired(folder) == []
    with pytest.raises(NotFound):
        folder.ledger.dataset(PATH)
    assert folder.table_of(before).num_rows == 1, "a ticket names it"
    folder.write(numbers(3), run="r")
    assert ids(folder) == [0, 1, 2], "it starts over, as after a delete"


def test_each_write_begins_the_time_anew(folder: Datasets) -> None:
    folder.write(numbers(1, 0), ttl=100)
    folder.clock.advance(90)
    folder.write(numbers(1, 1))
    folder.clock.advance(90)
    assert expired(folder) == []
    folder.write(numbers(1, 2), ttl=10)
    folder.clock.advance(10)
    assert expired(folder) == [PATH]


def test_an_overwrite_says_how_long_it_lives(folder: Datasets) -> None:
    folder.write(numbers(1), ttl=100)
    folder.write(numbers(1), mode="overwrite")
    folder.clock.advance(1_000)
    assert expired(folder) == []
    folder.write(numbers(1), mode="overwrite", ttl=5, partition="p")
    folder.clock.advance(5)
    assert expired(folder) == [PATH]


def test_a_dataset_stays_while_a_write_to_it_is_open(folder: Datasets) -> None:
    """What is appended would be all that is left, and for ever."""
    folder.write(numbers(1), ttl=100)
    write = folder.ledger.open_write(PATH, mode="append")
    folder.clock.advance(100)
    assert expired(folder) == []
    folder.ledger.abort(write.id)
    assert expired(folder) == [PATH]
