"""How to reach a server: the arguments of `connect`, and what a Spark task gets of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.errors import InvalidRequest

RETRY_FOR = 30.0
"""Seconds for which a call is retried by default."""
LONG_RETRY_FOR = 660.0
"""The same for followers, for queries, and for Spark's tasks and commits: the failure of one loses the work of many.
A server may be away for ten minutes; the eleventh is for its start, and for the pause before the last attempt."""


@dataclass(frozen=True, slots=True)
class ConnectSettings:
    """How to reach a server; pickles, so that another process can connect the same way."""

    url: str
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    """A file of certificates (PEM), or their text."""
    cert: str | None = None
    """The client's own certificate, for a server that was started with --client-ca; a file or text, as `ca`."""
    key: str | None = field(default=None, repr=False)
    """The private key of `cert`; a file or text."""
    server_name: str | None = None
    """The name that the server's certificate has, where its address isn't one of it."""
    timeout: float = 60.0
    """Seconds for one call that isn't a stream."""
    stream_timeout: float = 12 * 3600.0
    """Seconds for one stream."""
    retry_for: float | None = None
    """Seconds during which a server that is busy, restarting or unreachable is tried again."""

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise InvalidRequest("token: expected one line of printable ASCII characters, as a header carries it")

    def retry_seconds(self, default: float = RETRY_FOR) -> float:
        """Return how long to retry: `retry_for`, or the default if that isn't set."""
        return default if self.retry_for is None else self.retry_for

    def for_tasks(self, location: str | None) -> ConnectSettings:
        """Return the settings of a process that has only a ticket: no token, certificates as text, and longer retries,
        as Spark ends a job at the fourth failure of a task.
        """
        retry_for = max(self.retry_seconds(), LONG_RETRY_FOR)
        return replace(self.with_texts(), url=location or self.url, token=None, retry_for=retry_for)

    def with_texts(self) -> ConnectSettings:
        """Return these settings with certificates and key as text, as their files needn't be on another host."""
        texts = {name: pem.decode() for name, pem in self.read_pems().items()}
        return replace(self, ca=texts.get("ca"), cert=texts.get("cert"), key=texts.get("key"))

    def read_pems(self) -> dict[str, bytes]:
        """Return the text of those of `ca`, `cert` and `key` that are set."""
        if (self.cert is None) != (self.key is None):
            raise InvalidRequest(f"cert and key belong together: {'key' if self.cert else 'cert'} is missing")
        values = {"ca": self.ca, "cert": self.cert, "key": self.key}
        return {name: _read_pem(name, value) for name, value in values.items() if value}


def _read_pem(setting: str, value: str) -> bytes:
    """Return a setting's value, which is PEM or the name of a file of it."""
    if value.lstrip().startswith("-----BEGIN"):
        return value.encode()
    try:
        with open(value, "rb") as file:
            return file.read()
    except OSError as error:
        name = repr(value) if "\n" not in value else "as text"  # which may be a key
        what = "a private key" if setting == "key" else "certificates"
        raise InvalidRequest(f"{setting} {name}: expected a file of {what} (PEM), {error.strerror}") from error
