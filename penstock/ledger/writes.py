"""Writes and their attempts, from open to finish: the rules, and the rows that follow them."""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from penstock import steps
from penstock.errors import AlreadyExists, InvalidRequest, LimitExceeded, Lost, NotFound, WriteEnded
from penstock.ledger import attempts, parts, runs
from penstock.ledger.attempts import Attempt
from penstock.ledger.tables import Transaction, to_schema
from penstock.rows.schemas import Growth
from penstock.store import payload_table
from penstock.store.database import Reader
from penstock.wire.actions import Summary
from penstock.wire.publish import PublishOptions
from penstock.wire.put import DatasetOptions, Mode, Receipt, Release, State


@dataclass(frozen=True, slots=True)
class Write:
    """All attempts at one path, from open to finish."""

    id: str
    path: str
    mode: Mode
    run: str | None
    state: State
    opener: str
    schema: pa.Schema | None
    opened: float
    touched: float
    chosen: str | None
    """The digest of the finished list of attempts: finish with that list again is the same finish."""
    queue: str | None = None
    """The path of the queue that gets a message for each part at finish."""
    split_rows: int | None = None
    """The rows of one part at most, as it is a split of the queue."""
    release: Release = "finish"
    publish: PublishOptions | None = None
    dataset: DatasetOptions = field(default_factory=DatasetOptions)

    @property
    def keeps_rows(self) -> bool:
        """Whether rows that are at its path stay there, so that its schema has to fit theirs."""
        return self.mode == "append" or self.dataset.partition is not None

    def check_is_open(self, verb: str) -> None:
        """Reject a verb that only an open write takes."""
        if self.state != "open":
            raise WriteEnded(
                f"write/{self.id} to {self.path} is {self.state}: {verb} needs an open write, so open a new one"
            )


_MINTED = re.compile("put-[0-9a-f]{32}")


class Destination(Protocol):
    """What finished writes at one kind of path become; each verb runs within the write's transaction."""

    visible_parts: str
    """The query for the parts on disk that readers see, as NamedPart has them; not those whose loss was accepted."""

    growth: Growth
    """How its schema grows."""

    def schema_at(self, reader: Reader, path: str, /) -> pa.Schema | None:
        """Return the schema at the path, None where nothing is."""
        ...

    def check_write(self, t: Transaction, write: Write, /, *, exists: bool) -> None:
        """Reject a write that may not make or change the path."""
        ...

    def count(self, reader: Reader, /) -> int:
        """Return how many paths of this kind there are."""
        ...

    def record(self, t: Transaction, attempt: Attempt, /) -> None:
        """Note what is this destination's own of a whole attempt."""
        ...

    def is_due(self, t: Transaction, write: Write, attempts: Sequence[str], chosen: str, /) -> bool:
        """Whether a finish may show the attempts; if not, they are noted, and it is called again once it may."""
        ...

    def overwrite(self, t: Transaction, write: Write, /) -> None:
        """Retire what an overwrite replaces; the parts' bytes stay for as long as tickets name them."""
        ...

    def show(self, t: Transaction, write: Write, attempts: Sequence[str], schema: pa.Schema, /) -> None:
        """Make the attempts' parts the end of what is at the write's path."""
        ...

    def disagreements(self, reader: Reader, /) -> list[str]:
        """Describe paths whose rows differ from those of their parts: only damage makes them differ."""
        ...


class WorkQueues(Protocol):
    """What writes with a queue tell it; each verb runs within the write's transaction."""

    def open_write(self, t: Transaction, write: Write, /) -> None:
        """Note the write as one that fills its queue."""
        ...

    def push_parts(self, t: Transaction, write: Write, attempts: Sequence[str], /) -> None:
        """Push a message for each part of these attempts."""
        ...

    def end_write(self, t: Transaction, write: Write, /) -> None:
        """Note that the write has pushed all that it will."""
        ...

    def fail_write(self, t: Transaction, write: Write, cause: str, /) -> None:
        """Note that the write will push nothing, and that its queue isn't what it should be."""
        ...

    def forget_write(self, t: Transaction, write: Write, /) -> None:
        """Note that the write will push nothing, as another one of its run has done it."""
        ...

    def take_receipts(self, t: Transaction, path: str, /) -> list[str]:
        """Return the attempts that the messages of a queue name, and note these as done."""
        ...

    def names_payload(self, reader: Reader, key: str, /) -> bool:
        """Whether a message that isn't done names a payload."""
        ...

    def disagreements(self, reader: Reader, /) -> list[str]:
        """Describe queues whose counts differ from those of their messages: only damage makes them differ."""
        ...


