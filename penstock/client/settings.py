"""How to reach a server: the arguments of `connect`, and what a Spark task gets of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.errors import InvalidRequest

RETRY_FOR = 30.0
"""Seconds for which a call is retried by default."""
LONG_RETRY_FOR = 600.0
"""The same for followers, for queries, and for Spark's tasks and commits: the failure of one loses the work of many."""


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """How to reach a server; pickles, so that another process can connect the same way."""

    url: str
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    """A file of certificates (PEM), or their text."""
    timeout: float = 60.0
    """Seconds for one call that isn't a stream."""
    stream_timeout: float = 12 * 3600.0
    """Seconds for one stream."""
    retry_for: float | None = None
    """Seconds during which a server that is busy, restarting or unreachable is tried again."""

    def retry_seconds(self, default: float = RETRY_FOR) -> float:
        """Return how long to retry: `retry_for`, or the default if that isn't set."""
        return default if self.retry_for is None else self.retry_for

    def for_tasks(self, location: str | None) -> ConnectSettings:
        """Return the settings of a process that has only a ticket: no token, certificates as text, and longer retries,
        as Spark ends a job at the fourth failure of a task.
        """
        ca = read_certificates(self.ca).decode() if self.ca else None
        retry_for = max(self.retry_seconds(), LONG_RETRY_FOR)
        return replace(self, url=location or self.url, token=None, ca=ca, retry_for=retry_for)


def read_certificates(certificates: str) -> bytes:
    """Return certificates given as a file's name or as text."""
    if certificates.startswith("-----BEGIN"):
        return certificates.encode()
    try:
        with open(certificates, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequest(f"ca {certificates!r}: expected a file of certificates (PEM), {error.strerror}") from error
