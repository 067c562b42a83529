"""Access: TLS, the token, and tickets that replace it for their own verb."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pyarrow.flight as flight
import pytest
import trustme

from penstock.client.client import connect
from penstock.errors import NotFound
from penstock.flight_server.server import PenstockServer
from penstock.wire import body
from tests.kit.certificates import Certificates
from tests.kit.server import TOKEN, bearer, token_file
from tests.kit.wire import at, attempt_of, call, error_code, info, list_paths, new_attempt, put, read, refused, trips


@dataclass(frozen=True)
class Guarded:
    """A server with TLS and a token, and the certificate of its authority."""

    server: PenstockServer
    url: str
    ca: bytes

    def connect(self) -> flight.FlightClient:
        return flight.connect(self.url, tls_root_certs=self.ca)


@pytest.fixture
def guarded(make_server: Callable[..., PenstockServer], certificates: Certificates, tmp_path: Path) -> Guarded:
    server = make_server(**certificates.of_server, token_file=token_file(tmp_path, TOKEN))
    assert server.url is not None
    return Guarded(server, server.url, certificates.ca.read_bytes())


@pytest.fixture
def known() -> flight.FlightCallOptions:
    return bearer(TOKEN)


@pytest.fixture
def there(guarded: Guarded) -> Iterator[flight.FlightClient]:
    with guarded.connect() as client:
        yield client


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_the_access_log_is_there_at_debug(
    make_server: Callable[..., PenstockServer], tmp_path: Path, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(level, "penstock")
    server = make_server(token_file=token_file(tmp_path, TOKEN))
    with connect(server.url, token=TOKEN) as client:
        client.put("store/x", trips(1))
        client.get("store/x").read_all()
        with pytest.raises(NotFound):
            client.call("describe", {"path": "store/y"})
        ticket = client.call("write.open", {"path": "store/z"})["ticket"]
        client.attempt(ticket, trips(1).schema).abandon()
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    lines = (
        r"do_put ipv4:127\.0\.0\.1:\d+ store/x: ok", r"get_flight_info ipv4:\S+ store/x: ok",
        r"do_action ipv4:\S+ describe: not-found",
    )  # fmt: skip
    for line in lines:
        found = [each for each in logged if re.fullmatch(rf"\S+ {line} in [\d.]+ ms", each)]
        assert len(found) == (level == logging.DEBUG), (line, logged)
    assert not [each for each in logged if TOKEN in each or ticket in each]


def exchange_hello(client: flight.FlightClient, options: flight.FlightCallOptions | None) -> None:
    """Open a producer's stream, and end it."""
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("topic", "x"), options)
    try:
        writer.write_metadata(b'{"v":1,"type":"hello"}')
        assert b"welcome" in reader.read_chunk().app_metadata.to_pybytes()
    finally:
        reader.cancel()
        with suppress(flight.FlightError, pa.ArrowException):
            writer.close()


