"""Copy a data folder while its server works: a folder that a server starts on, with all that one moment had."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import AlreadyExists, Unavailable
from penstock.ledger.loss import named_parts
from penstock.ledger.verify import Progress, Verified, verify
from penstock.ledger.writes import Destination, WorkQueues
from penstock.store.database import copy_file, read_file
from penstock.store.disk import DiskMedium
from penstock.store.medium import file_of

_TRIES = 10
"""Attempts: if a part is deleted before it is copied, the backup starts again, with the copies that it has."""


def backup(
    data: Path,
    medium: DiskMedium,
    target: Path,
    destinations: Mapping[str, Destination],
    queues: WorkQueues,
    progress: Progress = lambda done: None,
) -> Verified:
    """Copy a data folder and its store into a new folder, and verify the copy.

    1. The ledger, as of one moment. 2. The parts that it names: they never change. Where one was deleted meanwhile,
    again from 1. 3. The key of the tickets and the store's name. 4. What was copied is read again, and verified.
    5. The folder gets its name: one with that name is complete.
    """
    if target.exists():
        raise AlreadyExists(f"{target} exists: name a new folder")
    draft = target.with_name(f"{target.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700, parents=True)  # before the key of the tickets is in it
    copies = DiskMedium(draft)
    missing: set[str] | None = None
    for _ in range(_TRIES):
        copy_file(data / "ledger.db", draft / "ledger.db")  # 1.
        before, missing = missing, _copy_parts(draft, medium, copies, destinations, progress)  # 2.
        if missing in (set(), before):  # those that two moments lack are lost, and named when the copy is verified
            break
    else:
        raise Unavailable(
            f"{data} deletes parts faster than {target} gets copies of them: try again later", retry_after=60
        )
    for name, folder in (("key", data), ("owner", medium.folder)):  # 3.
        shutil.copy(folder / name, draft / name)
    verified = verify(draft, copies, destinations, queues, is_served=False)  # 4.
    os.sync()
    draft.rename(target)  # 5.
    return verified


def _copy_parts(
    draft: Path,
    medium: DiskMedium,
    copies: DiskMedium,
    destinations: Mapping[str, Destination],
    progress: Progress,
) -> set[str]:
    """Copy the parts that the copied ledger names, and drop others; return those that aren't there."""
    with read_file(draft / "ledger.db") as reader:
        named = named_parts(reader, destinations)
    files = {file_of(part.name) for part in named}
    copied = {name for name, _ in copies.names()}
    for name in copied - files:
        copies.delete(name)
    done = 0
    for part in named:
        file = file_of(part.name)
        if file not in copied:
            copied.add(file)
            with contextlib.suppress(FileNotFoundError):
                copies.copy(file, medium)
        done += part.bytes
        progress(done)
    return files - {name for name, _ in copies.names()}
