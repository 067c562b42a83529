"""What a topic of the fake has: messages that were published, or messages made as they are delivered, in numpy alone.

Both write the bytes of a response at once: (Streaming)PullResponse.received_messages is field 1 of either.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp
from numpy.typing import NDArray

from tests.kit.pubsub import messages as pb

Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]

ID_DIGITS = 16
"""Of a message id: the topic's serial, then the message's number in 12 digits."""
_NUMBERS = 10**12
_SERIAL_DIGITS, _NUMBER_DIGITS, _ATTEMPT_DIGITS = 4, 12, 4
_ACK_DIGITS = _SERIAL_DIGITS + _NUMBER_DIGITS + _ATTEMPT_DIGITS
_FOUR_DIGITS: Bytes = np.frombuffer(b"".join(b"%04d" % number for number in range(10_000)), np.uint8).reshape(-1, 4)


class Log(Protocol):
    """The messages of a topic, numbered from 0."""

    serial: int

    def length(self, now: float) -> int:
        """Return how many messages are published by now."""

    def sizes(self, numbers: Numbers) -> Numbers:
        """Return what each counts for in flow control, in bytes."""

    def key(self, number: int) -> str | int:
        """Return a message's ordering key, in whatever form tells keys apart; falsy if it has none."""

    def published_at(self, count: int) -> NDArray[np.float64]:
        """Return when each of the first `count` messages was published."""

    def response(self, numbers: Numbers, ack_ids: Bytes, attempts: Numbers | None) -> bytes:
        """Return a response with these messages; attempts are shown where they are given."""


class PublishedLog:
    """Messages that clients have published."""

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self._entries: list[bytes] = []
        self._keys: list[str] = []
        self._times = array("d")

    def publish(self, messages: Sequence[Any], now: float) -> list[str]:
        """Add messages, and return their ids."""
        ids = []
        for message in messages:
            stored = pb.PubsubMessage()
            stored.CopyFrom(message)
            stored.message_id = message_id(self.serial, len(self._entries))
            stored.publish_time.FromMicroseconds(int(now * 1e6))
            self._entries.append(_field(2, stored.SerializeToString()))
            self._keys.append(stored.ordering_key)
            self._times.append(int(now * 1e6) / 1e6)
            ids.append(stored.message_id)
        return ids

    def messages(self) -> list[Any]:
        """Return all messages, in the order in which they were published."""
        return [pb.ReceivedMessage.FromString(entry).message for entry in self._entries]

    def length(self, now: float) -> int:
        return len(self._entries)

    def sizes(self, numbers: Numbers) -> Numbers:
        return np.array([len(self._entries[number]) for number in numbers], np.int64)

    def key(self, number: int) -> str | int:
        return self._keys[number]

    def published_at(self, count: int) -> NDArray[np.float64]:
        return np.array(self._times[:count], np.float64)

    def response(self, numbers: Numbers, ack_ids: Bytes, attempts: Numbers | None) -> bytes:
        shown = [b""] * len(numbers) if attempts is None else [b"\x18" + _varint(int(attempt)) for attempt in attempts]
        parts = []
        for number, ack_id, attempt in zip(numbers.tolist(), ack_ids, shown, strict=True):
            parts.append(_field(1, _field(1, ack_id.tobytes()) + self._entries[number] + attempt))
        return b"".join(parts)


class CountedLog(PublishedLog):
    """Messages that clients have published, of which nothing is kept but how many there were."""

    def __init__(self, serial: int) -> None:
        super().__init__(serial)
        self.count = 0

    def publish(self, messages: Sequence[Any], now: float) -> list[str]:
        first, self.count = self.count, self.count + len(messages)
        return [message_id(self.serial, number) for number in range(first, self.count)]


