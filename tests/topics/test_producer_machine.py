"""Any sequence of batches, lost answers, returns, second sessions, crashes, full disks and expiry: each batch is there
once, in its producer's order, and its producer knows it.

The oracle is a list of rows, and for each client what it has sent and what of that must be stored.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock import steps
from penstock.errors import Expired, Fenced, InvalidRequest, Lost, NotFound, PenstockError
from penstock.queue.topics.producers import UNSEEN
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.producers import ProducerRig, Told
from tests.kit.profiles import examples
from tests.kit.topics import SHM, TOPIC, Reach

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


@dataclass(eq=False)
class Stream:
    """One stream of a client."""

    told: Told
    next: int
    """The number of the batch that it sends next."""
    heard: int = 0
    """How many of its answers the client has read."""
    broken: bool = False
    """Fenced, or a batch of it was refused: nothing more of it may be stored."""


@dataclass(eq=False)
class Model:
    """A client of one producer, and what the server must have of it."""

    id: str
    batches: dict[int, list[int]] = field(default_factory=dict)
    """The ids of the rows of each batch, stored or to be sent again."""
    stored: int = 0
    """All batches up to this number are in the topic."""
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Where their rows are: the first offset and the end."""
    acked: int = 0
    """The client has the answers up to this number."""
    streams: list[Stream] = field(default_factory=list)
    """The last one is the newest."""
    seen: float = 0.0
    gone: bool = False
    """Expired, or forgotten."""


which = st.integers(0, 3)


class ProducerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=SHM))
        self.clock = Clock()
        self.reach = Reach(self.folder, self.clock)
        self.rig = ProducerRig(self.reach)
        self.clients: list[Model] = []
        self.rows: list[int] = []
        self.waiting: list[tuple[Model, Stream, int]] = []
        self.count = 0
        logging.getLogger("penstock").setLevel(logging.CRITICAL)

    def teardown(self) -> None:
        self.reach.close()
        shutil.rmtree(self.folder)
        logging.getLogger("penstock").setLevel(logging.NOTSET)

    # --- clients ----------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < 4)
    @rule()
    def begins(self) -> None:
        told = self.rig.hello()
        assert (told.session.last, told.session.answers) == (0, ())
        self.clients.append(Model(told.session.producer, streams=[Stream(told, 1)], seen=self.clock.now()))

    @precondition(lambda self: self.clients)
    @rule(which=which, older=st.booleans(), rows=st.integers(0, 3))
    def sends(self, which: int, older: bool, rows: int) -> None:
        """The next batch of a stream; also of one that was fenced, or refused."""
        client = self.clients[which % len(self.clients)]
        if not client.streams:
            return
        stream = client.streams[0 if older else -1]
        if stream.broken:
            with pytest.raises(PenstockError):
                stream.told.append(stream.next, 666, acked=min(client.acked, stream.next - 1))
            return
        if stream is client.streams[-1] and stream.next not in client.batches:
            client.batches[stream.next] = list(range(self.count, self.count + rows))
            self.count += rows
        stream.told.append(stream.next, *client.batches[stream.next], acked=min(client.acked, stream.next - 1))
        self.waiting.append((client, stream, stream.next))
        stream.next += 1

    @precondition(lambda self: self.clients)
    @rule(which=which, off=st.sampled_from([-2, -1, 1, 2]))
    def sends_a_wrong_number(self, which: int, off: int) -> None:
        client = self.clients[which % len(self.clients)]
        stream = client.streams[-1] if client.streams else None
        if stream is None or stream.broken or stream.next + off < 0:
            return
        with pytest.raises(InvalidRequest, match="expected batch"):
            stream.told.append(stream.next + off, 666)

    @precondition(lambda self: self.clients)
    @rule(which=which)
    def reads_answers(self, which: int) -> None:
        client = self.clients[which % len(self.clients)]
        for stream in client.streams:
            for answer in stream.told.answers[stream.heard :]:
                self.check_place(client, answer.n, answer.shards)
                client.acked = max(client.acked, answer.n)
            stream.heard = len(stream.told.answers)

    @precondition(lambda self: self.clients)
    @rule(which=which, lies=st.sampled_from([0, 0, 0, 0, 1]))
    def comes_back(self, which: int, lies: int) -> None:
        """With or without an end of the stream before."""
        client = self.clients[which % len(self.clients)]
        acked = client.acked if not lies else client.stored + 1
        if client.gone or lies:
            with pytest.raises(Expired if client.gone else Lost):
                self.rig.hello(client.id, acked)
            return
        told = self.rig.hello(client.id, acked)
        assert told.session.last == client.stored, "a batch was lost, or stored unseen"
        assert [answer.n for answer in told.session.answers] == list(range(acked + 1, client.stored + 1))
        for answer in told.session.answers:
            self.check_place(client, answer.n, answer.shards)
        for stream in client.streams:
            assert stream.broken or isinstance(stream.told.refusals[0], Fenced)
            stream.broken = True
        client.acked, client.seen = client.stored, self.clock.now()
        client.streams = [*client.streams[-2:], Stream(told, client.stored + 1)]

    @precondition(lambda self: self.clients)
    @rule(which=which, bye=st.booleans())
    def ends_its_stream(self, which: int, bye: bool) -> None:
        client = self.clients[which % len(self.clients)]
        if not client.streams or any(waiting[0] is client for waiting in self.waiting):
            return
        newest = client.streams[-1]
        if bye and not newest.broken:
            newest.told.session.forget()
            client.gone = True
        for stream in client.streams:
            stream.told.session.__exit__(None, None, None)
        client.streams = []

    # --- the server -------------------------------------------------------------------------

    @rule(
        full=st.sampled_from([False, False, False, True]),
        crash=st.sampled_from([None, None, None, "append.durable", "append.committed"]),
    )
    def commits(self, full: bool, crash: str | None) -> None:
        """One group, of all that waits."""
        waiting, self.waiting = self.waiting, []
        if full:
            self.reach.store.quota = 0
        elif crash is not None:
            self.commits_and_crashes(waiting, crash)
            return
        self.rig.commit()
        self.reach.store.quota = None
        for client, stream, n in waiting:
            if full and client.batches[n]:
                stream.broken = True
            if not stream.broken:
                self.note_stored(client, n)
                assert n in stream.told.numbers(), "stored and not answered"
            else:
                assert n not in stream.told.numbers(), "answered and not stored"

    def commits_and_crashes(self, waiting: list[tuple[Model, Stream, int]], crash: str) -> None:
        fresh = [(client, n) for client, stream, n in waiting if not stream.broken]
        with (
            mock.patch.object(steps, "passed", crash_at(crash)),
            mock.patch.object(type(self.reach.store), "discard"),  # a dead process cleans nothing up
            contextlib.suppress(Crash),
        ):
            self.rig.commit()
        if crash == "append.committed":
            for client, n in fresh:
                self.note_stored(client, n)
        self.restart()

    @rule()
    def restarts(self) -> None:
        """What waits was never answered, and is gone."""
        self.waiting = []
        self.restart()

    def restart(self) -> None:
        self.reach.restart()
        self.rig = ProducerRig(self.reach)
        for client in self.clients:
            client.streams = []

    @rule(days=st.sampled_from([1, 4, 8]))
    def time_passes(self, days: int) -> None:
        self.clock.advance(days * 86_400)
        expired = set(self.rig.producers.expire())
        for client in self.clients:
            if client.streams:
                client.seen = self.clock.now()
            overdue = not client.gone and self.clock.now() - client.seen > UNSEEN
            assert (client.id in expired) == overdue
            client.gone = client.gone or overdue

    # --- the oracle -------------------------------------------------------------------------

    def note_stored(self, client: Model, n: int) -> None:
        assert n == client.stored + 1
        client.stored = n
        client.seen = self.clock.now()
        client.places[n] = (len(self.rows), len(self.rows) + len(client.batches[n]))
        self.rows += client.batches[n]

    @staticmethod
    def check_place(client: Model, n: int, shards: dict[int, tuple[int, int]] | None) -> None:
        assert shards == ({0: client.places[n]} if client.batches[n] else {})

    @invariant()
    def the_topic_has_each_batch_once(self) -> None:
        try:
            stored = self.reach.ids()
        except NotFound:
            stored = []
        assert stored == self.rows

    @invariant()
    def no_part_is_left_over(self) -> None:
        if self.reach.topics.find(TOPIC) is not None:
            assert self.reach.kept() == set(self.reach.parts())


ProducerMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestProducerMachine = ProducerMachine.TestCase
