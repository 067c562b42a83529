"""Stage: one step of a job, a source, an operator or a sink, and how many workers it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidRequest
from penstock.pipeline.failure import FAIL_FAST, FailurePolicy
from penstock.pipeline.operator import is_operator, name_of, no_operator, takes_batches
from penstock.pipeline.sinks import Sink, WriteDataset
from penstock.pipeline.sources import to_source
from penstock.wire.job import PlannedStage, Role


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a job: `Stage("score", Score("model.bin"), workers=(2, 8))`.

    `what` is a source (an iterable, ReadDataset, ReadTopic, SparkSourceV2Config, SparkSourceConfig), an operator, or a
    sink (WriteDataset, WriteTopic, Call).
    """

    stage_id: str
    what: Any
    workers: int | tuple[int, int] = 1
    """How many, or the fewest and the most: then there are more while splits wait, fewer while workers do."""
    failure: FailurePolicy = FAIL_FAST
    """By default the first split that fails ends the job; `dead_letter(most=10)` tries it five times and goes on."""
    timeout: float | None = None
    """Seconds for one split: a worker that takes longer is killed, and the split has failed once."""
    batch: int | None = None
    """The most splits that `process_batch` gets at once, by default 32: those that are there, up to 8 MiB."""
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    """These three are what Ray reserves for a worker; threads and processes ignore them."""

    def __post_init__(self) -> None:
        workers: Any = self.workers
        timeout: Any = self.timeout
        numbers = workers if isinstance(workers, tuple) else (workers, workers)
        if [*map(type, numbers)] != [int, int] or not 1 <= numbers[0] <= numbers[1]:
            raise InvalidRequest(
                f"stage {self.stage_id!r}: workers={workers!r}: expected a number from 1, or (fewest, most)"
            )
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise InvalidRequest(f"stage {self.stage_id!r}: timeout={timeout!r}: expected seconds above 0")
        if not isinstance(self.failure, FailurePolicy):
            raise InvalidRequest(
                f"stage {self.stage_id!r}: failure={self.failure!r}: expected a policy, such as dead_letter(most=10)"
            )

        if self.batch is not None and (self.batch < 1 or not takes_batches(self.what)):
            raise InvalidRequest(
                f"stage {self.stage_id!r}: batch={self.batch!r}: expected a number from 1, of an operator with "
                "process_batch(splits)"
            )

    @property
    def limits(self) -> tuple[int, int]:
        """The fewest and the most workers."""
        return (self.workers, self.workers) if isinstance(self.workers, int) else self.workers

    @property
    def resources(self) -> dict[str, float]:
        """What is to be reserved for a worker, by name."""
        named = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "memory": self.memory}
        return {name: value for name, value in named.items() if value is not None}

    def plan(self, after: tuple[str, ...]) -> PlannedStage:
        """Return the stage as a job's plan has it; InvalidRequest if `what` can't be at its place."""
        return PlannedStage(
            self.stage_id, self._role(after), self._words(after), after, isinstance(self.what, WriteDataset)
        )

    def _role(self, after: tuple[str, ...]) -> Role:
        if not after:
            to_source(self.what)  # or the error that it is none
            return "source"
        if isinstance(self.what, Sink):
            return "sink"
        if not is_operator(self.what):
            raise no_operator(self.what)
        return "operator"

    def _words(self, after: tuple[str, ...]) -> str:
        if not after:
            return str(to_source(self.what))
        return str(self.what) if isinstance(self.what, Sink) else name_of(self.what)
