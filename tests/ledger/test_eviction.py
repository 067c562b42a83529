"""A store that is a cache: what was used longest ago goes first, and never what somebody needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from penstock.errors import StoreFull
from penstock.ledger import parts
from penstock.ledger.sweep import free
from tests.kit.clock import Clock
from tests.kit.datasets import Datasets
from tests.kit.rows import numbers

LIFE = 10.0


@pytest.fixture
def folder(tmp_path: Path, clock: Clock) -> Iterator[Datasets]:
    """Three datasets, written one after the other."""
    with closing(Datasets(tmp_path, clock)) as folder:
        for name in "abc":
            folder.write(numbers(10), path=f"store/{name}")
            clock.advance(1)
        yield folder


def evict(folder: Datasets, size: int = 1) -> list[str]:
    return [dataset.path for dataset in folder.ledger.evict(size)]


def read(folder: Datasets, path: str) -> None:
    folder.slices(path, ticketed_until=folder.clock.now() + LIFE)


def test_what_was_written_longest_ago_goes_first(folder: Datasets) -> None:
    assert evict(folder) == ["store/a"]
    assert evict(folder, 2 * folder.ledger.dataset("store/b").bytes) == ["store/b", "store/c"]
    assert evict(folder) == []


def test_nothing_goes_if_that_is_not_enough(folder: Datasets) -> None:
    assert evict(folder, 10_000_000) == []
    assert len(folder.ledger.datasets("store/")) == 3


def test_a_read_counts_as_use(folder: Datasets) -> None:
    """A dataset that a ticket names would free nothing; later it is as old as its last read."""
    read(folder, "store/a")
    assert evict(folder) == ["store/b"]
    folder.clock.advance(1_000)
    folder.write(numbers(10), path="store/d")
    folder.clock.advance(1_000)
    assert evict(folder) == ["store/c"]
    assert evict(folder) == ["store/a"]
    assert evict(folder) == ["store/d"]


def test_a_dataset_that_a_write_is_open_to_stays(folder: Datasets) -> None:
    write = folder.ledger.open_write("store/a", mode="append")
    assert evict(folder, 2) == ["store/b"]
    assert evict(folder, 2) == ["store/c"]
    assert evict(folder) == []
    folder.ledger.abort(write.id)
    assert evict(folder) == ["store/a"]


def test_a_dataset_whose_rows_a_message_names_stays(folder: Datasets) -> None:
    named = folder.parts("store/a")
    folder.ledger.change(partial(parts.hold, names=named))
    assert [evict(folder), evict(folder), evict(folder)] == [["store/b"], ["store/c"], []]
    folder.ledger.change(partial(parts.let_go, name=named[0]))
    assert evict(folder) == ["store/a"]


def test_a_full_store_asks_for_room_until_there_is_none(folder: Datasets) -> None:
    folder.store.quota = folder.store.used
    sizes: list[int] = []

    def make_room(size: int) -> bool:
        sizes.append(size)
        evicted = evict(folder, size)
        free(folder.ledger, folder.store)
        return bool(evicted)

    folder.store.make_room = make_room
    for name in "def":
        folder.write(numbers(10), path=f"store/{name}")
        folder.clock.advance(1)
    assert [dataset.path for dataset in folder.ledger.datasets("store/")] == ["store/d", "store/e", "store/f"]
    assert len(sizes) == 3
    with pytest.raises(StoreFull):
        folder.write(numbers(10_000), path="store/large")
    assert len(folder.ledger.datasets("store/")) == 3
