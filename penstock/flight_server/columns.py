"""The columns that a reader names."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock import readable
from penstock.errors import InvalidRequest


def check_columns(path: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    """Refuse what isn't one or more of the schema's names, each once."""
    if not columns or len(set(columns)) < len(columns):
        raise InvalidRequest(f"columns {list(columns)}: expected one or more names of {path}, each once")
    known = dict.fromkeys(schema.names)
    for name in columns:
        if name not in known:
            raise InvalidRequest(f"{path} has no column {name[:80]!r}; {readable.near(name, known)}")
