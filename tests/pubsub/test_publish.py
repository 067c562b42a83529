"""Writes to publish/…: every message once at Pub/Sub, whatever dies in between; and what is refused before."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pyarrow as pa
import pytest

import penstock
from penstock import steps
from penstock.cli import app
from penstock.cli.publisher import ServerConnection
from penstock.client import put
from penstock.errors import (
    Denied,
    Expired,
    InvalidRequest,
    Lost,
    NotFound,
    PenstockError,
    StoreFull,
    TimedOut,
    WriteEnded,
)
from penstock.flight_server import publishers
from penstock.flight_server.kinds import publish as kind
from penstock.flight_server.pullers import Pullers
from penstock.flight_server.server import PenstockServer
from penstock.ledger import publications
from penstock.queue.pubsub import publish
from penstock.queue.pubsub.publish import MOST_REQUESTS
from penstock.queue.pubsub.requests import MOST_ROWS
from penstock.rows.messages import MESSAGES
from penstock.wire.actions import FinishWrite, Summary
from penstock.wire.publish import PartsToPublish, StagedPart
from penstock.wire.put import PutCommand, Receipt
from tests.kit.faults import Crash
from tests.kit.pubsub.emulator import Names, emulator_process
from tests.kit.pubsub.publishing import Publishing
from tests.kit.wait import eventually

WANTED_NOW = publishers.Publishers._wanted_now  # which `publishing` replaces
MAPS = pa.map_(pa.string(), pa.string())


def numbered(count: int, **columns: Any) -> pa.Table:
    return pa.table({"data": [b"%d" % number for number in range(count)], **columns})


def figures(publishing: Publishing) -> dict[str, Any]:
    """Return the figures of the topic, which are counted a moment after a write has ended."""
    return dict(publishing.client.call("describe", {"path": publishing.path})["publishing"])


def in_thread(call: Callable[[], Any]) -> list[Any]:
    """Call in a thread; return the list that gets its result or its error."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(call())
        except PenstockError as error:
            result.append(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def test_a_put_is_published_whole(publishing: Publishing) -> None:
    with publishing.publisher():
        receipt = publishing.client.put(publishing.path, numbered(2_500))
    assert receipt.rows == 2_500
    assert sorted(publishing.data()) == sorted(b"%d" % number for number in range(2_500))
    assert publishing.fake.requests()["Publish"]["calls"] == 3
    assert not publishing.client.list("write/")
    assert not publishing.client.list("publish/")


def test_small_batches_share_a_part_and_requests(publishing: Publishing) -> None:
    """And a row that is refused is named by its place in the put, not in its batch."""
    batches = [pa.record_batch({"data": [b"%d" % number]}) for number in range(50)]
    with publishing.publisher():
        receipt = publishing.client.put(publishing.path, iter(batches))
    assert (receipt.rows, receipt.parts) == (50, 1)
    assert publishing.fake.requests()["Publish"]["calls"] == 1
    assert publishing.data() == [b"%d" % number for number in range(50)]
    with pytest.raises(InvalidRequest, match="row 50 of this put"):
        publishing.client.put(publishing.path, iter([*batches, pa.record_batch({"data": [b""]})]))


def test_rows_that_are_noted_twice_count_once(publishing: Publishing) -> None:
    client = publishing.client
    opened = client.call("write.open", {"path": publishing.path})
    with client.attempt(opened["ticket"], numbered(1).schema) as writer:
        writer.write(numbered(10))
    client.call("write.finish", {"ticket": opened["ticket"], "attempts": [writer.close().attempt]})
    ledger = publishing.server.state.ledger
    for ranges, published in (([(1, 2, 4), (1, 6, 8)], 4), ([(1, 2, 4)], 4), ([(1, 3, 7)], 6), ([(1, 0, 9)], 9)):
        summary = ledger.change(lambda t, ranges=ranges: publications.note(t, opened["write"], ranges))  # type: ignore[misc]
        assert summary.published == published
    assert not publications.disagreements(ledger.database)


def test_attributes_and_keys_are_published(publishing: Publishing) -> None:
    """As a map, or as a struct whose null fields are left out; text is UTF-8."""
    rows = pa.table(
        {
            "data": ["ä", None, "c"],
            "attributes": pa.array([[("a", "1"), ("b", "")], [("c", None)], None], MAPS),
            "ordering_key": ["k", None, ""],
            "message_id": ["old", "old", "old"],
        }
    )
    with publishing.publisher():
        publishing.client.put(publishing.path, rows)
        publishing.client.put(publishing.path, [{"data": "d", "attributes": {"x": "1", "y": None}}])
    published = {
        (message.data.decode(), tuple(sorted(message.attributes.items())), message.ordering_key)
        for message in publishing.fake.published(publishing.topic)
    }
    assert published == {
        ("ä", (("a", "1"), ("b", "")), "k"),
        ("", (("c", ""),), ""),
        ("c", (), ""),
        ("d", (("x", "1"),), ""),
    }


def test_a_keys_messages_keep_their_order(publishing: Publishing) -> None:
    """Also where a request of the key has to be sent again, while others go on."""
    rows = 15_000
    keys = [f"key {number % 3}" for number in range(rows)]
    publishing.fake.fail("Publish", times=2)
    with publishing.publisher():
        publishing.client.put(publishing.path, numbered(rows, ordering_key=keys))
    messages = publishing.fake.published(publishing.topic)
    for number in range(3):
        of_key = [int(message.data) for message in messages if message.ordering_key == f"key {number}"]
        assert of_key == [*range(number, rows, 3)]
    assert len(messages) == rows


def test_a_key_that_waits_holds_no_other_back() -> None:
    """Thousands of rows behind it, and Pub/Sub doesn't take it: all the others are published and noted."""

    def part_of(key: str) -> pa.RecordBatch:
        return pa.record_batch([[b"x"] * MOST_ROWS, [[]] * MOST_ROWS, [key] * MOST_ROWS], schema=MESSAGES)

    batches = [*[part_of("hot")] * (MOST_REQUESTS + 1), part_of("cold"), part_of("")]
    staged = tuple(StagedPart(number, "", MOST_ROWS, ()) for number in range(len(batches)))
    noted: list[tuple[int, ...]] = []
    work = [PartsToPublish(), PartsToPublish("w", None, staged)]
    server: Any = SimpleNamespace(
        next_parts=lambda _: work.pop() if work else PartsToPublish(),
        note=lambda note: noted.extend(note.published),
        read=lambda part, _: [batches[part.number]],
    )

    def send(body: bytes, *, compressed: bool) -> Any:
        future: Future[None] = Future()
        if b"hot" in body:
            future.set_exception(Away())
        else:
            future.set_result(None)
        return future

    topic: Any = SimpleNamespace(name="projects/p/topics/t", publish=send)
    expected = [(number, 0, MOST_ROWS) for number in (MOST_REQUESTS + 1, MOST_REQUESTS + 2)]
    give_up = time.monotonic() + 30
    publish.Publisher("publish/p/t", topic, server).run(
        lambda: len(noted) == len(expected) or time.monotonic() > give_up
    )
    assert sorted(noted) == expected


class Away(grpc.RpcError):
    """What Pub/Sub says if it is away."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "away"


def test_a_call_that_pubsub_cancels_is_repeated(publishing: Publishing) -> None:
    publishing.fake.fail("Publish", "CANCELLED")
    with publishing.publisher():
        publishing.client.put(publishing.path, numbered(3))
    assert len(publishing.data()) == 3


@pytest.mark.parametrize("step", ["publisher.sent", "publisher.answered", "publisher.noted"])
@pytest.mark.parametrize("times", [1, 4])
def test_a_publisher_that_dies_loses_nothing(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch, step: str, times: int
) -> None:
    """Published twice is at most what was sent and not noted."""
    rows = 100_000
    publishing.fake.delay("Publish", 0.02)
    monkeypatch.setattr(steps, "passed", publishing.crash_at(step, times))
    with publishing.publisher() as publisher:
        result = in_thread(lambda: publishing.client.put(publishing.path, numbered(rows), run="nightly"))
        publisher.join(30)
    assert [type(error) for error in publishing.errors] == [Crash]
    sent = publishing.passed["publisher.sent"] * MOST_ROWS
    (write,) = publishing.client.list("write/")
    noted = publishing.client.call("describe", {"path": write.path})["published"]
    assert sent - noted <= MOST_REQUESTS * MOST_ROWS
    publishing.fake.heal()
    with publishing.publisher():
        eventually(lambda: result)
    assert result[0].rows == rows
    counts = Counter(publishing.data())
    assert set(counts) == {b"%d" % number for number in range(rows)}
    assert counts.total() - rows <= sent - noted


def test_an_answer_that_is_lost_is_published_again(publishing: Publishing) -> None:
    """The one request alone: Pub/Sub can't tell it from a new one."""
    publishing.fake.fail("Publish", applied=True)
    with publishing.publisher():
        publishing.client.put(publishing.path, numbered(3_000))
    assert sorted(Counter(publishing.data()).values()) == [1] * 2_000 + [2] * 1_000


def test_a_run_is_published_once(publishing: Publishing) -> None:
    with publishing.publisher():
        first = publishing.client.put(publishing.path, numbered(10), run="nightly")
        again = publishing.client.put(publishing.path, numbered(20), run="nightly")
    assert (first.write, again.rows) == (again.write, 10)
    assert len(publishing.data()) == 10


def test_a_run_goes_on_where_it_stopped(publishing: Publishing) -> None:
    """A topic that is deleted in the middle fails the write; made again, the run publishes what was not answered."""
    publishing.fake.delay("Publish", 0.05)
    with publishing.publisher():
        result = in_thread(lambda: publishing.client.put(publishing.path, numbered(100_000), run="nightly"))
        eventually(publishing.data)
        before = [*publishing.data()]
        delete(publishing)
        eventually(lambda: result)
        assert isinstance(result[0], NotFound)
        assert "create it" in str(result[0])
        (write,) = publishing.client.list("write/")
        described = publishing.client.call("describe", {"path": write.path})
        assert described["state"] == "open"
        noted = described["published"]
        assert noted >= len(before)
        publishing.create()
        publishing.fake.heal()
        receipt = publishing.client.put(publishing.path, numbered(5), run="nightly")
    assert receipt.rows == 100_000
    assert len(publishing.data()) == 100_000 - noted


def delete(publishing: Publishing) -> None:
    from tests.kit.pubsub import messages as pb

    publishing.fake.call("DeleteTopic", pb.DeleteTopicRequest(topic=publishing.topic))


def test_a_topic_is_looked_up_before_rows_are_staged(publishing: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for many writes: the next ones may come every second. Pub/Sub that is away is left to the publisher."""
    client, missing = publishing.client, "publish/test/nonesuch"
    for write in (client.put, partial(own_put, publishing)):
        with pytest.raises(NotFound, match=r"projects/test/topics/nonesuch: Pub/Sub says NOT_FOUND.* create it"):
            write(missing, numbered(1))
    assert not client.list("write/")
    publishing.fake.fail("GetTopic")
    with publishing.publisher():
        for _ in range(4):
            client.put(publishing.path, numbered(1))
    assert publishing.fake.requests()["GetTopic"]["calls"] == 4
    assert len(publishing.data()) == 4
    monkeypatch.setattr(kind, "_LOOKED_UP", 0.0)
    delete(publishing)
    with pytest.raises(NotFound, match="create it"):
        client.call("write.open", {"path": publishing.path})


def test_a_put_without_a_run_is_given_up(publishing: Publishing) -> None:
    """Nobody could go on with it."""
    publishing.fake.fail("Publish", "NOT_FOUND", times=-1)
    with publishing.publisher(), pytest.raises(NotFound, match="0 of 10 messages are published"):
        publishing.client.put(publishing.path, numbered(10))
    assert not publishing.client.list("write/")


@pytest.mark.process
def test_a_publisher_that_was_refused_is_tried_again(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the next put; the error says why."""
    mended = tmp_path / "mended"
    command = ["sh", "-c", f"[ -e {mended} ] && exec sleep 60; echo 'penstock: no key' >&2; exit 2"]
    monkeypatch.setattr(publishers, "publishers_of", lambda path, *_: Pullers(path, command, {}, "publisher"))
    monkeypatch.setattr(publishers.Publishers, "_wanted_now", WANTED_NOW)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="its publisher was refused: no key"):
            publishing.client.put(publishing.path, numbered(3))
    assert not publishing.client.list("write/")
    mended.touch()
    with publishing.publisher():
        publishing.client.put(publishing.path, numbered(3))
    assert len(publishing.data()) == 3


def own_put(publishing: Publishing, path: str, rows: pa.Table, *, timeout: float | None = None) -> None:
    """Put as a client of another make does: one stream, which is a write of its own."""
    command = PutCommand(uuid.uuid4().hex, path=path)
    with (
        penstock.connect(publishing.server.url) as client,
        put.Writer(client.connection, command, rows.schema, timeout=timeout) as writer,
    ):
        writer.write(rows)
        writer.close()


def test_a_stream_ends_with_its_client(publishing: Publishing) -> None:
    with pytest.raises(PenstockError):
        own_put(publishing, publishing.path, numbered(5), timeout=3)
    eventually(lambda: not publishing.server.state.streams.open_streams)


def test_a_stream_ends_after_a_while(publishing: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it has put goes on."""
    monkeypatch.setattr(kind, "_LONGEST_PUT", 0.1)
    with pytest.raises(TimedOut, match="goes on without this put"):
        own_put(publishing, publishing.path, numbered(5))
    with publishing.publisher():
        eventually(lambda: len(publishing.data()) == 5)


def test_a_stream_to_no_topic_is_given_up(publishing: Publishing) -> None:
    publishing.fake.fail("Publish", "NOT_FOUND", times=-1)
    with publishing.publisher(), pytest.raises(NotFound):
        own_put(publishing, publishing.path, numbered(5))
    assert not publishing.client.list("write/")


def test_rows_that_are_refused_leave_no_write(publishing: Publishing) -> None:
    with pytest.raises(InvalidRequest, match="row 1"):
        publishing.client.put(publishing.path, [{"data": b"x"}, {"data": b""}])
    with pytest.raises(InvalidRequest, match="row 0"):
        own_put(publishing, publishing.path, pa.table({"data": [b""]}))
    assert not publishing.client.list("write/")


def test_a_run_that_another_put_finishes_meanwhile(publishing: Publishing) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"data": [b"late"]})
        faster.append(publishing.client.put(publishing.path, numbered(3), run="nightly"))

    faster: list[Receipt] = []
    with publishing.publisher():
        slower = publishing.client.put(publishing.path, batches(), run="nightly")
    assert (slower.write, slower.rows) == (faster[0].write, 3)
    assert len(publishing.data()) == 3


def test_a_put_that_is_left_says_that_it_goes_on(publishing: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put, "LONG_RETRY_FOR", 0.1)
    with penstock.connect(publishing.server.url, retry_for=0.1) as client:
        for run, remedy in ((None, "pass run="), ("nightly", "put run 'nightly' again")):
            with pytest.raises(TimedOut, match=rf"write/\w+ goes on by itself; .*{remedy}"):
                client.put(publishing.path, numbered(5), run=run)
    with publishing.publisher():
        eventually(lambda: len(publishing.data()) == 10)


def test_a_run_keeps_its_options(publishing: Publishing) -> None:
    with publishing.publisher():
        publishing.client.put(publishing.path, numbered(3), run="nightly")
        with pytest.raises(InvalidRequest, match=r"opened with .*id_attribute=False.*now .*id_attribute=True"):
            publishing.client.put(publishing.path, numbered(3), run="nightly", id_attribute=True)


def test_permission_is_refused_at_once_with_the_cure(publishing: Publishing) -> None:
    publishing.fake.fail("Publish", "PERMISSION_DENIED", times=-1)
    with publishing.publisher(), pytest.raises(Denied, match=r"roles/pubsub\.publisher"):
        publishing.client.put(publishing.path, numbered(10))


def test_a_permission_that_is_lost_in_the_middle(publishing: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error and `show` say how it goes on; given back, the run publishes the rest, and nothing twice."""

    def passed(step: str) -> None:
        noted.append(step)
        if step == "publisher.noted" and noted.count(step) == 3:
            publishing.fake.fail("Publish", "PERMISSION_DENIED", times=-1)

    noted: list[str] = []
    client, rows = publishing.client, numbered(100_000)
    with publishing.publisher():
        with monkeypatch.context() as patched:
            patched.setattr(steps, "passed", passed)
            with pytest.raises(Denied, match=r"kept for 30 days: write run 'nightly' again .* penstock rm write/\w+"):
                client.put(publishing.path, rows, run="nightly")
        eventually(lambda: figures(publishing)["failures"] >= 1)
        now = figures(publishing)
        assert (now["writes"], now["failed"]) == (1, 1)
        assert 0 < now["published_rows"] == len(publishing.data()) == 100_000 - now["waiting_rows"]
        publishing.fake.heal()
        assert client.put(publishing.path, rows, run="nightly").rows == 100_000
    assert sorted(map(int, publishing.data())) == [*range(100_000)]


@pytest.mark.process
@pytest.mark.faults
def test_an_emulator_that_starts_again_gets_the_rest(
    staging: Callable[[str], PenstockServer], pubsub_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away in the middle of a write, it is waited for; then its topic is missing, and made again gets what is left."""
    from tests.kit.pubsub.client import connected

    def passed(step: str) -> None:
        noted.append(step)
        if step == "publisher.noted" and noted.count(step) == 3:
            emulator.kill()

    noted: list[str] = []
    topic, subscription, rows = pubsub_names.topic, pubsub_names.subscription, numbered(60_000)
    with emulator_process() as emulator, penstock.connect((server := staging(emulator.address)).url) as client:
        publishing = Publishing(server, client, cast("Any", None), emulator.address, topic)
        with connected(emulator.address) as pubsub:
            pubsub.create_topic(topic)
        with monkeypatch.context() as patched, publishing.publisher():
            patched.setattr(steps, "passed", passed)
            result = in_thread(lambda: client.put(publishing.path, rows, run="nightly"))
            eventually(lambda: noted.count("publisher.noted") >= 3, within=60)
            emulator.start()
            eventually(lambda: result, within=60)
        assert isinstance(result[0], NotFound), result
        left = 60_000 - client.call("describe", {"path": publishing.path})["published"]
        assert 0 < left < 60_000
        with connected(emulator.address) as pubsub:
            pubsub.create_topic(topic)
            pubsub.create_subscription(subscription, topic, deadline=60)
            with publishing.publisher():
                assert client.put(publishing.path, rows, run="nightly").rows == 60_000
            data = [each.message.data for each in pubsub.pull_all(subscription, left)]
            assert len({*data}) == len(data) == left
            assert not pubsub.pull(subscription, within=1)


def test_a_key_that_fails_pauses_and_resumes(publishing: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pub/Sub doesn't take one key for a while: all others are published, then it goes on in its order."""

    def publish_cold(topic: Topic, body: bytes, *, compressed: bool) -> Any:
        if b"hot" not in body or is_over.is_set():
            return send(topic, body, compressed=compressed)
        failed: Future[None] = Future()
        failed.set_exception(Away())
        return failed

    from penstock.queue.pubsub.transport import Topic

    send, is_over = Topic.publish, threading.Event()
    monkeypatch.setattr(Topic, "publish", publish_cold)
    keys = [("hot", "cold", "")[number % 3] for number in range(9_000)]
    with publishing.publisher():
        result = in_thread(lambda: publishing.client.put(publishing.path, numbered(9_000, ordering_key=keys)))
        eventually(lambda: len(publishing.data()) == 6_000)
        assert {each.ordering_key for each in publishing.fake.published(publishing.topic)} == {"cold", ""}
        is_over.set()
        eventually(lambda: result)
    messages = publishing.fake.published(publishing.topic)
    for key, first in (("hot", 0), ("cold", 1)):
        assert [int(each.data) for each in messages if each.ordering_key == key] == [*range(first, 9_000, 3)]
    assert len(messages) == 9_000


def test_a_disk_that_is_full_at_staging(publishing: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the put is published, or stays."""

    def full(*_: Any, **__: Any) -> Any:
        raise StoreFull("the disk is full", retry_after=0.05)

    with publishing.publisher():
        with monkeypatch.context() as patched:
            patched.setattr(publishing.server.state.store, "write", full)
            with pytest.raises(StoreFull, match="the disk is full"):
                publishing.client.put(publishing.path, numbered(3_000), run="nightly")
        assert not publishing.client.list("write/")
        publishing.client.put(publishing.path, numbered(3_000), run="nightly")
    assert len(publishing.data()) == 3_000


def test_attempts_that_are_not_listed_are_not_published(publishing: Publishing) -> None:
    """A task's first try, and a task that goes on after the driver has finished."""
    client = publishing.client
    opened = client.call("write.open", {"path": publishing.path})
    attempts = []
    for number in range(3):
        with client.attempt(opened["ticket"], numbered(1).schema) as writer:
            writer.write(pa.table({"data": [b"attempt %d" % number]}))
        attempts.append(writer.close().attempt)
    late = client.attempt(opened["ticket"], numbered(1).schema)
    late.write(pa.table({"data": [b"late"]}))
    finish = {"ticket": opened["ticket"], "attempts": attempts[1:2]}
    assert client.call("write.finish", finish)["state"] == "open"
    late.close()
    with pytest.raises(WriteEnded, match="another list"):
        client.call("write.finish", {"ticket": opened["ticket"], "attempts": attempts})
    with publishing.publisher():
        eventually(lambda: client.call("write.finish", finish)["state"] == "finished")
    assert publishing.data() == [b"attempt 1"]


def test_two_drivers_of_one_run_publish_it_once(publishing: Publishing) -> None:
    """The run is named at the finish, as an epoch's is: the second write gives way to the first."""
    client, finishes = publishing.client, []
    for number in range(2):
        opened = client.call("write.open", {"path": publishing.path})
        with client.attempt(opened["ticket"], numbered(1).schema) as writer:
            writer.write(pa.table({"data": [b"driver %d" % number]}))
        attempts = [writer.close().attempt]
        finishes.append({"ticket": opened["ticket"], "attempts": attempts, "run": "query/7"})
    writes = {client.call("write.finish", finish)["write"] for finish in finishes}
    assert len(writes) == 1
    with publishing.publisher():
        for finish in finishes:
            eventually(lambda finish=finish: client.call("write.finish", finish)["state"] == "finished")  # type: ignore[misc]
    assert publishing.data() == [b"driver 0"]


def test_a_write_behind_another_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as the one before it moves."""
    answers = iter([9, 6, 3, None])
    clock = iter(range(0, 1_000, 5))

    def finish(*arguments: Any, **options: Any) -> Summary:
        ahead = next(answers, 0)
        return Summary("w", "publish/p/t", "append", "finished" if ahead is None else "open", published=0, ahead=ahead)

    monkeypatch.setattr(put, "LONG_RETRY_FOR", 8.0)
    monkeypatch.setattr(put, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    connection: Any = SimpleNamespace(call=finish)
    assert put.finish_write(connection, FinishWrite("t", ())).state == "finished"
    with pytest.raises(TimedOut, match="the server goes on"):
        put.finish_write(connection, FinishWrite("t", ()))


def test_what_waits_knows_what_is_ahead(publishing: Publishing) -> None:
    """And a driver that doesn't, as Spark aborts what it couldn't commit in time, aborts nothing."""
    client, tickets = publishing.client, []
    for count in (10, 5, 1):
        opened = client.call("write.open", {"path": publishing.path})
        with client.attempt(opened["ticket"], numbered(1).schema) as writer:
            writer.write(numbered(count))
        finish = {"ticket": opened["ticket"], "attempts": [writer.close().attempt]}
        tickets.append(opened["ticket"])
        assert client.call("write.finish", finish)["state"] == "open"
    assert client.call("write.finish", finish)["ahead"] == 15
    for ticket in tickets:
        with pytest.raises(WriteEnded, match="penstock rm write/"):
            client.call("write.abort", {"ticket": ticket})
    with publishing.publisher():
        eventually(lambda: not client.list("write/"))
    assert len(publishing.data()) == 16


def test_a_finish_goes_on_without_its_driver(publishing: Publishing) -> None:
    """A server that starts again publishes what a finish has named; what wasn't named is gone with its driver."""
    client = publishing.client
    opened = client.call("write.open", {"path": publishing.path, "run": "nightly"})
    with client.attempt(opened["ticket"], numbered(1).schema) as writer:
        writer.write(numbered(10))
    client.call("write.finish", {"ticket": opened["ticket"], "attempts": [writer.close().attempt]})
    with pytest.raises(WriteEnded, match="penstock rm write/"):
        client.call("write.abort", {"ticket": opened["ticket"]})
    with publishing.publisher():
        eventually(lambda: not client.list("write/"))
    assert len(publishing.data()) == 10


def test_a_removed_write_is_given_up(publishing: Publishing) -> None:
    client = publishing.client
    opened = client.call("write.open", {"path": publishing.path})
    with client.attempt(opened["ticket"], numbered(1).schema) as writer:
        writer.write(numbered(10))
    finish = {"ticket": opened["ticket"], "attempts": [writer.close().attempt]}
    client.call("write.finish", finish)
    client.delete(f"write/{opened['write']}")
    assert not client.list("publish/")
    with pytest.raises(WriteEnded):
        client.call("write.finish", finish)


LONG = "x" * 1_025


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"data": [b"x", b""]}, "row 1 .* neither data nor attributes"),
        ({"data": [b"x", b"y" * 10_000_000]}, "row 1 .* 10,000,000 bytes"),
        ({"data": [b"x", b"y"], "ordering_key": ["k", LONG]}, "row 1 .* ordering_key has 1025 bytes"),
        ({"data": [b"x"], "attributes": [{f"a{n}": "b" for n in range(101)}]}, "row 0 .* 101 attributes"),
        ({"data": [b"x", b"y"], "attributes": [{"a": "b"}, {"a": LONG}]}, "row 1 .* attribute a has 1025 bytes"),
        ({"data": [b"x"], "attributes": [{"k" * 257: "v"}]}, "row 0 .* name has 257 bytes"),
        ({"data": [b"x"], "attributes": [{"googclient": "v"}]}, "row 0 .* Google's own"),
        ({"data": [b"x"], "atributes": [{"a": "v"}]}, "did you mean 'attributes'"),
        ({"data": [1]}, "data is int64, expected binary or text"),
        ({"id": [1]}, "encode='json'"),
        ({"key": ["k"], "value": ["v"]}, "Rename value to data, key to ordering_key, or to publish each row"),
    ],
    ids=["empty", "large", "key", "many", "value", "name", "google", "typo", "type", "columns", "kafka"],
)
def test_what_pubsub_would_refuse_is_refused_before(publishing: Publishing, columns: Any, reason: str) -> None:
    """With its row, and before anything is sent."""
    with publishing.publisher(), pytest.raises(InvalidRequest, match=reason):
        publishing.client.put(publishing.path, pa.table(columns))
    assert not publishing.data()


