"""JSON payloads become columns: by Arrow's reader, and row by row what it rejects.

The way row by row says what a payload means. Arrow's reader, ten times as fast, is used for rows that it decodes the
same: nothing in a row may change another row's value.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
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
from penstock.rows.exact import Misfit, cast_text, explain
from penstock.text import cut, printable

_DEEPEST = 200
"""Levels of nesting that are read row by row: Python's own parser ends at about 1,000, wherever its caller is."""
_WINDOW = 256
"""Rows that are searched for one that Arrow's reader rejects: a failed attempt costs as much as its rows' bytes."""
_UNLIKELY = 8
"""One payload in so many may look as if Arrow's reader had rejected it: else that is a false guess, mostly."""
_FEW = 16
"""Rows that are no longer halved in search of one, and how many are found in a window before all others count as such:
to decode these one by one costs no more."""
_ERROR = 200
"""Characters of a row's error."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SPECIAL = dict.fromkeys(("NaN",), "nan") | dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), "inf")
_SPECIAL |= dict.fromkeys(("-Infinity", "-INF"), "-inf")
"""What Spark takes for these floats, too."""
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""What Arrow's reader takes for a decimal, as text."""
_EXACT = Context(prec=100)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
"""Also one without an end: else the search for it began again at each escaped quote, hours for 1 MB."""
_NOT_JSON = r"[:\[,]\s*-?(?:NaN|Inf)"
"""Numbers that JSON doesn't have: Arrow's reader takes more ways to write them than Python's."""
_LONG_NUMBER = "[0-9]{39}|[0-9.][eE][+-]?[0-9]"
"""Not for decimals: a number that leaves Arrow's 128 bits, or its 256, when it gets its scale becomes another one,
without an error (12345678901234567890 with a scale of 20). With 38 digits and a scale of 38 it stays within 256."""
_BELOW_MICROSECONDS = r"(\.[0-9]{6})[0-9]+"
_LENGTH_BELOW_MICROSECONDS = len("1970-01-01T000000.0000000")
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
        self._misfit = _misfit_pattern(schema)
        self._is_wary = False
        """Whether the last payloads had some that look as if Arrow's reader rejects them: then so have the next."""
        read_as = [] if rest is not None else [_read_as(field.type) for field in schema]
        self._has_decimals = any(map(_has_decimal, schema.types))
        self._options: pyarrow.json.ParseOptions | None = None
        if read_as and None not in read_as:
            explicit = pa.schema([field.with_type(kind) for field, kind in zip(schema, read_as, strict=True)])
            self._options = pyarrow.json.ParseOptions(explicit, unexpected_field_behavior="ignore")

    def decode(self, payloads: pa.Array) -> tuple[list[pa.Array], pa.Array]:
        """Return the columns of the schema, and each row's error, null where it has none. A null payload is all null.

        1. Rows that Arrow's reader might decode in another way, or that might become no row or two, are set aside.
        2. The others are read at once. If that fails, those are set aside that look as if it had failed for them; if it
           fails again, those that it fails for are searched.
        3. What is set aside is decoded row by row, and put back in its place.
        """
        count = len(payloads)
        columns, rows = [pa.nulls(0, kind) for kind in self.schema.types], _numbers(0)
        if self._options is not None and count:
            readable = self._readable(payloads)  # 1.
            columns, rows = self._read_most(readable.lines, readable.rows)  # 2.
        if len(rows) == count:
            return columns, pa.nulls(count, pa.string())
        aside = _without(_numbers(count), rows)
        converted, texts = self._decode_rows(payloads.take(aside).to_pylist())  # 3.
        order = pc.sort_indices(pa.concat_arrays([rows, aside]))
        columns = [pa.concat_arrays(both).take(order) for both in zip(columns, converted, strict=True)]
        return columns, pa.concat_arrays([pa.nulls(len(rows), pa.string()), pa.array(texts, pa.string())]).take(order)

    # --- by Arrow's reader ------------------------------------------------------------------

    def _readable(self, payloads: pa.Array) -> _Readable:
        return _Readable(payloads, long_numbers=not self._has_decimals)

    def _read_most(self, lines: pa.Array, rows: pa.Array) -> tuple[list[pa.Array], pa.Array]:
        """Return the columns of these lines but some, and those of the rows' numbers that they have."""
        is_wary, self._is_wary = self._is_wary, False
        for set_aside in (self._unlikely, self._unread) if is_wary else (None, self._unlikely, self._unread):
            if set_aside is not None:
                kept = _without(_numbers(len(rows)), set_aside(lines))
                self._is_wary |= len(kept) < len(rows)
                lines, rows = lines.take(kept), rows.take(kept)
            with suppress(_Rejected):
                return self._read(lines), rows
        return self._read(lines[:0]), rows[:0]

    def _unlikely(self, lines: pa.Array) -> pa.Array:
        """Return the places of lines that look as if Arrow's reader rejects them; of none, if they are many."""
        places = pc.indices_nonzero(pc.match_substring_regex(lines, self._misfit))
        return places.cast(pa.int64()) if len(places) <= len(lines) / _UNLIKELY else _numbers(0)

    def _unread(self, lines: pa.Array) -> pa.Array:
        """Return the places of the lines that keep the others from being read."""
        rejected: list[int] = []
        for begin, end in pairwise([*range(0, len(lines), _WINDOW), len(lines)]):
            rejected += self._search(lines, begin, end, [])
        return pa.array(rejected, pa.int64())

    def _read(self, lines: pa.Array) -> list[pa.Array]:
        """Return the columns of lines that each begin with `{` and end with `}`; _Rejected if any is no object.

        Nothing but a whole object lies between two newlines then: behind an end within an object or a list, another
        `{` is an error, and so is a newline within a string. So each line is a row at least, and where there are as
        many rows as lines, each is its own row.
        """
        if len(lines) == 0:
            return [pa.nulls(0, field.type) for field in self.schema]
        text = _text_of(lines)
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(text),
                read_options=pyarrow.json.ReadOptions(block_size=text.size + 1, use_threads=False),
                parse_options=self._options,
            )
        except pa.ArrowException as error:
            row = re.search(r"in row ([0-9]+)$", str(error))
            raise _Rejected(None if row is None else int(row[1])) from error
        if table.num_rows != len(lines):
            raise _Rejected
        try:
            [batch] = table.select(self.schema.names).combine_chunks().to_batches()
            columns = [_finish(column, field.type) for column, field in zip(batch.columns, self.schema, strict=True)]
        except (Misfit, pa.ArrowException, ValueError) as error:
            raise _Rejected from error
        return columns

    def _search(self, lines: pa.Array, begin: int, end: int, rejected: list[int]) -> list[int]:
        """Add the lines in a range that keep the others from being read; all, behind some that do."""
        while begin < end:
            try:
                self._read(lines.slice(begin, end - begin))
            except _Rejected as rejection:
                is_known = rejection.row is not None and begin + rejection.row < end
                if len(rejected) >= _FEW or (end - begin <= _FEW and not is_known):
                    rejected.extend(range(begin, end))
                    break
                if rejection.row is not None and is_known:
                    begin += rejection.row + 1
                    rejected.append(begin - 1)
                else:
                    middle = (begin + end) // 2
                    self._search(lines, begin, middle, rejected)
                    begin = middle
            else:
                break
        return rejected

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
        readable = self._readable(one) if self._options is not None else None
        if readable is not None and len(readable.rows):
            with suppress(_Rejected):
                return [column[0] for column in self._read(readable.lines)], None
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


