"""The revisions of schemas: fetched once each, when the first row that names it has come, and what decodes by them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.decode.decoding import SCHEMA_FORMATS, Decoding, of_wire
from penstock.errors import InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.ledger.ledger import Ledger
from penstock.queue.topics import revisions
from penstock.queue.topics.topic import Topic
from penstock.wire.read import PayloadSchema

if TYPE_CHECKING:
    from penstock.decode.revisions import Revision
    from penstock.queue.pubsub.schemas import SchemaRevision

log = logging.getLogger("penstock")
_RETRY = 2.0
"""Seconds after which a revision that couldn't be had is asked for again."""
_REMEMBERED = 10_000


class Revisions:
    """What is known of revisions. Its methods are called by many threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()  # _settled, _waiting
        self._settled: dict[tuple[str, str], Revision] = {}
        """By journal and name: these never change."""
        self._waiting: dict[str, str] = {}
        """Why revisions can't be had just now."""

    def decoding(self, path: str, journal: str, columns: pa.Schema, said: PayloadSchema) -> Decoding:
        """Return how rows of a journal are decoded, of what a reader says, which is untrusted."""
        if said.format not in SCHEMA_FORMATS:
            return of_wire(path, said)
        try:
            from penstock.decode.revisions import schema_decoding
        except ImportError as missing:
            raise InvalidRequest(
                f"the server lacks {missing.name}, which decode={said.format!r} needs: pip install "
                "'penstock-flight[serve,decode]' there"
            ) from missing
        newest = None
        if said.schema is None and said.writer is None:
            known = [each for each in revisions.of_journal(self._ledger.database, journal) if each.format is not None]
            newest = self._find(journal, known[-1].name) if known else None
        return schema_decoding(path, columns, said, partial(self._find, journal), newest)

    def check_settled(self, topic: Topic, end: Mapping[int, int]) -> None:
        """Wait, by an error that is tried again, for the revisions that rows before a position name."""
        for each in revisions.of_journal(self._ledger.database, topic.journal):
            if not each.is_settled and any(offset > each.first.get(shard, 0) for shard, offset in end.items()):
                raise self._unsettled(each.name)

    def _find(self, journal: str, name: str) -> Revision:
        from penstock.decode.revisions import Revision

        with self._lock:
            settled = self._settled.get((journal, name))
        if settled is not None:
            return settled
        known = revisions.find(self._ledger.database, journal, name)
        if known is None:
            return Revision(name, None, None, "it isn't known here: pass writer_schema=FILE")
        if not known.is_settled:
            raise self._unsettled(name)
        settled = Revision(name, known.format, known.definition, known.error)
        with self._lock:
            if len(self._settled) >= _REMEMBERED:
                self._settled.clear()
            self._settled[journal, name] = settled
        return settled

    def _unsettled(self, name: str) -> Unavailable:
        with self._lock:
            why = self._waiting.get(name, "it is being fetched from Pub/Sub")
        return Unavailable(f"the schema {name}, with which rows were written, is waited for: {why}", retry_after=0.5)

    def waits(self, name: str, why: str | None) -> bool:
        """Note why a revision can't be had just now; return whether that is news."""
        with self._lock:
            was = self._waiting.pop(name, None)
            if why is not None:
                self._waiting[name] = why
        return was != why


class RevisionFetcher:
    """A thread that fetches revisions from Pub/Sub."""

    def __init__(self, ledger: Ledger, known: Revisions, get: Callable[[str], SchemaRevision]) -> None:
        """`get` raises NotFound or InvalidRequest for a revision that doesn't exist."""
        self._ledger, self._known, self._get = ledger, known, get
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-revisions", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; what it hasn't fetched waits for the next start."""
        self._stopped.set()
        self._wake.set()
        self._thread.join()

    def look(self) -> None:
        """Fetch what is new, now."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            left = False
            try:
                for name in revisions.wanted(self._ledger.database):
                    left = not (self._stopped.is_set() or self._fetch(name)) or left
            except Exception:  # such as a full disk
                left = True
                log.exception("a schema's revision can't be noted; this is tried again in %g s", _RETRY)
            self._wake.wait(_RETRY if left else None)

    def _fetch(self, name: str) -> bool:
        """Fetch a revision, and note what it is, or that it doesn't exist; False if it can't be had just now."""
        began = time.monotonic()
        try:
            fetched = self._get(name)
        except (NotFound, InvalidRequest) as missing:
            why = str(missing)
            self._ledger.change(lambda t: revisions.refuse(t, name, why))
            log.warning("the schema %s is missing, so its messages don't decode: %s", name, missing)
        except PenstockError as away:
            if self._known.waits(name, str(away)):
                log.warning("the schema %s can't be had, and is waited for: %s", name, away)
            return False
        else:
            self._ledger.change(
                lambda t: revisions.settle(t, name, fetched.format, fetched.definition, fetched.created)
            )
            log.info("the schema %s was fetched in %.1f s", name, time.monotonic() - began)
        self._known.waits(name, None)
        return True
