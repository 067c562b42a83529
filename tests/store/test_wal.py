"""The end of SQLite's log: a damage that hides commits is recognized, a crash is no damage."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import Lost
from penstock.store import wal
from penstock.store.database import Database, Tables

TABLES: Tables = {2: "CREATE TABLE t(n INTEGER, text TEXT);"}
COMMITS = 20
PLACES = st.integers(0, 2**32 - 1)
"""Of a bit or a byte in a log, modulo its length."""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """The file and the log of a process that ended by kill -9 after COMMITS commits."""
    path = tmp_path_factory.mktemp("crashed") / "ledger.db"
    sql = sqlite3.connect(path, isolation_level=None)
    sql.execute("PRAGMA journal_mode = WAL")
    sql.execute("CREATE TABLE t(n INTEGER, text TEXT)")
    sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for n in range(COMMITS):
        sql.execute("INSERT INTO t VALUES (?, ?)", (n, "x" * 300))
    file, log = path.read_bytes(), path.with_name("ledger.db-wal").read_bytes()
    sql.close()
    return file, log


def commits_left(folder: Path, file: bytes, log: bytes) -> tuple[int, str | None]:
    """Return how many commits SQLite reads, and the damage that was recognized before."""
    path = folder / "ledger.db"
    path.write_bytes(file)
    path.with_name("ledger.db-wal").write_bytes(log)
    damage = wal.damage(path.with_name("ledger.db-wal"))
    sql = sqlite3.connect(path)
    (count,) = sql.execute("SELECT count(*) FROM t").fetchone()
    sql.close()
    return count, damage


@settings(max_examples=300)
@given(place=PLACES)
def test_every_flipped_bit_that_hides_a_commit_is_recognized(
    crashed: tuple[bytes, bytes], tmp_path_factory: pytest.TempPathFactory, place: int
) -> None:
    file, log = crashed
    bit = place % (len(log) * 8)
    flipped = bytearray(log)
    flipped[bit // 8] ^= 1 << bit % 8
    count, damage = commits_left(tmp_path_factory.mktemp("flip"), file, bytes(flipped))
    assert (count < COMMITS) == (damage is not None)


@settings(max_examples=200)
@given(place=PLACES)
def test_a_log_that_a_crash_cut_is_not_damaged(
    crashed: tuple[bytes, bytes], tmp_path_factory: pytest.TempPathFactory, place: int
) -> None:
    file, log = crashed
    end = place % (len(log) + 1)
    _, damage = commits_left(tmp_path_factory.mktemp("cut"), file, log[:end])
    assert damage is None


def test_frames_of_an_earlier_round_are_not_missed(tmp_path: Path) -> None:
    sql = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    sql.execute("PRAGMA journal_mode = WAL")
    sql.execute("CREATE TABLE t(text TEXT)")
    for _ in range(50):
        sql.execute("INSERT INTO t VALUES (?)", ("x" * 3_000,))
    sql.execute("PRAGMA wal_checkpoint(RESTART)")
    sql.execute("INSERT INTO t VALUES ('the first of the next round')")
    assert wal.damage(tmp_path / "ledger.db-wal") is None
    sql.close()


def test_no_log_is_not_damaged(tmp_path: Path) -> None:
    assert wal.damage(tmp_path / "ledger.db-wal") is None


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A ledger whose log is damaged in the middle."""
    path = tmp_path / "ledger.db"
    database = Database(path, TABLES)
    for _ in range(40):
        database.run(lambda sql: sql.execute("INSERT INTO t VALUES (1, 'x')").rowcount)
    file, log = path.read_bytes(), bytearray(path.with_name("ledger.db-wal").read_bytes())
    database.close()
    log[len(log) // 2] ^= 4
    path.write_bytes(file)
    path.with_name("ledger.db-wal").write_bytes(log)
    return path


def test_a_damaged_log_is_rejected_and_left_as_it_is(damaged: Path) -> None:
    log = damaged.with_name("ledger.db-wal")
    before = log.read_bytes()
    for _ in range(2):
        with pytest.raises(Lost, match=r"SQLite would drop \d+ commits.*--accept-loss"):
            Database(damaged, TABLES)
    assert log.read_bytes() == before


def test_an_accepted_loss_keeps_a_copy_of_the_log(damaged: Path) -> None:
    before = damaged.with_name("ledger.db-wal").read_bytes()
    database = Database(damaged, TABLES, accept_loss=True)
    assert 0 < len(database.rows("SELECT n FROM t")) < 40
    database.close()
    (copy,) = damaged.parent.glob("ledger.db-wal.*")
    assert copy.read_bytes() == before
    Database(damaged, TABLES).close()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True))
def test_a_crash_after_an_accepted_loss_is_no_damage(
    damaged: Path, tmp_path_factory: pytest.TempPathFactory, place: float
) -> None:
    """Frames behind the damage are of commits whose loss is accepted: the supervisor's next start accepts no loss."""
    folder = tmp_path_factory.mktemp("accepted")
    path, names = folder / "ledger.db", ("ledger.db", "ledger.db-wal")
    for name in names:
        shutil.copyfile(damaged.with_name(name), folder / name)
    log = bytearray((folder / names[1]).read_bytes())
    log[int(len(log) * place)] ^= 4
    (folder / names[1]).write_bytes(log)
    database = Database(path, TABLES, accept_loss=True)
    database.run(lambda sql: sql.execute("INSERT INTO t VALUES (2, 'after')").rowcount)
    killed = tmp_path_factory.mktemp("killed")
    for name in names:
        shutil.copyfile(folder / name, killed / name)
    database.close()
    again = Database(killed / "ledger.db", TABLES)
    assert len(again.rows("SELECT n FROM t WHERE n = 2")) == 1
    again.close()


def test_each_change_counts_as_one_commit(tmp_path: Path) -> None:
    database = Database(tmp_path / "ledger.db", TABLES)
    assert database.commits == 0
    database.run(lambda sql: sql.execute("INSERT INTO t VALUES (1, 'x')").rowcount)
    database.run(lambda sql: sql.execute("SELECT * FROM t").fetchall())
    assert database.commits == 1
    ledger = database.id
    database.close()
    again = Database(tmp_path / "ledger.db", TABLES)
    assert (again.id, again.commits) == (ledger, 1)
    again.close()
