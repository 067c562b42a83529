"""Queues through the door: push, claim, forward, drain, complete."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.client import Client, connect
from penstock.client.lease import Lease
from penstock.client.push import push, settle, to_outputs
from penstock.client.put import Writer
from penstock.client.settings import LONG_RETRY_FOR
from penstock.errors import InvalidRequest, LeaseLost, NotFound, Unavailable, WriteEnded
from penstock.flight_server.pacing import Polls, Rates
from penstock.flight_server.server import PenstockServer
from penstock.flight_server.storing import SMALL
from penstock.ledger.sweep import free
from penstock.queue.work.ledger_queue import LedgerQueue
from penstock.queue.work.messages import drop_removed
from penstock.rows.payload import SplitPayload
from penstock.wire.message import QueueMessage
from penstock.wire.payloads import PayloadNote
from penstock.wire.put import PutCommand
from penstock.wire.queue import LeaseKey
from tests.kit.queues import IN, OUT, counts, drained, numbered, states, work
from tests.kit.server import process_server
from tests.kit.wait import eventually

LEASE = 1.0


@pytest.fixture
def quick(make_server: Callable[..., PenstockServer]) -> Iterator[Client]:
    """A client of a server whose leases are short."""
    with connect(make_server(queue_lease=LEASE).url, retry_for=5) as client:
        yield client


@pytest.mark.process
def test_payloads_go_from_queue_to_queue(tmp_path: Path) -> None:
    with process_server(tmp_path / "data") as server, connect(server.url) as c:
        assert c.push(IN, numbered(0, 1, 2), finish=True) == 3
        work(c)
        assert drained(c, OUT) == [0, 2, 4]
        assert [counts(c, path)["state"] for path in (IN, OUT)] == ["complete", "complete"]


def test_what_is_collected_twice_is_in_the_dataset_once(client: Client) -> None:
    """A message comes again when its collector dies between put and ack."""
    client.push(IN, numbered(1, 2), finish=True)
    collected: list[str] = []
    for lease in client.claim(IN):
        with lease as split:
            message_id = split.message.message_id
            client.put("store/j/out", split.payload.data, mode="append", run=message_id)
            if message_id not in collected:
                lease.release()
            collected.append(message_id)
    assert len(collected) == 4
    assert sorted(client.get("store/j/out").read_all()["x"].to_pylist()) == [1, 2]


# --- push ---------------------------------------------------------------------------------------


def test_every_kind_of_payload_comes_out_as_it_went_in(client: Client) -> None:
    large = pa.table({"x": range(1_000_000)})
    own = SplitPayload(numbered(7)[0], "split-7", {"by": "me"})
    client.push(IN, [large, own, large.slice(0, 2).to_batches()[0], large.slice(0, 0)])
    client.push(IN, large.slice(5, 3), finish=True)

    splits = {}
    for lease in client.claim(IN):
        with lease as split:
            splits[split.message.metadata["num_records"]] = split
    assert {n: split.payload.data.to_pydict() for n, split in splits.items() if n not in (1, 1_000_000)} == {
        0: {"x": []}, 2: {"x": [0, 1]}, 3: {"x": [5, 6, 7]},
    }  # fmt: skip
    assert splits[1_000_000].payload.data == large
    assert splits[1].payload == own
    assert (splits[1].message.split_id, splits[1].message.metadata) == ("split-7", {"num_records": 1, "by": "me"})
    assert splits[2].payload.split_id == splits[2].message.split_id == splits[2].message.message_id


@pytest.mark.usefixtures("elsewhere")
def test_a_worker_on_another_host_fetches_payloads(client: Client) -> None:
    large = pa.table({"x": range(1_000_000)})
    client.push(IN, [large, large.slice(0, 0)], finish=True)
    assert drained(client, IN) == list(range(1_000_000))


@pytest.mark.usefixtures("elsewhere")
def test_no_call_of_a_worker_gives_up_sooner_than_a_claim(server: PenstockServer) -> None:
    """A server may be away for ten minutes, also while a payload is fetched."""
    seconds: list[float | None] = []
    with connect(server.url) as client:
        client.push(IN, [pa.table({"x": range(100_000)})], finish=True)
        retry = client.connection.retry

        def note(call: Any, *, retry_for: float | None = None, **options: Any) -> Any:
            seconds.append(retry_for)
            return retry(call, retry_for=retry_for, **options)

        client.connection.retry = note  # type: ignore[method-assign]
        assert len(drained(client, IN)) == 100_000
    assert set(seconds) == {LONG_RETRY_FOR}
    assert len(seconds) > 2


def test_a_source_message_has_no_payload(client: Client) -> None:
    client.push(IN, QueueMessage("m1", "s1", "", {"range": [0, 9]}, 12.5), finish=True)
    for lease in client.claim(IN):
        with lease as split:
            assert split.message == QueueMessage("m1", "s1", "", {"range": [0, 9]}, 12.5)
            with pytest.raises(InvalidRequest, match="message m1 has no payload"):
                _ = split.payload


def test_a_message_may_name_a_stored_payload(client: Client) -> None:
    client.put("store/j/data", numbered(1)[0])
    with pytest.raises(NotFound, match="no payload store/j/model: store it before"):
        client.push(IN, QueueMessage("m1", "s1", "j/model"))
    assert client.list("queue/") == ()


def test_messages_of_one_id_in_two_queues_stay_two(client: Client) -> None:
    """Forwarded to one queue, the second one's outputs would pass for the first one's, and be lost."""
    for source in ("queue/j/a", "queue/j/b"):
        client.push(source, QueueMessage("m", "m", ""))
        for lease in client.claim(source):
            with lease:
                lease.forward(OUT, numbered(1))
            break
    assert [counts(client, path)["done"] for path in ("queue/j/a", "queue/j/b")] == [1, 0]
    [failed] = client.get("queue/j/b").read_all().to_pylist()
    assert failed["error"].endswith("AlreadyExists")
    assert "ids of their own" in failed["text"]
    assert counts(client, OUT)["pushed"] == 1


def test_a_push_that_is_sent_twice_adds_nothing(client: Client) -> None:
    message = QueueMessage("m1", "s1", "")
    client.push(IN, [message, message])
    client.push(IN, message)
    assert states(client) == (1, 0, 0, 0)
    client.call("queue.finish", {"path": IN})
    with pytest.raises(InvalidRequest, match="is finished"):
        client.push(IN, numbered(1))


def test_a_push_that_is_sent_twice_stores_nothing_again(client: Client, server: PenstockServer) -> None:
    message = to_outputs(IN, SplitPayload(pa.table({"x": range(100_000)}), "s"))
    named = [replace(each, note=replace(each.note, message_id="m1")) for each in message]
    push(client.connection, named)
    client.call("queue.finish", {"path": IN})
    assert len(drained(client, IN)) == 100_000
    push(client.connection, named)
    assert states(client) == (0, 0, 1, 0)
    eventually(lambda: server.state.store.used == 0)


def test_any_put_of_rows_pushes_its_batches(client: Client) -> None:
    client.put(IN, iter(numbered(1)[0].to_batches() + numbered(2)[0].to_batches()))
    client.call("queue.finish", {"path": IN})
    assert drained(client, IN) == [1, 2]


# --- forward ------------------------------------------------------------------------------------


def test_one_lease_forwards_to_several_queues_at_once(client: Client) -> None:
    """Also with other columns, and with payloads of a part: nothing of it is seen before the block ends."""
    client.push(IN, numbered(1), finish=True)
    words = pa.table({"word": ["a", "b"]})
    large = pa.table({"x": range(100_000)})
    for lease in client.claim(IN, to=[OUT, "queue/j/words", "queue/j/none"]):
        with lease as split:
            lease.forward(OUT, [large, *numbered(8, 9)])
            lease.forward("queue/j/words", SplitPayload(words, "w", {"k": 1}))
            lease.forward("queue/j/words", words)
            assert states(client, OUT) == (0, 0, 0, 0)
    assert states(client) == (0, 0, 1, 0)
    assert drained(client, OUT) == sorted([*range(100_000), 8, 9])
    texts = []
    for lease in client.claim("queue/j/words"):
        with lease as split:
            assert split.payload.data == words
            texts.append((split.payload.split_id, split.payload.metadata, split.message.metadata))
            assert split.payload.split_id == split.message.split_id
    own, unnamed = texts
    assert own == ("w", {"k": 1}, {"source_stage": "j/in", "num_records": 2, "k": 1})
    assert unnamed[0].endswith("/j/words/1")
    assert counts(client, "queue/j/none")["state"] == "complete"


def test_a_forward_whose_answer_was_lost_succeeds_late(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other columns, too, whose payloads are stored before; all that it pushed is done and gone by then."""
    client.push(IN, numbered(1), finish=True)
    real, lost = LedgerQueue.forward, list[bool]()

    def lose_answer(queue: LedgerQueue, *args: Any, **options: Any) -> Any:
        outcomes = real(queue, *args, **options)
        if not lost:
            lost.append(True)
            claim = queue.claim(OUT, "other", worker="w", most=9)
            queue.ack([lease.key for lease in claim.leases])
            raise Unavailable("the answer is lost", retry_after=0.01)
        return outcomes

    monkeypatch.setattr(LedgerQueue, "forward", lose_answer)
    for lease in client.claim(IN, to=[OUT]):
        with lease:
            lease.forward(OUT, [*numbered(2), pa.table({"word": ["a"]})])
        assert lease.ended
        assert not lease.lost
    assert [states(client, path) for path in (IN, OUT)] == [(0, 0, 1, 0), (0, 0, 2, 0)]


