"""Avro payloads become columns: all rows of a field at once, by numpy, and row by row what that can't read.

A row is a position in the payloads' bytes. A field is read at the positions of all rows, which moves them behind it; so
Python does something for each field, and nothing for each row.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from penstock.errors import InvalidRequest
from penstock.text import cut

_Integers = npt.NDArray[np.int64]
_Rows = _Integers | slice
"""Numbers of rows, ascending; a slice for all."""
_ALL = slice(None)
_SPARE = 32
"""Bytes behind the last payload: a number may be read beyond a row's end before that is seen."""
_MOST_STEPS = 1_000
"""Elements of a list that are read step by step, a step for the n-th of all rows; longer ones are read row by row."""
_TOO_SHORT = "it ends too early"
_NAMED: Mapping[str, pa.DataType] = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip


class AvroSchema:
    """A schema with which payloads were written: a record."""

    def __init__(self, definition: str) -> None:
        try:
            self._plain = fastavro.parse_schema(_without_logical(json.loads(definition)))
            fastavro.parse_schema(declared := json.loads(definition))
        except Exception as error:
            raise InvalidRequest(f"the schema is no Avro schema: {cut(str(error), 200)}") from error
        if not isinstance(declared, dict) or declared.get("type") != "record" or not declared.get("fields"):
            raise InvalidRequest("the Avro schema is no record with fields, which columns are made of")
        builder = _Builder()
        self._record = builder.record(declared, "", "")
        self._is_fast = not builder.unreadable
        self.unreadable = builder.unreadable
        """The columns that have values of a type for which Arrow has none, and why."""
        self.schema = pa.schema([pa.field(name, field.kind) for name, field in self._record.fields])

    def read(
        self, payloads: pa.Array, names: Collection[str], *, as_json: bool = False
    ) -> tuple[dict[str, pa.Array], list[str | None]]:
        """Return columns of payloads, none of which is null, and each row's error."""
        if as_json or not self._is_fast or not len(payloads):
            return self._read_rows(payloads, names, as_json=as_json)
        cursor = _Cursor(payloads)
        columns = dict(self._record.columns(cursor, _ALL, names))
        behind = cursor.end - cursor.at
        if behind.any():
            cursor.fail(_ALL, behind > 0, "more bytes follow: it was written with another schema")
        errors = cursor.errors.tolist()
        aside = np.flatnonzero(cursor.aside)
        if len(aside):
            order = np.arange(len(payloads))
            order[aside] = len(payloads) + np.arange(len(aside))
            others, others_errors = self._read_rows(payloads.take(pa.array(aside)), names)
            columns = {name: pa.concat_arrays([columns[name], others[name]]).take(pa.array(order)) for name in columns}
            for row, error in zip(aside.tolist(), others_errors, strict=True):
                errors[row] = error
        return columns, errors

    def _read_rows(
        self, payloads: pa.Array, names: Collection[str], *, as_json: bool = False
    ) -> tuple[dict[str, pa.Array], list[str | None]]:
        fields = [(name, field) for name, field in self._record.fields if name in names]
        rows: list[Sequence[Any]] = []
        errors: list[str | None] = []
        for payload in payloads.to_pylist():
            try:
                row = self._row_of_json(payload) if as_json else self._row(payload)
                rows.append([field.of_python(row[name]) for name, field in fields])
                errors.append(None)
            except Exception as error:  # fastavro's are of many kinds
                rows.append([None] * len(fields))
                errors.append(str(error) if isinstance(error, _Wrong) else f"it doesn't decode: {_said(error)}")
        columns = {}
        for at, (name, field) in enumerate(fields):
            values = [row[at] for row in rows]
            try:
                columns[name] = pa.array(values, field.kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                columns[name] = _one_by_one(values, field.kind, errors)
        return columns, errors

    def _row(self, payload: bytes) -> Any:
        file = io.BytesIO(payload)
        row = fastavro.schemaless_reader(file, self._plain, None)
        if file.tell() < len(payload):
            raise _Wrong("more bytes follow: it was written with another schema")
        return row

    def _row_of_json(self, payload: bytes) -> Any:
        text = json.dumps(json.loads(payload))  # fastavro reads line by line
        return next(iter(fastavro.json_reader(io.StringIO(text), self._plain)))

    def write(self, rows: Iterable[Mapping[str, Any]], *, as_json: bool = False) -> list[bytes]:
        """Return the payloads of rows, with values as `to_pylist` has them."""
        payloads = []
        for row in rows:
            record = self._record.to_python(row)
            if as_json:
                text = io.StringIO()
                fastavro.json_writer(text, self._plain, [record])
                payloads.append(text.getvalue().encode())
            else:
                file = io.BytesIO()
                fastavro.schemaless_writer(file, self._plain, record)
                payloads.append(file.getvalue())
        return payloads

    def may_lack(self, name: str) -> bool:
        """Whether a row that lacks a column can be written: with null."""
        return isinstance(dict(self._record.fields)[name], _Nullable)


class _Wrong(Exception):
    """What is wrong with a payload, in words."""


def _one_by_one(values: Sequence[Any], kind: pa.DataType, errors: list[str | None]) -> pa.Array:
    """Return values of which some are none of their type: these are null, and their rows have failed."""
    arrays = [pa.nulls(0, kind)]
    for row, value in enumerate(values):
        try:
            arrays.append(pa.array([value], kind))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            errors[row] = errors[row] or f"it doesn't decode: {_said(error)}"
            arrays.append(pa.nulls(1, kind))
    return pa.concat_arrays(arrays)


def _said(error: Exception) -> str:
    return cut(str(error) or type(error).__name__, 120)


def _without_logical(schema: Any) -> Any:
    """Return the schema in whose values times and decimals are numbers and bytes, as they are written."""
    if isinstance(schema, dict):
        return {
            name: each if name in ("default", "symbols", "doc") else _without_logical(each)
            for name, each in schema.items()
            if name != "logicalType"
        }
    return [_without_logical(each) for each in schema] if isinstance(schema, list) else schema


# --- where the rows are -----------------------------------------------------------------------


class _Cursor:
    """Where each row is read next."""

    def __init__(self, payloads: pa.Array) -> None:
        _, offsets, data = payloads.buffers()
        ends = np.frombuffer(offsets, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1].astype(np.int64)
        first, last = int(ends[0]), int(ends[-1])
        self.data = np.zeros(last - first + _SPARE, np.uint8)
        if last > first:
            self.data[: last - first] = np.frombuffer(data, np.uint8)[first:last]
        self._buffer = pa.py_buffer(self.data)
        self.at, self.end = ends[:-1] - first, ends[1:] - first
        self.errors: npt.NDArray[np.object_] = np.full(len(payloads), None, np.object_)
        self.aside = np.zeros(len(payloads), np.bool_)
        """Rows that are to be read one by one."""

    def numbers(self, rows: _Rows) -> _Integers:
        """Return rows as numbers."""
        return np.arange(len(self.at)) if isinstance(rows, slice) else rows

    def fail(self, rows: _Rows, wrong: npt.NDArray[np.bool_], why: str) -> None:
        """Note why some of the rows can't be read, unless that is known."""
        failed = self.numbers(rows)[wrong]
        new = failed[self.errors[failed] == None]  # noqa: E711  # by element
        self.errors[new] = why

    def move(self, rows: _Rows, at: _Integers) -> None:
        """Go on behind what was read."""
        end = self.end[rows]
        if (over := at > end).any():
            self.fail(rows, over, _TOO_SHORT)
            at = np.minimum(at, end)
        self.at[rows] = at

    def bytes(self, rows: _Rows, count: int) -> _Integers:
        """Return where the next bytes of each row begin, and go on behind them."""
        at = self.at[rows].copy()
        self.move(rows, at + count)
        return at

    def long(self, rows: _Rows) -> _Integers:
        """Read a number of variable length."""
        at = self.at[rows].copy()
        byte = self.data[at]
        value = (byte & 0x7F).astype(np.uint64)
        at += 1
        more, shift = np.flatnonzero(byte >= 0x80), 7
        while len(more) and shift < 70:
            byte = self.data[at[more]]
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[more] += 1
            more, shift = more[byte >= 0x80], shift + 7
        self.move(rows, at)
        if len(more):
            wrong = np.zeros(len(at), np.bool_)
            wrong[more] = True
            self.fail(rows, wrong, "a number has more than ten bytes")
        return ((value >> np.uint64(1)) ^ (np.uint64(0) - (value & np.uint64(1)))).view(np.int64)

    def spans(self, rows: _Rows) -> tuple[_Integers, _Integers]:
        """Read where bytes begin, and how many they are."""
        size = self.long(rows)
        at = self.at[rows].copy()
        if (wrong := (size < 0) | (size > self.end[rows] - at)).any():
            self.fail(rows, wrong, _TOO_SHORT)
            size = np.where(wrong, 0, size)
        self.at[rows] = at + size
        return at, size

    def binary(self, at: _Integers, size: _Integers | int) -> pa.Array:
        """Return bytes as an array: every second one of an array that has the bytes in between, too."""
        count = len(at)
        offsets = np.zeros(2 * count + 1, np.int32)
        offsets[:-1:2], offsets[1::2] = at, at + size
        offsets[-1:] = offsets[-2:-1]
        both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), self._buffer])
        return both.take(pa.array(np.arange(0, 2 * count, 2)))


