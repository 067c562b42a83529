"""The rows of queues and their upstreams: what a queue has taken, what still fills it, and whether it is complete."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from penstock.errors import InvalidRequest, LimitExceeded, NotFound
from penstock.ledger.tables import Transaction, paths_below
from penstock.store.database import Reader, Tables
from penstock.wire import paths
from penstock.wire.queue import QueueCounts, QueueRoom, QueueState

TABLES: Tables = {
    6: """
CREATE TABLE queues(
    id INTEGER PRIMARY KEY, path TEXT UNIQUE, state TEXT NOT NULL DEFAULT 'open', cause TEXT,
    pushed INTEGER NOT NULL DEFAULT 0, claimed INTEGER NOT NULL DEFAULT 0, done INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, made REAL NOT NULL
);
CREATE TABLE upstreams(
    queue INTEGER NOT NULL REFERENCES queues ON DELETE CASCADE, upstream TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'complete', 'failed')), cause TEXT, PRIMARY KEY(queue, upstream)
) WITHOUT ROWID;
CREATE INDEX queues_of_upstream ON upstreams(upstream);
"""
}
"""`queues.path`: NULL once it is removed, until its messages are. `upstreams.upstream`: write/ID, the path of a queue
whose workers forward to this one, or put, which stands for all clients that push."""

CLIENTS = "put"
"""The upstream of messages that clients push."""
MOST_QUEUES = 100_000


def by_path(reader: Reader, path: str) -> sqlite3.Row:
    """Return a queue's row."""
    row = reader.row("SELECT * FROM queues WHERE path = ?", path)
    if row is None:
        raise NotFound(f"no queue at {path}: a write with queue=, or a first message, makes it")
    return row


def counts(reader: Reader, path: str) -> QueueCounts:
    """Return a queue's state and counts."""
    row = by_path(reader, path)
    oldest = reader.row(
        "SELECT pushed FROM messages WHERE queue = ? AND state = 'pending' ORDER BY id LIMIT 1", row["id"]
    )
    pending = row["pushed"] - row["claimed"] - row["done"] - row["dead"]
    return QueueCounts(
        path, row["state"], row["pushed"], pending, row["claimed"], row["done"], row["dead"], row["bytes"],
        None if oldest is None else oldest["pushed"], row["cause"],
    )  # fmt: skip


def room_below(reader: Reader, queue: sqlite3.Row, to: Iterable[str], room: QueueRoom) -> int:
    """Return how many messages of a queue may be claimed until one of those that they are forwarded to is full.

    What is claimed here counts as one that is there already. A queue with nothing to do has room for one, however
    small the room, as nobody could make more.
    """
    left = [max(room.messages, 1) - queue["claimed"]]
    for path in to:
        below = by_path(reader, path)
        waiting = below["pushed"] - below["done"] - below["dead"]
        is_full = waiting > 0 and below["bytes"] >= room.bytes
        left.append(0 if is_full else left[0] - waiting)
    return max(0, min(left)) if len(left) > 1 else room.messages


def number(reader: Reader) -> int:
    """Return how many queues there are."""
    return int(reader.rows("SELECT count(*) AS number FROM queues WHERE path IS NOT NULL")[0]["number"])


def below(reader: Reader, folder: str) -> list[str]:
    """Return the paths of the queues below a folder's path, in order."""
    rows = reader.rows("SELECT path FROM queues WHERE path >= ? AND path < ? ORDER BY path", *paths_below(folder))
    return [row["path"] for row in rows]


def upstreams(reader: Reader, path: str) -> list[tuple[str, QueueState]]:
    """Return what fills a queue: each upstream and its state."""
    rows = reader.rows(
        "SELECT upstream, upstreams.state FROM upstreams JOIN queues ON queues.id = queue WHERE path = ?"
        " ORDER BY upstream",
        path,
    )
    return [(row["upstream"], row["state"]) for row in rows]