def test_leases_may_be_forwarded_as_one(client: Client) -> None:
    """As a client of the wire may: one output of several messages, all or nothing."""
    client.push(IN, numbered(1, 2, 3), finish=True)
    claimed = client.call("queue.claim", {"path": IN, "claim": "c", "worker": "w", "most": 3})["messages"]
    keys = [LeaseKey(IN, each["message"]["message_id"], each["token"]) for each in claimed]
    [total] = numbered(6)

    def forward(*leases: LeaseKey, each: bool | None = None) -> None:
        command = PutCommand(uuid.uuid4().hex, path=OUT, forward=leases, each=each)
        with Writer(client.connection, command, total.schema) as writer:
            writer.write_noted(total.to_batches()[0], PayloadNote(lease=1 if each else None).encode())

    forward(*keys[:2])
    with pytest.raises(LeaseLost):
        forward(keys[2], replace(keys[0], token="another"))
    with pytest.raises(InvalidRequest, match="a note names lease 1: expected the number of one in forward"):
        forward(keys[2], each=True)
    assert states(client) == (0, 1, 2, 0)
    client.call("queue.ack", {"leases": [keys[2].to_json()]})
    assert drained(client, OUT) == [6]


def test_payloads_go_with_their_last_message(client: Client, server: PenstockServer) -> None:
    client.push(IN, [pa.table({"x": range(1_000_000)}), *numbered(1)], finish=True)
    work(client)
    assert len(drained(client, OUT)) == 1_000_001
    assert counts(client, OUT)["bytes"] == 0
    eventually(lambda: server.state.store.used == 0)


