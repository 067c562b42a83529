"""How the server's own pullers get through its TLS, which is made for callers on other machines.

They connect by loopback, which few certificates name, and under --client-ca they need a certificate themselves.
Handshakes in memory tell beforehand which name to expect, and whether the server's own certificate serves as theirs.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flight_server.config import ServerConfig


@dataclass(frozen=True, slots=True)
class LoopbackTls:
    """What a puller of the server's is told."""

    server_name: str | None
    """The name in the server's certificate, if that has none of the address."""
    certificate: tuple[Path, Path] | None
    """What it presents, with the key; None where it need not, or PENSTOCK_CERT and PENSTOCK_KEY say so."""


def loopback_tls(config: ServerConfig, host: str) -> LoopbackTls:
    """Return how pullers connect to `host`; InvalidRequest if they can't."""
    names = _names(_handshake(config, None))
    server_name = None if host in names or not names else names[0].replace("*", "penstock", 1)
    if config.client_ca is None or (os.environ.get("PENSTOCK_CERT") and os.environ.get("PENSTOCK_KEY")):
        return LoopbackTls(server_name, None)
    try:
        _handshake(config, config.client_ca)
    except ssl.SSLError as refused:
        raise InvalidRequest(
            f"the server's own pullers lack a certificate that --client-ca takes (the server's is refused: "
            f"{refused.reason}): set PENSTOCK_CERT and PENSTOCK_KEY where penstock serve is started, or attach with "
            "pullers=0 and run penstock pull where there is one"
        ) from refused
    assert config.tls_cert is not None
    assert config.tls_key is not None
    return LoopbackTls(server_name, (config.tls_cert, config.tls_key))


def _handshake(config: ServerConfig, client_ca: Path | None) -> dict[str, Any]:
    """Let the server's certificate meet itself; return what it says. With `client_ca` it is a client's, too."""
    assert config.tls_cert is not None
    own = config.tls_cert, config.tls_key
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(*own)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it is trusted itself, whoever has signed it
    client.load_verify_locations(config.tls_cert)
    if client_ca is not None:
        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(client_ca)
        client.load_cert_chain(*own)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)
    for side in sides * 3:  # each answers the other; whoever is done does nothing
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate: dict[str, Any] = sides[0].getpeercert() or {}
    return certificate


def _names(certificate: dict[str, Any]) -> list[str]:
    """Return the hosts and addresses for which a certificate is."""
    names = [name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    common = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return names or common
