"""topic/…: topics, journals that puts append to and that are read by ranges of offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import pyarrow as pa

from penstock.errors import InvalidRequest, LimitExceeded, SchemaMismatch, Unavailable
from penstock.flight_server.exchange import Stream
from penstock.flight_server.kinds.journal import JournalKind
from penstock.flight_server.kinds.kind import Handler, Handlers
from penstock.flight_server.metrics import Gauge
from penstock.flight_server.put import keep, own_write
from penstock.flight_server.state import State
from penstock.flight_server.upload import Admit, Upload
from penstock.ledger.writes import Write
from penstock.queue.topics import keys
from penstock.queue.topics.append import SmallPut
from penstock.queue.topics.dead import check_writable
from penstock.queue.topics.producers import ProducedBatch, Producers
from penstock.rows import slices
from penstock.rows.fitting import Fit
from penstock.text import counted
from penstock.wire import paths
from penstock.wire.actions import ALTER_TOPIC, AlterTopic, Deleted, Description, OpenWrite
from penstock.wire.exchange import Answer, Beat, Numbered
from penstock.wire.paths import Path
from penstock.wire.put import Mode, PutCommand, Receipt, TopicOptions

_MOST_SPARE = 64 << 10
"""Bytes of the values that a producer's batch may have in nested dictionaries, and not in its rows."""
_MOST_REPEATED = 1_024
"""Bytes for each row, beside those, of values that an earlier batch of the stream brought."""


class TopicKind(JournalKind):
    """Topics: a put is durable and readable when it is answered, many small ones with one fsync."""

    name = "topic"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        state.metrics.gauges(self._gauges)
        self.producers = Producers(state.ledger, state.journals.appender)

    def tend(self, stop: Callable[[], bool]) -> None:
        """Expire producers."""
        self.producers.expire()

    def totals(self) -> dict[str, int]:
        return {"topics": self.topics.count()}

    def actions(self) -> Handlers:
        yield Handler(ALTER_TOPIC, lambda call, request: self._alter(request))

    # --- writing ----------------------------------------------------------------------------

    def delete(self, path: Path) -> Deleted:
        topic = self.topics.remove(str(path))
        return Deleted(topic.path, topic.rows, topic.bytes, topic.part_count)

    def open(self, path: Path, request: OpenWrite, schema: pa.Schema | None) -> Write:
        check_writable(path)
        _check_mode(path, request.mode)
        plain = None if schema is None else schema.remove_metadata()
        return self.state.ledger.open_write(
            str(path), mode="append", run=request.run, schema=plain, queue=request.queue
        )

    def attempt(self, write: Write, upload: Upload) -> Receipt:
        self._cast(upload, write.path, write.schema)
        return self._keep(write, upload, upload.parts(), own=False)

    def put(self, path: Path, command: PutCommand, admit: Admit) -> Receipt:
        """Append the stream's rows; a put that fits a part shares its fsync and its transaction with others."""
        check_writable(path)
        _check_mode(path, command.mode)
        with admit() as upload:
            if command.create is not None:
                return self._create(path, command.create, upload)
            self._cast(upload, str(path))
            parts = upload.parts()
            first, second = next(parts, []), next(parts, None)
            if second is not None:
                with own_write(self.state, str(path), "append", command.run) as write:
                    return self._keep(write, upload, chain([first, second], parts), own=True)
            upload.check_whole()
            try:
                return self.state.journals.appender.append(_small_put(path, command, upload, first))
            except SchemaMismatch as unlike:
                self.state.ledger.fit_schema(str(path), upload.sent.remove_metadata())  # or the difference again
                raise Unavailable(
                    f"{path} got other types while these rows came: put them again", retry_after=0.1
                ) from unlike

    def exchange(self, path: Path, stream: Stream) -> None:
        """Append a producer's batches: each is durable and readable when it is answered."""
        check_writable(path)

        def answer(answer: Answer, batch: ProducedBatch) -> None:
            self.state.metrics.moved("in", batch.rows, batch.bytes)
            stream.send(answer)

        with self.producers.open(str(path), stream.hello(), answer=answer, refuse=stream.refuse) as session:
            stream.send(session.welcome(stream.silence))
            fit: Fit | None = None
            before: pa.RecordBatch | None = None
            for message, batch in stream.messages():
                if isinstance(message, Beat):
                    continue
                if not isinstance(message, Numbered) or batch is None:
                    raise InvalidRequest(f"{path}: a producer sends no message of type {message.type!r}")
                if fit is None:
                    fit = Fit.of(batch.schema, self.state.ledger.fit_schema(str(path), batch.schema.remove_metadata()))
                rows = [_trimmed(path, piece) for piece in fit.pieces(batch)]
                size = sum(map(slices.size_of, rows))
                _check_repeated(path, batch, before, size)
                before = batch
                session.append(message.n, message.acked, fit.target, rows, size)
        if stream.said_bye:
            session.forget()

    def _cast(self, upload: Upload, path: str, announced: pa.Schema | None = None) -> None:
        """Let the rows come in the topic's types, without metadata: pandas notes its index there, each time anew."""
        upload.cast_to(self.state.ledger.fit_schema(path, upload.sent.remove_metadata(), announced=announced))

    def _keep(self, write: Write, upload: Upload, parts: Iterator[list[pa.RecordBatch]], *, own: bool) -> Receipt:
        layout = self.topics.layout(write.path)
        pieces = keys.sharded(parts, layout, int(upload.attempt[:8], 16))
        return keep(
            self.state, write, upload, pieces, schema=upload.schema,
            journal=None if layout is None else layout.journal, own=own,
        )  # fmt: skip

    def _create(self, path: Path, options: TopicOptions, upload: Upload) -> Receipt:
        """Make a topic of the stream's schema, or change what an existing one keeps."""
        for _ in upload.parts():
            if upload.rows:
                raise InvalidRequest(f"{path}: a put with `create` takes no rows: put them afterwards, without it")
        upload.check_whole()
        self.topics.create(
            str(path), upload.schema.remove_metadata(), key=options.key, shards=options.shards,
            keep_seconds=options.keep_seconds, keep_bytes=options.keep_bytes, keep_absent=options.keep_absent,
        )  # fmt: skip
        return Receipt("", upload.attempt, 0, 0, 0, "")

    def _alter(self, request: AlterTopic) -> Description:
        path = paths.parse(request.path)
        if path.kind != self.name:
            raise InvalidRequest(f"{path} can't be altered: expected {self.name}/…")
        check_writable(path)
        self.topics.alter(
            str(path), shards=request.shards, keep_seconds=request.keep_seconds, keep_bytes=request.keep_bytes
        )
        return self.describe(path)

    # --- metrics ----------------------------------------------------------------------------

    def _gauges(self) -> Iterator[Gauge]:
        yield Gauge("penstock_producers", "Producers that have a stream.", self.producers.live())


