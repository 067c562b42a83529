"""/healthz, /readyz and /metrics."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator

import pyarrow.flight as flight
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.flight_server.http import HttpDoor
from penstock.flight_server.server import PenstockServer
from tests.kit.streams import Reading, X
from tests.kit.wait import eventually
from tests.kit.wire import at, call, new_attempt, put, read, refused, trips


@pytest.fixture
def door(server: PenstockServer) -> Iterator[str]:
    """The address of a server's HTTP door."""
    http = HttpDoor("127.0.0.1", 0, server.state)
    http.start()
    yield f"http://127.0.0.1:{http.port}"
    http.close()


def ask(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(door: str) -> dict[str, float]:
    """Return every sample of the page, as Prometheus reads it."""
    page: dict[str, float] = {}
    for family in text_string_to_metric_families(ask(f"{door}/metrics")[1]):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in page
            page[name] = sample.value
    return page


def test_healthz_says_ok_and_readyz_ready(door: str) -> None:
    assert ask(f"{door}/healthz") == (200, "ok\n")
    assert ask(f"{door}/readyz?verbose=1") == (200, "ready\n")


def test_an_unknown_page_is_answered_with_the_known(door: str) -> None:
    assert ask(f"{door}/etc/passwd") == (404, "no such page: there are /healthz, /readyz, /metrics\n")


def test_in_the_drain_readyz_is_503_and_healthz_is_ok(door: str, server: PenstockServer) -> None:
    server.state.streams.drain(0)
    assert ask(f"{door}/readyz") == (503, "draining\n")
    assert ask(f"{door}/healthz") == (200, "ok\n")


def test_metrics_count_calls_rows_bytes_and_errors(door: str, bare: flight.FlightClient) -> None:
    before: dict[str, float] = defaultdict(float, metrics(door))

    put(bare, at("store/x"), [trips(1, 2), trips(3)])
    put(bare, at("store/x", attempt=new_attempt(), mode="append"), [trips(4)])
    read(bare, "store/x", limit=3)
    with pytest.raises(flight.FlightError):
        put(bare, at("store/x"), [trips(5)])
    with pytest.raises(flight.FlightError):
        call(bare, "describe", path="store/nope")
    after = metrics(door)

    def moved(sample: str) -> float:
        return after.get(sample, 0) - before[sample]

    assert moved('penstock_calls_total{verb="do_put"}') == 3
    assert moved('penstock_calls_total{verb="do_get"}') == 1
    assert moved('penstock_calls_total{verb="get_flight_info"}') == 1
    assert moved('penstock_errors_total{code="exists",verb="do_put"}') == 1
    assert moved('penstock_errors_total{code="not-found",verb="do_action"}') == 1
    assert moved('penstock_rows_total{way="in"}') == 4
    assert moved('penstock_rows_total{way="out"}') == 3
    assert moved('penstock_bytes_total{way="in"}') == after["penstock_store_bytes"] > 0
    assert after['penstock_ledger{of="datasets"}'] == 1
    assert after['penstock_ledger{of="rows"}'] == 4
    assert after["penstock_open_streams"] == 0


def test_the_times_of_calls_are_a_histogram(door: str, bare: flight.FlightClient) -> None:
    for _ in range(5):
        call(bare, "health")
    samples = metrics(door)

    bucket = re.compile(r'penstock_call_seconds_bucket\{le="(.+)",verb="do_action"\}')
    ordered = {match[1]: value for name, value in samples.items() if (match := bucket.fullmatch(name))}
    values = [ordered[bound] for bound in sorted(ordered, key=float)]
    assert values == sorted(values)
    assert ordered["+Inf"] == samples['penstock_call_seconds_count{verb="do_action"}'] == 5
    assert 0 < samples['penstock_call_seconds_sum{verb="do_action"}'] < 60


def test_metrics_of_a_topic_show_rows_appends_and_consumers(door: str, reading: Reading) -> None:
    """The page shows a consumer that lags, that missed rows, or that two sessions claim."""
    began = time.monotonic()
    of_topic, of_consumer = f'{{topic="{X}"}}', f'{{consumer="c",topic="{X}"}}'
    reading.create(shards=1)
    reader = {"path": X, "journal": call(reading.bare, "describe", path=X)["journal"], "consumer": "c"}

    reading.put(0, 4)
    first_bytes = metrics(door)[f"penstock_topic_bytes{of_topic}"]
    reading.later(20)
    reading.put(0, 6, first=4)
    call(reading.bare, "consumer.attach", **reader, session="one", position={"0": 4})
    reading.later(50)
    samples = metrics(door)
    passed = time.monotonic() - began

    assert samples[f"penstock_topic_rows{of_topic}"] == 10
    assert samples[f"penstock_topic_bytes{of_topic}"] == samples["penstock_store_bytes"] > first_bytes > 0
    assert 50 <= samples[f"penstock_topic_oldest_seconds{of_topic}"] <= 50 + passed
    assert samples[f"penstock_consumer_lag_rows{of_consumer}"] == 6
    assert samples[f"penstock_consumer_lag_bytes{of_consumer}"] == samples["penstock_store_bytes"] - first_bytes
    assert 30 <= samples[f"penstock_consumer_lag_seconds{of_consumer}"] <= 30 + passed
    assert samples["penstock_appended_puts_total"] == 2
    for step in ("fsync", "ledger"):
        assert samples[f'penstock_append_seconds_count{{step="{step}"}}'] == 2
        assert 0 < samples[f'penstock_append_seconds_sum{{step="{step}"}}'] <= passed
    assert f"penstock_gap_rows_total{of_topic}" not in samples

    reading.purge()  # its consumer, who isn't seen for so long, has expired
    samples = metrics(door)
    assert samples[f"penstock_topic_rows{of_topic}"] == samples[f"penstock_topic_bytes{of_topic}"] == 0
    assert samples[f"penstock_topic_oldest_seconds{of_topic}"] == 0
    assert f"penstock_consumer_lag_rows{of_consumer}" not in samples

    reading.put(0, 3, first=10)
    call(reading.bare, "consumer.commit", **reader, session="one", position={"0": 12})
    call(reading.bare, "consumer.attach", **reader, session="two")
    with refused("fenced"):
        call(reading.bare, "consumer.commit", **reader, session="one", position={"0": 13})
    samples = metrics(door)
    assert samples[f"penstock_gap_rows_total{of_topic}"] == 6
    assert samples[f"penstock_consumer_lag_rows{of_consumer}"] == 1
    assert samples['penstock_errors_total{code="fenced",verb="do_action"}'] == 1


def test_an_open_put_is_seen_as_an_open_stream(door: str, bare: flight.FlightClient) -> None:
    writer, _ = bare.do_put(at("store/x"), trips(1).schema)
    writer.write_batch(trips(1))
    eventually(lambda: metrics(door)["penstock_open_streams"] == 1)
    with pytest.raises(flight.FlightError, match="trailer"):
        writer.close()
