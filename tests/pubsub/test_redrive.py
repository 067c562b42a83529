"""Dead rows that are published: each once, whatever fails in between."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from penstock import steps
from penstock.cli import app
from penstock.errors import Denied, InvalidRequest, NotFound, SchemaMismatch, Unavailable, WriteEnded
from penstock.flight_server import dead_rows
from penstock.flight_server.dead_rows import DeadRows
from penstock.ledger import publications
from penstock.rows.messages import MESSAGES
from penstock.store.database import Reader
from penstock.wire import actions
from tests.kit.dead import PAYLOADS, TOPIC, Consumer, looked_at, put
from tests.kit.pubsub.publishing import Publishing
from tests.kit.wait import eventually

MAPS = pa.map_(pa.string(), pa.string())
AGAIN = "topic/again"


def put_messages(publishing: Publishing, *payloads: bytes) -> None:
    """Put what a subscription has of messages with these payloads."""
    attributes = [[("googclient_schemarevisionid", "r1"), ("from", "a")]] * len(payloads)
    columns = {"message_id": ["1"] * len(payloads), "ordering_key": ["k"] * len(payloads)}
    table = pa.table({"data": [*payloads], "attributes": pa.array(attributes, MAPS), **columns})
    publishing.client.put(TOPIC, table)


@pytest.fixture
def consumer(publishing: Publishing) -> Consumer:
    """A consumer that has committed two rows which it could not decode."""
    put_messages(publishing, *PAYLOADS)
    consumer = Consumer(publishing.client)
    consumer.commit(4)
    looked_at(publishing.server)
    return consumer


def test_dead_rows_are_published_as_they_came(publishing: Publishing, consumer: Consumer) -> None:
    """Without the attributes that Google adds; and each once."""
    with publishing.publisher():
        assert publishing.client.redrive(TOPIC, publishing.path) == 2
        messages = publishing.fake.published(publishing.topic)
        assert [(each.data, dict(each.attributes), each.ordering_key) for each in messages] == [
            (data, {"from": "a"}, "k") for data in PAYLOADS[1:3]
        ]
        with pytest.raises(NotFound, match="no dead rows of any consumer"):
            publishing.client.redrive(TOPIC, publishing.path)
        put_messages(publishing, b"more")
        consumer.commit(5)
        looked_at(publishing.server)
        assert app.run(["--url", str(publishing.server.url), "redrive", TOPIC, "--to", publishing.path]) == 0
    assert publishing.data() == [*PAYLOADS[1:3], b"more"]
    assert consumer.dead() == 0
    assert not publishing.client.list("write/")


def test_a_redrive_of_nothing_blocks_no_later_one(publishing: Publishing, consumer: Consumer) -> None:
    """As when the answer that told its end is lost: it is repeated, with the consumer named."""
    client, ledger = publishing.client, publishing.server.state.ledger
    with publishing.publisher():
        assert [client.redrive(TOPIC, publishing.path, consumer="c") for _ in range(2)] == [2, 0]
        assert len(ledger.database.rows("SELECT * FROM writes WHERE run LIKE 'redrive:%'")) == 1
        run = ledger.database.rows("SELECT run FROM writes WHERE run LIKE 'redrive:%'")[0]["run"]
        empty = ledger.open_write(publishing.path, mode="append", run=re.sub("0-2$", "2-2", run), schema=MESSAGES)
        ledger.finish(empty.id, [])  # as earlier servers have left it
        put_messages(publishing, b"more")
        consumer.commit(5)
        looked_at(publishing.server)
        assert client.redrive(TOPIC, publishing.path) == 1
    assert (publishing.data(), consumer.dead()) == ([*PAYLOADS[1:3], b"more"], 0)


def test_a_redrive_whose_answer_is_lost_tells_it_again(
    publishing: Publishing, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nobody has dead rows any more, and none was named: the answer that told the end, or the only one."""
    publish, states = DeadRows.publish, list[str]()

    def lose_the_last(*arguments: Any) -> actions.RedrivenRows:
        answer = publish(*arguments)
        assert answer.write is not None
        states.append(answer.write.state)
        if states.count("finished") == 1:
            raise Unavailable("the answer is lost", retry_after=0.01)
        if len(states) == 1:
            started.enter_context(publishing.publisher())
        return answer

    monkeypatch.setattr(DeadRows, "publish", lose_the_last)
    with ExitStack() as started:
        assert publishing.client.redrive(TOPIC, publishing.path) == 2
        assert (states[0], states[-2:], publishing.data()) == ("open", ["finished"] * 2, PAYLOADS[1:3])
        put_messages(publishing, b"more")
        consumer.commit(5)
        looked_at(publishing.server)
        states[:] = ["another redrive"]
        assert publishing.client.redrive(TOPIC, publishing.path) == 1


