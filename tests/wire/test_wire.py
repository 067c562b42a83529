"""Bodies arrive as they were sent; a malformed body is refused by the name of the field at fault."""

from __future__ import annotations

import json
import random
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.flight_server import tickets
from penstock.wire import actions as action_bodies
from penstock.wire import payloads, put, queue, read
from penstock.wire.actions import OpenWrite, Summary, Target
from penstock.wire.body import Body
from penstock.wire.message import QueueMessage
from penstock.wire.position import Position
from penstock.wire.put import PutCommand, Trailer
from penstock.wire.read import ListCommand, ReadCommand
from tests.kit.profiles import examples

KINDS = [
    kind
    for kind in dict.fromkeys(
        kind
        for module in (put, read, payloads, queue, action_bodies, tickets)
        for kind in vars(module).values()
        if isinstance(kind, type)
    )
    if issubclass(kind, Body) and kind not in (Body, QueueMessage)  # a message has its own format
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Draw values that a field of this type may have."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.none() | values(next(arg for arg in args if arg is not NoneType))
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return OBJECTS
    if hint is Position:
        return st.dictionaries(st.integers(0, 255), st.integers(0, 2**63 - 1), max_size=3).map(Position)
    if isinstance(hint, type) and issubclass(hint, Body):
        return bodies(hint)
    plain = {str: TEXT, int: st.integers(0, 2**63 - 1), bool: st.booleans()}
    return plain.get(hint, st.floats(allow_nan=False, allow_infinity=False))


def bodies(kind: type[Body]) -> st.SearchStrategy[Body]:
    return st.builds(kind, **{name: values(hint) for name, hint in hints_of(kind).items()})


def hints_of(kind: type[Body]) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind).items() if not name.startswith("_")}


ANY_BODY = st.sampled_from(KINDS).flatmap(bodies)
EXAMPLE = PutCommand("0" * 32, path="store/a/b", mode="append", run="night 7")


def is_required(kind: type[Body], name: str) -> bool:
    return next(field for field in fields(kind) if field.name == name).default is MISSING  # type: ignore[arg-type]


def smallest_body(kind: type[Body]) -> dict[str, Any]:
    """Return the JSON of the smallest body of a kind, written without the encoder."""
    smallest: dict[Any, Any] = {str: "x", int: 0, float: 0.5, bool: False}
    body: dict[str, Any] = {"v": 1}
    for name, hint in hints_of(kind).items():
        if is_required(kind, name):
            origin = get_origin(hint)
            if isinstance(hint, type) and issubclass(hint, Body):
                body[name] = {key: value for key, value in smallest_body(hint).items() if key != "v"}
                continue
            empty = get_args(hint)[0] if origin is Literal else {tuple: [], dict: {}, None: {}}[origin]
            body[name] = smallest.get(hint, empty)
    return body


def test_the_bodies_of_all_modules_are_tested() -> None:
    assert {"PutCommand", "Receipt", "Trailer", "OpenWrite", "ReadTicket", "WriteTicket"} <= {k.__name__ for k in KINDS}


@given(ANY_BODY)
def test_every_body_is_decoded_as_it_was_encoded(body: Body) -> None:
    assert type(body).decode(body.encode()) == body


@given(ANY_BODY)
def test_a_body_is_a_json_object_of_version_and_set_fields(body: Body) -> None:
    decoded = json.loads(body.encode())
    assert decoded.pop("v") == 1
    assert decoded == json.loads(json.dumps(without_none(body)))


def without_none(value: Any) -> Any:
    """Return a value in lists, dicts and plain values, converted without the encoder."""
    if isinstance(value, Position):
        return dict(value)
    if isinstance(value, tuple):
        return [without_none(each) for each in value]
    if isinstance(value, Body):
        named = {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]
        return {name: without_none(each) for name, each in named.items() if each is not None}
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_field_is_refused_by_its_name(kind: type[Body]) -> None:
    """A field that has a default may be left out."""
    whole = smallest_body(kind)
    kind.decode(json.dumps(whole).encode())
    for name in whole.keys() - {"v"}:
        incomplete = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(InvalidRequest, match=f"{kind.__name__} lacks the field '{name}'"):
            kind.decode(json.dumps(incomplete).encode())


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_a_wrong_type_is_refused_by_field(kind: type[Body]) -> None:
    for name, hint in hints_of(kind).items():
        for wrong in wrong_values(hint):
            raw = json.dumps({**smallest_body(kind), name: wrong}).encode()
            with pytest.raises(InvalidRequest, match=rf"{kind.__name__}\.{name}: expected "):
                kind.decode(raw)


def wrong_values(hint: Any) -> list[Any]:
    """Return JSON values that no field of this type takes."""
    origin, args = get_origin(hint), get_args(hint)
    optional = origin in (Union, UnionType)
    if optional:
        return [value for value in wrong_values(next(arg for arg in args if arg is not NoneType)) if value is not None]
    candidates = [None, True, 3, 0.5, "text", [None], {"a": 1}]
    taken = {str: (str,), int: (int,), float: (int, float), bool: (bool,), tuple: (), dict: (dict,), Literal: ()}
    if origin is tuple:  # a list of wrong elements is wrong, too
        return [value for value in candidates if not isinstance(value, list)] + [[e] for e in wrong_values(args[0])]
    types = (dict,) if origin is None and hint not in taken else taken[hint if hint in taken else origin]
    out_of_range: dict[Any, list[Any]] = {int: [-1, 2**63, 10**400], float: [10**400]}
    return [value for value in candidates if type(value) not in types] + out_of_range.get(hint, [])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(6))
@given(name=TEXT, value=JSON)
def test_an_unknown_field_is_refused_by_its_name(kind: type[Body], name: str, value: Any) -> None:
    known = {field.name for field in fields(kind)} | {"v"}  # type: ignore[arg-type]
    if name not in known:
        with pytest.raises(InvalidRequest) as refused:
            kind.decode(json.dumps({**smallest_body(kind), name: value}).encode())
        assert f"{kind.__name__} has no field '{name}'" in str(refused.value)


def test_a_misspelt_field_gets_a_suggestion() -> None:
    with pytest.raises(InvalidRequest, match="'colums'; did you mean 'columns'"):
        ReadCommand.decode(b'{"v":1,"path":"store/a","colums":["x"]}')


@pytest.mark.parametrize("version", [0, 2, -1, "1", 1.0, True, None, [1], {}])
def test_another_version_is_refused(version: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected version 'v': 1"):
        Target.decode(json.dumps({"v": version, "path": "store/a"}).encode())
    with pytest.raises(InvalidRequest, match="expected version 'v': 1"):
        Target.decode(b'{"path":"store/a"}')


HOSTILE = {
    "nothing": b"",
    "no object": b"[1]",
    "a number": b"1",
    "not JSON": b"{v:1}",
    "cut short": b'{"v":1,"path":"store',
    "something behind it": b'{"v":1,"path":"a"}{}',
    "NaN": b'{"v":1,"path":NaN}',
    "infinity": b'{"v":1,"path":-Infinity}',
    "a field twice": b'{"v":1,"path":"a","path":"b"}',
    "half a surrogate pair": b'{"v":1,"path":"\\uD800"}',
    "half a surrogate pair as a name": b'{"v":1,"path":"a","\\udfff":1}',
    "not UTF-8": b'{"v":1,"path":"\xff"}',
    "UTF-16": '{"v":1,"path":"a"}'.encode("utf-16"),
    "a byte-order mark": b'\xef\xbb\xbf{"v":1,"path":"a"}',
    "a control character": b'{"v":1,"path":"a\nb"}',
    "a number of 5,000 digits": b'{"v":1,"path":' + b"9" * 5_000 + b"}",
    "lists 100,000 deep": b'{"v":1,"path":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "objects 100,000 deep": b'{"v":1,"path":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "more than 16 MiB": b'{"v":1,"path":"' + b"a" * (16 << 20) + b'"}',
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Target"):
        Target.decode(raw)


@pytest.mark.parametrize("depth", [10, 100, 300, 330, 480, 490, 500, 900, 950, 980, 990, 1_000])
def test_nesting_near_the_recursion_limit_is_refused(depth: int) -> None:
    for opening, middle, closing in ((b"[", b"", b"]"), (b'{"a":', b"1", b"}")):
        raw = b'{"v":1,"path":' + opening * depth + middle + closing * depth + b"}"
        with pytest.raises(InvalidRequest, match="Target"):
            Target.decode(raw)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"1" + b"0" * 400])
def test_an_infinite_time_is_refused(number: bytes) -> None:
    raw = b'{"v":1,"write":"w","path":"p","mode":"error","state":"open","opened":' + number + b"}"
    with pytest.raises(InvalidRequest, match=r"Summary\.opened: expected a number"):
        Summary.decode(raw)


@given(st.binary(max_size=200) | TEXT.map(str.encode) | JSON.map(lambda value: json.dumps(value).encode()))
def test_bytes_of_any_kind_are_a_body_or_refused(raw: bytes) -> None:
    for kind in KINDS:
        assert_body_or_refused(kind, raw)


@pytest.mark.parametrize(
    "body", [EXAMPLE, Trailer(3, 17), ReadCommand("store/a", ("x", "y"), 10), OpenWrite("store/a")]
)
def test_damaged_bytes_are_refused_or_a_valid_body(body: Body) -> None:
    """Replace, remove and double each byte: what is still a body must be decoded again from its own encoding."""
    dice, raw = random.Random(4), body.encode()
    for at in range(len(raw)):
        for new in (bytes([raw[at] ^ (1 << bit)]) for bit in range(8)):
            assert_body_or_refused(type(body), raw[:at] + new + raw[at + 1 :])
        assert_body_or_refused(type(body), raw[:at] + raw[at + 1 :])
        assert_body_or_refused(type(body), raw[: at + 1] + raw[at:])
        assert_body_or_refused(type(body), raw[:at] + dice.randbytes(3) + raw[at + 3 :])


@pytest.mark.parametrize("body", [EXAMPLE, Trailer(3, 17), ListCommand("store/", folders=True)])
def test_a_cut_body_is_always_refused(body: Body) -> None:
    raw = body.encode()
    for length in range(len(raw)):
        with pytest.raises(InvalidRequest):
            type(body).decode(raw[:length])


def assert_body_or_refused(kind: type[Body], raw: bytes) -> None:
    try:
        body = kind.decode(raw)
    except InvalidRequest as refused:
        message = str(refused)
    else:
        assert kind.decode(body.encode()) == body
        return
    assert kind.__name__ in message
    assert len(message.encode()) < 1_000


def test_bodies_are_frozen() -> None:
    with pytest.raises(AttributeError):
        EXAMPLE.path = "store/other"  # type: ignore[misc]
