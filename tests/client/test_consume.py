"""Groups of programs: `with c.consume("topic/x", group="g") as rows`, over a server in this process."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.client.connection import translate_errors
from penstock.client.consume import Consumer
from penstock.client.follow import Follower
from penstock.client.get import read_info
from penstock.errors import AlreadyExists, Fenced, InvalidRequest, Lost, NotFound
from penstock.flight_server.server import PenstockServer
from penstock.wire.read import ReadCommand
from tests.kit.cli import PENSTOCK, ROOT
from tests.kit.server import process_server
from tests.kit.wait import eventually

LIMIT = 60.0
PATH = "topic/orders"
ORDERS = pa.schema([("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.fixture
def topic(client: Client) -> Client:
    """A client of a server with a topic of four shards and a hundred rows."""
    client.create_topic(PATH, ORDERS, key="id", shards=4)
    client.put(PATH, rows(*range(100)))
    return client


@contextmanager
def ends(consumer: Consumer) -> Iterator[None]:
    """Stop the consumer rather than wait for ever."""
    timer = threading.Timer(LIMIT, consumer.stop)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def take(consumer: Consumer, count: int) -> list[int]:
    """Return the ids of the first rows that come, at least so many; the last batch stays in hand."""
    ids: list[int] = []
    with ends(consumer):
        while len(ids) < count:
            ids += next(consumer)["id"].to_pylist()
    return ids


def test_a_group_goes_on_where_it_was(topic: Client) -> None:
    with topic.consume(PATH, group="billing") as consumer:
        assert sorted(take(consumer, 100)) == [*range(100)]
    topic.put(PATH, rows(100, 101))
    with topic.consume(PATH, group="billing") as consumer:
        assert sorted(take(consumer, 2)) == [100, 101]
    with topic.consume(PATH, group="other") as consumer:
        assert sorted(take(consumer, 102)) == [*range(102)]


def test_a_batch_left_by_an_exception_comes_again(topic: Client) -> None:
    with pytest.raises(ZeroDivisionError), topic.consume(PATH, group="g") as consumer:
        first, second = (next(consumer)["id"].to_pylist() for _ in range(2))
        raise ZeroDivisionError
    with topic.consume(PATH, group="g") as consumer:
        again = take(consumer, 100 - len(first))
    assert sorted([*first, *again]) == [*range(100)]
    assert set(second) <= set(again)


def test_a_commit_takes_in_the_present_batch(topic: Client) -> None:
    with pytest.raises(ZeroDivisionError), topic.consume(PATH, group="g") as consumer:
        first = next(consumer)["id"].to_pylist()
        consumer.commit()
        raise ZeroDivisionError
    with topic.consume(PATH, group="g") as consumer:
        assert sorted([*first, *take(consumer, 100 - len(first))]) == [*range(100)]


def test_without_auto_commit_only_commit_commits(topic: Client) -> None:
    with topic.consume(PATH, group="g", auto_commit=False) as consumer:
        take(consumer, 100)
    with topic.consume(PATH, group="g", auto_commit=False) as consumer:
        assert len(take(consumer, 100)) == 100
        consumer.commit()
        topic.put(PATH, rows(100))
        assert take(consumer, 1) == [100]
    with topic.consume(PATH, group="g") as consumer:
        assert take(consumer, 1) == [100]


def test_members_share_the_shards(topic: Client) -> None:
    """Two threads of a program, each with a member, while rows come: each row once."""
    came: Counter[int] = Counter()
    lock = threading.Lock()
    consumers: list[Consumer] = []

    def work() -> None:
        with topic.consume(PATH, group="g") as consumer:
            consumers.append(consumer)
            for batch in consumer:
                with lock:
                    came.update(batch["id"].to_pylist())

    threads = [threading.Thread(target=work, name=f"test-member-{number}") for number in range(3)]
    try:
        for number, thread in enumerate(threads):
            thread.start()
            topic.put(PATH, rows(*range(100 + number * 50, 150 + number * 50)))
        eventually(lambda: len(came) == 250, within=LIMIT)
        eventually(lambda: sorted(map(len, members(topic).values())) == [1, 1, 2], within=LIMIT)
        topic.put(PATH, rows(*range(250, 400)))
        eventually(lambda: len(came) == 400, within=LIMIT)
    finally:
        for consumer in consumers:
            consumer.stop()
        for thread in threads:
            thread.join(LIMIT)
    assert came == Counter(range(400))
    assert members(topic) == {}


def test_a_shard_with_rows_in_hand_is_not_given_back(topic: Client) -> None:
    with topic.consume(PATH, group="g", auto_commit=False) as first:
        take(first, 100)
        with topic.consume(PATH, group="g"):
            look_twice(first)
            assert [len(shards) for shards in members(topic).values()] == [4]
            first.commit()
            look_twice(first)
            assert [len(shards) for shards in members(topic).values()] == [2]


def look_twice(consumer: Consumer) -> None:
    """Let the consumer learn what others are to have, and give it back."""
    with consumer._lock:
        consumer._look()
        consumer._look()


def members(client: Client, path: str = PATH) -> dict[str, list[int]]:
    """Return the shards of each member of the one group."""
    groups = client.call("describe", {"path": path})["consumers"]
    return {member: shards for group in groups for member, shards in group["members"].items()}


def test_a_member_that_leaves_gives_its_shards_to_the_rest(topic: Client) -> None:
    with topic.consume(PATH, group="g") as stays:
        with topic.consume(PATH, group="g"):
            topic.put(PATH, rows(*range(100, 120)))
        assert sorted(take(stays, 120)) == [*range(120)]


def test_a_paused_member_is_fenced(topic: Client, server: PenstockServer) -> None:
    """Its heartbeats fail for longer than a lease: its batch comes to another, and its commit is refused."""
    groups = server.state.journals.groups
    with pytest.raises(Fenced, match="aren't those of this member"), topic.consume(PATH, group="g") as zombie:
        in_hand = next(zombie)["id"].to_pylist()
        with zombie._lock:  # no heartbeat, as of a process that is stopped
            now = groups._now
            groups._now = lambda: now() + groups.lease + 1
            with topic.consume(PATH, group="g") as other:
                again = take(other, 100)
        next(zombie)
    assert set(in_hand) <= set(again)
    assert sorted(again) == [*range(100)]


def test_a_fenced_member_may_begin_anew(topic: Client, server: PenstockServer) -> None:
    groups = server.state.journals.groups
    with topic.consume(PATH, group="g") as zombie:
        take(zombie, 1)
        with zombie._lock:
            now = groups._now
            groups._now = lambda: now() + groups.lease + 1
            with topic.consume(PATH, group="g") as other:
                take(other, 100)
        with pytest.raises(Fenced):
            next(zombie)
        topic.put(PATH, rows(100))
        assert take(zombie, 1) == [100]


def test_a_filter_and_columns_are_as_of_follow(topic: Client) -> None:
    with topic.consume(PATH, group="g", columns=["id", "_offset"], filter="id >= 90") as consumer:
        assert sorted(take(consumer, 10)) == [*range(90, 100)]
        topic.put(PATH, rows(1, 2, 3))  # nothing of it is returned, and all of it is done

        def is_done() -> bool:
            [group] = topic.call("describe", {"path": PATH})["consumers"]
            return bool(group["lag_rows"] == 0)

        thread = threading.Thread(target=lambda: next(consumer, None), name="test-waits")
        thread.start()
        try:
            eventually(is_done, within=LIMIT)
        finally:
            consumer.stop()
            thread.join(LIMIT)


def test_rows_of_some_shards_are_read(topic: Client) -> None:
    info = read_info(topic.connection, ReadCommand(PATH, ("_shard",), shards=(1, 3)))
    batches = (batch for each in info.endpoints for batch in topic.fetch(each.ticket.ticket))
    assert {shard for batch in batches for shard in batch["_shard"].to_pylist()} == {1, 3}
    with pytest.raises(InvalidRequest, match="has no shard 9"), translate_errors():
        read_info(topic.connection, ReadCommand(PATH, shards=(9,)))


def test_a_new_group_may_begin_later(topic: Client) -> None:
    with topic.consume(PATH, group="now", start="latest") as consumer:
        topic.put(PATH, rows(100))
        assert take(consumer, 1) == [100]
    with topic.consume(PATH, group="then", start=datetime.now(UTC) - timedelta(days=1)) as consumer:
        assert len(take(consumer, 101)) == 101
    with topic.consume(PATH, group="now", start="earliest") as consumer:  # it is no new one any more
        topic.put(PATH, rows(101))
        assert take(consumer, 1) == [101]


def test_a_group_holds_rows_against_retention(topic: Client) -> None:
    with topic.consume(PATH, group="g"):
        pass
    [group] = topic.call("describe", {"path": PATH})["consumers"]
    assert (group["consumer"], group["state"], group["lag_rows"]) == ("g", "live", 100)


def test_rows_that_are_gone_name_the_way_on(topic: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(follower: Follower) -> pa.RecordBatch:
        raise Lost("7 rows are gone")

    with topic.consume(PATH, group="g") as consumer:
        monkeypatch.setattr(Follower, "__next__", fail)
        with pytest.raises(Lost, match="7 rows are gone; `penstock rm consumer/topic/orders/g` lets the group begin"):
            next(consumer)
    topic.delete("consumer/topic/orders/g")


def test_a_topic_that_was_made_anew_ends_the_loop(topic: Client) -> None:
    with pytest.raises(Lost, match="was deleted and made again"), topic.consume(PATH, group="g") as consumer:
        take(consumer, 100)
        topic.delete(PATH)
        topic.put(PATH, rows(1))
        take(consumer, 1)
    with topic.consume(PATH, group="g") as consumer:
        assert take(consumer, 1) == [1]


MISUSES: list[tuple[Callable[[Client], object], type[Exception], str]] = [
    (lambda c: next(c.consume(PATH, group="g")), InvalidRequest, "read in a block: with c.consume"),
    (lambda c: c.consume(PATH, group="a b").__enter__(), InvalidRequest, "consumer 'a b': expected 1 to 80 characters"),
    (lambda c: c.consume("topic/none", group="g").__enter__(), NotFound, "no topic at topic/none"),
    (lambda c: c.consume("store/x", group="g").__enter__(), InvalidRequest, "store/x has no offsets"),
    (lambda c: c.consume(PATH, group="g", columns="id"), InvalidRequest, "expected a list of names"),
    (lambda c: c.consume(PATH, group="g", start={0: 10_000}).__enter__(), Lost, "ends before shard 0"),
]


@pytest.mark.parametrize(("call", "error", "text"), MISUSES, ids=[text for _, _, text in MISUSES])
def test_misuses_are_named(topic: Client, call: Callable[[Client], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(topic)


def test_a_querys_name_is_no_groups(topic: Client) -> None:
    journal = topic.call("describe", {"path": PATH})["journal"]
    topic.call("consumer.attach", {"path": PATH, "journal": journal, "consumer": "query", "session": "s"})
    with pytest.raises(AlreadyExists, match="is a query's"):
        topic.consume(PATH, group="query").__enter__()


@pytest.mark.process
def test_a_killed_members_rows_come_to_the_others(topic: Client, server: PenstockServer, tmp_path: Path) -> None:
    """`penstock get -f --group` in two processes, one of which is killed: all rows are printed, few of them twice."""
    groups = server.state.journals.groups

    def start(name: str) -> subprocess.Popen[bytes]:
        command = [*PENSTOCK, "--url", str(server.url), "get", "-f", PATH, "--group", "g"]
        with (tmp_path / name).open("wb") as out:
            return subprocess.Popen(command, stdout=out, cwd=ROOT)

    def printed(*names: str) -> Counter[str]:
        return Counter(line for name in names for line in (tmp_path / name).read_text().splitlines())

    members_ = [start("a"), start("b")]
    try:
        eventually(lambda: len(members(topic)) == 2, within=LIMIT)
        eventually(lambda: len(printed("a", "b")) == 100, within=LIMIT)
        members_[0].kill()
        members_[0].wait(LIMIT)
        topic.put(PATH, rows(*range(100, 300)))
        now = groups._now
        groups._now = lambda: now() + groups.lease + 1
        eventually(lambda: len(printed("a", "b")) == 300, within=LIMIT)
        members_[1].send_signal(signal.SIGINT)
        members_[1].wait(LIMIT)
    finally:
        for member in members_:
            member.kill()
            member.wait(LIMIT)
    assert max(printed("b").values()) == 1


@pytest.mark.process
def test_a_group_outlasts_a_restart_of_the_server(tmp_path: Path) -> None:
    from penstock.client.client import connect
    from scripts.child import free_port

    listen = f"grpc://127.0.0.1:{free_port()}"
    with process_server(tmp_path / "data", listen=listen) as server, connect(listen) as client:
        client.put(PATH, rows(*range(10)))
        consumer = client.consume(PATH, group="g").__enter__()
        try:
            assert take(consumer, 10) == [*range(10)]
            server.kill()
            with process_server(tmp_path / "data", listen=listen):
                client.put(PATH, rows(10))
                assert take(consumer, 1) == [10]
                consumer.__exit__(None, None, None)
        finally:
            consumer.stop()
