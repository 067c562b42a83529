"""gRPC's failures as penstock's errors: the one place where they are translated."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from penstock.errors import Denied, LimitExceeded, PenstockError, TimedOut
from penstock.spark.errors import QueryContext, Remote, SessionLost, Transport, Unsupported
from penstock.spark.plans import DEEP_CURE
from penstock.spark.protos import message

_STATUS_KEY = "grpc-status-details-bin"
_SESSION_GONE = (
    "INVALID_HANDLE.SESSION_CLOSED",
    "INVALID_HANDLE.SESSION_CHANGED",
    "INVALID_HANDLE.SESSION_NOT_FOUND",
)
_ITERATIONS = "spark.sql.analyzer.maxIterations"
"""Named where a plan has more operations within one another than Spark's analyzer has rounds."""
_MEMORY = ("Java heap space", "GC overhead limit", "OutOfMemoryError")
"""How a JVM says so."""
_STOPPED = "on a stopped SparkContext"
_DETAILS = Callable[[str], Any]
"""Asks the server for an error's details, by its id; None where it has none."""


def status_of(error: grpc.RpcError) -> Any:
    """Return the google.rpc.Status that an error carries, or None."""
    for key, value in error.trailing_metadata() or ():
        if key == _STATUS_KEY:
            try:
                return message("google.rpc.Status").FromString(value)
            except DecodeError:
                return None
    return None


def details_of(status: Any, kind: Any) -> Any:
    """Return the first detail of a kind, or None."""
    for detail in status.details:
        if detail.Is(kind.DESCRIPTOR):
            try:
                return kind.FromString(detail.value)
            except DecodeError:
                return None
    return None


def error_class_of(error: grpc.RpcError) -> str:
    """Return Spark's name of an error; empty where it has none."""
    status = status_of(error)
    info = None if status is None else details_of(status, message("google.rpc.ErrorInfo"))
    name = "" if info is None else str(info.metadata.get("errorClass", ""))
    return name or _bracketed(error.details() or "")


def translate(
    error: grpc.RpcError, where: str, *, operation_id: str | None = None, details: _DETAILS | None = None
) -> PenstockError:
    """Return the typed error for a failed call at the server `where`."""
    code, text = error.code(), error.details() or ""
    info = None
    if (status := status_of(error)) is not None:
        info = details_of(status, message("google.rpc.ErrorInfo"))
        text = status.message or text
    if _STOPPED in text:
        return Transport(f"{where} is shutting down, perhaps for want of memory: its log says why")
    if info is None and (plain := _PLAIN.get(code)) is not None:
        return plain(where, text)
    return _remote(text, info, operation_id, details)


def _remote(text: str, info: Any, operation_id: str | None, details: _DETAILS | None) -> Remote:
    metadata = {} if info is None else dict(info.metadata)
    enriched = details(metadata["errorId"]) if details is not None and "errorId" in metadata else None
    chain = _chain(enriched)
    values: dict[str, Any] = {
        "error_class": metadata.get("errorClass") or _bracketed(text) or None,
        "sql_state": metadata.get("sqlState"),
        "parameters": _json_object(metadata.get("messageParameters", "")),
    }
    if chain:
        text = chain[0].message or text
        if chain[0].HasField("spark_throwable"):
            values |= _of_throwable(chain[0].spark_throwable, values)
        values["causes"] = tuple(each.message for each in chain[1:])
    if _ITERATIONS in text:
        text += f" The plan has too many operations within one another: {DEEP_CURE}"
    if any(name in text for name in _MEMORY):
        text += (
            ": Spark ran out of memory; spark.driver.memory is what its driver has, stream(paged='partition') bounds "
            "what that holds of a result"
        )
    kind = SessionLost if (values["error_class"] or "").startswith(_SESSION_GONE) else Remote
    return kind(text or "Spark failed, and doesn't say why", operation_id=operation_id, **values)


def _of_throwable(throwable: Any, otherwise: dict[str, Any]) -> dict[str, Any]:
    contexts = tuple(
        QueryContext(
            each.fragment or each.call_site, each.start_index, each.stop_index, each.summary,
            each.object_type, each.object_name,
        )
        for each in throwable.query_contexts
    )  # fmt: skip
    return {
        "error_class": throwable.error_class or otherwise["error_class"],
        "sql_state": throwable.sql_state or otherwise["sql_state"],
        "parameters": dict(throwable.message_parameters) or otherwise["parameters"],
        "query_contexts": contexts,
    }


def _chain(enriched: Any) -> list[Any]:
    """Return an error and its causes, each once."""
    indexes: list[int] = []
    if enriched is None or not enriched.HasField("root_error_idx"):
        return indexes
    index = enriched.root_error_idx
    while 0 <= index < len(enriched.errors) and index not in indexes:
        indexes.append(index)
        index = enriched.errors[index].cause_idx if enriched.errors[index].HasField("cause_idx") else -1
    return [enriched.errors[index] for index in indexes]


def _json_object(text: str) -> dict[str, str]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _bracketed(text: str) -> str:
    """Return the error class that a text begins with: `[PARSE_SYNTAX_ERROR] …`."""
    name, bracket, _ = text.partition("[")[2].partition("]")
    return name if bracket and name.replace(".", "").replace("_", "").isalnum() and name.isupper() else ""


def _unavailable(where: str, text: str) -> PenstockError:
    hint = " (a server with TLS needs use_ssl=true, one without it must not have it)" if "lookup" not in text else ""
    return Transport(f"could not reach {where}: {text}{hint}")


_PLAIN: dict[grpc.StatusCode, Callable[[str, str], PenstockError]] = {
    grpc.StatusCode.UNAVAILABLE: _unavailable,
    grpc.StatusCode.UNAUTHENTICATED: lambda where, text: Denied(
        f"{where} refused the token, or wants one: {text}; put token=… into the URI"
    ),
    grpc.StatusCode.PERMISSION_DENIED: lambda where, text: Denied(f"{where} denied it: {text}"),
    grpc.StatusCode.DEADLINE_EXCEEDED: lambda where, text: TimedOut(f"{where} did not answer in time: {text}"),
    grpc.StatusCode.UNIMPLEMENTED: lambda where, text: Unsupported(f"{where} doesn't know this call: {text}"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: lambda where, text: LimitExceeded(f"{where}: {text}"),
    grpc.StatusCode.CANCELLED: lambda where, text: Transport(f"the call to {where} was cancelled: {text}"),
}
