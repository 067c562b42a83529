"""What is seen of a subscription: figures, the ack ledger, the command line, and the log of a query."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.client.client import Client, connect
from penstock.errors import Denied, InvalidRequest
from penstock.flight_server.kinds.subscription import SubscriptionKind
from penstock.flight_server.limits import ServerLimits
from penstock.flight_server.server import PenstockServer
from penstock.queue.pubsub.registry import ACKS
from penstock.spark_plugin.consumption import Consumption
from penstock.spark_plugin.offsets import StreamOffset, StreamOptions
from penstock.wire import actions
from penstock.wire.actions import SubscriptionState
from tests.kit.cli import Complete, Run
from tests.kit.pages import run_all
from tests.kit.pubsub.emulator import Names
from tests.kit.server import token_file
from tests.kit.wait import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.pubsub.fake import FakePubSub

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
COUNT = 1_000


@pytest.fixture
def address(fake_pubsub: FakePubSub, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fake, which the environment names."""
    from tests.kit.pubsub.fake import served

    with served(fake_pubsub) as address:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        yield address


@pytest.fixture
def server(address: str, make_server: Callable[..., PenstockServer]) -> PenstockServer:
    """A server in this process, of the fake, which outlives it; its pullers are processes."""
    return make_server(allow_emulator=True)


@pytest.fixture
def path(client: Client, fake_pubsub: FakePubSub, pubsub_names: Names) -> str:
    """An attached subscription, all of whose messages are in the journal, and none of them released."""
    fake_pubsub.load(pubsub_names.subscription, COUNT)
    client.call(actions.ATTACH_SUBSCRIPTION, actions.AttachSubscription(pubsub_names.path))
    eventually(lambda: client.info(pubsub_names.path).rows == COUNT, within=60)
    eventually(lambda: state(client, pubsub_names.path).figures.outstanding == COUNT)
    return pubsub_names.path


def state(client: Client, path: str) -> SubscriptionState:
    state = client.call(actions.DESCRIBE, actions.Target(path)).subscription
    assert state is not None
    return state


def reading(client: Client, path: str) -> tuple[Consumption, StreamOffset]:
    """Return a query that has planned all rows, and their end."""
    query = Consumption(client, path, StreamOptions())
    start = query.initial()
    end = query.latest(start)
    query.planned(start, end)
    return query, end


def acks(client: Client, path: str, **selection: Any) -> pa.Table:
    return client.get(f"{path}/acks", **selection).read_all()


def puller_of(client: Client, path: str) -> int:
    """Return the process of the only puller."""
    (puller,) = state(client, path).connected
    host, _, pid = puller.puller.rpartition(":")
    assert host == os.uname().nodename
    return int(pid)


# --- the ack ledger -------------------------------------------------------------------------


def test_the_ack_ledger_is_a_table(client: Client, path: str) -> None:
    leases = acks(client, path)
    assert leases.schema.equals(ACKS)
    assert leases["state"].to_pylist() == ["leased"] * COUNT
    rows = client.get(path, columns=["_shard", "_offset"]).read_all()
    assert {*zip(leases["shard"].to_pylist(), leases["offset"].to_pylist(), strict=True)} == {
        *zip(rows["_shard"].to_pylist(), rows["_offset"].to_pylist(), strict=True)
    }
    assert {*leases["puller"].to_pylist()} == {state(client, path).connected[0].puller}
    now = time.time()
    assert all(now - 120 < each.timestamp() < now + 5 for each in leases["received"].to_pylist())


def test_the_ack_ledger_says_what_became_of_a_row(client: Client, path: str) -> None:
    query, end = reading(client, path)
    query.committed(end)
    eventually(lambda: state(client, path).figures.acks_confirmed == COUNT)
    leases = acks(client, path, columns=["state", "attempts"], filter="shard = 0 and offset < 5")
    assert leases.to_pylist() == [{"state": "confirmed", "attempts": 1}] * 5
    assert acks(client, path, filter="state = 'leased'").num_rows == 0


def test_a_group_acknowledges_what_it_commits(client: Client, path: str) -> None:
    rows = 0
    with client.consume(path, group="billing", columns=["message_id"]) as batches:
        while rows < COUNT:
            rows += next(batches).num_rows
    eventually(lambda: state(client, path).figures.acks_confirmed == COUNT)


