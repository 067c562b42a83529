"""`top`: what is going on now: open writes, topics and how fast they grow, who reads and how far behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import tables
from penstock.cli.session import Session, example, pass_session, shared
from penstock.text import format_age, format_size, format_table

if TYPE_CHECKING:
    from penstock.client.client import Client

_TOPICS = ("topic", "rows", "rows/s", "size", "oldest", "consumers", "behind")
_CONSUMERS = ("consumer", "topic", "behind", "size", "oldest", "committed/s", "seen", "")
_WRITES = ("write", "for", "attempts", "rows", "rows/s", "size", "last put")


@click.command(epilog=example("penstock top"), short_help="Watch writes, topics and their consumers.")
@click.option("-s", "--seconds", type=click.FloatRange(0.1, 3600), default=1.0, help="Between two looks.")
@click.option("-n", "--looks", type=click.IntRange(1), help="How many; without it until Ctrl-C.")
@shared
@pass_session
def top(session: Session, seconds: float, looks: int | None) -> None:
    """Show open writes, topics and consumers with their rates, again and again; one look where no terminal is."""
    screen = tables.on_terminal() and not session.json
    most = looks or (None if screen else 1)
    with session.connect() as client:
        for page in _pages(client, seconds, most):
            if session.json:
                tables.lines(page)
                continue
            if screen and most != 1:
                click.clear()
            click.echo("\n".join(_text(page)))


def _pages(client: Client, seconds: float, most: int | None) -> Iterator[dict[str, Any]]:
    """What there is at each look, with what changed since the one before."""
    before: dict[str, tuple[float, float]] = {}

    def rate(name: str, amount: float) -> float | None:
        """How fast it grows; nothing at the first look at it."""
        now = time.monotonic()
        then, known = before.get(name, (now, amount))
        before[name] = (now, amount)
        return round((amount - known) / (now - then), 1) if now > then else None

    for look in count() if most is None else range(most):
        time.sleep(seconds if look else 0)
        topics = [client.call("describe", {"path": entry.path}) for entry in client.list("topic/", recursive=True)]
        writes = [client.call("describe", {"path": entry.path}) for entry in client.list("write/")]
        for topic in topics:
            topic["rows_per_s"] = rate(topic["path"], sum(shard["next"] for shard in topic["shards"]))
            for each in topic["consumers"]:
                each["committed_per_s"] = rate(each["consumer"], sum(each["position"].values()))
        for write in writes:
            write["rows_per_s"] = rate(write["write"], write["rows"])
        yield {"topics": topics, "writes": writes}


def _text(page: dict[str, Any]) -> list[str]:
    topics = [
        (
            topic["path"], f"{topic['rows']:,}", _per_second(topic["rows_per_s"]), format_size(topic["bytes"]),
            "" if topic.get("oldest") is None else format_age(topic["oldest"]), str(len(topic["consumers"])),
            f"{max((each['lag_rows'] for each in topic['consumers']), default=0):,}",
        )
        for topic in page["topics"]
    ]  # fmt: skip
    consumers = [
        (
            tables.printable(each["consumer"][:12]), topic["path"], *tables.lag(each),
            _per_second(each["committed_per_s"]), tables.ago(each["seen"]), each["state"],
        )
        for topic in page["topics"]
        for each in topic["consumers"]
    ]  # fmt: skip
    writes = [
        (
            write["write"][:12], tables.printable(write["path"]), f"{write['attempts']:,}", f"{write['rows']:,}",
            _per_second(write["rows_per_s"]), format_size(write["bytes"]), tables.ago(write.get("touched")),
        )
        for write in page["writes"]
    ]  # fmt: skip
    parts = ((_TOPICS, topics, 1), (_CONSUMERS, consumers, 2), (_WRITES, writes, 2))
    tables_of = [format_table(heads, rows, right=heads[left:]) for heads, rows, left in parts if rows]
    return [line for table in tables_of for line in (*table.splitlines(), "")] or ["no topic, no open write"]


def _per_second(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}"
