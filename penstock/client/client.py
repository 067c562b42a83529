"""The client: `with penstock.connect() as c: c.put("store/demo/trips", table)`."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from penstock.client import arguments
from penstock.client.follow import Follower, offsets, place
from penstock.client.settings import Settings, read_certificates
from penstock.client.streams import Writer, as_batches, batches_of, next_batch, translated
from penstock.client.views import Info, Listing
from penstock.errors import InvalidRequest, StoreFull, Unavailable
from penstock.rows.slices import first_rows
from penstock.wire.body import VERSION
from penstock.wire.paths import is_topic
from penstock.wire.put import Mode, PutCommand, Receipt, TopicOptions
from penstock.wire.read import EndpointNote, Entry, ListCommand, ReadCommand

DEFAULT_URL = "grpc://127.0.0.1:8815"
_ALIVE = [("grpc.keepalive_time_ms", 310_000), ("grpc.http2.ping_timeout_ms", 20_000)]
"""A stream whose other end has vanished without a word breaks after so long, not at its time's end: a task may have 12
hours. gRPC's servers take more than one such question in 300 s for an attack."""
_T = TypeVar("_T")
Position = Mapping[int, int] | datetime
"""Where in a topic: the next offset of each shard, or when a row was appended."""


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    ca: str | None = None,
    timeout: float = 60.0,
    retry_for: float = 30.0,
) -> Client:
    """A client of the server at `url`, or PENSTOCK_URL, or grpc://127.0.0.1:8815.

    `token` and `ca` (a file of certificates) default to PENSTOCK_TOKEN and PENSTOCK_CA. Nothing is sent until the
    first call.
    """
    return Client(
        Settings(
            url or os.environ.get("PENSTOCK_URL") or DEFAULT_URL,
            token or os.environ.get("PENSTOCK_TOKEN") or None,
            ca or os.environ.get("PENSTOCK_CA") or None,
            timeout=timeout,
            retry_for=retry_for,
        )
    )


