"""The leases of a puller: what to extend, what to ack and when, without a clock, I/O or threads.

    received ──▶ placed ──▶ released ──▶ acked
    a number      its shard    every consumer   Pub/Sub
    each          and offset   is behind it     answered

Leases are numbered from 0 in the order of their receipt. A million of them is usual, so no lease has an object of its
own: a `Group` has up to 1,000 neighbours with one deadline, which one request extends, and `Places` finds those of an
offset in sorted arrays.

The caller runs what `due` returns, any number at once, and passes each request to `settle` with what came of it.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.queue.pubsub.history import History, Rows, State
from penstock.queue.pubsub.lease_groups import MOST_BYTES, MOST_IDS, Group, Groups, Numbers, pack, size_of
from penstock.queue.pubsub.lease_places import Places

MOST_PARALLEL = 8
"""Requests to ack that are under way at once, and as many to extend: 1 M leases in 125 round trips."""
_EARLIEST, _LATEST = 0.4, 0.5
"""When a lease is extended, as a share of its length: drawn between these, so that groups don't come at once."""
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGEST_EXTENSION_PAUSE = 1.0, 600.0, 4.0
"""Seconds until a request is tried again: doubled from the first up to the longest."""

Verb = Literal["ack", "extend", "nack"]
Outcome = Literal["ok", "transient", "permanent"]


@dataclass(slots=True, eq=False)
class Request:
    """Ids for one call: Acknowledge, or ModifyAckDeadline by `seconds` (0: a nack)."""

    verb: Verb
    ack_ids: list[str]
    leases: Numbers
    seconds: int = 0
    shards: Numbers | None = None
    offsets: Numbers | None = None
    """The rows of those to ack."""
    sent: float = 0.0
    attempt: int = 0
    group: Group | None = None
    """What is extended as a whole."""


