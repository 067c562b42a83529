"""A subscription at Pub/Sub: whether it exists and may be read, and what it says; made, and deleted, on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.iam.v1 import iam_policy_pb2
from google.protobuf import empty_pb2
from google.pubsub_v1 import types

from penstock.errors import Denied, InvalidRequest, NotFound
from penstock.queue.pubsub.transport import Access, open_channel, translate

_TIMEOUT = 10.0
_CONSUME = "pubsub.subscriptions.consume"
_Subscription: Any = types.Subscription.pb()
_Get: Any = types.GetSubscriptionRequest.pb()
_Delete: Any = types.DeleteSubscriptionRequest.pb()


@dataclass(frozen=True, slots=True)
class Source:
    """What Pub/Sub says of a subscription."""

    is_ordered: bool
    is_exactly_once: bool
    has_dead_letters: bool
    retention: float
    """Seconds for which a message is kept that nobody acks."""
    created: bool = False


class Subscriptions:
    """Pub/Sub's subscriptions, as far as a server asks about them."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def look(self, name: str, *, create: str | None = None) -> Source:
        """Return what a subscription says, if it can be pulled; made of the topic `create` if it is missing."""
        with self._calling(name) as call:
            created = False
            try:
                about = call("GetSubscription", _Get(subscription=name), _Subscription.FromString)
            except NotFound as missing:
                if create is None:
                    raise NotFound(
                        f"{name} does not exist at Pub/Sub: create it, check the name and the project, or pass "
                        "create=projects/PROJECT/topics/TOPIC"
                    ) from missing
                created = True
                try:
                    wanted = _Subscription(name=name, topic=create, ack_deadline_seconds=60)
                    about = call("CreateSubscription", wanted, _Subscription.FromString)
                except NotFound as topic:
                    raise NotFound(f"{create} does not exist at Pub/Sub, so {name} can't be made of it") from topic
            except Denied as denied:
                raise Denied(f"{denied}; attaching needs roles/pubsub.viewer, too") from denied
            _check_can_be_pulled(name, about)
            self._check_may_be_pulled(name, call)
        return Source(
            about.enable_message_ordering, about.enable_exactly_once_delivery,
            bool(about.dead_letter_policy.dead_letter_topic),
            float(about.message_retention_duration.seconds or 7 * 86400), created,
        )  # fmt: skip

    def delete(self, name: str) -> None:
        """Delete a subscription at Pub/Sub; one that is gone is none to delete."""
        with self._calling(name) as call:
            try:
                call("DeleteSubscription", _Delete(subscription=name), empty_pb2.Empty.FromString)
            except NotFound:
                return

    def _check_may_be_pulled(self, name: str, call: Any) -> None:
        if self._access.allow_emulator:  # which has no permissions
            return
        request = iam_policy_pb2.TestIamPermissionsRequest(resource=name, permissions=[_CONSUME])
        answer = call(
            "TestIamPermissions", request, iam_policy_pb2.TestIamPermissionsResponse.FromString,
            service="google.iam.v1.IAMPolicy",
        )  # fmt: skip
        if _CONSUME not in answer.permissions:
            raise Denied(f"{name} may not be pulled by these credentials: grant them roles/pubsub.subscriber on it")

    @contextmanager
    def _calling(self, name: str) -> Iterator[Any]:
        channel = open_channel(self._access, name)
        parameters = (("x-goog-request-params", f"subscription={name}"),)

        def call(method: str, request: Any, decode: Any, service: str = "google.pubsub.v1.Subscriber") -> Any:
            stub = channel.unary_unary(
                f"/{service}/{method}", request_serializer=type(request).SerializeToString, response_deserializer=decode
            )
            try:
                return stub(request, timeout=_TIMEOUT, metadata=parameters)
            except grpc.RpcError as error:
                raise translate(error, name) from error

        try:
            yield call
        finally:
            channel.close()


def _check_can_be_pulled(name: str, about: Any) -> None:
    """Reject a subscription whose messages Pub/Sub brings elsewhere, and one whose topic is gone."""
    for kind, field, target in (
        ("push", about.push_config.push_endpoint, "push_config"),
        ("BigQuery", about.bigquery_config.table, "bigquery_config"),
        ("Cloud Storage", about.cloud_storage_config.bucket, "cloud_storage_config"),
    ):
        if field:
            raise InvalidRequest(
                f"{name} is a {kind} subscription: nobody can pull it. Create a pull subscription of {about.topic}, or "
                f"remove its {target}"
            )
    if about.detached or about.topic == "_deleted-topic_":
        raise InvalidRequest(f"{name} is detached from its topic, or that was deleted: no message will come")
