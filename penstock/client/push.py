"""Push: payloads to keys, and messages with their payloads to queues, many in one stream and one transaction."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from penstock.client.connection import Connection
from penstock.client.put import Writer
from penstock.errors import InvalidRequest, of_code
from penstock.rows import slices
from penstock.rows.payload import SplitPayload, plain
from penstock.wire.actions import ACK_LEASES
from penstock.wire.message import QueueMessage
from penstock.wire.payloads import MOST_PAYLOADS, PayloadNote
from penstock.wire.put import PutCommand, Receipt
from penstock.wire.queue import AckLeases, LeaseKey, LeaseOutcome

_NOTHING = pa.schema([])
_STAGED = 3600.0
"""Seconds after which payloads are deleted whose messages were never pushed."""
_READY_BYTES = 1 << 20
"""A larger stream waits until the server has room for it: that is a round trip, a third of a small forward's time."""


@dataclass(frozen=True, slots=True)
class Output:
    """A message to be pushed, and its payload if that isn't stored yet."""

    queue: str
    note: PayloadNote
    data: pa.Table | None

    @property
    def bytes(self) -> int:
        """Of the payload that comes with the message."""
        return 0 if self.data is None else sum(map(slices.size_of, self.data.to_batches()))


def to_outputs(queue: object, payloads: Any) -> list[Output]:
    """Return what is to be pushed to a queue: a SplitPayload, a table, a QueueMessage, or a list of them."""
    if not isinstance(queue, str) or not queue.startswith("queue/"):
        raise InvalidRequest(f"{queue!r:.80} is no queue: expected a path such as 'queue/demo/out'")
    if isinstance(payloads, list | tuple | Iterator):
        return [_to_output(queue, each) for each in payloads]
    return [_to_output(queue, payloads)]


def _to_output(queue: str, data: Any) -> Output:
    if isinstance(data, QueueMessage):
        note = PayloadNote(
            queue=queue, message_id=data.message_id, split_id=data.split_id, payload_key=data.payload_key,
            metadata=data.metadata, timestamp=data.timestamp or None,
        )  # fmt: skip
        return Output(queue, note, None)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    elif hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.Table):  # pandas, polars, DuckDB
        data = pa.RecordBatchReader.from_stream(data).read_all()
    payload = SplitPayload.from_any(data, "")
    note = PayloadNote(queue=queue, split_id=payload.split_id or None, metadata=dict(payload.metadata) or None)
    return Output(queue, note, payload.data)


def push(connection: Connection, outputs: Sequence[Output]) -> int:
    """Push messages, those of one schema in one transaction; return how many."""
    for group in _by_schema(outputs):
        for start in range(0, len(group), MOST_PAYLOADS):
            _send(connection, group[start : start + MOST_PAYLOADS])
    return len(outputs)


def settle(
    connection: Connection, made: Sequence[tuple[LeaseKey, Sequence[Output]]], *, retry_for: float
) -> Sequence[LeaseOutcome]:
    """Note leased messages as done and push what was made of each, in one transaction; return what became of each."""
    leases = tuple(lease for lease, _ in made)
    outputs = [
        replace(output, note=replace(output.note, lease=index or None))
        for index, (_, own) in enumerate(made)
        for output in own
    ]
    return _settle(connection, leases, outputs, retry_for, each=True)


def settle_together(
    connection: Connection, leases: Sequence[LeaseKey], outputs: Sequence[Output], *, retry_for: float
) -> None:
    """Note leased messages as done and push what was made of them all; LeaseLost, and nothing, if one lease is over."""
    outcomes = _settle(connection, tuple(leases), outputs, retry_for, each=False)
    for outcome in outcomes:  # of leases without outputs, which are acked one by one
        if outcome.code is not None:
            raise of_code(outcome.code, outcome.text or "")


def _settle(
    connection: Connection, leases: tuple[LeaseKey, ...], outputs: Sequence[Output], retry_for: float, *, each: bool
) -> Sequence[LeaseOutcome]:
    if not outputs:
        return connection.call(ACK_LEASES, AckLeases(leases), retry_for=retry_for, waits_for_room=True).outcomes
    for group in _by_schema(outputs)[1:]:
        outputs = _staged(connection, outputs, group, leases, retry_for)
    return _send(connection, outputs, leases=leases, each=each, retry_for=retry_for).outcomes or ()


