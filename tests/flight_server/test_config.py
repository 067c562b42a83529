"""Settings that a server refuses to start with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.flight_server.config import ServerConfig
from tests.kit.server import TOKEN, token_file


def config(folder: Path, **options: Any) -> ServerConfig:
    return ServerConfig(data=folder, http=None, **options)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.7", "flight.example"])
def test_an_open_address_needs_tls_and_token_or_insecure(tmp_path: Path, host: str) -> None:
    tls = {"tls_cert": tmp_path / "c", "tls_key": tmp_path / "k"}
    token = {"token_file": tmp_path / "t"}
    plain: dict[str, Any] = {"listen": f"grpc://{host}:1"}
    for options in (plain, {**plain, **token}, {"listen": f"grpc+tls://{host}:1", **tls}):
        with pytest.raises(InvalidRequest, match="open to other machines"):
            config(tmp_path, **options).check()
    config(tmp_path, listen=f"grpc+tls://{host}:1", **tls, **token).check()
    config(tmp_path, listen=f"grpc://{host}:1", insecure=True).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.9.9.9"])
def test_loopback_needs_neither(tmp_path: Path, host: str) -> None:
    config(tmp_path, listen=f"grpc://{host}:8815").check()


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:8815", "http://127.0.0.1:8815", "grpc://127.0.0.1", "grpc://", "grpc://:1"]
)
def test_a_malformed_address_is_refused_with_the_form(tmp_path: Path, listen: str) -> None:
    with pytest.raises(InvalidRequest, match="expected grpc://host:port"):
        config(tmp_path, listen=listen).check()


def test_half_of_tls_is_refused(tmp_path: Path) -> None:
    half: list[dict[str, Any]] = [
        {"listen": "grpc+tls://127.0.0.1:1"},
        {"listen": "grpc+tls://127.0.0.1:1", "tls_cert": tmp_path},
        {"tls_cert": tmp_path, "tls_key": tmp_path},
        {"http_tls": True, "tls_cert": tmp_path},
    ]
    for options in half:
        with pytest.raises(InvalidRequest, match="TLS needs all of"):
            config(tmp_path, **options).check()


@pytest.mark.parametrize("address", ["0.0.0.0:8816", "[::]:8816", "10.0.0.7:8816"])
def test_an_open_http_address_needs_tls_or_insecure(tmp_path: Path, address: str) -> None:
    tls: dict[str, Any] = {"tls_cert": tmp_path / "c", "tls_key": tmp_path / "k"}
    refused: list[dict[str, Any]]
    refused = [{}, {"http_token_file": tmp_path / "t"}, {"listen": "grpc+tls://127.0.0.1:1", **tls}]
    for options in refused:
        with pytest.raises(InvalidRequest, match=r"--http .* is open to other machines, without TLS: say --http-tls"):
            ServerConfig(data=tmp_path, http=address, **options).check()
    ServerConfig(data=tmp_path, http=address, http_tls=True, **tls).check()
    ServerConfig(data=tmp_path, http=address, insecure=True).check()


def test_a_token_file_is_private_and_the_token_long_enough(tmp_path: Path) -> None:
    assert config(tmp_path, token_file=token_file(tmp_path, f"{TOKEN}\n")).token == TOKEN
    short = config(tmp_path, token_file=token_file(tmp_path, "short"))
    with pytest.raises(InvalidRequest, match="at least 16"):
        _ = short.token
    for mode in (0o640, 0o604, 0o644, 0o660):
        readable = config(tmp_path, token_file=token_file(tmp_path, TOKEN, mode))
        with pytest.raises(InvalidRequest, match="chmod 600"):
            _ = readable.token
