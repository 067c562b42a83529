"""Addresses of Kafka's topics: kafka://host:port/topic."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from penstock.errors import InvalidRequest

_ADDRESS = re.compile(r"kafka://([^/\s]+:[0-9]{1,5})/?([a-zA-Z0-9._-]{1,249})?")


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """A broker, and perhaps a topic of it."""

    broker: str
    """host:port"""
    topic: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the parts of kafka://host:port/topic; the topic may be missing."""
        address = _ADDRESS.fullmatch(text)
        if address is None:
            raise InvalidRequest(
                f"{text!r:.200}: expected kafka://host:port or kafka://host:port/topic, the topic of letters, digits, "
                "'.', '_' and '-'"
            )
        return cls(*address.groups())

    def of_queue(self, path: str) -> Self:
        """Return the address of a queue's topic; without one of its own it is named after the queue."""
        topic = self.topic or path.removeprefix("queue/").replace("/", ".")
        return self.parse(f"kafka://{self.broker}/{topic}")

    def __str__(self) -> str:
        return f"kafka://{self.broker}" + (f"/{self.topic}" if self.topic else "")
