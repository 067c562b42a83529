"""The result of a query: a stream of Arrow batches."""

from __future__ import annotations

import base64
import json
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidRequest, LimitExceeded, PenstockError
from penstock.spark.batches import Batches
from penstock.spark.client import Client, Identity
from penstock.spark.errors import CorruptResponse
from penstock.spark.execution import Execution, Position
from penstock.spark.responses import Piece, Response
from penstock.text import counted, format_size

_EXPECTED = ("execution_progress", "result_complete", "sql_command_result", "checkpoint_command_result")
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """What the server has done of a query."""

    stages: int
    tasks: int
    done: int
    """Tasks that are completed."""
    running: int
    bytes_read: int
    ended: bool = False
    """The query has ended: this is the last report."""


class Result(Batches):
    """The batches of a query, as they come: memory holds one of them. For one thread.

    A context manager; leaving it before the end, or a loop over it, interrupts the query.
    """

    def __init__(
        self, client: Client, execution: Execution, *, rows: int = 0,
        on_progress: Callable[[Progress], object] | None = None, owns_client: bool = False,
    ) -> None:  # fmt: skip
        self.rows = rows
        """Rows that were read so far, by `resume` before included."""
        self.bytes = 0
        """Bytes of Arrow that were received."""
        self.max_bytes: int | None = None
        """What a batch may have, as it is put together of what was received."""
        self.progress: Progress | None = None
        self.answer: Any = None
        """What a command answered: a message of Spark Connect."""
        self._client, self._execution, self._on_progress = client, execution, on_progress
        self._owns_client = owns_client  # made for this result alone: closed with it
        self._schema: pa.Schema | None = None
        self._chunks: list[pa.Buffer] = []
        self._chunk_bytes = 0
        self._decoded: deque[tuple[pa.RecordBatch, str, int]] = deque()
        self._used = Position(execution.operation_id, "", rows)  # up to the batch that was returned last
        self._failure: PenstockError | None = None  # what every later read raises again: rows may be missing
        self._response_rows = rows  # of the responses that were decoded
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @property
    def operation_id(self) -> str:
        """The id of the query at the server, for its log and for `interrupt`."""
        return self._execution.operation_id

    @property
    def reattaches(self) -> int:
        """How often the query went on over another stream."""
        return self._execution.reattaches

    @property
    def schema(self) -> pa.Schema:
        """The schema; waits for the first batch."""
        while self._schema is None and self._receive():
            pass
        return pa.schema([]) if self._schema is None else self._schema

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch that has rows; StopIteration after the last one. The one before counts as used."""
        while not self._decoded:
            if not self._receive():
                raise StopIteration
        batch, response_id, size = self._decoded.popleft()
        if not self._execution.has_checkpoint and self._used.response_id:
            self._execution.use(self._used.response_id, size)
        self.rows += batch.num_rows
        self._used = Position(self.operation_id, response_id, self.rows)
        return batch

    def checkpoint(self) -> str:
        """Return a token with which `resume` goes on after the last batch that was read, in any process.

        Take one whenever what was read is safe. From the first one on the server keeps what comes after the newest: it
        has 10 MB for that, and waits five minutes for a client: leaving this result interrupts the query no more, its
        `timeout` and `Session.interrupt` do.
        """
        if self._decoded and self._decoded[0][1] == self._used.response_id:
            raise InvalidRequest("a response has several batches, and some are unread: read on, then take a checkpoint")
        if self._execution.is_complete and not self._execution.has_checkpoint:
            raise InvalidRequest("the result has ended, and the server dropped it: take a checkpoint before its end")
        self._execution.has_checkpoint = True
        if self._used.response_id:
            self._execution.use(self._used.response_id, 0)
        return encode_checkpoint(self._client.identity, self._used)

    def close(self) -> None:
        """Interrupt the query, unless it is complete or has a checkpoint."""
        self._decoded.clear()
        self._execution.close()
        if self._owns_client:
            self._client.close()
        self._tell_end()  # last, as the callback may raise

    def abandon(self) -> None:
        """The same, without waiting: for a destructor."""
        self._decoded.clear()
        self._execution.abandon()

    def __del__(self) -> None:
        if hasattr(self, "_response_rows") and not sys.is_finalizing():
            self.abandon()

    def __repr__(self) -> str:
        state = "complete" if self._execution.is_complete else "running"
        return f"<Result of {self.operation_id}: {counted(self.rows, 'row')} read, {state}>"

    def _begin(self) -> None:
        """Read until Spark has accepted the query: what is wrong with it is known then."""
        accepted = False
        while not accepted and not self._decoded and self._schema is None:
            response = next(self._execution, None)
            if response is None:
                return
            self._take(response)
            accepted = response.message.HasField("schema") or self.answer is not None

    def _receive(self) -> bool:
        """Read a response; False after the last."""
        if self._failure is not None:
            raise self._failure
        try:
            response = next(self._execution, None)
            if response is not None:
                self._take(response)
            elif self._chunks:
                raise CorruptResponse("the result ends within a batch")
        except PenstockError as failure:
            self._failure = failure
            raise
        if response is None:
            self._tell_end()
        return response is not None

    def _take(self, response: Response) -> None:
        if response.piece is not None:
            self._assemble(response.message.response_id, response.piece)
            return
        name = response.message.WhichOneof("response_type")
        if name == "execution_progress":
            self._note_progress(response.message.execution_progress)
        elif name in ("sql_command_result", "checkpoint_command_result"):
            self.answer = getattr(response.message, name)
        elif name not in _EXPECTED and not (
            name is None
            and (
                response.message.HasField("schema")
                or response.message.HasField("metrics")
                or response.message.observed_metrics
            )
        ):
            raise CorruptResponse(f"a response holds nothing that this client knows ({name})")

    def _assemble(self, response_id: str, piece: Piece) -> None:
        """Take a piece of a batch; with the last one decode the batch."""
        head = piece.head
        self.bytes += piece.data.size
        if head.chunk_index != len(self._chunks):
            raise CorruptResponse(f"a batch's chunk {head.chunk_index} came where {len(self._chunks)} was due")
        if not self._chunks and head.HasField("start_offset") and head.start_offset != self._response_rows:
            raise CorruptResponse(
                f"a batch begins at row {head.start_offset:,} where {self._response_rows:,} was due: rows are missing, "
                "or came twice"
            )
        self._chunk_bytes += piece.data.size
        if self._chunks and self.max_bytes is not None and self._chunk_bytes > self.max_bytes:
            raise too_many_bytes(self.max_bytes)
        self._chunks.append(piece.data)
        if len(self._chunks) < head.num_chunks_in_batch:
            return
        chunks, self._chunks = self._chunks, []
        schema, batches = decode_batches(chunks, head.row_count, self._schema)
        self._schema = schema
        self._response_rows += head.row_count
        size, self._chunk_bytes = self._chunk_bytes, 0
        self._decoded.extend((batch, response_id, size) for batch in batches if batch.num_rows)

    def _note_progress(self, progress: Any) -> None:
        stages = progress.stages
        self.progress = Progress(
            len(stages),
            sum(stage.num_tasks for stage in stages),
            sum(stage.num_completed_tasks for stage in stages),
            progress.num_inflight_tasks,
            sum(stage.input_bytes_read for stage in stages),
        )
        if self._on_progress is not None:
            self._on_progress(self.progress)

    def _leave_loop(self) -> None:
        self.abandon()
        self._tell_end()

    def _tell_end(self) -> None:
        """Report once more that the query has ended, if anything was reported."""
        if self.progress is not None and not self.progress.ended:
            self.progress = replace(self.progress, ended=True)
            if self._on_progress is not None:
                self._on_progress(self.progress)


def too_many_bytes(max_bytes: int) -> LimitExceeded:
    """Return the error for a result that is larger than the caller wants to hold."""
    return LimitExceeded(
        f"the result has more than max_bytes={max_bytes} ({format_size(max_bytes)}): limit(…) the frame, "
        "stream() it, or pass a larger max_bytes (None lifts it)"
    )


def decode_batches(
    chunks: list[pa.Buffer], rows: int, schema: pa.Schema | None
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Return the schema and the batches of an IPC stream, whole and checked; anything else is a CorruptResponse."""
    payload = chunks[0] if len(chunks) == 1 else pa.py_buffer(b"".join(memoryview(chunk) for chunk in chunks))
    try:
        with pa.ipc.open_stream(_aligned(payload)) as reader:
            batches = list(reader)
            arrived = reader.schema
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError) as malformed:
        raise CorruptResponse(f"a batch of {payload.size:,} bytes is malformed: {malformed}") from malformed
    if sum(batch.num_rows for batch in batches) != rows:
        raise CorruptResponse(f"a batch of {counted(rows, 'row')} has {sum(batch.num_rows for batch in batches):,}")
    if schema is not None and not arrived.equals(schema):
        raise CorruptResponse(f"a batch has another schema than those before: {arrived} instead of {schema}")
    return arrived, batches


