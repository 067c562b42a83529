"""A do_put's stream as it comes in: every batch is checked before anything uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from typing import TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import InvalidRequest
from penstock.flight_server.limits import ServerLimits, check_limit, check_schema
from penstock.rows import schemas, slices
from penstock.rows.fitting import Fit
from penstock.text import counted
from penstock.wire.body import Body
from penstock.wire.put import SparkTask, Trailer
from penstock.wire.rights import Right

_T = TypeVar("_T")
NoteT = TypeVar("NoteT", bound=Body)
CheckRight = Callable[[Right, str], None]


class Upload:
    """One do_put's stream: checked batches, cut into parts, then the trailer that says that this was all."""

    def __init__(
        self,
        attempt: str,
        reader: flight.MetadataRecordBatchReader,
        limits: ServerLimits,
        set_waiting: Callable[[bool], None],
        is_gone: Callable[[], bool],
        *,
        known: bool,
        check_right: CheckRight,
        task: SparkTask | None = None,
    ) -> None:
        self.attempt = attempt
        self.task = task
        self.check_right = check_right
        """Rejects a sender who lacks a right at a path that a note of the stream names."""
        self._reader = reader
        self._limits = limits
        self._set_waiting = set_waiting
        self.is_gone = is_gone
        """Whether nobody waits for the receipt any more."""
        self._trailer: Trailer | None = None
        self._batches = self._bytes = 0
        self.rows = 0
        self._set_waiting(True)  # the first message may be a descriptor alone
        try:
            self.schema = self.sent = reject_malformed(lambda: reader.schema)
        finally:
            self._set_waiting(False)
        check_schema(self.schema, limits)
        self._fit = Fit.of(self.sent, self.sent)
        if not known and any(schemas.has_dictionary(kind) for kind in self.schema.types):
            raise InvalidRequest(
                "a put by ticket alone takes no dictionary columns, as pyarrow may die of a malformed one: decode them "
                "(pandas: .astype(str), Arrow: .dictionary_decode()), or set the server's token"
            )

    def cast_to(self, schema: pa.Schema) -> None:
        """Make the batches in this schema, in which they are stored."""
        self.schema, self._fit = schema, Fit.of(self.sent, schema)

    def parts(self, most_rows: int | None = None) -> Iterator[list[pa.RecordBatch]]:
        """Read about 8 MiB of batches at a time, of `most_rows` rows at most, until the trailer."""
        part: list[pa.RecordBatch] = []
        size, rows, dictionaries = 0, 0, slices.Dictionaries()
        fitted = chain.from_iterable(map(self._fit.pieces, self._checked_batches()))
        for small in chain.from_iterable(map(slices.sliced, fitted)):
            for piece in [small] if most_rows is None else slices.cut(small, most_rows - rows, most_rows):
                part.append(piece)
                size += slices.size_of(piece) - dictionaries.repeated(piece)
                rows += piece.num_rows
                if size >= slices.PART_BYTES or rows == most_rows:
                    yield part
                    part, size, rows, dictionaries = [], 0, 0, slices.Dictionaries()
        if rows:
            yield part

    def check_whole(self) -> None:
        """Reject a stream without its trailer: a killed client looks the same as one that has sent all."""
        if self._trailer is None:
            raise InvalidRequest(
                "the stream ended without its trailer, so nothing of it was kept. After the last batch send "
                '{"v":1,"batches":…,"rows":…} by write_metadata, then done_writing, then read the answer'
            )
        if (self._trailer.batches, self._trailer.rows) != (self._batches, self.rows):
            raise InvalidRequest(
                f"the trailer says {self._trailer.batches} batches with {counted(self._trailer.rows, 'row')}, "
                f"{self._batches} with {self.rows} came: nothing of it was kept"
            )

    def drain(self, parts: Iterable[object]) -> None:
        """Read rows that are known already to their end, so that the sender gets its answer, not a broken stream."""
        for _ in parts:
            pass
        self.check_whole()

    def _checked_batches(self) -> Iterator[pa.RecordBatch]:
        for batch, metadata in self._chunks():
            if batch is not None:
                yield batch
            if metadata is not None:
                self._trailer = Trailer.decode(metadata)

    def noted(self, kind: type[NoteT], default: NoteT | None = None) -> Iterator[tuple[pa.RecordBatch, NoteT]]:
        """Give each batch with its note, or the default one, until the trailer, which has no batch."""
        for batch, metadata in self._chunks():
            if batch is None:
                self._trailer = Trailer.decode(metadata or b"")
            elif metadata is None and default is not None:
                yield batch, default
            elif metadata is None:
                raise InvalidRequest(f"a batch of many payloads lacks its app_metadata: expected a {kind.__name__}")
            else:
                yield batch, kind.decode(metadata)

    def check_payload(self, size: int) -> None:
        """Reject a payload that is larger than one may be."""
        check_limit(size, self._limits.payload_bytes, "bytes in a payload", "payload_bytes")

    def _chunks(self) -> Iterator[tuple[pa.RecordBatch | None, bytes | None]]:
        """Validate each batch before anything uses it: without that 101 of 2,000 damaged streams crashed the server."""
        while self._trailer is None:
            self._set_waiting(True)
            try:
                chunk = reject_malformed(self._reader.read_chunk)
            except StopIteration:
                return
            finally:
                self._set_waiting(False)
            if chunk.data is not None:
                self._check(chunk.data)
            yield chunk.data, None if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()

    def _check(self, batch: pa.RecordBatch) -> None:
        size = check_batch(batch, self._limits)
        self._batches += 1
        self.rows += batch.num_rows
        self._bytes += size
        check_limit(self._batches, self._limits.put_batches, "batches in a put", "put_batches")
        check_limit(self.rows, self._limits.put_rows, "rows in a put", "put_rows")
        check_limit(self._bytes, self._limits.put_bytes, "bytes in a put", "put_bytes")


def check_batch(batch: pa.RecordBatch, limits: ServerLimits) -> int:
    """Validate a batch, and return its bytes."""
    check_limit(batch.num_rows, limits.batch_rows, "rows in a batch", "batch_rows")
    reject_malformed(lambda: batch.validate(full=True))
    size = slices.size_of(batch)
    check_limit(size, limits.batch_bytes, "bytes in a batch", "batch_bytes")
    return size


def reject_malformed(read: Callable[[], _T]) -> _T:
    """Call `read`, and reject what Arrow finds malformed; its errors for that are of many classes."""
    try:
        return read()
    except (StopIteration, MemoryError, pa.ArrowMemoryError, flight.FlightError):
        raise
    except Exception as malformed:
        raise InvalidRequest(f"the stream is malformed: {str(malformed)[:300]}") from malformed


Admit = Callable[[], AbstractContextManager[Upload]]
"""Lets a sender that waits for it send its batches, and reads the schema. Within its block the watch looks on."""
