"""JSON payloads become columns: by Arrow's reader, and row by row what it rejects.

The way row by row says what a payload means. Arrow's reader, ten times as fast, is used for rows that it decodes the
same: nothing in a row may change another row's value.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Context, Decimal, InvalidOperation
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.types as types

from penstock.errors import InvalidRequest
from penstock.rows.casting import reinterpret
from penstock.rows.exact import Misfit, column_of
from penstock.text import cut, printable

_DEEPEST = 200
"""Levels of nesting that are read row by row: Python's own parser ends at about 1,000, wherever its caller is."""
_WINDOW = 256
"""Rows that are searched for one that Arrow's reader rejects: a failed attempt costs as much as its rows' bytes."""
_FEW = 16
"""Rows that are no longer halved in search of one: to decode these one by one costs no more."""
_ERROR = 200
"""Characters of a row's error."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SPECIAL = dict.fromkeys(("NaN",), "nan") | dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), "inf")
_SPECIAL |= dict.fromkeys(("-Infinity", "-INF"), "-inf")
"""What Spark takes for these floats, too."""
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""What Arrow's reader takes for a decimal, as text."""
_EXACT = Context(prec=100)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_JSON = r"[:\[,]\s*-?(?:NaN|Inf)"
"""Numbers that JSON doesn't have: Arrow's reader takes more ways to write them than Python's."""
_LONG_NUMBER = "[0-9]{39}|[0-9.][eE][+-]?[0-9]"
"""Not for decimals: a number that leaves Arrow's 128 bits, or its 256, when it gets its scale becomes another one,
without an error (12345678901234567890 with a scale of 20). With 38 digits and a scale of 38 it stays within 256."""
_BELOW_MICROSECONDS = r"(\.[0-9]{6})[0-9]+"
_WHITESPACE = " \t\n\r"


