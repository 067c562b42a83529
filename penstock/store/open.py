"""Open a store by its URL: `disk:/var/lib/penstock`, `memory:`, `memory:?max=2GiB`."""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import tempfile
import time
import weakref
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

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def open(url: str, *, quota: int | None = None) -> Store:  # noqa: A001  # as in store.open(url)
    """Open a store outside of a server, with a ledger of its own beside its bytes; `close()` it at the end."""
    scratch = None
    if url.partition(":")[0] == "memory":
        scratch = Path(tempfile.mkdtemp(prefix="penstock-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    elif not url.startswith("disk:"):  # before a folder is made
        raise _no_store(url)
    folder = scratch or _folder(url)
    lock = _lock(folder)
    try:
        medium = open_medium(url, folder)
        database = Database(folder / "ledger.db", TABLES)
    except BaseException:
        os.close(lock)
        raise
    store = StandaloneStore(medium, database, lock, url=url, quota=quota)
    long_ago = time.time() - ORPHAN_GRACE
    if isinstance(medium, DiskMedium):
        medium.drop_temporaries(before=long_ago)
    store.discard(store.orphans(before=long_ago))
    return store


def open_medium(url: str, folder: Path) -> Medium:
    """Open the medium of a URL; `folder` is that of a bare `disk:`, and where memory spills to."""
    if url.startswith("disk:"):
        return DiskMedium(_folder(url, folder))
    if url.startswith("memory:"):
        return MemoryMedium(folder / "spill", max_bytes=_memory_bound(url))
    raise _no_store(url)


def _no_store(url: str) -> InvalidRequest:
    return InvalidRequest(f"store {url!r}: expected disk:, disk:/a/folder, memory: or memory:?max=2GiB")


class StandaloneStore(Store):
    """A store that owns its ledger; pickles as its URL."""

    def __init__(self, medium: Medium, database: Database, lock: int, *, url: str, quota: int | None) -> None:
        super().__init__(medium, database, url=url, quota=quota)
        self._unlock = weakref.finalize(self, os.close, lock)

    def __reduce__(self) -> tuple[object, ...]:
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