class Leases:
    """The leases of one subscription in one process. Times are those of one monotonic clock."""

    def __init__(self, *, seconds: float = 60.0, random: Random | None = None) -> None:
        self.seconds = seconds
        """The length of a lease from its extension on."""
        self.counters: Counter[str] = Counter()
        """Since the start: received duplicates replaced extensions extension_failures lapses acks_sent acks_confirmed
        acks_failed nacks forgotten."""
        self._random = random or Random()  # noqa: S311  # jitter, no secret
        self._next = 0
        self._floor = 0
        """Leases below it are forgotten."""
        self._groups = Groups()
        self._places = Places()
        self._unplaced: dict[int, int] = {}
        """The first lease of each response that has no places yet, and their number."""
        self._released: dict[int, int] = {}
        self._extensions: list[tuple[float, int, Group]] = []
        """A heap of when to extend which group; one that has changed since has another time."""
        self._waiting: deque[Request] = deque()
        """Requests to ack or nack that were never sent."""
        self._again: list[tuple[float, int, Request]] = []
        """A heap of requests to ack that failed, and when to send them again."""
        self._history = History()
        self._now = 0.0
        """The latest time that was said: when what ends without one has ended."""
        self._under_way: Counter[str] = Counter()
        self._acked: dict[int, list[Numbers]] = {}
        self._order = 0  # of entries in the heaps, whose values don't compare

    # --- what comes -------------------------------------------------------------------------

    def received(self, ack_ids: list[str], *, arrived: float, seconds: float | None = None) -> int:
        """Take the ids of a response that arrived then, leased for `seconds`; return the number of its first lease."""
        first, seconds = self._next, self.seconds if seconds is None else seconds
        self._now = max(self._now, arrived)
        self._next += len(ack_ids)
        self.counters["received"] += len(ack_ids)
        for start, end in pack(ack_ids):
            numbers = np.arange(first + start, first + end, dtype=np.int64)
            group = Group(numbers, ack_ids[start:end], arrived, arrived + seconds)
            self._groups.append(group)
            self._schedule(group, arrived + seconds * self._jitter())
        if ack_ids:
            self._unplaced[first] = len(ack_ids)
        return first

    def placed(self, first: int, shards: Numbers, offsets: Numbers, duplicate: npt.NDArray[np.bool_]) -> None:
        """Take the places of the leases from `first` on: their rows are durable."""
        leases = np.arange(first, first + len(shards), dtype=np.int64)
        for response in [each for each in self._unplaced if first <= each < first + len(shards)]:
            del self._unplaced[response]
        self.counters["duplicates"] += int(np.count_nonzero(duplicate))
        for group, rows in self._groups.find(leases):
            at = group.leases[rows] - first
            group.rows["shard"][rows], group.rows["offset"][rows] = shards[at], offsets[at]
            group.rows["duplicate"][rows] = duplicate[at]
        alive = leases >= self._floor
        for chosen in (alive & ~duplicate, alive & duplicate):  # a duplicate may be one of a row beside it
            for shard in np.unique(shards[chosen]).tolist():
                rows = chosen & (shards == shard)
                self._hold(shard, offsets[rows], leases[rows])
        for shard in np.unique(shards).tolist():
            self._release(shard)

    def released(self, position: Mapping[int, int]) -> None:
        """Ack the rows before this position, now and from now on. A position never goes back."""
        for shard, end in position.items():
            if end > self._released.get(shard, 0):
                self._released[shard] = end
                self._release(shard)

    def forget(self) -> None:
        """Drop all leases: their ids mean nothing any more, or, after a restart of the emulator, other messages."""
        self.counters["forgotten"] += len(self)
        for _, _, request in self._again:  # it was sent, and may have had its effect
            self._note_acked(request, np.ones(len(request.leases), np.bool_))
        for group in self._groups:
            self._history.add(group.rows[group.alive], "forgotten", self._now)
        self._floor = self._next
        self._groups, self._places = Groups(), Places()
        for queue in (self._unplaced, self._extensions, self._waiting, self._again):
            queue.clear()

    def give_back(self) -> None:
        """Nack what has no places: nobody has it on disk, and another puller may have it at once."""
        for first, count in self._unplaced.items():
            leases = np.arange(first, first + count, dtype=np.int64)
            for group, rows in self._groups.find(leases):
                self._waiting.append(Request("nack", [group.ack_ids[row] for row in rows.tolist()], group.leases[rows]))
        self._unplaced.clear()

    # --- what to do -------------------------------------------------------------------------

    def due(self, now: float) -> list[Request]:
        """Return the requests to send now; those under way bound how many they are."""
        self._now = max(self._now, now)
        requests: list[Request] = []
        while self._extensions and self._extensions[0][0] <= now and self._under_way["extend"] < MOST_PARALLEL:
            at, _, group = heapq.heappop(self._extensions)
            if at == group.extend_at and (request := self._extend(group, now)) is not None:
                requests.append(self._send(request, now))
        while self._under_way["ack"] < MOST_PARALLEL:
            if self._again and self._again[0][0] <= now:
                requests.append(self._send(heapq.heappop(self._again)[2], now))
            elif self._waiting:
                requests.append(self._send(self._joined(), now))
            else:
                break
        return requests

    def wait(self, now: float) -> float | None:
        """Return the seconds until `due` has more, as long as nothing comes; None: it won't."""
        times = []
        if self._extensions and self._under_way["extend"] < MOST_PARALLEL:
            times.append(self._extensions[0][0])
        if self._under_way["ack"] < MOST_PARALLEL:
            times += [at for at, _, _ in self._again[:1]] + [now] * bool(self._waiting)
        return max(0.0, min(times) - now) if times else None

    def settle(self, request: Request, now: float, outcome: Outcome, failures: Mapping[str, str] | None = None) -> None:
        """Take what came of a request. `failures` are those of single ids, on a subscription that confirms acks:
        PERMANENT_FAILURE_… or TRANSIENT_FAILURE_…; ids that aren't among them have the outcome of the request.
        """
        self._now = max(self._now, now)
        self._under_way[_window(request.verb)] -= 1
        outcomes = np.full(len(request.ack_ids), outcome, np.dtype("U9"))
        for row, ack_id in enumerate(request.ack_ids if failures else ()):
            failure = (failures or {}).get(ack_id)
            if failure is not None:
                outcomes[row] = "transient" if failure.startswith("TRANSIENT_") else "permanent"
        if request.verb == "extend":
            self._settle_extension(request, now, outcomes)
        else:
            self._settle_ack(request, now, outcomes)

    # --- what is there ----------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of leases: of rows that Pub/Sub would send again if nobody acked them."""
        return self._groups.count

    @property
    def unsettled(self) -> int:
        """The number of requests to ack or nack that are under way or wait to be sent."""
        return self._under_way["ack"] + len(self._waiting) + len(self._again)

    @property
    def oldest(self) -> float | None:
        """When the oldest leased message arrived."""
        return self._groups.oldest

    def history(self) -> list[tuple[State, Rows]]:
        """Return all leases, and those that ended last, by state."""
        by_state: dict[State, list[Rows]] = {}
        for group in self._groups:
            is_sent = group.rows["attempts"] > 0
            lapsed = group.alive & group.lapsed
            alive = group.alive & ~lapsed
            chosen_by_state: dict[State, npt.NDArray[np.bool_]] = {
                "lapsed": lapsed,
                "ack sent": alive & is_sent,
                "released": alive & ~is_sent & group.acking,
                "leased": alive & ~is_sent & ~group.acking,
            }
            for state, chosen in chosen_by_state.items():
                by_state.setdefault(state, []).append(group.rows[chosen])
        leased = [(state, np.concatenate(rows)) for state, rows in by_state.items()]
        return [*leased, *self._history.rows()]

    def take_acked(self) -> dict[int, list[tuple[int, int]]]:
        """Return the ranges of offsets, by shard, whose acks were answered since the last call."""
        acked, self._acked = self._acked, {}
        return {shard: list(_ranges(np.concatenate(offsets))) for shard, offsets in sorted(acked.items())}

    # --- inside -----------------------------------------------------------------------------

    def _hold(self, shard: int, offsets: Numbers, leases: Numbers) -> None:
        """Note where these rows are; a lease of the same place is older, and its id is worth nothing any more."""
        offsets, last = np.unique(offsets[::-1], return_index=True)  # of two in one batch the later one counts
        newest = leases[::-1][last]
        older = np.setdiff1d(leases, newest) if len(newest) < len(leases) else leases[:0]
        older = np.union1d(older, self._places.replace(shard, offsets, newest))
        self.counters["replaced"] += self._drop(older, "replaced")

    def _release(self, shard: int) -> None:
        """Queue the acks of the rows that are below the released offset."""
        for offsets, leases in self._places.take_below(shard, self._released.get(shard, 0)):
            for group, rows in self._groups.find(leases):
                group.acking[rows] = True
                group.rows["changed"][rows] = self._now
                numbers = group.leases[rows]
                places = offsets[np.searchsorted(leases, numbers)]
                ack_ids = [group.ack_ids[row] for row in rows.tolist()]
                self._waiting.append(Request("ack", ack_ids, numbers, 0, np.full_like(numbers, shard), places))

    def _joined(self) -> Request:
        """Take the next request that waits, joined with those behind it as far as one call may have them."""
        joined = [self._waiting.popleft()]
        ids, size = len(joined[0].ack_ids), size_of(joined[0].ack_ids)
        while self._waiting and self._waiting[0].verb == joined[0].verb:
            ids += len(self._waiting[0].ack_ids)
            size += size_of(self._waiting[0].ack_ids)
            if ids > MOST_IDS or size > MOST_BYTES:
                break
            joined.append(self._waiting.popleft())
        if len(joined) == 1:
            return joined[0]
        ack_ids = [each for request in joined for each in request.ack_ids]
        leases = np.concatenate([request.leases for request in joined])
        if joined[0].verb == "nack":
            return Request("nack", ack_ids, leases)
        shards = np.concatenate([request.shards for request in joined if request.shards is not None])
        offsets = np.concatenate([request.offsets for request in joined if request.offsets is not None])
        return Request("ack", ack_ids, leases, 0, shards, offsets)

    def _send(self, request: Request, now: float) -> Request:
        request.sent = now
        self._under_way[_window(request.verb)] += 1
        if request.verb == "ack":
            for group, rows in self._groups.find(np.sort(request.leases)):
                group.rows["attempts"][rows] += 1
                group.rows["changed"][rows] = now
        if request.verb == "ack" and not request.attempt:
            self.counters["acks_sent"] += len(request.ack_ids)
        return request

    def _extend(self, group: Group, now: float) -> Request | None:
        """Return the request that extends a group, with small ones behind it; None if it has lapsed, or is gone."""
        if not group.count:
            return None
        if now >= group.deadline:
            self.counters["lapses"] += int(np.count_nonzero(group.alive & ~group.acking))
            group.rows["changed"] = group.deadline
            group.lapsed = True  # its ids are good for an ack that may still count, and until the message comes again
            group.extend_at = None
            return None
        self._groups.absorb(group, now + self.seconds * (_LATEST - _EARLIEST))
        rows = group.alive.nonzero()[0]
        ack_ids = [group.ack_ids[row] for row in rows.tolist()]
        group.extend_at = None  # until the answer
        return Request("extend", ack_ids, group.leases[rows], int(self.seconds), attempt=group.attempt, group=group)

    def _settle_extension(self, request: Request, now: float, outcomes: npt.NDArray[np.str_]) -> None:
        group = request.group
        assert group is not None
        if group.first < self._floor:
            return
        gone = outcomes == "permanent"
        lost = request.leases[gone]
        if len(lost):  # the ids are stale: the messages come again, with others
            acking = sum(int(np.count_nonzero(each.acking[rows])) for each, rows in self._groups.find(lost))
            self.counters["lapses"] += self._drop(lost, "lapsed") - acking
        if not group.count:
            return
        extended = int(np.count_nonzero(outcomes == "ok"))
        self.counters["extensions"] += extended
        failed = len(outcomes) - extended - len(lost)
        if failed:
            self.counters["extension_failures"] += failed
            group.attempt += 1
            pause = min(_FIRST_PAUSE * 2 ** (group.attempt - 1), _LONGEST_EXTENSION_PAUSE)
            self._schedule(group, min(now + pause, max(now, group.deadline)))
        else:
            group.attempt = 0
            group.deadline = request.sent + self.seconds
            self._schedule(group, request.sent + self.seconds * self._jitter())

    def _settle_ack(self, request: Request, now: float, outcomes: npt.NDArray[np.str_]) -> None:
        if request.verb == "nack":
            self.counters["nacks"] += self._drop(request.leases, "given back")
            return
        transient = (outcomes == "transient") & (request.leases >= self._floor)
        confirmed = self._groups.find(np.sort(request.leases[outcomes == "ok"]))
        self.counters["acks_confirmed"] += sum(len(rows) for group, rows in confirmed if not group.lapsed)
        self.counters["acks_failed"] += int(np.count_nonzero(outcomes == "permanent"))
        self._drop(request.leases[outcomes == "ok"], "confirmed")
        self._drop(request.leases[(outcomes != "ok") & ~transient], "failed")
        self._note_acked(request, ~transient & (outcomes != "permanent"))  # those come again, and have to be known
        if transient.any():
            assert request.shards is not None
            assert request.offsets is not None
            rows = transient.nonzero()[0]
            again = Request(
                "ack", [request.ack_ids[row] for row in rows.tolist()], request.leases[rows], 0,
                request.shards[rows], request.offsets[rows], attempt=request.attempt + 1,
            )  # fmt: skip
            pause = min(_FIRST_PAUSE * 2**request.attempt, _LONGEST_PAUSE)
            self._order += 1
            heapq.heappush(self._again, (now + pause, self._order, again))

    def _note_acked(self, request: Request, rows: npt.NDArray[np.bool_]) -> None:
        """Note that the acks of these rows were sent, and are not sent again."""
        assert request.shards is not None
        assert request.offsets is not None
        for shard in np.unique(request.shards[rows]).tolist():
            self._acked.setdefault(shard, []).append(request.offsets[rows & (request.shards == shard)])

    def _drop(self, leases: Numbers, state: State) -> int:
        """End these leases, and note how; return how many there were."""
        count = 0
        for rows, lapsed in self._groups.drop(leases) if len(leases) else ():
            count += len(rows)
            unsure = lapsed and state == "confirmed"  # nobody knows whether such an ack has counted
            self._history.add(rows, "lapsed" if unsure else state, self._now)
        return count

    def _schedule(self, group: Group, at: float) -> None:
        group.extend_at = at
        self._order += 1
        heapq.heappush(self._extensions, (at, self._order, group))

    def _jitter(self) -> float:
        return self._random.uniform(_EARLIEST, _LATEST)


def _window(verb: Verb) -> str:
    return "extend" if verb == "extend" else "ack"


def _ranges(offsets: Numbers) -> Iterator[tuple[int, int]]:
    """Yield the ranges [first, end) that offsets make up."""
    offsets = np.unique(offsets)
    breaks = np.nonzero(np.diff(offsets) != 1)[0] + 1
    for run in np.split(offsets, breaks):
        if len(run):
            yield int(run[0]), int(run[-1]) + 1
