"""Spark without a JVM: a client of Spark Connect that streams Arrow.

spark = penstock.spark_connect("sc://host:15002")
for batch in spark.sql("select * from orders").stream():
    ...

penstock.spark.stream(df)    # the result of a frame of pyspark's own Connect client, in the same way
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from penstock.spark.pyspark_frame import stream as stream

__all__ = ["stream"]

_HOMES = {"stream": "penstock.spark.pyspark_frame"}


def __getattr__(name: str) -> object:
    """Names are looked up when they are used."""
    if name not in _HOMES:
        raise AttributeError(f"penstock.spark has no name {name!r}; it has {', '.join(__all__)}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
