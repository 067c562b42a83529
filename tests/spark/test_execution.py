"""One operation over several connections: what is sent again, what isn't, what is released, how it ends."""

from __future__ import annotations

import base64
import gc
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

import penstock
from penstock.errors import Denied, InvalidRequest, LimitExceeded, PenstockError, TimedOut
from penstock.spark import client, execution
from penstock.spark.errors import CorruptResponse, InvalidPlan, Remote, SessionLost, Transport, Unsupported
from penstock.spark.results import Progress
from penstock.spark.retries import Retries, RetryPolicy
from penstock.spark.session import Session
from tests.kit.certificates import Certificates
from tests.kit.fake_connect import Cut, Failure, FakeConnect, fake_connect, note_timeouts, spark_failure
from tests.kit.wait import eventually

AWAY = Failure(grpc.StatusCode.UNAVAILABLE)
ALL = list(range(50))


def ids(result: Any) -> list[int]:
    return [number for batch in result for number in batch["id"].to_pylist()]


# --- connections that break ---------------------------------------------------------------


@pytest.mark.parametrize(
    "cuts",
    [
        [Cut(0, AWAY)],
        [Cut(3, AWAY)],
        [Cut(3)],
        [Cut(2, AWAY), Cut(0, AWAY), Cut(0), Cut(1, AWAY), Cut(3, AWAY)],
        [Cut(4, spark_failure("INVALID_CURSOR.DISCONNECTED"))],
        [Cut(1, Failure(grpc.StatusCode.DEADLINE_EXCEEDED))],
    ],
)
def test_a_broken_stream_goes_on(fake: FakeConnect, session: Session, cuts: list[Cut]) -> None:
    fake.cuts = [*cuts]
    with session.sql("select 1").stream() as result:
        assert ids(result) == ALL
    assert result.reattaches == len(cuts)
    assert len(fake.named("ExecutePlan")) == 1


def test_a_query_that_never_arrived_is_sent_again(fake: FakeConnect, session: Session) -> None:
    fake.failures["ExecutePlan"] = [AWAY]
    with session.sql("select 1").stream() as result:
        assert ids(result) == ALL
    first, second = fake.named("ExecutePlan")
    assert first.operation_id == second.operation_id == result.operation_id


def test_an_operation_that_is_gone_is_not_begun_anew(fake: FakeConnect, session: Session) -> None:
    """Its first rows were read: the same query may have others, and other work may be done twice."""
    fake.cuts = [Cut(2, AWAY)]
    fake.failures["ReattachExecute"] = [spark_failure("INVALID_HANDLE.OPERATION_NOT_FOUND")]
    with session.sql("select 1").stream() as result, pytest.raises(Remote) as refused:
        ids(result)
    assert refused.value.error_class == "INVALID_HANDLE.OPERATION_NOT_FOUND"
    assert len(fake.named("ExecutePlan")) == 1


def test_what_spark_says_is_not_sent_again(fake: FakeConnect, session: Session) -> None:
    """A semantic error stays one."""
    fake.cuts = [Cut(0, spark_failure("DIVIDE_BY_ZERO", sqlState="22012"))]
    with pytest.raises(Remote) as failed:
        session.sql("select 1 / 0").stream()
    assert (failed.value.error_class, failed.value.sql_state) == ("DIVIDE_BY_ZERO", "22012")
    assert not fake.named("ReattachExecute")
    fake.failures["AnalyzePlan"] = [spark_failure("PARSE_SYNTAX_ERROR")]
    with pytest.raises(Remote):
        session.analyze(spark_version={})
    assert len(fake.named("AnalyzePlan")) == 1


def test_a_server_that_stays_away_is_given_up(fake: FakeConnect) -> None:
    with penstock.spark_connect(fake.uri, retry_for=0.3) as session:
        fake.cuts = [Cut(1, AWAY)] + 100 * [Cut(0, AWAY)]
        with session.sql("select 1").stream() as result, pytest.raises(Transport, match="could not reach sc://"):
            ids(result)
        fake.cuts = [Cut(1)] + 100 * [Cut(0)]
        with session.sql("select 1").stream() as result, pytest.raises(Transport, match="ends each stream"):
            ids(result)


