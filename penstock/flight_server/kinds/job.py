"""job/…: jobs, whose stages claim from queues; a driver starts and ends them, and workers do all the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.flight as flight

from penstock.errors import InvalidRequest, LimitExceeded
from penstock.flight_server import endpoints
from penstock.flight_server.gate import Call
from penstock.flight_server.kinds.kind import Handler, Handlers, Kind
from penstock.flight_server.metrics import Gauge
from penstock.flight_server.state import State
from penstock.ledger import jobs
from penstock.queue.work import job_queues
from penstock.wire import actions as wire
from penstock.wire import job as bodies
from penstock.wire.paths import Path, parse
from penstock.wire.read import Entry

_MOST_STAGES, _MOST_EDGES = 1_000, 10_000
_MOST_NOTED = 1_000
"""Jobs whose driver's last words are kept."""


class JobKind(Kind):
    """Jobs: rows with a plan and a state; what they do is counted by the queues of their stages."""

    name = "job"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._notes: dict[str, tuple[bodies.NoteJob, float]] = {}
        """By job, what its driver said last, and when; the oldest first. Whole entries are replaced: no lock."""
        state.metrics.gauges(self._gauges)

    def totals(self) -> dict[str, int]:
        return {"jobs": len(jobs.ids(self.state.ledger.database))}

    def actions(self) -> Handlers:
        yield Handler(wire.START_JOB, self.start_job)
        yield Handler(wire.NOTE_JOB, self.note_job)
        yield Handler(wire.END_JOB, self.end_job)

    def start_job(self, call: Call, request: bodies.StartJob) -> bodies.JobDescription:
        """Make a job and the queues of its stages, or continue it."""
        key = _key_of(request.path)
        _check_plan(request)
        stages = request.stages
        before = self.state.ledger.change(lambda t: job_queues.start(t, key, stages, force=request.force))
        return self._description(key, resumed=before is not None)

    def note_job(self, call: Call, request: bodies.NoteJob) -> bodies.JobDescription:
        """Take what a driver says of its workers."""
        key = _key_of(request.path)
        description = self._description(key)
        self._notes.pop(key, None)
        self._notes[key] = (request, self.state.ledger.now())
        while len(self._notes) > _MOST_NOTED:
            self._notes.pop(next(iter(self._notes)), None)
        return description

    def end_job(self, call: Call, request: bodies.EndJob) -> bodies.JobDescription:
        """Note how a job has ended."""
        key = _key_of(request.path)
        cause = None if request.cause is None else request.cause[:1_000]
        self.state.ledger.change(lambda t: jobs.end(t, key, request.state, cause))
        return self._description(key)

    def flights(self, folder: Path, *, folders: bool) -> Iterator[flight.FlightInfo]:
        database = self.state.ledger.database
        for key in [folder.key] if folder.key else jobs.ids(database):
            yield endpoints.listed(Entry(f"job/{key}", "job", state=jobs.by_id(database, key).state))

    def describe(self, path: Path) -> wire.Description:
        return wire.Description("job", str(path), job=self._description(path.key))

    def delete(self, path: Path) -> wire.Deleted:
        """Forget a job with its queues and their messages; the datasets that it has written stay."""
        self.state.ledger.change(lambda t: job_queues.remove(t, path.key))
        self._notes.pop(path.key, None)
        return wire.Deleted(str(path), 0, 0, 0)

    def _description(self, key: str, *, resumed: bool = False) -> bodies.JobDescription:
        job = jobs.by_id(self.state.ledger.database, key)
        queues = self.state.kinds["queue"]
        described = (
            None if each.role == "source" else queues.describe(Path("queue", f"{key}/{each.stage}")).queue
            for each in job.stages
        )
        note, seen = self._notes.get(key, (None, None))
        notes = {each.stage: each for each in note.stages} if note is not None else {}
        stages = tuple(
            bodies.JobStage(planned, queue, notes.get(planned.stage))
            for planned, queue in zip(job.stages, described, strict=True)
        )
        driver = None if note is None else note.driver
        return bodies.JobDescription(job.state, job.created, stages, job.cause, job.ended, resumed, driver, seen)

    def _gauges(self) -> Iterator[Gauge]:
        """Yield the jobs that are running, and what their drivers say of their stages."""
        database = self.state.ledger.database
        running = [key for key in jobs.ids(database) if jobs.by_id(database, key).state == "running"]
        yield Gauge("penstock_jobs_running", "Jobs that are neither done, failed nor cancelled.", len(running))
        for key in running:
            job = self._description(key)
            if job.seen is not None:
                silent = max(0.0, self.state.ledger.now() - job.seen)
                yield Gauge(
                    "penstock_job_silent_seconds", "Since the driver's last sign of life.", silent, {"job": key}
                )
            for note in (stage.note for stage in job.stages if stage.note is not None):
                labels = {"job": key, "stage": note.stage}
                yield Gauge("penstock_job_workers", "Workers of a stage.", note.workers, labels)
                yield Gauge("penstock_job_retries", "Tries of a stage that failed in this run.", note.retries, labels)


def _key_of(text: str) -> str:
    path = parse(text)
    if path.kind != "job" or "/" in path.key:
        raise InvalidRequest(f"{path} is no job: expected job/NAME, and no further slash")
    return path.key


def _check_plan(request: bodies.StartJob) -> None:
    """Reject stages of one name, and edges that lead nowhere; a circle is rejected by its queues."""
    names = [each.stage for each in request.stages]
    edges = sum(len(each.after) for each in request.stages)
    if len(names) > _MOST_STAGES or edges > _MOST_EDGES:
        raise LimitExceeded(
            f"{request.path}: a plan has at most {_MOST_STAGES:,} stages and {_MOST_EDGES:,} edges between them, got "
            f"{len(names):,} and {edges:,}: use several jobs"
        )
    if bad := next((name for name in names if "/" in name or name == "dead"), None):
        raise InvalidRequest(f"{request.path}: stage {bad!r}: expected a name without a slash, other than 'dead'")
    for name in names:
        parse(f"queue/{_key_of(request.path)}/{name}")
    if len(set(names)) < len(names):
        raise InvalidRequest(f"{request.path}: two stages have one name among {', '.join(names)}")
    roles = {each.stage: each.role for each in request.stages}
    for each in request.stages:
        for above in each.after:
            if roles.get(above, "sink") == "sink":
                raise InvalidRequest(
                    f"{request.path}: stage {each.stage!r} can't be after {above!r}, which is no stage with outputs"
                )
        if (each.role == "source") == bool(each.after):
            raise InvalidRequest(
                f"{request.path}: stage {each.stage!r} is a {each.role}: a source is after no stage, every other is"
            )
