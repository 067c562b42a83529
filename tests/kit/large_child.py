"""A client under a memory limit: `python -m tests.kit.large_child URL MEBIBYTES LIMIT` puts so much and gets it back.

Prints the rows and the checksum that went in, and those that came out. No more than a batch of it is ever named here.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
from crc32c import crc32c

import penstock
from penstock.flight_server import lifecycle

SCHEMA = pa.schema([("n", pa.int64())])
ROWS = 1 << 17
"""Of one batch: 1 MiB of noise."""


@dataclass
class Seen:
    """What has passed by."""

    rows: int = 0
    checksum: int = 0

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, counted. However they are cut, their checksum is that of all values in order."""
        for batch in batches:
            self.rows += batch.num_rows
            self.checksum = crc32c(batch.column(0).to_numpy(zero_copy_only=True), self.checksum)
            yield batch


def noise(mebibytes: int) -> Iterator[pa.RecordBatch]:
    """Each batch is made when it is asked for."""
    for number in range(mebibytes):
        values = np.random.default_rng(number).integers(0, 1 << 62, ROWS)
        yield pa.RecordBatch.from_arrays([pa.array(values)], schema=SCHEMA)


def main() -> None:
    lifecycle.lean_memory()
    url, mebibytes, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    sent, came = Seen(), Seen()
    with penstock.connect(url) as client:
        client.put("store/large", sent.passing(noise(mebibytes)), schema=SCHEMA)
        for _ in came.passing(client.get("store/large")):
            pass
    json.dump([asdict(sent), asdict(came)], sys.stdout)


if __name__ == "__main__":
    main()
