"""Jobs: sources, operators and sinks on threads and processes, what they bring, and what they refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.client.lease import Split
from penstock.errors import AlreadyExists, InvalidRequest, JobFailed, LimitExceeded, NotFound, WriteEnded
from penstock.flight_server.server import PenstockServer
from penstock.ledger import runs
from penstock.pipeline import (
    Call,
    Job,
    ReadDataset,
    ReadTopic,
    SparkSourceV2Config,
    Stage,
    WriteDataset,
    WriteTopic,
    dead_letter,
)
from penstock.pipeline.sinks import DatasetPuts
from penstock.queue.work import queues
from penstock.wire.message import QueueMessage
from tests.kit.cli import Run
from tests.kit.jobs import Fails, double, numbers, stage_counts, state_of, values
from tests.kit.queues import drained, numbered
from tests.kit.wait import eventually

OUT = "store/out"
NewJob = Callable[..., Job]


@pytest.fixture
def new_job(server: PenstockServer) -> NewJob:
    """Make jobs of `server` with a source, an operator and a sink."""

    def make(what: Any = double, source: Any = None, sink: Any = None, job_id: str = "j", **how: Any) -> Job:
        job = Job(job_id, url=server.url)
        job.stage(Stage("in", numbered(*range(20)) if source is None else source))
        job.stage(Stage("work", what, **{"workers": 2, **how}), after="in")
        job.stage(Stage("out", WriteDataset(OUT) if sink is None else sink), after="work")
        return job

    return make


@pytest.mark.parametrize("workers", ["threads", pytest.param("processes", marks=pytest.mark.process)])
def test_each_row_of_the_source_is_in_the_dataset_once(new_job: NewJob, client: Client, workers: str) -> None:
    summary = new_job().run(workers)
    assert values(client, OUT) == [2 * n for n in range(20)]
    assert [(stage.stage, stage.done, stage.dead, stage.rows_out) for stage in summary.stages] == [
        ("work", 20, 0, 20), ("out", 20, 0, 20),
    ]  # fmt: skip
    assert (summary.state, state_of(client, "j")) == ("done", ("done", None))
    assert len(client.list("write/")) == 0


def test_a_job_that_is_done_does_nothing_more(new_job: NewJob, client: Client) -> None:
    new_job().run()
    again = new_job().run()
    assert again.stages[0].rows_in == 0
    assert repr(again).startswith("job/j: was done before this run; penstock rm job/j forgets it\n")
    assert values(client, OUT) == [2 * n for n in range(20)]


def test_the_parts_of_a_dataset_are_splits(new_job: NewJob, client: Client) -> None:
    for n in range(3):
        client.put("store/source", pa.table({"x": [n]}), mode="append")
    summary = new_job(source=ReadDataset("store/source")).run()
    assert values(client, OUT) == [0, 2, 4]
    assert summary.stages[0].done == 3


def test_ranges_of_a_topic_are_splits(new_job: NewJob, client: Client) -> None:
    client.create_topic("topic/in", pa.schema([("x", pa.int64())]), shards=2)
    for n in range(4):
        client.put("topic/in", pa.table({"x": [n]}))
    new_job(source=ReadTopic("topic/in"), sink=WriteTopic("topic/out")).run()
    assert values(client, "topic/out") == [0, 2, 4, 6]


def test_a_dict_is_a_split_without_rows(new_job: NewJob, client: Client) -> None:
    def read(split: Split) -> pa.Table:
        return pa.table({"x": [split.message.metadata["file"]]})

    new_job(read, source=[{"file": 1}, {"file": 2}]).run()
    assert values(client, OUT) == [1, 2]


def test_an_operator_may_return_many_payloads_or_none(new_job: NewJob, client: Client) -> None:
    def spread(split: Split) -> list[pa.Table] | None:
        return numbered(*[n] * n) if (n := numbers(split)[0]) % 2 else None

    assert new_job(spread, source=numbered(1, 2, 3)).run().stages[1].done == 4
    assert values(client, OUT) == [1, 3, 3, 3]


class Opened:
    """An operator that is only good in the copy that its worker has opened."""

    def open(self) -> None:
        self.factor = 3

    def process(self, split: Split) -> pa.Table:
        return pa.table({"x": [self.factor * n for n in numbers(split)]})


class Configured:
    """A configuration, and its operator in Solstice's words."""

    factor = 5

    class operator_class:  # noqa: N801  # Solstice's word
        def __init__(self, config: Configured) -> None:
            self.factor = config.factor

        def process_split(self, split: Split, payload: Any) -> pa.Table:
            return pa.table({"x": [self.factor * n for n in payload.data["x"].to_pylist()]})


