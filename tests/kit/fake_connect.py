"""A Spark Connect server without Spark: one result, which it serves, breaks off and forgets as a test says."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
import pyarrow as pa
import pytest

from penstock.spark import protos
from penstock.spark.session import Session

SERVER_SESSION = "00000000-0000-4000-8000-000000000001"
_STATUS = "grpc-status-details-bin"


@dataclass
class Failure:
    """A failed call: its gRPC status, and what google.rpc.Status says besides."""

    code: grpc.StatusCode
    text: str = "planted"
    metadata: dict[str, str] = field(default_factory=dict)
    retry_delay: float | None = None


@dataclass
class Cut:
    """Serve so many responses of a stream, then fail, or merely end."""

    after: int
    failure: Failure | None = None


def ipc(batch: pa.RecordBatch) -> bytes:
    """Return a batch as Spark sends it: a stream with its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def numbers(first: int, rows: int) -> pa.RecordBatch:
    """Return a batch of consecutive numbers, each with a text."""
    ids = range(first, first + rows)
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "text": [f"row {number}" for number in ids]})


class FakeConnect:
    """The server. `batches` batches of 10 rows are the result of whatever plan."""

    def __init__(self, batches: int = 5, rows: int = 10) -> None:
        self.port = 0
        self.calls: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.cuts: list[Cut] = []
        """What happens to the streams, the first one first; those without a cut are served whole."""
        self.failures: defaultdict[str, list[Failure]] = defaultdict(list)
        """What the next calls of a name fail with, before anything else."""
        self.change: Callable[[int, bytes], bytes] = lambda _, raw: raw
        """Changes the bytes of a response, by its number."""
        self.server_session = SERVER_SESSION
        self.details: Any = None
        """The answer to FetchErrorDetails."""
        self.released_at: list[int] = []
        """For each release, how many batches had been sent."""
        self._lock = threading.Lock()  # calls, headers, cuts, failures, _known, _first
        self._batches = [numbers(number * rows, rows) for number in range(batches)]
        self._known: set[str] = set()
        self._first = 0  # responses before it are released

    @property
    def uri(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def named(self, name: str) -> list[Any]:
        """Return the requests of a call."""
        with self._lock:
            return [request for each, request in self.calls if each == name]

    def responses(self, request: Any) -> list[bytes]:
        """Return the whole result, as it is sent: a schema, batches, the end."""
        result, offset = [], 0
        schema = self._response(request, "r0")
        for name, kind in (("id", "long"), ("text", "string")):
            column = schema.schema.struct.fields.add(name=name, nullable=True)
            getattr(column.data_type, kind).SetInParent()
        result.append(schema.SerializeToString())
        for number, batch in enumerate(self._batches, 1):
            each = self._response(request, f"r{number}")
            each.arrow_batch.row_count, each.arrow_batch.data = batch.num_rows, ipc(batch)
            each.arrow_batch.start_offset = offset
            offset += batch.num_rows
            result.append(each.SerializeToString())
        end = self._response(request, f"r{len(self._batches) + 1}")
        end.result_complete.SetInParent()
        return [*result, end.SerializeToString()]

    def handle(self, name: str, request: Any, context: grpc.ServicerContext) -> Any:
        """Answer a call that isn't a stream."""
        self._note(name, request, context)
        answer = _responses()[name]()
        if name == "FetchErrorDetails" and self.details is not None:
            answer.CopyFrom(self.details)
        answer.session_id, answer.server_side_session_id = request.session_id, self.server_session
        match name:
            case "AnalyzePlan":
                answer.spark_version.version = "4.3.0"
            case "Config" if request.operation.WhichOneof("op_type") in ("get", "get_with_default"):
                answer.pairs.add(key="key", value="value")
            case "Interrupt":
                answer.interrupted_ids.append(request.operation_id or "all")
            case "CloneSession":
                answer.new_session_id = request.new_session_id
            case "ReleaseExecute" if request.WhichOneof("release") == "release_until":
                with self._lock:
                    self._first = max(self._first, int(request.release_until.response_id[1:]) + 1)
        return answer

    def stream(self, name: str, request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Serve the result, or its rest. SQL is answered with itself, as a query's is, and counts as no call."""
        if name == "ExecutePlan" and request.plan.command.HasField("sql_command"):
            answer = self._response(request, "r0")
            answer.sql_command_result.relation.CopyFrom(request.plan.command.sql_command.input)
            yield answer.SerializeToString()
            yield self.responses(request)[-1]
            return
        self._note(name, request, context)
        if name == "ExecutePlan":
            self._known.add(request.operation_id)
        elif request.operation_id not in self._known:
            self._fail(context, spark_failure("INVALID_HANDLE.OPERATION_NOT_FOUND"))
        start = int(request.last_response_id[1:]) + 1 if name != "ExecutePlan" and request.last_response_id else 0
        with self._lock:
            cut = self.cuts.pop(0) if self.cuts else None
            gone = start < self._first
        if gone:
            self._fail(context, spark_failure("INVALID_CURSOR.POSITION_NOT_AVAILABLE"))
        for count, (number, raw) in enumerate(enumerate(self.responses(request)[start:], start)):
            if cut is not None and count == cut.after:
                if cut.failure is not None:
                    self._fail(context, cut.failure)
                return
            yield self.change(number, raw)

    def progress(self, number: str = "r1") -> bytes:
        """Return a response of the newest query that reports progress."""
        request = self.named("ExecutePlan")[-1]
        response = self._response(request, number)
        response.execution_progress.stages.add(num_tasks=1)
        return bytes(response.SerializeToString())

    def _response(self, request: Any, number: str) -> Any:
        return protos.ExecutePlanResponse(
            session_id=request.session_id, server_side_session_id=self.server_session,
            operation_id=request.operation_id, response_id=number,
        )  # fmt: skip

    def _note(self, name: str, request: Any, context: grpc.ServicerContext) -> None:
        with self._lock:
            self.calls.append((name, request))
            self.headers.append({key: str(value) for key, value in context.invocation_metadata()})
            failure = self.failures[name].pop(0) if self.failures[name] else None
        if failure is not None:
            self._fail(context, failure)

    def _fail(self, context: grpc.ServicerContext, failure: Failure) -> NoReturn:
        status = protos.message("google.rpc.Status")(code=failure.code.value[0], message=failure.text)
        if failure.metadata:
            info = protos.message("google.rpc.ErrorInfo")(reason="planted", metadata=failure.metadata)
            status.details.add().Pack(info)
        if failure.retry_delay is not None:
            info = protos.message("google.rpc.RetryInfo")()
            info.retry_delay.FromNanoseconds(int(failure.retry_delay * 1e9))
            status.details.add().Pack(info)
        if status.details:
            context.set_trailing_metadata(((_STATUS, status.SerializeToString()),))
        context.abort(failure.code, failure.text)
        raise AssertionError("abort raises")


def note_timeouts(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that gets the timeout of each stream which the session begins."""
    timeouts: list[float] = []
    stream = session.client.stream

    def noting(name: str, request: Any, timeout: float, **options: bytes) -> Any:
        timeouts.append(timeout)
        return stream(name, request, timeout, **options)

    monkeypatch.setattr(session.client, "stream", noting)
    return timeouts


def spark_failure(error_class: str, text: str | None = None, **metadata: str) -> Failure:
    """Return a failure as Spark words it."""
    return Failure(
        grpc.StatusCode.INTERNAL, text or f"[{error_class}] planted", {"errorClass": error_class, **metadata}
    )


def _responses() -> dict[str, Any]:
    names = ("AnalyzePlan", "Config", "Interrupt", "ReleaseExecute", "ReleaseSession", "FetchErrorDetails",
             "CloneSession")  # fmt: skip
    return {name: getattr(protos, f"{name}Response") for name in names}


def _requests() -> dict[str, Any]:
    return {name: getattr(protos, f"{name}Request") for name in _responses()}


@contextmanager
def fake_connect(
    *, credentials: grpc.ServerCredentials | None = None, batches: int = 5, rows: int = 10
) -> Iterator[FakeConnect]:
    """Run such a server, with TLS if it has credentials."""
    fake = FakeConnect(batches, rows)

    def unary(name: str) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: fake.handle(name, request, context),
            request_deserializer=_requests()[name].FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )

    def stream(name: str, request: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(
            lambda request, context: fake.stream(name, request, context), request_deserializer=request.FromString
        )

    handlers = {name: unary(name) for name in _responses()}
    handlers["ExecutePlan"] = stream("ExecutePlan", protos.ExecutePlanRequest)
    handlers["ReattachExecute"] = stream("ReattachExecute", protos.ReattachExecuteRequest)
    server = grpc.server(ThreadPoolExecutor(8, thread_name_prefix="fake-connect"))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("spark.connect.SparkConnectService", handlers),)
    )
    if credentials is None:
        fake.port = server.add_insecure_port("127.0.0.1:0")
    else:
        fake.port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield fake
    finally:
        server.stop(None).wait(10)
