"""kill -9: nothing visible is lost, torn or doubled, and no bytes stay that no row names."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.flight_server.config import ServerConfig
from penstock.flight_server.lifecycle import serving
from tests.kit.server import ANY_PORT, named_parts, process_server
from tests.kit.wait import eventually, files
from tests.kit.wire import at, attempt_of, call, ids, list_paths, new_attempt, put, refused, trips

pytestmark = [pytest.mark.process, pytest.mark.faults]

HELD = {"store/kept": [1, 2, 3], "store/there": [7, 8]}
PADDING = 1 << 20


def wide(*numbers: int) -> list[pa.RecordBatch]:
    """Rows of 1 MiB each, so that a dozen of them make two parts."""
    schema = pa.schema([("id", pa.int64()), ("city", pa.string())])
    return [pa.RecordBatch.from_pydict({"id": [n], "city": [os.urandom(PADDING // 2).hex()]}, schema) for n in numbers]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with two datasets, one of two parts."""
    data = tmp_path_factory.mktemp("filled") / "d"
    with serving(ServerConfig(data=data, listen=ANY_PORT)) as server, flight.connect(server.url) as bare:
        put(bare, at("store/kept"), [trips(1, 2)])
        put(bare, at("store/kept", attempt=new_attempt(), mode="append"), [trips(3)])
        put(bare, at("store/there"), [trips(7, 8)])
    return data


# --- at every step -------------------------------------------------------------------------


def new(client: flight.FlightClient) -> None:
    put(client, at("store/new"), wide(*range(20, 32)))


def append(client: flight.FlightClient) -> None:
    put(client, at("store/there", attempt=new_attempt(), mode="append"), [trips(9)])


def overwrite(client: flight.FlightClient) -> None:
    put(client, at("store/there", attempt=new_attempt(), mode="overwrite"), [trips(9)])


def many_attempts(client: flight.FlightClient) -> None:
    ticket = call(client, "write.open", path="store/there", mode="overwrite")["ticket"]
    attempts = [new_attempt() for _ in range(3)]
    for number, attempt in enumerate(attempts):
        put(client, attempt_of(ticket, attempt), [trips(30 + number)])
    call(client, "write.finish", ticket=ticket, attempts=attempts[:2])


def delete(client: flight.FlightClient) -> None:
    call(client, "delete", path="store/there")
    while True:  # until the sweep has come to the step
        list_paths(client)


Operation = Callable[[flight.FlightClient], None]
AFTER: dict[Operation, dict[str, list[int]]] = {
    new: {**HELD, "store/new": list(range(20, 32))},
    append: {**HELD, "store/there": [7, 8, 9]},
    overwrite: {**HELD, "store/there": [9]},
    many_attempts: {**HELD, "store/there": [30, 31]},
    delete: {"store/kept": [1, 2, 3]},
}
BEFORE_THE_COMMIT = ["part.synced", "part.named", "put.durable", "finish.checked", "finish.shown"]
CASES = [
    *((operation, step, 1, False) for operation in (new, append, overwrite) for step in BEFORE_THE_COMMIT),
    (new, "part.synced", 2, False),
    (new, "part.named", 2, False),
    *((operation, "put.recorded", 1, True) for operation in (new, append, overwrite)),
    (overwrite, "sweep.deleted", 1, True),
    *((many_attempts, step, 2, False) for step in ("part.synced", "part.named", "put.durable", "put.recorded")),
    *((many_attempts, step, 1, False) for step in ("finish.checked", "finish.shown")),
    (many_attempts, "sweep.deleted", 1, True),
    (delete, "sweep.deleted", 1, True),
]


@pytest.mark.parametrize(
    ("operation", "step", "on", "is_done"), CASES, ids=[f"{o.__name__}-{s}-{n}" for o, s, n, _ in CASES]
)
def test_a_kill_at_a_named_step_leaves_the_state_before_or_after(
    filled: Path, tmp_path: Path, operation: Operation, step: str, on: int, is_done: bool
) -> None:
    data = tmp_path / "d"
    shutil.copytree(filled, data)
    with process_server(data, crash_at=step, crash_on=on) as server, flight.connect(server.url) as bare:
        with contextlib.suppress(flight.FlightError, pa.ArrowException, AssertionError):
            operation(bare)
            while server.process.poll() is None and step.startswith("sweep"):
                time.sleep(0.01)
        assert server.process.wait(20) == -9, "the step was never passed"

    with restarted(data) as bare:
        assert {path: ids(bare, path) for path in list_paths(bare)} == (AFTER[operation] if is_done else HELD)
        if operation is not many_attempts:
            assert list_paths(bare, b"write/") == [], "a put's own write ends with its put"
        if not is_done and operation is not delete:
            operation(bare)
            assert {path: ids(bare, path) for path in list_paths(bare)} == AFTER[operation]


@contextlib.contextmanager
def restarted(data: Path) -> Iterator[flight.FlightClient]:
    """A server on what the last one left; bytes and rows agree from its first answer on."""
    with serving(ServerConfig(data=data, listen=ANY_PORT)) as server, flight.connect(server.url) as bare:
        assert files(data / "parts") == named_parts(data)
        assert files(data / "tmp") == files(data / "quarantine") == set()
        yield bare


# --- after the commit, before the answer ---------------------------------------------------


