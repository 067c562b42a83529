"""Solstice's words: sources that Spark fills, for workers that claim their splits.

from penstock.pipeline import SparkSourceV2Config, SparkSourceV2Master

config = SparkSourceV2Config(dataframe_fn=lambda spark: spark.read.parquet("/data"))
SparkSourceV2Master("j/in", config).start()    # workers: c.claim("queue/j/in")
"""

from __future__ import annotations

from penstock.pipeline.spark_source import SparkSource, SparkSourceConfig
from penstock.pipeline.spark_source_v2 import SparkSourceV2Config, SparkSourceV2Master

__all__ = ["SparkSource", "SparkSourceConfig", "SparkSourceV2Config", "SparkSourceV2Master"]