class JsonDecoder:
    """Decodes objects with the fields of a schema; `rest` names a column for the fields that the schema lacks."""

    def __init__(self, schema: pa.Schema, rest: str | None = None) -> None:
        for field in schema:
            _check_type(field.type, field.name)
        self._rest = rest
        self._known = frozenset(schema.names)
        self.schema = schema if rest is None else schema.append(pa.field(rest, pa.map_(pa.string(), pa.string())))
        self._rows = [(field.name, field.type, _converter(field.type, field.name)) for field in schema]
        read_as = [] if rest is not None else [_read_as(field.type) for field in schema]
        self._has_decimals = any(map(_has_decimal, schema.types))
        self._options: pyarrow.json.ParseOptions | None = None
        if read_as and None not in read_as:
            explicit = pa.schema([field.with_type(kind) for field, kind in zip(schema, read_as, strict=True)])
            self._options = pyarrow.json.ParseOptions(explicit, unexpected_field_behavior="ignore")

    def decode(self, payloads: pa.Array) -> tuple[list[pa.Array], pa.Array]:
        """Return the columns of the schema, and each row's error, null where it has none. A null payload is all null.

        1. Rows that Arrow's reader might decode in another way, or that might become no row or two, are set aside.
        2. The others are read at once. If that fails, the rows that it fails for are searched, and set aside.
        3. What is set aside is decoded row by row, and put back in its place.
        """
        count = len(payloads)
        readable = self._readable(payloads) if self._options is not None and count else None  # 1.
        columns = aside = None
        if readable is not None:
            columns, rejected = self._read_most(readable.payloads, readable.text)  # 2.
            aside = readable.aside(rejected)
        if columns is None or aside is None:
            columns, aside = [pa.nulls(0, kind) for kind in self.schema.types], list(range(count))
        first = count - len(aside)
        if first == count:
            return columns, pa.nulls(count, pa.string())
        converted, errors = self._decode_rows(payloads.take(pa.array(aside, pa.int64())).to_pylist())  # 3.
        order = _merged(aside, count)
        columns = [pa.concat_arrays(both).take(order) for both in zip(columns, converted, strict=True)]
        return columns, pa.concat_arrays([pa.nulls(first, pa.string()), pa.array(errors, pa.string())]).take(order)

    # --- by Arrow's reader ------------------------------------------------------------------

    def _readable(self, payloads: pa.Array) -> _Readable:
        return _Readable(payloads, long_numbers=not self._has_decimals)

    def _read_most(self, payloads: pa.Array, text: bytes) -> tuple[list[pa.Array] | None, list[int]]:
        """Return the columns of all payloads but some, and the places of those."""
        try:
            return self._read(payloads, text), []
        except _Rejected:
            rejected: list[int] = []
            for begin, end in pairwise([*range(0, len(payloads), _WINDOW), len(payloads)]):
                self._search(payloads, begin, end, rejected)
        try:
            return self._read(payloads.take(pa.array(_others(rejected, len(payloads)), pa.int64()))), rejected
        except _Rejected:
            return None, []

    def _read(self, payloads: pa.Array, text: bytes | None = None) -> list[pa.Array]:
        """Return the columns of payloads that each begin with `{` and end with `}`; _Rejected if any is no object.

        Nothing but a whole object lies between two newlines then: behind an end within an object or a list, another
        `{` is an error, and so is a newline within a string. So each payload is a row at least, and where there are as
        many rows as payloads, each is its own row.
        """
        count = len(payloads)
        if count == 0:
            return [pa.nulls(0, field.type) for field in self.schema]
        text = text or _join(payloads)
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(text),
                read_options=pyarrow.json.ReadOptions(block_size=len(text) + 1, use_threads=False),
                parse_options=self._options,
            )
        except pa.ArrowException as error:
            row = re.search(r"in row ([0-9]+)$", str(error))
            raise _Rejected(None if row is None else int(row[1])) from error
        if table.num_rows != count:
            raise _Rejected
        try:
            [batch] = table.select(self.schema.names).combine_chunks().to_batches()
            columns = [_finish(column, field.type) for column, field in zip(batch.columns, self.schema, strict=True)]
        except (Misfit, pa.ArrowException, ValueError) as error:
            raise _Rejected from error
        return columns

    def _search(self, payloads: pa.Array, begin: int, end: int, rejected: list[int]) -> None:
        """Add the payloads in a range that keep the others from being read."""
        while begin < end:
            try:
                self._read(payloads.slice(begin, end - begin))
            except _Rejected as rejection:
                if rejection.row is not None and begin + rejection.row < end:
                    begin += rejection.row + 1
                    rejected.append(begin - 1)
                elif end - begin <= _FEW:
                    rejected.extend(range(begin, end))
                    return
                else:
                    middle = (begin + end) // 2
                    self._search(payloads, begin, middle, rejected)
                    begin = middle
            else:
                return

    # --- row by row -------------------------------------------------------------------------

    def _decode_rows(self, payloads: Sequence[bytes | None]) -> tuple[list[pa.Array], list[str | None]]:
        columns: list[list[Any]] = [[] for _ in self.schema]
        errors: list[str | None] = []
        for payload in payloads:
            values, error = self._decode_row(payload)
            errors.append(None if error is None else cut(printable(error), _ERROR))
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        return [pa.array(values, kind) for values, kind in zip(columns, self.schema.types, strict=True)], errors

    def _decode_row(self, payload: bytes | None) -> tuple[Sequence[Any], str | None]:
        if payload is None:
            return [None] * len(self.schema), None
        try:
            row = _parse(payload)
        except _TooDeep as error:
            return self._decode_deep(payload, str(error))
        except _Undecodable as error:
            return [None] * len(self.schema), str(error)
        misfits: list[str] = []
        values = [convert(row.get(name), misfits) for name, _, convert in self._rows]
        if self._rest is not None:
            values.append([(name, _text(value)) for name, value in row.items() if name not in self._known])
        return values, misfits[0] if misfits else None

    def _decode_deep(self, payload: bytes, error: str) -> tuple[Sequence[Any], str | None]:
        """Decode a payload that is nested too deep for Python, as Arrow's reader decodes it among others."""
        one = pa.array([payload], pa.binary())
        readable = self._readable(one).payloads if self._options is not None else ()
        if len(readable):
            with suppress(_Rejected):
                return [column[0] for column in self._read(readable)], None
        return [None] * len(self.schema), error


