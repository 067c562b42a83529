"""A body: a value that crosses the wire as one JSON object.

Each is a frozen value that encodes itself to JSON and decodes itself from bytes, with no
I/O. `v` is the version of the wire. Another version is refused rather than guessed at, and
so are unknown fields and wrong types: a dropped field would be a promise silently broken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from penstock.errors import InvalidRequest
from penstock.text import suggest
from penstock.wire.position import EXPECTED, Position

VERSION = 1
MAX_BODY = 16 << 20
"""Bytes of one body: a finish that lists 300,000 attempts fits."""


class Body:
    """A value that travels as one JSON object."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Return the object's bytes; omits fields that are None."""
        return json.dumps({"v": VERSION, **self.to_json()}, separators=(",", ":")).encode()

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are not None, without the version."""
        values = ((name, getattr(self, name)) for name in field_names(type(self)))  # type: ignore[arg-type]  # hashable
        return {name: _as_json(value) for name, value in values if value is not None}

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the value; InvalidRequest names the field at fault."""
        members = load_object(raw, cls.__name__)
        version = members.pop("v", None)
        if type(version) is not int or version != VERSION:
            raise InvalidRequest(
                f"{cls.__name__}: expected version 'v': {VERSION}; client and server differ in version"
            )
        return cls.from_json(members)

    @classmethod
    def from_json(cls, members: dict[str, Any]) -> Self:
        """Return the value of an object that is parsed already and has no version."""
        checks = _checks(cls)  # type: ignore[arg-type]  # a class is hashable; mypy doubts it for Self
        for name in members:
            if name not in checks:
                raise InvalidRequest(f"{cls.__name__} has no field '{name[:80]}'; {suggest(name, checks)}")
        values = {}
        for name, (check, expected, required) in checks.items():
            if name in members:
                values[name] = check(members[name])
                if values[name] is _WRONG:
                    raise InvalidRequest(f"{cls.__name__}.{name}: expected {expected}, got {str(members[name])[:80]!r}")
            elif required:
                raise InvalidRequest(f"{cls.__name__} lacks the field '{name}' ({expected})")
        return cls(**values)


def load_object(raw: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object from untrusted bytes."""
    if len(raw) > MAX_BODY:
        raise InvalidRequest(f"{what}: expected at most {MAX_BODY} bytes, got {len(raw)}")
    try:
        value = json.loads(raw.decode(), parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates)
        if b"\\ud" in raw or b"\\uD" in raw:  # half a surrogate pair can't be encoded by whatever the text is put into
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as malformed:
        raise InvalidRequest(f"{what}: expected a JSON object, got {raw[:40]!r} ({str(malformed)[:80]})") from malformed
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what}: expected a JSON object, got {raw[:40]!r}")
    return value


def _as_json(value: Any) -> Any:
    """Return a field's value as JSON has it: a body within a body is an object too."""
    if isinstance(value, tuple):
        return [_as_json(element) for element in value]
    to_json = getattr(value, "to_json", None)
    return value if to_json is None else to_json()


@cache
def field_names(body: type[Body]) -> tuple[str, ...]:
    """Return the names of a body's fields."""
    return tuple(field.name for field in fields(body))  # type: ignore[arg-type]  # a dataclass, always


# --- checks --------------------------------------------------------------------------------

_WRONG = object()
_Check = Callable[[Any], Any]


@cache
def _checks(body: type[Body]) -> dict[str, tuple[_Check, str, bool]]:
    """Return for each field its check, its type in words, and whether it is required."""
    hints = get_type_hints(body, include_extras=True)
    result = {}
    for field in fields(body):  # type: ignore[arg-type]  # a dataclass, always
        required = field.default is field.default_factory  # both MISSING
        result[field.name] = (*_check_for(hints[field.name]), required)
    return result


def _check_for(hint: Any) -> tuple[_Check, str]:
    """Return a function that converts a JSON value to the type of `hint`, or to _WRONG; and the type in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        check, words = _check_for(next(arg for arg in args if arg is not NoneType))
        return (lambda value: None if value is None else check(value)), words
    if origin is Annotated:
        return (lambda value: value if type(value) is str and len(value.encode()) <= args[1] else _WRONG), (
            f"a string of at most {args[1]:,} bytes"
        )
    if origin is Literal:
        return (lambda value: value if value in args else _WRONG), " or ".join(repr(arg) for arg in args)
    if origin is tuple:
        check, words = _check_for(args[0])
        return (lambda value: _check_elements(value, check)), f"a list of {words}"
    if origin is dict:
        return (lambda value: value if isinstance(value, dict) else _WRONG), "an object"
    if hint is Position:
        return (lambda value: Position.from_json(value) if isinstance(value, dict) else _WRONG), EXPECTED
    if isinstance(hint, type) and issubclass(hint, Body):
        return (lambda value: hint.from_json(value) if isinstance(value, dict) else _WRONG), "an object"
    return _PLAIN[hint]


_PLAIN: dict[type, tuple[_Check, str]] = {
    int: (lambda value: value if type(value) is int and 0 <= value < 2**63 else _WRONG, "a number from 0"),
    float: (lambda value: _finite(value) if type(value) in (int, float) else _WRONG, "a number"),
    bool: (lambda value: value if type(value) is bool else _WRONG, "true or false"),
    str: (lambda value: value if type(value) is str else _WRONG, "a string"),
}


def _check_elements(values: Any, check: _Check) -> Any:
    if not isinstance(values, list | tuple):
        return _WRONG
    checked = tuple(check(value) for value in values)
    return _WRONG if any(value is _WRONG for value in checked) else checked


def _finite(value: float) -> Any:
    """Return a number as a float, or _WRONG: JSON has 1e999, and whole numbers larger than any float."""
    try:
        number = float(value)
    except OverflowError:
        return _WRONG
    return number if math.isfinite(number) else _WRONG


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a field appears twice")
    return members


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
