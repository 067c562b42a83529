"""What /metrics shows, in Prometheus's text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import accumulate

Sample = tuple[str, str, float]
"""A name, labels as in `verb="do_put"`, a value."""
_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 600.0)

_HELP = {
    "penstock_calls_total": ("counter", "Calls that ended, by verb."),
    "penstock_errors_total": ("counter", "Calls that failed, by verb and error code."),
    "penstock_rows_total": ("counter", "Rows that came in by do_put and went out by do_get."),
    "penstock_bytes_total": ("counter", "Bytes of batches that came in by do_put and went out by do_get."),
    "penstock_maps_total": ("counter", "Parts handed to readers on this host as a descriptor."),
    "penstock_call_seconds": ("histogram", "How long calls took, by verb."),
    "penstock_open_streams": ("gauge", "do_get and do_put calls that are open."),
    "penstock_store_bytes": ("gauge", "Bytes that parts take in the store, unseen and retired ones included."),
    "penstock_quarantined_parts": ("gauge", "Parts that were found corrupt and are kept in quarantine/."),
    "penstock_ledger": ("gauge", "What the ledger counts."),
    "penstock_append_seconds": (
        "histogram",
        "How long a group of small puts to topics took: its fsync, its change of the ledger.",
    ),
    "penstock_appended_puts_total": ("counter", "Small puts to topics that were committed, in however many groups."),
    "penstock_topic_rows": ("gauge", "Rows that can be read, by topic."),
    "penstock_topic_bytes": ("gauge", "Bytes of these rows, by topic."),
    "penstock_topic_oldest_seconds": ("gauge", "Age of the oldest of these rows, by topic."),
    "penstock_gap_rows_total": (
        "counter",
        "Rows of a topic that were gone before a consumer had them that went on behind them.",
    ),
    "penstock_consumer_lag_rows": ("gauge", "Rows that a live consumer hasn't committed."),
    "penstock_consumer_lag_bytes": ("gauge", "Bytes of these rows."),
    "penstock_consumer_lag_seconds": ("gauge", "Age of the oldest of these rows."),
}


class Metrics:
    """Counters that only grow, call times, and gauges that are asked for when somebody looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # _counts, _times
        self._counts: dict[tuple[str, str], float] = defaultdict(float)
        self._times: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * (len(_BUCKETS) + 2))
        self._gauges: list[Callable[[], Iterable[Sample]]] = []

    def gauges(self, ask: Callable[[], Iterable[Sample]]) -> None:
        """Gauges that are asked for once at each look."""
        self._gauges.append(ask)

    def count(self, name: str, labels: str = "", amount: float = 1) -> None:
        """Add to a counter; labels as in `verb="do_put"`."""
        with self._lock:
            self._counts[name, labels] += amount

    def moved(self, way: str, rows: int, size: int) -> None:
        """Rows have come in or gone out."""
        with self._lock:
            self._counts["penstock_rows_total", f'way="{way}"'] += rows
            self._counts["penstock_bytes_total", f'way="{way}"'] += size

    def called(self, verb: str, seconds: float, code: str | None) -> None:
        """A call is over."""
        with self._lock:
            if code:
                self._counts["penstock_errors_total", f'verb="{verb}",code="{code}"'] += 1
            self._counts["penstock_calls_total", f'verb="{verb}"'] += 1
        self.took("penstock_call_seconds", f'verb="{verb}"', seconds)

    def took(self, name: str, labels: str, seconds: float) -> None:
        """Add to a histogram of times."""
        with self._lock:
            times = self._times[name, labels]
            times[bisect_left(_BUCKETS, seconds)] += 1
            times[-1] += seconds

    def text(self) -> str:
        """The page."""
        with self._lock:
            samples = [(name, labels, value) for (name, labels), value in self._counts.items()]
            times = {key: list(values) for key, values in self._times.items()}
        samples += [sample for ask in self._gauges for sample in ask()]
        samples += [sample for key, values in times.items() for sample in _histogram(*key, values)]
        lines: list[str] = []
        for name, (kind, help_text) in _HELP.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            lines += [_line(*sample) for sample in sorted(samples) if _family(sample[0]) == name]
        return "\n".join(lines) + "\n"


def _histogram(name: str, labels: str, times: list[float]) -> Iterable[Sample]:
    """What was done, by how long it took, each bucket with the ones below it; last the seconds of all."""
    *counts, seconds = times
    for bound, up_to in zip((*map("{:g}".format, _BUCKETS), "+Inf"), accumulate(counts), strict=True):
        yield f"{name}_bucket", f'{labels},le="{bound}"', up_to
    yield f"{name}_count", labels, sum(counts)
    yield f"{name}_sum", labels, seconds


def _family(name: str) -> str:
    for ending in ("_bucket", "_count", "_sum"):
        if name.endswith(f"_seconds{ending}"):
            return name.removesuffix(ending)
    return name


def _line(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {value:.10g}" if labels else f"{name} {value:.10g}"
