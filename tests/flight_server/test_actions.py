"""do_action, and the form of every error."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import penstock
from penstock.flight_server.server import PenstockServer
from tests.kit.wire import (
    at,
    attempt_of,
    call,
    error_details,
    info,
    list_paths,
    new_attempt,
    put,
    refused,
    trailer,
    trips,
)


def test_list_actions_has_a_sentence_for_each(bare: flight.FlightClient) -> None:
    sentences = [action.description for action in bare.list_actions()]
    assert len(sentences) >= 10
    for sentence in sentences:
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert "{" in sentence


def test_describe_tells_all_of_a_dataset(bare: flight.FlightClient) -> None:
    put(bare, at("store/x"), [trips(1, 2)])

    dataset = call(bare, "describe", path="store/x")

    columns = [{"name": "id", "type": "int64", "nullable": True}, {"name": "city", "type": "string", "nullable": True}]
    assert (dataset["kind"], dataset["path"], dataset["rows"], dataset["parts"]) == ("dataset", "store/x", 2, 1)
    assert (dataset["schema"], dataset["lost"]) == (columns, False)


def test_describe_tells_all_of_a_write(bare: flight.FlightClient) -> None:
    opened = call(bare, "write.open", path="store/x", mode="append", run="r")
    put(bare, attempt_of(opened["ticket"], new_attempt()), [trips(1)])

    write = call(bare, "describe", path=f"write/{opened['write']}")

    assert (write["kind"], write["path"], write["mode"], write["run"]) == ("write", "store/x", "append", "r")
    assert (write["state"], write["attempts"]) == ("open", 1)


def test_health_has_version_state_and_figures_alone(bare: flight.FlightClient, tmp_path: Path) -> None:
    put(bare, at("store/x"), [trips(1, 2)])

    health = call(bare, "health")

    assert (health["version"], health["state"]) == (penstock.__version__, "serving")
    assert (health["datasets"], health["rows"], health["open_writes"]) == (1, 2, 0)
    assert health["store_bytes"] > 0
    assert str(tmp_path) not in json.dumps(health)


def test_delete_removes_a_dataset_and_tells_its_size(bare: flight.FlightClient) -> None:
    put(bare, at("store/x"), [trips(1, 2)])

    gone = call(bare, "delete", path="store/x")

    assert (gone["path"], gone["rows"], gone["parts"]) == ("store/x", 2, 1)
    assert list_paths(bare) == []
    with refused("not-found"):
        call(bare, "delete", path="store/x")
    put(bare, at("store/x"), [trips(3)])


def test_delete_of_a_write_aborts_it(bare: flight.FlightClient) -> None:
    opened = call(bare, "write.open", path="store/x")

    assert call(bare, "delete", path=f"write/{opened['write']}")["state"] == "aborted"
    assert list_paths(bare, b"write/") == []
    with refused("write-ended"):
        put(bare, attempt_of(opened["ticket"], new_attempt()), [trips(1)])


@pytest.mark.parametrize(
    ("name", "body"),
    [("write.open", b""), ("write.open", b"{}"), ("write.open", b'{"v":1,"path":"store/x","mode":"replace"}'),
     ("write.open", b'{"v":1,"path":"write/x"}'),
     ("write.open", b'{"v":1,"path":"store/x","schema":[{"name":"a","type":"int64"}]}'),
     ("write.open", b'{"v":1,"path":"store/x","schema":"bm8gc2NoZW1h"}'),
     ("write.finish", b'{"v":1,"ticket":"x"}'), ("write.finish", b'{"v":1,"ticket":"x","attempts":"all"}'),
     ("delete", b'{"v":1,"path":"store/"}'), ("delete", b"\x80\x04K\x01."), ("describe", b'{"v":1,"path":["store/x"]}'),
     ("describe", b'{"v":1,"path":"store/x","more":1}')],
)  # fmt: skip
def test_a_malformed_body_is_refused(bare: flight.FlightClient, name: str, body: bytes) -> None:
    with refused("invalid"):
        list(bare.do_action(flight.Action(name, body)))


def test_an_unknown_action_is_refused_with_the_known(bare: flight.FlightClient) -> None:
    with refused("not-found", "'write.opne'", "write.open"):
        call(bare, "write.opne")


def test_do_exchange_with_a_dataset_is_refused(bare: flight.FlightClient) -> None:
    with refused("invalid", "store/x can't be appended to by do_exchange: expected topic/"):
        bare.do_exchange(at("store/x"))[1].read_all()


# --- errors --------------------------------------------------------------------------------

BAD: dict[str, Callable[[flight.FlightClient], object]] = {
    "do_action": lambda c: call(c, "describe", path="store/nope"),
    "an action unknown": lambda c: call(c, "x" * 5_000),
    "a long path": lambda c: call(c, "describe", path="store/" + "y" * 5_000),
    "a long field": lambda c: call(c, "describe", **{"z" * 5_000: 1}),
    "a long value": lambda c: call(c, "write.open", path="store/x", mode="m" * 5_000),
    "a long type": lambda c: call(c, "write.open", path="store/x", schema=[{"name": "a", "type": "t" * 5_000}]),
    "get_flight_info": lambda c: info(c, "store/nope"),
    "list_flights": lambda c: list_paths(c, b"store/nope"),
    "do_get": lambda c: c.do_get(flight.Ticket(b"no")).read_all(),
    "do_put": lambda c: put(c, at("store/x"), [trips(1)], end=trailer(2, 2)),
    "do_put of twins": lambda c: put(
        c, at("store/x"), [pa.RecordBatch.from_arrays([pa.array([1])] * 2, names=["c" * 5_000] * 2)]
    ),
    "do_exchange": lambda c: c.do_exchange(at("store/x"))[1].read_all(),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_an_error_is_short_and_clean_and_its_id_is_in_the_log(
    bare: flight.FlightClient,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    bad: Callable[[flight.FlightClient], object],
) -> None:
    with caplog.at_level(logging.INFO, logger="penstock"), pytest.raises(flight.FlightError) as caught:
        bad(bare)

    assert_clean(caught.value, tmp_path)
    assert error_details(caught.value)["request"] in caplog.text


def test_an_error_of_get_schema_is_clean_but_has_no_code(
    bare: flight.FlightClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, logger="penstock"),
        pytest.raises(pa.ArrowException, match="store/nope") as caught,
    ):
        bare.get_schema(at("store/nope"))

    text = str(caught.value)
    assert not [leak for leak in ("Traceback", ".py", str(tmp_path)) if leak in text]
    assert text.partition("[request ")[2].partition("]")[0] in caplog.text


def test_an_internal_error_shows_nothing_but_its_request_id(
    bare: flight.FlightClient,
    server: PenstockServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"canary in {tmp_path}")

    monkeypatch.setattr(server.state.ledger, "snapshot", broken)
    monkeypatch.setattr(server.state.ledger, "open_write", broken)
    monkeypatch.setattr(server.state.ledger, "datasets", broken)
    for ask in (lambda: info(bare, "store/x"), lambda: put(bare, at("store/x"), [trips(1)]), lambda: list_paths(bare)):
        caplog.clear()
        with pytest.raises(flight.FlightInternalError, match="the server's log has the cause") as caught:
            ask()
        assert_clean(caught.value, tmp_path)
        assert "canary" not in str(caught.value)
        assert error_details(caught.value)["request"] in caplog.text
        assert "canary" in caplog.text


def assert_clean(error: BaseException, folder: Path) -> None:
    """The error is one short sentence, and shows nothing of the machine that the server runs on."""
    whole = f"{error} {error_details(error)}"
    assert "Traceback" not in whole
    assert ".py" not in whole
    assert str(folder) not in whole
    assert len(own_words(error)) <= 1_000
    assert f"[request {error_details(error)['request']}]" in str(error)


def own_words(error: BaseException) -> str:
    """Return the server's text, without gRPC's repetition of it."""
    return str(error).partition(". Detail:")[0]