# --- what is known -------------------------------------------------------------------------


def by_id(reader: Reader, write_id: str) -> Write:
    """Return a write by its id."""
    row = reader.row(
        "SELECT writes.*, ipc FROM writes LEFT JOIN schemas ON schemas.id = writes.schema WHERE writes.id = ?", write_id
    )
    if row is None:
        raise _no_write(write_id)
    return Write(
        row["id"], row["path"], row["mode"], row["run"], row["state"], row["opener"],
        to_schema(row["ipc"]) if row["ipc"] else None, row["opened"], row["touched"], row["chosen"],
        row["queue"], row["split_rows"], row["release"], _publish_options(row), _dataset_options(row),
    )  # fmt: skip


def _publish_options(row: sqlite3.Row) -> PublishOptions | None:
    return None if row["publish"] is None else PublishOptions.from_json(json.loads(row["publish"]))


def _dataset_options(row: sqlite3.Row) -> DatasetOptions:
    return DatasetOptions() if row["dataset"] is None else DatasetOptions.from_json(json.loads(row["dataset"]))


_SUMMARIES = (
    "SELECT id AS write, path, mode, state, run, opened, touched, rows, bytes, parts,"
    " (SELECT count(*) FROM attempts WHERE attempts.write = writes.id) AS attempts,"
    " (SELECT published FROM publications WHERE publications.write = writes.id) AS published,"
    " (SELECT text FROM publications WHERE publications.write = writes.id) AS failed,"
    " (SELECT sum(before.rows - before.published) FROM publications JOIN publications AS before"
    " ON before.path = publications.path AND before.number < publications.number AND before.code IS NULL"
    " WHERE publications.write = writes.id) AS ahead FROM writes"
)
IS_PUBLISHED = "EXISTS (SELECT 1 FROM publications WHERE publications.write = writes.id)"
"""The condition that a finish has named what is published of a write: it neither expires nor ends by its driver."""


def summary(reader: Reader, write_id: str) -> Summary:
    """Return a write's state and counts."""
    row = reader.row(f"{_SUMMARIES} WHERE id = ?", write_id)
    if row is None:
        raise _no_write(write_id)
    return Summary(**dict(row))


def open_writes(reader: Reader) -> list[Summary]:
    """Return the open writes, the latest first."""
    return [Summary(**dict(row)) for row in reader.rows(f"{_SUMMARIES} WHERE state = 'open' ORDER BY opened DESC")]


def signs_of_life(reader: Reader) -> list[tuple[str, float]]:
    """Return the open writes with a queue, each with the time of its driver's or its puts' last sign of life."""
    return [tuple(row) for row in reader.rows("SELECT id, touched FROM writes WHERE state = 'open' AND queue <> ''")]


# --- what changes --------------------------------------------------------------------------


def begin(t: Transaction, new: Write, *, own: bool) -> Write:
    """Note a new write, if its path is free for its mode and its schema fits."""
    destination = t.ledger.destination(new.path)
    current = destination.schema_at(t, new.path)
    destination.check_write(t, new, exists=current is not None)
    if current is None:
        check_room(t)
    if new.schema is not None:
        kept = current if new.keeps_rows else None
        new = replace(new, schema=destination.growth.fit(kept, new.schema, new.path))
    add(t, new, own=own)
    if new.queue is not None:
        if not new.path.startswith("store/"):
            raise InvalidRequest(
                f"{new.path} can't be written with queue={new.queue!r}: only a dataset's parts are splits, so write to "
                "store/…"
            )
        t.ledger.queues.open_write(t, new)
    return new


def add(
    t: Transaction,
    new: Write,
    *,
    own: bool,
    brief: bool = False,
    rows: int = 0,
    bytes: int = 0,
) -> None:
    """Add a write's row."""
    t.insert(
        "writes", id=new.id, path=new.path, mode=new.mode, run=new.run, state=new.state, opener=new.opener,
        schema=t.schema_id(new.schema), opened=new.opened, touched=new.touched, own=own, brief=brief,
        rows=rows, bytes=bytes, queue=new.queue, split_rows=new.split_rows,
        release=new.release, publish=None if new.publish is None else json.dumps(new.publish.to_json()),
        dataset=None if new.dataset == DatasetOptions() else json.dumps(new.dataset.to_json()),
    )  # fmt: skip