def test_a_deleted_consumer_holds_no_acks(client: Client, path: str) -> None:
    for name, read in (("goes", False), ("stays", True)):
        with client.consume(path, group=name, columns=["message_id"]) as batches:
            rows = 0
            while read and rows < COUNT:
                rows += next(batches).num_rows
    assert state(client, path).unreleased_rows == COUNT
    client.delete(f"consumer/{path}/goes")
    eventually(lambda: state(client, path).figures.acks_confirmed == COUNT)


def test_a_puller_that_hangs_is_named(client: Client, path: str) -> None:
    puller, pid = state(client, path).connected[0].puller, puller_of(client, path)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert acks(client, path, columns=["puller", "state"]).to_pylist() == [{"puller": puller, "state": "no answer"}]
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: acks(client, path).num_rows == COUNT)


def test_the_ack_ledger_has_no_offsets_of_its_own(client: Client, path: str) -> None:
    with pytest.raises(InvalidRequest, match="expected no part, start, end or since"):
        acks(client, path, start={0: 5})
    with pytest.raises(InvalidRequest, match="expected subscription/PROJECT/NAME"):
        client.call(actions.ATTACH_SUBSCRIPTION, actions.AttachSubscription(f"{path}/acks"))


def test_the_page_says_why_a_row_came_again(client: Client, fake_pubsub: FakePubSub) -> None:
    import duckdb

    name, path = "projects/p/subscriptions/orders", "subscription/p/orders"
    fake_pubsub.load(name, 10)
    client.call(actions.ATTACH_SUBSCRIPTION, actions.AttachSubscription(path))
    eventually(lambda: client.info(path).rows == 10, within=60)
    fake_pubsub.expire(name)
    eventually(lambda: state(client, path).figures.duplicates["lease lapsed"] == 10)
    eventually(lambda: "replaced" in acks(client, path)["state"].to_pylist())
    names = run_all("docs/pubsub.md", "python duckdb", {"c": client, "duckdb": duckdb})
    rows = names["again"].fetchall()
    assert len(rows) == 10
    puller = state(client, path).connected[0].puller
    for _, _, (first, second) in rows:
        assert first.startswith(f"{puller} replaced 20")
        assert second.startswith(f"{puller} leased 20")


# --- figures --------------------------------------------------------------------------------


def test_figures_are_in_progress_and_metrics(client: Client, server: PenstockServer, path: str) -> None:
    query, end = reading(client, path)
    progress = query.behind()
    assert progress is not None
    figures = progress["subscription"]
    assert (figures["pullers"], figures["outstanding"], figures["unreleased_rows"]) == (1, COUNT, COUNT)
    assert (figures["acks_sent"], figures["lapses"], figures["duplicates"]["lease lapsed"]) == (0, 0, 0)
    assert figures["oldest_unacked"] > 0
    query.committed(end)
    eventually(lambda: state(client, path).figures.acks_confirmed == COUNT)
    samples = dict(line.rsplit(" ", 1) for line in server.state.metrics.text().splitlines() if line[0] != "#")

    def sample(name: str) -> float:
        return float(samples[f'penstock_{name}{{topic="{path}"}}'])

    assert (sample("acks_confirmed"), sample("outstanding_leases"), sample("unreleased_rows")) == (COUNT, 0, 0)
    assert (sample("topic_rows"), sample("pullers")) == (COUNT, 1)
    assert any("penstock_consumer_lag_rows" in name and path in name for name in samples)


# --- the command line -----------------------------------------------------------------------


def test_every_command_knows_subscriptions(client: Client, here: Run, path: str) -> None:
    assert path in here("ls").text
    assert here("ls", "subscription", "--json").json[0]["rows"] == COUNT
    shown = here("show", path).text
    assert re.search(rf"\b{COUNT:,} outstanding, [\d,]+ extensions, 0 lapsed", shown)  # the first after half a minute
    assert "1 puller\n" in shown
    assert str(puller_of(client, path)) in shown
    page = here("top").text
    assert f"{path}  " in page
    assert "streams needed" in page
    (seen,) = here("top", "--json").json[0]["subscriptions"]
    assert seen["subscription"]["figures"]["outstanding"] == COUNT
    assert len(here("get", path, "--json").text.splitlines()) == COUNT
    assert len(here("get", "-f", path, "--start", "earliest", "-n", "5").text.splitlines()) == 5
    leases = here("get", f"{path}/acks", "--filter", "offset = 3", "-c", "shard,state", "--json").json
    assert {"shard": 0, "state": "leased"} in leases
    assert here("show", f"{path}/acks", "--json").json[0]["rows"] == COUNT
    assert here("rm", "-y", path).text.startswith(f"detached {path}: {COUNT:,} rows")
    assert path not in here("ls").text


