"""subscription/…: Pub/Sub's subscriptions, journals that pullers fill and whose release is their acks."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as flight

from penstock import steps
from penstock.errors import InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.flight_server import endpoints
from penstock.flight_server.exchange import Stream
from penstock.flight_server.gate import Call
from penstock.flight_server.kinds.journal import JournalKind
from penstock.flight_server.kinds.kind import Handler, Handlers
from penstock.flight_server.pulled_subscription import PulledSubscription, wanted_pullers
from penstock.flight_server.puller_stream import serve_puller
from penstock.flight_server.pullers import pullers_of
from penstock.flight_server.revisions import RevisionFetcher
from penstock.flight_server.selection import Selection, select
from penstock.flight_server.state import State
from penstock.flight_server.subscription_figures import figures_of, gauges_of
from penstock.flight_server.subscription_log import SubscriptionLog
from penstock.ledger import parts
from penstock.ledger.parts import Slice
from penstock.queue.pubsub import registry
from penstock.queue.pubsub.registry import Options
from penstock.queue.topics import journal, revisions
from penstock.queue.topics.topic import Topic
from penstock.rows import schemas
from penstock.wire import actions as wire
from penstock.wire.paths import Path, of_acks, of_dead, parse
from penstock.wire.read import Entry, ReadCommand

if TYPE_CHECKING:
    from penstock.queue.pubsub.schemas import SchemaRevision
    from penstock.queue.pubsub.source import Source, Subscriptions
    from penstock.queue.pubsub.subscription import Subscription

log = logging.getLogger("penstock")
_LOOK = 0.5
"""Seconds between looks after subscriptions and their pullers."""
_ACKS_WITHIN = 5.0
"""Seconds for which the pullers' answers about their leases are waited for."""
_ACKS_LIFE = 600.0
"""Seconds for which an ack ledger can be read once it is gathered: its bytes are stored so long."""