def join(  # noqa: PLR0913  # what may be said of a write
    t: Transaction,
    known: sqlite3.Row,
    *,
    mode: Mode,
    own: bool,
    queue: str | None = None,
    split_rows: int | None = None,
    release: Release = "finish",
    publish: PublishOptions | None = None,
    dataset: DatasetOptions,
) -> Write:
    """Continue the write of a run as its last opener; a finished one stays as it is."""
    if known["mode"] != mode:
        raise InvalidRequest(
            f"run {known['run']!r} of {known['path']} was opened with mode {known['mode']!r}, now with {mode!r}: "
            "use that mode, or another run"
        )
    before, now = (known["queue"], known["split_rows"], known["release"]), (queue, split_rows, release)
    if before != now:
        raise InvalidRequest(
            f"run {known['run']!r} of {known['path']} was opened {_splits(*before)}, now {_splits(*now)}: use the "
            "same, or another run"
        )
    first, wanted = _publish_options(known) or PublishOptions(), publish or PublishOptions()
    if replace(first, schema=None) != replace(wanted, schema=None):  # the first one's stays
        raise InvalidRequest(
            f"run {known['run']!r} of {known['path']} was opened with {first}, now with {wanted}: use the same, or "
            "another run"
        )
    if _dataset_options(known) != dataset:
        raise InvalidRequest(
            f"run {known['run']!r} of {known['path']} was opened with {_dataset_options(known)}, now with {dataset}: "
            "use the same, or another run"
        )
    if known["state"] == "open" and bool(known["own"]) != own:
        kind = ("a write of many attempts", "one put")[known["own"]]
        raise AlreadyExists(f"run {known['run']!r} of {known['path']} is open as {kind}: use another run")
    t.execute(
        "UPDATE writes SET opener = ?, touched = ? WHERE id = ? AND state = 'open'",
        uuid.uuid4().hex, t.now, known["id"],
    )  # fmt: skip
    joined = by_id(t, known["id"])
    return replace(joined, opener="") if own else joined


def _splits(queue: str | None, split_rows: int | None, release: Release) -> str:
    rows = "" if split_rows is None else f", split_rows={split_rows}"
    return f"with {queue or 'no queue'}{rows}" + ("" if release == "finish" else f", release={release!r}")


def touch(t: Transaction, write_id: str, verb: str = "a put") -> Write:
    """Keep an open write from expiring: it is being put to, or its driver lives."""
    touched = by_id(t, write_id)
    touched.check_is_open(verb)
    t.execute("UPDATE writes SET touched = ? WHERE id = ?", t.now, write_id)
    return touched


def record(t: Transaction, write_id: str, attempt: Attempt) -> Receipt:
    """Record an attempt and its parts, whole and unseen; a repeated one gets its first receipt."""
    to = by_id(t, write_id)
    to.check_is_open("a put")
    new, known = attempt.receipt(write_id), attempts.receipt_of(t, write_id, attempt.id)
    if known is not None:
        attempts.check_same_rows(known, new)
        return known
    destination = t.ledger.destination(to.path)
    merged_schema(t, to, destination.schema_at(t, to.path), [attempt.schema])
    attempts.add(t, new, attempt.schema)
    parts.add(t, attempt.parts, attempt=attempt.id, schema=attempt.schema, partition=to.dataset.partition)
    destination.record(t, attempt)
    t.execute(
        "UPDATE writes SET touched = ?, rows = rows + ?, bytes = bytes + ?, parts = parts + ? WHERE id = ?",
        t.now, new.rows, new.bytes, new.parts, write_id,
    )  # fmt: skip
    return new


