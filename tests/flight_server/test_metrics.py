"""The registry of metrics, and a server without the library that makes it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.flight_server.metrics import Gauge, Metrics

WITHOUT = "import sys; sys.modules['prometheus_client'] = None\n"


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_a_label_is_escaped() -> None:
    metrics = Metrics()
    metrics.gauges(lambda: [Gauge("penstock_x", "Help.", 1, {"of": 'a"b\\c\nd'})])
    assert '\npenstock_x{of="a\\"b\\\\c\\nd"} 1.0\n' in metrics.text()


def test_a_gauge_is_shown_for_as_long_as_it_is_read() -> None:
    metrics, topics = Metrics(), {"topic/a": 1, "topic/b": 2}
    metrics.gauges(lambda: (Gauge("penstock_x", "Help.", rows, {"topic": path}) for path, rows in topics.items()))
    assert metrics.text().count("\npenstock_x{") == 2
    topics.clear()
    assert "penstock_x" not in metrics.text()


def test_two_servers_have_metrics_of_their_own() -> None:
    one, other = Metrics(), Metrics()
    one.moved("in", 3, 24)
    assert 'penstock_rows_total{way="in"} 3.0' in one.text()
    assert 'penstock_rows_total{way="in"} 0.0' in other.text()


@pytest.mark.process
def test_serve_without_the_extra_says_how_to_get_it() -> None:
    done = python(WITHOUT + "from penstock.cli.app import run; sys.exit(run(['serve']))")
    assert (done.returncode, "pip install 'penstock-flight[serve]'" in done.stderr) == (2, True)


@pytest.mark.process
def test_doctor_works_without_the_extra() -> None:
    done = python(WITHOUT + "import penstock.flight_server.config")
    assert done.returncode == 0, done.stderr
