"""`verify` and `backup`: work on a server's data folder itself, while the server works or when it is away."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import terminal
from penstock.cli.app import FAILED, report_failure
from penstock.cli.invocation import Invocation, command
from penstock.errors import InvalidRequest, NotFound
from penstock.text import counted, format_size

if TYPE_CHECKING:
    from penstock.ledger.verify import Verified
    from penstock.store.disk import DiskMedium

_FOLDER = click.Path(file_okay=False, path_type=Path)


def _folder_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --data and --store, as `serve` has them."""
    data = "The server's data folder.  [default: ~/.local/share/penstock]"
    function = click.option("--store", metavar="URL", envvar="PENSTOCK_STORE", default="disk:", help="Its --store.")(
        function
    )
    return click.option("--data", type=_FOLDER, envvar="PENSTOCK_DATA", help=data)(function)


@command("Check every byte of a data folder; name what is lost.", "penstock verify --data /var/lib/penstock")
@_folder_options
def verify(invocation: Invocation, *, data: Path | None, store: str) -> int:
    """Read every part that the ledger names, and compare it with what was written. The exit code is 1 for a loss.

    It changes nothing, and may run while the server works.
    """
    from penstock.ledger.verify import verify as verify_folder
    from penstock.queue.destinations import DESTINATIONS
    from penstock.queue.work import work_queues

    data, medium = _opened(data, store)
    with terminal.progress_bar(str(data), None, wanted=not invocation.json) as show:
        verified = verify_folder(data, medium, DESTINATIONS, work_queues, is_served=_is_served(data), progress=show)
    return _report(invocation, f"{data}", verified)


@command("Copy a data folder, while its server works.", "penstock backup /mnt/backup/monday")
@click.argument("target", type=_FOLDER)
@_folder_options
def backup(invocation: Invocation, target: Path, *, data: Path | None, store: str) -> int:
    """Copy all that the server has at one moment into the new folder TARGET, and verify the copy.

    A server starts on it with `penstock serve --data TARGET`.
    """
    from penstock.ledger.backup import backup as back_up
    from penstock.queue.destinations import DESTINATIONS
    from penstock.queue.work import work_queues

    data, medium = _opened(data, store)
    with terminal.progress_bar(str(target), None, wanted=not invocation.json) as show:
        verified = back_up(data, medium, target, DESTINATIONS, work_queues, show)
    return _report(invocation, f"{target}", verified)


def _opened(data: Path | None, store: str) -> tuple[Path, DiskMedium]:
    from penstock.flight_server.config import default_data
    from penstock.store.disk import DiskMedium
    from penstock.store.open import open_medium

    data = (data or default_data()).expanduser()
    if not (data / "ledger.db").exists():
        raise NotFound(f"{data} has no ledger.db: name the folder of `penstock serve --data`")
    medium = open_medium(store, data) if store.startswith("disk:") else None
    if not isinstance(medium, DiskMedium):
        raise InvalidRequest(f"--store {store}: only the bytes of a disk: store can be read from here")
    return data, medium


def _is_served(data: Path) -> bool:
    """Whether a server has the folder."""
    try:
        with (data / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:  # of a backup
        return False
    return False


def _report(invocation: Invocation, name: str, verified: Verified) -> int:
    if invocation.json:
        terminal.print_json(asdict(verified))
    else:
        for loss in verified.losses:
            report_failure(loss, FAILED)
        number = len(verified.losses)
        state = "all as it was written" if not number else "1 loss" if number == 1 else f"{number:,} losses"
        parts, rows = counted(verified.parts, "part"), counted(verified.rows, "row")
        click.echo(f"{name}: {parts}, {rows}, {format_size(verified.bytes)}: {state}")
        if verified.unnamed or verified.quarantined:
            unnamed = counted(verified.unnamed, "part")
            click.echo(f"  {unnamed} that nothing names, {verified.quarantined:,} in quarantine/")
    return FAILED if verified.losses else 0
