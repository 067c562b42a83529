"""Payloads at the server: many of them in one do_put, and where the bytes of a key are."""

from __future__ import annotations

import base64
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from penstock import steps
from penstock.errors import InvalidRequest, LimitExceeded
from penstock.flight_server.gate import Call
from penstock.flight_server.state import State
from penstock.flight_server.storing import IN_FLIGHT, SMALL, SMALL_IN_FLIGHT, discard_running, next_stored
from penstock.flight_server.tickets import ReadTicket
from penstock.flight_server.upload import Upload
from penstock.ledger import payloads
from penstock.rows.payload import carrying
from penstock.rows.slices import size_of
from penstock.store.database import Unsettled
from penstock.store.payload_table import PayloadRow
from penstock.store.payloads import NewPayload
from penstock.wire import payloads as wire
from penstock.wire.paths import check_key
from penstock.wire.put import Receipt

TICKET_LIFE = 600.0
"""Seconds for which the tickets of `find` are good: their reader uses them at once, and deleted bytes stay so long."""
_KEYS = 10_000  # keys in one answer


def put_payloads(state: State, upload: Upload) -> Receipt:
    """Keep the payloads of one stream, all in one transaction.

    1. The bytes of large ones are durable, unseen; small ones wait in memory. 2. The trailer says that the stream is
    whole. 3. One transaction points the keys at them. After a crash in between, parts that no row names are orphans.
    """
    rows = receive(state, upload, partial(_name, state.ledger.now(), upload))
    steps.passed("payloads.durable")
    try:
        state.ledger.bind_payloads(rows)  # 3.
    except Unsettled:
        raise
    except BaseException:
        discard(state, rows)
        raise
    steps.passed("payloads.bound")
    parts = sum(row.part is not None for row in rows)
    return Receipt("", upload.attempt, upload.rows, sum(row.bytes for row in rows), parts, "")


@dataclass(frozen=True, slots=True)
class Named:
    """How a payload of a stream is kept."""

    key: str
    split_id: str
    metadata: Mapping[str, Any]
    expires: float | None = None


def _name(now: float, upload: Upload, note: wire.PayloadNote) -> Named:
    key = note.key or ""
    folder, _, _ = key.rpartition("/")  # a worker stages there what it forwards: it needs no more than its queues
    upload.check_right("write", folder if folder.startswith("queue/") else f"store/{key}")
    return Named(key, note.split_id or key, note.metadata or {}, None if note.ttl is None else now + note.ttl)


class _Storing:
    """The payloads of a stream on their way to where they are durable, in the pool's threads or in the rows."""

    def __init__(self, state: State, file_bytes: int) -> None:
        self._state, self._file_bytes = state, file_bytes
        self.rows: list[PayloadRow] = []
        self._running: deque[Future[list[PayloadRow]]] = deque()
        self._file: list[NewPayload] = []
        """Those of the next file."""
        self._size = 0

    def add(self, new: NewPayload) -> None:
        """Keep a payload, in its row or in a file with its neighbours."""
        if (row := new.inline()) is not None:
            self.rows.append(row)
            return
        if self._size + new.bytes > self._file_bytes:
            self._store()
        self._file.append(new)
        self._size += new.bytes

    def end(self) -> None:
        """Wait until all are durable."""
        self._store()
        while self._running:
            self._take_stored()

    def discard(self) -> None:
        """Delete what is stored, and what is being stored once it is."""
        discard(self._state, self.rows)
        discard_running(self._running, lambda rows: discard(self._state, rows))

    def _take_stored(self) -> None:
        stored: list[PayloadRow] = next_stored(self._running, "store/")
        self.rows += stored

    def _store(self) -> None:
        if self._file:
            if len(self._running) >= (SMALL_IN_FLIGHT if self._size <= SMALL else IN_FLIGHT):
                self._take_stored()
            self._running.append(self._state.pool.submit(self._state.store.keep_together, self._file))
            self._file, self._size = [], 0


