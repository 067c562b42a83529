"""What every store promises, whatever its medium: subclass `StoreContract` and say where the bytes lie."""

from __future__ import annotations

import random
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from penstock.errors import InvalidRequest, Lost, StoreFull
from penstock.rows.payload import SplitPayload
from penstock.store.database import Database
from penstock.store.medium import Medium, OpenPart
from penstock.store.payload_table import TABLES
from penstock.store.payloads import NewPayload, Store
from tests.kit.clock import Clock
from tests.kit.rows import PAYLOADS, SHAPES, as_file, as_stream, assert_same, numbers
from tests.kit.wire import NASTY

Make = Callable[..., Store]


def payload(store: Store, key: str) -> SplitPayload:
    """Return the payload of a key, which must be there."""
    stored = store.get(key)
    assert isinstance(stored, SplitPayload)
    return stored


class StoreContract:
    """The suite. A payload is stored and read through the store; `raw` looks at its bytes past the store."""

    @abstractmethod
    def medium(self, folder: Path) -> Medium:
        """A medium in this folder, or in memory."""

    @abstractmethod
    def raw(self, store: Store, name: str) -> pa.Table:
        """The rows of a part as its medium has them, read without the store."""

    @pytest.fixture
    def make(self, tmp_path: Path, clock: Clock) -> Iterator[Make]:
        with ExitStack() as stack:

            def make(folder: Path = tmp_path, **options: Any) -> Store:
                medium = self.medium(folder)
                database = stack.enter_context(closing(Database(folder / "ledger.db", TABLES)))
                store = Store(medium, database, url=f"test:{folder}", now=clock.now, **options)
                return stack.enter_context(closing(store))

            yield make

    @pytest.fixture
    def store(self, make: Make) -> Store:
        return make()

    # --- store and get ----------------------------------------------------------------------

    @pytest.mark.parametrize("shape", PAYLOADS)
    def test_a_table_comes_back_as_it_was(self, store: Store, shape: str) -> None:
        metadata = {"job": "j", "n": 1, "tags": ["ü", None], "deep": {"x": 0.5}}
        assert store.store("k", PAYLOADS[shape]) == "k"
        store.store("own", SplitPayload(PAYLOADS[shape], "split-7", metadata))
        for key, split_id, kept in (("k", "k", {}), ("own", "split-7", metadata)):
            stored = payload(store, key)
            assert_same(stored.data, PAYLOADS[shape])
            assert (stored.split_id, stored.metadata) == (split_id, kept)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
    @pytest.mark.parametrize("shape", PAYLOADS)
    def test_stream_bytes_come_back_as_a_payload(
        self, store: Store, shape: str, kind: Callable[[bytes], bytes]
    ) -> None:
        store.store("k", kind(as_stream(PAYLOADS[shape])))
        assert_same(payload(store, "k").data, PAYLOADS[shape])

    @pytest.mark.parametrize("shape", PAYLOADS)
    def test_file_bytes_come_back_as_a_payload(self, store: Store, shape: str) -> None:
        table = PAYLOADS[shape].unify_dictionaries()  # a file has one dictionary for a column
        store.store("k", as_file(table))
        assert_same(payload(store, "k").data, table)

    def test_what_was_not_stored_is_none(self, store: Store) -> None:
        store.store("a/b", numbers(1))
        for key in ("a", "a/c", "A/b", "b"):
            assert store.get(key) is None

    def test_a_payload_that_was_handed_out_stays_readable(self, store: Store) -> None:
        store.store("k", numbers(1_000))
        stored = payload(store, "k")
        store.store("k", numbers(10))
        store.delete("k")
        assert_same(stored.data, numbers(1_000))

    @pytest.mark.parametrize("meanwhile", ["replaced", "deleted"])
    def test_a_payload_that_moves_on_while_it_is_read_is_not_lost(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, meanwhile: str
    ) -> None:
        store.store("k", numbers(3))
        opened = store.open

        def late(name: str, **written: Any) -> OpenPart:
            monkeypatch.undo()
            if meanwhile == "replaced":
                store.store("k", numbers(7))
            else:
                store.delete("k")
            return opened(name, **written)

        monkeypatch.setattr(store, "open", late)
        stored = store.get("k")
        assert (stored.data.num_rows if stored else None) == (7 if meanwhile == "replaced" else None)

    def test_a_full_ledger_keeps_the_old_payload(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """And no bytes of the new one."""
        store.store("k", numbers(3))

        def full(database: Database, change: object) -> NoReturn:
            raise StoreFull("no room on the disk for the ledger")

        with monkeypatch.context() as patch:
            patch.setattr(Database, "run", full)
            with pytest.raises(StoreFull):
                store.store("k", numbers(7))
        assert_same(payload(store, "k").data, numbers(3))
        assert store.orphans() == []
        assert len(list(store.medium.names())) == 1

    # --- what may not be stored -------------------------------------------------------------

    @pytest.mark.parametrize("value", [None, 7, "text", [1], {"a": [1]}, numbers(1).to_batches()[0], numbers(1).schema])
    def test_something_else_is_no_payload(self, store: Store, value: Any) -> None:
        with pytest.raises(InvalidRequest, match="a payload is a SplitPayload, Arrow IPC bytes or a"):
            store.store("k", value)
        self.holds_nothing(store)

    @pytest.mark.parametrize("junk", [b"", b"A", b"ARROW1", b"ARROW1\0\0", b"\xff" * 100, b"\0" * 64, b"PAR1" * 20])
    def test_bytes_that_are_no_arrow_are_refused(self, store: Store, junk: bytes) -> None:
        with pytest.raises(InvalidRequest, match="expected bytes of an Arrow IPC stream or file"):
            store.store("k", junk)
        self.holds_nothing(store)

    @pytest.mark.parametrize("encode", [as_stream, as_file])
    def test_damaged_bytes_are_refused_or_a_valid_table(
        self, store: Store, encode: Callable[[pa.Table], bytes]
    ) -> None:
        chance, raw = random.Random(5), encode(SHAPES["nested"])
        for _ in range(200):
            bad = bytearray(raw)
            for _ in range(chance.randrange(1, 4)):
                bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
            try:
                store.store("k", bytes(bad[: chance.choice([len(bad), chance.randrange(len(bad))])]))
            except InvalidRequest:
                continue
            payload(store, "k").data.validate(full=True)

    def test_a_table_that_is_not_valid_is_refused(self, store: Store) -> None:
        offsets = pa.array([0, 2], pa.int32()).buffers()[1]
        broken = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
        with pytest.raises(InvalidRequest, match="isn't a valid table"):
            store.store("k", pa.table({"a": broken}))
        self.holds_nothing(store)

    @pytest.mark.parametrize(("split_id", "metadata"), [("s", {"x": {1}}), ("s", {"x": b"y"}), (7, {}), ("\ud800", {})])
    def test_metadata_that_json_cannot_hold_is_refused(self, store: Store, split_id: Any, metadata: Any) -> None:
        """Before a byte is kept."""
        with pytest.raises(InvalidRequest, match="metadata that JSON can't hold"):
            store.store("k", SplitPayload(numbers(1), split_id, metadata))
        self.holds_nothing(store)

    def test_a_nasty_key_is_refused_by_every_verb(self, store: Store) -> None:
        for key in NASTY:
            for verb in (lambda key: store.store(key, numbers(1)), store.get, store.delete):
                with pytest.raises(InvalidRequest, match="key"):
                    verb(key)
        self.holds_nothing(store)

    def holds_nothing(self, store: Store) -> None:
        assert store.keys() == []
        assert list(store.medium.names()) == []
        assert store.used == 0

    # --- delete, clear, keys ----------------------------------------------------------------

    def test_delete_removes_one_payload_and_returns_whether(self, store: Store) -> None:
        store.store("a", numbers(1))
        store.store("b", numbers(2))
        assert store.delete("a")
        assert not store.delete("a")
        assert store.get("a") is None
        assert store.keys() == ["b"]
        assert len(list(store.medium.names())) == 1

    def test_clear_forgets_all_and_counts_them(self, store: Store) -> None:
        for key in "abc":
            store.store(key, numbers(10))
        assert store.clear() == 3
        assert store.clear() == 0
        self.holds_nothing(store)

    def test_keys_are_in_order_and_may_be_asked_for_by_prefix(self, store: Store) -> None:
        for key in ("b", "a/2", "a/1/y", "a_1", "A/1", "a/1/x"):
            store.store(key, numbers(1))
        assert store.keys() == ["A/1", "a/1/x", "a/1/y", "a/2", "a_1", "b"]
        assert store.keys("a/") == ["a/1/x", "a/1/y", "a/2"]
        assert store.keys("a_") == ["a_1"]
        assert store.keys("%") == []

    # --- time to live -----------------------------------------------------------------------

    def test_a_payload_is_gone_when_its_time_is_over(self, store: Store, clock: Clock) -> None:
        store.store("short", numbers(1), ttl=10)
        store.store("long", numbers(1))
        clock.advance(9.9)
        assert store.get("short") is not None
        clock.advance(0.1)
        assert store.get("short") is None
        assert store.keys() == ["long"]
        assert not store.delete("short")

    def test_the_sweep_frees_what_is_past_its_time_and_nothing_else(self, store: Store, clock: Clock) -> None:
        for key, ttl in (("a", 1.0), ("b", 2.0), ("c", None)):
            store.store(key, numbers(100), ttl=ttl)
        clock.advance(1)
        before = store.used
        assert store.sweep() == 1
        assert store.sweep() == 0
        assert store.used < before
        assert store.keys() == ["b", "c"]
        assert len(list(store.medium.names())) == 2

    # --- quota ------------------------------------------------------------------------------

    def test_what_does_not_fit_is_refused_and_what_is_there_stays(self, make: Make) -> None:
        store = make(quota=40_000)
        store.store("a", numbers(500))
        with pytest.raises(StoreFull, match=r"of 40,000 bytes in use.*a dead one too") as full:
            store.store("b", numbers(5_000))
        assert full.value.retry_after == 5
        assert store.keys() == ["a"]
        assert_same(payload(store, "a").data, numbers(500))
        assert len(list(store.medium.names())) == 1

    def test_the_quota_holds_for_parts_too(self, make: Make) -> None:
        store = make(quota=1_000)
        with pytest.raises(StoreFull):
            store.write("p1", numbers(1_000).schema, numbers(1_000).to_batches(), path="store/a")
        assert store.used == 0
        assert list(store.medium.names()) == []

    def test_the_quota_counts_the_schemas_of_payloads(self, make: Make) -> None:
        store, wide = make(quota=200_000), pa.schema([(f"column {n}", pa.int64()) for n in range(1_000)])
        new = [NewPayload.of(f"{n}", wide, wide.empty_table().to_batches(), path=f"store/{n}") for n in range(10)]
        for keep in (store.keep_together, lambda some: [store.keep(each) for each in some]):
            with pytest.raises(StoreFull, match="of 200,000 bytes in use"):
                keep(new)
            assert store.used <= 200_000
        assert sum(size for _, size in store.medium.names()) <= 200_000

    # --- parts by name ----------------------------------------------------------------------

    @pytest.mark.parametrize("shape", SHAPES)
    def test_a_part_is_kept_under_its_name(self, store: Store, shape: str) -> None:
        table = SHAPES[shape]
        kept = store.write("0" * 32 + "-part-000001", table.schema, table.to_batches(), path="store/a")
        part = store.open(kept.name)
        assert (kept.rows, part.rows) == (table.num_rows, table.num_rows)
        assert part.schema.equals(table.schema, check_metadata=True)
        for _ in range(2):
            assert_same(part.reader().read_all(), table)
        assert_same(self.raw(store, kept.name), table)

    def test_a_part_is_read_by_columns_in_the_order_given(self, store: Store) -> None:
        table = pa.table({"a": [1, 2], "b": pa.array(["x", "y"]).dictionary_encode(), "c": [[1], []]})
        store.write("p", table.schema, table.to_batches(), path="store/a")
        for columns in (["a"], ["c", "a"], ["b"], ["c", "b", "a"], []):
            assert_same(store.open("p").reader(columns).read_all(), table.select(columns))

    def test_a_part_left_over_under_a_name_is_replaced(self, store: Store) -> None:
        store.write("p", numbers(100).schema, numbers(100).to_batches(), path="store/a")
        store.write("p", numbers(7).schema, numbers(7).to_batches(), path="store/a")
        assert_same(store.open("p").reader().read_all(), numbers(7))
        assert len(list(store.medium.names())) == 1
        store.discard(["p"])
        assert store.used == 0

    def test_a_part_that_was_discarded_is_lost_by_its_name(self, store: Store) -> None:
        store.write("some-part", numbers(1).schema, numbers(1).to_batches(), path="store/a")
        reader = store.open("some-part").reader()
        store.discard(["some-part", "some-part", "never-there"])
        with pytest.raises(Lost, match="part some-part is lost"):
            store.open("some-part")
        assert_same(reader.read_all(), numbers(1))
        self.holds_nothing(store)

    def test_a_payload_without_bytes_is_lost_and_not_absent(self, store: Store) -> None:
        store.store("a/b", numbers(1))
        for name, _ in list(store.medium.names()):
            store.medium.delete(name)
        with pytest.raises(Lost, match="the payload a/b is lost"):
            store.get("a/b")
        assert store.keys() == ["a/b"]
        assert store.delete("a/b")
        assert store.get("a/b") is None

    def test_orphans_are_the_parts_that_nobody_names(self, store: Store) -> None:
        store.store("k", numbers(1))
        for name in ("known", "lost-1", "lost-2"):
            store.write(name, numbers(1).schema, numbers(1).to_batches(), path="store/a")
        assert sorted(store.orphans(["known"])) == ["lost-1", "lost-2"]
        store.discard(store.orphans(["known"]))
        assert store.orphans(["known"]) == []
        assert store.get("k") is not None
        assert_same(store.open("known").reader().read_all(), numbers(1))

    def test_a_part_whose_rows_fail_to_come_is_not_kept(self, store: Store) -> None:
        def rows() -> Iterator[pa.RecordBatch]:
            yield from numbers(10).to_batches()
            raise RuntimeError("the rows end here")

        with pytest.raises(RuntimeError, match="end here"):
            store.medium.write("p", numbers(0).schema, rows())
        self.holds_nothing(store)
        with pytest.raises(Lost):
            store.open("p")

    def test_the_digest_tells_parts_apart(self, store: Store) -> None:
        digests = [
            store.write(f"p{n}", numbers(n).schema, numbers(n).to_batches(), path="store/a").digest for n in range(5)
        ]
        assert len(set(digests)) == 5

    # --- threads, values --------------------------------------------------------------------

    def test_threads_see_whole_payloads_or_none(self, store: Store) -> None:
        barrier = threading.Barrier(4)

        def work(me: int) -> None:
            chance = random.Random(me)
            barrier.wait(10)
            for _ in range(40):
                key, rows = f"k{chance.randrange(3)}", chance.randrange(300)
                if chance.random() < 0.2:
                    store.delete(key)
                elif chance.random() < 0.5:
                    store.store(key, SplitPayload(numbers(rows), str(rows)))
                elif stored := store.get(key):
                    assert_same(stored.data, numbers(int(stored.split_id)))

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, me) for me in range(4)]:
                done.result(60)
        assert store.orphans() == []
        assert len(list(store.medium.names())) == len(store.keys())
        store.clear()
        self.holds_nothing(store)

    def test_a_store_prints_as_its_url_and_has_equality(self, store: Store) -> None:
        assert repr(store) == f"SplitPayloadStore({store.url!r})"
        assert store == store  # noqa: PLR0124
        assert store != store.url
        assert len({store, store}) == 1