def test_a_server_that_answered_has_longer(fake: FakeConnect, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first answer on, also within the first query."""
    monkeypatch.setattr(client, "FIRST_RETRY_FOR", 0.0)
    fake.cuts = [Cut(1, AWAY)]
    with penstock.spark_connect(fake.uri) as session:
        assert ids(session.range(50).stream()) == ALL


def test_a_stream_that_ends_while_spark_computes_is_followed(
    fake: FakeConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: here no retry is left for one that failed."""
    monkeypatch.setattr(execution, "LASTED", 0.0)
    fake.cuts = [Cut(1), Cut(0), Cut(0, Failure(grpc.StatusCode.DEADLINE_EXCEEDED)), Cut(0)]
    with penstock.spark_connect(fake.uri, retry_for=0.0) as session, session.range(50).stream() as result:
        assert ids(result) == ALL
    assert result.reattaches == 4


def test_the_servers_delay_is_kept_and_capped() -> None:
    waits: list[float] = []
    retries = Retries(RetryPolicy(retry_for=100, longest_server_wait=7.0), sleep=waits.append)
    assert all(retries.wait(delay) for delay in (2.0, 3600.0, None))
    assert waits[0] == 2.0
    assert waits[1] == 7.0
    assert waits[2] < 1.0
    assert not Retries(RetryPolicy(retry_for=1.0)).wait(30.0)


def test_a_call_waits_as_long_as_the_server_wants(fake: FakeConnect, session: Session) -> None:
    busy = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_delay=0.4)
    fake.failures["AnalyzePlan"] = [busy]
    began = time.monotonic()
    assert session.version == "4.3.0"
    assert time.monotonic() - began >= 0.4
    fake.cuts = [Cut(1, busy)]
    assert session.sql("select 1").to_arrow()["id"].to_pylist() == ALL


@pytest.mark.parametrize("other", [2, 4])
def test_rows_that_come_twice_are_refused(fake: FakeConnect, session: Session, other: int) -> None:
    """A server that repeats, or leaves out, a response: an error, never other rows."""
    fake.change = lambda number, raw: fake.responses(fake.named("ExecutePlan")[-1])[other] if number == 3 else raw
    with session.sql("select 1").stream() as result, pytest.raises(CorruptResponse):
        ids(result)


def test_a_reader_that_stalls_is_sent_a_few_mb() -> None:
    """Of what it has sent Spark keeps 10 MB to send again: without the channel's options 5 MB are ahead here."""
    with (
        fake_connect(batches=150, rows=20_000) as fake,
        penstock.spark_connect(fake.uri) as session,
        session.sql("select 1").stream() as result,
    ):
        sent: list[int] = []

        def note(_: int, raw: bytes) -> bytes:
            sent.append(len(raw))
            return raw

        fake.change = note
        for _ in range(60):  # quickly, which lets gRPC take more at once
            result.read_next_batch()
        counts = [-1]
        while counts[-1] != len(sent) or counts.count(len(sent)) < 5:
            counts.append(len(sent))
            time.sleep(0.1)
        assert len(sent) < 150, "the whole result was sent"
        assert sum(sent) - result.bytes < 3_000_000


# --- releases -----------------------------------------------------------------------------


