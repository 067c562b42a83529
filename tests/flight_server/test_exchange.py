"""do_exchange as any language has it: plain pyarrow and JSON; and clients that end in every way but by the rules."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.client import Client, connect
from penstock.errors import LimitExceeded
from penstock.flight_server.kinds.topic import TopicKind
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.server import PenstockServer
from tests.kit.producers import BareExchange
from tests.kit.proxy import open_proxy
from tests.kit.server import TOKEN, process_server, served, token_file
from tests.kit.topics import TOPIC
from tests.kit.wait import eventually
from tests.kit.wire import TRIPS, at, call, error_code, ids, refused, trips

SOON = {"limits": ServerLimits(exchange_idle=1), "watch_every": 0.05}


@pytest.fixture
def stream(bare: flight.FlightClient) -> Iterator[BareExchange]:
    with BareExchange(bare) as stream:
        yield stream


def producers(server: PenstockServer) -> int:
    """Count the producers that have a stream."""
    kind = server.state.kinds["topic"]
    assert isinstance(kind, TopicKind)
    return kind.producers.live()


def remembered(server: PenstockServer) -> int:
    """Count the producers that may come back."""
    return len(server.state.ledger.database.rows("SELECT id FROM producers"))


# --- the messages ----------------------------------------------------------------------------


def test_batches_are_answered_in_their_order(stream: BareExchange, bare: flight.FlightClient) -> None:
    welcome = stream.hello()
    assert (welcome["last"], welcome["answers"], welcome["silence"]) == (0, [], 60)
    for n in (1, 2, 3):
        stream.send(n, trips(n, n + 10))
    assert [stream.read() for _ in range(3)] == [
        {"v": 1, "type": "answer", "n": n, "shards": {"0": [2 * n - 2, 2 * n]}} for n in (1, 2, 3)
    ]
    assert ids(bare, TOPIC) == [1, 11, 2, 12, 3, 13]
    assert call(bare, "describe", path=TOPIC)["journal"]


def test_a_producer_comes_back_and_says_bye(bare: flight.FlightClient, server: PenstockServer) -> None:
    with BareExchange(bare) as first:
        producer = first.hello()["producer"]
        first.send(1, trips(1))
        first.send(2, trips(2))
        first.end()
    with BareExchange(bare) as second:
        welcome = second.hello(producer, acked=1)
        assert (welcome["last"], [answer["n"] for answer in welcome["answers"]]) == (2, [2])
        assert welcome["journal"] == call(bare, "describe", path=TOPIC)["journal"]
        second.send(3, trips(3), acked=2)
        assert remembered(server) == 1
        second.say("bye")
        assert [message["n"] for message in second.end()] == [3]
    assert (ids(bare, TOPIC), remembered(server)) == ([1, 2, 3], 0)


@pytest.mark.parametrize(("message", "kept"), [("end", 1), ("bye", 0)])
def test_a_stream_ends_when_its_client_asks(
    bare: flight.FlightClient, server: PenstockServer, message: str, kept: int
) -> None:
    """All before is answered; nothing is half-closed."""
    with BareExchange(bare) as stream:
        stream.hello()
        stream.send(1, trips(1))
        stream.say(message)
        assert stream.read()["n"] == 1
        with pytest.raises(StopIteration):
            stream.read()
    assert remembered(server) == kept


def test_a_stream_that_merely_ends_keeps_its_producer(bare: flight.FlightClient, server: PenstockServer) -> None:
    """A client that was killed ends that way, too."""
    with BareExchange(bare) as stream:
        stream.hello()
        assert stream.end() == []
    eventually(lambda: producers(server) == 0)
    assert remembered(server) == 1


def test_a_new_session_ends_the_stream_of_the_old_one(bare: flight.FlightClient) -> None:
    with BareExchange(bare) as old, BareExchange(bare) as new:
        producer = old.hello()["producer"]
        new.hello(producer)
        refusal = old.read()
        assert (refusal["type"], refusal["code"]) == ("refusal", "fenced")
        with refused("fenced"):
            old.end()
        new.send(1, trips(1))
        assert new.read()["n"] == 1


WRONG: dict[str, tuple[Callable[[BareExchange], object], str, str]] = {
    "no hello": (lambda s: s.send(1, trips(1)), "invalid", 'begins with {"v":1,"type":"hello"}'),
    "another first message": (lambda s: s.say("beat"), "invalid", "begins with"),
    "no JSON": (lambda s: s.writer.write_metadata(b"\xff"), "invalid", "expected a JSON object"),
    "no version": (lambda s: s.writer.write_metadata(b'{"type":"hello"}'), "invalid", "expected version 'v': 1"),
    "an unknown message": (lambda s: s.say("helo"), "invalid", "did you mean 'hello'?"),
    "an unknown field": (lambda s: s.say("hello", id=1), "invalid", "Hello has no field 'id'"),
    "an unknown producer": (lambda s: s.say("hello", producer="0" * 32), "expired", "has no producer 000"),
}


@pytest.mark.parametrize(("wrong", "code", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_start_is_refused(
    stream: BareExchange, wrong: Callable[[BareExchange], object], code: str, words: str
) -> None:
    wrong(stream)
    with refused(code, words):
        stream.read()


BAD: dict[str, tuple[Callable[[BareExchange], object], str, str]] = {
    "a gap": (lambda s: s.send(3, trips(3)), "invalid", "expected batch 2, got 3"),
    "a repeat": (lambda s: s.send(1, trips(3)), "invalid", "expected batch 2, got 1"),
    "a number alone": (lambda s: s.say("batch", n=2), "invalid", "'batch' came alone: expected beside a batch"),
    "another hello": (lambda s: s.say("hello"), "invalid", "no message of type 'hello'"),
    "a report": (lambda s: s.say("report", counters={}, acked={}), "invalid", "no message of type 'report'"),
    "a batch without number": (lambda s: s.writer.write_batch(trips(3)), "invalid", "came without its number"),
    "a batch beside a beat": (
        lambda s: s.writer.write_with_metadata(trips(3), b'{"v":1,"type":"beat"}'),
        "invalid", "came beside a batch: expected alone",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("bad", "code", "words"), BAD.values(), ids=BAD)
def test_what_comes_before_a_bad_message_is_answered(
    bare: flight.FlightClient, stream: BareExchange, bad: Callable[[BareExchange], object], code: str, words: str
) -> None:
    stream.hello()
    stream.send(1, trips(1))
    bad(stream)
    assert stream.read()["n"] == 1
    with refused(code, words):
        stream.read()
    assert ids(bare, TOPIC) == [1]


def damaged_text() -> pa.RecordBatch:
    """Return a batch whose text isn't UTF-8."""
    raw = pa.array([b"\xff\xfe"], pa.binary())
    return pa.RecordBatch.from_arrays([pa.array([1]), raw.view(pa.string())], schema=TRIPS)


