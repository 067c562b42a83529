"""A server's life: one process has the data folder, recovers what a crash left, serves, and drains before it ends."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import fcntl
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from penstock.errors import Internal, InvalidRequest, Unavailable
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.http import HttpDoor
from penstock.flight_server.server import PenstockServer
from penstock.ledger.ledger import Ledger
from penstock.ledger.loss import check_whole
from penstock.ledger.sweep import recover
from penstock.queue.destinations import DESTINATIONS, TABLES
from penstock.queue.topics.retention import drop_lost
from penstock.queue.work import work_queues
from penstock.store.database import Database
from penstock.store.disk import DiskMedium
from penstock.store.open import open_medium
from penstock.store.payloads import Store

log = logging.getLogger("penstock")
_RETRY = 0.05
"""Seconds between attempts to get what another process still has."""
CUT = 3
"""Exit code if the drain's deadline ended running calls."""


@contextmanager
def data_folder(config: ServerConfig) -> Iterator[tuple[Ledger, Store, bytes]]:
    """Open a data folder's ledger, store and ticket key, for this process alone.

    1. Take the lock. 2. Open the ledger and the store; reject them where something acknowledged is gone. 3. Set the
    parts aside that no row names, as nobody can put yet, and free those that are retired.
    """
    folder = config.data
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as locks:
        locks.enter_context(_locked(folder, config.patience))  # 1.
        medium = open_medium(config.store, folder)
        if isinstance(medium, DiskMedium) and medium.folder != folder:
            locks.enter_context(_locked(medium.folder, config.patience))
        database = Database(folder / "ledger.db", *TABLES, accept_loss=config.accept_loss)  # 2.
        ledger = Ledger(
            database, DESTINATIONS, work_queues, incarnation=medium.incarnation, most_paths=config.limits.datasets
        )
        store = Store(medium, database, url=config.store, quota=config.quota)
        try:
            key = _ticket_key(folder)
            if isinstance(medium, DiskMedium):
                _claim(medium, store, ledger)
                medium.drop_temporaries(before=float("inf"))
            check_whole(ledger, store, accept_loss=config.accept_loss)
            drop_lost(ledger)
            orphans = recover(ledger, store)  # 3.
            if orphans:
                log.info("set aside %d parts that nothing names: orphans/ keeps them for 24 h", orphans)
            yield ledger, store, key
        finally:
            store.close()
            ledger.close()


def _claim(medium: DiskMedium, store: Store, ledger: Ledger) -> None:
    """Reject a store of another ledger: parts that only that one names would be taken for orphans, and deleted.

    An empty store without a name gets one: 1. the ledger notes it, 2. the store's file has it. After a crash in between
    the store is still without a name, and gets another.
    """
    file = medium.folder / "owner"
    if not file.exists() and not store.used and not store.keys():
        name = uuid.uuid4().hex
        ledger.own(name)  # 1.
        draft = file.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_text(name)
        os.rename(draft, file)  # 2.
    if not file.exists() or not ledger.owns(file.read_text()):
        raise InvalidRequest(
            f"the store {medium!r} belongs to another data folder, or the ledger that names its parts is gone: start "
            f"with the store's own folder (--data), restore {ledger.database.path}, or choose another --store"
        )


@contextmanager
def serving(config: ServerConfig) -> Iterator[PenstockServer]:
    """Run a server in this process; leaving the block drains it. For tests and programs that embed one."""
    config.check()
    with data_folder(config) as (ledger, store, key):
        server = PenstockServer(config, ledger, store, key)
        try:
            yield server
        finally:
            server.close(config.drain)


