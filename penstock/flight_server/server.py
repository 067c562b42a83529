"""The Flight server: one line for each verb, and what each verb needs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

import penstock
from penstock.errors import InvalidRequest, Unavailable
from penstock.flight_server import get, limits
from penstock.flight_server.actions import Actions, sentences
from penstock.flight_server.config import Settings
from penstock.flight_server.consuming import Desk, journal_gauges
from penstock.flight_server.endpoints import Endpoints
from penstock.flight_server.funnel import Frameless, funnel, funnelled
from penstock.flight_server.gate import KEY, Call, Gate, OpenHandshake
from penstock.flight_server.listing import Lister
from penstock.flight_server.local import LocalDoor
from penstock.flight_server.metrics import Metrics, Sample
from penstock.flight_server.put import Putter
from penstock.flight_server.ranges import Ranges
from penstock.flight_server.tickets import Signer
from penstock.ledger.ledger import Ledger
from penstock.ledger.sweep import Sweeper
from penstock.queue.topics.append import Appender
from penstock.queue.topics.consumers import Consumers
from penstock.queue.topics.retention import topics_tender
from penstock.queue.topics.topics import Topics
from penstock.store.payloads import SplitPayloadStore

_WRITERS = 4  # threads that store parts, for all puts together


class PenstockServer(flight.FlightServerBase):
    """Serves a ledger and a store at a location, from construction until `close`. The caller owns ledger and store."""

    def __init__(self, settings: Settings, ledger: Ledger, store: SplitPayloadStore, key: bytes) -> None:
        self._began = time.monotonic()
        self.metrics = Metrics()
        self.streams = limits.Streams(settings.limits.streams)
        self._ledger, self._store, self._signer = ledger, store, Signer(key)
        self._watch = limits.Watch(settings.limits, every=settings.watch_every)
        self._local = LocalDoor(store, self._signer, self.metrics)
        self._appender = Appender(ledger, store, self._appended)
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="penstock-store")
        topics = self._topics = Topics(ledger, store)
        consumers = Consumers(ledger, topics, self._passed)
        self._sweeper = Sweeper(ledger, store, [topics_tender(ledger, store, consumers)])
        self._putter = Putter(
            ledger, store, self._signer, settings.limits, self._pool, self._watch, topics, self._appender
        )
        self._actions = Actions(
            ledger, self._signer, settings.limits, self.streams, self._sweeper, self._health, settings.advertise,
            topics, Desk(topics, consumers),
        )  # fmt: skip
        self.metrics.gauges(self._gauges)
        self.metrics.gauges(lambda: journal_gauges(topics, consumers))
        self._listen(settings)
        self.url = settings.reached_at(self.port)
        endpoints = Endpoints(self._signer, settings.ticket_life, self.url)
        self._lister = Lister(ledger, endpoints, Ranges(topics, endpoints, self._local.name), self._local.name)
        for owned in (self._watch, self._sweeper, self._local, self._appender):
            owned.start()
        self.streams.admit()

    def _listen(self, settings: Settings) -> None:
        try:
            super().__init__(
                settings.listen,
                auth_handler=OpenHandshake() if settings.token else None,
                tls_certificates=settings.tls_certificates,
                middleware={KEY: Gate(settings.token, self.streams, self.metrics)},
            )
        except pa.ArrowException as failed:  # gRPC has written its reason to stderr already
            raise Unavailable(
                f"the server can't listen at {settings.listen} ({failed}): is the port taken? penstock doctor tells; "
                "--listen grpc://127.0.0.1:PORT chooses another"
            ) from failed

    # --- the verbs --------------------------------------------------------------------------

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        with funnel(call := _call(context)):
            receipt = self._putter.put(call, context.peer(), descriptor, reader, writer.write)
            self.metrics.moved("in", receipt.rows, receipt.bytes)
            writer.write(receipt.encode())
            self._sweeper.soon()

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        with funnel(call := _call(context)):
            return get.get(call, ticket.ticket, self._store, self._signer, self._went_out)

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with funnel(call := _call(context)):
            call.must_be_known()
            return self._lister.info(descriptor)

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        try:
            with funnel(call := _call(context)):
                call.must_be_known()
                return flight.SchemaResult(self._lister.schema(descriptor))
        except flight.FlightError as refused:
            raise Frameless(str(refused)) from None

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with funnel(call := _call(context)):
            call.must_be_known()
            return funnelled(call, self._lister.flights(criteria))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        with funnel(call := _call(context)):
            return [json.dumps(self._actions.run(call, action.type, action.body.to_pybytes())).encode()]

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        return sentences()

    def do_exchange(self, context: flight.ServerCallContext, *_: Any) -> None:
        with funnel(_call(context)):
            raise InvalidRequest("penstock has no do_exchange: put with do_put, get with do_get")

    # --- its life ---------------------------------------------------------------------------

    def close(self, deadline: float = 30.0) -> int:
        """Refuse new work, let running calls end, stop the threads; how many calls the deadline cut."""
        left = self.streams.drain(deadline)
        if not left:
            self.shutdown()
        for owned in (self._watch, self._sweeper, self._local, self._appender):
            owned.close()
        self._pool.shutdown(wait=not left)
        return left

    def _health(self) -> dict[str, Any]:
        return {
            "version": penstock.__version__,
            "state": "draining" if self.streams.closed else "serving",
            "store": self._store.url.partition(":")[0],
            "up_seconds": round(time.monotonic() - self._began, 1),
            "open_streams": self.streams.open_streams,
            "store_bytes": self._store.used,
            "quarantined_parts": len(self._store.medium.quarantined()),
            "topics": self._topics.count(),
            **self._ledger.totals(),
        }

    def _gauges(self) -> Iterator[Sample]:
        yield "penstock_open_streams", "", self.streams.open_streams
        yield "penstock_store_bytes", "", self._store.used
        yield "penstock_quarantined_parts", "", len(self._store.medium.quarantined())
        for name, value in {"topics": self._topics.count(), **self._ledger.totals()}.items():
            yield "penstock_ledger", f'of="{name}"', value

    def _appended(self, step: str, seconds: float, puts: int) -> None:
        self.metrics.took("penstock_append_seconds", f'step="{step}"', seconds)
        if step == "ledger":
            self.metrics.count("penstock_appended_puts_total", amount=puts)

    def _passed(self, path: str, rows: int) -> None:
        self.metrics.count("penstock_gap_rows_total", f'topic="{path}"', rows)

    def _went_out(self, rows: int, size: int) -> None:
        self.metrics.moved("out", rows, size)


def _call(context: flight.ServerCallContext) -> Call:
    """What the gate has noted of this call."""
    call: Call = context.get_middleware(KEY)
    call.heard()
    return call