def _mask(rows: Sequence[int], count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


# --- types ------------------------------------------------------------------------------------


class _Type:
    """A type of a schema. `read` takes the rows that have a value of it."""

    kind: pa.DataType

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        raise NotImplementedError

    def skip(self, cursor: _Cursor, rows: _Rows) -> None:
        """Go on behind the values."""
        self.read(cursor, rows)

    def of_python(self, value: Any) -> Any:
        """Return what `pa.array` takes for a value of fastavro's."""
        return value

    def to_python(self, value: Any) -> Any:
        """Return what fastavro takes for a value of `to_pylist`'s."""
        return value


class _Null(_Type):
    kind = pa.null()

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        return pa.nulls(len(cursor.at[rows]))


class _Boolean(_Type):
    kind = pa.bool_()

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        return pa.array(cursor.data[cursor.bytes(rows, 1)] != 0)


class _Integer(_Type):
    """int and long, and times: each as many of the kind's units, or, where negative, that part of one."""

    def __init__(self, kind: pa.DataType, least: int, most: int, times: int = 1) -> None:
        self.kind, self._least, self._most, self._times = kind, least, most, times
        self._stored: Any = pa.int32() if kind.bit_width == 32 else pa.int64()
        self._wrong = "a number is out of range" if types.is_integer(kind) else f"a time is out of the range of {kind}"

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        value = cursor.long(rows)
        if (wrong := (value < self._least) | (value > self._most)).any():
            cursor.fail(rows, wrong, self._wrong)
            value = np.where(wrong, 0, value)
        value = value * self._times if self._times > 0 else value // -self._times
        array = pa.array(value.astype(np.int32) if self._stored == pa.int32() else value)
        return array if array.type == self.kind else array.view(self.kind)

    def skip(self, cursor: _Cursor, rows: _Rows) -> None:
        cursor.long(rows)

    def of_python(self, value: Any) -> Any:
        if not self._least <= value <= self._most:
            raise _Wrong(self._wrong)
        return value * self._times if self._times > 0 else value // -self._times

    def to_python(self, value: Any) -> Any:
        if type(value) is not int:
            value = pa.scalar(value, self.kind).cast(self._stored).as_py()
        if self._times < 0:
            return value * -self._times
        if value % self._times:
            raise _Wrong(f"{value} has digits that the schema's unit has no room for")
        return value // self._times


class _Float(_Type):
    def __init__(self, kind: pa.DataType) -> None:
        self.kind, self._width = kind, kind.bit_width // 8

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        data, width = cursor.data, self._width
        each: npt.NDArray[Any] = np.ndarray((len(data) - width + 1,), f"<f{width}", data, strides=(1,))
        return pa.array(each[cursor.bytes(rows, width)])


class _Bytes(_Type):
    kind = pa.binary()

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        return cursor.binary(*cursor.spans(rows))

    def skip(self, cursor: _Cursor, rows: _Rows) -> None:
        cursor.spans(rows)


class _Text(_Bytes):
    kind = pa.string()

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        array = super().read(cursor, rows)
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = _mask([row for row, each in enumerate(array.to_pylist()) if not _is_utf8(each)], len(array))
            cursor.fail(rows, wrong, "text isn't UTF-8")
            return pa.array(
                [None if bad else each.decode() for bad, each in zip(wrong, array.to_pylist(), strict=True)]
            )

    def of_python(self, value: Any) -> Any:
        return str(value)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Fixed(_Type):
    kind = pa.binary()

    def __init__(self, size: int) -> None:
        self._size = size

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        at = cursor.bytes(rows, self._size)
        return cursor.binary(at, cursor.at[rows] - at)  # fewer where a row ends before


class _Decimal(_Type):
    """Bytes that are a number, the highest first."""

    def __init__(self, stored: _Type, precision: int, scale: int, size: int | None) -> None:
        self.kind = pa.decimal128(precision, scale)
        self._stored, self._scale, self._size, self._most = stored, scale, size, 10**precision

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        array = self._stored.read(cursor, rows)
        ends = np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1].astype(np.int64)
        size = np.diff(ends)
        if (wrong := size > 16).any():
            cursor.aside |= _mask(cursor.numbers(rows)[wrong].tolist(), len(cursor.aside))
        data = np.frombuffer(array.buffers()[2] or b"\0", np.uint8)
        little = (_little_endian if size.max(initial=0) > 8 else _little_endian_of_few)(data, ends, size)
        numbers = pa.Array.from_buffers(self.kind, len(size), [None, pa.py_buffer(little)])
        try:
            numbers.validate(full=True)
        except pa.ArrowInvalid:
            most = self._most
            wrong = np.array(
                [not -most < int.from_bytes(each.tobytes(), "little", signed=True) < most for each in little]
            )
            cursor.fail(rows, wrong, f"a number has more digits than {self.kind}")
            little[wrong] = 0
        return numbers

    def of_python(self, value: Any) -> Any:
        number = int.from_bytes(value, "big", signed=True)
        if not -self._most < number < self._most:
            raise _Wrong(f"a number has more digits than {self.kind}")
        return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -self._scale))

    def to_python(self, value: Any) -> Any:
        sign, digits, exponent = value.as_tuple()
        number = int("".join(map(str, digits))) * 10 ** (exponent + self._scale) * (-1 if sign else 1)
        return number.to_bytes(self._size or number.bit_length() // 8 + 1, "big", signed=True)


_Numbers = npt.NDArray[np.uint8]
"""16 bytes for each, the lowest first."""


def _little_endian(data: _Numbers, ends: _Integers, size: _Integers) -> _Numbers:
    """Return numbers of up to 16 bytes, the highest first, as Arrow has them."""
    places = ends[1:, None] - 16 + np.arange(16)
    inside = places >= ends[:-1, None]
    digits = np.where(inside, data[np.clip(places, 0, len(data) - 1)], 0)
    first = digits[np.arange(len(size)), np.clip(16 - size, 0, 15)]
    digits = np.where(~inside & ((size > 0) & (first >= 0x80))[:, None], 0xFF, digits)
    return np.ascontiguousarray(digits[:, ::-1].astype(np.uint8))


def _little_endian_of_few(data: _Numbers, ends: _Integers, size: _Integers) -> _Numbers:
    """Return numbers of up to 8 bytes, as most decimals are: in a third of the time, byte by byte of all at once."""
    at, last = ends[:-1], len(data) - 1
    values = np.where((size > 0) & (data[np.minimum(at, last)] >= 0x80), np.int64(-1), np.int64(0))
    for byte in range(int(size.max(initial=0))):
        longer = (values << 8) | data[np.minimum(at + byte, last)]
        values = np.where(size > byte, longer, values)
    return np.stack([values, values >> 63], axis=1).astype("<i8").view(np.uint8)


class _Enum(_Type):
    kind = pa.string()

    def __init__(self, symbols: Sequence[str]) -> None:
        self._symbols = pa.array(symbols, pa.string())

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        number = cursor.long(rows)
        if (wrong := (number < 0) | (number >= len(self._symbols))).any():
            cursor.fail(rows, wrong, "an enum has no symbol of this number")
            return self._symbols.take(pa.array(np.where(wrong, 0, number)))
        return self._symbols.take(pa.array(number))


class _Nullable(_Type):
    """A union of null and something."""

    def __init__(self, inner: _Type, null: int) -> None:
        self.kind, self._inner, self._null = inner.kind, inner, null

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        there = self._there(cursor, rows)
        if there.all():
            return self._inner.read(cursor, rows)
        if not there.any():
            return pa.nulls(len(there), self.kind)
        values = self._inner.read(cursor, cursor.numbers(rows)[there])
        return values.take(pa.array(np.cumsum(there) - 1, mask=~there))

    def skip(self, cursor: _Cursor, rows: _Rows) -> None:
        self._inner.skip(cursor, cursor.numbers(rows)[self._there(cursor, rows)])

    def _there(self, cursor: _Cursor, rows: _Rows) -> npt.NDArray[np.bool_]:
        branch = cursor.long(rows)
        if (wrong := (branch < 0) | (branch > 1)).any():
            cursor.fail(rows, wrong, "a union has no type of this number")
        return np.equal(branch, 1 - self._null)

    def of_python(self, value: Any) -> Any:
        return None if value is None else self._inner.of_python(value)

    def to_python(self, value: Any) -> Any:
        return None if value is None else self._inner.to_python(value)


class _Record(_Type):
    def __init__(self, fields: Sequence[tuple[str, _Type]]) -> None:
        self.fields = fields
        self.kind = pa.struct([pa.field(name, field.kind) for name, field in fields])

    def columns(self, cursor: _Cursor, rows: _Rows, names: Collection[str]) -> Iterable[tuple[str, pa.Array]]:
        """Yield some of the fields; the others are skipped."""
        for name, field in self.fields:
            if name in names:
                yield name, field.read(cursor, rows)
            else:
                field.skip(cursor, rows)

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        children = [field.read(cursor, rows) for _, field in self.fields]
        return pa.StructArray.from_arrays(children, fields=list(self.kind))

    def skip(self, cursor: _Cursor, rows: _Rows) -> None:
        for _, field in self.fields:
            field.skip(cursor, rows)

    def of_python(self, value: Any) -> Any:
        return {name: field.of_python(value[name]) for name, field in self.fields}

    def to_python(self, value: Any) -> Any:
        return {name: field.to_python(value.get(name)) for name, field in self.fields}


class _List(_Type):
    """Blocks of elements, each with their number before them, and an empty one at the end."""

    def __init__(self, element: _Type) -> None:
        self._element = element
        self.kind = pa.list_(pa.field("element", element.kind))

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        offsets, elements = self._elements(cursor, rows)
        return pa.ListArray.from_arrays(offsets, elements, type=self.kind)

    def _elements(self, cursor: _Cursor, rows: _Rows) -> tuple[pa.Array, pa.Array]:
        numbers = cursor.numbers(rows)
        counts = np.zeros(len(numbers), np.int64)
        left = np.arange(len(numbers))
        pieces, owners = [pa.nulls(0, self._element.kind)], [np.zeros(0, np.int64)]
        while len(left):
            left, block = self._next_block(cursor, numbers, left)
            for step in range(int(block.max(initial=0))):
                owner = left[block > step]
                pieces.append(self._element.read(cursor, numbers[owner]))
                owners.append(owner)
            counts[left] += block
        order = np.argsort(np.concatenate(owners), kind="stable")
        offsets = np.zeros(len(numbers) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.array(offsets), pa.concat_arrays(pieces).take(pa.array(order))

    def _next_block(self, cursor: _Cursor, numbers: _Integers, left: _Integers) -> tuple[_Integers, _Integers]:
        """Return which of the rows have another block, and how many elements it has."""
        rows = numbers[left]
        block = cursor.long(rows)
        if (sized := block < 0).any():
            cursor.long(rows[sized])  # how many bytes it has
        block = np.abs(block)
        rest = cursor.end[rows] - cursor.at[rows]
        long = (block > _MOST_STEPS) | (block < 0)
        cursor.aside[rows[long & (block <= rest)]] = True
        cursor.fail(rows, (block > rest) | (block < 0), _TOO_SHORT)
        going = ~long & (block > 0) & (block <= rest) & (cursor.errors[rows] == None)  # noqa: E711  # by element
        return left[going], block[going]

    def of_python(self, value: Any) -> Any:
        return [self._element.of_python(each) for each in value]

    def to_python(self, value: Any) -> Any:
        return [self._element.to_python(each) for each in value]


class _Map(_List):
    def __init__(self, value: _Type) -> None:
        super().__init__(_Record([("key", _Text()), ("value", value)]))
        self._value = value
        self.kind = pa.map_(pa.string(), value.kind)

    def read(self, cursor: _Cursor, rows: _Rows) -> pa.Array:
        offsets, entries = self._elements(cursor, rows)
        keys = entries.field(0)
        if keys.null_count:  # not UTF-8: their rows have failed
            keys = keys.fill_null("")
        return pa.MapArray.from_arrays(offsets, keys, entries.field(1))

    def of_python(self, value: Any) -> Any:
        return [(key, self._value.of_python(each)) for key, each in value.items()]

    def to_python(self, value: Any) -> Any:
        return {key: self._value.to_python(each) for key, each in value}


class _Unreadable(_Type):
    """A type that Arrow has no values for."""

    kind = pa.null()

    def of_python(self, value: Any) -> Any:
        return None


class _Builder:
    """Makes types of a schema that fastavro has checked."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Any, str]] = {}
        self._within: list[str] = []
        self.unreadable: dict[str, str] = {}

    def record(self, schema: Mapping[str, Any], space: str, column: str) -> _Record:
        """Return the type of a record; `column` is the one that it is in."""
        name, space = _full_name(schema, space)
        self._named[name] = (schema, space)
        self._within.append(name)
        fields = [
            (field["name"], self.type(field["type"], space, column or field["name"])) for field in schema["fields"]
        ]
        self._within.pop()
        return _Record(fields)

    def type(self, schema: Any, space: str, column: str) -> _Type:
        """Return the type of a value."""
        if isinstance(schema, list):
            return self._union(schema, space, column)
        if isinstance(schema, str):
            if schema in _NAMED:
                return _plain(schema)
            name = schema if "." in schema or not space else f"{space}.{schema}"
            name = name if name in self._named else schema
            if name in self._within:
                return self._unreadable(column, f"{name} is recursive")
            schema, space = self._named[name]
        kind = schema["type"]
        if kind in ("record", "error"):
            return self.record(schema, space, column)
        if kind == "array":
            return _List(self.type(schema["items"], space, column))
        if kind == "map":
            return _Map(self.type(schema["values"], space, column))
        if kind in ("enum", "fixed"):
            self._named[_full_name(schema, space)[0]] = (schema, space)
        return self._leaf(schema, kind, space, column)

    def _leaf(self, schema: Mapping[str, Any], kind: Any, space: str, column: str) -> _Type:
        if kind == "enum":
            return _Enum(schema["symbols"])
        logical = _logical(schema, kind)
        if logical is not None:
            return logical
        if kind == "fixed":
            return _Fixed(schema["size"])
        return self.type(kind, space, column)

    def _union(self, branches: Sequence[Any], space: str, column: str) -> _Type:
        others = [each for each in branches if each != "null"]
        if (len(branches), len(others)) != (2, 1):
            return self._unreadable(column, f"a union of {len(branches)} types: only null and one other are read")
        return _Nullable(self.type(others[0], space, column), branches.index("null"))

    def _unreadable(self, column: str, why: str) -> _Unreadable:
        self.unreadable[column] = why
        return _Unreadable()


def _plain(name: str) -> _Type:
    makers: dict[str, Callable[[], _Type]] = {
        "null": _Null, "boolean": _Boolean, "bytes": _Bytes, "string": _Text,
        "int": lambda: _Integer(pa.int32(), -(2**31), 2**31 - 1),
        "long": lambda: _Integer(pa.int64(), -(2**63), 2**63 - 1),
        "float": lambda: _Float(pa.float32()), "double": lambda: _Float(pa.float64()),
    }  # fmt: skip
    return makers[name]()


_UNITS = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_DAY = 86_400
_FIRST, _LAST = -719_162 * _DAY, 2_932_897 * _DAY - 1
"""Seconds of the years 1 to 9999, which Python and Spark have."""


def _logical(schema: Mapping[str, Any], kind: Any) -> _Type | None:
    """Return the type that an annotation names; None without one that applies: it is ignored then."""
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        if 0 < precision <= 38 and 0 <= scale <= precision:
            size = schema["size"] if kind == "fixed" else None
            return _Decimal(_Bytes() if size is None else _Fixed(size), precision, scale, size)
    if (logical, kind) == ("date", "int"):
        return _Integer(pa.date32(), _FIRST // _DAY, _LAST // _DAY)
    name, _, suffix = str(logical).rpartition("-")
    unit = _UNITS.get(suffix, 0)
    if (logical, kind) in (("time-millis", "int"), ("time-micros", "long")):
        return _Integer(pa.time64("ns"), 0, _DAY * unit - 1, 10**9 // unit)
    if unit and kind == "long" and name in ("timestamp", "local-timestamp"):
        least, most = max(_FIRST * unit, -(2**63)), min((_LAST + 1) * unit - 1, 2**63 - 1)
        times = 10**6 // unit if unit <= 10**6 else -(unit // 10**6)
        return _Integer(pa.timestamp("us", "UTC" if name == "timestamp" else None), least, most, times)
    return None


def _full_name(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Return the full name of a schema, and the namespace of the names within it."""
    name = str(schema["name"])
    if "." in name:
        return name, name.rpartition(".")[0]
    space = schema.get("namespace", space)
    return (f"{space}.{name}" if space else name), space
