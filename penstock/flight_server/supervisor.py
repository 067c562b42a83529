"""The supervisor: a small process that starts the server again whenever a signal has ended it.

    penstock serve ──exec──▶ supervisor ──spawn──▶ penstock serve, with PENSTOCK_SUPERVISOR: the server

pyarrow takes a message of any size before a handler runs, so one message can end a server. Nothing that it acknowledged
is lost (but in a memory store), and clients retry: they find it back on the same ports.

1. Start the server: the user's own command line once more. It reports its ports as soon as it listens.
2. Wait for its end, or for a signal.
3. At SIGTERM or SIGINT tell the server to stop, which lets running calls end; at the second one kill it. SIGHUP is
   passed on: the server reads its tokens again; one without tokens ends, and this process, too.
4. If the server has exited, exit with its code: it was told to stop, or it refused to start.
5. If a signal has ended it, log which one and why that may be; pause; go on with 1.

Each import costs memory for as long as the server lives, so there are few, and none beyond the standard library: with
the interpreter's own modules this process takes 10 MB (python -I -S), an idle server 90.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

THREAD_STACK = 1 << 20
"""Bytes of stack for a call's thread. With the usual 8 MB, 100 idle puts used up a --memory-limit of 1,000 MB; with
1 MB, 300 took 432."""
MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""For glibc, whose memory gRPC receives into. By default each thread's arena grows and is trimmed with every message: a
put of 64 MiB to disk took 13,000 page faults, with these settings 430."""
_VARIABLE = "PENSTOCK_SUPERVISOR"
"""Set for the server: the supervisor's process, two descriptors and two ports, see `Attachment`."""
_STOPS = (signal.SIGTERM, signal.SIGINT)
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds between the server's end and its next start: the first pause, doubled with each end up to the longest."""
_CALM = 60.0
"""Seconds of life after which a server's end counts as the first one again."""
_REASONS: dict[int, str] = {
    signal.SIGKILL: "the machine or its control group ran out of memory (see dmesg), or somebody sent kill -9",
    signal.SIGABRT: "an allocation failed at --memory-limit, or pyarrow rejected a message by abort",
    signal.SIGSEGV: "a fault in native code, such as pyarrow's on a malformed message",
    signal.SIGBUS: "a mapped file was truncated, or its disk failed",
}


# --- the process that the user starts ---------------------------------------------------------


