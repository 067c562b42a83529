"""What one stream may take, how many there may be, and how long they may be silent."""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from penstock.errors import InvalidRequest, LimitExceeded, Unavailable
from penstock.store.open import parse_bytes
from penstock.text import suggest

log = logging.getLogger("penstock")
_REASONS = 10_000
"""Attempts that were cut and are remembered, until somebody asks why."""


_OF_A_STREAM = 96 << 20
"""Bytes that a put may take: what gRPC has read ahead of it (18 to 64 MB), the parts that are stored. Neither gRPC nor
Arrow outlives each allocation that fails: 120 puts of 30 MB at once ended a server of 4 GiB, one of 12 took them."""
_FEWEST = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """The defaults suit one machine; `serve --limit streams=32 --limit put_idle=60` changes them."""

    streams: int = 128
    """Open do_get and do_put calls. pyarrow gives each a thread of 1 MB stack and knows no cap."""
    batch_rows: int = 1 << 26
    """Rows of one batch: 224 bytes can claim 2^31 rows of null."""
    batch_bytes: int = 1 << 30
    """Bytes of one batch once decompressed."""
    put_batches: int = 10_000_000
    """Batches of one do_put."""
    put_rows: int = 1 << 40
    """Rows of one do_put."""
    put_bytes: int = 1 << 40
    """Bytes of one do_put."""
    put_idle: int = 600
    """Seconds for which a do_put may send nothing: a Spark task may think for minutes between batches."""
    put_time: int = 12 * 3600
    """Seconds that one do_put may take in all."""
    datasets: int = 1_000_000
    """Datasets in the ledger."""
    columns: int = 10_000
    """Columns of one schema."""

    def within(self, memory: int) -> Limits:
        """The same with no more streams than so much private memory is enough for."""
        return replace(self, streams=max(_FEWEST, min(self.streams, memory // _OF_A_STREAM)))

    def changed(self, given: Mapping[str, str]) -> Limits:
        """These limits with some of them set from text, such as {'put_bytes': '10GB'}."""
        known = [field.name for field in fields(self)]
        for name in given:
            if name not in known:
                raise InvalidRequest(f"no limit is called {name!r}; {suggest(name, known)}")
        return replace(self, **{name: parse_bytes(value) for name, value in given.items()})


def check(amount: int, limit: int, what: str, option: str) -> None:
    """Refuse more than the limit, by its name."""
    if amount > limit:
        raise LimitExceeded(
            f"{what}: {amount:,}, this server takes {limit:,}. Send less, or start it with --limit {option}=…"
        )


class Streams:
    """Counts the open calls; refuses one stream too many, and all new work before the start and in the drain."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_unheard = max(1, most // 2)
        """Of them, so many strangers who have sent nothing, at most half, but always one: a task is one for
        milliseconds. The rest is a reserve."""
        self._changed = threading.Condition()  # open_streams, unheard, _calls, closed
        self.open_streams = 0
        self.unheard = 0
        self._calls = 0
        self.closed = True

    def enter(self, *, stream: bool, is_new_work: bool, unheard: bool = False) -> None:
        """A call begins; Unavailable if it may not. A do_put that sends nothing never gets further than this.

        `unheard` is a stranger's, until `heard`: pyarrow tells nobody's address before the first message, so such a
        call can't be cut, only counted.
        """
        with self._changed:
            if self.closed and is_new_work:
                raise draining()
            if stream and self.open_streams >= self._most:
                raise Unavailable(
                    f"the server has {self.open_streams} streams open, its most: try again, or serve --limit streams=…",
                    retry_after=0.5,
                )
            if unheard and self.unheard >= self._most_unheard:
                raise Unavailable(
                    f"{self.unheard} calls without the server's token have sent nothing yet, the most that may: "
                    "try again, or show the token",
                    retry_after=0.5,
                )
            self._calls += 1
            self.open_streams += stream
            self.unheard += unheard

    def heard(self) -> None:
        """The first message of an unheard call has come, or the call is over."""
        with self._changed:
            self.unheard -= 1

    def leave(self, *, stream: bool) -> None:
        """A call that was let in is over."""
        with self._changed:
            self._calls -= 1
            self.open_streams -= stream
            self._changed.notify_all()

    def admit(self) -> None:
        """The server is ready."""
        with self._changed:
            self.closed = False

    def drain(self, deadline: float) -> int:
        """Let no new work in and wait for the calls that run; how many are left after `deadline` seconds."""
        with self._changed:
            self.closed = True
            give_up = time.monotonic() + deadline
            while self._calls and (left := give_up - time.monotonic()) > 0:
                self._changed.wait(min(left, 0.5))  # or a second signal, given to another thread, is heard at the end
            return self._calls


def draining() -> Unavailable:
    """What new work is told while the server starts or stops."""
    return Unavailable("the server is starting or shutting down: try again in a moment", retry_after=2)


@dataclass(slots=True)
class _Watched:
    peer: str
    attempt: str
    began: float
    waiting: float | None = None
    """Since when the peer has been waited for; None while the server itself is at work."""
    reason: str | None = None


class Watch:
    """Ends the puts that are silent or slow for too long.

    A blocked read can't be interrupted from another thread (pyarrow aborts the process), so
    the peer's socket is shut down, which ends all calls of that client's connection; its
    other calls are retried by it, and the put is abandoned like any that breaks off.
    """

    def __init__(self, limits: Limits, *, every: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._every = every
        self._now = now
        self._lock = threading.Lock()  # _by_id, _reasons
        self._by_id: dict[int, _Watched] = {}
        self._reasons: OrderedDict[str, str] = OrderedDict()
        """Attempt -> why it was cut, of the last ones."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking, and wait for the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def put(self, peer: str, attempt: str) -> Iterator[Callable[[bool], None]]:
        """While a put runs; gives what is told when it begins to wait for the peer, and when something has come.

        A put that was ended fails with the reason.
        """
        watched = _Watched(peer, attempt, self._now())
        with self._lock:
            self._by_id[id(watched)] = watched

        def waits(so: bool) -> None:
            watched.waiting = self._now() if so else None

        try:
            yield waits
        except BaseException as error:
            if watched.reason:
                raise LimitExceeded(watched.reason) from error
            raise
        finally:
            with self._lock:
                del self._by_id[id(watched)]

    def tell(self, attempt: str) -> None:
        """Refuse an attempt that was cut, with the reason: on a connection that is shut nothing could be said."""
        with self._lock:
            reason = self._reasons.get(attempt)
        if reason is not None:
            raise LimitExceeded(reason)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            now = self._now()
            with self._lock:
                late = [put for put in self._by_id.values() if put.reason is None and self._is_late(put, now)]
                self._reasons.update((put.attempt, put.reason or "") for put in late)
                while len(self._reasons) > _REASONS:
                    self._reasons.popitem(last=False)
            for put in late:
                log.warning("%s: %s", put.peer, put.reason)
                cut(put.peer)

    def _is_late(self, put: _Watched, now: float) -> bool:
        if put.waiting is None:
            return False
        if now - put.waiting > self._limits.put_idle:
            put.reason = (
                f"a put sent nothing for {self._limits.put_idle:,} s, the most that this server waits: send smaller "
                "batches (in Spark, spark.sql.execution.arrow.maxRecordsPerBatch), or serve --limit put_idle=…"
            )
        elif now - put.began > self._limits.put_time:
            put.reason = (
                f"a put took more than {self._limits.put_time:,} s, the most that this server gives it: "
                "put less at once (in Spark, more partitions), or serve --limit put_time=…"
            )
        return put.reason is not None


def cut(peer: str) -> bool:
    """Shut down this process's sockets to a peer, as gRPC writes it: ipv4:127.0.0.1:40712, ipv6:%5B::1%5D:40712."""
    wanted = peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]")
    found = False
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                host, port, *_ = connection.getpeername()
                # gRPC listens for both families on one socket, where an IPv4 peer is ::ffff:127.0.0.1
                if wanted in (f"{host.removeprefix('::ffff:')}:{port}", f"[{host}]:{port}"):
                    connection.shutdown(socket.SHUT_RDWR)
                    found = True
        except (OSError, ValueError, AttributeError):  # not connected, not of the internet, or closed meanwhile
            continue
    return found
