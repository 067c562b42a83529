"""Dead rows: what a consumer has committed, and its schema could not decode; kept in a journal beside the topic's.

A topic's dead rows are the journal `<topic>/dead`: the topic's columns, and whose row it was, its offset, and why. What
is known of each consumer that decodes is a row of the table `dead`; all changes of it are here.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidRequest, NotFound
from penstock.ledger.tables import Transaction
from penstock.queue.topics import journal
from penstock.queue.topics.topic import Topic
from penstock.store.database import Reader, Tables
from penstock.wire.actions import RedrivenRows
from penstock.wire.paths import DEAD, Path
from penstock.wire.position import Position
from penstock.wire.read import PayloadSchema

TABLES: Tables = {
    9: """
CREATE TABLE dead(
    path TEXT NOT NULL REFERENCES topics ON DELETE CASCADE, consumer TEXT NOT NULL, journal TEXT NOT NULL,
    decoding TEXT, position TEXT NOT NULL, rows INTEGER NOT NULL DEFAULT 0, redriven INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (path, consumer)
) WITHOUT ROWID;
""",
    14: "ALTER TABLE dead ADD COLUMN answer TEXT;",
}
"""`decoding`: how the consumer decodes, NULL if it doesn't; `position`: rows before it were looked at; `redriven`: the
offset in the dead journal from which on `rows` dead rows of the consumer wait; `answer`: of the last redrive with an
id, beside that and the offset at which it ends."""
KEEP = 30 * 24 * 3600.0
"""Seconds for which dead rows stay."""
ABOUT = pa.schema(
    {"_dead_consumer": pa.string(), "_dead_shard": pa.int32(), "_dead_offset": pa.int64(), "_dead_error": pa.string()}
)
"""The columns of a dead row before those of its topic."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A consumer that decodes, and how far its committed rows were looked at."""

    path: str
    consumer: str
    journal: str
    decoding: PayloadSchema
    position: Position
    committed: Position


def journal_of(path: str) -> str:
    """Return the path of a topic's dead rows."""
    return f"{path}/{DEAD}"


def check_writable(path: Path) -> None:
    """Reject a path that only the server writes to."""
    if path.key.endswith(f"/{DEAD}"):
        raise InvalidRequest(
            f"{path}: a last name {DEAD!r} is for rows that consumers could not decode: choose another"
        )


def schema_of(topic: pa.Schema) -> pa.Schema:
    """Return the columns of the dead rows of a topic, which all may be null as it grows."""
    return pa.schema([*ABOUT, *(field.with_nullable(True) for field in topic)])


def own_schema(schema: pa.Schema) -> pa.Schema:
    """Return the topic's columns of those of its dead rows."""
    return pa.schema([field for field in schema if field.name not in ABOUT.names])


def register(t: Transaction, topic: Topic, consumer: str, decoding: PayloadSchema | None, position: Position) -> None:
    """Note how a consumer decodes from a position on; None if it doesn't. What was looked at before stays."""
    text = None if decoding is None else json.dumps(decoding.to_json())
    known = t.row("SELECT decoding, journal FROM dead WHERE path = ? AND consumer = ?", topic.path, consumer)
    if known is None or known["journal"] != topic.journal:
        if text is not None:
            t.execute("DELETE FROM dead WHERE path = ? AND consumer = ?", topic.path, consumer)
            t.insert(
                "dead", path=topic.path, consumer=consumer, journal=topic.journal, decoding=text,
                position=_text(position),
            )  # fmt: skip
    elif known["decoding"] != text:
        t.execute(
            "UPDATE dead SET decoding = ?, position = ? WHERE path = ? AND consumer = ?",
            text, _text(position), topic.path, consumer,
        )  # fmt: skip


def pending(reader: Reader, path: str | None = None, consumer: str | None = None) -> list[Looked]:
    """Return the consumers that have committed rows which weren't looked at; all, or the one that is named."""
    rows = reader.rows(
        "SELECT dead.*, consumers.position AS committed FROM dead JOIN consumers ON consumers.id = dead.consumer"
        " AND consumers.path = dead.path AND consumers.journal = dead.journal WHERE decoding IS NOT NULL"
        " AND dead.position <> consumers.position AND (?1 IS NULL OR dead.path = ?1 AND consumer = ?2)",
        path, consumer,
    )  # fmt: skip
    return [looked for looked in map(_looked, rows) if _is_behind(looked)]


def advance(t: Transaction, *, looked: Looked, position: Mapping[int, int], rows: int) -> None:
    """Note that rows before a position were looked at, and so many of them are dead."""
    noted = t.execute(
        "UPDATE dead SET position = ?, rows = rows + ?"
        " WHERE path = ? AND consumer = ? AND journal = ? AND position = ?",
        _text(position), rows, looked.path, looked.consumer, looked.journal, _text(looked.position),
    )  # fmt: skip
    if not noted:
        raise NotFound(f"{looked.path}: consumer {looked.consumer[:40]} was forgotten, or looked at by another call")


