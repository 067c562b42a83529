"""How to reach a server: what `connect` is told, and what a task is given of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.errors import InvalidRequest

PATIENCE = 600.0
"""Seconds that those wait for a server who would lose the work of many with theirs: tasks, and who commits them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a server; pickles, so that another process can connect the same way."""

    url: str
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    """A file of certificates (PEM), or their text."""
    timeout: float = 60.0
    """Seconds for one call that isn't a stream."""
    stream_timeout: float = 12 * 3600.0
    """Seconds for one stream."""
    retry_for: float = 30.0
    """Seconds during which a server that is busy, restarting or unreachable is tried again."""

    def for_tasks(self, location: str | None) -> Settings:
        """How others reach the server with nothing but a ticket: no token, certificates as text, time to wait for room
        (Spark takes four failures of a task for the end of a job).
        """
        ca = read_certificates(self.ca).decode() if self.ca else None
        return replace(self, url=location or self.url, token=None, ca=ca, retry_for=max(self.retry_for, PATIENCE))


def read_certificates(certificates: str) -> bytes:
    """Certificates by the file that holds them, or as they are."""
    if certificates.startswith("-----BEGIN"):
        return certificates.encode()
    try:
        with open(certificates, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequest(f"ca {certificates!r}: expected a file of certificates (PEM), {error.strerror}") from error
