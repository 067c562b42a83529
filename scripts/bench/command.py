"""Measure penstock: `python -m scripts.bench flight|spark|topics`, which `make bench…` runs, puts figures into docs/.

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
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import penstock
from scripts import spark_matrix
from scripts.bench import kafka
from scripts.bench.against import ROOT, ROUNDS, Turns, compare
from scripts.bench.bench import Bench, Case, Page
from scripts.bench.figures import Result
from scripts.bench.page import check_headings, filled, machine
from scripts.bench.pages import flight, spark, topics

PAGES = {"flight": flight.PAGE, "spark": spark.PAGE, "topics": topics.PAGE}


def main() -> None:
    """Measure, and write the page or compare with another revision."""
    if sys.platform != "linux":
        sys.exit("the benchmarks look into /proc: they run on Linux")
    options = _options()
    _prepare_environment(options)
    page = PAGES[options.page]
    without_kafka = _without_kafka(page, options)
    if options.turns is None and (lack := page.lacks()):
        sys.exit(lack)
    if options.against:
        compare(options.against, [word for word in sys.argv[1:] if word not in ("--against", options.against)])
        return
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as name, ExitStack() as run:
        folder, room = Path(name), page.sizes[options.amount].room
        free = shutil.disk_usage(folder).free >> 20
        if free < room:
            sys.exit(f"{folder.parent} has {free:,} MiB free, {room:,} are needed: use --folder, or --quick")
        bench = Bench(folder, run, settles=options.amount != "smoke", with_kafka=not without_kafka)
        if options.turns is None:
            _write(page, options, bench, without_kafka)
        else:
            _take_turns(page, options, bench)


def _prepare_environment(options: argparse.Namespace) -> None:
    """Let all processes have the penstock that this one has, with its defaults."""
    package = Path(penstock.__file__).resolve().parents[1]
    path = os.pathsep.join(map(str, dict.fromkeys((package, ROOT))))
    if options.turns is not None and os.environ["PYTHONPATH"] != path:
        sys.exit(f"the revision to compare with is in {os.environ['PYTHONPATH']}, this is the penstock of {package}")
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]
    os.environ.update(PYTHONPATH=path, PYTHONSAFEPATH="1")  # else the current folder's penstock would come first


def _write(page: Page, options: argparse.Namespace, bench: Bench, without_kafka: str) -> None:
    began, results, text = time.monotonic(), list[Result](), (ROOT / page.output).read_text()
    check_headings(text, [line.heading for case in _cases(page, options) for line in case.lines])
    for case in _cases(page, options):
        without = page.of_kafka if without_kafka else frozenset[str]()
        for result in case.measure(bench, without, options.rounds or case.rounds):
            results.append(result)
            words = [result.line.heading, result.data, *result.cells]
            print(f"{time.monotonic() - began:5.0f} s", *filter(None, words), sep="  ", file=sys.stderr, flush=True)
    if options.only:
        return
    amount = "" if options.amount == "all" else f" ARGS=--{options.amount}"
    rounds, day = options.rounds or page.sizes[options.amount].rounds, time.strftime("%d %B %Y", time.gmtime())
    facts = [*machine(bench.folder), *bench.notes]
    facts += [f"Kafka left out: {without_kafka}"] if without_kafka and page.of_kafka else []
    facts.append(f"`{page.command}{amount}`, {rounds} rounds, {day}, {time.monotonic() - began:.0f} s")
    output = options.output or ROOT / page.output
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(filled(text, results, facts))
    broken = [result.line.what for result in results if result.kept is False]
    print(f"wrote {output}; {f'not kept: {broken}' if broken else 'every promise kept'}", file=sys.stderr)


def _take_turns(page: Page, options: argparse.Namespace, bench: Bench) -> None:
    turns = Turns(options.turns)
    for case in _cases(page, options):
        rounds = options.rounds or max(ROUNDS, case.rounds)
        for result in case.measure(bench, page.others, rounds, before=turns.wait):
            turns.tell(result)


def _cases(page: Page, options: argparse.Namespace) -> Iterator[Case]:
    for case in page.cases(page.sizes[options.amount]):
        if not options.only or any(line.heading in options.only for line in case.lines):
            yield case


def _without_kafka(page: Page, options: argparse.Namespace) -> str:
    """Say why there will be no Kafka, if so. Where there will, go on with the Spark that has a source for it."""
    if not page.of_kafka or options.without_kafka or options.against or options.turns is not None:
        return "it was not asked for"
    if not shutil.which("mvn"):
        return "Maven isn't here, which gets Kafka and Spark's source for it (Debian and Ubuntu: apt install maven)"
    import pyspark

    if not pyspark.__version__.startswith(kafka.SPARK):
        python = str(spark_matrix.environment(kafka.SPARK))
        os.execv(python, [python, "-m", "scripts.bench", *sys.argv[1:]])
    return ""


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
    without = "leave Kafka out, and take the Spark that is installed"
    parser.add_argument("--without-kafka", action="store_true", help=without)
    against = f"compare with this revision, in turn, at least {ROUNDS} rounds; writes no page"
    parser.add_argument("--against", metavar="REV", help=against)
    parser.add_argument("--turns", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()
