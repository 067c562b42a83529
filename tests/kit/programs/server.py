"""Servers that may die at a named step: forks of one process, as to import a server takes half a second of a processor.

`python -m tests.kit.programs.server` reads plans from its standard input, a socket. A plan is JSON and comes with three
descriptors: for the server's address, for its log, and for its exit code. It is answered by the server's process id.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from penstock import steps
from penstock.flight_server import supervisor


def _crash_at(fatal: str, on: int) -> None:
    """Kill this process with SIGKILL when the step is passed for the `on`th time."""
    left = on

    def passed(step: str) -> None:
        nonlocal left
        left -= step == fatal
        if step == fatal and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    steps.passed = passed


def serve(plan: dict[str, Any]) -> int:
    """Serve as planned; return the exit code."""
    from penstock.flight_server import lifecycle
    from penstock.flight_server.config import ServerConfig
    from penstock.flight_server.limits import ServerLimits

    settings = dict(plan["settings"])
    for name in ("data", "tls_cert", "tls_key", "client_ca", "token_file"):
        if name in settings:
            settings[name] = Path(settings[name])
    settings["limits"] = ServerLimits(**settings.get("limits", {}))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    if plan["crash_at"]:
        _crash_at(plan["crash_at"], plan["crash_on"])
    exec(plan["prelude"], {})
    return lifecycle.run(ServerConfig(**settings), lambda server, _: print(server.url, flush=True))  # noqa: T201


def become(plan: dict[str, Any], address: int, log: int) -> int:
    """Be a server, in a fork: with its own environment, outputs and signals."""
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), address, log)):
        os.dup2(descriptor, number)
    os.closerange(3, 256)
    for name in os.environ.keys() - supervisor.MALLOC.keys():
        del os.environ[name]
    os.environ.update(plan["environment"])
    return serve(plan)


def tell_ends(codes: dict[int, int]) -> None:
    """Tell the exit codes of servers that have ended."""
    for pid in list(codes):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.write(descriptor := codes.pop(pid), str(code).encode())
            os.close(descriptor)


def fork(control: socket.socket, codes: dict[int, int]) -> int | None:
    """Start a server as the next plan says; return an exit code in the new process, and if no more plans come."""
    text, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 3)
    if not text:  # the process that started this one has ended
        for pid in codes:
            os.kill(pid, signal.SIGKILL)
        return 0
    *outputs, code = descriptors
    if (pid := os.fork()) == 0:
        control.detach()
        return become(json.loads(text), *outputs)
    control.send(str(pid).encode())
    codes[pid] = code
    for output in outputs:
        os.close(output)
    return None


def main() -> int:
    if supervisor.lean_memory():
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    import penstock.flight_server.lifecycle  # noqa: F401  # once, for all forks

    control, codes = socket.socket(fileno=0), dict[int, int]()
    ended, wakeup = os.pipe()
    for end in (ended, wakeup):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([control.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 1_000)
            tell_ends(codes)
        if control.fileno() in ready and (code := fork(control, codes)) is not None:
            return code


if __name__ == "__main__":
    sys.exit(main())
