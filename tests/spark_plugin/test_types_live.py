"""Values go out of a real Spark by mapInArrow, lie in Arrow, and come back by mapInArrow: each is what it was.

What is compared is Spark's own view of both frames, so that no word of penstock's is taken for it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import penstock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("url_variable")]

ZONES = ["Europe/Berlin", "America/Los_Angeles", "+05:30"]


def out(frame: DataFrame, *, by_driver: bool = True) -> pa.Table:
    """Write the frame, in the driver's schema or in the one that a task finds for itself; return what is stored."""
    put = penstock.do_put("store/t", mode="overwrite", schema=frame.schema if by_driver else None)
    put.finish(frame.mapInArrow(put, put.schema).collect())
    with penstock.connect() as client:
        return client.get("store/t").read_all()


def back(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Store a table, and read it."""
    with penstock.connect() as client:
        client.put("store/t", table, mode="overwrite")
    return penstock.read(spark, "store/t")


def seen(frame: DataFrame) -> list[Any]:
    """Spark's rows, told apart as exactly as they can be."""
    return [_told(row) for row in frame.collect()]


def _told(value: Any) -> Any:
    from tests.kit.spark_types import exactly

    if type(value).__name__ in {"Row", "list", "tuple"}:
        names = getattr(value, "__fields__", ())
        return (tuple(names), [_told(one) for one in value])
    if isinstance(value, dict):
        return {exactly(key): _told(one) for key, one in value.items()}
    if type(value).__name__ == "VariantVal":
        return bytes(value.value), bytes(value.metadata)
    if type(value).__name__ in {"Geometry", "Geography"}:
        return type(value).__name__, value.getSrid(), bytes(value.getBytes())
    return (repr(value), value.fold) if isinstance(value, dt.datetime) else exactly(value)


@contextlib.contextmanager
def conf(spark: SparkSession, **values: str) -> Iterator[None]:
    """Confs for a block; `timeZone` and the like, by their last word."""
    keys = {"zone": "spark.sql.session.timeZone", "large": "spark.sql.execution.arrow.useLargeVarTypes",
            "time": "spark.sql.timeType.enabled", "whole": "spark.sql.codegen.wholeStage",
            "code": "spark.sql.codegen.factoryMode"}  # fmt: skip
    before = {keys[name]: spark.conf.get(keys[name], None) for name in values}
    for name, value in values.items():
        spark.conf.set(keys[name], value)
    try:
        yield
    finally:
        for key, was in before.items():
            if was is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, was)


# --- every type ----------------------------------------------------------------------------

EVERY: dict[str, tuple[str, ...]] = {
    "boolean": ("true", "false"),
    "tinyint": ("-128Y", "127Y"),
    "smallint": ("-32768S", "32767S"),
    "int": ("-2147483648", "2147483647"),
    "bigint": ("-9223372036854775808L", "9223372036854775807L"),
    "float": ("float('NaN')", "float('-0.0')", "float('-Infinity')", "1.17549435E-38F"),
    "double": ("double('NaN')", "double('-0.0')", "double('Infinity')", "4.9E-324D"),
    "string": ("''", "'é\\u0000x'"),
    "binary": ("X''", "X'00FF'"),
    "decimal(38,18)": ("99999999999999999999.999999999999999999BD", "-0.000000000000000001BD"),
    "decimal(1,1)": ("0.9BD",),
    "date": ("date'0001-01-01'", "date'1500-02-28'", "date'9999-12-31'"),
    "timestamp": (
        "timestamp'0001-01-03 00:00:00 UTC'", "timestamp'1500-01-01 00:00:00 UTC'",
        "timestamp'1969-12-31 23:59:59.999999 UTC'", "timestamp'9999-12-30 00:00:00 UTC'",
        "timestamp'2024-03-31 01:00:00 UTC'", "timestamp'2024-10-27 00:30:00 UTC'",
        "timestamp'2024-10-27 01:30:00 UTC'", "timestamp'2024-03-10 10:00:00 UTC'",
        "timestamp'2024-11-03 08:30:00 UTC'", "timestamp'2024-11-03 09:30:00 UTC'",
    ),
    "timestamp_ntz": (
        "timestamp_ntz'0001-01-01 00:00:00'", "timestamp_ntz'2024-03-31 02:30:00'",
        "timestamp_ntz'2024-10-27 02:30:00'",
        "timestamp_ntz'2024-03-10 02:30:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'",
    ),
    "interval day to second": ("interval '-1 02:03:04.000005' day to second", "interval '99999999' day"),
    "void": (),
}  # fmt: skip
LATER: dict[tuple[int, int], dict[str, tuple[str, ...]]] = {
    (4, 0): {"variant": ("parse_json('{\"a\":[1,null]}')", "parse_json('null')")},
    (4, 1): {"time(6)": ("time'00:00:00'", "time'23:59:59.999999'")},
    (4, 2): {
        "geometry(4326)": ("st_setsrid(st_geomfromwkb(X'0101000000000000000000F03F0000000000000040'), 4326)",),
        "geography(4326)": ("st_geogfromwkb(X'0101000000000000000000F03F0000000000000040')",),
    },
}


