"""Parts as files, served by memory map. The default."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from penstock import steps
from penstock.errors import Unavailable
from penstock.store import records
from penstock.store.medium import NewPart, Part, Room, disk_error, file_of, lost
from penstock.store.records import Label
from penstock.store.verified_part import VerifiedPart

_T = TypeVar("_T")
_ALIGNED = 64
"""Bytes of which each part in a file begins at a multiple, as Arrow's buffers do."""
_MAPPED = 1_024
"""Checked maps that are kept, at about 8 MiB of address space each; a process may have 65,530. None has a descriptor,
which Python's own `mmap` would keep."""

_SPARED = 64 << 20
"""Bytes of the disk, or its hundredth part if that is less, that are kept free of parts: the ledger needs them for
reads, commits and deletes."""


class FolderSyncs:
    """fsyncs of folders: all who wait for one of a folder share the next that begins. Any thread may call it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # all that follows
        self._running: set[Path] = set()
        self._begun = Counter[Path]()
        self._ended = Counter[Path]()
        """The number of a folder's last fsync that has ended."""
        self._failed: dict[Path, tuple[int, OSError]] = {}
        """The number of a folder's last fsync that failed, and how."""

    def sync(self, folder: Path) -> None:
        """Make the names durable that a folder has by now; OSError for all of them if their fsync fails."""
        with self._changed:
            needed = self._begun[folder] + 1
            while folder in self._running:
                self._changed.wait()
                if self._ended[folder] >= needed:
                    failed = self._failed.get(folder)
                    if failed is not None and failed[0] >= needed:
                        raise failed[1]  # a later fsync might succeed, and not say what this one has lost
                    return
            self._running.add(folder)
            self._begun[folder] = number = self._begun[folder] + 1
        failure: OSError | None = OSError(errno.EIO, "the fsync was broken off")
        try:
            _fsync_folder(folder)
            failure = None
        except OSError as error:
            failure = error
            raise
        finally:
            with self._changed:
                self._running.discard(folder)
                self._ended[folder] = number
                if failure is not None:
                    self._failed[folder] = number, failure
                self._changed.notify_all()


