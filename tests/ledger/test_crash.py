"""kill -9 of the server: visible rows are neither lost, torn nor doubled, and no bytes stay that no row names."""

from __future__ import annotations

import contextlib
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

from tests.kit.server import named_parts, process_server, served
from tests.kit.wait import eventually, files
from tests.kit.wire import at, attempt_of, call, ids, list_paths, new_attempt, put, refused, trips, wide_trips

pytestmark = [pytest.mark.process, pytest.mark.faults]

BEFORE = {"store/kept": [1, 2, 3], "store/there": [7, 8]}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a data folder with two datasets, one of them in two parts."""
    data = tmp_path_factory.mktemp("filled") / "d"
    with served(data) as server, flight.connect(server.url) as bare:
        put(bare, at("store/kept"), [trips(1, 2)])
        put(bare, at("store/kept", attempt=new_attempt(), mode="append"), [trips(3)])
        put(bare, at("store/there"), [trips(7, 8)])
    return data


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    """Return a copy of the filled data folder."""
    return shutil.copytree(filled, tmp_path / "d")


@contextlib.contextmanager
def killed_at(data: Path, step: str, on: int = 1) -> Iterator[flight.FlightClient]:
    """Connect to a server that is killed when it passes a step for the `on`th time, and wait for its end."""
    with process_server(data, crash_at=step, crash_on=on) as server, flight.connect(server.url) as bare:
        yield bare
        assert server.process.wait(60) == -9, "the server never came to the step"


def rows_by_path(client: flight.FlightClient) -> dict[str, list[int]]:
    return {path: ids(client, path) for path in list_paths(client)}


# --- at every step -------------------------------------------------------------------------


def new(client: flight.FlightClient) -> None:
    put(client, at("store/new"), wide_trips(*range(20, 32)))


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
    call(client, "delete", path="store/there", now=True)
    while True:  # until the sweep comes to the step
        list_paths(client)


Operation = Callable[[flight.FlightClient], None]
AFTER: dict[Operation, dict[str, list[int]]] = {
    new: {**BEFORE, "store/new": list(range(20, 32))},
    append: {**BEFORE, "store/there": [7, 8, 9]},
    overwrite: {**BEFORE, "store/there": [9]},
    many_attempts: {**BEFORE, "store/there": [30, 31]},
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
def test_a_kill_at_a_step_leaves_the_state_before_or_after(
    data: Path, operation: Operation, step: str, on: int, is_done: bool
) -> None:
    with killed_at(data, step, on) as bare, contextlib.suppress(flight.FlightError, pa.ArrowException, AssertionError):
        operation(bare)

    with restarted(data) as bare:
        assert rows_by_path(bare) == (AFTER[operation] if is_done else BEFORE)
        if operation is not many_attempts:
            assert list_paths(bare, b"write/") == [], "a put's own write ends with its put"
        if not is_done and operation is not delete:
            operation(bare)
            assert rows_by_path(bare) == AFTER[operation]


@contextlib.contextmanager
def restarted(data: Path) -> Iterator[flight.FlightClient]:
    """Serve the folder again: bytes and rows must agree from the first answer on."""
    with served(data) as server, flight.connect(server.url) as bare:
        eventually(lambda: files(data / "parts") == named_parts(data), what="small parts are merged")
        eventually(lambda: files(data / "tmp") == files(data / "quarantine") == set())
        yield bare


# --- after the commit, before the answer ---------------------------------------------------


def test_a_finish_killed_before_its_answer_is_done_once(data: Path) -> None:
    """The finish was committed: repeated, it gets its answer, and another list is refused."""
    attempts = [new_attempt() for _ in range(2)]
    with killed_at(data, "finish.done") as bare:
        ticket = call(bare, "write.open", path="store/there", mode="append")["ticket"]
        for number, attempt in enumerate(attempts):
            put(bare, attempt_of(ticket, attempt), [trips(30 + number)])
        with pytest.raises((flight.FlightError, pa.ArrowException)):
            call(bare, "write.finish", ticket=ticket, attempts=attempts)

    done = {**BEFORE, "store/there": [7, 8, 30, 31]}
    with restarted(data) as bare:
        assert rows_by_path(bare) == done
        answer, again = (call(bare, "write.finish", ticket=ticket, attempts=attempts) for _ in range(2))
        assert (answer["state"], answer["attempts"], answer["rows"]) == ("finished", 2, 2)
        assert again == answer
        with refused("write-ended", "another list"):
            call(bare, "write.finish", ticket=ticket, attempts=attempts[:1])
        assert rows_by_path(bare) == done


def test_a_delete_killed_before_its_answer_is_done(data: Path) -> None:
    """The path is free, and the next start removes the bytes."""
    with killed_at(data, "delete.done") as bare, pytest.raises((flight.FlightError, pa.ArrowException)):
        call(bare, "delete", path="store/there", now=True)

    with restarted(data) as bare:
        assert len(files(data / "parts")) == 2, "store/kept has two parts"
        assert rows_by_path(bare) == AFTER[delete]
        with refused("not-found"):
            call(bare, "delete", path="store/there")


# --- at random, under load -----------------------------------------------------------------


@dataclass
class Puts:
    """The puts that were sent, and those that were answered."""

    sent: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    overwritten: int = 0
    """The number of the last overwrite that was answered."""

    def unanswered(self) -> list[int]:
        return sorted(set(self.sent) - set(self.answered))


def append_run(client: flight.FlightClient, number: int) -> None:
    """Append one row under a run of its own."""
    put(client, at("store/log", attempt=new_attempt(), mode="append", run=f"run-{number}"), [trips(number)])


def replace_all(client: flight.FlightClient, number: int) -> None:
    put(client, at("store/last", attempt=new_attempt(), mode="overwrite"), [trips(number)] * (number % 7 + 1))


def append_until_killed(url: str, puts: Puts, first: int) -> None:
    """Append rows, one by one, until the server is killed."""
    with flight.connect(url) as client, contextlib.suppress(flight.FlightError, pa.ArrowException, AssertionError):
        for number in range(first, first + 100_000):
            puts.sent.append(number)
            append_run(client, number)
            puts.answered.append(number)


def overwrite_until_killed(url: str, puts: Puts) -> None:
    """Overwrite a dataset again and again until the server is killed."""
    with flight.connect(url) as client, contextlib.suppress(flight.FlightError, pa.ArrowException, AssertionError):
        while True:
            replace_all(client, puts.overwritten + 1)
            puts.overwritten += 1


def delete_until_killed(url: str) -> None:
    """Make a dataset and delete it, again and again, until the server is killed."""
    with flight.connect(url) as client, contextlib.suppress(flight.FlightError, pa.ArrowException, AssertionError):
        while True:
            with contextlib.suppress(flight.FlightServerError):
                put(client, at("store/brief"), [trips(1)])
            call(client, "delete", path="store/brief", now=True)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_random_kills_under_load_lose_and_double_nothing(tmp_path: Path, kills: int) -> None:
    """An answered put is visible exactly once, another one at most once, and once when it is repeated."""
    data, puts = tmp_path / "d", Puts()
    random.seed(20)
    with served(data) as server, flight.connect(server.url) as bare:
        puts.sent.append(0)
        append_run(bare, 0)
        replace_all(bare, 0)
        puts.answered.append(0)

    for round_ in range(1, kills + 1):
        kill_under_load(data, puts, round_)
        with restarted(data) as bare:
            check_puts_are_visible_once(bare, puts)
            for number in puts.unanswered():
                append_run(bare, number)
                puts.answered.append(number)
            check_puts_are_visible_once(bare, puts)
    assert len(puts.answered) > 12 * kills


def kill_under_load(data: Path, puts: Puts, round_: int) -> None:
    """Kill the server while five clients write to it."""
    with process_server(data) as server:
        firsts = [(round_ * 10 + number) * 100_000 for number in range(3)]
        writers = [threading.Thread(target=append_until_killed, args=(server.url, puts, first)) for first in firsts]
        writers += [threading.Thread(target=overwrite_until_killed, args=(server.url, puts))]
        writers += [threading.Thread(target=delete_until_killed, args=(server.url,))]
        for writer in writers:
            writer.start()
        enough = len(puts.answered) + 15
        eventually(lambda: len(puts.answered) >= enough, within=60, what="15 more puts are answered")
        time.sleep(random.uniform(0, 0.5))  # how far the clients get is left to chance
        server.kill()
        for writer in writers:
            writer.join(30)
        assert not any(writer.is_alive() for writer in writers)


def check_puts_are_visible_once(client: flight.FlightClient, puts: Puts) -> None:
    """Check that each answered put is there, no put twice, and the overwritten dataset whole."""
    counts = Counter(ids(client, "store/log"))
    assert {number: count for number, count in counts.items() if count != 1} == {}, "doubled"
    assert set(puts.answered) - set(counts) == set(), "lost"
    assert set(counts) - set(puts.sent) == set(), "never sent"
    last = ids(client, "store/last")
    assert last[0] in (puts.overwritten, puts.overwritten + 1)
    assert last == [last[0]] * (last[0] % 7 + 1), "torn"
    puts.overwritten = last[0]
