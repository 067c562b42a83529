"""The settings of a server."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, urlsplit

from penstock.errors import InvalidRequest
from penstock.flight_server.limits import ServerLimits
from penstock.queue.pubsub.registry import MOST_PULLERS
from penstock.queue.work.lease_queue import LEASE

if TYPE_CHECKING:
    from penstock.queue.pubsub.transport import Access

DEFAULT_LISTEN = "grpc://127.0.0.1:8815"
DEFAULT_HTTP = "127.0.0.1:8816"
_LEAST_MEMORY = 128 << 20
"""Bytes of private memory below which a server can't start its threads: with 60 MB it can't, with 150 MB it does."""
_ANY_PORT = re.compile(r":0+(?=/?$)")


def default_data() -> Path:
    """Return the user's data folder for penstock (XDG)."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "penstock"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """`penstock serve --help` explains each setting."""

    data: Path = field(default_factory=default_data)
    listen: str = DEFAULT_LISTEN
    http: str | None = DEFAULT_HTTP
    store: str = "disk:"
    advertise: str | None = None
    quota: int | None = None
    evict: Literal["lru"] | None = None
    """Whether datasets are deleted for room within the quota: the least recently used that nobody needs first."""
    memory_limit: int | None = None
    """Bytes of private memory (RLIMIT_DATA): bounds what a batch expands to before a handler sees it. Not maps."""
    ticket_life: float = 12 * 3600
    """Seconds for which a read ticket is valid, and for which the bytes that it names stay readable after a delete."""
    drain: float = 30
    """Seconds that running calls have when the server stops."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    """Certificates of authorities: only callers with a certificate of one of them get through the TLS handshake."""
    token_file: Path | None = None
    """The one token that has all rights."""
    tokens: Path | None = None
    """In place of it: callers, with the digests of their tokens and their rights."""
    own_token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False, compare=False)
    """With `tokens`, that of the server's pullers and publishers."""
    http_tls: bool = False
    """Whether HTTP is served with the same certificate."""
    http_token_file: Path | None = None
    """The token of those who may see names in /metrics, on an address that others reach, too."""
    insecure: bool = False
    accept_loss: bool = False
    """Whether to start although something acknowledged is gone."""
    pullers: int = 1
    """Processes that pull each subscription, unless it says otherwise; 0 where others are started by hand."""
    pubsub_lease: int = 60
    """Seconds after which Pub/Sub redelivers the messages of a puller that has died."""
    pubsub_credentials: str | None = field(default=None, repr=False)
    """A service account's key, a file or its JSON; None: the environment's credentials (ADC)."""
    pubsub_impersonate: str | None = None
    pubsub_endpoint: str | None = None
    kafka: str | None = None
    """The one broker that queues may be on, kafka://host:port; None: no queue is on Kafka."""
    allow_emulator: bool = False
    """Whether Pub/Sub is the emulator at `pubsub_endpoint` or PUBSUB_EMULATOR_HOST."""
    limits: ServerLimits = field(default_factory=ServerLimits)
    patience: float = 10.0
    """Seconds for which a start waits for a data folder or a port that another process has."""
    queue_lease: float = LEASE
    """Seconds for which a worker has a message without saying that it is alive."""
    watch_every: float = 1.0
    """Seconds between looks for puts that are silent."""

    def check(self) -> None:
        """Reject settings that can't be meant, before anything is opened."""
        url = _flight_url("--listen", self.listen)
        if self.advertise is not None:
            _flight_url("--advertise", self.advertise)
        if self.memory_limit is not None and self.memory_limit < _LEAST_MEMORY:
            raise InvalidRequest(
                f"--memory-limit {self.memory_limit:,} bytes: a server needs at least {_LEAST_MEMORY >> 20} MiB to "
                "start, and more for each stream; or say 'off'"
            )
        if self.evict is not None and self.quota is None:
            raise InvalidRequest(f"--evict {self.evict} makes room within a quota: say --quota too, such as 100GB")
        uses_tls = url.scheme == "grpc+tls" or self.http_tls
        if {self.tls_cert is not None, self.tls_key is not None} != {uses_tls}:
            raise InvalidRequest("TLS needs all of --listen grpc+tls://… (or --http-tls), --tls-cert and --tls-key")
        if self.http is None and (self.http_tls or self.http_token_file is not None):
            raise InvalidRequest("--http is off, so --http-tls and --http-token-file have no effect: omit them")
        if self.client_ca is not None and url.scheme != "grpc+tls":
            raise InvalidRequest("--client-ca needs TLS: --listen grpc+tls://…, --tls-cert and --tls-key")
        if self.http is not None and not (self.http_tls or self.insecure or is_loopback(self.http_address()[0])):
            raise InvalidRequest(
                f"--http {self.http} is open to other machines, without TLS: say --http-tls (with --tls-cert and "
                "--tls-key), listen on loopback, or say --insecure if everybody may see the metrics"
            )
        if not 0 <= self.pullers <= MOST_PULLERS:
            raise InvalidRequest(f"--pullers {self.pullers}: expected 0 to {MOST_PULLERS}")
        self._check_access(url)

    def _check_access(self, url: SplitResult) -> None:
        """Reject an address that is open to all, unless that is said."""
        if self.tokens is not None and self.token_file is not None:
            raise InvalidRequest("--tokens takes the place of --token-file: give its token a table there, and omit it")
        protected = url.scheme == "grpc+tls" and (self.token_file or self.tokens) is not None
        if not (protected or self.insecure or is_loopback(url.hostname or "")):
            raise InvalidRequest(
                f"--listen {self.listen} is open to other machines: it needs TLS (grpc+tls://, --tls-cert, --tls-key) "
                "and --token-file or --tokens; or say --insecure if everybody on the network may read and write all "
                "data"
            )

    def pubsub_access(self) -> Access:
        """Return where Pub/Sub is, and as whom the server calls it; ImportError without the extra."""
        from penstock.queue.pubsub.transport import Access

        return Access(self.pubsub_credentials, self.pubsub_impersonate, self.pubsub_endpoint, self.allow_emulator)

    @property
    def token(self) -> str | None:
        """The one bearer token of Flight's callers."""
        return _read_token(self.token_file)

    @property
    def child_token(self) -> str | None:
        """The bearer token of the server's pullers and publishers."""
        return self.token if self.tokens is None else self.own_token

    @property
    def http_token(self) -> str | None:
        """The bearer token of those who may see names in /metrics."""
        return _read_token(self.http_token_file)

    @property
    def tls_certificates(self) -> list[tuple[bytes, bytes]] | None:
        """Certificate and key, for pyarrow."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return [(self.tls_cert.read_bytes(), self.tls_key.read_bytes())]

    def reached_at(self, port: int) -> str | None:
        """Return the address that endpoints name: --advertise, or the one listened to unless that is every address."""
        if self.advertise is not None:
            return self.advertise
        url = urlsplit(self.listen)
        host = url.hostname or ""
        if host in ("0.0.0.0", "::"):  # noqa: S104  # compared with, not bound to
            return None
        scheme = "grpc+tls" if url.scheme == "grpc+tls" else "grpc+tcp"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def restarted(self, port: int, http_port: int) -> ServerConfig:
        """Return the settings of a server that comes back: at its ports where these are 0, and it accepts no loss."""
        http = None if self.http is None else _ANY_PORT.sub(f":{http_port}", self.http)
        return replace(self, listen=_ANY_PORT.sub(f":{port}", self.listen), http=http, accept_loss=False)

    def http_address(self) -> tuple[str, int]:
        """Return host and port for HTTP."""
        url = urlsplit(f"//{self.http}")
        try:
            host, port = url.hostname, url.port
        except ValueError:
            host = port = None
        if host is None or port is None:
            raise InvalidRequest(f"--http {self.http!r}: expected host:port, such as {DEFAULT_HTTP}, or 'off'")
        return host, port


def _flight_url(option: str, text: str) -> SplitResult:
    """Return the parts of a Flight address; reject one that lacks any."""
    url = urlsplit(text)
    try:
        is_whole = url.scheme in ("grpc", "grpc+tcp", "grpc+tls") and url.hostname is not None and url.port is not None
    except ValueError:  # a port beyond 65,535, or none
        is_whole = False
    if not is_whole:
        raise InvalidRequest(f"{option} {text!r}: expected grpc://host:port or grpc+tls://host:port")
    return url


def _read_token(file: Path | None) -> str | None:
    """Return the token of a file: one line, readable by its owner alone."""
    if file is None:
        return None
    text = file.read_text().strip()
    if len(text) < 16:
        raise InvalidRequest(
            f"the token in {file} has {len(text)} characters, at least 16 are needed: make one with "
            "openssl rand -hex 32"
        )
    if file.stat().st_mode & 0o077:
        raise InvalidRequest(f"the token in {file} can be read by others: chmod 600 {file}")
    return text


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
