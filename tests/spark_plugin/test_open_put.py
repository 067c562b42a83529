"""A write from open to finish, without server and Spark: what is requested, and what an answer makes of it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from penstock.client.connection import Connection
from penstock.client.settings import ConnectSettings
from penstock.errors import Denied, InvalidRequest, PenstockError, TimedOut, WriteEnded
from penstock.spark_plugin.worker.open_put import OpenPut, finish_put, run_name
from penstock.wire.actions import Description, OpenedWrite, Summary
from penstock.wire.body import Body

SUMMARY = Summary("w", "store/x", "append", "finished", attempts=3, rows=20, bytes=100, parts=2, run="nightly")
OPEN = OpenPut("store/x", "w", "ticket", None, named=False)
RECEIPTS = [{"write": "w", "attempt": f"a{number}", "rows": 10} for number in range(2)]


def description(state: Any) -> Description:
    return Description("write", "store/x", 20, 100, 2, write="w", mode="append", state=state, attempts=3, run="nightly")


class Answers(Connection):
    """A server that gives these answers, one after another, and notes what it was called with."""

    def __init__(self, *answers: Body | PenstockError) -> None:
        self.settings = ConnectSettings("grpc://nowhere")
        self.answers = list(answers)
        self.requests: list[Any] = []

    def call(self, action: Any, request: Any, *, retry_for: float | None = None, waits_for_room: bool = False) -> Any:
        def once() -> Any:
            self.requests.append(request)
            answer = self.answers.pop(0)
            if isinstance(answer, PenstockError):
                raise answer
            return answer

        return self.retry(once, retry_for=retry_for)


# --- the value -----------------------------------------------------------------------------


def test_it_travels_without_settings_or_token() -> None:
    assert pickle.loads(pickle.dumps(OPEN)) == OPEN


def test_a_run_that_is_finished_already_is_repeated() -> None:
    put = OpenPut.of("store/x", OpenedWrite("w", "ticket", "finished", SUMMARY), named=True)
    assert (put.repeated, put.summary) == (True, SUMMARY)
    open_one = OpenPut.of("store/x", OpenedWrite("w", "ticket", "open", SUMMARY, "grpc://else"), named=True)
    assert (open_one.repeated, open_one.summary, open_one.location) == (False, None, "grpc://else")


def test_a_finish_lists_the_schemas_attempt_and_the_tasks() -> None:
    assert OPEN.finish_request(RECEIPTS).attempts == ("a0", "a1")
    request = replace(OPEN, schema_attempt="s").finish_request(RECEIPTS, run=("q", 7))
    assert (request.ticket, request.attempts, request.run) == ("ticket", ("s", "a0", "a1"), "q/7")


@pytest.mark.parametrize(
    ("receipt", "said"),
    [
        ({"write": "other", "attempt": "a"}, "a receipt is of write/other, this is write/w"),
        ({"write": "w"}, r"expected the receipts that mapInArrow\(put, put.schema\) returns"),
        ("nonsense", "expected the receipts"),
        (None, "expected the receipts"),
        ((), "expected the receipts"),
    ],
)
def test_what_is_no_receipt_of_this_write_is_rejected(receipt: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"finish of store/x: .*{said}"):
        OPEN.finish_request([receipt])


def test_the_schemas_attempt_is_none_of_the_tasks() -> None:
    put = replace(OPEN, schema_attempt="s").finished(SUMMARY)
    assert put.summary == replace(SUMMARY, attempts=2)
    assert put.finished(replace(SUMMARY, rows=0)) == put, "a second answer changes nothing"


@pytest.mark.parametrize(
    ("rows", "write", "warns"), [(20, "w", False), (21, "w", False), (20, "before", False), (21, "before", True)]
)
def test_rows_that_an_earlier_write_of_the_run_leaves_out(rows: int, write: str, warns: bool) -> None:
    warning = OPEN.left_out([{"rows": rows}], replace(SUMMARY, write=write))
    assert (warning is not None) == warns
    assert (
        not warns
        or "run nightly was written before, with 20 rows, and the 21 rows that come now are left out" in str(warning)
    )


def test_receipts_without_rows_are_enough_for_a_finish() -> None:
    finish_put(Answers(SUMMARY), OPEN, [{"write": "w", "attempt": "a"}])


@pytest.mark.parametrize("run", ["", (), ("orders", None), ("orders", ""), 1.5, ("orders", 1.5)])
def test_a_run_that_names_nothing_is_rejected(run: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"run=.*expected a text such as"):
        run_name(run)


def test_a_slash_in_a_part_makes_no_other_run() -> None:
    assert run_name(("q/1", 2)) != run_name(("q", "1/2")) != run_name(("q%2F1", 2)) != run_name(("q/1", 2))
    assert run_name(("orders", 7)) == run_name("orders/7") == "orders/7"


# --- finish --------------------------------------------------------------------------------


def test_a_finish_makes_the_answer_the_writes() -> None:
    server = Answers(SUMMARY)
    assert finish_put(server, OPEN, iter(RECEIPTS)).summary == SUMMARY
    assert server.requests == [OPEN.finish_request(RECEIPTS)]


def test_a_repeated_run_asks_for_nothing() -> None:
    put = OPEN.done_elsewhere(SUMMARY)
    assert finish_put(Answers(), put, [{"nonsense": 1}]) == put


def test_a_late_answer_is_asked_for_again() -> None:
    server = Answers(TimedOut("late"), TimedOut("late"), SUMMARY)
    assert finish_put(server, OPEN, RECEIPTS).summary == SUMMARY
    assert server.requests == [OPEN.finish_request(RECEIPTS)] * 3


ENDED = WriteEnded("finished with another list")


@pytest.mark.parametrize(
    ("put", "then"),
    [
        (OPEN, []),
        (replace(OPEN, named=True, summary=SUMMARY), []),
        (replace(OPEN, named=True), [description("aborted")]),
        (replace(OPEN, named=True), [Denied("no token")]),
    ],
    ids=["no run", "finished by itself", "aborted", "without a token"],
)
def test_a_write_that_ended_otherwise_is_an_error(put: OpenPut, then: list[Any]) -> None:
    with pytest.raises(WriteEnded, match="another list"):
        finish_put(Answers(ENDED, *then), put, RECEIPTS)


def test_a_run_that_another_driver_finished_is_repeated() -> None:
    put = finish_put(Answers(ENDED, description("finished")), replace(OPEN, named=True), RECEIPTS)
    assert (put.repeated, put.summary) == (True, SUMMARY)
