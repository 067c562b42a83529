"""Sources: what fills the first queues of a job. Each of them may be started again, and adds nothing twice.

Message ids are the same at each start: a job's queues know them until the job is done.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from penstock.client.client import Client
from penstock.client.lease import Split
from penstock.client.push import Output, push, to_outputs
from penstock.errors import InvalidRequest, NotFound, PenstockError
from penstock.pipeline.spark_frame import SparkFrameConfig
from penstock.rows.payload import SplitPayload
from penstock.rows.slices import size_of_table
from penstock.wire.actions import DESCRIBE, PUSH_DATASET, Target
from penstock.wire.message import QueueMessage
from penstock.wire.payloads import PayloadNote
from penstock.wire.queue import PushDataset

_BATCH_SPLITS, _BATCH_BYTES = 500, 8 << 20
"""Splits and bytes of one push, which is a transaction."""
_TOPIC_ROWS = 100_000
"""Rows of a topic in one split."""


@dataclass(frozen=True, slots=True)
class Filling:
    """Where a source pushes, and what it may ask."""

    client: Client
    job: str
    stage: str
    run: str
    """The name of what the source writes in this job."""
    queues: tuple[str, ...]
    """Those that the source has not filled in an earlier run."""
    pinned: dict[str, Any]
    """What `pin` has returned when the job was started first."""
    wait_for_room: Callable[[], bool]
    """Waits while the queues are full; False once the job stops."""


class Source(Protocol):
    """What a stage that is after no other has."""

    def pin(self, client: Client) -> dict[str, Any]:
        """Return what must be the same when a job is resumed."""
        ...

    def fill(self, filling: Filling) -> None:
        """Push all splits to every queue."""
        ...


def to_source(what: Any) -> Source:
    """Return the source that a stage's `what` stands for."""
    if isinstance(what, ReadDataset | ReadTopic):
        return what
    if isinstance(what, SparkFrameConfig):
        from penstock.pipeline.spark_job_source import SparkJobSource  # the driver's Spark, which others do without

        return SparkJobSource(what)
    if isinstance(what, Iterable) and not isinstance(what, str | bytes | Mapping | pa.Table):
        return Elements(what)
    raise InvalidRequest(
        f"{type(what).__name__} is no source: expected an iterable of tables, payloads or dicts, ReadDataset, "
        "ReadTopic, SparkSourceV2Config or SparkSourceConfig. A stage with an operator is after another: after='in'"
    )


@dataclass(frozen=True, slots=True)
class ReadDataset:
    """A dataset as a source: each part that it has when the job starts is a split. Nothing is copied."""

    path: str

    def __str__(self) -> str:
        return f"ReadDataset {self.path}"

    def pin(self, client: Client) -> dict[str, Any]:
        """Return the dataset's end; nothing if it is gone, which a job that has its splits may outlive."""
        try:
            return {"last": client.call(DESCRIBE, Target(self.path)).last or ""}
        except NotFound:
            return {}

    def fill(self, filling: Filling) -> None:
        """Push a message for each part up to the pinned end."""
        for queue in filling.queues:
            filling.client.call(PUSH_DATASET, PushDataset(queue, self.path, filling.pinned.get("last")))


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """A range of a topic as a source, by default all that it has when the job starts: splits of 100,000 rows.

    `start` and `end` are offsets by shard, {0: 500}.
    """

    path: str
    start: Mapping[int, int] | None = None
    end: Mapping[int, int] | None = None

    def __str__(self) -> str:
        return f"ReadTopic {self.path} from {dict(self.start or {})} to {dict(self.end or {})}"

    def pin(self, client: Client) -> dict[str, Any]:
        """Return the offsets of each shard."""
        shards = client.call("describe", {"path": self.path}).get("shards")
        if shards is None:
            raise InvalidRequest(f"{self.path} is no topic: use ReadDataset for a dataset")
        starts, ends = dict(self.start or {}), dict(self.end or {})
        return {
            str(shard["shard"]): [starts.get(shard["shard"], shard["first"]), ends.get(shard["shard"], shard["next"])]
            for shard in shards
        }

    def fill(self, filling: Filling) -> None:
        """Push a message without payload for each range; the workers read its rows."""
        push_all(filling, self._ranges(filling.pinned))

    def _ranges(self, pinned: dict[str, list[int]]) -> Iterator[dict[str, Any]]:
        nothing = {shard: end for shard, (_, end) in pinned.items()}  # of a shard that isn't named all rows are read
        for shard, (first, end) in pinned.items():
            for start in range(first, end, _TOPIC_ROWS):
                last = min(start + _TOPIC_ROWS, end)
                offsets = {"start": {**nothing, shard: start}, "end": {**nothing, shard: last}}
                yield {"num_records": last - start, "data_range": {"path": self.path, **offsets}}


