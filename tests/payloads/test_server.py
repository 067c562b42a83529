"""Payloads at a server: one namespace with datasets, splits of datasets, one stream whole or not at all, no loss."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock import SplitPayload, SplitPayloadStore, steps
from penstock.client.client import Client, connect
from penstock.errors import (
    AlreadyExists,
    Expired,
    InvalidRequest,
    LimitExceeded,
    Lost,
    NotFound,
    PenstockError,
    StoreFull,
)
from penstock.flight_server import payloads as server_payloads
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.server import PenstockServer
from penstock.ledger import payloads
from penstock.ledger.backup import backup
from penstock.ledger.sweep import free
from penstock.ledger.verify import verify
from penstock.queue.destinations import DESTINATIONS
from penstock.queue.work import work_queues
from penstock.store.disk import DiskMedium
from tests.kit.faults import crash_at
from tests.kit.rows import assert_same, numbers
from tests.kit.server import served, token_file
from tests.kit.wire import refused, trailer

LARGE = numbers(5_000)


@pytest.fixture
def store(server: PenstockServer) -> Iterator[SplitPayloadStore]:
    with SplitPayloadStore(server.url, retry_for=2) as store:
        yield store


def part_count(server: PenstockServer) -> int:
    return len(list(server.state.store.medium.names()))


def send(server: PenstockServer, *batches: tuple[pa.Table, dict[str, Any]], end: bool = True) -> None:
    """Put a stream of batches with notes, as any Flight client may."""
    with flight.connect(server.url) as client:
        schema = batches[0][0].schema
        writer, reader = client.do_put(flight.FlightDescriptor.for_path("store", ""), schema)
        for table, note in batches:
            writer.write_with_metadata(table.to_batches()[0], json.dumps({"v": 1, **note}).encode())
        if end:
            writer.write_metadata(trailer(len(batches), sum(table.num_rows for table, _ in batches)))
        writer.done_writing()
        reader.read()
        writer.close()


# --- one namespace -------------------------------------------------------------------------


def test_a_path_is_a_payload_a_dataset_or_a_folder(client: Client, store: SplitPayloadStore) -> None:
    client.put("store/data/set", numbers(1))
    store.store("pay/load", numbers(1))
    for key in ("data/set", "data/set/below", "data"):
        for payload in (numbers(1), LARGE):
            with pytest.raises(AlreadyExists):
                store.store(key, payload)
    for path in ("store/pay/load", "store/pay/load/below", "store/pay"):
        for mode in ("error", "append", "overwrite"):
            with pytest.raises(AlreadyExists):
                client.put(path, numbers(1), mode=mode)
    assert store.keys() == ["pay/load"]
    entries = [(entry.path, entry.kind) for entry in client.list("store/", recursive=True)]
    assert entries == [("store/data/set", "dataset"), ("store/pay/load", "payload")]
    assert store.delete("pay/load")
    client.put("store/pay/load", numbers(3))


def test_a_write_that_is_open_finds_a_later_payload(client: Client, store: SplitPayloadStore) -> None:
    opened = client.call("write.open", {"path": "store/x"})
    with client.attempt(opened["ticket"], numbers(1).schema) as writer:
        writer.write(numbers(1))
    store.store("x", numbers(2))
    assert writer.receipt is not None
    with pytest.raises(AlreadyExists, match="store/x is a payload"):
        client.call("write.finish", {"ticket": opened["ticket"], "attempts": [writer.receipt.attempt]})
    payload = store.get("x")
    assert payload is not None
    assert payload.data.num_rows == 2


@pytest.mark.parametrize("table", [numbers(100), LARGE], ids=["small", "large"])
def test_a_payload_is_read_by_its_path_as_a_dataset_is(
    client: Client, store: SplitPayloadStore, table: pa.Table
) -> None:
    store.store("a/b", SplitPayload(table, "split-7", {"n": 1}))
    whole = client.get("store/a/b").read_all()
    carried = SplitPayload.from_arrow(whole, "?")
    assert (carried.split_id, carried.metadata) == ("split-7", {"n": 1})
    assert_same(carried.data, table)
    assert client.get("store/a/b", columns=["n"], limit=3, filter="n > 50").read_all()["n"].to_pylist() == [51, 52, 53]
    description = client.call("describe", {"path": "store/a/b"})
    assert (description["kind"], description["rows"]) == ("payload", table.num_rows)
    assert client.delete("store/a/b")["rows"] == table.num_rows
    with pytest.raises(NotFound):
        client.get("store/a/b")


def test_a_dataset_and_its_splits_come_as_payloads(client: Client, store: SplitPayloadStore) -> None:
    carried = numbers(9).replace_schema_metadata(SplitPayload(numbers(9), "split-7", {"n": 1}).schema().metadata)
    receipt = client.put("store/j/in", carried)
    split = f"j/in@{receipt.attempt}-0"
    client.put("store/j/in", numbers(4, 9), mode="append")
    whole, part = store.get("j/in"), store.get(split)
    assert whole is not None
    assert (whole.data.num_rows, whole.split_id, whole.metadata) == (13, "split-7", {"n": 1})
    assert part is not None
    assert_same(part.data, numbers(9))
    assert client.get(f"store/{split}").read_all().num_rows == 9
    for other in (f"j/in@{receipt.attempt}-1", f"j/other@{receipt.attempt}-0", f"j/in@{'0' * 32}-0"):
        assert store.get(other) is None
    with pytest.raises(InvalidRequest):
        store.store(split, numbers(1))
    with pytest.raises(InvalidRequest):
        client.delete(f"store/{split}")
    client.delete("store/j/in")
    assert store.get(split) is not None  # its bytes are there: a message may name them
    assert store.get("j/in") is None


def test_a_listing_has_payloads_and_their_folders(client: Client, store: SplitPayloadStore) -> None:
    client.put("store/a/set", numbers(1))
    store.store_all({"a/x": numbers(3), "a/many/1": numbers(1), "a/many/2": LARGE, "b": numbers(2)})
    listed = [(entry.path, entry.kind, entry.rows, entry.parts, entry.state) for entry in client.list("store/a/")]
    assert listed == [
        ("store/a/many/", "folder", 5_001, 1, "2 payloads"),
        ("store/a/set", "dataset", 1, 1, None),
        ("store/a/x", "payload", 3, 0, None),
    ]
    folders = [(entry.path, entry.rows, entry.state) for entry in client.list("store/")]
    assert folders == [("store/a/", 5_005, "1 dataset, 3 payloads"), ("store/b", 2, None)]
    assert [entry.kind for entry in client.list("store/b")] == ["payload"]


# --- one stream ----------------------------------------------------------------------------


def test_a_payload_of_many_batches_is_one(server: PenstockServer, store: SplitPayloadStore) -> None:
    send(
        server,
        (numbers(3), {"key": "a", "split_id": "s", "metadata": {"x": 1}, "more": True}),
        (numbers(2, 3), {"more": True}),
        (numbers(1, 5), {}),
        (numbers(7), {"key": "b"}),
    )
    payload = store.get("a")
    assert payload is not None
    assert (payload.data.combine_chunks(), payload.split_id, payload.metadata) == (numbers(6), "s", {"x": 1})
    assert store.keys() == ["a", "b"]


BAD_STREAMS: dict[str, list[dict[str, Any]]] = {
    "comes twice": [{"key": "a"}, {"key": "a"}],
    "lacks its end: its last batch": [{"key": "a"}, {"key": "b", "more": True}],
    "lacks its end: the batch before": [{"key": "a", "more": True}, {"key": "b"}],
    "expected 1 to 512 characters": [{"key": "a"}, {}],
    "must not be empty": [{"key": "a"}, {"key": "../b"}],
    "has no field 'other'": [{"key": "a", "other": 1}],
}


@pytest.mark.parametrize("message", BAD_STREAMS)
@pytest.mark.parametrize("table", [numbers(9), LARGE], ids=["small", "large"])
def test_a_malformed_stream_keeps_nothing(
    server: PenstockServer, store: SplitPayloadStore, table: pa.Table, message: str
) -> None:
    with refused("invalid", message):
        send(server, *((table, note) for note in BAD_STREAMS[message]))
    assert store.keys() == []
    assert part_count(server) == 0


def test_a_stream_without_its_trailer_keeps_nothing(server: PenstockServer, store: SplitPayloadStore) -> None:
    with refused("invalid", "without its trailer"):
        send(server, (LARGE, {"key": "a"}), (LARGE, {"key": "b"}), end=False)
    assert store.keys() == []
    assert part_count(server) == 0


def test_a_payload_above_the_limit_is_refused(make_server: Callable[..., PenstockServer]) -> None:
    from penstock.flight_server.limits import ServerLimits

    server = make_server(limits=ServerLimits(payload_bytes=10_000))
    with SplitPayloadStore(server.url, retry_for=0) as store:
        with pytest.raises(LimitExceeded, match="payload_bytes"):
            store.store_all({"a": numbers(1), "b": LARGE})
        assert store.keys() == []


def test_payloads_need_the_token(make_server: Callable[..., PenstockServer], tmp_path: Path) -> None:
    server = make_server(token_file=token_file(tmp_path))
    with refused("denied"):
        send(server, (numbers(1), {"key": "a"}))
    with flight.connect(server.url) as client, refused("denied"):
        list(client.do_action(flight.Action("payload.find", b'{"v":1,"keys":["a"]}')))


# --- nothing is lost -----------------------------------------------------------------------


@pytest.mark.parametrize("step", ["payloads.durable", "payloads.bound"])
def test_a_crash_leaves_all_of_a_stream_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    many = {"a": numbers(1), "b": LARGE, "c": numbers(2)}
    with served(tmp_path) as server, SplitPayloadStore(server.url, retry_for=0) as store:
        store.store("b", numbers(7))
        monkeypatch.setattr(steps, "passed", crash_at(step))
        with pytest.raises(PenstockError):
            store.store_all(many)
        monkeypatch.undo()
    with served(tmp_path) as server, SplitPayloadStore(server.url) as store:
        is_bound = step == "payloads.bound"
        assert store.keys() == (["a", "b", "c"] if is_bound else ["b"])
        payload = store.get("b")
        assert payload is not None
        assert_same(payload.data, LARGE if is_bound else numbers(7))
        assert part_count(server) == int(is_bound)


def test_a_part_that_is_gone_is_named(server: PenstockServer, store: SplitPayloadStore) -> None:
    store.store("a/b", LARGE)
    for name, _ in list(server.state.store.medium.names()):
        server.state.store.medium.delete(name)
    with pytest.raises(Lost, match="the payload a/b is lost"):
        store.get("a/b")
    assert store.keys() == ["a/b"]


def test_a_start_and_verify_name_lost_parts(tmp_path: Path) -> None:
    with served(tmp_path) as server, SplitPayloadStore(server.url) as store:
        store.store_all({"a/large": LARGE, "a/small": numbers(1)})
    medium = DiskMedium(tmp_path)
    assert (verify(tmp_path, medium, DESTINATIONS, work_queues, is_served=False).parts) == 1
    [(name, _)] = medium.names()
    medium.delete(name)
    assert "store/a/large" in str(verify(tmp_path, medium, DESTINATIONS, work_queues, is_served=False).losses)
    with pytest.raises(Lost, match=r"lacks parts that the ledger names: of store/a/large"), served(tmp_path):
        pass
    with served(tmp_path, accept_loss=True) as server, SplitPayloadStore(server.url) as store:
        with pytest.raises(Lost):
            store.get("a/large")
        assert store.get("a/small") is not None


def test_other_bytes_in_a_row_are_named(server: PenstockServer, store: SplitPayloadStore) -> None:
    store.store("a", numbers(9))
    store.store("b", numbers(9))
    ledger = server.state.ledger
    ledger.change(lambda t: t.execute("UPDATE payloads SET inline = zeroblob(length(inline)) WHERE key = 'a'"))
    with pytest.raises(Lost, match="the payload a is lost"):
        store.get("a")
    assert store.get("b") is not None
    with ledger.reading() as reader:
        assert payloads.disagreements(reader) == ["the payload store/a has other bytes than were written"]


def test_a_memory_store_names_what_it_has_lost(tmp_path: Path) -> None:
    """Small payloads lie in the ledger, and stay."""
    for _ in range(2):
        with served(tmp_path, store="memory:") as server, SplitPayloadStore(server.url) as store:
            if not store.keys():
                store.store_all({"large": LARGE, "small": numbers(1)})
                continue
            with pytest.raises(Lost, match=r"the payload large is lost: .* in the memory of a server that has stopped"):
                store.get("large")
            assert store.get("small") is not None
            store.store("large", LARGE)
            assert store.get("large") is not None


def test_a_backup_has_payloads(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "copy"
    with served(data) as server, SplitPayloadStore(server.url) as store:
        store.store_all({"large": LARGE, "small": numbers(1)})
        assert backup(data, DiskMedium(data), target, DESTINATIONS, work_queues).losses == ()
    with served(target) as server, SplitPayloadStore(server.url) as store:
        assert store.get_all(["large", "small"]).keys() == {"large", "small"}


def test_small_payloads_fill_the_quota_until_they_go(make_server: Callable[..., PenstockServer]) -> None:
    """Those of users, and those that go with their messages; one that replaces another counts once."""
    server = make_server(quota=20_000)
    with SplitPayloadStore(server.url, retry_for=0) as store, connect(server.url, retry_for=0) as client:
        for _ in range(20):
            store.store("one", numbers(300))
        for is_last in (False, True):
            client.push("queue/q", numbers(300), finish=is_last)
        used = server.state.store.used
        assert 3 * 6_000 < used < 20_000
        for store_more in (lambda: store.store("two", numbers(300)), lambda: client.push("queue/r", numbers(300))):
            with pytest.raises(StoreFull, match=f"the store has {used:,} of 20,000 bytes in use"):
                store_more()
        for lease in client.claim("queue/q"):
            with lease:
                pass
        store.store("two", numbers(300))
        store.clear()
        assert server.state.store.used == 0


def test_payloads_of_users_count_as_paths(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(limits=ServerLimits(datasets=3))
    with SplitPayloadStore(server.url, retry_for=0) as store, connect(server.url, retry_for=0) as client:
        client.push("queue/q", [numbers(1)] * 5)
        store.store_all({"a": numbers(1), "b": numbers(1)})
        with pytest.raises(LimitExceeded, match="3 datasets, topics and payloads"):
            store.store_all({"a": numbers(2), "c": numbers(1), "d": numbers(1)})
        client.put("store/c", numbers(1))
        with pytest.raises(LimitExceeded):
            client.put("store/d", numbers(1))
        store.store("b", numbers(2))
        store.delete("a")
        client.put("store/d", numbers(1))


def test_small_payloads_wait_for_room_too(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(quota=20_000)
    with SplitPayloadStore(server.url, retry_for=0) as store:
        with pytest.raises(StoreFull):
            store.store_all({f"{n}": numbers(300) for n in range(10)})
        assert store.keys() == []
        store.store("one", numbers(300))


# --- what is freed, and when ---------------------------------------------------------------


def test_bytes_stay_while_a_ticket_names_them(
    server: PenstockServer, client: Client, store: SplitPayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.store_all({"found": LARGE, "read": LARGE, "alone": LARGE})
    store.delete("alone")
    ledger = server.state.ledger
    assert free(ledger, server.state.store) == 1
    reader = client.info("store/read").endpoints[0].ticket.ticket
    found = client.call("payload.find", {"keys": ["found"]})["payloads"][0]["ticket"].encode()
    store.store("found", numbers(1))
    store.clear()
    assert free(ledger, server.state.store) == 0
    for ticket in (reader, found):
        assert sum(batch.num_rows for batch in client.fetch(ticket)) == LARGE.num_rows
    now = time.time()
    monkeypatch.setattr(ledger, "now", lambda: now + server_payloads.TICKET_LIFE + 70)
    assert free(ledger, server.state.store) == 1
    monkeypatch.setattr(time, "time", lambda: now + server_payloads.TICKET_LIFE + 70)
    with pytest.raises(Expired):
        list(client.fetch(found))
    monkeypatch.setattr(ledger, "now", lambda: now + 13 * 3_600)
    assert free(ledger, server.state.store) == 1


def test_payloads_past_their_time_are_swept(
    server: PenstockServer, store: SplitPayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.store_all({"a": LARGE, "b": numbers(1)}, ttl=60)
    store.store("c", LARGE)
    ledger, now = server.state.ledger, time.time()
    monkeypatch.setattr(ledger, "now", lambda: now + 61)
    ledger.expire()
    free(ledger, server.state.store)
    assert ledger.database.rows("SELECT key FROM payloads")[0]["key"] == "c"
    assert part_count(server) == 1


@pytest.mark.parametrize("verb", ["delete", "clear", "expire"])
def test_a_payload_that_a_message_names_stays_for_it(
    server: PenstockServer, store: SplitPayloadStore, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """It goes with the last message, and not with a message while it is the user's."""
    ledger, now = server.state.ledger, time.time()
    store.store_all({"a": LARGE, "b": numbers(1)}, ttl=60 if verb == "expire" else None)
    ledger.change(lambda t: payloads.free(t, "a"))
    named = {"a", "b"}
    monkeypatch.setattr(ledger, "names_payload", lambda reader, key: key in named)
    if verb == "expire":
        monkeypatch.setattr(ledger, "now", lambda: now + 61)
        ledger.expire()
    else:
        assert store.clear() == 2 if verb == "clear" else store.delete("a") and store.delete("b")
    assert store.keys() == []
    monkeypatch.setattr(ledger, "now", time.time)
    assert store.get_all(["a", "b"]).keys() == {"a", "b"}
    named.clear()
    for key in ("a", "b"):
        ledger.change(partial(payloads.free, key=key))
    assert store.get_all(["a", "b"]) == {}
