"""The server's own pullers, where it asks for TLS and certificates: they get in, or attaching says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.client.client import Client
from penstock.client.settings import ConnectSettings
from penstock.errors import InvalidRequest
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.loopback_tls import LoopbackTls, loopback_tls
from penstock.flight_server.server import PenstockServer
from penstock.wire import actions
from tests.kit.certificates import Certificates, make_certificates
from tests.kit.pubsub.emulator import Names
from tests.kit.pubsub.fake import FakePubSub, served
from tests.kit.server import TOKEN, token_file, token_of, tokens_file
from tests.kit.wait import eventually

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def without_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_CERT", "PENSTOCK_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((HOST, "penstock.example.org"), None),
        (("penstock.example.org", "other.example.org"), "penstock.example.org"),
        (("*.example.org",), "penstock.example.org"),
        (("10.0.0.5",), "10.0.0.5"),
    ],
)
def test_a_name_of_the_certificate_is_expected(tmp_path: Path, names: tuple[str, ...], expected: str | None) -> None:
    config = ServerConfig(**make_certificates(tmp_path, *names).of_server)
    assert loopback_tls(config, HOST) == LoopbackTls(expected, None)


def test_the_servers_certificate_serves_as_the_pullers(certificates: Certificates) -> None:
    config = ServerConfig(**certificates.of_server, client_ca=certificates.ca)
    assert loopback_tls(config, HOST).certificate == (certificates.server_cert, certificates.server_key)


def test_a_missing_certificate_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, clients = (make_certificates(tmp_path / name, HOST) for name in ("server", "clients"))
    config = ServerConfig(**server.of_server, client_ca=clients.ca)
    with pytest.raises(InvalidRequest, match="set PENSTOCK_CERT and PENSTOCK_KEY where penstock serve is started"):
        loopback_tls(config, HOST)
    monkeypatch.setenv("PENSTOCK_CERT", str(clients.cert))
    monkeypatch.setenv("PENSTOCK_KEY", str(clients.key))
    assert loopback_tls(config, HOST).certificate is None


@pytest.mark.process
@pytest.mark.parametrize("own", [True, False])
def test_pullers_get_through_tls(
    tmp_path: Path,
    make_server: Callable[..., PenstockServer],
    fake_pubsub: FakePubSub,
    pubsub_names: Names,
    monkeypatch: pytest.MonkeyPatch,
    own: bool,
) -> None:
    """With the server's own certificate, and its own token where callers have rights; with the one token, and another
    authority's certificate only if there is one, or no puller.
    """
    certificates = make_certificates(tmp_path / "server", "penstock.example.org")
    clients = certificates if own else make_certificates(tmp_path / "clients", HOST)
    path = pubsub_names.path
    with served(fake_pubsub) as address:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        fake_pubsub.load(pubsub_names.subscription, 100)
        rights = {"ops": {"admin": [path]}}
        access = {"tokens": tokens_file(tmp_path, **rights)} if own else {"token_file": token_file(tmp_path)}
        server = make_server(**certificates.of_server, **access, client_ca=clients.ca, allow_emulator=True)
        settings = ConnectSettings(
            str(server.url), token_of("ops") if own else TOKEN, ca=str(certificates.ca), cert=str(clients.cert),
            key=str(clients.key), server_name="penstock.example.org",
        )  # fmt: skip
        with Client(settings) as client:
            if not own:
                with pytest.raises(InvalidRequest, match="attach with pullers=0 and run penstock pull"):
                    client.call(actions.ATTACH_SUBSCRIPTION, actions.AttachSubscription(path))
                client.call(actions.ATTACH_SUBSCRIPTION, actions.AttachSubscription(path, pullers=0))
                monkeypatch.setenv("PENSTOCK_CERT", str(clients.cert))
                monkeypatch.setenv("PENSTOCK_KEY", str(clients.key))
            client.call(actions.ATTACH_SUBSCRIPTION, actions.AttachSubscription(path, pullers=1))
            eventually(lambda: client.info(path).rows == 100, within=60)
