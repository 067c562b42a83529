"""Penstock as its wire says it is: plain pyarrow.flight, and none of penstock's own code."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

TRIPS = pa.schema([pa.field("id", pa.int64()), pa.field("city", pa.string())])


def trips(*ids: int) -> pa.RecordBatch:
    """A batch whose rows tell which ones they are."""
    return pa.RecordBatch.from_pydict({"id": list(ids), "city": [f"city {number}" for number in ids]}, schema=TRIPS)


def new_attempt() -> str:
    """A name for one put."""
    return str(uuid.uuid4())


def at(path: str, **options: Any) -> flight.FlightDescriptor:
    """A bare path, or a command where there are options."""
    if not options:
        return flight.FlightDescriptor.for_path(*path.split("/"))
    return flight.FlightDescriptor.for_command(json.dumps({"v": 1, "path": path, **options}).encode())


def attempt_of(ticket: str, attempt: str) -> flight.FlightDescriptor:
    """One attempt of an open write."""
    return flight.FlightDescriptor.for_command(json.dumps({"v": 1, "ticket": ticket, "attempt": attempt}).encode())


def trailer(batches: int, rows: int) -> bytes:
    """The word that the stream is whole."""
    return json.dumps({"v": 1, "batches": batches, "rows": rows}).encode()


def put(
    client: flight.FlightClient,
    where: flight.FlightDescriptor,
    batches: Sequence[pa.RecordBatch],
    *,
    schema: pa.Schema | None = None,
    end: bytes | None = None,
    options: flight.FlightCallOptions | None = None,
) -> dict[str, Any]:
    """Batches, the trailer, the receipt. A refusal on the way shows at close."""
    writer, reader = client.do_put(where, schema or batches[0].schema, options)
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


def call(
    client: flight.FlightClient, name: str, options: flight.FlightCallOptions | None = None, **body: Any
) -> dict[str, Any]:
    """An action with a JSON body."""
    (result,) = client.do_action(flight.Action(name, json.dumps({"v": 1, **body}).encode()), options)
    answer: dict[str, Any] = json.loads(result.body.to_pybytes())
    return answer


def create_topic(client: flight.FlightClient, path: str, schema: pa.Schema, **options: Any) -> dict[str, Any]:
    """Make a topic, as the wire has it: a put of no rows; what `describe` says of it."""
    put(client, at(path, attempt=new_attempt(), create=options), [], schema=schema)
    return call(client, "describe", path=path)


def info(client: flight.FlightClient, path: str, **options: Any) -> flight.FlightInfo:
    """What is said of a dataset, with its tickets."""
    return client.get_flight_info(at(path, **options))


def fetch(client: flight.FlightClient, found: flight.FlightInfo) -> pa.Table:
    """Every endpoint in its order."""
    tables = [client.do_get(endpoint.ticket).read_all() for endpoint in found.endpoints]
    return pa.concat_tables(tables) if tables else found.schema.empty_table()


def read(client: flight.FlightClient, path: str, **options: Any) -> pa.Table:
    """All rows of a dataset."""
    return fetch(client, info(client, path, **options))


def ids(client: flight.FlightClient, path: str) -> list[int]:
    """The ids of a dataset of trips, in order."""
    found: list[int] = read(client, path).column("id").to_pylist()
    return found


def names(client: flight.FlightClient, criteria: bytes = b"") -> list[str]:
    """The paths that list_flights tells."""
    return [json.loads(found.app_metadata)["path"] for found in client.list_flights(criteria)]


def code_of(error: BaseException) -> str:
    """The typed code that travels beside the text."""
    code: str = noted(error)["code"]
    return code


def noted(error: BaseException) -> dict[str, Any]:
    """All that travels beside the text."""
    found: dict[str, Any] = json.loads(error.extra_info)  # type: ignore[attr-defined]  # a FlightError's
    return found


@contextmanager
def refused(code: str, *words: str) -> Iterator[None]:
    """The block fails with that code, and its text has these words."""
    with pytest.raises(flight.FlightError) as caught:
        yield
    assert code_of(caught.value) == code, caught.value
    for word in words:
        assert word in str(caught.value)
