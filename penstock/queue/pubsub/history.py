"""What became of a puller's leases: arrays rather than objects, as 100,000 that have ended are kept beside the live."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.queue.pubsub.registry import ACKS

State = Literal[
    "leased", "released", "ack sent", "confirmed", "lapsed", "failed", "replaced", "given back", "forgotten"
]
"""The first three are of leases that live. lapsed: Pub/Sub may have sent the message again, whether its ack was sent or
not; failed: Pub/Sub refused the ack; replaced: the message came again to the same puller, under a newer lease; given
back: nacked at the puller's end; forgotten: the subscription was made anew, or the emulator restarted."""
_STATES: tuple[State, ...] = (
    "leased", "released", "ack sent", "confirmed", "lapsed", "failed", "replaced", "given back", "forgotten",
)  # fmt: skip
LEASE = np.dtype(
    [
        ("shard", np.int32), ("offset", np.int64), ("received", np.float64), ("changed", np.float64),
        ("attempts", np.int16), ("duplicate", np.bool_),
    ]
)  # fmt: skip
"""What is known of a lease. `shard` is NOWHERE until the server has answered; `changed`: the begin of its state."""
Rows = npt.NDArray[Any]
"""An array of LEASE."""
NOWHERE = -1
MOST_ENDED = 100_000


def begun(count: int, arrived: float) -> Rows:
    """Return the rows of leases that have just come."""
    rows = np.zeros(count, LEASE)
    rows["shard"] = rows["offset"] = NOWHERE
    rows["received"] = rows["changed"] = arrived
    return rows


class History:
    """The leases that ended last: a ring."""

    def __init__(self, most: int = MOST_ENDED) -> None:
        self._rows = np.zeros(most, LEASE)
        self._states = np.zeros(most, np.int8)
        self._count = 0
        """Of all that ever ended."""

    def add(self, rows: Rows, state: State, now: float) -> None:
        """Add leases that have ended."""
        most = len(self._rows)
        at = np.arange(self._count, self._count + len(rows))[-most:] % most
        self._rows[at] = rows[-most:]
        self._rows["changed"][at] = now
        self._states[at] = _STATES.index(state)
        self._count += len(rows)

    def rows(self) -> list[tuple[State, Rows]]:
        """Return them by state."""
        end = min(self._count, len(self._rows))
        return [(state, self._rows[:end][self._states[:end] == code]) for code, state in enumerate(_STATES)]


def to_batches(history: Iterable[tuple[State, Rows]], puller: str, since: float, most: int) -> list[pa.RecordBatch]:
    """Return leases as rows of ACKS, at most so many a batch. `since`: when their clock was 0, in seconds of 1970."""
    return [
        _to_batch(state, rows[first : first + most], puller, since)
        for state, rows in history
        for first in range(0, len(rows), most)
    ]


def _to_batch(state: State, rows: Rows, puller: str, since: float) -> pa.RecordBatch:
    nowhere = rows["shard"] == NOWHERE
    received, changed = (
        pa.array(np.rint((rows[name] + since) * 1e6).astype(np.int64), pa.timestamp("us", "UTC"))
        for name in ("received", "changed")
    )
    arrays = [
        pa.array(np.ascontiguousarray(rows["shard"]), mask=nowhere),
        pa.array(np.ascontiguousarray(rows["offset"]), mask=nowhere),
        pa.repeat(pa.scalar(state), len(rows)),
        pa.array(rows["attempts"].astype(np.int32)),
        pa.array(np.ascontiguousarray(rows["duplicate"])),
        pa.repeat(pa.scalar(puller), len(rows)),
        received,
        changed,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ACKS)
