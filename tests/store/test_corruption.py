"""Bytes that changed at rest are found on reading, named, set aside, and never served."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import store as stores
from penstock.errors import Lost
from penstock.store.disk import DiskMedium
from penstock.store.payloads import Store
from tests.kit.rows import assert_same, numbers


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = stores.open(f"disk:{tmp_path / 'store'}")
    yield opened
    opened.close()


def part_file(store: Store, name: str) -> Path:
    assert isinstance(store.medium, DiskMedium)
    return store.medium._path_of(name)


def quarantined_file(store: Store, name: str) -> Path:
    assert isinstance(store.medium, DiskMedium)
    return store.medium.folder / "quarantine" / name


def only_part(store: Store) -> str:
    ((name, _),) = store.medium.names()
    return name


def overwrite(path: Path, raw: bytes) -> None:
    """Change a file in place, as another process would; its time of change moves on."""
    before = path.stat().st_mtime_ns
    while path.stat().st_mtime_ns == before:  # the kernel's clock for files moves every few milliseconds
        with path.open("r+b") as file:
            file.truncate(0)
            file.write(raw)


def flipped(raw: bytes, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def assert_damage_is_found(store: Store, name: str, damaged: bytes) -> None:
    """Check that reads name the loss, and that the bytes are in quarantine as they are."""
    with pytest.raises(Lost, match=f"the payload k is lost: part {name} is lost: .* It is kept in quarantine"):
        store.get("k")
    assert not part_file(store, name).exists()
    assert quarantined_file(store, name).read_bytes() == damaged
    with pytest.raises(Lost, match="was found corrupt and is kept in quarantine"):
        store.get("k")


@pytest.mark.parametrize(
    "damage", ["the first byte", "the last byte", "emptied", "a byte more", "zeros", "another part's bytes, cut"]
)
def test_damage_is_found_and_set_aside(store: Store, damage: str) -> None:
    store.store("k", numbers(100))
    name = only_part(store)
    whole = part_file(store, name).read_bytes()
    damaged = {
        "the first byte": flipped(whole, 0),
        "the last byte": flipped(whole, len(whole) * 8 - 1),
        "emptied": b"",
        "a byte more": whole + b"\0",
        "zeros": bytes(len(whole)),
        "another part's bytes, cut": (whole * 2)[: len(whole) + 100],
    }[damage]
    part_file(store, name).write_bytes(damaged)
    assert_damage_is_found(store, name, damaged)


def test_a_payload_with_other_rows_under_its_name_is_lost(store: Store) -> None:
    store.store("k", numbers(10_000))
    name = only_part(store)
    for table, path in ((numbers(9_999), "k"), (numbers(10_000)[::-1], "k"), (numbers(10_000), "other")):
        part_file(store, name).unlink()
        store.write(name, table.schema, table.to_batches(), path=path)
        with pytest.raises(Lost, match=f"the payload k is lost: part {name} is lost: its file (has|was written for)"):
            store.get("k")


def test_quarantined_parts_are_named_and_never_deleted(store: Store) -> None:
    for key, ttl in (("a", None), ("b", 0.0), ("c", None)):
        store.store(key, numbers(10), ttl=ttl)
    names = [name for name, _ in store.medium.names()]
    for name in names:
        path = part_file(store, name)
        path.write_bytes(flipped(path.read_bytes(), 999))
        with pytest.raises(Lost):
            store.open(name)
    assert isinstance(store.medium, DiskMedium)
    assert store.medium.quarantined() == sorted(names)
    assert list(store.medium.names()) == []
    assert store.orphans() == []
    assert store.delete("a")
    assert store.sweep() == 1
    assert store.clear() == 1
    store.discard(names)
    assert store.medium.quarantined() == sorted(names)
    assert store.used == 0


def test_a_quarantine_that_was_moved_away_is_made_anew(store: Store, tmp_path: Path) -> None:
    store.store("k", numbers(10))
    name = only_part(store)
    assert isinstance(store.medium, DiskMedium)
    (store.medium.folder / "quarantine").rename(tmp_path / "looked-into")
    assert store.medium.quarantined() == []
    part_file(store, name).write_bytes(b"rot")
    with pytest.raises(Lost, match="kept in quarantine"):
        store.open(name)
    assert store.medium.quarantined() == [name]


def test_a_key_of_quarantined_bytes_may_be_stored_again(store: Store) -> None:
    store.store("k", numbers(100))
    name = only_part(store)
    part_file(store, name).write_bytes(flipped(part_file(store, name).read_bytes(), 77))
    with pytest.raises(Lost):
        store.get("k")
    store.store("k", numbers(3))
    payload = store.get("k")
    assert payload is not None
    assert_same(payload.data, numbers(3))
    assert quarantined_file(store, name).exists()


@pytest.mark.parametrize("bit", [0, 1_000, 5_000, -1])
def test_a_mapped_part_is_checked_again_when_its_file_changes(store: Store, bit: int) -> None:
    store.store("k", numbers(100))
    assert store.get("k") is not None
    name = only_part(store)
    whole = part_file(store, name).read_bytes()
    damaged = flipped(whole, bit % (len(whole) * 8))
    overwrite(part_file(store, name), damaged)
    assert_damage_is_found(store, name, damaged)


def test_a_file_that_replaced_a_mapped_one_is_checked(store: Store, tmp_path: Path) -> None:
    store.store("k", numbers(100))
    assert store.get("k") is not None
    name = only_part(store)
    path, other = part_file(store, name), tmp_path / "other"
    shutil.copy2(path, other)  # the same size and times
    damaged = flipped(path.read_bytes(), 4_321)
    times = path.stat()
    other.write_bytes(damaged)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(other, path)
    assert_damage_is_found(store, name, damaged)


def test_a_mapped_part_whose_file_is_gone_is_lost(store: Store) -> None:
    store.store("k", numbers(100))
    payload = store.get("k")
    part_file(store, only_part(store)).unlink()
    with pytest.raises(Lost, match="its file is gone from the store"):
        store.get("k")
    assert payload is not None
    assert_same(payload.data, numbers(100))


def test_two_readers_that_find_the_same_damage_both_name_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.store("k", numbers(100))
    name = only_part(store)
    damaged = flipped(part_file(store, name).read_bytes(), 123)
    part_file(store, name).write_bytes(damaged)
    rename = os.rename

    def rename_twice(old: Path, new: Path) -> None:
        rename(old, new)  # the other reader
        rename(old, new)

    monkeypatch.setattr(os, "rename", rename_twice)
    assert_damage_is_found(store, name, damaged)


def test_damage_is_named_if_quarantine_is_not_writable(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.store("k", numbers(100))
    name = only_part(store)
    path = part_file(store, name)
    path.write_bytes(flipped(path.read_bytes(), 123))

    def read_only(*_: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "rename", read_only)
    for _ in range(2):
        with pytest.raises(Lost, match="kept in its place, as quarantine/ can't be written to"):
            store.get("k")
    assert path.exists()
