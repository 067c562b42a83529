"""Processes that pull and publish: started and watched by the server, restarted with a backoff, ended with it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from penstock.flight_server.config import ServerConfig
from penstock.flight_server.loopback_tls import LoopbackTls, loopback_tls
from penstock.flight_server.supervisor import MALLOC
from penstock.text import printable

log = logging.getLogger("penstock")
REFUSED = (2, 3, 6)
"""Exit codes of `penstock pull` for what another try doesn't mend: options, subscription, permission."""
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds between a puller's end and its next start: the first pause, doubled with each end up to the longest."""
_CALM = 60.0
"""Seconds after which an end is the first one again."""
_ENDING = 10.0
_LAST_LINE = 1.0
"""Seconds for the last line of a process that has ended."""
_LINE = re.compile(r"\d{4}-\S+ \S+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: (.*)")
"""A line of a puller's log, as `penstock pull` sets its format."""
_LONGEST_LINE = 4_000


@dataclass
class _Slot:
    """One puller's place, whether it runs or waits for its next start."""

    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    ends: int = 0
    start_at: float = 0.0
    is_refused: bool = False
    """Whether its last process was refused, and no other was started since."""
    said: str = ""
    """The last line of its last process; `listener` has it."""
    listener: threading.Thread | None = None
    is_mended: bool = False
    """Whether what its process may be refused for has been mended since: such an end says nothing."""


@dataclass
class Pullers:
    """The pullers of one subscription. For one thread, which lives as long as they do: they are killed with it."""

    path: str
    command: Sequence[str]
    environment: dict[str, str] = field(repr=False)
    word: str = "puller"
    """What the log calls one of them."""
    said: str = ""
    """The last line of one that was refused."""
    slots: list[_Slot] = field(default_factory=list)

    def watch(self, now: float, wanted: int) -> int | None:
        """Start what is missing, end what is too much; return the exit code of one that was refused, if one was."""
        refused = None
        for slot in self.slots:
            code = None if slot.process is None else slot.process.poll()
            if code is None:
                continue
            slot.process = None
            is_refused, slot.is_mended = code in REFUSED and not slot.is_mended, False
            slot.ends = 1 if now - slot.began > _CALM else slot.ends + 1
            pause = _LONGEST_PAUSE if is_refused else min(_PAUSE * 2 ** (slot.ends - 1), _LONGEST_PAUSE)
            slot.start_at = now + pause
            log.warning("%s: a %s has ended (%d), it starts again in %g s", self.path, self.word, code, pause)
            slot.is_refused = is_refused
            if is_refused:
                refused = code
                if slot.listener is not None:
                    slot.listener.join(_LAST_LINE)
                self.said = slot.said
        while len(self.slots) < wanted:
            self.slots.append(_Slot())
        for slot in self.slots[wanted:]:
            _end(slot)
        del self.slots[wanted:]
        for slot in self.slots:
            if slot.process is None and now >= slot.start_at:
                self._start(slot)
                slot.began, slot.is_refused = now, False
        return refused

    def _start(self, slot: _Slot) -> None:
        process = subprocess.Popen(self.command, env=self.environment, stderr=subprocess.PIPE)  # noqa: S603  # our own words

        def listen() -> None:
            slot.said = log_lines(self.path, process, self.word)

        name = f"penstock-{self.word}-{process.pid}"
        slot.process, slot.listener = process, threading.Thread(target=listen, name=name, daemon=True)
        slot.listener.start()

    def try_again(self) -> None:
        """Start those that were refused, at the next look."""
        for slot in self.slots:
            if slot.is_refused:
                slot.start_at = 0.0

    def start_again(self) -> None:
        """Start those that wait, at the next look."""
        for slot in self.slots:
            slot.ends, slot.start_at, slot.is_mended = 0, 0.0, slot.process is not None

    def processes(self) -> tuple[int, ...]:
        """Return the ids of the processes that run."""
        return tuple(slot.process.pid for slot in self.slots if slot.process is not None)

    def close(self) -> None:
        """End them: each nacks what it holds and nobody has seen."""
        close_all([self])


def close_all(pullers: Sequence[Pullers]) -> None:
    """End the processes of all of these at once, as the end of a server doesn't wait for one after the other."""
    slots = [slot for each in pullers for slot in each.slots]
    running = [slot.process for slot in slots if slot.process is not None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + _ENDING
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for each in pullers:
        each.slots.clear()


def log_lines(path: str, process: subprocess.Popen[bytes], word: str = "puller") -> str:
    """Log what a puller writes to its stderr, under the path of its subscription, until it ends; return the last."""
    assert process.stderr is not None
    last = ""
    level = logging.WARNING  # of a line that isn't a log's: that of the line before
    with process.stderr as lines:
        while line := lines.readline(_LONGEST_LINE):
            text = line.decode(errors="replace").rstrip()
            match = _LINE.match(text)
            if match:
                level, text = getattr(logging, match[1]), match[2]
            elif text.startswith("penstock: "):  # why a command has failed
                level = logging.ERROR
            if text:
                last = printable(text)
                log.log(level, "%s: %s %d: %s", path, word, process.pid, last)
    return last.removeprefix("penstock: ")


def pullers_of(path: str, config: ServerConfig, port: int) -> Pullers:
    """Return the pullers of a subscription, none of them started; InvalidRequest if they couldn't get in."""
    return _processes_of("puller", "pull", path, config, port, "--lease", str(config.pubsub_lease))


def publishers_of(path: str, config: ServerConfig, port: int) -> Pullers:
    """Return the publisher of a topic, not started; InvalidRequest if it couldn't get in."""
    return _processes_of("publisher", "publisher", path, config, port)


def _processes_of(word: str, verb: str, path: str, config: ServerConfig, port: int, *more: str) -> Pullers:
    """Return the processes that run a verb of the command line for a path.

    Secrets are in their environment alone.
    """
    listen = urlsplit(config.listen)
    host = listen.hostname or ""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared with, not bound to
    tls = loopback_tls(config, host) if listen.scheme == "grpc+tls" else LoopbackTls(None, None)
    host = f"[{host}]" if ":" in host else host
    command = [
        sys.executable, "-m", "penstock.cli.app", verb, path,
        "--url", f"{listen.scheme}://{host}:{port}", "--parent", str(os.getpid()), *more,
    ]  # fmt: skip
    if tls.server_name is not None:
        command += ["--server-name", tls.server_name]
    if config.allow_emulator:
        command.append("--allow-emulator")
    if config.pubsub_endpoint is not None:
        command += ["--endpoint", config.pubsub_endpoint]
    if config.pubsub_impersonate is not None:
        command += ["--pubsub-impersonate", config.pubsub_impersonate]
    secrets = {
        "PENSTOCK_TOKEN": config.child_token,
        "PENSTOCK_CA": None if config.tls_cert is None else str(config.tls_cert),
        "PENSTOCK_PUBSUB_CREDENTIALS": config.pubsub_credentials,
    }
    if tls.certificate is not None:
        secrets |= dict(zip(("PENSTOCK_CERT", "PENSTOCK_KEY"), map(str, tls.certificate), strict=True))
    ours = {*MALLOC, *secrets, "PENSTOCK_URL"}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    return Pullers(
        path, command, environment | {name: text for name, text in secrets.items() if text is not None}, word
    )


def _end(slot: _Slot) -> None:
    if slot.process is not None:
        slot.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            slot.process.wait(_ENDING)
