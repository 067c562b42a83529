"""The disk store fulfils the contract; its files are complete or absent, also when the disk is full or fails."""

from __future__ import annotations

import errno
import os
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock import steps
from penstock import store as stores
from penstock.errors import Lost, PenstockError, StoreFull, Unavailable
from penstock.rows.payload import SplitPayload
from penstock.store import disk, payloads
from penstock.store.disk import DiskMedium, FolderSyncs, MappedPart
from penstock.store.medium import Medium, NewPart
from penstock.store.payloads import ORPHAN_GRACE, Store
from penstock.store.records import Label
from tests.kit.clock import Clock
from tests.kit.faults import Crash, crash_at
from tests.kit.rows import PAYLOADS, SHAPES, assert_same, numbers
from tests.kit.store_contract import Make, StoreContract
from tests.kit.wait import eventually


def stored_files(folder: Path) -> list[str]:
    """Return the files of the store, without its ledger."""
    return sorted(
        str(path.relative_to(folder))
        for name in ("parts", "tmp", "quarantine")
        for path in (folder / name).rglob("*")
        if path.is_file()
    )


def assert_stored(store: Store, table: pa.Table) -> None:
    """Check that the store has this table under the key `k`."""
    payload = store.get("k")
    assert payload is not None
    assert_same(payload.data, table)


def together(medium: Medium, *rows: int) -> list[str]:
    """Write parts of so many rows in one file; return their names."""
    label = Label("ledger", "store/a", "", 7)
    new = [NewPart(numbers(count).schema, numbers(count).to_batches(), label) for count in rows]
    return [part.name for part in medium.write_together("ab12", new)]


class TestPartsInOneFile:
    """Parts that were written together are each as whole as one with a file of its own."""

    def test_each_is_read_and_mapped_from_its_range(self, tmp_path: Path) -> None:
        medium = DiskMedium(tmp_path)
        names = together(medium, 1_000, 3, 20_000)
        assert [name for name, _ in medium.names()] == ["ab12"]
        for name, rows in zip(names, (1_000, 3, 20_000), strict=True):
            for part in (medium.open(name), medium.verify(name)):
                assert_same(part.reader().read_all(), numbers(rows))
                fd, start, length = part.descriptor()
                assert_same(pa.ipc.open_stream(os.pread(fd, length, start)).read_all(), numbers(rows))
                os.close(fd)

    def test_they_share_the_fsyncs_of_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        medium, synced, fsync = DiskMedium(tmp_path), list[int](), os.fsync
        together(medium, 1)  # makes the folder

        def count(fd: int) -> None:
            synced.append(fd)
            fsync(fd)

        monkeypatch.setattr(os, "fsync", count)
        together(medium, *range(50))
        assert len(synced) == 2  # the file, and its name's folder

    def test_damage_is_of_one_alone(self, tmp_path: Path) -> None:
        medium = DiskMedium(tmp_path)
        first, second, third = together(medium, 1_000, 1_000, 1_000)
        file = tmp_path / "parts" / "ab" / "ab12"
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        for _ in range(2):
            with pytest.raises(Lost, match=f"part {second} is lost: record 1 .*kept in quarantine"):
                medium.open(second)
        for name in (first, third):
            assert_same(medium.open(name).reader().read_all(), numbers(1_000))
        medium.delete(first)
        assert medium.quarantined() == [second]
        assert (tmp_path / "quarantine" / second).read_bytes() == content

    def test_one_is_never_taken_for_another(self, tmp_path: Path) -> None:
        medium = DiskMedium(tmp_path)
        first, second = together(medium, 10, 10)
        (start, length), before = second.rsplit("-"), first.rsplit("-")[0]
        for wrong in (f"{before}-{length}0", f"{start}0-{length}", "ab12"):
            with pytest.raises(Lost):
                medium.verify(wrong)

    def test_the_file_is_labelled_and_goes_as_one(self, tmp_path: Path) -> None:
        medium = DiskMedium(tmp_path)
        first, second = together(medium, 10, 10)
        medium.open(first), medium.open(second)
        assert (label := medium.label("ab12")) is not None
        assert (label.ledger, label.commits) == ("ledger", 7)
        copies = DiskMedium(tmp_path / "copy")
        copies.copy(second, medium)
        medium.delete(first)
        for name in (first, second):
            with pytest.raises(Lost, match="gone"):
                medium.open(name)
            assert_same(copies.open(name).reader().read_all(), numbers(10))

    @pytest.mark.parametrize(("step", "names"), [("part.synced", []), ("part.named", ["ab12"])])
    def test_a_crash_leaves_the_whole_file_or_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, names: list[str]
    ) -> None:
        medium = DiskMedium(tmp_path)
        monkeypatch.setattr(steps, "passed", crash_at(step))
        with pytest.raises(Crash):
            together(medium, 10, 10)
        assert [name for name, _ in medium.names()] == names


