"""What a puller sends: its stream, and each batch of messages on its way to the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidRequest, NotFound
from penstock.ledger.tables import Transaction
from penstock.queue.pubsub import registry
from penstock.queue.pubsub.index import UNKNOWN, Integers, Mask, keys_of, offsets_of, place_of, shards_of
from penstock.queue.pubsub.registry import MESSAGES
from penstock.queue.topics import journal, revisions
from penstock.queue.topics.append import Append, Placed
from penstock.rows import slices
from penstock.rows.attributes import named_revisions
from penstock.store.database import Reader
from penstock.text import counted
from penstock.wire.position import Position

if TYPE_CHECKING:
    from penstock.queue.pubsub.subscription import Subscription

PLACES = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("duplicate", pa.bool_(), nullable=False),
    ]
)


@dataclass(eq=False, slots=True)
class PullerStream:
    """One puller's connection, from its hello to its end."""

    answer: Callable[[int, pa.RecordBatch], None]
    """Called with a batch's number and the place of each of its rows, in the order of the numbers."""
    refuse: Callable[[Exception], None]
    """Called once: a batch was not stored, and no later one will be."""
    push: Callable[[Position], None]
    """Called with what is released, whenever that has moved."""
    ask: Callable[[str], None]
    """Called with a request's id when somebody looks at the ack ledger. None of the four may wait, or raise."""
    name: str = ""
    """host:pid, once it has reported."""
    counters: Mapping[str, Any] = field(default_factory=dict)
    """What it has reported last."""
    oldest_unacked: float | None = None
    failed: bool = False
    number: int = 0
    """Tells it from the others since the server's start."""


class PulledBatch(Append):
    """A puller's batch, from its arrival to its answer."""

    unkeyed = ""  # Pub/Sub's word for no ordering key

    def __init__(self, owner: Subscription, stream: PullerStream, number: int, batch: pa.RecordBatch) -> None:
        self.path, self.schema = owner.path, MESSAGES
        self.stream, self.number, self.whole = stream, number, batch
        self.keys = keys_of(batch.column("message_id"), batch.column("publish_time"))
        self.bytes = slices.size_of(batch)
        self.batches = [batch]
        self.first_rows = self.keys.first_rows()
        self.places: Integers = np.full(len(self.keys), UNKNOWN, dtype=np.int64)
        """Of duplicates, as far as they were known when the batch was judged."""
        self.is_new: Mask = np.ones(len(self.keys), dtype=np.bool_)
        self._owner = owner
        self.revisions = named_revisions(batch.column("attributes"))
        """Of schemas, that the messages name."""

    def judge(self, database: Reader) -> bool:
        """Tell duplicates from what is new; answer a batch that has nothing new."""
        return self._owner.judge(self)

    def undo(self) -> None:
        """Forget that these messages are being appended."""
        self._owner.withdraw(self)

    def record(self, t: Transaction, placed: Placed) -> None:
        """Reject rows of a subscription that was detached meanwhile, and perhaps attached again."""
        layout = journal.layout(t, self.path)
        if registry.find(t, self.path) is None or layout is None or layout.journal != self._owner.journal:
            raise NotFound(f"{self.path} was detached")
        revisions.note(t, self.path, self.revisions, placed.shards)

    def settle(self, placed: Placed) -> None:
        """Answer with the place of each row."""
        self._owner.settle(self, placed)

    def place(self, placed: Placed) -> None:
        """Note the places of the rows that were appended."""
        if placed.shard_of_row is None:
            for shard, (first, end) in placed.shards.items():
                self.places[self.is_new] = np.arange(place_of(shard, first), place_of(shard, end), dtype=np.int64)
            return
        rows, shard_of_row = np.flatnonzero(self.is_new), np.asarray(placed.shard_of_row)
        for shard, (first, end) in placed.shards.items():
            places = np.arange(place_of(shard, first), place_of(shard, end), dtype=np.int64)
            self.places[rows[shard_of_row == shard]] = places

    def answer(self) -> None:
        """Tell the puller the place of each row, all of which are known now."""
        columns = [
            pa.array(shards_of(self.places).astype(np.int32)),
            pa.array(offsets_of(self.places)),
            pa.array(~self.is_new),
        ]
        self.stream.answer(self.number, pa.RecordBatch.from_arrays(columns, schema=PLACES))

    def fail(self, error: BaseException) -> None:
        """Try again later where the disk is full; otherwise end the puller's stream."""
        self._owner.failed(self, error)


def check_messages(path: str, batch: pa.RecordBatch) -> None:
    """Reject rows that aren't messages."""
    if not batch.schema.equals(MESSAGES):
        raise InvalidRequest(
            f"{path}: expected the columns {MESSAGES.to_string()}, got {batch.schema.to_string()}"[:900]
        )
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count and not batch.schema.field(name).nullable:
            without = counted(column.null_count, "row has", "rows have")
            raise InvalidRequest(f"{path}: {without} no {name}, which every message has")
