"""Topics by `penstock.connect()`: putting, ranges by offsets and by time, and following."""

from __future__ import annotations

import itertools
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from penstock.client.client import Client, connect
from penstock.client.follow import Follower
from penstock.errors import Internal, InvalidRequest, Lost, NotFound, Unavailable
from penstock.flight_server.server import PenstockServer
from tests.kit.server import process_server

LIMIT = 20.0


ORDERS = pa.schema([("id", pa.int64()), ("city", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "city": pa.array([f"c{number % 5}" for number in ids], pa.string())}
    )


def ids(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].to_pylist()]


def first(follower: Follower, count: int) -> list[int]:
    """The ids of the first rows that come, at least so many; stops the follower rather than wait for ever."""
    timer = threading.Timer(LIMIT, follower.stop)
    timer.start()
    try:
        seen: list[int] = []
        while len(seen) < count:
            seen += next(follower)["id"].to_pylist()
        return seen
    finally:
        timer.cancel()


class TestPutting:
    def test_a_run_is_appended_once(self, client: Client) -> None:
        receipts = [client.put("topic/x", rows(1, 2), run="r") for _ in range(2)]
        assert receipts[0] == receipts[1]
        assert ids(client.get("topic/x")) == [1, 2]

    def test_a_writer_appends_when_it_is_left_and_not_before(self, client: Client) -> None:
        client.put("topic/x", rows(1))
        with client.writer("topic/x", rows().schema) as writer:
            writer.write(rows(2, 3))
            assert ids(client.get("topic/x")) == [1]
        assert ids(client.get("topic/x")) == [1, 2, 3]


