"""QueueMessage: what a queue tells a worker of one split, as JSON with exactly five fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from penstock.errors import InvalidRequest
from penstock.wire.body import Body, load_object


@dataclass(frozen=True, slots=True)
class QueueMessage(Body):
    """One split of a queue. With a `payload_key` its rows are stored under that key; without one a source reads them.

    The bytes are those of Python's `json.dumps` in this order of fields, so that other readers of the format agree.
    """

    message_id: str
    split_id: str
    payload_key: str
    metadata: dict[str, Any] = field(default_factory=dict)
    """Also what a version of the format has beyond the five fields."""
    timestamp: float = 0.0
    """Seconds since 1970."""

    @property
    def is_source(self) -> bool:
        """Whether a worker reads the split from the source, as no payload is stored."""
        return not self.payload_key

    def encode(self) -> bytes:
        """Return the five fields as JSON."""
        return json.dumps(self.to_json()).encode()

    def to_json(self) -> dict[str, Any]:
        """Return the five fields in order."""
        return {
            "message_id": self.message_id, "split_id": self.split_id, "payload_key": self.payload_key,
            "metadata": dict(self.metadata), "timestamp": self.timestamp,
        }  # fmt: skip

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the message; unknown fields are dropped, as a newer writer may have some."""
        message = cls.from_json(load_object(raw, cls.__name__))
        if not message.message_id:
            raise InvalidRequest("QueueMessage.message_id: expected a name that is unique in its queue, got ''")
        return message

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> Self:
        """Return the message of an object that is parsed already."""
        known = {name: members[name] for name in _FIELDS if name in members}
        return super(QueueMessage, cls).from_json(known)


_FIELDS = ("message_id", "split_id", "payload_key", "metadata", "timestamp")
