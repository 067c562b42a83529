"""publish/…: Pub/Sub's topics. What is written is staged, and published by a process of the server's at its finish."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.flight as flight

from penstock import steps
from penstock.errors import InvalidRequest, Lost, PenstockError, TimedOut, Unavailable, WriteEnded, of_code
from penstock.flight_server import endpoints
from penstock.flight_server.gate import Call, not_serving
from penstock.flight_server.kinds.kind import Handler, Handlers, Kind
from penstock.flight_server.metrics import Gauge
from penstock.flight_server.publishers import Publishers
from penstock.flight_server.put import Piece, keep, own_write
from penstock.flight_server.state import State
from penstock.flight_server.tickets import ReadTicket
from penstock.flight_server.upload import Admit, Upload
from penstock.ledger import publications, runs
from penstock.ledger.attempts import Attempt
from penstock.ledger.publications import UnpublishedPart
from penstock.ledger.tables import Transaction
from penstock.ledger.writes import Write, is_minted
from penstock.rows import slices
from penstock.rows.messages import MESSAGES, check_columns, to_messages
from penstock.store.database import Unsettled
from penstock.store.medium import Part
from penstock.wire import actions as wire
from penstock.wire.paths import Path
from penstock.wire.publish import (
    AskParts,
    NotePublished,
    PartsToPublish,
    PublishFigures,
    PublishOptions,
    StagedPart,
)
from penstock.wire.put import PutCommand, Receipt
from penstock.wire.read import Entry

log = logging.getLogger("penstock")
_TOPIC = re.compile(r"[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
_ANSWER = 5.0
"""Seconds after which a finish, or a publisher without work, is answered; then it calls again."""
_LONGEST_PUT = 600.0
"""Seconds for which a put that is a write of its own keeps its stream; our clients ask for the finish again."""
_LOOKED_UP = 60.0
"""Seconds for which a topic isn't looked up again: a query's epochs would call Pub/Sub for nothing else."""
_LARGE = 512 << 10
"""Bytes of a batch that is stored as it is: to put it together with others is a copy of all."""
_MOST_PARTS = 64
"""Parts of one answer to a publisher."""


class PublishKind(Kind):
    """Topics of Pub/Sub's: nothing is at their paths but the writes that fill them."""

    name = "publish"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._changed = threading.Condition()  # notified when a publication begins, moves or ends; guards the two below
        self._counts: dict[str, Counter[str]] = {}
        """What was published to each topic since the start, by the names of PublishFigures."""
        self._looked_up: dict[str, float] = {}
        """When each topic could be published to, by the monotonic clock."""
        self._is_draining = False
        self._publishers = Publishers(state, self._notify)
        state.metrics.gauges(self._gauges)

    def start(self) -> None:
        self._publishers.start()

    def drain(self) -> None:
        """End the publishers while their last notes are taken."""
        self._is_draining = True
        self._notify()
        self._publishers.close()

    def close(self) -> None:
        self._publishers.close()

    def actions(self) -> Handlers:
        yield Handler(wire.ASK_PARTS, self.next_parts)
        yield Handler(wire.NOTE_PUBLISHED, self.note)

    # --- writing ----------------------------------------------------------------------------

    def open(self, path: Path, request: wire.OpenWrite, schema: pa.Schema | None) -> Write:
        _check_topic(path)
        if request.queue is not None:
            raise InvalidRequest(f"{path} is a topic of Pub/Sub's: only a dataset's parts are splits of a queue")
        if schema is not None and (request.publish is None or request.publish.encoding is None):
            check_columns(schema, str(path))
        options = self._check_at_pubsub(path, request.run, request.publish)
        self._publishers.want(str(path))
        return self.state.ledger.open_write(
            str(path), mode=request.mode, run=request.run, schema=MESSAGES, publish=options
        )

    def _check_at_pubsub(self, path: Path, run: str | None, options: PublishOptions | None) -> PublishOptions | None:
        """Return the options with the topic's schema, where rows are encoded by it; raise why they can't be published.

        A write that goes on was checked at its beginning.
        """
        options = None if options is None else replace(options, schema=None)
        if run is not None and self.state.ledger.change(lambda t: runs.write_of(t, str(path), run)) is not None:
            return options
        project, _, topic = path.key.partition("/")
        name = f"projects/{project}/topics/{topic}"
        try:
            from penstock.queue.pubsub.schemas import check_topic, schema_of_topic
        except ImportError as missing:
            raise InvalidRequest(
                f"the server lacks {missing.name}, which publishing needs: pip install 'penstock-flight[serve,pubsub]' "
                "there"
            ) from missing
        access = self.state.config.pubsub_access()
        if options is None or options.encoding is None:
            self._look_up(str(path), lambda: check_topic(access, name))
            return options
        schema = schema_of_topic(access, name)
        if schema.format != options.encoding:
            raise InvalidRequest(f"{path}: its schema {schema.name} is {schema.format}: pass encode={schema.format!r}")
        return replace(options, schema=schema)

    def _look_up(self, path: str, check: Callable[[], None]) -> None:
        """Check a topic, unless that was done a moment ago; if Pub/Sub is away, the publisher waits for it."""
        now = time.monotonic()
        with self._changed:
            self._looked_up = {known: then for known, then in self._looked_up.items() if then > now - _LOOKED_UP}
            if path in self._looked_up:
                return
        try:
            check()
        except (Unavailable, TimedOut) as away:
            log.warning("%s could not be looked up: %s", path, away)
        else:
            with self._changed:
                self._looked_up[path] = now

    def attempt(self, write: Write, upload: Upload) -> Receipt:
        return self._keep(write, upload)

    def put(self, path: Path, command: PutCommand, admit: Admit) -> Receipt:
        """Stage the stream, and return once Pub/Sub has all of it; a put that is cut before goes on being published."""
        _check_topic(path)
        if command.create is not None:
            raise InvalidRequest(f"{path} is a topic of Pub/Sub's: `create` makes one of penstock's, expected topic/…")
        options = self._check_at_pubsub(path, command.run, command.publish)
        self._publishers.want(str(path))
        mode = command.mode or "error"
        with own_write(self.state, str(path), mode, command.run, publish=options) as write, admit() as upload:
            if write.state == "finished":
                upload.drain(upload.parts())
                return self.state.ledger.finished_receipt(write.id)
            receipt = self._keep(write, upload)
            summary = self.state.ledger.finish(write.id, [receipt.attempt])
        self._notify()
        give_up = time.monotonic() + _LONGEST_PUT
        while summary.state == "open" and not upload.is_gone() and time.monotonic() < give_up:
            try:
                summary = self._published(write.id)
            except Unavailable:
                raise
            except PenstockError:
                with suppress(PenstockError):  # a named run is finished by whoever puts it again
                    self.state.ledger.abort(write.id, opener=write.opener)
                raise
        if summary.state == "open":
            raise TimedOut(f"{path}: write/{write.id} is being published, and goes on without this put")
        return receipt

    def _keep(self, write: Write, upload: Upload) -> Receipt:
        options = write.publish or PublishOptions()
        batches: Iterable[pa.RecordBatch] = (batch for part in upload.parts() for batch in part)
        if options.schema is None:
            check_columns(upload.sent, write.path)
        else:
            from penstock.decode.encoding import SchemaEncoding

            encoding = SchemaEncoding(write.path, options.schema)
            encoding.check(upload.sent)
            batches = encoding.batches(batches)
        messages = to_messages(batches, write.path, more_attributes=int(options.id_attribute))
        return keep(self.state, write, upload, _parts(messages), schema=MESSAGES, own=False)

    def finish_write(self, write: Write, attempts: Sequence[str], request: wire.FinishWrite) -> wire.Summary:
        """Name what is published, for good; then answer as soon as Pub/Sub has all of it, or how far it is.

        1. One transaction names the attempts' parts: from now on the write is published to its end, whatever becomes of
        the caller. 2. The publisher reads them, and Pub/Sub answers. 3. Its answers are noted; the last one finishes
        the write, in the same transaction. Repeated, it is the same finish, and lets go on what had failed.
        """
        if write.state == "finished" and write.run is not None:  # whoever has put it
            return self.state.ledger.summary(write.id)
        return self._named(super().finish_write(write, attempts, request))  # 1.

    def _named(self, summary: wire.Summary) -> wire.Summary:
        steps.passed("publish.named")
        if summary.state != "open":
            return summary
        self._publishers.want(summary.path)
        self._notify()
        return self._published(summary.write)

    def publish(self, path: Path, run: str, rows: Iterable[pa.RecordBatch]) -> wire.Summary:
        """Publish rows of the server's own as a run; return the write as a finish does. Again, it goes on."""
        _check_topic(path)
        self._check_at_pubsub(path, run, None)
        ledger = self.state.ledger
        write = ledger.open_write(str(path), mode="append", run=run, schema=MESSAGES)
        if write.state == "open":
            try:
                is_named = publications.find(ledger.database, write.id) is not None
                return self._named(ledger.finish(write.id, [] if is_named else [self._stage(write, rows)]))
            except WriteEnded:
                if ledger.write(write.id).state != "finished":  # a moment ago
                    raise
        return ledger.summary(write.id)

    def _stage(self, write: Write, rows: Iterable[pa.RecordBatch]) -> str:
        """Store rows of the server's own as an attempt of a write, which is aborted if that fails."""
        ledger, store = self.state.ledger, self.state.store
        attempt, parts = uuid.uuid4().hex, list[Part]()
        try:
            for number, (_, batches) in enumerate(_parts(to_messages(rows, write.path))):
                parts.append(store.write(f"{attempt}-{number:06}", MESSAGES, batches, path=write.path))
            ledger.record(write.id, Attempt(attempt, MESSAGES, sum(part.rows for part in parts), tuple(parts)))
        except Unsettled:  # it may be named
            raise
        except BaseException:
            store.discard([part.name for part in parts])
            with suppress(PenstockError):  # it expires
                ledger.abort(write.id)
            raise
        return attempt

    def _published(self, write_id: str) -> wire.Summary:
        """Return a write once it is published, or after some seconds; raise why it can't be."""
        ledger = self.state.ledger

        def has_ended() -> bool:
            now = publications.find(ledger.database, write_id)
            if now is not None and now.code is not None:
                text = f"{now.text}. {now.published:,} of {now.rows:,} messages are published"
                raise of_code(now.code, text + _remedy(now.code, ledger.write(write_id)))
            return now is None

        self._wait(has_ended)
        if not has_ended() and self._is_draining:
            raise not_serving()
        summary = ledger.summary(write_id)
        if summary.state not in ("open", "finished"):
            raise WriteEnded(f"write/{write_id} to {summary.path} is {summary.state}: not all of it is published")
        return summary

    # --- the publisher ----------------------------------------------------------------------

    def next_parts(self, call: Call, request: AskParts) -> PartsToPublish:
        """Return parts of the oldest write to a topic that isn't published, once there is one."""
        reader = self.state.ledger.database

        def oldest() -> str | None:
            under_way = (each for each in publications.unfinished(reader) if each.code is None)
            return next((each.write for each in under_way if each.path == request.path), None)

        if request.write is None:
            self._wait(lambda: oldest() is not None)
        if (write_id := request.write or oldest()) is None:
            return PartsToPublish()
        write = self.state.ledger.write(write_id)
        parts = publications.next_parts(reader, write_id, after=request.after or 0, most=_MOST_PARTS)
        staged = tuple(self._staged(call, write, part) for part in parts)
        return PartsToPublish(write.id, write.publish, staged, self.state.local)

    def _staged(self, call: Call, write: Write, part: UnpublishedPart) -> StagedPart:
        ticket = ReadTicket(
            (part.slice.part,), write.path, round(self.state.ticket_expiry(), 3), written=(part.slice.part_rows,),
            digests=(part.slice.digest or "",), by=call.who or None,
        )  # fmt: skip
        return StagedPart(part.number, self.state.signer.sign(ticket).decode(), part.slice.rows, part.published)

    def note(self, call: Call, request: NotePublished) -> wire.Nothing:
        """Note what Pub/Sub has, and why it won't take the rest."""
        ranges = [_range(each) for each in request.published]

        def note(t: Transaction) -> None:
            publications.note(t, request.write, ranges)
            if request.code is not None:
                publications.fail(t, request.write, request.code, request.text or request.code)

        self.state.ledger.change(note)
        steps.passed("publish.noted")
        counted = {
            "published_rows": sum(end - first for _, first, end in ranges), "published_bytes": request.bytes,
            "requests": len(ranges), "retries": request.retries, "failures": int(request.code is not None),
        }  # fmt: skip
        path = self.state.ledger.write(request.write).path
        with self._changed:
            self._counts.setdefault(path, Counter()).update(counted)
        self._notify()
        self.state.sweeper.soon()
        return wire.Nothing()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Wait until something has happened, a few seconds at most, and not while the server drains."""
        give_up = time.monotonic() + _ANSWER
        with self._changed:
            while not is_done() and not self._is_draining and (left := give_up - time.monotonic()) > 0:
                self._changed.wait(left)

    # --- what is seen -----------------------------------------------------------------------

    def flights(self, folder: Path, *, folders: bool) -> Iterator[flight.FlightInfo]:
        for each in publications.unfinished(self.state.ledger.database):
            if each.path == str(folder) or not folder.key or each.path.startswith(f"{folder}/"):
                state = each.text or f"{each.published:,} of {each.rows:,} messages are published, write/{each.write}"
                yield endpoints.listed(Entry(each.path, "publish", each.rows, state=state))

    def describe(self, path: Path) -> wire.Description:
        _check_topic(path)
        left = [each for each in publications.unfinished(self.state.ledger.database) if each.path == str(path)]
        return wire.Description(
            "publish", str(path), sum(each.rows for each in left), published=sum(each.published for each in left),
            failed=next((f"write/{each.write}: {each.text}" for each in left if each.text is not None), None),
            publishing=self._figures().get(str(path), PublishFigures()),
        )  # fmt: skip

    def _figures(self) -> dict[str, PublishFigures]:
        """Return the figures of all topics that are, or were, published to."""
        waiting = publications.figures(self.state.ledger.database, self.state.ledger.now())
        with self._changed:
            counts = {path: dict(each) for path, each in self._counts.items()}
        return {
            path: replace(waiting.get(path, PublishFigures()), **counts.get(path, {}))
            for path in waiting.keys() | counts.keys()
        }

    def _gauges(self) -> Iterator[Gauge]:
        for path, figures in sorted(self._figures().items()):
            for name, text, value in (
                ("penstock_publish_writes", "Writes that are being published.", figures.writes),
                ("penstock_publish_failed_writes", "Of these, refused by Pub/Sub.", figures.failed),
                ("penstock_publish_waiting_rows", "Staged rows that aren't published.", figures.waiting_rows),
                ("penstock_publish_waiting_bytes", "Bytes of their parts.", figures.waiting_bytes),
                ("penstock_publish_oldest_seconds", "Age of the oldest of these writes.", figures.oldest_seconds),
                ("penstock_published_rows", "Messages that Pub/Sub has taken.", figures.published_rows),
                ("penstock_published_bytes", "Bytes of their requests.", figures.published_bytes),
                ("penstock_publish_requests", "Requests that Pub/Sub has taken.", figures.requests),
                ("penstock_publish_retries", "Requests that were sent again.", figures.retries),
                ("penstock_publish_failures", "Writes that Pub/Sub has refused.", figures.failures),
            ):
                yield Gauge(name, text, value, {"topic": path})


def _remedy(code: str, write: Write) -> str:
    """Return how to go on with a write that has failed to be published; nothing if nobody can."""
    if code == Lost.code:
        return f": penstock rm write/{write.id}, then write all again, which publishes those once more"
    if is_minted(write.run):
        return ""
    return (
        f"; the others are kept for 30 days: write run {write.run!r} again to publish them, or give them up: penstock "
        f"rm write/{write.id}, after which the run, or the redrive, publishes all again"
    )


def _parts(messages: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
    """Yield messages in parts of about 8 MiB: a small batch has no file, and no request, of its own."""
    part: list[pa.RecordBatch] = []
    size = 0
    for batch in messages:
        part.append(batch)
        size += slices.size_of(batch)
        if size >= slices.PART_BYTES:
            yield None, part if size >= len(part) * _LARGE else [*slices.together(part)]
            part, size = [], 0
    if size:
        yield None, [*slices.together(part)]


def _range(text: Sequence[int]) -> tuple[int, int, int]:
    if len(text) != 3:
        raise InvalidRequest(f"NotePublished.published: expected [part, first, end], got {text!r:.80}")
    part, first, end = text
    return part, first, end


def _check_topic(path: Path) -> None:
    """Reject a path that is no topic's."""
    project, _, topic = path.key.partition("/")
    if not project or not _TOPIC.fullmatch(topic) or topic.startswith("goog"):
        raise InvalidRequest(
            f"{path}: expected publish/PROJECT/TOPIC, such as publish/my-project/clean (a topic's name has 3 to 255 "
            "characters, the first one a letter, and doesn't begin with goog)"
        )
