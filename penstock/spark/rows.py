"""Rows as `collect` returns them: tuples with names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.types as kinds

from penstock.spark.errors import Unsupported
from penstock.text import suggest


class Row(tuple[Any, ...]):
    """A row: row[0], row["city"], row.city. Structs within are rows, too."""

    __slots__ = ()
    __fields__: ClassVar[tuple[str, ...]] = ()
    """The columns' names."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._index(key) if isinstance(key, str) else key)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return super().__getitem__(self._index(name))
        except KeyError as missing:
            raise AttributeError(missing.args[0]) from None

    def __contains__(self, name: object) -> bool:
        return name in self.__fields__

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self.__fields__, self, strict=True))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.__fields__, tuple(self))

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Return the values by name; of structs within, too, if it is `recursive`."""
        return dict(zip(self.__fields__, map(_plain, self) if recursive else self, strict=True))

    asDict = as_dict  # pyspark's name

    def _index(self, name: str) -> int:
        try:
            return self.__fields__.index(name)
        except ValueError:
            raise KeyError(f"the row has no column {name!r}; {suggest(name, self.__fields__)}") from None


def row_type(names: Sequence[str]) -> type[Row]:
    """Return the class of the rows with these names."""
    return type("Row", (Row,), {"__slots__": (), "__fields__": tuple(names)})


def to_rows(table: pa.Table) -> list[Row]:
    """Return a table's rows."""
    row = row_type(table.column_names)
    if not table.column_names:
        return [row()] * table.num_rows
    columns = []
    for column, values in zip(table.columns, python_columns(table), strict=True):
        convert = _converter(column.type)
        columns.append(values if convert is None else [None if each is None else convert(each) for each in values])
    return [row(values) for values in zip(*columns, strict=True)]


def python_columns(table: pa.Table) -> list[list[Any]]:
    """Return the values of each column."""
    try:
        return [column.to_pylist() for column in table.columns]
    except KeyError as unknown:
        raise Unsupported(
            "a column is of a type that pyarrow has no values of, such as an interval of months: cast it to string"
        ) from unknown


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes PySpark's values of pyarrow's: rows of structs, dicts of maps. None where they are the same."""
    if kinds.is_struct(kind):
        row, fields = row_type([each.name for each in kind]), [(each.name, _or_same(each.type)) for each in kind]
        return lambda value: row(None if value[name] is None else convert(value[name]) for name, convert in fields)
    if kinds.is_map(kind):
        of_key, of_value = _or_same(kind.key_type), _or_same(kind.item_type)
        return lambda value: {of_key(key): None if item is None else of_value(item) for key, item in value}
    if kinds.is_list(kind) and (convert := _converter(kind.value_type)) is not None:
        return lambda value: [None if each is None else convert(each) for each in value]
    return None


def _or_same(kind: pa.DataType) -> Callable[[Any], Any]:
    return _converter(kind) or (lambda value: value)


def _plain(value: Any) -> Any:
    """Return a value with dicts in place of rows."""
    if isinstance(value, Row):
        return value.as_dict(recursive=True)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return list(map(_plain, value)) if isinstance(value, list) else value


def _restore(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return row_type(names)(values)
