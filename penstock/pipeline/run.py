"""Workers of one queue, without a job: `penstock run module:Operator --queue queue/j/in`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from penstock.client.client import Client
from penstock.client.settings import LONG_RETRY_FOR
from penstock.errors import InvalidRequest, JobFailed
from penstock.pipeline.crew import Crew, stop_all
from penstock.pipeline.figures import StageFigures
from penstock.pipeline.operator import Operation, is_operator, name_of, no_operator
from penstock.pipeline.pools import Pool
from penstock.pipeline.worker import Task
from penstock.wire.actions import DESCRIBE, Target

_TICK, _LOOK = 0.05, 0.5


def run_workers(
    client: Client,
    queue: str,
    operator: Any,
    *,
    pool: Pool,
    to: Sequence[str] = (),
    workers: int = 1,
    timeout: float | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> StageFigures:
    """Keep workers of a queue until it is complete, or is stopping; return what they did."""
    if not is_operator(operator):
        raise no_operator(operator)
    retry_for = client.settings.retry_seconds(LONG_RETRY_FOR)
    settings = replace(client.settings, retry_for=retry_for)
    task = Task(settings, queue, Operation(operator, tuple(to)), name_of(operator), tuple(to))
    crew = Crew(client, queue.rpartition("/")[2], task, pool, (workers, workers), timeout=timeout)
    next_look, state = 0.0, None
    try:
        while not is_stopping():
            if time.monotonic() >= next_look:
                is_idle = crew.is_idle
                state = client.connection.call(DESCRIBE, Target(queue), retry_for=retry_for).queue
                if state is None:
                    raise InvalidRequest(f"{queue} is no queue: expected a path such as queue/demo/in")
                if state.counts.state == "failed" or crew.broken is not None:
                    raise JobFailed(f"{queue}: {crew.broken or state.counts.cause}")
                if is_idle and state.counts.state == "complete":
                    break
                next_look = time.monotonic() + _LOOK
            crew.tick(state)
            time.sleep(_TICK)
    finally:
        stop_all([crew])
    return crew.figures
