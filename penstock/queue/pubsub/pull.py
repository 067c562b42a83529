"""A puller: Pub/Sub's messages to a penstock server, and their acks back to Pub/Sub.

reader ──▶ inbox ──▶ sender ──▶ exchange ──▶ server
(N threads)   leases: extended while the server works, acked once it has released
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Literal, Protocol

import grpc
import pyarrow as pa

from penstock import steps
from penstock.errors import Internal, PenstockError, TimedOut, Unavailable
from penstock.queue.pubsub import acks, columns, history
from penstock.queue.pubsub.inbox import Inbox, Piece
from penstock.queue.pubsub.leases import Leases, Outcome, Request
from penstock.queue.pubsub.readers import PullReader, Reader, Response, StreamReader
from penstock.queue.pubsub.transport import PubSub, failures_of, is_retried, translate
from penstock.queue.pubsub.waits import Waits
from penstock.wire.exchange import Acks, Answer, Report, Welcome
from penstock.wire.position import Position

_log = logging.getLogger(__name__)

_IN_FLIGHT = 2
"""Batches without an answer: one is stored while the next one is on its way."""
_REPORT = 1.0
_RETRY_FOR = 600.0
"""Seconds for which a server that is away is waited for."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 3.0
_EXACTLY_ONCE_SECONDS = 60
"""The shortest lease of a subscription that confirms acks, as Google's clients have it."""
_ENDING = 5.0
"""Seconds that each step of a clean end may take."""
_ACKS, _ANSWERS, _ROOM = "Pub/Sub to take acks", "the server to answer batches", "room to read more"
"""What a puller waits for."""


class Exchange(Protocol):
    """The client's end of a stream to a penstock server: `penstock.client.exchange.Exchange`."""

    welcome: Welcome

    def send(self, batch: pa.RecordBatch) -> int: ...

    def report(self, report: Report | Acks, rows: pa.RecordBatch | None = ...) -> None: ...

    def finish(self) -> None: ...

    def close(self, timeout: float = ...) -> None: ...

    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PullOptions:
    """How a puller pulls."""

    method: Literal["streaming", "unary"] = "streaming"
    streams: int = 1
    lease_seconds: int = 60
    """How long Pub/Sub waits for a puller that has died, before it sends its messages to another one."""
    most_leases: int = 1_000_000
    """Messages that are received and not acked; their ids are about 250 bytes each."""
    most_bytes: int = 64 << 20
    """Bytes of messages that the server hasn't answered for."""


@dataclass(slots=True)
class _Batch:
    """Messages that the server hasn't answered for."""

    rows: pa.RecordBatch
    first: int
    size: int
    exchange: Exchange | None = None
    """Which one it was sent on."""


@dataclass(slots=True)
class _Threads:
    """The threads of a puller."""

    readers: list[Reader]
    sender: threading.Thread
    keeper: threading.Thread
    keeping: threading.Event = field(default_factory=threading.Event)
    """Cleared once no lease is to be extended or acked any more."""


