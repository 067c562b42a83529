"""A ledger alone, and writes for it that have no bytes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import NotFound
from penstock.ledger import jobs, tables
from penstock.ledger.attempts import Attempt
from penstock.ledger.ledger import Ledger
from penstock.store import payload_table
from penstock.store.database import Database
from penstock.store.medium import Part
from tests.kit.clock import Clock

PATH = "store/demo/trips"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("fare", pa.float64())])
WIDER = SCHEMA.append(pa.field("tip", pa.float64()))
OTHER = pa.schema([("id", pa.string())])


@pytest.fixture
def reopen(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., Ledger]]:
    """Open the ledger as a process that has just started does."""
    with ExitStack() as stack:

        def start(incarnation: str = "") -> Ledger:
            database = stack.enter_context(
                closing(Database(tmp_path / "ledger.db", tables.TABLES, jobs.TABLES, payload_table.TABLES))
            )
            return Ledger(database, incarnation=incarnation, now=clock.now)

        yield start


@pytest.fixture
def ledger(reopen: Callable[..., Ledger]) -> Ledger:
    return reopen()


def make_attempt(*rows: int, schema: pa.Schema = SCHEMA) -> Attempt:
    """Return a whole attempt with parts of so many rows."""
    name = uuid.uuid4().hex
    parts = tuple(Part(f"{name}-{number}", n, n * 10, f"d-{name}-{number}") for number, n in enumerate(rows))
    return Attempt(name, schema, sum(rows), parts)


def part_names(*attempts: Attempt) -> list[str]:
    return [part.name for each in attempts for part in each.parts]


def visible_parts(ledger: Ledger, path: str = PATH) -> list[str]:
    """Return the parts that a reader gets, in order; none where there is no dataset."""
    try:
        return [laid.part for laid in ledger.snapshot(path, ticketed_until=0)[1]]
    except NotFound:
        return []


def finish_write(ledger: Ledger, *attempts: Attempt, path: str = PATH, mode: str = "error") -> str:
    """Finish a write of these attempts, and return its id."""
    write = ledger.open_write(path, mode=mode, schema=SCHEMA).id  # type: ignore[arg-type]
    for each in attempts:
        ledger.record(write, each)
    ledger.finish(write, [each.id for each in attempts])
    return write
