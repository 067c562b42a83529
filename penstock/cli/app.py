"""The entry point: runs the command line and turns what goes wrong into one line and an exit code."""

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

_CODES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    ((errors.SchemaMismatch, errors.AlreadyExists, errors.WriteEnded), CONFLICT),
    (errors.InvalidRequest, USAGE),  # after SchemaMismatch, which is one
    (errors.NotFound, NOT_FOUND),
    ((errors.Unavailable, errors.TimedOut), UNAVAILABLE),
    (errors.Denied, DENIED),
)


def main() -> NoReturn:
    """`penstock`, as pip installs it."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    if any(importlib.util.find_spec(name) is None for name in ("click", "rich")):
        sys.stderr.write("penstock: the command line needs click and rich: pip install 'penstock[cli]'\n")
        return USAGE
    import click

    from penstock.cli.group import cli

    try:
        code = cli.main(list(arguments), prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()  # a reader that has left is found out here, not at the interpreter's end
        return code if isinstance(code, int) else 0
    except click.ClickException as wrong:
        context = getattr(wrong, "ctx", None)
        help_of = f"\n{context.command_path} --help says more" if context else ""
        return failed(f"{wrong.format_message()}{help_of}", wrong.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except errors.PenstockError as error:
        return failed(str(error), code_of(error))
    except BrokenPipeError:
        return left_alone()
    except OSError as error:
        return failed(f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)


def code_of(error: errors.PenstockError) -> int:
    """The exit code that tells this kind of error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def failed(message: str, code: int) -> int:
    """One line of what went wrong, red on a terminal; the code."""
    import click

    click.echo(click.style(f"penstock: {message}", fg="red"), err=True)
    return code


def left_alone() -> int:
    """Whoever read our output has enough (`| head`): no word about it, and none from the interpreter at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return BROKEN_PIPE


if __name__ == "__main__":
    main()
