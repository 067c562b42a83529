"""Spark's types are stored, and come back, as what they were; others' types reach Spark with every value."""

from __future__ import annotations

import datetime as dt
import mmap
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.rows.fitting import fit_batches

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install 'penstock-flight[spark]'")

import pyspark
from pyspark.sql import types as sql

from penstock.spark_plugin.spark_types import to_arrow, to_spark
from penstock.spark_plugin.worker.types import widen_schema
from tests.kit import rows, spark_types
from tests.kit.spark_types import arrow_of, exactly

STRUCTS = spark_types.structs(spark_types.types(), most=5)
SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


_NESTS: list[Any] = [
    lambda kind, nullable: kind,
    lambda kind, nullable: sql.ArrayType(sql.StructType([sql.StructField("x", kind, nullable)]), nullable),
    lambda kind, nullable: sql.MapType(sql.StringType(), kind, nullable),
]
EVERY = sql.StructType(
    [
        sql.StructField(f"{kind.simpleString()} {at} {nullable}", nest(kind, nullable), nullable)
        for kind in [*spark_types.plain(time=True), sql.DecimalType(38, 18)]
        for nullable in ([True] if isinstance(kind, sql.NullType) else [True, False])
        for at, nest in enumerate(_NESTS)
    ]
)


# --- schemas -------------------------------------------------------------------------------


@example(EVERY)
@given(STRUCTS)
def test_a_frame_s_schema_comes_back_as_it_was(struct: sql.StructType) -> None:
    assert to_spark(to_arrow(struct))[0] == struct


@example(EVERY, "Europe/Berlin", False)
@example(EVERY, "+05:30", True)
@given(STRUCTS, st.sampled_from(["Europe/Berlin", "+05:30"]), st.booleans())
def test_a_task_stores_the_schema_that_the_driver_stores(struct: sql.StructType, zone: str, large: bool) -> None:
    handed = arrow_of(struct, zone=zone, large=large)
    assert widen_schema(handed).equals(to_arrow(struct), check_metadata=True)


@example(EVERY)
@given(STRUCTS)
def test_a_task_gives_back_the_schema_that_spark_compares_with(struct: sql.StructType) -> None:
    assert to_spark(to_arrow(struct))[1].equals(arrow_of(struct, zone="UTC"))


@example(EVERY)
@given(STRUCTS)
def test_what_is_stored_is_read_without_a_change(struct: sql.StructType) -> None:
    assert to_spark(to_arrow(struct))[1].equals(to_arrow(struct), check_metadata=True)


def _one(kind: sql.DataType, *, nullable: bool = True) -> sql.StructType:
    return sql.StructType([sql.StructField("v", kind, nullable)])


@pytest.mark.parametrize(
    ("kind", "back"),
    [
        (sql.CharType(5), sql.StringType()),
        (sql.VarcharType(5), sql.StringType()),
        (sql.DayTimeIntervalType(1, 1), sql.DayTimeIntervalType()),
        (sql.ArrayType(sql.NullType(), False), sql.ArrayType(sql.NullType(), True)),
    ],
    ids=str,
)
def test_these_come_back_wider_as_the_docs_say(kind: sql.DataType, back: sql.DataType) -> None:
    assert to_spark(to_arrow(_one(kind)))[0] == _one(back)


@pytest.mark.skipif(SPARK < (4, 0), reason="Spark 4.0 is the first with collations")
def test_a_collation_isn_t_stored() -> None:
    assert to_spark(to_arrow(_one(sql.StringType("UTF8_LCASE"))))[0] == _one(sql.StringType())


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark 4.1 is the first with TIME")
def test_a_time_comes_back_with_the_digits_of_the_default() -> None:
    assert to_spark(to_arrow(_one(sql.TimeType(3))))[0] == _one(sql.TimeType(6))


def _marked() -> list[sql.DataType]:
    kinds: list[sql.DataType] = [sql.VariantType()] if SPARK >= (4, 0) else []
    if SPARK >= (4, 2):
        kinds += [sql.GeometryType(0), sql.GeometryType("ANY"), sql.GeographyType(4326), sql.GeographyType("ANY")]
    return kinds


