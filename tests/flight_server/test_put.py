"""do_put: a whole stream is kept once, and nothing else is kept."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.flight_server import storing
from penstock.flight_server.server import PenstockServer
from penstock.store.disk import DiskMedium
from tests.kit import wire
from tests.kit.wait import eventually, files
from tests.kit.wire import TRIPS, at, call, create_topic, ids, list_paths, new_attempt, put, refused, trailer, trips

MIB = 1 << 20


def parts(server_data: Path) -> set[str]:
    return files(server_data / "data" / "parts") | files(server_data / "data" / "tmp")


def test_a_bare_path_and_a_trailer_make_a_dataset(bare: flight.FlightClient) -> None:
    receipt = put(bare, at("store/demo/trips"), [trips(1, 2), trips(3)])

    assert (receipt["rows"], receipt["parts"]) == (3, 1)
    assert ids(bare, "store/demo/trips") == [1, 2, 3]


@pytest.mark.usefixtures("server")
def test_a_put_without_its_trailer_is_refused_and_leaves_nothing(bare: flight.FlightClient, tmp_path: Path) -> None:
    writer, _ = bare.do_put(at("store/x"), TRIPS)
    writer.write_batch(trips(1, 2))

    with refused("invalid", "trailer", '{"v":1,"batches":', "write_metadata", "done_writing"):
        writer.close()

    assert wire.list_paths(bare) == []
    assert wire.list_paths(bare, b"write/") == []
    assert parts(tmp_path) == set()


def test_a_put_does_not_wait_for_ever_for_the_disk(
    bare: flight.FlightClient, server: PenstockServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored after all is deleted, as nobody names it."""
    resume, write = threading.Event(), DiskMedium.write

    def hanging(medium: DiskMedium, *arguments: Any) -> object:
        assert resume.wait(20)
        return write(medium, *arguments)

    monkeypatch.setattr(DiskMedium, "write", hanging)
    monkeypatch.setattr(storing, "PATIENCE", 0.05)
    with refused("timed-out", "store/x: the put waits for the disk for 0.05 s, so nothing of it is kept"):
        put(bare, at("store/x"), [trips(1)])
    resume.set()
    eventually(lambda: server.state.store.used == 0 and parts(tmp_path) == set())
    assert list_paths(bare) == []


def test_the_last_batch_may_carry_the_trailer(bare: flight.FlightClient) -> None:
    writer, reader = bare.do_put(at("store/x"), TRIPS)
    writer.write_batch(trips(1))
    writer.write_with_metadata(trips(2), trailer(2, 2))
    writer.done_writing()
    receipt = json.loads(reader.read().to_pybytes())
    writer.close()

    assert receipt["rows"] == 2
    assert ids(bare, "store/x") == [1, 2]


def test_no_batch_at_all_makes_an_empty_dataset_with_its_columns(bare: flight.FlightClient) -> None:
    receipt = put(bare, at("store/empty"), [], schema=TRIPS)

    assert (receipt["rows"], receipt["parts"]) == (0, 0)
    table = wire.read(bare, "store/empty")
    assert (table.schema, table.num_rows) == (TRIPS, 0)


@pytest.mark.parametrize("end", [(1, 3), (2, 2), (3, 3), (0, 0), (2, 4)])
def test_a_trailer_with_other_counts_is_refused(
    bare: flight.FlightClient, tmp_path: Path, end: tuple[int, int]
) -> None:
    with refused("invalid", "2 with 3 came"):
        put(bare, at("store/x"), [trips(1, 2), trips(3)], end=trailer(*end))

    assert wire.list_paths(bare) == []
    assert parts(tmp_path) == set()


@pytest.mark.parametrize(
    "end",
    [b"", b"done", b"[]", b"{}", b'{"v":2,"batches":1,"rows":1}', b'{"v":1,"batches":1}',
     b'{"v":1,"batches":-1,"rows":1}', b'{"v":1,"batches":1,"rows":1,"more":1}', b"\xff\xfe", b"[" * 100_000],
)  # fmt: skip
def test_a_malformed_trailer_is_refused(bare: flight.FlightClient, end: bytes) -> None:
    writer, reader = bare.do_put(at("store/x"), TRIPS)
    writer.write_with_metadata(trips(1), end)
    writer.done_writing()
    with refused("invalid"):
        reader.read()
        writer.close()
    assert wire.list_paths(bare) == []


# --- what comes back -----------------------------------------------------------------------


def test_a_large_batch_comes_back_in_slices_of_at_most_8_mib(bare: flight.FlightClient) -> None:
    text = pa.array([os.urandom(500).hex() for _ in range(1_000)])
    large = pa.RecordBatch.from_arrays([pa.concat_arrays([text] * 40)], names=["text"])
    assert large.nbytes > 38 * MIB

    put(bare, at("store/large"), [large])
    flight_info = wire.info(bare, "store/large")
    chunks = [chunk.data for endpoint in flight_info.endpoints for chunk in bare.do_get(endpoint.ticket)]

    assert max(chunk.nbytes for chunk in chunks) <= 8 * MIB
    assert sum(json.loads(endpoint.app_metadata)["parts"] for endpoint in flight_info.endpoints) >= 4
    assert pa.Table.from_batches(chunks).equals(pa.Table.from_batches([large]))