def test_responses_are_released_once_used(fake: FakeConnect, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that the caller has is at the server still; the ones before it needn't be."""
    monkeypatch.setattr(execution, "RELEASE_EVERY", 1)

    def released() -> list[str]:
        return [
            request.release_until.response_id
            for request in fake.named("ReleaseExecute")
            if not request.HasField("release_all")
        ]

    with session.sql("select 1").stream() as result:
        for number in range(1, 6):
            result.read_next_batch()
            eventually(lambda number=number: released() == [f"r{each}" for each in range(1, number)])  # type: ignore[misc]
        assert ids(result) == []
    eventually(lambda: fake.named("ReleaseExecute")[-1].HasField("release_all"))


def test_releases_are_made_by_bytes(fake: FakeConnect, session: Session) -> None:
    """None for a small result but the one at its end."""
    assert session.range(50).to_arrow().num_rows == 50  # sql(…) would be a query of its own
    eventually(lambda: fake.named("ReleaseExecute"))
    (request,) = fake.named("ReleaseExecute")
    assert request.HasField("release_all")


def test_a_result_goes_on_from_its_checkpoint(
    fake: FakeConnect, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another process, whatever the first one read after it."""
    monkeypatch.setattr(execution, "RELEASE_EVERY", 1)
    result = session.sql("select 1").stream()
    first = [result.read_next_batch()["id"].to_pylist() for _ in range(2)]
    token = result.checkpoint()
    result.read_next_batch()
    result.read_next_batch()
    eventually(lambda: fake.named("ReleaseExecute"))
    with penstock.spark_connect(fake.uri) as other, other.resume(token) as rest:
        assert rest.rows == 20
        assert [*first[0], *first[1], *ids(rest)] == ALL
        assert rest.rows == 50
    result.close()


def test_a_checkpoint_before_any_batch_is_the_start(fake: FakeConnect, session: Session) -> None:
    with session.sql("select 1").stream() as result:
        token = result.checkpoint()
        assert ids(session.resume(token)) == ALL
    assert fake.named("ReattachExecute")


@pytest.mark.parametrize("how", ["left", "read", "dropped", "loop"])
def test_a_checkpoint_survives_its_result(fake: FakeConnect, session: Session, how: str) -> None:
    """Nothing behind it is released, and nothing interrupted, neither by the first reader nor by the second."""
    with session.range(50).stream() as result:
        result.read_next_batch()
        token = result.checkpoint()
        if how == "read":
            assert ids(result) == ALL[10:]
    if how in ("dropped", "loop"):
        result = session.range(50).stream()
        result.read_next_batch()
        token = result.checkpoint()
        for _ in result if how == "loop" else ():
            break
        del result
        gc.collect()
    for _ in range(2):
        with penstock.spark_connect(fake.uri) as other, other.resume(token) as rest:
            assert ids(rest) == ALL[10:]
    session.close()  # makes the calls that wait
    assert not fake.named("Interrupt")
    assert not [request for request in fake.named("ReleaseExecute") if request.HasField("release_all")]


def test_a_checkpoint_after_the_end_is_refused(session: Session) -> None:
    with session.range(50).stream() as result:
        assert ids(result) == ALL
        with pytest.raises(InvalidRequest, match="before its end"):
            result.checkpoint()


FORGED = (b'{"v":1,"session_id":"","user_id":"","operation_id":"","response_id":"","rows":Infinity}', b"[" * 100_000)


@pytest.mark.parametrize(
    "token",
    ["", "e30=", "nonsense", "eyJ2IjogMn0=", *(base64.b64encode(each).decode() for each in FORGED)],
    ids=lambda each: each[:12],
)
def test_what_is_no_checkpoint_is_refused(session: Session, token: str) -> None:
    with pytest.raises(InvalidRequest, match="checkpoint"):
        session.resume(token)


# --- ends ---------------------------------------------------------------------------------


def interrupted(fake: FakeConnect) -> list[str]:
    return [request.operation_id for request in fake.named("Interrupt")]


def test_a_result_that_is_left_is_interrupted(fake: FakeConnect, session: Session) -> None:
    with session.sql("select 1").stream() as left:
        left.read_next_batch()
    assert interrupted(fake) == [left.operation_id]
    for _ in session.sql("select 1").stream():
        break
    eventually(lambda: len(interrupted(fake)) == 2)
    with pytest.raises(ZeroDivisionError), session.sql("select 1").stream():
        raise ZeroDivisionError
    assert len(interrupted(fake)) == 3


def test_a_result_that_is_forgotten_is_interrupted(fake: FakeConnect, session: Session) -> None:
    result = session.sql("select 1").stream()
    operation = result.operation_id
    del result
    gc.collect()
    eventually(lambda: interrupted(fake) == [operation])


def test_a_loop_that_is_collected_waits_for_nothing(
    fake: FakeConnect, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any thread may collect it, within any lock."""
    monkeypatch.setattr(session.client, "call_once", lambda *_, **__: pytest.fail("a call is waited for"))
    batches = iter(session.range(50).stream())
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    monkeypatch.undo()
    eventually(lambda: len(interrupted(fake)) == 1)


def test_a_whole_result_is_not_interrupted(fake: FakeConnect, session: Session) -> None:
    with session.sql("select 1").stream() as result:
        assert ids(result) == ALL
    del result
    reader = pa.RecordBatchReader.from_stream(session.sql("select 1"))
    assert reader.read_all()["id"].to_pylist() == ALL
    del reader
    gc.collect()
    session.close()
    assert interrupted(fake) == []


def test_a_query_has_a_deadline(fake: FakeConnect, session: Session) -> None:
    assert session.version == "4.3.0"  # the connection is there
    fake.cuts = [Cut(1)] + 1000 * [Cut(0)]
    with pytest.raises(TimedOut, match=r"0\.5 s"):
        ids(session.sql("select 1").stream(timeout=0.5))
    assert interrupted(fake) == [request.operation_id for request in fake.named("ExecutePlan")]


def test_a_query_sent_again_has_the_same_deadline(
    fake: FakeConnect, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.failures["ExecutePlan"] = [AWAY]
    limits = note_timeouts(session, monkeypatch)
    assert ids(session.range(50).stream(timeout=60.0)) == ALL
    assert len(limits) == 3
    assert max(limits) <= 60.0


def test_a_callback_that_raises_leaves_no_query_running(fake: FakeConnect, session: Session) -> None:
    def told(progress: Progress) -> None:
        raise ZeroDivisionError

    fake.change = lambda number, raw: fake.progress() if number == 1 else raw
    with pytest.raises(ZeroDivisionError):
        ids(session.range(50).stream(on_progress=told))
    assert len(interrupted(fake)) == 1


def test_interrupts_name_what_they_mean(fake: FakeConnect, session: Session) -> None:
    session.sql("select 1").stream(tag="nightly").close()
    assert list(fake.named("ExecutePlan")[0].tags) == ["nightly"]
    assert session.interrupt() == ["all"]
    session.interrupt(tag="nightly")
    session.interrupt(operation="op")
    requests = fake.named("Interrupt")[1:]
    assert [request.interrupt_type for request in requests] == [1, 2, 3]
    assert (requests[1].operation_tag, requests[2].operation_id) == ("nightly", "op")
    with pytest.raises(InvalidRequest, match="one of them"):
        session.interrupt(tag="a", operation="b")
    with pytest.raises(InvalidRequest, match="commas"):
        session.sql("select 1").stream(tag="a,b")


def test_a_forgotten_session_leaves_no_thread(fake: FakeConnect) -> None:
    """Nor its connection, which the thread closes; what waits is sent before that."""
    before = set(threading.enumerate())
    session = penstock.spark_connect(fake.uri)
    result = session.range(50).stream()
    (thread,) = (each for each in set(threading.enumerate()) - before if each.name == "penstock-connect-tasks")
    del session, result
    gc.collect()
    eventually(lambda: not thread.is_alive())
    assert len(interrupted(fake)) == 1


# --- sessions -----------------------------------------------------------------------------


def test_requests_say_whose_they_are(fake: FakeConnect) -> None:
    uri = f"{fake.uri}/;token=t0;user_id=ana;x-team=blue;user_agent=notebook"
    with penstock.spark_connect(uri, session_id="6f1c3f6e-3f6b-4c8e-9d8a-2b7f0a1c2d3e") as session:
        assert session.version == "4.3.0"
        assert session.conf.get("a") == "value"
    requests = [request for _, request in fake.calls]
    assert {request.session_id for request in requests} == {session.session_id}
    assert {request.user_context.user_id for request in requests} == {"ana"}
    assert requests[0].client_type.startswith("notebook penstock spark/")
    assert [request.client_observed_server_side_session_id for request in requests[:2]] == ["", fake.server_session]
    assert {headers["authorization"] for headers in fake.headers} == {"Bearer t0"}
    assert {headers["x-team"] for headers in fake.headers} == {"blue"}
    assert fake.calls[-1][0] == "ReleaseSession"


def test_a_session_without_pysparks_name_says_the_way(session: Any) -> None:
    for name, words in (
        ("catalog", r"Catalog\(spark\)"), ("udf", "don't travel"), ("readStream", "pyspark's"),
        ("interruptAll", r"interrupt\(\)"), ("reed", "did you mean 'read'"),
    ):  # fmt: skip
        with pytest.raises(Unsupported, match=f"a session has no {name}.*{words}"):
            getattr(session, name)
        assert not hasattr(session, name)
    session.stop()
    assert session.client.closed


def test_a_released_session_says_so(fake: FakeConnect, session: Session) -> None:
    session.close()
    session.close()
    for call in (lambda: session.sql("select 1"), session.range(3).count, session.interrupt, lambda: session.version):
        with pytest.raises(SessionLost, match="was released: connect again") as lost:
            call()
        assert lost.value.error_class == "INVALID_HANDLE.SESSION_CLOSED"
    assert not fake.named("ExecutePlan")


@pytest.mark.parametrize("name", ["SESSION_CLOSED", "SESSION_CHANGED", "SESSION_NOT_FOUND"])
def test_a_lost_session_says_what_was_lost(fake: FakeConnect, session: Session, name: str) -> None:
    session.conf.set("spark.sql.shuffle.partitions", 7)
    session.conf.set("spark.sql.ansi.enabled", False)
    assert fake.named("Config")[1].operation.set.pairs[0].value == "false"
    session.conf.unset("spark.sql.ansi.enabled")
    fake.cuts = [Cut(0, spark_failure(f"INVALID_HANDLE.{name}"))]
    with pytest.raises(SessionLost, match=r"temporary views.*\(spark.sql.shuffle.partitions\)") as lost:
        session.sql("select 1").stream()
    assert lost.value.error_class == f"INVALID_HANDLE.{name}"


def test_a_session_begun_anew_is_a_lost_one(fake: FakeConnect, session: Session) -> None:
    assert session.version
    fake.server_session = "00000000-0000-4000-8000-000000000002"
    with pytest.raises(SessionLost, match="anew"):
        _ = session.version


def test_a_clone_is_a_session_of_its_own(fake: FakeConnect, session: Session) -> None:
    session.conf.set("a", "b")
    with session.clone() as clone:
        assert clone.session_id != session.session_id
        assert clone.client.settings == {"a": "b"}
        assert clone.version == "4.3.0"
    assert session.version == "4.3.0"
    assert fake.named("CloneSession")[0].new_session_id == clone.session_id


# --- errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "expected", "message"),
    [
        (Failure(grpc.StatusCode.UNAUTHENTICATED), Denied, "token"),
        (Failure(grpc.StatusCode.PERMISSION_DENIED), Denied, "denied"),
        (Failure(grpc.StatusCode.UNIMPLEMENTED), Unsupported, "doesn't know this call"),
        (Failure(grpc.StatusCode.RESOURCE_EXHAUSTED), LimitExceeded, "planted"),
        (Failure(grpc.StatusCode.DEADLINE_EXCEEDED), TimedOut, "in time"),
        (Failure(grpc.StatusCode.INTERNAL, "[SOME_CLASS] oh"), Remote, "oh"),
        (Failure(grpc.StatusCode.INTERNAL, "no methods on a stopped SparkContext"), Transport, "shutting down"),
        (Failure(grpc.StatusCode.UNKNOWN, "Java heap space"), Remote, r"out of memory; spark\.driver\.memory"),
    ],
)
def test_a_failed_call_is_a_typed_error(
    fake: FakeConnect, session: Session, failure: Failure, expected: type[PenstockError], message: str
) -> None:
    fake.failures["AnalyzePlan"] = [failure]
    with pytest.raises(expected, match=message):
        _ = session.version


def test_a_remote_error_has_sparks_details(fake: FakeConnect, session: Session) -> None:
    from penstock.spark import protos

    details = protos.FetchErrorDetailsResponse(root_error_idx=0)
    error = details.errors.add(message="[UNRESOLVED_COLUMN] no nope", cause_idx=1)
    error.spark_throwable.error_class = "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    error.spark_throwable.sql_state = "42703"
    error.spark_throwable.message_parameters["objectName"] = "`nope`"
    error.spark_throwable.query_contexts.add(fragment="nope", start_index=7, stop_index=10, summary="== SQL ==")
    details.errors.add(message="the cause", cause_idx=0)  # a circle
    fake.details = details
    fake.cuts = [Cut(0, spark_failure("UNRESOLVED_COLUMN", "cut off…", errorId="e1", messageParameters="{broken"))]
    with pytest.raises(Remote) as failed:
        session.sql("select nope").stream()
    raised = failed.value
    assert str(raised) == "[UNRESOLVED_COLUMN] no nope"
    assert (raised.error_class, raised.sql_state) == ("UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703")
    assert raised.parameters == {"objectName": "`nope`"}
    assert (raised.query_contexts[0].fragment, raised.query_contexts[0].start) == ("nope", 7)
    assert raised.causes == ("the cause",)
    assert raised.operation_id == fake.named("ExecutePlan")[0].operation_id
    assert fake.named("FetchErrorDetails")[0].error_id == "e1"


def test_a_plan_spark_does_not_resolve_has_a_cure(fake: FakeConnect, session: Session) -> None:
    """Its own limit is lower than that of what it reads, and the error that tells of it has no class."""
    text = "Max iterations (100) reached for batch Resolution, please set 'spark.sql.analyzer.maxIterations'"
    fake.failures["AnalyzePlan"] = [Failure(grpc.StatusCode.INTERNAL, text)]
    with pytest.raises(Remote, match=r"maxIterations.*local_checkpoint\(\)"):
        _ = session.table("t").schema


def test_a_notebook_says_that_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one line, and soon: a session's calls are tried again for longer."""
    patience: list[float] = []
    begin = Retries.__init__

    def noted(self: Retries, policy: RetryPolicy) -> None:
        patience.append(policy.retry_for)
        begin(self, RetryPolicy(retry_for=0.1))

    monkeypatch.setattr(Retries, "__init__", noted)
    with penstock.spark_connect("sc://127.0.0.1:1", retry_for=60) as session:
        frame = session.range(3)
        for shown in frame._repr_mimebundle_().values():
            assert "could not reach sc://127.0.0.1:1" in shown
            assert shown.count("\n") == 0
        assert max(patience) < 10
        with pytest.raises(Transport):
            frame.count()
    assert patience[-1] == 60


def test_errors_pickle() -> None:
    import pickle

    error = Remote("text", error_class="A.B", sql_state="1", parameters={"a": "b"}, causes=("c",), operation_id="o")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is Remote
    assert vars(copy) == vars(error)
    assert str(copy) == "text"


def test_a_wrong_host_is_named() -> None:
    for uri in ("sc://127.0.0.1:1", "sc://no-such-host.invalid"):
        with (
            penstock.spark_connect(uri, retry_for=0.2) as session,
            pytest.raises(Transport, match=f"could not reach {uri.removesuffix(':1')}"),
        ):
            _ = session.version


def test_tls_is_checked(certificates: Certificates, tmp_path: Path) -> None:
    key, cert = certificates.server_key.read_bytes(), certificates.server_cert.read_bytes()
    with fake_connect(credentials=grpc.ssl_server_credentials([(key, cert)])) as fake:
        uri = fake.uri.replace("127.0.0.1", "localhost")
        with penstock.spark_connect(f"{uri}/;use_ssl=true;token=t", ca=str(certificates.ca)) as session:
            assert session.version == "4.3.0"
        for wrong in (f"{uri}/;use_ssl=true", uri):
            with penstock.spark_connect(wrong, retry_for=0.2) as session, pytest.raises(Transport, match="TLS"):
                _ = session.version
    with (
        fake_connect() as plain,
        penstock.spark_connect(f"{plain.uri}/;use_ssl=true", retry_for=0.2) as session,
        pytest.raises(Transport, match="use_ssl"),
    ):
        _ = session.version
    for uri, ca in (("sc://localhost", "a.pem"), ("sc://localhost/;use_ssl=true", str(tmp_path / "none.pem"))):
        with pytest.raises(InvalidRequest, match="ca="):
            penstock.spark_connect(uri, ca=ca)


def test_a_token_passes_by_a_proxy(fake: FakeConnect, monkeypatch: pytest.MonkeyPatch) -> None:
    """In clear text no proxy gets it: this one isn't even there."""
    monkeypatch.delenv("no_proxy", raising=False)
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with penstock.spark_connect(f"{fake.uri}/;token=t", retry_for=0.2) as session:
        assert session.version == "4.3.0"


def test_a_session_id_is_a_uuid() -> None:
    with pytest.raises(InvalidRequest, match="UUID"):
        penstock.spark_connect("sc://localhost", session_id="mine")
    with pytest.raises(InvalidPlan, match="sc://"):
        penstock.spark_connect("localhost")
