"""A puller's exchange at the server: its batches to the subscription's owner, answers and what is released back."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from penstock.errors import InvalidRequest, of_code
from penstock.flight_server.exchange import Stream
from penstock.flight_server.metrics import Metrics
from penstock.rows.slices import size_of
from penstock.text import cut, printable
from penstock.wire.exchange import Acks, Answer, AskAcks, Beat, Numbered, Released, Report, Welcome
from penstock.wire.position import Position

if TYPE_CHECKING:
    from penstock.queue.pubsub.pulled import PullerStream
    from penstock.queue.pubsub.subscription import Subscription

_END = 30.0
"""Seconds for which the end of a puller's stream waits for the answers of its last batches."""


def serve_puller(owner: Subscription, stream: Stream, metrics: Metrics) -> None:
    """Serve a puller to its end: append what is new, answer with each row's place, push what is released."""
    from penstock.queue.pubsub.pulled import PullerStream  # which needs numpy

    path, hello = owner.path, stream.hello()
    if hello.producer is not None:
        raise InvalidRequest(f"{path}: a puller has nothing to lose, and no producer's id: say hello without one")
    puller = PullerStream(
        answer=lambda n, places: stream.send(Answer(n), places),
        refuse=stream.refuse,
        push=lambda position: stream.send(Released(position)),
        ask=lambda request: stream.send(AskAcks(request)),
    )
    name, last = uuid.uuid4().hex, 0

    def welcome(released: Position) -> None:
        stream.send(Welcome(name, 0, stream.silence, journal=owner.journal, released=released))

    owner.connect(puller, welcome)
    try:
        for message, batch in stream.messages():
            if isinstance(message, Numbered) and batch is not None:
                if message.n != last + 1:
                    raise InvalidRequest(f"{path}: expected batch {last + 1}, got {message.n}")
                last = message.n
                metrics.moved("in", batch.num_rows, size_of(batch))
                owner.submit(puller, message.n, batch)
                owner.recover()
            elif isinstance(message, Report):
                _report(owner, puller, message)
            elif isinstance(message, Acks):
                owner.take_acks(puller, message.request, batch)
            elif not isinstance(message, Beat):
                raise InvalidRequest(f"{path}: a puller sends no message of type {message.type!r}")
        owner.settled(puller, _END)
    finally:
        owner.disconnect(puller)


def _report(owner: Subscription, puller: PullerStream, report: Report) -> None:
    if not all(type(count) is int for count in report.counters.values()):
        raise InvalidRequest(f"{owner.path}: Report.counters: expected {{name: number}}")
    owner.report(
        puller,
        counters=report.counters,
        acked=_ranges(owner.path, report.acked),
        oldest_unacked=report.oldest_unacked,
        name=report.puller and printable(cut(report.puller, 80)),
    )
    if report.code is not None:
        owner.fail(of_code(report.code, report.text or report.code))


def _ranges(path: str, acked: dict[str, object]) -> dict[int, list[tuple[int, int]]]:
    """Return the ranges of a report, which come as JSON."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for shard, pairs in acked.items():
        try:
            ranges[int(shard)] = [(int(first), int(end)) for first, end in pairs]  # type: ignore[attr-defined]
        except (TypeError, ValueError) as malformed:
            raise InvalidRequest(f"{path}: Report.acked: expected {{shard: [[first, end], …]}}") from malformed
    return ranges
