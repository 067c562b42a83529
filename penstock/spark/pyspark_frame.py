"""Frames of pyspark's own Connect client, streamed by this one: same server, same session, same temporary views."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.spark.client import Client
from penstock.spark.errors import InvalidPlan, Unsupported
from penstock.spark.execution import Execution
from penstock.spark.results import Progress, Result
from penstock.spark.uri import ConnectUri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def stream(
    df: DataFrame,
    *,
    tag: str | None = None,
    timeout: float | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> Result:
    """Run the query of a pyspark frame, and return its batches as they come; memory holds one of them.

    The frame must be of Spark Connect: `SparkSession.builder.remote(…)`. Its session stays as it is.
    """
    if type(df).__module__ != "pyspark.sql.connect.dataframe":
        raise InvalidPlan(
            f"stream({type(df).__qualname__}): expected a frame of Spark Connect, from SparkSession.builder.remote(…); "
            "a session with a JVM of its own has penstock.write"
        )
    try:
        plan, uri = _plan_of(df)
    except AttributeError as changed:
        raise Unsupported(
            f"this pyspark keeps its frame's plan elsewhere ({changed}): penstock knows 4.0 to 4.3"
        ) from None
    client = Client(uri)
    return Result(
        client, Execution(client, plan, tags=() if tag is None else (tag,), timeout=timeout),
        on_progress=on_progress, owns_client=True,
    )  # fmt: skip


def _plan_of(df: Any) -> tuple[bytes, ConnectUri]:
    """Return a frame's plan, and its client's server and identity; pyspark has no public names for them."""
    # ruff: noqa: SLF001
    client = df._session._client
    plan = df._plan.to_proto(client).SerializeToString()
    builder = client._builder
    host, _, port = builder.endpoint.rpartition(":")
    host = host.strip("[]")
    return plan, ConnectUri(
        host, int(port),
        tls=builder.secure and (builder.use_ssl or host != "localhost"),
        token=builder.token,
        user_id=client._user_id or "",
        session_id=client._session_id,
        headers=tuple(builder.metadata()),
    )  # fmt: skip