def _trimmed(path: Path, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows without what else is in their dictionaries: a client sends these once, each batch stores them."""
    batch = slices.trimmed(batch)
    if (spare := slices.spare_bytes(batch)) > _MOST_SPARE:
        raise LimitExceeded(
            f"{path}: dictionaries within nested columns have more values than the batch has, and {spare:,} bytes: "
            f"each batch is stored with its own, of at most {_MOST_SPARE:,}. Send plain columns, or put the rows"
        )
    return batch


def _check_repeated(path: Path, batch: pa.RecordBatch, before: pa.RecordBatch | None, stored: int) -> None:
    """Reject a batch of large values that were sent once, with a batch before it, and would be stored with each."""
    repeated = slices.repeated_bytes(batch, before)
    repeated = min(repeated, stored - (slices.size_of(batch) - repeated))
    if repeated > (most := _MOST_SPARE + _MOST_REPEATED * batch.num_rows):
        raise LimitExceeded(
            f"{path}: {repeated:,} bytes of dictionaries that came with an earlier batch would be stored once more for "
            f"{counted(batch.num_rows, 'row')}, at most {most:,} are: send plain columns, or put the rows"
        )


def _check_mode(path: Path, mode: Mode | None) -> None:
    """Reject an overwrite: a topic takes rows at its end, and nothing else."""
    if mode == "overwrite":
        raise InvalidRequest(f"{path} is a topic, which only grows: omit the mode, or delete the topic first")


def _small_put(path: Path, command: PutCommand, upload: Upload, batches: list[pa.RecordBatch]) -> SmallPut:
    """Return a put that came whole and fits a part."""
    size = sum(map(slices.size_of, batches))
    brief = command.run is None or bool(command.brief)
    return SmallPut(str(path), command.run, upload.attempt, upload.schema, batches, upload.rows, size, brief)
