"""A path is a kind and a key; a key that might mean anything else is refused."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.wire.paths import Path, check_key, join_descriptor, of_acks, parse, parse_folder
from tests.kit.wire import NASTY

SIGNS = string.ascii_letters + string.digits + "._=~+%:-"
NAMES = st.text(SIGNS, min_size=1, max_size=20).filter(lambda name: name not in (".", ".."))
KEYS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)


def test_there_are_two_hundred_nasty_keys() -> None:
    assert len(NASTY) >= 200


@pytest.mark.parametrize("key", NASTY, ids=ascii)
def test_a_nasty_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match=r"expected 1 to 512 characters|a name between slashes"):
        check_key(key)


@pytest.mark.parametrize(
    "key",
    ["a", "A-Z.a_z=0", "...", "a..b", "..a", "a/b=1/c.arrow", "p:x/a+b~c%2f", "-_=", "a" * 512, "/".join("a" * 256)],
)
def test_a_good_key_is_accepted_unchanged(key: str) -> None:
    assert check_key(key) == key


@given(KEYS)
def test_every_key_of_good_names_is_accepted(key: str) -> None:
    assert check_key(key) == key
    assert str(parse(f"store/{key}")) == f"store/{key}"


@given(st.text(max_size=40))
def test_any_text_is_a_good_key_or_refused_briefly(text: str) -> None:
    is_good = (
        0 < len(text) <= 512
        and all(sign in SIGNS + "/" for sign in text)
        and not set(text.split("/")) & {"", ".", ".."}
    )
    if is_good:
        assert check_key(text) == text
    else:
        with pytest.raises(InvalidRequest) as refused:
            check_key(text)
        assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", ["store/a", "store/a/b", "topic/a", "topic/a/b", "write/5d41"])
def test_a_path_names_one_thing(text: str) -> None:
    assert str(parse(text)) == text
    assert parse(text + "/") == parse(text)


@pytest.mark.parametrize("kind", ["store", "topic", "write"])
@pytest.mark.parametrize("end", ["", "/"])
def test_a_folder_may_be_everything_of_a_kind(kind: str, end: str) -> None:
    assert parse_folder(kind + end) == Path(kind, "")
    cure = f"has no key: expected one such as {kind}/demo/trips" if end else "expected a kind and a key, such as store/"
    with pytest.raises(InvalidRequest, match=cure):
        parse(kind + end)


@pytest.mark.parametrize(
    "text", ["", "/", "/store/a", "Store/a", " store/a", "file:///etc", "store\\a", "\0", "é/a", "k" * 41 + "/a"]
)
def test_a_path_without_a_kind_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected a kind and a key, such as store/demo/trips"):
        parse(text)


def test_a_kind_is_any_word() -> None:
    """The server decides which kinds there are."""
    assert parse("queue/a") == Path("queue", "a")


@pytest.mark.parametrize(
    "text", ["store//", "store//a", "store/a//", "store/a//b", "store/../a", "store/a/..", "store/a\n", "store/./"]
)
def test_a_path_with_a_nasty_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse(text)


def test_the_folders_above_a_path_begin_with_the_outermost() -> None:
    assert parse("store/a/b/c").parents == ("a", "a/b")
    assert parse("store/a").parents == ()


@pytest.mark.parametrize("parts", [[b"store/a/b"], [b"store", b"a", b"b"], [b"store", b"a/b"]])
def test_a_descriptor_may_have_the_path_whole_or_in_pieces(parts: list[bytes]) -> None:
    assert parse(join_descriptor(parts)) == Path("store", "a/b")


@pytest.mark.parametrize(
    "parts",
    [[], [b""], [b"store"], [b"store", b""], [b"store", b"..", b"a"], [b"store", b"\xff"], [b"store", b"", b"a"]],
)
def test_a_descriptor_that_is_no_path_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(InvalidRequest):
        parse(join_descriptor(parts))


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_a_descriptor_of_any_bytes_is_a_path_or_refused(parts: list[bytes]) -> None:
    try:
        path = parse(join_descriptor(parts))
    except InvalidRequest:
        return
    assert re.fullmatch(r"[a-z]+(/[A-Za-z0-9._=-]+)+", str(path))


@pytest.mark.parametrize(
    ("text", "subscription"),
    [
        ("subscription/p/orders/acks", "subscription/p/orders"),
        ("subscription/p/acks/acks", "subscription/p/acks"),
        ("subscription/p/acks", None),
        ("subscription/p/orders", None),
        ("subscription/p/a/b/acks", None),
        ("topic/p/orders/acks", None),
    ],
)
def test_an_ack_ledger_is_below_its_subscription(text: str, subscription: str | None) -> None:
    path = of_acks(parse(text))
    assert (None if path is None else str(path)) == subscription
