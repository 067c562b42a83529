"""A SplitPayload comes out of whatever holds Arrow data, with the id and the metadata that travel in the schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InvalidRequest
from penstock.rows.payload import SplitPayload
from tests.kit.rows import PAYLOADS, SHAPES, as_file, as_stream, assert_same, numbers

METADATA = {"job": "j", "n": 1, "tags": ["ü", None], "deep": {"x": 0.5}}


@pytest.mark.parametrize("shape", PAYLOADS)
def test_id_and_metadata_travel_in_the_schema(shape: str) -> None:
    table = PAYLOADS[shape]
    payload = SplitPayload(table, "split-7", METADATA)
    carried = SplitPayload.from_arrow(pa.Table.from_batches(table.to_batches(), payload.schema()), "key")
    assert_same(carried.data, table)
    assert (carried.split_id, carried.metadata) == ("split-7", METADATA)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
@pytest.mark.parametrize("encode", [as_stream, as_file])
def test_ipc_bytes_become_a_payload(encode: Callable[[pa.Table], bytes], kind: Callable[[bytes], bytes]) -> None:
    plain = SplitPayload.from_any(kind(encode(numbers(9))), "key")
    assert_same(plain.data, numbers(9))
    assert (plain.split_id, plain.metadata) == ("key", {})
    sent = numbers(9).replace_schema_metadata(SplitPayload(numbers(9), "split-7", METADATA).schema().metadata)
    carried = SplitPayload.from_any(kind(encode(sent)), "key")
    assert (carried.split_id, carried.metadata) == ("split-7", METADATA)
    assert_same(carried.data, numbers(9))


@pytest.mark.parametrize("value", [None, 7, "text", [1], {"a": [1]}, numbers(1).to_batches()[0], numbers(1).schema])
def test_something_else_is_no_payload(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="a payload is a SplitPayload, Arrow IPC bytes or a"):
        SplitPayload.from_any(value, "key")


def test_a_column_name_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="rename"):
        SplitPayload.from_any(SHAPES["one name twice"], "key")


@pytest.mark.parametrize(
    "metadata",
    [{"penstock.metadata": "{"}, {"penstock.metadata": "[1]"}, {"penstock.split_id": b"\xff"}],
)
def test_malformed_schema_metadata_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="mend its writer"):
        SplitPayload.from_arrow(numbers(1).replace_schema_metadata(metadata), "key")


@pytest.mark.parametrize(("split_id", "metadata"), [("s", {"x": {1}}), ("s", {"x": b"y"}), (7, {}), ("\ud800", {})])
def test_metadata_that_json_cannot_hold_is_refused(split_id: Any, metadata: Any) -> None:
    with pytest.raises(InvalidRequest, match="metadata that JSON can't hold"):
        SplitPayload(numbers(1), split_id, metadata).schema()