def test_a_batch_that_lies_is_refused(bare: flight.FlightClient, stream: BareExchange) -> None:
    stream.hello()
    stream.send(1, damaged_text())
    with refused("invalid", "the stream is malformed"):
        stream.read()
    with refused("not-found"):
        ids(bare, TOPIC)


def test_a_batch_is_cast_or_refused_as_a_puts(bare: flight.FlightClient, stream: BareExchange) -> None:
    with BareExchange(bare) as first:
        first.hello()
        first.send(1, trips(1))
        first.read()
    stream.hello()
    stream.send(1, pa.record_batch({"city": ["x"], "id": pa.array([2], pa.int8())}))
    assert stream.read()["shards"] == {"0": [1, 2]}
    with BareExchange(bare) as other:
        other.hello()
        other.send(1, pa.record_batch({"id": ["text"]}))
        with refused("schema", "id is int64, got string"):
            other.read()
    assert ids(bare, TOPIC) == [1, 2]


@pytest.mark.parametrize(
    ("limits", "batch", "words"),
    [
        ({"batch_rows": 2}, trips(1, 2, 3), "rows in a batch"),
        ({"batch_bytes": 100}, trips(*range(100)), "bytes in a batch"),
        ({"columns": 1}, trips(1), "columns"),
        ({}, pa.record_batch({"id": [b"x" * (33 << 20)]}), "bytes in a batch of an exchange"),
    ],
    ids=["rows", "bytes", "columns", "bytes of any exchange"],
)
def test_the_limits_of_puts_hold_for_each_batch(
    make_server: Callable[..., PenstockServer], limits: dict[str, int], batch: pa.RecordBatch, words: str
) -> None:
    server = make_server(limits=ServerLimits(**limits))
    with flight.connect(server.url) as bare, BareExchange(bare) as stream:
        stream.hello()
        stream.send(1, batch)
        with refused("limit", words):
            stream.read()


