"""A folder of parts has one owner: a server, or standalone stores."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.client.client import connect
from penstock.errors import InvalidRequest, PenstockError, Unavailable
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.lifecycle import serving
from penstock.store.open import open as open_store
from penstock.store.payloads import ORPHAN_GRACE
from tests.kit.rows import numbers
from tests.kit.server import ANY_PORT


def test_a_standalone_store_never_opens_a_servers_folder(tmp_path: Path) -> None:
    """It would take the server's parts, which no key of its own names, for orphans, and delete the old ones."""
    data = tmp_path / "data"
    with serving(ServerConfig(data=data, listen=ANY_PORT)) as server, connect(server.url) as client:
        client.put("store/a", numbers(10))
        with pytest.raises(InvalidRequest, match="is that of a penstock server"):
            open_store(f"disk:{data}")
    long_ago = time.time() - 2 * ORPHAN_GRACE
    for part in data.glob("parts/*/*"):
        os.utime(part, (long_ago, long_ago))
    with pytest.raises(InvalidRequest, match="is that of a penstock server"):
        open_store(f"disk:{data}")
    with serving(ServerConfig(data=data, listen=ANY_PORT)) as server, connect(server.url) as client:
        assert client.get("store/a").read_all() == numbers(10)


def test_neither_opens_a_folder_whose_parts_are_elsewhere(tmp_path: Path) -> None:
    config = ServerConfig(data=tmp_path / "data", listen=ANY_PORT, store=f"disk:{tmp_path / 'parts'}")
    with serving(config):
        for folder in ("data", "parts"):
            with pytest.raises(PenstockError):
                open_store(f"disk:{tmp_path / folder}")
    for folder in ("data", "parts"):
        with pytest.raises(InvalidRequest):
            open_store(f"disk:{tmp_path / folder}")


def test_a_server_never_opens_a_standalone_stores_folder(tmp_path: Path) -> None:
    store = open_store(f"disk:{tmp_path}")
    store.store("a", numbers(3))
    with (
        pytest.raises(Unavailable, match="in use"),
        serving(ServerConfig(data=tmp_path, listen=ANY_PORT, patience=0.1)),
    ):
        pass
    store.close()
    with (
        pytest.raises(InvalidRequest, match="belongs to another"),
        serving(ServerConfig(data=tmp_path, listen=ANY_PORT)),
    ):
        pass


def test_two_standalone_stores_share_a_folder(tmp_path: Path) -> None:
    first, second = open_store(f"disk:{tmp_path}"), open_store(f"disk:{tmp_path}")
    first.store("a", numbers(3))
    payload = second.get("a")
    assert payload is not None
    assert payload.data == numbers(3)
    first.close()
    second.close()
