"""do_put to a queue: messages with their payloads are pushed, many in one transaction, which may ack leases, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from penstock import steps
from penstock.errors import InvalidRequest, NotFound, of_code
from penstock.flight_server.payloads import Named, discard, receive
from penstock.flight_server.state import State
from penstock.flight_server.upload import Upload
from penstock.ledger import payloads
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.work import messages
from penstock.queue.work.lease_queue import Forward, NewMessage
from penstock.queue.work.ledger_queue import LedgerQueue
from penstock.store.database import Unsettled
from penstock.store.payload_table import PayloadRow
from penstock.wire.message import QueueMessage
from penstock.wire.paths import Path
from penstock.wire.payloads import PayloadNote
from penstock.wire.put import PutCommand, Receipt


def push(state: State, queue: LedgerQueue, pushed: Pushed, upload: Upload) -> Receipt:
    """Take one stream to its receipt.

    1. The bytes of large payloads are durable, unseen; small ones wait in memory. 2. The trailer says that the stream
    is whole. 3. One transaction stores the payloads, makes the messages pending, and acks the leases that they were
    made of. If a step fails, the bytes are deleted; after a crash in between, parts that no row names are orphans.
    """
    rows = receive(state, upload, pushed.name, PayloadNote())  # 1., 2.
    steps.passed("queue.stored")
    try:
        _push(queue, pushed, rows)  # 3.
    except Unsettled:  # a crash may still bring the rows to light
        raise
    except BaseException:
        discard(state, rows)
        raise
    discard(state, [row for row in rows if row.part is not None and not state.ledger.has_part(row.part)])  # a repeat
    parts = sum(row.part is not None for row in rows)
    return Receipt("", upload.attempt, upload.rows, sum(row.bytes for row in rows), parts, "")


def _push(queue: LedgerQueue, pushed: Pushed, rows: Sequence[PayloadRow]) -> None:
    new = pushed.messages(rows)

    def bind(index: int, t: Transaction) -> None:
        pushed.bind(t, rows, new)

    if not pushed.leases:
        queue.push(new, bind=bind)
        return
    [outcome] = queue.forward([Forward(pushed.leases, tuple(new))], bind=bind)
    if outcome.code is not None:
        raise of_code(outcome.code, outcome.text or "")


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of a stream: its note, and the key of the payload that comes with it."""

    queue: str
    id: str
    note: PayloadNote
    key: str | None


class Pushed:
    """The messages of one stream, in its order.

    An output of leased messages is named after the first of them, its queue and its number there, a client's message
    after the attempt, so that a stream that comes twice brings the same messages.
    """

    def __init__(self, ledger: Ledger, path: Path, command: PutCommand) -> None:
        self.leases = command.forward or ()
        self._ledger, self._path, self._attempt = ledger, str(path), command.attempt
        self._messages: list[_Message] = []
        self._numbers = Counter[str]()
        """Messages so far, by queue."""

    def name(self, note: PayloadNote) -> Named | None:
        """Return how the payload of the next message is kept; None for a message that brings none."""
        queue = note.queue or self._path
        name, number = queue.removeprefix("queue/"), self._numbers[queue]
        self._numbers[queue] += 1
        if self.leases:
            message_id, owner = f"{self.leases[0].message_id}/{name}/{number}", self.leases[0].token
        else:
            message_id, owner = note.message_id or f"{self._attempt}_{number}", self._attempt
        key = f"queue/{name}/{owner}-{number}" if note.payload_key is None else None
        self._messages.append(_Message(queue, message_id, note, key))
        return None if key is None else Named(key, note.split_id or message_id, note.metadata or {})

    def messages(self, rows: Sequence[PayloadRow]) -> list[NewMessage]:
        """Return the messages, once their payloads are kept."""
        by_key = {row.key: row for row in rows}
        source = {"source_stage": self.leases[0].queue.removeprefix("queue/")} if self.leases else {}
        new = []
        for each in self._messages:
            note, row = each.note, by_key.get(each.key or "")
            if row is None and note.adopt:
                row = self._adopted(note)
            own = {} if row is None else {**source, "num_records": row.rows}
            message = QueueMessage(
                each.id, note.split_id or each.id, note.payload_key or "" if row is None else row.key,
                {**own, **(note.metadata or {})}, self._ledger.now() if note.timestamp is None else note.timestamp,
            )  # fmt: skip
            new.append(NewMessage(each.queue, message, 0 if row is None else row.bytes))
        return new

    def bind(self, t: Transaction, rows: Sequence[PayloadRow], new: Sequence[NewMessage]) -> None:
        """Store the payloads of those messages that are new, for as long as these aren't done."""
        by_key = {row.key: row for row in rows}
        known = set() if self.leases else messages.known(t, new)
        for each, message in zip(self._messages, new, strict=True):
            if (message.queue, message.message.message_id) in known:
                continue
            if each.key is not None:
                payloads.bind(t, by_key[each.key], bound=True)
            elif each.note.payload_key:
                _check_exists(t, each.note.payload_key)
                if each.note.adopt:
                    payloads.adopt(t, each.note.payload_key)

    def _adopted(self, note: PayloadNote) -> PayloadRow:
        """Return the payload that goes with its message from now on."""
        row = self._ledger.payload(note.payload_key or "")
        if row is None:
            raise InvalidRequest(f"no payload store/{note.payload_key} to adopt: store it before its message is pushed")
        return row


def _check_exists(t: Transaction, key: str) -> None:
    if payloads.look_up(t, key, t.now) is None:
        raise NotFound(f"no payload store/{key}: store it before a message names it")