class TestRanges:
    def test_a_shard_that_is_not_named_is_read_whole(self, client: Client) -> None:
        client.create_topic("topic/x", ORDERS, key="city", shards=3)
        client.put("topic/x", rows(*range(50)))
        table = client.get("topic/x", columns=["id", "_shard", "_offset"]).read_all().to_pylist()
        by_shard = {shard: [row for row in table if row["_shard"] == shard] for shard in range(3)}
        assert sum(map(len, by_shard.values())) == 50
        full = next(shard for shard, its in by_shard.items() if len(its) > 2)
        cut = client.get("topic/x", start={full: 2}, columns=["id", "_shard", "_offset"]).read_all().to_pylist()
        assert cut == [row for row in table if row["_shard"] != full or row["_offset"] >= 2]

    @pytest.mark.parametrize(
        ("where", "mapped"),
        [({}, 2), ({"end": {0: 4}}, 2), ({"start": {0: 3}}, 1), ({"start": {0: 1}}, 2), ({"start": {0: 4}}, 1),
         ({"start": {0: 1}, "end": {0: 2}}, 1), ({"start": {0: 2}, "end": {0: 5}}, 2)],
    )  # fmt: skip
    def test_rows_of_any_range_are_mapped(
        self, server: PenstockServer, client: Client, where: dict[str, Any], mapped: int
    ) -> None:
        for start in (0, 3):
            client.put("topic/x", rows(*range(start, start + 3)))
        reader = client.get("topic/x", **where)
        assert reader.schema.names == ["id", "city"]
        first, end = where.get("start", {}).get(0, 0), where.get("end", {}).get(0, 6)
        assert ids(reader) == list(range(first, end))
        told = [
            line.split()[1]
            for line in server.state.metrics.text().splitlines()
            if line.startswith("penstock_maps_total ")
        ]
        assert sum(map(float, told)) == mapped

    def test_a_time_without_a_zone_is_local(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        client.put("topic/x", rows(1))
        aware = datetime.now().astimezone()
        for moment, expected in ((aware - timedelta(hours=1), [1]), (aware + timedelta(hours=1), [])):
            assert ids(client.get("topic/x", start=moment)) == expected
            assert ids(client.get("topic/x", start=moment.replace(tzinfo=None))) == expected
            assert ids(client.get("topic/x", start=moment.astimezone(UTC))) == expected

    @pytest.mark.parametrize("wrong", [5, "oldest", "2026-11-18", 1.5, date(2026, 11, 18), [5]])
    def test_what_is_no_place_is_refused_by_the_arguments_name(self, client: Client, wrong: Any) -> None:
        client.put("topic/x", rows(1))
        for call in (client.get, client.info, client.follow):
            with pytest.raises(InvalidRequest, match=r"^start=.*\{0: 500\}, a time .*'earliest' or 'latest'$"):
                call("topic/x", start=wrong)
        with pytest.raises(InvalidRequest, match=r"^end=.*\{0: 500\}$"):
            client.get("topic/x", end=wrong)

    @pytest.mark.parametrize("wrong", [{"a": 1}, {0: "1"}, {0: 1.5}, {0: None}, {None: 1}])
    def test_offsets_are_whole_numbers_by_shard(self, client: Client, wrong: Any) -> None:
        client.put("topic/x", rows(1))
        for call in (client.get, client.follow):
            with pytest.raises(InvalidRequest, match=r"start=.*whole number for each shard"):
                call("topic/x", start=wrong)

    def test_offsets_that_came_out_of_a_column_are_taken(self, client: Client) -> None:
        """numpy's whole numbers are some, too."""
        client.put("topic/x", rows(1, 2, 3))
        last = client.get("topic/x", columns=["_offset"]).read_all()["_offset"].to_numpy().max()
        assert ids(client.get("topic/x", start={0: last})) == [3]

    def test_a_dataset_has_no_range(self, client: Client) -> None:
        client.put("store/x", rows(1))
        with pytest.raises(InvalidRequest, match="has no offsets"):
            client.get("store/x", start={0: 0})
        with pytest.raises(InvalidRequest, match="store/x has no offsets: expected topic/"):
            client.follow("store/x")


class TestFollowing:
    def test_it_begins_now_and_gives_each_row_once_in_order(self, client: Client) -> None:
        client.put("topic/x", rows(0))
        follower = client.follow("topic/x")
        for number in range(1, 6):
            client.put("topic/x", rows(number, number * 10))
        assert first(follower, 10) == [1, 10, 2, 20, 3, 30, 4, 40, 5, 50]
        assert follower.position == {0: 11}

    def test_it_waits_for_what_comes(self, client: Client) -> None:
        client.put("topic/x", rows(0))
        follower = client.follow("topic/x", start={})
        assert first(follower, 1) == [0]
        waiting = threading.Thread(target=lambda: seen.extend(first(follower, 2)))
        seen: list[int] = []
        waiting.start()
        client.put("topic/x", rows(1))
        client.put("topic/x", rows(2))
        waiting.join(LIMIT)
        assert seen == [1, 2]

    def test_it_takes_no_row_from_anybody(self, client: Client) -> None:
        client.put("topic/x", rows(1, 2, 3))
        followers = [client.follow("topic/x", start={}) for _ in range(3)]
        assert [first(follower, 3) for follower in followers] == [[1, 2, 3]] * 3
        assert ids(client.get("topic/x")) == [1, 2, 3]

    def test_its_position_is_where_another_goes_on(self, client: Client) -> None:
        client.create_topic("topic/x", ORDERS, key="city", shards=4)
        client.put("topic/x", rows(*range(100)))
        follower = client.follow("topic/x", start={})
        seen = list(next(follower)["id"].to_pylist())
        seen += first(client.follow("topic/x", start=follower.position), 100 - len(seen))
        assert sorted(seen) == list(range(100))

    @pytest.mark.parametrize("place", ["offset", "time", "numpy"])
    def test_it_begins_where_it_is_told(self, client: Client, place: str) -> None:
        client.put("topic/x", rows(1))
        client.put("topic/x", rows(2))
        table = client.get("topic/x", columns=["_offset", "_time"]).read_all()
        start: Any = table["_time"][1].as_py() if place == "time" else {0: 1}
        start = {0: table["_offset"].to_numpy()[1]} if place == "numpy" else start
        assert first(client.follow("topic/x", start=start), 1) == [2]

    def test_a_time_to_come_begins_at_the_end(self, client: Client) -> None:
        client.put("topic/x", rows(1))
        assert client.follow("topic/x", start=datetime.now(UTC) + timedelta(hours=1)).position == {0: 1}

    def test_columns_and_a_filter_are_the_servers_work(self, client: Client) -> None:
        client.put("topic/x", rows(*range(10)))
        follower = client.follow("topic/x", start={}, columns=["_offset", "id"], filter="id > 6 or id = 2")
        batch = next(follower)
        assert batch.to_pydict() == {"_offset": [2, 7, 8, 9], "id": [2, 7, 8, 9]}
        assert follower.position == {0: 10}

    def test_rows_that_a_filter_leaves_out_are_passed_for_good(self, client: Client) -> None:
        client.put("topic/x", rows(*range(10)))
        follower = client.follow("topic/x", start={}, filter="id = 77")
        waiting = threading.Thread(target=lambda: seen.extend(first(follower, 1)))
        seen: list[int] = []
        waiting.start()
        deadline = time.monotonic() + LIMIT
        while follower.position != {0: 10}:
            assert time.monotonic() < deadline, "it doesn't pass what it has seen"
            time.sleep(0.01)
        client.put("topic/x", rows(77))
        waiting.join(LIMIT)
        assert (seen, dict(follower.position)) == ([77], {0: 11})

    def test_stop_ends_the_loop_from_another_thread(self, client: Client) -> None:
        client.put("topic/x", rows(1))
        follower = client.follow("topic/x", start={})
        assert next(follower)["id"].to_pylist() == [1]
        threading.Timer(0.2, follower.stop).start()
        assert ids(follower) == []

    def test_a_column_that_is_added_comes_along(self, client: Client) -> None:
        client.put("topic/x", rows(1))
        follower = client.follow("topic/x", start={})
        assert next(follower).schema.names == ["id", "city"]
        client.put("topic/x", rows(2).append_column("new", pa.array(["n"])))
        assert next(follower).to_pylist() == [{"id": 2, "city": "c2", "new": "n"}]

    def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(self, client: Client) -> None:
        client.put("topic/x", rows(1, 2))
        follower = client.follow("topic/x", start={})
        assert first(follower, 2) == [1, 2]
        client.delete("topic/x")
        client.put("topic/x", rows(7, 8, 9))
        with pytest.raises(Lost, match="made again"):
            first(follower, 1)

    def test_a_topic_that_is_not_there_is_an_error_at_once(self, client: Client) -> None:
        with pytest.raises(NotFound, match="topic/none"):
            client.follow("topic/none")
        client.put("topic/x", rows(1))
        with pytest.raises(InvalidRequest, match="expected an offset for shard 0 alone"):
            client.follow("topic/x", start={3: 0})

    def test_what_is_behind_a_broken_stream_is_asked_for_again(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not a row of it twice, not one less, wherever it breaks."""
        for start in range(0, 300, 2):
            client.put("topic/x", rows(start, start + 1))
        assert len(client.info("topic/x").endpoints) > 1
        follower = client.follow("topic/x", start={})
        honest, breaks = follower._fetch, itertools.count()

        def broken(ticket: bytes) -> Iterator[pa.RecordBatch]:
            for batch in honest(ticket):
                if next(breaks) % 30 == 7:
                    raise Unavailable("cut")
                yield batch

        monkeypatch.setattr(follower, "_fetch", broken)
        assert first(follower, 300) == list(range(300))
        assert next(breaks) > 150

    @pytest.mark.parametrize("before", [True, False], ids=["before-rows", "behind-rows"])
    @pytest.mark.parametrize("fault", ["ctrl-c", "internal"])
    def test_no_row_is_skipped_behind_ctrl_c_or_an_error(
        self, client: Client, small_endpoints: None, monkeypatch: pytest.MonkeyPatch, fault: str, before: bool
    ) -> None:
        """Whichever endpoint it was that was being fetched."""
        for number in range(12):
            client.put("topic/x", rows(number))
        follower = client.follow("topic/x", start={})
        honest, streams = follower._fetch, itertools.count()

        def broken(ticket: bytes) -> Iterator[pa.RecordBatch]:
            breaks = next(streams) % 2
            if breaks and before:
                fail(fault)
            yield from honest(ticket)
            if breaks:
                fail(fault)

        monkeypatch.setattr(follower, "_fetch", broken)
        assert in_spite_of(follower, 12) == list(range(12))
        assert next(streams) > 4

    def test_no_row_is_skipped_by_ctrl_c_between_two_batches(self, client: Client, small_endpoints: None) -> None:
        for number in range(12):
            client.put("topic/x", rows(number))
        follower = client.follow("topic/x", start={})
        follower._batches = _Interrupted()
        assert in_spite_of(follower, 12) == list(range(12))

    def test_a_server_that_is_away_too_long_is_an_error(self, make_server: Callable[..., PenstockServer]) -> None:
        server = make_server()
        with connect(server.url, retry_for=0.3) as impatient:
            impatient.put("topic/x", rows(1, 2))
            follower = impatient.follow("topic/x", start={0: 1})
            with away(follower), pytest.raises(Unavailable, match="topic/x could not be followed"):
                next(follower)
            assert follower.position == {0: 1}
            assert first(follower, 1) == [2]


@pytest.fixture
def small_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint is three puts at most."""
    monkeypatch.setattr("penstock.flight_server.endpoints.RUN_PARTS", 3)


def fail(how: str) -> None:
    if how == "internal":
        raise Internal("broken")
    signal.raise_signal(signal.SIGINT)


def in_spite_of(follower: Follower, count: int) -> list[int]:
    """The ids of so many rows, which count from 0, from a follower that is called again whatever it raises."""
    seen: list[int] = []
    faults = 0
    while len(seen) < count:
        before = dict(follower.position)
        try:
            seen += first(follower, 1)
        except (KeyboardInterrupt, Internal):
            faults += 1
            assert follower.position == before
        assert seen == list(range(len(seen)))
    assert faults
    return seen


class _Interrupted(deque[Any]):
    """Ctrl-C comes every other time, when a batch is out and with nobody yet."""

    taken = 0

    def popleft(self) -> Any:
        batch = super().popleft()
        self.taken += 1
        if self.taken % 2:
            signal.raise_signal(signal.SIGINT)
        return batch


@contextmanager
def away(follower: Follower) -> Iterator[None]:
    """While the block runs the follower doesn't reach its server."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(follower, "_info", Mock(side_effect=Unavailable("nobody is there")))
        yield


@pytest.mark.process
@pytest.mark.faults
def test_a_follower_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    with process_server(tmp_path / "data") as server, connect(server.url, retry_for=LIMIT) as client:
        client.put("topic/x", rows(0))
        follower = client.follow("topic/x", start={})
        assert first(follower, 1) == [0]
        seen: list[int] = []
        waiting = threading.Thread(target=lambda: seen.extend(first(follower, 2)))
        waiting.start()
        client.put("topic/x", rows(1))
        server.kill()
        with process_server(tmp_path / "data", listen=server.url):
            client.put("topic/x", rows(2))
            waiting.join(LIMIT)
    assert seen == [1, 2]


@pytest.mark.faults
def test_a_server_that_is_away_is_tried_every_two_seconds() -> None:
    """14 attempts take 23 s, and with gRPC's own backoff 76. One whose TLS fails is a failure, without TLS it isn't."""
    with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(1) as pool:
        url = f"grpc+tls://127.0.0.1:{door.getsockname()[1]}"
        with connect(url, retry_for=120) as client:
            pool.submit(client.list, "topic/")  # ends as the client is closed
            give_up = time.monotonic() + 45
            for _ in range(14):
                door.settimeout(max(0.01, give_up - time.monotonic()))
                door.accept()[0].close()


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("seconds", [32, pytest.param(600, marks=pytest.mark.timeout(900))], ids="{}s".format)
def test_a_server_that_was_away_is_reached_at_once(tmp_path: Path, seconds: int) -> None:
    """By all who wait for it: 32 s are more than a call is retried, and gRPC's own backoff would be 12 by then."""
    with process_server(tmp_path / "data") as server, connect(server.url) as client, ThreadPoolExecutor(2) as pool:
        client.put("topic/x", rows(0))
        follower = client.follow("topic/x", start={})
        assert first(follower, 1) == [0]
        server.kill()
        following = pool.submit(next, follower)
        call = pool.submit(connect(server.url, retry_for=seconds + 90).list, "topic/")
        time.sleep(seconds)
        with process_server(tmp_path / "data", listen=server.url):
            returned = time.monotonic()
            connect(server.url).put("topic/x", rows(1))
            assert ids([following.result(LIMIT)]) == [1]
            assert [entry.path for entry in call.result(LIMIT)] == ["topic/x"]
            assert time.monotonic() - returned < 8
