"""A path is a kind and a key; a key that could be read as anything else is refused."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.wire.paths import Path, check_key, join_descriptor, parse, parse_folder

SIGNS = string.ascii_letters + string.digits + "._=-"
NAMES = st.text(SIGNS, min_size=1, max_size=20).filter(lambda name: name not in (".", ".."))
KEYS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)

_AROUND = [
    "..", ".", "/", "//", "a/../b", "../a", "a/..", "a/.", "./a", "a/./b", "a//b", "/a", "/a/b", "a/", "a/b/", "",
    "~/../x", "a/b/../../..",
    "/etc/passwd", "..\\..\\a", "C:\\a", "\\\\host\\share", "a\\b",
]  # fmt: skip
_SIGNS = [f"a{sign}b" for sign in "\0\n\r\t \x0b\x0c\x1b\x7f\x85 !\"#$%&'()*+,:;<>?@[\\]^`{|}~"]
_ENDS = [f"{before}a{after}" for sign in "\n\r\t \0" for before, after in ((sign, ""), ("", sign), (sign, sign))]
_UNICODE = [
    "\xe4", "a/\xe9", "\xdf", "\u65e5\u672c", "\u0663", "\uff11\uff12", "a\u200bb", "a\u202eb", "a\u00a0b", "a\ufeff",
    "\uff0e\uff0e", "\u2025", "a\u2215b", "a\uff0fb", "\uff41", "\U0001d4b6", "\U0001f642", "\ud800",
    "a\u0301", "\u0130", "\u0131", "\u212a", "a\u2028b", "a\u2029", "\U000e0041",
]  # fmt: skip
_LONG = ["a" * 513, "a/" * 256 + "b", "a" * 10_000, "é" * 512, "a" * 512 + "\n", "/" * 512, "." * 513]
_ENCODED = [
    "%2e%2e",
    "a%2fb",
    "a%00b",
    "%",
    "a%0a",
    "%c0%ae%c0%ae/",
    "&#46;&#46;",
    "\\x2e",
    "${HOME}",
    "$(id)",
    "`id`",
    "a;rm",
    "a|b",
    "a&b",
]
_INJECTED = [
    "'; DROP TABLE writes; --",
    'a"b',
    "a'b",
    "a*",
    "a?",
    "[a]",
    "<a>",
    "{a}",
    "a:b",
    "a@b",
    "a#b",
    "a b",
    "a,b",
    "a\u0000.arrow",
]
_BESIDE = [f"{key}/{name}" for key in ("a", "a/b") for name in ("", ".", "..", "../c", "./c", "/c", " ", "\0", "c\n")]
_CONTROLS = [f"a{chr(code)}" for code in range(32)] + [f"{chr(code)}a" for code in range(127, 161)]
NASTY = sorted({*_AROUND, *_SIGNS, *_ENDS, *_UNICODE, *_LONG, *_ENCODED, *_INJECTED, *_BESIDE, *_CONTROLS})


def test_there_are_two_hundred_nasty_keys() -> None:
    assert len(NASTY) >= 200


@pytest.mark.parametrize("key", NASTY, ids=ascii)
def test_a_nasty_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match=r"expected 1 to 512 characters|a name between slashes"):
        check_key(key)


@pytest.mark.parametrize(
    "key", ["a", "A-Z.a_z=0", "...", "a..b", "..a", "a/b=1/c.arrow", "-", "=", "_", "a" * 512, "/".join("a" * 256)]
)
def test_a_valid_key_is_accepted(key: str) -> None:
    assert check_key(key) == key


@given(KEYS)
def test_every_key_of_valid_names_is_accepted(key: str) -> None:
    assert check_key(key) == key
    assert str(parse(f"store/{key}")) == f"store/{key}"


@given(st.text(max_size=40))
def test_any_text_is_a_key_or_refused_briefly(text: str) -> None:
    good = (
        0 < len(text) <= 512
        and all(sign in SIGNS + "/" for sign in text)
        and not set(text.split("/")) & {"", ".", ".."}
    )
    if good:
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
    with pytest.raises(InvalidRequest, match=rf"has no key: expected one such as {kind}/demo/trips"):
        parse(kind + end)


@pytest.mark.parametrize(
    "text", ["", "/", "/store/a", "Store/a", " store/a", "file:///etc", "store\\a", "\0", "é/a", "k" * 41 + "/a"]
)
def test_a_path_without_a_kind_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected a kind and a key, such as store/demo/trips"):
        parse(text)


def test_a_kind_is_any_word() -> None:
    """The server knows which kinds there are."""
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
def test_a_malformed_descriptor_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(InvalidRequest):
        parse(join_descriptor(parts))


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_a_descriptor_of_any_bytes_is_a_path_or_refused(parts: list[bytes]) -> None:
    try:
        path = parse(join_descriptor(parts))
    except InvalidRequest:
        return
    assert re.fullmatch(r"[a-z]+(/[A-Za-z0-9._=-]+)+", str(path))