def receive(
    state: State,
    upload: Upload,
    name: Callable[[wire.PayloadNote], Named | None],
    default: wire.PayloadNote | None = None,
    *,
    file_bytes: int = 0,
) -> list[PayloadRow]:
    """Return the payloads of a stream for `payloads.bind`, whose bytes are durable or in the rows themselves.

    `name` is called for each payload in the stream's order; None: its note is all that there is. `default` is the note
    of a batch without one. Neighbours share a file of up to `file_bytes`, and its fsyncs.
    """
    storing = _Storing(state, file_bytes)
    keys = set[str]()
    try:
        for note, batches in _payloads(upload, default):
            named = name(note)
            if named is None:
                _check_is_empty(batches)
                continue
            key = _add_key(keys, named.key)
            schema = carrying(upload.schema, named.split_id, named.metadata)
            storing.add(NewPayload.of(key, schema, batches, path=f"store/{key}", expires=named.expires))
        storing.end()
        upload.check_whole()  # 2.
        state.store.check_room(sum(row.bytes for row in storing.rows if row.part is None))
    except BaseException:
        storing.discard()
        raise
    return storing.rows


def _check_is_empty(batches: list[pa.RecordBatch]) -> None:
    if any(batch.num_rows for batch in batches):
        raise InvalidRequest("a message with a payload_key of its own brings rows: send it without them")


def discard(state: State, rows: list[PayloadRow]) -> None:
    """Delete the bytes of payloads that no transaction named."""
    state.store.discard(row.part for row in rows if row.part is not None)


def _payloads(
    upload: Upload, default: wire.PayloadNote | None
) -> Iterator[tuple[wire.PayloadNote, list[pa.RecordBatch]]]:
    """Give each payload of a stream: the note of its first batch, and its batches."""
    first: wire.PayloadNote | None = None
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch, note in upload.noted(wire.PayloadNote, default):
        first = first or note
        if note.key not in (None, first.key):
            raise InvalidRequest(f"the payload {first.key} lacks its end: the batch before {note.key} says `more`")
        batches.append(batch)
        size += size_of(batch)
        upload.check_payload(size)
        if not note.more:
            yield first, batches
            first, batches, size = None, [], 0
    if first is not None:
        raise InvalidRequest(f"the payload {first.key} lacks its end: its last batch says `more`")


def _add_key(keys: set[str], key: str) -> str:
    """Add a payload's key to those of its stream; reject one that is there already."""
    if check_key(key) in keys:
        raise InvalidRequest(f"the key {key} comes twice in a stream: send it once")
    keys.add(key)
    _check_count(len(keys), wire.MOST_PAYLOADS, "payloads in a stream")
    return key


def _check_count(count: int, most: int, what: str) -> None:
    if count > most:
        raise LimitExceeded(f"{what}: expected at most {most:,}: send the others in another call")


# --- reading -------------------------------------------------------------------------------


def find(state: State, call: Call, request: wire.FindPayloads) -> wire.FoundPayloads:
    """Return where the bytes of keys are."""
    _check_count(len(request.keys), wire.MOST_KEYS, "keys in a request")
    expires = time.time() + TICKET_LIFE
    answers = []
    located = state.ledger.look_up_payloads(request.keys, ticketed_until=expires)
    for key, each in zip(request.keys, located, strict=True):
        if each is None:
            if state.ledger.has_dataset(f"store/{key}"):
                answers.append(wire.FoundPayload(key))
        elif each.inline is not None:
            answers.append(wire.FoundPayload(key, base64.b64encode(each.inline).decode()))
        else:
            answers.append(wire.FoundPayload(key, None, read_ticket(state, call, key, each, expires), each.rows))
    return wire.FoundPayloads(tuple(answers), state.local)


def read_ticket(
    state: State, call: Call, key: str, located: payloads.Bytes, expires: float, *, through: str | None = None
) -> str:
    """Return a read ticket for the part of a payload or a split, which may be a message's `through` a queue."""
    assert located.part is not None
    ticket = ReadTicket(
        (located.part,), f"store/{key}", round(expires, 3), written=(located.rows,), digests=(located.digest or "",),
        by=call.who or None, through=through,
    )  # fmt: skip
    return state.signer.sign(ticket).decode()


def keys(state: State, request: wire.ListPayloads) -> wire.PayloadKeys:
    """Return some of the keys that begin with a prefix."""
    return wire.PayloadKeys(tuple(state.ledger.payload_keys(request.prefix, after=request.after, most=_KEYS)))


def clear(state: State, request: wire.ClearPayloads) -> wire.ClearedPayloads:
    """Delete the payloads whose keys begin with a prefix."""
    cleared = state.ledger.clear_payloads(request.prefix)
    state.sweeper.soon()
    return wire.ClearedPayloads(cleared)
