"""/healthz, /readyz and /metrics, for probes and Prometheus: pyarrow lacks gRPC's own health service."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from penstock.errors import Unavailable
from penstock.flight_server.state import State


class HttpDoor:
    """A small HTTP server; its pages have figures and no data."""

    def __init__(self, host: str, port: int, state: State) -> None:
        pages: dict[str, Callable[[], tuple[int, str]]] = {
            "/healthz": lambda: (200, "ok\n"),
            "/readyz": lambda: (200, "ready\n") if state.streams.state == "serving" else (503, "draining\n"),
            "/metrics": lambda: (200, state.metrics.text()),
        }

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                status, text = pages.get(
                    self.path.partition("?")[0], lambda: (404, f"no such page: there are {', '.join(pages)}\n")
                )()
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # the base class's name
                """Log nothing: probes come every few seconds."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as failed:
            raise Unavailable(
                f"HTTP can't listen at {host}:{port} ({failed.strerror}): choose another with --http HOST:PORT, or "
                "serve without, with --http off"
            ) from failed
        self._server.daemon_threads = True
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="penstock-http", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait for it."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
