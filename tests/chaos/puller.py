"""A puller or publisher to be killed: `python -m tests.chaos.puller HOOKS pull …` is `penstock pull …`, and may die at
a step.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from penstock import steps
from penstock.cli.app import run


def main() -> None:
    crash = Path(sys.argv[1]) / "puller-crash"

    def passed(step: str) -> None:
        try:
            if crash.read_text() != step:
                return
            crash.unlink()
        except FileNotFoundError:  # there is none, or another puller dies of it
            return
        os.kill(os.getpid(), signal.SIGKILL)

    steps.passed = passed
    sys.exit(run(sys.argv[2:]))


if __name__ == "__main__":
    main()