def test_a_dictionary_is_not_stored_with_each_batch(client: Client, server: PenstockServer) -> None:
    """A client sends it once: 8 MB of words and 100 batches of one row were 800 MB on disk."""
    words = pa.array([f"{number:0100}" for number in range(80_000)])
    columns = [pa.DictionaryArray.from_arrays(pa.array([number], pa.int32()), words) for number in range(20)]
    with client.producer(TOPIC) as producer:
        for column in columns:
            producer.send(pa.record_batch({"x": column})).result(20)
    assert client.get(TOPIC).read_all()["x"].to_pylist() == words[:20].to_pylist()
    assert server.state.store.used < 1 << 20
    with (
        pytest.raises(LimitExceeded, match="Send plain columns, or put the rows"),
        client.producer("topic/y") as nested,
    ):
        nested.send(pa.record_batch({"x": pa.StructArray.from_arrays([columns[0]], ["word"])})).result(20)


def test_a_large_value_is_not_stored_with_each_batch(client: Client, server: PenstockServer) -> None:
    """A client sends it once: 2 MB and 100 batches of one row were 200 MB on disk, plain or not."""
    words = pa.array(["x" * (2 << 20)])
    large = pa.record_batch({"x": pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), words)})
    client.put("topic/plain", pa.table({"x": ["a"]}))
    for path in (TOPIC, "topic/plain"):
        with (
            pytest.raises(LimitExceeded, match="came with an earlier batch would be stored once more for 1 row"),
            client.producer(path) as producer,
        ):
            producer.send(large).result(20)
            producer.send(large).result(20)
        assert client.get(path).read_all()["x"].to_pylist()[-1] == words[0].as_py()
    assert server.state.store.used < 6 << 20


def test_short_values_may_be_shared_by_any_number_of_batches(client: Client) -> None:
    words = pa.array([f"{number:0500}" for number in range(2_000)])
    indices = pa.array(range(2_000), pa.int32())
    batch = pa.record_batch({"x": pa.DictionaryArray.from_arrays(indices, words)})
    with client.producer(TOPIC) as producer:
        for _ in range(3):
            producer.send(batch).result(20)
    assert client.get(TOPIC).read_all().num_rows == 6_000


def test_a_stranger_is_refused_before_its_first_message(
    make_server: Callable[..., PenstockServer], tmp_path: Path
) -> None:
    server = make_server(token_file=token_file(tmp_path))
    with (
        flight.connect(server.url) as bare,
        BareExchange(bare) as stream,
        refused("denied", "needs the server's token"),
    ):
        stream.read()
    with connect(server.url, token=TOKEN) as client, client.producer(TOPIC) as producer:
        producer.send(trips(1)).result(20)


def test_an_exchange_needs_a_plain_path(bare: flight.FlightClient) -> None:
    with refused("invalid", "an exchange's descriptor is a path"):
        bare.do_exchange(at(TOPIC, mode="append"))[1].read_chunk()