def files_of(server: PenstockServer) -> list[str]:
    """Return the store's files, once the sweep has freed what nobody names."""
    free(server.state.ledger, server.state.store)
    return [name for name, _ in server.state.store.medium.names()]


def wide(*numbers: int) -> list[pa.Table]:
    """Return a payload of 80 kB for each number: too large for the ledger's rows."""
    return [pa.table({"x": pa.array([number] * 10_000, pa.int64())}) for number in numbers]


def test_payloads_share_a_file_until_the_last_is_done(client: Client, server: PenstockServer) -> None:
    client.push(IN, wide(0, 1, 2, 3), finish=True)
    leases = first(client, number=4)
    [file] = files_of(server)
    used = server.state.store.used
    for lease in (leases[1], leases[0], leases[3]):
        lease.ack()
        assert files_of(server) == [file]
    assert server.state.store.used == used
    key = leases[2].split.message.payload_key
    assert client.get(f"store/{key}").read_all().equals(wide(2)[0])
    assert server.state.store.orphans(server.state.ledger.part_names()) == []
    leases[2].ack()
    client.delete(IN)
    monotonic = server.state.ledger.now() + 13 * 3_600  # the ticket's end
    server.state.ledger.now = lambda: monotonic
    assert files_of(server) == []
    assert server.state.store.used == 0


