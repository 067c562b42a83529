"""The link between a ledger's queues and their topics: one thread that sends, commits and reads.

The ledger decides: a push, an ack and a forward are durable there when they are answered. The link makes them true in
Kafka, each forward's outputs and its acks in one transaction, and takes what others have sent. While the broker is away
workers go on, and what is to be sent waits in the ledger.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial

from penstock import steps
from penstock.errors import PenstockError, Unavailable
from penstock.ledger.ledger import Ledger
from penstock.ledger.tables import Transaction
from penstock.queue.kafka.broker import Broker, Output, Partition, RecordsRefused
from penstock.queue.kafka.window import Window, done_beyond
from penstock.queue.work import records
from penstock.queue.work.messages import FullPartitions
from penstock.queue.work.records import Placed, TopicQueue, Unsent
from penstock.wire.kafka import KafkaAddress

log = logging.getLogger("penstock")
_LOOK = 0.05
"""Seconds between looks for what is to be sent."""
_AGAIN = 0.5
"""Seconds until a broker that is away is called again."""
_LOOK_AGAIN = 30.0
"""Seconds between looks for partitions that topics have got."""
_MOST_SENT = 10_000
"""Records of one transaction, and those of one queue that it commits as done."""


class KafkaLink:
    """Carries messages between the ledger's queues and the topics of one broker."""

    def __init__(self, ledger: Ledger, address: KafkaAddress) -> None:
        self.address = address
        self._ledger = ledger
        self._name = f"penstock-{ledger.database.id[:16]}"
        """Of the consumer group, and of the producer: another process with this ledger, or a copy of it, is fenced."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka", daemon=True)
        self._broker: Broker | None = None
        self._queues: dict[str, TopicQueue] = {}
        """By the name of their topic."""
        self._windows: dict[Partition, Window] = {}
        self._sent: set[int] = set()
        """Messages that were sent among records of others, and aren't read back yet."""
        self._asked: list[tuple[str, threading.Event]] = []
        """Who waits until a queue's topic is read to its end."""
        self._look_again = 0.0
        self._is_away = False
        self._refused = 0
        """Records of the last transaction that failed as one of them is too large: halves of it find that one."""
        self._full: dict[str, dict[tuple[int, int, int], int | None]] = {}
        """Path of a queue with full windows -> the first of each (queue, partition, offset) -> its row."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; what isn't sent waits in the ledger for the next start."""
        self._stop.set()
        self._thread.join(2)
        if self._thread.is_alive() and (broker := self._broker) is not None:
            broker.close()  # ends what it waits for
            self._thread.join(10)

    def full_partitions(self, path: str) -> FullPartitions | None:
        """Return the partitions of a queue whose windows are full."""
        if (firsts := self._full.get(path)) is None:
            return None
        return FullPartitions([number for _, number, _ in firsts], [row for row in firsts.values() if row is not None])

    def catch_up(self, path: str, seconds: float = 30.0) -> None:
        """Wait until all is read that a queue's topic has by now."""
        is_read = threading.Event()
        self._asked.append((path, is_read))
        if not is_read.wait(seconds):
            raise Unavailable(
                f"{path}: {self.address} couldn't be read to its end within {seconds:g} s: try again once it answers",
                retry_after=2,
            )

    def _run(self) -> None:
        is_known = False
        while not self._stop.is_set():
            try:
                self._broker = broker = Broker(self.address.broker, self._name)
                try:
                    if not is_known:
                        self._log_start(broker)
                        is_known = True
                    self._tend(broker)
                finally:
                    broker.close()
            except RecordsRefused:
                continue  # what was sent beside them is read, or wasn't committed
            except PenstockError as error:
                if not self._is_away and not self._stop.is_set():
                    log.warning("%s is away, its queues' messages wait in the ledger: %s", self.address, error)
                self._is_away = True
            except Exception:
                log.exception("the link to %s failed, it starts again", self.address)
            self._stop.wait(_AGAIN)

    def _log_start(self, broker: Broker) -> None:
        if broker.has_transactions:
            log.info("queues on %s: outputs and acks in one transaction, group %s", self.address, self._name)
        else:
            log.warning(
                "queues on %s: the broker has no transactions, so other consumers may see a message twice, with the "
                "same message_id; group %s",
                self.address, self._name,
            )  # fmt: skip

    def _tend(self, broker: Broker) -> None:
        """Send, commit and read until the server stops or an error, after which all begins with what the ledger has.

        What was sent is known once its offset is: nothing is sent before all is read that the topics have.
        """
        self._queues, self._windows, self._sent = {}, {}, set()
        self._look_again = 0.0
        while not self._stop.is_set():
            self._follow(broker)
            has_sent = self._send(broker)
            self._read(broker, 0.0 if has_sent else _LOOK)
            if self._is_away:
                self._is_away = False
                log.info("%s is back", self.address)
            if not has_sent:
                self._note_positions()
            asked, self._asked = self._asked, []
            if asked:
                self._read_to_the_end(broker)
                for _, is_read in asked:
                    is_read.set()

    # --- which topics -----------------------------------------------------------------------

    def _follow(self, broker: Broker) -> None:
        """Read the topics of queues that are new, and new partitions; no more those that were removed."""
        with self._ledger.reading() as reader:
            on_topics = records.on_topics(reader)
        queues = {
            address.topic or "": queue
            for queue in on_topics
            if (address := KafkaAddress.parse(queue.topic)).broker == self.address.broker
        }
        if queues == self._queues and time.monotonic() < self._look_again:
            return
        self._look_again = time.monotonic() + _LOOK_AGAIN
        partitions = broker.partitions(queues)
        known = {
            partition: window
            for partition, window in self._windows.items()
            if partition in partitions and queues[partition.topic] == self._queues[partition.topic]
        }
        if len(known) == len(self._windows) == len(partitions):
            return
        self._end_removed(broker, queues)
        for topic, queue in queues.items():
            numbers = {partition.number for partition in partitions if partition.topic == topic}
            self._ledger.change(partial(records.forget_partitions, queue=queue.id, existing=numbers))
        bounds = broker.bounds(partitions)
        windows = {
            partition: known.get(partition) or self._open(broker, queues[partition.topic], partition, bounds[partition])
            for partition in partitions
        }
        self._queues, self._windows = queues, windows
        broker.assign({partition: window.next for partition, window in windows.items()})
        self._read_to_the_end(broker)
        self._note_full()

    def _end_removed(self, broker: Broker, queues: dict[str, TopicQueue]) -> None:
        """Commit all that the topics of removed queues have: a new queue on one of them begins after that."""
        removed = [each for each in self._windows if queues.get(each.topic) != self._queues[each.topic]]
        if removed:
            broker.commit([], {partition: (end, "") for partition, (_, end) in broker.bounds(removed).items()})

    def _open(self, broker: Broker, queue: TopicQueue, partition: Partition, bounds: tuple[int, int]) -> Window:
        """Return the window of a partition: what the ledger has read of it, and what the group has committed."""
        number, (oldest, end) = partition.number, bounds
        with self._ledger.reading() as reader:
            position = records.position(reader, queue.id, number)
        committed = broker.committed(partition)
        if committed is None or max(committed[0], position or 0) > end:  # of a topic that was there before
            committed = 0, ""
        is_known = position is not None and oldest <= position <= end
        if position is None:
            start = max(committed[0], oldest)
        elif is_known:
            start = position
        else:
            start = oldest
            log.warning(
                "%s partition %d has the offsets %d to %d, and was read to %d: it was made again, or records are gone "
                "that nobody has read; it is read from %d on",
                queue.topic, number, oldest, end, position, start,
            )  # fmt: skip
        window = Window(start, committed[0], done_beyond(*committed))

        def take_over(t: Transaction) -> tuple[int, list[int]]:
            ended = records.end_committed(t, queue.id, number, window.is_committed)
            if not is_known:
                records.forget_offsets(t, queue.id, number)
                records.set_position(t, queue.id, number, start)
            return ended, records.waiting(t, queue.id, number)

        ended, waiting = self._ledger.change(take_over)
        if ended:
            log.warning("%s: %d messages are done, as %s had noted before this ledger", queue.path, ended, queue.topic)
        window.read(waiting, start)
        return window

    # --- sending and reading ----------------------------------------------------------------

    def _send(self, broker: Broker) -> bool:
        """Send what is new and commit what is done, as one view of the ledger has both; False if there is nothing.

        So a record isn't committed as done before the outputs that were made of it are records, too: what is done
        waits while there is more to send than one transaction takes.
        """
        most = self._refused // 2 or _MOST_SENT
        with self._ledger.reading() as reader:
            ids = [queue.id for queue in self._queues.values()]
            unsent = [
                each
                for queue in ids
                for each in records.unsent(reader, queue, most + 1 + len(self._sent))
                if each.id not in self._sent
            ]
            due = [each for queue in ids for each in records.due(reader, queue, _MOST_SENT)]
        if len(unsent) > most:
            due = []
        else:
            self._refused = 0
        unsent = unsent[:most]
        if not (unsent or due):
            return False
        topics = {queue.id: topic for topic, queue in self._queues.items()}
        offsets = self._offsets(due, topics)
        outputs = [Output(topics[each.queue], each.key, each.value) for each in unsent]
        try:
            places = broker.commit(outputs, offsets)
        except RecordsRefused as refused:
            reasons = [(unsent[number], reason) for number, reason in refused.reasons.items()]
            self._refused = 0 if reasons else len(unsent)
            for text in self._ledger.change(partial(records.refuse, reasons=reasons)):
                log.warning("%s", text)
            raise
        steps.passed("kafka.committed")
        placed = self._placed(unsent, places)

        def note(t: Transaction) -> None:
            records.note_acked(t, due)
            for partition, sent in placed.items():
                records.note_sent(t, sent)
                records.set_position(t, sent[0].queue, partition.number, sent[-1].offset + 1)

        self._ledger.change(note)
        steps.passed("kafka.noted")
        for partition, sent in placed.items():
            window = self._windows[partition]
            window.add([each.offset for each in sent], marker=broker.has_transactions)
            window.noted = window.next
            broker.skip(partition, window.next)
        return True

    def _placed(
        self, unsent: Sequence[Unsent], places: Sequence[tuple[Partition, int]]
    ) -> dict[Partition, list[Placed]]:
        """Return the records that were sent, where nothing of others has to be read before them: they are read back."""
        by_partition: dict[Partition, list[Placed]] = {}
        for each, (partition, offset) in zip(unsent, places, strict=True):
            record = Placed(each.id, each.queue, partition.number, offset)
            by_partition.setdefault(partition, []).append(record)
        placed = {
            partition: sent
            for partition, sent in by_partition.items()
            if partition in self._windows and self._windows[partition].is_next([each.offset for each in sent])
        }
        for partition in by_partition.keys() - placed.keys():
            self._sent.update(each.id for each in by_partition[partition])
        return placed

    def _offsets(self, due: list[Placed], topics: dict[int, str]) -> dict[Partition, tuple[int, str]]:
        """Note records as done in their windows, and return what the group commits."""
        by_partition: dict[Partition, list[int]] = {}
        for each in due:
            by_partition.setdefault(Partition(topics[each.queue], each.partition), []).append(each.offset)
        for partition, offsets in by_partition.items():
            self._windows[partition].end(offsets)
        self._note_full()
        return {partition: self._windows[partition].commit() for partition in by_partition}

    def _note_full(self) -> None:
        """Find the first message of each full window: of its partition it alone may be claimed, as it has to end."""
        known = {first: row for firsts in self._full.values() for first, row in firsts.items()}
        full: dict[str, dict[tuple[int, int, int], int | None]] = {}
        for partition, window in self._windows.items():
            if window.is_full:
                queue = self._queues[partition.topic]
                first = queue.id, partition.number, window.first
                with self._ledger.reading() as reader:
                    row = known.get(first) or records.row_at(reader, *first)
                full.setdefault(queue.path, {})[first] = row
        self._full = full

    def _read(self, broker: Broker, seconds: float) -> None:
        """Make what the topics have messages of their queues."""
        for partition, (read, next_offset) in broker.read(seconds).items():
            queue, window = self._queues[partition.topic], self._windows[partition]
            if next_offset == window.next:
                continue
            if not read:  # the end of a transaction
                window.read([], next_offset)
                continue
            new = [(record.offset, record.value) for record in read]
            take = partial(
                records.take, queue=queue, partition=partition.number, records=new, next_offset=next_offset,
                is_committed=window.is_committed,
            )  # fmt: skip
            ids, waiting = self._ledger.change(take)
            steps.passed("kafka.read")
            window.read(waiting, next_offset)
            window.noted = next_offset
            self._sent.difference_update(ids)

    def _note_positions(self) -> None:
        """Note where the partitions are read on from, behind the ends of transactions."""
        moved = {partition: window for partition, window in self._windows.items() if window.next != window.noted}
        if not moved:
            return

        def note(t: Transaction) -> None:
            for partition, window in moved.items():
                records.set_position(t, self._queues[partition.topic].id, partition.number, window.next)

        self._ledger.change(note)
        for window in moved.values():
            window.noted = window.next

    def _read_to_the_end(self, broker: Broker) -> None:
        """Read all that the topics have by now."""
        ends = {partition: end for partition, (_, end) in broker.bounds(list(self._windows)).items()}
        give_up = time.monotonic() + 60
        while any(self._windows[partition].next < end for partition, end in ends.items()):
            if self._stop.is_set() or time.monotonic() > give_up:
                raise Unavailable(f"{self.address} stopped, or wasn't read to its end within 60 s")
            self._read(broker, _LOOK)