def counts(reader: Reader, path: str) -> dict[str, int]:
    """Return how many dead rows of each consumer of a topic wait to be redriven."""
    return {row["consumer"]: row["rows"] for row in reader.rows("SELECT * FROM dead WHERE path = ?", path)}


def waiting(reader: Reader, path: str, consumer: str | None) -> tuple[str, int]:
    """Return a consumer with dead rows, and the offset in the dead journal from which on they wait."""
    rows = reader.rows(
        "SELECT consumer, redriven, rows FROM dead WHERE path = ?1 AND (?2 IS NULL AND rows > 0 OR consumer = ?2)",
        path, consumer,
    )  # fmt: skip
    if not rows:
        who = "any consumer" if consumer is None else f"consumer {consumer[:40]}"
        raise NotFound(f"{path} has no dead rows of {who}: penstock ls {journal_of(path)} shows whether there are some")
    if len(rows) > 1:
        names = ", ".join(row["consumer"] for row in rows[:5])
        raise InvalidRequest(f"{path} has dead rows of {len(rows)} consumers: name one of {names}")
    return rows[0]["consumer"], rows[0]["redriven"]


def answered(reader: Reader, path: str, redrive: str | None) -> tuple[RedrivenRows, bool] | None:
    """Return what the redrive with an id has done, and whether that is all; None if it has done nothing."""
    for row in reader.rows("SELECT answer, redriven FROM dead WHERE path = ? AND answer IS NOT NULL", path):
        last = json.loads(row["answer"])
        if last["id"] == redrive:
            return RedrivenRows.from_json(last["answer"]), row["redriven"] >= last["until"]
    return None


def redriven(
    t: Transaction, *, path: str, redrive: str | None, answer: RedrivenRows, end: int, until: int, rows: int
) -> None:
    """Note that dead rows before an offset of the dead journal were redriven, and the answer of that redrive so far,
    which goes on until another offset.
    """
    last = {"id": redrive, "until": until, "answer": answer.to_json()}
    t.execute(
        "UPDATE dead SET redriven = ?, rows = max(0, rows - ?), answer = ? WHERE path = ? AND consumer = ?",
        end, rows, None if redrive is None else json.dumps(last), path, answer.consumer,
    )  # fmt: skip


def floors(reader: Reader, path: str) -> list[Position]:
    """Return the positions from which on live consumers' rows are still to be looked at."""
    rows = reader.rows(
        "SELECT dead.position FROM dead JOIN consumers ON consumers.id = dead.consumer AND consumers.path = dead.path"
        " AND consumers.journal = dead.journal WHERE dead.path = ? AND decoding IS NOT NULL AND state = 'live'",
        path,
    )
    return [_position(row["position"]) for row in rows]


def forget(t: Transaction, path: str) -> None:
    """Remove the dead rows of a topic that is deleted; of a dead journal that is deleted, forget their number."""
    whole, mark, name = path.rpartition("/")
    if mark and name == DEAD:
        t.execute("UPDATE dead SET rows = 0, redriven = 0 WHERE path = ?", whole)
        return
    t.execute("DELETE FROM dead WHERE path = ?", path)
    if journal.find(t, journal_of(path)) is not None:
        journal.remove(t, journal_of(path))


def _looked(row: sqlite3.Row) -> Looked:
    decoding = PayloadSchema.from_json(json.loads(row["decoding"]))
    return Looked(
        row["path"], row["consumer"], row["journal"], decoding, _position(row["position"]), _position(row["committed"])
    )


def _is_behind(looked: Looked) -> bool:
    return any(end > looked.position.get(shard, 0) for shard, end in looked.committed.items())


def _text(position: Mapping[int, int]) -> str:
    return json.dumps(Position(position).to_json())


def _position(text: str) -> Position:
    return Position({int(shard): offset for shard, offset in json.loads(text).items()})


def about(consumer: str, batch: pa.RecordBatch, errors: pa.Array, columns: Sequence[str]) -> pa.RecordBatch:
    """Return dead rows: those of a batch that have an error, with `_shard` and `_offset`, as they are kept."""
    dead = errors.is_valid()
    rows, errors = batch.filter(dead), errors.filter(dead)
    who: Any = pa.repeat(pa.scalar(consumer), rows.num_rows)
    arrays = [who, rows.column("_shard"), rows.column("_offset"), errors, *(rows.column(name) for name in columns)]
    return pa.RecordBatch.from_arrays(arrays, [*ABOUT.names, *columns])