def _version(spark: SparkSession) -> tuple[int, int]:
    major, minor = spark.version.split(".")[:2]
    return int(major), int(minor)


def _every(spark: SparkSession) -> dict[str, tuple[str, ...]]:
    later = [kinds for since, kinds in LATER.items() if since <= _version(spark)]
    return {**EVERY, **{kind: values for kinds in later for kind, values in kinds.items()}}


@pytest.fixture
def full(spark: SparkSession) -> Iterator[DataFrame]:
    """A frame of every type: bare, in arrays, maps and structs and those in each other, and nulls at each place."""
    # To compile code for eighty columns takes longer than all the rest
    with conf(spark, whole="false", code="NO_CODEGEN", **({"time": "true"} if _version(spark) >= (4, 1) else {})):
        bare, nested = ["id"], ["id"]
        for at, (kind, values) in enumerate(_every(spark).items()):
            values_and_null = ", ".join(f"cast({value} as {kind})" for value in [*values, "null"])
            bare.append(f"array({values_and_null})[id % {len(values) + 1}] as v{at}")
            deep = f"array(map('k', v{at}, 'n', null), null) as x, array(named_struct('z', v{at}), null) as y"
            nested += [
                f"v{at}",
                f"if(id = 0, array(), array(v{at}, null)) as a{at}",
                f"if(id = 1, null, map('k', v{at})) as m{at}",
                f"if(id = 2, null, struct({deep})) as d{at}",
            ]
        rows = 1 + max(map(len, EVERY.values()))
        yield spark.range(0, rows, 1, 2).selectExpr(*bare).selectExpr(*nested)


@pytest.fixture(scope="module")
def rows_of_full() -> list[Any]:
    """What is seen of it, once it has been: no session's zone has a part in that."""
    return []


@pytest.mark.parametrize("zone", ZONES)
def test_every_type_at_every_depth_comes_back_as_it_was(
    spark: SparkSession, full: DataFrame, rows_of_full: list[Any], zone: str
) -> None:
    rows_of_full[:] = rows_of_full or seen(full)
    with conf(spark, zone=zone):
        table = out(full)
        again = back(spark, table)
        assert table.num_rows == len(rows_of_full)
        assert again.schema == full.schema
        assert seen(again) == rows_of_full