@pytest.mark.parametrize("kind", _marked(), ids=str)
def test_a_type_of_spark_s_own_is_known_again_by_its_marker(kind: sql.DataType) -> None:
    for nested in (kind, sql.ArrayType(kind, False), sql.MapType(sql.StringType(), kind), _one(kind, nullable=False)):
        struct = _one(nested)
        assert to_spark(to_arrow(struct))[0] == struct
        assert widen_schema(arrow_of(struct, large=True)).equals(to_arrow(struct), check_metadata=True)
        assert to_arrow(struct).equals(arrow_of(struct), check_metadata=True)


@pytest.mark.parametrize(("since", "name"), [((4, 0), "variant"), ((4, 2), "geometry")])
def test_an_older_spark_sees_the_struct_that_such_a_type_is(
    since: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", f"{since[0]}.{since[1] - 1}.9" if since[1] else "3.5.9")
    inner = {"variant": ("value", "metadata"), "geometry": ("srid", "wkb")}[name]
    fields = [pa.field(one, pa.binary(), nullable=False) for one in inner]
    fields[1] = fields[1].with_metadata({name: "true"})
    told, _ = to_spark(pa.schema({"v": pa.struct(fields)}))
    assert told["v"].dataType.simpleString() == f"struct<{inner[0]}:binary,{inner[1]}:binary>"


def test_a_map_without_a_type_of_key_is_refused_with_the_cure() -> None:
    void = sql.MapType(sql.NullType(), sql.NullType(), False)
    with pytest.raises(InvalidRequest, match=r"column v\[\] is a map without a type of key: cast\("):
        to_arrow(_one(sql.ArrayType(void)))
    with pytest.raises(InvalidRequest, match="column v is a map without a type of key: cast"):
        to_spark(pa.schema({"v": pa.map_(pa.dictionary(pa.int8(), pa.null()), pa.int8())}))


def test_views_are_stored_as_what_they_show() -> None:
    views = pa.schema({"s": pa.string_view(), "l": pa.list_view(pa.binary_view())})
    plain = pa.schema({"s": pa.string(), "l": pa.list_(pa.field("element", pa.binary()))})
    assert widen_schema(views).equals(plain)


def test_metadata_is_dropped_but_for_spark_s_markers() -> None:
    inner = pa.field("x", pa.int8(), metadata={"comment": "c", "variant": "true"})
    schema = pa.schema([pa.field("v", pa.struct([inner]), metadata={"SPARK::metadata::json": "{}"})], {"pandas": "{}"})
    widened = widen_schema(schema)
    assert widened.metadata is None
    assert widened.field("v").metadata is None
    assert widened.field("v").type.field(0).metadata == {b"variant": b"true"}


class Point(sql.UserDefinedType):
    @classmethod
    def sqlType(cls) -> sql.DataType:  # noqa: N802
        return sql.ArrayType(sql.DoubleType(), False)


@pytest.mark.parametrize(
    ("kind", "cure"),
    [(sql.YearMonthIntervalType(), "cast(`{}` as int)"), (Point(), "vector_to_array")]
    + ([(sql.CalendarIntervalType(), "cast(`{}` as string)")] if SPARK >= (4, 0) else []),
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("where", ["v", "v.w", "v[]", "v[].w", "v.value", "v.key"])
def test_types_that_spark_keeps_are_rejected_with_the_cure(kind: Any, cure: str, where: str) -> None:
    deep = {
        "v": kind,
        "v.w": sql.StructType([sql.StructField("w", kind)]),
        "v[]": sql.ArrayType(kind),
        "v[].w": sql.ArrayType(sql.StructType([sql.StructField("w", kind)])),
        "v.value": sql.MapType(sql.StringType(), kind),
        "v.key": sql.MapType(kind, sql.StringType()),
    }[where]
    with pytest.raises(InvalidRequest) as refused:
        to_arrow(_one(deep))
    assert f"column {where} is {kind.simpleString()}," in str(refused.value)
    assert cure.format(where) in str(refused.value)


def test_a_name_twice_is_refused_at_any_depth() -> None:
    twins = sql.StructType([sql.StructField("a", sql.LongType()), sql.StructField("a", sql.LongType())])
    with pytest.raises(InvalidRequest, match=r"there is more than one column 'a': rename"):
        to_arrow(twins)
    with pytest.raises(InvalidRequest, match=r"column v\[\] has the field 'a' more than once, .*rename"):
        to_arrow(_one(sql.ArrayType(twins)))
    with pytest.raises(InvalidRequest, match=r"column v has the field 'a' more than once"):
        to_spark(pa.schema({"v": pa.struct([("a", pa.int8()), ("a", pa.int8())])}))


# --- what others store ---------------------------------------------------------------------

_ZONED = dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC)
FOREIGN: list[tuple[pa.DataType, str, list[Any]]] = [
    (pa.uint8(), "smallint", [0, 255]),
    (pa.uint16(), "int", [0, 65_535]),
    (pa.uint32(), "bigint", [0, 2**32 - 1]),
    (pa.uint64(), "decimal(20,0)", [0, 2**64 - 1]),
    (pa.float16(), "float", [1.5, -0.0]),
    (pa.large_string(), "string", ["", "é"]),
    (pa.string_view(), "string", ["", "longer than the twelve bytes of a view"]),
    (pa.large_binary(), "binary", [b"", b"\0"]),
    (pa.binary_view(), "binary", [b"", b"longer than the twelve bytes of a view"]),
    (pa.binary(3), "binary", [b"abc"]),
    (pa.date64(), "date", [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    (pa.timestamp("s"), "timestamp_ntz", [_ZONED.replace(microsecond=0, tzinfo=None)]),
    (pa.timestamp("ms", "Asia/Tokyo"), "timestamp", [_ZONED]),
    (pa.timestamp("ns", "+05:30"), "timestamp", [_ZONED]),
    (pa.duration("s"), "interval day to second", [dt.timedelta(-1, 5)]),
    (pa.duration("ms"), "interval day to second", [dt.timedelta(-1, 5, milliseconds=7)]),
    (pa.duration("ns"), "interval day to second", [dt.timedelta(-1, 5, microseconds=7)]),
    (pa.decimal32(7, 2), "decimal(7,2)", [Decimal("-12345.67")]),
    (pa.decimal64(15, 0), "decimal(15,0)", [Decimal(10**15 - 1)]),
    (pa.decimal256(38, 10), "decimal(38,10)", [Decimal(10**28 - 1)]),
    (pa.decimal128(5, -2), "decimal(7,0)", [Decimal(1_234_500)]),
    (pa.dictionary(pa.int8(), pa.string()), "string", ["x", "y", "x"]),
    (pa.dictionary(pa.uint16(), pa.uint32(), ordered=True), "bigint", [7, 2**32 - 1]),
    (pa.large_list(pa.uint8()), "array<smallint>", [[1, None], [], [255]]),
    (pa.list_(pa.float16(), 2), "array<float>", [[1.0, None], [2.0, 3.0]]),
    (pa.list_view(pa.int8()), "array<tinyint>", [[1, None], [], [2]]),
    (pa.large_list_view(pa.large_string()), "array<string>", [["a", None], [], ["b"]]),
    (pa.map_(pa.large_string(), pa.date64()), "map<string,date>", [[("k", dt.date(2020, 1, 1)), ("l", None)], []]),
    (pa.map_(pa.field("k", pa.uint8(), nullable=False), pa.field("v", pa.string())), "map<smallint,string>",
     [[(1, "x"), (2, None)], []]),
    (pa.struct({"u": pa.uint8(), "v": pa.list_view(pa.uint8())}), "struct<u:smallint,v:array<smallint>>",
     [{"u": 1, "v": [1]}, {"u": None, "v": None}]),
]  # fmt: skip
if SPARK >= (4, 1):
    FOREIGN += [
        (pa.time32("s"), "time(6)", [dt.time(23, 59, 59)]),
        (pa.time32("ms"), "time(6)", [dt.time(23, 59, 59, 999_000)]),
        (pa.time64("us"), "time(6)", [dt.time(23, 59, 59, 999_999)]),
    ]


@pytest.mark.parametrize(("kind", "told", "values"), FOREIGN, ids=[str(kind) for kind, *_ in FOREIGN])
def test_others_types_reach_spark_as_the_next_wider_one(kind: pa.DataType, told: str, values: list[Any]) -> None:
    column = pa.array([None, *values, None, *values], kind)
    struct, arrow = to_spark(pa.schema({"v": kind}))
    assert struct["v"].dataType.simpleString() == told
    assert arrow.equals(arrow_of(struct))
    for batch in (pa.record_batch({"v": column}), pa.record_batch({"v": column}).slice(1, len(values) + 1)):
        (fitted,) = fit_batches([batch], arrow, reading=True)
        fitted.validate(full=True)
        assert fitted.schema.equals(arrow)
        assert exactly(fitted.column(0).to_pylist()) == exactly(batch.column(0).to_pylist())


def _deep(kind: pa.DataType, values: list[Any]) -> Iterator[tuple[pa.DataType, list[Any]]]:
    yield pa.list_view(kind), [[None, *values], None, [], values]
    yield pa.list_(kind, 1), [[values[0]], None, [None]]
    yield pa.struct({"s": kind, "i": pa.int8()}), [{"s": values[0], "i": 1}, None, {"s": None, "i": None}]
    yield pa.map_(pa.string_view(), kind), [[("a", values[0]), ("b", None)], None, []]


@pytest.mark.parametrize(("kind", "told", "stored"), FOREIGN, ids=[str(kind) for kind, *_ in FOREIGN])
def test_so_they_do_within_others(kind: pa.DataType, told: str, stored: list[Any]) -> None:
    for outer, values in _deep(kind, stored):
        struct, arrow = to_spark(pa.schema({"v": outer}))
        assert told in struct["v"].dataType.simpleString()
        batch = pa.record_batch({"v": pa.array(values, outer)})
        (fitted,) = fit_batches([batch.slice(1)], arrow, reading=True)
        fitted.validate(full=True)
        assert exactly(fitted.column(0).to_pylist()) == exactly(values[1:])


def test_a_dictionary_of_lists_is_its_lists() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.int8()), pa.array([[1], [2, None]]))
    _, arrow = to_spark(pa.schema({"v": column.type}))
    (fitted,) = fit_batches([pa.record_batch({"v": column})], arrow, reading=True)
    assert fitted.column(0).to_pylist() == [[2, None], None, [1], [2, None]]


def test_an_extension_is_what_it_is_stored_as() -> None:
    column = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef", None], pa.binary(16)))
    struct, arrow = to_spark(pa.schema({"v": column.type}))
    (fitted,) = fit_batches([pa.record_batch({"v": column})], arrow, reading=True)
    assert struct == _one(sql.BinaryType())
    assert fitted.column(0).to_pylist() == [b"0123456789abcdef", None]


def test_a_decimal_may_be_all_behind_the_point() -> None:
    column = pa.Array.from_buffers(pa.decimal128(2, 4), 1, pa.array([Decimal(12)], pa.decimal128(2, 0)).buffers())
    struct, arrow = to_spark(pa.schema({"v": column.type}))
    (fitted,) = fit_batches([pa.record_batch({"v": column})], arrow, reading=True)
    assert struct == _one(sql.DecimalType(4, 4))
    assert fitted.column(0).to_pylist() == [Decimal("0.0012")]


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_nanoseconds_are_rounded_down_to_microseconds(zone: str | None) -> None:
    exact = [-1, -1_000, -1_001, 0, 999, 1_000, None, 2**63 - 1, -(2**63)]
    for kind in (pa.timestamp("ns", zone), pa.duration("ns")):
        batch = pa.record_batch({"v": pa.array(exact, kind)})
        (fitted,) = fit_batches([batch], to_spark(batch.schema)[1], reading=True)
        micros = [None if one is None else one // 1_000 for one in exact]
        assert fitted.column(0).cast(pa.int64()).to_pylist() == micros


@pytest.mark.parametrize(
    "kind",
    [
        pa.month_day_nano_interval(),
        pa.decimal256(39, 0),
        pa.decimal128(38, -1),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.dense_union([pa.field("i", pa.int8())]),
    ],
    ids=str,
)
def test_types_that_spark_lacks_are_rejected_with_the_cure(kind: pa.DataType) -> None:
    for outer, path in [(kind, "v"), (pa.list_(pa.struct({"w": kind})), "v[].w"), (pa.map_("string", kind), "v.value")]:
        with pytest.raises(InvalidRequest) as refused:
            to_spark(pa.schema({"v": outer}))
        assert str(refused.value).startswith(
            f"column {path} is {kind}, which Spark has no type for: read with columns="
        )


@pytest.mark.parametrize("kind", [pa.time32("s"), pa.time64("ns")], ids=str)
def test_a_spark_without_time_says_which_one_has_it(kind: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    with pytest.raises(InvalidRequest, match=r"column v is .*columns=.*or read it with Spark 4\.1 or newer"):
        to_spark(pa.schema({"v": kind}))


@given(rows.schemas())
def test_every_schema_is_read_exactly_or_refused_by_its_column(schema: pa.Schema) -> None:
    try:
        struct, arrow = to_spark(schema)
    except InvalidRequest as refused:
        assert "column " in str(refused)  # noqa: PT017
        return
    assert arrow.equals(arrow_of(struct))
    assert struct.names == schema.names
    assert [one.nullable for one in struct] == [told.nullable or told.type == pa.null() for told in _values_of(schema)]


def _values_of(schema: pa.Schema) -> list[pa.Field]:
    """The fields as a dictionary's values have them."""
    fields = list(schema)
    while any(pa.types.is_dictionary(one.type) for one in fields):
        fields = [one.with_type(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in fields]
    return fields


# --- batches -------------------------------------------------------------------------------


@st.composite
def batches(draw: st.DrawFn, *, large: bool = False) -> tuple[sql.StructType, pa.RecordBatch]:
    """A batch as Spark hands it out, cut from a longer one."""
    struct = draw(STRUCTS)
    rows = draw(spark_types.rows(struct))
    schema = arrow_of(struct, zone="America/Los_Angeles", large=large)
    columns = [pa.array([row[one.name] for row in rows], one.type) for one in schema]
    start = draw(st.integers(0, len(rows)))
    return struct, pa.record_batch(columns, schema=schema).slice(start, draw(st.integers(0, len(rows))))


def _addresses(array: Any, *, bits_of_structs: bool = True) -> list[int | None]:
    """Where the buffers are. A slice of a struct has the same values, but bits of its own which of them are null."""
    kind, buffers = array.type, array.buffers()
    own = buffers[: kind.num_buffers] if bits_of_structs or not pa.types.is_struct(kind) else []
    addresses = [None if buffer is None else buffer.address for buffer in own]
    inner = [array.field(at) for at in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    inner += [array.values] if pa.types.is_list(kind) or pa.types.is_map(kind) else []
    return addresses + [one for child in inner for one in _addresses(child, bits_of_structs=bits_of_structs)]


@given(batches())
def test_reinterpreted_buffers_have_the_same_values_and_memory(drawn: tuple[sql.StructType, pa.RecordBatch]) -> None:
    struct, batch = drawn
    (fitted,) = fit_batches([batch], to_arrow(struct))
    fitted.validate(full=True)
    assert fitted.schema.equals(to_arrow(struct), check_metadata=True)
    assert exactly(fitted.to_pylist()) == exactly(batch.to_pylist())
    for one, other in zip(fitted.columns, batch.columns, strict=True):
        whole = other.offset == 0
        where = zip(_addresses(one, bits_of_structs=whole), _addresses(other, bits_of_structs=whole), strict=True)
        assert all(mine in (None, its) for mine, its in where)  # without nulls no bits are needed


@given(batches(large=True))
def test_large_types_become_small_ones_with_the_same_values(drawn: tuple[sql.StructType, pa.RecordBatch]) -> None:
    struct, batch = drawn
    (fitted,) = fit_batches([batch], to_arrow(struct))
    fitted.validate(full=True)
    assert fitted.schema.equals(to_arrow(struct), check_metadata=True)
    assert exactly(fitted.to_pylist()) == exactly(batch.to_pylist())


def test_a_batch_in_the_schema_is_that_batch() -> None:
    batch = pa.record_batch({"v": pa.array([1]), "w": pa.array(["x"])})
    again = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
    first, second = fit_batches(iter([batch, again]), batch.schema)
    assert first is batch
    assert second is again


def test_a_column_s_comment_is_no_part_of_what_is_stored() -> None:
    schema = pa.schema([pa.field("v", pa.int64(), metadata={"comment": "c"})], {"more": "m"})
    (fitted,) = fit_batches([pa.record_batch([pa.array([1])], schema=schema)], widen_schema(schema))
    assert fitted.schema.equals(widen_schema(schema), check_metadata=True)


def test_optimized_nullability_is_put_back_without_a_copy() -> None:
    strict = pa.struct([pa.field("a", pa.list_(pa.field("item", pa.timestamp("us", "Asia/Tokyo"), nullable=False)))])
    loose = pa.struct({"a": pa.list_(pa.field("element", pa.timestamp("us", "UTC")))})
    column = pa.array([{"a": [1, 2]}, None, {"a": None}, {"a": [3]}] * 5, strict)
    batch = pa.record_batch({"v": column})
    for each in (batch, batch.slice(3, 11)):
        (fitted,) = fit_batches([each], pa.schema({"v": loose}))
        assert fitted.schema.field("v").type == loose
        assert exactly(fitted.to_pylist()) == exactly(each.to_pylist())
    (fitted,) = fit_batches([batch], pa.schema({"v": loose}))
    assert _addresses(fitted.column(0)) == _addresses(column)


def _hollow(kind: Any) -> pa.Array:
    """An empty array as Spark up to 4.1 sends it: its offsets have no bytes, and what lies behind them is no offset."""
    nothing = pa.py_buffer(b"\x7f" * 64).slice(0, 0)
    inner = [pa.array([], kind.value_type)] if kind.num_fields else None
    return pa.Array.from_buffers(kind, 0, [None] + [nothing] * (kind.num_buffers - 1), children=inner)


@pytest.mark.parametrize("wanted", [pa.timestamp("us", "UTC"), pa.int64()], ids=str)
@pytest.mark.parametrize(
    "inner",
    [pa.list_(pa.timestamp("us", "Asia/Tokyo")), pa.string(), pa.large_binary(), pa.large_list(pa.int8())],
    ids=str,
)
def test_an_empty_array_without_offsets_stays_one(inner: Any, wanted: pa.DataType) -> None:
    empty = _hollow(inner)
    other = pa.array([], pa.timestamp("us", "Asia/Tokyo") if wanted != pa.int64() else pa.int32())
    both = pa.StructArray.from_arrays([empty, other], ["e", "o"])
    to = {"e": widen_schema(pa.schema({"e": inner})).field("e").type, "o": wanted}
    offsets = pa.array([0, 0, 0], pa.int32())
    columns = {
        "l": (pa.ListArray.from_arrays(offsets, both), pa.list_(pa.struct(to))),
        "m": (pa.MapArray.from_arrays(offsets, other, empty), pa.map_(to["o"], to["e"])),
    }
    batch = pa.record_batch({name: column for name, (column, _) in columns.items()})
    schema = pa.schema({name: kind for name, (_, kind) in columns.items()})
    (fitted,) = fit_batches([batch], schema)
    fitted.validate(full=True)
    assert fitted.to_pylist() == [{"l": [], "m": []}] * 2
    (none,) = fit_batches([pa.record_batch({"e": empty, "o": other})], pa.schema(to))
    none.validate(full=True)
    assert none.num_rows == 0


def test_a_stream_may_change_its_schema() -> None:
    wanted = pa.schema({"v": pa.int64(), "t": pa.timestamp("us", "UTC")})
    some = pa.record_batch([[1], pa.array([1], pa.timestamp("us", "UTC"))], schema=wanted)
    other = pa.record_batch({"t": pa.array([2], pa.timestamp("us", "Asia/Tokyo")), "v": pa.array([2], pa.int32())})
    fitted = pa.Table.from_batches(fit_batches([some, other, some], wanted), wanted)
    assert fitted.column("v").to_pylist() == [1, 2, 1]
    assert fitted.column("t").cast(pa.int64()).to_pylist() == [1, 2, 1]


def test_columns_and_fields_are_matched_by_name() -> None:
    batch = pa.record_batch({"b": [1], "s": [{"y": 1, "x": 2}], "a": [2]})
    wanted = pa.schema({"a": pa.int64(), "b": pa.int64(), "s": pa.struct({"x": pa.int64(), "y": pa.int64()})})
    (fitted,) = fit_batches([batch], wanted)
    assert fitted.schema.equals(wanted)
    assert fitted.to_pylist() == [{"a": 2, "b": 1, "s": {"x": 2, "y": 1}}]


@pytest.mark.parametrize(
    ("columns", "difference"),
    [
        ({"a": [1]}, "lack b"),
        ({"a": [1], "b": [2], "c": [3]}, "have c too"),
        ({"a": [1], "c": [2]}, "lack b and have c too"),
    ],
)
def test_missing_and_extra_columns_are_rejected_by_name(columns: dict[str, Any], difference: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"the rows {difference}: expected a, b"):
        list(fit_batches([pa.record_batch(columns)], pa.schema({"a": pa.int64(), "b": pa.int64()})))
    inner = pa.schema({"s": pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])})
    with pytest.raises(SchemaMismatch, match=f"the values of s {difference}: expected a, b"):
        list(fit_batches([pa.record_batch({"s": [{name: value[0] for name, value in columns.items()}]})], inner))


@pytest.mark.parametrize(
    ("column", "kind", "reason"),
    [
        (pa.array([300]), pa.int8(), "300 not in range"),
        (pa.array(["x"]), pa.int64(), "Failed to parse"),
        (pa.array([2**62], pa.timestamp("s")), pa.timestamp("us"), "out of bounds"),
        (pa.array([[1]]), pa.int64(), "Unsupported cast"),
        (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), pa.list_(pa.int64(), 1), "Size of FixedSizeList"),
        (pa.array([1], pa.timestamp("us")), pa.timestamp("us", "UTC"), "a time with a zone and one without"),
    ],
)
def test_a_value_that_doesn_t_fit_is_refused_by_column(column: pa.Array, kind: pa.DataType, reason: str) -> None:
    with pytest.raises(SchemaMismatch) as refused:
        list(fit_batches([pa.record_batch({"v": column})], pa.schema({"v": kind})))
    assert str(refused.value).startswith(f"column v is {column.type}")
    assert reason in str(refused.value)
    structs = pa.StructArray.from_arrays([column], ["w"])
    nested = pa.record_batch({"v": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), structs)})
    with pytest.raises(SchemaMismatch, match=r"column v\[\]\.w is "):
        list(fit_batches([nested], pa.schema({"v": pa.list_(pa.struct({"w": kind}))})))