class TestDiskStore(StoreContract):
    def medium(self, folder: Path) -> Medium:
        return DiskMedium(folder)

    def raw(self, store: Store, name: str) -> pa.Table:
        assert isinstance(store.medium, DiskMedium)
        return pa.ipc.open_stream(store.medium._path_of(name).read_bytes()).read_all()

    @pytest.mark.parametrize("shape", PAYLOADS)
    def test_payloads_outlive_the_process(self, make: Make, shape: str) -> None:
        first = make()
        first.store("a/b", SplitPayload(PAYLOADS[shape], "split-7", {"n": 1}), ttl=60)
        first.close()
        second = make()
        payload = second.get("a/b")
        assert payload is not None
        assert_same(payload.data, PAYLOADS[shape])
        assert (payload.split_id, payload.metadata, second.keys()) == ("split-7", {"n": 1}, ["a/b"])
        assert second.used > 0
        assert second.orphans() == []

    def test_time_goes_on_while_the_store_is_closed(self, make: Make, clock: Clock) -> None:
        make().store("k", numbers(1), ttl=60)
        clock.advance(60)
        store = make()
        assert store.get("k") is None
        assert store.sweep() == 1
        self.holds_nothing(store)

    def test_a_key_never_becomes_a_file_name(self, store: Store, tmp_path: Path) -> None:
        store.store("secret/name=of.a-key", numbers(1))
        assert "secret" not in " ".join(stored_files(tmp_path))

    def test_only_the_owner_may_read_files_and_folders(self, store: Store, tmp_path: Path) -> None:
        store.store("k", numbers(1))
        for path in tmp_path.rglob("*"):
            if not path.name.startswith("ledger.db-"):
                assert path.stat().st_mode & 0o077 == 0, path

    def test_the_descriptor_of_a_part_is_read_only(self, store: Store) -> None:
        store.write("p", numbers(1_000).schema, numbers(1_000).to_batches(), path="store/a")
        descriptor = store.open("p").descriptor()
        assert descriptor is not None
        fd, start, length = descriptor
        try:
            assert_same(pa.ipc.open_stream(os.pread(fd, length, start)).read_all(), numbers(1_000))
            assert os.fstat(fd).st_size > length
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(fd, b"x")
        finally:
            os.close(fd)


# --- durable before it is named ------------------------------------------------------------


