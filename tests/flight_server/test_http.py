"""/healthz, /readyz and /metrics."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

import penstock.flight_server.http as http_module
from penstock.client.client import connect
from penstock.flight_server.http import HttpDoor
from penstock.flight_server.server import PenstockServer
from tests.kit.server import TOKEN, token_file
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


def test_a_server_without_room_is_not_ready(make_server: Callable[..., PenstockServer]) -> None:
    server = make_server(quota=200_000)
    http = HttpDoor("127.0.0.1", 0, server.state)
    http.start()
    page = f"http://127.0.0.1:{http.port}"
    try:
        assert (ask(f"{page}/readyz"), metrics(page)["penstock_store_full"]) == ((200, "ready\n"), 0)
        with connect(server.url) as client:
            client.put("store/x", pa.table({"x": range(24_700)}))
            status, text = ask(f"{page}/readyz")
            assert (status, text.startswith("full: the store has 19")) == (503, True), text
            samples = metrics(page)
            assert (samples["penstock_store_full"], samples["penstock_store_free_bytes"] > 0) == (1, True)
            assert ask(f"{page}/healthz") == (200, "ok\n")
            client.delete("store/x")
        eventually(lambda: ask(f"{page}/readyz") == (200, "ready\n"))
    finally:
        http.close()


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
    assert [*map(float, ordered)] == sorted(map(float, ordered)), "as the page has them"
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


def test_requests_that_get_no_thread_take_no_place(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", no_memory)
        for _ in range(http_module._THREADS):
            with suppress(OSError):
                ask(f"{door}/healthz")
    assert ask(f"{door}/healthz") == (200, "ok\n")


def test_an_open_put_is_seen_as_an_open_stream(door: str, bare: flight.FlightClient) -> None:
    writer, _ = bare.do_put(at("store/x"), trips(1).schema)
    writer.write_batch(trips(1))
    eventually(lambda: metrics(door)["penstock_open_streams"] == 1)
    with pytest.raises(flight.FlightError, match="trailer"):
        writer.close()


# --- from other machines -------------------------------------------------------------------

SLOW = 1.0
"""Seconds of a request, in place of 10."""


@dataclass(frozen=True)
class OpenDoor:
    """HTTPS on an address that other machines would reach, and the context of a client that trusts it."""

    url: str
    trust: ssl.SSLContext

    def ask(self, page: str, token: str | None = None) -> str:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(self.url + page, headers=headers)
        with urllib.request.urlopen(request, timeout=10, context=self.trust) as answer:
            return str(answer.read().decode())


@pytest.fixture
def opened(make_server: Callable[..., PenstockServer], tmp_path: Path) -> Iterator[OpenDoor]:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    server = make_server(
        http="0.0.0.0:0", http_tls=True, http_token_file=token_file(tmp_path), tls_cert=tmp_path / "cert.pem",
        tls_key=tmp_path / "key.pem",
    )  # fmt: skip
    with connect(server.url) as client:
        client.put("topic/secret-name", pa.table({"x": [1]}))
    http = HttpDoor("0.0.0.0", 0, server.state)
    http.start()
    authority.configure_trust(trust := ssl.create_default_context())
    yield OpenDoor(f"https://127.0.0.1:{http.port}", trust)
    http.close()


def test_names_are_shown_to_holders_of_the_token_alone(opened: OpenDoor) -> None:
    """A kubelet's probes have none."""
    assert opened.ask("/healthz") == "ok\n"
    assert 'topic="topic/secret-name"' in opened.ask("/metrics", TOKEN)
    for token in (None, TOKEN[:-1], ""):
        page = opened.ask("/metrics", token)
        assert "penstock_rows_total" in page
        assert "secret-name" not in page


def test_https_answers_nothing_without_tls(opened: OpenDoor) -> None:
    with pytest.raises(OSError, match=r"Remote end closed|reset|EOF"):
        urllib.request.urlopen(opened.url.replace("https", "http") + "/healthz", timeout=10)


@pytest.mark.parametrize("sends", [b"", b"GET /healthz HT", b"\x16\x03\x01"], ids=["nothing", "half", "half of TLS"])
def test_a_slow_request_is_cut_at_the_deadline(
    server: PenstockServer, monkeypatch: pytest.MonkeyPatch, sends: bytes
) -> None:
    """It may send a byte each second: the whole of it has one deadline."""
    monkeypatch.setattr(http_module, "_DEADLINE", SLOW)
    http = HttpDoor("127.0.0.1", 0, server.state)
    http.start()
    with socket.create_connection(("127.0.0.1", http.port), timeout=10) as slow:
        began = time.monotonic()
        slow.sendall(sends)
        with suppress(ConnectionError):
            while True:
                slow.sendall(b"x")
                slow.settimeout(0.2)
                with suppress(TimeoutError):
                    if not slow.recv(1):
                        break
        assert SLOW <= time.monotonic() - began < 5
    http.close()


@pytest.mark.faults
def test_so_many_slow_requests_are_served_at_a_time(door: str) -> None:
    address = ("127.0.0.1", int(door.rpartition(":")[2]))
    before = threading.active_count()
    idle = [socket.create_connection(address, timeout=10) for _ in range(40)]
    eventually(lambda: threading.active_count() == before + 32)
    assert sum(_is_closed(each) for each in idle) == 8
    for each in idle:
        each.close()
    eventually(lambda: threading.active_count() == before)
    assert ask(f"{door}/healthz") == (200, "ok\n")


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