@pytest.mark.parametrize("piece", [1, 2])
def test_a_redrive_to_a_topic_tells_its_answer_again(
    publishing: Publishing, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """All of it, also if it broke between its pieces."""
    lost, append = list[int](), DeadRows._append

    def lose(*arguments: Any) -> None:
        append(*arguments)
        lost.append(1)
        if len(lost) == piece:
            raise Unavailable("the answer is lost", retry_after=0.01)

    monkeypatch.setattr(dead_rows, "_ROWS", 1)
    monkeypatch.setattr(DeadRows, "_append", lose)
    assert publishing.client.redrive(TOPIC, AGAIN) == 2
    assert len(lost) == 2
    assert [row["data"] for row in publishing.client.get(AGAIN).read_all().to_pylist()] == PAYLOADS[1:3]


def test_a_redrive_waits_for_another_one_a_while(
    publishing: Publishing, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_rows, "_TURN", 0.01)
    dead = publishing.server.state.journals.dead
    for to in (AGAIN, publishing.path):
        with dead._redriving, pytest.raises(Unavailable, match="still being redriven: try again"):
            publishing.client.redrive(TOPIC, to)
    assert publishing.client.redrive(TOPIC, AGAIN) == 2


REFUSED = [b"", b"many"]
"""Payloads of rows that are no message: without attributes but Google's, or with more than it takes."""


@pytest.fixture
def with_refused(publishing: Publishing) -> Consumer:
    """A consumer with four dead rows, of which Pub/Sub would refuse two."""
    put_messages(publishing, PAYLOADS[1])
    googles, many = [("googclient_schemarevisionid", "r1")], [(f"a{number}", "b") for number in range(101)]
    columns = {"message_id": ["1"] * 2, "ordering_key": ["k"] * 2}
    publishing.client.put(TOPIC, pa.table({"data": REFUSED, "attributes": pa.array([googles, many], MAPS), **columns}))
    put_messages(publishing, PAYLOADS[2])
    consumer = Consumer(publishing.client)
    consumer.commit(4)
    looked_at(publishing.server)
    return consumer


@pytest.mark.parametrize("breaks", [False, True])
def test_a_redrive_leaves_what_is_no_message_dead(
    publishing: Publishing, with_refused: Consumer, monkeypatch: pytest.MonkeyPatch, capsys: Any, breaks: bool
) -> None:
    """Named, while the others are published; whatever breaks, they stay, each once, until a topic gets them."""
    client, words = publishing.client, ["--url", str(publishing.server.url), "redrive", TOPIC, "--to", publishing.path]
    appended = dead_rows.DeadRows._append
    if breaks:
        monkeypatch.setattr(DeadRows, "_append", breaking)
    with publishing.publisher():
        if breaks:
            with pytest.raises(InvalidRequest, match="planted"):
                client.redrive(TOPIC, publishing.path)
            monkeypatch.setattr(DeadRows, "_append", appended)
        assert app.run(words) == 0
        out, notes = capsys.readouterr()
        assert out.startswith("2 rows of")
        assert re.search(r"can't take 2 of the rows, which stay dead.* _dead_offset 1: it has neither data nor", notes)
        assert (publishing.data(), with_refused.dead()) == ([*PAYLOADS[1:3]], 2)
        assert app.run(words) == 0
        assert capsys.readouterr().out.startswith("0 rows of")
        put_messages(publishing, b"more")
        with_refused.commit(5)
        looked_at(publishing.server)
        assert client.redrive(TOPIC, publishing.path) == 1
    assert (publishing.data(), with_refused.dead()) == ([*PAYLOADS[1:3], b"more"], 2)
    assert not client.list("write/")
    assert client.redrive(TOPIC, AGAIN) == 2
    assert [row["data"] for row in client.get(AGAIN).read_all().to_pylist()] == REFUSED
    assert with_refused.dead() == 0


def breaking(*_: Any) -> None:
    raise InvalidRequest("planted")


def test_a_redrive_that_pubsub_refuses_goes_on(publishing: Publishing, consumer: Consumer) -> None:
    """Until then the rows are dead, and go nowhere else."""
    client = publishing.client
    publishing.fake.fail("Publish", "PERMISSION_DENIED", times=-1)
    with publishing.publisher():
        with pytest.raises(Denied, match=r"give them up: penstock rm write/\w+, after which .* publishes all again"):
            client.redrive(TOPIC, publishing.path)
        for to in (AGAIN, f"{publishing.path}-other"):
            with pytest.raises(WriteEnded, match=f"are being published to {publishing.path}.* has all of them again"):
                client.redrive(TOPIC, to)
        assert consumer.dead() == 2
        publishing.fake.heal()
        assert client.redrive(TOPIC, publishing.path, consumer="c") == 2
    assert publishing.data() == PAYLOADS[1:3]
    assert consumer.dead() == 0


@pytest.mark.parametrize("published", [0, 1])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_redrive_that_is_given_up_comes_again(
    publishing: Publishing, consumer: Consumer, caplog: pytest.LogCaptureFixture, published: int, elsewhere: bool
) -> None:
    """All of its rows; the answer says how many of them were published before."""
    client, ledger = publishing.client, publishing.server.state.ledger
    write = client.call(actions.REDRIVE_ROWS, actions.RedriveRows(TOPIC, publishing.path)).write
    assert write is not None
    if published:
        ledger.change(lambda t: publications.note(t, write.write, [(1, 0, published)]))
    client.delete(f"write/{write.write}")
    with publishing.publisher():
        assert client.redrive(TOPIC, AGAIN if elsewhere else publishing.path) == 2
    assert consumer.dead() == 0
    said = f"1 of these rows were published before, by write/{write.write} to {publishing.path} that was given up"
    assert (said in caplog.text) == bool(published)


def test_a_redrive_that_breaks_at_its_end_publishes_once(
    publishing: Publishing, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pub/Sub has them, and nobody has noted that they are redriven; there are more dead rows by then."""

    def passed(step: str) -> None:
        if step == "redrive.published" and len(publishing.data()) == 2:
            monkeypatch.undo()
            raise InvalidRequest("planted")

    with publishing.publisher():
        with monkeypatch.context() as patched:
            patched.setattr(steps, "passed", passed)
            with pytest.raises(InvalidRequest, match="planted"):
                publishing.client.redrive(TOPIC, publishing.path)
        assert consumer.dead() == 2
        put_messages(publishing, b"more")
        consumer.commit(5)
        looked_at(publishing.server)
        assert [publishing.client.redrive(TOPIC, publishing.path) for _ in range(2)] == [2, 1]
    assert publishing.data() == [*PAYLOADS[1:3], b"more"]


def test_a_redrive_that_ends_as_it_is_repeated(
    publishing: Publishing, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write was open a moment ago, and is finished by now."""

    def find_late(reader: Reader, write: str) -> publications.Publication | None:
        stale = find(reader, write)
        if reader is publishing.server.state.ledger.database:  # not of the publisher's note
            eventually(lambda: find(reader, write) is None)
        return stale

    find, request = publications.find, actions.RedriveRows(TOPIC, publishing.path)
    write = publishing.client.call(actions.REDRIVE_ROWS, request).write
    assert write is not None
    assert write.state == "open"
    with publishing.publisher():
        monkeypatch.setattr(publications, "find", find_late)
        assert publishing.client.redrive(TOPIC, publishing.path) == 2
    assert (publishing.data(), consumer.dead()) == (PAYLOADS[1:3], 0)


def test_rows_that_are_no_messages_stay_dead(publishing: Publishing) -> None:
    """As those of a topic with columns that no message has, or without a payload."""
    put(publishing.client, *PAYLOADS[:2])
    consumer = Consumer(publishing.client)
    consumer.commit(2)
    looked_at(publishing.server)
    with pytest.raises(SchemaMismatch, match="no message has a column 'key'"):
        publishing.client.redrive(TOPIC, publishing.path)
    assert consumer.dead() == 1
    assert not publishing.client.list("write/")
    assert publishing.client.redrive(TOPIC, AGAIN) == 1
