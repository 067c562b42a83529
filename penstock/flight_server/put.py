"""do_put: an attempt comes in, or a write of its own."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
import pyarrow.flight as flight

from penstock import steps
from penstock.errors import InvalidRequest, PenstockError, StoreFull, WriteEnded
from penstock.flight_server import limits
from penstock.flight_server.gate import Call
from penstock.flight_server.limits import Limits
from penstock.flight_server.tickets import Signer
from penstock.flight_server.upload import Upload
from penstock.ledger.attempts import Attempt
from penstock.ledger.ledger import Ledger
from penstock.ledger.writes import Write
from penstock.queue.topics import keys
from penstock.queue.topics.append import Appender, SmallPut
from penstock.queue.topics.topics import Topics
from penstock.store.database import Unsettled
from penstock.store.medium import Part
from penstock.store.payloads import SplitPayloadStore
from penstock.text import format_age, format_size
from penstock.wire import paths
from penstock.wire.put import Mode, PutCommand, Receipt

_IN_FLIGHT = 2
"""Parts of one put that are being stored while the next is received: 2 threads made 1.3 GB/s of 1's 0.4, 3 made 1.0."""
READY = b'{"v":1}'
log = logging.getLogger("penstock")
_ATTEMPT = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Putter:
    """What a put needs of the server."""

    ledger: Ledger
    store: SplitPayloadStore
    signer: Signer
    most: Limits
    pool: Executor
    watch: limits.Watch
    topics: Topics
    appender: Appender

    def put(
        self,
        call: Call,
        peer: str,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        say: Callable[[bytes], None],
    ) -> Receipt:
        """Take one stream to its receipt.

        1. The write: the ticket's, or one of this put's own.
        2. The stream's parts, durable and unseen; its trailer says that it is whole.
        3. One transaction: the attempt is recorded, or compared with what is recorded under its name; a write of its
        own is finished with it.
        A put to a topic that is smaller than a part takes 2. and 3. together with others: `appender.commit`.
        Abandoned or refused at any step, its parts are deleted. After a crash, or when nobody knows whether 3. will
        have happened after one, they stay, and the next start deletes them if no row names them.
        """
        command = _command(descriptor)
        write = self._write(call, command)  # 1.
        own = command.ticket is None
        with self._ended_with_it(write if own else None):
            if command.ready:
                say(READY)
            with self.watch.put(peer, command.attempt) as waits:
                upload = Upload(reader, self.most, waits)
                if write is None:
                    return self._append(command, upload)
                return self._keep(write, command.attempt, upload, upload.parts(), own)

    def _write(self, call: Call, command: PutCommand) -> Write | None:
        """The write that the put is of; None for one of its own to a topic, which may not need one."""
        if command.ticket is not None:
            write = self.ledger.touch(self.signer.open_write(command.ticket.encode()).put)
            self.watch.tell(command.attempt)
            return write
        path = _of_its_own(call, command)
        return None if path.kind == "topic" else self._own_write(command, path)

    def _own_write(self, command: PutCommand, path: paths.Path) -> Write:
        return self.ledger.open_write(str(path), mode=mode_at(path, command.mode), run=command.run, own=True)

    def _append(self, command: PutCommand, upload: Upload) -> Receipt:
        """A put of its own to a topic: one that fits a part shares its fsync and its transaction with others'."""
        path = paths.parse(command.path or "")
        parts = upload.parts()
        first, second = next(parts, []), next(parts, None)
        if second is None:
            upload.check_whole()
            return self.appender.append(_small(command, str(path), upload, first))
        parts = chain([first, second], parts)
        write = self._own_write(command, path)
        with self._ended_with_it(write):
            return self._keep(write, command.attempt, upload, parts, own=True)

    def _keep(
        self, write: Write, attempt: str, upload: Upload, parts: Iterator[list[pa.RecordBatch]], own: bool
    ) -> Receipt:
        if own and write.state == "finished":  # its run is done: the second time changes nothing
            upload.drain(parts)
            return self.ledger.finished_receipt(write.id)
        found = self._accept(write.path, attempt, upload, parts)  # 2.
        steps.passed("put.durable")
        return self._record(write, found, own)  # 3.

    def _accept(self, path: str, attempt: str, upload: Upload, parts: Iterator[list[pa.RecordBatch]]) -> Attempt:
        """Store the parts of a stream, the next one received while two are written."""
        grows = paths.is_topic(path)
        layout = self.topics.layout(path) if grows else None
        schema = upload.schema.remove_metadata() if grows else upload.schema
        # The name has a random piece: an attempt that comes twice, or a stolen id, can't touch another's bytes
        prefix = f"{attempt}-{secrets.token_hex(4)}"
        stored: list[Part] = []
        running: deque[Future[Part]] = deque()
        shards: list[int] = []
        try:
            for number, (shard, batches) in enumerate(keys.sharded(parts, layout, attempt)):
                shards.append(shard)
                if len(running) == _IN_FLIGHT:
                    stored.append(running.popleft().result())
                running.append(self.pool.submit(self.store.write, f"{prefix}-{number:06}", schema, batches))
            while running:
                stored.append(running.popleft().result())
            upload.check_whole()
        except BaseException as error:
            stored += [future.result() for future in running if future.exception() is None]
            self.store.discard(part.name for part in stored)
            if isinstance(error, StoreFull):
                raise self._with_outlook(error) from error
            raise
        journal = None if layout is None else layout.journal
        return Attempt(attempt, schema, upload.rows, tuple(stored), tuple(shards) if grows else (), journal)

    def _record(self, write: Write, attempt: Attempt, own: bool) -> Receipt:
        try:
            receipt = self.ledger.finish_single(write.id, attempt) if own else self.ledger.record(write.id, attempt)
        except WriteEnded:
            self.store.discard(part.name for part in attempt.parts)
            now = self.ledger.write(write.id)
            if own and write.run is not None and now.state == "finished":  # the same run, put twice at the same time
                return self.ledger.finished_receipt(now.id)
            raise
        except Unsettled:  # the row may be there after a crash; if it isn't, the start finds its bytes to be orphans
            raise
        except BaseException:
            self.store.discard(part.name for part in attempt.parts)
            raise
        steps.passed("put.recorded")
        if attempt.parts and not self.ledger.names(attempt.parts[0].name):
            self.store.discard(part.name for part in attempt.parts)  # the attempt came again; the first is it
        return receipt

    def _with_outlook(self, full: StoreFull) -> StoreFull:
        """The same, and when there will be more room without anybody's doing."""
        size, until = self.ledger.held_by_tickets()
        if not size:
            return full
        end = f"{time.strftime('%H:%M UTC', time.gmtime(until))}, in {format_age(until - time.time())}"
        text = f"{full}. {format_size(size)} are deleted, but held by read tickets until {end} at the latest"
        return StoreFull(text, retry_after=full.retry_after)

    @contextmanager
    def _ended_with_it(self, write: Write | None) -> Iterator[None]:
        """A put's own write ends where the put fails, unless another put of the same run finished it or goes on."""
        try:
            yield
        except BaseException:
            if write is not None:
                self._give_up(write)
            raise

    def _give_up(self, write: Write) -> None:
        try:
            if self.ledger.write(write.id).state == "open":
                self.ledger.abort(write.id, opener=write.opener)
        except PenstockError as error:  # the first error is the one to tell; what stays open ends at the next start
            log.warning("write/%s stays open: %s", write.id, error)


