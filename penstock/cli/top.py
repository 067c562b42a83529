"""`top`: what is going on now: open writes, growing journals, pullers, queues, how far consumers are behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import terminal
from penstock.cli.invocation import Invocation, command
from penstock.cli.kinds import KINDS, text_of
from penstock.cli.ls import deleted_and_held, describe_each

if TYPE_CHECKING:
    from penstock.client.client import Client

Page = dict[str, list[dict[str, Any]]]
"""The things of each kind, by its plural."""


@command("Watch writes, topics, subscriptions, queues and consumers.", "penstock top")
@click.option("-s", "--seconds", type=click.FloatRange(0.1, 3600), default=1.0, help="Time between two looks.")
@click.option("-n", "--looks", type=click.IntRange(1), help="Number of looks; without it, until Ctrl-C.")
def top(invocation: Invocation, seconds: float, looks: int | None) -> None:
    """Show writes, topics, subscriptions, pullers, queues, consumers and what is published, with their rates, again and
    again.

    Without a terminal it shows them once.
    """
    screen = terminal.is_terminal() and not invocation.json
    looks = looks or (None if screen else 1)
    with invocation.connect() as client:
        for page in _pages(client, seconds, looks):
            if screen and looks != 1:
                click.clear()
            if invocation.json:
                terminal.print_json(page)
                continue
            click.echo(_text(page))
            if held := deleted_and_held(client):
                click.echo(held)


def _pages(client: Client, seconds: float, looks: int | None) -> Iterator[Page]:
    """Yield what there is at each look, with the rates since the look before."""
    before: dict[tuple[str, str, str], tuple[float, float]] = {}
    for look in count() if looks is None else range(looks):
        time.sleep(seconds if look else 0)
        page: Page = {}
        for kind in (kind for kind in KINDS if kind.top):
            page[kind.plural] = things = describe_each(client, client.list(kind.root, recursive=True))
            rows = ((thing["path"], t, row) for t in kind.top for thing in things for row in t.rows(thing))
            for path, table, row in rows:
                key, now, amount = (table.noun, path, row[table.id]), time.monotonic(), table.amount(row)
                then, known = before.get(key, (now, amount))
                before[key] = (now, amount)
                row[table.rate] = round((amount - known) / (now - then), 1) if now > then else None
        yield page


def _text(page: Page) -> str:
    """Return the tables that have rows; a row has the fields of its thing, too."""
    tables = [
        (table.columns, [{**thing, **row} for thing in page[kind.plural] for row in table.rows(thing)])
        for kind in KINDS
        for table in kind.top
    ]
    shown = (f"{text_of(columns, rows)}\n" for columns, rows in tables if rows)
    return "\n".join(shown) or "no topic, no subscription, no queue, no open write"
