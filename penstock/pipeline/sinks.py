"""Sinks: where a job's last splits go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.client.claim import Lease, Split
from penstock.client.client import Client
from penstock.wire.job import RECEIPTS
from penstock.wire.message import QueueMessage
from penstock.wire.put import Mode, Receipt


@dataclass(frozen=True, slots=True)
class WriteDataset:
    """A dataset as a sink: one write, committed when all splits are done. Each row once, whatever is killed."""

    path: str
    mode: Mode = "error"

    def __str__(self) -> str:
        return f"WriteDataset {self.path}" + ("" if self.mode == "error" else f" {self.mode}")


@dataclass(frozen=True, slots=True)
class WriteTopic:
    """A topic as a sink: each split is appended once, in no order among splits."""

    path: str

    def __str__(self) -> str:
        return f"WriteTopic {self.path}"


@dataclass(frozen=True, slots=True)
class Call:
    """A function of a split as a sink, called at least once for each: name effects by `split.message.message_id`."""

    function: Callable[[Split], Any]

    def __str__(self) -> str:
        return "Call"


Sink = WriteDataset | WriteTopic | Call


@dataclass
class DatasetPuts:
    """The work of a dataset sink: each split is an attempt of the job's write, and its receipt a message.

    The receipt is pushed in the transaction that acks the split, so that exactly the attempts of acked splits count:
    a second evaluation of a split has no receipt, and is an orphan.
    """

    queue: str
    ticket: str

    def open(self, client: Client) -> None:
        """Take the worker's connection."""
        self._client = client

    def __call__(self, lease: Lease, split: Split) -> list[Any]:
        """Put the rows as an attempt; forward its receipt."""
        table = split.payload.data

        def put() -> Receipt:
            with self._client.attempt(self.ticket, table.schema) as writer:
                writer.write(table)
            return writer.close()

        receipt = self._client.connection.retry(put)  # an attempt that was cut is an orphan
        metadata = {"attempt": receipt.attempt, "rows": receipt.rows, "bytes": receipt.bytes}
        lease.forward(f"{self.queue}/{RECEIPTS}", QueueMessage("", split.message.split_id, "", metadata))
        return [table]

    def close(self) -> None:
        """Keep nothing."""


@dataclass
class TopicPuts:
    """The work of a topic sink: each split is a run, so that its rows are appended once."""

    path: str
    run: str

    def open(self, client: Client) -> None:
        """Take the worker's connection."""
        self._client = client

    def __call__(self, lease: Lease, split: Split) -> list[Any]:
        """Append the rows."""
        table = split.payload.data
        self._client.put(self.path, table, run=f"{self.run}/{split.message.message_id}")
        return [table]

    def close(self) -> None:
        """Keep nothing."""
