"""What a server says of a subscription, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.flight_server.metrics import Gauge
from penstock.queue.pubsub.rate import streams_needed
from penstock.wire.actions import SubscriptionFigures

if TYPE_CHECKING:
    from penstock.queue.pubsub.subscription import State


def figures_of(state: State) -> SubscriptionFigures:
    """Return how a subscription does, its connected pullers together."""

    def total(name: str) -> int:
        return sum(int(each.counters.get(name, 0)) for each in state.pullers)

    return SubscriptionFigures(
        len(state.pullers), total("outstanding"), total("extensions"), total("lapses"), total("acks_sent"),
        total("acks_confirmed"), total("acks_failed"), state.unreleased_rows, state.unreleased_bytes,
        dict(state.duplicates), round(state.bytes_per_second), streams_needed(state.bytes_per_second),
        max((each.oldest_unacked for each in state.pullers if each.oldest_unacked is not None), default=None),
    )  # fmt: skip


def gauges_of(path: str, state: State) -> Iterator[Gauge]:
    """Give a subscription's gauges, for metrics."""
    figures, labels = figures_of(state), {"topic": path}
    for name, text, value in (
        ("penstock_unreleased_rows", "Rows that aren't released.", figures.unreleased_rows),
        ("penstock_unreleased_bytes", "About their bytes.", figures.unreleased_bytes),
        ("penstock_dedup_ids", "Messages by which redeliveries are known.", state.ids),
        ("penstock_pullers", "Pullers that are connected.", figures.pullers),
        ("penstock_outstanding_leases", "Leases of connected pullers.", figures.outstanding),
        ("penstock_lease_extensions", "Leases extended by connected pullers.", figures.extensions),
        ("penstock_lease_lapses", "Leases of connected pullers that have lapsed.", figures.lapses),
        ("penstock_acks_sent", "Acks sent by connected pullers.", figures.acks_sent),
        ("penstock_acks_confirmed", "Of these, accepted by Pub/Sub.", figures.acks_confirmed),
        ("penstock_acks_failed", "Of these, refused by Pub/Sub.", figures.acks_failed),
        ("penstock_oldest_unacked_seconds", "Age of the oldest lease.", figures.oldest_unacked or 0.0),
        ("penstock_pulled_bytes_per_second", "What comes, over 10 s.", figures.bytes_per_second),
        ("penstock_streams_needed", "Streams of 10 MB/s for what comes.", figures.streams_needed),
    ):
        yield Gauge(name, text, value, labels)
    for cause, count in state.duplicates.items():
        text = "Messages that came again since the server's start, by cause."
        yield Gauge("penstock_duplicates", text, count, {**labels, "cause": cause})