def disagreements(reader: Reader) -> list[str]:
    """Describe queues whose counts differ from those of their messages: only damage makes them differ.

    Messages that are done for long are forgotten, so of these there may be fewer.
    """
    rows = reader.rows(
        "SELECT path, pushed - claimed - done - dead AS pending, claimed, done, dead, bytes,"
        " coalesce(sum(number) FILTER (WHERE messages.state IN ('pending', 'delayed')), 0) AS are_pending,"
        " coalesce(sum(number) FILTER (WHERE messages.state = 'claimed'), 0) AS are_claimed,"
        " coalesce(sum(number) FILTER (WHERE messages.state = 'done'), 0) AS are_done,"
        " coalesce(sum(number) FILTER (WHERE messages.state = 'dead'), 0) AS are_dead,"
        " coalesce(sum(size) FILTER (WHERE messages.state <> 'done'), 0) AS are_bytes"
        " FROM queues LEFT JOIN (SELECT queue, state, count(*) AS number, sum(bytes) AS size FROM messages"
        " GROUP BY queue, state) AS messages ON queue = id WHERE path IS NOT NULL GROUP BY id"
        " HAVING (pending, claimed, dead, bytes) <> (are_pending, are_claimed, are_dead, are_bytes) OR done < are_done"
    )
    names = ("pending", "claimed", "done", "dead", "bytes")
    return [
        f"{row['path']} counts {_listed(row[name] for name in names)} messages as pending, claimed, done, dead and "
        f"their bytes, and has {_listed(row[f'are_{name}'] for name in names)}"
        for row in rows
    ]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


# --- what changes --------------------------------------------------------------------------


def make(t: Transaction, path: str) -> sqlite3.Row:
    """Return a queue's row, made if it is new."""
    row = t.row("SELECT * FROM queues WHERE path = ?", path)
    if row is not None:
        return row
    place = paths.parse(path)
    if place.kind != "queue" or place.key.rpartition("/")[2] == "dead":
        raise InvalidRequest(f"{path} is no queue: expected queue/NAME, where the last name isn't 'dead'")
    if (count_all := number(t)) >= MOST_QUEUES:
        raise LimitExceeded(f"the server has {count_all:,} queues, its most: remove some")
    return t.rows("INSERT INTO queues(path, made) VALUES (?, ?) RETURNING *", path, t.now)[0]


def add_upstream(t: Transaction, path: str, upstream: str) -> None:
    """Note that an upstream fills a queue; one that had ended or failed is open again."""
    row = make(t, path)
    if upstream == path:
        return  # what a queue's workers push to the queue itself is counted before its upstream message is done
    state, cause = "open", None
    if upstream.startswith("queue/"):
        above = by_path(t, upstream)
        state, cause = above["state"], _of_failed(above["cause"])
    known = t.row("SELECT state FROM upstreams WHERE queue = ? AND upstream = ?", row["id"], upstream)
    if known is not None and known["state"] == state:
        return
    if known is None and upstream.startswith("queue/"):
        _check_no_cycle(t, path, upstream)
    t.execute(
        "INSERT INTO upstreams(queue, upstream, state, cause) VALUES (?, ?, ?, ?)"
        " ON CONFLICT(queue, upstream) DO UPDATE SET state = excluded.state, cause = excluded.cause",
        row["id"], upstream, state, cause,
    )  # fmt: skip
    settle(t, [row["id"]])


def _check_no_cycle(t: Transaction, path: str, upstream: str) -> None:
    """Reject a circle of queues: none of them could ever be complete."""
    above = t.row(
        "WITH RECURSIVE above(path) AS (VALUES (?1) UNION SELECT upstream FROM above"
        " JOIN queues ON queues.path = above.path JOIN upstreams ON queue = queues.id)"
        " SELECT 1 FROM above WHERE path = ?2",
        upstream, path,
    )  # fmt: skip
    if above is not None:
        raise InvalidRequest(
            f"{path} fills {upstream}, so the workers of {upstream} can't forward to {path}: neither would ever be "
            "complete. Forward to another queue"
        )


def set_upstream(t: Transaction, upstream: str, state: str, cause: str | None = None) -> None:
    """Note that an upstream has ended or failed, for every queue that it fills."""
    rows = t.rows(
        "UPDATE upstreams SET state = ?, cause = ? WHERE upstream = ? AND state <> ?1 RETURNING queue",
        state, cause, upstream,
    )  # fmt: skip
    settle(t, [row["queue"] for row in rows])


def remove_upstream(t: Transaction, upstream: str) -> None:
    """Forget an upstream that has pushed nothing, and won't."""
    rows = t.rows("DELETE FROM upstreams WHERE upstream = ? RETURNING queue", upstream)
    settle(t, [row["queue"] for row in rows])


