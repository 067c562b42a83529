"""`topic create` and `topic alter`: topics from people's hands."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.cli import app
from penstock.client.client import Client
from tests.kit.cli import Run, create_topic

CREATE = ("topic", "create", "orders", "--schema", "id long, city string", "--key", "city", "--shards", "4")


@pytest.mark.parametrize("name", ["orders", "topic/orders"])
def test_a_topic_is_made_by_hand(here: Run, client: Client, name: str) -> None:
    made = here(*(name if word == "orders" else word for word in CREATE), "--keep", "2d", "--keep-bytes", "5MB")
    assert made.text == (
        "topic/orders: 4 shards by city, rows kept for 2 days, 5.0 MB at most; id int64, city string\n"
    )
    topic = client.call("describe", {"path": "topic/orders"})
    assert (topic["key"], len(topic["shards"]), topic["keep_seconds"]) == ("city", 4, 2 * 86_400)
    assert here("put", "topic/orders", "-", stdin=b'{"id": 1, "city": "Oslo"}\n').code == 0
    assert client.get("topic/orders").schema == pa.schema({"id": pa.int64(), "city": pa.string()})


def test_the_same_again_is_no_error_and_another_is(here: Run) -> None:
    assert [here(*CREATE).code for _ in range(2)] == [0, 0]
    other = here(*CREATE[:-1], "3")
    assert (other.code, "number of shards 4, not 3" in other.err) == (app.CONFLICT, True)
    assert "penstock topic alter" in other.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "x", "--schema", "id lonk"), "did you mean 'long'"),
        (("create", "x", "--schema", "id long", "--key", "city"), "no column 'city'"),
        (("create", "store/x", "--schema", "id long"), "store/x is no topic"),
        (("create", "topic/", "--schema", "id long"), "'topic/' names no topic"),
        (("create", "", "--schema", "id long"), "'' names no topic"),
        (("create", "x", "--schema", "id long", "--keep", "soon"), "expected seconds, or a time such as"),
        (("alter", "x"), "say --shards, --keep or --keep-bytes"),
    ],
)
def test_what_cannot_be_meant_is_refused(here: Run, arguments: tuple[str, ...], message: str) -> None:
    done = here("topic", *arguments)
    assert (done.code, message in done.err) == (app.USAGE, True), done.err


def test_alter_changes_what_a_topic_keeps(here: Run, client: Client) -> None:
    create_topic(client, pa.schema({"id": pa.int64()}), "topic/x", keep_seconds=60, keep_bytes=1_000)
    assert "rows kept for 7 days, 1.0 kB at most" in here("topic", "alter", "x", "--keep", "7d").text
    assert "rows kept for 7 days, 2.0 kB at most" in here("topic", "alter", "x", "--keep-bytes", "2kB").text
    assert here("topic", "alter", "x", "--keep-bytes", "3kB", "--json").json[0]["keep_bytes"] == 3_000
    assert here("topic", "alter", "none", "--keep", "7d").code == app.NOT_FOUND


def test_alter_gives_an_unkeyed_topic_more_shards(here: Run, client: Client) -> None:
    client.put("topic/x", pa.table({"id": [1, 2]}))
    assert here("topic", "alter", "x", "--shards", "3").text.startswith("topic/x: 3 shards, ")
    fewer = here("topic", "alter", "x", "--shards", "2")
    assert (fewer.code, "it can get more, not fewer" in fewer.err) == (app.USAGE, True)
    here(*CREATE)
    keyed = here("topic", "alter", "orders", "--shards", "8")
    assert (keyed.code, "has key 'city', so it keeps its 4 shards" in keyed.err) == (app.USAGE, True)