def _misfit_pattern(schema: pa.Schema) -> str:
    """Return a pattern of payloads that Arrow's reader rejects, by how the values of named fields begin.

    It is a guess: a name may be that of another field, too, one that the schema lacks. A wrong one costs time.
    """
    by_name: dict[str, set[str]] = defaultdict(set)
    _note_beginnings(schema, by_name)
    names: dict[str, list[str]] = defaultdict(list)
    for name, beginnings in by_name.items():
        if len(beginnings) == 1:
            names[beginnings.pop()].append(re.escape(json.dumps(name, ensure_ascii=False)))
    return "|".join(rf"(?:{'|'.join(some)})\s*:\s*(?:{beginning})" for beginning, some in names.items()) or "^[^{]"


def _note_beginnings(fields: Iterable[pa.Field], by_name: dict[str, set[str]]) -> None:
    for field in fields:
        by_name[field.name].add(_beginning_of_misfits(field.type))
        inner = field.type
        while types.is_list(inner):
            inner = inner.value_type
        if types.is_struct(inner):
            _note_beginnings(inner, by_name)


def _beginning_of_misfits(kind: pa.DataType) -> str:
    if types.is_struct(kind):
        return r"[^{n\s]"
    if types.is_list(kind):
        return r"[^\[n\s]"
    if kind in _BOUNDS:
        return rf"[^-0-9n\s]|-?[0-9]+[.eE]|-?[0-9]{{{len(str(_BOUNDS[kind])) + 1}}}"
    if types.is_floating(kind):
        return r"[^-0-9n\s]"
    if types.is_decimal(kind):
        return r'[^-0-9"n\s]'
    if types.is_boolean(kind):
        return r"[^tfn\s]"
    return r'[^"n\s]|"[^0-9\s]' if kind in _TIMES else r'[^"n\s]'


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
    try:
        if types.is_timestamp(kind):
            with suppress(pa.ArrowInvalid):
                return texts.cast(kind)  # most have six digits at most, and no space around them
            if pc.max(pc.binary_length(texts)).as_py() >= _LENGTH_BELOW_MICROSECONDS:
                texts = pc.replace_substring_regex(texts, _BELOW_MICROSECONDS, r"\1")
        return cast_text(texts, kind)
    except (pa.ArrowException, ValueError) as error:
        raise Misfit(0, None, explain(error, kind)) from error


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Misfit(0, text, "bytes are written in base64") from error


