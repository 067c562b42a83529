"""The stores of payloads fulfil their contract: at a server, mapped and sent, and alone in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import SplitPayloadStore
from penstock.flight_server.server import PenstockServer
from penstock.rows.payload import PayloadStore
from tests.kit.payload_contract import PayloadContract


class TestServerStore(PayloadContract):
    @pytest.fixture
    def store(self, server: PenstockServer) -> Iterator[PayloadStore]:
        with SplitPayloadStore(server.url, retry_for=2) as store:
            yield store


@pytest.mark.usefixtures("elsewhere")
class TestDistantServerStore(TestServerStore):
    """The server's parts can't be mapped, as on another host."""


class TestFolderStore(PayloadContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[PayloadStore]:
        with SplitPayloadStore(f"disk:{tmp_path}") as store:
            yield store
