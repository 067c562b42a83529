"""How each kind of fault is done to a world. Its length is the fault's; what comes of it is waited for."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.driver import ROWS
from tests.chaos.spark import kill
from tests.chaos.world import World
from tests.kit.faults import files_at_most
from tests.kit.server import named_parts

STEPS = (
    "part.synced", "part.named", "append.durable", "append.committed", "put.durable", "put.recorded",
    "finish.checked", "finish.shown",
)  # fmt: skip
TOO_OLD = "the checkpoint is older than what this query has committed"


def server_killed(world: World, dice: random.Random) -> None:
    """kill -9; for a second or so nobody is there."""
    world.server.process.kill()
    time.sleep(dice.uniform(0, 1.5))
    world.server.start()


def _dies_at(world: World, step: str) -> None:
    (world.server.hooks / "crash").write_text(step)
    world.allowed = max(world.allowed, world.ledger.asked + 2_000)  # somebody is to pass there
    give_up = time.monotonic() + 20
    while not world.server.is_dead():
        if time.monotonic() > give_up:  # nobody passes there, as Spark is starting anew
            (world.server.hooks / "crash").unlink(missing_ok=True)
            world.server.process.kill()
        time.sleep(0.01)


def server_killed_at_a_step(world: World, dice: random.Random) -> None:
    _dies_at(world, dice.choice(STEPS))
    world.server.start()


def answer_lost(world: World, dice: random.Random) -> None:
    """Rows are durable and shown, and nobody is told: they are sent again."""
    _dies_at(world, "append.committed")
    world.server.start()


def orphans_damaged(world: World, dice: random.Random) -> None:
    """A crash leaves parts that no row names and a ledger with a tail: bits of them are turned, pieces cut off.

    What was answered for isn't touched, as that could not come back.
    """
    _dies_at(world, "append.durable")
    data = world.server.data
    named = named_parts_of(data)
    orphans = [file for file in (data / "parts").rglob("*") if file.is_file() and file.name not in named]
    some = next(file for file in (data / "parts").rglob("*") if file.is_file())
    for copy in (data / "tmp" / "torn", some.with_name(f"{some.name[:2]}-torn")):
        shutil.copyfile(some, copy)
        orphans.append(copy)
    for file in orphans:
        damaged = bytearray(file.read_bytes())
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        file.write_bytes(damaged[: dice.randrange(1, len(damaged))] if dice.random() < 0.5 else damaged)
    with (data / "ledger.db-wal").open("ab") as wal:
        wal.write(dice.randbytes(dice.randrange(1, 9_000)))
    world.server.start()


def named_parts_of(data: Path) -> set[str]:
    """What a dead server's ledger names; asked of a copy, as asking would settle the log that the crash has left."""
    aside = data.parent / "aside"
    aside.mkdir(exist_ok=True)
    for name in ("ledger.db", "ledger.db-wal"):
        shutil.copyfile(data / name, aside / name)
    try:
        return named_parts(aside)
    finally:
        shutil.rmtree(aside)


def server_stopped(world: World, dice: random.Random) -> None:
    kill(world.server.process.pid, signal.SIGSTOP)
    time.sleep(dice.uniform(1, 4))
    kill(world.server.process.pid, signal.SIGCONT)


def clock_jumps(world: World, dice: random.Random) -> None:
    """From now on the server's time is wrong by up to three hours, the one way or the other."""
    (world.server.hooks / "clock").write_text(str(dice.uniform(-10_800, 10_800)))


def disk_full(world: World, dice: random.Random) -> None:
    """No file may grow: for parts, or for the ledger as well."""
    held = (world.server.data / "ledger.db-wal").stat().st_size
    with files_at_most(world.server.process, dice.choice((4_096, max(held, 4_096)))):
        time.sleep(dice.uniform(0.5, 1.5))


def _fsync(world: World, how: str, seconds: float) -> None:
    file = world.server.hooks / "fsync"
    file.with_suffix(".new").write_text(how)
    file.with_suffix(".new").rename(file)
    time.sleep(seconds)
    file.unlink()


def fsync_fails(world: World, dice: random.Random) -> None:
    _fsync(world, "fails", dice.uniform(0.3, 1.0))


def fsync_slow(world: World, dice: random.Random) -> None:
    _fsync(world, "0.3", 2)


def cut(world: World, dice: random.Random) -> None:
    """All connections, once some more bytes have passed, so in the middle of something."""
    cuts = world.wire.cuts
    world.wire.cut_after(dice.randrange(1, 60_000))
    world.until(lambda: world.wire.cuts > cuts, "something passes")