def test_a_finish_whose_answer_a_kill_took_is_done_once_and_gives_it_again(filled: Path, tmp_path: Path) -> None:
    data = tmp_path / "d"
    shutil.copytree(filled, data)
    attempts = [new_attempt() for _ in range(2)]
    with process_server(data, crash_at="finish.done") as server, flight.connect(server.url) as bare:
        ticket = call(bare, "write.open", path="store/there", mode="append")["ticket"]
        for number, attempt in enumerate(attempts):
            put(bare, attempt_of(ticket, attempt), [trips(30 + number)])
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            call(bare, "write.finish", ticket=ticket, attempts=attempts)
        assert server.process.wait(20) == -9, "the step was never passed"

    done = {**HELD, "store/there": [7, 8, 30, 31]}
    with restarted(data) as bare:
        assert {path: ids(bare, path) for path in list_paths(bare)} == done
        answer, again = (call(bare, "write.finish", ticket=ticket, attempts=attempts) for _ in range(2))
        assert (answer["state"], answer["attempts"], answer["rows"]) == ("finished", 2, 2)
        assert again == answer
        with refused("write-ended", "another list"):
            call(bare, "write.finish", ticket=ticket, attempts=attempts[:1])
        assert {path: ids(bare, path) for path in list_paths(bare)} == done


def test_a_delete_whose_answer_a_kill_took_is_done_and_its_bytes_go(filled: Path, tmp_path: Path) -> None:
    data = tmp_path / "d"
    shutil.copytree(filled, data)
    with process_server(data, crash_at="delete.done") as server, flight.connect(server.url) as bare:
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            call(bare, "delete", path="store/there")
        assert server.process.wait(20) == -9, "the step was never passed"

    with restarted(data) as bare:
        assert len(files(data / "parts")) == 2, "what is kept has two parts"
        assert {path: ids(bare, path) for path in list_paths(bare)} == AFTER[delete]
        with refused("not-found"):
            call(bare, "delete", path="store/there")


# --- at random, under load -----------------------------------------------------------------


@dataclass
class Ledger:
    """What the test knows: what was asked, and what was answered."""

    asked: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    overwritten: int = 0
    """The last overwrite that was answered."""

    def unknown(self) -> list[int]:
        return sorted(set(self.asked) - set(self.answered))


def append_run(client: flight.FlightClient, number: int) -> None:
    """One row under a run of its own."""
    put(client, at("store/log", attempt=new_attempt(), mode="append", run=f"run-{number}"), [trips(number)])


def replace_all(client: flight.FlightClient, number: int) -> None:
    put(client, at("store/last", attempt=new_attempt(), mode="overwrite"), [trips(number)] * (number % 7 + 1))


def appender(url: str, ledger: Ledger, first: int) -> None:
    """Append until the server dies."""
    with flight.connect(url) as client, contextlib.suppress(flight.FlightError, pa.ArrowException, AssertionError):
        for number in range(first, first + 100_000):
            ledger.asked.append(number)
            append_run(client, number)
            ledger.answered.append(number)


def overwriter(url: str, ledger: Ledger) -> None:
    """Overwrite until the server dies."""
    with flight.connect(url) as client, contextlib.suppress(flight.FlightError, pa.ArrowException, AssertionError):
        while True:
            replace_all(client, ledger.overwritten + 1)
            ledger.overwritten += 1


def deleter(url: str) -> None:
    """Make and delete until the server dies."""
    with flight.connect(url) as client, contextlib.suppress(flight.FlightError, pa.ArrowException, AssertionError):
        while True:
            with contextlib.suppress(flight.FlightServerError):
                put(client, at("store/brief"), [trips(1)])
            call(client, "delete", path="store/brief")


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_kills_at_random_under_load_lose_and_double_nothing_that_was_answered(tmp_path: Path, kills: int) -> None:
    """An answered put is visible exactly once, another one at most once, and its repeat makes it once."""
    data, ledger = tmp_path / "d", Ledger()
    random.seed(20)
    with serving(ServerConfig(data=data, listen=ANY_PORT)) as server, flight.connect(server.url) as bare:
        ledger.asked.append(0)
        append_run(bare, 0)
        replace_all(bare, 0)
        ledger.answered.append(0)

    for round_ in range(1, kills + 1):
        kill_under_load(data, ledger, round_)
        with restarted(data) as bare:
            check(bare, ledger)
            for number in ledger.unknown():
                append_run(bare, number)
                ledger.answered.append(number)
            check(bare, ledger)
    assert len(ledger.answered) > 12 * kills


def kill_under_load(data: Path, ledger: Ledger, round_: int) -> None:
    with process_server(data) as server:
        firsts = [(round_ * 10 + number) * 100_000 for number in range(3)]
        writers = [threading.Thread(target=appender, args=(server.url, ledger, first)) for first in firsts]
        writers += [threading.Thread(target=overwriter, args=(server.url, ledger))]
        writers += [threading.Thread(target=deleter, args=(server.url,))]
        for writer in writers:
            writer.start()
        enough = len(ledger.answered) + 15
        eventually(lambda: len(ledger.answered) >= enough, within=60, what="they put")
        time.sleep(random.uniform(0, 0.5))  # how far they get then is left to chance
        server.kill()
        for writer in writers:
            writer.join(30)
        assert not any(writer.is_alive() for writer in writers)


def check(client: flight.FlightClient, ledger: Ledger) -> None:
    seen = Counter(ids(client, "store/log"))
    assert {number: count for number, count in seen.items() if count != 1} == {}, "doubled"
    assert set(ledger.answered) - set(seen) == set(), "lost"
    assert set(seen) - set(ledger.asked) == set(), "never asked for"
    last = ids(client, "store/last")
    assert last[0] in (ledger.overwritten, ledger.overwritten + 1)
    assert last == [last[0]] * (last[0] % 7 + 1), "torn"
    ledger.overwritten = last[0]