def test_a_lost_lease_takes_no_file_from_others(client: Client, server: PenstockServer) -> None:
    """Outputs that are forwarded together share a file; of some of them the leases may be over."""
    client.push(IN, numbered(0, 1, 2, 3), finish=True)
    leases = first(client, number=4)
    made = [(lease.key, to_outputs(OUT, wide(number))) for number, lease in enumerate(leases)]
    for number in (1, 2):
        made[number] = (replace(made[number][0], token=f"another.{number}"), made[number][1])
    outcomes = settle(client.connection, made, retry_for=5)
    assert [outcome.code for outcome in outcomes] == [None, LeaseLost.code, LeaseLost.code, None]
    assert len(files_of(server)) == 1
    for lease in leases[1:3]:
        lease.ack()
    assert drained(client, OUT) == [0] * 10_000 + [3] * 10_000
    assert files_of(server) == []


def test_repeated_outputs_keep_no_bytes(client: Client, server: PenstockServer) -> None:
    """A message that is pushed again, its queue deleted meanwhile, makes outputs whose ids are known."""
    for _ in range(2):
        client.push(IN, QueueMessage("m1", "s1", "", {}, 1.0))
        [lease] = first(client)
        [outcome] = settle(client.connection, [(lease.key, to_outputs(OUT, [*wide(7), *numbered(7)]))], retry_for=5)
        assert outcome.code is None
        client.delete(IN)
    assert len(files_of(server)) == 1
    assert counts(client, OUT)["pushed"] == 2
    client.delete(OUT)
    while server.state.ledger.change(drop_removed):
        pass
    assert (files_of(server), server.state.store.used) == ([], 0)


def test_an_id_that_comes_twice_in_a_push_keeps_one(client: Client, server: PenstockServer) -> None:
    [table] = wide(7)
    with Writer(client.connection, PutCommand(uuid.uuid4().hex, path=IN), table.schema) as writer:
        for _ in range(2):
            writer.write_noted(table.to_batches()[0], PayloadNote(message_id="m1").encode())
    [lease] = first(client)
    lease.ack()
    assert (files_of(server), server.state.store.used) == ([], 0)


def test_wide_payloads_of_few_rows_fill_a_file(client: Client, server: PenstockServer) -> None:
    """A file's bound counts schemas: here they are ten times the rows."""
    client.push(IN, [pa.table({f"column {n}": [float(n)] for n in range(600)})] * 60, finish=True)
    sizes = [size for _, size in server.state.store.medium.names()]
    assert len(sizes) > 1
    assert max(sizes) < 2 * SMALL
    assert sum(sizes) > 2 * SMALL  # what one file would have


def test_what_can_not_be_forwarded_fails_its_message(client: Client) -> None:
    client.push(IN, numbered(1))
    client.push(OUT, numbered(1))
    (lease,) = first(client)
    with lease:
        lease.forward(OUT, object())
    (lease,) = first(client, OUT)
    with lease:
        lease.forward(IN, numbered(1))
        lease.forward("queue/j/dead", numbered(1))
    peeked = client.get(OUT).read_all().to_pylist()
    assert [(each["state"], each["error"].rpartition(".")[2]) for each in peeked] == [("pending", "InvalidRequest")]
    assert "queue/j/dead is no queue" in peeked[0]["text"]


def first(client: Client, path: str = IN, number: int = 1) -> list[Lease]:
    """Claim messages, and leave the loop."""
    leases: list[Lease] = []
    for lease in client.claim(path, prefetch=0):
        leases.append(lease)
        if len(leases) == number:
            break
    return leases


