"""Job: stages of workers between a source and its sinks, driven to their end from here; see docs/jobs.md.

job = penstock.Job("score")
job.stage(Stage("in", ReadDataset("store/trips")))
job.stage(Stage("score", Score("model.bin"), workers=4), after="in")
job.stage(Stage("out", WriteDataset("store/scored")), after="score")
job.run(workers="processes")
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Unpack

from penstock.client.client import Client, ServerArguments, connect
from penstock.client.settings import LONG_RETRY_FOR
from penstock.errors import InvalidRequest, JobFailed, PenstockError, WriteEnded
from penstock.pipeline.crew import Crew, stop_all
from penstock.pipeline.figures import DeadSplit, JobSummary, Span, StageFigures, StageSummary
from penstock.pipeline.operator import Operation, Work, name_of, takes_batches
from penstock.pipeline.pools import Pool, open_pool
from penstock.pipeline.progress import Progress, StageProgress
from penstock.pipeline.report import write_report
from penstock.pipeline.sinks import Call, DatasetPuts, TopicPuts, WriteDataset, WriteTopic
from penstock.pipeline.sources import Filling, Source, to_source
from penstock.pipeline.spark_frame import SparkFrameConfig
from penstock.pipeline.stage import Stage
from penstock.pipeline.worker import Task
from penstock.text import suggest
from penstock.wire import actions as wire
from penstock.wire.job import RECEIPTS, EndJob, JobDescription, JobEnd, NoteJob, PlannedStage, StageNote, StartJob
from penstock.wire.kafka import KafkaAddress
from penstock.wire.queue import FinishQueue, QueueCounts, QueueDescription, RedriveMessages

log = logging.getLogger(__name__)
_TICK, _LOOK = 0.05, 0.25
"""Seconds between two rounds of the driver, and between two looks at the job's queues."""
_BATCH = 32
"""Splits that `process_batch` gets at once at most, unless its stage says how many."""
_FULL_SPLITS, _FULL_BYTES = 1_000, 256 << 20
"""What may wait in a queue before what fills it waits, too: sources, and the workers above."""
_MOST_DEAD = 100
"""Dead splits of a stage that a report shows."""
_LAST_WORDS = 5.0
"""Seconds for which a run that was stopped tries to tell the server so."""
_DRIVER = f"{socket.gethostname()}:{os.getpid()}"
_CLIENTS = "put"
"""The upstream of a queue that stands for all sources of a job."""


class Job:
    """A named job; run again under its name it goes on where it stopped. The server's arguments are those of `connect`.

    `queue` says where its queues are: "embedded:", in the server, or "kafka://host:port", the server's broker.
    """

    def __init__(self, job_id: str, queue: str = "embedded:", **server: Unpack[ServerArguments]) -> None:
        self.broker = None if queue == "embedded:" else queue
        """Where the queues' messages are records; None for queues of the server's own."""
        if self.broker is not None and (
            not self.broker.startswith("kafka://") or KafkaAddress.parse(self.broker).topic is not None
        ):
            raise InvalidRequest(
                f"queue={queue!r}: expected 'embedded:' or 'kafka://host:port' without a topic: each stage has its own"
            )
        if not job_id or "/" in job_id:
            raise InvalidRequest(f"job {job_id!r}: expected a name without slashes, such as 'score'")
        if unknown := server.keys() - ServerArguments.__annotations__.keys():
            [name] = sorted(unknown)[:1]
            raise InvalidRequest(f"Job({name}=…): {suggest(name, [*ServerArguments.__annotations__])}")
        self.job_id = job_id
        self.path = f"job/{job_id}"
        self._server = server
        self._stages: dict[str, tuple[Stage, PlannedStage]] = {}
        self._run: _Run | None = None

    def __repr__(self) -> str:
        return f"penstock.Job({self.job_id!r}): {', '.join(self._stages) or 'no stages'}"

    def stage(self, stage: Stage, after: str | Sequence[str] = ()) -> Stage:
        """Add a stage behind one or several others, whose outputs it gets all; return it."""
        above = (after,) if isinstance(after, str) else tuple(after)
        if stage.stage_id in self._stages:
            raise InvalidRequest(f"job {self.job_id} has a stage {stage.stage_id!r} already: use another name")
        for name in above:
            if name not in self._stages:
                hint = suggest(name, self._stages) if self._stages else "there is no stage yet"
                raise InvalidRequest(f"stage {stage.stage_id!r} is after {name!r}, which the job lacks: {hint}")
            if self._stages[name][1].role == "sink":
                raise InvalidRequest(f"stage {stage.stage_id!r} is after the sink {name!r}, from which nothing comes")
        self._stages[stage.stage_id] = (stage, stage.plan(above))
        return stage

    def run(self, workers: str = "threads", *, force: bool = False, progress: bool | None = None) -> JobSummary:
        """Run the job to its end, and return what it did; JobFailed if it can't go on, with the cause.

        `workers` are "threads" of this process, "processes" of their own, or actors of "ray". A job that was run before
        goes on; one whose stages are others by now needs `force`. Ctrl-C and SIGTERM let the workers end their present
        splits. Shows its progress on a terminal and in a notebook (`progress=False` doesn't).
        """
        if not any(planned.role == "source" for _, planned in self._stages.values()):
            raise InvalidRequest(f"job {self.job_id} has no source: add one, such as Stage('in', [table, table])")
        above = {name for _, planned in self._stages.values() for name in planned.after}
        for name, (_, planned) in self._stages.items():
            if planned.role == "source" and name not in above:
                raise InvalidRequest(f"no stage is after the source {name!r}: add one, with after={name!r}")
        self._check_paths()
        pool = open_pool(workers)
        with ExitStack() as stack:
            client = stack.enter_context(_patient_client(self._server))
            shown = stack.enter_context(Progress(wanted=progress))
            self._run = _Run(client, self, dict(self._stages), pool, shown)
            return self._run.to_end(force=force)

    def _check_paths(self) -> None:
        """Reject a sink whose dataset would be a folder of a frame's, or the other way round, before all is done."""
        whats = {name: stage.what for name, (stage, _) in self._stages.items()}
        frames = [f"store/{self.job_id}/{name}/" for name, what in whats.items() if isinstance(what, SparkFrameConfig)]
        for name, what in whats.items():
            if not isinstance(what, WriteDataset):
                continue
            for frame in frames:
                if frame.startswith(f"{what.path}/") or f"{what.path}/".startswith(frame):
                    raise InvalidRequest(
                        f"stage {name!r} writes {what.path}, and a frame of this job becomes {frame[:-1]}: a path is a "
                        "dataset or a folder, so give the sink another one, such as store/scored"
                    )

    def report(self, file: str | Path) -> Path:
        """Write the last run as one HTML file: its stages, and a timeline of its workers. Return the file's path."""
        if self._run is None:
            raise InvalidRequest(f"job {self.job_id} has not been run in this process: call run() first")
        return self._run.report(Path(file))


def _patient_client(server: ServerArguments) -> Client:
    """Return a client that waits as long for a server that is away as workers do, once it was there."""
    with connect(**server) as client:
        client.call(wire.HEALTH, wire.Nothing())
        return Client(replace(client.settings, retry_for=client.settings.retry_seconds(LONG_RETRY_FOR)))


def _is_full(queue: QueueCounts) -> bool:
    """Whether a queue has no room for a source; the bytes of dead splits alone fill none, as no worker frees them."""
    waiting = queue.pending + queue.claimed
    return queue.pending >= _FULL_SPLITS or (waiting > 0 and queue.bytes >= _FULL_BYTES)


