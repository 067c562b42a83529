"""`rm`: delete datasets, topics and folders of them; end writes."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import app, terminal
from penstock.cli.invocation import Invocation, command, complete_path
from penstock.cli.kinds import kind_at
from penstock.errors import InvalidRequest, NotFound, PenstockError
from penstock.text import counted, format_age, format_size

if TYPE_CHECKING:
    from penstock.client.client import Client


@command("Delete datasets, topics, queues, jobs and folders, end writes.", "penstock rm store/demo/trips")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, shell_complete=complete_path)
@click.option("-r", "--recursive", is_flag=True, help="Folders too, with all that lies in them.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@click.option("--now", is_flag=True, help="Free the bytes at once: undelete can't bring them back.")
def rm(invocation: Invocation, paths: tuple[str, ...], *, recursive: bool, yes: bool, now: bool) -> int:
    """Delete datasets, topics, queues, and jobs with their queues; with -r folders; `rm write/ID` ends an open write.
    A deleted consumer (`rm consumer/topic/orders/billing`) holds no rows any more; one that returns begins anew.

    A reader that has begun may read to its end. On a terminal it asks before it deletes a folder; without one it needs
    -y, as nobody sees a slip. `penstock undelete PATH` brings a dataset back for a while.
    """
    if "" in paths:  # a variable of a script's that isn't set: with -r it would be all there is
        raise InvalidRequest("a path is empty, so nothing was deleted: expected paths such as store/demo/trips")
    if not yes and not terminal.is_terminal(sys.stdin):
        recursively = "-r " if recursive else ""
        raise InvalidRequest(f"no terminal to ask at; to delete: penstock rm -y {recursively}{' '.join(paths)}")
    code = 0
    with invocation.connect() as client:
        for path in paths:
            try:
                for each in _paths_to_delete(client, path, recursive=recursive, ask=not yes):
                    answer = client.delete(each, now=now)
                    if invocation.json:
                        terminal.print_json(answer)
                    else:
                        click.echo(_said(each, answer))
            except PenstockError as error:
                failure = app.report_failure(str(error), app.exit_code(error))
                code = code or failure
    return code


def _said(path: str, answer: dict[str, Any]) -> str:
    """Return what was deleted, and for how long it may come back."""
    kind = kind_at(path)
    count = counted(answer["rows"], kind.holds)
    said = kind.deleted.format(**answer, count=count, size=format_size(answer["bytes"]))
    if "until" not in answer:
        return said
    return f"{said}; penstock undelete {path} brings it back, for {format_age(answer['until'] - time.time())} at most"


def _paths_to_delete(client: Client, path: str, *, recursive: bool, ask: bool) -> list[str]:
    """Return the path itself; of a folder the paths in it, if that is what the user wants."""
    below = []
    with contextlib.suppress(NotFound):  # then the server's answer to the deletion says so
        below = [entry.path for entry in client.list(path, recursive=True)]
    if below in ([], [path]):
        return [path]
    folder, things = path.rstrip("/") + "/", counted(len(below), kind_at(path).name)
    if not recursive:
        raise InvalidRequest(f"{folder} is a folder with {things}: penstock rm -r {folder}")
    return [] if ask and not click.confirm(f"Delete {things} in {folder}?", err=True) else below
