"""docs/benchmarks.md: the figures, the machine that they are of, and how each was taken."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

import penstock
from scripts.bench_rows import FULL, QUICK, SMOKE, Row, Sizes

_HEAD = """\
Written by `make bench`: penstock beside a bare pyarrow `FlightServerBase` that keeps tables in a dict, each server in
a process of its own, on loopback, with the same plain pyarrow client unless said otherwise.
Both run as they come, memory allocator included.

The sides take turns within one run: one round to warm up, then {repeats} measured ones (ten blocks of small calls),
each begun by another side. A ratio is bare's time by penstock's in the same round. The table has the median of the
ratios, by which a promise is judged, and the worst. The rates are medians; on a machine that does other things too
they mean little, the ratios more.
"""
_SMOKE = "**A smoke run: it shows that the script works, its numbers mean nothing.**"
_HOW = {
    "Memory": """\
A fresh server with a disk store. Idle is its resident memory before the first call. Growth is the most private
memory (RssAnon, read every 5 ms) that it had during the stream, less what it had before. The payload is a generator
of 1 MiB batches; it is streamed out again ticket by ticket with do_get, nothing of it mapped by the client. What
comes in faster than the disk takes it, gRPC reads ahead: it estimates how much, and more on a machine that is busy.""",
    "do_get": """\
Datasets of 1 MiB batches (an int64 and a float64 column of random values). Tickets are fetched beforehand; both sides
are read by one and the same loop of `do_get(ticket).read_all()`, one ticket after the other: penstock has a ticket
for each run of parts of up to 32 MiB, the bare server one for the whole. The disk store is warm: its bytes are in
the page cache and were checked against their checksums at the first read.""",
    "get on the same host": """\
`c.get(path).read_all()` with penstock's client, which asks for the tickets each time and then maps the parts'
descriptors, beside the bare server's `do_get(ticket).read_all()`. Mapping touches no data, so there is a second line,
in which both sides also sum up every value. As above, the parts were checked before.""",
    "do_put": """\
A stream of 1 MiB batches until the server has answered that it holds them; deleted after each repeat, outside of the
measurement. The bare server does `read_all()` into a dict. Both of penstock's stores validate every batch and record
the write in the ledger, which is fsynced; the disk store also checksums and fsyncs the data. Of 1 MiB nothing is
promised: there it is the ledger's and the file's fsync that is measured.""",
    "Small calls": """\
One client, one ticket, a table of ten rows, ten blocks on each side in turn. Threads and descriptors are the server's
(/proc/PID) after the first block and within 10 s after the last.""",
    "Imports": """\
Fresh interpreters from start to end; under "bare" is the program that it is compared with. 1.2 times its time is a
ratio of 0.83. pyarrow imports numpy where it finds it, as it did here; without it the same work of penstock's stands
beside a shorter import, which is the last line.""",
}


def page(sections: Mapping[str, Sequence[Row]], sizes: Sizes, folder: Path, seconds: float) -> str:
    """The whole page."""
    rows = [row for some in sections.values() for row in some]
    promised = [row for row in rows if row.held is not None]
    missed = [row for row in promised if not row.held]
    judged = f"{len(promised) - len(missed)} of {len(promised)} promises held."
    return "\n".join(
        [
            "# Benchmarks",
            "",
            _HEAD.format(repeats=sizes.repeats),
            *([_SMOKE, ""] if sizes == SMOKE else []),
            *[judged, *[f"- **Not held**: {row.what}" for row in missed]],
            "",
            *machine(folder),
            f"- `{_command(sizes)}`, {time.strftime('%d %B %Y', time.gmtime())}, {seconds:.0f} s",
            "",
            *[line for heading, some in sections.items() for line in _section(heading, some)],
        ]
    )


def _section(heading: str, rows: Sequence[Row]) -> list[str]:
    lines = [f"## {heading}", "", _HOW[heading], "", "| | bare | penstock | ratio | worst | promise | held |"]
    lines.append("|---|--:|--:|--:|--:|--:|---|")
    for row in rows:
        held = {True: "yes", False: "**NO**", None: ""}[row.held]
        cells = [row.what, row.bare, row.ours, _ratio(row.ratio), _ratio(row.worst), row.promise, held]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _command(sizes: Sizes) -> str:
    return {FULL: "make bench", QUICK: "make bench ARGS=--quick"}.get(sizes, "scripts/bench_flight.py --smoke")


def machine(folder: Path) -> list[str]:
    """The lines that say what machine this is, and what ran on it."""
    cores = len(os.sched_getaffinity(0))
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        f"- {cores} cores ({_processor()}), {ram:.0f} GiB RAM, {platform.system()} {platform.release()}",
        f"- data on {_disk(folder)}",
        f"- penstock {penstock.__version__}, pyarrow {pa.__version__}, Python {platform.python_version()}",
    ]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _disk(folder: Path) -> str:
    """The file system of a folder, and what kind of device it is on."""
    at = os.stat(folder).st_dev
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    kind = next((m[2] for m in reversed(mounts) if os.path.exists(m[1]) and os.stat(m[1]).st_dev == at), "?")
    device = Path(f"/sys/dev/block/{os.major(at)}:{os.minor(at)}").resolve()
    for queue in (device / "queue/rotational", device.parent / "queue/rotational"):
        if queue.exists():
            turns = "rotating" if queue.read_text().strip() == "1" else "not rotating"
            return f"{kind}, {device.name} ({turns} by its own word)"
    return f"{kind} (no disk of its own: an fsync may cost nothing there)"
