"""How a topic is made before its first row, and what the same again changes: within a transaction."""

from __future__ import annotations

import math

import pyarrow as pa

from penstock.errors import AlreadyExists, InvalidRequest, SchemaMismatch
from penstock.ledger import opening
from penstock.ledger.transaction import Transaction
from penstock.queue.topics import journal, keys
from penstock.rows import schemas

MOST_SHARDS = 256


def check(
    path: str,
    schema: pa.Schema,
    *,
    shards: int | None,
    key: str | None,
    keep_seconds: float | None,
    keep_bytes: int | None,
) -> None:
    """Refuse what can be no topic."""
    schemas.check_names(schema)
    journal.check_schema(path, schema)
    if key is not None:
        keys.check(path, schema, key)
    if shards is not None and not 1 <= shards <= MOST_SHARDS:
        raise InvalidRequest(f"{path}: expected 1 to {MOST_SHARDS} shards, got {shards}")
    for name, value in (("keep_seconds", keep_seconds), ("keep_bytes", keep_bytes)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InvalidRequest(f"{path}: expected a {name} from 0, got {value}")


def create(
    t: Transaction,
    path: str,
    schema: pa.Schema,
    *,
    shards: int | None,
    key: str | None,
    keep_seconds: float | None,
    keep_bytes: int | None,
    most_datasets: int,
) -> None:
    """An empty topic, or the one that is there, which from now on keeps what is said here of what it keeps."""
    held = journal.schema_at(t, path)
    if held is not None:
        _must_be(t, path, held, schema, key, shards)
        t.sql.execute(
            "UPDATE topics SET keep_seconds = coalesce(?1, keep_seconds), keep_bytes = coalesce(?2, keep_bytes)"
            " WHERE path = ?3",
            (keep_seconds, keep_bytes, path),
        )
        return
    journal.check_path(t, path)
    opening.check_room(t, most_datasets)
    journal.create(
        t, path, schema, shards=shards or (1 if key is None else 4), key=key,
        keep_seconds=journal.KEEP if keep_seconds is None else keep_seconds, keep_bytes=keep_bytes,
    )  # fmt: skip


def _must_be(t: Transaction, path: str, held: pa.Schema, asked: pa.Schema, key: str | None, shards: int | None) -> None:
    """Refuse to take the topic that is there for the one that was asked for, if it is another."""
    has = t.sql.execute(
        "SELECT key, (SELECT count(*) FROM shards WHERE path = ?1) AS shards FROM topics WHERE path = ?1", (path,)
    ).fetchone()
    unlike = []
    if has["key"] != key:
        unlike.append(f"{_named(has['key'])}, asked for {_named(key)}")
    if shards not in (None, has["shards"]):
        unlike.append(f"number of shards {has['shards']}, asked for {shards}")
    if unlike:
        raise AlreadyExists(
            f"{path} exists with {' and '.join(unlike)}: that is how its rows lie, so ask for what is there, or choose "
            "another path"
        )
    _must_have_grown(path, held, asked)


def _must_have_grown(path: str, held: pa.Schema, asked: pa.Schema) -> None:
    """Rows that were put since may have brought columns, and nulls where there were none."""
    try:
        both = schemas.grow(held, asked, path)
    except SchemaMismatch as unlike:
        raise AlreadyExists(f"{path} exists: {unlike}") from unlike
    added = list(both)[len(held) :]
    more = [field for field, has in zip(both, held, strict=False) if not field.equals(has)] + added
    if more:
        raise AlreadyExists(
            f"{path} exists without {', '.join(map(_column, more))}: a put of rows that have it adds it; ask for what "
            "is there"
        )


def _named(key: str | None) -> str:
    return "no key" if key is None else f"key {key[:80]!r}"


def _column(field: pa.Field) -> str:
    return f"{field.name} {field.type}" + (" that may be null" if field.nullable else "")
