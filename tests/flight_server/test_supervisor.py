"""The supervisor: a server that a signal ends comes back on its ports, with all that it acknowledged."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from urllib.request import urlopen
from uuid import uuid4

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.cli import app
from penstock.client.client import connect
from penstock.flight_server import supervisor
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.lifecycle import data_folder
from penstock.ledger.attempts import Attempt
from scripts.child import free_port
from tests.kit.cli import LIMIT, PENSTOCK, ROOT, Served, environment, serving
from tests.kit.processes import kill
from tests.kit.wait import eventually
from tests.kit.wire import await_drain, begun_put, list_paths, trailer

pytestmark = [pytest.mark.process, pytest.mark.faults]
SMALL = 15 << 20
KILLS = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV)


@contextmanager
def served(folder: Path, *flags: str) -> Iterator[Served]:
    """`penstock serve` on any port, with its data and its log in a folder."""
    with serving(
        folder / "log", "--listen", "grpc://127.0.0.1:0", "--http", "off", "--data", str(folder / "data"), *flags
    ) as running:
        yield running


def is_alive(process: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody has waited for doesn't."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- a server that is ended -------------------------------------------------------------------


def test_a_killed_server_comes_back_on_its_ports(tmp_path: Path) -> None:
    """The ports were any; the log says what has happened."""
    with served(tmp_path, "--http", "127.0.0.1:0") as running, connect(running.url, retry_for=LIMIT) as client:
        first = running.server()
        http = re.search(r"http  (\S+)", running.log)
        assert http
        client.put("store/a", pa.table({"x": [1, 2]}))
        running.kill_server()

        assert client.get("store/a").read_all()["x"].to_pylist() == [1, 2]
        with urlopen(f"http://{http[1]}/readyz", timeout=LIMIT) as answer:
            assert answer.read() == b"ready\n"
        assert running.log.count(f"penstock serves {running.url}\n") == 2
        line = rf"ERROR penstock: the server \(process {first}\) was ended by SIGKILL: the machine .* in 0\.1 s\n"
        assert re.search(line, running.log), running.log


def test_a_server_comes_back_after_its_log_has_no_reader(tmp_path: Path) -> None:
    """`penstock serve 2>&1 | tee log`, and somebody ends tee."""
    url = f"grpc://127.0.0.1:{free_port()}"
    command = [*PENSTOCK, "serve", "--listen", url, "--http", "off", "--data", str(tmp_path / "data")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(), cwd=ROOT) as process:
        running = Served(process, url, tmp_path / "log")
        try:
            with connect(url, retry_for=LIMIT) as client:
                client.put("store/a", pa.table({"x": [1, 2]}))
                assert process.stderr is not None
                process.stderr.close()
                first = running.server()
                os.kill(first or 0, signal.SIGKILL)
                assert client.get("store/a").read_all()["x"].to_pylist() == [1, 2]
                assert running.server() not in (None, first)
        finally:
            running.end()


def test_a_server_of_ten_thousand_parts_is_soon_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 3 s of a processor, which other programs don't change; it takes 0.5."""
    table, attempt = pa.table({"x": [1, 2]}), uuid4().hex
    with monkeypatch.context() as patch, data_folder(ServerConfig(data=tmp_path / "data")) as (ledger, store, _):
        patch.setattr(os, "fsync", lambda descriptor: None)
        names = [f"{attempt}-{number:06}" for number in range(10_000)]
        parts = [store.write(name, table.schema, table.to_batches(), path="store/a") for name in names]
        ledger.finish_single(
            ledger.open_write("store/a", own=True).id, Attempt(attempt, table.schema, 20_000, tuple(parts))
        )
        ledger.pin("store/a")  # or the first server merges them
    with served(tmp_path) as running:
        running.kill_server()
        with connect(running.url, retry_for=LIMIT) as client:
            assert client.info("store/a").parts == 10_000
        used = Path(f"/proc/{running.server()}/stat").read_text().rpartition(")")[2].split()[11:13]
        assert sum(map(int, used)) / os.sysconf("SC_CLK_TCK") < 3