def lean_memory() -> bool:
    """Set small thread stacks and MALLOC for the programs that this process starts; return whether they were not set.

    glibc reads them when a program starts.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    unset = {name: value for name, value in MALLOC.items() if name not in os.environ}
    os.environ.update(unset)
    if soft == resource.RLIM_INFINITY or soft > THREAD_STACK:
        resource.setrlimit(resource.RLIMIT_STACK, (THREAD_STACK, hard))
        return True
    return bool(unset)


def supervise() -> NoReturn:
    """Replace this process by the supervisor of a server with the same command line."""
    lean_memory()
    server = [sys.executable, *sys.orig_argv[1:]]
    os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, *server])  # noqa: S606  # no shell is wanted


# --- the supervisor -----------------------------------------------------------------------------


class Supervisor:
    """Runs a command until it exits, again and again if signals end it. It needs the main thread, and no other."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._ports = "0 0"
        self._stops: list[int] = []
        """The signals that said to stop."""
        self._reports, self._report = os.pipe()
        self._alive, self._life = os.pipe()
        """The write end closes with this process, however that ends."""
        for inherited in (self._report, self._alive):
            os.set_inheritable(inherited, True)
        self._signals, wakeup = os.pipe()
        for end in (self._signals, wakeup):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakeup)
        self._hung_up = self._serves = False
        handled = {*_STOPS, signal.SIGCHLD, signal.SIGHUP}
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
            handled.remove(signal.SIGHUP)
        for number in handled:
            signal.signal(number, lambda *_: None)  # `_wait` reads their numbers from the pipe

    def run(self) -> int:
        """Return the exit code of the last server."""
        ends = 0
        while True:
            began = time.monotonic()
            server, code = self._run_once()  # 1. to 3.
            if len(self._stops) > 1:
                return 128 + self._stops[1]
            if code >= 0:
                return code  # 4.
            if -code in _STOPS:
                return 0  # it did not serve yet, so there was nothing to let end
            if -code == signal.SIGHUP and self._serves:  # it has no tokens to read again
                return 128 - code
            end = _describe_end(server, -code)
            if self._stops:
                _log(f"{end}; it was stopping")
                return 128 - code
            ends = 1 if time.monotonic() - began > _CALM else ends + 1
            pause = min(_PAUSE * 2 ** (ends - 1), _LONGEST_PAUSE)
            _log(f"{end}; it starts again in {pause:g} s")  # 5.
            self._pause(pause)
            if self._stops:
                return 0

    def _run_once(self) -> tuple[int, int]:
        """Return the process of a server and its exit code, once it has ended; the code is -N for signal N."""
        attachment = f"{os.getpid()} {self._report} {self._alive} {self._ports}"
        # In a process group of its own it gets no Ctrl-C from the terminal: it would be told to stop twice
        environment = {**os.environ, _VARIABLE: attachment}
        server = os.posix_spawn(self._command[0], self._command, environment, setpgroup=0)
        self._hung_up = self._serves = False
        while True:
            told = len(self._stops)
            self._wait(None)
            if self._hung_up:
                os.kill(server, signal.SIGHUP)
                self._hung_up = False
            if not told and self._stops:
                os.kill(server, signal.SIGTERM)
            if len(self._stops) > 1:
                os.kill(server, signal.SIGKILL)
            code = _exit_code(server)
            if code is not None:
                return server, code

    def _pause(self, seconds: float) -> None:
        """Wait so long, or until a signal says to stop."""
        until = time.monotonic() + seconds
        while not self._stops and (left := until - time.monotonic()) > 0:
            self._wait(left)

    def _wait(self, timeout: float | None) -> None:
        """Wait for a signal or a report, and note it."""
        ready, _, _ = select.select([self._signals, self._reports], [], [], timeout)
        if self._reports in ready:
            self._ports = os.read(self._reports, 64).decode().splitlines()[-1]
            self._serves = True
        if self._signals in ready:
            numbers = os.read(self._signals, 64)
            self._stops += [number for number in numbers if number in _STOPS]
            self._hung_up |= signal.SIGHUP in numbers


def _exit_code(server: int) -> int | None:
    """Return the server's exit code if it has ended.

    All ended children are waited for: as process 1 of a container this one adopts those of others.
    """
    code = None
    with contextlib.suppress(ChildProcessError):  # there are none left
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == server:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _describe_end(server: int, number: int) -> str:
    name = signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"
    reason = _REASONS.get(number, "somebody sent it")
    return f"the server (process {server}) was ended by {name}: {reason}"


def _log(message: str) -> None:
    """Write a line as the server's log has them; a log that nobody reads any more must not end the server."""
    now = time.time()
    stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))},{int(now % 1 * 1000):03}"
    with contextlib.suppress(OSError):
        os.write(2, f"{stamp} ERROR penstock: {message}\n".encode())


# --- the server ---------------------------------------------------------------------------------


class Attachment:
    """What a server has of its supervisor."""

    def __init__(self, values: str) -> None:
        self._supervisor, self._report, self._alive, self.port, self.http_port = map(int, values.split())
        """The ports are those of the server before this one; 0 for the first one."""
        for inherited in (self._report, self._alive):
            os.set_inheritable(inherited, False)

    def end_with_supervisor(self) -> None:
        """Have this process killed when the supervisor ends: an orphan would keep the data folder and the ports."""
        if sys.platform == "linux":
            end_with(self._supervisor)
        else:
            import threading

            threading.Thread(target=self._wait_for_its_end, name="penstock-supervisor", daemon=True).start()

    def report(self, port: int, http_port: int) -> None:
        """Tell the supervisor the ports, for the server after this one."""
        os.write(self._report, f"{port} {http_port}\n".encode())

    def _wait_for_its_end(self) -> None:
        os.read(self._alive, 1)
        os._exit(128 + signal.SIGKILL)


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends, on Linux; elsewhere do nothing."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before that call
            os._exit(128 + signal.SIGKILL)


def attachment() -> Attachment | None:
    """Return the link to the supervisor that has started this process; None if none has."""
    values = os.environ.pop(_VARIABLE, None)  # not for the processes that this one starts
    return None if values is None else Attachment(values)


if __name__ == "__main__":
    sys.exit(Supervisor(sys.argv[1:]).run())
