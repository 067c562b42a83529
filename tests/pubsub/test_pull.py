"""A puller between a fake Pub/Sub and a stand-in of the server: what it acks, keeps, sends again and gives back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from penstock.errors import Denied, Expired, NotFound, Unavailable
from penstock.queue.pubsub import inbox, leases, readers, waits
from penstock.queue.pubsub.pull import PullOptions
from tests.kit.pubsub.emulator import Names
from tests.kit.pubsub.fake import FakePubSub, served
from tests.kit.pubsub.standin import Pulling, StandIn, pulling
from tests.kit.wait import eventually

pytestmark = pytest.mark.faults  # a minute of them

Start = Callable[..., Pulling]


@pytest.fixture
def fake() -> FakePubSub:
    return FakePubSub(shortest_deadline=1)


@pytest.fixture
def server() -> StandIn:
    return StandIn()


@pytest.fixture
def start(fake: FakePubSub, server: StandIn, pubsub_names: Names) -> Iterator[Start]:
    """Starts a puller of this test's subscription."""
    with ExitStack() as stack:
        address = stack.enter_context(served(fake))

        def begin(*, google: bool = False, **options: object) -> Pulling:
            run = stack.enter_context(
                pulling(server, address, pubsub_names.subscription, PullOptions(**options))  # type: ignore[arg-type]
            )
            run.puller._pubsub.emulated = not google
            return run

        yield begin


@pytest.mark.parametrize("options", [{}, {"streams": 3}, {"method": "unary"}, {"method": "unary", "streams": 2}])
def test_everything_is_stored_and_acked(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names, options: dict[str, object]
) -> None:
    fake.load(pubsub_names.subscription, 5_000, attributes=2)
    others = set(threading.enumerate())
    run = start(**options)
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 5_000)
    run.end()
    assert len(server.rows) == 5_000
    assert all(len(row["attributes"]) == 2 and row["data"] and row["publish_time"] for row in server.rows)
    assert server.acked() == {0: set(range(2_500)), 1: set(range(2_500))}
    last = server.reports[-1].counters
    assert (last["acks_confirmed"], last["outstanding"], last["unanswered"]) == (5_000, 0, 0)
    assert fake.totals(pubsub_names.subscription)["stale"] == 0
    assert not [each.name for each in set(threading.enumerate()) - others if each.name.startswith("penstock-")]


def test_nothing_is_acked_before_it_is_released(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names
) -> None:
    """And nothing lapses meanwhile: leases of 1 s are extended six times."""
    server.releases = False
    fake.load(pubsub_names.subscription, 3_000, deadline=10)
    run = start(lease_seconds=2)
    eventually(lambda: len(server.rows) == 3_000)
    eventually(lambda: run.puller.counters().get("extensions", 0) >= 9_000)
    totals = fake.totals(pubsub_names.subscription)
    assert (totals["acked"], totals["expired"], totals["deliveries"]) == (0, 0, 3_000)
    server.release()
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 3_000)
    run.end()
    assert run.puller.counters().get("lapses", 0) == 0


def test_the_newest_id_is_acked_of_what_comes_again(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names
) -> None:
    server.releases = False
    fake.load(pubsub_names.subscription, 2_000)
    run = start()
    eventually(lambda: len(server.rows) == 2_000)
    fake.deliver_again(pubsub_names.subscription)
    eventually(lambda: server.duplicates == 2_000)
    eventually(lambda: run.puller.counters().get("replaced") == 2_000)
    server.release()
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 2_000)
    run.end()
    assert fake.totals(pubsub_names.subscription)["stale"] == 0
    assert len(server.rows) == 2_000


def test_what_was_released_already_is_acked_at_once(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names
) -> None:
    """A puller that died took its ids along; the next one gets the messages again."""
    server.releases = False
    fake.load(pubsub_names.subscription, 500)
    start().end()
    eventually(lambda: len(server.rows) <= 500)
    fake.expire(pubsub_names.subscription)
    server.releases = True
    run = start()
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 500)
    run.end()
    assert len(server.rows) == 500


def test_batches_without_an_answer_are_sent_again(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "_MOST", 1_000)
    server.answers = False
    fake.load(pubsub_names.subscription, 5_000)
    run = start()
    eventually(lambda: len(server.rows) == 2_000, what="two batches in flight")
    server.opens = Unavailable("starting")
    server.end()
    eventually(lambda: server.tries >= 3)
    server.answers, server.opens = True, None
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 5_000)
    run.end()
    assert (len(server.rows), server.duplicates) == (5_000, 2_000)
    assert fake.totals(pubsub_names.subscription)["deliveries"] == 5_000


