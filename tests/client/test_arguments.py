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


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_columns_in_one_text_are_refused_with_the_list_to_say(client: Client, read: Callable[..., Any]) -> None:
    client.put("store/x", ROWS)
    with pytest.raises(InvalidRequest, match=r"columns='id': expected a list of names: columns=\['id'\]"):
        read(client, columns="id")


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("wrong", [[Column()], 3, [1], [b"id"]], ids=["Column", "number", "numbers", "bytes"])
def test_columns_that_are_no_names_are_refused(client: Client, read: Callable[..., Any], wrong: Any) -> None:
    client.put("store/x", ROWS)
    with pytest.raises(InvalidRequest, match=r"columns=.*: expected a list of names, such as"):
        read(client, columns=wrong)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_filter_that_is_no_text_is_refused(client: Client, read: Callable[..., Any]) -> None:
    client.put("store/x", ROWS)
    with pytest.raises(InvalidRequest, match=r"filter=.*Column.*: expected text such as \"fare > 10"):
        read(client, filter=Column())


@pytest.mark.parametrize("names", [["id"], ("id",), {"id": 1}, ROWS.select(["id"]).schema.names])
def test_names_in_any_collection_will_do(client: Client, names: Any, server: PenstockServer) -> None:
    client.put("store/x", ROWS)
    assert client.get("store/x", columns=names).read_all().equals(ROWS.select(["id"]))
