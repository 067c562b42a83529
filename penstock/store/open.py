"""Open a store by its URL: `disk:/var/lib/penstock`, `memory:`, `memory:?max=2GiB`, `ray:`."""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import InvalidRequest, Unavailable
from penstock.store.database import Database
from penstock.store.disk import DiskMedium
from penstock.store.medium import Medium
from penstock.store.memory import MemoryMedium
from penstock.store.payload_table import TABLES
from penstock.store.payloads import ORPHAN_GRACE, Store

_MEMORY = "/dev/shm"  # noqa: S108  # mkdtemp makes a folder of its own there
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def open(url: str, *, quota: int | None = None) -> Store:  # noqa: A001  # as in store.open(url)
    """Open a store outside of a server, with a ledger of its own beside its bytes; `close()` it at the end."""
    scratch = None
    if url.partition(":")[0] in ("memory", "ray"):
        in_memory = url == "ray:" and os.path.isdir(_MEMORY)  # its keys end with its parts, and need no fsync
        scratch = Path(tempfile.mkdtemp(prefix="penstock-", dir=_MEMORY if in_memory else None))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    elif not url.startswith("disk:"):  # before a folder is made
        raise _no_store(url)
    folder = scratch or _folder(url)
    store = _open(url, folder, quota, lambda: open_medium(url, folder))
    long_ago = time.time() - ORPHAN_GRACE
    if isinstance(store.medium, DiskMedium):
        store.medium.drop_temporaries(before=long_ago)
    store.discard(store.orphans(before=long_ago))
    return store


def _open(url: str, folder: Path, quota: int | None, medium: Callable[[], Medium]) -> StandaloneStore:
    lock = _lock(folder)
    try:
        return StandaloneStore(medium(), Database(folder / "ledger.db", TABLES), lock, folder, url=url, quota=quota)
    except BaseException:
        os.close(lock)
        raise


def _attach(url: str, folder: Path, quota: int | None, incarnation: str) -> StandaloneStore:
    """Open the store `ray:` of another process of this host."""
    from penstock.store.ray_objects import RayMedium

    if not folder.is_dir():
        raise Unavailable(f"the keys of this store {url} are on another host, or it is closed: use a server's store")
    return _open(url, folder, quota, lambda: RayMedium.attach(incarnation))


def open_medium(url: str, folder: Path) -> Medium:
    """Open the medium of a URL; `folder` is that of a bare `disk:`, and where memory spills to."""
    if url.startswith("disk:"):
        return DiskMedium(_folder(url, folder))
    if url.startswith("memory:"):
        return MemoryMedium(folder / "spill", max_bytes=_memory_bound(url))
    if url == "ray:":
        from penstock.store.ray_objects import RayMedium

        return RayMedium()
    raise _no_store(url)


def _no_store(url: str) -> InvalidRequest:
    return InvalidRequest(f"store {url!r}: expected disk:, disk:/a/folder, memory:, memory:?max=2GiB or ray:")


class StandaloneStore(Store):
    """A store that owns its ledger; pickles as its URL, one of Ray as the place of its keys and its actor."""

    def __init__(
        self, medium: Medium, database: Database, lock: int, folder: Path, *, url: str, quota: int | None
    ) -> None:
        super().__init__(medium, database, url=url, quota=quota)
        self._folder = folder
        self._unlock = weakref.finalize(self, os.close, lock)

    def __reduce__(self) -> tuple[object, ...]:
        if self.url == "ray:":
            return partial(_attach, self.url, self._folder, self.quota, self.medium.incarnation), ()
        if self.medium.incarnation:
            raise TypeError(f"{self!r} lives in this process's memory and can't be sent to another: use disk:")
        return partial(open, self.url, quota=self.quota), ()

    def close(self) -> None:
        """Close files and memory; payloads on disk stay."""
        super().close()
        self._database.close()
        self._unlock()


def _lock(folder: Path) -> int:
    """Share a folder with the standalone stores of other processes, for as long as the returned descriptor is open."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / "owner").exists() or (folder / "key").exists():  # of its store, of its data folder
        raise InvalidRequest(
            f"the store disk:{folder} is that of a penstock server, which alone knows what its parts are for: open "
            "another folder, or read and write through the server (penstock.connect)"
        )
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Unavailable(f"the folder {folder} is in use by a penstock server: open another folder") from None
    return lock


def parse_bytes(text: str) -> int:
    """Return the bytes of a text such as 512, 64k, 1.5GB or 2GiB."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text.lower())
    if not match:
        raise InvalidRequest(f"size {text!r}: expected a number of bytes such as 512, 64k, 1.5GB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def _folder(url: str, default: Path | None = None) -> Path:
    parsed = urlsplit(url)
    if parsed.netloc or parsed.query:
        raise InvalidRequest(f"store {url!r}: expected disk:/a/folder, with one slash or three")
    if not parsed.path and default is None:
        raise InvalidRequest(f"store {url!r} names no folder: expected disk:/a/folder")
    return Path(unquote(parsed.path)).expanduser().absolute() if parsed.path else (default or Path())


def _memory_bound(url: str) -> int:
    options = dict(parse_qsl(urlsplit(url).query))
    bound = options.pop("max", None)
    if options or urlsplit(url).path:
        raise InvalidRequest(f"store {url!r}: expected memory: or memory:?max=2GiB")
    return parse_bytes(bound) if bound else physical_memory() // 4


def physical_memory() -> int:
    """Return the bytes of RAM in this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