def _staged(
    connection: Connection,
    outputs: Sequence[Output],
    group: Sequence[Output],
    leases: tuple[LeaseKey, ...],
    retry_for: float,
) -> list[Output]:
    """Store the payloads of a group whose schema isn't the stream's; unless their messages adopt them, they go."""
    staged, payloads, numbers = [], [], Counter[tuple[int, str]]()
    of_group = set(map(id, group))
    for output in outputs:
        key, index = output.queue.removeprefix("queue/"), output.note.lease or 0
        if output.data is not None and id(output) in of_group:
            lease = leases[index]
            split_id = output.note.split_id or f"{lease.message_id}/{key}/{numbers[index, key]}"
            stored = f"queue/{key}/{lease.token}-{uuid.uuid4().hex[:8]}"
            metadata = output.note.metadata or {}
            payloads.append((stored, SplitPayload(output.data, split_id, metadata)))
            note = replace(output.note, payload_key=stored, adopt=True, split_id=split_id)
            staged.append(Output(output.queue, note, None))
        else:
            staged.append(output)
        numbers[index, key] += 1
    put_payloads(connection, payloads, ttl=_STAGED, retry_for=retry_for, waits_for_room=True)
    return staged


def _by_schema(outputs: Sequence[Output]) -> list[list[Output]]:
    """Group outputs by the schema of their payloads: a stream has one. Those without payload go with the first."""
    groups: dict[bytes, list[Output]] = {}
    for output in outputs:
        if output.data is not None:
            groups.setdefault(output.data.schema.serialize().to_pybytes(), []).append(output)
    bare = [output for output in outputs if output.data is None]
    first, *others = list(groups.values()) or [[]]
    return [first + bare, *others] if outputs else []


def _send(
    connection: Connection,
    outputs: Sequence[Output],
    *,
    leases: tuple[LeaseKey, ...] = (),
    each: bool = False,
    retry_for: float | None = None,
) -> Receipt:
    """Send one stream, again and again until it is answered: the attempt's id makes a repeat change nothing."""
    schema = next((each.data.schema for each in outputs if each.data is not None), _NOTHING)
    command = PutCommand(
        uuid.uuid4().hex, path=outputs[0].queue, forward=leases or None, each=each or None,
        ready=sum(each.bytes for each in outputs) > _READY_BYTES,
    )  # fmt: skip
    empty = schema.empty_table()

    def once() -> Receipt:
        with Writer(connection, command, schema) as writer:
            for output in outputs:
                _write(writer, empty if output.data is None else output.data, output.note)
        return writer.close()

    return connection.retry(once, retry_for=retry_for, waits_for_room=True)


def put_payloads(
    connection: Connection,
    payloads: Sequence[tuple[str, SplitPayload]],
    *,
    ttl: float | None,
    retry_for: float | None = None,
    waits_for_room: bool = False,
) -> None:
    """Keep payloads of one schema, all or none; sent again where the answer is lost, as each replaces its key's."""
    schema = plain(payloads[0][1].data.schema)

    def once() -> None:
        with Writer(connection, PutCommand(uuid.uuid4().hex, path="store/"), schema) as writer:
            for key, payload in payloads:
                split_id = None if payload.split_id == key else payload.split_id
                _write(writer, payload.data, PayloadNote(key, split_id, dict(payload.metadata) or None, ttl))

    connection.retry(once, retry_for=retry_for, waits_for_room=waits_for_room)


def _write(writer: Writer, table: pa.Table, note: PayloadNote) -> None:
    """Send one payload of a stream of many."""
    pieces = list(chain.from_iterable(map(slices.sliced, table.to_batches())))
    if not pieces:
        columns = [pa.nulls(0, each.type) for each in table.schema]
        pieces = [pa.RecordBatch.from_arrays(columns, schema=table.schema)]
    for piece in pieces[:-1]:
        writer.write_noted(piece, replace(note, more=True).encode())
    writer.write_noted(pieces[-1], note.encode())
