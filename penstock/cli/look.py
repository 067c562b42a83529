"""`ls` and `show`: what there is, and what it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock import readable
from penstock.cli import tables
from penstock.cli.session import Session, completed, example, pass_session, shared
from penstock.errors import NotFound

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.views import Listing
    from penstock.wire import Entry

_ENDED = {"finished": "yes", "aborted": "never, it was aborted", "expired": "never, it was idle for too long"}
_LOST = "its rows were in the memory of a server that has ended; put it again with --mode overwrite"


@click.command(epilog=example("penstock ls store/demo"), short_help="List a folder, or the open writes.")
@click.argument("path", shell_complete=completed, default="store/")
@click.option("-r", "--recursive", is_flag=True, help="All datasets below, not the folders.")
@shared
@pass_session
def ls(session: Session, path: str, *, recursive: bool) -> None:
    """List what lies in PATH, a folder (store/). `penstock ls write` lists the writes that are open."""
    with session.connect() as client:
        found = client.list(path, recursive=recursive)
        if path.partition("/")[0] == "write":
            _list_writes(session, [client.call("describe", {"path": entry.path}) for entry in found])
        else:
            _list_datasets(session, found)


def _list_datasets(session: Session, found: Listing) -> None:
    entries = sorted(found, key=lambda entry: (entry.kind != "folder", entry.path))
    if session.json:
        tables.lines(*({name: value for name, value in e.to_json().items() if name != "local"} for e in entries))
    elif entries:
        tables.listing(repr(type(found)(entries)))
    else:
        click.echo("nothing here; penstock put store/… FILE brings something", err=True)


def _list_writes(session: Session, writes: list[dict[str, Any]]) -> None:
    heads = ("write", "for", "rows", "size", "opened", "last put", "visible")
    if session.json:
        tables.lines(*writes)
    elif writes:
        rows = [
            (
                f"write/{w['write']}", _purpose(w), f"{w['rows']:,}", readable.size(w["bytes"]),
                tables.ago(w.get("opened")), tables.ago(w.get("touched")), _visible(w),
            )
            for w in writes
        ]  # fmt: skip
        tables.listing(readable.table(heads, rows, right=heads[2:6]))
    else:
        click.echo("no write is open", err=True)


@click.command(epilog=example("penstock show store/demo/trips"), short_help="Describe a dataset, a folder or a write.")
@click.argument("path", shell_complete=completed)
@shared
@pass_session
def show(session: Session, path: str) -> None:
    """Describe PATH: a dataset with its schema, a folder, or a write (write/ID)."""
    with session.connect() as client:
        found = _describe(client, path)
    if session.json:
        tables.lines(found)
    elif found["kind"] == "write":
        tables.description(f"write/{found['write']}", _write_facts(found))
    elif found["kind"] == "folder":
        tables.description(found["path"], {"datasets": f"{found['datasets']:,}", **_size_facts(found)})
    else:
        tables.description(found["path"], {**_size_facts(found), "lost": _LOST if found["lost"] else ""})
        click.secho(f"  {tables.counted(len(found['schema']), 'column')}", dim=True)
        rows = [(tables.printable(c["name"]), c["type"], "" if c["nullable"] else "not null") for c in found["schema"]]
        for line in readable.table(("", "", ""), rows).splitlines()[1:]:
            click.echo(f"    {line}")


def _describe(client: Client, path: str) -> dict[str, Any]:
    """What the server says of a path; of a folder, which is no thing there, what its datasets are together."""
    if path.rstrip("/") == "store":
        return _folder(path, client.list(path, recursive=True))
    try:
        return client.call("describe", {"path": path})
    except NotFound:
        below = [] if path.startswith("write/") else client.list(path, recursive=True)
        if not below:
            raise
        return _folder(path, below)


def _folder(path: str, below: Sequence[Entry]) -> dict[str, Any]:
    totals = {name: sum(getattr(entry, name) for entry in below) for name in ("rows", "bytes", "parts")}
    changed = max((entry.changed or 0.0 for entry in below), default=None)
    return {"kind": "folder", "path": path.rstrip("/") + "/", "datasets": len(below), **totals, "changed": changed}


def _size_facts(found: dict[str, Any]) -> dict[str, str]:
    when = found["changed"]
    changed = "" if when is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    return {
        "rows": f"{found['rows']:,}",
        "size": f"{readable.size(found['bytes'])} in {tables.counted(found['parts'], 'part')}",
        "changed": changed and f"{tables.ago(when)}, {changed}",
    }


def _write_facts(write: dict[str, Any]) -> dict[str, str]:
    size = f"{readable.size(write['bytes'])} in {tables.counted(write['parts'], 'part')}"
    return {
        "for": _purpose(write),
        "state": write["state"],
        "opened": tables.ago(write.get("opened")),
        "last put": tables.ago(write.get("touched")),
        "whole": tables.counted(write["attempts"], "attempt"),
        "rows": f"{write['rows']:,} ({size})" if write["state"] in ("open", "finished") else "",
        "visible": _visible(write),
    }


def _purpose(write: dict[str, Any]) -> str:
    """Where the rows go, and how, if not as usual."""
    run = write.get("run")
    how = [write["mode"]] * (write["mode"] != "error") + [f"run {run}"] * (run is not None)
    return tables.printable(f"{write['path']} ({', '.join(how)})" if how else write["path"])


def _visible(write: dict[str, Any]) -> str:
    """Whether readers see the write's rows, and if not, why."""
    if write["state"] != "open":
        return _ENDED[write["state"]]
    if not write["attempts"]:
        return "no, no attempt is whole"
    return f"no, {tables.counted(write['attempts'], 'whole attempt')} until finish"
