"""Any sequence of pulls, redeliveries, commits, acks, windows and crashes: nothing lost, nothing twice, no early ack.

The oracle has, for each message, the place that was answered first, and notes what makes an id forgettable; it shares
no code with the owner. After a crash it learns from the journal whether a group that had no answer is there.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock import steps
from penstock.queue.topics.compaction import Compactor
from penstock.queue.topics.retention import retain
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.profiles import examples
from tests.kit.pubsub.owner import PATH, Key, Owned, Place, Puller
from tests.kit.topics import SHM

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

NOW = 1_790_000_000
WINDOW_IDS, WINDOW_SECONDS = 8, 1_000.0
BOUND = 12
CRASHES = [None, None, None, None, "append.durable", "append.committed", "pull.committed"]
KEYS = st.tuples(st.sampled_from([*map(str, range(12)), "x", "007"]), st.sampled_from([NOW * 10**6, NOW * 10**6 + 1]))
BATCHES = st.lists(KEYS, min_size=0, max_size=5)


class SubscriptionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=SHM))
        self.owned = Owned(self.folder, Clock(float(NOW)), window_ids=WINDOW_IDS, window_seconds=WINDOW_SECONDS)
        self.owned.steady = 0.0
        self.places: dict[Key, Place] = {}
        """Where each message is that must be known; the newest place, if it was forgotten in between."""
        self.journal: dict[Place, Key] = {}
        """Every row that ever was."""
        self.consumers: dict[str, dict[int, int]] = {}
        self.detached: dict[str, dict[int, int]] = {}
        self.released: dict[int, int] = dict.fromkeys(range(4), 0)
        self.sent: list[tuple[Puller, int]] = []
        """Batches without an answer."""
        self.pullers: list[Puller] = []
        self.told: set[Place] = set()
        """Acks that were reported, and aren't in the ledger for sure."""
        self.acked: dict[Place, tuple[float, int]] = {}
        """Those that are: the connected time, and the count of acks, when that was so."""
        self.connected, self.ack_count = 0.0, 0
        self.keyed = False

    @initialize(keyed=st.booleans())
    def begins(self, keyed: bool) -> None:
        self.keyed = keyed
        self.owned.attach(ordered=keyed, keep_seconds=50.0, max_unreleased_rows=BOUND)
        self.owned.reach.database._connection.execute("PRAGMA synchronous = OFF")
        self.connects()

    def teardown(self) -> None:
        self.owned.close()
        shutil.rmtree(self.folder)

    # --- pullers ----------------------------------------------------------------------------

    @rule()
    def connects(self) -> None:
        puller = Puller()
        self.owned.owner.connect(puller.stream, puller.welcomed.append)
        assert dict(puller.welcomed[-1]) == self.released
        self.pullers.append(puller)

    @precondition(lambda self: len(self.pullers) > 1)
    @rule(at=st.integers(0, 9))
    def disconnects(self, at: int) -> None:
        puller = self.pullers.pop(at % len(self.pullers))
        self.owned.owner.disconnect(puller.stream)
        self.sent = [(other, number) for other, number in self.sent if other is not puller]

    @precondition(lambda self: self.pullers)
    @rule(
        batches=st.lists(st.tuples(st.integers(0, 9), BATCHES), min_size=1, max_size=3),
        crash=st.sampled_from(CRASHES),
    )
    def pulls(self, batches: list[tuple[int, list[Key]]], crash: str | None) -> None:
        """Send batches, which are committed as one group; perhaps the server dies on the way."""
        for at, keys in batches:
            puller = self.pullers[at % len(self.pullers)]
            ordering = [f"k{int(key[0], 36) % 3}" if int(key[0], 36) % 4 else "" for key in keys]
            number = self.owned.send(puller, keys, ordering)
            if number not in puller.answers:
                self.sent.append((puller, number))
        if crash is None:
            self.owned.appender.flush()
            self.learn()
        else:
            self.crashes(crash, self.owned.appender.flush)

    def learn(self) -> None:
        """Check the answers that have come, and the rows that are new."""
        rows = self.rows()
        before = set(self.journal)
        self.check_rows(rows)
        fresh = {place: key for place, key in rows.items() if place not in before}
        firsts: set[Place] = set()
        for puller, number in list(self.sent):
            assert puller.refusals == []
            answer = puller.answers.get(number)
            if answer is None:
                continue
            self.sent.remove((puller, number))
            assert len(answer) == len(puller.sent[number])
            for key, (place, is_duplicate) in zip(puller.sent[number], answer, strict=True):
                assert self.journal[place] == key
                if not is_duplicate:
                    assert place in fresh
                    assert place not in firsts
                    firsts.add(place)
                assert self.places[key] == place or place in firsts or not self.must_know(key)
        assert firsts == set(fresh), "a row that no answer calls new"

    def check_rows(self, rows: dict[Place, Key]) -> None:
        """Check that what is readable is what was, and note what is new: no message that must be known."""
        new: set[Key] = set()
        for place, key in sorted(rows.items()):
            if place in self.journal:
                assert self.journal[place] == key
                continue
            assert key not in new, "one message twice"
            assert not (key in self.places and self.must_know(key)), "a message that is known, again"
            new.add(key)
            self.journal[place] = key
            self.places[key] = place
            self.told.discard(place)
        for shard, offset in self.released.items():
            ends = [at + 1 for where, at in self.journal if where == shard]
            for at in range(offset, max(ends, default=0)):
                assert (shard, at) in rows, "an unreleased row is gone"
        for key, place in self.places.items():
            assert place in rows or place not in self.acked or not self.must_know(key), (
                "a row is gone whose ack was reported within the window"
            )

    def must_know(self, key: Key) -> bool:
        """Whether a message may not be appended again."""
        place = self.places[key]
        shard, offset = place
        if offset >= self.released[shard] or place not in self.acked:
            return True
        since, count = self.acked[place]
        return self.connected - since < WINDOW_SECONDS and self.ack_count - count < WINDOW_IDS

    def rows(self) -> dict[Place, Key]:
        return self.owned.rows()

    # --- consumers --------------------------------------------------------------------------

    @rule(consumer=st.sampled_from("abc"), share=st.floats(0, 1))
    def attaches(self, consumer: str, share: float) -> None:
        """A consumer begins somewhere between the oldest row and the end; one that is known stays where it is."""
        first = self.owned.reach.topic(PATH).earliest()
        ends = self.owned.ends()
        begin = {shard: first[shard] + int((end - first[shard]) * share) for shard, end in ends.items()}
        if consumer not in self.consumers:
            self.owned.consume(consumer, begin)
            self.consumers[consumer] = self.detached.pop(consumer, begin)
        self.release()

    @precondition(lambda self: self.consumers)
    @rule(at=st.integers(0, 9), share=st.floats(0, 1), crash=st.sampled_from([None, None, "release.recorded"]))
    def commits(self, at: int, share: float, crash: str | None) -> None:
        consumer = sorted(self.consumers)[at % len(self.consumers)]
        before, ends = self.consumers[consumer], self.owned.ends()
        after = {shard: offset + round((ends[shard] - offset) * share) for shard, offset in before.items()}
        self.consumers[consumer] = after
        if crash is None:
            self.owned.commit(consumer, after)
            self.release()
        else:
            self.release(tell=False)
            self.crashes(crash, lambda: self.owned.commit(consumer, after))

    @precondition(lambda self: self.consumers)
    @rule(at=st.integers(0, 9))
    def detaches(self, at: int) -> None:
        consumer = sorted(self.consumers)[at % len(self.consumers)]
        self.owned.detach(consumer)
        self.detached[consumer] = self.consumers.pop(consumer)
        self.release()

    def release(self, *, tell: bool = True) -> None:
        """Move what is released to the slowest consumer, and check that pullers were told just that."""
        if self.consumers:
            slowest = {shard: min(each[shard] for each in self.consumers.values()) for shard in self.released}
            self.released = {shard: max(offset, slowest[shard]) for shard, offset in self.released.items()}
        if not tell:
            return
        assert dict(self.owned.owner.released()) == self.released
        for puller in self.pullers:
            for pushed in puller.pushed:
                assert all(offset <= self.released[shard] for shard, offset in pushed.items())
            assert not puller.pushed or dict(puller.pushed[-1]) == self.released
        self.owned.appender.flush()  # what the bound has held back
        self.learn()

    # --- acks, time, crashes ----------------------------------------------------------------

    @precondition(lambda self: self.pullers)
    @rule(at=st.integers(0, 9), every=st.integers(1, 3))
    def acks(self, at: int, every: int) -> None:
        """A puller reports some of what is released; not more than once, as the oracle counts it."""
        known = sorted(set(self.places.values()))
        open_ = [place for place in known if place not in self.acked and place not in self.told]
        chosen = [(shard, offset) for shard, offset in open_ if offset < self.released[shard]][::every]
        self.owned.acked(self.pullers[at % len(self.pullers)], chosen)
        self.told |= set(chosen)

    @rule(seconds=st.sampled_from([1.0, 100.0, 300.0]), crash=st.sampled_from([None, None, None, "ack.recorded"]))
    def time_passes(self, seconds: float, crash: str | None) -> None:
        told = set(self.told)
        if crash is None:
            self.owned.tick(seconds)
        else:
            self.crashes(crash, lambda: self.owned.tick(seconds))
        if self.pullers:
            self.connected += seconds
        self.ack_count += len(told)
        self.acked |= dict.fromkeys(told, (self.connected, self.ack_count))
        self.told = set()

    @rule()
    def retains(self) -> None:
        retain(self.owned.reach.ledger)
        self.check_rows(self.rows())

    @rule()
    def compacts(self) -> None:
        with mock.patch("penstock.ledger.merging.MANY", 2):
            Compactor(self.owned.reach.ledger, self.owned.reach.store).compact()
        self.check_rows(self.rows())

    @rule()
    def restarts(self) -> None:
        self.owned.restart()
        self.owned.reach.database._connection.execute("PRAGMA synchronous = OFF")
        self.pullers, self.sent, self.told = [], [], set()
        self.acked = dict.fromkeys(self.acked, (self.connected, self.ack_count))  # the window begins anew
        self.check_rows(self.rows())
        self.connects()

    def crashes(self, step: str, operation: Callable[[], object]) -> None:
        """Die at a step, if it comes to it, and start again."""
        with mock.patch.object(steps, "passed", crash_at(step)), self.without_discards(), contextlib.suppress(Crash):
            operation()
        self.restarts()

    @contextlib.contextmanager
    def without_discards(self) -> Iterator[None]:
        """Keep what a process that has died can't delete."""
        with mock.patch.object(type(self.owned.reach.store), "discard"):
            yield

    @invariant()
    def stays_within_its_bound(self) -> None:
        if not hasattr(self.owned, "owner"):
            return
        unreleased = sum(end - self.released[shard] for shard, end in self.owned.ends().items())
        assert unreleased < BOUND + 5
        assert self.owned.owner.state().unreleased_rows == unreleased


SubscriptionMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestSubscription = SubscriptionMachine.TestCase
