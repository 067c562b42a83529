"""`penstock top`: what is going on, in one look or several."""

from __future__ import annotations

import time

import pyarrow as pa

import penstock
from penstock.cli import top
from penstock.flight_server.server import PenstockServer
from tests.kit.cli import Run

ROWS = pa.table({"id": [1, 2, 3]})


def test_where_nothing_is_top_says_so(here: Run) -> None:
    assert here("top").text == "no topic, no open write\n"


def test_a_look_has_topics_consumers_and_writes(here: Run, server: PenstockServer) -> None:
    with penstock.connect(str(server.url)) as client:
        client.put("topic/orders", ROWS)
        journal = client.call("describe", {"path": "topic/orders"})["journal"]
        client.call("consumer.attach", {"path": "topic/orders", "journal": journal, "consumer": "c1", "session": "s"})
        client.call("write.open", {"path": "store/x"})

    text = here("top").text

    (topic,) = (line.split() for line in text.splitlines() if line.startswith("topic/orders"))
    assert topic[1] == "3"
    (consumer,) = (line.split() for line in text.splitlines() if line.startswith("c1"))
    assert consumer[:3] == ["c1", "topic/orders", "3"]
    assert consumer[-1] == "live"
    assert "store/x" in text


def test_a_consumers_name_is_nothing_that_a_terminal_obeys() -> None:
    lag = {"lag_rows": 0, "lag_bytes": 0, "lag_seconds": 0.0, "committed_per_s": None}
    consumer = {"consumer": "a\x1b[2J\nb", **lag, "seen": time.time(), "state": "live"}
    facts = {"rows": 3, "rows_per_s": None, "bytes": 9, "oldest": None}
    page = {"topics": [{"path": "topic/x", **facts, "consumers": [consumer]}], "writes": []}

    (line,) = (line for line in top._text(page) if line.endswith("live"))

    assert line.split()[:2] == ["a\\x1b[2J\\nb", "topic/x"]


def test_two_looks_tell_how_fast_it_grows(here: Run, server: PenstockServer) -> None:
    with penstock.connect(str(server.url)) as client:
        client.put("topic/orders", ROWS)

    first, second = here("top", "--json", "-n", "2", "-s", "0.1").json

    assert first["topics"][0]["rows_per_s"] is None
    assert second["topics"][0]["rows_per_s"] == 0.0
    assert second["topics"][0]["rows"] == 3