def test_exchanges_count_as_streams(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(limits=ServerLimits(streams=2))
    with flight.connect(server.url) as bare, BareExchange(bare) as one, BareExchange(bare) as two:
        one.hello()
        two.hello()
        assert server.state.streams.open_streams == 2
        with BareExchange(bare) as three, refused("unavailable", "2 open streams"):
            three.hello()


def test_metrics_have_producers_and_their_rows(stream: BareExchange, server: PenstockServer) -> None:
    stream.hello()
    stream.send(1, trips(1, 2, 3))
    stream.read()
    text = server.state.metrics.text()
    assert "penstock_producers 1.0" in text
    assert 'penstock_rows_total{way="in"} 3.0' in text


# --- clients that don't keep to it -----------------------------------------------------------


def await_end(stream: BareExchange) -> None:
    """Read until the stream breaks."""
    with pytest.raises((flight.FlightError, StopIteration, pa.ArrowException)):
        while True:
            stream.read()


@pytest.mark.faults
def test_a_client_without_a_beat_is_cut(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(**SOON)
    with flight.connect(server.url) as bare, BareExchange(bare) as stream:
        stream.hello()
        assert stream.read(beats=True)["type"] == "beat"
        await_end(stream)
    eventually(lambda: producers(server) == 0)
    assert remembered(server) == 1


@pytest.mark.faults
def test_a_client_with_beats_may_be_idle(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(**SOON)
    with flight.connect(server.url) as bare, BareExchange(bare) as stream:
        stream.hello()
        for _ in range(20):
            time.sleep(0.1)
            stream.say("beat", acked=0)
        stream.send(1, trips(1))
        assert stream.read()["n"] == 1


@pytest.mark.faults
def test_a_client_that_says_nothing_at_all_is_cut(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(**SOON)
    with flight.connect(server.url) as bare, BareExchange(bare) as stream:
        stream.writer.begin(TRIPS)  # the descriptor, and no hello
        await_end(stream)
    eventually(lambda: server.state.streams.open_streams == 0)


@pytest.mark.faults
def test_a_deaf_client_is_cut_and_holds_nobody_up(
    make_server: Callable[..., PenstockServer], caplog: pytest.LogCaptureFixture
) -> None:
    """It sends, and reads no answer; others are answered all the while."""
    server = make_server(**SOON)
    with flight.connect(server.url) as bare, connect(server.url) as client:
        deaf = BareExchange(bare)
        deaf.hello()
        with pytest.raises((flight.FlightError, pa.ArrowException)), client.producer("topic/other") as other:
            for n in range(1, 1_000_000):
                deaf.send(n, trips(n), acked=n - 1)
                if n % 500 == 0:
                    other.send(trips(n)).result(20)
        eventually(lambda: producers(server) == 0)
        deaf.reader.cancel()
    assert "sent no beat, or read nothing, for 1 s" in caplog.text


@pytest.mark.faults
def test_a_half_open_client_is_cut(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(**SOON)
    with open_proxy() as proxy:
        proxy.target = server.port
        with flight.connect(proxy.url) as bare, BareExchange(bare) as stream:
            stream.hello()
            with proxy.half_open():
                eventually(lambda: producers(server) == 0, what="the server has noticed")
            assert server.state.streams.open_streams == 0


@contextmanager
def client_process(url: str) -> Iterator[subprocess.Popen[str]]:
    """Start a client that sends batches and beats without end; it has begun."""
    program = [sys.executable, "-m", "tests.kit.programs.clients", "produce", url]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_client_ends(make_server: Callable[..., PenstockServer], number: signal.Signals) -> None:
    """What it sent whole is stored or not, and its producer may come back."""
    server = make_server(**SOON)
    with client_process(str(server.url)) as process:
        assert producers(server) == 1
        process.send_signal(number)
        eventually(lambda: producers(server) == 0)
        eventually(lambda: server.state.streams.open_streams == 0)
    (row,) = server.state.ledger.database.rows("SELECT last FROM producers")
    with flight.connect(server.url) as bare:
        assert ids(bare, TOPIC) == list(range(1, row["last"] + 1))


# --- a server that stops ---------------------------------------------------------------------


@pytest.mark.faults
def test_a_drain_asks_exchanges_to_end(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server()
    with flight.connect(server.url) as bare, BareExchange(bare) as stream:
        stream.hello()
        stream.send(1, trips(1))
        stream.read()
        server.state.watch.drain(20)
        assert stream.read()["type"] == "drain"
        stream.send(2, trips(2))
        assert [message["n"] for message in stream.end()] == [2]


@pytest.mark.process
@pytest.mark.faults
def test_a_drain_cuts_an_exchange_that_goes_on(tmp_path: Path) -> None:
    """The server ends within its deadline, by itself, and not by giving up."""
    with (
        process_server(tmp_path / "d", drain=4.0, watch_every=0.05) as server,
        flight.connect(server.url) as bare,
        BareExchange(bare) as stream,
    ):
        stream.hello()
        assert server.terminate() == 0
        await_end(stream)


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize(
    ("step", "stored"),
    [("exchange.received", [1]), ("part.synced", [1]), ("append.durable", [1]), ("append.committed", [1, 2]),
     ("exchange.answered", [1, 2])],
)  # fmt: skip
def test_a_kill_at_each_step_is_seen_by_hello(tmp_path: Path, step: str, stored: list[int]) -> None:
    """The second batch is stored with its number and its answer, or not at all."""
    data = tmp_path / "d"
    with process_server(data, crash_at=step, crash_on=2) as server, flight.connect(server.url) as bare:
        stream = BareExchange(bare)
        producer = stream.hello()["producer"]
        stream.send(1, trips(1))
        assert stream.read()["n"] == 1
        stream.send(2, trips(2), acked=1)
        assert server.process.wait(20) == -9, "the server never came to the step"
        stream.reader.cancel()
    with served(data) as restarted, flight.connect(restarted.url) as bare, BareExchange(bare) as stream:
        welcome = stream.hello(producer, acked=1)
        assert welcome["last"] == stored[-1]
        assert [answer["n"] for answer in welcome["answers"]] == [n for n in stored if n > 1]
        assert ids(bare, TOPIC) == stored
        stream.send(stored[-1] + 1, trips(9), acked=1)
        assert stream.read()["n"] == stored[-1] + 1


def test_refusals_cross_the_wire_as_flight_errors(stream: BareExchange) -> None:
    """A client that reads no messages of ours gets the code, too."""
    stream.hello()
    stream.send(7, trips(1))
    with pytest.raises(flight.FlightError) as caught:
        stream.read()
    assert error_code(caught.value) == "invalid"
    assert json.loads(caught.value.extra_info)["request"]
