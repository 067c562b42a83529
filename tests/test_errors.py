"""An error means the same on both sides of the wire, and in another process."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import errors
from penstock.errors import Denied, Internal, NotFound, PenstockError, StoreFull, Unavailable, from_flight, to_flight

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PenstockError)]
SENT = [kind for kind in KINDS if kind is not PenstockError]
WORDS = st.text("abc ü.:'[]/\n", max_size=1_500)


def test_every_code_belongs_to_one_class() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS) == 18


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling_and_copying(kind: type[PenstockError]) -> None:
    error = kind("the path is taken", request="r-17", retry_after=2.5)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert (str(other), other.request, other.retry_after) == ("the path is taken", "r-17", 2.5)


@pytest.mark.parametrize("kind", SENT)
@given(
    text=WORDS,
    request_id=st.none() | st.text("0123456789abcdef", min_size=1, max_size=12),
    retry_after=st.none() | st.floats(0, 1e6),
)
def test_an_error_is_the_same_after_the_wire(
    kind: type[PenstockError], text: str, request_id: str | None, retry_after: float | None
) -> None:
    sent = to_flight(kind(text, request=request_id, retry_after=retry_after))
    received = from_flight(sent)
    assert type(received) is kind
    assert (received.request, received.retry_after) == (request_id, retry_after)
    assert len(str(sent)) <= 1_000
    assert str(received).startswith(text[:900])
    if request_id:
        assert f"[request {request_id}]" in str(received)


@pytest.mark.parametrize(("request_id", "end"), [(None, "x" * 24), ("0123456789ab", "[request 0123456789ab]")])
def test_a_long_text_is_cut_and_its_request_id_stays(request_id: str | None, end: str) -> None:
    sent = to_flight(NotFound("x" * 5_000, request=request_id))
    assert len(str(sent)) <= 1_000
    assert str(sent).endswith(end)


class RaisingServer(flight.FlightServerBase):
    """Answers every action with the error that its body names."""

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        kind = next(kind for kind in SENT if kind.code == action.type)
        raise to_flight(kind(action.body.to_pybytes().decode(), request="r1", retry_after=0.5))


@pytest.fixture(scope="module")
def wire() -> Iterator[flight.FlightClient]:
    with RaisingServer("grpc://127.0.0.1:0") as server, flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        yield client


@pytest.mark.parametrize("kind", SENT)
@pytest.mark.parametrize("text", ["no dataset at store/x: penstock ls shows", "it ended with message: ü", "y" * 4_000])
def test_an_error_crosses_a_real_wire(wire: flight.FlightClient, kind: type[PenstockError], text: str) -> None:
    with pytest.raises(flight.FlightError) as raised:
        list(wire.do_action(flight.Action(kind.code, text.encode())))
    received = from_flight(raised.value)
    assert type(received) is kind
    assert (received.request, received.retry_after) == ("r1", 0.5)
    assert str(received) == f"{text[:976]} [request r1]"


def test_an_absent_server_is_unavailable() -> None:
    with flight.connect("grpc://127.0.0.1:1") as client, pytest.raises(flight.FlightUnavailableError) as raised:
        list(client.do_action("health"))
    received = from_flight(raised.value)
    assert type(received) is Unavailable
    assert str(received).startswith("failed to connect")


FOREIGN: list[tuple[Exception, type[PenstockError]]] = [
    (flight.FlightUnauthenticatedError("who are you"), Denied),
    (flight.FlightUnauthorizedError("not you"), Denied),
    (flight.FlightUnavailableError("down"), Unavailable),
    (flight.FlightCancelledError("went away"), Unavailable),
    (flight.FlightTimedOutError("late"), errors.TimedOut),
    (flight.FlightServerError("what"), Internal),
    (pa.ArrowInvalid("Server Threadpool Exhausted"), Unavailable),
    (pa.ArrowInvalid("something"), Internal),
    (ConnectionResetError("reset"), Internal),
]


@pytest.mark.parametrize(("error", "kind"), FOREIGN)
def test_errors_of_other_servers_have_a_type(error: Exception, kind: type[PenstockError]) -> None:
    assert type(from_flight(error)) is kind


EXTRAS: list[Any] = [
    b"", b"{}", b"[]", b"null", b"\xff", b"{", b"[" * 100_000, b'{"code":"nothing"}', b'{"code":[]}', b'{"code":{}}',
    b'{"code":null}', b'{"code":7}',
]  # fmt: skip


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: repr(extra[:20]))
def test_foreign_extra_info_is_ignored(extra: bytes) -> None:
    assert type(from_flight(flight.FlightServerError("what", extra_info=extra))) is Internal


def test_fields_of_a_wrong_type_are_ignored() -> None:
    extra = json.dumps({"code": "full", "request": 7, "retry_after": "soon"}).encode()
    received = from_flight(flight.FlightServerError("what", extra_info=extra))
    assert (type(received), received.request, received.retry_after) == (StoreFull, None, None)


def test_extra_info_has_code_request_and_retry_after() -> None:
    sent = to_flight(StoreFull("no room", request="r1", retry_after=5))
    assert isinstance(sent, flight.FlightUnavailableError)
    assert json.loads(sent.extra_info) == {"code": "full", "request": "r1", "retry_after": 5}
