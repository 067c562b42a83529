"""Tables with the same rows, in whatever order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.rows.multiset import have_same_rows

NAN = float("nan")


@pytest.mark.parametrize(("first", "second", "same"), [
    ([1, 2, 2], [2, 1, 2], True),
    ([1, 2, 2], [1, 1, 2], False),
    ([None, 1.5, NAN], [NAN, None, 1.5], True),
    ([0.0], [-0.0], False),
    (["a", None, ""], ["", "a", None], True),
    ([b"a", b"b"], [b"a", b"c"], False),
    ([[1], [2]], [[1], [2]], True),
    ([[1], [2]], [[2], [1]], False),  # lists can't be grouped: their order counts
])  # fmt: skip
def test_rows_are_compared_in_any_order(first: list[object], second: list[object], same: bool) -> None:
    one = pa.table({"n": first, "k": [7] * len(first)})
    other = pa.table({"n": pa.chunked_array([pa.array([each], one["n"].type) for each in second]), "k": one["k"]})
    assert have_same_rows(one, other) == have_same_rows(other, one) == same


def test_tables_of_other_columns_or_lengths_differ() -> None:
    table = pa.table({"n": [1, 2]})
    assert not have_same_rows(table, table.slice(0, 1))
    assert not have_same_rows(table, pa.table({"m": [1, 2]}))