class _Rejected(Exception):
    """Arrow's reader doesn't take some payloads; the first of them, if that is known."""

    def __init__(self, row: int | None = None) -> None:
        super().__init__(row)
        self.row = row


class _Undecodable(Exception):
    """A payload that is no JSON object."""


class _TooDeep(_Undecodable):
    """A payload that is nested too deep for Python's parser."""


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


# --- types ---------------------------------------------------------------------------------


def _check_type(kind: pa.DataType, path: str) -> None:
    """Reject a type that JSON has no values for, or that Spark doesn't have."""
    if types.is_struct(kind):
        if not kind.num_fields:
            raise InvalidRequest(f"column {path} is a struct without fields: name them, or declare it as string")
        for field in kind:
            _check_type(field.type, f"{path}.{field.name}")
    elif types.is_list(kind):
        _check_type(kind.value_type, f"{path}[]")
    elif types.is_map(kind):
        if kind.key_type != pa.string():
            raise InvalidRequest(f"column {path} is a map by {kind.key_type}: JSON's keys are text, map<string, …>")
        _check_type(kind.item_type, f"{path}.value")
    elif not (kind in _LEAVES or types.is_decimal128(kind)):
        raise InvalidRequest(
            f"column {path} is {kind}, which JSON has no values for: declare it as string, and convert it afterwards"
        )


_BOUNDS = {
    pa.int8(): 2**7, pa.int16(): 2**15, pa.int32(): 2**31, pa.int64(): 2**63,
}  # fmt: skip
_TIMES = (pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.time64("ns"))
_LEAVES = (*_BOUNDS, *_TIMES, pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.binary())


