"""The ack ledger of a subscription: what each connected puller knows of its leases, asked for when somebody looks.

Nothing of it is kept here: leases and acks are the pullers'. One that doesn't answer in time is a row that says so.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.queue.pubsub.registry import ACKS, MESSAGES

MOST_ROWS = 100_000
"""Rows of a batch, packed about 2 MB."""
NO_ANSWER = "no answer"
"""The state in the one row of a puller that didn't answer."""


class Asked(Protocol):
    """A puller's stream."""

    name: str

    @property
    def ask(self) -> Callable[[str], None]:
        """Called with a request's id; the puller sends its leases with that."""


@dataclass(eq=False, slots=True)
class _Gathering:
    """One request, to all pullers."""

    waiting: list[Asked]
    gone: list[Asked] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)


class AckLedger:
    """Gathers what pullers say; called by the threads of readers and of the pullers' streams."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._gatherings: dict[str, _Gathering] = {}

    def gather(self, streams: Sequence[Asked], within: float) -> list[pa.RecordBatch]:
        """Ask these pullers, and return the rows that have come within so many seconds."""
        request, gathering = uuid.uuid4().hex, _Gathering([*streams])
        with self._changed:
            self._gatherings[request] = gathering
        for stream in streams:
            stream.ask(request)
        with self._changed:
            self._changed.wait_for(lambda: not gathering.waiting, within)
            del self._gatherings[request]
        silent = [stream.name for stream in (*gathering.waiting, *gathering.gone)]
        return [*gathering.batches, _silence(silent)]

    def take(self, stream: Asked, request: str, batch: pa.RecordBatch | None) -> None:
        """Take rows of a puller's answer; None: that was all. Those of a request that has ended are dropped."""
        rows = [] if batch is None else unpack(batch)
        with self._changed:
            gathering = self._gatherings.get(request)
            if gathering is None or stream not in gathering.waiting:
                return
            gathering.batches += rows
            if batch is None:
                gathering.waiting.remove(stream)
                self._changed.notify_all()

    def left(self, stream: Asked) -> None:
        """Wait for a puller no more whose stream has ended."""
        with self._changed:
            for gathering in self._gatherings.values():
                if stream in gathering.waiting:
                    gathering.waiting.remove(stream)
                    gathering.gone.append(stream)
            self._changed.notify_all()


def pack(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of ACKS in the schema of messages: an exchange has one for all its batches. They are in `data`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ACKS, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(rows)
    data = sink.getvalue().to_pybytes()
    row = {"message_id": "", "publish_time": 0, "ordering_key": "", "attributes": [], "data": data}
    return pa.RecordBatch.from_pylist([row], schema=MESSAGES)


def unpack(packed: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return the rows of ACKS in a batch."""
    try:
        batches: list[pa.RecordBatch] = []
        for data in packed.column("data"):
            with pa.ipc.open_stream(data.as_buffer()) as reader:
                batches += reader
    except (KeyError, AttributeError, OSError, pa.ArrowException) as malformed:
        raise InvalidRequest("an ack ledger's batch: expected an Arrow stream in the column data") from malformed
    for batch in batches:
        if not batch.schema.equals(ACKS):
            raise InvalidRequest(f"an ack ledger's batch: expected {ACKS.to_string()}, got {batch.schema.to_string()}")
        batch.validate(full=True)
    return batches


def _silence(names: Iterable[str]) -> pa.RecordBatch:
    rows = [{"puller": name, "state": NO_ANSWER} for name in names]
    return pa.RecordBatch.from_pylist(rows, schema=ACKS)
