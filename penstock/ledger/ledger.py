"""The ledger: the one owner of state. What is visible is a row here and nowhere else.

Two facts that must agree change in one transaction. Bytes are durable before the
transaction that names them; a crash in between leaves an orphan, never half a dataset.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

import pyarrow as pa

from penstock.errors import InvalidRequest, StoreFull, WriteEnded
from penstock.ledger import attempts, datasets, deletions, evaluations, jobs, parts, payloads, runs, tables, writes
from penstock.ledger.attempts import Attempt
from penstock.ledger.datasets import Dataset, Folder
from penstock.ledger.parts import Slice
from penstock.ledger.payloads import Bytes, ListedPayload
from penstock.ledger.tables import Transaction
from penstock.ledger.writes import Destination, WorkQueues, Write
from penstock.store import payload_table
from penstock.store.database import Database, Reader, View
from penstock.store.payload_table import PayloadRow
from penstock.wire import paths
from penstock.wire.actions import LandedEpoch, Partition, Summary
from penstock.wire.publish import PublishOptions
from penstock.wire.put import DatasetOptions, Mode, Receipt, Release, SparkTask

log = logging.getLogger("penstock")
IDLE = 24 * 3600.0
"""Seconds after which an open write that nobody puts to expires."""
SILENT = 600.0
"""The same for one with a queue, whose workers wait for it. By the monotonic clock of this process: neither a jump of
the clock nor a restart of the server is a driver's silence."""
REMEMBERED = 30 * 24 * 3600.0
"""Seconds for which a finished write is known, and with it its run: a repeat after that writes anew."""
REMEMBERED_BRIEFLY = 3600.0
"""The same for a small put that nobody has named: there may be 1,000 a second."""
_FORGOTTEN = 10_000  # such puts in one transaction, which others wait for
_T = TypeVar("_T")


