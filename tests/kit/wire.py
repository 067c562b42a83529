"""A plain Flight client: pyarrow alone, none of penstock's own code, as any other language would have it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.kit.wait import eventually

if TYPE_CHECKING:
    from penstock.flight_server.server import PenstockServer

TRIPS = pa.schema([pa.field("id", pa.int64()), pa.field("city", pa.string())])


@pytest.fixture
def bare(server: PenstockServer) -> Iterator[flight.FlightClient]:
    """A plain client of `server`."""
    with flight.connect(server.url) as client:
        yield client


def trips(*ids: int) -> pa.RecordBatch:
    """Return a batch of trips with these ids."""
    return pa.RecordBatch.from_pydict({"id": list(ids), "city": [f"city {number}" for number in ids]}, schema=TRIPS)


def wide_trips(*ids: int) -> list[pa.RecordBatch]:
    """Return a batch for each of these trips, of 1 MiB of noise: a dozen make two parts."""
    return [pa.RecordBatch.from_pydict({"id": [n], "city": [os.urandom(1 << 19).hex()]}, TRIPS) for n in ids]


def new_attempt() -> str:
    """Return an id for one put."""
    return str(uuid.uuid4())


def at(path: str, **options: Any) -> flight.FlightDescriptor:
    """Return the descriptor of a path; with options it is a command."""
    if not options:
        return flight.FlightDescriptor.for_path(*path.split("/"))
    return flight.FlightDescriptor.for_command(json.dumps({"v": 1, "path": path, **options}).encode())


def attempt_of(ticket: str, attempt: str) -> flight.FlightDescriptor:
    """Return the descriptor of one attempt of an open write."""
    return flight.FlightDescriptor.for_command(json.dumps({"v": 1, "ticket": ticket, "attempt": attempt}).encode())


def trailer(batches: int, rows: int) -> bytes:
    """Return the message that ends a whole put."""
    return json.dumps({"v": 1, "batches": batches, "rows": rows}).encode()


def put(
    client: flight.FlightClient,
    descriptor: flight.FlightDescriptor,
    batches: Sequence[pa.RecordBatch],
    *,
    schema: pa.Schema | None = None,
    end: bytes | None = None,
    options: flight.FlightCallOptions | None = None,
) -> dict[str, Any]:
    """Send the batches and the trailer, and return the receipt. An error on the way is raised by close."""
    writer, reader = client.do_put(descriptor, schema or batches[0].schema, options)
    answer = None
    try:
        for batch in batches:
            writer.write_batch(batch)
        writer.write_metadata(end or trailer(len(batches), sum(batch.num_rows for batch in batches)))
        writer.done_writing()
        answer = reader.read()
    except (flight.FlightError, pa.ArrowException):
        pass  # the reason comes with close
    finally:
        writer.close()
    assert answer is not None, "no receipt and no error"
    receipt: dict[str, Any] = json.loads(answer.to_pybytes())
    return receipt


def begun_put(client: flight.FlightClient, path: str = "store/slow") -> tuple[Any, Any]:
    """Begin a put of which the server has a row; return its writer and the reader of its receipt."""
    others = set(list_paths(client, b"write/"))
    writer, reader = client.do_put(at(path), TRIPS)
    writer.write_batch(trips(1))
    eventually(lambda: set(list_paths(client, b"write/")) - others, what="the put has reached the server")
    return writer, reader


def await_drain(client: flight.FlightClient) -> flight.FlightUnavailableError:
    """Wait until new work is refused; return the refusal."""
    refusals: list[flight.FlightUnavailableError] = []

    def is_refused() -> bool:
        try:
            list_paths(client)
        except flight.FlightUnavailableError as error:
            refusals.append(error)
        return bool(refusals)

    eventually(is_refused)
    return refusals[0]


def call(
    client: flight.FlightClient, name: str, options: flight.FlightCallOptions | None = None, **body: Any
) -> dict[str, Any]:
    """Run an action with a JSON body, and return its answer."""
    (result,) = client.do_action(flight.Action(name, json.dumps({"v": 1, **body}).encode()), options)
    answer: dict[str, Any] = json.loads(result.body.to_pybytes())
    return answer


def create_topic(client: flight.FlightClient, path: str, schema: pa.Schema, **options: Any) -> dict[str, Any]:
    """Make a topic by a put of no rows, and describe it."""
    put(client, at(path, attempt=new_attempt(), create=options), [], schema=schema)
    return call(client, "describe", path=path)


def info(client: flight.FlightClient, path: str, **options: Any) -> flight.FlightInfo:
    """Return the FlightInfo of a path, with its tickets."""
    return client.get_flight_info(at(path, **options))


def fetch(client: flight.FlightClient, flight_info: flight.FlightInfo) -> pa.Table:
    """Return the rows of all endpoints, in their order."""
    tables = [client.do_get(endpoint.ticket).read_all() for endpoint in flight_info.endpoints]
    return pa.concat_tables(tables) if tables else flight_info.schema.empty_table()


def read(client: flight.FlightClient, path: str, **options: Any) -> pa.Table:
    """Return all rows of a dataset or a topic."""
    return fetch(client, info(client, path, **options))


def ids(client: flight.FlightClient, path: str) -> list[int]:
    """Return the ids of a dataset of trips, in order."""
    numbers: list[int] = read(client, path).column("id").to_pylist()
    return numbers


def list_paths(client: flight.FlightClient, criteria: bytes = b"store/") -> list[str]:
    """Return the paths that list_flights names."""
    return [json.loads(each.app_metadata)["path"] for each in client.list_flights(criteria)]


def error_details(error: BaseException) -> dict[str, Any]:
    """Return what a Flight error carries beside its text."""
    details: dict[str, Any] = json.loads(error.extra_info)  # type: ignore[attr-defined]  # a FlightError's
    return details


def error_code(error: BaseException) -> str:
    """Return the typed code of a Flight error."""
    code: str = error_details(error)["code"]
    return code


@contextmanager
def refused(code: str, *words: str) -> Iterator[None]:
    """Expect the block to fail with this code and these words."""
    with pytest.raises(flight.FlightError) as caught:
        yield
    assert error_code(caught.value) == code, caught.value
    for word in words:
        assert word in str(caught.value)


_AROUND = [
    "..", ".", "/", "//", "a/../b", "../a", "a/..", "a/.", "./a", "a/./b", "a//b", "/a", "/a/b", "a/", "a/b/", "",
    "~/../x", "a/b/../../..",
    "/etc/passwd", "..\\..\\a", "C:\\a", "\\\\host\\share", "a\\b",
]  # fmt: skip
_SIGNS = [f"a{sign}b" for sign in "\0\n\r\t \x0b\x0c\x1b\x7f\x85 !\"#$&'()*,;<>?@[\\]^`{|}"]
_ENDS = [f"{before}a{after}" for sign in "\n\r\t \0" for before, after in ((sign, ""), ("", sign), (sign, sign))]
_UNICODE = [
    "\xe4", "a/\xe9", "\xdf", "\u65e5\u672c", "\u0663", "\uff11\uff12", "a\u200bb", "a\u202eb", "a\u00a0b", "a\ufeff",
    "\uff0e\uff0e", "\u2025", "a\u2215b", "a\uff0fb", "\uff41", "\U0001d4b6", "\U0001f642", "\ud800",
    "a\u0301", "\u0130", "\u0131", "\u212a", "a\u2028b", "a\u2029", "\U000e0041",
]  # fmt: skip
_LONG = ["a" * 513, "a/" * 256 + "b", "a" * 10_000, "é" * 512, "a" * 512 + "\n", "/" * 512, "." * 513]
_ENCODED = [
    "%2e%2e/..", "%/./%", "+/../+", "a:/..", "~/.", "a//%2f", "%2f/", "..//~",
    "%c0%ae%c0%ae/", "&#46;&#46;", "\\x2e", "${HOME}", "$(id)", "`id`", "a;rm",
    "a|b", "a&b",
]  # fmt: skip
_INJECTED = [
    "'; DROP TABLE writes; --", 'a"b', "a'b", "a*", "a?", "[a]", "<a>", "{a}", "a@b", "a#b", "a b", "a,b",
    "a\u0000.arrow",
]  # fmt: skip
_BESIDE = [f"{key}/{name}" for key in ("a", "a/b") for name in ("", ".", "..", "../c", "./c", "/c", " ", "\0", "c\n")]
_CONTROLS = [f"a{chr(code)}" for code in range(32)] + [f"{chr(code)}a" for code in range(127, 161)]
NASTY = sorted({*_AROUND, *_SIGNS, *_ENDS, *_UNICODE, *_LONG, *_ENCODED, *_INJECTED, *_BESIDE, *_CONTROLS})
"""Keys that must be refused: ways out of a folder, other alphabets, control signs, too long ones."""
