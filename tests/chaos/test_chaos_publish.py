"""Chaos under a stream that publishes: under faults of all kinds each row is published once, or is a dead row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("google.pubsub_v1", reason="needs the extra pubsub")

from tests.chaos import faults, publish_stream
from tests.chaos.oracle import LAWS, SentRows, Usage, check, sent_runs, ten_rows
from tests.chaos.publish_stream import PublishOutcome, PublishStream
from tests.chaos.rig import Rig
from tests.chaos.run import check_survival_with_spark
from tests.chaos.schedule import schedule
from tests.chaos.stream import Landed, Sample
from tests.chaos.subscription_stream import Committed
from tests.kit.pubsub import messages as pb
from tests.kit.pubsub.recorder import Ack, Message, Publish

SEED = 7
PLAN = PublishStream.plan
SOME = 30_000
"""Rows of a run that takes minutes; those of `make soak`'s table have 200,000."""
KINDS = 8
"""Kinds of faults of a run that takes one."""
SLOW = {"driver killed", "topic made again", "permission lost"}
"""Each starts a query again, or a driver."""


class ShortStream(PublishStream):
    """Some kinds of faults, drawn from the seed, fall once each."""

    def __init__(self, rig: Rig, python: Path) -> None:
        super().__init__(rig, python)
        self.plan = PLAN.drawn(rig.seed, KINDS, without=SLOW)


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.process
@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("workload", "least", "count"),
    [(ShortStream, KINDS, SOME * KINDS // PLAN.faults), (PublishStream, PLAN.faults, SOME)],
)
def test_published_rows_survive_faults_of_all_kinds(
    tmp_path: Path,
    bare_python: Path,
    capsys: pytest.CaptureFixture[str],
    workload: type[PublishStream],
    least: int,
    count: int,
) -> None:
    """No row is lost, changed or published twice, but for copies of what was under way; bad payloads are dead rows."""
    check_survival_with_spark(tmp_path, workload, bare_python, capsys, PLAN, least=least, rows=count)


def test_a_schedule_of_publishing_has_every_kind_of_fault() -> None:
    moments = schedule(SEED, 200_000, PLAN)
    assert not Counter(PLAN.least) - Counter(moment.kind for moment in moments)
    assert set(PLAN.least) == {*faults.FAULTS, *publish_stream.FAULTS} - {"run sent again"}


# --- the checker -------------------------------------------------------------------------------


RUN = [*ten_rows(0), *ten_rows(1)]


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[SentRows]:
    """A run that was answered for."""
    with sent_runs(tmp_path, RUN, answered=1) as sent:
        yield sent


def name(row: Landed) -> str:
    """Return the id of a row, of one task's put."""
    return f"w/1/{row.offset}"


def publish(landed: list[Landed], peer: str = "a", *, is_answered: bool = True) -> Publish:
    """Return a request with these rows, of one ordering key."""
    messages = [pb.PubsubMessage(attributes={"penstock-id": name(row)}, ordering_key="k") for row in landed]
    return Publish(peer, messages, is_answered)


LANDED = [Landed(2, offset, row.seq, row.key, row.crc) for offset, row in enumerate(RUN)]


def good() -> PublishOutcome:
    """Return what they left: all published but two dead rows, and five of them again, as their connection broke."""
    usage, places = Usage(20, 40, 100 << 20), {"journal": LANDED, "sink": LANDED}
    published = LANDED[:18]
    publishes = [
        publish(published[:5]), publish(published[5:10]), publish(published[5:10], "b", is_answered=False),
        publish(published[5:10], "b"), publish(published[10:], "b"),
    ]  # fmt: skip
    pulled = [(name(row), row) for row in [*published, *published[5:10]]]
    return PublishOutcome(
        places, places, [usage], usage, usage, [], {2: 20}, [Sample({"c": {2: 5}}, 5)],
        messages={Message(str(row.seq), row.seq): (2, row.offset) for row in LANDED},
        acks=[Ack(Message(str(row.seq), row.seq), 20.0) for row in LANDED], unknown_acks=[], left=set(),
        commits={"Spark": [Committed(10.0, {2: 20})]}, former=set(), publishes=publishes,
        taken={name(row): row for row in published}, pulled=pulled, gone=set(),
    )  # fmt: skip


def placed(outcome: PublishOutcome, sink: list[Landed]) -> PublishOutcome:
    places = {**outcome.places, "sink": sink}
    return replace(outcome, places=places, before=places)


def again(outcome: PublishOutcome, *more: Publish) -> PublishOutcome:
    return replace(outcome, publishes=[*outcome.publishes, *more])


def every_row_in_a_request(outcome: PublishOutcome) -> PublishOutcome:
    """Publish 33 rows, a request each, by one connection and then by the next."""
    many = [Landed(2, offset, offset, 1, 1) for offset in range(33)]
    return replace(outcome, publishes=[publish([row], peer) for peer in "ab" for row in many])


Change = Callable[[PublishOutcome], PublishOutcome]
OTHER = Landed(2, 3, 99, 1, 1)
BREAKS: list[tuple[str, str, Change]] = [
    ("lost", "neither published nor dead", lambda o: placed(o, LANDED[1:])),
    ("doubled", "published under two ids, or published and dead", lambda o: placed(o, [*LANDED, LANDED[3]])),
    ("changed", "with other data", lambda o: placed(o, [LANDED[0]._replace(crc=1), *LANDED[1:]])),
    ("misplaced", "with the place of another row", lambda o: placed(o, [LANDED[0]._replace(offset=1), *LANDED[1:]])),
    ("undelivered", "taken, and it never came", lambda o: replace(o, pulled=o.pulled[1:])),
    ("undelivered", "came, and was never taken", lambda o: replace(o, pulled=[*o.pulled, ("w/1/99", OTHER)])),
    ("undelivered", "came as another row", lambda o: replace(o, pulled=[*o.pulled, (name(LANDED[0]), OTHER)])),
    ("copied", "again, by the same connection", lambda o: again(o, publish(LANDED[10:18], "b"))),
    ("copied", "again, more than was under way", every_row_in_a_request),
    ("overtaken", "a key's rows", lambda o: replace(o, publishes=o.publishes[::-1])),
]


def test_a_publication_without_a_fault_breaks_no_law(sent: SentRows) -> None:
    assert check(sent, good(), PublishStream.laws) == {law: [] for law in {**LAWS, **PublishStream.laws}}


@pytest.mark.parametrize(("law", "what", "change"), BREAKS, ids=[f"{law}: {what}" for law, what, _ in BREAKS])
def test_a_law_that_publishing_breaks_is_found(sent: SentRows, law: str, what: str, change: Change) -> None:
    assert check(sent, change(good()), PublishStream.laws)[law] != []
