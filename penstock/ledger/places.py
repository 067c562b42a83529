"""What stands at a write's path: a dataset, or a topic. Within a transaction."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.ledger import datasets
from penstock.ledger.transaction import Transaction
from penstock.ledger.writes import Write
from penstock.queue.topics import journal
from penstock.wire.paths import is_topic


def schema_at(t: Transaction, path: str) -> pa.Schema | None:
    """The schema of what stands there; None where nothing does."""
    return journal.schema_at(t, path) if is_topic(path) else datasets.schema_at(t, path)


def check(t: Transaction, write: Write, *, exists: bool) -> None:
    """Whether the write may make or change it."""
    if not is_topic(write.path):
        datasets.check_path(t, write, exists=exists)
    elif not exists:
        journal.check_path(t, write.path)


def show(t: Transaction, write: Write, attempts: Sequence[str], schema: pa.Schema) -> None:
    """The parts of these attempts become its end."""
    (journal if is_topic(write.path) else datasets).show(t, write.path, attempts, schema)