# --- what fails ---------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let failed messages be pending again at once."""
    monkeypatch.setattr("penstock.client.lease.backoff", lambda tries: 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_message_that_fails_five_times_is_dead(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """The loop goes on, and ends; the error is kept with the message, which can be redriven."""
    caplog.set_level(logging.WARNING, "penstock")
    client.push(IN, numbered(1, 2, 3), finish=True)
    good = []
    for lease in client.claim(IN):
        with lease as split:
            [x] = split.payload.data["x"].to_pylist()
            if x == 2:
                raise ValueError("no score for 2")
            good.append(x)
    assert (good, states(client)) == ([1, 3], (0, 0, 2, 1))
    [dead] = client.get(f"{IN}/dead").read_all().to_pylist()
    assert (dead["error"], dead["text"], dead["tries"], dead["state"]) == ("ValueError", "no score for 2", 5, "dead")
    assert 'raise ValueError("no score for 2")' in dead["trace"]
    assert dead["worker"].rpartition(":")[2].isdecimal()
    assert sum("failed at try" in record.message for record in caplog.records) == 5

    assert client.call("queue.redrive", {"path": IN, "message_ids": [dead["message_id"]]}) == {"messages": 1}
    assert drained(client, IN) == [2]


def test_a_failed_message_waits_before_it_comes_again(client: Client) -> None:
    client.push(IN, numbered(1))
    (lease,) = first(client)
    with lease:
        raise ValueError
    assert states(client) == (1, 0, 0, 0)
    assert client.call("queue.claim", {"path": IN, "claim": "c", "worker": "w"})["messages"] == []


def test_ctrl_c_gives_the_message_back_at_once(client: Client) -> None:
    client.push(IN, numbered(1, 2, 3))

    def work() -> None:
        for lease in client.claim(IN):
            with lease:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    eventually(lambda: states(client) == (3, 0, 0, 0))
    assert {each["error"] for each in client.get(IN).read_all().to_pylist()} == {None}


def test_a_worker_may_release_or_drop_by_itself(client: Client) -> None:
    client.push(IN, numbered(1, 2))
    first_lease, second = first(client, number=2)
    with first_lease:
        first_lease.drop("not for us")
    with second:
        second.release(delay=60)
    assert states(client) == (1, 0, 0, 1)
    [dead] = client.get(f"{IN}/dead").read_all().to_pylist()
    assert (dead["error"], dead["text"]) == ("Dropped", "not for us")
    with pytest.raises(InvalidRequest, match="settled already"):
        second.ack()


def test_leaving_the_loop_gives_back_what_was_loaded_ahead(client: Client) -> None:
    client.push(IN, numbered(*range(6)))
    for lease in client.claim(IN, prefetch=3):
        with lease:
            pass
        break
    eventually(lambda: states(client) == (5, 0, 1, 0))


@pytest.mark.parametrize("seconds", [0.0, 0.06])
def test_a_quick_worker_claims_many_at_once(client: Client, server: PenstockServer, seconds: float) -> None:
    """A slow one has no more than `prefetch` besides the one it works on."""
    client.push(IN, numbered(*range(12 if seconds else 200)), finish=True)
    most_claimed = 0
    for lease in client.claim(IN):
        with lease:
            time.sleep(seconds)
            most_claimed = max(most_claimed, server.state.ledger.database.rows("SELECT claimed FROM queues")[0][0])
    assert (most_claimed <= 3) == bool(seconds)


@pytest.mark.timeout(60)
def test_the_last_ack_ends_the_loop(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the server would let the worker wait for other messages."""
    monkeypatch.setattr(Polls, "wait", lambda self, now: 600.0)
    client.push(IN, numbered(1, 2, 3), finish=True)
    assert drained(client, IN) == [1, 2, 3]


def test_stop_ends_the_loop_behind_the_block(client: Client) -> None:
    client.push(IN, numbered(*range(6)))
    claims, done = client.claim(IN), 0
    for lease in claims:
        with lease:
            claims.stop()
            done += 1
    assert (done, states(client)) == (1, (5, 0, 1, 0))
    with pytest.raises(InvalidRequest, match="iterated over already"):
        next(iter(claims))


def test_a_write_that_fails_fails_its_workers(client: Client) -> None:
    write = client.call("write.open", {"path": "store/j/in", "queue": IN})
    client.call("write.abort", {"ticket": write["ticket"]})
    with pytest.raises(WriteEnded, match=r"queue/j/in has failed: write/.* was aborted"):
        drained(client, IN)


def test_a_queue_that_nobody_makes_is_named(client: Client) -> None:
    with pytest.raises(NotFound, match="no queue at queue/j/in"):
        list(client.claim(IN, wait=0))
    with pytest.raises(NotFound):
        list(client.claim(IN, to=[OUT], wait=0.3))
    assert client.list("queue/") == ()


def test_workers_may_start_before_their_queue_is_made(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Those of a chain, too; each says once what it waits for."""
    caplog.set_level(logging.WARNING, "penstock")
    with ThreadPoolExecutor() as pool:
        last = pool.submit(drained, client, OUT)
        first = pool.submit(work, client)
        eventually(lambda: len(caplog.messages) == 2)
        client.push(IN, numbered(1, 2), finish=True)
        assert last.result(30) == [2, 4]
        first.result(30)
    assert sorted(caplog.messages) == [f"{path} isn't there yet; waiting for it for up to 60 s" for path in (IN, OUT)]


def test_a_queue_that_is_removed_is_not_waited_for(client: Client) -> None:
    client.push(IN, numbered(1, 2))
    with pytest.raises(NotFound):
        for lease in client.claim(IN, prefetch=0):
            with lease:
                pass
            client.delete(IN)


# --- leases -------------------------------------------------------------------------------------


def test_a_lease_lasts_for_as_long_as_its_block(quick: Client) -> None:
    quick.push(IN, numbered(1), finish=True)
    for lease in quick.claim(IN):
        with lease:
            until = time.monotonic() + 3 * LEASE
            eventually(partial(_is_past, until))
            assert states(quick) == (0, 1, 0, 0)
        assert not lease.lost
    assert states(quick) == (0, 0, 1, 0)


def _is_past(moment: float) -> bool:
    return time.monotonic() > moment


def test_a_lost_lease_is_told_and_nothing_of_it_counts(quick: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    quick.push(IN, numbered(1), finish=True)
    monkeypatch.setattr("penstock.client.heartbeats.Heartbeats.watch", lambda *_: None)
    (late,) = first(quick)
    eventually(lambda: quick.call("queue.claim", {"path": IN, "claim": "other", "worker": "w"})["messages"])
    with late:
        late.forward(OUT, numbered(98))
    assert late.lost
    with pytest.raises(LeaseLost, match="another worker may have the message"):
        late.ack()
    monkeypatch.undo()
    work(quick)
    assert drained(quick, OUT) == [2]


@pytest.mark.usefixtures("at_once")
def test_a_lost_payload_is_named_and_dead_at_its_second_try(client: Client, server: PenstockServer) -> None:
    client.push(IN, [pa.table({"x": range(100_000)}), *numbered(1)], finish=True)
    (part,) = [name for name, _ in server.state.store.medium.names()]
    server.state.store.discard([part])
    assert drained(client, IN) == [1]
    [dead] = client.get(f"{IN}/dead").read_all().to_pylist()
    assert (dead["error"], dead["tries"]) == ("penstock.errors.Lost", 2)


# --- what is seen -------------------------------------------------------------------------------


def test_a_peek_claims_nothing(client: Client) -> None:
    client.push(IN, numbered(1, 2))
    assert client.get(IN, columns=["state", "tries"], limit=1).read_all().to_pylist() == [
        {"state": "pending", "tries": 0}
    ]
    assert client.get(IN, filter="state = 'claimed'").read_all().num_rows == 0
    assert client.get(f"{IN}/dead").read_all().num_rows == 0
    assert states(client) == (2, 0, 0, 0)
    with pytest.raises(InvalidRequest, match="has no offsets"):
        client.get(IN, start={0: 1})


def test_queues_are_listed_described_and_deleted(client: Client) -> None:
    client.push(IN, numbered(1, 2))
    client.push(OUT, numbered(3))
    assert [(entry.path, entry.kind, entry.rows) for entry in client.list("queue/")] == [
        (IN, "queue", 2), (OUT, "queue", 1),
    ]  # fmt: skip
    described = client.call("describe", {"path": IN})["queue"]
    assert described["upstreams"] == [{"upstream": "put", "state": "open"}]
    assert (described["counts"]["pushed"], described["done_per_second"]) == (2, 0)
    assert client.delete(IN)["rows"] == 2
    assert [entry.path for entry in client.list("queue/")] == [OUT]
    with pytest.raises(NotFound):
        client.call("describe", {"path": IN})
    assert client.call("health")["queues"] == 1


def test_waiting_workers_take_turns() -> None:
    polls = Polls(per_second=50, shortest=0.1)
    assert polls.wait(0.0) == 0.1
    waits = [polls.wait(0.0) for _ in range(200)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(0.1 + 200 / 50)
    assert polls.wait(100.0) == pytest.approx(0.1)


def test_the_rate_is_that_of_the_last_minute() -> None:
    rates = Rates()
    for second in (0, 100, 100, 130):
        rates.note(IN, second)
    assert rates.per_second(IN, 130) == 0.05
    assert rates.per_second(OUT, 130) == 0
    for second in (200, 201, 202, 203, 204):
        rates.note(OUT, second)
    assert rates.per_second(OUT, 205) == 1.0, "a queue that has just begun"
