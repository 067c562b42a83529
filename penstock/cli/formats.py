"""The formats of files, by name and by extension. Without pyarrow, as `--help` needs them."""

from __future__ import annotations

from pathlib import PurePath

from penstock.errors import InvalidRequest
from penstock.text import suggest

FORMATS = ("arrow", "arrows", "parquet", "csv", "json")
"""Arrow IPC file, Arrow IPC stream, Parquet, CSV with a header line, JSON lines."""
EXTENSIONS = {
    ".arrow": "arrow", ".feather": "arrow", ".arrows": "arrows", ".parquet": "parquet", ".csv": "csv",
    ".json": "json", ".jsonl": "json", ".ndjson": "json",
}  # fmt: skip


def format_by_extension(file: str) -> str:
    """Return the format that a file's name tells."""
    extension = PurePath(file).suffix.lower()
    if extension in EXTENSIONS:
        return EXTENSIONS[extension]
    what = f"no format has the extension {extension!r}" if extension else "a name without extension names no format"
    raise InvalidRequest(f"{file}: {what}; {suggest(extension, EXTENSIONS)} (or say --format)")


def format_by_head(head: bytes) -> str:
    """Return the format of a file by its first bytes; CSV has none of its own. (Opening tells Arrow's two apart.)"""
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff", b"PAR1")):
        return "parquet" if head.startswith(b"PAR1") else "arrow"
    return "json" if head.lstrip()[:1] in (b"{", b"[") else "csv"
