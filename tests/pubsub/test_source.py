"""What is asked of Pub/Sub before it is read or written, where there are permissions: the emulator has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.iam.v1 import iam_policy_pb2

from penstock.errors import Denied, InvalidRequest, PenstockError
from penstock.queue.pubsub import schemas, source
from penstock.queue.pubsub.source import Subscriptions
from penstock.queue.pubsub.transport import Access
from tests.kit.pubsub import messages as pb

NAME, TOPIC = "projects/p/subscriptions/orders", "projects/p/topics/orders"
CONSUME = "pubsub.subscriptions.consume"


class Google(grpc.GenericRpcHandler):
    """One subscription, and what a caller may do with it."""

    def __init__(self) -> None:
        self.about = pb.Subscription(name=NAME, topic=TOPIC)
        self.permissions = [CONSUME]
        self.refused: dict[str, grpc.StatusCode] = {}

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]

        def answer(_: bytes, context: Any) -> Any:
            if method in self.refused:
                context.abort(self.refused[method], "User not authorized to perform this action.")
            if method == "TestIamPermissions":
                return iam_policy_pb2.TestIamPermissionsResponse(permissions=self.permissions).SerializeToString()
            return self.about.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """Google, as far as this needs it; without credentials."""
    google = Google()
    server = grpc.server(ThreadPoolExecutor(2), handlers=(google,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    for module in (source, schemas):
        monkeypatch.setattr(module, "open_channel", lambda *_: grpc.insecure_channel(f"127.0.0.1:{port}"))
    yield google
    server.stop(None)


def deny_consuming(google: Google) -> None:
    google.permissions = []


def deny_looking(google: Google) -> None:
    google.refused["GetSubscription"] = grpc.StatusCode.PERMISSION_DENIED


def export_to_bigquery(google: Google) -> None:
    google.about.bigquery_config.table = "p.d.t"


def export_to_storage(google: Google) -> None:
    google.about.cloud_storage_config.bucket = "b"


def delete_topic(google: Google) -> None:
    google.about.topic = "_deleted-topic_"


def test_what_a_subscription_says_is_returned(google: Google) -> None:
    google.about.enable_message_ordering = google.about.enable_exactly_once_delivery = True
    google.about.message_retention_duration.seconds = 600
    about = Subscriptions(Access()).look(NAME)
    assert (about.is_ordered, about.is_exactly_once, about.has_dead_letters, about.retention) == (
        True,
        True,
        False,
        600,
    )


@pytest.mark.parametrize(
    ("change", "error", "cure"),
    [
        (deny_consuming, Denied, "may not be pulled by these credentials: grant them roles/pubsub.subscriber"),
        (deny_looking, Denied, "attaching needs roles/pubsub.viewer, too"),
        (export_to_bigquery, InvalidRequest, "is a BigQuery subscription.*remove its bigquery_config"),
        (export_to_storage, InvalidRequest, "is a Cloud Storage subscription.*remove its cloud_storage_config"),
        (delete_topic, InvalidRequest, "is detached from its topic, or that was deleted"),
    ],
)
def test_one_that_cannot_be_pulled_is_refused(
    google: Google, change: Callable[[Google], None], error: type[PenstockError], cure: str
) -> None:
    change(google)
    with pytest.raises(error, match=cure):
        Subscriptions(Access()).look(NAME)


def test_a_topic_needs_the_right_to_publish(google: Google) -> None:
    """And no other: a publisher may not be allowed to look at it. Google says the same of one that isn't there."""
    google.refused["GetTopic"] = grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(Denied, match=f"{TOPIC} does not exist, or may not .*roles/pubsub.publisher on it"):
        schemas.check_topic(Access(), TOPIC)
    google.permissions = ["pubsub.topics.publish"]
    schemas.check_topic(Access(), TOPIC)
