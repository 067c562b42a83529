"""Spark without a JVM: a client of Spark Connect that streams Arrow.

spark = penstock.spark_connect("sc://host:15002")
orders = spark.read.parquet("s3://lake/orders").filter(col("amount") > 100).group_by("country").agg(fn.sum("amount"))
for batch in orders.stream():
    ...

penstock.spark.stream(df)    # the result of a frame of pyspark's own Connect client, in the same way
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from penstock.spark.expressions import col as col
    from penstock.spark.expressions import expr as expr
    from penstock.spark.expressions import lit as lit
    from penstock.spark.functions import fn as fn
    from penstock.spark.pyspark_frame import stream as stream

__all__ = ["col", "expr", "fn", "lit", "stream"]

_EXPRESSIONS = "penstock.spark.expressions"
_HOMES = {
    "col": _EXPRESSIONS, "expr": _EXPRESSIONS, "fn": "penstock.spark.functions", "lit": _EXPRESSIONS,
    "stream": "penstock.spark.pyspark_frame",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Names are looked up when they are used."""
    if name not in _HOMES:
        raise AttributeError(f"penstock.spark has no name {name!r}; it has {', '.join(__all__)}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