@pytest.mark.parametrize(("what", "factor"), [(Opened, 3), (Opened(), 3), (Configured(), 5)])
def test_classes_objects_and_configurations_are_operators(
    new_job: NewJob, client: Client, what: Any, factor: int
) -> None:
    new_job(what, source=numbered(1, 2)).run()
    assert values(client, OUT) == [factor, 2 * factor]
    assert not hasattr(what, "factor") or what.factor == 5


def test_stages_get_all_that_is_before_them(server: PenstockServer, client: Client) -> None:
    """Two sources, a union, and two sinks that get everything each."""
    seen: list[int] = []
    job = Job("j", url=server.url)
    job.stage(Stage("a", numbered(*range(5))))
    job.stage(Stage("b", numbered(*range(100, 105))))
    job.stage(Stage("left", double), after=["a", "b"])
    job.stage(Stage("right", double), after="b")
    job.stage(Stage("out", WriteDataset(OUT)), after=["left", "right"])
    job.stage(Stage("seen", Call(lambda split: seen.extend(numbers(split)))), after=["left"])
    job.run()
    left = [2 * n for n in [*range(5), *range(100, 105)]]
    assert values(client, OUT) == sorted(left + [2 * n for n in range(100, 105)])
    assert sorted(seen) == left


def test_a_source_without_splits_writes_nothing(new_job: NewJob, client: Client) -> None:
    assert new_job(source=[]).run().state == "done"
    with pytest.raises(NotFound):
        client.get(OUT)
    assert len(client.list("write/")) == 0


# --- resume --------------------------------------------------------------------------------


def test_a_failed_job_goes_on_where_it_stopped(new_job: NewJob, client: Client) -> None:
    with pytest.raises(JobFailed, match=r"(?s)stage 'work'.*in_7_work failed in .*s with ValueError: \[7\] is odd.*Tr"):
        new_job(Fails([7])).run()
    assert state_of(client, "j")[0] == "failed"
    before = stage_counts(client, "j")["work"]["done"]
    summary = new_job().run()
    assert summary.stages[0].rows_in == 20 - before
    assert values(client, OUT) == [2 * n for n in range(20)]


def test_another_plan_is_refused_unless_forced(new_job: NewJob, client: Client) -> None:
    with pytest.raises(JobFailed):
        new_job(Fails([7])).run()
    with pytest.raises(AlreadyExists, match="stage 'out' was the sink WriteDataset store/out after work, and is"):
        new_job(sink=WriteDataset("store/other")).run()
    with pytest.raises(InvalidRequest, match=r"stage 'out' was WriteDataset store/out: give .* another name"):
        new_job(sink=WriteDataset("store/other")).run(force=True)

    seen: list[int] = []
    job = new_job()
    job.stage(Stage("seen", Call(lambda split: seen.extend(numbers(split)))), after="work")
    with pytest.raises(AlreadyExists, match="stage 'seen' is new"):
        job.run()
    job.run(force=True)
    assert values(client, OUT) == [2 * n for n in range(20)]
    assert 14 in seen


def test_a_source_keeps_its_name(new_job: NewJob, server: PenstockServer, client: Client) -> None:
    """Another one's splits would have the ids of the first one's, so they would be taken for repeats."""
    client.put("store/source", pa.table({"x": [100]}))
    with pytest.raises(JobFailed):
        new_job(Fails([7])).run()
    with pytest.raises(InvalidRequest, match=r"stage 'in' was an iterable: give ReadDataset store/source another name"):
        new_job(source=ReadDataset("store/source")).run(force=True)
    job = Job("j", url=server.url)
    job.stage(Stage("more", ReadDataset("store/source")))
    job.stage(Stage("work", double), after="more")
    job.stage(Stage("out", WriteDataset(OUT)), after="work")
    job.run(force=True)
    assert values(client, OUT) == sorted([*(2 * n for n in range(20)), 200])
    with pytest.raises(InvalidRequest, match="stage 'in' was an iterable"):  # of an earlier plan
        new_job(source=ReadDataset("store/source")).run(force=True)


