"""A client's own certificate: where `connect` finds it, and how it gets to Spark's tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.client.client import Client, connect
from penstock.errors import InvalidRequest
from penstock.flight_server.server import PenstockServer
from tests.kit.certificates import Certificates

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def mutual(make_server: Callable[..., PenstockServer], certificates: Certificates) -> str:
    """The address of a server that asks for certificates."""
    return str(make_server(**certificates.of_server, client_ca=certificates.ca).url)


def test_a_certificate_is_an_argument_or_a_variable(
    mutual: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(mutual, **certificates.of_client) as client:
        client.put("store/a", ROWS)
    for name, value in certificates.of_client.items():
        monkeypatch.setenv(f"PENSTOCK_{name.upper()}", value)
    with connect(mutual) as client:
        assert client.get("store/a").read_all().equals(ROWS)
    monkeypatch.delenv("PENSTOCK_CERT")
    monkeypatch.delenv("PENSTOCK_KEY")
    with connect(mutual, retry_for=0) as client, pytest.raises(InvalidRequest, match="PENSTOCK_CERT and PENSTOCK_KEY"):
        client.list()


def test_half_a_certificate_is_refused(certificates: Certificates) -> None:
    cert, key = str(certificates.cert), str(certificates.key)
    with pytest.raises(InvalidRequest, match="cert and key belong together: key is missing"):
        connect("grpc+tls://127.0.0.1:1", cert=cert)
    with pytest.raises(InvalidRequest, match="cert and key belong together: cert is missing"):
        connect("grpc+tls://127.0.0.1:1", key=key)
    with pytest.raises(InvalidRequest, match=r"key '/none': expected a file of a private key \(PEM\), No such file"):
        connect("grpc+tls://127.0.0.1:1", cert=cert, key="/none")


def test_tasks_get_certificate_and_key_as_text(mutual: str, certificates: Certificates) -> None:
    """They run where the files aren't, and connect by themselves."""
    with connect(mutual, **certificates.of_client) as client:
        settings = pickle.loads(pickle.dumps(client.settings.for_tasks(None)))
    for file in (certificates.ca, certificates.cert, certificates.key):
        file.unlink()
    with Client(settings) as client:
        assert len(client.list()) == 0
    assert "PRIVATE KEY" in settings.key
    assert "PRIVATE KEY" not in repr(settings)
