"""A server's life: one process per data folder, the drain, and the recovery at the next start."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.errors import Unavailable
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.lifecycle import CUT, data_folder, serving
from scripts.child import free_port
from tests.kit.server import ANY_PORT, ProcessServer, named_parts, process_server
from tests.kit.wait import eventually, files
from tests.kit.wire import (
    at,
    attempt_of,
    await_drain,
    begun_put,
    call,
    error_details,
    fetch,
    ids,
    info,
    list_paths,
    new_attempt,
    put,
    trailer,
    trips,
)

# --- the end -------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_refuses_new_work_and_lets_streams_end(tmp_path: Path, number: int) -> None:
    with process_server(tmp_path / "d", drain=30) as server, flight.connect(server.url) as bare:
        ticket = call(bare, "write.open", path="store/open")["ticket"]
        attempt = new_attempt()
        put(bare, attempt_of(ticket, attempt), [trips(7)])
        writer, reader = begun_put(bare)

        server.process.send_signal(number)
        refusal = await_drain(bare)

        assert error_details(refusal)["code"] == "unavailable"
        assert error_details(refusal)["retry_after"] > 0
        with pytest.raises(flight.FlightUnavailableError, match="shutting down"):
            call(bare, "write.open", path="store/new")
        with pytest.raises(flight.FlightUnavailableError, match="shutting down"):
            put(bare, at("store/new"), [trips(1)])
        assert call(bare, "write.finish", ticket=ticket, attempts=[attempt])["state"] == "finished"
        writer.write_batch(trips(2))
        writer.write_metadata(trailer(2, 2))
        writer.done_writing()
        assert json.loads(reader.read().to_pybytes())["rows"] == 2
        writer.close()
        assert server.process.wait(20) == 0

    with process_server(tmp_path / "d") as server, flight.connect(server.url) as bare:
        assert list_paths(bare) == ["store/open", "store/slow"]
        assert ids(bare, "store/slow") == [1, 2]


@pytest.mark.process
def test_calls_cut_by_the_deadline_show_in_the_exit_code(tmp_path: Path) -> None:
    with process_server(tmp_path / "d", drain=0.3) as server, flight.connect(server.url) as bare:
        begun_put_stays = begun_put(bare)
        assert server.terminate() == CUT == 3
        assert "1 calls were cut" in server.log()
        with pytest.raises(flight.FlightUnavailableError):
            begun_put_stays[0].close()


@pytest.mark.process
def test_readyz_says_draining_until_the_end(tmp_path: Path) -> None:
    http = f"127.0.0.1:{free_port()}"
    with process_server(tmp_path / "d", http=http) as server, flight.connect(server.url) as bare:
        with urllib.request.urlopen(f"http://{http}/readyz", timeout=10) as answer:
            assert answer.status == 200
        writer, _ = begun_put(bare)
        server.process.send_signal(signal.SIGTERM)
        await_drain(bare)
        with pytest.raises(urllib.error.HTTPError, match="503") as caught:
            urllib.request.urlopen(f"http://{http}/readyz", timeout=10)
        caught.value.close()
        with pytest.raises(flight.FlightError, match="trailer"):
            writer.close()
        assert server.process.wait(20) == 0


# --- the start -----------------------------------------------------------------------------


@pytest.mark.process
def test_after_a_kill_datasets_are_whole_orphans_set_aside(tmp_path: Path) -> None:
    data = tmp_path / "d"
    large = pa.RecordBatch.from_pydict({"noise": [os.urandom(1 << 20) for _ in range(9)]})
    with process_server(data) as server, flight.connect(server.url) as bare:
        put(bare, at("store/kept"), [trips(1, 2), trips(3)])
        writer, _ = bare.do_put(at("store/lost"), large.schema)
        writer.write_batch(large)
        writer.write_batch(large)
        eventually(lambda: len(files(data / "parts")) > 1, what="a part of the put is on disk")
        server.kill()
        with pytest.raises(flight.FlightUnavailableError):
            writer.close()
    (data / "tmp" / "left-over").write_bytes(b"half a part")
    assert files(data / "parts") > named_parts(data)

    with process_server(data) as server, flight.connect(server.url) as bare:
        assert list_paths(bare) == ["store/kept"]
        assert ids(bare, "store/kept") == [1, 2, 3]
        assert files(data / "parts") == named_parts(data)
        assert files(data / "tmp") == set()
        assert "set aside" in server.log()


@pytest.mark.process
def test_tickets_survive_a_restart(tmp_path: Path) -> None:
    with process_server(tmp_path / "d") as server, flight.connect(server.url) as bare:
        put(bare, at("store/x"), [trips(1, 2)])
        reading = info(bare, "store/x")
        writing = call(bare, "write.open", path="store/y")["ticket"]
        first = new_attempt()
        put(bare, attempt_of(writing, first), [trips(3)])
        call(bare, "delete", path="store/x")
        server.kill()

    with process_server(tmp_path / "d") as server, flight.connect(server.url) as bare:
        assert fetch(bare, reading).column("id").to_pylist() == [1, 2]
        second = new_attempt()
        put(bare, attempt_of(writing, second), [trips(4)])
        call(bare, "write.finish", ticket=writing, attempts=[second, first])
        assert ids(bare, "store/y") == [4, 3]


@pytest.mark.process
def test_a_data_folder_takes_one_server(tmp_path: Path) -> None:
    with process_server(tmp_path / "d") as server:
        second = ServerConfig(data=tmp_path / "d", listen=ANY_PORT, http=None, patience=0.3)
        with (
            pytest.raises(Unavailable, match=rf"in use by another penstock server \(process {server.pid}\)"),
            serving(second),
        ):
            pass
        server.kill()
        with serving(second) as now:
            assert now.port > 0


@pytest.mark.process
def test_the_server_runs_with_lean_memory_under_its_memory_limit(tmp_path: Path) -> None:
    def limit(server: ProcessServer, name: str) -> str:
        lines = Path(f"/proc/{server.pid}/limits").read_text().splitlines()
        return next(line for line in lines if line.startswith(name)).removeprefix(name).split()[0]

    with process_server(tmp_path / "d", memory_limit=900 << 20) as server:
        assert limit(server, "Max stack size") == str(1 << 20)
        assert limit(server, "Max data size") == str(900 << 20)


def test_a_data_folder_is_readable_by_its_user_alone(tmp_path: Path) -> None:
    with serving(ServerConfig(data=tmp_path / "d", listen=ANY_PORT)) as server, flight.connect(server.url) as bare:
        put(bare, at("store/x"), [trips(1)])
        kept = [tmp_path / "d", *(tmp_path / "d").rglob("*")]
        open_to_others = {path.name for path in kept if path.stat().st_mode & 0o077}
    assert open_to_others - {"lock"} == set()  # it holds the process's number


def test_a_damaged_ticket_key_is_named(tmp_path: Path) -> None:
    settings = ServerConfig(data=tmp_path / "d", listen=ANY_PORT)
    with data_folder(settings):
        pass
    (tmp_path / "d" / "key").write_bytes(b"short")
    with pytest.raises(Exception, match="has 5 bytes instead of 32"), data_folder(settings):
        pass
