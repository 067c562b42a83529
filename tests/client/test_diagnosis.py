"""A server that can't be reached although it is there: what is wrong is said at once, and how to mend it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.client import DEFAULT_URL, Client, connect
from penstock.client.diagnosis import complete_url, explain, is_penstock
from penstock.client.settings import ConnectSettings
from penstock.errors import Denied, InvalidRequest, Unavailable
from penstock.flight_server.http import HttpDoor
from penstock.flight_server.server import PenstockServer
from tests.kit.certificates import Certificates, make_certificates
from tests.kit.server import TOKEN, token_file

MakeServer = Callable[..., PenstockServer]
SOON = 5.0
"""Seconds on a slow machine for what takes less than one: calls are retried for 30."""


def refusal(url: str | None, **settings: Any) -> str:
    """Return what a client with these settings is told, and soon."""
    began = time.monotonic()
    with pytest.raises(InvalidRequest) as refused, connect(url, **settings) as client:
        client.list()
    assert time.monotonic() - began < SOON
    return str(refused.value)


@pytest.fixture
def secure(make_server: MakeServer, certificates: Certificates, tmp_path: Path) -> str:
    """The address of a server with TLS."""
    return str(make_server(data=tmp_path / "secure", **certificates.of_server).url)


# --- TLS ------------------------------------------------------------------------------------


def test_a_certificate_without_trust_is_named(secure: str, certificates: Certificates, tmp_path: Path) -> None:
    said = refusal(secure)
    assert said.startswith(f"{secure} has a certificate that isn't trusted (")
    assert "name the file of its authority with ca= or PENSTOCK_CA" in said
    other = make_certificates(tmp_path / "other", "127.0.0.1")
    assert "the file of its authority isn't that of ca= or PENSTOCK_CA" in refusal(secure, ca=str(other.ca))
    with connect(secure, ca=str(certificates.ca)) as client:
        assert len(client.list()) == 0


def test_a_certificate_for_another_name_is_named(make_server: MakeServer, tmp_path: Path) -> None:
    elsewhere = make_certificates(tmp_path / "elsewhere", "flight.example")
    url = str(make_server(**elsewhere.of_server).url)
    assert "has a certificate for other names: " in refusal(url, ca=str(elsewhere.ca))


def test_a_client_without_tls_is_told_of_it(secure: str) -> None:
    plain = secure.replace("grpc+tls", "grpc")
    assert refusal(plain) == f"{plain} is a server with TLS: expected {secure}"


def test_a_client_with_tls_is_told_that_there_is_none(server: PenstockServer) -> None:
    url = f"grpc+tls://127.0.0.1:{server.port}"
    assert refusal(url) == f"{url} is a server without TLS: expected grpc://127.0.0.1:{server.port}"


def test_a_missing_certificate_of_the_client_is_named(make_server: MakeServer, certificates: Certificates) -> None:
    url = str(make_server(**certificates.of_server, client_ca=certificates.ca).url)
    ca = str(certificates.ca)
    assert "asks for a client's certificate: name it with cert= and key=" in refusal(url, ca=ca)
    assert "is a server with TLS" in refusal(url.replace("grpc+tls", "grpc"))
    with connect(url, **certificates.of_client) as client:
        assert len(client.list()) == 0


def test_a_producer_and_a_delete_are_told_too(secure: str) -> None:
    plain = secure.replace("grpc+tls", "grpc")
    with connect(plain) as client:
        for call in (lambda: client.producer("topic/x"), lambda: client.delete("store/x")):
            with pytest.raises(InvalidRequest, match="is a server with TLS"):
                call()


# --- addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "http://h:8815",
            "the scheme http:// is another protocol's; expected grpc://host:port or .*, such as grpc://h:8815",
        ),
        ("https://h:9", r"such as grpc\+tls://h:9"),
        ("grpcs://h", r"such as grpc\+tls://h:8815"),
        ("h:8815", "it has no scheme; .* such as grpc://h:8815"),
        ("127.0.0.1", "it has no scheme; .* such as grpc://127.0.0.1:8815"),
        ("grpc://", "expected grpc://host:port"),
        ("grpc://h:port", "expected grpc://host:port"),
        ("grpc://h:99999", "expected grpc://host:port"),
    ],
)
def test_an_address_that_is_none_is_refused_at_once(url: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        penstock.connect(url)


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("grpc://h", "grpc://h:8815"), ("grpc+tls://h", "grpc+tls://h:8815"), ("grpc://[::1]", "grpc://[::1]:8815"),
        ("grpc://h/", "grpc://h:8815"), ("grpc+tcp://h:1", "grpc+tcp://h:1"),
    ],
)  # fmt: skip
def test_an_address_without_a_port_means_8815(url: str, whole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect(url).settings.url == complete_url(url) == whole
    monkeypatch.setenv("PENSTOCK_URL", url)
    assert connect().settings.url == whole
    assert DEFAULT_URL.endswith(":8815")


def test_a_web_server_is_told_from_flight(server: PenstockServer) -> None:
    """Such as the server's own pages, one port further."""
    http = HttpDoor("127.0.0.1", 0, server.state)
    http.start()
    try:
        assert "is a web server, such as penstock's /metrics" in refusal(f"grpc://127.0.0.1:{http.port}")
    finally:
        http.close()


# --- servers that are away ------------------------------------------------------------------


@pytest.fixture
def mute() -> Iterator[int]:
    """The port of a program that takes connections, and closes them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_all() -> None:
            with suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=close_all, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("scheme", ["grpc", "grpc+tls"])
def test_a_server_that_is_away_is_retried(scheme: str, mute: int) -> None:
    """As behind a proxy: nothing says that an address or TLS is wrong."""
    for port in (1, mute):
        assert explain(ConnectSettings(f"{scheme}://127.0.0.1:{port}")) is None
        with connect(f"{scheme}://127.0.0.1:{port}", retry_for=0.1) as client, pytest.raises(Unavailable):
            client.list()


def test_nothing_is_wrong_with_a_server_that_answers(client: Client, secure: str, certificates: Certificates) -> None:
    assert explain(client.settings) is None
    assert explain(ConnectSettings(secure, ca=str(certificates.ca))) is None


def test_a_penstock_is_recognised_by_its_health(
    server: PenstockServer, mute: int, make_server: MakeServer, certificates: Certificates, tmp_path: Path
) -> None:
    guarded = make_server(data=tmp_path / "g", **certificates.of_server, token_file=token_file(tmp_path, TOKEN))
    with connect(guarded.url, ca=str(certificates.ca)) as stranger, pytest.raises(Denied):
        stranger.list()
    assert [is_penstock("127.0.0.1", port) for port in (server.port, guarded.port, mute)] == [True, True, False]