class Ledger:
    """Writes, attempts, parts and datasets in one SQLite file, and what other kinds of paths keep beside them."""

    def __init__(
        self,
        database: Database,
        destinations: Mapping[str, Destination] | None = None,
        queues: WorkQueues | None = None,
        *,
        incarnation: str = "",
        most_paths: int = 1_000_000,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.database = database
        self.destinations: Mapping[str, Destination] = {"store": datasets, **(destinations or {})}
        """By the first name of a path."""
        self._queues = queues
        self.incarnation = incarnation
        self.most_paths = most_paths
        """The datasets, topics and payloads that there may be, without the payloads of queues."""
        self.now, self.monotonic = now, monotonic
        self.life = uuid.uuid4().hex[:16]
        """Tells this start of the server from all others."""
        self._cut: list[tuple[str, str]] = []
        """The puts that a crash cut, while the disk has no room to note their end: each write and its opener."""
        self._signs: dict[tuple[str, float], float] = {}
        """Last signs of life of open writes with a queue, each id and time, and when `expire` has seen them first."""
        self._lock = threading.Lock()  # _unnoted, _grown
        self._unnoted: dict[str, float] = {}
        """Until when tickets name the bytes at a path, where the disk had no room to note it."""
        self._grown: set[str] = set()
        """The datasets that writes were finished to, for the compactor."""
        self.freeing = threading.Lock()
        """Held while bytes are deleted that nothing names, and while a deleted dataset gets its bytes back."""

    @property
    def queues(self) -> WorkQueues:
        """What writes with a queue tell it."""
        if self._queues is None:
            raise InvalidRequest("this ledger has no queues: write without one")
        return self._queues

    def names_payload(self, reader: Reader, key: str) -> bool:
        """Whether a message that isn't done names a payload."""
        return self._queues is not None and self._queues.names_payload(reader, key)

    def change(self, function: Callable[[Transaction], _T]) -> _T:
        """Carry out a function in one transaction, and return its value once that is durable. Not to be nested."""
        return self.database.run(lambda sql: function(Transaction(sql, self.now(), self)))

    def reading(self) -> AbstractContextManager[View]:
        """Give one view of what is committed."""
        return self.database.reading()

    def destination(self, path: str) -> Destination:
        """Return what finished writes at a path become."""
        return self.destinations[path.partition("/")[0]]

    # --- writes -------------------------------------------------------------------------------

    def open_write(  # noqa: PLR0913  # what may be said of a write
        self,
        path: str,
        *,
        mode: Mode = "error",
        run: str | None = None,
        schema: pa.Schema | None = None,
        own: bool = False,
        queue: str | None = None,
        split_rows: int | None = None,
        release: Release = "finish",
        publish: PublishOptions | None = None,
        dataset: DatasetOptions | None = None,
    ) -> Write:
        """Begin a write; with a `run`, join the open write of that run or get its finished one, unless it is lost.

        With a `queue`, finish pushes a message for each part to it, of at most `split_rows` rows; if the write ends
        otherwise, the queue fails. See `release` for those that push each partition's once it is whole.
        Nothing is seen of it before `finish`. Joining makes the caller its last opener. An `own` write is one put's,
        and ends with the process that serves it; puts of one run that share it leave its end to the one that finishes.
        """

        def open_or_join(t: Transaction) -> Write:
            known = runs.write_of(t, path, run)
            if known is not None:
                return writes.join(
                    t, known, mode=mode, own=own, queue=queue, split_rows=split_rows, release=release, publish=publish,
                    dataset=dataset or DatasetOptions(),
                )  # fmt: skip
            new = Write(
                uuid.uuid4().hex, path, mode, run, "open", uuid.uuid4().hex, schema, t.now, t.now, None, queue,
                split_rows, release, publish, dataset or DatasetOptions(),
            )  # fmt: skip
            return writes.begin(t, new, own=own)

        return self.change(open_or_join)

    def fit_schema(
        self, path: str, schema: pa.Schema, mode: Mode = "append", announced: pa.Schema | None = None
    ) -> pa.Schema:
        """Return the schema in which rows of this schema are stored at a path, where a schema may be `announced`."""
        destination = self.destination(path)
        own = destination.schema_at(self.database, path) if mode == "append" else None
        if own is not None and announced is not None:
            own = destination.growth.merge(own, announced, path)
        return destination.growth.fit(own or announced, schema, path)

    def touch(self, write_id: str, verb: str = "a put") -> Write:
        """Keep an open write from expiring for another IDLE seconds, or SILENT ones with a queue."""
        return self.change(lambda t: writes.touch(t, write_id, verb))

    def record(self, write_id: str, attempt: Attempt) -> Receipt:
        """Record a whole attempt: it may be named in a finish. Rejected once the write has ended."""
        return self.change(lambda t: writes.record(t, write_id, attempt))

    def finish(
        self, write_id: str, listed: Sequence[str], *, run: str | None = None, receipts: str | None = None
    ) -> Summary:
        """Make exactly these attempts the dataset, or add them to it.

        The same list again gets the same answer; another list is rejected. Where a `run` is named that another write
        has finished, this one ends and shows nothing, and the answer is that one's. In one transaction:
        1. The write is open, the path is free for its mode, the schemas agree.
        2. What an overwrite replaces is retired, with the time until which tickets hold its bytes.
        3. The listed attempts' parts become visible, in the order of the list.
        4. The other attempts' parts are retired; the write is finished.
        If the write has released other rows than those, it fails instead. `receipts` is the path of a queue whose
        messages name further attempts; a finished write has taken those.
        """

        def finish(t: Transaction) -> Summary | WriteEnded:
            different = evaluations.difference(t, write_id, listed)
            if different is not None:
                writes.fail(t, write_id, different)
                return WriteEnded(f"write/{write_id} has failed, as it {different}")
            return writes.finish(t, write_id, listed, run=run, receipts=receipts)

        answer = self.change(finish)
        if isinstance(answer, WriteEnded):
            raise answer
        return answer

    def first_released(self, write_id: str, task: SparkTask) -> str | None:
        """Return the attempt by which the evaluation that a task is at was released; None if that is to come."""
        return evaluations.first_released(self.database, write_id, task)

    def release(self, write_id: str, attempt: Attempt, task: SparkTask) -> Receipt | None:
        """Record the first whole attempt of an evaluation and push its parts; None if another one was before it.

        The queue's workers have its rows before the write is finished: weaker than a finish, as these rows stay given
        if the partition is computed another way later. That is found out, and fails the write.
        """
        return self.change(lambda t: evaluations.release(t, write_id, attempt, task))

    def compared(self, write_id: str, attempt: str, task: SparkTask, *, first: str, same: bool) -> Receipt:
        """Note that a later attempt of a released evaluation has the same rows, or others, which fails the write at its
        finish; return the first one's receipt.
        """
        return self.change(lambda t: evaluations.compared(t, write_id, attempt, task, first=first, same=same))

    def parts_of_attempt(self, attempt: str) -> list[str]:
        """Return the names of an attempt's parts."""
        return parts.names_of_attempt(self.database, attempt)

    def finish_single(self, write_id: str, attempt: Attempt) -> Receipt:
        """Record an attempt and finish its write in one transaction: for a put that is a write of its own.

        If the same attempt was put to this path before, abort this write, and return the first put's receipt.
        """

        def record_and_finish(t: Transaction) -> Receipt:
            known = attempts.receipt_of_put(t, writes.by_id(t, write_id).path, None, attempt.receipt(""))
            if known is not None and known.write != write_id:
                writes.abort(t, write_id)
                return known
            receipt = writes.record(t, write_id, attempt)
            writes.finish(t, write_id, [attempt.id])
            return receipt

        return self.change(record_and_finish)

    def abort(self, write_id: str, *, opener: str | None = None) -> Summary:
        """Abort a write, which then shows nothing; a second time does nothing. With `opener`, only the last one may."""
        return self.change(lambda t: writes.abort(t, write_id, opener=opener))

    def abort_own(self) -> None:
        """End, at start, the writes that were one put's, as the process that served it is gone.

        Where the disk has no room for that, `expire` does it later: reading needs no room.
        """
        query = f"SELECT id, opener FROM writes WHERE own AND state = 'open' AND NOT {writes.IS_PUBLISHED}"  # noqa: S608  # our own text
        rows = self.database.rows(query)
        self._cut = [(row["id"], row["opener"]) for row in rows]
        try:
            self.change(self._abort_cut)
        except StoreFull as full:
            log.warning("%d puts that a crash cut stay open for now: %s", len(self._cut), full)
        else:
            self._cut = []

    def _abort_cut(self, t: Transaction) -> None:
        for write_id, opener in self._cut:  # one that was joined since is being put
            writes.end_where(t, "id = ? AND opener = ?", write_id, opener, state="aborted")

    def expire(self) -> list[str]:
        """End the writes that were idle for too long, and forget old ones; return the ids of the expired."""
        silent = self._silent_writes()

        def expire(t: Transaction) -> list[str]:
            self._abort_cut(t)
            idle = writes.end_where(
                t,
                f"touched < ? AND {jobs.WRITES_FOR_NO_JOB} AND NOT {writes.IS_PUBLISHED}",
                t.now - IDLE,
                state="expired",
            )
            idle += writes.end_where(t, f"touched < ? AND {writes.IS_PUBLISHED}", t.now - REMEMBERED, state="expired")
            for write, touched in silent:
                idle += writes.end_where(t, "id = ? AND touched = ?", write, touched, state="expired")
            ended = (
                "state IN ('finished', 'aborted', 'expired')"  # not <> 'open', which looks at all that are remembered
            )
            t.execute(f"DELETE FROM writes WHERE {ended} AND touched < ?", t.now - REMEMBERED)  # noqa: S608  # our own text
            t.execute(
                "DELETE FROM writes WHERE id IN (SELECT id FROM writes INDEXED BY brief_writes WHERE brief"
                " AND state = 'finished' AND touched < ? LIMIT ?)",
                t.now - REMEMBERED_BRIEFLY, _FORGOTTEN,
            )  # fmt: skip
            t.execute("DELETE FROM ticketed WHERE until < ?", t.now)
            deletions.expire(t)
            payloads.expire(t)
            return idle

        expired = self.change(expire)
        self._cut = []
        return expired

    def _silent_writes(self) -> list[tuple[str, float]]:
        """Return the writes with a queue whose drivers are silent, each with its last sign of life."""
        now, rows = self.monotonic(), writes.signs_of_life(self.database)
        self._signs = {sign: self._signs.get(sign, now) for sign in rows}
        return [sign for sign, seen in self._signs.items() if now - seen >= SILENT]

    def write(self, write_id: str) -> Write:
        """Return a write by its id."""
        return writes.by_id(self.database, write_id)

    def summary(self, write_id: str) -> Summary:
        """Return a write's state and counts."""
        return writes.summary(self.database, write_id)

    def open_writes(self) -> list[Summary]:
        """Return the open writes, the latest first."""
        return writes.open_writes(self.database)

    def finished_receipt(self, write_id: str) -> Receipt:
        """Return a finished write as the one receipt of a put that was a write of its own."""
        return attempts.finished_receipt(self.database, write_id)

    def last_epochs(self, path: str) -> tuple[LandedEpoch, ...]:
        """Return what the queries that write to a path have landed last."""
        return tuple(LandedEpoch(*each) for each in runs.last_epochs(self.database, path))

    # --- datasets -----------------------------------------------------------------------------

    def dataset(self, path: str) -> Dataset:
        """Return the dataset at a path."""
        return datasets.by_path(self.database, path, self.incarnation)

    def datasets(self, folder: str) -> list[Dataset]:
        """Return the datasets below a folder's path."""
        return datasets.below(self.database, folder, self.incarnation)

    def folder(self, folder: str) -> list[Dataset | Folder]:
        """Return the datasets and folders directly in a folder."""
        with self.reading() as reader:
            return datasets.children(reader, folder, self.incarnation)

    def snapshot(self, path: str, *, ticketed_until: float) -> tuple[Dataset, list[Slice]]:
        """Return a dataset with its parts, whose bytes stay until that time whatever happens to the path.

        1. The time is noted: a delete from now on keeps the bytes for so long. 2. The dataset and its parts, from one
        view.
        """
        self.dataset(path)
        self.hold(path, ticketed_until)  # 1.
        with self.reading() as reader:  # 2.
            return datasets.by_path(reader, path, self.incarnation), datasets.slices(reader, path)

    def pin(self, path: str) -> None:
        """Let the parts that a dataset has now keep their numbers: a reader names one by it."""
        if parts.are_mergeable(self.database, path):
            self.change(partial(parts.pin, path=path))

    def note_grown(self, path: str) -> None:
        """Note that a dataset may have got small parts."""
        with self._lock:
            self._grown.add(path)

    def take_grown(self) -> set[str]:
        """Return the datasets that may have got small parts since the last call."""
        with self._lock:
            grown, self._grown = self._grown, set()
        return grown

    def delete(self, path: str, *, until: float = 0.0) -> Dataset:
        """Delete a dataset; its bytes stay for as long as tickets name them, and until then for `undelete`.

        One transaction: the path is free, the parts are retired, and the runs that made the dataset are forgotten, as
        a dataset that is deleted and written again starts over.
        """
        return self.change(partial(self._delete, path=path, until=until))

    def _delete(self, t: Transaction, path: str, until: float = 0.0) -> Dataset:
        dataset = datasets.by_path(t, path, self.incarnation)
        deletions.forget(t, path)  # an earlier one
        if until > t.now and not dataset.lost:
            deletions.note(t, path, until)
        datasets.remove(t, path)
        deletions.keep_bytes(t, path)
        runs.forget(t, path)
        return dataset

    def delete_expired(self) -> list[Dataset]:
        """Delete the datasets that are past their time to live, as `delete` does, and return them."""
        if not datasets.expired(self.database, self.now()):
            return []
        return self.change(lambda t: [self._delete(t, path) for path in datasets.expired(t, t.now)])

    def evict(self, size: int) -> list[Dataset]:
        """Delete the datasets that were used longest ago, until so many bytes are free; none if that isn't enough.

        A dataset stays while a write to it is open, while a message names it or a part of it, and while a read ticket
        holds its bytes, as nothing would be free.
        """

        def evict(t: Transaction) -> list[Dataset]:
            chosen: list[str] = []
            freed = 0
            for path, dataset_bytes in datasets.least_used(t):
                if freed >= size:
                    break
                if parts.free_at(t, path) <= t.now and not self.names_payload(t, paths.parse(path).key):
                    chosen.append(path)
                    freed += dataset_bytes
            return [self._delete(t, path) for path in chosen] if freed >= size else []

        return self.change(evict)

    def partitions(self, path: str) -> tuple[Partition, ...]:
        """Return the partitions of a dataset."""
        return tuple(datasets.partitions(self.database, path))

    def undelete(self, path: str, has: Callable[[str], bool]) -> Dataset:
        """Make a deleted dataset what it was, with its runs; `has` tells whether a part's bytes are there."""

        def undelete(t: Transaction) -> Dataset:
            deletions.restore(t, path, has)
            return datasets.by_path(t, path, self.incarnation)

        with self.freeing:
            return self.change(undelete)

    def keeps_deleted(self) -> bool:
        """Whether there are deleted datasets that may come back."""
        return bool(deletions.paths(self.database))

    def give_up_deleted(self) -> int:
        """Let the bytes go that only `undelete` holds, as their room is needed; return of how many datasets."""
        paths = deletions.paths(self.database)
        return sum(self.change(partial(deletions.forget, path=path)) for path in paths)

    # --- payloads -----------------------------------------------------------------------------

    def bind_payloads(self, rows: Sequence[PayloadRow]) -> None:
        """Make payloads readable under their keys, all in one transaction; their bytes are durable."""

        def bind_all(t: Transaction) -> None:
            for row in rows:
                payloads.bind(t, row)
            writes.check_room(t, new=0)

        self.change(bind_all)

    def payload(self, key: str) -> PayloadRow | None:
        """Return the payload at a key, None without one."""
        return payload_table.find(self.database, key, self.now())

    def look_up_payloads(
        self, keys: Sequence[str], *, ticketed_until: float, held: str = f"{payloads.KIND}/"
    ) -> list[Bytes | None]:
        """Return where the bytes of payloads and splits are; parts stay until that time, whatever happens to the keys.

        As `snapshot`: the time is noted, for the path `held`, then the rows are read again, if any names a part.
        """
        for is_held in (False, True):
            with self.reading() as reader:
                located = [payloads.look_up(reader, key, self.now()) for key in keys]
            if is_held or all(each is None or each.part is None for each in located):
                break
            self.hold(held, ticketed_until)
        return located

    def has_dataset(self, path: str) -> bool:
        """Whether a dataset is at a path."""
        return datasets.schema_at(self.database, path) is not None

    def payload_keys(self, prefix: str, *, after: str, most: int) -> list[str]:
        """Return some of the keys that begin with a prefix, in order, without those of bound payloads."""
        return payload_table.keys(self.database, prefix, self.now(), after=after, most=most)

    def payloads(self, folder: str) -> list[ListedPayload]:
        """Return the payloads below a folder's path, without a queue's own."""
        return payloads.below(self.database, folder, self.now())

    def remove_payload(self, key: str) -> PayloadRow | None:
        """Remove a payload, and return it; its part stays for as long as tickets name it."""
        return self.change(lambda t: payloads.remove(t, key))

    def clear_payloads(self, prefix: str) -> int:
        """Remove the payloads whose keys begin with a prefix, some in each transaction; return how many."""
        total = 0
        while removed := self.change(lambda t: payloads.clear(t, prefix)):
            total += removed
        return total

    # --- parts --------------------------------------------------------------------------------

    def hold(self, path: str, until: float) -> None:
        """Keep the bytes at a path until then, whatever happens to it. Noted in steps of a minute, as it is an fsync.

        Where the disk has no room for that, this process alone knows it: reading continues, and after a crash a ticket
        may end before its time, by an error.
        """
        if self.ticketed_until(self.database, path) >= until:
            return

        def note(t: Transaction) -> None:
            t.execute(
                "INSERT INTO ticketed(path, until) VALUES (?1, ?2)"
                " ON CONFLICT(path) DO UPDATE SET until = max(until, excluded.until)",
                path, until + 60,
            )  # fmt: skip
            t.execute("UPDATE datasets SET used = ? WHERE path = ?", t.now, path)

        try:
            self.change(note)
        except StoreFull:
            with self._lock:
                self._unnoted[path] = until + 60
        else:
            with self._lock:
                self._unnoted.pop(path, None)

    def ticketed_until(self, reader: Reader, path: str) -> float:
        """Return the time until which read tickets may name the bytes at a path; 0 where none do."""
        row = reader.row("SELECT until FROM ticketed WHERE path = ?", path)
        with self._lock:
            return max(self._unnoted.get(path, 0.0), 0.0 if row is None else row["until"])

    def has_part(self, part: str) -> bool:
        """Return whether a row names this part."""
        return parts.is_known(self.database, part)

    def known_parts(self, names: Sequence[str]) -> set[str]:
        """Return those of these parts that rows name."""
        return parts.known(self.database, names)

    def part_names(self) -> list[str]:
        """Return every part that a row names: any other in the store is an orphan."""
        return parts.names(self.database)

    def accept_missing(self, missing: Sequence[str]) -> None:
        """Note that the bytes of these parts are gone: reading one names its loss."""
        if missing:
            self.change(partial(parts.accept_missing, missing=missing))

    def parts_of_write(self, write_id: str) -> list[str]:
        """Return the names of the parts of all whole attempts of a write."""
        return parts.names_of_write(self.database, write_id)

    def note_lost(self, lost: Sequence[str]) -> None:
        """Note that the process that had the bytes of these parts has died: no finish may list them."""
        if lost:
            self.change(partial(parts.note_lost, names=lost))

    def freeable(self) -> list[str]:
        """Return the retired parts that no ticket names any more."""
        return parts.freeable(self.database, self.now())

    def held_by_tickets(self) -> tuple[int, float]:
        """Return the bytes of retired parts that read tickets still name, and the time at which the last one ends."""
        return parts.held_by_tickets(self.database, self.now())

    def forget(self, freed: Sequence[str]) -> None:
        """Drop the rows of retired parts, once their bytes are gone."""
        if freed:
            self.change(partial(parts.forget, freed=freed))

    def unused_schemas(self, most: int) -> list[int]:
        """Return some of the schemas that nothing refers to."""
        with self.reading() as reader:
            return tables.unused_schemas(reader, most)

    def forget_schemas(self, unused: Sequence[int]) -> None:
        """Drop schemas, without those that something refers to by now."""
        self.change(partial(tables.forget_schemas, unused=unused))

    # --- the store ----------------------------------------------------------------------------

    def owns(self, store: str) -> bool:
        """Whether the parts in the store of this name are this ledger's."""
        return self.database.row("SELECT 1 FROM stores WHERE name = ?", store) is not None

    def own(self, store: str) -> None:
        """Make the store of this name, which has no parts yet, this ledger's."""
        self.change(lambda t: t.insert("stores", name=store))

    def totals(self) -> dict[str, int]:
        """Return the counts for health and metrics."""
        row = self.database.row(
            "SELECT datasets, rows, dataset_parts, compacted,"
            " (SELECT count(*) FROM writes WHERE state = 'open') AS open_writes,"
            " (SELECT coalesce(sum(bytes), 0) FROM parts WHERE state = 'visible') AS visible_bytes,"
            " (SELECT coalesce(sum(bytes), 0) FROM parts WHERE state = 'retired') AS retired_bytes"
            " FROM (SELECT count(*) AS datasets, coalesce(sum(rows), 0) AS rows, coalesce(sum(parts), 0) AS"
            " dataset_parts, CAST(coalesce(max(compacted), 0) AS INTEGER) AS compacted FROM datasets)"
        )
        return dict(row) if row is not None else {}

    def close(self) -> None:
        """Close the file."""
        self.database.close()