# --- nulls ---------------------------------------------------------------------------------

_N = pa.field("n", pa.int64(), nullable=False)
STRICT: list[tuple[str, pa.DataType, list[Any], list[Any]]] = [
    ("v.n", pa.struct([_N]), [None, {"n": 1}], [{"n": None}]),
    ("v[]", pa.list_(_N), [None, [], [1]], [[1, None]]),
    ("v[].n", pa.list_(pa.struct([_N])), [None, [None, {"n": 1}]], [[None, {"n": None}]]),
    ("v.value", pa.map_(pa.string(), _N), [None, [], [("k", 1)]], [[("k", None)]]),
    ("v.value.n", pa.map_("string", pa.struct([_N])), [None, [("k", None), ("l", {"n": 1})]], [[("k", {"n": None})]]),
    ("v.s.n", pa.struct({"s": pa.struct([_N])}), [None, {"s": None}, {"s": {"n": 1}}], [None, {"s": {"n": None}}]),
    ("v.s[]", pa.struct({"s": pa.list_(_N)}), [None, {"s": None}, {"s": [1]}], [None, {"s": [None]}]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "kind", "good", "bad"), STRICT, ids=[one[0] for one in STRICT])
def test_a_null_where_there_may_be_none_is_refused_by_path(
    path: str, kind: pa.DataType, good: list[Any], bad: list[Any]
) -> None:
    wanted = pa.schema({"v": kind})
    loose = pa.schema({"v": _loosened(kind)})
    for schema in (wanted, loose):
        column = pa.array([*good, *bad, *good], schema.field("v").type)
        batch = pa.record_batch([column], schema=schema)
        fine = batch.slice(0, len(good))
        assert next(fit_batches([fine], wanted)).to_pylist() == fine.to_pylist()
        assert next(fit_batches([batch.slice(len(good) + len(bad))], wanted)).to_pylist() == fine.to_pylist()
        with pytest.raises(InvalidRequest) as refused:
            list(fit_batches([batch], wanted))
        assert str(refused.value).startswith(f"column {path} has a null where its schema allows none")


