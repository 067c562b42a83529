"""`get` of a topic: ranges as people say them, and `-f`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cli import app
from penstock.cli.tail import parse_bound
from penstock.client.client import Client, connect
from penstock.flight_server.server import PenstockServer
from tests.kit.cli import LIMIT, Output, Ran, Run, create_topic, started
from tests.kit.server import process_server
from tests.kit.wait import eventually

Plan = Callable[[Callable[[], object]], None]
NO_BOUNDS = [
    (("--start", "5"), "0:5"),
    (("--start", "yesterday"), "earliest, latest, offsets by shard"),
    (("--start", "0:1,0:2"), "twice"),
    (("--start", "0:1,x"), "0:500,1:70"),
    (("--since", "earliest"), "10m"),
    (("--since", "0:5"), "10m"),
    (("--since", "latest"), "10m"),
    (("--start", "9999999d"), "how long ago"),
    (("--start", "0:1", "--since", "1h"), "give one"),
    (("--start", "0:11"), "0 to 10 are left"),
    (("--start", "7:1"), "shard 0 alone"),
    (("--end", "later"), "--end 'later'"),
    (("--strat", "0:1"), "--start"),
    (("-f", "--end", "0:3"), "-f takes no --end"),
]


def test_a_bound_is_said_in_words_offsets_or_times() -> None:
    assert (parse_bound("earliest", "--start"), parse_bound(" latest ", "--end")) == ({}, None)
    assert parse_bound("0:500, 1:70", "--start") == {0: 500, 1: 70}
    assert parse_bound("2026-11-18T20:00", "--since") == datetime(2026, 11, 18, 20)  # noqa: DTZ001  # local, as said
    assert parse_bound("2026-11-18T20:00Z", "--since") == datetime(2026, 11, 18, 20, tzinfo=UTC)
    moment = parse_bound("90min", "--since")
    assert isinstance(moment, datetime)
    assert abs(datetime.now(UTC) - moment - timedelta(minutes=90)) < timedelta(seconds=10)


@pytest.mark.parametrize(("arguments", "message"), NO_BOUNDS, ids=str)
def test_a_bound_that_is_none_is_refused(here: Run, ten: str, arguments: tuple[str, ...], message: str) -> None:
    done = here("get", ten, *arguments)
    assert (done.code, done.out, message in done.err) == (app.USAGE, b"", True), done.err


def ids(done: Ran) -> list[int]:
    assert (done.code, done.err) == (0, "")
    return [row["id"] for row in done.json]


def test_a_range_lies_between_offsets(here: Run, ten: str) -> None:
    assert ids(here("get", ten, "-n", "4")) == [0, 1, 2, 3]
    assert ids(here("get", ten, "--start", "0:7")) == [7, 8, 9]
    assert ids(here("get", ten, "--start", "0:2", "--end", "0:5")) == [2, 3, 4]
    assert ids(here("get", ten, "--start", "0:2", "-n", "2")) == [2, 3]
    assert ids(here("get", ten, "--start", "earliest", "--end", "0:2")) == [0, 1]
    assert ids(here("get", ten, "--end", "latest")) == list(range(10))
    assert ids(here("get", ten, "--end", "earliest")) == ids(here("get", ten, "--start", "latest")) == []


def test_a_range_lies_between_times(here: Run, client: Client, ten: str) -> None:
    moment = client.get(ten, columns=["_time"]).read_all()["_time"].to_pylist()[6] - timedelta(microseconds=1)
    middle, local = moment.isoformat(), moment.astimezone().replace(tzinfo=None).isoformat()
    for said in (("--since", middle), ("--start", middle), ("--since", local)):
        assert ids(here("get", ten, *said)) == [6, 7, 8, 9]
    assert ids(here("get", ten, "--end", middle)) == [0, 1, 2, 3, 4, 5]
    assert ids(here("get", ten, "--start", middle, "--end", "0:8")) == [6, 7]
    assert (ids(here("get", ten, "--since", "1h")), ids(here("get", ten, "--end", "1h"))) == (list(range(10)), [])


def test_a_preview_counts_the_range(here: Run, ten: str) -> None:
    shown = here("get", ten, "--start", "0:4", terminal=True)
    assert [line.strip() for line in shown.text.splitlines()[2:]] == [str(n) for n in range(4, 10)]
    assert shown.err.strip() == "6 of 6 rows"
    assert here("get", ten, "-n", "2", terminal=True).err.strip() == "2 of 10 rows"


def test_follow_begins_where_it_is_told(here: Run, ten: str) -> None:
    def rows(*arguments: str, column: str = "id") -> list[int]:
        return [row[column] for row in here("get", "-f", ten, *arguments).json]

    assert rows("-n", "10", "--start", "earliest") == list(range(10))
    assert rows("-n", "2", "--start", "0:7") == [7, 8]
    assert rows("-n", "0") == []
    assert rows("-n", "3", "--since", "1h", "-c", "_offset", column="_offset") == [0, 1, 2]
    done = here("get", "-f", ten, "-n", "2", "--start", "earliest", "--filter", "id > 6", "--format", "csv")
    assert done.text.split() == ['"id"', "7", "8"]
    done = here("get", "-f", ten, "-n", "1", "--start", "0:3", terminal=True)
    assert "following topic/x from 0:3; Ctrl-C ends it" in done.err


def test_a_group_goes_on_where_it_was(here: Run, client: Client, ten: str) -> None:
    """And has whole batches: what isn't written isn't committed."""

    def rows(*arguments: str) -> list[int]:
        return [row["id"] for row in here("get", "-f", ten, "--group", "g", *arguments).json]

    assert rows("-n", "0") == []
    first = rows("-n", "1")
    assert first + (rows("-n", str(10 - len(first))) if len(first) < 10 else []) == list(range(10))
    client.put(ten, pa.table({"id": [10]}))
    assert rows("-n", "1", "--start", "earliest") == [10]  # only a new group begins there
    done = here("get", "-f", ten, "--group", "other", "-n", "1", "--since", "1h", terminal=True)
    assert "following topic/x from where group other is; Ctrl-C ends it" in done.err


def test_a_groups_file_is_committed_whole(here: Run, client: Client, ten: str, tmp_path: Path) -> None:
    target = tmp_path / "a.parquet"
    done = here("get", "-f", ten, "--group", "g", "-n", "10", "-o", str(target / "none" / "a.parquet"))
    assert done.code != 0
    assert here("get", "-f", ten, "--group", "g", "-n", "10", "-o", str(target)).code == 0
    assert pq.read_table(target)["id"].to_pylist() == list(range(10))
    [group] = client.call("describe", {"path": ten})["consumers"]
    assert group["lag_rows"] == 0


def test_a_group_is_for_following(here: Run, ten: str) -> None:
    done = here("get", ten, "--group", "g")
    assert (done.code, "a group follows a topic: -f --group g" in done.err) == (app.USAGE, True)


@pytest.fixture
def once_followed(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Does something in another thread as soon as the command line follows."""

    def plan(action: Callable[[], object]) -> None:
        follow, waiting = Client.follow, [action]

        def followed(self: Client, *arguments: Any, **options: Any) -> Any:
            follower = follow(self, *arguments, **options)
            if waiting:
                threading.Thread(target=waiting.pop()).start()
            return follower

        monkeypatch.setattr(Client, "follow", followed)

    return plan


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_a_followed_file_is_whole(here: Run, client: Client, tmp_path: Path, once_followed: Plan, name: str) -> None:
    """And keeps its columns when the topic gets more columns."""
    create_topic(client, pa.schema([("id", pa.int64())]))
    once_followed(lambda: [client.put("topic/x", pa.table({"id": [n, None], "new": ["n", "m"]})) for n in (1, 2)])
    done = here("get", "-f", "topic/x", "-n", "4", "-o", str(tmp_path / name))
    assert (done.code, f"{name}: 4 rows" in done.text) == (0, True)
    if name == "a.csv":
        assert (tmp_path / name).read_text() == '"id"\n1\n\n2\n\n'
    else:
        assert pq.read_table(tmp_path / name).to_pydict() == {"id": [1, None, 2, None]}


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow_prints_at_once_and_ends_well(
    server: PenstockServer, client: Client, ten: str, number: signal.Signals
) -> None:
    with started("--url", str(server.url), "get", "-f", ten, "--start", "0:9") as process:
        output = Output(process)
        output.becomes({"id": 9})
        client.put(ten, pa.table({"id": [10]}))
        output.becomes({"id": 9}, {"id": 10})
        process.send_signal(number)
        assert process.wait(LIMIT) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert client.info(ten).rows == 11


