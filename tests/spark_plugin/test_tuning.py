"""Spark's confs while a write runs: tuned, counted, and put back."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.spark_plugin.tuning import rows_per_batch, tuned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECK = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
NUMBERS = pa.schema({"a": pa.int64(), "b": pa.int64()})
WIDE = pa.schema({"a": pa.int64(), "b": pa.string()})
BLOBS = pa.schema({"a": pa.int64(), "b": pa.binary()})


def write(spark: Any) -> None:
    with tuned(spark, NUMBERS):
        pass


class Confs:
    """A session's confs, as far as they matter here."""

    def __init__(self, **confs: str) -> None:
        self.values = dict(confs)
        self.version = "4.3.0"
        self.refuses = False
        self.interrupts = ""
        self.conf = self

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def set(self, key: str, value: str) -> None:
        if self.refuses:
            raise RuntimeError("not yours to set")
        self.values[key] = value
        if key == self.interrupts:
            raise KeyboardInterrupt

    def unset(self, key: str) -> None:
        if self.refuses:
            raise RuntimeError("the session has ended")
        self.values.pop(key, None)


def test_a_batch_stays_bounded_whatever_its_columns_hold() -> None:
    assert rows_per_batch(NUMBERS) * 16 <= 8 << 20
    assert rows_per_batch(pa.schema({"many": pa.list_(pa.struct({"text": pa.string()}))})) <= 10_000  # Spark's default
    assert rows_per_batch(pa.schema({"none": pa.null()})) >= 1
    assert rows_per_batch(pa.schema({f"c{number}": pa.int64() for number in range(10_000)})) * 80_000 <= 8 << 20
    assert rows_per_batch(pa.schema({f"c{number}": pa.decimal128(38, 2) for number in range(200)})) * 3_200 <= 8 << 20
    assert rows_per_batch(WIDE) * 500_000 <= 512 << 20


def test_text_is_bounded_by_the_width_of_rows_that_are_there() -> None:
    """Four times as wide rows still make batches below 8 MiB, and never more rows than Spark has by default."""
    assert [rows_per_batch(WIDE, mean) for mean in (1, 30, 200)] == [10_000] * 3
    for mean in (1_000, 30_000, 500_000):
        assert rows_per_batch(WIDE, mean) * 4 * mean <= 8 << 20
    assert rows_per_batch(WIDE, 1e9) == 1
    assert rows_per_batch(NUMBERS, 1e9) == rows_per_batch(NUMBERS), "numbers have a width of their own"
    wide = pa.schema({"text": pa.string(), **{f"c{number}": pa.int64() for number in range(1_000)}})
    assert rows_per_batch(wide, 1) * 8_000 <= 8 << 20


GROWING = (
    pa.binary(), pa.large_binary(), pa.large_string(), pa.list_(pa.float64()), pa.map_(pa.int32(), pa.int32()),
    pa.struct({"vector": pa.list_(pa.float32())}), pa.dictionary(pa.int32(), pa.string()),
)  # fmt: skip


@pytest.mark.parametrize("kind", GROWING, ids=str)
def test_what_has_no_width_of_its_own_keeps_the_check(kind: pa.DataType) -> None:
    spark: Any = Confs()
    with tuned(spark, pa.schema({"id": pa.int64(), "grows": kind})):
        assert spark.values[CHECK] == str(8 << 20)


def test_a_number_of_rows_is_taken_as_it_is() -> None:
    spark: Any = Confs()
    with tuned(spark, WIDE, 77), tuned(spark, WIDE, 10_000):
        assert spark.values[ROWS] == "77"
    assert spark.values == {}


def test_rows_of_unknown_width_keep_sparks_own_confs() -> None:
    spark: Any = Confs()
    with tuned(spark, None):
        assert spark.values == {}


def test_an_interrupt_while_confs_are_set_leaves_none() -> None:
    spark: Any = Confs()
    spark.interrupts = ROWS
    with pytest.raises(KeyboardInterrupt), tuned(spark, NUMBERS):
        pass
    assert spark.values == {}


