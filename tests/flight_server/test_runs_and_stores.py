"""Runs happen once; a store has one owner, and a full one says when there will be room."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.client import Client, connect
from penstock.errors import AlreadyExists, InvalidRequest, Lost, StoreFull, Unavailable
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.lifecycle import data_folder
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.server import PenstockServer
from penstock.store.disk import DiskMedium
from tests.kit.faults import Crash
from tests.kit.server import served
from tests.kit.wire import at, call, list_paths, new_attempt, put, trips

TABLE = pa.table({"n": [1, 2, 3]})


def test_a_run_has_one_mode(client: Client) -> None:
    client.put("store/t", TABLE)
    client.call("write.open", {"path": "store/t", "mode": "overwrite", "run": "r"})
    with pytest.raises(InvalidRequest, match="'overwrite', now with 'append'"):
        client.put("store/t", TABLE, mode="append", run="r")
    assert client.info("store/t").rows == 3


def test_one_put_does_not_join_a_write_of_many_attempts(client: Client) -> None:
    client.call("write.open", {"path": "store/t", "run": "r"})
    with pytest.raises(AlreadyExists, match="another run"):
        client.put("store/t", TABLE, run="r")
    assert [entry.kind for entry in client.list("write/")] == ["write"]


def test_a_put_that_fails_leaves_the_other_of_its_run_alone(client: Client) -> None:
    first = client.writer("store/t", TABLE.schema, run="r")
    first.write(TABLE)
    second = client.writer("store/t", TABLE.schema, run="r")
    second.write(TABLE)
    second.abandon()
    assert first.close().rows == 3
    assert client.get("store/t").read_all() == TABLE


def test_a_full_store_says_when_what_tickets_hold_is_free(make_server: Callable[..., PenstockServer]) -> None:
    table = pa.table({"n": range(10_000)})
    with connect(make_server(quota=100_000, ticket_life=3 * 3_600.0).url) as client:
        client.put("store/t", table)
        with pytest.raises(StoreFull, match=r"penstock rm") as full:
            client.put("store/u", table)
        assert "tickets until" not in str(full.value)
        client.get("store/t").read_all()
        client.delete("store/t")
        end = datetime.now(UTC) + timedelta(hours=3)
        with pytest.raises(StoreFull, match=r"80\.\d kB are deleted, but held by read tickets until .*in 3 h") as full:
            client.put("store/u", table)
        assert any(f"until {end + timedelta(minutes=late):%H:%M} UTC" in str(full.value) for late in range(-1, 3))


@pytest.mark.faults
def test_a_slow_disk_is_not_a_silent_client(
    make_server: Callable[..., PenstockServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = DiskMedium.write

    def slow(*arguments: Any) -> Any:
        time.sleep(1.5)  # longer than a client may be silent
        return write(*arguments)

    monkeypatch.setattr(DiskMedium, "write", slow)
    server = make_server(limits=ServerLimits(put_idle=1), watch_every=0.1)
    with connect(server.url) as client:
        assert client.put("store/t", TABLE).rows == 3


def test_parts_in_quarantine_show_in_health_and_metrics(server: PenstockServer, client: Client) -> None:
    assert client.call("health")["quarantined_parts"] == 0
    assert "\npenstock_quarantined_parts 0.0\n" in server.state.metrics.text()
    client.put("store/t", TABLE)
    (name,) = server.state.ledger.part_names()
    assert isinstance(server.state.store.medium, DiskMedium)
    server.state.store.medium._path_of(name).write_bytes(b"rot")
    with pytest.raises(Lost):
        client.get("store/t").read_all()
    assert client.call("health")["quarantined_parts"] == 1
    assert "\npenstock_quarantined_parts 1.0\n" in server.state.metrics.text()


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_a_put_that_comes_again_after_a_delete_is_answered(bare: flight.FlightClient, mode: str) -> None:
    """Its answer was lost: it gets it, and brings nothing back."""
    once = at("store/a", attempt=new_attempt(), mode=mode, run="nightly")
    receipt = put(bare, once, [trips(1, 2)])
    call(bare, "delete", path="store/a")
    assert put(bare, once, [trips(1, 2)]) == receipt
    assert list_paths(bare) == []


def test_a_store_is_of_one_data_folder(tmp_path: Path) -> None:
    store = f"disk:{tmp_path / 'store'}"
    with served(tmp_path / "a", store=store) as server, connect(server.url) as client:
        client.put("store/t", TABLE)
        with (
            pytest.raises(Unavailable, match="in use by another penstock"),
            served(tmp_path / "b", store=store, patience=0.1),
        ):
            pass
        assert client.get("store/t").read_all() == TABLE
    with pytest.raises(InvalidRequest, match="belongs to another data folder"), served(tmp_path / "b", store=store):
        pass


def test_a_store_whose_ledger_knows_of_no_put_yet_starts_again(tmp_path: Path) -> None:
    """The server was killed in its first put to a topic: the part is stored, and no row names it yet."""
    settings = ServerConfig(data=tmp_path / "data", listen="grpc://127.0.0.1:0")
    with data_folder(settings) as (_, store, _):
        store.write("first-000000", TABLE.schema, TABLE.to_batches(), path="store/a")
    with served(settings.data) as server, connect(server.url) as client:
        assert not list((tmp_path / "data" / "parts").rglob("*-000000"))
        client.put("store/t", TABLE)


def test_a_crash_while_a_store_gets_its_owner_leaves_it_free(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with mock.patch("os.rename", side_effect=Crash), pytest.raises(Crash), served(data):
        pass
    for _ in range(2):
        with served(data) as server, connect(server.url) as client:
            client.put("store/t", TABLE, mode="append")


def test_a_new_ledger_does_not_start_over_a_store_with_parts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with served(data) as server, connect(server.url) as client:
        client.put("store/t", TABLE)
    for file in data.glob("ledger.db*"):
        file.unlink()
    with pytest.raises(InvalidRequest, match="restore"), served(data):
        pass
    assert list((data / "parts").rglob("*-000000"))
