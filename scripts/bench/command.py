"""Measure penstock: `python -m scripts.bench PAGE`, which `make bench…` runs, puts figures into docs/.

Every figure is a ratio of two neighbours in one run: absolute numbers of a shared machine say little. A new page is a
file of cases in pages/ and one in docs/ that says how its figures are taken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import penstock
from scripts import spark_matrix
from scripts.bench import kafka, on_ray
from scripts.bench.against import ROOT, ROUNDS, compare, take_turns
from scripts.bench.bench import Bench, Page
from scripts.bench.figures import Result, Work, nothing
from scripts.bench.page import check_headings, filled, machine
from scripts.bench.pages import connect, flight, jobs, pubsub, queue, spark, topics, typed

PAGES = {
    "connect": connect.PAGE,
    "flight": flight.PAGE,
    "jobs": jobs.PAGE,
    "pubsub": pubsub.PAGE,
    "queue": queue.PAGE,
    "spark": spark.PAGE,
    "topics": topics.PAGE,
    "typed": typed.PAGE,
}


def main() -> None:
    """Measure, and write the page or compare with another revision."""
    if sys.platform != "linux":
        sys.exit("the benchmarks look into /proc: they run on Linux")
    options = _options()
    _prepare_environment(options)
    page = PAGES[options.page]
    missing = _missing_rivals(page, options)
    if options.turns is None and (lack := page.lacks()):
        sys.exit(lack)
    if options.against:
        without = argparse.ArgumentParser(add_help=False)
        without.add_argument("--against")
        compare(options.against, without.parse_known_args()[1])
        return
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as name, ExitStack() as run:
        folder, room = Path(name), page.sizes[options.amount].room
        free = shutil.disk_usage(folder).free >> 20
        if free < room:
            sys.exit(f"{folder.parent} has {free:,} MiB free, {room:,} are needed: use --folder, or --quick")
        bench = Bench(
            folder, run, settles=options.amount != "smoke", with_kafka=kafka.NAME in page.rivals.keys() - missing
        )
        if options.turns is None:
            _write(page, options, bench, missing)
        else:
            take_turns(options.turns, partial(_measure, page, options, bench, page.others, ROUNDS))


def _prepare_environment(options: argparse.Namespace) -> None:
    """Let all processes have the penstock that this one has, with its defaults."""
    package = Path(penstock.__file__).resolve().parents[1]
    path = os.pathsep.join(map(str, dict.fromkeys((package, ROOT))))
    if options.turns is not None and os.environ["PYTHONPATH"] != path:
        sys.exit(f"the revision to compare with is in {os.environ['PYTHONPATH']}, this is the penstock of {package}")
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]
    os.environ.update(PYTHONPATH=path, PYTHONSAFEPATH="1")  # else the current folder's penstock would come first


def _measure(
    page: Page,
    options: argparse.Namespace,
    bench: Bench,
    without: frozenset[str],
    at_least: int,
    before: Work = nothing,
) -> Iterator[Result]:
    """Measure the page's cases, or those that were asked for, without some sides."""
    for case in page.cases(page.sizes[options.amount]):
        if not options.only or any(line.heading in options.only for line in case.lines):
            yield from case.measure(bench, without, options.rounds or max(case.rounds, at_least), before)


def _write(page: Page, options: argparse.Namespace, bench: Bench, missing: Mapping[str, str]) -> None:
    """Measure the page's cases and put their figures into it."""
    began, results, text = time.monotonic(), list[Result](), (ROOT / page.output).read_text()
    sizes = page.sizes[options.amount]
    check_headings(text, [*(options.only or []), *(line.heading for case in page.cases(sizes) for line in case.lines)])
    without = frozenset[str]().union(*(page.rivals[rival] for rival in missing))
    for result in _measure(page, options, bench, without, 1):
        results.append(result)
        words = [result.line.heading, result.data, *result.cells]
        print(f"{time.monotonic() - began:5.0f} s", *filter(None, words), sep="  ", file=sys.stderr, flush=True)
    if options.only:
        return
    amount = "" if options.amount == "all" else f" ARGS=--{options.amount}"
    day, took = time.strftime("%d %B %Y", time.gmtime()), time.monotonic() - began
    facts = [*machine(bench.folder), *bench.notes]
    facts += [f"{rival} left out: {reason}" for rival, reason in missing.items()]
    facts.append(f"`{page.command}{amount}`, {options.rounds or sizes.rounds} rounds, {day}, {took:.0f} s")
    output = options.output or ROOT / page.output
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(filled(text, results, facts))
    broken = [result.line.what for result in results if result.kept is False]
    print(f"wrote {output}; {f'not kept: {broken}' if broken else 'every promise kept'}", file=sys.stderr)


def _missing_rivals(page: Page, options: argparse.Namespace) -> dict[str, str]:
    """Say which rivals there won't be, and why. Where there will be Kafka, go on with the Spark that has a source."""
    if options.without_rivals or options.against or options.turns is not None:
        return dict.fromkeys(page.rivals, "it was not asked for")
    lacks: Mapping[str, Callable[[], str]] = {kafka.NAME: kafka.lacks, on_ray.NAME: on_ray.lacks}
    missing = {rival: lack for rival in page.rivals if (lack := lacks[rival]())}
    if kafka.NAME in page.rivals.keys() - missing:
        import pyspark

        if not pyspark.__version__.startswith(kafka.SPARK):
            python = str(spark_matrix.environment(kafka.SPARK))
            os.execv(python, [python, "-m", "scripts.bench", *sys.argv[1:]])
    return missing


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__)
    parser.add_argument("page", choices=PAGES)
    amount = parser.add_mutually_exclusive_group()
    for name, words in (("quick", "less data, fewer rounds"), ("smoke", "shows that it runs, measures nothing")):
        amount.add_argument(f"--{name}", dest="amount", action="store_const", const=name, default="all", help=words)
    parser.add_argument("--output", type=Path, help="the page; by default the one in docs/")
    folder = "/var/tmp" if Path("/var/tmp").is_dir() else None  # often a disk where /tmp is memory
    parser.add_argument("--folder", type=Path, default=folder, help="where all data is kept (%(default)s)")
    parser.add_argument("--only", action="append", metavar="HEADING", help="these figures, not written; repeatable")
    parser.add_argument("--rounds", type=int, help="so many in place of each case's own")
    without = "leave Kafka and Ray out, and take the Spark that is installed"
    parser.add_argument("--without-rivals", action="store_true", help=without)
    against = f"compare with this revision, in turn, at least {ROUNDS} rounds; writes no page"
    parser.add_argument("--against", metavar="REV", help=against)
    parser.add_argument("--turns", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()
