"""The client: `with penstock.connect() as c: c.put("store/demo/trips", table)`."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, overload

import pyarrow as pa

from penstock.client import push, put
from penstock.client.arguments import Start, check_path, check_read, check_undecoded, to_position, to_start
from penstock.client.claim import Claims
from penstock.client.connection import Connection
from penstock.client.consume import Consumer
from penstock.client.diagnosis import DEFAULT_PORT, complete_url, explain
from penstock.client.follow import Follower, follow
from penstock.client.get import fetch, read_info, read_tickets
from penstock.client.heartbeats import Heartbeats
from penstock.client.producer import Producer
from penstock.client.publish import PublishArguments, Publishing, publish, redrive
from penstock.client.put import Writer
from penstock.client.settings import ConnectSettings
from penstock.client.typed import Decoded, plan_decoding
from penstock.client.views import Info, Listing
from penstock.decode.ddl import parse_ddl
from penstock.rows.slices import first_rows
from penstock.wire.actions import ALTER_TOPIC, CREATE_QUEUE, FINISH_QUEUE, Action, AlterTopic, AnswerT, RequestT
from penstock.wire.put import Mode, PutCommand, Receipt, TopicOptions
from penstock.wire.queue import CreateQueue, FinishQueue, QueueRoom
from penstock.wire.read import EndpointNote, Entry, ListCommand, PayloadSchema, ReadCommand

if TYPE_CHECKING:
    from penstock.client.dataset import Dataset

log = logging.getLogger("penstock")
DEFAULT_URL = f"grpc://127.0.0.1:{DEFAULT_PORT}"


class ServerArguments(TypedDict, total=False):
    """The arguments of `connect` that say which server."""

    url: str | None
    token: str | None
    ca: str | None
    cert: str | None
    key: str | None


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    timeout: float = 60.0,
    retry_for: float | None = None,
) -> Client:
    """Return a client of the server at `url`, or PENSTOCK_URL, or grpc://127.0.0.1:8815; without a port, at 8815.

    `token` and `ca` (a file of certificates) default to PENSTOCK_TOKEN and PENSTOCK_CA; `cert` and `key`, files of the
    client's own certificate, to PENSTOCK_CERT and PENSTOCK_KEY. A server that is busy or away is tried again for
    `retry_for` seconds: 30, or ten minutes in `follow`. Nothing is sent until the first call.
    """
    return Client(
        ConnectSettings(
            complete_url(url or os.environ.get("PENSTOCK_URL") or DEFAULT_URL),
            (token or os.environ.get("PENSTOCK_TOKEN") or "").strip() or None,  # a file's line has an end
            ca or os.environ.get("PENSTOCK_CA") or None,
            cert or os.environ.get("PENSTOCK_CERT") or None,
            key or os.environ.get("PENSTOCK_KEY") or None,
            timeout=timeout,
            retry_for=retry_for,
        )
    )


class Client:
    """Puts and gets rows. Safe to share between threads; pickles as its settings."""

    def __init__(self, settings: ConnectSettings) -> None:
        self.settings = settings
        self.connection = Connection(settings, explain=explain)
        self._heartbeats = Heartbeats(self.connection)

    def __repr__(self) -> str:
        return f"penstock.connect({self.settings.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, (self.settings,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Readers that are still in use end with an error, and leases are extended no more."""
        self._heartbeats.close()
        self.connection.close()

    # --- in ---------------------------------------------------------------------------------

    def put(
        self,
        path: str,
        data: Any,
        *,
        mode: Mode = "error",
        run: str | None = None,
        schema: pa.Schema | None = None,
        partition: str | None = None,
        ttl: float | None = None,
        **how: Unpack[PublishArguments],
    ) -> Receipt:
        """Write rows to a dataset, all or nothing: a Table, a RecordBatchReader, an iterator of batches, a list of
        dicts, or anything with `__arrow_c_stream__` (pandas, polars, DuckDB).

        `mode` says what happens if the dataset exists: "error", "append" or "overwrite". A `run` is a name under
        which this happens once: the same run again writes nothing and returns the first one's receipt.

        `partition` names a part of the dataset's rows, `"2026-11-20"`: an overwrite then replaces the rows that were
        put under that name, in one step, and no others. A dataset is deleted `ttl` seconds after its last write.

        `publish/PROJECT/TOPIC` takes messages for Pub/Sub, in columns data, attributes and ordering_key, or any rows
        with `encode="json"`, and returns once Pub/Sub has them. `id_attribute` gives each the attribute penstock-id,
        `compression="gzip"` compresses the requests.
        """
        check_path(path)
        publishing = Publishing.of(path, how)
        dataset = put.dataset_options(path, partition, ttl)
        if publishing.options is not None:
            return publish(self.connection, path, data, mode=mode, run=run, schema=schema, publishing=publishing)
        return put.put(self.connection, path, data, mode=mode, run=run, schema=schema, dataset=dataset)

    def create_topic(
        self,
        path: str,
        schema: pa.Schema | str,
        *,
        key: str | None = None,
        shards: int | None = None,
        keep_seconds: float | None = None,
        keep_bytes: int | None = None,
        keep_absent: bool | None = None,
    ) -> None:
        """Make an empty topic; of one that exists change what it keeps.

        The schema is Arrow's, or text as Spark's `.schema` takes it: `"id long not null, city string"`. Rows with equal
        values in the column `key` stay in one shard, in order; rows without a key are spread over all shards. There are
        4 shards with a key and 1 without, unless `shards` says otherwise. Rows are removed after `keep_seconds` (24
        hours), the oldest ones beyond `keep_bytes` earlier; not before every live consumer has committed them. With
        `keep_absent=False` one that nobody has seen for ten minutes, which the log warns of, holds no rows beyond
        `keep_bytes`.
        """
        check_path(path)
        columns = parse_ddl(schema) if isinstance(schema, str) else schema
        options = TopicOptions(key, shards, keep_seconds, keep_bytes, keep_absent)
        put.create_topic(self.connection, path, columns, options)

    def alter_topic(
        self,
        path: str,
        *,
        shards: int | None = None,
        keep_seconds: float | None = None,
        keep_bytes: int | None = None,
    ) -> None:
        """Change what a topic keeps, or give one without a key more shards; what isn't named stays.

        `create_topic` would need its schema and key for that. Readers, consumers and queries that are under way read a
        new shard from its first row.
        """
        check_path(path)
        self.call(ALTER_TOPIC, AlterTopic(path, shards, keep_seconds, keep_bytes))

    def writer(
        self,
        path: str,
        schema: pa.Schema,
        *,
        mode: Mode = "error",
        run: str | None = None,
        partition: str | None = None,
        ttl: float | None = None,
    ) -> Writer:
        """Return a writer for rows that come bit by bit: `with c.writer(path, schema) as w: w.write(batch)`.

        Leaving the block commits; leaving it by an exception writes nothing. The others as in `put`.
        """
        check_path(path)
        dataset = put.dataset_options(path, partition, ttl)
        command = PutCommand(uuid.uuid4().hex, path=path, mode=mode, run=run, dataset=dataset)
        return Writer(self.connection, command, schema)

    def producer(self, path: str, *, max_in_flight: int = 64) -> Producer:
        """Return a producer of a topic: `with c.producer("topic/orders") as p: answer = p.send(batch)`.

        Each batch is durable and readable once its future has the answer, and up to `max_in_flight` may be on their
        way. Batches keep their order, and none is stored twice, whatever happens to the connection or the server.
        """
        check_path(path)
        return Producer(self.connection, path, max_in_flight=max_in_flight)

    def push(self, queue: str, payloads: Any, *, finish: bool = False) -> int:
        """Push payloads to a queue, a message each: a table, a SplitPayload, or a list of them; return how many.

        A QueueMessage is pushed as it is: its `payload_key` names a payload that is stored already, or is empty for a
        split that workers read from its source. Those of one schema are one transaction. `finish` says that no client
        pushes more: the queue is complete once it is drained. `put` writes rows, and where it cuts them says nothing;
        each payload of a push is one unit of work.
        """
        outputs = push.to_outputs(queue, payloads)
        push.push(self.connection, outputs)
        if finish:
            self.call(FINISH_QUEUE, FinishQueue(queue))
        return len(outputs)

    def create_queue(self, path: str, topic: str) -> None:
        """Make a queue whose messages are records of a Kafka topic; every other queue is made by its first message.

            c.create_queue("queue/j/in", "kafka://127.0.0.1:9092")

        Without a name of its own the topic is named after the path: j.in. The server uses only the broker that it was
        started with (`penstock serve --kafka`). Again, it changes nothing.
        """
        self.call(CREATE_QUEUE, CreateQueue(path, topic))

    def attempt(self, ticket: str, schema: pa.Schema) -> Writer:
        """Return a writer for one of many attempts of an open write, in any process; wait while the server has no room.

        `call("write.open", …)` returns the ticket, `call("write.finish", …)` commits the attempts that it lists.
        """
        return put.open_attempt(self.connection, ticket, schema)

    # --- out --------------------------------------------------------------------------------

    def get(
        self,
        path: str,
        *,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        filter: str | None = None,
        part: int | None = None,
        start: Start | None = None,
        end: Mapping[int, int] | None = None,
        parallel: int = 1,
        **decoded: Unpack[Decoded],
    ) -> pa.RecordBatchReader:
        """Read a dataset, or one part of it: a reader of batches; `.read_all()` makes a Table.

        Columns, limit and filter (`"fare > 10 and city in ('Oslo', 'Bergen')"`) are applied at the server. On the
        server's own host unfiltered parts are mapped into memory instead of sent; elsewhere `parallel` fetches so many
        endpoints (of about 32 MiB) ahead. Rows that are deleted or overwritten meanwhile stay readable for the life of
        the tickets.

        Of a topic, the rows from `start` up to `end`: offsets by shard, `{0: 500}`, or for `start` a time. A row's
        shard, offset and time of arrival are columns on request: `columns=["id", "_shard", "_offset", "_time"]`.

        `decode="json"` makes columns of a topic's payloads, those of `schema`: `"id long, total decimal(10,2)"`, as
        Spark's `.schema` takes it, or Arrow's. `mode` says what becomes of a payload that doesn't decode: nulls and an
        `_error` ("PERMISSIVE", the default), no row ("DROPMALFORMED"), or an error ("FAILFAST"). "avro" and "protobuf"
        read each message by the revision of the schema that it names, or all by the file `writer_schema`, and without
        `schema` have the columns of the newest revision.
        """
        decoding, at_server = plan_decoding(self, path, decoded)
        if decoding is not None or at_server is not None:
            check_undecoded(columns)
        if decoding is not None:
            columns = decoding.columns
        info = self.info(
            path, columns=columns, limit=limit, filter=filter, part=part, start=start, end=end, decoding=at_server
        )
        mapped = filter is None and at_server is None  # mapped parts would have to be filtered here
        local = info.local if mapped else None
        names = columns if info.kind == "dataset" else info.schema.names  # a journal's parts may have more columns
        tickets = ((each.ticket.ticket, EndpointNote.decode(each.app_metadata).rows) for each in info.endpoints)
        batches = read_tickets(self.connection, tickets, local=local, columns=names, parallel=parallel)
        if filter is not None and limit is not None:
            batches = first_rows(batches, limit)
        if decoding is not None:
            return pa.RecordBatchReader.from_batches(decoding.schema, decoding.reading(info.schema).batches(batches))
        return pa.RecordBatchReader.from_batches(info.schema, batches)

    def dataset(self, path: str) -> Dataset:
        """Return a dataset that DuckDB, polars, pandas and pyarrow scan as often as they like, each time as it is then:

            trips = c.dataset("store/demo/trips")
            duckdb.sql("SELECT max(fare) FROM trips WHERE city = 'Oslo'")
            pl.scan_pyarrow_dataset(trips).filter(pl.col("city") == "Oslo").select("fare").collect()
            trips.to_table(columns=["fare"], filter=pc.field("city") == "Oslo").to_pandas()

        Only the columns and rows that they need are read, where the server can tell which these are. A folder,
        `store/days/`, is read as one: the columns of all datasets below it, and `_path`, by which datasets are chosen,
        too. `get` is read once, and takes its columns and filter beforehand.
        """
        from penstock.client.dataset import Dataset  # pyarrow's datasets import pandas, if that is there

        check_path(path)
        return Dataset(self, path)

    def fetch(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        """Return the batches of one ticket, in any process: `info(path).endpoints` has the tickets.

        By do_get, retried until the first batch has come.
        """
        return fetch(self.connection, ticket)

    def follow(
        self,
        path: str,
        *,
        start: Start | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
    ) -> Follower:
        """Return the rows of a topic as they come: `for batch in c.follow("topic/orders"): …` never ends by itself.

        From now on, or from `start`: offsets, a time, "earliest" for the oldest row. Each row comes once and those of a
        shard in order, over ten minutes without the server (`retry_for`); rows that are purged before they were read
        raise `Lost`.
        Other readers miss nothing. Pass `.position` as `start` to continue later; `.stop()` ends the loop. A loop of
        `get` would have to keep the offsets itself, and to notice a topic that was deleted and created again.
        """
        return follow(self.connection, path, start, columns, filter)

    def consume(
        self,
        path: str,
        *,
        group: str,
        start: Start | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        auto_commit: bool = True,
    ) -> Consumer:
        """Return the rows of a topic or a subscription that come to this member of a group:

            with c.consume("topic/orders", group="billing") as rows:
                for batch in rows:
                    charge(batch)  # committed once the loop comes back for the next batch, or the block ends

        The server keeps the group's position, and gives each shard to one of its members at a time, whatever process or
        host that is in: those that join or end change the shares between two batches. Each row comes to one member,
        once; where a member dies, or leaves the block by an exception, the batch that it had in hand comes again. A new
        group begins with the oldest row, or at `start`. `follow` keeps no position, and has all shards.

        With `auto_commit=False` nothing is committed but by `rows.commit()`: for what is written for many batches.
        """
        return Consumer(self.connection, path, group, start, columns, filter, auto_commit=auto_commit)

    def claim(
        self,
        queue: str,
        *,
        prefetch: int = 2,
        to: Sequence[str] = (),
        wait: float = 60.0,
        room: tuple[int, int] | None = None,
        worker: str | None = None,
    ) -> Claims:
        """Return the messages of a queue as they come, each leased to this worker with its payload loaded:

            for lease in c.claim("queue/j/in", to=["queue/j/out"]):
                with lease as split:
                    lease.forward("queue/j/out", score(split.payload))

        The block's end acks the message; an exception releases it, is logged and kept, and the fifth one makes the
        message dead, while the loop goes on. The loop ends when the queue is complete: all that fills it has ended, and
        every message is done or dead. `prefetch` payloads are loaded while one is worked on; more, up to 64, if that is
        a tenth of a second's work. `to` names the queues that this worker forwards to, so that they are complete after
        this one also if it never forwards anything. A worker may start before what fills its queue: for a queue that
        nobody has made it waits `wait` seconds, then NotFound is raised. With `room=(1_000, 256 << 20)` it waits while
        so many messages or bytes wait in a queue of `to`. `worker` is what others know it by, else its host and pid.
        """
        check_path(queue)
        return Claims(
            self.connection, self._heartbeats, queue,
            prefetch=prefetch, to=to, wait=wait, room=None if room is None else QueueRoom(*room), worker=worker,
        )  # fmt: skip

    def info(  # noqa: PLR0913  # what may be said of a read
        self,
        path: str,
        *,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        filter: str | None = None,
        part: int | None = None,
        start: Start | None = None,
        end: Mapping[int, int] | None = None,
        journal: str | None = None,
        decoding: PayloadSchema | None = None,
    ) -> Info:
        """Return a dataset's schema, size, and endpoints with tickets; of a topic those of a range, and `journal`
        names the journal of its offsets. How many rows a filter keeps is known only after reading.
        """
        check_read(path, columns, filter)
        position, since = to_start(start)
        names = None if columns is None else tuple(columns)
        until = to_position(end, "end")
        command = ReadCommand(path, names, limit, part, filter, position, until, since, journal, decoding)
        return Info.of(self.connection.retry(lambda: read_info(self.connection, command)))

    def list(self, path: str = "store/", *, recursive: bool = False) -> Listing:
        """List a folder; `write/` lists the open writes."""
        check_path(path)
        criteria = ListCommand(path, folders=not recursive).encode()
        connection = self.connection
        infos = connection.retry(lambda: list(connection.flight.list_flights(criteria, connection.options())))
        return Listing([Entry.decode(info.app_metadata) for info in infos])

    # --- the rest ---------------------------------------------------------------------------

    def redrive(self, path: str, to: str, *, consumer: str | None = None) -> int:
        """Put the rows of a topic or a subscription that a consumer's schema could not decode, as they came, into
        another topic, `topic/…`, or publish them, `publish/PROJECT/TOPIC`; return how many, each once. The log says
        which stay dead, as Pub/Sub would not take them.
        """
        done = redrive(self.connection, path, to, consumer)
        for note in done.notes:
            log.warning("%s: %s", path, note)
        return done.rows

    def delete(self, path: str, *, now: bool = False) -> dict[str, Any]:
        """Delete a dataset or a topic, or abort a write (`write/ID`); return what it held.

        With `now` a dataset's bytes go as soon as no read ticket names them: `undelete` can't bring it back.
        """
        return self.call("delete", {"path": path, "now": now} if now else {"path": path})

    def undelete(self, path: str) -> dict[str, Any]:
        """Make a dataset that was deleted what it was, with its runs; return what `call("describe", …)` says of it.

        Its bytes stay for the life of read tickets (12 hours), unless a put needs their room before.
        """
        return self.call("undelete", {"path": path})

    @overload
    def call(self, action: Action[RequestT, AnswerT], request: RequestT) -> AnswerT: ...
    @overload
    def call(self, action: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]: ...
    def call(self, action: Action[Any, Any] | str, request: Any = None) -> Any:
        """Call an action: one of `penstock.wire.actions` with its request, or a name, such as "describe" or "health",
        with the fields of its JSON body. `docs/wire.md` has them all.
        """
        if isinstance(action, str):
            fields = request or {}
            check_path(fields.get("path", ""))
            return self.connection.call_raw(action, fields)
        return self.connection.call(action, request)

    def actions(self) -> dict[str, str]:
        """Return the names that `call` takes, each with its description."""
        connection = self.connection
        return connection.retry(
            lambda: {each.type: each.description for each in connection.flight.list_actions(connection.options())}
        )
