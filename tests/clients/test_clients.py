"""Clients of others list, read and write by docs/wire.md alone, and are told clearly what there isn't."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from penstock.client.client import Client, connect
from penstock.flight_server.server import PenstockServer
from tests.kit.server import token_of, tokens_file
from tests.kit.wire import at, call, put, refused, trips

LANGUAGES = ("go", "java")
ROWS, PART = 300_000, 100_000


@pytest.fixture
def served(make_server: Callable[..., PenstockServer], tmp_path: Path) -> PenstockServer:
    """A server with something of every kind that a client alone can make, for callers who may do everything."""
    callers = {name: {"admin": ["/"]} for name in ("test", *LANGUAGES)}
    server = make_server(tokens=tokens_file(tmp_path, **callers))
    with connect(server.url, token=token_of("test")) as client:
        for first in range(0, ROWS, PART):
            client.put("store/seed", seed(first), mode="append")
        client.put("topic/orders", pa.table({"id": [1]}))
        client.put("queue/work", pa.table({"id": [1]}))
        client.call("job.start", {"path": "job/j", "stages": [{"stage": "in", "role": "source", "what": "?"}]})
        client.call("write.open", {"path": "store/later"})
    return server


def seed(first: int) -> pa.Table:
    """Return rows whose text, of 150 bytes, makes one part of more than an endpoint's half."""
    ids = pa.array(range(first, first + PART), pa.int64())
    city = pa.array([None if n % 1000 == 0 else f"{n:0150}" for n in range(first, first + PART)])
    return pa.table({"id": ids, "city": city})


@pytest.fixture
def client(served: PenstockServer) -> Iterator[Client]:
    with connect(served.url, token=token_of("test")) as client:
        yield client


# A minute of two cores builds the one in Go, once
@pytest.fixture(params=[pytest.param("go", marks=pytest.mark.soak), "java"])
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def seen(language: str, served: PenstockServer, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the client in one language has done at the server, and was answered."""
    command: Sequence[str] = request.getfixturevalue(f"{language}_client")
    arguments = [f"127.0.0.1:{served.port}", token_of(language)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.mark.process
@pytest.mark.timeout(900)  # the first time it is built
def test_a_client_of_others_lists_reads_and_writes(language: str, seen: dict[str, Any], client: Client) -> None:
    kinds = {kind for path, kind in seen["listed"].items() if not path.startswith("write/")}
    assert kinds == {"dataset", "topic", "queue", "job"}
    assert [kind for path, kind in seen["listed"].items() if path.startswith("write/")] == ["write"]

    endpoints = seen["seed"].pop("endpoints")
    assert endpoints == len(
        client.connection.flight.get_flight_info(at("store/seed"), client.connection.options()).endpoints
    )
    assert endpoints > 1
    assert seen["seed"] == {"rows": ROWS, "sum": ROWS * (ROWS - 1) // 2, "ordered": True}
    nulls = range(0, ROWS, 1000)
    assert seen["filtered"] == {
        "endpoints": endpoints, "rows": len(nulls), "sum": sum(nulls), "ordered": True,
    }  # fmt: skip

    assert (seen["receipt"]["rows"], seen["receipt"]["parts"]) == (3, 1)
    assert client.get(f"store/{language}").read_all().to_pydict() == {
        "id": [1, 2, 3], "city": ["city 1", "city 2", "city 3"],
    }  # fmt: skip
    assert seen["appended"]["rows"] == 1
    assert client.get(f"topic/{language}").read_all()["id"].to_pylist() == [1]
    assert (seen["summary"]["state"], seen["summary"]["rows"], seen["summary"]["attempts"]) == ("finished", 4, 2)
    assert client.get(f"store/{language}-write").read_all()["id"].to_pylist() == [2, 3, 4, 5]

    assert "without its trailer" in seen["cut"]["text"]
    assert "needs the server's token" in seen["denied"]["text"]
    assert seen["denied"]["details"]["code"] == "denied"


# --- SQL -----------------------------------------------------------------------------------------

NO_SQL = "penstock has no SQL: read a dataset by its path"


def statement(name: str, query: str = "SELECT 1") -> flight.FlightDescriptor:
    """Return a command of Flight SQL, a protobuf in an Any."""
    url, body = f"type.googleapis.com/arrow.flight.protocol.sql.{name}".encode(), query.encode()
    message = bytes((0x0A, len(body))) + body
    return flight.FlightDescriptor.for_command(bytes((0x0A, len(url))) + url + bytes((0x12, len(message))) + message)


def test_a_command_of_flight_sql_is_told_that_there_is_no_sql(bare: flight.FlightClient) -> None:
    for name in ("CommandStatementQuery", "CommandGetSqlInfo", "CommandGetTables", "CommandStatementSubstraitPlan"):
        with refused("invalid", NO_SQL):
            bare.get_flight_info(statement(name))
        with pytest.raises(pa.ArrowException, match="penstock has no SQL"):
            bare.get_schema(statement(name))
    for name in ("CommandStatementUpdate", "CommandStatementIngest"):
        with refused("invalid", NO_SQL):
            put(bare, statement(name), [trips(1)])
    for action in ("CreatePreparedStatement", "BeginTransaction"):
        with refused("invalid", NO_SQL):
            call(bare, action)
    with refused("not-found", "no action 'prepare'"):
        call(bare, "prepare")


def test_adbc_is_told_that_there_is_no_sql(server: PenstockServer) -> None:
    assert server.url is not None
    with adbc.connect(server.url.replace("grpc://", "grpc+tcp://"), autocommit=True) as connection:
        for method, arguments in (
            ("execute", ("SELECT 1",)),
            ("adbc_prepare", ("SELECT 1",)),
            ("execute", ("INSERT INTO x VALUES (?)", (1,))),
        ):
            with connection.cursor() as cursor, pytest.raises(adbc.Error) as caught:
                getattr(cursor, method)(*arguments)
            assert NO_SQL in str(caught.value)


def test_a_listing_without_criteria_has_every_kind(bare: flight.FlightClient) -> None:
    for path in ("store/a/b", "topic/a", "queue/a"):
        put(bare, at(path), [trips(1)])
    call(bare, "job.start", path="job/j", stages=[{"stage": "in", "role": "source", "what": "?"}])
    write = call(bare, "write.open", path="store/later")["write"]
    entries = [json.loads(each.app_metadata) for each in bare.list_flights()]
    assert [(entry["kind"], entry["path"]) for entry in entries] == [
        ("dataset", "store/a/b"), ("topic", "topic/a"), ("queue", "queue/a"), ("job", "job/j"),
        ("write", f"write/{write}"),
    ]  # fmt: skip
    folders = json.dumps({"v": 1, "path": "", "folders": True}).encode()
    assert next(json.loads(each.app_metadata)["path"] for each in bare.list_flights(folders)) == "store/a/"
