"""The messages of do_exchange: JSON bodies in `app_metadata`, some of them beside a record batch.

The client sends Hello, then batches with Numbered beside each; the server answers Welcome, then each batch with its
number. Beats between them say that an end is alive. Only Bye ends a producer: after End, or where a stream
merely ends, it may come back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from penstock.errors import InvalidRequest
from penstock.text import suggest
from penstock.wire.body import VERSION, Body, load_object
from penstock.wire.position import Position

MOST_UNACKED = 1_024
"""Answers that the server keeps for a producer that hasn't said that it has them."""
MOST_BYTES = 32 << 20
"""Bytes of one batch: all that wait for the same fsync wait for the largest of them."""


class Message(Body):
    """One message; `type` tells it from the others."""

    __slots__ = ()
    type: ClassVar[str]

    def encode(self) -> bytes:
        """Return the message's bytes."""
        return json.dumps({"v": VERSION, "type": self.type, **self.to_json()}, separators=(",", ":")).encode()


# --- from the client -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """The first message: a new producer, or one that comes back."""

    type: ClassVar[str] = "hello"
    producer: str | None = None
    """None: mint an id."""
    acked: int = 0
    """All answers up to this number have come."""


@dataclass(frozen=True, slots=True)
class Numbered(Message):
    """Beside each batch: its number, one more than the last one's."""

    type: ClassVar[str] = "batch"
    n: int
    acked: int = 0


@dataclass(frozen=True, slots=True)
class Report(Message):
    """Of a puller, every second and at changes: what it has counted since it began, and what it has acked."""

    type: ClassVar[str] = "report"
    counters: dict[str, Any]
    acked: dict[str, Any]
    """Shard -> [[first, end], …]: the offsets whose acks were sent since the last report."""
    oldest_unacked: float | None = None
    code: str | None = None
    """Why the puller stops: the code of an error, and its text."""
    text: str | None = None
    puller: str | None = None
    """Its name: host:pid."""


@dataclass(frozen=True, slots=True)
class Acks(Message):
    """Of a puller: an answer to AskAcks, as often as there is a batch beside it; without a batch: that was all.

    The batch has the schema of messages, as an exchange has one alone; `data` is an Arrow stream, a row for each lease.
    """

    type: ClassVar[str] = "acks"
    request: str


@dataclass(frozen=True, slots=True)
class Bye(Message):
    """The client is done: the producer's id is forgotten."""

    type: ClassVar[str] = "bye"


@dataclass(frozen=True, slots=True)
class End(Message):
    """The client sends no more on this stream; its producer may come back."""

    type: ClassVar[str] = "end"


# --- from both -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beat(Message):
    """This end is alive."""

    type: ClassVar[str] = "beat"
    acked: int | None = None


# --- from the server -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer(Message):
    """The batch of this number is durable and readable: its rows' first offset and end, by shard."""

    type: ClassVar[str] = "answer"
    n: int
    shards: dict[int, tuple[int, int]] | None = None
    """None for a puller, which gets the place of each row as a batch beside this."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields; JSON's names are text."""
        if self.shards is None:
            return {"n": self.n}
        return {"n": self.n, "shards": {str(shard): list(ends) for shard, ends in self.shards.items()}}

    @classmethod
    def from_json(cls, members: dict[str, Any]) -> Self:
        """Return the answer of such an object."""
        answer = super(Answer, cls).from_json(members)
        if answer.shards is None:
            return answer
        try:
            shards = {int(shard): (int(first), int(end)) for shard, (first, end) in answer.shards.items()}
        except (TypeError, ValueError) as malformed:
            raise InvalidRequest("Answer.shards: expected {shard: [first, end], …}") from malformed
        return replace(answer, shards=shards)


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """The answer to Hello."""

    type: ClassVar[str] = "welcome"
    producer: str
    last: int
    """The number of the last batch that is stored: the next one is `last` + 1."""
    silence: float
    """Seconds without a message after which the server cuts the connection: send a beat every third of that."""
    answers: tuple[Answer, ...] = ()
    """Those above `acked`, in order."""
    journal: str | None = None
    """None while there is no topic yet."""
    released: Position | None = None
    """Of a subscription."""


@dataclass(frozen=True, slots=True)
class Released(Message):
    """Of a subscription: every consumer is done with the rows before this position."""

    type: ClassVar[str] = "released"
    position: Position


@dataclass(frozen=True, slots=True)
class AskAcks(Message):
    """To a puller: say what is known of the leases. It answers with Acks of this request."""

    type: ClassVar[str] = "ask_acks"
    request: str


@dataclass(frozen=True, slots=True)
class Drain(Message):
    """The server is about to stop: send no more batches, and end the stream once all are answered."""

    type: ClassVar[str] = "drain"


@dataclass(frozen=True, slots=True)
class Refusal(Message):
    """The first batch without an answer, and all behind it, are not stored; the stream ends."""

    type: ClassVar[str] = "refusal"
    code: str
    text: str
    retry_after: float | None = None


MESSAGES: dict[str, type[Message]] = {
    message.type: message
    for message in (
        Hello, Numbered, Report, Acks, Bye, End, Beat, Answer, Welcome, Released, AskAcks, Drain, Refusal,
    )
}  # fmt: skip


def decode(raw: bytes) -> Message:
    """Return a message; InvalidRequest names the field at fault."""
    members = load_object(raw, "an exchange's message")
    if members.pop("v", None) != VERSION:
        raise InvalidRequest(
            f"an exchange's message: expected version 'v': {VERSION}; client and server differ in version"
        )
    name = members.pop("type", None)
    message = MESSAGES.get(name) if isinstance(name, str) else None
    if message is None:
        raise InvalidRequest(f"no message has the type {str(name)[:80]!r}; {suggest(str(name), MESSAGES)}")
    return message.from_json(members)
