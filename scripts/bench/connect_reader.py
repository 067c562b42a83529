"""Read one result of Spark Connect, with so many rows in a batch: `connect_reader SIDE URI ROWS QUERY`.

A process for each reading, as its peak of memory can't be read otherwise.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Batches = Iterator[Any]
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def main() -> None:
    """Read, and report seconds, the first batch's seconds, the peak of memory, and the rows."""
    side, uri, batch_rows, query = sys.argv[1:]
    opened = SIDES[side](uri, batch_rows)
    for _ in opened("select 1"):  # Spark's first query of a session takes its time
        pass
    ready = time.perf_counter()
    rows, first = 0, 0.0
    for batch in opened(query):
        first = first or time.perf_counter() - ready
        rows += batch.num_rows
    taken = time.perf_counter() - ready
    status = Path("/proc/self/status").read_text()
    peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    report = {"seconds": taken, "first": first, "peak": peak, "rows": rows}
    sys.stdout.write(json.dumps(report))


def _penstock(uri: str, batch_rows: str) -> Callable[[str], Batches]:
    import penstock

    spark = penstock.spark_connect(uri)
    spark.conf.set(_BATCH_ROWS, batch_rows)
    return lambda query: iter(spark.sql(query).stream())


def _pyspark(uri: str, batch_rows: str) -> Any:
    from pyspark.sql.connect.session import SparkSession

    spark = SparkSession.builder.remote(uri).create()
    spark.conf.set(_BATCH_ROWS, batch_rows)
    return spark


def _to_arrow(uri: str, batch_rows: str) -> Callable[[str], Batches]:
    spark = _pyspark(uri, batch_rows)
    return lambda query: iter([spark.sql(query).toArrow()])


def _iterator(uri: str, batch_rows: str) -> Callable[[str], Batches]:
    spark = _pyspark(uri, batch_rows)

    def batches(query: str) -> Batches:
        plan = spark.sql(query)._plan.to_proto(spark.client)  # noqa: SLF001  # nothing public streams without Python
        for each in spark.client.to_table_as_iterator(plan, {}):
            if hasattr(each, "num_rows"):
                yield each

    return batches


SIDES = {"penstock": _penstock, "toArrow": _to_arrow, "iterator": _iterator}

if __name__ == "__main__":
    main()