def test_a_job_has_the_queues_of_its_plans_alone(new_job: NewJob, server: PenstockServer, client: Client) -> None:
    client.push("queue/j/in", numbered(1))
    with pytest.raises(JobFailed):
        new_job(Fails([7])).run()
    job = Job("j", url=server.url)
    job.stage(Stage("in", numbered(*range(20))))
    job.stage(Stage("out", WriteDataset(OUT)), after="in")
    job.run(force=True)
    assert len(client.list("queue/")) == 4
    client.delete("job/j")
    assert [entry.path for entry in client.list("queue/")] == ["queue/j/in"]

    client.push("queue/j/work", numbered(1))
    with pytest.raises(AlreadyExists, match=r"queue/j/work is a queue already, and not one of job/j: .*penstock rm"):
        new_job().run()
    client.delete("queue/j/work")
    assert new_job(sink=WriteTopic("topic/out")).run().state == "done"


def test_a_removed_job_leaves_what_it_has_written(new_job: NewJob, client: Client) -> None:
    new_job().run()
    client.delete("job/j")
    assert client.list("queue/") == client.list("job/") == ()
    with pytest.raises(AlreadyExists):
        new_job().run()
    assert len(values(client, OUT)) == 20


@pytest.mark.parametrize("source", [[pa.table({"x": [n]}) for n in range(5)], ReadDataset("store/source")])
def test_a_resume_adds_nothing_to_queues_that_have_all(server: PenstockServer, client: Client, source: Any) -> None:
    """One of two queues was ended in the first run, and the dataset has grown since."""
    for n in range(5):
        client.put("store/source", pa.table({"x": [n]}), mode="append")

    def job(what: Any) -> Job:
        job = Job("j", url=server.url)
        job.stage(Stage("in", source))
        job.stage(Stage("left", what), after="in")
        job.stage(Stage("right", double), after="in")
        job.stage(Stage("out", WriteDataset(OUT)), after=["left", "right"])
        return job

    with pytest.raises(JobFailed):
        job(Fails([3])).run()
    client.put("store/source", pa.table({"x": [99]}), mode="append")
    server.state.ledger.change(lambda t: queues.add_upstream(t, "queue/j/left", "put"))  # as if its end had not come
    job(double).run()
    assert values(client, OUT) == sorted([2 * n for n in range(5)] * 2)


def test_an_overwritten_dataset_is_no_source_of_a_resume(
    new_job: NewJob, server: PenstockServer, client: Client
) -> None:
    client.put("store/source", pa.table({"x": [1]}))
    with pytest.raises(JobFailed):
        new_job(Fails([1]), source=ReadDataset("store/source")).run()
    client.put("store/source", pa.table({"x": [2]}), mode="overwrite")
    server.state.ledger.change(lambda t: queues.add_upstream(t, "queue/j/work", "put"))
    with pytest.raises(JobFailed, match=r"store/source has no end .* any more: it was overwritten since"):
        new_job(source=ReadDataset("store/source")).run()


# --- failures ------------------------------------------------------------------------------


@pytest.fixture
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let splits that failed be claimed again at once."""
    monkeypatch.setattr("penstock.client.lease.backoff", lambda tries: 0.0)


@pytest.mark.usefixtures("no_delays")
def test_dead_splits_are_left_out_and_redriven(new_job: NewJob, client: Client) -> None:
    policy = dead_letter(most=2)
    summary = new_job(Fails([3, 4]), failure=policy).run()
    assert (summary.state, summary.stages[0].dead) == ("done", 2)
    assert len(values(client, OUT)) == 18

    client.call("queue.redrive", {"path": "queue/j/work"})
    assert new_job(failure=policy).run().stages[0].rows_in == 2
    assert values(client, OUT) == [2 * n for n in range(20)]


@pytest.mark.usefixtures("no_delays")
def test_redriven_splits_count_where_their_driver_died(
    new_job: NewJob, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are acked, and the further write isn't finished; then that driver's run is forgotten, too."""
    policy = dead_letter(most=2)
    sink = WriteDataset(OUT, mode="overwrite")
    new_job(Fails([3, 4]), failure=policy, sink=sink).run()
    client.call("queue.redrive", {"path": "queue/j/work"})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("penstock.pipeline.job._Run._finish_sinks", Mock(side_effect=KeyboardInterrupt))
        new_job(failure=policy, sink=sink).run()
    assert len(values(client, OUT)) == 18
    assert new_job(failure=policy, sink=sink).run().state == "done"
    assert values(client, OUT) == [2 * n for n in range(20)]
    assert len(client.list("write/")) == 0


