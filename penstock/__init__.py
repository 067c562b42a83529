"""penstock: an Arrow Flight server that feeds and drains Apache Spark.

import penstock
with penstock.connect() as c:
    c.put("store/demo/trips", table)
    c.get("store/demo/trips").read_all()

penstock.write(df, "store/demo/trips")        # a Spark frame out
penstock.read(spark, "store/demo/trips")      # and in
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; importing typing costs 7 ms
if TYPE_CHECKING:
    from penstock import errors as errors
    from penstock.client.client import connect as connect
    from penstock.client.payload_store import SplitPayloadStore as SplitPayloadStore
    from penstock.pipeline.job import Job as Job
    from penstock.pipeline.stage import Stage as Stage
    from penstock.rows.payload import SplitPayload as SplitPayload
    from penstock.spark.session import spark_connect as spark_connect
    from penstock.spark_plugin.read import do_get as do_get
    from penstock.spark_plugin.read import read as read
    from penstock.spark_plugin.source import DataSource as DataSource
    from penstock.spark_plugin.write import do_put as do_put
    from penstock.spark_plugin.write import foreach_batch as foreach_batch
    from penstock.spark_plugin.write import write as write

__version__ = "0.1.0"
__all__ = [
    "DataSource", "Job", "SplitPayload", "SplitPayloadStore", "Stage", "connect", "do_get", "do_put", "errors",
    "foreach_batch", "read", "spark_connect", "write",
]  # fmt: skip

_HOMES = {
    "DataSource": ("penstock.spark_plugin.source", "DataSource"),
    "Job": ("penstock.pipeline.job", "Job"),
    "SplitPayload": ("penstock.rows.payload", "SplitPayload"),
    "SplitPayloadStore": ("penstock.client.payload_store", "SplitPayloadStore"),
    "Stage": ("penstock.pipeline.stage", "Stage"),
    "connect": ("penstock.client.client", "connect"),
    "do_get": ("penstock.spark_plugin.read", "do_get"),
    "do_put": ("penstock.spark_plugin.write", "do_put"),
    "errors": ("penstock.errors", None),
    "foreach_batch": ("penstock.spark_plugin.write", "foreach_batch"),
    "read": ("penstock.spark_plugin.read", "read"),
    "spark_connect": ("penstock.spark.session", "spark_connect"),
    "write": ("penstock.spark_plugin.write", "write"),
}


def __getattr__(name: str) -> object:
    """Names are looked up when they are used: `import penstock` alone costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"penstock has no name {name!r}; it has {', '.join(__all__)}")
    import importlib

    module, attribute = _HOMES[name]
    home = importlib.import_module(module)
    return getattr(home, attribute) if attribute else home


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
