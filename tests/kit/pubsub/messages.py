"""Pub/Sub's messages as upb classes, and its methods by their requests."""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf import empty_pb2
from google.pubsub_v1 import types

AcknowledgeRequest: Any = types.AcknowledgeRequest.pb()
CommitSchemaRequest: Any = types.CommitSchemaRequest.pb()
CreateSchemaRequest: Any = types.CreateSchemaRequest.pb()
DeleteSchemaRequest: Any = types.DeleteSchemaRequest.pb()
DeleteSubscriptionRequest: Any = types.DeleteSubscriptionRequest.pb()
DeleteTopicRequest: Any = types.DeleteTopicRequest.pb()
GetSchemaRequest: Any = types.GetSchemaRequest.pb()
GetSubscriptionRequest: Any = types.GetSubscriptionRequest.pb()
GetTopicRequest: Any = types.GetTopicRequest.pb()
ModifyAckDeadlineRequest: Any = types.ModifyAckDeadlineRequest.pb()
PublishRequest: Any = types.PublishRequest.pb()
PublishResponse: Any = types.PublishResponse.pb()
PubsubMessage: Any = types.PubsubMessage.pb()
PullRequest: Any = types.PullRequest.pb()
PullResponse: Any = types.PullResponse.pb()
ReceivedMessage: Any = types.ReceivedMessage.pb()
Schema: Any = types.Schema.pb()
SeekRequest: Any = types.SeekRequest.pb()
SeekResponse: Any = types.SeekResponse.pb()
StreamingPullRequest: Any = types.StreamingPullRequest.pb()
StreamingPullResponse: Any = types.StreamingPullResponse.pb()
Subscription: Any = types.Subscription.pb()
Topic: Any = types.Topic.pb()
Empty: Any = empty_pb2.Empty


class Method(NamedTuple):
    """A unary method: its path on the wire, and its messages."""

    path: str
    request: Any
    response: Any


def _unary(service: str, name: str, request: Any, response: Any) -> Method:
    return Method(f"/google.pubsub.v1.{service}/{name}", request, response)


METHODS = (
    _unary("Publisher", "CreateTopic", Topic, Topic),
    _unary("Publisher", "GetTopic", GetTopicRequest, Topic),
    _unary("Publisher", "DeleteTopic", DeleteTopicRequest, Empty),
    _unary("Publisher", "Publish", PublishRequest, PublishResponse),
    _unary("SchemaService", "CreateSchema", CreateSchemaRequest, Schema),
    _unary("SchemaService", "CommitSchema", CommitSchemaRequest, Schema),
    _unary("SchemaService", "GetSchema", GetSchemaRequest, Schema),
    _unary("SchemaService", "DeleteSchema", DeleteSchemaRequest, Empty),
    _unary("Subscriber", "CreateSubscription", Subscription, Subscription),
    _unary("Subscriber", "GetSubscription", GetSubscriptionRequest, Subscription),
    _unary("Subscriber", "DeleteSubscription", DeleteSubscriptionRequest, Empty),
    _unary("Subscriber", "Pull", PullRequest, PullResponse),
    _unary("Subscriber", "Acknowledge", AcknowledgeRequest, Empty),
    _unary("Subscriber", "ModifyAckDeadline", ModifyAckDeadlineRequest, Empty),
    _unary("Subscriber", "Seek", SeekRequest, SeekResponse),
)
STREAMING_PULL = "/google.pubsub.v1.Subscriber/StreamingPull"