class Puller:
    """Pulls one subscription until `run` is told to stop, or until an error that isn't worth another try.

    It also is the listener of its exchange.
    """

    def __init__(self, pubsub: PubSub, connect: Callable[[], Exchange], options: PullOptions) -> None:
        self.stopping = threading.Event()
        """Nothing more is read."""
        self._pubsub, self._connect, self._options = pubsub, connect, options
        self._changed = threading.Condition()  # all that follows
        self._leases = Leases(seconds=float(options.lease_seconds))
        self._inbox = Inbox()
        self._unanswered: deque[_Batch] = deque()
        self._bytes = 0
        """Of what is in either."""
        self._exchange: Exchange | None = None
        self._ends = 0
        """The number of exchanges that have ended."""
        self._lost: PenstockError | None = None
        """Why the last one has."""
        self._draining = False
        self._away_since: float | None = None
        self._pause = _SHORTEST_PAUSE
        self._error: PenstockError | None = None
        self._reported = 0.0
        self._unreported: dict[int, list[tuple[int, int]]] = {}
        self._asked: list[str] = []
        """Requests for all leases."""
        self._waits = Waits()
        self._ack_failure = "none has failed"
        """What Pub/Sub said last where it took no ack for now."""
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        name = pubsub.subscription.rpartition("/")[2]
        self._threads = _Threads(
            self._make_readers(),
            threading.Thread(target=self._guard, args=(self._send_all,), name=f"penstock-send-{name}", daemon=True),
            threading.Thread(target=self._guard, args=(self._keep_all,), name=f"penstock-leases-{name}", daemon=True),
        )

    def _make_readers(self) -> list[Reader]:
        names = [str(number) for number in range(self._options.streams)]
        if self._options.method == "unary":
            return [PullReader(self._pubsub, self, name) for name in names]
        client, most = str(uuid.uuid4()), max(1, self._options.most_leases // self._options.streams)
        return [StreamReader(self._pubsub, self, name, client=client, most_leases=most) for name in names]

    def run(self, stopped: Callable[[], bool]) -> None:
        """Pull until `stopped` says so, then end cleanly; raise the cause if it ends by itself."""
        threads = self._threads
        threads.keeping.set()
        threads.sender.start()
        threads.keeper.start()
        for reader in threads.readers:
            reader.start()
        _log.info(
            "%s: pulls by %d %s", self._pubsub.subscription, self._options.streams,
            "StreamingPull" if self._options.method == "streaming" else "unary Pull",
        )  # fmt: skip
        try:
            while not (stopped() or self.stopping.wait(0.1)):
                self._say_long_waits()
        finally:
            self._end()
        if self._error is not None:
            raise self._error

    def _say_long_waits(self) -> None:
        """Log what has been waited for too long: whoever should bring it may say nothing."""
        waits = {}
        with self._changed:
            if acks := self._leases.unsettled:
                waits[_ACKS] = f"{acks:,} requests; {self._ack_failure}"
            if self._bytes:
                waits[_ANSWERS] = f"{self._bytes:,} bytes of messages; if it is full, its log says so"
            if not self._has_room():
                waits[_ROOM] = f"{len(self._leases):,} messages aren't acked, {self._bytes:,} bytes aren't answered"
            lines = list(self._waits.look(time.monotonic(), waits))
        for line in lines:
            _log.warning("%s: %s", self._pubsub.subscription, line)

    def counters(self) -> dict[str, int]:
        """Return what happened since the start; `outstanding` and `unanswered` are of now."""
        with self._changed:
            return self._count()

    # --- the way of a response --------------------------------------------------------------

    def take(self, response: Response) -> None:
        """Take a response, and carry it to its end:

        1. Number its leases; from now on they are extended (`_keep_all`).
        2. Gather neighbours to a batch, and send it to the server (`_send_all`).
        3. The server answers once all rows are durable, with the place of each (`answered`): here a puller that dies
           stops being able to lose rows; until here Pub/Sub would send them again, and nobody would know them.
        4. The server says what every consumer is done with (`released`); what is below that is acked (`_keep_all`).
        5. Pub/Sub answers the ack; the server is told (`_report`), and may forget the messages' ids some time later.
        """
        pieces = list(columns.cut(response.received, response.size))
        with self._changed:
            if response.exactly_once and self._leases.seconds < _EXACTLY_ONCE_SECONDS:
                self._leases.seconds = _EXACTLY_ONCE_SECONDS
            for received in pieces:
                first = self._leases.received(
                    [each.ack_id for each in received], arrived=response.arrived, seconds=response.seconds
                )
                size = response.size * len(received) // len(response.received)
                self._inbox.add(Piece(received, first, size, time.monotonic()))
                self._bytes += size
            self._changed.notify_all()
        steps.passed("puller.received")

    def _send_all(self) -> None:
        """Send what was received, in batches; open exchanges, and report. All writes to an exchange are made here."""
        while self._goes_on():
            exchange = self._exchange or self._open()
            if exchange is None:
                continue
            batch = self._next_batch(exchange)
            try:
                if batch is not None:
                    exchange.send(batch.rows)
                    steps.passed("puller.sent")
                self._report(exchange)
                self._report_leases(exchange)
            except Unavailable:  # why, `ended` says
                self._abandon(exchange)

    def _abandon(self, exchange: Exchange) -> None:
        """Wait until an exchange that is of no more use has ended."""
        exchange.abandon()
        with self._changed:
            if not self._changed.wait_for(lambda: self._exchange is not exchange, _RETRY_FOR):
                self._fail(Internal(f"{self._pubsub.subscription}: an exchange that was abandoned did not end"))

    def _goes_on(self) -> bool:
        """Tell whether there is more to send: at the end, what has an exchange to be answered on."""
        with self._changed:
            return not self.stopping.is_set() or bool(self._unanswered and self._exchange and self._error is None)

    def _next_batch(self, exchange: Exchange) -> _Batch | None:
        """Return the next batch to send, or none if none is ready until the next report is due."""
        with self._changed:
            unsent = next((each for each in self._unanswered if each.exchange is not exchange), None)
            if unsent is not None:
                unsent.exchange = exchange
                return unsent
            pieces = self._gather(exchange)
        if not pieces:
            return None
        rows = columns.to_batch(chain.from_iterable(piece.received for piece in pieces))
        batch = _Batch(rows, pieces[0].first, sum(piece.size for piece in pieces), exchange)
        with self._changed:
            self._unanswered.append(batch)
        return batch

    def _gather(self, exchange: Exchange) -> list[Piece]:
        """Wait for enough messages and for a place in the window; return them, or nothing."""
        until = self._reported + _REPORT
        while not self.stopping.is_set() and self._exchange is exchange:
            now, wake = time.monotonic(), until
            if self._inbox and len(self._unanswered) < _IN_FLIGHT and not self._draining:
                due = self._inbox.due()
                if now >= due:
                    return self._inbox.take()
                wake = min(until, due)
            if now >= until or self._asked:
                return []
            self._changed.wait(max(0.001, wake - now))
        if self.stopping.is_set():
            self._changed.wait(0.05)  # for answers
        return []

    def answered(self, answer: Answer, places: pa.RecordBatch | None) -> None:
        """Take the places of the oldest batch's rows."""
        with self._changed:
            batch = self._unanswered.popleft() if self._unanswered else None
            if batch is None or places is None or places.num_rows != batch.rows.num_rows:
                self._fail(Internal(f"{self._pubsub.subscription}: answer {answer.n} is not that to the oldest batch"))
                return
            self._bytes -= batch.size
            self._waits.moved(_ANSWERS)
            self._away_since, self._pause = None, _SHORTEST_PAUSE
            self._leases.placed(
                batch.first,
                places.column("shard").to_numpy(),
                places.column("offset").to_numpy(),
                places.column("duplicate").to_numpy(zero_copy_only=False),
            )
            self._changed.notify_all()
        steps.passed("puller.placed")
        self._finish_drained()

    def released(self, position: Position) -> None:
        """Ack what is below this position."""
        with self._changed:
            self._leases.released(position)
            self._changed.notify_all()

    # --- leases and acks --------------------------------------------------------------------

    def _keep_all(self) -> None:
        """Extend and ack what is due, before any data: this thread never waits for the server or for Pub/Sub."""
        tended = 0.0
        while self._threads.keeping.is_set():
            with self._changed:
                now = time.monotonic()
                requests = self._leases.due(now)
                if not requests:
                    wait = self._leases.wait(now)
                    self._changed.wait(1.0 if wait is None else min(max(wait, 0.001), 1.0))
            for request in requests:
                self._call(request)
            if now - tended >= 1.0 and not self.stopping.is_set():
                tended = now
                for reader in self._threads.readers:
                    reader.tend(now, expecting=self._expects_messages())

    def _expects_messages(self) -> bool:
        """Tell whether more leases have ended without an ack than messages have come again."""
        counters = self._leases.counters
        return counters["lapses"] + counters["acks_failed"] > counters["duplicates"]

    def _call(self, request: Request) -> None:
        if request.verb == "ack":
            steps.passed("puller.acking")
            future = self._pubsub.acknowledge(request.ack_ids)
        else:
            future = self._pubsub.modify(request.ack_ids, request.seconds)
        future.add_done_callback(partial(self._called, request))

    def _called(self, request: Request, future: Any) -> None:
        """Take what came of a call, in gRPC's thread."""
        outcome: Outcome = "ok"
        failures: dict[str, str] = {}
        error = grpc.FutureCancelledError() if future.cancelled() else future.exception()
        if isinstance(error, grpc.RpcError):
            failures = failures_of(error)
            if is_retried(error) or not failures:  # else the other ids have had their effect
                outcome = "transient"
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self.broken()
            if not (is_retried(error) or failures):
                self.fail(translate(error, self._pubsub.subscription))
        elif error is not None:
            outcome = "transient"
        with self._changed:
            if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.NOT_FOUND:
                self._leases.forget()  # a subscription that is made again has other ids
            self._leases.settle(request, time.monotonic(), outcome, failures)
            if request.verb != "extend" and outcome == "ok":
                self._waits.moved(_ACKS)
            elif request.verb != "extend" and isinstance(error, grpc.RpcError):
                self._ack_failure = str(translate(error, "the last failure"))
            self._changed.notify_all()
        if request.verb == "ack" and outcome == "ok":
            steps.passed("puller.acked")

    def broken(self) -> None:
        """Forget all leases of an emulator: it may have been started anew, where a held id acks another message."""
        if self._pubsub.emulated:
            with self._changed:
                self._leases.forget()
                self._changed.notify_all()

    # --- readers ----------------------------------------------------------------------------

    def lease_seconds(self) -> int:
        with self._changed:
            return int(self._leases.seconds)

    def wait_for_room(self) -> None:
        """Wait until more messages may be read, or until the end."""
        with self._changed:
            while not (self.stopping.is_set() or self._has_room()):
                self._changed.wait(1.0)

    def _has_room(self) -> bool:
        return len(self._leases) < self._options.most_leases and self._bytes < self._options.most_bytes

    # --- the exchange -----------------------------------------------------------------------

    def _open(self) -> Exchange | None:
        """Open an exchange, or wait a moment."""
        with self._changed:
            ends, lost, self._lost = self._ends, self._lost, None
        if lost is not None:
            self._note_away(lost)
            return None
        try:
            exchange = self._connect()
        except (Unavailable, TimedOut) as error:
            self._note_away(error)
            return None
        except PenstockError as error:
            self.fail(error)
            return None
        with self._changed:
            if self._ends != ends:  # already
                return None
            self._exchange, self._draining = exchange, False
            if not self._unanswered:
                self._away_since, self._pause = None, _SHORTEST_PAUSE
            if exchange.welcome.released is not None:
                self._leases.released(exchange.welcome.released)
            self._changed.notify_all()
        return exchange

    def _note_away(self, error: PenstockError) -> None:
        """Wait before the next try, or give up."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            if self._draining:
                _log.info("%s: the penstock server is stopping", self._pubsub.subscription)
            else:
                _log.warning("%s: the penstock server is away: %s", self._pubsub.subscription, error)
        if now - self._away_since > _RETRY_FOR:
            text = f"{self._pubsub.subscription}: the penstock server was away for {_RETRY_FOR:g} s: {error}"
            self.fail(Unavailable(text))
        self.stopping.wait(max(self._pause, error.retry_after or 0.0))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def draining(self) -> None:
        """Send no more batches on this exchange."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
        self._finish_drained()

    def _finish_drained(self) -> None:
        with self._changed:
            exchange = self._exchange if self._draining and not self._unanswered else None
        if exchange is not None:
            exchange.finish()

    def ended(self, error: PenstockError | None) -> None:
        """Open another exchange, on which all that is unanswered is sent again; or stop, if that is of no use."""
        with self._changed:
            self._exchange, self._lost, self._asked = None, error, []
            self._ends += 1
            self._changed.notify_all()
        if error is not None and not isinstance(error, Unavailable | TimedOut):
            self.fail(error)

    def _report(self, exchange: Exchange, *, last: bool = False) -> None:
        """Tell the server the counters, and which acks Pub/Sub has answered, once a second."""
        now = time.monotonic()
        if not last and now - self._reported < _REPORT:
            return
        with self._changed:
            oldest = self._leases.oldest
            for shard, ranges in self._leases.take_acked().items():
                self._unreported.setdefault(shard, []).extend(ranges)
            acked = {str(shard): [list(each) for each in ranges] for shard, ranges in self._unreported.items()}
            error = self._error if last else None
            report = Report(
                self._count(), acked, None if oldest is None else now - oldest,
                None if error is None else error.code, None if error is None else str(error), self.name,
            )  # fmt: skip
        self._reported = now
        exchange.report(report)
        self._unreported.clear()

    def asked(self, request: str) -> None:
        """Report all leases."""
        with self._changed:
            self._asked.append(request)
            self._changed.notify_all()

    def _report_leases(self, exchange: Exchange) -> None:
        """Tell the server what is known of each lease, as often as it has asked."""
        with self._changed:
            asked, self._asked = self._asked, []
            leases = self._leases.history() if asked else []
        rows = history.to_batches(leases, self.name, time.time() - time.monotonic(), acks.MOST_ROWS)
        for request in asked:
            for batch in rows:
                exchange.report(Acks(request), acks.pack(batch))
            exchange.report(Acks(request))

    def _count(self) -> dict[str, int]:
        unanswered = sum(each.rows.num_rows for each in self._unanswered)
        return {**self._leases.counters, "outstanding": len(self._leases), "unanswered": unanswered}

    # --- the end ----------------------------------------------------------------------------

    def fail(self, error: PenstockError) -> None:
        """Stop all, with this cause; the first one counts."""
        with self._changed:
            self._fail(error)

    def _fail(self, error: PenstockError) -> None:
        self._error = self._error or error
        self.stopping.set()
        self._changed.notify_all()

    def _guard(self, work: Callable[[], None]) -> None:
        """Run a thread's work; a fault of ours in it ends the puller, rather than a thread that nobody misses."""
        try:
            work()
        except Exception as fault:
            _log.exception("%s: a fault of the puller's own", self._pubsub.subscription)
            self.fail(Internal(f"{self._pubsub.subscription}: the puller has a fault: {fault!r}"))

    def _end(self) -> None:
        """End cleanly: read no more, wait for answers, nack what has none, send the acks that are due, report."""
        self.stopping.set()
        with self._changed:
            self._changed.notify_all()
        for reader in self._threads.readers:
            reader.cancel()
        for reader in self._threads.readers:
            reader.join(_ENDING)
        self._threads.sender.join(_ENDING)
        with self._changed:
            self._leases.give_back()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._leases.unsettled, _ENDING)
            exchange = self._exchange
        self._threads.keeping.clear()
        with self._changed:
            self._changed.notify_all()
        if exchange is not None:
            try:
                self._report(exchange, last=True)
                exchange.close(_ENDING)
            except Unavailable:
                exchange.abandon()
        self._threads.keeper.join(_ENDING)
        self._pubsub.close()
        _log.info("%s: ended; %s", self._pubsub.subscription, _described(self.counters()))


def _described(counters: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counters.items() if count)