def test_kills_under_load_lose_nothing(tmp_path: Path) -> None:
    """Producers put to a topic and to datasets all the while; each row that was acknowledged is there once."""
    stop = Event()

    def produce(number: int) -> list[int]:
        acknowledged: list[int] = []
        with connect(running.url, retry_for=LIMIT) as client:
            while not stop.is_set():
                first = number * 1_000_000 + len(acknowledged)
                rows = pa.table({"id": range(first, first + 10)})
                client.put("topic/x" if number % 2 else f"store/{number}", rows, mode="append")
                acknowledged += range(first, first + 10)
        return acknowledged

    with served(tmp_path) as running, ThreadPoolExecutor(4) as pool:
        producers = [pool.submit(produce, number) for number in range(4)]
        try:
            for number in KILLS:
                time.sleep(0.3)  # some puts
                running.kill_server(number)
        finally:
            stop.set()
        acknowledged = sorted(row for producer in producers for row in producer.result())
        with connect(running.url, retry_for=LIMIT) as client:
            paths = ["topic/x", *(entry.path for entry in client.list())]
            rows = sorted(row for path in paths for row in client.get(path).read_all()["id"].to_pylist())
    assert rows == acknowledged
    assert len(acknowledged) > 100


def test_one_large_message_loses_nothing(tmp_path: Path) -> None:
    """pyarrow takes it whole, from whom it may be, before a handler could refuse it."""
    with served(tmp_path, "--memory-limit", "1GiB") as running, flight.connect(running.url) as stranger:
        with connect(running.url, retry_for=LIMIT) as client:
            client.put("store/a", pa.table({"x": [1, 2]}))
            action = flight.Action("health", b" " * (400 << 20))
            with pytest.raises(flight.FlightError):
                list(stranger.do_action(action, flight.FlightCallOptions(timeout=LIMIT)))
            assert client.get("store/a").read_all()["x"].to_pylist() == [1, 2]
        assert "was ended by SIG" in running.log


def test_a_loss_is_accepted_by_the_user_alone(tmp_path: Path) -> None:
    """--accept-loss holds for the start that the user has seen; a server that comes back refuses what is lost since."""
    with served(tmp_path, "--accept-loss") as running, connect(running.url, retry_for=LIMIT) as client:
        client.put("store/a", pa.table({"x": [1, 2]}))
        (part,) = [file for file in (tmp_path / "data" / "parts").rglob("*") if file.is_file()]
        part.unlink()
        os.kill(running.server() or 0, signal.SIGKILL)
        assert running.process.wait(LIMIT) == app.FAILED
    assert re.search("^penstock: .*--accept-loss", running.log, re.MULTILINE), running.log


def test_the_pauses_between_starts_grow(tmp_path: Path) -> None:
    """A server that ends at once isn't started again at once for ever, and the wait ends with SIGTERM."""
    log = tmp_path / "log"
    suicide = [sys.executable, "-I", "-S", "-c", "import os; os.kill(os.getpid(), 9)"]
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-I", "-S", supervisor.__file__, *suicide], stderr=file)
    try:
        eventually(lambda: "in 0.8 s" in log.read_text())
        process.terminate()
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.wait()
    assert re.findall(r"in (\S+) s\n", log.read_text()) == ["0.1", "0.2", "0.4", "0.8"]


# --- a server that is told to stop --------------------------------------------------------------


def test_a_second_signal_ends_the_server_at_once(tmp_path: Path) -> None:
    with served(tmp_path, "--drain", "1h") as running, flight.connect(running.url) as bare:
        server, (writer, _) = running.server(), begun_put(bare)
        running.process.terminate()
        await_drain(bare)
        assert running.process.poll() is None

        running.process.terminate()
        assert running.process.wait(LIMIT) == 128 + signal.SIGTERM
        assert not is_alive(server or 0)
        with pytest.raises(flight.FlightUnavailableError):
            writer.close()


