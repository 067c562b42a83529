"""A payload may be larger than the memory of server and client."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.kit.programs import clients
from tests.kit.server import NO_LOCAL_READS, process_server

MEBIBYTES = 1_024
LIMIT = 512 << 20


@pytest.mark.process
@pytest.mark.faults
def test_a_payload_may_be_twice_the_memory_limit(tmp_path: Path) -> None:
    """1 GiB in batches of 1 MiB, to disk and back by do_get, between a server and a client of 512 MiB each.

    The limit is on private memory (RLIMIT_DATA), of which each takes about 300 MiB, for 1 GiB as for 2: threads, gRPC's
    read-ahead, the parts in flight. What is mapped doesn't count, so nothing is mapped for this reader.
    """
    with (
        tempfile.TemporaryDirectory(dir=tmp_path) as folder,  # pytest would keep a GiB of each of its last three runs
        process_server(Path(folder) / "d", memory_limit=LIMIT, prelude=NO_LOCAL_READS) as server,
    ):
        done = subprocess.run(
            [sys.executable, "-m", clients.__name__, "put_and_get", server.url, str(MEBIBYTES), str(LIMIT)],
            cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3_000:] + server.log()[-3_000:]
        sent, came = json.loads(done.stdout)
        assert came == sent
        assert came["rows"] == MEBIBYTES * clients.ROWS
