"""The URI of a Spark Connect server."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.spark.errors import InvalidPlan
from penstock.spark.uri import ConnectUri, parse_uri

SESSION = "6f1c3f6e-3f6b-4c8e-9d8a-2b7f0a1c2d3e"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sc://host", {"host": "host", "port": 15002, "tls": False, "token": None}),
        ("sc://host:1234/", {"host": "host", "port": 1234}),
        ("sc://host/;use_ssl=true;token=a%3Db%3Bc", {"tls": True, "token": "a=b;c"}),
        ("sc://[::1]:15003/;token=t", {"host": "::1", "port": 15003, "token": "t", "target": "[::1]:15003"}),
        ("sc://127.0.0.1;user_id=a%20b", {"user_id": "a b", "target": "127.0.0.1:15002"}),
        (f"sc://h/;session_id={SESSION.upper()}", {"session_id": SESSION}),
        ("sc://h/;user_agent=notebook;X-Team=blue;x-b=%2F", {"headers": (("x-team", "blue"), ("x-b", "/"))}),
        ("sc://h/;grpc_keepalive_enabled=false", {"keepalive": None}),
        ("sc://h/;grpc_keepalive_time_ms=5000", {"keepalive": (5000, 20000), "keepalive_idle": False}),
        ("sc://localhost/;token=a+b", {"token": "a+b"}),
    ],
)
def test_a_uri_says(uri: str, expected: dict[str, Any]) -> None:
    parsed = parse_uri(uri, {})
    assert {name: getattr(parsed, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://host", "expected sc://"),
        ("sc://", "names no host"),
        ("sc://:15002", "names no host"),
        ("sc://host:99999", "a port from 0 to 65535"),
        ("sc://host:port", "expected sc://host:port"),
        ("sc://host/path", "without a path"),
        ("sc://me@host", "without a path"),
        ("sc://host?token=a", "without a path"),
        ("sc://host/;token", "no key=value"),
        ("sc://host/;token=a;token=b", "token twice"),
        ("sc://host/;use_ssl=yes", "expected true or false"),
        ("sc://host/;session_id=mine", "expected a UUID"),
        ("sc://host/;Token=a", "did you mean 'token'"),
        ("sc://host/;use-ssl=true", "did you mean 'use_ssl'"),
        ("sc://host/;bad header=1", "no name of a header"),
        ("sc://host/;x=%0Aevil", "printable"),
        ("sc://host/;grpc_keepalive_time_ms=soon", "milliseconds"),
        ("sc://host/;token=secret", "clear text"),
        ("sc://10.0.0.1/;token=secret", "clear text"),
        ("sc://host/;authorization=Bearer%20secret", "clear text"),
        ("sc://host:15002?token=secret", "without a path"),
        ("sc://host/token=secret", "without a path"),
        ("sc://u:secret@host/", "without a path"),
        ("sc://host/#token=secret", "without a path"),
        ("sc://host:15002,token=secret", "sc://host:port"),
        ("host:15002/token=secret", "expected sc://"),
        ("sc://localhost/;token=secret%0a", "printable"),
        ("sc://localhost/;token=secret%C3%A9", "printable"),
        ("sc://host/;x-bin=abc", "gRPC's own"),
        ("sc://host/;grpc-timeout=1", "gRPC's own"),
        ("", "SPARK_REMOTE"),
        (None, "SPARK_REMOTE"),
    ],
)
def test_a_wrong_uri_is_refused(uri: str | None, message: str) -> None:
    with pytest.raises(InvalidPlan, match=message) as refused:
        parse_uri(uri, {})
    assert "secret" not in str(refused.value)


def test_the_environment_says_what_the_uri_does_not() -> None:
    environ = {"SPARK_REMOTE": "sc://localhost:1", "SPARK_CONNECT_AUTHENTICATE_TOKEN": "t", "USER": "u"}
    assert parse_uri(None, environ) == ConnectUri("localhost", 1, token="t", user_id="u")
    assert parse_uri("sc://localhost/;token=own;user_id=me", environ).token == "own"
    assert parse_uri("sc://localhost", environ | {"SPARK_USER": "s"}).user_id == "s"


def test_a_uri_shows_no_token() -> None:
    parsed = parse_uri("sc://localhost/;token=secret;x-key=secret", {})
    assert "secret" not in f"{parsed} {parsed!r}"
