"""What is looked up at Pub/Sub: revisions of schemas, and whether, and by which one, a topic is published to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.iam.v1 import iam_policy_pb2
from google.pubsub_v1 import types

from penstock.errors import Denied, InvalidRequest
from penstock.queue.pubsub.transport import Access, open_channel, translate
from penstock.wire.publish import TopicSchema

_TIMEOUT = 10.0
_NAME = re.compile(r"projects/[^/@\s]{1,200}/schemas/[^/@\s]{1,300}@[A-Za-z0-9-]{1,100}")
_PUBLISH = "pubsub.topics.publish"
_Get: Any = types.GetSchemaRequest.pb()
_GetTopic: Any = types.GetTopicRequest.pb()
_Topic: Any = types.Topic.pb()
_Schema: Any = types.Schema.pb()
_FORMATS = {types.Schema.Type.AVRO: "avro", types.Schema.Type.PROTOCOL_BUFFER: "protobuf"}
_TEST = "google.iam.v1.IAMPolicy/TestIamPermissions"
_VIEW = "grant roles/pubsub.viewer on it, too"
_SCHEMA_REMEDIES = {grpc.StatusCode.PERMISSION_DENIED: _VIEW}
_TOPIC_REMEDIES = {
    grpc.StatusCode.NOT_FOUND: "create it, or check the name and the project", grpc.StatusCode.PERMISSION_DENIED: _VIEW,
}  # fmt: skip
_Call = Callable[[str, Any, Any, str], Any]


@dataclass(frozen=True, slots=True)
class SchemaRevision:
    """A revision, as Pub/Sub has it."""

    name: str
    """With its revision: projects/p/schemas/s@revision"""
    format: str
    """avro or protobuf."""
    definition: str
    created: float


def get_revision(access: Access, name: str) -> SchemaRevision:
    """Return a revision; NotFound or InvalidRequest if there is none of this name."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest("it is no name of a revision: expected projects/PROJECT/schemas/SCHEMA@REVISION")
    with _calling(access, name) as call:
        return _revision(name, call)


def check_topic(access: Access, name: str) -> None:
    """Raise why a topic can't be published to, if so."""
    with _calling(access, name) as call:
        if access.allow_emulator:  # which has no permissions; at Google a publisher may not be allowed to get the topic
            _get_topic(name, call)
        else:
            _check_may_publish(name, call)


def schema_of_topic(access: Access, name: str) -> TopicSchema:
    """Return the newest revision of a topic's schema that it takes."""
    with _calling(access, name) as call:
        about = _get_topic(name, call)
        if not access.allow_emulator:
            _check_may_publish(name, call)
        settings = about.schema_settings
        if not settings.schema or settings.schema == "_deleted-schema_":
            gone = "its schema was deleted" if settings.schema else "it has no schema"
            raise InvalidRequest(f"{name}: {gone}, by which rows could be encoded: give it one, or pass encode='json'")
        last = settings.last_revision_id
        revision = _revision(f"{settings.schema}@{last}" if last else settings.schema, call)
        return TopicSchema(
            revision.name, revision.format, revision.definition, settings.encoding == types.Encoding.JSON
        )


def _get_topic(name: str, call: _Call) -> Any:
    return call("Publisher/GetTopic", _GetTopic(topic=name), _Topic, f"topic={name}")


def _check_may_publish(name: str, call: _Call) -> None:
    request = iam_policy_pb2.TestIamPermissionsRequest(resource=name, permissions=[_PUBLISH])
    answer = call(_TEST, request, iam_policy_pb2.TestIamPermissionsResponse, f"resource={name}")
    if _PUBLISH not in answer.permissions:
        raise Denied(
            f"{name} does not exist, or may not be published to by these credentials: create it, or grant them "
            "roles/pubsub.publisher on it"
        )


def _revision(name: str, call: _Call) -> SchemaRevision:
    request = _Get(name=name, view=types.SchemaView.FULL)
    about = call("SchemaService/GetSchema", request, _Schema, f"name={name}")
    if about.type_ not in _FORMATS:
        raise InvalidRequest("it is neither Avro nor protobuf")
    created = about.revision_create_time.ToNanoseconds() / 1e9
    full = name if "@" in name else f"{name}@{about.revision_id}"
    return SchemaRevision(full, _FORMATS[about.type_], about.definition, created)


@contextmanager
def _calling(access: Access, name: str) -> Iterator[_Call]:
    """Give a function that calls Pub/Sub."""
    channel = open_channel(access, name)

    def call(method: str, request: Any, answer: Any, parameters: str) -> Any:
        service = "" if method == _TEST else "google.pubsub.v1."
        stub = channel.unary_unary(
            f"/{service}{method}", request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )  # fmt: skip
        try:
            return stub(request, timeout=_TIMEOUT, metadata=(("x-goog-request-params", parameters),))
        except grpc.RpcError as error:
            remedies = _SCHEMA_REMEDIES if method.startswith("Schema") else _TOPIC_REMEDIES
            raise translate(error, name, remedies) from error

    try:
        yield call
    finally:
        channel.close()
