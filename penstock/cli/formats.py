"""The formats that files have, by name and by extension. Light: `--help` needs them, and no pyarrow."""

from __future__ import annotations

from pathlib import PurePath

from penstock.errors import InvalidRequest
from penstock.text import suggest

FORMATS = ("arrow", "arrows", "parquet", "csv", "json")
"""Arrow IPC file, Arrow IPC stream, Parquet, CSV with a line of heads, JSON lines."""
EXTENSIONS = {
    ".arrow": "arrow", ".feather": "arrow", ".arrows": "arrows", ".parquet": "parquet", ".csv": "csv",
    ".json": "json", ".jsonl": "json", ".ndjson": "json",
}  # fmt: skip


def by_extension(file: str) -> str:
    """The format that a file's name tells."""
    extension = PurePath(file).suffix.lower()
    if extension in EXTENSIONS:
        return EXTENSIONS[extension]
    hint = suggest(extension, EXTENSIONS)
    raise InvalidRequest(f"{file}: the extension {extension!r} tells no format; {hint} (--format says it, too)")


def by_beginning(head: bytes) -> str:
    """The format of what begins so (a file of Arrow or a stream is found out on opening); anything else is CSV."""
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    if head.startswith(b"PAR1"):
        return "parquet"
    return "json" if head.lstrip()[:1] in (b"{", b"[") else "csv"
