"""`call`: a raw action of the server."""

from __future__ import annotations

import json
import sys

import click

from penstock.cli import terminal
from penstock.cli.invocation import Invocation, command
from penstock.errors import InvalidRequest
from penstock.text import cut, format_table


@command("Call a raw action of the server.", 'penstock call describe \'{"path": "store/demo/trips"}\'')
@click.argument("name", required=False)
@click.argument("body", default="{}")
def call(invocation: Invocation, name: str | None, body: str) -> None:
    """Call the action NAME with a JSON object; without a name, list the actions. BODY `-` is read from stdin."""
    with invocation.connect() as client:
        if name is None:
            actions = client.actions()
            if invocation.json:
                terminal.print_json(*({"action": action, "does": does} for action, does in actions.items()))
            else:
                terminal.print_table(format_table(("action", "does"), [*actions.items()]))
            return
        text = sys.stdin.read() if body == "-" else body
        try:
            request = json.loads(text)
        except ValueError as error:
            raise InvalidRequest(f"the body isn't JSON: {error}; expected an object: '{{\"path\": …}}'") from error
        if not isinstance(request, dict):
            raise InvalidRequest(f"the body is JSON, but no object: {cut(text, 40)}")
        answer = client.call(name, request)
    if invocation.json:
        terminal.print_json(answer)
    else:
        click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