def awkward() -> pa.Table:
    """Columns with special encodings in Arrow's IPC; each batch has another dictionary."""
    pieces = []
    for words in (["a", "b", None], ["x", "y", "x"], ["b", "z", "a"]):
        coded = pa.array(words).dictionary_encode()
        pieces.append(
            pa.RecordBatch.from_pydict({
                "coded": coded,
                "inside": pa.ListArray.from_arrays([0, 2, 2, 3], coded),
                "deep": pa.array([[{"k": [1]}, None], [], None], pa.list_(pa.struct([("k", pa.list_(pa.int8()))]))),
                "pairs": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
                "nothing": pa.nulls(3),
                "no_text": pa.nulls(3, pa.string()),
                "view": pa.array(words, pa.string_view()),
                "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(words[:2])),
            })
        )  # fmt: skip
    return pa.Table.from_batches(pieces)


@pytest.mark.parametrize(
    "options",
    [{}, {"limit": 7}, {"limit": 3}, {"columns": ["coded"]}, {"columns": ["deep", "coded"], "limit": 8}],
    ids=str,
)
def test_dictionaries_nested_columns_and_nulls_come_back(bare: flight.FlightClient, options: dict[str, Any]) -> None:
    table = awkward()
    put(bare, at("store/x"), table.to_batches())

    answer = wire.read(bare, "store/x", **options)

    plain = table.set_column(table.schema.get_field_index("view"), "view", table["view"].cast(pa.string()))
    wanted = plain.select(options.get("columns") or table.column_names).slice(0, options.get("limit"))
    assert answer.schema == wanted.schema
    assert answer.to_pylist() == wanted.to_pylist()


def test_a_put_has_a_ticket_or_a_path_and_a_uuid(bare: flight.FlightClient, server: PenstockServer) -> None:
    ticket = call(bare, "write.open", path="store/x")["ticket"]
    bad = {
        "either the ticket": {"ticket": ticket, "path": "store/x", "attempt": new_attempt()},
        "expected a UUID": {"ticket": ticket, "attempt": "../../etc/passwd"},
        "lacks the field 'attempt'": {"ticket": ticket},
        "needs a path": {"attempt": new_attempt()},
        "did you mean 'mode'": {"path": "store/x", "attempt": new_attempt(), "mod": "append"},
        "expected store/": {"path": "write/5d41", "attempt": new_attempt()},
    }
    for words, command in bad.items():
        where = flight.FlightDescriptor.for_command(json.dumps({"v": 1, **command}).encode())
        with refused("invalid", words):
            put(bare, where, [trips(1)])
    assert wire.list_paths(bare) == []
    assert server.state.store.used == 0


def bent_offsets() -> pa.Array:
    """Strings of which the second begins after its end."""
    offsets = pa.py_buffer(np.array([0, 100_000, 2, 3], np.int32))
    return pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"abc"))


def bad_utf8() -> pa.Array:
    return pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe"))


def index_out_of_bounds() -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int8()), pa.array(["a"]), safe=False)


@pytest.mark.parametrize("column", [bent_offsets, bad_utf8, index_out_of_bounds])
def test_a_batch_that_lies_about_its_insides_is_refused(
    bare: flight.FlightClient, column: Callable[[], pa.Array]
) -> None:
    """Each passes Arrow's quick validate(), and two of them crash a process that reads the values."""
    batch = pa.record_batch([column()], ["lie"])
    batch.validate()
    with refused("invalid", "malformed"):
        put(bare, at("store/lie"), [batch])
    assert wire.list_paths(bare) == []


# --- making a topic --------------------------------------------------------------------------


def test_a_topic_is_made_of_the_streams_exact_schema(bare: flight.FlightClient) -> None:
    """Also of types that have no name of their own, and without pandas' notes."""
    inner = pa.struct([pa.field("of <a, b>", pa.int8(), nullable=False)])
    schema = pa.schema([("id", pa.int64()), ("x", inner), ("day", pa.timestamp("ns", "Europe/Oslo"))])
    create_topic(bare, "topic/x", schema.with_metadata({"pandas": "{}"}), key="id")
    assert wire.info(bare, "topic/x").schema.equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"path": "topic/x", "create": {"key": "id"}}, "takes no rows: put them afterwards"),
        ({"path": "store/x", "create": {}}, "store/x is a dataset: `create` makes a topic"),
        ({"path": "topic/x", "create": {"shards": -1}}, "TopicOptions.shards: expected a number"),
        ({"path": "topic/x", "create": {"shard": 1}}, "did you mean 'shards'"),
        ({"path": "topic/x", "create": [1]}, "PutCommand.create: expected an object"),
    ],
)
def test_a_put_that_can_not_make_a_topic_is_refused(
    bare: flight.FlightClient, command: dict[str, Any], words: str
) -> None:
    with refused("invalid", words):
        put(bare, at(attempt=new_attempt(), **command), [trips(1)])
    assert list_paths(bare) == list_paths(bare, b"topic/") == []


def test_a_stream_without_its_trailer_makes_no_topic(bare: flight.FlightClient) -> None:
    writer, _ = bare.do_put(at("topic/x", attempt=new_attempt(), create={}), TRIPS)
    with refused("invalid", "trailer"):
        writer.close()
    assert list_paths(bare, b"topic/") == []
