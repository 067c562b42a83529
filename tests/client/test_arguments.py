"""What no client can send is refused at the caller, by the argument's name and with what was expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import InvalidRequest
from penstock.flight_server.server import PenstockServer

ROWS = pa.table({"id": [1, 2], "fare": [1.5, 2.5]})
PLACE: Any = Path("store/x")


class Spark:
    """As much of a session as `read` looks at before its first call."""

    range = None


class Column:
    """Spark's, which isn't text either."""


CALLS: dict[str, Callable[[Client, Any], Any]] = {
    "put": lambda c, path: c.put(path, ROWS),
    "writer": lambda c, path: c.writer(path, ROWS.schema),
    "get": lambda c, path: c.get(path),
    "info": lambda c, path: c.info(path),
    "list": lambda c, path: c.list(path),
    "delete": lambda c, path: c.delete(path),
    "do_put": lambda c, path: penstock.do_put(path, url=c.settings.url),
    "do_get": lambda c, path: penstock.do_get(path, url=c.settings.url),
    "read": lambda c, path: penstock.read(Spark(), path, url=c.settings.url),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("path", [PLACE, None, b"store/x"], ids=["Path", "None", "bytes"])
def test_a_path_that_is_no_text_is_refused(client: Client, call: Callable[[Client, Any], Any], path: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"path=.*: expected text such as 'store/demo/trips'") as refused:
        call(client, path)
    assert repr(path) in str(refused.value)
    assert len(client.list("write/")) == 0


READS: dict[str, Callable[..., Any]] = {
    "get": lambda c, **said: c.get("store/x", **said),
    "do_get": lambda c, **said: penstock.do_get("store/x", url=c.settings.url, **said),
    "read": lambda c, **said: penstock.read(Spark(), "store/x", url=c.settings.url, **said),  # type: ignore[arg-type]
}


NAMES = "columns=.*: expected a list of names, such as"
WRONG = [
    ("columns", "id", r"columns='id': expected a list of names: columns=\['id'\]"),
    *(("columns", columns, NAMES) for columns in ([Column()], 3, [1], [b"id"])),
    ("filter", Column(), r"filter=.*Column.*: expected text such as \"fare > 10"),
]


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize(("argument", "value", "message"), WRONG)
def test_a_value_of_another_type_is_refused_by_argument(
    client: Client, read: Callable[..., Any], argument: str, value: Any, message: str
) -> None:
    client.put("store/x", ROWS)
    with pytest.raises(InvalidRequest, match=message):
        read(client, **{argument: value})


@pytest.mark.parametrize("names", [["id"], ("id",), {"id": 1}, ROWS.select(["id"]).schema.names])
def test_names_in_any_collection_will_do(client: Client, names: Any, server: PenstockServer) -> None:
    client.put("store/x", ROWS)
    assert client.get("store/x", columns=names).read_all().equals(ROWS.select(["id"]))
