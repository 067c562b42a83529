"""Why a server can't be reached where it is there: gRPC says no more than that it isn't."""

from __future__ import annotations

import json
import socket
import ssl
from contextlib import suppress
from urllib.parse import urlsplit

from penstock.client.settings import ConnectSettings
from penstock.errors import InvalidRequest

DEFAULT_PORT = 8815
_PATIENCE = 0.4
"""Seconds for each look: two of them, and gRPC's own failure, are within a second."""
_SCHEMES = {"": "grpc", "http": "grpc", "https": "grpc+tls", "grpcs": "grpc+tls", "tls": "grpc+tls", "tcp": "grpc"}
"""What somebody may have meant."""
_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE"}
"""OpenSSL's reasons where the other end answers, and not with TLS."""
_REQUEST = 13
"""TLS's type of the message by which a server asks for a client's certificate. gRPC closes without a word if it gets
none."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""How every client of gRPC begins, with empty settings."""


def complete_url(url: str) -> str:
    """Return the address of a server, with its port; reject one of another scheme, and say how it is written."""
    scheme, mark, rest = url.rpartition("://")
    try:
        address = urlsplit(f"//{rest}")
        host, port = address.hostname, address.port
    except ValueError:
        host, port = None, None
    expected = "expected grpc://host:port or grpc+tls://host:port"
    if scheme == "grpc+unix":
        return url
    if not host:
        raise InvalidRequest(f"url {url!r}: {expected}")
    host = f"[{host}]" if ":" in host else host
    if scheme not in ("grpc", "grpc+tcp", "grpc+tls"):
        meant = _SCHEMES.get(scheme, "grpc")
        what = f"the scheme {scheme}:// is another protocol's" if mark else "it has no scheme"
        raise InvalidRequest(f"url {url!r}: {what}; {expected}, such as {meant}://{host}:{port or DEFAULT_PORT}")
    return url if port is not None else f"{scheme}://{host}:{DEFAULT_PORT}"


def explain(settings: ConnectSettings) -> InvalidRequest | None:
    """Return what is wrong with the settings of a call that has failed; None if the server is away, or all is well."""
    url = urlsplit(settings.url)
    if url.scheme not in ("grpc", "grpc+tcp", "grpc+tls") or not url.hostname or not url.port:
        return None
    address = url.hostname, url.port
    with suppress(OSError):  # nobody listens, or it has gone meanwhile
        reason = _of_tls(settings, *address) if url.scheme == "grpc+tls" else _of_plain(*address)
        if reason is not None:
            return InvalidRequest(f"{settings.url} {reason}")
    return None


def _of_tls(settings: ConnectSettings, host: str, port: int) -> str | None:
    """Return what keeps a client with TLS out."""
    context = ssl.create_default_context(cadata=settings.read_pems().get("ca", b"").decode() or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which gRPC isn't
    requests: list[int] = []
    seen = lambda *message: requests.append(1) if message[4] == _REQUEST else None  # noqa: E731  # of one use
    setattr(context, "_msg_callback", seen)  # noqa: B010  # there is no other way to know
    try:
        is_answered = _shake_hands(context, host, port, settings.server_name or host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (62, 64):  # a name or an address that it isn't for
            return f"has a certificate for other names: {error.verify_message} Reach it by one of its names"
        trust = "the file of its authority isn't that of ca= or PENSTOCK_CA" if settings.ca else (
            "name the file of its authority with ca= or PENSTOCK_CA"
        )  # fmt: skip
        return f"has a certificate that isn't trusted ({error.verify_message}): {trust}"
    except ssl.SSLError as error:
        if error.reason in _NO_TLS:
            return f"is a server without TLS: expected grpc://{join(host, port)}"
        is_answered = False
    if requests and not is_answered and settings.cert is None:
        return "asks for a client's certificate: name it with cert= and key=, or PENSTOCK_CERT and PENSTOCK_KEY"
    return None


def _of_plain(host: str, port: int) -> str | None:
    """Return what keeps a client without TLS out."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shake_hands(context, host, port, host)
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return _of_http(host, port)
    except OSError:
        return _of_http(host, port)
    return f"is a server with TLS: expected grpc+tls://{join(host, port)}"


def _of_http(host: str, port: int) -> str | None:
    with socket.create_connection((host, port), _PATIENCE) as connection:
        connection.sendall(_PREFACE)
        if connection.recv(5) in (b"HTTP/", b"<!DOC"):  # Python's takes it for HTTP/0.9
            return f"is a web server, such as penstock's /metrics: expected the port of --listen, else {DEFAULT_PORT}"
    return None


def _shake_hands(context: ssl.SSLContext, host: str, port: int, name: str) -> bool:
    """Greet as gRPC does, and return whether the server says anything behind the handshake, as gRPC's do."""
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, port), _PATIENCE) as connection,
        context.wrap_socket(connection, server_hostname=name) as secure,
        suppress(OSError),
    ):
        return bool(secure.recv(1))
    return False


def is_penstock(host: str, port: int) -> bool:
    """Return whether a penstock listens there, with or without TLS: it tells its health to everybody."""
    import pyarrow as pa
    import pyarrow.flight as flight

    for scheme in ("grpc", "grpc+tls"):
        url = f"{scheme}://{join(host, port)}"
        with (
            suppress(flight.FlightError, pa.ArrowException, OSError, ValueError),
            flight.connect(url, disable_server_verification=scheme == "grpc+tls") as server,
        ):
            [health] = server.do_action(flight.Action("health", b""), flight.FlightCallOptions(timeout=2.0))
            return "state" in json.loads(health.body.to_pybytes())
    return False


def join(host: str, port: int) -> str:
    """Return host:port, as URLs have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
