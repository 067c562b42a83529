"""`redrive`: let dead messages be claimed again, or dead rows be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli import terminal
from penstock.cli.invocation import Invocation, command, complete_path
from penstock.errors import InvalidRequest
from penstock.text import counted

if TYPE_CHECKING:
    from penstock.client.client import Client


@command(
    "Let dead messages of a queue be claimed again, or a consumer's dead rows be read again.",
    "penstock redrive queue/demo/in",
    "penstock redrive topic/demo/orders --to topic/demo/again",
    "penstock redrive subscription/p/orders --to publish/p/orders",
)
@click.argument("path", shell_complete=complete_path)
@click.argument("messages", metavar="[ID]...", nargs=-1)
@click.option("--to", metavar="TOPIC", help="Where dead rows go to: topic/…, or publish/…")
@click.option("--consumer", metavar="ID", help="Whose dead rows; not needed if only one consumer has some.")
def redrive(
    invocation: Invocation, path: str, messages: tuple[str, ...], *, to: str | None, consumer: str | None
) -> None:
    """Make the dead messages of the queue PATH pending again, with no tries; all of them, unless IDs name some.

    `penstock ls PATH/dead` lists them. Of a job, job/NAME, those of all its queues: run the job again for them.

    Of a topic or a subscription: append the rows that a consumer's schema could not decode, as they came, to the topic
    TO, each once. A query that reads both with a schema that was mended decodes them then. To publish/PROJECT/TOPIC
    they are published; what is no message that Pub/Sub takes stays dead.
    """
    from penstock.client.publish import redrive as redrive_rows
    from penstock.wire.actions import REDRIVE_MESSAGES
    from penstock.wire.queue import RedriveMessages

    is_queue = path.startswith(("queue/", "job/"))
    if is_queue and (to or consumer):
        raise InvalidRequest(f"--to and --consumer are for dead rows of a topic, {path} is none: leave them out")
    if not is_queue and (to is None or messages):
        raise InvalidRequest(f"{path}: all dead rows of a consumer are redriven at once: say --to topic/… or publish/…")
    with invocation.connect() as client:
        if to is not None:
            done = redrive_rows(client.connection, path, to, consumer)
            if invocation.json:
                about = {"consumer": done.consumer, "rows": done.rows, "notes": done.notes}
                terminal.print_json({"path": path, "to": to, **about})
            else:
                click.echo(
                    f"{counted(done.rows, 'row')} of {path} that consumer {done.consumer} could not decode: {to}"
                )
            for note in done.notes:
                click.echo(note, err=True)
            return
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