@pytest.mark.parametrize("path", ["publish/p", "publish/p/t", "publish/p/goog-x", "publish/p/a/b", "publish/p/9lives"])
def test_a_path_that_is_no_topic_is_refused(publishing: Publishing, path: str) -> None:
    with pytest.raises(InvalidRequest, match="expected publish/PROJECT/TOPIC"):
        publishing.client.put(path, numbered(1))


def test_messages_can_not_be_replaced(publishing: Publishing) -> None:
    with pytest.raises(InvalidRequest, match="use append"):
        publishing.client.put(publishing.path, numbered(1), mode="overwrite")


def test_rows_are_published_as_json(publishing: Publishing) -> None:
    """And read back typed, with an id that is the same in each copy."""
    rows = pa.table({"id": [1, 2], "city": ["Oslo", None], "ordering_key": ["k", "k"]})
    publishing.fake.fail("Publish", applied=True)
    with publishing.publisher():
        receipt = publishing.client.put(
            publishing.path, rows, encode="json", id_attribute=True, compression="gzip"
        )  # fmt: skip
    messages = publishing.fake.published(publishing.topic)
    assert [message.data for message in messages] == [b'{"id":1,"city":"Oslo"}', b'{"id":2,"city":null}'] * 2
    ids = [message.attributes["penstock-id"] for message in messages]
    assert ids == [f"{receipt.write}/1/0", f"{receipt.write}/1/1"] * 2


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"encode": "jsn"}, "expected 'json'"),
        ({"compression": "zip"}, "expected 'gzip'"),
        ({"encod": "json"}, "did you mean 'encode'"),
    ],
)
def test_an_unknown_way_to_publish_is_refused(publishing: Publishing, how: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        publishing.client.put(publishing.path, numbered(1), **how)
    with pytest.raises(InvalidRequest, match=r"omit it|did you mean"):
        publishing.client.put("store/x", numbered(1), **how)


def test_a_part_whose_ticket_has_expired_is_asked_for_again(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one, as the first one took so long."""
    read, calls = ServerConnection.read, list[int]()

    def read_or_expire(server: ServerConnection, part: StagedPart, local: str | None) -> Any:
        calls.append(part.number)
        if len(calls) == 2:
            raise Expired("the ticket is past its time")
        return read(server, part, local)

    monkeypatch.setattr(ServerConnection, "read", read_or_expire)
    batches = [pa.record_batch({"data": [bytes(9_000_000)]})] * 2
    with publishing.publisher():
        publishing.client.put(publishing.path, iter(batches))
    assert calls == [1, 2, 2]
    assert len(publishing.data()) == 2


def test_lost_rows_are_an_error_with_a_remedy(publishing: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart of a server with `--store memory:`: the run can be written again once its write is removed."""
    with monkeypatch.context() as patched:
        patched.setattr(ServerConnection, "read", lost)
        with publishing.publisher(), pytest.raises(Lost, match="then write all again") as raised:
            publishing.client.put(publishing.path, numbered(3), run="nightly")
    words = re.search(r"penstock (rm write/\w+)", str(raised.value))
    assert words is not None
    assert app.run(["--url", str(publishing.server.url), *words[1].split(), "--yes"]) == 0
    with publishing.publisher():
        publishing.client.put(publishing.path, numbered(3), run="nightly")
    assert len(publishing.data()) == 3


def lost(*_: Any) -> Any:
    raise Lost("the part is gone")


def test_a_full_disk_is_waited_for(publishing: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Pub/Sub has answered is noted once there is room, and nothing is sent twice meanwhile."""
    note, fails = publications.note, [StoreFull("the disk is full", retry_after=0.05)] * 3

    def note_or_fail(*arguments: Any) -> Any:
        if fails:
            raise fails.pop()
        return note(*arguments)

    monkeypatch.setattr(publications, "note", note_or_fail)
    with publishing.publisher():
        publishing.client.put(publishing.path, numbered(3_000))
    assert not fails
    assert len(publishing.data()) == 3_000


def test_a_key_that_pubsub_refuses_fails_the_write(publishing: Publishing) -> None:
    """The error names key and rows; what was published of the others counts, and the run goes on from there."""
    keys = [f"key {number % 3}" for number in range(9_000)]
    rows = numbered(9_000, ordering_key=keys)
    publishing.fake.fail("Publish", "INVALID_ARGUMENT", message="no such schema")
    with publishing.publisher():
        with pytest.raises(
            InvalidRequest, match=r"no such schema.*rows [\d,]+ to [\d,]+ of part 1, ordering key 'key \d'"
        ):
            publishing.client.put(publishing.path, rows, run="nightly")
        publishing.client.put(publishing.path, rows, run="nightly")
    messages = publishing.fake.published(publishing.topic)
    assert len(messages) == 9_000
    for number in range(3):
        of_key = [int(message.data) for message in messages if message.ordering_key == f"key {number}"]
        assert of_key == [*range(number, 9_000, 3)]


def test_what_is_under_way_is_shown(publishing: Publishing, capsys: pytest.CaptureFixture[str]) -> None:
    client = publishing.client
    opened = client.call("write.open", {"path": publishing.path})
    with client.attempt(opened["ticket"], numbered(1).schema) as writer:
        writer.write(numbered(10))
    client.call("write.finish", {"ticket": opened["ticket"], "attempts": [writer.close().attempt]})
    for words in (["ls", "publish"], ["show", publishing.path], ["show", f"write/{opened['write']}"], ["top"]):
        assert app.run(["--url", str(publishing.server.url), *words]) == 0
    listed = capsys.readouterr().out
    assert f"0 of 10 messages are published, write/{opened['write']}" in listed
    assert "0 of 10 messages of open writes" in listed
    assert "0 so far" in listed
    assert re.search(r"waiting +10 messages \(.*\) of 1 write", listed)
    assert re.search(rf"{publishing.path} +10 +0 +0", listed)


def test_what_was_published_is_counted(publishing: Publishing, capsys: pytest.CaptureFixture[str]) -> None:
    """By topic: in the figures of `show`, and in the metrics."""
    publishing.fake.fail("Publish", times=2)
    with publishing.publisher():
        publishing.client.put(publishing.path, numbered(2_500))
    eventually(lambda: figures(publishing)["published_rows"] == 2_500)
    now = figures(publishing)
    assert (now["requests"], now["retries"]) == (3, 2)
    assert (now["writes"], now["waiting_rows"], now["failures"]) == (0, 0, 0)
    assert now["published_bytes"] > 2_500 * 4
    text = publishing.server.state.metrics.text(names=True)
    label = f'{{topic="{publishing.path}"}}'
    for name, value in (("penstock_published_rows", 2_500.0), ("penstock_publish_waiting_rows", 0.0)):
        assert f"{name}{label} {value}" in text
    assert publishing.path not in publishing.server.state.metrics.text(names=False)
    assert app.run(["--url", str(publishing.server.url), "show", publishing.path]) == 0
    assert "2,500 messages" in capsys.readouterr().out


def test_a_publisher_that_is_stopped_sends_nothing_twice(
    publishing: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for Pub/Sub's answers, and notes them: a server that is stopped and started again costs no copies."""
    monkeypatch.setattr(publish, "_ENDING", 60.0)
    publishing.fake.delay("Publish", 0.02)
    with publishing.publisher():
        result = in_thread(lambda: publishing.client.put(publishing.path, numbered(100_000), run="nightly"))
        eventually(publishing.data)
    publishing.fake.heal()
    with publishing.publisher():
        eventually(lambda: result, within=60)
    assert result[0].rows == 100_000
    assert len(publishing.data()) == 100_000
