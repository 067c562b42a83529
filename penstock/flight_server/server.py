"""The Flight server: one line for each verb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.flight as flight

from penstock.errors import Unavailable
from penstock.flight_server import flights, kinds
from penstock.flight_server.actions import Actions
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.evictor import Evictor
from penstock.flight_server.exchange import exchange
from penstock.flight_server.funnel import Frameless, funnel
from penstock.flight_server.gate import KEY, Call, Gate, OpenHandshake, Streams
from penstock.flight_server.get import get
from penstock.flight_server.journals import Journals
from penstock.flight_server.kinds.kind import Kind
from penstock.flight_server.local import LocalDoor
from penstock.flight_server.metrics import Gauge, Metrics
from penstock.flight_server.put import put
from penstock.flight_server.queue_bound import QueueBound
from penstock.flight_server.state import State
from penstock.flight_server.tickets import Signer
from penstock.flight_server.tokens import Tokens
from penstock.flight_server.watch import Watch
from penstock.ledger.ledger import Ledger
from penstock.ledger.reserve import Reserve
from penstock.ledger.sweep import Sweeper, make_room
from penstock.store.payloads import Store
from penstock.wire.body import MAX_BODY

_WRITERS = 8  # threads that store parts, for all puts together: as many small ones as share an fsync


class PenstockServer(flight.FlightServerBase):
    """Serves a ledger and a store, from construction until `close`. The caller owns ledger and store."""

    def __init__(self, config: ServerConfig, ledger: Ledger, store: Store, key: bytes) -> None:
        metrics, streams = Metrics(), Streams(config.limits.streams)
        tokens = Tokens(config.token, config.tokens, config.own_token, [kind.name for kind in kinds.KINDS])
        signer = Signer(key, tokens)
        local = LocalDoor(store, signer, metrics)
        evictor = None if config.evict is None else Evictor(ledger, store, metrics)
        store.make_room = lambda size: make_room(ledger, store) or (evictor is not None and evictor.evict(size))
        self._listen(config, tokens, streams, metrics)
        self.url = config.reached_at(self.port)
        self.state = State(
            config, self.url, self.port, ledger, store, tokens, signer, metrics,
            Journals(ledger, store, metrics), streams,
            watch=Watch(config.limits, every=config.watch_every),
            queue_bound=QueueBound(ledger, config.limits),
            sweeper=Sweeper(ledger, store, self._tend),
            reserve=Reserve(ledger.database.path.parent),
            pool=ThreadPoolExecutor(_WRITERS, thread_name_prefix="penstock-store"),
            local=local.name,
        )  # fmt: skip
        self.state.kinds.update((kind.name, kind(self.state)) for kind in kinds.KINDS)
        self._actions = Actions(self.state)
        metrics.gauges(self._gauges)
        self._owned: tuple[Watch | Sweeper | LocalDoor | Kind | Journals, ...]
        self._owned = (self.state.watch, self.state.sweeper, local, *self.state.kinds.values(), self.state.journals)
        for owned in self._owned:
            owned.start()
        streams.admit()

    def _listen(self, config: ServerConfig, tokens: Tokens, streams: Streams, metrics: Metrics) -> None:
        try:
            super().__init__(
                config.listen,
                auth_handler=None if tokens.is_open else OpenHandshake(),
                tls_certificates=config.tls_certificates,
                verify_client=config.client_ca is not None,
                root_certificates=config.client_ca.read_bytes() if config.client_ca else None,
                middleware={KEY: Gate(tokens, streams, metrics)},
            )
        except pa.ArrowException as failed:  # gRPC has written its reason to stderr already
            raise Unavailable(
                f"the server can't listen at {config.listen} ({failed}): see whether the port is taken (penstock "
                "doctor), or choose another with --listen grpc://127.0.0.1:PORT"
            ) from failed

    # --- the verbs --------------------------------------------------------------------------

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        call: Call = context.get_middleware(KEY)
        call.heard()
        call.set_subject(context.peer(), descriptor)
        with funnel(call):
            receipt = put(
                self.state, call, context.peer(), descriptor, reader, writer.write, is_gone=context.is_cancelled
            )  # fmt: skip
            self.state.metrics.moved("in", receipt.rows, receipt.bytes)
            writer.write(receipt.encode())
            self.state.sweeper.soon()

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        with self._answering(context) as call:
            return get(self.state, call, ticket.ticket)

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with self._answering(context, descriptor) as call:
            return flights.info(self.state, call, descriptor)

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        try:
            with self._answering(context, descriptor) as call:
                return flight.SchemaResult(flights.schema(self.state, call, descriptor))
        except flight.FlightError as refused:
            raise Frameless(str(refused)) from None

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> list[flight.FlightInfo]:
        with self._answering(context) as call:
            return list(flights.flights(self.state, call, criteria))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        with self._answering(context, action.type) as call:
            body = action.body[: MAX_BODY + 1].to_pybytes()  # more than the most is refused without a copy
            return [self._actions.run(call, action.type, body)]

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        with self._answering(context):
            return self._actions.sentences()

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        call: Call = context.get_middleware(KEY)
        call.heard()
        call.set_subject(context.peer(), descriptor)
        with funnel(call):
            exchange(self.state, call, context.peer(), descriptor, reader, writer)

    @contextmanager
    def _answering(
        self, context: flight.ServerCallContext, subject: flight.FlightDescriptor | str = ""
    ) -> Iterator[Call]:
        """Give the gate's record of a call; after the block the caller has to read its answer."""
        call: Call = context.get_middleware(KEY)
        call.set_subject(context.peer(), subject)
        with funnel(call):
            self.state.watch.answer(call, context.peer())
            yield call
        call.set_waiting(True)

    # --- its life ---------------------------------------------------------------------------

    def close(self, deadline: float = 30.0) -> int:
        """Refuse new work, let running calls end, stop the threads; return how many calls the deadline cut."""
        for kind in self.state.kinds.values():
            kind.drain()
        self.state.watch.drain(deadline)
        left = self.state.streams.drain(deadline)
        if not left:
            self.shutdown()
        for owned in self._owned:
            owned.close()
        self.state.pool.shutdown(wait=not left)
        return left

    def _tend(self, stop: Callable[[], bool]) -> None:
        self.state.reserve.keep()
        for kind in self.state.kinds.values():
            kind.tend(stop)
        self.state.journals.tend(stop)

    def _gauges(self) -> Iterator[Gauge]:
        state = self.state
        yield Gauge("penstock_open_streams", "Open do_get and do_put calls.", state.streams.open_streams)
        yield Gauge("penstock_store_bytes", "Bytes in the store, visible or not, small payloads too.", state.store.used)
        free = state.store.medium.room().free
        yield Gauge("penstock_store_free_bytes", "Bytes that the store's disk or memory has left for parts.", free)
        full = state.why_full() is not None
        yield Gauge("penstock_store_full", "1 while puts are refused for want of room, by disk or --quota.", full)
        held, _ = state.ledger.held_by_tickets()
        yield Gauge("penstock_ticketed_bytes", "Bytes of deleted rows that only read tickets hold.", held)
        corrupt = len(state.store.medium.quarantined())
        yield Gauge("penstock_quarantined_parts", "Parts found corrupt and kept in quarantine/.", corrupt)
        for name, value in state.totals().items():
            yield Gauge("penstock_ledger", "Figures of the ledger.", value, {"of": name})