def test_a_draining_server_gets_no_more_batches(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names
) -> None:
    fake.load(pubsub_names.subscription, 1_000)
    run = start()
    eventually(lambda: len(server.rows) == 1_000)
    server.exchanges[0].drain()
    eventually(lambda: len(server.exchanges) == 2, what="another exchange")
    run.end()


@pytest.mark.parametrize("code", ["UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED", "UNKNOWN", "ABORTED", "CANCELLED"])
def test_streams_that_end_are_opened_again(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names, code: str
) -> None:
    fake.load(pubsub_names.subscription, 20_000, rate=10_000)
    run = start(google=True)
    for done in (1_000, 5_000, 10_000):
        eventually(lambda done=done: len(server.rows) >= done)  # type: ignore[misc]
        fake.reset_streams(pubsub_names.subscription, code)
    eventually(lambda: len(server.rows) == 20_000)
    run.end()
    assert fake.totals(pubsub_names.subscription)["acked"] == 20_000


@pytest.mark.parametrize("method", ["streaming", "unary"])
@pytest.mark.parametrize(
    ("code", "error"),
    [("NOT_FOUND", NotFound), ("PERMISSION_DENIED", Denied), ("UNAUTHENTICATED", Denied)],
)
def test_other_errors_end_the_puller_with_their_cause(
    fake: FakePubSub,
    server: StandIn,
    start: Start,
    pubsub_names: Names,
    code: str,
    error: type[Exception],
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readers, "_PULL_TIMEOUT", 1.0)
    fake.load(pubsub_names.subscription, 10)
    run = start(google=True, method=method)
    eventually(lambda: len(server.rows) == 10)
    fake.fail("Pull" if method == "unary" else "StreamingPull", code, times=-1)
    fake.reset_streams(pubsub_names.subscription, code)
    eventually(lambda: not run.thread.is_alive())
    with pytest.raises(error, match=f"{pubsub_names.subscription}.*{code}.*;"):
        run.end()
    assert server.reports[-1].code == error.code  # type: ignore[attr-defined]
    assert pubsub_names.subscription in str(server.reports[-1].text)


def test_a_refusal_of_the_server_ends_the_puller(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names
) -> None:
    fake.load(pubsub_names.subscription, 10)
    run = start()
    eventually(lambda: len(server.rows) == 10)
    server.end(Expired("subscription/p/s was removed"))
    eventually(lambda: not run.thread.is_alive())
    with pytest.raises(Expired, match="was removed"):
        run.end()


def test_acks_that_fail_are_sent_again(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_FIRST_PAUSE", 0.1)
    fake.load(pubsub_names.subscription, 3_000)
    fake.fail("Acknowledge", "UNAVAILABLE", times=2)
    fake.fail("Acknowledge", "DEADLINE_EXCEEDED", times=2, applied=True)
    run = start(google=True)
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 3_000)
    eventually(lambda: sum(map(len, server.acked().values())) == 3_000)
    run.end()


def test_ids_that_fail_for_good_come_again(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names
) -> None:
    """With exactly-once delivery; one that fails for a moment is sent again."""
    fake.load(pubsub_names.subscription, 1_000, exactly_once=True)
    fake.fail_ack_ids(pubsub_names.subscription, "PERMANENT_FAILURE_INVALID_ACK_ID", count=5)
    fake.fail_ack_ids(pubsub_names.subscription, "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE", count=7)
    run = start(google=True)
    eventually(lambda: run.puller.counters().get("acks_failed") == 5)
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 995)
    assert run.puller.lease_seconds() == 60
    fake.expire(pubsub_names.subscription)
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 1_000)
    run.end()
    assert len(server.rows) == 1_000
    assert run.puller.counters()["acks_confirmed"] == 1_000
    assert server.acked() == {0: set(range(500)), 1: set(range(500))}


def test_a_short_lease_is_extended_where_acks_are_confirmed(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names
) -> None:
    """Its extensions last 60 s, but first the lease that the stream asked for."""
    server.releases = False
    fake.load(pubsub_names.subscription, 100, exactly_once=True)
    run = start(lease_seconds=2)
    eventually(lambda: run.puller.counters().get("extensions", 0) >= 100)
    assert fake.totals(pubsub_names.subscription)["expired"] == 0
    server.release()
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 100)
    run.end()


