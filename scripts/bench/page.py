"""The figures of a page of docs/, and the machine that they are of, put into what the page says of them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

import penstock
from scripts.bench.figures import Result

_HEAD = "| | measured | beside | measured | ratio | worst | promise | kept |\n|---|--:|---|--:|--:|--:|--:|---|\n"


def check_headings(text: str, headings: Iterable[str]) -> None:
    """Refuse figures that the page says nothing of, before they are measured."""
    if missing := set(headings) - set(re.findall("^## (.*)", text, re.MULTILINE)):
        sys.exit(f"the page has no heading {', '.join(sorted(missing))}: say there how its figures are taken")


def filled(text: str, results: Sequence[Result], facts: Sequence[str]) -> str:
    """Return a page with these figures and facts in place of its own. Its words stay."""
    about, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    judged = [result.kept for result in results if result.kept is not None]
    page = re.split(r"^\d+ of \d+ promises", about, flags=re.MULTILINE)[0]
    page += f"{sum(judged)} of {len(judged)} promises kept.\n\n"
    unkept = ""
    for result in results:
        if result.line.promise and not result.kept:
            what = [result.line.what, *([f"beside {result.line.beside}"] if result.line.beside else [])]
            kept = "Not looked at" if result.kept is None else "**Not kept**"
            unkept += f"- {kept}: {' '.join(what)}{', ' if result.data else ''}{result.data}\n"
    page += (f"{unkept}\n" if unkept else "") + "".join(f"- {fact}\n" for fact in facts)
    for section in sections:
        words = re.split(r"^(?:\||### )", section, flags=re.MULTILINE)[0]  # up to its first table
        page += f"\n## {words.rstrip()}\n"
        own = [result for result in results if section.startswith(f"{result.line.heading}\n")]
        for data in dict.fromkeys(result.data for result in own):
            rows = [f"| {' | '.join(result.cells)} |\n" for result in own if result.data == data]
            page += (f"\n### {data}\n\n" if data else "\n") + _HEAD + "".join(rows)
    return page


def machine(folder: Path) -> list[str]:
    """Say what machine this is, and what runs on it."""
    cores = len(os.sched_getaffinity(0))
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    disk = subprocess.run(["df", "--output=fstype,source", str(folder)], check=True, capture_output=True, text=True)
    return [
        f"{cores} cores ({model[1] if model else platform.machine()}), {ram:.0f} GiB RAM",
        f"{platform.system()} {platform.release()}, data on {' '.join(disk.stdout.splitlines()[-1].split())}",
        f"penstock {penstock.__version__}, pyarrow {pa.__version__}, Python {platform.python_version()}",
    ]