def test_paths_of_subscriptions_are_completed(client: Client, complete: Complete, path: str) -> None:
    url = ("--url", client.settings.url)
    assert complete(*url, "show", "subs") == ["subscription/"]
    assert complete(*url, "show", path[:-3]) == [path]


def test_an_ack_ledger_becomes_a_file(here: Run, path: str, tmp_path: Any) -> None:
    assert here("get", f"{path}/acks", "-o", str(tmp_path / "acks.arrow")).code == 0
    with pa.ipc.open_file(tmp_path / "acks.arrow") as file:
        assert file.read_all().num_rows == COUNT


# --- one log --------------------------------------------------------------------------------


def test_a_query_logs_what_the_server_warns_of(client: Client, path: str, caplog: pytest.LogCaptureFixture) -> None:
    query, end = reading(client, path)
    pid = puller_of(client, path)
    os.kill(pid, signal.SIGKILL)

    def told() -> list[tuple[str, str]]:
        query.latest(end)
        return [
            (record.levelname, record.getMessage()) for record in caplog.records if record.name == actions.SERVER_LOG
        ]

    eventually(told, within=30)
    (warning,) = told()
    assert warning[0] == "WARNING"
    assert f"{path}: a puller has ended (-9)" in warning[1]
    assert len(told()) == 1, "each line once"
    caplog.clear()
    later, _ = reading(client, path)
    later.latest()
    assert not [record for record in caplog.records if record.name == actions.SERVER_LOG], "what was before isn't its"
    logging.getLogger("penstock").error("7f-1 do_exchange failed: %s", path)
    later.latest()
    assert ("ERROR", f"7f-1 do_exchange failed: {path}") in [
        (record.levelname, record.getMessage()) for record in caplog.records if record.name == actions.SERVER_LOG
    ]


@pytest.mark.spark
def test_spark_reads_the_ack_ledger(spark: SparkSession, client: Client, path: str) -> None:
    pytest.importorskip("pyspark.sql.datasource", reason="Python data sources need Spark 4.0 or newer")
    import penstock

    spark.dataSource.register(penstock.DataSource)
    table = spark.read.format("penstock").option("url", client.settings.url).load(f"{path}/acks")
    counts = {row["state"]: row["count"] for row in table.groupBy("state").count().collect()}
    assert counts == {"leased": COUNT}


def test_a_token_is_needed(make_server: Callable[..., PenstockServer], tmp_path: Any) -> None:
    server = make_server(token_file=token_file(tmp_path))
    with connect(server.url, retry_for=0) as stranger, pytest.raises(Denied):
        acks(stranger, "subscription/p/orders")


def test_subscriptions_share_what_a_server_may_know(
    address: str, make_server: Callable[..., PenstockServer], fake_pubsub: FakePubSub, pubsub_names: Names
) -> None:
    """A share of --limit dedup_ids each."""
    server = make_server(allow_emulator=True, pullers=0, limits=ServerLimits(dedup_ids=100))
    paths = [pubsub_names.path, f"{pubsub_names.path}-2"]
    for name in (pubsub_names.subscription, f"{pubsub_names.subscription}-2"):
        fake_pubsub.load(name, 1)
    with connect(server.url) as client:
        for path in paths:
            client.call(actions.ATTACH_SUBSCRIPTION, actions.AttachSubscription(path))
        kind = server.state.kinds["subscription"]
        assert isinstance(kind, SubscriptionKind)
        assert [owner.known.window_ids for owner in kind._all_owners()] == [50, 50]
        client.call(actions.DELETE, actions.DeleteTarget(paths[0]))
        assert [owner.known.window_ids for owner in kind._all_owners()] == [100]


def test_figures_are_json(client: Client, path: str) -> None:
    assert json.loads(json.dumps(state(client, path).figures.to_json()))["streams_needed"] <= 1
