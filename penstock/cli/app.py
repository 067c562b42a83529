"""The entry point: runs the command line and turns an error into one line and an exit code."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from penstock import errors

FAILED, USAGE, NOT_FOUND, CONFLICT, UNAVAILABLE, DENIED = 1, 2, 3, 4, 5, 6
INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell says of a program that SIGPIPE ended

_CODES: dict[type[Exception], int] = {
    **dict.fromkeys((errors.SchemaMismatch, errors.AlreadyExists, errors.WriteEnded), CONFLICT),
    errors.InvalidRequest: USAGE,  # after SchemaMismatch, which is one
    errors.NotFound: NOT_FOUND,
    **dict.fromkeys((errors.Unavailable, errors.TimedOut), UNAVAILABLE),
    errors.Denied: DENIED,
}


def main() -> NoReturn:
    """Run `penstock`, as pip installs it."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else its lines about a handshake stand before our own
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    if any(importlib.util.find_spec(name) is None for name in ("click", "rich")):
        extras = "cli,serve" if "serve" in arguments else "cli"
        sys.stderr.write(f"penstock: the command line needs click and rich: pip install 'penstock-flight[{extras}]'\n")
        return USAGE
    import click

    from penstock.cli.group import cli

    try:
        code = cli.main(list(arguments), prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()  # finds out here that the reader is gone, not at the interpreter's end
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"\n{context.command_path} --help says more" if context else ""
        return report_failure(f"{error.format_message()}{hint}", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except errors.PenstockError as error:
        return report_failure(str(error), exit_code(error))
    except BrokenPipeError:
        return silence()
    except OSError as error:
        return report_failure(f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)


def exit_code(error: errors.PenstockError) -> int:
    """Return the exit code of this kind of error."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), FAILED)


def report_failure(message: str, code: int) -> int:
    """Print what went wrong, red on a terminal; return the exit code."""
    import click

    click.secho(f"penstock: {message}", fg="red", err=True)
    return code


def silence() -> int:
    """Suppress all further output, the interpreter's too: its reader has closed the pipe (`| head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return BROKEN_PIPE


if __name__ == "__main__":
    main()
