"""job/…: jobs, whose stages claim from queues; a driver starts and ends them, and workers do all the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.flight as flight

from penstock.errors import InvalidRequest, LimitExceeded
from penstock.flight_server import endpoints
from penstock.flight_server.gate import Call
from penstock.flight_server.kinds.kind import Handler, Handlers, Kind
from penstock.ledger import jobs
from penstock.queue.work import job_queues
from penstock.wire import actions as wire
from penstock.wire import job as bodies
from penstock.wire.paths import Path, parse
from penstock.wire.read import Entry

_MOST_STAGES, _MOST_EDGES = 1_000, 10_000


class JobKind(Kind):
    """Jobs: rows with a plan and a state; what they do is counted by the queues of their stages."""

    name = "job"

    def totals(self) -> dict[str, int]:
        return {"jobs": len(jobs.ids(self.state.ledger.database))}

    def actions(self) -> Handlers:
        yield Handler(wire.START_JOB, self.start_job)
        yield Handler(wire.END_JOB, self.end_job)

    def start_job(self, call: Call, request: bodies.StartJob) -> bodies.JobDescription:
        """Make a job and the queues of its stages, or continue it."""
        key = _key_of(request.path)
        _check_plan(request)
        stages = request.stages
        before = self.state.ledger.change(lambda t: job_queues.start(t, key, stages, force=request.force))
        return self._description(key, resumed=before is not None)

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
        return wire.Deleted(str(path), 0, 0, 0)

    def _description(self, key: str, *, resumed: bool = False) -> bodies.JobDescription:
        job = jobs.by_id(self.state.ledger.database, key)
        queues = self.state.kinds["queue"]
        described = (
            None if each.role == "source" else queues.describe(Path("queue", f"{key}/{each.stage}")).queue
            for each in job.stages
        )
        stages = tuple(bodies.JobStage(*both) for both in zip(job.stages, described, strict=True))
        return bodies.JobDescription(job.state, job.created, stages, job.cause, job.ended, resumed)


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
