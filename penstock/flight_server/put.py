"""do_put: one attempt of an open write comes in, or a put that is a write of its own."""

from __future__ import annotations

import logging
import math
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.flight as flight

from penstock import steps
from penstock.errors import InvalidRequest, PenstockError, StoreFull, Unavailable, WriteEnded
from penstock.flight_server.flights import check_not_sql
from penstock.flight_server.gate import Call
from penstock.flight_server.state import State
from penstock.flight_server.storing import IN_FLIGHT, discard_running, next_stored
from penstock.flight_server.upload import Upload
from penstock.ledger.attempts import Attempt
from penstock.ledger.writes import Write
from penstock.rows.multiset import have_same_rows
from penstock.store.database import Unsettled
from penstock.store.medium import Part
from penstock.text import format_age, format_size
from penstock.wire import paths
from penstock.wire.publish import PublishOptions
from penstock.wire.put import DatasetOptions, Mode, PutCommand, Receipt, SparkTask

READY = b'{"v":1}'
log = logging.getLogger("penstock")
_ATTEMPT = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
Piece = tuple[int | None, list[pa.RecordBatch]]
"""Batches for one part, and the shard of a topic that they are for."""


def put(
    state: State,
    call: Call,
    peer: str,
    descriptor: flight.FlightDescriptor,
    reader: flight.MetadataRecordBatchReader,
    send: Callable[[bytes], None],
    *,
    is_gone: Callable[[], bool],
) -> Receipt:
    """Take one stream to its receipt.

    1. Find the write: the ticket's, or one of this put's own, which the kind of its path opens.
    2. Store the stream's parts, durable and not visible; its trailer says that it is whole.
    3. In one transaction, record the attempt, or compare it with the one recorded under its name; finish a write of
    this put's own.
    Kinds may do 2. and 3. otherwise: a topic takes a put that is smaller than a part together with others.
    If a step fails, the parts are deleted. After a crash, or if a crash may still bring 3. to light, they stay, and the
    next start deletes those that no row names.
    """
    call.check_body(descriptor.command or b"", state.signer)
    command = _decode_command(descriptor)

    @contextmanager
    def admit() -> Iterator[Upload]:
        try:
            with state.store.admitted(), state.watch.put(peer, command.attempt) as set_waiting:
                if command.ready:
                    send(READY)
                yield Upload(
                    command.attempt, reader, state.limits, set_waiting, is_gone, known=call.known,
                    check_right=partial(state.check, call), task=command.task,
                )  # fmt: skip
        except StoreFull as full:
            raise _with_outlook(state, full) from full

    if command.ticket is None:
        call.check_known()
        folder = paths.parse_folder(command.path or "")
        if not folder.key:  # each note names a path, whose rights are checked there
            return state.kind_of(folder).put_many(folder, command, admit)
        kind, path = state.locate(command.path or "")
        state.check(call, "write" if command.create is None else "admin", str(path))
        for queue in {lease.queue for lease in command.forward or ()}:
            state.check(call, "write", queue)
        check_dataset_options(path, command.dataset)
        return kind.put(path, command, admit)
    write = state.ledger.touch(state.signer.open_write(command.ticket.encode()).put)
    state.watch.check_not_cut(command.attempt)
    if command.task is not None and write.release != "partition":
        raise InvalidRequest(f"write/{write.id} was opened with release={write.release!r}: its puts name no task")
    if write.queue is not None:
        state.queue_bound.admit(write.queue)
    kind, _ = state.locate(write.path)
    with admit() as upload:
        return kind.attempt(write, upload)


def _decode_command(descriptor: flight.FlightDescriptor) -> PutCommand:
    """Return the descriptor's command; a bare path means defaults."""
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return PutCommand(secrets.token_hex(16), path=paths.join_descriptor(descriptor.path))
    check_not_sql(descriptor.command)
    command = PutCommand.decode(descriptor.command)
    if not _ATTEMPT.fullmatch(command.attempt):
        raise InvalidRequest(f"attempt {command.attempt[:40]!r}: expected a UUID, minted anew for each put")
    own = (
        command.path, command.mode, command.run, command.brief, command.create, command.forward, command.each,
        command.publish, command.dataset,
    )  # fmt: skip
    if command.ticket is None and command.task is not None:
        raise InvalidRequest("a put names its task if it is an attempt of an open write: expected its ticket")
    if command.ticket is None and command.path is None:
        raise InvalidRequest("a put needs a path, or the ticket of an open write")
    if command.ticket is not None and any(each is not None for each in own):
        raise InvalidRequest(
            "a put has either the ticket of an open write, or path, mode, run, create and forward of its own"
        )
    return replace(command, attempt=command.attempt.replace("-", ""))


# --- what kinds share ------------------------------------------------------------------------


def check_dataset_options(path: paths.Path, options: DatasetOptions | None) -> None:
    """Reject options of a dataset for anything else, and those that can't be meant."""
    if options is None:
        return
    if path.kind != "store":
        raise InvalidRequest(
            f"{path}: only a dataset has partitions and a time to live: write to store/…, or omit them"
        )
    if options.partition == "":
        raise InvalidRequest(f"{path}: the partition has no name: expected such as '2026-11-20', or none")
    if options.ttl is not None and not 0 < options.ttl < math.inf:
        raise InvalidRequest(f"{path}: ttl={options.ttl}: expected a number of seconds above 0")