def _loosened(kind: Any) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _loosened(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _loosened(kind.item_type))
    return pa.list_(_loosened(kind.value_type)) if pa.types.is_list(kind) else kind


def test_a_null_in_a_column_without_nulls_is_rejected() -> None:
    wanted = pa.schema([pa.field("v", pa.int64(), nullable=False)])
    for schema in (wanted, pa.schema({"v": pa.int64()}), pa.schema({"v": pa.int32()})):
        batch = pa.record_batch([pa.array([1, None], schema.field("v").type)], schema=schema)
        assert next(fit_batches([batch.slice(0, 1)], wanted)).to_pylist() == [{"v": 1}]
        with pytest.raises(InvalidRequest, match="column v has a null where"):
            list(fit_batches([batch], wanted))


def test_an_empty_array_without_offsets_has_no_nulls() -> None:
    inner = pa.list_(_N)
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), _hollow(inner), type=pa.list_(inner))
    column = pa.StructArray.from_arrays([pa.array([1, None]), lists], ["n", "l"], mask=pa.array([False, True]))
    wanted = pa.schema({"v": pa.struct([_N, pa.field("l", pa.list_(inner))])})
    (fitted,) = fit_batches([pa.record_batch({"v": column})], wanted)
    assert fitted.to_pylist() == [{"v": {"n": 1, "l": []}}, {"v": None}]


