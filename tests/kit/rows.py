"""Arrow types, schemas and tables of many shapes: a few by name, any number by Hypothesis; and their comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

NAMES = st.text("abcXYZ019_é", min_size=1, max_size=8)

_PLAIN: list[pa.DataType] = [
    pa.null(), pa.bool_(), pa.int8(), pa.int64(), pa.uint16(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3),
    pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.duration("ms"), pa.timestamp("s"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("ms", "+05:30"), pa.month_day_nano_interval(), pa.decimal32(7, 2),
    pa.decimal64(15, 0), pa.decimal128(38, -3), pa.decimal256(76, 10),
]  # fmt: skip


def _field(name: str, kind: pa.DataType, nullable: bool) -> pa.Field:
    return pa.field(name, kind, nullable or kind == pa.null())  # Arrow knows no null that isn't nullable


def _may_be_key(kind: pa.DataType) -> bool:
    return not kind.equals(pa.null())


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(_field, NAMES, inner, st.booleans())
    lists: list[Callable[[Any], pa.DataType]] = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]
    return st.one_of(
        st.builds(pa.struct, st.lists(fields, max_size=4)),
        st.builds(lambda kind, field: kind(field), st.sampled_from(lists), fields),
        st.builds(pa.list_, fields, st.integers(0, 5)),
        st.builds(pa.map_, inner.filter(_may_be_key), inner, keys_sorted=st.booleans()),
        st.builds(lambda name, item: pa.map_(pa.string(), pa.field(name, item)), NAMES, inner),
        st.builds(
            pa.dictionary,
            st.sampled_from([pa.int8(), pa.uint16(), pa.int32(), pa.int64()]), inner, st.booleans(),
        ),
    )  # fmt: skip


TYPES = st.recursive(st.sampled_from(_PLAIN), _nested, max_leaves=6)
"""Any type that the wire has a name for, nested or not."""


@st.composite
def schemas(draw: st.DrawFn) -> pa.Schema:
    """Draw columns of any types, each with a name of its own."""
    names = draw(st.lists(NAMES, max_size=5, unique=True))
    return pa.schema([_field(name, draw(TYPES), draw(st.booleans())) for name in names])


_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint8(): st.integers(0, 255),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=20),
    pa.string_view(): st.text(max_size=40),
    pa.large_binary(): st.binary(max_size=20),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.timestamp("us", "UTC"): st.integers(-(2**50), 2**50),
    pa.null(): st.none(),
    pa.list_(pa.int64()): st.lists(st.integers(0, 9), max_size=3),
    pa.struct({"x": pa.int64(), "y": pa.string()}): st.fixed_dictionaries(
        {"x": st.integers(0, 9), "y": st.text(max_size=3)}
    ),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(
        st.text(max_size=3), st.integers(0, 9), max_size=2
    ).map(lambda entries: list(entries.items())),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["red", "green", "blue"]),
    pa.list_(pa.dictionary(pa.int8(), pa.string())): st.lists(st.sampled_from(["a", "b"]), max_size=3),
}  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw up to four columns and three chunks, each cut out of a longer one, so that its buffers begin elsewhere."""
    kinds = draw(st.lists(st.sampled_from(list(_VALUES)), max_size=4))
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)], metadata={"made": "by hypothesis"})
    chunks = [draw(_batch(schema)) for _ in range(draw(st.integers(0, 3)))]
    return pa.Table.from_batches(chunks, schema)


@st.composite
def _batch(draw: st.DrawFn, schema: pa.Schema) -> pa.RecordBatch:
    rows = draw(st.integers(0, 12))
    columns = [
        pa.array(draw(st.lists(st.none() | _VALUES[field.type], min_size=rows, max_size=rows)), field.type)
        for field in schema
    ]
    start = draw(st.integers(0, rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema).slice(start, draw(st.integers(0, rows)))


def numbers(rows: int, start: int = 0) -> pa.Table:
    """Return a table whose rows are told apart by number and text."""
    every = range(start, start + rows)
    return pa.table({"n": pa.array(every, pa.int64()), "s": pa.array([f"row {n}" for n in every], pa.string())})


def _two_dictionaries() -> pa.Table:
    chunks = [pa.array(words).dictionary_encode() for words in (["a", "b", "a"], ["c", "b", None])]
    return pa.table({"word": pa.chunked_array(chunks)})


SHAPES: dict[str, pa.Table] = {
    "numbers": numbers(100),
    "no rows": numbers(0),
    "no columns": pa.table({}),
    "rows without columns": numbers(5).select([]),
    "nulls": pa.table({"a": pa.nulls(4), "b": pa.array([None, 1, None, 2])}),
    "a slice": numbers(1_000).slice(333, 77),
    "many chunks": pa.concat_tables([numbers(3, start) for start in range(0, 3_000, 3)]),
    "empty chunks": pa.concat_tables([numbers(0), numbers(2), numbers(0), numbers(1, 2)]),
    "dictionaries that differ": _two_dictionaries(),
    "a slice of dictionaries": _two_dictionaries().slice(1, 4),
    "nested": pa.table(
        {
            "l": pa.array([[1, None], [], None, [2]], pa.list_(pa.int64())),
            "m": pa.array([[("k", [1])], None, [], [("a", []), ("b", None)]], pa.map_("string", pa.list_(pa.int8()))),
            "d": pa.array([["x"], ["y", "x"], None, []], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        }
    ).slice(1, 3),
    "views": pa.table({"v": pa.array(["short", "a string of more than twelve bytes", None], pa.string_view())}),
    "one name twice": pa.Table.from_arrays([pa.array([1, 2]), pa.array(["x", "y"])], names=["same", "same"]),
    "metadata": numbers(3).replace_schema_metadata({"pandas": "{}", "µ": "ü"}),
    "large": pa.table({"blob": [bytes([n % 251]) * 100_000 for n in range(30)]}),
}  # fmt: skip

PAYLOADS = {name: table for name, table in SHAPES.items() if name != "one name twice"}
"""Those whose columns can be told apart by their names."""


def as_stream(table: pa.Table) -> bytes:
    """Return a table as an Arrow IPC stream, made by Arrow alone."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def as_file(table: pa.Table) -> bytes:
    """Return a table as an Arrow IPC file, made by Arrow alone."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def assert_same(got: pa.Table, put: pa.Table) -> None:
    """Check rows, order, types, nullability and metadata."""
    got.validate(full=True)
    assert got.schema.equals(put.schema, check_metadata=True)
    assert got.num_rows == put.num_rows
    assert got.equals(put)
