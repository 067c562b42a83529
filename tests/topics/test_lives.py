"""A position names the life of the server that wrote its last rows: a folder that was put back is recognized by it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.errors import Lost
from penstock.queue.topics import journal
from penstock.queue.topics.consumers import Consumers
from penstock.queue.topics.topic import Topic
from penstock.store.disk import DiskMedium
from penstock.wire.position import Position
from tests.kit.clock import Clock
from tests.kit.topics import TOPIC, Reach


class Server(Reach):
    """A data folder that can be copied, and put back, while no process has it."""

    def copy(self) -> Path:
        """Close the folder, copy it, and start again."""
        self.close()
        copy = self.folder.with_name(f"{self.folder.name}-{len(list(self.folder.parent.iterdir()))}")
        shutil.copytree(self.folder, copy)
        self.start(DiskMedium(self.folder))
        return copy

    def put_back(self, copy: Path) -> None:
        self.close()
        shutil.rmtree(self.folder)
        shutil.copytree(copy, self.folder)
        self.start(DiskMedium(self.folder))

    def end(self) -> Position:
        topic = self.topic()
        return self.topics.labelled(topic, topic.latest())

    def check(self, position: Position) -> Position:
        return self.topics.complete_position(self.topic(), position, {})


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Server:
    (tmp_path / "data").mkdir()
    server = Server(tmp_path / "data", clock)
    server.put(1, 2, 3)
    return server


def test_a_restart_changes_no_position(server: Server) -> None:
    """Spark would see a new offset at each start of the server, and make a batch of it."""
    before = server.end()
    server.restart()
    assert (server.end().life, server.check(before)) == (before.life, before)
    server.put(4)
    assert server.end().life != before.life
    assert server.check(before) == before
    server.close()


def test_a_folder_that_has_grown_past_a_position_rejects_it(server: Server) -> None:
    copy = server.copy()
    server.put(4, 5)
    read = server.end()
    server.put_back(copy)
    with pytest.raises(Lost, match="put back to an older state"):
        server.check(read)
    server.put(14, 15, 16)
    with pytest.raises(Lost, match="put back to an older state"):
        server.check(read)
    assert server.check(server.end()) == server.end()
    server.close()


def test_a_position_before_the_copy_stays_valid(server: Server) -> None:
    read, copy = server.end(), server.copy()
    server.put(4, 5)
    server.put_back(copy)
    server.put(14)
    assert server.check(read) == read
    server.close()


def test_a_life_whose_rows_are_gone_keeps_its_end(server: Server) -> None:
    """A reader that has read everything is where its life ended, though retention has removed that life's rows."""
    read = server.end()
    server.restart()
    server.put(4)
    first = next(journal.placed_parts(server.database, TOPIC, 0))
    server.ledger.change(lambda t: journal.remove_oldest(t, TOPIC, [first]))
    assert server.topic().earliest() == {0: 3}
    assert server.check(read) == read
    server.close()


def test_numbers_without_a_life_are_taken_as_they_are(server: Server) -> None:
    assert server.check(Position({0: 2})) == Position({0: 2})
    server.close()


def test_a_consumer_of_another_life_is_rejected(server: Server) -> None:
    copy = server.copy()
    server.put(4, 5)
    read, topic = server.end(), server.topic()
    server.put_back(copy)
    server.put(14, 15)
    consumers = Consumers(server.ledger, server.topics)
    with pytest.raises(Lost):
        consumers.attach(topic, "c", "s", initial={0: 0}, position=server.check(read))
    server.close()


class Lives(RuleBasedStateMachine):
    """Puts, restarts, copies and folders put back, in any order, beside an oracle: the rows themselves.

    A position is valid if, and only if, the rows before it are still those that its reader has read.
    """

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        (self.root / "data").mkdir()
        self.server = Server(self.root / "data", Clock())
        self.server.create(shards=2)
        self.rows: dict[int, list[int]] = {0: [], 1: []}
        self.number = 0
        self.copies: list[tuple[Path, dict[int, list[int]]]] = []
        self.positions: list[tuple[Position, dict[int, list[int]]]] = []

    def shown(self) -> Topic:
        return self.server.topic(TOPIC)

    @rule(shard=st.integers(0, 1), count=st.integers(1, 3))
    def put(self, shard: int, count: int) -> None:
        ids = range(self.number, self.number + count)
        self.number += count
        attempt = f"{shard:08x}{self.number:024x}"
        self.server.put(*ids, attempt=attempt)
        self.rows[shard] += ids

    @rule()
    def restart(self) -> None:
        self.server.restart()

    @rule()
    def copy(self) -> None:
        self.copies.append((self.server.copy(), {shard: list(ids) for shard, ids in self.rows.items()}))

    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        if self.copies:
            copy, rows = data.draw(st.sampled_from(self.copies))
            self.server.put_back(copy)
            self.rows = {shard: list(ids) for shard, ids in rows.items()}

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        offsets = {shard: data.draw(st.integers(0, len(ids))) for shard, ids in self.rows.items()}
        position = self.server.topics.labelled(self.shown(), offsets)
        self.positions.append((position, {shard: self.rows[shard][:end] for shard, end in offsets.items()}))

    @rule()
    def check(self) -> None:
        for position, seen in self.positions:
            same = all(self.rows[shard][: len(ids)] == ids for shard, ids in seen.items())
            try:
                self.server.check(position)
                accepted = all(len(ids) <= len(self.rows[shard]) for shard, ids in seen.items())
            except Lost:
                accepted = False
            assert accepted == same, (position, position.life, seen, self.rows)

    def teardown(self) -> None:
        if hasattr(self, "server"):
            self.server.close()
            shutil.rmtree(self.root)


TestLives = Lives.TestCase