def test_what_lies_beneath_a_null_parent_is_nobody_s_business() -> None:
    ones = pa.StructArray.from_arrays([pa.array([1, None])], ["n"])
    structs = pa.StructArray.from_arrays([pa.array([1, None])], ["n"], mask=pa.array([False, True]))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), ones, mask=pa.array([False, True]))
    wanted = pa.schema({"v": pa.struct([_N]), "w": pa.list_(pa.struct([_N]))})
    (fitted,) = fit_batches([pa.record_batch({"v": structs, "w": lists})], wanted)
    assert fitted.to_pylist() == [{"v": {"n": 1}, "w": [{"n": 1}]}, {"v": None, "w": None}]


# --- size ----------------------------------------------------------------------------------


def test_large_types_above_2_gib_are_cut_by_rows_without_a_copy() -> None:
    nothing = mmap.mmap(
        -1, 3 * 2**30 + 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )  # takes no memory until written
    ends = pa.array([0, 2**30, 2 * 2**30, 3 * 2**30, 3 * 2**30 + 5, 3 * 2**30 + 5, 3 * 2**30 + 12], pa.int64())
    valid = pa.array([True, True, True, True, False, True])
    text = pa.py_buffer(nothing)
    big = pa.Array.from_buffers(pa.large_binary(), 6, [valid.buffers()[1], ends.buffers()[1], text])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 3, 3, 6], pa.int32()), big)
    for column in (big, lists):
        batch = pa.record_batch({"n": pa.array(range(6)), "v": column})
        wanted = widen_schema(batch.schema)
        pieces = list(fit_batches([batch], wanted))
        assert len(pieces) > 1
        assert [n for piece in pieces for n in piece.column("n").to_pylist()] == list(range(6))
        assert all(piece.schema.equals(wanted) and piece.nbytes < 2**31 for piece in pieces)
        nulls = [(one is None) for piece in pieces for one in piece.column("v").is_null().to_pylist() if one]
        assert len(nulls) == column.null_count
        for piece in pieces:
            piece.validate()
            buffer = piece.column("v").buffers()[-1]
            assert buffer is None or text.address <= buffer.address <= text.address + text.size
