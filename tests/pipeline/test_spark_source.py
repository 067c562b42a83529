"""A job by V1 and by V2 gives the same worker the same rows, on Spark's own session and over Connect."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.client.lease import Split
from penstock.errors import InvalidRequest, JobFailed
from penstock.pipeline import (
    Call,
    Job,
    SparkSource,
    SparkSourceConfig,
    SparkSourceV2Config,
    SparkSourceV2Master,
    Stage,
    WriteDataset,
)  # fmt: skip
from tests.kit.connect import needs_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("url_variable")]
ROWS = 1_000


def frame(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 4).selectExpr(
        "id", "concat('row ', id) AS text", "CAST(id AS decimal(10, 2)) AS price",
        "timestamp_seconds(id) AS at", "array(id, id + 1) AS pair",
    )  # fmt: skip


@pytest.fixture(scope="module", params=["classic", pytest.param("connect", marks=pytest.mark.process)])
def session(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    if request.param == "classic":
        yield request.getfixturevalue("spark")
        return
    needs_connect()
    yield request.getfixturevalue("spark_server").connect()


def worked(client: Client, stage: str) -> pa.Table:
    """Return what a worker of either way makes of its splits."""
    source = SparkSource(stage, SparkSourceConfig())
    tables = []
    for lease in client.claim(f"queue/{stage}"):
        with lease as split:
            payload = split.payload if split.message.payload_key else source.read(split)
            assert payload.data.num_rows == split.message.metadata["num_records"]
            assert (payload.split_id, stage) == (split.message.split_id, split.message.metadata["source_stage"])
            tables.append(payload.data)
    source.stop()
    return pa.concat_tables(tables).sort_by("id")


def test_both_ways_give_a_worker_the_same_rows(session: SparkSession, client: Client) -> None:
    v1 = SparkSource("j/v1", SparkSourceConfig(dataframe_fn=frame), spark=session)
    v2 = SparkSourceV2Master("j/v2", SparkSourceV2Config(dataframe_fn=frame, parallelism=3), spark=session)
    assert (v1.start(), v2.start()) == (1, 3)

    first, second = worked(client, "j/v1"), worked(client, "j/v2")
    assert first["id"].to_pylist() == list(range(ROWS))
    assert first["text"].to_pylist() == [f"row {number}" for number in range(ROWS)]
    assert first.schema == second.schema
    assert first.equals(second)


def test_a_stage_that_is_started_again_fills_nothing_twice(spark: SparkSession, client: Client) -> None:
    for _ in range(2):
        assert SparkSource("j/v1", SparkSourceConfig(dataframe_fn=frame)).start() == 1
        config = SparkSourceV2Config(dataframe_fn=frame)
        assert SparkSourceV2Master("j/v2", config, split_rows=100).start() == 12  # of four times 250 rows
    for stage in ("j/v1", "j/v2"):
        assert worked(client, stage)["id"].to_pylist() == list(range(ROWS))


def test_v2_plans_nothing_at_the_driver() -> None:
    with pytest.raises(NotImplementedError, match="V2 does not use plan_splits"):
        SparkSourceV2Master("j/in", SparkSourceV2Config()).plan_splits()


def test_v1_plans_source_messages(spark: SparkSession) -> None:
    [message] = SparkSource("j/in", SparkSourceConfig(dataframe_fn=frame)).plan_splits()
    assert (message.payload_key, message.is_source) == ("", True)
    assert message.metadata == {
        "source_stage": "j/in", "num_records": ROWS, "data_range": {"path": "store/j/in", "part": 0},
    }  # fmt: skip


def test_a_source_reads_only_its_own_splits(client: Client) -> None:
    client.push("queue/j/in", [pa.table({"id": [1]})], finish=True)
    source, errors = SparkSource("j/in", SparkSourceConfig()), []
    for lease in client.claim("queue/j/in"):
        with lease as split, pytest.raises(InvalidRequest, match="no data_range") as error:
            source.read(split)
        errors.append(error)
    assert len(errors) == 1


def test_configs_have_the_seeds_fields() -> None:
    assert vars(SparkSourceV2Config()) == {
        "app_name": "solstice-spark-v2", "num_executors": 1, "executor_cores": 2, "executor_memory": "1g",
        "spark_configs": {}, "dataframe_fn": None, "parallelism": None, "tansu_storage_url": "memory://",
    }  # fmt: skip
    assert SparkSourceConfig().app_name == "solstice-spark"


@pytest.mark.parametrize("source", [SparkSource, SparkSourceV2Master])
def test_what_a_source_lacks_is_said_before_spark_starts(source: Any) -> None:
    with pytest.raises(InvalidRequest, match="tansu_storage_url='s3://b': expected 'memory://'"):
        source("j/in", SparkSourceV2Config(tansu_storage_url="s3://b"))
    with pytest.raises(InvalidRequest, match="no dataframe_fn"):
        source("j/in", SparkSourceV2Config()).start()


class Builder:
    """A session's builder that notes what it is told."""

    def __init__(self) -> None:
        self.confs: dict[str, str] = {}
        self.stopped = 0

    def appName(self, name: str) -> Builder:  # noqa: N802  # Spark's name
        return self.config("name", name)

    def config(self, name: str, value: str) -> Builder:
        self.confs[name] = value
        return self

    def getOrCreate(self) -> Builder:  # noqa: N802  # Spark's name
        return self

    def stop(self) -> None:
        self.stopped += 1