def finish(
    t: Transaction, write_id: str, listed: Sequence[str], *, run: str | None = None, receipts: str | None = None
) -> Summary:
    """Make exactly these attempts what is at the write's path, or add them to it; see `Ledger.finish`."""
    finished = by_id(t, write_id)
    if receipts is not None:
        taken = _take_receipts(t, finished, receipts)
        if finished.state == "finished":
            return summary(t, write_id)
        listed = [*listed, *taken]
    listed = list(dict.fromkeys(listed))
    chosen = attempts.digest_of(sorted(listed))
    if finished.state == "finished":
        if finished.chosen != chosen:
            raise WriteEnded(f"write/{write_id} to {finished.path} is finished with another list of attempts")
        return summary(t, write_id)
    if run is not None and run != finished.run:
        known = _take_run(t, finished, run)
        if known is not None:
            return summary(t, known)
    finished.check_is_open("finish")
    destination = t.ledger.destination(finished.path)
    current = destination.schema_at(t, finished.path)  # 1.
    destination.check_write(t, finished, exists=current is not None)
    schema = merged_schema(t, finished, current, [_schema_of_whole(t, finished, attempt) for attempt in listed])
    steps.passed("finish.checked")
    if destination.is_due(t, finished, listed, chosen):
        if finished.mode == "overwrite" and current is not None:
            destination.overwrite(t, finished)  # 2.
        destination.show(t, finished, listed, schema)  # 3.
        t.sql.executemany("UPDATE attempts SET chosen = 1 WHERE id = ?", [(attempt,) for attempt in listed])
        steps.passed("finish.shown")
        _push(t, finished, listed)
        end(t, write_id, "finished", chosen)  # 4.
    return summary(t, write_id)


def _push(t: Transaction, finished: Write, listed: Sequence[str]) -> None:
    """Push messages for the parts of a write with a queue."""
    if finished.queue is not None:
        if finished.release == "finish":
            t.ledger.queues.push_parts(t, finished, listed)
        t.ledger.queues.end_write(t, finished)
        steps.passed("finish.pushed")


def _take_receipts(t: Transaction, taking: Write, path: str) -> list[str]:
    """Return the attempts of a queue's receipts; a finished write has taken its own, and takes no others."""
    taken = t.ledger.queues.take_receipts(t, path)
    if taken and taking.state == "finished":
        raise WriteEnded(
            f"write/{taking.id} to {taking.path} is finished, and {path} has {len(taken)} receipts that came later: "
            "finish the write that they are of"
        )
    return taken


def _take_run(t: Transaction, taking: Write, run: str) -> str | None:
    """Give the write this run's name; if another write has it, end this one and return that one's id."""
    known = runs.write_of(t, taking.path, run)
    if known is None:
        if taking.state == "open":
            t.execute("UPDATE writes SET run = ? WHERE id = ?", run, taking.id)
        return None
    if known["state"] == "open" and not _is_published(t, known["id"]):
        raise AlreadyExists(
            f"run {run!r} of {taking.path} is open as write/{known['id']}: finish that one, or abort it"
        )
    resume_publication(t, known["id"])
    if taking.state == "open":
        if taking.queue is not None:
            t.ledger.queues.forget_write(t, taking)
        end(t, taking.id, "aborted")
    return str(known["id"])


def abort(t: Transaction, write_id: str, *, opener: str | None = None) -> Summary:
    """Abort a write, which then shows nothing; a second time does nothing. With `opener`, only the last one may."""
    aborted = by_id(t, write_id)
    if aborted.state == "finished":
        raise WriteEnded(f"write/{write_id} to {aborted.path} is finished: it can't be aborted any more")
    if aborted.state == "open":
        if opener not in (None, aborted.opener):
            raise WriteEnded(
                f"write/{write_id} to {aborted.path} was joined by a later opener: only that one may abort it"
            )
        if opener is not None and _goes_on(t, aborted):
            raise WriteEnded(
                f"write/{write_id} to {aborted.path} is being published: finish it again, or give up what Pub/Sub "
                f"doesn't have yet: penstock rm write/{write_id}"
            )
        _fail_queue(t, aborted, "was aborted")
        end(t, write_id, "aborted")
    return summary(t, write_id)


def fail(t: Transaction, write_id: str, cause: str) -> None:
    """End a write whose rows aren't what its queue's workers were given, and tell the queue why."""
    _fail_queue(t, by_id(t, write_id), cause)
    end(t, write_id, "aborted")


