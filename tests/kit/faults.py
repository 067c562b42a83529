"""Faults that a test plants: a crash at a named step, a disk that is full or fails, a damaged put."""

from __future__ import annotations

import random
import resource
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import StoreFull
from penstock.store.payloads import Store
from tests.kit.raw_flight import flight_data
from tests.kit.server import ProcessServer, process_server
from tests.kit.wire import trailer

# --- crashes ------------------------------------------------------------------------------------


class Crash(BaseException):
    """The end of a process: whatever catches errors does not catch this."""


def crash_at(fatal: str) -> Callable[[str], None]:
    """Return a replacement for `penstock.steps.passed` that crashes at one step."""

    def passed(step: str) -> None:
        if step == fatal:
            raise Crash

    return passed


# --- the disk -----------------------------------------------------------------------------------


def fail_first_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store have no room for the first part that is written."""
    write, calls = store.write, count()

    def first_fails(*arguments: Any, path: str) -> Any:
        if next(calls) == 0:
            raise StoreFull("no room", retry_after=5)
        return write(*arguments, path=path)

    monkeypatch.setattr(store, "write", first_fails)


@contextmanager
def files_at_most(server: ProcessServer, size: int) -> Iterator[None]:
    """Let no file of the server grow beyond so many bytes: a full disk, as the kernel reports it."""
    before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)


FAILING = """
import errno, os, pathlib
real, flag = os.{call}, pathlib.Path({flag!r})
def failing(*arguments, **options):
    if flag.exists():
        raise OSError({code}, os.strerror({code}))
    return real(*arguments, **options)
os.{call} = failing
"""


@contextmanager
def failing_server(data: Path, system_call: str, code: str = "errno.EIO") -> Iterator[tuple[ProcessServer, Path]]:
    """Start a server; one of its system calls fails while the file exists that is returned beside it."""
    flag = data.parent / "failing"
    with process_server(data, prelude=FAILING.format(call=system_call, flag=str(flag), code=code)) as server:
        yield server, flag


# --- damaged bytes ------------------------------------------------------------------------------


Damage = Callable[[bytes, random.Random], bytes]


def flip(raw: bytes, dice: random.Random) -> bytes:
    """Flip a bit."""
    changed = bytearray(raw)
    changed[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def cut(raw: bytes, dice: random.Random) -> bytes:
    """Cut off the end."""
    return raw[: dice.randrange(len(raw))]


def blank(raw: bytes, dice: random.Random) -> bytes:
    """Blank a sector, as if it had never been written."""
    start = dice.randrange(len(raw)) // 512 * 512
    return raw[:start] + bytes(min(512, len(raw) - start)) + raw[start + 512 :]


def noise(raw: bytes, dice: random.Random) -> bytes:
    """Overwrite some bytes."""
    start = dice.randrange(max(1, len(raw) - 16))
    return raw[:start] + dice.randbytes(16) + raw[start + 16 :]


def lengthen(raw: bytes, dice: random.Random) -> bytes:
    """Add some bytes."""
    return raw + dice.randbytes(dice.randrange(1, 100))


# --- a damaged put -----------------------------------------------------------------------------

ROWS = 40


def varied() -> pa.Table:
    """Return a table with every layout that Arrow has, in two batches."""
    words = [f"word {number % 7}" if number % 5 else None for number in range(ROWS)]
    numbers = list(range(ROWS))
    turns = pa.array([0, 1] * (ROWS // 2), pa.int8())
    batch = pa.RecordBatch.from_pydict({
        "int": pa.array(numbers),
        "text": pa.array(words),
        "bytes": pa.array([b"\x00" * (number % 9) for number in numbers]),
        "list": pa.array([[number] * (number % 4) for number in numbers]),
        "coded": pa.array(words).dictionary_encode(),
        "struct": pa.array([{"a": number, "b": str(number)} if number % 3 else None for number in numbers]),
        "map": pa.array([[(str(number), number)] for number in numbers], pa.map_(pa.string(), pa.int64())),
        "view": pa.array([word and word * 3 for word in words], pa.string_view()),
        "when": pa.array(numbers, pa.timestamp("us", "UTC")),
        "union": pa.UnionArray.from_sparse(turns, [pa.array(numbers), pa.array(words)]),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([ROWS // 2, ROWS], pa.int32()), pa.array(words[:2])),
        "none": pa.nulls(ROWS),
    })  # fmt: skip
    return pa.Table.from_batches([batch, batch])


_NASTY = [0, 1, -1, -2, 7, 127, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**33, 2**40, 2**63 - 1, -(2**63)]


def damage(data: bytes, dice: random.Random) -> bytes:
    """Change, cut off or overwrite a few bytes, some with numbers that overflow."""
    changed = bytearray(data)
    if not changed:
        return data
    for _ in range(dice.choice([1, 1, 1, 2, 4, 8])):
        at_ = dice.randrange(len(changed))
        kind = dice.randrange(4)
        if kind == 0:
            changed[at_] ^= 1 << dice.randrange(8)
        elif kind == 1:
            changed[at_] = dice.randrange(256)
        elif kind == 2 and len(changed) >= 8:
            at_ = at_ // 4 * 4 % (len(changed) - 7)
            changed[at_ : at_ + 8] = struct.pack("<q", dice.choice(_NASTY))
        elif len(changed) >= 4:
            at_ = at_ // 4 * 4 % (len(changed) - 3)
            changed[at_ : at_ + 4] = struct.pack("<q", dice.choice(_NASTY))[:4]
    return bytes(changed[: dice.randrange(len(changed))] if dice.random() < 0.05 else changed)


def mutated(messages: list[tuple[bytes, bytes]], path: str, dice: random.Random) -> list[bytes]:
    """Return a put of these messages with one fault: in a header, a body, their order, or the frame around them."""
    some = list(messages)
    hit = dice.randrange(len(some))
    header, body = some[hit]
    where = dice.random()
    if where < 0.45:
        some[hit] = damage(header, dice), body
    elif where < 0.85:
        hit = dice.choice([number for number, (_, body) in enumerate(some) if body])
        some[hit] = some[hit][0], damage(some[hit][1], dice)
    elif where < 0.90:
        del some[hit]
    elif where < 0.95:
        some.insert(dice.randrange(len(some) + 1), some[hit])
    sent = framed(some, path)
    if where >= 0.95:
        hit = dice.randrange(len(sent))
        sent[hit] = damage(sent[hit], dice)
    return sent


def framed(messages: list[tuple[bytes, bytes]], path: str) -> list[bytes]:
    """Return the messages as a put; the last one carries the trailer."""
    last = len(messages) - 1
    return [
        flight_data(
            *message, path=path.split("/") if at_ == 0 else (), metadata=trailer(2, 2 * ROWS) if at_ == last else b""
        )
        for at_, message in enumerate(messages)
    ]
