"""Jobs: sources, operators and sinks of `penstock.Job`; and Solstice's words for sources that Spark fills.

from penstock.pipeline import SparkSourceV2Config, WriteDataset

job = penstock.Job("score")
job.stage(penstock.Stage("in", SparkSourceV2Config(dataframe_fn=lambda spark: spark.read.parquet("/data"))))
job.stage(penstock.Stage("score", score, workers=4), after="in")
job.stage(penstock.Stage("out", WriteDataset("store/scored")), after="score")
"""

from __future__ import annotations

from penstock.pipeline.failure import FAIL_FAST, FailurePolicy, dead_letter
from penstock.pipeline.figures import JobSummary, StageSummary
from penstock.pipeline.job import Job
from penstock.pipeline.sinks import Call, WriteDataset, WriteTopic
from penstock.pipeline.sources import ReadDataset, ReadTopic
from penstock.pipeline.spark_source import SparkSource, SparkSourceConfig
from penstock.pipeline.spark_source_v2 import SparkSourceV2Config, SparkSourceV2Master
from penstock.pipeline.stage import Stage

__all__ = [
    "FAIL_FAST", "Call", "FailurePolicy", "Job", "JobSummary", "ReadDataset", "ReadTopic", "SparkSource",
    "SparkSourceConfig", "SparkSourceV2Config", "SparkSourceV2Master", "Stage", "StageSummary", "WriteDataset",
    "WriteTopic", "dead_letter",
]  # fmt: skip