@pytest.mark.process
def test_ctrl_c_leaves_a_file_that_is_whole(server: PenstockServer, client: Client, ten: str, tmp_path: Path) -> None:
    target = tmp_path / "a.arrow"
    client.put(ten, pa.table({"id": range(10, 100_000)}))
    with started("--url", str(server.url), "get", "-f", ten, "--start", "earliest", "-o", str(target)) as process:
        eventually(lambda: any(part.stat().st_size > 500_000 for part in tmp_path.glob(".a.arrow.*")), within=LIMIT)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0
    with pa.memory_map(str(target)) as file:
        assert pa.ipc.open_file(file).read_all()["id"].to_pylist() == list(range(100_000))
    assert list(tmp_path.glob(".a.arrow.*")) == []


@pytest.mark.process
@pytest.mark.faults
def test_follow_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    with process_server(tmp_path / "data") as server, connect(server.url, retry_for=LIMIT) as client:
        client.put("topic/x", pa.table({"id": [1]}))
        with started("--url", server.url, "get", "-f", "topic/x", "--start", "earliest") as process:
            output = Output(process)
            output.becomes({"id": 1})
            server.kill()
            with process_server(tmp_path / "data", listen=server.url):
                client.put("topic/x", pa.table({"id": [2]}))
                output.becomes({"id": 1}, {"id": 2})
                process.send_signal(signal.SIGINT)
                assert process.wait(LIMIT) == 0
