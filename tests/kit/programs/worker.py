"""A worker of a queue: `python -m tests.kit.programs.worker URL IN OUT [stall]`; prints what it does, a line each.

It doubles x. With `stall` it claims one by one, waits with its first message for a line of stdin before it forwards,
and says what became of each.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc

import penstock


def main() -> None:
    url, source, target, *how = sys.argv[1:]
    stall = one_by_one = how == ["stall"]
    with penstock.connect(url) as c:
        for lease in c.claim(source, prefetch=0 if one_by_one else 2, to=[target]):
            with lease as split:
                print("claimed", split.message.message_id, flush=True)  # noqa: T201
                if stall:
                    sys.stdin.readline()
                    stall = False
                x = split.payload.data["x"]
                lease.forward(target, pa.table({"x": pc.multiply(x, 2)}))
            if one_by_one:
                print("lost" if lease.lost else "done" if lease.ended else "failed", flush=True)  # noqa: T201
    print("end", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
