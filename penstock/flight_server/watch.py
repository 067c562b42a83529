"""The watch: ends puts and exchanges that are silent or take too long, and calls whose answer nobody reads."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.errors import LimitExceeded
from penstock.flight_server.gate import Call
from penstock.flight_server.limits import ServerLimits

log = logging.getLogger("penstock")
_REASONS = 10_000
"""Attempts that were cut and whose reason is remembered, until the client asks for it."""


_DRAIN_IDLE = 5.0
"""Seconds for which a caller may leave its answer unread, and an exchange may go on, while the server drains."""


@dataclass(slots=True)
class _Watched:
    peer: str
    began: float
    attempt: str | None
    """A put's; None for a call that is being answered."""
    waiting_since: float | None = None
    """When the server began to wait for the peer; None while the server itself is at work."""
    reason: str | None = None
    """Why it was cut."""


@dataclass(slots=True)
class WatchedExchange:
    """An exchange, whose two threads say when they wait for the peer."""

    peer: str
    now: Callable[[], float]
    drain: Callable[[], None] = lambda: None
    """Asks the client to end; the exchange sets it."""
    reading_since: float | None = None
    writing_since: float | None = None
    reason: str | None = None
    """Why it was cut."""

    def set_reading(self, waiting: bool) -> None:
        """Note that the server waits for a message, or that one has come."""
        self.reading_since = self.now() if waiting else None

    def set_writing(self, waiting: bool) -> None:
        """Note that the server waits until the peer reads, or that it has."""
        self.writing_since = self.now() if waiting else None

    def waiting(self, now: float) -> float:
        """Return for how long the server has waited for the peer."""
        return max(now - since for since in (self.reading_since, self.writing_since, now) if since is not None)


