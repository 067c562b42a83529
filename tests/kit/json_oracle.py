"""What a JSON payload means under a schema, by a parser of its own: for tests of the decoders."""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pyarrow.types as types

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_INFINITE = {"Infinity": "inf", "+Infinity": "inf", "INF": "inf", "+INF": "inf", "-Infinity": "-inf", "-INF": "-inf"}
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d)(?::?(\d\d)(?::?(\d\d)(?:\.(\d{1,6})\d*)?)?)?(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)


class No(Exception):
    """It isn't JSON, or isn't of the type."""


class Number(str):
    """A number as it was written."""

    __slots__ = ()


def expected(schema: pa.Schema, payload: bytes | None) -> tuple[list[Any], bool]:
    """Return the values of a row, and whether it decodes without an error."""
    nothing = [None] * len(schema)
    if payload is None:
        return nothing, True
    try:
        row = parse(payload.decode())
    except (No, UnicodeDecodeError):
        return nothing, False
    if not isinstance(row, dict) or _has_half_a_pair(row):
        return nothing, False
    wrong: list[str] = []
    return [_value(row.get(field.name), field.type, wrong) for field in schema], not wrong


# --- JSON ----------------------------------------------------------------------------------


def parse(text: str) -> Any:
    """Parse one value; a number as text."""
    value, at = _parse(text, _space(text, 0))
    if _space(text, at) != len(text):
        raise No
    return value


def _space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _parse(text: str, at: int) -> tuple[Any, int]:
    first = text[at : at + 1]
    if first == '"':
        return _parse_string(text, at + 1)
    if first in ("[", "{"):
        return _parse_nested(text, at + 1, "]" if first == "[" else "}")
    for word in (*_WORDS, "NaN", "Infinity", "-Infinity"):
        if text.startswith(word, at):
            return _WORDS[word] if word in _WORDS else Number(word), at + len(word)
    number = _NUMBER.match(text, at)
    if number is None:
        raise No
    return Number(number[0]), number.end()


def _parse_nested(text: str, at: int, end: str) -> tuple[Any, int]:
    items: list[Any] = []
    pairs: dict[str, Any] = {}
    at = _space(text, at)
    while text[at : at + 1] != end:
        if items or pairs:
            if text[at : at + 1] != ",":
                raise No
            at = _space(text, at + 1)
        if end == "}":
            if text[at : at + 1] != '"':
                raise No
            name, at = _parse_string(text, at + 1)
            at = _space(text, at)
            if text[at : at + 1] != ":":
                raise No
            at = _space(text, at + 1)
            pairs[name], at = _parse(text, at)
        else:
            item, at = _parse(text, at)
            items.append(item)
        at = _space(text, at)
    return (items if end == "]" else pairs), at + 1


def _parse_string(text: str, at: int) -> tuple[str, int]:
    units: list[int] = []
    while text[at : at + 1] != '"':
        letter = text[at : at + 1]
        if letter < " ":
            raise No
        if letter != "\\":
            units.append(ord(letter))
            at += 1
        elif text[at + 1 : at + 2] == "u":
            if not re.fullmatch("[0-9a-fA-F]{4}", text[at + 2 : at + 6]):
                raise No
            units.append(int(text[at + 2 : at + 6], 16))
            at += 6
            if len(units) > 1 and 0xD800 <= units[-2] < 0xDC00 <= units[-1] < 0xE000:
                units[-2:] = [0x10000 + ((units[-2] - 0xD800) << 10) + units[-1] - 0xDC00]
        else:
            if text[at + 1 : at + 2] not in _ESCAPES:
                raise No
            units.append(ord(_ESCAPES[text[at + 1 : at + 2]]))
            at += 2
    return "".join(map(chr, units)), at + 1


def _has_half_a_pair(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_half_a_pair(name) or _has_half_a_pair(each) for name, each in value.items())
    if isinstance(value, list):
        return any(map(_has_half_a_pair, value))
    return isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value)


# --- values --------------------------------------------------------------------------------


def _value(value: Any, kind: Any, wrong: list[str]) -> Any:
    if value is None:
        return None
    try:
        return _convert(value, kind, wrong)
    except (No, ValueError, ArithmeticError):
        wrong.append(str(kind))
        return None


