"""Groups as the server keeps them: shares of the shards, positions, leases, and who is fenced."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.errors import AlreadyExists, Fenced, Lost
from penstock.queue.topics.consumers import ALONE, UNSEEN, Consumers, floors
from penstock.queue.topics.groups import LEASE, Groups, Share
from tests.kit.clock import Clock
from tests.kit.topics import TOPIC, Reach

SHARDS = 4


class Rig:
    """The groups of a topic of four shards, and a clock for their leases."""

    def __init__(self, reach: Reach) -> None:
        self.reach, self.steady = reach, Clock(0)
        reach.create(key="id", shards=SHARDS)
        reach.put(*range(40))
        self.start()

    def start(self) -> None:
        """Start as a server does: leases are forgotten."""
        self.groups = Groups(self.reach.ledger, now=self.steady.now)

    def share(
        self, member: str, held: Mapping[int, int] | None = None, *, group: str = "g", leave: bool = False
    ) -> Share:
        topic = self.reach.topic()
        return self.groups.share(topic, group, member, held or {}, begin=topic.earliest(), leave=leave)

    def holders(self, group: str = "g") -> dict[str, list[int]]:
        states = {
            each.consumer: each for each in Consumers(self.reach.ledger, self.reach.topics).of(self.reach.topic())
        }
        return states[group].members or {}

    def position(self) -> dict[int, int]:
        (state,) = Consumers(self.reach.ledger, self.reach.topics).of(self.reach.topic())
        return dict(state.position)


@pytest.fixture
def rig(reach: Reach) -> Rig:
    return Rig(reach)


def test_the_first_member_has_all_shards(rig: Rig) -> None:
    share = rig.share("a")
    assert (dict(share.position), share.surplus) == (dict.fromkeys(range(SHARDS), 0), 0)


def test_a_second_member_waits_until_shards_are_given_back(rig: Rig) -> None:
    a = rig.share("a").position
    assert rig.share("b").position == {}
    assert rig.share("a", a).surplus == 2
    kept = {0: 3, 1: 0}
    assert rig.share("a", kept).surplus == 0
    assert rig.share("b").position == {2: 0, 3: 0}
    assert rig.holders() == {"a": [0, 1], "b": [2, 3]}


def test_no_shard_moves_without_need(rig: Rig) -> None:
    """Of two members with two shards each, one gives up one to a third, and neither when it has come."""
    a = rig.share("a").position
    rig.share("b")
    a = rig.share("a", {0: 0, 1: 0}).position
    b = rig.share("b").position
    rig.share("c")
    surplus = {member: rig.share(member, held).surplus for member, held in (("a", a), ("b", b))}
    assert sorted(surplus.values()) == [0, 1]
    giver, held = ("a", a) if surplus["a"] else ("b", b)
    rig.share(giver, {next(iter(held)): 0})
    assert len(rig.share("c").position) == 1
    assert [rig.share(*each).surplus for each in rig_members(rig)] == [0, 0, 0]


def rig_members(rig: Rig) -> list[tuple[str, dict[int, int]]]:
    return [(member, dict.fromkeys(shards, 0)) for member, shards in rig.holders().items()]


def test_more_members_than_shards_wait(rig: Rig) -> None:
    members = "abcdef"
    for _ in range(4):
        for member in members:
            held = dict.fromkeys(rig.holders().get(member, []) if rig.steady.now() else [], 0)
            share = rig.share(member, held)
            kept = list(share.position)[: len(share.position) - share.surplus]
            rig.share(member, dict.fromkeys(kept, 0))
            rig.steady.advance(1)
    assert sorted(map(len, rig.holders().values())) == [1, 1, 1, 1]


def test_a_commit_moves_the_position_and_never_back(rig: Rig) -> None:
    held = dict(rig.share("a").position)
    rig.share("a", {**held, 1: 5})
    assert rig.share("a", {**held, 1: 3}).position[1] == 5
    assert rig.position()[1] == 5


def test_a_commit_past_the_end_is_refused(rig: Rig) -> None:
    held = dict(rig.share("a").position)
    with pytest.raises(Lost, match="aren't of this journal"):
        rig.share("a", {**held, 1: 4_000})
    assert rig.position()[1] == 0


def test_a_silent_member_loses_its_shards(rig: Rig) -> None:
    held = dict(rig.share("a").position)
    rig.share("b")
    rig.steady.advance(LEASE - 1)
    assert rig.share("b").position == {}
    rig.steady.advance(2)
    assert rig.share("b").position == held


def test_a_fenced_member_commits_nothing(rig: Rig) -> None:
    """Nor does it have shards that are its own again: it begins anew."""
    held = dict(rig.share("a").position)
    rig.steady.advance(LEASE + 1)
    rig.share("b")
    with pytest.raises(Fenced, match="aren't those of this member of group g any more"):
        rig.share("a", {**held, 1: 5})
    assert rig.position()[1] == 0
    rig.share("b", leave=True)
    with pytest.raises(Fenced):
        rig.share("a", {**held, 1: 5})
    assert rig.share("a").position == held


def test_members_of_a_topic_before_take_no_shards(rig: Rig) -> None:
    rig.share("a")
    rig.reach.topics.remove(TOPIC)
    rig.reach.create(key="id", shards=SHARDS)
    assert len(rig.share("b").position) == SHARDS


def test_members_that_died_are_not_listed(rig: Rig, clock: Clock) -> None:
    rig.share("a")
    assert rig.holders() == {"a": [*range(SHARDS)]}
    clock.advance(ALONE + 1)
    assert rig.holders() == {}


def test_a_member_of_a_removed_group_is_told_so(rig: Rig) -> None:
    held = rig.share("a", dict(rig.share("a").position)).position
    Consumers(rig.reach.ledger, rig.reach.topics).remove(rig.reach.topic(), "g")
    with pytest.raises(Fenced, match="has no group g any more, as it was removed"):
        rig.share("a", held)
    assert rig.share("a").position == held


def test_a_silent_member_goes_on_if_nobody_came(rig: Rig) -> None:
    held = dict(rig.share("a").position)
    rig.steady.advance(10 * LEASE)
    assert rig.share("a", {**held, 1: 5}).position[1] == 5


def test_a_start_gives_each_member_its_full_lease(rig: Rig) -> None:
    held = dict(rig.share("a").position)
    rig.steady.advance(LEASE - 1)
    rig.start()
    assert rig.share("b").position == {}
    rig.steady.advance(LEASE - 1)
    assert rig.share("b").position == {}
    assert rig.share("a", {**held, 2: 1}).position[2] == 1


def test_a_member_that_leaves_frees_its_shards_at_once(rig: Rig) -> None:
    held = dict(rig.share("a").position)
    rig.share("b")
    rig.share("a", {**held, 0: 2})
    assert rig.share("a", leave=True).position == {}
    assert rig.share("b").position == {**held, 0: 2}


def test_a_call_whose_answer_was_lost_is_repeated(rig: Rig) -> None:
    held = dict(rig.share("a").position)
    assert rig.share("a").position == held  # as if it had not heard of them
    rig.share("b")
    for _ in range(2):
        assert rig.share("a", {0: 4, 1: 0}).position == {0: 4, 1: 0}
    for _ in range(2):
        rig.share("a", leave=True)


def test_an_idle_call_is_no_commit(rig: Rig) -> None:
    held = dict(rig.share("a").position)
    assert not rig.share("a", held).changed
    assert rig.share("a", {**held, 0: 1}).changed
    rig.reach.clock.advance(61)
    assert rig.share("a", {**held, 0: 1}).changed  # once a minute it is noted that the group is alive


def test_a_group_holds_rows_as_any_consumer(rig: Rig) -> None:
    held = dict(rig.share("a").position)
    rig.share("a", {**held, 2: 3})
    with rig.reach.ledger.reading() as reader:
        assert floors(reader, TOPIC) == {**held, 2: 3}


def test_a_group_expires_and_returns(rig: Rig) -> None:
    consumers = Consumers(rig.reach.ledger, rig.reach.topics, steady=rig.reach.clock.now)
    consumers.expire()
    held = dict(rig.share("a").position)
    rig.reach.clock.advance(UNSEEN + 1)
    assert consumers.expire() == ["g"]
    assert rig.share("a", {**held, 1: 2}).position[1] == 2
    assert [each.state for each in consumers.of(rig.reach.topic())] == ["live"]


def test_a_name_is_a_querys_or_a_groups(rig: Rig) -> None:
    consumers, topic = Consumers(rig.reach.ledger, rig.reach.topics), rig.reach.topic()
    consumers.attach(topic, "query", "s", initial={}, position={})
    with pytest.raises(AlreadyExists, match="is a query's: choose another name for the group"):
        rig.share("a", group="query")
    rig.share("a")
    with pytest.raises(AlreadyExists, match="is a group of programs: choose another name"):
        consumers.attach(topic, "g", "s", initial={}, position={})


def test_groups_of_two_topics_may_have_one_name(rig: Rig) -> None:
    rig.reach.put(1, path="topic/y")
    topic = rig.reach.topic("topic/y")
    rig.share("a")
    assert rig.groups.share(topic, "g", "a", {}, begin=topic.earliest()).position == {0: 0}
    assert len(rig.holders()["a"]) == SHARDS


def test_a_new_group_never_begins_below_the_oldest_row(rig: Rig) -> None:
    topic = rig.reach.topic()
    rig.reach.ledger.change(lambda t: t.execute("UPDATE shards SET first = 2 WHERE shard = 1"))
    assert rig.groups.share(topic, "g", "a", {}, begin={}).position[1] == 2


def test_groups_of_silent_members_are_forgotten(rig: Rig) -> None:
    held = dict(rig.share("a").position)
    rig.steady.advance(LEASE + 1)
    rig.groups.tend()
    assert rig.groups._deadlines == {}
    assert rig.share("a", held).position == held