def test_a_moment_is_the_same_in_every_session_s_zone(spark: SparkSession) -> None:
    moments = [f"{value} as t{at}" for at, value in enumerate(EVERY["timestamp"] + EVERY["timestamp_ntz"])]
    tables = []
    for zone in ZONES:
        with conf(spark, zone=zone):
            tables.append(out(spark.sql(f"select {', '.join(moments)}")))
            seconds = back(spark, tables[0]).selectExpr("unix_micros(t4)", "cast(t11 as string)").collect()
            assert [list(row) for row in seconds] == [[1_711_846_800_000_000, "2024-03-31 02:30:00"]]
    assert tables[0].schema.equals(tables[1].schema, check_metadata=True)
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


def test_large_types_are_stored_as_any_other_session_stores_them(
    spark: SparkSession, full: DataFrame, rows_of_full: list[Any]
) -> None:
    rows_of_full[:] = rows_of_full or seen(full)
    one = full.coalesce(1)
    small = out(one, by_driver=False)
    with conf(spark, large="true"):
        large = out(one, by_driver=False)
        assert seen(back(spark, large)) == rows_of_full
    assert large.schema.equals(small.schema, check_metadata=True)
    same = [name for name in small.schema.names if not _has_nan(small.schema.field(name).type)]
    assert large.select(same).equals(small.select(same))


def _has_nan(kind: pa.DataType) -> bool:
    """Of which Arrow says that it isn't equal to itself."""
    return "float" in str(kind) or "double" in str(kind)


def test_what_the_optimizer_knows_is_stored_as_the_driver_says(spark: SparkSession) -> None:
    frame = spark.sql("select cast('1' as double) as v, array(1, 2) as a, named_struct('x', 1) as s, array() as e")
    table = out(frame)
    assert seen(back(spark, table)) == seen(frame)
    told = back(spark, table).schema
    assert [told[name] for name in "vas"] == [frame.schema[name] for name in "vas"]
    assert told["e"].dataType.simpleString() == "array<void>"


def test_lists_that_are_all_empty_come_back_as_they_were(spark: SparkSession) -> None:
    frame = spark.range(40).selectExpr(
        "cast(array() as array<array<timestamp>>) as a",
        "cast(map() as map<bigint,array<timestamp>>) as m",
        "cast(array() as array<struct<s:string,t:array<timestamp>>>) as s",
        "cast(null as struct<s:array<string>,t:array<timestamp>>) as n",
    )
    again = back(spark, out(frame))
    assert again.schema == frame.schema
    assert seen(again) == seen(frame)


def test_a_frame_without_rows_keeps_its_schema(spark: SparkSession, full: DataFrame) -> None:
    again = back(spark, out(full.where("id < 0")))
    assert again.schema == full.schema
    assert again.collect() == []


# --- any type ------------------------------------------------------------------------------


@st.composite
def _tables(draw: st.DrawFn, depth: int) -> tuple[Any, list[Any]]:
    from tests.kit import spark_types

    struct = draw(spark_types.structs(spark_types.types(depth, time=False), most=25).filter(lambda one: len(one) > 5))
    return struct, draw(spark_types.rows(struct, least=1, most=6))