def _read_as(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which Arrow's reader reads; None for maps, which it doesn't read."""
    if types.is_struct(kind):
        children = [(field, _read_as(field.type)) for field in kind]
        if any(child is None for _, child in children):
            return None
        return pa.struct([field.with_type(child) for field, child in children])
    if types.is_list(kind):
        values = _read_as(kind.value_type)
        return None if values is None else pa.list_(kind.value_field.with_type(values))
    if types.is_map(kind):
        return None
    if types.is_decimal(kind):
        return pa.decimal256(76, kind.scale)
    return pa.string() if kind in _TIMES or kind == pa.binary() else kind


def _has_decimal(kind: pa.DataType) -> bool:
    return types.is_decimal(kind) or any(_has_decimal(kind.field(at).type) for at in range(kind.num_fields))


def _finish(column: Any, kind: pa.DataType) -> pa.Array:
    """Return a column of Arrow's reader in its own type; Misfit for a value that isn't one of it."""
    if types.is_struct(kind):
        children = [_finish(column.field(at), field.type) for at, field in enumerate(kind)]
        nulls = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if types.is_list(kind):
        nulls = column.is_null() if column.null_count else None
        values = _finish(column.values, kind.value_type)
        return reinterpret(pa.ListArray.from_arrays(column.offsets, values, mask=nulls), kind)
    if types.is_floating(kind):
        if pc.any(pc.is_inf(column)).as_py():
            raise Misfit(0, None, "too large")
        return column
    if types.is_decimal(kind):
        return column.cast(kind)
    return column if column.type == kind else _of_texts(column, kind)


def _of_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert text to times or bytes; Misfit for what isn't. Fractions of microseconds are cut off, as Spark does."""
    if kind == pa.binary():
        return pa.array([None if text is None else _base64(text) for text in texts.to_pylist()], kind)
    if types.is_timestamp(kind):
        texts = pc.replace_substring_regex(texts, _BELOW_MICROSECONDS, r"\1")
    return column_of(texts, kind)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Misfit(0, text, "bytes are written in base64") from error


# --- which rows Arrow's reader may read ----------------------------------------------------


class _Readable:
    """The payloads, trimmed, for which Arrow's reader is right if it takes them."""

    def __init__(self, payloads: pa.Array, *, long_numbers: bool) -> None:
        mask = _braced(payloads)
        if mask is not None:
            payloads = pc.ascii_trim(payloads.view(pa.string()), _WHITESPACE).view(pa.binary())
            mask = _braced(payloads)
        text = _join(payloads)
        if b"\0" in text:
            mask = _and(mask, pc.invert(pc.match_substring(payloads, "\0")))
        if b"NaN" in text or b"Inf" in text:
            mask = _and(mask, pc.invert(pc.match_substring_regex(payloads, _NOT_JSON)))
        if not long_numbers:
            plain = pc.invert(pc.match_substring_regex(payloads, _LONG_NUMBER))
            mask = mask if pc.all(plain).as_py() else _and(mask, plain)
        if not _is_utf8(text):
            mask = _and(mask, pa.array([each is not None and _is_utf8(each) for each in payloads.to_pylist()]))
        self._rows: pa.Array | None = None
        """The places of the payloads; None where they are all."""
        self._count = len(payloads)
        if mask is not None:
            self._rows = pc.indices_nonzero(mask)
            payloads = payloads.take(self._rows)
            text = _join(payloads)
        self.payloads, self.text = payloads, text

    def aside(self, rejected: list[int]) -> list[int]:
        """Return the places of all other rows, and of those among these that the reader has rejected."""
        if self._rows is None:
            return rejected
        kept = pa.array(_others(rejected, len(self._rows)), pa.int64())
        return _others(self._rows.take(kept).to_pylist(), self._count)


def _braced(payloads: pa.Array) -> pa.Array | None:
    """Return which payloads begin with `{` and end with `}`; None if all do."""
    mask = pc.and_(pc.starts_with(payloads, "{"), pc.ends_with(payloads, "}"))
    return mask if payloads.null_count or not pc.all(mask).as_py() else None


def _and(mask: pa.Array | None, other: pa.Array) -> pa.Array:
    return other if mask is None else pc.and_(mask, other)


def _join(payloads: pa.Array) -> bytes:
    """Return the payloads that aren't null, each with a newline behind it: the reader cuts at the last newline."""
    some = payloads.drop_null()
    whole = pa.ListArray.from_arrays(pa.array([0, len(some)], pa.int32()), some)
    return memoryview(pc.binary_join(whole, b"\n")[0].as_buffer()).tobytes() + b"\n"


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _others(rows: Sequence[int], count: int) -> list[int]:
    """Return the numbers below `count` that aren't among `rows`, which are sorted."""
    others: list[int] = []
    begin = 0
    for row in rows if len(rows) < count else ():
        others.extend(range(begin, row))
        begin = row + 1
    if len(rows) < count:
        others.extend(range(begin, count))
    return others


def _merged(aside: Sequence[int], count: int) -> pa.Array:
    """Return, for each of `count` rows, its place among the rows that aren't set aside, followed by those that are."""
    order: list[int] = []
    begin = 0
    for at, row in enumerate(aside):
        order.extend(range(begin - at, row - at))
        order.append(count - len(aside) + at)
        begin = row + 1
    order.extend(range(begin - len(aside), count - len(aside)))
    return pa.array(order, pa.int64())


# --- values, row by row --------------------------------------------------------------------


def _parse(payload: bytes) -> dict[str, Any]:
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise _Undecodable(f"it isn't UTF-8, at byte {error.start}") from error
    if not text.strip(_WHITESPACE):
        raise _Undecodable("it is empty")
    if text.count("{") + text.count("[") > _DEEPEST and _depth(text) > _DEEPEST:
        raise _TooDeep(f"it is nested deeper than {_DEEPEST} levels")
    try:
        row = _decoder.decode(text)
    except ValueError as error:
        raise _Undecodable(f"it isn't JSON: {error}") from error
    if not isinstance(row, dict):
        raise _Undecodable(f"it is no object: {cut(text.strip(), 40)}")
    if "\\u" in text:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise _Undecodable("it has half of a surrogate pair") from error
    return row


def _depth(text: str) -> int:
    depth = deepest = 0
    for mark in re.findall(r"[\[\]{}]", _STRING.sub("", text)):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


_Convert = Callable[[Any, list[str]], Any]


def _converter(kind: pa.DataType, path: str) -> _Convert:
    """Return a function that converts a value of JSON to what `pa.array` takes; a misfit is null, and is noted."""
    inner = _inner_converter(kind, path)

    def convert(value: Any, misfits: list[str]) -> Any:
        if value is None:
            return None
        try:
            return inner(value, misfits)
        except (Misfit, ValueError, TypeError, InvalidOperation, pa.ArrowException) as error:
            why = f" ({error.why})" if isinstance(error, Misfit) and error.why else ""
            misfits.append(f"{path}: {cut(_text(value), 40)!r} is no {kind}{why}")
            return None

    return convert


def _inner_converter(kind: Any, path: str) -> _Convert:
    if types.is_struct(kind):
        children = [(field.name, _converter(field.type, f"{path}.{field.name}")) for field in kind]
        return lambda value, misfits: {name: each(_object(value).get(name), misfits) for name, each in children}
    if types.is_map(kind):
        item = _converter(kind.item_type, f"{path}.value")
        return lambda value, misfits: [(key, item(each, misfits)) for key, each in _object(value).items()]
    if types.is_list(kind):
        element = _converter(kind.value_type, f"{path}[]")
        return lambda value, misfits: [element(each, misfits) for each in _array(value)]
    if kind in _BOUNDS:
        return lambda value, _: _integer(_numeric(value), _BOUNDS[kind])
    if types.is_decimal(kind):
        return lambda value, _: _decimal(value, kind)
    if types.is_floating(kind):
        return lambda value, _: _float(value, kind)
    if types.is_boolean(kind):
        return lambda value, _: _boolean(value)
    if kind == pa.string():
        return lambda value, _: _text(value)
    return lambda value, _: _moment(value, kind)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(value)
    return value


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _numeric(value: Any, written: re.Pattern[str] = _NUMBER) -> str:
    """Return a number, or text that is one, as it is written."""
    if not isinstance(value, str) or not written.fullmatch(value):
        raise TypeError(value)
    return value


def _decimal(value: Any, kind: Any) -> Decimal:
    number = Decimal(_numeric(value, _DECIMAL))
    if number and not -kind.scale - 1 < number.adjusted() < kind.precision - kind.scale:
        raise ValueError(value)
    fitted = number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT) if number else Decimal(0)
    if fitted != number:
        raise ValueError(value)
    return fitted