def remove_upstream_of(t: Transaction, path: str, upstream: str) -> None:
    """Forget that an upstream fills one queue."""
    queue = by_path(t, path)["id"]
    t.execute("DELETE FROM upstreams WHERE queue = ? AND upstream = ?", queue, upstream)
    settle(t, [queue])


def remove_replaced_writes(t: Transaction, path: str, dataset: str, upstream: str, *, open_too: bool) -> None:
    """Forget the writes to a dataset that fill a queue, as this upstream takes their place: the failed ones, and with
    `open_too` the open ones that don't append, whose drivers may be dead.

    Not those that release partitions: workers may have their rows.
    """
    rows = t.rows(
        "DELETE FROM upstreams WHERE queue = (SELECT id FROM queues WHERE path = ?1) AND upstream GLOB 'write/*'"
        " AND upstream <> ?3 AND EXISTS (SELECT 1 FROM writes WHERE id = substr(upstream, 7) AND path = ?2"
        " AND release = 'finish'"
        " AND (upstreams.state = 'failed' OR (?4 AND upstreams.state = 'open' AND mode <> 'append')))"
        " RETURNING queue",
        path, dataset, upstream, open_too,
    )  # fmt: skip
    settle(t, [row["queue"] for row in rows])


def finish(t: Transaction, path: str) -> None:
    """Note that clients push no more to a queue."""
    row = make(t, path)
    t.execute(
        "INSERT INTO upstreams(queue, upstream, state) VALUES (?, ?, 'complete')"
        " ON CONFLICT(queue, upstream) DO UPDATE SET state = 'complete', cause = NULL",
        row["id"], CLIENTS,
    )  # fmt: skip
    settle(t, [row["id"]])


def settle(t: Transaction, changed: Iterable[int]) -> None:
    """Set the states of queues by what they have counted, then of those that they fill.

    Failed: an upstream has failed. Complete: there are upstreams, all have ended, and each message is done or dead;
    that is never inferred from emptiness, as an upstream may be slow. Otherwise open.
    """
    waiting = list(changed)
    while waiting:
        row = t.row(
            "SELECT *, (SELECT count(*) FROM upstreams WHERE queue = id) AS upstreams,"
            " (SELECT count(*) FROM upstreams WHERE queue = id AND upstreams.state <> 'complete') AS unended,"
            " (SELECT min(upstream || ' ' || upstreams.cause) FROM upstreams WHERE queue = id"
            " AND upstreams.state = 'failed') AS failure FROM queues WHERE id = ?",
            waiting.pop(),
        )
        if row is None or row["path"] is None:
            continue
        is_drained = row["done"] + row["dead"] == row["pushed"]
        state = "complete" if row["upstreams"] and not row["unended"] and is_drained else "open"
        if row["failure"] is not None:
            state = "failed"
        if (state, row["failure"]) == (row["state"], row["cause"]):
            continue
        t.execute("UPDATE queues SET state = ?, cause = ? WHERE id = ?", state, row["failure"], row["id"])
        filled = t.rows(
            "UPDATE upstreams SET state = ?, cause = ? WHERE upstream = ? RETURNING queue",
            state, _of_failed(row["failure"]), row["path"],
        )  # fmt: skip
        waiting += [each["queue"] for each in filled]


def _of_failed(cause: str | None) -> str | None:
    """Return the cause of a failure in words for the queues below."""
    return None if cause is None else f"has failed: {cause}"


def count(
    t: Transaction, queue: int, *, pushed: int = 0, claimed: int = 0, done: int = 0, dead: int = 0, bytes: int = 0
) -> bool:
    """Add to a queue's counts; True if that may change its state, and `settle` must follow."""
    row = t.rows(
        "UPDATE queues SET pushed = pushed + ?, claimed = claimed + ?, done = done + ?, dead = dead + ?,"
        " bytes = bytes + ? WHERE id = ? RETURNING state, pushed, done + dead AS ended",
        pushed, claimed, done, dead, bytes, queue,
    )[0]  # fmt: skip
    return bool(row["ended"] == row["pushed"] or row["state"] == "complete")


def remove(t: Transaction, path: str) -> None:
    """Free a queue's path; what it filled fails, unless the queue was complete. Its messages go later, in batches."""
    row = by_path(t, path)
    if row["state"] != "complete":
        set_upstream(t, path, "failed", "was removed")
    t.execute("DELETE FROM upstreams WHERE queue = ?", row["id"])
    t.execute("UPDATE queues SET path = NULL WHERE id = ?", row["id"])
