"""Sinks: where a job's last splits go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.client.client import Client
from penstock.client.lease import Lease, Split
from penstock.client.put import put
from penstock.errors import InvalidRequest
from penstock.wire.job import RECEIPTS
from penstock.wire.message import QueueMessage
from penstock.wire.put import Mode, Receipt


@dataclass(frozen=True, slots=True)
class WriteDataset:
    """A dataset as a sink: one write, committed when all splits are done. Each row once, whatever is killed."""

    path: str
    mode: Mode = "error"

    def __post_init__(self) -> None:
        _check_kind(self, "store")

    def __str__(self) -> str:
        return f"WriteDataset {self.path}" + ("" if self.mode == "error" else f" {self.mode}")


@dataclass(frozen=True, slots=True)
class WriteTopic:
    """A topic as a sink: each split is appended once, in no order among splits."""

    path: str

    def __post_init__(self) -> None:
        _check_kind(self, "topic")

    def __str__(self) -> str:
        return f"WriteTopic {self.path}"


@dataclass(frozen=True, slots=True)
class Call:
    """A function of a split as a sink, called at least once for each: name effects by `split.message.message_id`."""

    function: Callable[[Split], Any]

    def __str__(self) -> str:
        return "Call"


def _check_kind(sink: WriteDataset | WriteTopic, root: str) -> None:
    if not sink.path.startswith(f"{root}/"):
        raise InvalidRequest(f"{type(sink).__name__}({sink.path!r}): expected {root}/NAME")


Sink = WriteDataset | WriteTopic | Call


@dataclass
class DatasetPuts:
    """The work of a dataset sink: some splits are an attempt of the job's write, and its receipt a message.

    The receipt is pushed in the one transaction that acks all of these splits, so that exactly the attempts of acked
    splits count: a second evaluation of a split has no receipt, and is an orphan.
    """

    queue: str
    ticket: str
    batch = 64
    linger = 0.05
    ends_together = True

    def open(self, client: Client) -> None:
        """Take the worker's connection."""
        self._client = client

    def __call__(self, leases: Sequence[Lease], splits: Sequence[Split]) -> list[list[Any]]:
        """Put the rows, those of one schema as an attempt; forward the receipts."""
        tables = [split.payload.data for split in splits]
        by_schema: dict[bytes, list[pa.Table]] = {}
        for table in tables:
            by_schema.setdefault(table.schema.serialize().to_pybytes(), []).append(table)
        for some in by_schema.values():
            put = partial(self._put, some)
            receipt = self._client.connection.retry(put, waits_for_room=True)  # an attempt that was cut is an orphan
            metadata = {"attempt": receipt.attempt, "rows": receipt.rows, "bytes": receipt.bytes}
            message = QueueMessage("", splits[0].message.split_id, "", metadata)
            leases[0].forward(f"{self.queue}/{RECEIPTS}", message)
        return [[table] for table in tables]

    def _put(self, tables: Sequence[pa.Table]) -> Receipt:
        with self._client.attempt(self.ticket, tables[0].schema) as writer:
            for table in tables:
                writer.write(table)
        return writer.close()

    def close(self) -> None:
        """Keep nothing."""


@dataclass
class TopicPuts:
    """The work of a topic sink: each split is a run, so that its rows are appended once."""

    path: str
    run: str
    batch = 1
    linger = 0.0
    ends_together = False

    def open(self, client: Client) -> None:
        """Take the worker's connection."""
        self._client = client

    def __call__(self, leases: Sequence[Lease], splits: Sequence[Split]) -> list[list[Any]]:
        """Append the rows."""
        for split in splits:
            run = f"{self.run}/{split.message.message_id}"
            put(self._client.connection, self.path, split.payload.data, run=run, waits_for_room=True)
        return [[split.payload.data] for split in splits]

    def close(self) -> None:
        """Keep nothing."""