@contextmanager
def own_write(
    state: State,
    path: str,
    mode: Mode,
    run: str | None,
    *,
    publish: PublishOptions | None = None,
    dataset: DatasetOptions | None = None,
) -> Iterator[Write]:
    """Open the write of a put that has no ticket.

    The write is aborted if the block fails, unless another put of the same run has finished it or goes on with it.
    """
    write = state.ledger.open_write(path, mode=mode, run=run, own=True, publish=publish, dataset=dataset)
    try:
        yield write
    except BaseException:
        try:
            if state.ledger.write(write.id).state == "open":
                state.ledger.abort(write.id, opener=write.opener)
        except PenstockError as error:  # the first error is the one to raise; the next start ends the open write
            log.warning("write/%s stays open: %s", write.id, error)
        raise


def keep(
    state: State,
    write: Write,
    upload: Upload,
    pieces: Iterable[Piece],
    *,
    schema: pa.Schema,
    journal: str | None = None,
    own: bool,
) -> Receipt:
    """Store an upload as an attempt of a write, then record it; an `own` write is finished with it.

    `journal` is the one that the pieces' shards belong to.
    """
    if own and write.state == "finished":  # its run is done: a repeat changes nothing
        upload.drain(pieces)
        return state.ledger.finished_receipt(write.id)
    parts, shards = _store(state, write, upload, pieces, schema)
    steps.passed("put.durable")
    attempt = Attempt(upload.attempt, schema, upload.rows, tuple(parts), tuple(shards), journal)
    if upload.task is not None:
        return _release(state, write, attempt, upload.task)
    return _record(state, write, attempt, own=own)


def _release(state: State, write: Write, attempt: Attempt, task: SparkTask) -> Receipt:
    """Record an attempt and release its parts, if it is the first of its evaluation; else compare it with that one.

    1. Nothing was released: one transaction records it and makes its messages pending.
    2. Otherwise its rows are compared with the first one's, in any order. 3. That is noted, and fails the write at its
    finish if the rows are others; the parts go. A crash between 2. and 3. ends the task without a receipt.
    """
    names = [part.name for part in attempt.parts]
    try:
        if (first := state.ledger.first_released(write.id, task)) is None:  # 1.
            receipt = state.ledger.release(write.id, attempt, task)
            if receipt is not None:
                steps.passed("put.recorded")
                return receipt
            first = state.ledger.first_released(write.id, task) or ""
        same = _same_rows(state, write.path, state.ledger.parts_of_attempt(first), names)  # 2.
        receipt = state.ledger.compared(write.id, attempt.id, task, first=first, same=same)  # 3.
    except Unsettled:
        raise
    except BaseException:
        state.store.discard(names)
        raise
    state.store.discard(names)
    if not same:
        log.warning(
            "write/%s: partition %d of stage %d came again with other rows", write.id, task.partition, task.stage
        )
    return receipt


def _same_rows(state: State, path: str, first: list[str], second: list[str]) -> bool:
    if not first or not second:  # an attempt without parts has no rows
        return first == second

    def read(names: list[str]) -> pa.Table:
        return pa.concat_tables([state.store.open(name, path=path).reader().read_all() for name in names])

    return have_same_rows(read(first), read(second))


def _store(
    state: State, write: Write, upload: Upload, pieces: Iterable[Piece], schema: pa.Schema
) -> tuple[list[Part], list[int]]:
    """Store each piece as a part, the next one received while two are written; return the parts and their shards."""
    # The name has a random piece: an attempt that comes twice, or a stolen id, can't touch another's bytes
    prefix = f"{upload.attempt}-{secrets.token_hex(4)}"
    stored: list[Part] = []
    running: deque[Future[Part]] = deque()
    shards: list[int] = []
    try:
        for number, (shard, batches) in enumerate(pieces):
            if shard is not None:
                shards.append(shard)
            if len(running) == IN_FLIGHT:
                stored.append(next_stored(running, write.path))
            name = f"{prefix}-{number:06}"
            running.append(state.pool.submit(state.store.write, name, schema, batches, path=write.path))
        while running:
            stored.append(next_stored(running, write.path))
        upload.check_whole()
        _check_kept(state, stored)
    except BaseException:
        state.store.discard(part.name for part in stored)
        discard_running(running, lambda part: state.store.discard([part.name]))
        raise
    return stored, shards


def _check_kept(state: State, stored: list[Part]) -> None:
    """Reject a put of whose parts some are lost: a store's own process may die between two of them."""
    missing = state.store.medium.missing([part.name for part in stored])
    if missing:
        text = f"the store {state.store.medium} has died, and lost part {missing[0]} of this put: put all again"
        raise Unavailable(text, retry_after=1)


def _record(state: State, write: Write, attempt: Attempt, *, own: bool) -> Receipt:
    ledger = state.ledger
    try:
        receipt = ledger.finish_single(write.id, attempt) if own else ledger.record(write.id, attempt)
    except Unsettled:  # a crash may still bring the row to light; if not, the next start finds the bytes to be orphans
        raise
    except BaseException as error:
        state.store.discard(part.name for part in attempt.parts)
        if isinstance(error, WriteEnded) and own and write.run is not None:
            now = ledger.write(write.id)
            if now.state == "finished":  # the same run, put twice at the same time
                return ledger.finished_receipt(now.id)
        raise
    steps.passed("put.recorded")
    if attempt.parts and not ledger.has_part(attempt.parts[0].name):
        state.store.discard(part.name for part in attempt.parts)  # the attempt came before: the first one's parts count
    return receipt


def _with_outlook(state: State, full: StoreFull) -> StoreFull:
    """Return the same error, with the time at which read tickets release bytes."""
    size, until = state.ledger.held_by_tickets()
    if not size:
        return full
    end = f"{time.strftime('%H:%M UTC', time.gmtime(until))}, in {format_age(until - time.time())}"
    text = f"{full}. {format_size(size)} are deleted, but held by read tickets until {end} at the latest"
    return StoreFull(text, retry_after=full.retry_after)
