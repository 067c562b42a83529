"""`c.producer`: pipelined appends, each answered once it is durable, none twice whatever happens on the way."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client, connect
from penstock.client.exchange import Exchange, Listener
from penstock.client.producer import Producer
from penstock.errors import (
    Expired,
    Fenced,
    InvalidRequest,
    LimitExceeded,
    PenstockError,
    SchemaMismatch,
    StoreFull,
    TimedOut,
    Unavailable,
)  # fmt: skip
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.server import PenstockServer
from penstock.queue.topics.append import Append, Appender
from penstock.wire.exchange import Answer
from scripts.child import free_port
from tests.kit.proxy import Proxy, open_proxy
from tests.kit.server import process_server, served
from tests.kit.topics import TOPIC
from tests.kit.wait import eventually
from tests.kit.wire import trips

SOON = {"limits": ServerLimits(exchange_idle=1), "watch_every": 0.05}


def ids(client: Client, path: str = TOPIC) -> list[int]:
    return client.get(path).read_all()["id"].to_pylist()  # type: ignore[no-any-return]


class Hold(threading.Event):
    """Set, it lets the committer go on."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[int] = []
        """The appends of each group that was begun."""


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    """The committer of servers in this process waits until the event is set."""
    go, commit = Hold(), Appender.commit

    def held(appender: Appender, appends: Sequence[Append]) -> None:
        go.groups.append(len(appends))
        assert go.wait(60)
        commit(appender, appends)

    monkeypatch.setattr(Appender, "commit", held)
    yield go
    go.set()


# --- what it is for --------------------------------------------------------------------------


def test_each_future_has_the_offsets_of_its_batch(client: Client) -> None:
    with client.producer(TOPIC) as p:
        answers = [p.send(trips(n, n)) for n in range(100)]
        assert answers[99].result(20).shards == {0: (198, 200)}
    assert [answer.result(0).shards for answer in answers] == [{0: (2 * n, 2 * n + 2)} for n in range(100)]
    assert ids(client) == [n for n in range(100) for _ in range(2)]


def test_flush_waits_until_all_is_durable(client: Client) -> None:
    p = client.producer(TOPIC)
    p.flush()
    for n in range(10):
        p.send(trips(n))
    p.flush()
    assert ids(client) == list(range(10))
    p.close()
    p.close()
    with pytest.raises(InvalidRequest, match=r"the producer of topic/x is closed"):
        p.send(trips(1))


def test_a_table_is_sent_as_one_batch(client: Client) -> None:
    table = pa.Table.from_batches([trips(1), trips(2, 3)])
    with client.producer(TOPIC) as p:
        assert p.send(table).result(20).shards == {0: (0, 3)}
        assert p.send(table.slice(0, 0)).result(20).shards == {}
    assert ids(client) == [1, 2, 3]


def test_only_so_many_batches_are_in_flight(client: Client, held: Hold) -> None:
    with client.producer(TOPIC, max_in_flight=3) as p, ThreadPoolExecutor(1) as pool:
        for n in range(3):
            p.send(trips(n))
        fourth = pool.submit(p.send, trips(3))
        time.sleep(0.2)
        assert not fourth.done()
        held.set()
        assert fourth.result(20).result(20).n == 4
    assert ids(client) == [0, 1, 2, 3]


