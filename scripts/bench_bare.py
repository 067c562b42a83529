"""What penstock is measured against: a Flight server that keeps tables in a dict, and nothing else.

python scripts/bench_bare.py    prints its address and serves until it is stopped
"""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight


class BareServer(flight.FlightServerBase):
    """No checks, no trailer, no disk: the least that do_put and do_get can cost through pyarrow."""

    def __init__(self) -> None:
        self._tables: dict[bytes, pa.Table] = {}
        super().__init__("grpc://127.0.0.1:0")

    def do_put(self, context: object, descriptor: flight.FlightDescriptor, reader: Any, writer: object) -> None:
        self._tables[b"/".join(descriptor.path)] = reader.read_all()

    def do_get(self, context: object, ticket: flight.Ticket) -> flight.FlightDataStream:
        return flight.RecordBatchStream(self._tables[ticket.ticket])

    def do_action(self, context: object, action: flight.Action) -> list[bytes]:
        self._tables.pop(action.body.to_pybytes())
        return []


def main() -> None:
    """Serve until the process is ended."""
    server = BareServer()
    print(f"grpc://127.0.0.1:{server.port}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
