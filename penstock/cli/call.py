"""`call`: a raw action of the server."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from penstock import readable
from penstock.cli import tables
from penstock.cli.session import Session, example, pass_session, shared
from penstock.errors import InvalidRequest


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
        if name is not None:
            answer = client.call(name, _object(body))
            if session.json:
                tables.lines(answer)
            else:
                click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
        elif session.json:
            tables.lines(*({"action": action, "does": does} for action, does in client.actions().items()))
        else:
            tables.listing(readable.table(("action", "does"), [*client.actions().items()]))


def _object(text: str | None) -> dict[str, Any]:
    text = sys.stdin.read() if text == "-" else text or "{}"
    try:
        found = json.loads(text)
    except ValueError as broken:
        raise InvalidRequest(f"the body isn't JSON: {broken}; expected an object: '{{\"path\": …}}'") from broken
    if not isinstance(found, dict):
        raise InvalidRequest(f"the body is JSON, but no object: {tables.cut(text, 40)}")
    return found