def test_a_clean_end_gives_back_what_has_no_place(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names
) -> None:
    """What is durable stays leased: the next puller acks it, and its attempts aren't counted."""
    server.releases = False
    fake.load(pubsub_names.subscription, 1_000)
    run = start()
    eventually(lambda: len(server.rows) == 1_000)
    eventually(lambda: run.puller.counters()["unanswered"] == 0)
    server.answers = False
    fake.expire(pubsub_names.subscription)
    eventually(lambda: run.puller.counters()["received"] == 2_000)
    run.end()
    totals = fake.totals(pubsub_names.subscription)
    assert (totals["nacks"], totals["ready"], totals["acked"]) == (1_000, 1_000, 0)


def test_an_emulators_ids_are_forgotten_when_it_breaks(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names
) -> None:
    """Started anew it gives the same ids to other messages, and a held one would ack one of those."""
    server.releases = False
    fake.load(pubsub_names.subscription, 100)
    run = start()
    eventually(lambda: len(server.rows) == 100)
    fake.reset_streams(pubsub_names.subscription)
    eventually(lambda: run.puller.counters().get("forgotten") == 100)
    server.release()
    eventually(lambda: len(server.reports) >= 3)
    assert fake.totals(pubsub_names.subscription)["acks"] == 0
    run.end()


def test_pulling_pauses_at_the_bound(fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names) -> None:
    server.releases = False
    fake.load(pubsub_names.subscription, 10_000, each=100)
    run = start(most_leases=1_000)
    eventually(lambda: len(server.rows) >= 1_000)
    eventually(lambda: len(server.reports) >= 3)
    assert fake.totals(pubsub_names.subscription)["leased"] == 1_000, "Pub/Sub has the same bound"
    server.releases = True
    server.release()
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 10_000)
    run.end()


def test_pulling_pauses_while_the_server_takes_nothing(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "_MOST", 1_000)
    server.answers = False
    fake.load(pubsub_names.subscription, 50_000, size=1_000)
    run = start(most_bytes=5_000_000)
    eventually(lambda: run.puller.counters().get("received", 0) >= 5_000)
    eventually(lambda: len(server.reports) >= 2)
    assert run.puller.counters()["received"] <= 7_000
    assert len(server.rows) == 2_000
    run.end()


def test_a_long_wait_is_said_and_that_it_is_over(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """For acks that Pub/Sub takes at no try, for answers of the server, and for room."""
    monkeypatch.setattr(waits, "LONG", 0.5)
    caplog.set_level("WARNING", "penstock")
    fake.load(pubsub_names.subscription, 2_000)
    fake.fail("Acknowledge", "ABORTED", message="the backend is away", times=-1)
    run = start(google=True, most_leases=1_000)
    eventually(lambda: "has waited for Pub/Sub to take acks for 0.5 s: " in caplog.text)
    assert "requests; the last failure: Pub/Sub says ABORTED: the backend is away" in caplog.text
    eventually(lambda: "has waited for room to read more for 0.5 s: 1,000 messages aren't acked" in caplog.text)
    server.answers = False
    fake.heal()
    eventually(lambda: "waits no longer for Pub/Sub to take acks" in caplog.text)
    eventually(lambda: "has waited for the server to answer batches for 0.5 s: " in caplog.text)
    server.answers = True
    server.end()
    eventually(lambda: "waits no longer for the server to answer batches" in caplog.text)
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 2_000)
    run.end()


def test_a_stream_that_says_nothing_is_opened_again(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SILENCE", 0.5)
    fake.load(pubsub_names.subscription, 10)
    run = start()
    eventually(lambda: len(server.rows) == 10)
    eventually(lambda: fake.requests()["StreamingPull"]["calls"] >= 2)
    assert not run.errors
    run.end()


def test_what_waited_in_buffers_is_extended_at_once(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses that come after a pause may have been leased all that time."""
    monkeypatch.setattr(readers, "_LONG", 0.2)
    server.releases = False
    fake.load(pubsub_names.subscription, 3_000, size=1_000, each=100)
    server.answers = False
    run = start(lease_seconds=4, most_bytes=1_500_000)
    eventually(lambda: run.puller.counters().get("received", 0) >= 1_000)
    paused = time.monotonic()
    eventually(lambda: time.monotonic() - paused > 1.0)
    assert run.puller.counters()["received"] < 3_000
    server.answers = True
    server.end()
    eventually(lambda: len(server.rows) == 3_000)
    eventually(lambda: run.puller.counters().get("extensions", 0) >= 6_000)
    run.end()


def test_messages_of_many_megabytes_go_in_pieces(
    fake: FakePubSub, server: StandIn, start: Start, pubsub_names: Names
) -> None:
    fake.load(pubsub_names.subscription, 20, size=3_000_000)
    run = start()
    eventually(lambda: fake.totals(pubsub_names.subscription)["acked"] == 20)
    run.end()
    assert server.exchanges[0].sent >= 10, "two messages are 6 MB"