def test_threads_share_a_producer(client: Client) -> None:
    """The rows of each stay in their order."""
    with client.producer(TOPIC, max_in_flight=8) as p, ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(send_all, p, range(t * 1_000, t * 1_000 + 50)) for t in range(4)]:
            done.result(60)
    rows = ids(client)
    for t in range(4):
        assert [n for n in rows if n // 1_000 == t] == list(range(t * 1_000, t * 1_000 + 50))


def send_all(p: Producer, numbers: range) -> list[Future[Answer]]:
    return [p.send(trips(n)) for n in numbers]


def test_producers_share_fsyncs(make_server: Callable[..., PenstockServer], held: Hold) -> None:
    """Eight of them, five batches each: what waits while the first is made durable is one transaction."""
    server = make_server()
    with connect(server.url) as client, ExitStack() as stack:
        first = stack.enter_context(client.producer(TOPIC))
        others = [stack.enter_context(client.producer(TOPIC)) for _ in range(8)]
        begun = first.send(trips(0))
        eventually(lambda: held.groups == [1])
        commits = server.state.ledger.database.commits
        answers = [p.send(trips(n)) for p in others for n in range(5)]
        eventually(lambda: server.state.journals.appender._waiting.qsize() >= 40)
        held.set()
        assert begun.result(20).n == 1
        assert {answer.result(20).n for answer in answers} == {1, 2, 3, 4, 5}
        assert server.state.ledger.database.commits - commits <= 3


def test_leaving_by_exception_sends_nothing_more(client: Client, held: Hold) -> None:
    """What waits fails, or is answered meanwhile; the error of the block is the one that is seen."""
    with pytest.raises(ZeroDivisionError), client.producer(TOPIC) as p:
        sent = p.send(trips(1))
        held.set()
        raise ZeroDivisionError
    assert sent.done()
    with pytest.raises(PenstockError):
        p.send(trips(2))
    assert ids(client) in ([1], [])


def test_leaving_forgets_the_producer(client: Client, server: PenstockServer) -> None:
    with client.producer(TOPIC) as p:
        p.send(trips(1))
    assert server.state.ledger.database.rows("SELECT * FROM producers") == []


# --- errors ----------------------------------------------------------------------------------


def test_an_error_comes_by_the_future_and_the_next_call(client: Client) -> None:
    client.put(TOPIC, pa.Table.from_batches([trips(0)]))
    with pytest.raises(SchemaMismatch), client.producer(TOPIC) as p:
        bad = p.send(pa.record_batch({"id": ["text"]}))
        assert isinstance(bad.exception(20), SchemaMismatch)
        with pytest.raises(SchemaMismatch, match="id is int64, got string"):
            p.flush()
        p.send(trips(1))
    assert ids(client) == [0]


def test_batches_before_a_bad_one_are_answered(client: Client, held: Hold) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    client.create_topic(TOPIC, schema)
    p = client.producer(TOPIC)
    sent = [p.send(pa.record_batch([pa.array([n], pa.int64())], ["id"])) for n in (1, 2, None, 4)]
    held.set()
    assert [each.exception(20) is None for each in sent] == [True, True, False, False]
    assert "column id has a null" in str(sent[2].exception())
    with pytest.raises(InvalidRequest):
        p.close()
    assert ids(client) == [1, 2]


@pytest.mark.parametrize(
    ("path", "words"),
    [("store/x", "can't be appended to"), ("topic", "expected a kind and a key"), ("nothing/x", "begins with")],
)
def test_a_path_that_takes_no_producer_is_refused_at_once(client: Client, path: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        client.producer(path)


def test_what_cannot_be_sent_is_refused_by_name(client: Client) -> None:
    with client.producer(TOPIC) as p:
        with pytest.raises(InvalidRequest, match=r"list can't be sent: expected a pyarrow\.RecordBatch"):
            p.send([{"id": 1}])
        with pytest.raises(LimitExceeded, match="bytes can't be sent: at most 33,554,432"):
            p.send(pa.record_batch({"id": [b"x" * (33 << 20)]}))
        p.send(trips(1))
        with pytest.raises(SchemaMismatch, match=r"has sent rows with other columns: the rows lack city: .*Cast these"):
            p.send(pa.record_batch({"id": [2]}))
        p.send(trips(3))
    assert ids(client) == [1, 3]
    with pytest.raises(InvalidRequest, match="max_in_flight=0: expected 1 to 1,024"):
        client.producer(TOPIC, max_in_flight=0)


def test_batches_that_mean_the_same_share_a_stream(client: Client) -> None:
    """In the types of the first one: pandas notes its index in each, polars has views, and columns any order."""
    with client.producer(TOPIC) as p:
        p.send(pa.table({"id": [0], "city": ["a"]}))
        p.send(pa.RecordBatch.from_pandas(pd.DataFrame({"id": [1], "city": ["b"]})))
        p.send(pa.RecordBatch.from_pandas(pd.DataFrame({"id": [2, 3], "city": ["c", "d"]})))
        p.send(pl.DataFrame({"city": ["e"], "id": [4]}, schema_overrides={"id": pl.Int8}).to_arrow())
        with pytest.raises(SchemaMismatch, match=r"column id is double, and can't be cast to int64.*Cast these"):
            p.send(pa.table({"id": [0.5], "city": ["lost"]}))
    table = client.get(TOPIC).read_all()
    assert table.to_pydict() == {"id": [0, 1, 2, 3, 4], "city": ["a", "b", "c", "d", "e"]}


def test_a_future_of_a_sent_batch_cannot_be_cancelled(client: Client, held: Hold) -> None:
    """asyncio cancels what it has waited for too long; the stream broke at the answer to that."""
    with client.producer(TOPIC) as p:
        first, second = p.send(trips(1)), p.send(trips(2))
        assert not first.cancel()
        held.set()
        assert (first.result(20).n, second.result(20).n) == (1, 2)
    assert ids(client) == [1, 2]


def test_the_callback_of_an_answer_may_send(client: Client) -> None:
    """Though the window is full: it is the thread that reads answers. It can't wait for any."""

    def send_another(answer: Future[Answer]) -> None:
        second.append(p.send(trips(1_000)))
        is_reader = threading.current_thread() is not threading.main_thread()
        with pytest.raises(InvalidRequest) if is_reader else nullcontext():  # the answer may be there already
            p.flush()
        called.append(is_reader)

    second: list[Future[Answer]] = []
    called: list[bool] = []
    with client.producer(TOPIC, max_in_flight=1) as p:
        for number in range(20):
            p.send(trips(number)).add_done_callback(send_another)
        eventually(lambda: len(called) == 20)
    assert any(called)
    assert sorted(ids(client)) == [*range(20), *[1_000] * 20]
    assert {answer.result(0).shards is None for answer in second} == {False}


def test_a_second_session_fences_a_producer(client: Client) -> None:
    with pytest.raises(Fenced), client.producer(TOPIC) as p:
        p.send(trips(1)).result(20)
        Exchange(client.settings, TOPIC, Listener(), producer=p.id, acked=1).abandon()
        eventually(lambda: p._error is not None)
        p.send(trips(2))
    assert ids(client) == [1]


def test_a_deleted_topic_ends_its_producers(client: Client) -> None:
    with pytest.raises(Expired), client.producer(TOPIC) as p:
        p.send(trips(1)).result(20)
        client.delete(TOPIC)
        assert isinstance(p.send(trips(2)).exception(20), Expired)
        p.flush()


def test_a_full_store_is_waited_for(client: Client, server: PenstockServer) -> None:
    """For `retry_for` seconds at most; nothing is lost, nothing doubled."""
    with client.producer(TOPIC) as p:
        p.send(trips(0)).result(20)
        p._retry_for = 60
        server.state.store.quota = server.state.store.used
        sent = [p.send(trips(n)) for n in (1, 2, 3)]
        time.sleep(0.3)
        assert not any(each.done() for each in sent)
        server.state.store.quota = None
        p.flush()
    assert ids(client) == [0, 1, 2, 3]


def test_a_store_that_stays_full_is_an_error(client: Client, server: PenstockServer) -> None:
    with pytest.raises(Unavailable, match=r"topic/x took no batch for 2 s"), client.producer(TOPIC) as p:
        server.state.store.quota = 1
        p.send(trips(1))
        p.flush()
    assert issubclass(StoreFull, Unavailable)


# --- connections and servers that end --------------------------------------------------------


@pytest.fixture
def proxy(make_server: Callable[..., PenstockServer]) -> Iterator[Proxy]:
    with open_proxy() as proxy:
        proxy.target = make_server(**SOON).port
        yield proxy


@pytest.mark.faults
@pytest.mark.parametrize("how", ["cut", "reset", "half open"])
def test_a_connection_that_breaks_doubles_and_loses_nothing(proxy: Proxy, how: str) -> None:
    with connect(proxy.url, timeout=5) as client, client.producer(TOPIC, max_in_flight=16) as p:
        for n in range(400):
            p.send(trips(n))
            if n % 100 == 50:
                if how == "half open":
                    with proxy.half_open():
                        stream = p._exchange
                        eventually(lambda stream=stream: p._exchange is not stream)  # type: ignore[misc]
                else:
                    proxy.cut() if how == "cut" else proxy.reset()
        p.flush()
        assert ids(client) == list(range(400))


@pytest.mark.faults
def test_lost_answers_are_told_by_the_next_welcome(proxy: Proxy, held: Hold) -> None:
    """The server stored what it answered into nothing."""
    with connect(proxy.url, timeout=5) as client, client.producer(TOPIC) as p:
        sent = [p.send(trips(n)) for n in range(5)]
        eventually(lambda: p._written == 5)
        time.sleep(0.2)
        with proxy.half_open():
            held.set()
            time.sleep(0.2)
        assert [each.result(30).shards for each in sent] == [{0: (n, n + 1)} for n in range(5)]
        assert ids(client) == list(range(5))


@pytest.mark.faults
def test_a_server_that_falls_silent_is_left(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exchange would wait in a read for ever."""
    with connect(proxy.url) as client:
        ended: list[PenstockError | None] = []
        listener = Listener()
        monkeypatch.setattr(listener, "ended", ended.append)
        Exchange(client.settings, TOPIC, listener)
        with proxy.half_open():
            eventually(lambda: ended)
        assert isinstance(ended[0], TimedOut | Unavailable)


@pytest.mark.faults
def test_a_server_that_is_silent_from_the_start_is_left(proxy: Proxy) -> None:
    """After 20 s: gRPC's own limit for a connection's first bytes."""
    with (
        connect(proxy.url, timeout=1, retry_for=2) as client,
        proxy.half_open(),
        pytest.raises((TimedOut, Unavailable)),
    ):
        client.producer(TOPIC)


@pytest.mark.faults
def test_a_restarted_server_gets_what_it_lacks(tmp_path: Path) -> None:
    """Its drain ends the stream, with no batch refused and none cut."""
    url, data = f"grpc://127.0.0.1:{free_port()}", tmp_path / "d"
    with connect(url) as client:
        with served(data, listen=url) as server:
            p = client.producer(TOPIC)
            for n in range(50):
                p.send(trips(n))
            began = time.monotonic()
            assert server.close(20.0) == 0
            assert time.monotonic() - began < 15
        eventually(p._opening.locked)  # it looks for the server: what is sent meanwhile fills the window
        for n in range(50, 80):
            p.send(trips(n))
        with served(data, listen=url):
            p.close()
            assert ids(client) == list(range(80))


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.soak)])
def test_kills_in_mid_stream_lose_and_double_nothing(tmp_path: Path, kills: int) -> None:
    """The server dies by kill -9 while four producers send; their futures and order hold."""
    url, data, dice = f"grpc://127.0.0.1:{free_port()}", tmp_path / "d", random.Random(13)
    stop = threading.Event()

    def produce(number: int) -> dict[int, int]:
        """Send rows until told to stop; return the offset that each was said to have."""
        sent = {}
        with connect(url) as client, client.producer(TOPIC) as p:
            row = number * 1_000_000
            while not stop.is_set():
                sent[row] = p.send(trips(row))
                row += 1
        return {row: answer.result(0).shards[0][0] for row, answer in sent.items()}  # type: ignore[index]

    with ThreadPoolExecutor(4) as pool:
        clients: list[Future[dict[int, int]]] = []
        for round_ in range(kills + 1):
            with process_server(data, listen=url) as server:
                if not clients:
                    clients = [pool.submit(produce, number) for number in range(4)]
                with connect(url) as client:
                    rows = client.info(TOPIC).rows if round_ else 0
                    eventually(lambda rows=rows: grown(client, rows + 200), within=60)  # type: ignore[misc]
                time.sleep(dice.uniform(0, 0.2))
                if round_ < kills:
                    server.kill()
                else:
                    stop.set()
                    offsets = {row: offset for each in clients for row, offset in each.result(60).items()}
                    with connect(url) as client:
                        stored = ids(client)
    assert {row: offset for offset, row in enumerate(stored)} == offsets
    assert len(stored) == len(offsets)
    for number in range(4):
        mine = [row for row in stored if row // 1_000_000 == number]
        assert mine == sorted(mine)


def grown(client: Client, rows: int) -> bool:
    try:
        return (client.info(TOPIC).rows or 0) >= rows
    except penstock.errors.NotFound:
        return False
