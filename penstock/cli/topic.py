"""`topic`: make a topic, and change one."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli import terminal
from penstock.cli.invocation import Invocation, command, complete_path, duration, example, size
from penstock.cli.kinds import KINDS, kept
from penstock.errors import InvalidRequest
from penstock.text import counted

_SCHEMA = "The columns, as Spark's .schema takes them: 'id long not null, city string'."
_KEY = "The column whose equal values stay in one shard, in order."
_SHARDS = "How many.  [default: 4 with a key, 1 without]"
_KEEP = "How long rows stay, such as 12h or 7d.  [default: 24h]"
_KEEP_BYTES = "The size above which the oldest rows go, such as 50GB."
_CREATE = "penstock topic create orders --schema 'id long, city string' --key city --shards 4"
_ALTER = "penstock topic alter orders --keep 7d --keep-bytes 50GB"


@click.group(short_help="Make a topic, or change one.", epilog=example(_CREATE, _ALTER))
def topic() -> None:
    """Make a topic, or change one. The first put makes one, too: of one shard, whose rows are kept for 24 hours.

    A NAME is orders, or topic/orders. `penstock ls topic`, `show`, `put`, `get` and `rm` do the rest.
    """


@command("Make an empty topic.", _CREATE)
@click.argument("name", shell_complete=complete_path)
@click.option("--schema", metavar="COLUMNS", required=True, help=_SCHEMA)
@click.option("--key", metavar="COLUMN", help=_KEY)
@click.option("--shards", metavar="N", type=click.IntRange(1), help=_SHARDS)
@click.option("--keep", metavar="TIME", type=duration, help=_KEEP)
@click.option("--keep-bytes", metavar="SIZE", type=size, help=_KEEP_BYTES)
def create(
    invocation: Invocation, name: str, *, schema: str, key: str | None, shards: int | None, keep: float | None,
    keep_bytes: int | None,
) -> None:  # fmt: skip
    """Make the empty topic NAME. Rows without a key are spread over all its shards."""
    path = _path(name)
    with invocation.connect() as client:
        client.create_topic(path, schema, key=key, shards=shards, keep_seconds=keep, keep_bytes=keep_bytes)
        thing = client.call("describe", {"path": path})
    _print(invocation, thing)


@command("Change a topic.", _ALTER)
@click.argument("name", shell_complete=complete_path)
@click.option("--shards", metavar="N", type=click.IntRange(1), help="More than it has; not for one with a key.")
@click.option("--keep", metavar="TIME", type=duration, help="How long rows stay, such as 12h or 7d.")
@click.option("--keep-bytes", metavar="SIZE", type=size, help=_KEEP_BYTES)
def alter(invocation: Invocation, name: str, *, shards: int | None, keep: float | None, keep_bytes: int | None) -> None:
    """Change how much the topic NAME keeps, or give it more shards; what isn't named stays.

    Readers read a new shard from its first row. A topic with a key has its shards for good: rows of one key would be in
    two of them.
    """
    if (shards, keep, keep_bytes) == (None, None, None):
        raise InvalidRequest("nothing to change: say --shards, --keep or --keep-bytes")
    path = _path(name)
    with invocation.connect() as client:
        client.alter_topic(path, shards=shards, keep_seconds=keep, keep_bytes=keep_bytes)
        thing = client.call("describe", {"path": path})
    _print(invocation, thing)


def _path(name: str) -> str:
    """Return a topic's path, whether or not it is named with its kind."""
    root, slash, _ = name.partition("/")
    if slash and root != "topic" and any(kind.root == root for kind in KINDS):
        raise InvalidRequest(f"{name} is no topic: expected a name such as orders, or topic/orders")
    path = name if root == "topic" and slash else f"topic/{name}"
    if path == "topic/":
        raise InvalidRequest(f"{name!r} names no topic: expected a name such as orders, or topic/orders")
    return path


def _print(invocation: Invocation, thing: dict[str, Any]) -> None:
    if invocation.json:
        terminal.print_json(thing)
        return
    by = f" by {thing['key']}" if "key" in thing else ""
    columns = ", ".join(f"{each['name']} {each['type']}" for each in thing["schema"])
    click.echo(f"{thing['path']}: {counted(len(thing['shards']), 'shard')}{by}, rows kept for {kept(thing)}; {columns}")


topic.add_command(create)
topic.add_command(alter)
