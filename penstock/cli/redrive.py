"""`redrive`: let dead messages be claimed again."""

from __future__ import annotations

import click

from penstock.cli import terminal
from penstock.cli.invocation import Invocation, command, complete_path
from penstock.text import counted


@command("Let dead messages of a queue be claimed again.", "penstock redrive queue/demo/in")
@click.argument("path", shell_complete=complete_path)
@click.argument("messages", metavar="[ID]...", nargs=-1)
def redrive(invocation: Invocation, path: str, messages: tuple[str, ...]) -> None:
    """Make the dead messages of the queue PATH pending again, with no tries; all of them, unless IDs name some.

    `penstock ls PATH/dead` lists them.
    """
    from penstock.wire.actions import REDRIVE_MESSAGES
    from penstock.wire.queue import RedriveMessages

    with invocation.connect() as client:
        answer = client.call(REDRIVE_MESSAGES, RedriveMessages(path, messages))
    if invocation.json:
        terminal.print_json({"path": path, **answer.to_json()})
    else:
        click.echo(f"{counted(answer.messages, 'message')} of {path} may be claimed again")
