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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from scripts.bench.figures import Result

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 7
"""At least."""
_PATIENCE = 90.0  # seconds for a process to stop its servers and Spark
Figure = tuple[str, str, list[float]]
"""A result as a revision's process tells it: what it is, in words, in each round."""


class Turns:
    """The benchmark that compares revisions, as seen by a revision's process."""

    def __init__(self, descriptor: int) -> None:
        self._parent = Connection(descriptor)
        self._told: set[str] = set()

    def wait(self) -> None:
        """Hand over, and wait until this process may go on."""
        self._parent.send(None)
        try:
            self._parent.recv()
        except EOFError:
            sys.exit("the benchmark that compares revisions has ended")

    def tell(self, result: Result) -> None:
        """Tell a result, once where it stands beside several others."""
        what = ", ".join(filter(None, (result.line.heading, result.data, result.line.what)))
        if what not in self._told:
            self._parent.send((what, result.cells[1], result.rounds))
            self._told.add(what)


class Revision:
    """A revision's process, as seen by the benchmark that compares."""

    def __init__(self, package: Path, arguments: Sequence[str], stack: ExitStack) -> None:
        self._pipe, theirs = Pipe()
        path = os.pathsep.join(map(str, dict.fromkeys((package, ROOT))))
        command = [sys.executable, "-m", "scripts.bench", *arguments, "--turns", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdout=2,
                env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            )
        stack.callback(self._process.wait, _PATIENCE)
        stack.callback(self._pipe.close)  # first: the process ends where it waits for its turn
        self.figures: list[Figure] = []
        self.ended = False
        self._receive()

    def go_on(self) -> None:
        """Let the process work until it hands over or ends."""
        if not self.ended:
            self._pipe.send(None)
            self._receive()

    def _receive(self) -> None:
        try:
            while (figure := self._pipe.recv()) is not None:
                self.figures.append(figure)
        except EOFError:
            self.ended = True
            if code := self._process.wait(_PATIENCE):
                raise RuntimeError(f"a revision's process ended with code {code}: it says why above") from None


def compare(revision: str, arguments: Sequence[str]) -> None:
    """Run the cases with both revisions, and print how they compare."""
    rows: list[list[str]] = []
    with _package_of(revision) as package, ExitStack() as stack:
        new, old = revisions = [Revision(folder, arguments, stack) for folder in (ROOT, package)]
        while not (new.ended and old.ended):
            for each in revisions:
                each.go_on()
            revisions.reverse()
            for pair in list(zip(new.figures, old.figures, strict=False))[len(rows) :]:
                rows.append(row(*pair))
                print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    from penstock.text import format_table  # here, as the other revision's process may have none

    heads = ["", "this", revision, "this/that", "least", "most", "rounds"]
    print(format_table(heads, rows, right=heads[1:]))


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
