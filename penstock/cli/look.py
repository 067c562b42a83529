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
    from penstock.wire import Entry

_ENDED = {"finished": "yes", "aborted": "never, it was aborted", "expired": "never, it was idle for too long"}
_LOST = "its rows were in the memory of a server that has ended; put it again with --mode overwrite"


@click.command(epilog=example("penstock ls store/demo"), short_help="List a folder, topics, or the open writes.")
@click.argument("path", shell_complete=completed, required=False)
@click.option("-r", "--recursive", is_flag=True, help="All datasets below, not the folders.")
@shared
@pass_session
def ls(session: Session, path: str | None, *, recursive: bool) -> None:
    """List what lies in PATH, a folder; without it, in store/ and topic/.

    `penstock ls write` lists the writes that are open.
    """
    with session.connect() as client:
        if path is not None and path.partition("/")[0] == "write":
            found = client.list(path, recursive=recursive)
            _list_writes(session, [client.call("describe", {"path": entry.path}) for entry in found])
        else:
            places = ("store/", "topic/") if path is None else (path,)
            _list_things(session, [entry for place in places for entry in client.list(place, recursive=recursive)])


_ORDER = ("folder", "dataset", "topic")


def _list_things(session: Session, found: Sequence[Entry]) -> None:
    from penstock.views import Listing

    entries = sorted(found, key=lambda entry: (_ORDER.index(entry.kind), entry.path))
    if session.json:
        tables.lines(*({name: value for name, value in e.to_json().items() if name != "local"} for e in entries))
    elif entries:
        tables.listing(repr(Listing(entries)))
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


@click.command(
    epilog=example("penstock show store/demo/trips"), short_help="Describe a dataset, a topic, a folder or a write."
)
@click.argument("path", shell_complete=completed)
@shared
@pass_session
def show(session: Session, path: str) -> None:
    """Describe PATH: a dataset, a topic with its shards and who reads it, a folder, or a write (write/ID)."""
    with session.connect() as client:
        found = _describe(client, path)
    if session.json:
        tables.lines(found)
    elif found["kind"] == "write":
        tables.description(f"write/{found['write']}", _write_facts(found))
    elif found["kind"] == "folder":
        what = "topics" if "topics" in found else "datasets"
        tables.description(found["path"], {what: f"{found[what]:,}", **_size_facts(found)})
    elif found["kind"] == "topic":
        tables.description(found["path"], {**_size_facts(found), **_topic_facts(found)})
        _show_columns(found["schema"])
        _show_shards(found["shards"])
        _show_consumers(found.get("consumers"))
    else:
        tables.description(found["path"], {**_size_facts(found), "lost": _LOST if found["lost"] else ""})
        _show_columns(found["schema"])


def _show_columns(schema: Sequence[dict[str, Any]]) -> None:
    rows = [(tables.printable(c["name"]), c["type"], "" if c["nullable"] else "not null") for c in schema]
    _section(tables.counted(len(schema), "column"), readable.table(("", "", ""), rows).splitlines()[1:])


def _show_shards(shards: Sequence[dict[str, Any]]) -> None:
    heads = ("shard", "first", "next", "rows")
    rows = [(str(s["shard"]), f"{s['first']:,}", f"{s['next']:,}", f"{s['next'] - s['first']:,}") for s in shards]
    _section(tables.counted(len(shards), "shard"), readable.table(heads, rows, right=heads).splitlines())


def _show_consumers(consumers: Sequence[dict[str, Any]] | None) -> None:
    """Who reads, the one that is furthest behind first; nothing where the server knows nothing of consumers."""
    if consumers is None:
        return
    heads = ("consumer", "behind", "size", "oldest", "seen", "")
    rows = [
        (
            tables.printable(c["consumer"]), f"{c['lag_rows']:,}", readable.size(c["lag_bytes"]),
            readable.age(c["lag_seconds"]) if c["lag_rows"] else "", tables.ago(c["seen"]), c["state"],
        )
        for c in sorted(consumers, key=lambda c: -c["lag_rows"])
    ]  # fmt: skip
    table = readable.table(heads, rows, right=heads[1:5]).splitlines() if rows else []
    _section(tables.counted(len(rows), "consumer"), table)


def _section(title: str, lines: Sequence[str]) -> None:
    click.secho(f"  {title}", dim=True)
    for line in lines:
        click.echo(f"    {line}")


def _topic_facts(topic: dict[str, Any]) -> dict[str, str]:
    most = topic["keep_bytes"]
    kept = readable.age(topic["keep_seconds"]) + ("" if most is None else f", {readable.size(most)} at most")
    return {
        "key": topic["key"] or "",
        "kept": kept,
        "journal": f"{topic['journal']}, epoch {topic['epoch']}",
    }


def _describe(client: Client, path: str) -> dict[str, Any]:
    """What the server says of a path; of a folder, which is no thing there, what lies in it together."""
    if path.rstrip("/") in ("store", "topic"):
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
    what = "topics" if path.partition("/")[0] == "topic" else "datasets"
    return {"kind": "folder", "path": path.rstrip("/") + "/", what: len(below), **totals, "changed": changed}


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
