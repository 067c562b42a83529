"""A ticket is valid for one verb on one thing until it expires; every other one is refused with the reason."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Denied, Expired
from penstock.flight_server.tickets import ReadTicket, Signer, WriteTicket
from penstock.flight_server.tokens import Tokens
from penstock.wire.actions import Target

NOW = 1_000.0
READ = ReadTicket(("a" * 32 + "-000001",), "store/demo/trips", NOW + 60, ("fare", "tip"), rows=100)
WRITE = WriteTicket("b" * 32, "c" * 32)
SIGNER = Signer(b"k" * 32, Tokens())
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(TEXT, TEXT, st.none() | st.lists(TEXT).map(tuple), st.none() | st.integers(0, 2**60), st.floats(NOW, 1e12))
def test_a_read_ticket_comes_back_as_it_was_signed(
    part: str, path: str, columns: tuple[str, ...] | None, rows: int | None, expires: float
) -> None:
    ticket = ReadTicket((part,), path, expires, columns, rows=rows)
    assert SIGNER.open_read(SIGNER.sign(ticket), now=NOW) == ticket


@given(TEXT, TEXT)
def test_a_write_ticket_comes_back_as_it_was_signed(write: str, opener: str) -> None:
    assert SIGNER.open_write(SIGNER.sign(WriteTicket(write, opener))) == WriteTicket(write, opener)


def test_a_ticket_is_ascii() -> None:
    assert SIGNER.sign(ReadTicket(("é",), "ü", NOW)).isascii()


def forged(raw: bytes) -> Iterator[bytes]:
    """More than a thousand tickets that nobody signed."""
    chance = random.Random(8)
    for at in range(len(raw)):
        yield raw[:at] + bytes([raw[at] ^ (1 << chance.randrange(8))]) + raw[at + 1 :]
        yield raw[:at]
        yield raw[:at] + raw[at + 1 :]
        yield raw[:at] + bytes([chance.randrange(256)]) + raw[at:]
    body, mac = raw.rpartition(b".")[::2]
    yield from (
        body,
        mac,
        b"." + mac,
        body + b".",
        body + b"." + mac.upper(),
        raw + b"\n",
        b" " + raw,
        raw * 2,
        b"",
        b".",
    )
    for key in (b"", b"k" * 31, b"k" * 33, b"K" * 32, b"\0" * 32):
        yield Signer(key, Tokens()).sign(READ)
    for _ in range(50):
        yield body + b"." + chance.randbytes(32).hex().encode()
        yield chance.randbytes(len(raw))


def test_a_thousand_forged_tickets_are_denied() -> None:
    tried = 0
    for kind in (READ, WRITE):
        raw = SIGNER.sign(kind)
        for fake in forged(raw):
            if fake != raw:
                tried += 1
                with pytest.raises(Denied, match="is not one of this server's"):
                    SIGNER.open_read(fake, now=NOW)
                with pytest.raises(Denied, match="is not one of this server's"):
                    SIGNER.open_write(fake)
    assert tried >= 1_000


@pytest.mark.parametrize(
    "changed", [{"get": ["other"]}, {"path": "store/x"}, {"expires": 1e12}, {"columns": ["id"]}, {"rows": 9}]
)
def test_no_field_may_be_changed_after_the_signature(changed: dict[str, object]) -> None:
    body, mac = SIGNER.sign(READ).rpartition(b".")[::2]
    other = json.dumps({**json.loads(body), **changed}, separators=(",", ":")).encode()
    with pytest.raises(Denied):
        SIGNER.open_read(other + b"." + mac, now=NOW)


@pytest.mark.parametrize("late", [0.001, 1.0, 1e9])
def test_an_expired_read_ticket_is_refused(late: float) -> None:
    with pytest.raises(Expired, match=r"store/demo/trips expired .* read again"):
        SIGNER.open_read(SIGNER.sign(READ), now=READ.expires + late)


def test_a_read_ticket_is_valid_to_its_last_moment() -> None:
    assert SIGNER.open_read(SIGNER.sign(READ), now=READ.expires) == READ


def test_a_ticket_of_one_verb_is_no_ticket_of_another() -> None:
    with pytest.raises(Denied, match="expected a WriteTicket"):
        SIGNER.open_write(SIGNER.sign(READ))
    with pytest.raises(Denied, match="expected a ReadTicket"):
        SIGNER.open_read(SIGNER.sign(WRITE), now=NOW)


def test_another_body_with_a_valid_signature_is_no_ticket() -> None:
    raw = SIGNER.sign(Target("store/a"))  # type: ignore[arg-type]
    with pytest.raises(Denied):
        SIGNER.open_read(raw, now=NOW)


def test_no_refusal_shows_a_signature() -> None:
    raw = SIGNER.sign(READ)
    for fake in (raw[:-1], Signer(b"other", Tokens()).sign(READ)):
        with pytest.raises(Denied) as denied:
            SIGNER.open_read(fake, now=NOW)
        assert raw.rpartition(b".")[2].decode() not in str(denied.value)