class _Run:
    """One run of a job, in its driver."""

    def __init__(
        self, client: Client, job: Job, stages: dict[str, tuple[Stage, PlannedStage]], pool: Pool, progress: Progress
    ) -> None:
        self._client, self._job, self._stages, self._pool, self._progress = client, job, stages, pool, progress
        self._began, self._began_at = time.monotonic(), time.time()
        self._seconds: float | None = None
        self._description: JobDescription | None = None
        self._sources: dict[str, Source] = {}
        self._crews: dict[str, Crew] = {}
        self._tickets: dict[str, str] = {}
        """By stage, of the open writes of dataset sinks."""
        self._stopping = threading.Event()
        self._cause: str | None = None
        """What has stopped the run from outside."""
        self._failed_source: str | None = None
        self._filled: dict[str, StageFigures] = {}
        """By source, when it filled its queues in this run."""
        self._filling: set[str] = set()
        """Sources that are not at their end: what has failed in an earlier run they are about to mend."""

    # --- from start to end --------------------------------------------------------------------

    def to_end(self, *, force: bool) -> JobSummary:
        """Run the job.

        1. The server makes the job and its queues, or knows them. 2. Sinks open their writes, or join those of an
        earlier run. 3. Sources fill the first queues, each in a thread. 4. Workers drain all queues. 5. Sinks finish
        their writes. 6. The server notes the end.
        """
        with self._on_sigterm():
            self._start(force=force)  # 1.
            assert self._description is not None
            if self._description.state == "done":
                log.info("%s is done already: run it under another name, or remove it to run it again", self._job.path)
                return self.summary()
            try:
                self._open_sinks()  # 2.
                self._start_sources()  # 3.
                self._drive()  # 4.
                self._finish_sinks()  # 5.
            except BaseException as error:
                self._stopping.set()
                stop_all(self._crews.values())
                interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
                with suppress(PenstockError):
                    self._end("cancelled" if interrupted else "failed", str(error) or type(error).__name__)
                raise
            self._end("done", None)  # 6.
        return self.summary()

    def _start(self, *, force: bool) -> None:
        plan = []
        for name, (stage, planned) in self._stages.items():
            pinned = None
            if planned.role == "source":
                self._sources[name] = to_source(stage.what)
                pinned = self._sources[name].pin(self._client)
            plan.append(replace(planned, pinned=pinned or None))
        if self._job.broker is not None:
            for stage_id, (_, planned) in self._stages.items():
                if planned.role != "source":
                    self._client.create_queue(self._queue(stage_id), self._job.broker)
        self._description = self._client.call(wire.START_JOB, StartJob(self._job.path, tuple(plan), force))
        if self._description.resumed and self._description.state != "done":
            for stage, planned in self._stages.values():
                if planned.role != "source" and not stage.failure.retries:  # what has ended the last run
                    self._client.call(wire.REDRIVE_MESSAGES, RedriveMessages(self._queue(stage.stage_id)))
            self._look()

    def _queue(self, stage_id: str) -> str:
        return f"queue/{self._job.job_id}/{stage_id}"

    def _below(self, stage_id: str) -> tuple[str, ...]:
        """Return the queues that a stage fills."""
        return tuple(self._queue(name) for name, (_, planned) in self._stages.items() if stage_id in planned.after)

    def _look(self) -> None:
        """Tell the server what the workers do, and hear how the job does."""
        notes = tuple(map(_note, self._crews.values()))
        self._description = self._tell(wire.NOTE_JOB, NoteJob(self._job.path, _DRIVER, notes))

    def _tell(self, action: wire.Action[Any, JobDescription], request: Any) -> JobDescription:
        """Call an action of the job; a run that was stopped doesn't wait for a server that is away."""
        retry_for = _LAST_WORDS if self._stopping.is_set() else None
        return self._client.connection.call(action, request, retry_for=retry_for)

    def _queues(self) -> dict[str, QueueDescription]:
        """Return what was seen of the queues of all stages but sources."""
        assert self._description is not None
        return {each.planned.stage: each.queue for each in self._description.stages if each.queue is not None}

    # --- sources ------------------------------------------------------------------------------

    def _start_sources(self) -> None:
        """Start a thread for each source that hasn't ended in an earlier run, and one that ends their queues."""
        assert self._description is not None
        ended = {
            stage
            for stage, queue in self._queues().items()
            if any((each.upstream, each.state) == (_CLIENTS, "complete") for each in queue.upstreams)
        }
        pinned = {each.planned.stage: each.planned.pinned or {} for each in self._description.stages}
        waiting: dict[str, set[str]] = {}
        fillings = []
        for name, (_, planned) in self._stages.items():
            if planned.role != "source":
                continue
            below = [stage for stage, (_, other) in self._stages.items() if name in other.after and stage not in ended]
            if below:
                queues = tuple(map(self._queue, below))
                run = f"job/{self._job.job_id}/{name}/{self._description.created}"
                fillings.append(
                    Filling(
                        self._client,
                        self._job.job_id,
                        name,
                        run,
                        queues,
                        pinned[name],
                        partial(self._wait_for_room, queues),
                    )
                )
            for queue in map(self._queue, below):
                waiting.setdefault(queue, set()).add(name)
        lock = threading.Lock()
        self._filling = {filling.stage for filling in fillings}
        for filling in fillings:
            arguments = (filling, waiting, lock)
            threading.Thread(target=self._fill, args=arguments, name=f"penstock-{filling.stage}", daemon=True).start()

    def _fill(self, filling: Filling, waiting: dict[str, set[str]], lock: threading.Lock) -> None:
        """Run a source; end each queue whose last source it was."""
        began = time.time()
        try:
            self._sources[filling.stage].fill(filling)
            if self._stopping.is_set():
                return
            for queue in filling.queues:
                with lock:
                    waiting[queue].discard(filling.stage)
                    is_last = not waiting[queue]
                if is_last:
                    self._client.call(wire.FINISH_QUEUE, FinishQueue(queue))
        except Exception as error:
            log.debug("source %s failed", filling.stage, exc_info=error)
            self._failed_source = f"source {filling.stage!r}: {type(error).__name__}: {error}"
        finally:
            figures = self._filled[filling.stage] = StageFigures(filling.stage)
            figures.draw(Span("source", filling.stage, began, time.time() - began, "filled", self._failed_source))
            self._filling.discard(filling.stage)

    def _wait_for_room(self, queues: Sequence[str]) -> bool:
        """Wait while one of the queues that a source fills is full; False once the job stops."""
        while not self._stopping.is_set():
            if not any(map(_is_full, map(self._counts, queues))):
                return True
            self._stopping.wait(_TICK)
        return False

    # --- sinks --------------------------------------------------------------------------------

    def _open_sinks(self) -> None:
        for name, (stage, _) in self._stages.items():
            if isinstance(stage.what, WriteDataset):
                self._tickets[name] = self._open_write(name, stage.what)

    def _open_write(self, name: str, sink: WriteDataset) -> str:
        """Open the write of a sink, or join it; return its ticket.

        One that is finished has the rows of an earlier run, and the receipts of these are done: splits that were
        redriven since are a further write, which appends.
        """
        assert self._description is not None
        generation = 1 if self._receipts(name).done else 0
        while True:
            mode = sink.mode if generation == 0 else "append"
            run = f"job/{self._job.job_id}/{name}/{self._description.created}/{generation}"
            opened = self._client.call(wire.OPEN_WRITE, wire.OpenWrite(sink.path, mode, run=run))
            if opened.state != "finished":
                return opened.ticket
            generation += 1

    def _receipts(self, name: str) -> QueueCounts:
        """Return the counts of a sink's receipts."""
        return self._counts(f"{self._queue(name)}/{RECEIPTS}")

    def _counts(self, path: str) -> QueueCounts:
        """Ask the server for a queue's counts."""
        queue = self._client.call(wire.DESCRIBE, wire.Target(path)).queue
        assert queue is not None
        return queue.counts

    def _finish_sinks(self) -> None:
        for name, ticket in self._tickets.items():
            counts = self._receipts(name)
            if counts.done < counts.pushed:
                finish = wire.FinishWrite(ticket, (), receipts=f"{self._queue(name)}/{RECEIPTS}")
                self._client.call(wire.FINISH_WRITE, finish)
                continue
            if not counts.pushed:
                log.warning("stage %s got no rows, and writes none", name)
            with suppress(WriteEnded):  # another driver of the job has finished it
                self._client.call(wire.ABORT_WRITE, wire.AbortWrite(ticket))

    # --- workers ------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Keep the workers of all stages until every queue is complete; JobFailed if one can't be."""
        working = (stage for stage, planned in self._stages.values() if planned.role != "source")
        self._crews = {stage.stage_id: self._crew(stage) for stage in working}
        next_look = 0.0
        while True:
            now = time.monotonic()
            if now >= next_look:
                are_idle = all(crew.is_idle for crew in self._crews.values())
                self._look()
                self._check()
                if are_idle and all(queue.counts.state == "complete" for queue in self._queues().values()):
                    return
                self._progress.show(self._job.path, sorted(self._filling), self._stages_now(now), now - self._began)
                next_look = now + _LOOK
            for name, crew in self._crews.items():
                crew.tick(self._queues()[name])
                crew.set_room(self._room(name))
            time.sleep(_TICK)

    def _room(self, name: str) -> tuple[int, int] | None:
        """Return what may wait below a stage. No bound while one there has no place: this one may hold the places,
        and would wait for room for ever, where it gives them back once it is at its end.
        """
        below = (crew for other, crew in self._crews.items() if name in self._stages[other][1].after)
        return None if any(crew.is_starved for crew in below) else (_FULL_SPLITS, _FULL_BYTES)

    def _crew(self, stage: Stage) -> Crew:
        """Return the crew of a stage, without workers yet."""
        name, to, settings = stage.stage_id, self._below(stage.stage_id), self._client.settings
        task = Task(
            settings, self._queue(name), self._work(stage, to), name_of(stage.what), to,
            retries=stage.failure.retries, room=(_FULL_SPLITS, _FULL_BYTES), resources=stage.resources,
        )  # fmt: skip
        return Crew(self._client, name, task, self._pool, stage.limits, stage.failure, stage.timeout)

    def _work(self, stage: Stage, to: tuple[str, ...]) -> Work:
        """Return what the workers of a stage do."""
        sink, name = stage.what, stage.stage_id
        if isinstance(sink, WriteDataset):
            return DatasetPuts(self._queue(name), self._tickets[name])
        if isinstance(sink, WriteTopic):
            assert self._description is not None
            return TopicPuts(sink.path, f"job/{self._job.job_id}/{name}/{self._description.created}")
        if isinstance(sink, Call):
            return Operation(sink.function, drops=True)
        batch = (stage.batch or _BATCH) if takes_batches(sink) else 1
        return Operation(sink, to, batch=batch)

    def _check(self) -> None:
        """Raise JobFailed if the job can't, or mustn't, go on."""
        if self._failed_source is not None:
            raise self._failure(self._failed_source)
        for name, queue in self._queues().items():
            crew, counts = self._crews[name], queue.counts
            if counts.state == "failed" and not self._filling:
                raise self._failure(f"stage {name!r}: {counts.cause}")
            if crew.broken is not None:
                raise self._failure(f"stage {name!r}: {crew.broken}")
            dead = crew.dead(queue)
            if dead and crew.failure.is_broken(counts.done + dead, dead):
                raise self._failure(f"stage {name!r}: {self._last_death(name, dead)}")

    def _failure(self, cause: str) -> JobFailed:
        return JobFailed(
            f"{self._job.path} has failed: {cause}. Run it again to continue (penstock show {self._job.path})"
        )

    def _last_death(self, name: str, dead: int) -> str:
        """Describe the dead splits of a stage by one of them."""
        [message] = self._dead(name, 1) or [{}]
        many = "a split is" if dead == 1 else f"{dead:,} splits are"
        operator = name_of(self._stages[name][0].what)
        first = f"{message.get('message_id')} failed in {operator} with {message.get('error')}: {message.get('text')}"
        trace = message.get("trace")
        return f"{many} dead, {first}" + (f"\n{trace}" if trace else "")

    def _dead(self, name: str, limit: int) -> list[dict[str, Any]]:
        """Return dead messages of a stage."""
        messages: list[dict[str, Any]] = (
            self._client.get(f"{self._queue(name)}/dead", limit=limit).read_all().to_pylist()
        )
        return messages

    @contextmanager
    def _on_sigterm(self) -> Iterator[None]:
        """Drain at SIGTERM, where Python can hear it and the program has no handler of its own."""
        is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if threading.current_thread() is not threading.main_thread() or not is_free:
            yield
            return

        def terminate(number: int, frame: FrameType | None) -> None:
            self._cause = "SIGTERM"
            if not self._stopping.is_set():  # ends a wait for a server that is away, too, as Ctrl-C does
                raise SystemExit(128 + signal.SIGTERM)

        signal.signal(signal.SIGTERM, terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _end(self, state: JobEnd, cause: str | None) -> None:
        self._seconds = time.monotonic() - self._began
        self._look()  # the last notes
        text = self._cause or cause
        self._description = self._tell(wire.END_JOB, EndJob(self._job.path, state, text))
        for name, queue in self._queues().items():
            if queue.counts.dead and name in self._crews:
                self._crews[name].figures.dead = [*map(_dead_split, self._dead(name, _MOST_DEAD))]

    # --- what is seen -------------------------------------------------------------------------

    def _stages_now(self, now: float) -> list[StageProgress]:
        return [
            StageProgress(
                name, self._queues()[name].counts, len(crew.members), crew.figures.done_per_second(now), crew.missing
            )
            for name, crew in self._crews.items()
        ]

    def report(self, file: Path) -> Path:
        """Write the run as one HTML file."""
        assert self._description is not None
        figures = {**self._filled, **{name: crew.figures for name, crew in self._crews.items()}}
        return write_report(file, self._description, self.summary(), figures, self._began_at)

    def summary(self) -> JobSummary:
        """Return how the run went, up to now."""
        assert self._description is not None
        seconds = time.monotonic() - self._began if self._seconds is None else self._seconds
        queues = self._queues()
        stages = []
        for name, (_, planned) in self._stages.items():
            if name not in queues:
                continue
            counts = queues[name].counts
            crew = self._crews.get(name)
            done = StageFigures(name) if crew is None else crew.figures
            stages.append(
                StageSummary(
                    name, planned.what, counts.done, counts.dead, done.retries, done.rows_in,
                    done.rows_out, done.bytes_in, done.bytes_out, done.seconds, done.most_workers,
                )
            )  # fmt: skip
        return JobSummary(self._job.job_id, self._description.state, seconds, tuple(stages))


def _note(crew: Crew) -> StageNote:
    did = crew.figures
    return StageNote(
        crew.stage, len(crew.members), did.retries, did.rows_in, did.rows_out, did.bytes_in, did.bytes_out, did.seconds
    )


def _dead_split(message: Mapping[str, Any]) -> DeadSplit:
    error = f"{message['error']}: {message['text']}"
    return DeadSplit(message["message_id"], message["tries"], message["worker"] or "", error, message["trace"] or "")