def test_bytes_and_then_their_name_are_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are durable before they get their name, and the name before `write` returns."""
    medium = DiskMedium(tmp_path)
    medium.write("aa-first", numbers(1).schema, numbers(1).to_batches())  # makes the folder
    calls: list[str] = []
    for name in ("writev", "fsync", "rename"):
        monkeypatch.setattr(os, name, _recording(calls, name, getattr(os, name)))
    medium.write("aa-part", numbers(10).schema, numbers(10).to_batches())
    last_bytes = max(at for at, call in enumerate(calls) if call == "writev file")
    assert calls[last_bytes + 1 :] == ["fsync file", "rename", "fsync folder"]


def _recording(calls: list[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def record_and_call(first: Any, *rest: Any) -> Any:
        kind = "" if name == "rename" else " folder" if os.path.isdir(f"/proc/self/fd/{first}") else " file"
        calls.append(name + kind)
        return call(first, *rest)

    return record_and_call


@pytest.mark.parametrize("step", ["part.synced", "part.named"])
def test_a_crash_while_a_part_is_written_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = stores.open(f"disk:{tmp_path}")
    store.store("k", numbers(3))

    monkeypatch.setattr(steps, "passed", crash_at(step))
    for key in ("k", "new"):
        with pytest.raises(Crash):
            store.store(key, numbers(100))
    monkeypatch.undo()
    store.close()
    again = stores.open(f"disk:{tmp_path}")
    assert_stored(again, numbers(3))
    assert again.keys() == ["k"]
    again.discard(again.orphans())
    assert len([name for name in stored_files(tmp_path) if name.startswith("parts")]) == 1
    again.close()


def test_old_leftovers_of_a_crash_are_removed_at_a_start(tmp_path: Path) -> None:
    store = stores.open(f"disk:{tmp_path}")
    store.store("k", numbers(5))
    for name in ("old-orphan", "young-orphan"):
        store.write(name, numbers(1).schema, numbers(1).to_batches(), path="store/a")
        (tmp_path / "tmp" / name).write_bytes(b"half a part")
    long_ago = time.time() - ORPHAN_GRACE - 60
    for path in (
        *tmp_path.rglob("old-orphan"),
        *(path for path in (tmp_path / "parts").rglob("*") if path.is_file() and "young" not in path.name),
    ):
        os.utime(path, (long_ago, long_ago))
    store.close()
    again = stores.open(f"disk:{tmp_path}")
    assert again.orphans() == ["young-orphan"]
    assert os.listdir(tmp_path / "tmp") == ["young-orphan"]
    assert_stored(again, numbers(5))
    again.close()


# --- a disk that is full, or fails ---------------------------------------------------------


def _fails(with_errno: int, on: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper that lets the `on`th call fail."""

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        left = on

        def failing(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(with_errno, os.strerror(with_errno))
            return call(*arguments)

        return failing

    return wrap


def _short_then_full(call: Callable[..., int]) -> Callable[..., int]:
    """Wrap `writev` for a disk with room for half a write: the next one fails."""
    is_full = False

    def writev(fd: int, buffers: list[memoryview]) -> int:
        nonlocal is_full
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        is_full = True
        return call(fd, [buffers[0][: max(1, len(buffers[0]) // 2)]])

    return writev


FAULTS: dict[str, tuple[str, Callable[[Callable[..., Any]], Callable[..., Any]], type[PenstockError]]] = {
    "no room at all": ("writev", _fails(errno.ENOSPC), StoreFull),
    "no room for the second record": ("writev", _fails(errno.ENOSPC, on=2), StoreFull),
    "no room after a short write": ("writev", _short_then_full, StoreFull),
    "over the user's quota": ("writev", _fails(errno.EDQUOT), StoreFull),
    "over the limit of a file's size": ("writev", _fails(errno.EFBIG), StoreFull),
    "a write fails": ("writev", _fails(errno.EIO), Unavailable),
    "the last write fails": ("writev", _fails(errno.EIO, on=3), Unavailable),
    "fsync of the file finds no room": ("fsync", _fails(errno.ENOSPC), StoreFull),
    "fsync of the file fails": ("fsync", _fails(errno.EIO), Unavailable),
    "fsync of the folder fails": ("fsync", _fails(errno.EIO, on=2), Unavailable),
    "fsync of the new name's folder fails": ("fsync", _fails(errno.EIO, on=3), Unavailable),
    "the rename fails": ("rename", _fails(errno.EIO), Unavailable),
    "no room for the name": ("rename", _fails(errno.ENOSPC), StoreFull),
    "the file can't be made": ("open", _fails(errno.EMFILE), Unavailable),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_disk_keeps_nothing_and_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(payloads, "_TOGETHER", 1)  # a new folder
    call, wrap, error = FAULTS[fault]
    store = stores.open(f"disk:{tmp_path}")
    store.store("k", numbers(3))
    before, used = stored_files(tmp_path), store.used
    with monkeypatch.context() as patch:
        patch.setattr(os, call, wrap(getattr(os, call)))
        with pytest.raises(error, match="nothing of it was kept") as failed:
            store.store("k", numbers(5_000))
    assert type(failed.value) is error
    assert failed.value.retry_after == 5
    assert stored_files(tmp_path) == before
    assert store.used == used
    assert_stored(store, numbers(3))
    store.store("k", numbers(5_000))
    assert_stored(store, numbers(5_000))
    store.close()


def test_a_nearly_full_disk_takes_no_part_but_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last room is for the ledger, without which nothing could be read or deleted."""
    store = stores.open(f"disk:{tmp_path}")
    store.store("k", numbers(3))
    real = os.statvfs(tmp_path)
    with monkeypatch.context() as patch:
        blocks = (63 << 20) // real.f_frsize, (100 << 30) // real.f_frsize
        disk = SimpleNamespace(f_bavail=blocks[0], f_blocks=blocks[1], f_frsize=real.f_frsize)
        patch.setattr(os, "statvfs", lambda path: disk)
        with pytest.raises(StoreFull, match=r"no room on the disk.*: it has 0,.*penstock rm") as full:
            store.store("j", numbers(3))
        assert full.value.retry_after == 5
        assert_stored(store, numbers(3))
        disk.f_blocks = (6 << 30) // real.f_frsize  # a hundredth of it is less than what is left
        store.store("j", numbers(3))
        assert store.delete("k")
    assert store.keys() == ["j"]
    store.close()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, buffers: writev(fd, [buffers[0][:701]]))
    medium = DiskMedium(tmp_path)
    for shape, table in SHAPES.items():
        if shape != "large":
            medium.write("p", table.schema, table.to_batches())
            assert_same(medium.open("p").reader().read_all(), table)


def test_a_part_that_cannot_be_read_now_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    medium = DiskMedium(tmp_path)
    medium.write("p", numbers(3).schema, numbers(3).to_batches())
    with monkeypatch.context() as patch:
        patch.setattr(pa, "memory_map", _fails(errno.EIO)(pa.memory_map))
        with pytest.raises(Unavailable, match="reading part p"):
            medium.open("p")
    assert_same(medium.open("p").reader().read_all(), numbers(3))


def test_a_part_in_an_unreadable_folder_is_not_lost(tmp_path: Path) -> None:
    medium = DiskMedium(tmp_path)
    (tmp_path / "parts" / "p").write_text("a file where the folder should be: even root gets an error there")
    with pytest.raises(Unavailable, match="reading part p"):
        medium.open("p")


def test_a_part_that_is_deleted_while_it_is_opened_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    medium = DiskMedium(tmp_path)
    medium.write("p", numbers(3).schema, numbers(3).to_batches())
    mapped = MappedPart.__init__

    def too_late(part: MappedPart, name: str, path: str, stamp: tuple[int, int, int]) -> None:
        os.unlink(path)
        mapped(part, name, path, stamp)

    monkeypatch.setattr(MappedPart, "__init__", too_late)
    with pytest.raises(Lost, match="part p is lost"):
        medium.open("p")


# --- the store as a value ------------------------------------------------------------------


def test_a_disk_store_is_sent_to_another_process_as_its_url(tmp_path: Path) -> None:
    store = stores.open(f"disk:{tmp_path}", quota=10**6)
    store.store("k", numbers(7))
    other = pickle.loads(pickle.dumps(store))
    assert other == store
    assert hash(other) == hash(store)
    assert other.quota == 10**6
    assert_stored(other, numbers(7))
    assert store != stores.open(f"disk:{tmp_path}/another")
    for opened in (store, other):
        opened.close()


def test_another_process_sees_replaced_and_deleted_keys(tmp_path: Path) -> None:
    one, other = stores.open(f"disk:{tmp_path}"), stores.open(f"disk:{tmp_path}")
    for rows in (5, 6, 7):
        one.store("k", numbers(rows))
        assert_stored(other, numbers(rows))
    one.delete("k")
    assert other.get("k") is None
    for opened in (one, other):
        opened.close()


def test_names_that_come_during_an_fsync_share_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name is durable when its call returns: the fsync that runs by then may have begun before it was there."""
    syncs, began, go = FolderSyncs(), threading.Semaphore(0), threading.Semaphore(0)
    calls: list[Path] = []

    def fsync(folder: Path) -> None:
        calls.append(folder)
        began.release()
        assert go.acquire(timeout=30)
        if len(calls) == 4:
            raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(disk, "_fsync_folder", fsync)

    def in_turn(number: int) -> list[BaseException | None]:
        """Let one call run, and others come meanwhile; return how those ended."""
        with ThreadPoolExecutor(number + 1) as pool:
            first = pool.submit(syncs.sync, tmp_path)
            assert began.acquire(timeout=30)
            others = [pool.submit(syncs.sync, tmp_path) for _ in range(number)]
            eventually(lambda: len(syncs._changed._waiters) == number)  # type: ignore[attr-defined]
            go.release()
            first.result(30)
            assert began.acquire(timeout=30)
            go.release()
            return [each.exception(30) for each in others]

    assert in_turn(3) == [None] * 3
    assert len(calls) == 2
    assert [type(each) for each in in_turn(2)] == [OSError] * 2  # nobody tries again what has failed
    assert len(calls) == 4


def test_an_fsync_that_failed_is_told_after_a_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter may wake up late, as others are faster."""
    syncs, answers = FolderSyncs(), iter([OSError(errno.EIO, "lost"), None])

    def fsync(folder: Path) -> None:
        if (error := next(answers)) is not None:
            raise error

    monkeypatch.setattr(disk, "_fsync_folder", fsync)
    syncs._begun[tmp_path] = 1
    syncs._running.add(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(syncs.sync, tmp_path)
        eventually(lambda: len(syncs._changed._waiters) == 1)  # type: ignore[attr-defined]
        with syncs._changed:
            syncs._running.clear()
            with pytest.raises(OSError, match="lost"):
                syncs.sync(tmp_path)
            syncs.sync(tmp_path)
        assert isinstance(waiter.exception(30), OSError)


def test_a_part_waits_for_the_name_of_its_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another part has made the folder, and its fsync runs."""
    medium, fsync = DiskMedium(tmp_path), disk._fsync_folder
    began, go = threading.Event(), threading.Event()

    def fsync_late(folder: Path) -> None:
        if folder.name == "parts":
            began.set()
            assert go.wait(30)
        fsync(folder)

    monkeypatch.setattr(disk, "_fsync_folder", fsync_late)
    with ThreadPoolExecutor(2) as pool:
        writes = [pool.submit(medium.write, "aa-1", numbers(1).schema, numbers(1).to_batches())]
        assert began.wait(30)
        writes.append(pool.submit(medium.write, "aa-2", numbers(1).schema, numbers(1).to_batches()))
        waiters = medium._syncs._changed._waiters  # type: ignore[attr-defined]
        eventually(lambda: waiters or writes[1].done())
        is_early = writes[1].done()
        go.set()
        assert [write.result(30).rows for write in writes] == [1, 1]
    assert not is_early
