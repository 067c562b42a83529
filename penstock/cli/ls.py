"""`ls` and `show`: what there is at the server, and what is known about one thing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import kinds, terminal
from penstock.cli.invocation import Invocation, command, complete_path
from penstock.errors import NotFound
from penstock.text import counted, format_age, format_size

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.wire.read import Entry


@command("List a folder, topics, or the open writes.", "penstock ls store/demo")
@click.argument("path", shell_complete=complete_path, required=False)
@click.option("-r", "--recursive", is_flag=True, help="All datasets below, not the folders.")
def ls(invocation: Invocation, path: str | None, *, recursive: bool) -> None:
    """List the folder PATH; without it, all datasets and topics.

    `penstock ls write` lists the open writes, `ls consumer` who reads topics and how far, `ls queue` the queues,
    `ls queue/NAME/dead` what was set aside, and why, `ls job` the jobs.
    """
    from penstock.client.views import Listing

    roots = [kind.root for kind in kinds.KINDS if kind.in_ls] if path is None else [path]
    things: list[dict[str, Any]] = []
    tables = []
    with invocation.connect() as client:
        entries = [entry for root in roots for entry in client.list(root, recursive=recursive)]
        held = deleted_and_held(client) if path is None and terminal.is_terminal() else ""
        entries.sort(key=lambda entry: entry.kind != "folder")
        for columns, group in groupby(entries, key=lambda entry: kinds.kind_named(entry.kind).listing):
            listing = Listing([*group])
            if columns is None:
                things += [{name: value for name, value in e.to_json().items() if name != "local"} for e in listing]
                tables.append(repr(listing))
            else:
                reads = kinds.kind_named(listing[0].kind).reads
                details = _rows_at(client, listing[0].path) if reads else describe_each(client, listing)
                things += details
                tables.append(kinds.text_of(columns, details))
    if invocation.json:
        terminal.print_json(*things)
        return
    for table in tables:
        terminal.print_table(table)
    if not tables:
        click.echo(kinds.kind_at(roots[0]).nothing, err=True)
    if held:
        click.secho(held, dim=True, err=True)


@command("Describe a dataset, a topic, a folder or a write.", "penstock show store/demo/trips")
@click.argument("path", shell_complete=complete_path)
def show(invocation: Invocation, path: str) -> None:
    """Describe PATH: a dataset, a topic with its shards and consumers, a folder, or a write (write/ID)."""
    with invocation.connect() as client:
        thing = _describe(client, path)
    if invocation.json:
        terminal.print_json(thing)
        return
    kind = kinds.kind_named(thing["kind"])
    columns = kind.facts or {name: name for name, value in thing.items() if isinstance(value, str | int | float)}
    terminal.print_facts(kind.title.format(**thing), kinds.cells(columns, thing))
    for table in kind.show:
        rows = table.rows(thing)
        click.secho(f"  {counted(len(rows), table.noun)}", dim=True)
        for line in kinds.text_of(table.columns, rows).splitlines() if rows else ():
            click.echo(f"    {line}")


def deleted_and_held(client: Client) -> str:
    """Return a line about the bytes of deleted rows that are still there; nothing without such."""
    health = client.call("health")
    if not (size := health.get("ticketed_bytes")):
        return ""
    left = format_age(health["ticketed_until"] - time.time())
    return f"{format_size(size)} of deleted rows are held by read tickets and for undelete, for {left} at most"


def describe_each(client: Client, entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return what the server says about each path, without those that are deleted meanwhile."""
    things = []
    for path in dict.fromkeys(entry.path for entry in entries):
        with suppress(NotFound):
            things.append(client.call("describe", {"path": path}))
    return things


def _rows_at(client: Client, path: str) -> list[dict[str, Any]]:
    """Return the rows that are read at a path, times in seconds since 1970."""
    rows: list[dict[str, Any]] = client.get(path).read_all().to_pylist()
    return [
        {name: value.timestamp() if isinstance(value, datetime) else value for name, value in row.items()}
        for row in rows
    ]


def _describe(client: Client, path: str) -> dict[str, Any]:
    """Return what the server says about a path; about a folder the sums of all that lies in it."""
    if "/" in path.rstrip("/"):
        try:
            return client.call("describe", {"path": path})
        except NotFound:
            pass  # it is a folder, or listing it raises the same
    entries = client.list(path, recursive=True)
    sums = {name: sum(getattr(entry, name) for entry in entries) for name in ("rows", "bytes", "parts")}
    changed = max((entry.changed or 0.0 for entry in entries), default=None)
    path = path.rstrip("/") + "/"
    return {"kind": "folder", "path": path, kinds.kind_at(path).plural: len(entries), **sums, "changed": changed}
