"""Ray, and the process that works with it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "Ray"
Peer = Callable[..., float]
"""Does what a function of ray_peer.py does, by its name and arguments, and returns the seconds."""


def version() -> str | None:
    """Return Ray's version, if it is installed."""
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return None


def lacks() -> str:
    """Say why there is no Ray, if so."""
    return "" if version() else "it is not installed: pip install 'penstock-flight[ray]'"


@contextmanager
def ray_peer(folder: Path) -> Iterator[Peer]:
    """Run the process, with a Ray of two cores whose first task has run."""
    answers, to_peer = os.pipe()
    environment = {
        **os.environ,
        "BENCH_ANSWERS": str(to_peer),
        "RAY_AUTH_TOKEN": os.urandom(32).hex(),  # else it writes one to ~/.ray
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, str(Path(__file__).with_name("ray_peer.py"))]
    # Ray puts Unix sockets into its folder, whose names are limited to 107 bytes
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as short,
        (folder / "ray.log").open("wb") as log,
        subprocess.Popen(
            [*command, short], env=environment, pass_fds=[to_peer], stdin=subprocess.PIPE, stdout=log, stderr=log,
            text=True,
        ) as process,
    ):  # fmt: skip
        os.close(to_peer)
        with os.fdopen(answers) as lines:

            def answer() -> float:
                if not (line := lines.readline()):
                    raise RuntimeError(f"Ray's process has ended: {Path(log.name).read_text()[-2000:]}")
                return float(json.loads(line))

            def peer(name: str, *arguments: object) -> float:
                assert process.stdin is not None
                process.stdin.write(json.dumps([name, *arguments]) + "\n")
                process.stdin.flush()
                return answer()

            answer()
            yield peer
            process.communicate()  # closes its stdin, by which it ends
