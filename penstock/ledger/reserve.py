"""A file that is given up where deleting would fail for want of room: it takes some, and is what makes room."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_BYTES = 4 << 20
"""Its size, or a hundredth of the disk if that is less."""
_TIGHT = 1 << 30
"""Bytes of free disk below which there is such a file: most disks never need one."""


class Reserve:
    """The file in a data folder. The sweep's thread keeps it, any thread may give it up."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "reserve"

    def keep(self) -> None:
        """Make the file where the disk is nearly full and has room for it."""
        disk = os.statvfs(self._file.parent)
        size, free = min(_BYTES, disk.f_blocks * disk.f_frsize // 100), disk.f_bavail * disk.f_frsize
        if 2 * size < free < _TIGHT and not self._file.exists():
            with contextlib.suppress(OSError):  # somebody else took the room
                self._file.write_bytes(bytes(size))

    def give(self) -> bool:
        """Give its room up; False if there is none."""
        with contextlib.suppress(OSError):
            self._file.unlink()
            return True
        return False