def run(config: ServerConfig, on_listening: Callable[[PenstockServer, HttpDoor | None], None]) -> int:
    """Serve until SIGTERM or SIGINT, then drain; return the process's exit code. A second signal changes nothing.

    SIGHUP has the tokens read again.

    `on_listening` is called once, when clients can connect. Before that a signal ends the process: there is nothing to
    drain, and a start may be cut anywhere.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signals = _signals(reload=config.tokens is not None)
    faulthandler.enable(all_threads=False)  # if native code fails, the log has the Python functions that called it
    config.check()
    if config.memory_limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (config.memory_limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # the system allows fewer than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with data_folder(config) as (ledger, store, key):
        _wait_for_ports(config)
        server = PenstockServer(config, ledger, store, key)
        http = None
        try:
            if config.http is not None:
                http = HttpDoor(*config.http_address(), server.state)
                http.start()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: None)  # with no handler nothing would be written to the pipe
            _announce(config, server, http)
            on_listening(server, http)
            while os.read(signals, 1)[0] == signal.SIGHUP:
                server.state.tokens.reload()
            log.info("draining: %d calls are open, they have %g s", server.state.streams.open_streams, config.drain)
        finally:
            left = server.close(config.drain)
            if http is not None:
                http.close()
    if left:
        log.error("%d calls were cut by the drain's deadline of %g s", left, config.drain)
        logging.shutdown()
        os._exit(CUT)  # their threads wait inside gRPC, which has no deadline of its own
    return 0


def _signals(*, reload: bool) -> int:
    """Return a pipe that gets the number of each handled signal, whichever thread that is delivered to.

    With `reload` SIGHUP is one of them, before the tokens are read for the first time: none of their changes is missed.
    """
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    if reload:
        signal.signal(signal.SIGHUP, lambda *_: None)
    return signals


def _wait_for_ports(config: ServerConfig) -> None:
    """Wait while another process has a port, as a server that has just been killed may for a moment.

    A port that is still taken after `patience`, or that can't be had at all, is the error of whoever listens there.
    """
    give_up = time.monotonic() + config.patience
    listen = urlsplit(config.listen)
    for host, port in [(listen.hostname or "", listen.port or 0), *([config.http_address()] if config.http else [])]:
        while not _is_free(host, port) and time.monotonic() < give_up:
            time.sleep(_RETRY)


def _is_free(host: str, port: int) -> bool:
    """Return whether no other process listens there. gRPC would log each failure."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as failed:
            return failed.errno != errno.EADDRINUSE
        return True


def _announce(config: ServerConfig, server: PenstockServer, http: HttpDoor | None) -> None:
    lines = [
        f"penstock serves {server.url or config.listen}",
        f"  data  {config.data}",
        f"  store {config.store}",
    ]
    if http is not None:
        lines.append(f"  http  {config.http_address()[0]}:{http.port}  /healthz /readyz /metrics")
    if config.token_file is None and config.tokens is None:
        lines.append("  open to every user of this machine (--token-file sets a token)")
    with contextlib.suppress(OSError):  # a log that nobody reads any more must not keep a server from coming back
        sys.stderr.write("\n".join([*lines, "  Ctrl-C drains and stops", ""]))
        sys.stderr.flush()


@contextmanager
def _locked(folder: Path, patience: float) -> Iterator[None]:
    """Lock the folder for this process; the lock ends with the process, however that ends."""
    give_up = time.monotonic() + patience
    with open(folder / "lock", "a+") as file:
        while not _locks(file):
            if time.monotonic() > give_up:
                file.seek(0)
                owner = file.read().strip() or "unknown"
                raise Unavailable(
                    f"the data folder {folder} is in use by another penstock server (process {owner}), for {patience:g}"
                    " s now: stop that server, or choose another folder with --data"
                )
            time.sleep(_RETRY)
        with contextlib.suppress(OSError):  # a full disk: nobody but an error's text needs it
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), str(os.getpid()).encode())
        yield


def _locks(file: IO[str]) -> bool:
    """Lock the file; return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ticket_key(folder: Path) -> bytes:
    """Read or make the key that signs tickets. It is kept in the data folder: tickets outlive a restart."""
    path = folder / "key"
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) != 32:
            raise Internal(
                f"{path} has {len(key)} bytes instead of 32: delete it; tickets that were signed with it become invalid"
            ) from None
        return key
    with os.fdopen(fd, "wb") as file:
        file.write(key := secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    return key
