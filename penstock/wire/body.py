"""A body: a value that crosses the wire as one JSON object.

Each is a frozen value that encodes itself to JSON and decodes itself from bytes, with no
I/O. `v` is the version of the wire: another one is refused rather than guessed at, and so
are unknown fields and wrong types, because a field that is silently dropped is a promise
silently broken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

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
        """The object's bytes; omits fields that are None."""
        return json.dumps({"v": VERSION, **self.to_json()}, separators=(",", ":")).encode()

    def to_json(self) -> dict[str, Any]:
        """The fields that are set, without the version."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]  # a dataclass, always
        return {name: _as_json(value) for name, value in named if value is not None}

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """The value, or InvalidRequest that names the field at fault."""
        found = load_object(raw, cls.__name__)
        version = found.pop("v", None)
        if type(version) is not int or version != VERSION:
            raise InvalidRequest(
                f"{cls.__name__}: expected version 'v': {VERSION}; client and server differ in version"
            )
        return cls.from_json(found)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        """The value of an object already parsed and without version."""
        checks = _checks(cls)  # type: ignore[arg-type]  # a class is hashable; mypy doubts it for Self
        for name in found:
            if name not in checks:
                raise InvalidRequest(f"{cls.__name__} has no field '{name[:80]}'; {suggest(name, checks)}")
        values = {}
        for name, (check, expected, required) in checks.items():
            if name in found:
                values[name] = check(found[name])
                if values[name] is _WRONG:
                    raise InvalidRequest(f"{cls.__name__}.{name}: expected {expected}, got {str(found[name])[:80]!r}")
            elif required:
                raise InvalidRequest(f"{cls.__name__} lacks the field '{name}' ({expected})")
        return cls(**values)


def load_object(raw: bytes, what: str) -> dict[str, Any]:
    """A JSON object from bytes that anybody may have sent."""
    if len(raw) > MAX_BODY:
        raise InvalidRequest(f"{what} of {len(raw)} bytes: at most {MAX_BODY} are taken")
    try:
        found = json.loads(raw.decode(), parse_constant=_no_constant, object_pairs_hook=_each_once)
        if b"\\ud" in raw or b"\\uD" in raw:  # half a surrogate pair is no text: it breaks whatever it is put into
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as broken:
        raise InvalidRequest(f"{what}: expected a JSON object, got {raw[:40]!r} ({str(broken)[:80]})") from broken
    if not isinstance(found, dict):
        raise InvalidRequest(f"{what}: expected a JSON object, got {raw[:40]!r}")
    return found


def _as_json(value: Any) -> Any:
    """Return a field's value as JSON has it: a body within a body is an object too."""
    if isinstance(value, tuple):
        return [_as_json(each) for each in value]
    return value.to_json() if hasattr(value, "to_json") else value


# --- checks --------------------------------------------------------------------------------

_WRONG = object()
_Check = Callable[[Any], Any]


@cache
def _checks(kind: type[Body]) -> dict[str, tuple[_Check, str, bool]]:
    hints = get_type_hints(kind)
    result = {}
    for field in fields(kind):  # type: ignore[arg-type]  # a dataclass, always
        required = field.default is field.default_factory  # both MISSING
        result[field.name] = (*_check(hints[field.name]), required)
    return result


def _check(hint: Any) -> tuple[_Check, str]:
    """A function that returns the value as `hint` has it, or _WRONG, and what it expects in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        check, words = _check(next(arg for arg in args if arg is not NoneType))
        return (lambda value: None if value is None else check(value)), words
    if origin is Literal:
        return (lambda value: value if value in args else _WRONG), " or ".join(repr(arg) for arg in args)
    if origin is tuple:
        check, words = _check(args[0])
        return (lambda value: _each(value, check)), f"a list of {words}"
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


def _each(values: Any, check: _Check) -> Any:
    if not isinstance(values, list | tuple):
        return _WRONG
    checked = tuple(check(value) for value in values)
    return _WRONG if any(value is _WRONG for value in checked) else checked


def _finite(value: float) -> Any:
    """JSON has no infinity, but 1e999 and whole numbers that are larger than any float."""
    try:
        number = float(value)
    except OverflowError:
        return _WRONG
    return number if math.isfinite(number) else _WRONG


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field is there twice, and only one could be obeyed")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
