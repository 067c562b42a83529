"""Spark Connect: everything in a session that has no JVM of its own, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from tests.kit.connect import needs_connect
from tests.kit.spark import CONFS

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(300)]

SCRIPT = """
import json, os, sys, warnings
warnings.simplefilter("ignore")  # Spark's own: pandas, ports
from pyspark.sql import SparkSession

builder = SparkSession.builder.remote("local[2]")
for key, value in json.loads(sys.argv[1]).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.range(1).collect()  # Spark's processes are there

os.environ["PENSTOCK_URL"] = sys.argv[2]  # which they can't see any more
import penstock

report = {"session": type(spark).__module__}
written = penstock.write(spark.range(0, 1000, 1, 4), "store/write")
report["write"] = written.rows
report["read"] = penstock.read(spark, "store/write", filter="id < 10").count()

put = penstock.do_put("store/hand")
put.finish(spark.range(0, 100, 1, 4).mapInArrow(put, put.schema).collect())

spark.dataSource.register(penstock.DataSource)
spark.range(0, 1000, 1, 4).write.format("penstock").mode("append").save("store/source")
spark.range(1000, 1010).write.format("penstock").mode("append").save("store/source")
frame = spark.read.format("penstock").load("store/source")
report["source"] = [frame.count(), frame.schema.simpleString(), frame.schema[0].nullable]
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
near = spark.read.format("penstock").option("filter", "id >= 998 and id < 1003 or id = 5").load("store/source")
report["filtered"] = sorted(row.id for row in near.filter("id != 1000").union(near.filter("id = 5")).collect())
try:
    penstock.foreach_batch("store/batches")(spark.range(3), 0)
except Exception as refused:
    report["batch"] = str(refused)
try:
    spark.read.format("penstock").option("fliter", "id < 3").load("store/source").count()
except Exception as refused:
    report["refused"] = str(refused)
try:
    spark.range(3).selectExpr("string(id) id").write.format("penstock").mode("append").save("store/source")
except Exception as refused:
    report["mismatch"] = str(refused)
print(json.dumps(report))
spark.stop()
"""


def test_a_connect_session_writes_and_reads(
    bare_python: Path, server: PenstockServer, client: Client, tmp_path: Path
) -> None:
    needs_connect()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK", "PYTHONPATH"))}
    environment |= {"PYSPARK_PYTHON": str(bare_python), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": ""}
    script = tmp_path / "script.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n{SCRIPT}")
    done = subprocess.run(
        [sys.executable, script, json.dumps(CONFS), str(server.url)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])

    refused, mismatch, batch = (report.pop(name) for name in ("refused", "mismatch", "batch"))
    assert report == {
        "session": "pyspark.sql.connect.session",
        "write": 1000,
        "read": 10,
        "source": [1010, "struct<id:bigint>", False],
        "filtered": [5, 5, 998, 999, 1001, 1002],
    }
    assert "did you mean 'filter'" in refused
    assert "id is int64, got string" in mismatch
    assert "Spark Connect does not tell a batch its query" in batch
    assert sorted(client.get("store/hand").read_all()["id"].to_pylist()) == list(range(100))
    assert sorted(client.get("store/source").read_all()["id"].to_pylist()) == list(range(1010))
    assert len(client.list("write/")) == 0
