"""Plant known bugs, one at a time, in copies of the code: the tests named in each patch must go red.

    python scripts/planted/run.py [NAME …]

Without names: all but those that a run of chaos looks for, for minutes each; `make soak` names them.

A patch begins with two lines, `Bug:` and `Tests:` (arguments for pytest). Then, for each file, `== path` and its
changes, parted by `--`: lines as in a diff, with just enough around them that they stand in the file once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
AT_ONCE = 2 * (os.cpu_count() or 1)
"""Bugs that are looked for side by side: most tests wait, for a process or a limit, longer than they compute."""
FAILED = 1
"""pytest's exit code for tests that failed; the others mean that none ran, or that they couldn't."""


@dataclass(frozen=True)
class Planted:
    """A bug to be found."""

    name: str
    bug: str
    tests: list[str]
    patch: Path

    @property
    def is_for_chaos(self) -> bool:
        """Whether a run of chaos looks for it."""
        return self.tests[0].startswith("tests/chaos/")


def read(patch: Path) -> Planted:
    """A patch and its two lines."""
    text = patch.read_text()
    match = re.match(r"Bug: (.+)\nTests: (.+)\n", text)
    if not match:
        raise SystemExit(f"{patch.name}: expected the lines 'Bug: …' and 'Tests: …' at the top")
    return Planted(patch.stem, match[1], match[2].split(), patch)


def copy_tree(target: Path) -> None:
    """The files that git knows or would take, as they are in the work tree, each with its bytecode: half a second."""
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
            shutil.copy2(source, to)
            for compiled in source.parent.glob(f"__pycache__/{source.stem}.*.pyc"):
                (to.parent / "__pycache__").mkdir(exist_ok=True)
                shutil.copy2(compiled, to.parent / "__pycache__")


def plant(patch: str, folder: Path) -> None:
    """Carry out a patch's changes in a copy of the code; LookupError names lines that don't stand there once."""
    for section in re.split(r"^== ", patch, flags=re.MULTILINE)[1:]:
        name, _, changes = section.partition("\n")
        text = "\n" + (folder / name).read_text()
        for change in changes.split("\n--\n"):
            lines = change.strip("\n").split("\n")
            before = "".join(f"\n{line[1:]}" for line in lines if line[:1] != "+")
            after = "".join(f"\n{line[1:]}" for line in lines if line[:1] != "-")
            if text.count(before + "\n") != 1:
                raise LookupError(f"{name} has {text.count(before)} times:{before}")
            text = text.replace(before + "\n", after + "\n")
        (folder / name).write_text(text[1:])


def find(planted: Planted) -> tuple[Planted, bool, str, float]:
    """Whether the tests find the bug, what was printed, and how many seconds it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy_tree(Path(folder))
        try:
            plant(planted.patch.read_text(), Path(folder))
        except LookupError as unfit:
            return planted, False, f"the patch no longer fits: {unfit}", 0.0
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", *planted.tests],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        printed, seconds = done.stdout[-3_000:] + done.stderr[-1_000:], time.monotonic() - began
        return planted, done.returncode == FAILED, printed, seconds


def main() -> int:
    """Look for each bug; 1 if one was missed."""
    wanted = set(sys.argv[1:])
    bugs = [read(patch) for patch in sorted(Path(__file__).parent.glob("*.patch"))]
    bugs = [bug for bug in bugs if bug.name in wanted or not (wanted or bug.is_for_chaos)]
    began, missed = time.monotonic(), 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for planted, red, printed, seconds in pool.map(find, bugs):
            print(f"{'found ' if red else 'MISSED'} {seconds:4.0f} s  {planted.name}: {planted.bug}", flush=True)
            if not red:
                missed += 1
                print(printed)
    print(f"{len(bugs) - missed} of {len(bugs)} planted bugs were found, in {time.monotonic() - began:.0f} s")
    return 1 if missed or not bugs else 0


if __name__ == "__main__":
    sys.exit(main())
