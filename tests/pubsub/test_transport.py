"""Who a puller is to Google, and that a stray variable never leads it elsewhere."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import google.auth.exceptions
import google.auth.impersonated_credentials
import google.auth.transport.grpc
import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.oauth2 import service_account
from google.rpc import error_details_pb2, status_pb2

from penstock.errors import Denied, InvalidRequest, PenstockError, Unavailable
from penstock.queue.pubsub import transport
from penstock.queue.pubsub.transport import Access, open_channel
from tests.kit.pubsub.client import connected
from tests.kit.pubsub.fake import FakePubSub, served

NAME = "projects/p/subscriptions/s"


class TokenServer(HTTPServer):
    """Google's token endpoint: refuses every key, or is broken."""

    status, answer = 400, {"error": "invalid_grant", "error_description": "account deleted"}
    asked = 0


class _Handler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        self.server.asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with TokenServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@pytest.fixture(scope="session")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*pem).decode()


@pytest.fixture
def key(private_key: str, tokens: TokenServer) -> dict[str, str]:
    """A service account's key, whose tokens come from here."""
    return {
        "type": "service_account", "client_email": "s@p.iam.gserviceaccount.com", "private_key": private_key,
        "token_uri": f"http://127.0.0.1:{tokens.server_port}/token", "private_key_id": "1", "client_id": "2",
    }  # fmt: skip


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither an emulator nor credentials of whoever runs the tests."""
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.mark.parametrize("as_file", [False, True])
def test_a_refused_key_fails_at_once(key: dict[str, str], tokens: TokenServer, tmp_path: Path, as_file: bool) -> None:
    """Inside gRPC it would look like a server that is away, for ever."""
    text = json.dumps(key)
    if as_file:
        (tmp_path / "key.json").write_text(text)
        text = str(tmp_path / "key.json")
    with pytest.raises(Denied, match=f"{NAME}: Google refused the credentials: .*account deleted"):
        open_channel(Access(text), NAME)
    assert tokens.asked == 1


def test_a_good_key_opens_a_channel(key: dict[str, str], tokens: TokenServer) -> None:
    tokens.status, tokens.answer = 200, {"access_token": "t", "expires_in": "3600"}
    open_channel(Access(json.dumps(key), endpoint="127.0.0.1:1"), NAME).close()


def test_a_token_server_that_is_away_is_unavailable(key: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refresh(*_: object) -> None:
        raise google.auth.exceptions.TransportError("no route")

    monkeypatch.setattr(service_account.Credentials, "refresh", refresh)
    with pytest.raises(Unavailable, match=f"{NAME}: no token for Pub/Sub: no route"):
        open_channel(Access(json.dumps(key)), NAME)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "as text: expected a service account's key in JSON"),
        ('{"type": "external_account", "SECRET": 1}', "got type 'external_account'"),
        ('{"type": "service_account", "private_key": "SECRET"}', "no key of a service account"),
        ("/nowhere/key.json", "/nowhere/key.json: expected a service account's key, No such file"),
    ],
)
def test_other_keys_are_refused_without_showing_them(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        open_channel(Access(text), NAME)
    assert "SECRET" not in str(refused.value)
    assert refused.value.__cause__ is None or "SECRET" not in str(refused.value.__cause__)


def test_settings_never_show_the_key(key: dict[str, str]) -> None:
    assert "private" not in repr(Access(json.dumps(key)))


def test_without_credentials_the_cure_is_named() -> None:
    with pytest.raises(Denied, match="--pubsub-credentials"):
        open_channel(Access(), NAME)


def test_a_key_may_act_as_another_account(key: dict[str, str]) -> None:
    credentials = transport.load_credentials(Access(json.dumps(key), impersonate="other@p.iam.gserviceaccount.com"))
    assert isinstance(credentials, google.auth.impersonated_credentials.Credentials)
    assert credentials.service_account_email == "other@p.iam.gserviceaccount.com"


def test_a_stray_emulator_is_ignored_loudly(
    key: dict[str, str], tokens: TokenServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A variable that somebody left behind never redirects production."""
    tokens.status, tokens.answer = 200, {"access_token": "t", "expires_in": "3600"}
    targets: list[str] = []
    real: Any = google.auth.transport.grpc.secure_authorized_channel

    def open_noted(credentials: Any, request: Any, target: str, **named: Any) -> Any:
        targets.append(target)
        return real(credentials, request, target, **named)

    monkeypatch.setattr(google.auth.transport.grpc, "secure_authorized_channel", open_noted)
    with served(FakePubSub()) as address:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        with caplog.at_level(logging.WARNING):
            open_channel(Access(json.dumps(key)), NAME).close()
    assert targets == ["pubsub.googleapis.com:443"]
    assert f"ignores PUBSUB_EMULATOR_HOST={address}" in caplog.text


def test_the_emulator_is_called_if_allowed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fake_pubsub: FakePubSub
) -> None:
    with served(fake_pubsub) as address, caplog.at_level(logging.WARNING):
        with connected(address) as client:
            client.create_topic("projects/p/topics/t")
            client.create_subscription(NAME, "projects/p/topics/t")
            client.publish("projects/p/topics/t", [b"one", b"two", b"three"])
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        pubsub = transport.PubSub(Access(allow_emulator=True), NAME)
        response, size = pubsub.pull(10, 10.0).result()
        assert (len(response.received_messages), size) == (3, response.ByteSize())
        pubsub.close()
    assert f"{NAME}: calls the emulator at {address}, not Google" in caplog.text


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (Access(allow_emulator=True), "PUBSUB_EMULATOR_HOST"),
        (Access("{}", allow_emulator=True, endpoint="127.0.0.1:1"), "takes no credentials"),
    ],
)
def test_the_emulator_needs_an_address_and_no_key(access: Access, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        open_channel(access, NAME)


def test_the_failures_of_single_ids_are_read(fake_pubsub: FakePubSub) -> None:
    fake_pubsub.load(NAME, 3, exactly_once=True)
    with served(fake_pubsub) as address:
        pubsub = transport.PubSub(Access(endpoint=address, allow_emulator=True), NAME)
        response, _ = pubsub.pull(10, 10.0).result()
        fake_pubsub.fail_ack_ids(NAME, "PERMANENT_FAILURE_INVALID_ACK_ID", count=1)
        ids = [each.ack_id for each in response.received_messages]
        error = pubsub.acknowledge(ids).exception()
        assert transport.failures_of(error) == {ids[0]: "PERMANENT_FAILURE_INVALID_ACK_ID"}
        pubsub.close()


def test_failures_of_ids_are_found_among_other_details(monkeypatch: pytest.MonkeyPatch) -> None:
    status = status_pb2.Status()
    for reason, metadata in (
        ("QUOTA", {"consumer": "p"}),
        ("A", {"a": "TRANSIENT_FAILURE_X"}),
        ("B", {"b": "PERMANENT_FAILURE_Y"}),
    ):
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, metadata=metadata))
    monkeypatch.setattr("grpc_status.rpc_status.from_call", lambda _: status)
    failures = transport.failures_of(grpc.RpcError())
    assert failures == {"a": "TRANSIENT_FAILURE_X", "b": "PERMANENT_FAILURE_Y"}


def test_errors_name_the_subscription_and_the_cure() -> None:
    class Failed(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.FAILED_PRECONDITION

        def details(self) -> str:
            return "push"

    error: PenstockError = transport.translate(Failed(), NAME)
    assert isinstance(error, InvalidRequest)
    assert str(error) == (
        f"{NAME}: Pub/Sub says FAILED_PRECONDITION: push; it has to be a pull subscription that is attached to a topic"
    )
