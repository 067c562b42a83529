"""The rig's faults: of the server, its disk and clock, and the connections. Each lasts as long as its function runs."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.flight as flight

from tests.chaos.rig import Rig
from tests.kit.faults import blank, cut, files_at_most, flip, noise
from tests.kit.server import named_parts
from tests.kit.wire import call, error_code, read


def server_killed(rig: Rig, dice: random.Random) -> None:
    """kill -9; for a second or so there is no server."""
    rig.server.process.kill()
    time.sleep(dice.uniform(0, 1.5))
    rig.server.start()


def kill_at(rig: Rig, step: str, within: float = 20.0) -> None:
    """Kill the server at a step that rows pass; it is not started again."""
    crash = rig.server.hooks / "crash"
    crash.write_text(step)
    rig.allow(rig.rows // 100)  # rows that pass the step
    give_up = time.monotonic() + within
    while not rig.server.is_dead():
        if time.monotonic() > give_up:  # none passes it, as the workload is starting anew
            crash.unlink(missing_ok=True)
            rig.server.process.kill()
        rig.workload.check()
        time.sleep(0.01)


def server_killed_at(rig: Rig, step: str) -> None:
    kill_at(rig, step)
    rig.server.start()


def orphans_damaged(rig: Rig, dice: random.Random, step: str) -> None:
    """A crash leaves parts without a row, and a tail of the ledger's log: flip bits of them, cut pieces off."""
    kill_at(rig, step)
    data = rig.server.data
    named = named_parts_of(data)
    orphans = [file for file in (data / "parts").rglob("*") if file.is_file() and file.name not in named]
    some = next(file for file in (data / "parts").rglob("*") if file.is_file())
    for copy in (data / "tmp" / "torn", some.with_name(f"{some.name[:2]}-torn")):
        shutil.copyfile(some, copy)
        orphans.append(copy)
    for file in orphans:
        file.write_bytes(dice.choice((flip, cut))(file.read_bytes(), dice))
    with (data / "ledger.db-wal").open("ab") as wal:
        wal.write(dice.randbytes(dice.randrange(1, 9_000)))
    rig.server.start()


def named_parts_of(data: Path) -> set[str]:
    """Return the parts that a dead server's ledger names, from a copy: a query would settle the log of the crash."""
    aside = data.parent / "aside"
    aside.mkdir(exist_ok=True)
    for name in ("ledger.db", "ledger.db-wal"):
        shutil.copyfile(data / name, aside / name)
    try:
        return named_parts(aside)
    finally:
        shutil.rmtree(aside)


def live_part_damaged(rig: Rig, dice: random.Random, path: str) -> None:
    """Damage the newest part of a topic: whoever reads its rows is told its name. Then put it back, as from a backup.

    It has been read before, so it is mapped. If compaction replaces it meanwhile, another one is damaged.
    """
    data, is_refused = rig.server.data, False
    while not is_refused:
        name, *rows = newest_part(data, path)
        file, quarantined = data / "parts" / name[:2] / name, data / "quarantine" / name
        with contextlib.suppress(flight.FlightError):  # it was compacted just now
            read_rows(rig, path, *rows)
        with contextlib.suppress(FileNotFoundError):
            whole = damaged = file.read_bytes()
            while damaged == whole:
                damaged = dice.choice((flip, cut, blank, noise))(whole, dice)
            rig.damaged.add(name)
            _replace(file, damaged)
            try:
                is_refused = is_lost_by_name(rig, path, name, *rows)
                time.sleep(dice.uniform(0, 1.5))  # the workload may meet it, too
            finally:
                _replace(file, whole)
                quarantined.unlink(missing_ok=True)
                if name not in named_parts(data):
                    file.unlink()
        assert is_refused or newest_part(data, path)[0] != name, f"the damage of part {name} is not noticed"


def newest_part(data: Path, path: str) -> tuple[str, int, int, int]:
    """Return the last part of a topic's longest shard, the shard, and the offsets of its rows."""
    query = "SELECT part, shard, first, first + rows FROM journal WHERE path = ? ORDER BY first DESC LIMIT 1"
    with contextlib.closing(sqlite3.connect(data / "ledger.db")) as ledger:
        newest: tuple[str, int, int, int] = ledger.execute(query, (path,)).fetchone()
    return newest


