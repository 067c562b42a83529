"""What the benchmarks' command lines share: how much, where to, and whether there is room."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path


def options(about: str | None, page: str, *, quick: str, smoke: str, **switches: str) -> argparse.Namespace:
    """The command line: `--quick` or `--smoke`, the page, the folder of the data, and what else is on or off."""
    parser = argparse.ArgumentParser(description=about)
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--quick", action="store_true", help=quick)
    amount.add_argument("--smoke", action="store_true", help=smoke)
    parser.add_argument("--output", type=Path, default=Path(page), help="the page (%(default)s)")
    default = "/var/tmp" if Path("/var/tmp").is_dir() else None  # often a disk where /tmp is memory
    parser.add_argument("--folder", type=Path, default=default, help="where all data is kept (%(default)s)")
    for name, words in switches.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=words)
    return parser.parse_args()


def check_room(folder: Path, needed: int) -> None:
    """End with the cure where so many MiB aren't free."""
    free = shutil.disk_usage(folder).free >> 20
    if free < needed:
        sys.exit(f"{folder.parent} has {free:,} MiB free, {needed:,} are needed: use --folder, or --quick")
