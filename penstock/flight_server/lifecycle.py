"""A server's life: one data folder, one process; it starts with what the ledger says, and drains before it ends."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import secrets
import signal
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from penstock.errors import Internal, InvalidRequest, Unavailable
from penstock.flight_server.config import Settings
from penstock.flight_server.http import HttpDoor
from penstock.flight_server.server import PenstockServer
from penstock.ledger.ledger import Ledger
from penstock.ledger.sweep import free, recover
from penstock.ledger.tables import TABLES
from penstock.queue.topics import journal
from penstock.queue.topics.retention import drop_lost
from penstock.store.database import Database
from penstock.store.disk import DiskMedium
from penstock.store.open import open_medium
from penstock.store.payloads import TABLES as PAYLOAD_TABLES
from penstock.store.payloads import SplitPayloadStore

log = logging.getLogger("penstock")
THREAD_STACK = 1 << 20
"""Bytes of stack for a call's thread. At the usual 8 MB, 100 idle puts used up a --memory-limit of 1,000 MB; at 1 MB,
300 took 432."""
_LOOK_UP = 0.5
"""Seconds between looks for a signal: one that another thread gets doesn't wake a main thread that waits."""
MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""For glibc, which holds what gRPC receives. By default each thread's arena grows and is trimmed again, message by
message: a put of 64 MiB to disk took 13,000 page faults, with these 430."""
CUT = 3
"""Exit code when the drain's deadline cut calls off."""


@contextmanager
def home(settings: Settings) -> Iterator[tuple[Ledger, SplitPayloadStore, bytes]]:
    """A data folder's ledger, store and ticket key, for this process alone.

    1. The lock. 2. The ledger and the store. 3. Bytes that no row names are removed, as nobody can put yet; what
    was retired is freed.
    """
    folder = settings.data
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder):  # 1.
        medium = open_medium(settings.store, folder)
        database = Database(folder / "ledger.db", TABLES, journal.TABLES, PAYLOAD_TABLES)  # 2.
        ledger = Ledger(
            database, {"topic": journal}, incarnation=medium.incarnation, most_paths=settings.limits.datasets
        )
        store = SplitPayloadStore(medium, database, url=settings.store, quota=settings.quota)
        try:
            key = _ticket_key(folder)
            if isinstance(medium, DiskMedium):
                _claim(medium, store, ledger)
                medium.drop_temporaries(before=float("inf"))
            drop_lost(ledger)
            found = recover(ledger, store) + free(ledger, store)  # 3.
            if found:
                log.info("removed %d parts that no dataset has", found)
            yield ledger, store, key
        finally:
            store.close()
            ledger.close()


def _claim(medium: DiskMedium, store: SplitPayloadStore, ledger: Ledger) -> None:
    """See that the store is this ledger's: what another ledger names would look like orphans here, and be deleted.

    An empty store that has no name yet 1. gets one in the ledger, 2. and then has it. After a crash in between it is as
    before, and gets another.
    """
    file = medium.folder / "owner"
    if not file.exists() and not store.used:
        name = uuid.uuid4().hex
        ledger.own(name)  # 1.
        draft = file.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_text(name)
        os.rename(draft, file)  # 2.
    if not file.exists() or not ledger.owns(file.read_text()):
        raise InvalidRequest(
            f"the store {medium!r} belongs to another data folder, or the ledger that knows its parts is gone: start "
            f"with its own folder (--data), restore {ledger.database.path}, or choose another --store"
        )


@contextmanager
def serving(settings: Settings) -> Iterator[PenstockServer]:
    """A running server; leaving the block drains it. For tests and programs that embed one."""
    settings.check()
    with home(settings) as (ledger, store, key):
        server = PenstockServer(settings, ledger, store, key)
        try:
            yield server
        finally:
            server.close(settings.drain)


def lean_memory() -> None:
    """Start this process again with small thread stacks and MALLOC, which glibc looks at when a program starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    unset = {name: value for name, value in MALLOC.items() if name not in os.environ}
    os.environ.update(unset)
    if unset or soft == resource.RLIM_INFINITY or soft > THREAD_STACK:
        resource.setrlimit(resource.RLIMIT_STACK, (THREAD_STACK, hard))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # no shell is wanted


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, then drain; the process's exit code."""
    settings.check()
    if settings.memory_limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (settings.memory_limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # a system whose own most is less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    stop = _stop_signal()
    with home(settings) as (ledger, store, key):
        server = PenstockServer(settings, ledger, store, key)
        http = None
        try:
            if settings.http is not None:
                http = HttpDoor(
                    *settings.http_address(), ready=lambda: not server.streams.closed, metrics=server.metrics.text
                )
                http.start()
            _announce(settings, server, http)
            while not stop.wait(_LOOK_UP):
                pass
            log.info("draining: %d calls are open, they have %g s", server.streams.open_streams, settings.drain)
        finally:
            left = server.close(settings.drain)
            if http is not None:
                http.close()
    if left:
        log.error("%d calls were cut by the drain's deadline of %g s", left, settings.drain)
        logging.shutdown()
        os._exit(CUT)  # their threads wait inside gRPC, which has no deadline of its own
    return 0


def _stop_signal() -> threading.Event:
    """Set by the first SIGTERM or SIGINT; the second one ends the process at once."""
    stop = threading.Event()

    def asked(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, asked)
    return stop


def _announce(settings: Settings, server: PenstockServer, http: HttpDoor | None) -> None:
    lines = [
        f"penstock serves {server.url or settings.listen}",
        f"  data  {settings.data}",
        f"  store {settings.store}",
    ]
    if http is not None:
        lines.append(f"  http  {settings.http_address()[0]}:{http.port}  /healthz /readyz /metrics")
    if settings.token_file is None:
        lines.append("  open to every user of this machine (--token-file asks for a token)")
    sys.stderr.write("\n".join([*lines, "  Ctrl-C drains and stops", ""]))
    sys.stderr.flush()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """This process has the folder; the lock goes with the process, however it ends."""
    with open(folder / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise Unavailable(
                f"the data folder {folder} is in use by another penstock server (process {owner}): stop that one, or "
                "choose another folder with --data"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _ticket_key(folder: Path) -> bytes:
    """The key that signs tickets, kept beside the ledger: a restart kills no running task."""
    path = folder / "key"
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) != 32:
            raise Internal(f"{path} has {len(key)} bytes instead of 32: delete it, and tickets given out end") from None
        return key
    with os.fdopen(fd, "wb") as file:
        file.write(key := secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    return key
