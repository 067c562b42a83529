"""Ray, got once into .venv-bench/, and the process that works with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

NAME = "Ray"
VERSION = "2.60.0"
_ROOT = Path(__file__).resolve().parents[2]
_HOME = _ROOT / ".venv-bench" / f"ray-{VERSION}"
_PYTHON = _HOME / "bin" / "python"
Peer = Callable[[str, int, int], float]
"""Does so many things of so many bytes, by the name of a function of ray_peer.py, and returns the seconds."""


@cache
def lacks() -> str:
    """Get Ray, unless it is there; say why it can't be had, if so."""
    stamp = _HOME / "ready"
    if stamp.exists():
        return ""
    print(f"getting Ray {VERSION} into {_HOME}", file=sys.stderr, flush=True)
    venv.create(_HOME, clear=True, with_pip=True)
    pip = [str(_PYTHON), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--only-binary=:all:"]
    constraint = ["--constraint", str(_ROOT / "constraints.txt")]
    if subprocess.run([*pip, *constraint, f"ray[data]=={VERSION}"], check=False).returncode:
        return f"pip could not get ray[data]=={VERSION}, it says why above"
    stamp.touch()
    return ""


@contextmanager
def ray_peer(folder: Path) -> Iterator[Peer]:
    """Run the process, with a Ray of two cores whose first task has run."""
    answers, to_peer = os.pipe()
    environment = {**os.environ, "BENCH_ANSWERS": str(to_peer), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [_PYTHON, Path(__file__).with_name("ray_peer.py")]
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

            def peer(name: str, count: int, size: int) -> float:
                assert process.stdin is not None
                process.stdin.write(json.dumps([name, count, size]) + "\n")
                process.stdin.flush()
                return answer()

            answer()
            yield peer
            process.communicate()  # closes its stdin, by which it ends
