"""A crew: the workers of one stage. Its driver starts and stops them, and looks after those that die."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace

from penstock.client.client import Client
from penstock.client.lease import failure_of
from penstock.errors import PenstockError, TimedOut, Unavailable
from penstock.pipeline.failure import FailurePolicy
from penstock.pipeline.figures import Span, StageFigures
from penstock.pipeline.pools import Exit, Pool, Worker
from penstock.pipeline.worker import Begun, Ended, Task
from penstock.wire.actions import DROP_LEASES, REDRIVE_MESSAGES, RELEASE_LEASES, RELEASE_WORKER
from penstock.wire.queue import (
    DropLeases,
    Failure,
    LeaseKey,
    QueueDescription,
    RedriveMessages,
    ReleaseLeases,
    ReleaseWorker,
)

log = logging.getLogger(__name__)
_DEATHS = 2
"""Workers that a split may kill among others, before it runs alone."""
_BREAK = 3
"""Workers that may end with an error one after the other, and no split done, before the job fails."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
"""Seconds before the next worker is started after one that died: twice as long each time."""
_COOLDOWN = 2.0
"""Seconds between two changes of the number of workers."""
_LAG = 2.0
"""Seconds of work that may wait before there is one worker more."""
_DRAIN, _TICK = 60.0, 0.05
"""Seconds that workers have to end their present splits before they are killed, and between two looks at them."""
_PLACED = 10.0
"""Seconds after which a worker that its pool has found no place for is spoken of."""
_IDLE = 3.0
"""Seconds for which a worker has nothing to do before it is one too many."""


@dataclass
class Member:
    """A worker, and what it does now."""

    worker: Worker
    known_as: str
    """Its name at the queue."""
    started: float
    current: dict[str, Begun] = field(default_factory=dict)
    """The splits that it has begun, by message id."""
    began: float = 0.0
    """When it began the last of `current`, or ended the last split, by the monotonic clock."""
    is_stopping: bool = False
    is_killed: bool = False
    missing: str | None = None
    """What its pool has no room for, once it has waited for a place for long."""

    def kill(self) -> None:
        """End the worker at once."""
        self.is_killed = True
        self.worker.kill()


