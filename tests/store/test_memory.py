"""The memory store fulfils the contract, within its bound and beyond it, and ends with the process."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import store as stores
from penstock.errors import InvalidRequest, Lost, StoreFull
from penstock.rows.slices import size_of_stream
from penstock.store.disk import DiskMedium
from penstock.store.medium import Medium
from penstock.store.memory import MemoryMedium
from penstock.store.payloads import Store
from tests.kit.rows import assert_same, numbers
from tests.kit.store_contract import Make, StoreContract


class TestMemoryStore(StoreContract):
    def medium(self, folder: Path) -> Medium:
        return MemoryMedium(folder, max_bytes=1 << 30)

    def raw(self, store: Store, name: str) -> pa.Table:
        assert isinstance(store.medium, MemoryMedium)
        return store.medium._parts[name].table

    def test_nothing_is_written_to_disk(self, store: Store, tmp_path: Path) -> None:
        store.store("k", numbers(1_000))
        assert not [path for path in (tmp_path / "parts").rglob("*") if path.is_file()]

    def test_payloads_of_another_process_are_lost_by_name(self, make: Make) -> None:
        first = make()
        first.store("k", numbers(1))
        second = make()
        assert second.medium.incarnation != first.medium.incarnation
        with pytest.raises(Lost, match=r"the payload k is lost: .* in the memory of a server that has stopped"):
            second.get("k")
        assert second != first


class TestSpillingMemoryStore(TestMemoryStore):
    """A memory store so small that nearly all parts are spilled to the disk."""

    def medium(self, folder: Path) -> Medium:
        return MemoryMedium(folder, max_bytes=64)

    def raw(self, store: Store, name: str) -> pa.Table:
        assert isinstance(store.medium, MemoryMedium)
        if name in store.medium._parts:
            return store.medium._parts[name].table
        return pa.ipc.open_stream((store.medium._spill._path_of(name)).read_bytes()).read_all()

    def test_nothing_is_written_to_disk(self, store: Store, tmp_path: Path) -> None:
        store.store("k", numbers(1_000))
        assert [path for path in (tmp_path / "parts").rglob("*") if path.is_file()]

    def test_spilled_parts_are_removed_on_close(self, store: Store, tmp_path: Path) -> None:
        store.store("k", numbers(1_000))
        store.close()
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != tmp_path.name]

    def test_parts_spilled_by_a_killed_process_are_removed(self, tmp_path: Path) -> None:
        DiskMedium(tmp_path).write("left-over", numbers(9).schema, numbers(9).to_batches())
        assert list(MemoryMedium(tmp_path, max_bytes=64).names()) == []


def test_memory_is_used_up_to_its_bound(tmp_path: Path) -> None:
    """A delete makes room again."""
    table = numbers(100)
    medium = MemoryMedium(tmp_path, max_bytes=2 * (size_of_stream(table.schema, table.to_batches()) + 8))
    for _ in range(3):
        for name in ("a", "b", "c"):
            medium.write(name, table.schema, table.to_batches())
        assert set(medium._parts) == {"a", "b"}
        assert [name for name, _ in medium._spill.names()] == ["c"]
        for name in ("a", "b", "c"):
            assert_same(medium.open(name).reader().read_all(), table)
            medium.delete(name)
    assert medium._bytes == 0
    assert list(medium.names()) == []


def test_a_part_written_again_takes_its_room_once(tmp_path: Path) -> None:
    table = numbers(100)
    medium = MemoryMedium(tmp_path, max_bytes=size_of_stream(table.schema, table.to_batches()) + 8)  # and its end
    for rows in (100, 50, 100):
        medium.write("a", table.schema, table.slice(0, rows).to_batches())
        assert set(medium._parts) == {"a"}
    medium.write("a", table.schema, numbers(1_000).to_batches())
    assert_same(medium.open("a").reader().read_all(), numbers(1_000))


def test_a_memory_store_is_opened_by_url() -> None:
    with_bound, plain = stores.open("memory:?max=1MiB"), stores.open("memory:")
    for store in (with_bound, plain):
        store.store("k", numbers(10_000))
        payload = store.get("k")
        assert payload is not None
        assert_same(payload.data, numbers(10_000))
    assert plain != stores.open("memory:")
    for store in (with_bound, plain):
        store.close()


def test_a_memory_store_is_not_sent_to_another_process() -> None:
    store = stores.open("memory:")
    with pytest.raises(TypeError, match="use disk:"):
        pickle.dumps(store)
    store.close()


def test_the_quota_of_an_opened_store_holds() -> None:
    store = stores.open("memory:", quota=100)
    with pytest.raises(StoreFull):
        store.store("k", numbers(1_000))
    store.close()


@pytest.mark.parametrize(
    "url",
    ["", "disk", "file:/tmp", "s3://bucket", "memory:/tmp", "memory:?min=1", "memory:?max=lots", "disk://host/a",
     "disk:/a?x=1"],
)  # fmt: skip
def test_a_url_that_is_no_store_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a folder is made of it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match=r"store|size"):
        stores.open(url)
    assert list(tmp_path.iterdir()) == []