@pytest.mark.usefixtures("no_delays")
def test_redriven_splits_are_appended_once_runs_are_forgotten(
    new_job: NewJob, server: PenstockServer, client: Client
) -> None:
    policy, sink = dead_letter(most=2), WriteDataset(OUT, mode="overwrite")
    new_job(Fails([3, 4]), failure=policy, sink=sink).run()
    client.call("queue.redrive", {"path": "queue/j/work"})
    server.state.ledger.change(lambda t: runs.forget(t, OUT))
    new_job(failure=policy, sink=sink).run()
    assert values(client, OUT) == [2 * n for n in range(20)]


@pytest.mark.usefixtures("no_delays")
def test_too_many_dead_splits_end_the_job(new_job: NewJob, client: Client) -> None:
    with pytest.raises(JobFailed, match="2 splits are dead, in_3_work failed in"):
        new_job(Fails([3, 4]), failure=dead_letter(most=1)).run()
    with pytest.raises(NotFound):
        client.get(OUT)


# --- what is refused -----------------------------------------------------------------------


def test_mistakes_are_named_before_anything_runs(new_job: NewJob, server: PenstockServer) -> None:
    with pytest.raises(InvalidRequest, match="expected 'embedded:' or 'kafka://host:port' without a topic"):
        Job("j", queue="kafka://broker:1/topic")
    job = new_job()
    with pytest.raises(InvalidRequest, match="expected 'threads', 'processes' or 'ray'"):
        job.run("fibres")
    with pytest.raises(InvalidRequest, match="is after 'wrok', which the job lacks: did you mean 'work'"):
        job.stage(Stage("more", double), after="wrok")
    with pytest.raises(InvalidRequest, match="is after the sink 'out'"):
        job.stage(Stage("more", double), after="out")
    with pytest.raises(InvalidRequest, match="function is no source"):
        job.stage(Stage("more", double))
    with pytest.raises(InvalidRequest, match="int is no operator"):
        job.stage(Stage("more", 3), after="in")
    with pytest.raises(InvalidRequest, match="has no source"):
        Job("j", url=server.url).run()
    with pytest.raises(InvalidRequest, match="no stage is after the source 'lonely': add one, with after='lonely'"):
        job.stage(Stage("lonely", numbered(1)))
        job.run()
    with pytest.raises(InvalidRequest, match=r"Job\(tokn=…\): did you mean 'token'"):
        Job("j", tokn="x")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"workers": 0}, "expected a number from 1, or"), ({"workers": (4, 2)}, "expected a number from 1, or"),
        ({"workers": "4"}, "expected a number from 1, or"), ({"workers": (2,)}, "expected a number from 1, or"),
        ({"timeout": "5"}, "expected seconds above 0"), ({"failure": "dead_letter"}, "expected a policy, such as"),
    ],
)  # fmt: skip
def test_a_stage_names_what_it_expects(how: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"stage 'work': .*{text}"):
        Stage("work", double, **how)


def test_a_sink_takes_the_paths_of_its_kind() -> None:
    with pytest.raises(InvalidRequest, match=r"WriteDataset\('topic/x'\): expected store/NAME"):
        WriteDataset("topic/x")
    with pytest.raises(InvalidRequest, match=r"WriteTopic\('store/x'\): expected topic/NAME"):
        WriteTopic("store/x")


