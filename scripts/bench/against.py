"""The same cases with another revision of penstock, in turn with this one: `make bench ARGS="--against REV"`.

Each revision has a process of its own that runs all cases, with that revision's package before this checkout on its
path; servers, Spark and clients are its children. Only one of the two works at a time: it hands over before each
measurement, so that the same side of both is measured one after the other, begun by the other one the next time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from scripts.bench.figures import Result, Work

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 7
"""At least."""
_PATIENCE = 90.0  # seconds for a process to stop its servers and Spark
Figure = tuple[str, str, list[float]]
"""A result as a revision's process tells it: what it is, in words, in each round."""


def take_turns(descriptor: int, measure: Callable[[Work], Iterator[Result]]) -> None:
    """Measure as a revision's process: hand over to the other one before each measurement, and tell the results."""
    parent, told = Connection(descriptor), set[str]()

    def hand_over() -> None:
        parent.send(None)
        try:
            parent.recv()
        except EOFError:
            sys.exit("the benchmark that compares revisions has ended")

    for result in measure(hand_over):
        what = ", ".join(filter(None, (result.line.heading, result.data, result.line.what)))
        if what not in told:  # a figure may stand beside several others
            parent.send((what, result.cells[1], result.rounds))
            told.add(what)


def compare(revision: str, arguments: Sequence[str]) -> None:
    """Run the cases with both revisions, and print how they compare."""
    rows: list[list[str]] = []
    with _package_of(revision) as package, ExitStack() as stack:
        new, old = list[Figure](), list[Figure]()
        runs = [_run(ROOT, arguments, new, stack), _run(package, arguments, old, stack)]
        running = True
        while running:  # the last figures come when both have ended
            running = [next(run, None) for run in runs] != [None, None]
            runs.reverse()
            for pair in list(zip(new, old, strict=False))[len(rows) :]:
                rows.append(row(*pair))
                print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    from penstock.text import format_table  # here, as the other revision's process may have none

    heads = ["", "this", revision, "this/that", "least", "most", "rounds"]
    print(format_table(heads, rows, right=heads[1:]))


def _run(package: Path, arguments: Sequence[str], figures: list[Figure], stack: ExitStack) -> Iterator[object]:
    """Run a revision's process up to where it hands over, with each step of the iterator; gather its figures."""
    pipe, theirs = Pipe()
    path = os.pathsep.join(map(str, dict.fromkeys((package, ROOT))))
    command = [sys.executable, "-m", "scripts.bench", *arguments, "--turns", str(theirs.fileno())]
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=2, env=environment)
    stack.callback(process.wait, _PATIENCE)
    stack.callback(pipe.close)  # first: the process ends where it waits for its turn
    while True:
        try:
            while (figure := pipe.recv()) is not None:
                figures.append(figure)
        except EOFError:
            break
        yield package
        pipe.send(None)
    if code := process.wait(_PATIENCE):
        raise RuntimeError(f"the process of a revision ended with code {code}: it says why above")


def row(new: Figure, old: Figure) -> list[str]:
    """Return a line of the table: how many times the other's seconds or bytes this one has, round by round."""
    assert new[0] == old[0], f"{new[0]} beside {old[0]}"
    ratios = [own / other for own, other in zip(new[2], old[2], strict=True) if other]
    spread = [statistics.median(ratios), min(ratios), max(ratios)] if ratios else []
    return [new[0], new[1], old[1], *([f"{ratio:.2f}x" for ratio in spread] or [""] * 3), str(len(ratios))]


@contextmanager
def _package_of(revision: str) -> Iterator[Path]:
    """Extract a revision's package into a temporary folder."""
    archive = subprocess.run(["git", "archive", revision, "penstock"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        sys.exit(f"no penstock at revision {revision}: {archive.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="penstock-revision-") as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder).resolve()
