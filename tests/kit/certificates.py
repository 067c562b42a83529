"""Certificates for TLS, both ways."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme


@dataclass(frozen=True)
class Certificates:
    """The files of an authority, and of what it has certified: a server and a client."""

    ca: Path
    server_cert: Path
    server_key: Path
    cert: Path
    key: Path

    @property
    def of_server(self) -> dict[str, Any]:
        """Return a server's settings for TLS."""
        return {"listen": "grpc+tls://127.0.0.1:0", "tls_cert": self.server_cert, "tls_key": self.server_key}

    @property
    def of_client(self) -> dict[str, Any]:
        """Return the arguments of `connect`."""
        return {"ca": str(self.ca), "cert": str(self.cert), "key": str(self.key)}


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """Certificates of a new authority, for a server on this host."""
    return make_certificates(tmp_path, "127.0.0.1", "localhost")


def make_certificates(folder: Path, *names: str) -> Certificates:
    """Make certificates of a new authority; the server's is for these names."""
    folder.mkdir(exist_ok=True)
    authority = trustme.CA()
    files = Certificates(*(folder / f"{name}.pem" for name in ("ca", "server", "server-key", "client", "client-key")))
    authority.cert_pem.write_to_path(str(files.ca))
    for identities, cert, key in (
        (names, files.server_cert, files.server_key),
        (("client@example.org",), files.cert, files.key),
    ):
        issued = authority.issue_cert(*identities)
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
    return files
