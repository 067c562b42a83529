"""A LeaseQueue in memory: lists and plain loops, an oracle that shares no code with the ledger's queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.errors import InvalidRequest, NotFound
from penstock.queue.work.lease_queue import Claim, Forward, Lease, NewMessage
from penstock.wire.message import QueueMessage
from penstock.wire.queue import Failure, LeaseKey, LeaseOutcome, QueueCounts, QueueRoom, QueueState

_LEASE, _TRIES = 30.0, 5


@dataclass
class _Message:
    message: QueueMessage
    bytes: int
    pushed: float
    state: str = "pending"
    ready: float = 0.0
    deadline: float = 0.0
    tries: int = 0
    token: str = ""
    claim: str = ""
    worker: str = ""
    has_forwarded: bool = False


@dataclass
class _Queue:
    messages: dict[str, _Message] = field(default_factory=dict)
    upstreams: dict[str, QueueState] = field(default_factory=dict)


class MemoryQueue:
    """Queues by path. What fills a queue is asked each time, never noted."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._queues: dict[str, _Queue] = {}
        self._tokens = 0
        self._claims: dict[str, tuple[str, list[LeaseKey]]] = {}

    # --- upstreams --------------------------------------------------------------------------

    def add_upstream(self, path: str, upstream: str) -> None:
        if upstream == path:
            self._queues.setdefault(path, _Queue())
            return
        if upstream.startswith("queue/"):
            if path in self._fillers(upstream):
                raise InvalidRequest("a circle")
            if upstream not in self._queues:
                raise NotFound(upstream)
        self._queues.setdefault(path, _Queue()).upstreams[upstream] = "open"

    def set_upstream(self, upstream: str, state: QueueState) -> None:
        for queue in self._queues.values():
            if upstream in queue.upstreams:
                queue.upstreams[upstream] = state

    def push_parts(self, path: str, messages: Sequence[NewMessage]) -> None:
        for each in messages:
            self._queues[path].messages[each.message.message_id] = _Message(each.message, each.bytes, self._now())

    def named_keys(self) -> set[str]:
        """Return the payload keys of messages that aren't done."""
        messages = (message for queue in self._queues.values() for message in queue.messages.values())
        return {message.message.payload_key for message in messages if message.state != "done"}

    def paths(self) -> list[str]:
        return list(self._queues)

    def _fillers(self, path: str) -> set[str]:
        above = {path}
        while True:
            more = above | {up for each in above if each in self._queues for up in self._queues[each].upstreams}
            if more == above:
                return above
            above = more

    def state(self, path: str) -> QueueState:
        queue = self._queues[path]
        states = [self.state(up) if up.startswith("queue/") else state for up, state in queue.upstreams.items()]
        if "failed" in states:
            return "failed"
        is_drained = all(each.state in ("done", "dead") for each in queue.messages.values())
        return "complete" if states and set(states) == {"complete"} and is_drained else "open"

    # --- verbs ------------------------------------------------------------------------------

    def push(self, messages: Sequence[NewMessage]) -> int:
        new = 0
        for each in messages:
            queue = self._queues.setdefault(each.queue, _Queue())
            if each.message.message_id in queue.messages:
                queue.upstreams.setdefault("put", "open")
                continue
            if queue.upstreams.get("put", "open") != "open":
                raise InvalidRequest(each.queue)
            queue.upstreams["put"] = "open"
            queue.messages[each.message.message_id] = _Message(each.message, each.bytes, self._now())
            new += 1
        return new

    def claim(
        self, path: str, claim: str, *, worker: str, most: int = 1, to: Sequence[str] = (),
        room: QueueRoom | None = None,
    ) -> Claim:  # fmt: skip
        if path not in self._queues:
            raise NotFound(path)
        self.expire(path)
        for below in to:
            if path not in self._queues.get(below, _Queue()).upstreams:
                self.add_upstream(below, path)
        queue, state = self._queues[path], self.state(path)
        if claim in self._claims and self._claims[claim][0] == path:
            keys = self._claims[claim][1]
            return Claim(state, tuple(self._lease(key) for key in keys if self._holds(key)), None)
        if state == "failed":
            return Claim(state)
        if room is not None:
            most = min([most, *(self._room(path, below, room) for below in to)])
        chosen = [m for m in queue.messages.values() if m.state == "pending" and m.ready <= self._now()][:most]
        leases = []
        for message in chosen:
            self._tokens += 1
            message.state, message.token, message.claim = "claimed", f"t{self._tokens}", claim
            message.worker = worker
            message.tries, message.deadline = message.tries + 1, self._now() + _LEASE
            leases.append(self._lease(LeaseKey(path, message.message.message_id, message.token)))
        if leases:
            self._claims[claim] = (path, [lease.key for lease in leases])
        return Claim(state, tuple(leases))

    def _room(self, path: str, below: str, room: QueueRoom) -> int:
        waiting = [each for each in self._queues[below].messages.values() if each.state not in ("done", "dead")]
        size = sum(each.bytes for each in self._queues[below].messages.values() if each.state != "done")
        at_work = sum(each.state == "claimed" for each in self._queues[path].messages.values())
        return 0 if waiting and size >= room.bytes else max(0, room.messages - len(waiting) - at_work)

    def _lease(self, key: LeaseKey) -> Lease:
        message = self._queues[key.queue].messages[key.message_id]
        return Lease(key, message.message, message.tries, message.bytes)

    def _find(self, key: LeaseKey) -> _Message | None:
        queue = self._queues.get(key.queue)
        return None if queue is None else queue.messages.get(key.message_id)

    def _holds(self, key: LeaseKey) -> bool:
        message = self._find(key)
        return (
            message is not None
            and (message.state, message.token) == ("claimed", key.token)
            and self._now() < message.deadline
        )

    def expire(self, path: str) -> None:
        for message in self._queues[path].messages.values():
            if message.state == "claimed" and self._now() >= message.deadline:
                message.state = "dead" if message.tries >= _TRIES else "pending"
                message.token = ""

    def restart(self) -> None:
        """Do what a crash and a start do: leases are full again, delays are over; claims are known by their leases."""
        for queue in self._queues.values():
            for message in queue.messages.values():
                message.ready = 0.0
                message.deadline = self._now() + _LEASE
        self._claims = {
            claim: (path, keys) for claim, (path, keys) in self._claims.items() if any(map(self._holds, keys))
        }

    def ack(self, leases: Sequence[LeaseKey]) -> list[LeaseOutcome]:
        return [self._end(key, "done") for key in leases]

    def drop(self, leases: Sequence[LeaseKey], failure: Failure) -> list[LeaseOutcome]:
        return [self._end(key, "dead") for key in leases]

    def _end(self, key: LeaseKey, state: str) -> LeaseOutcome:
        message = self._find(key)
        if message is None:
            return LeaseOutcome(code="lease-lost")
        if self._holds(key):
            message.state = state
        elif (message.state, message.token) != (state, key.token):
            return LeaseOutcome(code="lease-lost")
        return LeaseOutcome(state)  # type: ignore[arg-type]

    def forward(self, forwards: Sequence[Forward]) -> list[LeaseOutcome]:
        return [self._forward(each) for each in forwards]

    def _forward(self, forward: Forward) -> LeaseOutcome:
        messages = [self._find(key) for key in forward.leases]
        known = [self._queues.get(out.queue, _Queue()).messages for out in forward.outputs]
        if not all(self._holds(key) for key in forward.leases):
            for key, message in zip(forward.leases, messages, strict=True):
                if message is None or not message.has_forwarded or message.token != key.token:
                    return LeaseOutcome(code="lease-lost")
            is_known = all(o.message.message_id in m for o, m in zip(forward.outputs, known, strict=True))
            return LeaseOutcome("done") if is_known else LeaseOutcome(code="lease-lost")
        for out in forward.outputs:
            for key in forward.leases:
                if key.queue not in self._queues.get(out.queue, _Queue()).upstreams:
                    self.add_upstream(out.queue, key.queue)
            new = _Message(out.message, out.bytes, self._now())
            self._queues[out.queue].messages.setdefault(out.message.message_id, new)
        for message in messages:
            if message is not None:
                message.state, message.has_forwarded = "done", True
        return LeaseOutcome("done")

    def release(
        self, leases: Sequence[LeaseKey], *, delay: float = 0.0, failure: Failure | None = None
    ) -> list[LeaseOutcome]:
        return [self._release(key, delay, failed=failure is not None) for key in leases]

    def _release(self, key: LeaseKey, delay: float, *, failed: bool) -> LeaseOutcome:
        message = self._find(key)
        if message is not None and self._holds(key):
            message.state = "dead" if failed and message.tries >= _TRIES else "pending"
            message.tries -= not failed
            message.ready = self._now() + delay
        elif message is None or message.token != key.token or message.state not in ("pending", "dead"):
            return LeaseOutcome(code="lease-lost")
        return LeaseOutcome(message.state)  # type: ignore[arg-type]

    def release_worker(self, path: str, worker: str) -> int:
        if path not in self._queues:
            raise NotFound(path)
        names = self._queues[path].messages.items()
        keys = [LeaseKey(path, name, each.token) for name, each in names if each.worker == worker]
        held = [key for key in keys if self._holds(key)]
        self.release(held)
        return len(held)

    def extend(self, leases: Sequence[LeaseKey]) -> list[LeaseOutcome]:
        outcomes = []
        for key in leases:
            message = self._find(key)
            if message is not None and self._holds(key):
                message.deadline = self._now() + _LEASE
                outcomes.append(LeaseOutcome("claimed"))
            else:
                outcomes.append(LeaseOutcome(code="lease-lost"))
        return outcomes

    def redrive(self, path: str, message_ids: Sequence[str] = ()) -> int:
        if path not in self._queues:
            raise NotFound(path)
        dead = [
            message
            for name, message in self._queues[path].messages.items()
            if message.state == "dead" and (not message_ids or name in message_ids)
        ]
        for message in dead:
            message.state, message.tries, message.token, message.ready = "pending", 0, "", 0.0
        return len(dead)

    def finish(self, path: str) -> QueueCounts:
        self._queues.setdefault(path, _Queue()).upstreams["put"] = "complete"
        return self.counts(path)

    def counts(self, path: str) -> QueueCounts:
        if path not in self._queues:
            raise NotFound(path)
        messages = list(self._queues[path].messages.values())
        pending, claimed, done, dead = (
            sum(message.state == state for message in messages) for state in ("pending", "claimed", "done", "dead")
        )
        size = sum(m.bytes for m in messages if m.state != "done")
        oldest = next((m.pushed for m in messages if m.state == "pending"), None)
        return QueueCounts(path, self.state(path), len(messages), pending, claimed, done, dead, size, oldest)
