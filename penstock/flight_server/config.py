"""What a server is told at its start."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from penstock.errors import InvalidRequest
from penstock.flight_server.gate import read_token
from penstock.flight_server.limits import Limits

DEFAULT_LISTEN = "grpc://127.0.0.1:8815"
DEFAULT_HTTP = "127.0.0.1:8816"


def default_data() -> Path:
    """The user's data folder for penstock (XDG)."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "penstock"


@dataclass(frozen=True, slots=True)
class Settings:
    """`penstock serve --help` says what each is for."""

    data: Path = field(default_factory=default_data)
    listen: str = DEFAULT_LISTEN
    http: str | None = DEFAULT_HTTP
    store: str = "disk:"
    advertise: str | None = None
    quota: int | None = None
    memory_limit: int | None = None
    """Bytes of private memory (RLIMIT_DATA): bounds what a batch expands to before a handler sees it. Not maps."""
    ticket_life: float = 12 * 3600
    """Seconds for which a read ticket is good, and for which deleted bytes that it names stay."""
    drain: float = 30
    """Seconds that running calls get at the end."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None
    insecure: bool = False
    limits: Limits = field(default_factory=Limits)
    watch_every: float = 1.0

    def check(self) -> None:
        """Refuse what can't be meant, before anything is opened."""
        where = urlsplit(self.listen)
        if where.scheme not in ("grpc", "grpc+tcp", "grpc+tls") or where.hostname is None or where.port is None:
            raise InvalidRequest(f"--listen {self.listen!r}: expected grpc://host:port or grpc+tls://host:port")
        if (where.scheme == "grpc+tls") != (self.tls_cert is not None and self.tls_key is not None):
            raise InvalidRequest("TLS needs all of --listen grpc+tls://…, --tls-cert and --tls-key")
        if self.http is not None and not (self.insecure or is_loopback(self.http_address()[0])):
            raise InvalidRequest(
                f"--http {self.http} is open to other machines, and has neither TLS nor token: keep it on loopback, or "
                "say --insecure where everybody may see the figures"
            )
        protected = where.scheme == "grpc+tls" and self.token_file is not None
        if not (protected or self.insecure or is_loopback(where.hostname)):
            raise InvalidRequest(
                f"--listen {self.listen} is open to other machines: it needs TLS (grpc+tls://, --tls-cert, --tls-key) "
                "and --token-file. On a network where everybody may read and write all data, say --insecure"
            )

    @property
    def token(self) -> str | None:
        """The bearer token, from its file."""
        return read_token(self.token_file) if self.token_file else None

    @property
    def tls_certificates(self) -> list[tuple[bytes, bytes]] | None:
        """Certificate and key, for pyarrow."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return [(self.tls_cert.read_bytes(), self.tls_key.read_bytes())]

    def reached_at(self, port: int) -> str | None:
        """The address that endpoints tell: --advertise, or where the server listens; none if that is everywhere."""
        if self.advertise is not None:
            return self.advertise
        where = urlsplit(self.listen)
        host = where.hostname or ""
        if host in ("0.0.0.0", "::"):  # noqa: S104  # compared with, not bound to
            return None
        scheme = "grpc+tls" if where.scheme == "grpc+tls" else "grpc+tcp"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def http_address(self) -> tuple[str, int]:
        """Host and port for HTTP."""
        found = urlsplit(f"//{self.http}")
        try:
            host, port = found.hostname, found.port
        except ValueError:
            host = port = None
        if host is None or port is None:
            raise InvalidRequest(f"--http {self.http!r}: expected host:port, such as {DEFAULT_HTTP}, or 'off'")
        return host, port


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
