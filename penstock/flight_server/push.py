"""do_put to a queue: messages with their payloads are pushed, many in one transaction, which may ack leases, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock import steps
from penstock.errors import InvalidRequest, NotFound, of_code
from penstock.flight_server.payloads import Named, discard, receive
from penstock.flight_server.state import State
from penstock.flight_server.storing import SMALL
from penstock.flight_server.upload import Upload
from penstock.ledger import payloads
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.work import messages
from penstock.queue.work.lease_queue import Forward, NewMessage
from penstock.queue.work.ledger_queue import LedgerQueue
from penstock.store.database import Unsettled
from penstock.store.medium import file_of
from penstock.store.payload_table import PayloadRow
from penstock.wire.message import QueueMessage
from penstock.wire.paths import Path
from penstock.wire.payloads import PayloadNote
from penstock.wire.put import PutCommand, Receipt
from penstock.wire.queue import LeaseKey, LeaseOutcome


def push(state: State, queue: LedgerQueue, pushed: Pushed, upload: Upload) -> Receipt:
    """Take one stream to its receipt.

    1. The bytes of large payloads are durable, unseen, several in a file; small ones wait in memory. 2. The trailer
    says that the stream is whole. 3. One transaction stores the payloads, makes the messages pending, and acks the
    leases that they were made of. If a step fails, the bytes are deleted; after a crash in between, parts that no row
    names are orphans.
    """

    def name(note: PayloadNote) -> Named | None:
        if note.queue is not None:
            upload.check_right("write", note.queue)
        if note.payload_key and not pushed.is_staged(note):  # who claims the message gets these bytes
            for right in ("read", "write") if note.adopt else ("read",):
                upload.check_right(right, f"store/{note.payload_key}")
        return pushed.name(note)

    rows = receive(state, upload, name, PayloadNote(), file_bytes=SMALL)  # 1., 2.
    steps.passed("queue.stored")
    try:
        outcomes = _push(queue, pushed, rows)  # 3.
    except Unsettled:  # a crash may still bring the rows to light
        raise
    except BaseException:
        discard(state, rows)
        raise
    # Those of a repeat, and of leases that are over
    named = set(map(file_of, state.ledger.known_parts([row.part for row in rows if row.part is not None])))
    discard(state, [row for row in rows if row.part is not None and file_of(row.part) not in named])
    if not pushed.is_each and outcomes and outcomes[0].code is not None:
        raise of_code(outcomes[0].code, outcomes[0].text or "")
    parts = sum(row.part is not None for row in rows)
    told = tuple(outcomes) if pushed.is_each else None
    return Receipt("", upload.attempt, upload.rows, sum(row.bytes for row in rows), parts, "", told)


def _push(queue: LedgerQueue, pushed: Pushed, rows: Sequence[PayloadRow]) -> list[LeaseOutcome]:
    """Push the messages; return what became of the leases of each forward."""
    by_key = {row.key: row for row in rows}
    new = pushed.messages(by_key)

    def bind(index: int, t: Transaction) -> None:
        pushed.bind(t, index, by_key, new[index])

    if pushed.forwards == [()]:
        queue.push(new[0], bind=bind)
        return []
    both = zip(pushed.forwards, new, strict=True)
    return queue.forward([Forward(leases, tuple(some)) for leases, some in both], bind=bind)


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of a stream: its note, and the key of the payload that comes with it."""

    queue: str
    id: str
    note: PayloadNote
    key: str | None


class Pushed:
    """The messages of one stream, in its order, for each of its forwards.

    An output of leased messages is named after the first of them, its queue and its number there, a client's message
    after the attempt, so that a stream that comes twice brings the same messages.
    """

    def __init__(self, ledger: Ledger, path: Path, command: PutCommand) -> None:
        leases = command.forward or ()
        self.is_each = bool(command.each and leases)
        self.forwards = [(lease,) for lease in leases] if self.is_each else [leases]
        """The leases that end together; a push has one forward, without any."""
        self._ledger, self._path, self._attempt = ledger, str(path), command.attempt
        self._messages: list[list[_Message]] = [[] for _ in self.forwards]
        self._numbers = Counter[tuple[int, str]]()
        """Messages so far, by forward and queue."""

    def is_staged(self, note: PayloadNote) -> bool:
        """Whether a message adopts what was stored below its queue, where that queue's writers may store payloads."""
        below = f"{note.queue or self._path}/"
        return bool(note.adopt and note.payload_key and note.payload_key.startswith(below)) and (
            payloads.split_of(note.payload_key or "") is None
        )

    def name(self, note: PayloadNote) -> Named | None:
        """Return how the payload of the next message is kept; None for a message that brings none."""
        index, queue = note.lease or 0, note.queue or self._path
        if not 0 <= index < len(self.forwards):
            raise InvalidRequest(f"a note names lease {index}: expected the number of one in forward, which ends alone")
        name, number = queue.removeprefix("queue/"), self._numbers[index, queue]
        self._numbers[index, queue] += 1
        leases = self.forwards[index]
        if leases:
            message_id, owner = f"{leases[0].message_id}/{name}/{number}", leases[0].token
        else:
            message_id, owner = note.message_id or f"{self._attempt}_{number}", self._attempt
        key = f"queue/{name}/{owner}-{number}" if note.payload_key is None else None
        self._messages[index].append(_Message(queue, message_id, note, key))
        return None if key is None else Named(key, note.split_id or message_id, note.metadata or {})

    def messages(self, by_key: Mapping[str, PayloadRow]) -> list[list[NewMessage]]:
        """Return the messages of each forward, once their payloads are kept."""
        both = zip(self.forwards, self._messages, strict=True)
        return [[self._message(leases, each, by_key) for each in some] for leases, some in both]

    def _message(self, leases: Sequence[LeaseKey], named: _Message, by_key: Mapping[str, PayloadRow]) -> NewMessage:
        source = {"source_stage": leases[0].queue.removeprefix("queue/")} if leases else {}
        note, row = named.note, by_key.get(named.key or "")
        if row is None and note.adopt:
            row = self._ledger.payload(note.payload_key or "")  # None: `bind` rejects it, but of a repeat
        own = {} if row is None else {**source, "num_records": row.rows}
        message = QueueMessage(
            named.id, note.split_id or named.id, note.payload_key or "" if row is None else row.key,
            {**own, **(note.metadata or {})}, self._ledger.now() if note.timestamp is None else note.timestamp,
        )  # fmt: skip
        return NewMessage(named.queue, message, 0 if row is None else row.bytes)

    def bind(self, t: Transaction, index: int, by_key: Mapping[str, PayloadRow], new: Sequence[NewMessage]) -> None:
        """Store the payloads of those messages of a forward that are new, for as long as these aren't done."""
        known = messages.known(t, new)
        for each, message in zip(self._messages[index], new, strict=True):
            name = message.queue, message.message.message_id
            if name in known:
                continue
            known.add(name)  # a stream may bring one id twice
            if each.key is not None:
                payloads.bind(t, by_key[each.key], bound=True)
            elif each.note.payload_key:
                _check_exists(t, each.note.payload_key)
                if each.note.adopt:
                    payloads.adopt(t, each.note.payload_key)


def _check_exists(t: Transaction, key: str) -> None:
    if payloads.look_up(t, key, t.now) is None:
        raise NotFound(f"no payload store/{key}: store it before a message names it")
