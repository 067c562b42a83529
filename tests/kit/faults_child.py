"""A client that dies: `python -m tests.kit.faults_child URL COUNT` begins puts, says so, waits to be killed."""

from __future__ import annotations

import sys
import time

import pyarrow.flight as flight

from tests.kit.plain import TRIPS, at, trips


def main() -> None:
    url, count = sys.argv[1], int(sys.argv[2])
    client = flight.connect(url)
    writers = [client.do_put(at(f"store/killed/{number}"), TRIPS)[0] for number in range(count)]
    for writer in writers:
        writer.write_batch(trips(1, 2, 3))
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    time.sleep(600)


if __name__ == "__main__":
    main()
