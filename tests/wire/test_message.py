"""QueueMessage: the bytes that other writers and readers of the format know, and what it takes from them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest
from penstock.wire.message import QueueMessage

GOLDEN = Path(__file__).parent / "messages"
EXAMPLES = {
    "regular": QueueMessage(
        "spark_stage_0", "spark_p0_b0", "spark_stage_spark_p0_b0",
        {"source_stage": "spark_stage", "num_records": 1000}, 1702234567.123,
    ),
    "source": QueueMessage("job_plan_3", "plan-3", "", {"data_range": {"partition": 3}}, 1702234567.0),
    "of_a_write": QueueMessage(
        "0f2c_9d41_0", "9d41-0", "j/größe@9d41-0", {"source_stage": "j/größe", "num_records": 0}, 1795097829.5
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bytes_of_a_message_are_the_golden_ones(name: str) -> None:
    golden = (GOLDEN / f"{name}.json").read_bytes().removesuffix(b"\n")
    assert EXAMPLES[name].encode() == golden == json.dumps(json.loads(golden)).encode()
    assert QueueMessage.decode(golden) == EXAMPLES[name]


def test_the_fields_of_a_message_are_five_in_order() -> None:
    names = list(json.loads(EXAMPLES["regular"].encode()))
    assert names == ["message_id", "split_id", "payload_key", "metadata", "timestamp"]


def test_a_message_without_a_key_is_a_source_message() -> None:
    assert [message.is_source for message in EXAMPLES.values()] == [False, True, False]


def test_unknown_fields_of_a_message_are_dropped() -> None:
    raw = json.dumps({**EXAMPLES["regular"].to_json(), "message_type": "data", "v": 7}).encode()
    assert QueueMessage.decode(raw) == EXAMPLES["regular"]


def test_a_message_pickles() -> None:
    assert pickle.loads(pickle.dumps(EXAMPLES["regular"])) == EXAMPLES["regular"]


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"[]", "JSON object"),
        (b'{"split_id": "s", "payload_key": ""}', "message_id"),
        (b'{"message_id": "", "split_id": "s", "payload_key": ""}', "message_id"),
        (b'{"message_id": 7, "split_id": "s", "payload_key": ""}', "message_id"),
        (b'{"message_id": "m", "split_id": "s", "payload_key": null}', "payload_key"),
        (b'{"message_id": "m", "split_id": "s", "payload_key": "", "metadata": []}', "metadata"),
        (b'{"message_id": "m", "split_id": "s", "payload_key": "", "timestamp": 1e999}', "timestamp"),
    ],
)
def test_a_malformed_message_is_refused_by_its_field(raw: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        QueueMessage.decode(raw)
