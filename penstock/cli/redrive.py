"""`redrive`: let dead messages be claimed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli import terminal
from penstock.cli.invocation import Invocation, command, complete_path
from penstock.text import counted

if TYPE_CHECKING:
    from penstock.client.client import Client


@command("Let dead messages of a queue be claimed again.", "penstock redrive queue/demo/in")
@click.argument("path", shell_complete=complete_path)
@click.argument("messages", metavar="[ID]...", nargs=-1)
def redrive(invocation: Invocation, path: str, messages: tuple[str, ...]) -> None:
    """Make the dead messages of the queue PATH pending again, with no tries; all of them, unless IDs name some.

    `penstock ls PATH/dead` lists them. Of a job, job/NAME, those of all its queues: run the job again for them.
    """
    from penstock.wire.actions import REDRIVE_MESSAGES
    from penstock.wire.queue import RedriveMessages

    with invocation.connect() as client:
        queues = _queues_of(client, path) if path.startswith("job/") else [path]
        number = sum(client.call(REDRIVE_MESSAGES, RedriveMessages(queue, messages)).messages for queue in queues)
    if invocation.json:
        terminal.print_json({"path": path, "messages": number})
        return
    click.echo(f"{counted(number, 'message')} of {path} may be claimed again")
    if number and path.startswith("job/"):
        click.echo("run the job again for that", err=True)


def _queues_of(client: Client, path: str) -> list[str]:
    """Return the queues of a job's stages that have dead messages."""
    stages = client.call("describe", {"path": path})["job"]["stages"]
    counts = (stage["queue"]["counts"] for stage in stages if "queue" in stage)
    return [each["path"] for each in counts if each["dead"]]
