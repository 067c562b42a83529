"""A worker to be killed: `python -m tests.chaos.worker HOOKS LOG URL STAGE` notes in LOG what it does with its leases.

It scores the splits of a queue into messages of the next one, or stores them in a dataset, each under a run of its own.
By files in HOOKS it dies or stops itself at a step, fails once, or fails at one message again and again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from penstock.client import lease as leases
from penstock.client import settling
from penstock.client.client import Client
from penstock.client.connection import Connection
from penstock.client.lease import Lease
from penstock.client.push import Output, settle
from penstock.wire import actions
from penstock.wire.queue import ExtendLeases, LeaseKey, LeaseOutcome

SOURCE, SCORED, SINK = "queue/j/in", "queue/j/scored", "store/sink"
QUEUES = {"score": SOURCE, "store": SCORED}
COLUMNS = ["seq", "key", "text", "amount"]
STEPS = ("loaded", "operated", "forwarding", "answered")
"""Where a worker dies; the third one is at any moment of the call that ends its lease."""
ENDS = ("ack", "release", "fail", "drop", "bury")
TICK = 0.1
LATE = 0.8
"""Seconds without the interpreter or a core, after which leases may lapse without a fault."""
BACKOFF = 0.1
"""Seconds before a message that failed is claimed again, twice as long at each try: five tries are to be quick."""


class Log:
    """The file of what this worker did, a line each, which outlives kill -9."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: str, began: float, **about: Any) -> None:
        line = json.dumps({"event": event, "began": began, "ended": time.monotonic(), **about})
        os.write(self._file, f"{line}\n".encode())


class Worker:
    """One worker of a stage."""

    def __init__(self, hooks: Path, log: Path, stage: str) -> None:
        self.hooks, self.log, self.stage = hooks, Log(log), stage
        threading.Thread(target=self._tick, daemon=True).start()
        leases._SHORTEST_BACKOFF = BACKOFF
        call = Connection.call
        Connection.call = lambda connection, *args, **options: self._call(  # type: ignore[method-assign]
            partial(call, connection), *args, **options
        )
        settling.settle = self._settle  # type: ignore[attr-defined]

    def _tick(self) -> None:
        """Note when this process had no core for a while: its heartbeats were late."""
        while True:
            began = time.monotonic()
            time.sleep(TICK)
            if time.monotonic() - began > LATE:
                self.log.note("late", began)

    # --- what it notes ----------------------------------------------------------------------

    def _call(self, call: Any, action: actions.Action[Any, Any], request: Any, **options: Any) -> Any:
        began = time.monotonic()
        how = action.name.removeprefix("queue.")
        failure = getattr(request, "failure", None)
        if how in ("release", "drop") and failure is not None and failure.error == "WorkerDied":
            how = "bury"  # by the driver of a job
        elif how == "release" and failure is not None:
            how = "fail"
        if how in ENDS:
            self._ending(how, request.leases, None if failure is None else failure.error)
        answer = call(action, request, **options)
        if how == "claim":
            for each in answer.messages:
                about = {"queue": request.path, "id": each.message.message_id, "token": each.token}
                self.log.note("claimed", began, tries=each.tries, **about)
        elif isinstance(request, ExtendLeases):
            states = zip(request.leases, answer.outcomes, strict=True)
            self.log.note("extended", began, tokens=[lease.token for lease, each in states if each.code is None])
        elif how in ENDS:
            for lease, each in zip(request.leases, answer.outcomes, strict=True):
                self.log.note("ended", began, how=how, token=lease.token, code=each.code)
        return answer

    def _settle(
        self, connection: Connection, made: Sequence[tuple[LeaseKey, Sequence[Output]]], *, retry_for: float
    ) -> Sequence[LeaseOutcome]:
        """Note forwards; acks without any output are a call."""
        began, leases = time.monotonic(), [lease for lease, _ in made]
        is_forward = any(outputs for _, outputs in made)
        if is_forward:
            self._ending("forward", leases)
        outcomes = settle(connection, made, retry_for=retry_for)
        if is_forward:
            for lease, each in zip(leases, outcomes, strict=True):
                self.log.note("ended", began, how="forward", token=lease.token, code=each.code)
        return outcomes

    def _ending(self, how: str, leases: Sequence[LeaseKey], error: str | None = None) -> None:
        for lease in leases:
            self.log.note("ending", time.monotonic(), how=how, token=lease.token, error=error)
        if how in ("ack", "forward") and self.takes("worker-crash", "forwarding"):
            threading.Timer(random.uniform(0, 0.02), self._die).start()

    # --- what it does -----------------------------------------------------------------------

    def work(self, c: Client) -> None:
        """Work until the queue is complete."""
        began, path = time.monotonic(), QUEUES[self.stage]
        claims = c.claim(path, prefetch=2) if self.stage == "store" else c.claim(path, to=[SCORED])
        for lease in claims:
            with lease as split:
                self.pass_step("loaded")
                table = split.payload.data
                outputs = scored(table)
                self.pass_step("operated")
                self._stop(lease)
                self.fail(lease.key.message_id)
                if self.stage == "score":
                    lease.forward(SCORED, outputs)
                else:
                    c.put(SINK, table.select(COLUMNS), mode="append", run=split.message.message_id)
            self.log.note("left", began, token=lease.key.token, lost=lease.lost)
            self.pass_step("answered")
        self.log.note("complete", began, queue=path)

    def pass_step(self, step: str) -> None:
        """Die, if that is to happen at this step."""
        if self.takes("worker-crash", step):
            self._die()

    def _die(self) -> None:
        self.log.note("dying", time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)

    def _stop(self, lease: Lease) -> None:
        if self.takes("worker-stop", ""):
            self.log.note("stopped", time.monotonic(), token=lease.key.token)
            lease._queue.heartbeats.forget(lease)  # else they would say first that the lease is over
            (self.hooks / "stopped").write_text(f"{os.getpid()} {lease.key.token}")
            os.kill(os.getpid(), signal.SIGSTOP)

    def fail(self, name: str) -> None:
        """Raise what is to fail at this message, or at any."""
        if self.takes("fail", ""):
            raise RuntimeError("fails once")
        if self.takes("poison", ""):
            (self.hooks / "poisoned.new").write_text(name)
            (self.hooks / "poisoned.new").rename(self.hooks / "poisoned")
        if self._text("poisoned") == name:
            raise ValueError("poison")

    def takes(self, hook: str, step: str) -> bool:
        """Whether the hook is meant for this stage and step; no other worker has it then."""
        if self._text(hook) != f"{self.stage} {step}".strip():
            return False
        try:
            (self.hooks / hook).unlink()
        except FileNotFoundError:
            return False
        return True

    def _text(self, hook: str) -> str:
        try:
            return (self.hooks / hook).read_text()
        except FileNotFoundError:
            return ""


def scored(table: pa.Table) -> list[pa.Table]:
    """Return what is made of a split: one or two tables of its rows, some of them large and with another column."""
    kind, middle = table["seq"][0].as_py() % 3, table.num_rows // 2
    if kind == 0 or middle == 0:
        return [table]
    first, second = table.slice(0, middle), table.slice(middle)
    if kind == 2:
        second = second.append_column("pad", pa.array([bytes(3_000)] * second.num_rows))
    return [first, second]


def main() -> None:
    hooks, log, url, stage = sys.argv[1:]
    worker = Worker(Path(hooks), Path(log), stage)
    with penstock.connect(url) as c:
        worker.work(c)


if __name__ == "__main__":
    main()