# --- which rows Arrow's reader may read ----------------------------------------------------


class _Readable:
    """The payloads for which Arrow's reader is right if it takes them: trimmed, and each with a newline behind it."""

    def __init__(self, payloads: pa.Array, *, long_numbers: bool) -> None:
        mask = _braced(payloads)
        if mask is not None:
            payloads = pc.ascii_trim(payloads.view(pa.string()), _WHITESPACE).view(pa.binary())
            mask = _braced(payloads)
        lines = pc.binary_join_element_wise(payloads, b"\n", b"")
        text = _text_of(lines).to_pybytes()
        if b"\0" in text:
            mask = _and(mask, pc.invert(pc.match_substring(lines, "\0")))
        if any(letter in text and word in text for letter, word in ((b"N", b"NaN"), (b"I", b"Inf"))):
            mask = _and(mask, pc.invert(pc.match_substring_regex(lines, _NOT_JSON)))
        if not long_numbers:
            plain = pc.invert(pc.match_substring_regex(lines, _LONG_NUMBER))
            mask = mask if pc.all(plain).as_py() else _and(mask, plain)
        if not _is_utf8(text):
            mask = _and(mask, pa.array([each is not None and _is_utf8(each) for each in lines.to_pylist()]))
        rows = _numbers(len(lines))
        if mask is not None:
            rows, lines = rows.filter(mask), lines.filter(mask)
        self.lines, self.rows = lines, rows


def _braced(payloads: pa.Array) -> pa.Array | None:
    """Return which payloads begin with `{` and end with `}`; None if all do."""
    mask = pc.and_(pc.starts_with(payloads, "{"), pc.ends_with(payloads, "}"))
    return mask if payloads.null_count or not pc.all(mask).as_py() else None


def _and(mask: pa.Array | None, other: pa.Array) -> pa.Array:
    return other if mask is None else pc.and_(mask, other)


def _text_of(lines: pa.Array) -> pa.Buffer:
    """Return the bytes of all lines."""
    _, offsets, text = lines.buffers()
    places = memoryview(offsets).cast("i")
    begin, end = places[lines.offset], places[lines.offset + len(lines)]
    return text.slice(begin, end - begin)


def _is_utf8(text: bytes) -> bool:
    try:
        if not text.isascii():
            text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _numbers(count: int) -> pa.Array:
    """Return the numbers from 0."""
    return pa.arange(0, count)  # type: ignore[attr-defined]  # which pyarrow-stubs lack


def _without(numbers: pa.Array, some: pa.Array) -> pa.Array:
    """Return the numbers that aren't among some of them."""
    return numbers.filter(pc.invert(pc.is_in(numbers, some)))


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
