"""A server that may die at a named step: `python -m tests.kit.programs.server '{"settings": {…}, "crash_at": …}'`."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from penstock import steps
from penstock.flight_server import lifecycle, supervisor
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.limits import ServerLimits


def _crash_at(fatal: str, on: int) -> None:
    """Kill this process with SIGKILL when the step is passed for the `on`th time."""
    left = on

    def passed(step: str) -> None:
        nonlocal left
        left -= step == fatal
        if step == fatal and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    steps.passed = passed


def main() -> None:
    if supervisor.lean_memory():
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    plan: dict[str, Any] = json.loads(sys.argv[1])
    settings = dict(plan["settings"])
    for name in ("data", "tls_cert", "tls_key", "client_ca", "token_file"):
        if name in settings:
            settings[name] = Path(settings[name])
    settings["limits"] = ServerLimits(**settings.get("limits", {}))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    if plan["crash_at"]:
        _crash_at(plan["crash_at"], plan["crash_on"])
    exec(plan["prelude"], {})
    sys.exit(lifecycle.run(ServerConfig(**settings), lambda server, _: print(server.url, flush=True)))  # noqa: T201


if __name__ == "__main__":
    main()
