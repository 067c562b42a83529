"""Evaluations of the partitions of a write that releases each once it is whole: the first one's rows are given away.

Spark computes a partition again after a failure, or twice by speculation, or several in one task. An evaluation is
known by its stage, its partition and its number within the task; whenever it is computed it has to bring the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock import steps
from penstock.errors import Internal
from penstock.ledger import attempts, parts, writes
from penstock.ledger.attempts import Attempt
from penstock.ledger.tables import Transaction
from penstock.store.database import Reader
from penstock.wire.put import Receipt, SparkTask


def first_released(reader: Reader, write_id: str, task: SparkTask) -> str | None:
    """Return the attempt that released the evaluation that a task is at; None without one."""
    row = reader.row(
        "SELECT attempt FROM evaluations WHERE write = ? AND stage = ? AND partition = ? AND number = ? AND released",
        write_id, task.stage, task.partition, _number(reader, write_id, task),
    )  # fmt: skip
    return None if row is None else row["attempt"]


def release(t: Transaction, write_id: str, attempt: Attempt, task: SparkTask) -> Receipt | None:
    """Record the first whole attempt of an evaluation, and push its parts; None if another one was before it."""
    known = attempts.receipt_of(t, write_id, attempt.id)
    if known is not None:
        return known
    if first_released(t, write_id, task) is not None:
        return None
    receipt = writes.record(t, write_id, attempt)
    _add(t, write_id, attempt.id, task, released=True)
    parts.hold(t, parts.names_of_attempt(t, attempt.id))
    t.ledger.queues.push_parts(t, writes.by_id(t, write_id), [attempt.id])
    steps.passed("release.pushed")
    return receipt


def compared(t: Transaction, write_id: str, attempt: str, task: SparkTask, *, first: str, same: bool) -> Receipt:
    """Note a later attempt of a released evaluation, and return the first one's receipt."""
    writes.touch(t, write_id)
    if t.row("SELECT 1 FROM evaluations WHERE write = ? AND attempt = ?", write_id, attempt) is None:
        _add(t, write_id, attempt, task, released=False)
    if not same:
        t.execute(
            "UPDATE writes SET differs = ? WHERE id = ? AND differs IS NULL",
            f"computed partition {task.partition} of stage {task.stage} again with other rows", write_id,
        )  # fmt: skip
    receipt = attempts.receipt_of(t, write_id, first)
    if receipt is None:
        raise Internal(f"write/{write_id} has released attempt {first}, and has no receipt of it")
    return receipt


def difference(t: Transaction, write_id: str, listed: Sequence[str]) -> str | None:
    """Return how the rows that an open write has released differ from those of these attempts; None if they don't."""
    write = writes.by_id(t, write_id)
    if write.release == "finish" or write.state != "open":
        return None
    differs = t.rows("SELECT differs FROM writes WHERE id = ?", write_id)[0]["differs"]
    query = "SELECT attempt FROM evaluations WHERE write = ? AND released"
    released = {row["attempt"] for row in t.rows(query, write_id)}
    others = [attempt for attempt in released ^ set(listed) if parts.names_of_attempt(t, attempt)]
    if differs is None and others:
        differs = f"released {len(released):,} partitions, of which the driver's receipts don't name the same"
    if differs is None:
        return None
    return (
        f"{differs}: workers of {write.queue} have rows that may be too many or too few. Discard what was made of "
        f"write/{write_id}, whose id begins its messages' ids, and write again with release='finish', or "
        "a frame of which each evaluation is the same"
    )


def _number(reader: Reader, write_id: str, task: SparkTask) -> int:
    """Return how many evaluations a task has ended: it has one after the other."""
    query = "SELECT count(*) AS number FROM evaluations WHERE write = ? AND task = ?"
    return int(reader.rows(query, write_id, task.attempt)[0]["number"])


def _add(t: Transaction, write_id: str, attempt: str, task: SparkTask, *, released: bool) -> None:
    t.insert(
        "evaluations", write=write_id, attempt=attempt, stage=task.stage, partition=task.partition, task=task.attempt,
        number=_number(t, write_id, task), released=released,
    )  # fmt: skip