class SubscriptionKind(JournalKind):
    """Subscriptions: each has one owner in this process, and pullers in processes of their own."""

    name = "subscription"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._lock = threading.Lock()  # _owners
        self._owners: dict[str, Subscription] = {}
        self._attaching = threading.Lock()  # so that two first queries ask Pub/Sub once
        self._stopped = threading.Event()
        self._log = SubscriptionLog(lambda path: path in self._owners)
        self._fetcher = RevisionFetcher(state.ledger, state.journals.revisions, self._get_revision)
        self._thread = threading.Thread(target=self._look_after, name="penstock-subscriptions", daemon=True)
        state.metrics.gauges(
            lambda: (gauge for owner in self._all_owners() for gauge in gauges_of(owner.path, owner.state()))
        )

    def start(self) -> None:
        log.addHandler(self._log)
        for path in registry.all_paths(self.state.ledger.database):
            try:
                self._open(path)
            except PenstockError as error:  # the extra is missing
                log.warning("%s: %s", path, error)
        self._thread.start()
        self._fetcher.start()

    def close(self) -> None:
        """End the pullers first: what they still send is committed."""
        self._stopped.set()
        self._thread.join()
        self._fetcher.close()
        for owner in self._all_owners():
            owner.close(Unavailable("the server is shutting down", retry_after=2))
        log.removeHandler(self._log)

    def tend(self, stop: Callable[[], bool]) -> None:
        """Remove revisions of schemas whose journal is gone."""
        ledger, tickets_from = self.state.ledger, time.time() - self.state.config.ticket_life
        if revisions.has_gone(ledger.database, tickets_from):
            ledger.change(lambda t: revisions.forget(t, tickets_from))

    def totals(self) -> dict[str, int]:
        return {"subscriptions": journal.count(self.state.ledger.database, self.name)}

    def actions(self) -> Handlers:
        yield Handler(wire.ATTACH_SUBSCRIPTION, self.attach)
        yield Handler(wire.ASK_QUIET, self.quiet)

    # --- attach, detach ---------------------------------------------------------------------

    def attach(self, call: Call, request: wire.AttachSubscription) -> wire.AttachedSubscription:
        """Attach a subscription, or change what it says."""
        path = parse(request.path)
        if path.kind != self.name:
            raise InvalidRequest(f"{path} is no subscription: expected subscription/PROJECT/NAME")
        options = Options(
            request.ack, request.pullers, request.keep_seconds, request.keep_bytes,
            request.max_unreleased_rows, request.max_unreleased_bytes,
        )  # fmt: skip
        with self._attaching:
            return self._attach(path, options, request.create)

    def _attach(self, path: Path, options: Options, create: str | None = None) -> wire.AttachedSubscription:
        """Attach a subscription.

        1. Pullers get into this server; Pub/Sub says that it is there, and may be pulled. 2. The ledger has it. 3. Its
        owner, and then its pullers.
        """
        options.check(str(path))
        row = registry.find(self.state.ledger.database, str(path))
        said = row.pullers if row is not None and options.pullers is None else options.pullers
        if wanted_pullers(said, self.state.config):
            pullers_of(str(path), self.state.config, self.state.port)
        source = self._look(str(path), create)  # 1.
        default, reason = _default_ack(source)
        record, is_new = self.state.ledger.change(  # 2.
            lambda t: registry.attach(
                t, str(path), options, ack=default, is_ordered=source.is_ordered, retention=source.retention
            )
        )
        steps.passed("subscription.attached")
        owner = self._open(str(path))  # 3.
        owner.advance()
        owner.recover()
        if options.ack is not None:
            reason = "as you said"
        elif record.ack != default:
            reason = "as it was attached"
        log.info("%s is attached: ack=%s, %s", path, record.ack, reason)
        return wire.AttachedSubscription(
            str(path), owner.journal, record.ack, reason, source.created, is_new, source.is_ordered,
            source.is_exactly_once,
        )  # fmt: skip

    def _look(self, path: str, create: str | None = None) -> Source:
        """Ask Pub/Sub about a subscription."""
        return self._subscriptions().look(registry.google_name(parse(path)), create=create)

    def _subscriptions(self) -> Subscriptions:
        """Return Pub/Sub's subscriptions, called as the server's settings say."""
        try:
            from penstock.queue.pubsub.source import Subscriptions
        except ImportError as missing:
            raise _extra_is_missing(missing) from missing
        return Subscriptions(self.state.config.pubsub_access())

    def _get_revision(self, name: str) -> SchemaRevision:
        from penstock.queue.pubsub.schemas import get_revision

        return get_revision(self.state.config.pubsub_access(), name)

    def delete_source(self, path: Path) -> None:
        """Delete the subscription at Pub/Sub."""
        registry.by_path(self.state.ledger.database, str(path))
        self._subscriptions().delete(registry.google_name(path))

    def delete(self, path: Path) -> wire.Deleted:
        """Detach a subscription: its journal goes, what isn't acked is redelivered to whoever subscribes next."""
        with self._attaching:
            topic = self.topics.remove(str(path))
            with self._lock:
                owner = self._owners.pop(topic.path, None)
                self._share_window()
            if owner is not None:
                owner.close(NotFound(f"{path} was detached"))
            self._log.forget(topic.path)
        return wire.Deleted(topic.path, topic.rows, topic.bytes, topic.part_count)

    def quiet(self, call: Call, request: wire.AskQuiet) -> wire.Quiet:
        """Say for how long pullers have brought no message that was published before a time."""
        owner = self._owner(str(parse(request.path)))
        owner.check()
        return wire.Quiet(owner.quiet(request.published_before))

    # --- owners -----------------------------------------------------------------------------

    def _open(self, path: str) -> Subscription:
        """Return the owner of an attached subscription, made if it is the first call."""
        try:
            from penstock.queue.pubsub.subscription import Subscription
        except ImportError as missing:
            raise _extra_is_missing(missing) from missing
        with self._lock:
            owner = self._owners.get(path)
            if owner is None:
                journals = self.state.journals
                owner = Subscription(
                    path, self.state.ledger, self.topics, self.state.store, journals.appender, named=self._fetcher.look
                )
                self._owners[path] = owner
                name = f"penstock-index-{path[-40:]}"
                threading.Thread(target=self._rebuild, args=(owner,), name=name, daemon=True).start()
            self._share_window()
        return owner

    def _share_window(self) -> None:
        """Let all owners together know as many ids as the server may."""
        for owner in self._owners.values():
            owner.known.window_ids = self.state.limits.dedup_ids // len(self._owners)

    def _rebuild(self, owner: Subscription) -> None:
        began = time.monotonic()
        try:
            owner.rebuild(self._stopped.is_set)
        except Exception as error:
            log.exception("%s: its index can't be read back, so it isn't pulled", owner.path)
            owner.fail(error if isinstance(error, PenstockError) else InvalidRequest(f"{owner.path}: see the log"))
            return
        ids = owner.state().ids
        if ids:
            log.info("%s: %s ids were read back in %.1f s", owner.path, f"{ids:,}", time.monotonic() - began)

    def _owner(self, path: str) -> Subscription:
        """Return the owner of an attached subscription."""
        with self._lock:
            owner = self._owners.get(path)
        if owner is None:
            registry.by_path(self.state.ledger.database, path)
            return self._open(path)
        return owner

    def _all_owners(self) -> list[Subscription]:
        with self._lock:
            return list(self._owners.values())

    # --- consumers --------------------------------------------------------------------------

    def journal(self, path: Path) -> Topic:
        """Return a subscription's journal, attached by its first consumer; an error if nobody can pull it."""
        if of_dead(path) is not None:
            return self.topics.topic(str(path))
        if journal.find(self.state.ledger.database, str(path)) is None:
            with self._attaching:
                if journal.find(self.state.ledger.database, str(path)) is None:
                    self._attach(path, Options())
        self._owner(str(path)).check()
        return self.topics.topic(str(path))

    def consumers_changed(self, path: Path) -> None:
        """Tell the pullers what is released now."""
        if of_dead(path) is None:
            self._owner(str(path)).advance()

    # --- pullers ----------------------------------------------------------------------------

    def exchange(self, path: Path, stream: Stream) -> None:
        """Serve a puller."""
        serve_puller(self._owner(str(path)), stream, self.state.metrics)

    def _look_after(self) -> None:
        """Look after the owners and their pullers, which are children of this thread."""
        pulled: dict[str, PulledSubscription] = {}
        while not self._stopped.wait(_LOOK):
            owners = {owner.path: owner for owner in self._all_owners()}
            for path in [path for path, each in pulled.items() if owners.get(path) is not each.owner]:
                pulled.pop(path).close()
            for path, owner in owners.items():
                if path not in pulled:
                    pulled[path] = PulledSubscription(owner, self.state.config, self.state.port, self._look)
                try:
                    pulled[path].look(time.monotonic())
                except Exception:
                    log.exception("%s: looking after it failed, and is tried again", path)
        for each in pulled.values():
            each.close()

    # --- what is seen -----------------------------------------------------------------------

    def figures(self, path: Path) -> wire.SubscriptionFigures | None:
        return None if of_dead(path) is not None else figures_of(self._owner(str(path)).state())

    def warned(self, path: Path, number: int) -> tuple[wire.LogLine, ...]:
        return self._log.after(str(path), number)

    def info(
        self, call: Call, path: Path, command: ReadCommand, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        subscription = of_acks(path)
        if subscription is None:
            return super().info(call, path, command, descriptor)
        selection = _select_acks(path, command)
        expires = time.time() + _ACKS_LIFE
        rows = self._store_acks(path, self._owner(str(subscription)).acks(_ACKS_WITHIN), expires)
        entry = Entry(str(path), "acks", rows.rows, rows.bytes, 1, local=self.state.local)
        return endpoints.readable(self.state, call, descriptor, selection, [rows], entry, expires)

    def schema(self, path: Path, command: ReadCommand) -> pa.Schema:
        if of_acks(path) is None:
            return super().schema(path, command)
        return _select_acks(path, command).schema

    def _store_acks(self, path: Path, batches: list[pa.RecordBatch], expires: float) -> Slice:
        """Store an ack ledger as a part that nothing but tickets name: it is filtered and sent as all parts are."""
        ledger, store = self.state.ledger, self.state.store
        part = store.write(f"{uuid.uuid4().hex}-000000", registry.ACKS, batches, path=str(path))
        try:
            ledger.change(lambda t: parts.add_held(t, part, registry.ACKS, until=expires))
        except BaseException:
            store.discard([part.name])
            raise
        return Slice(part.name, part.rows, part.bytes, registry.ACKS, part.rows, digest=part.digest)

    def describe(self, path: Path) -> wire.Description:
        if (subscription := of_acks(path)) is not None:
            outstanding = figures_of(self._owner(str(subscription)).state()).outstanding
            return wire.Description("acks", str(path), outstanding, 0, 0, None, schemas.to_json(registry.ACKS))
        if of_dead(path) is not None:
            return super().describe(path)
        state = self._owner(str(path)).state()
        record = state.record
        return replace(
            super().describe(path),
            subscription=wire.SubscriptionState(
                registry.google_name(path), record.ack, state.released, state.unreleased_rows, state.unreleased_bytes,
                record.max_unreleased_rows, record.max_unreleased_bytes,
                wanted_pullers(record.pullers, self.state.config),
                tuple(wire.PullerState(each.name, dict(each.counters), each.oldest_unacked) for each in state.pullers),
                dict(state.duplicates), state.ids, state.parked_batches, figures_of(state),
                None if state.error is None else str(state.error),
            ),
        )  # fmt: skip


def _select_acks(path: Path, command: ReadCommand) -> Selection:
    if any(each is not None for each in (command.part, command.start, command.end, command.since, command.shards)):
        raise InvalidRequest(f"{path} is what pullers know now, without offsets: expected no part, start, end or since")
    return select(command, str(path), registry.ACKS)


def _default_ack(source: Source) -> tuple[registry.Ack, str]:
    """Return when messages are acked unless somebody says, and why."""
    if source.is_ordered:
        return "journal", "it has message ordering, where a key's next message waits for the ack of the last one"
    if source.has_dead_letters:
        return "journal", "it has a dead-letter policy, which counts each lease that lapses as an attempt"
    return "commit", "the default"


def _extra_is_missing(missing: ImportError) -> InvalidRequest:
    return InvalidRequest(
        f"the server lacks {missing.name}, which subscriptions need: pip install 'penstock-flight[serve,pubsub]' there"
    )
