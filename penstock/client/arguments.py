"""What a caller hands to a client: refused by the argument's name, before anything is sent."""

from __future__ import annotations

from collections.abc import Collection

from penstock.errors import InvalidRequest


def check(*, path: object, columns: object = None, filter: object = None) -> None:
    """Refuse a path, columns or a filter that are no text, such as a pathlib.Path or Spark's own columns."""
    if not isinstance(path, str):
        raise InvalidRequest(f"path={path!r:.80}: expected text such as 'store/demo/trips', a path at the server")
    if isinstance(columns, str):
        raise InvalidRequest(f"columns={columns!r:.80}: expected a list of names: columns=[{columns!r:.80}]")
    if columns is not None:
        _check_names(columns)
    if filter is not None and not isinstance(filter, str):
        raise InvalidRequest(f"filter={filter!r:.80}: expected text such as \"fare > 10 and city = 'Oslo'\"")


def _check_names(columns: object) -> None:
    if not isinstance(columns, Collection) or not all(isinstance(name, str) for name in columns):
        raise InvalidRequest(f"columns={columns!r:.80}: expected a list of names, such as ['id', 'fare']")
