"""The command `penstock`: its help, its verbs (a new one has a place in the last loop), and their completion."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import get_completion_class

import penstock
from penstock.cli.app import silence
from penstock.cli.call import call
from penstock.cli.doctor import doctor
from penstock.cli.folder import backup, verify
from penstock.cli.get import get
from penstock.cli.invocation import example, shared_options
from penstock.cli.ls import ls, show
from penstock.cli.publisher import publisher
from penstock.cli.pull import pull
from penstock.cli.put import put
from penstock.cli.redrive import redrive
from penstock.cli.rm import rm
from penstock.cli.run import run
from penstock.cli.serve import serve
from penstock.cli.top import top
from penstock.cli.topic import topic
from penstock.cli.undelete import undelete

_EPILOG = """\b
Exit codes
  0  done
  1  failed in another way; a line of stdin is no row; doctor found a problem
  2  a mistake in the call: option, file, path, data that can't be taken
  3  nothing of that name
  4  a conflict with what is there: it exists, or has another schema; the write has ended
  5  the server is away, busy or full: try again later
  6  no token, or a wrong one

\b
A token comes from PENSTOCK_TOKEN, a certificate authority's file from PENSTOCK_CA, a client's certificate and key
from PENSTOCK_CERT and PENSTOCK_KEY.
Example: penstock put store/demo/trips trips.parquet && penstock get store/demo/trips -n 5
"""
_INSTALL = {
    "bash": """echo 'eval "$(penstock completion bash)"' >> ~/.bashrc""",
    "zsh": """echo 'eval "$(penstock completion zsh)"' >> ~/.zshrc""",
    "fish": "penstock completion fish > ~/.config/fish/completions/penstock.fish",
}


class _Group(click.Group):
    """Lists commands in the order of a first day, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would make 1 of it
            raise click.exceptions.Exit(silence()) from None


@click.group(
    cls=_Group, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(penstock.__version__, message="penstock %(version)s")
def cli() -> None:
    """Store datasets of Arrow batches in a Flight server, append to topics, and read both back.

    Paths name things at the server: store/demo/trips is a dataset, store/demo/ a folder, topic/orders a topic, write/ID
    a write that is under way, queue/demo/in a queue, job/demo a job.
    """


@click.command(epilog=example(_INSTALL["bash"]), short_help="Print the script that lets a shell complete all this.")
@click.argument("shell", type=click.Choice([*_INSTALL]))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and paths."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(cli, {}, "penstock", "_PENSTOCK_COMPLETE").source()
    if shell == "bash":  # a folder isn't the end of a path: no space after it
        script = script.replace("    return 0", '    [[ "${COMPREPLY[0]}" == */ ]] && compopt -o nospace\n    return 0')
    click.echo(f"# to install: {_INSTALL[shell]}\n{script}")


cli.params += shared_options()
for command in (
    serve, put, ls, show, get, topic, rm, undelete, redrive, top, run, pull, publisher, call, verify, backup, doctor,
    completion,
):  # fmt: skip
    cli.add_command(command)