class Watch:
    """Cuts callers that are silent or slow for too long.

    A blocked read or write can't be interrupted from another thread (pyarrow aborts the process), so the peer's socket
    is shut down, which ends all calls on that client's connection; the client retries its other calls, and the put is
    abandoned like any that breaks off.
    """

    def __init__(self, limits: ServerLimits, *, every: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._get_idle = float(limits.get_idle)
        self._every = every
        self._now = now
        self._lock = threading.Lock()  # _calls, _reasons, _exchanges, _cut_exchanges
        self._calls: dict[int, _Watched] = {}
        """By id()."""
        self._reasons: OrderedDict[str, str] = OrderedDict()
        """Attempt -> why it was cut, for the last ones."""
        self._exchanges: dict[int, WatchedExchange] = {}
        """By id()."""
        self._cut_exchanges: float | None = None
        """When the exchanges are cut that the drain hasn't ended."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait for it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def drain(self, deadline: float) -> None:
        """Ask exchanges to end, and cut those soon that don't, and callers that don't read their answers."""
        self._get_idle = min(self._get_idle, _DRAIN_IDLE)
        with self._lock:
            self._cut_exchanges = self._now() + min(_DRAIN_IDLE, deadline / 2)
            exchanges = list(self._exchanges.values())
        for each in exchanges:
            each.drain()

    @contextmanager
    def put(self, peer: str, attempt: str) -> Iterator[Callable[[bool], None]]:
        """Watch a put while the block runs; a put that was cut fails with the reason.

        Gives a function to be called with True before each wait for the peer, and with False after it.
        """
        put = _Watched(peer, self._now(), attempt)
        set_waiting, end = self._watch(put)
        try:
            with _cut_explained(put):
                yield set_waiting
        finally:
            end()

    @contextmanager
    def exchange(self, peer: str) -> Iterator[WatchedExchange]:
        """Watch an exchange while the block runs; one that was cut fails with the reason."""
        watched = WatchedExchange(peer, self._now)
        with self._lock:
            self._exchanges[id(watched)] = watched
        try:
            with _cut_explained(watched):
                yield watched
        finally:
            with self._lock:
                del self._exchanges[id(watched)]

    def answer(self, call: Call, peer: str) -> None:
        """Watch a call, whose answer the peer has to read, until it ends."""
        call.set_waiting, call.at_end = self._watch(_Watched(peer, self._now(), attempt=None))

    def _watch(self, watched: _Watched) -> tuple[Callable[[bool], None], Callable[[], None]]:
        with self._lock:
            self._calls[id(watched)] = watched

        def set_waiting(waiting: bool) -> None:
            watched.waiting_since = self._now() if waiting else None

        def end() -> None:
            with self._lock:
                del self._calls[id(watched)]

        return set_waiting, end

    def check_not_cut(self, attempt: str) -> None:
        """Reject an attempt that was cut, with the reason: no answer could be sent on the connection that was shut."""
        with self._lock:
            reason = self._reasons.get(attempt)
        if reason is not None:
            raise LimitExceeded(reason)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            now = self._now()
            with self._lock:
                late = [each for each in self._calls.values() if each.reason is None and self._is_late(each, now)]
                self._reasons.update((each.attempt, each.reason or "") for each in late if each.attempt is not None)
                while len(self._reasons) > _REASONS:
                    self._reasons.popitem(last=False)
                silent = [
                    each for each in self._exchanges.values() if each.reason is None and self._is_silent(each, now)
                ]
            self._cut(*late, *silent)

    def _cut(self, *calls: _Watched | WatchedExchange) -> None:
        """Shut the connections of these calls' peers; the next look tries those again for which that fails."""
        for each in calls:
            try:
                cut(each.peer)
            except OSError as failed:  # no descriptor is free to look for the socket
                log.warning("%s can't be cut for now: %s", each.peer, failed)
                each.reason = None
            else:
                log.warning("%s: %s", each.peer, each.reason)

    def _is_silent(self, watched: WatchedExchange, now: float) -> bool:
        idle = float(self._limits.exchange_idle)
        if watched.waiting(now) > idle:
            watched.reason = (
                f"an exchange's client sent no beat, or read nothing, for {idle:g} s, the longest that this server "
                "waits (serve --limit exchange_idle=…)"
            )
        elif self._cut_exchanges is not None and now > self._cut_exchanges:
            watched.reason = "an exchange's client didn't end it when the server drained"
        return watched.reason is not None

    def _is_late(self, watched: _Watched, now: float) -> bool:
        since = watched.waiting_since
        if since is None:
            return False
        idle = now - since
        if watched.attempt is None:
            if idle > self._get_idle:
                watched.reason = (
                    f"a caller read nothing of its answer for {self._get_idle:,g} s, the longest that this server "
                    "waits: read sooner, in smaller pieces, or serve --limit get_idle=…"
                )
        elif idle > self._limits.put_idle:
            watched.reason = (
                f"a put sent nothing for {self._limits.put_idle:,} s, the longest that this server waits: send smaller "
                "batches (in Spark, spark.sql.execution.arrow.maxRecordsPerBatch), or serve --limit put_idle=…"
            )
        elif now - watched.began > self._limits.put_time:
            watched.reason = (
                f"a put took more than {self._limits.put_time:,} s, the longest that this server allows: "
                "put less at once (in Spark, more partitions), or serve --limit put_time=…"
            )
        return watched.reason is not None


@contextmanager
def _cut_explained(watched: _Watched | WatchedExchange) -> Iterator[None]:
    """Raise why a call was cut: its own error is that of a broken stream."""
    try:
        yield
    except BaseException as error:
        if watched.reason:
            raise LimitExceeded(watched.reason) from error
        raise


def cut(peer: str) -> bool:
    """Shut down this process's sockets to a peer, as gRPC writes it: ipv4:127.0.0.1:40712, ipv6:%5B::1%5D:40712.

    Returns whether there was one. An OSError says that no descriptor is free to look for it.
    """
    address = peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]")
    was_connected = False
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                host, port, *_ = connection.getpeername()
                # gRPC listens for both families on one socket, where an IPv4 peer is ::ffff:127.0.0.1
                if address in (f"{host.removeprefix('::ffff:')}:{port}", f"[{host}]:{port}"):
                    connection.shutdown(socket.SHUT_RDWR)
                    was_connected = True
        except (OSError, ValueError, AttributeError) as failed:
            if getattr(failed, "errno", None) in (errno.EMFILE, errno.ENFILE):
                raise
            continue  # not connected, not an internet socket, or closed meanwhile
    return was_connected