@pytest.mark.parametrize("path", ["store/j", "store/j/in", "store/j/in/scored"])
def test_a_sink_keeps_clear_of_a_frames_dataset(new_job: NewJob, path: str) -> None:
    """Else its finish would fail once all is done."""
    config = SparkSourceV2Config(dataframe_fn=lambda spark: spark.range(1))
    with pytest.raises(InvalidRequest, match=f"stage 'out' writes {path}, and a frame of this job becomes store/j/in"):
        new_job(source=config, sink=WriteDataset(path)).run()


def test_outputs_without_a_stage_after_are_an_error(server: PenstockServer) -> None:
    job = Job("j", url=server.url)
    job.stage(Stage("in", numbered(1)))
    job.stage(Stage("work", double), after="in")
    with pytest.raises(JobFailed, match="double returned Table, and no stage is after it"):
        job.run()


# --- seeing --------------------------------------------------------------------------------


def test_progress_is_shown_to_those_who_want_it(new_job: NewJob, capsys: pytest.CaptureFixture[str]) -> None:
    new_job().run(progress=True)
    new_job(job_id="silent", sink=WriteTopic("topic/out")).run()
    err = capsys.readouterr().err
    assert "job/j: work " in err
    assert "job/silent" not in err


def test_the_command_line_knows_jobs(new_job: NewJob, here: Run) -> None:
    with pytest.raises(JobFailed):
        new_job(Fails([7])).run()
    assert "job/j" in here("ls", "job").text
    shown = here("show", "job/j").text
    assert "failed" in shown
    assert "WriteDataset store/out" in shown
    assert here("redrive", "job/j").text == "1 message of job/j may be claimed again\n"
    new_job().run()
    assert here("--json", "show", "job/j").json[0]["job"]["state"] == "done"
    assert here("rm", "-y", "job/j").text == "deleted job/j and its queues; what it has written stays\n"


@pytest.mark.parametrize("names", [True, False])
def test_a_running_job_is_seen_by_others(
    new_job: NewJob, here: Run, client: Client, server: PenstockServer, names: bool
) -> None:
    """With its workers, retries, rows and lag; once it has ended it is neither in `top` nor in the metrics."""
    seen: list[str] = []

    def look(split: Split) -> None:
        if not seen:
            eventually(lambda: stage_counts(client, "j")["work"]["done"] == 20)
            eventually(lambda: here("--json", "show", "job/j").json[0]["job"]["stages"][1]["note"]["rows_in"] == 20)
            seen.extend([here("top").text, here("show", "job/j").text, server.state.metrics.text(names=names)])

    new_job(sink=Call(look)).run()
    top, shown, metrics = seen
    assert re.search(r"^queue/j/work +0 +0 +20 +0 +0 +\d", top, re.MULTILINE)
    assert re.search(r"^ +work +20 +20 +\d+ B +\d+ B +[\d.]+ s$", shown, re.MULTILINE)
    assert re.search(r"^ +driver +\S+:\d+$", shown, re.MULTILINE)
    assert "penstock_jobs_running 1.0" in metrics
    for line in ('penstock_job_workers{job="j",stage="out"} 1.0', 'penstock_job_retries{job="j",stage="work"} 0.0',
                 'penstock_queue_lag_seconds{queue="queue/j/work"} 0.0'):  # fmt: skip
        assert (line in metrics) is names, line
    assert "job/j" not in here("top").text
    assert "penstock_jobs_running 0.0" in server.state.metrics.text()