class GeneratedLog:
    """So many messages of one size, at a rate or all at once: a number and filler as data, unique ids, keys in turn.

    Responses are copies of one row in which digits are set: no message is ever an object.
    """

    def __init__(
        self,
        serial: int,
        *,
        count: int,
        size: int,
        attributes: int,
        keys: int,
        rate: float | None,
        now: float,
        ack_id_bytes: int,
    ) -> None:
        self.serial = serial
        self._count, self._size, self._keys, self._rate = count, size, keys, rate
        self._step = 1e-6 if rate is None else 1 / rate
        self._began = now if rate else now - (count + 1) * self._step  # none is published in the future
        time = Timestamp(seconds=2**31 - 1, nanos=999_999_999)  # five bytes each as varints
        message = pb.PubsubMessage(
            data=b"9" * ID_DIGITS + b"." * (size - ID_DIGITS),
            message_id="8" * ID_DIGITS,
            ordering_key="7" * 8 if keys else "",
            attributes={f"attribute-{number}": f"value of {number}" for number in range(attributes)},
            publish_time=time,
        )
        row = _field(1, _field(1, b"6" * ack_id_bytes) + _field(2, message.SerializeToString()))
        with_attempt = _field(1, row[_head(row) :] + b"\x18" + _padded_varints(np.array([0]), 2).tobytes())
        self._rows = {False: row, True: with_attempt}
        self._ack_id = b"6" * ack_id_bytes
        self._time = time.SerializeToString()
        self._message_size = message.ByteSize()

    def length(self, now: float) -> int:
        if self._rate is None:
            return self._count
        return max(0, min(self._count, int((now - self._began) * self._rate)))

    def sizes(self, numbers: Numbers) -> Numbers:
        return np.full(len(numbers), self._message_size, np.int64)

    def key(self, number: int) -> str | int:
        return number % self._keys + 1 if self._keys else 0

    def published_at(self, count: int) -> NDArray[np.float64]:
        return np.arange(count, dtype=np.float64) * self._step + self._began

    def response(self, numbers: Numbers, ack_ids: Bytes, attempts: Numbers | None) -> bytes:
        shown = attempts is not None
        row = self._rows[shown]
        rows = np.empty((len(numbers), len(row)), np.uint8)
        rows[:] = np.frombuffer(row, np.uint8)
        first = row.index(self._ack_id)
        rows[:, first : first + len(self._ack_id)] = ack_ids
        for digits, width, values in (
            (b"9" * ID_DIGITS, ID_DIGITS, numbers),
            (b"8" * ID_DIGITS, ID_DIGITS, self.serial * _NUMBERS + numbers),
            (b"7" * 8, 8, numbers % max(1, self._keys)),
        ):
            if width == ID_DIGITS or self._keys:
                first = row.index(digits, len(self._ack_id))
                set_digits(rows[:, first : first + width], values)
        micros = ((self._began + numbers * self._step) * 1e6).astype(np.int64)
        first = row.index(self._time)
        rows[:, first + 1 : first + 6] = _padded_varints(micros // 1_000_000, 5)
        rows[:, first + 7 : first + 12] = _padded_varints(micros % 1_000_000 * 1_000, 5)
        if attempts is not None:
            rows[:, -2:] = _padded_varints(attempts, 2)
        return rows.tobytes()


def message_id(serial: int, number: int) -> str:
    return str(serial * _NUMBERS + number)


# --- ack ids ------------------------------------------------------------------------------------


def make_ack_ids(serial: int, numbers: Numbers, attempts: Numbers, width: int) -> Bytes:
    """Return a row of bytes for each delivery: whose it is, which message, which attempt, and filler."""
    ids = np.full((len(numbers), width), ord("x"), np.uint8)
    set_digits(ids[:, :4], np.full(len(numbers), serial % 10_000, np.int64))
    set_digits(ids[:, 4:16], numbers)
    set_digits(ids[:, 16:_ACK_DIGITS], attempts % 10_000)
    return ids


def parse_ack_ids(ack_ids: Sequence[str], width: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return the serials, numbers and attempts; ValueError names the first that is malformed."""
    for ack_id in ack_ids:
        if len(ack_id) != width or not ack_id.isascii():
            raise ValueError(ack_id)
    ids = np.frombuffer("".join(ack_ids).encode(), np.uint8).reshape(-1, width)
    digits = ids[:, :_ACK_DIGITS].astype(np.int64) - ord("0")
    if (wrong := (digits < 0) | (digits > 9)).any():
        raise ValueError(ack_ids[int(wrong.any(axis=1).argmax())])
    return _number(digits[:, :4]), _number(digits[:, 4:16]), _number(digits[:, 16:])


def set_digits(cells: Bytes, values: Numbers) -> None:
    """Write each value in decimal digits, as many as there are columns: a multiple of 4."""
    for last in range(cells.shape[1], 0, -4):
        values, rest = np.divmod(values, 10_000)
        cells[:, last - 4 : last] = _FOUR_DIGITS[rest]


def _number(digits: Numbers) -> Numbers:
    value: Numbers = digits @ (10 ** np.arange(digits.shape[1] - 1, -1, -1, dtype=np.int64))
    return value


# --- protobuf's bytes ---------------------------------------------------------------------------


def _field(number: int, content: bytes) -> bytes:
    """Return a field that has a length."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _head(field: bytes) -> int:
    """Return how many bytes a field has before its content."""
    return next(place for place in range(1, len(field)) if field[place] < 0x80) + 1


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _padded_varints(values: Numbers, width: int) -> Bytes:
    """Return varints of so many bytes each: every parser takes leading zeros."""
    cells = np.empty((len(values), width), np.uint8)
    for column in range(width):
        cells[:, column] = values >> 7 * column & 0x7F | (0x80 if column < width - 1 else 0)
    return cells
