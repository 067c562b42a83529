"""list_flights, get_flight_info and get_schema."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.flight_server.server import PenstockServer
from tests.kit.wire import TRIPS, at, attempt_of, call, info, list_paths, new_attempt, put, read, refused, trips


@pytest.fixture
def filled(bare: flight.FlightClient) -> flight.FlightClient:
    """A server with five datasets, two of them in a nested folder; their names sort around the slash."""
    for path in ("store/a/b/one", "store/a/b/two", "store/a/three", "store/a.four", "store/z"):
        put(bare, at(path), [trips(1, 2)])
    return bare


def entries(client: flight.FlightClient, criteria: bytes) -> dict[str, Any]:
    return {entry["path"]: entry for entry in (json.loads(f.app_metadata) for f in client.list_flights(criteria))}


def test_an_empty_server_lists_nothing(bare: flight.FlightClient) -> None:
    assert (
        list_paths(bare)
        == list_paths(bare, b"store/")
        == list_paths(bare, b"store")
        == list_paths(bare, b"write/")
        == []
    )


def test_a_list_without_criteria_has_every_dataset(filled: flight.FlightClient) -> None:
    everything = ["store/a.four", "store/a/b/one", "store/a/b/two", "store/a/three", "store/z"]
    assert list_paths(filled) == list_paths(filled, b"store/") == everything


def test_a_list_of_a_folder_has_the_datasets_below_it(filled: flight.FlightClient) -> None:
    assert (
        list_paths(filled, b"store/a/")
        == list_paths(filled, b"store/a")
        == ["store/a/b/one", "store/a/b/two", "store/a/three"]
    )
    assert list_paths(filled, b"store/a/b") == ["store/a/b/one", "store/a/b/two"]
    assert list_paths(filled, b"store/z") == ["store/z"]


def test_a_list_in_json_shows_folders_with_their_sums(filled: flight.FlightClient) -> None:
    listed = entries(filled, b'{"v":1,"path":"store/a","folders":true}')

    assert list(listed) == ["store/a/b/", "store/a/three"]
    folder, dataset = listed.values()
    assert (folder["kind"], folder["rows"], folder["parts"], folder["state"]) == ("folder", 4, 2, "2 datasets")
    assert (dataset["kind"], dataset["rows"], dataset["parts"]) == ("dataset", 2, 1)
    assert folder["bytes"] == 2 * dataset["bytes"]
    assert list(entries(filled, b'{"v":1,"path":"store/","folders":true}')) == ["store/a.four", "store/a/", "store/z"]


def test_a_listed_flight_has_the_schema_and_a_descriptor(filled: flight.FlightClient) -> None:
    (listed,) = filled.list_flights(b"store/z")

    assert (listed.schema, listed.total_records, listed.endpoints) == (TRIPS, 2, [])
    assert filled.get_flight_info(listed.descriptor).total_records == 2


def test_open_writes_are_listed_with_what_they_write(bare: flight.FlightClient) -> None:
    opened = call(bare, "write.open", path="store/x", mode="append")
    done = call(bare, "write.open", path="store/y")
    call(bare, "write.abort", ticket=done["ticket"])

    (entry,) = entries(bare, b"write/").values()

    assert (entry["path"], entry["kind"]) == (f"write/{opened['write']}", "write")
    assert entry["state"] == "open, append to store/x"
    assert list(entries(bare, f"write/{opened['write']}".encode())) == [entry["path"]]


def test_an_unknown_write_is_not_found(bare: flight.FlightClient) -> None:
    with refused("not-found", "no write/abc"):
        list_paths(bare, b"write/abc")


def test_an_open_write_counts_the_attempts_that_are_whole_so_far(bare: flight.FlightClient) -> None:
    """A finish keeps the attempts that it lists."""
    opened = call(bare, "write.open", path="store/x")
    path = f"write/{opened['write']}"
    first, second = (
        put(bare, attempt_of(opened["ticket"], new_attempt()), [batch]) for batch in (trips(1, 2), trips(3, 4, 5))
    )
    amounts = ("rows", "bytes", "parts")

    (entry,) = entries(bare, b"write/").values()
    told = call(bare, "describe", path=path)
    assert [entry[name] for name in amounts] == [told[name] for name in amounts]
    assert [told[name] for name in amounts] == [first[name] + second[name] for name in amounts]
    assert (told["rows"], told["attempts"], told["state"]) == (5, 2, "open")

    done = call(bare, "write.finish", ticket=opened["ticket"], attempts=[second["attempt"]])
    assert [done[name] for name in amounts] == [second[name] for name in amounts]
    assert (done["rows"], done["attempts"]) == (3, 1)


def test_an_ended_write_has_no_rows(bare: flight.FlightClient) -> None:
    opened = call(bare, "write.open", path="store/x")
    put(bare, attempt_of(opened["ticket"], new_attempt()), [trips(1, 2)])
    ended = call(bare, "write.abort", ticket=opened["ticket"])
    assert (ended["rows"], ended["bytes"], ended["parts"], ended["attempts"]) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "criteria",
    [b"nothing", b"\xff", b"store/../x", b"store//x", b"{", b'{"v":1}', b'{"v":9,"path":"store/"}', b'{"v":1,"path":7}',
     b"[1]", b"store/a b", b"store/" + b"x" * 513],
)  # fmt: skip
def test_malformed_criteria_are_refused(bare: flight.FlightClient, criteria: bytes) -> None:
    with refused("invalid"):
        list_paths(bare, criteria)


@pytest.mark.parametrize("path", ["store/nope", "store/nope/deeper"])
def test_an_unknown_path_is_not_found(bare: flight.FlightClient, path: str) -> None:
    for ask in (
        lambda: info(bare, path),
        lambda: list_paths(bare, path.encode()),
        lambda: call(bare, "delete", path=path),
    ):
        with refused("not-found", path):
            ask()


def test_a_folder_or_a_write_can_not_be_read(filled: flight.FlightClient) -> None:
    with refused("not-found", "store/a is a folder"):
        info(filled, "store/a")
    with refused("invalid", "write/5d41 can't be read: expected store/… or topic/…"):
        info(filled, "write/5d41")


def test_get_schema_has_the_schema_also_of_some_columns(bare: flight.FlightClient) -> None:
    put(bare, at("store/x"), [trips(1)])

    assert bare.get_schema(at("store/x")).schema == TRIPS
    assert bare.get_schema(at("store/x", columns=["city"])).schema == pa.schema([TRIPS.field("city")])
    assert bare.get_schema(at("store/x", filter="id > 1")).schema == TRIPS


def test_get_schema_refuses_what_get_flight_info_refuses(bare: flight.FlightClient) -> None:
    put(bare, at("store/x"), [trips(1)])
    for wrong in ({"columns": ["citty"]}, {"filter": "citty = 1"}):
        for ask in (bare.get_schema, bare.get_flight_info):
            with pytest.raises((flight.FlightError, pa.ArrowException), match="did you mean 'city'"):
                ask(at("store/x", **wrong))


def test_a_descriptor_names_a_path_in_pieces_or_whole(bare: flight.FlightClient) -> None:
    put(bare, flight.FlightDescriptor.for_path("store/a/b"), [trips(1)])

    assert bare.get_flight_info(flight.FlightDescriptor.for_path("store", "a", "b")).total_records == 1
    assert bare.get_flight_info(flight.FlightDescriptor.for_path("store/a", "b")).total_records == 1


def test_endpoints_tell_the_advertised_address(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(advertise="grpc+tcp://flight.example:8815")
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as bare:
        put(bare, at("store/x"), [trips(1)])
        (endpoint,) = info(bare, "store/x").endpoints
        assert [location.uri for location in endpoint.locations] == [b"grpc+tcp://flight.example:8815"]


def test_a_server_on_every_interface_tells_no_address(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(listen="grpc://0.0.0.0:0", insecure=True)
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as bare:
        put(bare, at("store/x"), [trips(1)])
        (endpoint,) = info(bare, "store/x").endpoints
        assert endpoint.locations == []


def overwrite(client: flight.FlightClient, number: int, options: dict[str, Any]) -> None:
    """Replace store/x by 20 + number rows: by one put, or by an attempt and a finish, as Spark does."""
    rows = [trips(number)] * (20 + number)
    if number % 2:
        put(client, at("store/x", attempt=new_attempt(), mode="overwrite", **options), rows)
    else:
        ticket = call(client, "write.open", path="store/x", mode="overwrite", **options)["ticket"]
        put(client, attempt_of(ticket, attempt := new_attempt()), rows)
        call(client, "write.finish", ticket=ticket, attempts=[attempt])


@pytest.mark.parametrize("options", [{}, {"dataset": {"partition": "p"}}], ids=["whole", "partition"])
def test_readers_of_an_overwrite_see_the_old_rows_or_the_new(
    server: PenstockServer, bare: flight.FlightClient, options: dict[str, Any]
) -> None:
    """They read while it happens: rows of one put, all of them, and never an older put's after a newer one's."""
    put(bare, at("store/x", attempt=new_attempt(), **options), [trips(0)] * 20)
    if options:
        put(bare, at("store/x", attempt=new_attempt(), mode="append"), [trips(-1)])  # of no partition: it stays
    is_over = threading.Event()

    def read_until_over() -> int:
        reads = last = 0
        with flight.connect(server.url) as reader:
            while not is_over.is_set():
                rows = read(reader, "store/x").column("id").to_pylist()
                numbers = [number for number in rows if number >= 0]
                assert rows.count(-1) == len(options)
                assert numbers == [max(numbers)] * (20 + max(numbers))
                assert last <= numbers[0]
                reads, last = reads + 1, numbers[0]
        return reads

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read_until_over) for _ in range(3)]
        try:
            for number in range(1, 50):
                overwrite(bare, number, options)
        finally:
            is_over.set()
        assert all(reader.result(30) > 10 for reader in readers)


# --- topics ----------------------------------------------------------------------------------


def test_topics_are_listed_apart_from_datasets(filled: flight.FlightClient) -> None:
    for path in ("topic/b", "topic/a/x", "topic/a.x"):
        put(filled, at(path), [trips(1, 2)])

    assert list_paths(filled, b"topic/") == list_paths(filled, b"topic") == ["topic/a.x", "topic/a/x", "topic/b"]
    assert list_paths(filled, b"topic/a") == ["topic/a/x"]
    assert list_paths(filled, b"topic/b") == ["topic/b"]
    assert not [path for path in list_paths(filled) if path.startswith("topic/")]
    with refused("not-found", "topic/none"):
        list_paths(filled, b"topic/none")


def test_a_listed_topic_tells_its_size_schema_and_shards(bare: flight.FlightClient) -> None:
    put(bare, at("topic/x"), [trips(1, 2)])
    put(bare, at("topic/x"), [trips(3)])

    (listed,) = bare.list_flights(b"topic/x")

    entry = json.loads(listed.app_metadata)
    assert (entry["kind"], entry["rows"], entry["parts"], entry["state"]) == ("topic", 3, 2, "1 shard")
    assert (listed.schema, listed.total_records, listed.endpoints) == (TRIPS, 3, [])
    assert read(bare, "topic/x").column("id").to_pylist() == [1, 2, 3]
