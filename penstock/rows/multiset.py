"""Whether two tables have the same rows, in whatever order."""

from __future__ import annotations

import pyarrow as pa


def have_same_rows(first: pa.Table, second: pa.Table) -> bool:
    """Whether each row is as often in one table as in the other; False where rows of these types can't be compared."""
    if first.schema != second.schema or first.num_rows != second.num_rows:
        return False
    try:
        tables = [_counting(first, 1), _counting(second, -1)]
        keys = tables[0].column_names[:-1]
        sums = pa.concat_tables(tables).group_by(keys).aggregate([("n", "sum")])["n_sum"]
    except (pa.ArrowException, TypeError):
        return bool(first.equals(second))
    return sums.null_count == 0 and not any(sums.unique().to_pylist())


def _counting(table: pa.Table, number: int) -> pa.Table:
    """Return a table with plain column names, floats as their bits, and a column of this number."""
    columns = [
        pa.chunked_array([chunk.view(_BITS[column.type]) for chunk in column.chunks], _BITS[column.type])
        if column.type in _BITS
        else column
        for column in table.columns
    ]
    names = [f"c{at}" for at in range(len(columns))]
    return pa.table([*columns, pa.repeat(number, table.num_rows)], [*names, "n"])


_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}
"""For them 0 and -0, and NaN and itself, are equal or not as their bytes are."""
