"""Any sequence of puts, members that join, leave, die, fall silent or lose answers, and starts of the server: no row of
a group is lost, and none comes twice unless the member that had it in hand has died, was fenced or has failed.

The members are the client's own, over a journal without a server. The oracle counts for each row how often it came, and
how often a batch with it was in the hand of a member that ended so.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.client.consume import Consumer
from penstock.client.settings import ConnectSettings
from penstock.errors import Fenced, Unavailable
from penstock.queue.topics.consumers import Consumers
from penstock.queue.topics.groups import LEASE, Groups
from penstock.wire.actions import SharedShards, ShareShards
from tests.kit.clock import Clock
from tests.kit.profiles import examples
from tests.kit.topics import SHM, TOPIC, Reach

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
SHARDS = 3
Row = tuple[int, int]
"""Shard and offset."""


class NothingComesError(Exception):
    """There are no rows for a member now."""


class Server:
    """The server's side: groups, which a start makes anew, and the journal. It is a member's connection, too."""

    settings = ConnectSettings("grpc://127.0.0.1:1")

    def __init__(self, reach: Reach) -> None:
        self.reach, self.steady = reach, Clock(0)
        self.lose = ""
        """Whether the next call is lost on its way, or its answer."""
        self.start()

    def start(self) -> None:
        self.groups = Groups(self.reach.ledger, now=self.steady.now)

    def call(self, action: object, request: ShareShards, **how: object) -> SharedShards:
        lose, self.lose = self.lose, ""
        if lose == "request":
            raise Unavailable("lost on its way")
        topic = self.reach.topic()
        share = self.groups.share(
            topic, request.consumer, request.session, request.held, begin=topic.earliest(), leave=request.leave
        )
        if lose == "answer":
            raise Unavailable("its answer is lost")
        return SharedShards(topic.journal, share.position, share.surplus, LEASE)


class Member(Consumer):
    """A member without threads and transport, and what it has in hand."""

    def __init__(self, server: Server, auto_commit: bool) -> None:
        connection: Any = server
        super().__init__(connection, TOPIC, "g", None, None, None, auto_commit=auto_commit)
        self.server, self.auto = server, auto_commit
        self.in_use: list[Row] = []
        self.heard = 0.0

    def _keep_lease(self) -> None:
        """The machine calls `_beat`."""

    def _fetch_more(self) -> None:
        """Fetch what there is of one shard after the other, two rows a batch."""
        command = self._next_command()
        topic = self.server.reach.topic()
        assert command is None or command.shards is not None
        for shard in () if command is None else command.shards or ():
            assert command is not None
            assert command.start is not None
            for first in range(command.start[shard], topic.latest()[shard], 2):
                end = min(first + 2, topic.latest()[shard])
                batch = pa.record_batch({"shard": [shard] * (end - first), "offset": [*range(first, end)]})
                self._batches.append((batch, shard, end))
        if not self._batches:
            raise NothingComesError

    def looks(self) -> None:
        """Let the next request look for a change of the share, as after a second."""
        self._called = min(self._called, 0.0)

    @property
    def shards(self) -> set[int]:
        return set(self._held)


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=SHM))
        self.reach = Reach(self.folder, Clock())
        self.reach.create(key="id", shards=SHARDS)
        self.server = Server(self.reach)
        self.members: list[Member] = []
        self.ids = 0
        self.came: Counter[Row] = Counter()
        self.may_repeat: Counter[Row] = Counter()
        self.used: set[Row] = set()
        self.position: dict[int, int] = dict.fromkeys(range(SHARDS), 0)
        logging.getLogger("penstock").setLevel(logging.CRITICAL)

    def teardown(self) -> None:
        self.drains()
        self.reach.close()
        shutil.rmtree(self.folder)
        logging.getLogger("penstock").setLevel(logging.NOTSET)

    # --- what happens -----------------------------------------------------------------------

    @rule(rows=st.integers(1, 8))
    def puts(self, rows: int) -> None:
        self.reach.put(*range(self.ids, self.ids + rows))
        self.ids += rows

    @precondition(lambda self: len(self.members) < 4)
    @rule(auto_commit=st.booleans())
    def joins(self, auto_commit: bool) -> None:
        member = Member(self.server, auto_commit)
        member.__enter__()
        member.heard = self.server.steady.now()
        self.members.append(member)

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3), looks=st.booleans(), lose=st.sampled_from(["", "", "", "request", "answer"]))
    def asks_for_a_batch(self, which: int, looks: bool, lose: str) -> None:
        """The batch in hand is used by then; an error ends the member's loop, and it tries again."""
        member = self.members[which % len(self.members)]
        if looks:
            member.looks()
        self.server.lose = lose
        self.next_batch(member)
        self.server.lose = ""

    def next_batch(self, member: Member) -> bool:
        """Ask for a batch; return whether one came."""
        before, called = member.in_use, member._called
        if member.auto:
            self.used.update(before)
            member.in_use = []
        try:
            batch = next(member)
        except (NothingComesError, Unavailable):
            return False
        except Fenced:
            self.may_repeat.update(before)
            member.in_use = []
            return False
        finally:
            if member._called != called:
                member.heard = self.server.steady.now()
        came = [*zip(batch["shard"].to_pylist(), batch["offset"].to_pylist(), strict=True)]
        self.came.update(came)
        member.in_use = [*member.in_use, *came]
        return True

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3))
    def commits(self, which: int) -> None:
        self.commit(self.members[which % len(self.members)])

    def commit(self, member: Member) -> None:
        self.used.update(member.in_use)
        try:
            member.commit()
        except Fenced:
            self.may_repeat.update(member.in_use)
        member.in_use = []

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3))
    def beats(self, which: int) -> None:
        member = self.members[which % len(self.members)]
        if member._fenced is None:
            member._beat()
            member.heard = self.server.steady.now()

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3), fails=st.booleans())
    def leaves(self, which: int, fails: bool) -> None:
        member = self.members.pop(which % len(self.members))
        if fails or not member.auto:
            self.may_repeat.update(member.in_use)
            member.__exit__(*((ValueError, ValueError(), None) if fails else (None, None, None)))
            return
        self.used.update(member.in_use)
        try:
            member.__exit__(None, None, None)
        except Fenced:
            self.may_repeat.update(member.in_use)

    @precondition(lambda self: self.members)
    @rule(which=st.integers(0, 3))
    def dies(self, which: int) -> None:
        self.may_repeat.update(self.members.pop(which % len(self.members)).in_use)

    @rule(seconds=st.sampled_from([1, LEASE / 2, LEASE + 1]))
    def time_passes(self, seconds: float) -> None:
        self.server.steady.advance(seconds)

    @rule()
    def the_server_starts_anew(self) -> None:
        self.server.start()

    # --- what holds -------------------------------------------------------------------------

    @invariant()
    def no_shard_has_two_members(self) -> None:
        """But for those that are silent for too long, and don't know it yet."""
        now = self.server.steady.now()
        heard = [member for member in self.members if now - member.heard < LEASE and member._fenced is None]
        counts = Counter(shard for member in heard for shard in member.shards)
        assert all(count == 1 for count in counts.values()), counts

    @invariant()
    def what_is_committed_was_used(self) -> None:
        for state in Consumers(self.reach.ledger, self.reach.topics).of(self.reach.topic()):
            for shard, offset in state.position.items():
                assert offset >= self.position[shard]
                assert all((shard, each) in self.used for each in range(self.position[shard], offset))
                self.position[shard] = offset

    @invariant()
    def nothing_comes_twice_without_a_crash(self) -> None:
        assert all(count <= 1 + self.may_repeat[row] for row, count in self.came.items())

    def drains(self) -> None:
        """The members that are left, or a new one, get all the rest."""
        if not self.members:
            self.joins(True)
        for _ in range(200):
            self.server.steady.advance(LEASE / 2)
            for member in self.members:
                member.looks()
            came = [self.next_batch(member) for member in self.members]
            for member in self.members:
                if not member.auto:
                    self.commit(member)
            if not any(came) and self.position == self.ends():
                break
            self.no_shard_has_two_members()
            self.what_is_committed_was_used()
        self.nothing_comes_twice_without_a_crash()
        assert self.position == self.ends()
        assert self.used == {(shard, at) for shard, end in self.ends().items() for at in range(end)}

    def ends(self) -> dict[int, int]:
        return self.reach.topic().latest()


GroupMachine.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=50)
TestGroupMachine = GroupMachine.TestCase
