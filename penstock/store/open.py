"""Open a store by its URL: `disk:/var/lib/penstock`, `memory:`, `memory:?max=2GiB`."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import InvalidRequest
from penstock.store.database import Database
from penstock.store.disk import DiskMedium
from penstock.store.medium import Medium
from penstock.store.memory import MemoryMedium
from penstock.store.payloads import TABLES, SplitPayloadStore

ORPHAN_GRACE = 24 * 3600.0
"""Seconds before a standalone store takes a part without a key for an orphan: another process may be writing it."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def open(url: str, *, quota: int | None = None) -> SplitPayloadStore:  # noqa: A001  # as in store.open(url)
    """Open a store outside of a server, with a ledger of its own beside its bytes; `close()` it at the end."""
    scratch = None
    if url.partition(":")[0] == "memory":
        scratch = Path(tempfile.mkdtemp(prefix="penstock-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    medium = open_medium(url, scratch or Path())
    folder = scratch or _folder(url)
    database = Database(folder / "ledger.db", TABLES)
    store = StandaloneStore(medium, database, url=url, quota=quota)
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
    raise InvalidRequest(f"store {url!r}: expected disk:, disk:/a/folder, memory: or memory:?max=2GiB")


class StandaloneStore(SplitPayloadStore):
    """A store that owns its ledger; pickles as its URL."""

    def __reduce__(self) -> tuple[object, ...]:
        if self.medium.incarnation:
            raise TypeError(f"{self!r} lives in this process's memory and can't be sent to another: use disk:")
        return partial(open, self.url, quota=self.quota), ()

    def close(self) -> None:
        """Close files and memory; payloads on disk stay."""
        super().close()
        self._database.close()


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