def reset(world: World, dice: random.Random) -> None:
    world.wire.reset()


def half_open(world: World, dice: random.Random) -> None:
    with world.wire.half_open():
        time.sleep(dice.uniform(1, 4))


def latency(world: World, dice: random.Random) -> None:
    with world.wire.slow(delay=dice.uniform(0.02, 0.2)):
        time.sleep(2)


def throttled(world: World, dice: random.Random) -> None:
    with world.wire.slow(rate=dice.uniform(50_000, 500_000)):
        time.sleep(2)


def worker_killed(world: World, dice: random.Random) -> None:
    kill(dice.choice(world.until(world.driver.workers, "Spark has a Python worker")))


def worker_stopped(world: World, dice: random.Random) -> None:
    pid = world.until(world.driver.workers, "Spark has a Python worker")[0]
    kill(pid, signal.SIGSTOP)
    time.sleep(dice.uniform(1, 3))
    kill(pid, signal.SIGCONT)


def executor_killed(world: World, dice: random.Random) -> None:
    kill(dice.choice(world.until(world.driver.executors, "Spark has an executor")))


def source_killed(world: World, dice: random.Random) -> None:
    """The process in which the source plans: the query fails, and is started again by its driver."""
    ends = len(world.driver.ends())
    for pid in world.until(world.driver.sources, "Spark has a source"):
        kill(pid)
    world.until(lambda: len(world.driver.ends()) > ends, "the query has failed")


def driver_killed(world: World, dice: random.Random) -> None:
    world.driver.kill()
    world.driver.start()


def commit_unlogged(world: World, dice: random.Random) -> None:
    """The driver died between the sink's commit and Spark's: of a batch that no other one is planned behind."""
    commits, offsets = world.driver.checkpoint / "commits", world.driver.checkpoint / "offsets"
    while True:
        world.until(lambda: _last(commits) == _last(offsets) > 0, "Spark has done all that it planned")
        world.driver.kill()
        last = _last(commits)
        if last == _last(offsets):
            break
        world.driver.start()
    for file in (commits / str(last), commits / f".{last}.crc"):
        file.unlink(missing_ok=True)
    world.driver.start()


def _last(log: Path) -> int:
    """Its newest batch, or -1."""
    return max((int(file.name) for file in log.glob("[0-9]*") if file.name.isdecimal()), default=-1)


def older_checkpoint(world: World, dice: random.Random) -> None:
    """The checkpoint is put back to what it was some batches ago, and the query says so; then the newest one is."""
    checkpoint = world.driver.checkpoint
    older, newest = world.folder / "older", world.folder / "newest"
    world.until(lambda: _copied(checkpoint, older), "a copy of the checkpoint")
    copied = world.watch.landed
    world.allowed = max(world.allowed, world.ledger.asked + 4 * ROWS)
    world.until(lambda: world.watch.committed > copied + 2 * ROWS, "some more batches are done")
    world.driver.kill()
    checkpoint.rename(newest)
    older.rename(checkpoint)
    ends = len(world.driver.ends())
    world.driver.start()
    world.until(lambda: any(TOO_OLD in end for end in world.driver.ends()[ends:]), "the query says so")
    world.driver.kill()
    shutil.rmtree(checkpoint)
    newest.rename(checkpoint)
    world.driver.start()


def _copied(checkpoint: Path, copy: Path) -> bool:
    """Whether nothing was renamed meanwhile."""
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns("*.tmp"))
    except (OSError, shutil.Error):
        return False
    return True


def run_sent_again(world: World, dice: random.Random) -> None:
    """A producer sends what was answered for once more, under the same run."""
    dice.choice(world.producers).again.set()


FAULTS: dict[str, Callable[[World, random.Random], None]] = {
    "server killed": server_killed,
    "server killed at a step": server_killed_at_a_step,
    "server stopped": server_stopped,
    "server's clock jumps": clock_jumps,
    "answer lost": answer_lost,
    "run sent again": run_sent_again,
    "orphans damaged": orphans_damaged,
    "disk full": disk_full,
    "fsync fails": fsync_fails,
    "fsync slow": fsync_slow,
    "connections cut": cut,
    "connections reset": reset,
    "half-open": half_open,
    "latency": latency,
    "throttled": throttled,
    "worker killed": worker_killed,
    "worker stopped": worker_stopped,
    "executor killed": executor_killed,
    "source killed": source_killed,
    "driver killed": driver_killed,
    "commit unlogged": commit_unlogged,
    "older checkpoint": older_checkpoint,
}