@dataclass
class Crew:
    """The workers of a stage's queue. `tick` is called again and again by one thread, and never waits."""

    client: Client
    stage: str
    task: Task
    pool: Pool
    limits: tuple[int, int] = (1, 1)
    failure: FailurePolicy = field(default_factory=lambda: FailurePolicy(retries=True))
    timeout: float | None = None

    def __post_init__(self) -> None:
        self.figures = StageFigures(self.stage)
        self.broken: str | None = None
        """Why the job can't go on: workers end as soon as they begin."""
        self.members: list[Member] = []
        self._target = self.limits[0]
        self._changed = time.monotonic()
        self._deaths = Counter[str]()
        """Workers that each split has killed."""
        self._suspects: list[str] = []
        """Splits that are set aside, to run alone at the end."""
        self._alone: str | None = None
        self._failed_starts, self._pause_until = 0, 0.0
        self._number = 0
        self._stopping = False

    @property
    def is_idle(self) -> bool:
        """Whether there is no worker, and no split that is to run alone."""
        return not self.members and not self._suspects and self._alone is None

    def dead(self, queue: QueueDescription) -> int:
        """Return how many splits are dead for good."""
        return max(0, queue.counts.dead - len(self._suspects))

    def stop(self) -> None:
        """Let all workers end behind their present splits."""
        self._stopping = True
        for member in self.members:
            self._stop(member)

    def kill(self) -> None:
        """End all workers at once."""
        for member in self.members:
            member.kill()

    def tick(self, queue: QueueDescription | None) -> None:
        """Look after the workers.

        1. Hear what they tell. 2. Look after those that have ended, and the splits that they had. 3. End those that
        take too long. 4. Run a split alone that killed others. 5. Start and stop workers.
        """
        now = time.monotonic()
        for member in list(self.members):
            self._hear(member, now)  # 1.
            exited = member.worker.exit()
            if exited is not None:
                self.members.remove(member)
                self._bury(member, exited, now)  # 2.
            elif member.missing is None and not member.worker.is_placed() and now - member.started > _PLACED:
                member.missing = self._missing(member)
            elif self.timeout is not None and member.current and now - member.began > self._time_of(member):
                self._end_late(member, now)  # 3.
        if queue is None or self._stopping:
            return
        self._run_alone(queue)  # 4.
        self._staff(queue, now)  # 5.

    @property
    def missing(self) -> str | None:
        """Return what workers wait for that have no place; None where all have one."""
        return next((each.missing for each in self.members if each.missing and not each.worker.is_placed()), None)

    @property
    def is_starved(self) -> bool:
        """Whether no worker has a place, and that since long."""
        return self.missing is not None and not any(each.worker.is_placed() for each in self.members)

    def set_room(self, room: tuple[int, int] | None) -> None:
        """Change the bound of the queues that the workers fill."""
        if room != self.task.room:
            self.task = replace(self.task, room=room)
            for member in self.members:
                member.worker.set_room(room)

    def _missing(self, member: Member) -> str:
        """Say that a worker waits for a place; return what for."""
        wanted = ", ".join(f"{name}={value:g}" for name, value in self.task.resources.items()) or "num_cpus=1"
        log.warning(
            "stage %s: worker %s waits for a place with %s since %.0f s: add hosts to Ray, end others' work, or let "
            "the job's stages ask for less",
            self.stage, member.worker.name, wanted, _PLACED,
        )  # fmt: skip
        return wanted

    # --- what workers tell --------------------------------------------------------------------

    def _hear(self, member: Member, now: float) -> None:
        for event in member.worker.events():
            if isinstance(event, Begun):
                member.current[event.lease.message_id], member.began = event, now
            else:
                member.current.pop(event.message_id, None)
                member.began = now
                self.figures.add(member.worker.name, event)
                if event.outcome == "done":
                    self._failed_starts = 0

    def _bury(self, member: Member, exited: Exit, now: float) -> None:
        """Give back the split that a worker died with, or set it aside, and note whether workers can begin at all."""
        is_alone = self._alone is not None
        self._alone = None
        if exited.error is not None and not self._stopping:
            self._find_cause(member, exited.error, now, is_alone=is_alone)
        if exited.error is not None or member.is_killed:  # another one has given back what it had
            retry_for = 0.0 if self._stopping else None  # the server may be gone, and the driver is to end
            with suppress(PenstockError):  # it comes again when its leases end
                release = ReleaseWorker(self.task.queue, member.known_as)
                self.client.connection.call(RELEASE_WORKER, release, retry_for=retry_for)

    def _find_cause(self, member: Member, error: str, now: float, *, is_alone: bool) -> None:
        """Blame the split that a worker has died with, or note that workers can't begin."""
        log.warning("stage %s: worker %s has ended: %s", self.stage, member.worker.name, error)
        self.figures.deaths += 1
        for begun in member.current.values():
            died = Span(member.worker.name, begun.lease.message_id, begun.at, now - member.began, "died", error=error)
            self.figures.draw(died)
        if len(member.current) > 1:
            self._work_singly()
            return
        for begun in member.current.values():
            self._blame(begun.lease, error, is_alone=is_alone)
            return
        self._failed_starts += 1
        pause = _FIRST_PAUSE * 2 ** (self._failed_starts - 1)
        self._pause_until = now + min(pause, _LONGEST_PAUSE)
        if self._failed_starts >= _BREAK:
            self.broken = f"{self._failed_starts} workers ended before they did any split: {error}"

    def _blame(self, lease: LeaseKey, error: str, *, is_alone: bool) -> None:
        """Count a worker's death for the split that it had."""
        self._deaths[lease.message_id] += 1
        number = self._deaths[lease.message_id]
        failure = Failure("WorkerDied", f"{number} of its workers died, this one: {error}")
        if number < _DEATHS:
            self._release(lease, failure)
            return
        if is_alone:
            failure = replace(failure, text=f"{number} of its workers died, the last one while it ran alone: {error}")
        else:
            self._suspects.append(lease.message_id)
        with suppress(PenstockError):  # its lease is over: it comes again
            self.client.call(DROP_LEASES, DropLeases((lease,), failure))

    def _work_singly(self) -> None:
        """Let workers that begin from now on take splits one by one: a worker has died with several, or took too long.

        None of these counts as tried, as only one of them may be why.
        """
        self.task = replace(self.task, is_single=True)

    def _time_of(self, member: Member) -> float:
        """Return the seconds that a worker has for its present splits."""
        return (self.timeout or 0.0) * len(member.current)

    def _end_late(self, member: Member, now: float) -> None:
        """End a worker that takes too long, and give its split back as failed once."""
        if len(member.current) > 1:
            log.warning("stage %s: worker %s takes too long for its splits", self.stage, member.worker.name)
            self._work_singly()
            member.kill()
            return
        [begun] = member.current.values()
        lease = begun.lease
        text = f"split {lease.message_id} of {lease.queue} took longer than {self.timeout:g} s in {self.task.name}"
        late = failure_of(TimedOut(text))
        if self.failure.retries:
            self._release(lease, late)
        else:
            with suppress(PenstockError):
                self.client.call(DROP_LEASES, DropLeases((lease,), late))
        seconds = now - member.began
        self.figures.add(member.worker.name, Ended(lease.message_id, begun.at, seconds, "failed", error=text))
        member.current.clear()
        member.kill()

    def _release(self, lease: LeaseKey, failure: Failure) -> None:
        with suppress(PenstockError):  # its lease is over: it comes again
            self.client.call(RELEASE_LEASES, ReleaseLeases((lease,), 0.0, failure))

    def _run_alone(self, queue: QueueDescription) -> None:
        """Let a split that killed workers be claimed once more, once all others are done and no worker is left."""
        if self._suspects and not self.members and self._alone is None and queue.counts.state == "complete":
            self._alone = self._suspects.pop(0)
            self.client.call(REDRIVE_MESSAGES, RedriveMessages(self.task.queue, (self._alone,)))
            self._start(replace(self.task, prefetch=0))

    # --- how many -----------------------------------------------------------------------------

    def _staff(self, queue: QueueDescription, now: float) -> None:
        if self._alone is not None or queue.counts.state != "open":
            return
        fewest, most = self.limits
        if fewest < most and now - self._changed > _COOLDOWN:
            self._scale(queue, now)
        working = [member for member in self.members if not member.is_stopping]
        if now >= self._pause_until:
            for _ in range(self._target - len(working)):
                self._start(self.task)

    def _scale(self, queue: QueueDescription, now: float) -> None:
        """Change the number of workers by one: by the seconds of work that wait, and by workers that wait for work."""
        fewest, most = self.limits
        per_second = self.figures.done_per_second(now)
        lag = queue.counts.pending / per_second if per_second else float(queue.counts.pending > 0) * 2 * _LAG
        idle = [each for each in self.members if not each.current and now - each.began > _IDLE]
        if lag > _LAG and self._target < most and not idle:
            self._target += 1
        elif not queue.counts.pending and idle and self._target > fewest:
            self._target -= 1
            self._stop(idle[0])
        else:
            return
        self._changed = now
        self.figures.most_workers = max(self.figures.most_workers, self._target)

    def _start(self, task: Task) -> None:
        self._number += 1
        now = time.monotonic()
        name = f"{self.stage}-{self._number}"
        known_as = f"{socket.gethostname()}:{os.getpid()}/{name}"
        try:
            worker = self.pool.start(replace(task, worker=known_as), name)
        except Unavailable as ended:
            self.broken = str(ended)
            return
        self.members.append(Member(worker, known_as, now, began=now))
        self.figures.most_workers = max(self.figures.most_workers, len(self.members))

    def _stop(self, member: Member) -> None:
        if not member.is_stopping:
            member.is_stopping = True
            member.worker.stop()


def stop_all(crews: Collection[Crew]) -> None:
    """Let all workers end their present splits, and kill those that take too long; return when none is left."""
    for crew in crews:
        crew.stop()
    deadline = time.monotonic() + _DRAIN
    while any(crew.members for crew in crews):
        for crew in crews:
            crew.tick(None)
            if time.monotonic() > deadline:
                crew.kill()
        time.sleep(_TICK)