class Elements:
    """An iterable as a source: each table or payload is a split, each dict the metadata of one without rows.

    It has to give the same elements in the same order when a job is resumed.
    """

    def __init__(self, elements: Iterable[Any]) -> None:
        self._elements = elements

    def __str__(self) -> str:
        return "an iterable"

    def pin(self, client: Client) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def fill(self, filling: Filling) -> None:
        """Push the elements, in their order."""
        push_all(filling, self._elements)


def push_all(filling: Filling, elements: Iterable[Any]) -> None:
    """Push each element to all queues at once, some elements in a transaction."""
    numbered = enumerate(elements)
    while batch := list(_batch(numbered)):
        if not filling.wait_for_room():
            return
        messages = [_to_output(filling.stage, number, element) for number, element in batch]
        outputs = [_for_queue(each, queue) for each in messages for queue in filling.queues]
        push(filling.client.connection, outputs)


def _for_queue(output: Output, queue: str) -> Output:
    """Return a message for one of the queues; its id is of that queue alone, as the ways of two may meet again.

    The id says nothing of how many queues there are, which changes as some have all of their splits.
    """
    note = replace(output.note, queue=queue, message_id=f"{output.note.message_id}_{queue.rpartition('/')[2]}")
    return replace(output, queue=queue, note=note)


def _batch(numbered: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield the elements of one push."""
    size = 0
    for number, element in itertools.islice(numbered, _BATCH_SPLITS):
        yield number, element
        table = getattr(element, "data", element)
        size += size_of_table(table) if isinstance(table, pa.Table) else 0
        if size >= _BATCH_BYTES:
            return


def _to_output(stage: str, number: int, element: Any) -> Output:
    """Return an element as a message whose id is the same at each start."""
    message_id = f"{stage}_{number}"
    if isinstance(element, QueueMessage):
        return to_outputs("queue/", element)[0]
    if isinstance(element, Mapping):
        metadata = {"source_stage": stage, **element}
        note = PayloadNote(message_id=message_id, payload_key="", metadata=metadata, timestamp=time.time())
        return Output("", note, None)
    if isinstance(element, pa.RecordBatch):
        element = pa.Table.from_batches([element])
    payload = SplitPayload.from_any(element, message_id)
    metadata = {"source_stage": stage, **payload.metadata}
    return Output("", PayloadNote(message_id=message_id, split_id=payload.split_id, metadata=metadata), payload.data)


def read_split(client: Client, split: Split) -> Split:
    """Return a split with the rows that its message names in `data_range`, if it has no payload of its own."""
    data_range = split.message.metadata.get("data_range")
    if split.loaded is not None or not isinstance(data_range, dict) or "path" not in data_range:
        return split
    start, end = (
        None if data_range.get(name) is None else {int(shard): at for shard, at in data_range[name].items()}
        for name in ("start", "end")
    )
    try:
        table = client.get(data_range["path"], part=data_range.get("part"), start=start, end=end).read_all()
    except PenstockError as error:
        error.add_note(f"the rows of split {split.message.split_id}: {data_range}")
        raise
    return Split(split.message, SplitPayload.from_arrow(table, split.message.split_id))
