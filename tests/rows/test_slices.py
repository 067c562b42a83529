"""The size of batches as others write them: pyarrow's own ends the process where values lack a buffer."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import penstock
from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from penstock.pipeline.sinks import Call
from penstock.rows.slices import size_of, sliced, spare_bytes, trimmed
from tests.kit.wire import at, put, read

EMPTY = pa.py_buffer(bytes(8))
"""The offsets of one empty list."""
NO_LISTS = pa.Array.from_buffers(pa.list_(pa.string()), 0, [None, None], children=[pa.array([], pa.string())])
NO_DECIMALS = pa.Array.from_buffers(pa.decimal128(5, 4), 0, [None, None])
AS_JAVA_WRITES = [
    pa.Array.from_buffers(pa.list_(values.type), 1, [None, EMPTY], children=[values])
    for values in (NO_LISTS, NO_DECIMALS)
]


def over_the_wire(array: pa.Array) -> pa.RecordBatch:
    """Return a batch as it comes from a stream."""
    batch = pa.record_batch([array], names=["x"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


@pytest.mark.parametrize("array", AS_JAVA_WRITES, ids=str)
def test_values_of_empty_lists_need_no_buffer(
    array: pa.Array, bare: flight.FlightClient, server: PenstockServer, client: Client
) -> None:
    batch = over_the_wire(array)
    batch.validate(full=True)
    assert size_of(batch) > 0
    assert list(sliced(batch)) == [batch]
    for path in ("store/java", "topic/java"):
        put(bare, at(path), [batch])
        assert read(bare, path)["x"].to_pylist() == [[]]
    client.push("queue/java", pa.Table.from_batches([batch]), finish=True)
    found = []
    for lease in client.claim("queue/java"):
        with lease as split:
            found.append(split.payload.data["x"].to_pylist())
    assert found == [[[]]]
    job = penstock.Job("java", url=server.url)
    job.stage(penstock.Stage("in", [pa.Table.from_batches([batch])]))
    job.stage(penstock.Stage("out", Call(lambda split: found.append(split.payload.data["x"].to_pylist()))), after="in")
    assert job.run().stages[0].rows_in == 1
    assert found == [[[]]] * 2


def test_the_size_of_a_batch_counts_its_dictionaries() -> None:
    words = pa.array(["word " * 100] * 3).dictionary_encode()
    nested = pa.array([{"word": "word " * 100}], pa.struct([("word", pa.dictionary(pa.int32(), pa.string()))]))
    for array in (words, nested):
        assert 500 < size_of(over_the_wire(array)) < 1_500


def test_the_size_of_a_slice_is_that_of_its_rows() -> None:
    batch = pa.record_batch({"n": range(1_000), "lists": [[n] * 10 for n in range(1_000)]})
    assert size_of(batch.slice(10, 100)) < size_of(batch) / 8
    assert size_of(batch.slice(0, 0)) == 0


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("indices", [[3, None, 1], [None], [2], []], ids=str)
@pytest.mark.parametrize(
    "values",
    [
        ["d", "c", None, "a"],
        [4, 3, None, 1],
        [b"d", b"c", None, b"a"],
        [[4], [], None, [1]],
        [{"a": 4}, None, {}, None],
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_a_trimmed_batch_has_the_same_rows(values: list[Any], indices: list[int | None], ordered: bool) -> None:
    """And no values that it doesn't need."""
    column = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array(values), ordered=ordered)
    for batch in (pa.record_batch({"x": column, "y": indices}), pa.record_batch({"x": column, "y": indices}).slice(1)):
        small = trimmed(batch)
        small.validate(full=True)
        assert small.to_pylist() == batch.to_pylist()
        assert small.schema.equals(batch.schema)
        assert len(small.column(0).dictionary) <= batch.num_rows
        assert spare_bytes(small) == 0


def test_values_that_arrow_cannot_choose_stay_in_a_dictionary() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([1], pa.int8()), pa.array(["a", "b"], pa.string_view()))
    batch = pa.record_batch({"x": column})
    assert trimmed(batch).to_pylist() == batch.to_pylist()
    assert spare_bytes(batch) > 0
