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
from penstock.flight_server import lifecycle
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
    lifecycle.lean_memory()
    plan: dict[str, Any] = json.loads(sys.argv[1])
    settings = dict(plan["settings"])
    for name in ("data", "tls_cert", "tls_key", "token_file"):
        if name in settings:
            settings[name] = Path(settings[name])
    settings["limits"] = ServerLimits(**settings.get("limits", {}))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    if plan["crash_at"]:
        _crash_at(plan["crash_at"], plan["crash_on"])
    exec(plan["prelude"], {})
    lifecycle._announce = lambda config, server, http: print(server.url, flush=True)  # noqa: T201  # read by the test
    sys.exit(lifecycle.run(ServerConfig(**settings)))


if __name__ == "__main__":
    main()