def test_a_job_whose_driver_is_gone_says_so(client: Client, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [
        {"stage": "in", "role": "source", "what": "x"}, {"stage": "w", "role": "sink", "what": "y", "after": ["in"]},
    ]  # fmt: skip
    client.call("job.start", {"path": "job/j", "stages": stages, "force": False})
    assert "not seen since the server's start" in here("show", "job/j").text
    client.call("job.note", {"path": "job/j", "driver": "host:7", "stages": []})
    assert re.search(r"driver +host:7$", here("show", "job/j").text, re.MULTILINE)
    monkeypatch.setattr("penstock.cli.kinds._SILENT", -1.0)
    assert "driver   host:7, silent for " in here("show", "job/j").text
    assert "running, without a driver" in here("ls", "job").text


@pytest.mark.process
def test_workers_of_a_queue_need_no_job(client: Client, here: Run) -> None:
    client.push("queue/in", numbered(1, 2, 3), finish=True)
    ran = here("run", "tests.kit.jobs:double", "--queue", "queue/in", "--to", "queue/out", "--workers", "2")
    assert ran.text.startswith("queue/in: 3 splits done, 0 failed"), ran.err
    assert drained(client, "queue/out") == [2, 4, 6]
    assert "tests.kit.jobs has no 'none'" in here("run", "tests.kit.jobs:none", "--queue", "queue/in").err


# --- the server's part ---------------------------------------------------------------------


def test_receipts_are_taken_once_all_have_come(client: Client) -> None:
    stages = [
        {"stage": "in", "role": "source", "what": "?"},
        {"stage": "out", "role": "sink", "what": "WriteDataset store/out", "after": ["in"], "receipts": True},
    ]
    client.call("job.start", {"path": "job/j", "stages": stages})
    client.push("queue/j/out", numbered(1, 2))
    write = client.call("write.open", {"path": OUT})
    finish = {"ticket": write["ticket"], "attempts": [], "receipts": "queue/j/out/receipts"}
    work = DatasetPuts("queue/j/out", write["ticket"])
    work.open(client)
    for number, lease in enumerate(client.claim("queue/j/out", prefetch=0)):
        with lease as split:
            work([lease], [split])
        if number == 0:
            with pytest.raises(InvalidRequest, match="queue/j/out may bring more receipts"):
                client.call("write.finish", finish)
            client.call("queue.finish", {"path": "queue/j/out"})
    lease = next(iter(client.claim("queue/j/out/receipts", prefetch=0)))
    with pytest.raises(InvalidRequest, match="1 receipts are claimed or dead"):
        client.call("write.finish", finish)
    lease.release()
    assert client.call("write.finish", finish) == client.call("write.finish", finish)
    assert values(client, OUT) == [1, 2]
    late = QueueMessage("late", "late", "", {"attempt": "0" * 32}, 0.0)
    client.push("queue/j/out/receipts", [late], finish=True)
    with pytest.raises(WriteEnded, match="is finished, and queue/j/out/receipts has 1 receipts that came later"):
        client.call("write.finish", finish)


def test_a_message_that_is_no_receipt_is_refused_by_name(client: Client) -> None:
    write = client.call("write.open", {"path": OUT})
    client.push("queue/receipts", [QueueMessage("x", "x", "", {}, 0.0)], finish=True)
    finish = {"ticket": write["ticket"], "attempts": [], "receipts": "queue/receipts"}
    for _ in range(2):  # it is still there
        with pytest.raises(InvalidRequest, match=r"queue/receipts: a message without 'attempt' .* is no receipt"):
            client.call("write.finish", finish)


def test_a_plan_has_a_most_of_bytes(client: Client) -> None:
    plan = [{"stage": "in", "role": "source", "what": "x" * 66_000}]
    with pytest.raises(LimitExceeded, match=r"stages of earlier ones have .* bytes, of 65,536 at most"):
        client.call("job.start", {"path": "job/j", "stages": plan})


@pytest.mark.parametrize(
    ("path", "stages", "text"),
    [
        ("store/j", [], "store/j is no job: expected job/NAME"),
        ("job/a/b", [], "job/a/b is no job: expected job/NAME, and no further slash"),
        ("job/j", [("a/b", [])], "expected a name without a slash"),
        ("job/j", [("a b", [])], "key 'j/a b': expected 1 to 512 characters"),
        ("job/j", [(str(n), []) for n in range(1_001)], "at most 1,000 stages and 10,000 edges between them"),
        ("job/j", [("a", ["b"] * 10_001)], "10,000 edges between them, got 1 and 10,001"),
        ("job/j", [("a", []), ("a", [])], "two stages have one name"),
        ("job/j", [("a", ["b"])], "can't be after 'b', which is no stage with outputs"),
        ("job/j", [("a", [])], "stage 'a' is a operator: a source is after no stage"),
    ],
)
def test_a_server_refuses_plans_that_lead_nowhere(client: Client, path: str, stages: Any, text: str) -> None:
    plan = [{"stage": name, "role": "operator", "what": "?", "after": after} for name, after in stages]
    with pytest.raises((InvalidRequest, LimitExceeded), match=re.escape(text)):
        client.call("job.start", {"path": path, "stages": plan})
