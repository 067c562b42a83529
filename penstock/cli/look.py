"""`ls` and `show`: what there is, and what it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from penstock import readable
from penstock.cli import tables
from penstock.cli.session import Session, completed, example, pass_session, shared
from penstock.errors import NotFound

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.views import Listing

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
    heads = ("write", "for", "opened", "last put", "visible")
    if session.json:
        tables.lines(*writes)
    elif writes:
        rows = [
            (f"write/{w['write']}", _purpose(w), tables.ago(w.get("opened")), tables.ago(w.get("touched")), _visible(w))
            for w in writes
        ]
        tables.listing(readable.table(heads, rows, right=heads[2:4]))
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
    try:
        return client.call("describe", {"path": path})
    except NotFound:
        below = [] if path.startswith("write/") else client.list(path, recursive=True)
        if not below:
            raise
    totals = {name: sum(getattr(entry, name) for entry in below) for name in ("rows", "bytes", "parts")}
    changed = max(entry.changed or 0.0 for entry in below)
    return {"kind": "folder", "path": path.rstrip("/") + "/", "datasets": len(below), **totals, "changed": changed}


def _size_facts(found: dict[str, Any]) -> dict[str, str]:
    changed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["changed"]))
    return {
        "rows": f"{found['rows']:,}",
        "size": f"{readable.size(found['bytes'])} in {tables.counted(found['parts'], 'part')}",
        "changed": f"{tables.ago(found['changed'])}, {changed}",
    }


def _write_facts(write: dict[str, Any]) -> dict[str, str]:
    return {
        "for": _purpose(write),
        "state": write["state"],
        "opened": tables.ago(write.get("opened")),
        "last put": tables.ago(write.get("touched")),
        "whole": tables.counted(write["attempts"], "attempt"),
        "rows": f"{write['rows']:,} ({readable.size(write['bytes'])})" if write["state"] == "finished" else "",
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
