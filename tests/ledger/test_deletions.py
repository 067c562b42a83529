"""Deleted datasets: they come back whole while their bytes are kept, and their bytes go when room is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client.client import Client, connect
from penstock.errors import AlreadyExists, NotFound, StoreFull
from penstock.flight_server.server import PenstockServer
from penstock.ledger.ledger import Ledger
from penstock.ledger.sweep import make_room
from penstock.wire.put import DatasetOptions
from tests.kit.clock import Clock
from tests.kit.ledger import PATH, finish_write, make_attempt, part_names, visible_parts
from tests.kit.server import served
from tests.kit.wait import eventually, files

TABLE = pa.table({"id": range(10_000)})
HOUR = 3600.0


def always(name: str) -> bool:
    return True


# --- the ledger -----------------------------------------------------------------------------


@pytest.fixture
def names(ledger: Ledger) -> list[str]:
    """The parts of a dataset of two writes, in order."""
    first, second = make_attempt(1, 2), make_attempt(4)
    finish_write(ledger, first)
    finish_write(ledger, second, mode="append")
    return part_names(first, second)


def test_a_deleted_dataset_is_what_it_was(ledger: Ledger, names: list[str], clock: Clock) -> None:
    before = ledger.dataset(PATH)
    ledger.delete(PATH, until=clock.now() + HOUR)
    assert (visible_parts(ledger), ledger.freeable()) == ([], [])
    clock.advance(HOUR - 1)
    ledger.expire()
    assert ledger.undelete(PATH, always) == before
    assert visible_parts(ledger) == names
    assert (ledger.freeable(), ledger.held_by_tickets()[0]) == ([], 0)
    ledger.delete(PATH)
    assert sorted(ledger.freeable()) == sorted(names)


def test_a_time_to_live_begins_anew(ledger: Ledger, clock: Clock) -> None:
    write = ledger.open_write(PATH, dataset=DatasetOptions(ttl=60.0))
    ledger.finish_single(write.id, make_attempt(1))
    ledger.delete(PATH, until=clock.now() + HOUR)
    clock.advance(61)
    assert ledger.undelete(PATH, always).expires == clock.now() + 60


def test_it_is_gone_once_its_time_is_over(ledger: Ledger, names: list[str], clock: Clock) -> None:
    ledger.delete(PATH, until=clock.now() + HOUR)
    clock.advance(HOUR)
    with pytest.raises(NotFound, match=f"no deleted dataset at {PATH}"):
        ledger.undelete(PATH, always)
    assert sorted(ledger.freeable()) == sorted(names)
    ledger.expire()
    assert ledger.database.rows("SELECT * FROM deletions") == []


def test_its_bytes_go_when_their_room_is_needed(ledger: Ledger, names: list[str], clock: Clock) -> None:
    """But for those that tickets name."""
    finish_write(ledger, read := make_attempt(8), path="store/read")
    ledger.hold("store/read", clock.now() + 2 * HOUR)
    for path in (PATH, "store/read"):
        ledger.delete(path, until=clock.now() + HOUR)
    assert ledger.give_up_deleted() == 2
    assert sorted(ledger.freeable()) == sorted(names)
    for path in (PATH, "store/read"):
        with pytest.raises(NotFound, match="or its bytes went as their room was needed"):
            ledger.undelete(path, always)
    clock.advance(2 * HOUR + 60)
    assert set(ledger.freeable()) == {*names, *part_names(read)}


def test_only_the_last_one_at_a_path_comes_back(ledger: Ledger, names: list[str], clock: Clock) -> None:
    ledger.delete(PATH, until=clock.now() + HOUR)
    finish_write(ledger, newer := make_attempt(9))
    with pytest.raises(AlreadyExists, match="exists: nothing can come back"):
        ledger.undelete(PATH, always)
    ledger.delete(PATH, until=clock.now() + HOUR)
    assert sorted(ledger.freeable()) == sorted(names), "nothing holds the first one's any more"
    ledger.undelete(PATH, always)
    assert visible_parts(ledger) == part_names(newer)
    ledger.delete(PATH)
    with pytest.raises(NotFound):
        ledger.undelete(PATH, always)


def test_a_path_that_is_taken_takes_none_back(ledger: Ledger, names: list[str], clock: Clock) -> None:
    ledger.delete(PATH, until=clock.now() + HOUR)
    finish_write(ledger, make_attempt(1), path=f"{PATH}/below")
    with pytest.raises(AlreadyExists, match="is a folder with datasets in it"):
        ledger.undelete(PATH, always)


def test_without_all_its_bytes_it_stays_away(ledger: Ledger, names: list[str], clock: Clock) -> None:
    """As after a restore from a backup, which has none of deleted datasets."""
    ledger.delete(PATH, until=clock.now() + HOUR)
    with pytest.raises(NotFound, match="bytes of it are gone"):
        ledger.undelete(PATH, lambda name: name != names[1])
    assert visible_parts(ledger) == []


# --- at a server ----------------------------------------------------------------------------


def test_rows_and_runs_come_back_also_after_a_restart(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server, connect(server.url) as client:
        client.put("store/x", TABLE, run="nightly")
        client.put("store/x", TABLE, mode="append")
        assert client.delete("store/x")["until"] > 0
    with served(tmp_path / "data") as server, connect(server.url) as client:
        assert client.undelete("store/x")["rows"] == 20_000
        client.put("store/x", TABLE, run="nightly")
        assert client.get("store/x").read_all() == pa.concat_tables([TABLE, TABLE])
        client.put("store/x", TABLE.slice(0, 1), mode="append")
        assert client.info("store/x").rows == 20_001


def test_a_put_that_needs_the_room_gets_it(make_server: Callable[..., PenstockServer], tmp_path: Path) -> None:
    with connect(make_server(quota=100_000).url) as client:
        for path in ("store/x", "store/y", "store/z"):
            client.put(path, TABLE)
            client.delete(path)
        assert len(files(tmp_path / "data" / "parts")) == 1
        assert client.undelete("store/z")["rows"] == 10_000
        with pytest.raises(NotFound):
            client.undelete("store/y")
        with pytest.raises(StoreFull):
            client.put("store/w", TABLE)


def test_bytes_go_at_once_where_that_is_wanted(make_server: Callable[..., PenstockServer], tmp_path: Path) -> None:
    with connect(make_server().url) as client:
        client.put("store/x", TABLE)
        assert "until" not in client.delete("store/x", now=True)
        eventually(lambda: not files(tmp_path / "data" / "parts"))
        with pytest.raises(NotFound):
            client.undelete("store/x")


def test_a_full_store_keeps_nothing_for_undelete(make_server: Callable[..., PenstockServer], tmp_path: Path) -> None:
    with connect(make_server(quota=81_500).url) as client:
        client.put("store/x", TABLE)
        assert "until" not in client.delete("store/x")
        eventually(lambda: not files(tmp_path / "data" / "parts"))
        with pytest.raises(NotFound):
            client.undelete("store/x")


def test_room_is_made_for_nothing_but_deleted_things(server: PenstockServer, client: Client) -> None:
    client.put("store/x", TABLE)
    assert not make_room(server.state.ledger, server.state.store)
    client.delete("store/x")
    assert make_room(server.state.ledger, server.state.store)
    assert client.call("health")["ticketed_bytes"] == 0
