"""`run`: workers of a queue, each a process with an operator of yours."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import time
from typing import Any

import click

from penstock.cli import terminal
from penstock.cli.invocation import Invocation, command, complete_path
from penstock.errors import InvalidRequest
from penstock.text import counted

_STOPPED = 128 + signal.SIGTERM


@command(
    "Work on a queue with an operator of yours.",
    "penstock run scores:Score --queue queue/demo/in --to queue/demo/out --workers 4",
)
@click.argument("operator", metavar="MODULE:OPERATOR")
@click.option("--queue", required=True, metavar="PATH", shell_complete=complete_path, help="The queue to claim from.")
@click.option("--to", multiple=True, metavar="PATH", help="A queue for what comes out; may be given several times.")
@click.option("--workers", type=click.IntRange(1, 1_000), default=1, show_default=True, help="Processes.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="For one split.")
def run(
    invocation: Invocation, operator: str, queue: str, to: tuple[str, ...], workers: int, timeout: float | None
) -> int:
    """Run the function or the class OPERATOR of MODULE, found from here as Python finds it, over the splits of a queue.

    Ends when the queue is complete. A split that fails is tried five times, one that kills its worker twice runs alone
    at the end. Ctrl-C and SIGTERM let the workers end their present splits.
    """
    logging.basicConfig(level="WARNING", stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    from penstock.pipeline.pools import open_pool  # and pyarrow, which --help doesn't need
    from penstock.pipeline.run import run_workers

    what = _load(operator)
    stops: list[bool] = []  # no event: a signal's handler must not take a lock
    began = time.monotonic()
    with (
        invocation.connect() as client,
        terminal.on_signal(lambda: stops.append(True), signal.SIGTERM, signal.SIGINT),
    ):
        figures = run_workers(
            client, queue, what, pool=open_pool("processes"), to=to, workers=workers, timeout=timeout,
            is_stopping=lambda: bool(stops),
        )  # fmt: skip
    seconds = time.monotonic() - began
    if invocation.json:
        counts = {"done": figures.done, "failed": figures.failed, "lost": figures.lost, "deaths": figures.deaths}
        terminal.print_json({"queue": queue, **counts, "seconds": round(seconds, 3)})
    else:
        click.echo(f"{queue}: {counted(figures.done, 'split')} done, {figures.failed:,} failed in {seconds:.1f} s")
    return _STOPPED if stops else 0


def _load(text: str) -> Any:
    """Return what MODULE:NAME names."""
    module, _, name = text.partition(":")
    if not (module and name):
        raise InvalidRequest(f"{text!r}: expected MODULE:OPERATOR, such as scores:Score")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as missing:
        raise InvalidRequest(f"{module} can't be imported from here: {missing}") from missing
    except AttributeError as missing:
        raise InvalidRequest(f"{module} has no {name!r}") from missing
