"""A do_put's stream as it comes in: every batch looked at before anything uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import InvalidRequest
from penstock.flight_server import limits
from penstock.flight_server.limits import Limits
from penstock.rows import schemas, slices
from penstock.wire.put import Trailer

_T = TypeVar("_T")


class Upload:
    """One do_put's stream: checked batches, cut into parts, and then the sender's word that this was all."""

    def __init__(self, reader: flight.MetadataRecordBatchReader, most: Limits, waits: Callable[[bool], None]) -> None:
        self._reader = reader
        self._most = most
        self._waits = waits
        self._trailer: Trailer | None = None
        self._batches = self._bytes = 0
        self.rows = 0
        self._waits(True)  # the first message may be a descriptor alone
        try:
            self.schema = _malformed_is_refused(lambda: reader.schema)
        finally:
            self._waits(False)
        limits.check(len(self.schema), most.columns, "columns", "columns")
        schemas.check_names(self.schema)

    def parts(self) -> Iterator[list[pa.RecordBatch]]:
        """About 8 MiB of batches at a time, until the trailer."""
        part: list[pa.RecordBatch] = []
        size = 0
        for batch in self._checked():
            for piece in slices.sliced(batch):
                part.append(piece)
                size += piece.nbytes
                if size >= slices.PART_BYTES:
                    yield part
                    part, size = [], 0
        if part:
            yield part

    def check_whole(self) -> None:
        """A stream that merely ends is abandoned: a killed client looks the same as one that is done."""
        if self._trailer is None:
            raise InvalidRequest(
                "the stream ended without its trailer, so nothing of it was kept. After the last batch send "
                '{"v":1,"batches":…,"rows":…} by write_metadata, then done_writing, then read the answer'
            )
        if (self._trailer.batches, self._trailer.rows) != (self._batches, self.rows):
            raise InvalidRequest(
                f"the trailer says {self._trailer.batches} batches with {self._trailer.rows} rows, "
                f"{self._batches} with {self.rows} came: nothing of it was kept"
            )

    def drain(self, parts: Iterator[list[pa.RecordBatch]]) -> None:
        """Read what is known already, so that the sender gets its answer and not a broken stream."""
        for _ in parts:
            pass
        self.check_whole()

    def _checked(self) -> Iterator[pa.RecordBatch]:
        """Every batch, validated before anything uses it: without that 101 of 2,000 damaged streams crashed us."""
        while self._trailer is None:
            self._waits(True)
            try:
                chunk = _malformed_is_refused(self._reader.read_chunk)
            except StopIteration:
                return
            finally:
                self._waits(False)
            if chunk.data is not None:
                self._check(chunk.data)
                yield chunk.data
            if chunk.app_metadata is not None:
                self._trailer = Trailer.decode(chunk.app_metadata.to_pybytes())

    def _check(self, batch: pa.RecordBatch) -> None:
        limits.check(batch.num_rows, self._most.batch_rows, "rows in a batch", "batch_rows")
        _malformed_is_refused(lambda: batch.validate(full=True))
        limits.check(batch.nbytes, self._most.batch_bytes, "bytes in a batch", "batch_bytes")
        self._batches += 1
        self.rows += batch.num_rows
        self._bytes += batch.nbytes
        limits.check(self._batches, self._most.put_batches, "batches in a put", "put_batches")
        limits.check(self.rows, self._most.put_rows, "rows in a put", "put_rows")
        limits.check(self._bytes, self._most.put_bytes, "bytes in a put", "put_bytes")


def _malformed_is_refused(read: Callable[[], _T]) -> _T:
    """What Arrow says of bytes that aren't what they claim; its errors for that come in many classes."""
    try:
        return read()
    except (StopIteration, MemoryError, pa.ArrowMemoryError, flight.FlightError):
        raise
    except Exception as broken:
        raise InvalidRequest(f"the stream is malformed: {str(broken)[:300]}") from broken