@pytest.mark.parametrize(
    ("count", "depth"), [(5, 3), pytest.param(200, 5, marks=[pytest.mark.soak, pytest.mark.timeout(7_200)])]
)
def test_any_schema_and_any_rows_come_back_as_they_were(spark: SparkSession, count: int, depth: int) -> None:
    """So many schemas, rows in up to three partitions, by penstock.write and penstock.read."""
    schemas: set[str] = set()

    # One example is a job or two of Spark's, of many columns; to make a failing one small would take minutes
    @settings(
        max_examples=3 * count,  # of 200 examples some 60 repeat a schema, with other rows
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    @given(_tables(depth), st.sampled_from(ZONES), st.sampled_from(["true", "false"]), st.integers(1, 3))
    def holds(drawn: tuple[Any, list[Any]], zone: str, large: str, partitions: int) -> None:
        if len(schemas) == count:
            return
        struct, rows = drawn
        with conf(spark, zone=zone, large=large, whole="false", code="NO_CODEGEN"):
            # mapInArrow looks its columns up by name, and takes the dot of one for a field's
            names = [name.replace(".", "_") for name in struct.names]
            frame = spark.createDataFrame(rows, struct, verifySchema=False).repartition(partitions).toDF(*names)
            schemas.add(frame.schema.json())
            penstock.write(frame, "store/t", mode="overwrite", progress=False)
            again = penstock.read(spark, "store/t")
            assert again.schema == frame.schema
            assert sorted(map(repr, seen(again))) == sorted(map(repr, seen(frame)))

    holds()
    assert len(schemas) == count


# --- what others store, and what is refused ------------------------------------------------


def test_others_types_are_read_by_a_real_spark(spark: SparkSession) -> None:
    day = dt.date(1969, 12, 31)
    table = pa.table(
        {
            "u8": pa.array([255, None], pa.uint8()),
            "u64": pa.array([2**64 - 1, None], pa.uint64()),
            "f16": pa.array([-0.0, None], pa.float16()),
            "view": pa.array(["longer than twelve bytes", None], pa.string_view()),
            "fixed": pa.array([b"ab", None], pa.binary(2)),
            "day": pa.array([day, None], pa.date64()),
            "ns": pa.array([-1, None], pa.timestamp("ns", "Asia/Tokyo")),
            "naive": pa.array([-1, None], pa.timestamp("s")),
            "span": pa.array([-1, None], pa.duration("ns")),
            "word": pa.array(["x", None]).dictionary_encode(),
            "dec": pa.array([1, None], pa.int32()).cast(pa.decimal256(38, 10)),
            "views": pa.array([[1, None], None], pa.large_list_view(pa.uint16())),
            "pairs": pa.array([[1, 2], None], pa.list_(pa.uint32(), 2)),
            "map": pa.array([[("k", day)], None], pa.map_(pa.large_string(), pa.date64())),
        }
    )
    with conf(spark, zone="UTC"):
        row, nulls = (
            back(spark, table).selectExpr("unix_micros(ns) as micros", "cast(naive as string) as text", "*").collect()
        )
    assert all(value is None for value in nulls)
    assert (row["micros"], row["text"]) == (-1, "1969-12-31 23:59:59")
    assert (row["u8"], row["u64"], repr(row["f16"]), row["view"]) == (
        255,
        2**64 - 1,
        "-0.0",
        "longer than twelve bytes",
    )
    assert (bytes(row["fixed"]), row["day"], row["word"], row["dec"]) == (b"ab", day, "x", 1)
    assert (row["views"], row["pairs"], row["map"]) == ([1, None], [1, 2], {"k": day})
    assert row["span"] == dt.timedelta(microseconds=-1)


def test_what_spark_won_t_hand_out_is_refused_before_a_task_runs(spark: SparkSession) -> None:
    from penstock.errors import InvalidRequest
    from penstock.spark_plugin.spark_types import to_arrow

    months = spark.sql("select array(interval '1-2' year to month) as v")
    with pytest.raises(InvalidRequest, match=r"column v\[\] is interval year to month, .* cast\(`v\[\]` as int\)"):
        to_arrow(months.schema)
    cured = spark.sql("select cast(interval '1-2' year to month as int) as v")
    assert seen(back(spark, out(cured))) == seen(cured)
    assert cured.collect()[0]["v"] == 14


def test_a_user_type_is_refused_and_the_cure_holds(spark: SparkSession) -> None:
    pytest.importorskip("numpy", reason="pyspark.ml needs numpy: pip install numpy")
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import Vectors

    from penstock.errors import InvalidRequest
    from penstock.spark_plugin.spark_types import to_arrow

    vectors = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),)], ["v"])
    with pytest.raises(InvalidRequest, match=r"column v is vector, .*vector_to_array"):
        to_arrow(vectors.schema)
    cured = vectors.select(vector_to_array(vectors["v"]).alias("v"))
    assert seen(back(spark, out(cured))) == seen(cured)
