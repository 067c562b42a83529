"""What every store of payloads promises, at a server, in a folder or in memory: subclass `PayloadContract`."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import AlreadyExists, InvalidRequest
from penstock.rows.payload import PayloadStore, SplitPayload
from tests.kit.rows import PAYLOADS, as_file, as_stream, assert_same, numbers
from tests.kit.wire import NASTY

METADATA = {"job": "j", "n": 1, "tags": ["ü", None], "deep": {"x": 0.5}}
LARGE = numbers(5_000)
"""Larger than what lies in a ledger's row."""


def found(store: PayloadStore, key: str) -> SplitPayload:
    """Return the payload of a key, which must be there."""
    payload = store.get(key)
    assert isinstance(payload, SplitPayload)
    return payload


class PayloadContract:
    """The suite; `store` is a fixture of the subclass."""

    # --- store and get ----------------------------------------------------------------------

    @pytest.mark.parametrize("shape", PAYLOADS)
    def test_a_table_comes_back_as_it_was(self, store: PayloadStore, shape: str) -> None:
        assert store.store("k", PAYLOADS[shape]) == "k"
        store.store("own", SplitPayload(PAYLOADS[shape], "split-7", METADATA))
        for key, split_id, kept in (("k", "k", {}), ("own", "split-7", METADATA)):
            payload = found(store, key)
            assert_same(payload.data, PAYLOADS[shape])
            assert (payload.split_id, payload.metadata) == (split_id, kept)

    @pytest.mark.parametrize("encode", [as_stream, as_file])
    @pytest.mark.parametrize("table", [numbers(9), LARGE], ids=["small", "large"])
    def test_ipc_bytes_keep_id_and_metadata(
        self, store: PayloadStore, table: pa.Table, encode: Callable[[pa.Table], bytes]
    ) -> None:
        sent = table.replace_schema_metadata(SplitPayload(table, "split-7", METADATA).schema().metadata)
        store.store("k", encode(sent))
        payload = found(store, "k")
        assert_same(payload.data, table)
        assert (payload.split_id, payload.metadata) == ("split-7", METADATA)

    def test_what_was_not_stored_is_none(self, store: PayloadStore) -> None:
        store.store("a/b", numbers(1))
        for key in ("a", "a/c", "A/b", "b", "a/b/c"):
            assert store.get(key) is None
            assert not store.delete(key)

    @pytest.mark.parametrize("table", [numbers(9), LARGE], ids=["small", "large"])
    def test_a_key_that_is_stored_again_has_the_last(self, store: PayloadStore, table: pa.Table) -> None:
        before = found(store, store.store("k", table))
        for rows in (7, 5_001, 3):
            store.store("k", numbers(rows, 1))
            assert_same(found(store, "k").data, numbers(rows, 1))
        store.delete("k")
        assert_same(before.data, table)

    def test_many_are_stored_and_read_at_once(self, store: PayloadStore) -> None:
        many: dict[str, Any] = {f"m/{n:04}": SplitPayload(numbers(n % 7, n), f"s{n}", {"n": n}) for n in range(3_000)}
        many["m/large"] = LARGE
        many["other"] = pa.table({"x": [1.5]})
        assert store.store_all(many) == 3_002
        assert store.store_all({}) == 0
        payloads = store.get_all([*many, "none"])
        assert payloads.keys() == many.keys()
        assert_same(payloads["m/large"].data, LARGE)
        assert_same(payloads["other"].data, pa.table({"x": [1.5]}))
        for n in range(3_000):
            payload = payloads[f"m/{n:04}"]
            assert (payload.split_id, payload.metadata, payload.data) == (f"s{n}", {"n": n}, numbers(n % 7, n))
        assert store.keys("m/") == sorted(key for key in many if key.startswith("m/"))

    def test_many_are_stored_whole_or_not_at_all(self, store: PayloadStore) -> None:
        store.store("c/d", numbers(1))
        with pytest.raises(AlreadyExists, match="store/c is a folder"):
            store.store_all({"a": numbers(1), "b": LARGE, "c": numbers(1)})
        assert store.keys() == ["c/d"]

    # --- what may not be stored -------------------------------------------------------------

    def test_what_is_no_payload_is_refused(self, store: PayloadStore) -> None:
        offsets, text = pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")
        broken = pa.Array.from_buffers(pa.string(), 1, [None, offsets, text])
        bad: list[tuple[Any, str]] = [
            (7, "a payload is a"), (b"ARROW1", "bytes of an Arrow IPC"), (pa.table({"a": broken}), "isn't a valid"),
            (SplitPayload(numbers(1), "s", {"x": {1}}), "JSON can't hold"),
        ]  # fmt: skip
        for value, message in bad:
            with pytest.raises(InvalidRequest, match=message):
                store.store_all([("good", numbers(1)), ("bad", value)])
        with pytest.raises(InvalidRequest, match="comes twice"):
            store.store_all([("a", numbers(1)), ("a", numbers(2))])
        assert store.keys() == []

    def test_a_nasty_key_is_refused_by_every_verb(self, store: PayloadStore) -> None:
        for key in NASTY:
            for verb in (lambda key: store.store(key, numbers(1)), store.get, store.delete):
                with pytest.raises(InvalidRequest, match=r"key|path"):
                    verb(key)
        assert store.keys() == []

    @pytest.mark.parametrize(("first", "second"), [("a", "a/b"), ("a/b", "a"), ("a/b/c", "a")])
    def test_a_key_is_a_payload_or_a_folder(self, store: PayloadStore, first: str, second: str) -> None:
        store.store(first, numbers(1))
        with pytest.raises(AlreadyExists):
            store.store(second, numbers(1))
        store.delete(first)
        store.store(second, numbers(2))
        assert store.keys() == [second]

    # --- delete, clear, keys ----------------------------------------------------------------

    def test_delete_removes_one_and_returns_whether(self, store: PayloadStore) -> None:
        store.store_all({"a": numbers(1), "b": LARGE, "c": numbers(2)})
        for key in ("a", "b"):
            assert store.delete(key)
            assert not store.delete(key)
            assert store.get(key) is None
        assert store.keys() == ["c"]

    def test_clear_removes_those_below_a_prefix(self, store: PayloadStore) -> None:
        store.store_all({key: numbers(1) for key in ("a/1", "a/2", "ab", "b", "A/1")})
        assert store.clear("a/") == 2
        assert store.keys() == ["A/1", "ab", "b"]
        assert store.clear("%") == 0
        assert store.clear() == 3
        assert store.clear() == 0

    def test_keys_are_in_order(self, store: PayloadStore) -> None:
        store.store_all({key: numbers(1) for key in ("b", "a/2", "a/1/y", "a_1", "A/1", "a/1/x")})
        assert store.keys() == ["A/1", "a/1/x", "a/1/y", "a/2", "a_1", "b"]
        assert store.keys("a/") == ["a/1/x", "a/1/y", "a/2"]
        assert store.keys("a_") == ["a_1"]
        assert store.keys("é") == []

    def test_a_payload_past_its_time_is_gone(self, store: PayloadStore) -> None:
        store.store("long", numbers(1), ttl=3_600)
        store.store_all({"short": numbers(1), "large": LARGE}, ttl=0.0)
        assert store.get_all(["short", "large"]) == {}
        assert not store.delete("short")
        assert store.keys() == ["long"]
        store.store("short/below", numbers(1))

    # --- threads, values --------------------------------------------------------------------

    def test_threads_see_whole_payloads_or_none(self, store: PayloadStore) -> None:
        barrier = threading.Barrier(4)

        def work(me: int) -> None:
            chance = random.Random(me)
            barrier.wait(10)
            for _ in range(25):
                key, rows = f"k{chance.randrange(3)}", chance.randrange(3_000)
                if chance.random() < 0.2:
                    store.delete(key)
                elif chance.random() < 0.5:
                    store.store(key, SplitPayload(numbers(rows), str(rows)))
                elif payload := store.get(key):
                    assert_same(payload.data, numbers(int(payload.split_id)))

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, me) for me in range(4)]:
                done.result(60)

    def test_a_store_that_was_pickled_has_the_same(self, store: PayloadStore) -> None:
        store.store("k", LARGE)
        with pickle.loads(pickle.dumps(store)) as other:
            assert_same(found(other, "k").data, LARGE)
            assert (other, repr(other)) == (store, repr(store))
