"""Plant known bugs, one at a time, in copies of the code: the tests named in each patch must go red.

    python scripts/planted/run.py [NAME …]

A patch begins with two lines, `Bug:` and `Tests:` (arguments for pytest), then the diff.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAILED = 1
"""pytest's exit code for tests that failed; the others mean that none ran, or that they couldn't."""


@dataclass(frozen=True)
class Planted:
    """A bug to be found."""

    name: str
    bug: str
    tests: list[str]
    patch: Path


def read(patch: Path) -> Planted:
    """A patch and its two lines."""
    text = patch.read_text()
    found = re.match(r"Bug: (.+)\nTests: (.+)\n", text)
    if not found:
        raise SystemExit(f"{patch.name}: expected the lines 'Bug: …' and 'Tests: …' at the top")
    return Planted(patch.stem, found[1], found[2].split(), patch)


def copy_tree(target: Path) -> None:
    """The files that git knows or would take, as they are in the work tree."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        source, to = ROOT / name, target / name
        if not source.exists():
            continue
        to.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            to.symlink_to(os.readlink(source))
        else:
            to.write_bytes(source.read_bytes())


def find(planted: Planted) -> tuple[Planted, bool, str]:
    """Whether the tests find the bug, and what was printed."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy_tree(Path(folder))
        applied = subprocess.run(
            ["git", "apply", "--unsafe-paths", "--whitespace=nowarn", str(planted.patch)],
            cwd=folder, capture_output=True, text=True, check=False,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(Path(folder).parent)},
        )  # fmt: skip
        if applied.returncode != 0:
            return planted, False, f"the patch no longer fits:\n{applied.stderr}"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", *planted.tests],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return planted, done.returncode == FAILED, done.stdout[-3_000:] + done.stderr[-1_000:]


def main() -> int:
    """Look for each bug; 1 if one was missed."""
    wanted = set(sys.argv[1:])
    bugs = [read(patch) for patch in sorted(Path(__file__).parent.glob("*.patch"))]
    bugs = [bug for bug in bugs if not wanted or bug.name in wanted]
    began, missed = time.monotonic(), 0
    with ThreadPoolExecutor(2) as pool:
        for planted, found, printed in pool.map(find, bugs):
            print(f"{'found ' if found else 'MISSED'}  {planted.name}: {planted.bug}", flush=True)
            if not found:
                missed += 1
                print(printed)
    print(f"{len(bugs) - missed} of {len(bugs)} planted bugs were found, in {time.monotonic() - began:.0f} s")
    return 1 if missed or not bugs else 0


if __name__ == "__main__":
    sys.exit(main())