def test_a_session_that_has_ended_hides_no_error_of_the_write() -> None:
    spark: Any = Confs()
    with pytest.raises(ValueError, match="of the user"), tuned(spark, NUMBERS):
        spark.refuses = True
        raise ValueError("of the user")


def test_a_session_that_is_gone_holds_up_no_other() -> None:
    """Spark Connect's client tries each call for ten minutes: the session is asked once."""
    spark: Any = Confs()
    asked, answered = Event(), Event()
    in_time: list[bool] = []

    def unset(_: str) -> None:
        asked.set()
        in_time.append(answered.wait(10))
        raise RuntimeError("no such server")

    spark.unset = unset
    gone = Thread(target=write, args=(spark,), daemon=True)
    gone.start()
    assert asked.wait(10)
    write(Confs())
    answered.set()
    gone.join(30)
    assert in_time == [True]


def test_two_writes_at_once_leave_the_confs_as_they_were() -> None:
    spark: Any = Confs()
    first, second = tuned(spark, NUMBERS), tuned(spark, WIDE)

    with first:
        alone = spark.values[ROWS]
        with pytest.raises(ValueError, match="of the user"), second:
            both = spark.values[ROWS]
            raise ValueError("of the user")
        assert spark.values[CHECK] == str(2**31 - 1)

    assert int(both) == rows_per_batch(WIDE) < int(alone) == rows_per_batch(NUMBERS)
    assert spark.values == {}


def test_blobs_keep_the_check_on_also_beside_a_write_of_numbers() -> None:
    spark: Any = Confs()
    with tuned(spark, NUMBERS), tuned(spark, BLOBS), tuned(spark, NUMBERS):
        assert spark.values[CHECK] == str(8 << 20)
    assert spark.values == {}


def test_writes_that_overlap_restore_the_confs() -> None:
    spark: Any = Confs()
    first, second = tuned(spark, NUMBERS), tuned(spark, NUMBERS)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert CHECK in spark.values
    second.__exit__(None, None, None)
    assert spark.values == {}


@pytest.mark.parametrize("key", [ROWS, CHECK])
def test_what_the_user_has_set_is_kept(key: str) -> None:
    spark: Any = Confs(**{key: "77"})
    with tuned(spark, WIDE), tuned(spark, BLOBS):
        assert spark.values[key] == "77"
    assert spark.values == {key: "77"}


def test_who_may_not_set_confs_is_warned_once_and_served() -> None:
    spark: Any = Confs()
    spark.refuses = True
    with pytest.warns(UserWarning, match="not yours to set"):
        write(spark)
    write(spark)  # a second warning would be an error here


def test_spark_3_has_no_check_to_turn_off() -> None:
    spark: Any = Confs()
    spark.version = "3.5.9"
    with tuned(spark, BLOBS):
        assert CHECK not in spark.values
        assert int(spark.values[ROWS]) * (1 << 20) <= 256 << 20


@pytest.mark.spark
def test_a_megabyte_a_row_makes_no_large_batch(spark: SparkSession) -> None:
    """256 rows of 1 MB of bytes, of which Spark would put all into one."""

    def sizes(batches: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"size": [batch.nbytes]})

    blobs = spark.range(0, 256, 1, 1).selectExpr("id as a", "cast(repeat('x', 1000000) as binary) as b")
    with tuned(spark, BLOBS):
        sizes_of_batches = [row.size for row in blobs.mapInArrow(sizes, "size long").collect()]
    assert max(sizes_of_batches) < (256 << 20 if spark.version.startswith("3.") else 10 << 20)
    assert sum(sizes_of_batches) > 256_000_000


@pytest.mark.spark
def test_spark_hands_out_batches_of_that_many_rows(spark: SparkSession) -> None:
    def sizes(batches: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    frame = spark.range(0, 10_000, 1, 1).mapInArrow(sizes, "rows long")
    with tuned(spark, WIDE):
        rows = [row.rows for row in frame.collect()]
    assert set(rows[:-1]) == {rows_per_batch(WIDE)}
    assert [row.rows for row in frame.collect()] == [10_000]
