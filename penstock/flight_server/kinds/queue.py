"""queue/…: queues of work, whose messages workers claim in leases."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import InvalidRequest, LeaseLost, Lost, NotFound
from penstock.flight_server import endpoints, payloads
from penstock.flight_server.gate import Call
from penstock.flight_server.kinds.kind import Handler, Handlers, Kind
from penstock.flight_server.metrics import Gauge
from penstock.flight_server.pacing import Polls, Rates
from penstock.flight_server.push import Pushed, push
from penstock.flight_server.selection import Selection, select
from penstock.flight_server.state import State
from penstock.flight_server.upload import Admit
from penstock.ledger import parts
from penstock.ledger import payloads as rows_of_payloads
from penstock.ledger.parts import Slice
from penstock.ledger.payloads import Bytes
from penstock.queue.work import records
from penstock.queue.work.lease_queue import Lease
from penstock.queue.work.ledger_queue import LedgerQueue
from penstock.queue.work.messages import PeekedMessage
from penstock.rows import schemas
from penstock.store.payload_table import encode
from penstock.wire import actions as wire
from penstock.wire import queue as bodies
from penstock.wire.job import RECEIPTS
from penstock.wire.kafka import KafkaAddress
from penstock.wire.paths import Path
from penstock.wire.put import PutCommand, Receipt
from penstock.wire.read import Entry, ReadCommand

if TYPE_CHECKING:
    from penstock.queue.kafka.kafka_queue import KafkaQueue

log = logging.getLogger("penstock")
_MOST_CLAIMED = 256
"""Messages of one claim's answer: each may have 43 kB of payload in it, and a body 16 MiB."""
_MOST_PEEKED = 10_000
"""Messages that a peek shows."""
MESSAGES = pa.schema(
    [
        ("message_id", pa.string()), ("split_id", pa.string()), ("payload_key", pa.string()),
        ("metadata", pa.string()), ("timestamp", pa.timestamp("us", "UTC")), ("bytes", pa.int64()),
        ("state", pa.string()), ("tries", pa.int32()), ("worker", pa.string()), ("error", pa.string()),
        ("text", pa.string()), ("trace", pa.string()), ("ended", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
"""The columns of a peek; `metadata` is JSON, `error` to `ended` are of dead messages, and of those that failed once."""


class QueueKind(Kind):
    """Queues: a put pushes messages, with their payloads; actions claim them and end their leases."""

    name = "queue"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._on_kafka = _open_kafka(state)
        self.queue = self._on_kafka or LedgerQueue(state.ledger, lease=state.config.queue_lease)
        self._polls = Polls()
        self._rates = Rates()
        state.metrics.gauges(self._gauges)
        self._ended = state.metrics.counter(
            "penstock_leases_total", "Leases that ended, by how: ack, forward, release, drop; lost: refused.", "how"
        )

    def start(self) -> None:
        if self._on_kafka is not None:
            self._on_kafka.link.start()

    def close(self) -> None:
        if self._on_kafka is not None:
            self._on_kafka.link.close()

    def tend(self, stop: Callable[[], bool]) -> None:
        self.queue.tend(stop)

    def totals(self) -> dict[str, int]:
        return {"queues": self.queue.count()}

    def actions(self) -> Handlers:
        yield Handler(wire.CLAIM_MESSAGES, self.claim)
        yield Handler(wire.ACK_LEASES, self.ack)
        yield Handler(wire.RELEASE_LEASES, self.release)
        yield Handler(wire.RELEASE_WORKER, self.release_worker)
        yield Handler(wire.EXTEND_LEASES, self.extend)
        yield Handler(wire.DROP_LEASES, self.drop)
        yield Handler(wire.REDRIVE_MESSAGES, self.redrive)
        yield Handler(wire.FINISH_QUEUE, self.finish)
        yield Handler(wire.PUSH_DATASET, self.push_dataset)
        yield Handler(wire.CREATE_QUEUE, self.create)

    # --- leases -----------------------------------------------------------------------------

    def claim(self, call: Call, request: bodies.ClaimMessages) -> bodies.ClaimedMessages:
        """Lease messages; a worker that gets none is told when to ask again, and holds no thread meanwhile."""
        most, worker = min(request.most, _MOST_CLAIMED), request.worker[:200]
        try:
            claim = self.queue.claim(
                request.path, request.claim, worker=worker, most=most, to=request.to, room=request.room
            )
        except NotFound as missing:
            missing.retry_after = self._polls.wait(time.monotonic())
            raise
        wait = None if claim.leases or claim.state != "open" else self._polls.wait(time.monotonic())
        return bodies.ClaimedMessages(
            claim.state,
            tuple(self._with_payloads(call, request.path, claim.leases)),
            self.queue.lease,
            claim.cause,
            wait,
            self.state.local,
        )

    def _with_payloads(self, call: Call, queue: str, leases: Sequence[Lease]) -> Iterator[bodies.ClaimedMessage]:
        """Give the messages, each with the bytes of its payload or a ticket for them; with neither if they are gone.

        A ticket needs nothing that holds its part: the message does, for as long as its lease lasts.
        """
        expires = self.state.ticket_expiry()
        with self.state.ledger.reading() as reader:
            for lease in leases:
                located = None
                if lease.part is not None:
                    located = Bytes(None, lease.part, *parts.written(reader, lease.part))
                elif lease.message.payload_key:
                    with suppress(Lost):
                        located = rows_of_payloads.look_up(reader, lease.message.payload_key, 0.0)
                inline = ticket = None
                if located is not None and located.inline is not None:
                    inline = base64.b64encode(located.inline).decode()
                elif located is not None:
                    ticket = payloads.read_ticket(
                        self.state, call, lease.message.payload_key, located, expires, through=queue
                    )
                yield bodies.ClaimedMessage(lease.message, lease.key.token, lease.tries, inline, ticket)

    def ack(self, call: Call, request: bodies.AckLeases) -> bodies.LeaseOutcomes:
        """Note messages as done."""
        return self._answer("ack", request.leases, self.queue.ack(request.leases))

    def release(self, call: Call, request: bodies.ReleaseLeases) -> bodies.LeaseOutcomes:
        """Give messages back."""
        failure = request.failure and request.failure.cut()
        outcomes = self.queue.release(request.leases, delay=request.delay, failure=failure)
        return self._answer("release", request.leases, outcomes)

    def release_worker(self, call: Call, request: bodies.ReleaseWorker) -> bodies.ReleasedMessages:
        """Give back what a worker has claimed that has ended."""
        return bodies.ReleasedMessages(self.queue.release_worker(request.path, request.worker[:200]))

    def extend(self, call: Call, request: bodies.ExtendLeases) -> bodies.LeaseOutcomes:
        """Let leases last for longer."""
        return bodies.LeaseOutcomes(tuple(self.queue.extend(request.leases)))

    def drop(self, call: Call, request: bodies.DropLeases) -> bodies.LeaseOutcomes:
        """Set messages aside as dead."""
        outcomes = self.queue.drop(request.leases, request.failure.cut())
        return self._answer("drop", request.leases, outcomes)

    def redrive(self, call: Call, request: bodies.RedriveMessages) -> bodies.RedrivenMessages:
        """Make dead messages pending again."""
        return bodies.RedrivenMessages(self.queue.redrive(request.path, request.message_ids))

    def create(self, call: Call, request: bodies.CreateQueue) -> bodies.QueueCounts:
        """Make a queue whose messages are records of a topic."""
        if self._on_kafka is None:
            raise InvalidRequest(
                f"{request.path}: this server has no Kafka: start it with penstock serve --kafka kafka://host:port"
            )
        return self._on_kafka.create(request.path, KafkaAddress.parse(request.topic))

    def finish(self, call: Call, request: bodies.FinishQueue) -> bodies.QueueCounts:
        """Note that clients push no more."""
        return self.queue.finish(request.path)

    def push_dataset(self, call: Call, request: bodies.PushDataset) -> bodies.PushedMessages:
        """Push a message for each part of a dataset: nothing is copied."""
        kind, dataset = self.state.locate(request.dataset)
        if kind.name != "store":
            raise InvalidRequest(f"{dataset} is no dataset: expected store/NAME, whose parts are splits")
        return bodies.PushedMessages(self.queue.push_dataset(request.path, str(dataset), request.last))

    def _answer(
        self, how: str, leases: Sequence[bodies.LeaseKey], outcomes: list[bodies.LeaseOutcome]
    ) -> bodies.LeaseOutcomes:
        for lease, outcome in zip(leases, outcomes, strict=True):
            self._note(how, lease, outcome)
        self.state.sweeper.soon()
        return bodies.LeaseOutcomes(tuple(outcomes))

    # --- pushing ----------------------------------------------------------------------------

    def put(self, path: Path, command: PutCommand, admit: Admit) -> Receipt:
        """Push the messages of a stream; with `forward` they are what was made of leased ones, which are acked."""
        if command.mode == "overwrite" or command.create is not None or (command.run is not None and not command.brief):
            raise InvalidRequest(f"{path} is a queue, which only takes messages: omit mode, run and create")
        leases = command.forward or ()
        if not leases:  # a worker that waited here would keep its own queue from draining
            self.state.queue_bound.admit(str(path))
        with admit() as upload:
            try:
                receipt = push(self.state, self.queue, Pushed(self.state.ledger, path, command), upload)
            except LeaseLost:
                self._ended.labels("lost").inc(len(leases))
                raise
        outcomes = receipt.outcomes or (bodies.LeaseOutcome("done"),) * len(leases)
        for lease, outcome in zip(leases, outcomes, strict=True):
            self._note("forward", lease, outcome)
        return receipt

    def _note(self, how: str, lease: bodies.LeaseKey, outcome: bodies.LeaseOutcome) -> None:
        self._ended.labels("lost" if outcome.code else how).inc()
        if outcome.state == "done":
            self._rates.note(lease.queue, time.monotonic())

    # --- what is seen -----------------------------------------------------------------------

    def info(
        self, call: Call, path: Path, command: ReadCommand, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Show messages and their state: those that aren't done, or at …/dead the dead ones."""
        selection = _select(path, command)
        expires = self.state.ticket_expiry()
        queue, is_dead = _of_dead(path)
        peeked = self.queue.peek(queue, dead=is_dead, most=_MOST_PEEKED)
        stream = pa.py_buffer(encode(MESSAGES, _to_batches(peeked)))
        rows = Slice("", len(peeked), stream.size, MESSAGES, len(peeked), inline=stream)
        entry = Entry(str(path), "messages", len(peeked), stream.size, 1)
        return endpoints.readable(self.state, call, descriptor, selection, [rows], entry, expires)

    def schema(self, path: Path, command: ReadCommand) -> pa.Schema:
        self.queue.counts(_of_dead(path)[0])  # or the error that there is none
        return _select(path, command).schema

    def flights(self, folder: Path, *, folders: bool) -> Iterator[flight.FlightInfo]:
        """List the queues below a folder, at any depth: they have no lines for folders."""
        queue, is_dead = _of_dead(folder) if folder.key else (str(folder), False)
        if is_dead:
            counts = self.queue.counts(queue)
            yield endpoints.listed(Entry(str(folder), "messages", counts.dead))
            return
        for counts in self.queue.below(queue) or ([self.queue.counts(queue)] if folder.key else []):
            yield endpoints.listed(Entry(counts.path, "queue", counts.pushed, counts.bytes, state=counts.state))

    def describe(self, path: Path) -> wire.Description:
        queue, is_dead = _of_dead(path)
        counts = self.queue.counts(queue)
        if is_dead:
            return wire.Description("messages", str(path), counts.dead, schema=schemas.to_json(MESSAGES))
        upstreams = tuple(bodies.Upstream(*each) for each in self.queue.upstreams(queue))
        described = bodies.QueueDescription(counts, *self._pace(counts), upstreams)
        return wire.Description("queue", queue, counts.pushed, counts.bytes, queue=described)

    def _pace(self, counts: bodies.QueueCounts) -> tuple[float, float]:
        """Return the messages done per second, and the seconds for which what is pending lasts."""
        rate = self._rates.per_second(counts.path, time.monotonic())
        if counts.oldest is None:
            return rate, 0.0
        return rate, counts.pending / rate if rate else max(0.0, self.state.ledger.now() - counts.oldest)

    def delete(self, path: Path) -> wire.Deleted:
        """Remove a queue with its messages: leases are over, and payloads go that only its messages name."""
        counts = self.queue.counts(str(path))
        self.queue.remove(str(path))
        return wire.Deleted(str(path), counts.pushed, counts.bytes, 0)

    def _gauges(self) -> Iterator[Gauge]:
        now = self.state.ledger.now()
        listed = {counts.path: counts for counts in self.queue.below("queue/")}
        for counts in listed.values():
            above, _, name = counts.path.rpartition("/")
            if name == RECEIPTS and above in listed:
                continue  # of a job's sink: they wait for no worker, so their age would alarm for nothing
            labels = {"queue": counts.path}
            for state in ("pending", "claimed", "done", "dead"):
                number = getattr(counts, state)
                yield Gauge("penstock_queue_messages", "Messages, by state.", number, labels | {"state": state})
            yield Gauge("penstock_queue_bytes", "Bytes of payloads of messages that aren't done.", counts.bytes, labels)
            age = 0.0 if counts.oldest is None else max(0.0, now - counts.oldest)
            yield Gauge("penstock_queue_oldest_seconds", "Age of the oldest pending message.", age, labels)
            _, lag = self._pace(counts)
            yield Gauge("penstock_queue_lag_seconds", "How long what is pending lasts, at its rate.", lag, labels)


def _open_kafka(state: State) -> KafkaQueue | None:
    """Return the queues of a server with a broker, and warn of queues whose broker it hasn't."""
    address = None if state.config.kafka is None else KafkaAddress.parse(state.config.kafka)
    for queue in records.on_topics(state.ledger.database):
        if (broker := KafkaAddress.parse(queue.topic).broker) != (address and address.broker):
            log.warning(
                "%s is on %s, which this server was started without: its messages wait here, start with --kafka "
                "kafka://%s",
                queue.path, queue.topic, broker,
            )  # fmt: skip
    if address is None:
        return None
    from penstock.queue.kafka.kafka_queue import KafkaQueue

    return KafkaQueue(state.ledger, address, lease=state.config.queue_lease)


def _to_batches(peeked: Sequence[PeekedMessage]) -> list[pa.RecordBatch]:
    """Return messages as rows of a peek."""
    rows = [
        {
            "message_id": each.message.message_id, "split_id": each.message.split_id,
            "payload_key": each.message.payload_key, "metadata": json.dumps(each.message.metadata),
            "timestamp": round(each.message.timestamp * 1e6), "bytes": each.bytes, "state": each.state,
            "tries": each.tries, "worker": each.worker,
            "ended": None if each.ended is None else round(each.ended * 1e6),
            **({} if each.failure is None else each.failure.to_json()),
        }
        for each in peeked
    ]  # fmt: skip
    batches: list[pa.RecordBatch] = pa.Table.from_pylist(rows, MESSAGES).to_batches()
    return batches


def _of_dead(path: Path) -> tuple[str, bool]:
    """Return the queue's path, and whether the path is that of its dead messages, …/dead."""
    queue, _, last = path.key.rpartition("/")
    return (f"queue/{queue}", True) if last == "dead" and queue else (str(path), False)


def _select(path: Path, command: ReadCommand) -> Selection:
    ranges = (command.start, command.end, command.since, command.journal, command.shards, command.part)
    if ranges != (None,) * 6:
        raise InvalidRequest(f"{path} has no offsets and no parts: read it by columns, filter and limit alone")
    return select(command, str(path), MESSAGES)
