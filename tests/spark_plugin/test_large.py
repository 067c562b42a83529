"""A column of more than 2 GiB goes out of Spark and back, past a server with less memory than that."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.flight as flight
import pytest

import penstock
from tests.kit.server import NO_LOCAL_READS, process_server
from tests.kit.wire import at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.process, pytest.mark.timeout(3_600)]
ROWS, REPEATS = 36_000, 1_024
"""Of one partition; a value is a hash of its row's number, in 64 letters, so many times: 2.2 GiB in all."""
LIMIT = 512 << 20
"""Private memory of the server."""


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_a_column_above_2_gib_goes_out_and_in(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """In many batches: Spark itself makes none of 2 GiB. Each value is compared, by plain pyarrow and by Spark."""
    value = f"cast(repeat(sha2(string(id), 256), {REPEATS}) as {kind})"
    frame = spark.range(0, ROWS, 1, 1).selectExpr("id", f"{value} as v")
    with (
        tempfile.TemporaryDirectory(dir=tmp_path) as folder,  # pytest would keep 2 GiB of each of its last three runs
        process_server(Path(folder) / "d", memory_limit=LIMIT, prelude=NO_LOCAL_READS) as server,
    ):
        written = penstock.write(frame, "store/large", url=server.url, progress=False)

        assert written.rows == ROWS
        assert rows_as_expected(server.url) == (ROWS, ROWS * 64 * REPEATS)
        again = penstock.read(spark, "store/large", url=server.url)
        sums = again.selectExpr("count(*)", "count(distinct id)", "sum(id)", f"count_if(v = {value})").first()
        assert sums is not None
        assert list(sums) == [ROWS, ROWS, ROWS * (ROWS - 1) // 2, ROWS]
        assert "ERROR" not in server.log()


def rows_as_expected(url: str) -> tuple[int, int]:
    """Return how many rows are stored, and the bytes of their values; each must be its number's."""
    numbers: set[int] = set()
    size = 0
    with flight.connect(url) as bare:
        for endpoint in bare.get_flight_info(at("store/large")).endpoints:
            for chunk in bare.do_get(endpoint.ticket):
                for number, value in zip(*(column.to_pylist() for column in chunk.data.columns), strict=True):
                    letters = value.encode() if isinstance(value, str) else value
                    assert letters == hashlib.sha256(b"%d" % number).hexdigest().encode() * REPEATS
                    numbers.add(number)
                    size += len(letters)
    assert numbers == set(range(ROWS))
    return len(numbers), size
