"""The index of messages against a dict: the same keys, the same places, whatever was merged or forgotten between."""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.queue.pubsub import index as indexes
from penstock.queue.pubsub.index import Index, Keys, keys_of, offsets_of, place_of, shards_of
from tests.kit.profiles import examples

NUMBERS = st.integers(0, 40).map(str)
ODD = st.sampled_from(
    ["007", "+7", "-7", " 7", "7 ", "7\n", "", "x", "1e3", "٣", "0x7", str(2**63 - 1), str(2**63), "9" * 18, "9" * 19]
)
MESSAGES = st.lists(st.tuples(st.one_of(NUMBERS, NUMBERS, NUMBERS, ODD), st.integers(0, 3)), max_size=60)
_ = examples  # the profiles are loaded


def keys(messages: list[tuple[str, int]]) -> Keys:
    ids = pa.array([message for message, _ in messages], pa.string())
    return keys_of(ids, pa.array([time for _, time in messages], pa.timestamp("us", "UTC")))


def integers(values: list[int]) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


@pytest.fixture(autouse=True, params=[3, 1 << 21])
def _short_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs so short that many lie beside each other, and runs as they are."""
    monkeypatch.setattr(indexes, "_LONGEST_RUN", request.param)


@given(st.lists(st.tuples(MESSAGES, st.integers(0, 80)), max_size=12))
def test_finds_what_a_dict_finds(batches: list[tuple[list[tuple[str, int]], int]]) -> None:
    """Batches are added where they are new; between them all below a place is forgotten."""
    index, oracle, place = Index(), dict[tuple[str, int], int](), 0
    for messages, below in batches:
        batch = keys(messages)
        assert index.find(batch).tolist() == [oracle.get(message, -1) for message in messages]
        first = batch.first_rows()
        assert first.tolist() == [messages.index(message) for message in messages]
        new = [row for row, message in enumerate(messages) if message not in oracle and first[row] == row]
        index.add(batch.take(integers(new)), integers(list(range(place, place + len(new)))))
        oracle |= {messages[row]: place + number for number, row in enumerate(new)}
        place += len(new)
        assert index.find(batch).tolist() == [oracle[message] for message in messages]
        assert len(index) == len(oracle)
        low = {message: at for message, at in oracle.items() if at < below}
        chosen, places = index.select(lambda times, places, below=below: places < below)  # type: ignore[misc]
        assert sorted(places.tolist()) == sorted(low.values())
        assert index.find(chosen).tolist() == places.tolist()
        gone = index.forget(lambda times, places, below=below: places < below)  # type: ignore[misc]
        left = {message: at for message, at in oracle.items() if at >= below}
        assert gone == len(oracle) - len(left)
        oracle = left
        assert index.lowest() == ({0: min(oracle.values())} if oracle else {})
        everything = list(oracle)
        assert index.find(keys(everything)).tolist() == list(oracle.values())


@given(st.lists(st.one_of(NUMBERS, ODD, st.text(max_size=20)), max_size=30))
def test_an_id_is_a_number_where_its_text_returns(ids: list[str]) -> None:
    ids = [each for each in ids if each.isprintable() or each.isascii()]
    parsed = keys([(each, 0) for each in ids])
    for row, each in enumerate(ids):
        is_number = each.isascii() and each.isdecimal() and str(int(each)) == each and len(each) <= 18
        assert (row not in parsed.texts) == is_number
        assert (str(parsed.ids[row]) if is_number else parsed.texts[row]) == each


def test_an_id_with_another_time_is_a_new_message() -> None:
    """An emulator that was restarted begins its ids anew."""
    index = Index()
    for life in range(3):
        batch = keys([(str(number), life) for number in range(5)])
        assert (index.find(batch) == -1).all()
        index.add(batch, integers(list(range(life * 5, life * 5 + 5))))
    assert index.find(keys([("3", 1), ("3", 7), ("3", 2), ("3", 0)])).tolist() == [8, -1, 13, 3]


@given(st.integers(0, 255), st.integers(0, 2**48 - 1))
def test_a_place_is_its_shard_and_offset(shard: int, offset: int) -> None:
    places = integers([place_of(shard, offset)])
    assert (shards_of(places)[0], offsets_of(places)[0]) == (shard, offset)


def test_an_id_takes_at_most_32_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_LONGEST_RUN", 1 << 16)
    tracemalloc.start()
    try:
        index, rows = Index(), 10_000
        for number in range(30):
            ids = np.arange(number * rows, (number + 1) * rows, dtype=np.int64)
            index.add(Keys(ids * 7 + 10**15, ids.copy(), {}), ids.copy())
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert current / len(index) <= 32
    assert index.nbytes / len(index) <= 32
