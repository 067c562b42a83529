"""The rows of messages, from push to done or dead; each function is a part of one transaction.

A message that isn't done names its payload: the part of a dataset stays for as long as one does.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from json.encoder import encode_basestring_ascii

from penstock import steps
from penstock.errors import AlreadyExists, InvalidRequest, LeaseLost, LimitExceeded, PenstockError
from penstock.ledger import jobs, parts, payloads
from penstock.ledger.tables import Transaction
from penstock.queue.work import queues
from penstock.queue.work.lease_queue import MOST_TRIES, Forward, Lease, NewMessage
from penstock.store.database import Reader, Tables
from penstock.wire.message import QueueMessage
from penstock.wire.queue import Failure, LeaseKey, LeaseOutcome

TABLES: Tables = {
    6: """
CREATE TABLE messages(
    id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, message_id TEXT NOT NULL, split_id TEXT NOT NULL,
    payload_key TEXT NOT NULL, metadata TEXT NOT NULL, timestamp REAL NOT NULL, bytes INTEGER NOT NULL, part TEXT,
    pushed REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delayed', 'claimed', 'done', 'dead')),
    tries INTEGER NOT NULL DEFAULT 0, token TEXT, claim TEXT, worker TEXT, forwarded INTEGER NOT NULL DEFAULT 0,
    failure TEXT, ended REAL,
    UNIQUE(queue, message_id)
);
CREATE INDEX messages_to_claim ON messages(queue, id) WHERE state = 'pending';
CREATE INDEX messages_in_memory ON messages(id) WHERE state IN ('claimed', 'delayed');
CREATE INDEX messages_dead ON messages(queue, id) WHERE state = 'dead';
CREATE INDEX messages_to_prune ON messages(ended) WHERE state = 'done';
CREATE INDEX messages_of_payload ON messages(payload_key) WHERE state <> 'done' AND payload_key <> '';
""",
    11: "UPDATE parts SET pinned = 1 WHERE name IN (SELECT part FROM messages);",
}
"""`delayed`: pending, and not to be claimed before a time that is in memory. `token`: of the last claim, and of the
lease that ended it. `part`: has the payload's bytes, where the payload is a part of a dataset. `failure`: the last."""