def _of_its_own(call: Call, command: PutCommand) -> paths.Path:
    """Where a put is to go that has no ticket, if there may be one."""
    if command.path is None:
        raise InvalidRequest("a put needs a path, or the ticket of an open write")
    call.must_be_known()
    path = paths.parse(command.path)
    if path.kind not in ("store", "topic"):
        raise InvalidRequest(f"{path} can't be put to: expected store/… or topic/…")
    mode_at(path, command.mode)
    return path


def _small(command: PutCommand, path: str, upload: Upload, batches: list[pa.RecordBatch]) -> SmallPut:
    """A put that came whole and fits a part. Of its metadata nothing stays: pandas notes its index there, each time."""
    size = sum(batch.nbytes for batch in batches)
    batches = [batch.replace_schema_metadata(None) for batch in batches]
    brief = command.run is None or bool(re.fullmatch(r"put-[0-9a-f]{32}", command.run))
    schema = upload.schema.remove_metadata()
    return SmallPut(path, command.run, command.attempt, schema, batches, upload.rows, size, brief)


def mode_at(path: paths.Path, mode: Mode | None) -> Mode:
    """How a write to this path is meant: a topic takes rows at its end, and nothing else."""
    if path.kind != "topic":
        return mode or "error"
    if mode == "overwrite":
        raise InvalidRequest(f"{path} is a topic, which only grows: leave the mode out, or delete it first")
    return "append"


def _command(descriptor: flight.FlightDescriptor) -> PutCommand:
    """What the descriptor asks for; a bare path means defaults."""
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        attempt = secrets.token_hex(16)
        return PutCommand(attempt=attempt, path=str(paths.from_descriptor(descriptor.path)))
    command = PutCommand.decode(descriptor.command)
    if not _ATTEMPT.fullmatch(command.attempt):
        raise InvalidRequest(f"attempt {command.attempt[:40]!r}: expected a UUID, minted anew for each put")
    if command.ticket is not None and (command.path, command.mode, command.run) != (None, None, None):
        raise InvalidRequest("a put has either the ticket of an open write, or path, mode and run of its own")
    return replace(command, attempt=command.attempt.replace("-", ""))