class Client:
    """Puts and gets datasets. Safe to share between threads; pickles as its settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        certificates = read_certificates(settings.ca) if settings.ca else None
        try:
            self._flight = flight.connect(settings.url, tls_root_certs=certificates, generic_options=_ALIVE)
        except (pa.ArrowException, flight.FlightError) as wrong:
            raise InvalidRequest(f"url {settings.url!r}: expected grpc://host:port or grpc+tls://host:port") from wrong

    def __repr__(self) -> str:
        return f"penstock.connect({self.settings.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, (self.settings,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. Readers that are still in use end with an error."""
        self._flight.close()

    # --- in ---------------------------------------------------------------------------------

    def put(
        self, path: str, data: Any, *, mode: Mode = "error", run: str | None = None, schema: pa.Schema | None = None
    ) -> Receipt:
        """Write rows to a dataset, all or nothing: a Table, a RecordBatchReader, an iterator of batches, or anything
        with `__arrow_c_stream__` (pandas, polars, DuckDB).

        `mode` says what happens if the dataset exists: "error", "append" or "overwrite". A `run` is a name under
        which this happens once: the same run again writes nothing and returns the first one's receipt.
        """
        arguments.check(path=path)
        found, batches, again = as_batches(data, schema)
        # A run of our own makes it safe to try again after a broken connection; what can be read only once isn't begun
        # before the server has said that it takes it, as what is left of it would be taken for all
        run = run or f"put-{uuid.uuid4().hex}"
        command = PutCommand(uuid.uuid4().hex, path=path, mode=mode, run=run, ready=not again)
        begun = False

        def once() -> Receipt:
            nonlocal begun
            with self._writer(command, found) as writer:
                for some in batches:
                    begun = True
                    writer.write(some)
            return writer.close()

        return self._retried(once, safe=lambda refused: again or not begun)

    def create_topic(
        self,
        path: str,
        schema: pa.Schema,
        *,
        key: str | None = None,
        shards: int | None = None,
        keep_seconds: float | None = None,
        keep_bytes: int | None = None,
    ) -> None:
        """Make an empty topic; of one that exists change what it keeps.

        Rows with equal values in the column `key` stay in one shard, in order. There are 4 shards with a key and 1
        without, unless `shards` says otherwise. Rows are removed after `keep_seconds` (24 hours), the oldest ones
        beyond `keep_bytes` earlier; not before every live consumer has committed them.
        """
        arguments.check(path=path)
        options = TopicOptions(key, shards, keep_seconds, keep_bytes)
        command = PutCommand(uuid.uuid4().hex, path=path, create=options)
        self._retried(lambda: self._writer(command, schema).close())

    def writer(self, path: str, schema: pa.Schema, *, mode: Mode = "error", run: str | None = None) -> Writer:
        """A writer for rows that come bit by bit: `with c.writer(path, schema) as w: w.write(batch)`.

        Leaving the block commits; leaving it by an exception writes nothing.
        """
        arguments.check(path=path)
        return self._writer(PutCommand(uuid.uuid4().hex, path=path, mode=mode, run=run), schema)

    def attempt(self, ticket: str, schema: pa.Schema) -> Writer:
        """A writer for one of many attempts of an open write, in any process: `call("write.open", …)` has the ticket,
        `call("write.finish", …)` commits those that it lists. Waits while the server has no room.
        """
        return self._retried(lambda: self._writer(PutCommand(uuid.uuid4().hex, ticket=ticket, ready=True), schema))

    # --- out --------------------------------------------------------------------------------

    def get(
        self,
        path: str,
        *,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        filter: str | None = None,
        part: int | None = None,
        start: Position | None = None,
        end: Mapping[int, int] | None = None,
        parallel: int = 1,
    ) -> pa.RecordBatchReader:
        """Read a dataset, or one part of it: a reader of batches; `.read_all()` makes a Table.

        Columns, limit and filter (`"fare > 10 and city in ('Oslo', 'Bergen')"`) are applied at the server. On the
        server's own host unfiltered parts are mapped into memory instead of sent; elsewhere `parallel` fetches so many
        endpoints (of about 32 MiB) ahead. What is deleted or overwritten meanwhile stays readable for the life of the
        tickets.

        Of a topic, the rows from `start` up to `end`: offsets by shard, `{0: 500}`, or for `start` a time. Each row's
        place and time are there for who names them: `columns=["id", "_shard", "_offset", "_time"]`.
        """
        info = self.info(path, columns=columns, limit=limit, filter=filter, part=part, start=start, end=end)
        rows = [EndpointNote.decode(endpoint.app_metadata).rows for endpoint in info.endpoints]
        door = info.local if filter is None else None  # who maps a part would have to filter it
        names = info.schema.names if is_topic(path) else columns  # a part of a topic may hold more than is shown of it
        batches = batches_of(self.fetch, info.endpoints, local=door, columns=names, rows=rows, parallel=parallel)
        if filter is not None and limit is not None:
            batches = first_rows(batches, limit)
        return pa.RecordBatchReader.from_batches(info.schema, batches)

    def fetch(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """The batches of one ticket, in any process: `info(path).endpoints` has them.

        By do_get, tried again for as long as nothing has come.
        """
        yield from _rest(*self._retried(lambda: self._begin(ticket)))

    def follow(
        self,
        path: str,
        *,
        start: Position | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
    ) -> Follower:
        """The rows of a topic as they come: `for batch in c.follow("topic/orders"): …` never ends by itself.

        From now on, or from `start`: offsets, a time, `{}` for the oldest row. Each row comes once and those of a shard
        in order, over restarts of the server, which is waited for (`retry_for`); rows that are purged before they were
        given raise `Lost`. Nobody else misses a row. `.position` is the `start` for who wants to go on later, `.stop()`
        ends the loop. A `get` has an end: who loops it must keep the offsets, and tell a topic that was made anew.
        """
        arguments.check(path=path, columns=columns, filter=filter)

        def once(command: ReadCommand) -> flight.FlightInfo:
            with translated():
                return self._info(command)

        def fetched(ticket: bytes) -> Iterator[pa.RecordBatch]:
            with translated():
                begun = self._begin(ticket)
            return _rest(*begun)

        at = place(self.call, path, start)
        return Follower(path, at, columns, filter, info=once, fetch=fetched, patience=self.settings.retry_for)

    def info(
        self,
        path: str,
        *,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        filter: str | None = None,
        part: int | None = None,
        start: Position | None = None,
        end: Mapping[int, int] | None = None,
        journal: str | None = None,
    ) -> Info:
        """A dataset's schema, size, and endpoints with tickets; of a topic those of a range, of this journal if named.

        How many rows a filter keeps is seen on reading.
        """
        arguments.check(path=path, columns=columns, filter=filter)
        since = start.timestamp() if isinstance(start, datetime) else None
        command = ReadCommand(
            path, None if columns is None else tuple(columns), limit, part, filter,
            None if isinstance(start, datetime) else offsets(start, "start"), offsets(end, "end"), since,
            journal,
        )  # fmt: skip
        found = self._retried(lambda: self._info(command))
        entry = Entry.decode(found.app_metadata)
        return Info(
            entry.path, found.schema, found.total_records, found.total_bytes, entry.parts, entry.changed,
            tuple(found.endpoints), entry.local,
        )  # fmt: skip

    def list(self, path: str = "store/", *, recursive: bool = False) -> Listing:
        """What lies in a folder; `write/` lists the open writes."""
        arguments.check(path=path)
        criteria = ListCommand(path, folders=not recursive).encode()
        found = self._retried(lambda: list(self._flight.list_flights(criteria, self._options())))
        return Listing([Entry.decode(info.app_metadata) for info in found])

    # --- the rest ---------------------------------------------------------------------------

    def delete(self, path: str) -> dict[str, Any]:
        """Delete a dataset, or abort a write (`write/ID`); what it was."""
        return self.call("delete", {"path": path})

    def call(self, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A raw action, such as `describe` or `health`; `docs/wire.md` has them all."""
        arguments.check(path=(body or {}).get("path", ""))
        action = flight.Action(name, json.dumps({"v": VERSION, **(body or {})}).encode())

        def once() -> dict[str, Any]:
            results = list(self._flight.do_action(action, self._options()))
            answer: dict[str, Any] = json.loads(results[0].body.to_pybytes())
            return answer

        repeatable = name not in ("delete", "write.open") or (body or {}).get("run") is not None
        return self._retried(once, safe=lambda refused: refused or repeatable)

    def actions(self) -> dict[str, str]:
        """The names that `call` takes, each with what it does."""
        return self._retried(
            lambda: {action.type: action.description for action in self._flight.list_actions(self._options())}
        )

    # --- within -----------------------------------------------------------------------------

    def _info(self, command: ReadCommand) -> flight.FlightInfo:
        return self._flight.get_flight_info(flight.FlightDescriptor.for_command(command.encode()), self._options())

    def _begin(self, ticket: bytes) -> tuple[flight.FlightStreamReader, pa.RecordBatch | None]:
        reader = self._flight.do_get(flight.Ticket(ticket), self._options(self.settings.stream_timeout))
        return reader, next_batch(reader)

    def _writer(self, command: PutCommand, schema: pa.Schema) -> Writer:
        return Writer(self._flight, self._options(self.settings.stream_timeout), command, schema)

    def _options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        token = self.settings.token
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        return flight.FlightCallOptions(timeout=timeout or self.settings.timeout, headers=headers)

    def _retried(self, call: Callable[[], _T], *, safe: Callable[[bool], bool] = lambda refused: True) -> _T:
        """The call's result. Tried again while the server is busy or away, where that can't do anything twice.

        `safe` is asked each time, and told whether the server itself refused the call: then it never began there.
        """
        give_up = time.monotonic() + self.settings.retry_for
        pause = 0.05
        while True:
            try:
                with translated():
                    return call()
            except Unavailable as error:
                refused = error.request is not None or error.retry_after is not None
                if isinstance(error, StoreFull) or not safe(refused):
                    raise
                pause = min(pause * 2, 5.0)
                apart = (1 + os.urandom(1)[0] / 256) / 2  # so that clients that failed together part
                wait = max(error.retry_after or 0, pause) * apart
                if time.monotonic() + wait > give_up:
                    raise Unavailable(
                        f"{self.settings.url} was not to be had for {self.settings.retry_for:g} s: {error}. "
                        "Is the server running? (penstock serve; penstock doctor)",
                        request=error.request,
                    ) from error
                time.sleep(wait)


def _rest(reader: flight.FlightStreamReader, batch: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
    """A stream's batches, of which the first has come."""
    while batch is not None:
        yield batch
        with translated():
            batch = next_batch(reader)