class DiskMedium:
    """A folder of immutable files: `parts/ab/<name>`, `quarantine/` for corrupt ones, `orphans/` for unnamed ones."""

    incarnation = ""

    def __init__(self, folder: Path, *, gone: str = "its file is gone from the store") -> None:
        self.folder = folder
        self._gone = gone
        self._parts = f"{folder}/parts"
        for name in ("parts", "tmp", "quarantine", "orphans"):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._syncs = FolderSyncs()
        self._durable: set[Path] = set()
        """The folders of parts/ whose names this process knows to be durable; a second fsync of one does no harm."""
        self._lock = threading.Lock()  # _open
        self._open: OrderedDict[str, MappedPart] = OrderedDict()

    def __repr__(self) -> str:
        return f"disk:{self.folder}"

    def write(
        self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], label: Label | None = None
    ) -> Part:
        """Keep a part: whole and durable under its name, or not there."""
        written = self._write_file(name, lambda fd: records.write(fd, schema, batches, label))
        return Part(name, written.rows, written.bytes, written.digest)

    def write_together(self, file: str, new: Sequence[NewPart]) -> list[Part]:
        """Keep several parts as `write` does, in one file: they share its fsyncs. Each is whole in its range of it."""
        return self._write_file(file, lambda fd: [_append(fd, file, each) for each in new])

    def _write_file(self, name: str, write: Callable[[int], _T]) -> _T:
        """Make a file with what `write` writes to it, whole and durable under its name, or none.

        1. A temporary file is written and fsynced. An error of fsync loses the file: it is never tried again on it.
        2. It gets its name, in a folder whose own name is durable.
        3. The folder is fsynced, and with it the name.
        """
        temporary, final = self.folder / "tmp" / name, self._path_of(name)
        try:
            fd = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                written = write(fd)
                os.fsync(fd)  # 1. durable, unnamed
            finally:
                os.close(fd)
            steps.passed("part.synced")
            self._make_folder(final.parent)
            os.rename(temporary, final)  # 2. named
            steps.passed("part.named")
            self._syncs.sync(final.parent)  # 3. the name is durable
        except OSError as error:
            temporary.unlink(missing_ok=True)
            final.unlink(missing_ok=True)
            raise disk_error(error, f"writing part {name}") from error
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return written

    def room(self) -> Room:
        """Return the disk's room without what is spared."""
        disk = os.statvfs(self.folder)
        total = disk.f_blocks * disk.f_frsize
        spared = min(_SPARED, total // 100)
        return Room(total - spared, max(0, disk.f_bavail * disk.f_frsize - spared))

    def open(self, name: str) -> MappedPart:
        """Return the part, verified once and again whenever its file has changed."""
        try:
            status = os.stat(self._file_of(name))  # a Path costs more than the call
            stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
            with self._lock:
                part = self._open.get(name)
                if part is not None and part.stamp == stamp:
                    self._open.move_to_end(name)
                    return part
            part = MappedPart(name, self._file_of(name), stamp)
        except FileNotFoundError:  # also where it is deleted between stat and open
            raise lost(name, self._why_gone(name)) from None
        except records.Damaged as damage:
            raise lost(name, f"{damage}. It is kept in {self._quarantine(name)}") from damage
        except OSError as error:
            raise disk_error(error, f"reading part {name}") from error
        with self._lock:
            self._open[name] = part
            if len(self._open) > _MAPPED:
                self._open.popitem(last=False)
        return part

    def verify(self, name: str) -> MappedPart:
        """Return the part, verified once more; Lost if it is gone or corrupt, which changes nothing."""
        try:
            return MappedPart(name, self._file_of(name), (0, 0, 0))
        except FileNotFoundError:
            raise lost(name, self._why_gone(name)) from None
        except records.Damaged as damage:
            raise lost(name, str(damage)) from damage
        except OSError as error:
            raise disk_error(error, f"reading part {name}") from error

    def copy(self, name: str, source: DiskMedium) -> None:
        """Copy a part of another folder, durable under its name when this returns; FileNotFoundError if it is gone.

        Those that are in its file come with it.
        """
        temporary, final = self.folder / "tmp" / file_of(name), self._path_of(name)
        shutil.copyfile(source._path_of(name), temporary)
        fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self._make_folder(final.parent)
        os.rename(temporary, final)
        _fsync_folder(final.parent)

    def missing(self, names: Collection[str]) -> list[str]:
        return []

    def delete(self, name: str) -> None:
        with self._lock:
            self._open.pop(name, None)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file_of(name))
        except OSError as error:
            raise Unavailable(
                f"the disk failed ({error.strerror}) while deleting part {name}", retry_after=5
            ) from error

    def names(self, *, before: float = math.inf) -> Iterator[tuple[str, int]]:
        for folder in os.scandir(self.folder / "parts"):
            for file in os.scandir(folder.path):
                try:
                    status = file.stat()
                except FileNotFoundError:  # deleted meanwhile
                    continue
                if status.st_mtime < before:
                    yield file.name, status.st_size

    def label(self, name: str) -> Label | None:
        try:
            with pa.memory_map(self._file_of(name)) as file:
                return records.read_label(memoryview(file.read_buffer()))
        except (OSError, records.Damaged):  # not whole: a crash cut its write, or it is corrupt
            return None

    def set_aside(self, name: str) -> None:
        try:
            os.rename(self._path_of(name), self.folder / "orphans" / name)
        except OSError as error:
            raise disk_error(error, f"moving part {name} to orphans/") from error

    def drop_set_aside(self, *, before: float) -> int:
        dropped = 0
        with contextlib.suppress(FileNotFoundError):  # somebody moved the folder, or a file, away to look into it
            for file in os.scandir(self.folder / "orphans"):
                if file.stat().st_ctime < before:  # a rename changes it
                    os.unlink(file.path)
                    dropped += 1
        return dropped

    def drop_temporaries(self, *, before: float) -> None:
        """Delete the temporary files last written before this time: their writers are gone."""
        for file in os.scandir(self.folder / "tmp"):
            if file.stat().st_mtime < before:
                os.unlink(file.path)

    def quarantined(self) -> list[str]:
        try:
            return sorted(os.listdir(self.folder / "quarantine"))
        except FileNotFoundError:  # somebody moved the folder away to look into it
            return []

    def close(self) -> None:
        with self._lock:
            self._open.clear()

    def _path_of(self, name: str) -> Path:
        return Path(self._file_of(name))

    def _file_of(self, name: str) -> str:
        return f"{self._parts}/{name[:2]}/{file_of(name)}"

    def _make_folder(self, folder: Path) -> None:
        """Make a folder of parts; its name is durable, whoever has made it."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder not in self._durable:
            self._syncs.sync(folder.parent)
            self._durable.add(folder)

    def _quarantine(self, name: str) -> str:
        """Set a corrupt file aside, where it is never served and never deleted; return where it is."""
        try:
            (self.folder / "quarantine").mkdir(mode=0o700, exist_ok=True)
            if file_of(name) == name:
                os.rename(self._path_of(name), self.folder / "quarantine" / name)
            else:  # others in the file may be whole
                with contextlib.suppress(FileExistsError):
                    os.link(self._path_of(name), self.folder / "quarantine" / name)
            _fsync_folder(self.folder / "quarantine")
        except FileNotFoundError:
            return "quarantine"  # another reader found it too, and was faster
        except OSError as error:
            return f"its place, as quarantine/ can't be written to ({error.strerror})"
        return "quarantine"

    def _why_gone(self, name: str) -> str:
        if (self.folder / "quarantine" / name).exists():
            return "it was found corrupt and is kept in quarantine"
        return self._gone


class MappedPart(VerifiedPart):
    """A part mapped into memory. The pages are the kernel's: they aren't counted as this process's own."""

    def __init__(self, name: str, path: str, stamp: tuple[int, int, int]) -> None:
        self._path = path
        self.stamp = stamp
        with pa.memory_map(path) as file:
            mapped = file.read_buffer()
        if file_of(name) == name:
            self._start = 0
            super().__init__(name, mapped)
        else:
            labelled, _, length = name.rpartition("-")
            self._start = int(labelled.partition(".")[2], 16)
            super().__init__(labelled, mapped[self._start : self._start + int(length, 16)])

    def descriptor(self) -> tuple[int, int, int]:
        return os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), self._start, self.bytes


def _append(fd: int, file: str, new: NewPart) -> Part:
    """Write a part behind those that the file has; its label says where it begins."""
    start = -(-os.lseek(fd, 0, os.SEEK_CUR) // _ALIGNED) * _ALIGNED
    os.lseek(fd, start, os.SEEK_SET)
    name = f"{file}.{start:x}"
    written = records.write(fd, new.schema, new.batches, replace(new.label, name=name))
    length = os.lseek(fd, 0, os.SEEK_CUR) - start
    return Part(f"{name}-{length:x}", written.rows, written.bytes, written.digest)


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without it, such as some network ones
            raise
    finally:
        os.close(fd)