Verb = Callable[[flight.FlightClient, flight.FlightCallOptions | None], object]
VERBS: dict[str, Verb] = {
    "get_flight_info": lambda c, o: c.get_flight_info(at("store/x"), o),
    "list_flights": lambda c, o: list(c.list_flights(b"", o)),
    "do_exchange": exchange_hello,
    "do_put to a path": lambda c, o: put(c, at("store/y"), [trips(1)], options=o),
    "write.open": lambda c, o: call(c, "write.open", o, path="store/z"),
    "describe": lambda c, o: call(c, "describe", o, path="store/x"),
    "delete": lambda c, o: call(c, "delete", o, path="store/x"),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_verb_needs_the_right_token(
    there: flight.FlightClient, known: flight.FlightCallOptions, verb: Verb
) -> None:
    put(there, at("store/x"), [trips(1)], options=known)

    with refused("denied", "needs the server's token"):
        verb(there, None)
    for wrong in (bearer("wrong-0123456789abcdef"), bearer(""), bearer(TOKEN[:-1]), bearer(TOKEN + "0")):
        with refused("denied", "token is wrong"):
            verb(there, wrong)
    assert [listed.descriptor.path[-1] for listed in there.list_flights(b"", known)] == [b"x"]
    verb(there, known)


def test_get_schema_needs_the_token_too(there: flight.FlightClient, known: flight.FlightCallOptions) -> None:
    put(there, at("store/x"), [trips(1)], options=known)
    with pytest.raises(pa.ArrowException, match="needs the server's token"):
        there.get_schema(at("store/x"))
    assert there.get_schema(at("store/x"), known).schema == trips(1).schema


def test_a_ticket_alone_is_enough_for_its_own_verb(there: flight.FlightClient, known: flight.FlightCallOptions) -> None:
    opened = call(there, "write.open", known, path="store/x")
    attempt = new_attempt()

    put(there, attempt_of(opened["ticket"], attempt), [trips(1, 2)])
    call(there, "write.finish", ticket=opened["ticket"], attempts=[attempt])
    (endpoint,) = there.get_flight_info(at("store/x"), known).endpoints

    assert there.do_get(endpoint.ticket).read_all().num_rows == 2


def test_a_wrong_token_is_refused_even_with_a_ticket(
    there: flight.FlightClient, known: flight.FlightCallOptions
) -> None:
    put(there, at("store/x"), [trips(1)], options=known)
    (endpoint,) = there.get_flight_info(at("store/x"), known).endpoints
    with refused("denied", "token is wrong"):
        there.do_get(endpoint.ticket, bearer("wrong-0123456789abcdef")).read_all()


def test_what_strangers_send_is_not_parsed(there: flight.FlightClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 16 MB may take seconds to parse, and a GB: the ticket or the token is looked at first."""

    def load_object(raw: bytes, what: str) -> None:
        raise AssertionError(f"parses {what}: {raw[:40]!r}")

    monkeypatch.setattr(body, "load_object", load_object)
    forged = b'{"v":1,"ticket":"{\\"v\\":1,\\"put\\":\\"a\\",\\"opener\\":\\"b\\"}.%s"}' % (b"0" * 64)
    for raw in (b"[" * 1_000_000, b'{"v":1}', forged, b'"ticket":' * 1_000):
        for name in (action.type for action in there.list_actions() if action.type != "health"):
            with refused("denied"):
                list(there.do_action(flight.Action(name, raw)))
        command = flight.FlightDescriptor.for_command(raw)
        for send in (
            lambda: put(there, command, [trips(1)]),  # noqa: B023
            there.do_exchange(command)[1].read_chunk,
            lambda: there.get_flight_info(command),  # noqa: B023
            lambda: there.do_get(flight.Ticket(raw)).read_all(),  # noqa: B023
            lambda: list(there.list_flights(raw)),  # noqa: B023
        ):
            with refused("denied"):
                send()


def test_health_tells_strangers_the_state_whatever_they_send(there: flight.FlightClient) -> None:
    for raw in (b"", b"{}", b"[" * 1_000_000):
        (answer,) = there.do_action(flight.Action("health", raw))
        assert json.loads(answer.body.to_pybytes()) == {"state": "serving"}


@pytest.mark.parametrize("quote", ['\\"', "\\u0022"])
def test_a_ticket_is_found_however_its_body_is_written(
    there: flight.FlightClient, known: flight.FlightCallOptions, quote: str
) -> None:
    """Some languages escape quotes by their number, and put spaces where they like."""
    ticket = call(there, "write.open", known, path="store/x")["ticket"].replace('"', quote)
    raw = f'{{ "attempts" : [ "ticket" ], "v" : 1, "ticket"\n : "{ticket}" }}'
    with refused("not-found", "attempt"):
        list(there.do_action(flight.Action("write.finish", raw.encode())))
    (answer,) = there.do_action(flight.Action("write.abort", f'{{"v":1,"ticket":"{ticket}"}}'.encode()))
    assert json.loads(answer.body.to_pybytes())["state"] == "aborted"


def test_a_login_by_password_answers_a_bearer_token(there: flight.FlightClient) -> None:
    header = there.authenticate_basic_token("anybody", TOKEN)

    options = flight.FlightCallOptions(headers=[header])
    put(there, at("store/x"), [trips(1)], options=options)
    assert len(list(there.list_flights(b"", options))) == 1


@pytest.mark.parametrize("name", ["", "a", "ab", "abc", "müller"])
@pytest.mark.parametrize("padded", [True, False])
def test_basic_is_read_with_and_without_padding(there: flight.FlightClient, name: str, padded: bool) -> None:
    """Python pads base64, Go does not."""
    value = base64.b64encode(f"{name}:{TOKEN}".encode())
    header = b"Basic " + (value if padded else value.rstrip(b"="))
    options = flight.FlightCallOptions(headers=[(b"authorization", header)])
    assert list(there.list_flights(b"", options)) == []


def test_a_login_by_a_wrong_password_is_refused(there: flight.FlightClient) -> None:
    for password in ("", "wrong", TOKEN[:-1]):
        with pytest.raises(flight.FlightUnauthenticatedError, match="token is wrong"):
            there.authenticate_basic_token("anybody", password)


@pytest.mark.parametrize(
    "header", [b"Basic", b"Basic ", b"Basic !!!", b"Basic /w==", b"Bearer", b"", b"Negotiate x", TOKEN.encode()]
)
def test_a_malformed_header_is_refused(there: flight.FlightClient, header: bytes) -> None:
    options = flight.FlightCallOptions(headers=[(b"authorization", header)])
    with refused("denied"):
        call(there, "describe", options, path="store/x")


def adbc_login(guarded: Guarded, password: str) -> str:
    """Log in with the unmodified ADBC driver; return the error of its first call."""
    options = {
        "username": "anybody",
        "password": password,
        "adbc.flight.sql.client_option.tls_root_certs": guarded.ca.decode(),
    }
    try:
        with adbc.connect(guarded.url, db_kwargs=options, autocommit=True) as connection:
            connection.adbc_get_info()
    except adbc.Error as error:
        return str(error)
    return ""


def test_the_adbc_driver_logs_in_with_name_and_password(guarded: Guarded) -> None:
    """The driver goes on with the bearer token of the answer; its SQL is refused as unsupported, not as denied."""
    said = adbc_login(guarded, TOKEN)

    page = guarded.server.state.metrics.text()
    assert 'penstock_calls_total{verb="handshake"} 1.0' in page
    assert 'code="denied"' not in page
    assert "token" not in said


def test_the_adbc_driver_is_refused_with_a_wrong_password(guarded: Guarded) -> None:
    assert "the token is wrong" in adbc_login(guarded, "wrong")
    assert 'penstock_errors_total{code="denied",verb="handshake"} 1.0' in guarded.server.state.metrics.text()


def test_without_tls_nothing_is_answered(guarded: Guarded) -> None:
    url = guarded.url.replace("grpc+tls", "grpc+tcp")
    with flight.connect(url) as plain, pytest.raises(flight.FlightUnavailableError):
        list(plain.list_flights(b"", flight.FlightCallOptions(timeout=5)))


def test_a_certificate_of_another_authority_is_not_accepted(guarded: Guarded) -> None:
    other = trustme.CA().cert_pem.bytes()
    with flight.connect(guarded.url, tls_root_certs=other) as there, pytest.raises(flight.FlightError):
        list(there.list_flights(b"", flight.FlightCallOptions(timeout=5)))


# --- certificates of clients ------------------------------------------------------------------


@pytest.fixture
def mutual(make_server: Callable[..., PenstockServer], certificates: Certificates, tmp_path: Path) -> PenstockServer:
    """A server that asks its callers for a certificate."""
    return make_server(**certificates.of_server, client_ca=certificates.ca, token_file=token_file(tmp_path, TOKEN))


def test_without_a_certificate_nothing_is_answered(mutual: PenstockServer, certificates: Certificates) -> None:
    """Nor with one of another authority, nor without TLS. The handshake fails, so no message is read."""
    stranger = trustme.CA().issue_cert("stranger@example.org")
    ca = certificates.ca.read_bytes()
    for url, options in (
        (mutual.url, {"tls_root_certs": ca}),
        (mutual.url, {"tls_root_certs": ca, "cert_chain": stranger.cert_chain_pems[0].bytes(),
                      "private_key": stranger.private_key_pem.bytes()}),
        (str(mutual.url).replace("grpc+tls", "grpc+tcp"), {}),
    ):  # fmt: skip
        with flight.connect(url, **options) as client, pytest.raises(flight.FlightUnavailableError):
            call(client, "health", flight.FlightCallOptions(timeout=5))
    assert "penstock_calls_total{" not in mutual.state.metrics.text()


def test_a_certificate_does_not_replace_the_token(mutual: PenstockServer, certificates: Certificates) -> None:
    with flight.connect(
        mutual.url, tls_root_certs=certificates.ca.read_bytes(), cert_chain=certificates.cert.read_bytes(),
        private_key=certificates.key.read_bytes(),
    ) as client:  # fmt: skip
        with refused("denied", "needs the server's token"):
            list(client.list_flights())
        assert list(client.list_flights(b"", bearer(TOKEN))) == []


def test_the_token_is_in_no_log_and_no_error(
    guarded: Guarded, there: flight.FlightClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        said = [adbc_login(guarded, TOKEN), adbc_login(guarded, TOKEN[:-1])]
        put(there, at("store/x"), [trips(1)], options=bearer(TOKEN))
        for options in (None, bearer(TOKEN[:-1]), bearer(TOKEN)):
            for verb in (*VERBS.values(), *VERBS.values()):
                try:
                    verb(there, options)
                except flight.FlightError as error:
                    said += [str(error), str(error.extra_info)]
    assert len(said) > 10
    assert "denied" in caplog.text
    assert not [text for text in [*said, caplog.text, guarded.server.state.metrics.text()] if TOKEN[:-1] in text]


def test_without_a_token_configured_everybody_is_known(bare: flight.FlightClient) -> None:
    put(bare, at("store/x"), [trips(1)], options=bearer("whatever"))
    assert list_paths(bare) == ["store/x"]
    assert read(bare, "store/x").num_rows == 1
    with pytest.raises(flight.FlightError) as caught:
        info(bare, "store/y")
    assert error_code(caught.value) == "not-found"
