"""Measure puts and gets beside plain pyarrow, and write docs/benchmarks.md: `make bench`, or with ARGS=--quick.

Every figure is a ratio of two neighbours in one run: absolute numbers of a shared machine say little.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

from scripts import bench_command, bench_process, bench_streams
from scripts.bench_page import page
from scripts.bench_rows import FULL, QUICK, SMOKE, Row, Sizes
from scripts.bench_servers import bare, penstock


def main() -> None:
    """Measure, show, write."""
    if sys.platform != "linux":
        sys.exit("the benchmarks look into /proc: they run on Linux")
    options = bench_command.options(
        __doc__,
        "docs/benchmarks.md",
        quick="a payload of 512 MiB instead of 4 GiB, fewer repeats",
        smoke="a few MiB: shows that it runs, measures nothing",
    )
    sizes = SMOKE if options.smoke else QUICK if options.quick else FULL
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as name:
        folder = Path(name)
        _check_room(folder, sizes)
        sections: dict[str, list[Row]] = {}
        for section, row in _measured(folder, sizes):
            sections.setdefault(section, []).append(row)
            _show(section, row, time.monotonic() - began)
        text = page(sections, sizes, folder, time.monotonic() - began)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text)
    missed = [row.what for rows in sections.values() for row in rows if row.held is False]
    print(f"wrote {options.output}; {f'not held: {missed}' if missed else 'every promise held'}", file=sys.stderr)


def _measured(folder: Path, sizes: Sizes) -> Iterator[tuple[str, Row]]:
    """Each row with the heading that it stands under."""
    for row in bench_process.large(folder / "large", sizes):
        yield "Memory", row
    shutil.rmtree(folder / "large")
    with ExitStack() as stack:
        plain = stack.enter_context(bare())
        memory = stack.enter_context(penstock(folder / "memory", "memory:"))
        disk = stack.enter_context(penstock(folder / "disk", "disk:"))
        for row in bench_streams.gets(plain, memory, disk, sizes):
            yield "do_get", row
        for row in bench_streams.mapped(plain, disk, sizes):
            yield "get on the same host", row
        for row in bench_streams.puts(plain, memory, disk, sizes):
            yield "do_put", row
        for row in bench_process.small(plain, disk, sizes):
            yield "Small calls", row
    for row in bench_process.imports(sizes):
        yield "Imports", row


def _check_room(folder: Path, sizes: Sizes) -> None:
    needed = (sizes.large_mb + 4 * max(sizes.puts_mb)) * 6 // 5  # MiB
    bench_command.check_room(folder, needed)


def _show(section: str, row: Row, seconds: float) -> None:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}x (worst {row.worst:.2f})"
    mark = {True: "held", False: "NOT HELD", None: ""}[row.held]
    words = [f"{seconds:5.0f} s", f"{section}: {row.what}", f"{row.bare} -> {row.ours}", ratio, row.promise, mark]
    print("  ".join(word for word in words if word), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
