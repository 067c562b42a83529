"""`session.read`: tables and files as frames; nothing is read before the frame's rows are asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.spark.errors import InvalidPlan
from penstock.spark.frame import Frame
from penstock.spark.plans import node

if TYPE_CHECKING:
    from penstock.spark.session import Session

OptionValue = str | int | float | bool | None
Path = str | os.PathLike[str]
"""A path as the server sees it."""


class Reader:
    """What is to be read, and how. Each method returns a new reader, or the frame."""

    __slots__ = ("_format", "_options", "_schema", "_session")

    def __init__(
        self,
        session: Session,
        *,
        format: str | None = None,
        schema: str | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        self._session, self._format, self._schema, self._options = session, format, schema, options or {}

    def format(self, source: str) -> Reader:
        """Name the data source: "parquet", "csv", "delta", "jdbc", …"""
        return Reader(self._session, format=source, schema=self._schema, options=self._options)

    def schema(self, schema: str) -> Reader:
        """Name the columns, "id long, name string", instead of letting Spark look for them."""
        if not isinstance(schema, str):
            raise InvalidPlan(f"schema({schema!r}): expected columns as text, 'id long, name string'")
        return Reader(self._session, format=self._format, schema=schema, options=self._options)

    def option(self, key: str, value: OptionValue) -> Reader:
        """Set an option of the data source."""
        return self.options(**{key: value})

    def options(self, **options: OptionValue) -> Reader:
        """Set options of the data source; None leaves one out."""
        texts = {**self._options, **_texts(options)}
        return Reader(self._session, format=self._format, schema=self._schema, options=texts)

    def load(
        self,
        path: Path | Sequence[Path] | None = None,
        format: str | None = None,
        schema: str | None = None,
        **options: OptionValue,
    ) -> Frame:
        """Return the rows at one or more paths, or of a source that has none."""
        if schema is not None:
            return self.schema(schema).load(path, format, None, **options)
        given = path if isinstance(path, list | tuple) else () if path is None else (path,)
        if any(not isinstance(each, str | os.PathLike) for each in given):
            raise InvalidPlan(f"expected paths as text, got {', '.join(map(repr, given))}")
        paths = tuple(map(os.fspath, given))
        texts = {**self._options, **_texts(options)}
        source = node("", format=format or self._format, schema=self._schema, options=texts, paths=paths)
        return Frame(self._session, node("read", data_source=source))

    def table(self, name: str) -> Frame:
        """Return the rows of a table or a view."""
        table = node("", unparsed_identifier=name, options=self._options)
        return Frame(self._session, node("read", named_table=table))

    def parquet(self, *paths: Path, **options: OptionValue) -> Frame:
        """Return the rows of Parquet files."""
        return self.load(list(paths), "parquet", None, **options)

    def orc(self, *paths: Path, **options: OptionValue) -> Frame:
        """Return the rows of ORC files."""
        return self.load(list(paths), "orc", None, **options)

    def csv(self, path: Path | Sequence[Path], schema: str | None = None, **options: OptionValue) -> Frame:
        """Return the rows of CSV files; `header=True`, `sep=";"` and others are Spark's."""
        return self.load(path, "csv", schema, **options)

    def json(self, path: Path | Sequence[Path], schema: str | None = None, **options: OptionValue) -> Frame:
        """Return the rows of files of JSON lines."""
        return self.load(path, "json", schema, **options)

    def text(self, path: Path | Sequence[Path], **options: OptionValue) -> Frame:
        """Return the lines of files, as a column `value`."""
        return self.load(path, "text", None, **options)


def _texts(options: Mapping[str, OptionValue]) -> dict[str, str]:
    return {key: _text(key, value) for key, value in options.items() if value is not None}


def _text(key: str, value: OptionValue) -> str:
    """Return an option's value as Spark writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidPlan(f"option {key}={value!r}: expected text, a number or a bool")
