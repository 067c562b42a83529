"""A plain Flight client: what any other language would have."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.flight as flight
import pytest

from penstock.flight_server.server import PenstockServer


@pytest.fixture
def bare(server: PenstockServer) -> Iterator[flight.FlightClient]:
    """A plain client of `server`."""
    with flight.connect(server.url) as found:
        yield found