GRACE = 3600.0
"""Seconds for which a done message is known: so long a repeated ack gets its answer, and a repeated push adds none."""
MOST_RECORD = 1_000_000
"""Bytes of a message on a topic: Kafka's brokers and producers take 1 MiB for a record, unless told otherwise."""
_SOME = 10_000  # messages of one transaction
_as_json = json.JSONEncoder(allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message as it is seen without a lease."""

    message: QueueMessage
    bytes: int
    state: str
    tries: int
    worker: str | None
    """Of the last claim."""
    failure: Failure | None
    """The last one."""
    ended: float | None
    """When it was set aside."""


@dataclass(frozen=True, slots=True)
class Row:
    """A message on its way into the table, with what needs no transaction done."""

    queue: str
    message_id: str
    columns: tuple[object, ...]
    text: int
    """Characters of its ids and metadata, as JSON has them."""
    metadata: str
    """As JSON; one of `columns`, too."""
    payload_key: str
    bytes: int

    @classmethod
    def of(cls, new: NewMessage) -> Row:
        """Return the row of a message."""
        message = new.message
        if not message.message_id:
            raise InvalidRequest(f"a message for {new.queue} has no message_id: expected a name unique in its queue")
        try:
            metadata = _as_json(message.metadata)
        except (TypeError, ValueError, RecursionError) as broken:
            raise InvalidRequest(
                f"message {message.message_id} has metadata that JSON can't hold: {broken}"
            ) from broken
        columns = (message.message_id, message.split_id, message.payload_key, metadata, message.timestamp, new.bytes)
        ids = message.message_id, message.split_id, message.payload_key
        text = len(metadata) + sum(map(len, map(encode_basestring_ascii, ids)))
        return cls(new.queue, message.message_id, columns, text, metadata, message.payload_key, new.bytes)


@dataclass(frozen=True, slots=True)
class FullPartitions:
    """Partitions of a queue's topic of which only one message each may be claimed, as so much is done beyond it."""

    numbers: Sequence[int]
    firsts: Sequence[int]
    """The rows of these messages."""


# --- claim ---------------------------------------------------------------------------------

_OF_LEASE = "id, message_id, split_id, payload_key, metadata, timestamp, bytes, part, tries, token"
_CLAIM = (
    "UPDATE messages SET state = 'claimed', tries = tries + 1, token = ?1 || id, claim = ?2, worker = ?3 WHERE id IN"  # noqa: S608  # our own names
    " (SELECT id FROM messages WHERE queue = ?4 AND state = 'pending'%s ORDER BY id LIMIT ?5)"
    f" RETURNING {_OF_LEASE}"
)
_CLAIM_ANY = _CLAIM % ""
_CLAIM_BUT_FULL = (
    _CLAIM % " AND (id IN (SELECT value FROM json_each(?6)) OR partition NOT IN (SELECT value FROM json_each(?7)))"
)
"""Not of a partition yet: it may become a record of a full one."""


def claim(
    t: Transaction, queue: sqlite3.Row, claim_id: str, worker: str, most: int, prefix: str, full: FullPartitions | None
) -> list[sqlite3.Row]:
    """Lease the oldest pending messages; the token of each is the prefix and its id."""
    parameters = (prefix, claim_id, worker, queue["id"], most)
    if full is None:
        rows = t.rows(_CLAIM_ANY, *parameters)
    else:
        rows = t.rows(_CLAIM_BUT_FULL, *parameters, json.dumps(full.firsts), json.dumps(full.numbers))
    if rows:
        queues.count(t, queue["id"], claimed=len(rows))  # settles nothing: these were pending
    return sorted(rows, key=lambda row: int(row["id"]))


def claimed(t: Transaction, queue: int, tokens: Iterable[str]) -> list[sqlite3.Row]:
    """Return the messages of an earlier claim that still have its tokens."""
    query = f"SELECT {_OF_LEASE} FROM messages WHERE id = ? AND token = ? AND queue = ? AND state = 'claimed'"  # noqa: S608  # our own names
    rows = (t.row(query, id_of(token), token, queue) for token in tokens)
    return [row for row in rows if row is not None]


def leases_of(reader: Reader, path: str, worker: str) -> list[LeaseKey]:
    """Return the leases that a worker has of a queue."""
    rows = reader.rows(
        "SELECT message_id, token FROM messages WHERE state IN ('claimed', 'delayed') AND state = 'claimed'"
        " AND worker = ? AND queue = ?",
        worker, queues.by_path(reader, path)["id"],
    )  # fmt: skip
    return [LeaseKey(path, row["message_id"], row["token"]) for row in rows]


def id_of(token: str) -> int:
    """Return the id of the row that a token of ours belongs to."""
    return int(token.rpartition(".")[2])


def to_lease(path: str, row: sqlite3.Row) -> Lease:
    """Return a claimed row as a lease."""
    return Lease(
        LeaseKey(path, row["message_id"], row["token"]), to_message(row), row["tries"], row["bytes"], row["part"]
    )


def to_message(row: sqlite3.Row) -> QueueMessage:
    """Return the message of a row."""
    return QueueMessage(
        row["message_id"], row["split_id"], row["payload_key"], json.loads(row["metadata"]), row["timestamp"]
    )


# --- push, and the ends of leases ----------------------------------------------------------

_DONE = LeaseOutcome("done")


Bind = Callable[[int, Transaction], None]
"""Stores the payloads of the outputs of one Forward, by its index, in the transaction that pushes them."""


class Settling:
    """What one transaction pushes, and does to leased messages; `finish` adds it up in the queues' counts."""

    def __init__(self, t: Transaction, is_live: Callable[[str], bool] = lambda token: False) -> None:
        self.ended: list[str] = []
        """The tokens of leases that are over once the transaction is durable."""
        self.delayed: list[LeaseKey] = []
        """Those of them whose messages are to be pending later."""
        self._t = t
        self._is_live = is_live
        self._ids: dict[str, int | None] = {}
        self._filled: dict[tuple[str, str], tuple[int, bool, bool]] = {}
        self._counts: dict[int, dict[str, int]] = {}
        self._freed: list[tuple[str, str | None]] = []

    def push(self, rows: Sequence[Row], upstream: str) -> int:
        """Make messages pending, and return how many of them are new."""
        if len(rows) == 1:
            return self._push_to(rows[0].queue, rows, upstream)
        by_queue = groupby(sorted(rows, key=_queue_of), _queue_of)
        return sum(self._push_to(path, list(some), upstream) for path, some in by_queue)

    def _push_to(self, path: str, rows: Sequence[Row], upstream: str) -> int:
        queue, is_ended, is_on_topic = self._fill(path, upstream)
        names_parts = any("@" in row.payload_key for row in rows)
        last = 0
        if names_parts or len(rows) > 1:  # which are new has to be known
            last = self._t.rows("SELECT max(id) AS id FROM messages")[0]["id"] or 0
        number = self._t.sql.executemany(
            "INSERT INTO messages(queue, pushed, unsent, message_id, split_id, payload_key, metadata, timestamp, bytes)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(queue, message_id) DO NOTHING",
            [(queue, self._t.now, is_on_topic, *row.columns) for row in rows],
        ).rowcount
        if not number:
            return 0
        if is_ended:
            raise InvalidRequest(f"{path} is finished, so clients push no more to it: use another queue")
        if names_parts:
            _hold_parts(self._t, queue, last)
        if number == len(rows):
            size = sum(row.bytes for row in rows)
        else:
            query = "SELECT sum(bytes) AS bytes FROM messages WHERE id > ? AND queue = ?"
            size = self._t.rows(query, last, queue)[0]["bytes"]
        self._count(queue, pushed=number, bytes=size)
        return number

    def check_sizes(self, rows: Iterable[Row]) -> None:
        """Refuse messages that are too large to be records, where their queue has a topic."""
        for row in rows:
            if row.text > MOST_RECORD and self._t.row(
                "SELECT 1 FROM queues WHERE path = ? AND topic IS NOT NULL", row.queue
            ):
                raise LimitExceeded(
                    f"{row.queue}: message {row.message_id[:80]} has {row.text:,} bytes of ids and metadata, and a "
                    f"queue on Kafka takes {MOST_RECORD:,}: put what is large into its payload"
                )

    def _fill(self, path: str, upstream: str) -> tuple[int, bool, bool]:
        """Return a queue's id, made if it is new, whether this upstream's clients have finished it, and whether it has
        a topic.
        """
        known = self._filled.get((path, upstream))
        if known is not None:
            return known
        row = self._t.row(
            "SELECT id, topic, (SELECT state FROM upstreams WHERE queue = id AND upstream = ?) AS upstream"
            " FROM queues WHERE path = ?",
            upstream, path,
        )  # fmt: skip
        if row is None or row["upstream"] is None:
            queues.add_upstream(self._t, path, upstream)
            made = queues.by_path(self._t, path)
            filled = (int(made["id"]), False, made["topic"] is not None)
        else:
            is_ended = upstream == queues.CLIENTS and row["upstream"] != "open"
            filled = (int(row["id"]), is_ended, row["topic"] is not None)
        self._filled[path, upstream] = filled
        return filled

    def find(self, key: LeaseKey) -> sqlite3.Row | None:
        """Return the row of a lease's message, whatever its state."""
        if key.queue not in self._ids:
            row = self._t.row("SELECT id FROM queues WHERE path = ?", key.queue)
            self._ids[key.queue] = None if row is None else row["id"]
        return self._t.row(
            "SELECT id, queue, state, token, tries, worker, payload_key, part, bytes, forwarded, metadata FROM messages"
            " WHERE queue = ? AND message_id = ?",
            self._ids[key.queue], key.message_id,
        )  # fmt: skip

    def is_held(self, row: sqlite3.Row | None, key: LeaseKey) -> bool:
        """Whether the lease lasts: it has the message's token, and its deadline hasn't come."""
        return row is not None and row["state"] == "claimed" and row["token"] == key.token and self._is_live(key.token)

    def ack(self, key: LeaseKey) -> LeaseOutcome:
        """Note a message as done."""
        row = self.find(key)
        if row is not None and self.is_held(row, key):
            self.end(row, forwarded=False)
            return _DONE
        return _DONE if _was_ended_by(row, key, "done") else lost(key, row)

    def forward(self, forward: Forward, rows: Sequence[Row], bind: Callable[[Transaction], None]) -> LeaseOutcome:
        """Push what was made of messages, then note these as done."""
        held = [(key, self.find(key)) for key in forward.leases]
        for key, row in held:
            if not self.is_held(row, key):
                return self._forwarded_before(forward, held) or lost(key, row)
        if taken := self._of_another_queue(rows):
            return taken
        try:
            self.check_sizes(rows)
        except LimitExceeded as too_large:
            return refused(too_large)
        bind(self._t)
        for path in dict.fromkeys(key.queue for key in forward.leases):
            if rows:
                self.push(rows, path)
        steps.passed("forward.pushed")
        for _, row in held:
            if row is not None:
                self.end(row, forwarded=True)
        return _DONE

    def _of_another_queue(self, rows: Sequence[Row]) -> LeaseOutcome | None:
        """Reject outputs whose ids are those of another queue's outputs, as both have messages of one id.

        They would be taken for repeats, and be lost. The outputs of a message that was pushed again are repeats.
        """
        for row in rows:
            known = self.find(LeaseKey(row.queue, row.message_id, ""))
            if known is None:
                continue
            before, now = (json.loads(text).get("source_stage") for text in (known["metadata"], row.metadata))
            if before != now:
                text = (
                    f"{row.queue} has a message {row.message_id} from queue/{before}: messages of two queues that are "
                    f"forwarded to one need ids of their own, this is from queue/{now}"
                )
                return LeaseOutcome(code=AlreadyExists.code, text=text)
        return None

    def _forwarded_before(
        self, forward: Forward, held: Sequence[tuple[LeaseKey, sqlite3.Row | None]]
    ) -> LeaseOutcome | None:
        """Return the first outcome of a repeated forward; None for one that brings something else."""
        are_same = all(row is not None and row["forwarded"] and _was_ended_by(row, key, "done") for key, row in held)
        if not are_same:
            return None
        for output in forward.outputs:
            if self.find(LeaseKey(output.queue, output.message.message_id, "")) is None:
                return None
        return _DONE

    def end(self, row: sqlite3.Row, *, forwarded: bool) -> None:
        """Note a claimed message as done: it holds its payload no more."""
        self._t.execute(
            "UPDATE messages SET state = 'done', forwarded = ?, ended = ? WHERE id = ?",
            forwarded, self._t.now, row["id"],
        )  # fmt: skip
        self.ended.append(row["token"])
        self._count(row["queue"], claimed=-1, done=1, bytes=-row["bytes"])
        if row["payload_key"]:
            self._freed.append((row["payload_key"], row["part"]))

    def release(self, key: LeaseKey, failure: Failure | None, *, delayed: bool) -> LeaseOutcome:
        """Give a message back, or set it aside after too many tries."""
        row = self.find(key)
        if row is not None and self.is_held(row, key):
            outcome = self._give_back(row, failure, "delayed" if delayed else "pending")
            if delayed and outcome.state == "pending":
                self.delayed.append(key)
            return outcome
        if row is not None and row["token"] == key.token and row["state"] in ("pending", "delayed", "dead"):
            return LeaseOutcome("dead" if row["state"] == "dead" else "pending")
        return lost(key, row)

    def _give_back(self, row: sqlite3.Row, failure: Failure | None, state: str) -> LeaseOutcome:
        """Make a claimed message pending, or dead after too many failures; without one this claim counts as no try."""
        if failure is not None and row["tries"] >= MOST_TRIES:
            return self._set_aside(row, failure)
        kept = None if failure is None else json.dumps(failure.to_json())
        self._t.execute(
            "UPDATE messages SET state = ?1, failure = coalesce(?2, failure), tries = tries - (?2 IS NULL)"
            " WHERE id = ?3",
            state, kept, row["id"],
        )  # fmt: skip
        self.ended.append(row["token"])
        self._count(row["queue"], claimed=-1)
        return LeaseOutcome("pending")

    def drop(self, key: LeaseKey, failure: Failure) -> LeaseOutcome:
        """Set a message aside."""
        row = self.find(key)
        if row is not None and self.is_held(row, key):
            return self._set_aside(row, failure)
        return LeaseOutcome("dead") if _was_ended_by(row, key, "dead") else lost(key, row)

    def _set_aside(self, row: sqlite3.Row, failure: Failure) -> LeaseOutcome:
        """Make a claimed message dead; it goes on holding its payload."""
        self._t.execute(
            "UPDATE messages SET state = 'dead', failure = ?, ended = ? WHERE id = ?",
            json.dumps(failure.to_json()), self._t.now, row["id"],
        )  # fmt: skip
        self.ended.append(row["token"])
        self._count(row["queue"], claimed=-1, dead=1)
        return LeaseOutcome("dead")

    def end_over(self, tokens: Iterable[str]) -> None:
        """Give back what workers have held past their deadlines, and end delays."""
        for token in tokens:
            self.ended.append(token)
            row = self._t.row(
                "SELECT id, queue, state, token, tries, failure FROM messages WHERE id = ? AND token = ?"
                " AND state IN ('claimed', 'delayed')",
                id_of(token), token,
            )  # fmt: skip
            if row is None:
                continue
            if row["state"] == "claimed":
                text = f"its lease ended without an answer; it was claimed {row['tries']} times"
                known = Failure.from_json(json.loads(row["failure"])) if row["failure"] else None
                self._give_back(row, known or Failure("LeaseExpired", text), "pending")
                self._t.execute("UPDATE messages SET token = NULL WHERE id = ?", row["id"])
            else:
                self._t.execute("UPDATE messages SET state = 'pending' WHERE id = ?", row["id"])

    def finish(self) -> None:
        """Bring the queues' counts up to date, and let go of payloads that no message names any more."""
        release_payloads(self._t, self._freed)
        to_settle = [queue for queue, changes in self._counts.items() if queues.count(self._t, queue, **changes)]
        if to_settle:  # once all counts are there: a queue that is complete now may have filled another
            queues.settle(self._t, to_settle)

    def _count(self, queue: int, **changes: int) -> None:
        counts = self._counts.setdefault(queue, {})
        for name, change in changes.items():
            counts[name] = counts.get(name, 0) + change


def _queue_of(row: Row) -> str:
    return row.queue


def _hold_parts(t: Transaction, queue: int, last: int) -> None:
    """Let new messages hold the parts that they name."""
    rows = t.rows("SELECT id, payload_key FROM messages WHERE id > ? AND queue = ?", last, queue)
    held = []
    for row in rows:
        split = payloads.split_of(row["payload_key"])
        part = split and parts.of_dataset(t, *split)
        if part:
            t.execute("UPDATE messages SET part = ? WHERE id = ?", part, row["id"])
            held.append(part)
    parts.hold(t, held)


def _was_ended_by(row: sqlite3.Row | None, key: LeaseKey, state: str) -> bool:
    return row is not None and row["state"] == state and row["token"] == key.token


def lost(key: LeaseKey, row: sqlite3.Row | None = None) -> LeaseOutcome:
    """Return the outcome of a lease that is over."""
    return refused(
        LeaseLost(
            f"{key.queue}: the lease of message {key.message_id} is over"
            + ("" if row is None or row["state"] == "claimed" else f", the message is {_public(row['state'])}")
            + ": what was made of it is not counted; claim again"
        )
    )


def _public(state: str) -> str:
    return "pending" if state == "delayed" else state


def refused(error: PenstockError) -> LeaseOutcome:
    """Return an error as an outcome."""
    return LeaseOutcome(code=error.code, text=str(error))


def release_payloads(t: Transaction, ended: Iterable[tuple[str, str | None]]) -> None:
    """Let go of the payloads of messages that are done, unless another message names them."""
    for key, part in ended:
        if is_named(t, key):
            continue
        if part is not None:
            parts.let_go(t, part)
        else:
            payloads.free(t, key)


def is_named(reader: Reader, key: str) -> bool:
    """Whether a message that isn't done names a payload."""
    query = "SELECT 1 FROM messages WHERE payload_key = ? AND state <> 'done' AND payload_key <> '' LIMIT 1"
    return reader.row(query, key) is not None


# --- dead and old ones ---------------------------------------------------------------------


def redrive(t: Transaction, path: str, message_ids: Sequence[str], most: int) -> int:
    """Make dead messages pending with no tries; without ids all, so many at most. One that is no record is sent."""
    queue = queues.by_path(t, path)["id"]
    change = (
        "UPDATE messages SET state = 'pending', tries = 0, token = NULL, failure = NULL, ended = NULL,"
        " acked = CASE WHEN offset IS NOT NULL AND acked = 0 THEN 2 ELSE acked END,"
        " unsent = offset IS NULL AND (SELECT topic FROM queues WHERE id = queue) IS NOT NULL"
    )
    if message_ids:
        number = sum(
            t.execute(f"{change} WHERE queue = ? AND message_id = ? AND state = 'dead'", queue, each)
            for each in message_ids
        )
    else:
        number = t.execute(
            f"{change} WHERE id IN (SELECT id FROM messages WHERE queue = ? AND state = 'dead' LIMIT ?)",  # noqa: S608  # our own text
            queue, most,
        )  # fmt: skip
    if number and queues.count(t, queue, dead=-number):
        queues.settle(t, [queue])
    return number


def peek(reader: Reader, path: str, *, dead: bool, most: int) -> list[PeekedMessage]:
    """Return the first messages of a queue in the order of their push, without a lease: dead ones, or undone ones."""
    queue = queues.by_path(reader, path)["id"]
    states = "'dead'" if dead else "'pending', 'delayed', 'claimed'"
    query = f"SELECT * FROM messages WHERE queue = ? AND state IN ({states}) ORDER BY id LIMIT ?"  # noqa: S608  # our own text
    rows = reader.rows(query, queue, most)
    return [
        PeekedMessage(
            to_message(row), row["bytes"], _public(row["state"]), row["tries"], row["worker"],
            Failure.from_json(json.loads(row["failure"])) if row["failure"] else None, row["ended"],
        )
        for row in rows
    ]  # fmt: skip


def known(reader: Reader, new: Iterable[NewMessage]) -> set[tuple[str, str]]:
    """Return those of some messages, by queue and id, that their queues have or had."""
    query = "SELECT 1 FROM messages JOIN queues ON queues.id = queue WHERE path = ? AND message_id = ?"
    names = ((each.queue, each.message.message_id) for each in new)
    return {name for name in names if reader.row(query, *name) is not None}


def outlived(reader: Reader, now: float) -> list[int]:
    """Return some messages that are done for longer than GRACE.

    Not those of a job that may be resumed: its sources push them once more, which must change nothing. They are passed
    over at each look, and may be millions: no change of the ledger should wait for that.
    """
    rows = reader.rows(
        "SELECT id FROM messages WHERE state = 'done' AND ended < ?"  # noqa: S608  # our own text
        f" AND NOT unsent AND (offset IS NULL OR acked = 1) AND queue NOT IN ({jobs.UNFINISHED_QUEUES}) LIMIT ?",
        now - GRACE, _SOME,
    )  # fmt: skip
    return [row["id"] for row in rows]


def forget(ids: Sequence[int], t: Transaction) -> None:
    """Forget messages that are done."""
    t.sql.executemany("DELETE FROM messages WHERE id = ? AND state = 'done'", [(each,) for each in ids])


# --- receipts ------------------------------------------------------------------------------


def take_receipts(t: Transaction, path: str) -> list[str]:
    """Return the attempts that the messages of a queue name, and note these as done.

    Refused while what fills the queue has not ended, or others have claimed some: a receipt would be left out.
    """
    queue = queues.by_path(t, path)
    unended = [upstream for upstream, state in queues.upstreams(t, path) if state != "complete"]
    if unended:
        raise InvalidRequest(f"{path}: {', '.join(unended)} may bring more receipts: finish the write once that ended")
    query = "SELECT count(*) FROM messages WHERE queue = ? AND state IN ('claimed', 'delayed', 'dead')"
    [claimed] = t.rows(query, queue["id"])[0]
    if claimed:
        raise InvalidRequest(
            f"{path}: {claimed} receipts are claimed or dead, and only the write's finish may take them: end their "
            f"leases (penstock redrive {path} for dead ones), then finish the write"
        )
    rows = t.rows(
        "UPDATE messages SET state = 'done', ended = ? WHERE queue = ? AND state = 'pending' RETURNING id, metadata",
        t.now, queue["id"],
    )  # fmt: skip
    if rows and queues.count(t, queue["id"], done=len(rows)):
        queues.settle(t, [queue["id"]])
    attempts = [json.loads(row["metadata"]).get("attempt") for row in sorted(rows, key=lambda row: int(row["id"]))]
    if not all(isinstance(attempt, str) for attempt in attempts):
        raise InvalidRequest(
            f"{path}: a message without 'attempt' in its metadata is no receipt: a queue of receipts takes those of "
            "one write alone"
        )
    return attempts


def drop_removed(t: Transaction) -> int:
    """Drop messages of removed queues, so many at once, and let go of their payloads; return how many."""
    queue = t.row("SELECT id FROM queues WHERE path IS NULL LIMIT 1")
    if queue is None:
        return 0
    rows = t.rows(
        "DELETE FROM messages WHERE id IN (SELECT id FROM messages WHERE queue = ? LIMIT ?)"
        " RETURNING payload_key, part, state",
        queue["id"], _SOME,
    )  # fmt: skip
    release_payloads(t, [(row["payload_key"], row["part"]) for row in rows if row["state"] != "done"])
    if len(rows) < _SOME:
        t.execute("DELETE FROM queues WHERE id = ?", queue["id"])
    return max(1, len(rows))