def test_a_session_is_made_with_the_configs_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql")
    builder = Builder()
    monkeypatch.setattr(sql.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(sql.SparkSession, "builder", builder)

    def made(spark: Any) -> Any:
        assert spark is builder
        raise ValueError("of the user")

    config = SparkSourceV2Config(
        dataframe_fn=made, num_executors=3, executor_cores=4, executor_memory="2g", spark_configs={"spark.x": "y"}
    )
    master = SparkSourceV2Master("j/in", config)
    with pytest.raises(ValueError, match="of the user"):
        master.start()
    master.stop()
    assert (builder.stopped, builder.confs) == (1, {
        "name": "solstice-spark-v2", "spark.executor.instances": "3", "spark.executor.cores": "4",
        "spark.executor.memory": "2g", "spark.x": "y",
    })  # fmt: skip


def test_a_session_that_is_there_is_used_as_it_is(
    spark: SparkSession, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.pipeline")
    config = SparkSourceV2Config(dataframe_fn=lambda given: given.range(3), spark_configs={"spark.sql.x": "y"})
    master = SparkSourceV2Master("j/in", config)
    master.start()
    master.stop()
    assert spark.range(1).count() == 1
    assert spark.conf.get("spark.sql.x", None) is None
    [line] = [text for text in caplog.messages if "used as it is" in text]
    assert line.startswith("source j/in: Spark's session is used as it is: app_name, num_executors, ")


@pytest.mark.parametrize("config", [SparkSourceConfig, SparkSourceV2Config])
def test_a_frame_is_the_source_of_a_job(spark: SparkSession, client: Client, config: Any) -> None:
    """Both stages after it get all splits, also when the job is started again in the middle."""
    seen: list[int] = []

    def job(fails: bool, make: Any = frame) -> Job:
        def check(split: Split) -> pa.Table:
            if fails:
                raise ValueError("not yet")
            return split.payload.data.select(["id"])

        job = Job("spark")
        job.stage(Stage("in", config(dataframe_fn=make, parallelism=3)))
        job.stage(Stage("check", check, workers=2), after="in")
        job.stage(Stage("out", WriteDataset("store/checked")), after="check")
        job.stage(Stage("count", Call(lambda split: seen.append(split.payload.data.num_rows))), after="in")
        return job

    with pytest.raises(JobFailed, match="source 'in'"):
        job(fails=True, make=lambda spark: frame(spark).where("assert_true(id < 10) IS NULL")).run()
    with pytest.raises(JobFailed, match="ValueError: not yet"):
        job(fails=True).run()
    job(fails=False).run()
    assert sorted(client.get("store/checked").read_all()["id"].to_pylist()) == list(range(ROWS))
    assert sum(seen) == ROWS


@pytest.mark.parametrize("config", [SparkSourceConfig, SparkSourceV2Config])
def test_a_removed_job_runs_its_frame_again(spark: SparkSession, client: Client, config: Any) -> None:
    def rows_of(number: int) -> int:
        seen: list[int] = []
        job = Job("again")
        job.stage(Stage("in", config(dataframe_fn=lambda spark: spark.range(number))))
        job.stage(Stage("count", Call(lambda split: seen.append(split.payload.data.num_rows))), after="in")
        job.run()
        client.delete("job/again")
        return sum(seen)

    assert (rows_of(3), rows_of(5)) == (3, 5)
