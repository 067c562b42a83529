"""/healthz, /readyz and /metrics, for probes and Prometheus: pyarrow lacks gRPC's own health service."""

from __future__ import annotations

import hmac
import logging
import socket
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.errors import Unavailable
from penstock.flight_server.config import ServerConfig, is_loopback
from penstock.flight_server.state import State
from penstock.text import printable

log = logging.getLogger("penstock")
_THREADS = 32
"""Requests at a time; a connection beyond that is closed."""
_DEADLINE = 10.0
"""Seconds for a whole request, its handshake and its answer."""
_STOP_CHECK = 0.05  # seconds between two looks whether to stop
_PAGES = "/healthz, /readyz, /metrics"


class HttpDoor:
    """A small HTTP server; its pages have figures and no data.

    The names of topics and consumers are shown to callers with --http-token-file's token; on loopback and with
    --insecure to everybody, unless --tokens says who may read what.
    """

    def __init__(self, host: str, port: int, state: State) -> None:
        config = state.config
        names_for_all = config.tokens is None and (is_loopback(host) or config.insecure)
        token = config.http_token

        class Handler(BaseHTTPRequestHandler):
            timeout = _DEADLINE

            def do_GET(self) -> None:
                status, text = self._page(self.path.partition("?")[0])
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _page(self, path: str) -> tuple[int, str]:
                if path == "/healthz":
                    return 200, "ok\n"
                if path == "/readyz":
                    return _readiness(state)
                if path == "/metrics":
                    return 200, state.metrics.text(names=names_for_all or self._has_token())
                return 404, f"no such page: there are {_PAGES}\n"

            def _has_token(self) -> bool:
                sent = self.headers.get("Authorization", "").encode()
                return token is not None and hmac.compare_digest(sent, f"Bearer {token}".encode())

            def log_message(self, format: str, *args: object) -> None:  # the base class's name
                """Log at debug alone: probes come every few seconds."""
                log.debug("http %s %s", self.client_address[0], printable(format % args))

        try:
            self._server = _Server((host, port), Handler, config)
        except OSError as failed:
            raise Unavailable(
                f"HTTP can't listen at {host}:{port} ({failed.strerror}): choose another with --http HOST:PORT, or "
                "serve without, with --http off"
            ) from failed
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_STOP_CHECK,), name="penstock-http", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait for it."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _readiness(state: State) -> tuple[int, str]:
    """Return the answer to /readyz: a server that has no room serves reads and deletes alone."""
    if state.streams.state != "serving":
        return 503, "draining\n"
    full = state.why_full()
    return (200, "ready\n") if full is None else (503, f"full: {full}\n")


class _Server(ThreadingHTTPServer):
    """A thread for each request, up to a number, and until its deadline."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], config: ServerConfig) -> None:
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if config.http_tls else None
        if self._tls is not None and config.tls_cert is not None:
            self._tls.load_cert_chain(config.tls_cert, config.tls_key)
        self._due: dict[socket.socket, float] = {}
        """The open connections, and when each is cut."""
        super().__init__(address, handler)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        if self._tls is not None:  # the handshake is the request's own thread's
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return len(self._due) < _THREADS

    def process_request(self, request: Any, client_address: Any) -> None:
        self._due[request] = time.monotonic() + _DEADLINE
        try:
            super().process_request(request, client_address)
        except BaseException:  # no memory for a thread
            del self._due[request]
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._due[request]

    def service_actions(self) -> None:
        """Cut connections past their deadline, about every half second."""
        now = time.monotonic()
        for connection, due in list(self._due.items()):
            if now > due:
                try:
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)  # an SSLSocket's own would wait for its peer
                except OSError:
                    continue  # it has ended meanwhile

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request by HTTP from %s failed: %r", client_address, sys.exception())