def end(t: Transaction, write_id: str, state: State, chosen: str | None = None) -> None:
    """Put a write into its last state, and retire the parts that it recorded and does not show."""
    t.execute(
        "UPDATE parts SET state = 'retired', free_at = ? WHERE state = 'whole'"
        " AND attempt IN (SELECT id FROM attempts WHERE write = ?)",
        t.now, write_id,
    )  # fmt: skip
    t.execute("DELETE FROM attempts WHERE write = ? AND NOT chosen", write_id)
    published = t.rows("DELETE FROM publications WHERE write = ? RETURNING published", write_id)
    t.execute(
        "UPDATE writes SET (rows, bytes, parts) = (SELECT coalesce(sum(rows), 0), coalesce(sum(bytes), 0),"
        " coalesce(sum(parts), 0) FROM attempts WHERE write = ?1), state = ?2, chosen = ?3, touched = ?4"
        " WHERE id = ?1",
        write_id, state, chosen, t.now,
    )  # fmt: skip
    for row in published:  # what is published stays so, whatever becomes of the write
        t.execute("UPDATE writes SET rows = ? WHERE id = ?", row["published"], write_id)


def end_where(t: Transaction, condition: str, *arguments: object, state: State) -> list[str]:
    """End the open writes of a condition, and return their ids."""
    rows = t.rows(f"SELECT id FROM writes WHERE state = 'open' AND {condition}", *arguments)  # noqa: S608  # our own text
    for row in rows:
        _fail_queue(t, by_id(t, row["id"]), f"was {state}: nobody has put to it or finished it for too long")
        end(t, row["id"], state)
    return [row["id"] for row in rows]


def is_minted(run: str | None) -> bool:
    """Whether a client has minted the run for one put, which nobody else goes on with."""
    return run is None or _MINTED.fullmatch(run) is not None


def resume_publication(t: Transaction, write_id: str) -> None:
    """Let what has failed to be published be tried again."""
    t.execute("UPDATE publications SET code = NULL, text = NULL WHERE write = ?", write_id)


def _goes_on(reader: Reader, write: Write) -> bool:
    """Whether a write is published to its end: one that has failed is not, if nobody can finish it again."""
    row = reader.row("SELECT code FROM publications WHERE write = ?", write.id)
    return row is not None and (row["code"] is None or not is_minted(write.run))


def _is_published(reader: Reader, write_id: str) -> bool:
    return reader.row("SELECT 1 FROM publications WHERE write = ?", write_id) is not None


def _fail_queue(t: Transaction, ended: Write, cause: str) -> None:
    """Tell the queue of a write that ends without its rows."""
    if ended.queue is not None:
        t.ledger.queues.fail_write(t, ended, cause)


# --- the rules -----------------------------------------------------------------------------


def merged_schema(t: Transaction, merging: Write, current: pa.Schema | None, schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the schema after the write: of what is there, then what was announced, then what the attempts have.

    Attempts are taken by their number of columns, so that their order in the list changes nothing.
    """
    kept = current if merging.keeps_rows else None
    known = [schema for schema in (kept, merging.schema, *sorted(schemas, key=len)) if schema is not None]
    if not known:
        raise InvalidRequest(
            f"write/{merging.id} has no attempt, and {merging.path} is new: name the columns of an empty dataset "
            "(the schema of write.open)"
        )
    growth, schema = t.ledger.destination(merging.path).growth, known[0]
    for other in known[1:]:
        schema = growth.merge(schema, other, merging.path, widens=kept is None)
    return schema


def check_room(t: Transaction, *, new: int = 1) -> None:
    """Reject one dataset, topic or payload too many."""
    number = sum(destination.count(t) for destination in t.ledger.destinations.values()) + payload_table.count(t)
    if number + new > t.ledger.most_paths:
        most = f"{t.ledger.most_paths:,} datasets, topics and payloads"
        raise LimitExceeded(f"the server takes {most} (serve --limit datasets=…): delete some")


def _schema_of_whole(t: Transaction, finishing: Write, attempt: str) -> pa.Schema:
    row = t.row(
        "SELECT ipc FROM attempts JOIN schemas ON schemas.id = attempts.schema"
        " WHERE attempts.id = ? AND attempts.write = ?",
        attempt, finishing.id,
    )  # fmt: skip
    if row is None:
        raise NotFound(
            f"write/{finishing.id} to {finishing.path} has no whole attempt {attempt[:40]!r}: "
            "list what the receipts say, and only that"
        )
    if parts.are_lost_of_attempt(t, attempt):
        raise Lost(
            f"write/{finishing.id} to {finishing.path} can't be finished: some of its rows were in the memory of a "
            "process that has ended. Write them again"
        )
    return to_schema(row["ipc"])


def _no_write(write_id: str) -> NotFound:
    return NotFound(f"no write/{write_id[:40]}: penstock ls write shows the open ones")
