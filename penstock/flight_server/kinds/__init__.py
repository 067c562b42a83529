"""The kinds of paths, each a file. A server has those of the table KINDS."""

from __future__ import annotations

from penstock.flight_server.kinds.consumer import ConsumerKind
from penstock.flight_server.kinds.dataset import DatasetKind
from penstock.flight_server.kinds.job import JobKind
from penstock.flight_server.kinds.kind import Kind
from penstock.flight_server.kinds.publish import PublishKind
from penstock.flight_server.kinds.queue import QueueKind
from penstock.flight_server.kinds.subscription import SubscriptionKind
from penstock.flight_server.kinds.topic import TopicKind
from penstock.flight_server.kinds.write import WriteKind

KINDS: tuple[type[Kind], ...] = (
    DatasetKind, TopicKind, SubscriptionKind, ConsumerKind, QueueKind, JobKind, PublishKind, WriteKind,
)  # fmt: skip