def test_a_signal_to_both_is_one_signal(tmp_path: Path) -> None:
    """systemd sends SIGTERM to each process of a service: calls end all the same."""
    with served(tmp_path) as running, flight.connect(running.url) as bare:
        writer, reader = begun_put(bare)
        for process in (running.server() or 0, running.process.pid):
            os.kill(process, signal.SIGTERM)
        await_drain(bare)
        time.sleep(0.2)  # the supervisor's signal comes too
        writer.write_metadata(trailer(1, 1))
        writer.done_writing()
        assert reader.read() is not None
        writer.close()
        assert running.process.wait(LIMIT) == 0
        assert "ended by" not in running.log


def test_ctrl_c_while_it_starts_ends_it_without_a_word(tmp_path: Path) -> None:
    """The terminal sends SIGINT to the process group that it shows."""
    for wait in (0, 0.2, 0.4, 0.8):
        log = tmp_path / "log"
        command = [*PENSTOCK, "serve", "--listen", "grpc://127.0.0.1:0", "--http", "off", "--data", str(tmp_path / "d")]
        with log.open("wb") as file:
            process = subprocess.Popen(command, stderr=file, env=environment(), cwd=ROOT, start_new_session=True)
        try:
            eventually(Served(process, "", log).server)
            time.sleep(wait)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()
            process.wait()
        assert "Traceback" not in log.read_text()


# --- a supervisor that is ended -----------------------------------------------------------------


def test_the_server_ends_with_its_supervisor(tmp_path: Path) -> None:
    """Also while it drains, or is suspended; the next one has folder and port."""
    listen = ("--listen", f"grpc://127.0.0.1:{free_port()}")
    for how in ("serving", "draining", "suspended"):
        with served(tmp_path, "--drain", "1h", *listen) as running, flight.connect(running.url) as bare:
            server, (writer, _) = running.server() or 0, begun_put(bare, f"store/{how}")
            if how == "draining":
                running.process.terminate()
                await_drain(bare)
            if how == "suspended":
                os.kill(server, signal.SIGSTOP)
            running.process.kill()
            try:
                eventually(lambda: not is_alive(server), within=5)  # noqa: B023
            finally:
                kill(server)
            with pytest.raises(flight.FlightError):
                writer.close()


def test_elsewhere_the_end_of_a_pipe_ends_the_server() -> None:
    """Systems without PR_SET_PDEATHSIG."""
    alive, life = os.pipe()
    code = (
        "import sys, time; sys.platform = 'other'; from penstock.flight_server.supervisor import Attachment;"
        f"Attachment('1 2 {alive} 0 0').end_with_supervisor(); print('attached', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, pass_fds=[alive]) as process:
        assert process.stdout
        assert process.stdout.readline() == b"attached\n"
        os.close(alive)
        assert process.poll() is None
        os.close(life)
        assert process.wait(LIMIT) == 128 + signal.SIGKILL


def test_the_supervisor_is_small_and_has_no_pyarrow(tmp_path: Path) -> None:
    with served(tmp_path) as running:
        process = Path(f"/proc/{running.process.pid}")
        resident = re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
        assert resident
        assert int(resident[1]) << 10 < SMALL
        assert "arrow" not in (process / "maps").read_text()


# --- a start that has to wait -------------------------------------------------------------------


def test_a_start_waits_for_the_folder_and_the_port(tmp_path: Path) -> None:
    """As after a kill -9 of another server, whose end takes a moment."""
    data, port = tmp_path / "data", free_port()
    flags = ("--listen", f"grpc://127.0.0.1:{port}", "--http", "off", "--data", str(data))
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        other = stack.enter_context(socket.create_server(("127.0.0.1", port)))
        with data_folder(ServerConfig(data=data)):
            starting = pool.submit(stack.enter_context, serving(tmp_path / "log", *flags))
            time.sleep(1.5)  # it starts in less
            assert not starting.done()
        eventually(lambda: (data / "lock").read_text() not in ("", str(os.getpid())), what="it has the folder")
        time.sleep(0.3)
        assert not starting.done()
        other.close()
        with flight.connect(starting.result(LIMIT).url) as bare:
            assert list_paths(bare) == []