def _integer(text: str, bound: int) -> int:
    number = Decimal(text)
    if number.adjusted() > 20 or number != number.to_integral_value():
        raise ValueError(text)
    whole = int(number)
    if not -bound <= whole < bound:
        raise Misfit(0, text, "out of range")
    return whole


def _float(value: Any, kind: pa.DataType) -> float:
    if isinstance(value, str) and value in _SPECIAL:
        return float(_SPECIAL[value])
    text = _numeric(value)
    number = float(text) if kind == pa.float64() else pa.scalar(text, pa.string()).cast(kind).as_py()
    if number in (float("inf"), float("-inf")):
        raise Misfit(0, text, "too large")
    return number


def _moment(value: Any, kind: pa.DataType) -> Any:
    """Return a time as the number that Arrow stores, or bytes."""
    if not isinstance(value, str):
        raise TypeError(value)
    if isinstance(value, _Number):
        raise Misfit(0, value, "a number tells no time without its unit" if kind in _TIMES else "")
    scalar = _of_texts(pa.array([value], pa.string()), kind)[0]
    return scalar.as_py() if kind == pa.binary() else scalar.value


def _text(value: Any) -> str:
    """Return a value as text: text itself, all else as JSON, numbers as they were written."""
    return str(value) if isinstance(value, str) else _dump(value)


def _dump(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_dump(name)}:{_dump(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


_decoder = json.JSONDecoder(parse_float=_Number, parse_int=_Number, parse_constant=_Number)
