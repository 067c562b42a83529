"""`undelete`: bring deleted datasets back."""

from __future__ import annotations

import click

from penstock.cli import app, terminal
from penstock.cli.invocation import Invocation, command
from penstock.errors import PenstockError
from penstock.text import counted, format_size


@command("Bring a dataset back that was deleted lately.", "penstock undelete store/demo/trips")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
def undelete(invocation: Invocation, paths: tuple[str, ...]) -> int:
    """Make the dataset PATH what it was before `rm`, with the runs that made it.

    That is possible for the life of read tickets (12 hours, `serve --ticket-life`), unless a put needed the room
    before. A path that has a dataset again takes none back.
    """
    code = 0
    with invocation.connect() as client:
        for path in paths:
            try:
                thing = client.undelete(path)
            except PenstockError as error:
                failure = app.report_failure(str(error), app.exit_code(error))
                code = code or failure
                continue
            if invocation.json:
                terminal.print_json(thing)
            else:
                click.echo(f"{path} is back: {counted(thing['rows'], 'row')}, {format_size(thing['bytes'])}")
    return code
