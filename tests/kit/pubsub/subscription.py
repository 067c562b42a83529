"""A subscription of the fake: who has which message until when, and what has been asked of each. No I/O."""

from __future__ import annotations

import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kit.pubsub.log import Log, Numbers, make_ack_ids, message_id, parse_ack_ids

READY, LEASED, ACKED = 0, 1, 2
PERMANENT = "PERMANENT_FAILURE_INVALID_ACK_ID"
UNLIMITED = 2**62
PULL = 0
"""Stands for a stream where unary calls pull."""
_BETWEEN_SCANS = 0.02  # seconds
_AHEAD = 10_000
"""How many messages may wait for their key while later ones are looked at."""
_COLUMNS: dict[str, type] = {
    "state": np.uint8,
    "stream": np.int32,
    "attempt": np.uint16,
    "deadline": np.float64,
    "acks": np.uint16,
    "modacks": np.uint16,
    "nacks": np.uint16,
    "acked_at": np.float64,
}


@dataclass
class Outstanding:
    """What a stream has, and may have at most."""

    max_messages: int = UNLIMITED
    max_bytes: int = UNLIMITED
    messages: int = 0
    bytes: int = 0


class Subscription:
    """Messages of a topic's log from `first` on. Its methods are called one at a time."""

    def __init__(
        self, about: Any, serial: int, log: Log, *, first: int, clock: Callable[[], float], ack_id_bytes: int
    ) -> None:
        self.about, self.log = about, log
        self.each = 1_000
        """Messages in a response."""
        self.stalled = False
        """Whether nothing is delivered."""
        self.streams = {PULL: Outstanding()}
        self.failing: dict[str, deque[str]] = {"Acknowledge": deque(), "ModifyAckDeadline": deque()}
        """Reasons with which the next ids fail, where exactly-once delivery is on."""
        self.expired = self.stale = 0
        self._serial, self._clock, self._ack_id_bytes = serial, clock, ack_id_bytes
        self._first = self._next = self._low = first
        self._again: deque[Numbers] = deque()
        self._soonest, self._scan_at = float("inf"), 0.0
        self._of: dict[str, NDArray[Any]] = {name: np.zeros(1024, kind) for name, kind in _COLUMNS.items()}
        self._key_owner: dict[str | int, list[int]] = {}
        self._delivered_by_key: defaultdict[str | int, list[int]] = defaultdict(list)

    # --- delivery ---

    def take(self, stream: int, seconds: float, most: int) -> bytes | None:
        """Lease at most so many messages, and return a response with them; None if there are none."""
        now = self._clock()
        self.expire_due(now)
        limits = self.streams[stream]
        most = min(most, limits.max_messages - limits.messages)
        if self.stalled or most <= 0 or (limits.messages and limits.bytes >= limits.max_bytes):
            return None
        ordered = self.about.enable_message_ordering
        numbers = self._fitting(self._in_order(most, now, stream) if ordered else self._next_ones(most, now), limits)
        if not len(numbers):
            return None
        self._lease(numbers, stream, now + seconds)
        attempts = self._of["attempt"][numbers].astype(np.int64)
        ack_ids = make_ack_ids(self._serial, numbers, attempts, self._ack_id_bytes)
        shown = attempts if self.about.dead_letter_policy.dead_letter_topic else None
        return self.log.response(numbers, ack_ids, shown)

    def _next_ones(self, most: int, now: float) -> Numbers:
        """Take what is to be delivered again, then what is new."""
        parts, left, state = [], most, self._of["state"]
        while left and self._again:
            chunk = self._again.popleft()
            chunk = chunk[state[chunk] == READY]
            part, rest = chunk[:left], chunk[left:]
            state[part] = LEASED  # it may be in a later chunk, too
            parts.append(part)
            left -= len(part)
            if len(rest):
                self._again.appendleft(rest)
        end = min(self.log.length(now), self._next + left)
        self._grow(end)
        fresh = np.arange(self._next, end)
        self._next = max(end, self._next)
        return np.concatenate([*parts, fresh[self._of["state"][fresh] == READY]])

    def _in_order(self, most: int, now: float, stream: int) -> Numbers:
        """Take the same in the order of the log, without those whose key another stream has."""
        going = list[int]()
        while not going:
            waiting = np.concatenate([*self._again, np.empty(0, np.int64)])
            end = min(self.log.length(now), self._next + (most if len(waiting) < _AHEAD else 0))
            is_last = end <= self._next
            self._grow(end)
            every = np.concatenate([waiting, np.arange(self._next, end)])
            self._next = max(end, self._next)
            staying = list[int]()
            for number in every[self._of["state"][every] == READY].tolist():
                owner = self._key_owner.get(self.log.key(number))
                goes = len(going) < most and (owner is None or owner[0] == stream)
                (going if goes else staying).append(number)
            self._again = deque([np.array(staying, np.int64)])
            if is_last:
                break
        return np.array(going, np.int64)

    def _fitting(self, numbers: Numbers, limits: Outstanding) -> Numbers:
        """Return those that a stream's limit of bytes has room for; the others go back."""
        before = np.cumsum(sizes := self.log.sizes(numbers)) - sizes + limits.bytes
        count = int(np.searchsorted(before, limits.max_bytes))
        if count < len(numbers):
            self._put_back(numbers[count:])
        return numbers[:count]

    def _put_back(self, numbers: Numbers) -> None:
        self._of["state"][numbers] = READY
        self._again.append(numbers)
        if self.about.enable_message_ordering:
            self._again = deque([np.unique(np.concatenate(self._again))])

    def _lease(self, numbers: Numbers, stream: int, deadline: float) -> None:
        self._of["state"][numbers] = LEASED
        self._of["stream"][numbers] = stream
        self._of["attempt"][numbers] += np.uint16(1)
        self._of["deadline"][numbers] = deadline
        self._soonest = min(self._soonest, deadline)
        limits = self.streams[stream]
        limits.messages += len(numbers)
        limits.bytes += int(self.log.sizes(numbers).sum())
        if self.about.enable_message_ordering:
            self._own_keys(numbers)
            for number in numbers.tolist():
                if key := self.log.key(number):
                    delivered = self._delivered_by_key[key]
                    if not delivered or delivered[-1] < number:
                        delivered.append(number)

    def _own_keys(self, numbers: Numbers) -> None:
        """Note which stream has the keys of leased messages."""
        for number in numbers.tolist():
            if key := self.log.key(number):
                self._key_owner.setdefault(key, [int(self._of["stream"][number]), 0])[1] += 1

    # --- what clients ask for ---

    def acknowledge(self, ack_ids: Sequence[str]) -> dict[str, str]:
        """Ack messages, and return what failed with its reason; ValueError names a malformed id.

        Without exactly-once delivery nothing fails: a stale id is passed over, one of a lease that has ended counts
        until the message is delivered again.
        """
        failed, ack_ids = self._failing("Acknowledge", ack_ids)
        numbers, current = self._find(ack_ids, failed)
        np.add.at(self._of["acks"], numbers, 1)
        numbers = np.unique(numbers[current])
        self._release(numbers[self._of["state"][numbers] == LEASED])
        self._of["state"][numbers] = ACKED
        self._of["acked_at"][numbers] = self._clock()
        return failed

    def modify(self, ack_ids: Sequence[str], seconds: int) -> dict[str, str]:
        """Let leases last so many seconds from now; 0 gives the messages back."""
        failed, ack_ids = self._failing("ModifyAckDeadline", ack_ids)
        numbers, current = self._find(ack_ids, failed)
        np.add.at(self._of["modacks" if seconds else "nacks"], numbers, 1)
        numbers = np.unique(numbers[current])
        leased = self._of["state"][numbers] == LEASED
        if seconds == 0:
            self._give_back(numbers[leased])
        else:
            self._resume(numbers[~leased])
            self._of["deadline"][numbers] = self._clock() + seconds
            self._soonest = min(self._soonest, self._clock() + seconds)
        return failed

    def seek(self, seconds: float) -> None:
        """Make all from this time on ready, and take all before it as acked."""
        count = self.log.length(self._clock())
        self._grow(count)
        late = self.log.published_at(count) >= seconds
        late[: self._first] = False
        state = self._of["state"]
        if not self.about.retain_acked_messages:
            late &= state[:count] != ACKED
        self._release(np.flatnonzero(state[:count] == LEASED))
        state[:count] = np.where(late, READY, ACKED)
        self._again = deque([np.flatnonzero(late[: self._next])])
        self._low, self._soonest = self._first, float("inf")

    def _find(self, ack_ids: Sequence[str], failed: dict[str, str]) -> tuple[Numbers, NDArray[np.bool_]]:
        """Return the messages of the ids that are this subscription's, and which ids are current."""
        serials, numbers, attempts = parse_ack_ids(ack_ids, self._ack_id_bytes)
        own = (serials == self._serial % 10_000) & (numbers < self._next)
        current = own.copy()
        current[own] &= self._of["attempt"][numbers[own]] % 10_000 == attempts[own]
        state = self._of["state"][numbers[own]]
        current[own] &= (state == LEASED) if self.about.enable_exactly_once_delivery else (state != ACKED)
        self.stale += int((~current).sum())
        if self.about.enable_exactly_once_delivery:
            failed.update((ack_ids[place], PERMANENT) for place in np.flatnonzero(~current).tolist())
        return numbers[own], current[own]

    def _failing(self, method: str, ack_ids: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
        reasons = self.failing[method]
        if not reasons or not self.about.enable_exactly_once_delivery:
            return {}, ack_ids
        count = min(len(reasons), len(ack_ids))
        return {ack_id: reasons.popleft() for ack_id in ack_ids[:count]}, ack_ids[count:]

    # --- leases that end ---

    def expire_due(self, now: float) -> None:
        """End the leases that have lasted long enough; looks at most every 20 ms."""
        if now < max(self._soonest, self._scan_at):
            return
        self._scan_at = now + _BETWEEN_SCANS
        state, deadlines = self._of["state"][self._low : self._next], self._of["deadline"][self._low : self._next]
        leased = state == LEASED
        due = leased & (deadlines <= now)
        self._soonest = float(deadlines[leased & ~due].min(initial=np.inf))
        unacked = state != ACKED
        low = self._low + (int(unacked.argmax()) if unacked.any() else len(state))
        self._expire(np.flatnonzero(due) + self._low)
        self._low = self._first if self.about.enable_message_ordering else low  # acked ones come again with their key

    def expire(self) -> int:
        """End all leases now, and return how many there were."""
        leased = np.flatnonzero(self._of["state"][: self._next] == LEASED)
        self._expire(leased)
        return len(leased)

    def deliver_again(self) -> int:
        """Deliver what is leased once more, though no lease has ended: the ids of before are stale then."""
        leased = np.flatnonzero(self._of["state"][: self._next] == LEASED)
        self._give_back(leased)
        return len(leased)

    def _expire(self, numbers: Numbers) -> None:
        self.expired += len(numbers)
        self._give_back(numbers)

    def _give_back(self, numbers: Numbers) -> None:
        """Make leased messages ready; with ordering also all that were delivered after them with their key."""
        if not len(numbers):
            return
        if self.about.enable_message_ordering:
            every = set(numbers.tolist())
            for number in numbers.tolist():
                if key := self.log.key(number):
                    delivered = self._delivered_by_key[key]
                    every.update(delivered[bisect.bisect_right(delivered, number) :])
            numbers = np.array(sorted(every), np.int64)
        self._release(numbers[self._of["state"][numbers] == LEASED])
        self._put_back(numbers)

    def _release(self, numbers: Numbers) -> None:
        """Take leased messages off their streams, and off their keys."""
        self._count(numbers, -1)
        if self.about.enable_message_ordering:
            for number in numbers.tolist():
                if owner := self._key_owner.get(self.log.key(number)):
                    owner[1] -= 1
                    if owner[1] == 0:
                        del self._key_owner[self.log.key(number)]

    def _resume(self, numbers: Numbers) -> None:
        """Lease messages again under the ids that they have: a lease that had ended was extended."""
        self._of["state"][numbers] = LEASED
        self._count(numbers, 1)
        if self.about.enable_message_ordering:
            self._own_keys(numbers)

    def _count(self, numbers: Numbers, sign: int) -> None:
        sizes, streams = self.log.sizes(numbers), self._of["stream"][numbers]
        for stream in np.unique(streams).tolist():
            if limits := self.streams.get(stream):
                limits.messages += sign * int((streams == stream).sum())
                limits.bytes += sign * int(sizes[streams == stream].sum())

    # --- what was asked ---

    def totals(self) -> dict[str, int]:
        """Count messages by their state, and what has been asked of them."""
        published = self.log.length(self._clock())
        self._grow(published)
        every = {name: values[self._first : published] for name, values in self._of.items()}
        states = np.bincount(every["state"], minlength=3)
        return {
            "published": published - self._first,
            "ready": int(states[READY]),
            "leased": int(states[LEASED]),
            "acked": int(states[ACKED]),
            "delivered": int((every["attempt"] > 0).sum()),
            "deliveries": int(every["attempt"].sum()),
            **{name: int(every[name].sum()) for name in ("acks", "modacks", "nacks")},
            "expired": self.expired,
            "stale": self.stale,
            "streams": len(self.streams) - 1,  # one of them stands for unary Pull
        }

    def counts(self) -> dict[str, dict[str, float]]:
        """Return for each message's id what has been asked of it, and when it was acked (0: never)."""
        names = {
            "deliveries": "attempt",
            "acks": "acks",
            "modacks": "modacks",
            "nacks": "nacks",
            "acked_at": "acked_at",
        }
        return {
            message_id(self.log.serial, number): {name: self._of[of][number].item() for name, of in names.items()}
            for number in range(self._first, self._next)
        }

    def acked_at(self, every: int) -> list[float]:
        """Return when each `every`-th message was acked, 0 for never."""
        times: list[float] = self._of["acked_at"][self._first : self._next : every].tolist()
        return times

    def _grow(self, count: int) -> None:
        if count > len(self._of["state"]):
            size = max(count, 2 * len(self._of["state"]))
            for name, values in self._of.items():
                self._of[name] = np.zeros(size, values.dtype)
                self._of[name][: len(values)] = values