def read_rows(rig: Rig, path: str, shard: int, first: int, end: int) -> None:
    with flight.connect(rig.server.url) as bare:
        ends = {str(shard["shard"]): shard["next"] for shard in call(bare, "describe", path=path)["shards"]}
        read(bare, path, start={**ends, str(shard): first}, end={str(shard): end})


def is_lost_by_name(rig: Rig, path: str, name: str, *rows: int) -> bool:
    """Whether a read of these rows fails, and names the part."""
    try:
        read_rows(rig, path, *rows)
    except flight.FlightError as error:
        return error_code(error) == "lost" and name in str(error)
    return False


def _replace(file: Path, raw: bytes) -> None:
    """Replace a file at once: a map of one that is cut in place would end the server."""
    copy = file.with_name(f"{file.name}.copy")
    copy.write_bytes(raw)
    copy.rename(file)


def server_stopped(rig: Rig, dice: random.Random) -> None:
    rig.server.process.process.send_signal(signal.SIGSTOP)
    time.sleep(dice.uniform(1, 4))
    rig.server.process.process.send_signal(signal.SIGCONT)


def clock_jumps(rig: Rig, dice: random.Random) -> None:
    """From now on the server's time is wrong by up to three hours, forwards or back."""
    (rig.server.hooks / "clock").write_text(str(dice.uniform(-10_800, 10_800)))


def disk_full(rig: Rig, dice: random.Random) -> None:
    """No file may grow: of parts, or of the ledger as well."""
    log = (rig.server.data / "ledger.db-wal").stat().st_size
    with files_at_most(rig.server.process, dice.choice((4_096, max(log, 4_096)))):
        time.sleep(dice.uniform(0.5, 1.5))


def _fsync(rig: Rig, how: str, seconds: float) -> None:
    file = rig.server.hooks / "fsync"
    file.with_suffix(".new").write_text(how)
    file.with_suffix(".new").rename(file)
    time.sleep(seconds)
    file.unlink()


def fsync_fails(rig: Rig, dice: random.Random) -> None:
    _fsync(rig, "fails", dice.uniform(0.3, 1.0))


def fsync_slow(rig: Rig, dice: random.Random) -> None:
    _fsync(rig, "0.3", 2)


def connections_cut(rig: Rig, dice: random.Random) -> None:
    """Cut all connections once some more bytes have passed, so in the middle of something."""
    cuts = rig.proxy.cuts
    rig.proxy.cut_after(dice.randrange(1, 60_000))
    rig.until(lambda: rig.proxy.cuts > cuts, "something passes")


def reset(rig: Rig, dice: random.Random) -> None:
    rig.proxy.reset()


def half_open(rig: Rig, dice: random.Random) -> None:
    with rig.proxy.half_open():
        time.sleep(dice.uniform(1, 4))


def latency(rig: Rig, dice: random.Random) -> None:
    with rig.proxy.slow(delay=dice.uniform(0.02, 0.2)):
        time.sleep(2)


def throttled(rig: Rig, dice: random.Random) -> None:
    with rig.proxy.slow(rate=dice.uniform(50_000, 500_000)):
        time.sleep(2)


def run_sent_again(rig: Rig, dice: random.Random) -> None:
    """A producer sends what was answered for once more, under the same run."""
    dice.choice(rig.producers).again.set()


FAULTS: dict[str, Callable[[Rig, random.Random], None]] = {
    "server killed": server_killed,
    "server stopped": server_stopped,
    "server's clock jumps": clock_jumps,
    "run sent again": run_sent_again,
    "disk full": disk_full,
    "fsync fails": fsync_fails,
    "fsync slow": fsync_slow,
    "connections cut": connections_cut,
    "connections reset": reset,
    "half-open": half_open,
    "latency": latency,
    "throttled": throttled,
}
"""The faults of every workload. Others need to know its steps or its path."""