def _aligned(payload: pa.Buffer) -> pa.Buffer:
    """Return the payload where its columns begin at whole words: not all of Arrow's readers take others."""
    if payload.address % _ALIGNMENT == 0:
        return payload
    copy = pa.allocate_buffer(payload.size)
    pa.FixedSizeBufferWriter(copy).write(payload)
    return copy


def encode_checkpoint(identity: Identity, position: Position) -> str:
    """Return a position as one word of text."""
    return base64.urlsafe_b64encode(json.dumps({"v": 1, **asdict(identity), **asdict(position)}).encode()).decode()


def decode_checkpoint(token: str) -> tuple[Identity, Position]:
    """Return whose operation it is, and the position in it."""
    try:
        fields = json.loads(base64.urlsafe_b64decode(token))
        if fields["v"] != 1:
            raise InvalidRequest(f"the checkpoint has version {fields['v']!r:.20}: this penstock knows version 1")
        texts = [str(fields[name]) for name in ("session_id", "user_id", "operation_id", "response_id")]
        rows = int(fields["rows"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as wrong:
        raise InvalidRequest("this is no checkpoint: expected the text that Result.checkpoint() returned") from wrong
    session_id, user_id, operation_id, response_id = texts
    return Identity(session_id, user_id), Position(operation_id, response_id, rows)
