"""`ls`, `show` and `call`: what there is, what it is, and whatever else the server answers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import tables
from penstock.cli.session import Session, completed, example, pass_session, shared
from penstock.errors import InvalidRequest, NotFound
from penstock.text import format_age, format_size, format_table

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.wire.read import Entry

_ORDER = ("folder", "dataset", "topic")
_ENDED = {"finished": "yes", "aborted": "never, it was aborted", "expired": "never, it was idle for too long"}
_LOST = "its rows were in the memory of a server that has stopped; put it again with --mode overwrite"


@click.command(epilog=example("penstock ls store/demo"), short_help="List a folder, topics, or the open writes.")
@click.argument("path", shell_complete=completed, required=False)
@click.option("-r", "--recursive", is_flag=True, help="All datasets below, not the folders.")
@shared
@pass_session
def ls(session: Session, path: str | None, *, recursive: bool) -> None:
    """List what lies in PATH, a folder; without it, in store/ and topic/.

    `penstock ls write` lists the writes that are open.
    """
    places = ("store/", "topic/") if path is None else (path,)
    with session.connect() as client:
        found = [entry for place in places for entry in client.list(place, recursive=recursive)]
        if places[0].partition("/")[0] == "write":
            _list_writes(session, [client.call("describe", {"path": entry.path}) for entry in found])
        else:
            _list_things(session, sorted(found, key=lambda entry: (_ORDER.index(entry.kind), entry.path)))


def _list_things(session: Session, entries: Sequence[Entry]) -> None:
    from penstock.client.views import Listing

    if session.json:
        tables.lines(*({name: value for name, value in e.to_json().items() if name != "local"} for e in entries))
    elif entries:
        tables.listing(repr(Listing(entries)))
    else:
        click.echo("nothing here; penstock put store/… FILE brings something", err=True)


def _list_writes(session: Session, writes: Sequence[dict[str, Any]]) -> None:
    heads = ("write", "for", "rows", "size", "opened", "last put", "visible")
    rows = [
        (
            f"write/{w['write']}", _purpose(w), f"{w['rows']:,}", format_size(w["bytes"]),
            tables.ago(w.get("opened")), tables.ago(w.get("touched")), _visible(w),
        )
        for w in writes
    ]  # fmt: skip
    if session.json:
        tables.lines(*writes)
    elif writes:
        tables.listing(format_table(heads, rows, right=heads[2:6]))
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
        return
    kind = found["kind"]
    facts = {"write": _write_facts, "folder": _folder_facts, "topic": _topic_facts, "dataset": _dataset_facts}
    tables.description(f"write/{found['write']}" if kind == "write" else found["path"], facts[kind](found))
    if kind in ("dataset", "topic"):
        columns = [
            (tables.printable(c["name"]), c["type"], "" if c["nullable"] else "not null") for c in found["schema"]
        ]
        _section("column", ("", "", ""), columns)
    if kind == "topic":
        heads = ("shard", "first", "next", "rows")
        shards = found["shards"]
        rows = [[f"{n:,}" for n in (s["shard"], s["first"], s["next"], s["next"] - s["first"])] for s in shards]
        _section("shard", heads, rows, right=heads)
        _show_consumers(found.get("consumers"))


def _show_consumers(consumers: Sequence[dict[str, Any]] | None) -> None:
    """Who reads, the one that is furthest behind first; nothing where the server knows nothing of consumers."""
    heads = ("consumer", "behind", "size", "oldest", "seen", "")
    if consumers is not None:
        last_first = sorted(consumers, key=lambda c: -c["lag_rows"])
        rows = [
            (tables.printable(c["consumer"]), *tables.lag(c), tables.ago(c["seen"]), c["state"]) for c in last_first
        ]
        _section("consumer", heads, rows, right=heads[1:5])


def _section(thing: str, heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    click.secho(f"  {tables.counted(len(rows), thing)}", dim=True)
    for line in format_table(heads, rows, right=right).splitlines() if rows else ():
        if line:  # columns have no heads
            click.echo(f"    {line}")


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


def _dataset_facts(found: dict[str, Any]) -> dict[str, str]:
    when = found["changed"]
    changed = "" if when is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    return {
        "rows": f"{found['rows']:,}",
        "size": _size(found),
        "changed": changed and f"{tables.ago(when)}, {changed}",
        "lost": _LOST if found.get("lost") else "",
    }


def _folder_facts(folder: dict[str, Any]) -> dict[str, str]:
    what = "topics" if "topics" in folder else "datasets"
    return {what: f"{folder[what]:,}", **_dataset_facts(folder)}


def _topic_facts(topic: dict[str, Any]) -> dict[str, str]:
    most = topic.get("keep_bytes")
    return {
        **_dataset_facts(topic),
        "key": topic.get("key", ""),
        "kept": format_age(topic["keep_seconds"]) + ("" if most is None else f", {format_size(most)} at most"),
        "journal": f"{topic['journal']}, epoch {topic['epoch']}",
    }


def _write_facts(write: dict[str, Any]) -> dict[str, str]:
    return {
        "for": _purpose(write),
        "state": write["state"],
        "opened": tables.ago(write.get("opened")),
        "last put": tables.ago(write.get("touched")),
        "whole": tables.counted(write["attempts"], "attempt"),
        "rows": f"{write['rows']:,} ({_size(write)})" if write["state"] in ("open", "finished") else "",
        "visible": _visible(write),
    }


def _size(found: dict[str, Any]) -> str:
    return f"{format_size(found['bytes'])} in {tables.counted(found['parts'], 'part')}"


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


@click.command(
    epilog=example('penstock call describe \'{"path": "store/demo/trips"}\''),
    short_help="Call a raw action of the server.",
)
@click.argument("name", required=False)
@click.argument("body", required=False)
@shared
@pass_session
def call(session: Session, name: str | None, body: str | None) -> None:
    """Call the action NAME with a JSON object; without a name, list the actions. BODY `-` is read from stdin."""
    with session.connect() as client:
        if name is None:
            actions = client.actions()
            if session.json:
                tables.lines(*({"action": action, "does": does} for action, does in actions.items()))
            else:
                tables.listing(format_table(("action", "does"), [*actions.items()]))
        elif session.json:
            tables.lines(client.call(name, _object(body)))
        else:
            click.echo(json.dumps(client.call(name, _object(body)), indent=2, ensure_ascii=False))


def _object(text: str | None) -> dict[str, Any]:
    text = sys.stdin.read() if text == "-" else text or "{}"
    try:
        found = json.loads(text)
    except ValueError as broken:
        raise InvalidRequest(f"the body isn't JSON: {broken}; expected an object: '{{\"path\": …}}'") from broken
    if not isinstance(found, dict):
        raise InvalidRequest(f"the body is JSON, but no object: {tables.cut(text, 40)}")
    return found
