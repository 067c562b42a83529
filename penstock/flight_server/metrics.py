"""Metrics: what /metrics shows to Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as missing:
    raise ImportError("the server needs prometheus_client: pip install 'penstock-flight[serve]'") from missing

_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 600.0)
disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter has a second line, when it began


class Gauge(NamedTuple):
    """One value that is read when Prometheus asks."""

    name: str
    text: str
    value: float
    labels: Mapping[str, str] = {}


class Metrics:
    """A registry of its own: counters, times, and gauges that are read at each scrape."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._calls = self.counter("penstock_calls_total", "Calls that ended, by verb.", "verb")
        self._errors = self.counter("penstock_errors_total", "Calls that failed, by verb and code.", "verb", "code")
        self._seconds = self.histogram("penstock_call_seconds", "Duration of calls, by verb.", "verb")
        rows = self.counter("penstock_rows_total", "Rows received by do_put and sent by do_get.", "way")
        size = self.counter("penstock_bytes_total", "Bytes of batches received by do_put and sent by do_get.", "way")
        self._moved = {way: (rows.labels(way), size.labels(way)) for way in ("in", "out")}
        self._of_verb: dict[str, tuple[Counter, Histogram]] = {}
        """Finding a metric by its label takes 1 µs, counting 0.4."""
        self.maps = self.counter("penstock_maps_total", "Parts handed to readers on this host as file descriptors.")

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Register a counter."""
        return Counter(name, text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, *labels: str) -> Histogram:
        """Register a histogram of seconds."""
        return Histogram(name, text, labels, registry=self._registry, buckets=_BUCKETS)

    def gauges(self, read: Callable[[], Iterable[Gauge]]) -> None:
        """Register gauges, which `read` reads together at each scrape."""
        self._registry.register(_Gauges(read))

    def moved(self, way: str, rows: int, size: int) -> None:
        """Count rows and bytes that came `in` or went `out`."""
        counted_rows, counted_bytes = self._moved[way]
        counted_rows.inc(rows)
        counted_bytes.inc(size)

    def call_ended(self, verb: str, seconds: float, code: str | None) -> None:
        """Count a call, with the code of its error."""
        if code:
            self._errors.labels(verb, code).inc()
        metrics = self._of_verb.get(verb)
        if metrics is None:
            metrics = self._of_verb[verb] = self._calls.labels(verb), self._seconds.labels(verb)
        metrics[0].inc()
        metrics[1].observe(seconds)

    def text(self, *, names: bool = True) -> str:
        """Return the page, in Prometheus's text format; without `names` what names things is left out."""
        return generate_latest(self._registry if names else _Nameless(self._registry)).decode()


class _Nameless(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            if not any({"topic", "queue", "job"} & sample.labels.keys() for sample in family.samples):
                yield family


class _Gauges(Collector):
    def __init__(self, read: Callable[[], Iterable[Gauge]]) -> None:
        self._read = read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for name, text, value, labels in self._read():
            families.setdefault(name, GaugeMetricFamily(name, text)).add_sample(name, dict(labels), value)
        return families.values()
