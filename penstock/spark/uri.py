"""Where Spark Connect is: `sc://host:port/;key=value;…`, as PySpark's clients read it."""

from __future__ import annotations

import ipaddress
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from penstock.spark.errors import InvalidPlan
from penstock.text import suggest

DEFAULT_PORT = 15002
_KEEPALIVE = (
    "grpc_keepalive_enabled", "grpc_keepalive_time_ms", "grpc_keepalive_timeout_ms", "grpc_keepalive_without_calls",
)  # fmt: skip
_KNOWN = ("use_ssl", "token", "user_id", "user_agent", "session_id", *_KEEPALIVE)


@dataclass(frozen=True, slots=True)
class ConnectUri:
    """A server's address, and who asks."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    token: str | None = field(default=None, repr=False)
    user_id: str | None = None
    user_agent: str = ""
    session_id: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """What each request carries besides: every key of the URI that has no meaning of its own."""
    keepalive: tuple[int, int] | None = (310_000, 20_000)
    """Milliseconds of silence before a ping, and those that its answer may take. Servers before Spark 4.3 take more
    than one ping in 300 s for an attack."""
    keepalive_idle: bool = False
    """Whether to ping without a call, too."""

    @property
    def target(self) -> str:
        """The address as gRPC has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the host is this one, by its name or a loopback address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"sc://{self.target}"


def parse_uri(uri: str | None = None, environ: Mapping[str, str] = os.environ) -> ConnectUri:
    """Return what a URI says; without one SPARK_REMOTE is read.

    The token may come from SPARK_CONNECT_AUTHENTICATE_TOKEN, the user from SPARK_USER or USER.
    """
    text = uri if uri is not None else environ.get("SPARK_REMOTE")
    if not isinstance(text, str) or not text:
        raise InvalidPlan(f"uri={text!r:.80}: expected sc://host:port, here or in SPARK_REMOTE")
    shown = _without_secrets(text)
    if not text.startswith("sc://"):
        raise InvalidPlan(f"uri={shown!r:.80}: expected sc://host:port; only a Spark Connect server is spoken to")
    address, _, rest = text.partition(";")
    host, port = _host_and_port(address, shown)
    values = _parameters(rest)
    token = values.pop("token", None) or environ.get("SPARK_CONNECT_AUTHENTICATE_TOKEN") or None
    result = ConnectUri(
        host,
        port,
        tls=_flag("use_ssl", values.pop("use_ssl", "false")),
        token=token,
        user_id=values.pop("user_id", None) or environ.get("SPARK_USER") or environ.get("USER") or None,
        user_agent=values.pop("user_agent", ""),
        session_id=_session_id(values.pop("session_id", None)),
        keepalive=_keepalive(values),
        keepalive_idle=_flag("grpc_keepalive_without_calls", values.pop("grpc_keepalive_without_calls", "false")),
        headers=_headers(values),
    )
    if token and not _is_header_value(token):
        raise InvalidPlan(f"the token of {result} isn't one line of printable ASCII, which a header's value is")
    has_secret = token or any(name == "authorization" for name, _ in result.headers)
    if has_secret and not result.tls and not result.is_local:
        raise InvalidPlan(
            f"{result} would get the token in clear text: add use_ssl=true to the URI; "
            "without TLS a token is sent to this host alone"
        )
    return result


def _without_secrets(text: str) -> str:
    """Return what an error shows of a URI: the scheme and the host, as all else may be a token at a wrong place."""
    scheme, mark, address = re.split("[;?#,]", text, maxsplit=1)[0].rpartition("://")
    return scheme + mark + ("…" if "@" in address else address.partition("/")[0])


def _host_and_port(address: str, shown: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:  # whose text may quote a token
        raise InvalidPlan(f"uri={shown!r:.80}: expected sc://host:port with a port from 0 to 65535") from None
    if not host:
        raise InvalidPlan(f"uri={shown!r:.80} names no host: expected sc://host:port")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidPlan(f"uri={shown!r:.80}: expected sc://host:port/;key=value, without a path, query or user")
    return host, DEFAULT_PORT if port is None else port


def _parameters(rest: str) -> dict[str, str]:
    """Return the keys and values behind the first semicolon."""
    values: dict[str, str] = {}
    for number, pair in enumerate(filter(None, rest.split(";")), 1):
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise InvalidPlan(f"the URI's parameter {number} is no key=value: parameters are parted by semicolons")
        if key in values:
            raise InvalidPlan(f"the URI has {key} twice: leave one of them out")
        values[key] = unquote(value)
    return values


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidPlan(f"{name}={value!r:.40}: expected true or false")
    return value.lower() == "true"


def _session_id(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise InvalidPlan(f"session_id={value!r:.80}: expected a UUID") from None


def _keepalive(values: dict[str, str]) -> tuple[int, int] | None:
    enabled = _flag(_KEEPALIVE[0], values.pop(_KEEPALIVE[0], "true"))
    times = []
    for name, default in ((_KEEPALIVE[1], "310000"), (_KEEPALIVE[2], "20000")):
        value = values.pop(name, default)
        if not value.isdecimal():
            raise InvalidPlan(f"{name}={value!r:.40}: expected milliseconds")
        times.append(int(value))
    return (times[0], times[1]) if enabled else None


def _headers(values: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the other keys as headers; one that differs from a known key by its case alone is a slip."""
    for name, value in values.items():
        if name.lower() in _KNOWN or name.lower().replace("-", "_") in _KNOWN:
            raise InvalidPlan(f"the URI has no parameter {name!r}; {suggest(name.lower().replace('-', '_'), _KNOWN)}")
        if not (name.isascii() and all(c.isalnum() or c in "-_." for c in name)):
            raise InvalidPlan(f"the URI's parameter {name!r:.80} is no name of a header: use letters, digits and -_.")
        if name.lower().endswith("-bin") or name.lower().startswith("grpc-"):
            raise InvalidPlan(f"the URI's parameter {name!r:.80} is a header of gRPC's own: leave it out")
        if not _is_header_value(value):
            raise InvalidPlan(f"the URI's parameter {name}: a header's value is one line of printable ASCII")
    return tuple((name.lower(), value) for name, value in values.items())


def _is_header_value(value: str) -> bool:
    return value.isascii() and value.isprintable()