def _convert(value: Any, kind: Any, wrong: list[str]) -> Any:
    if types.is_struct(kind):
        _demand(isinstance(value, dict))
        return {field.name: _value(value.get(field.name), field.type, wrong) for field in kind}
    if types.is_map(kind):
        _demand(isinstance(value, dict))
        return [(name, _value(each, kind.item_type, wrong)) for name, each in value.items()]
    if types.is_list(kind):
        _demand(isinstance(value, list))
        return [_value(each, kind.value_type, wrong) for each in value]
    if types.is_boolean(kind):
        _demand(isinstance(value, bool))
        return value
    if kind == pa.string():
        return write(value)
    _demand(isinstance(value, str))
    if types.is_integer(kind):
        _demand(_NUMBER.fullmatch(value))
        _demand(abs(Decimal(value).adjusted()) < 40)
        whole = int(Decimal(value))
        _demand(whole == Decimal(value) and -(2 ** (kind.bit_width - 1)) <= whole < 2 ** (kind.bit_width - 1))
        return whole
    if types.is_decimal(kind):
        return _decimal(value, kind)
    if types.is_floating(kind):
        return _float(value, kind)
    _demand(not isinstance(value, Number))
    return _bytes(value) if kind == pa.binary() else _moment(value.strip(), kind)


def _demand(true: object) -> None:
    if not true:
        raise No


def write(value: Any) -> str:
    """Return a value as text."""
    return str(value) if isinstance(value, str) else _write(value)


def _write(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_write(name)}:{_write(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_write, value)) + "]"
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        escaped = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
        return '"' + "".join(escaped.get(c, c if c >= " " else f"\\u{ord(c):04x}") for c in value) + '"'
    return {True: "true", False: "false", None: "null"}[value]


def _decimal(text: str, kind: Any) -> Decimal:
    _demand((_NUMBER if isinstance(text, Number) else _DECIMAL).fullmatch(text))
    with localcontext() as exact:
        exact.prec = 500
        number = Decimal(text)
        _demand(not number or abs(number.adjusted()) < 200)
        if not number:
            return Decimal(0)
        scaled = number.scaleb(kind.scale)
        _demand(scaled == scaled.to_integral_value() and abs(scaled) < 10**kind.precision)
        return Decimal(int(scaled)).scaleb(-kind.scale)


def _float(text: str, kind: Any) -> float:
    if text == "NaN" or text in _INFINITE:
        return float(_INFINITE.get(text, "nan"))
    _demand(_NUMBER.fullmatch(text))
    number = float(text)
    if kind == pa.float32():
        number = _nearest_float32(text)
    _demand(abs(number) != float("inf"))
    return number


def _nearest_float32(text: str) -> float:
    """Return the float of 32 bits that is nearest to the number, not to the double that is."""
    number = float(text)
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    if abs(rounded) == float("inf") and abs(Decimal(text)) < Decimal(2**128 - 2**103):
        rounded = math.copysign(float(2**128 - 2**104), number)  # the double is what is too large
    if rounded in (0.0, float("inf"), float("-inf")):
        return rounded
    [bits] = struct.unpack("i", struct.pack("f", rounded))
    near = [struct.unpack("f", struct.pack("i", each))[0] for each in (bits - 1, bits, bits + 1)]
    with localcontext() as exact:
        exact.prec = 400
        exact_number = Decimal(text)
        return float(
            min(
                (each for each in near if abs(each) != float("inf") and not math.isnan(each)),
                key=lambda each: (abs(Decimal(each) - exact_number), struct.unpack("i", struct.pack("f", each))[0] & 1),
            )
        )


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise No from None


def _moment(text: str, kind: Any) -> Any:
    if kind == pa.date32():
        _demand(re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII))
        return date.fromisoformat(text)
    is_time = types.is_time(kind)
    if kind == pa.timestamp("us") and len(text) == 10:
        text = f"{text} 00"
    match = _MOMENT.fullmatch(f"1970-01-01T{text}" if is_time else text)
    if match is None or (match[6] is not None) != (kind == pa.timestamp("us", "UTC")):
        raise No
    hour, minute, second = (int(each or 0) for each in match.group(2, 3, 4))
    moment = datetime.combine(
        date.fromisoformat(match[1]), time(hour, minute, second, int((match[5] or "0").ljust(6, "0")))
    )
    if is_time:
        return moment.time()
    if kind == pa.timestamp("us"):
        return moment
    zone = (match[6] or "Z").replace(":", "").replace("Z", "+0000").ljust(5, "0")
    shift = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:5]))
    _demand(int(zone[1:3]) < 24 and int(zone[3:5]) < 60)
    return (moment - (shift if zone[0] == "+" else -shift)).replace(tzinfo=UTC)
