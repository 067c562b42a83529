"""A query's way through a topic, against a real server and without Spark: what comes next, and what is done."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.errors import Fenced, InvalidRequest, Lost, NotFound, StoreFull
from penstock.spark_plugin.offsets import StreamOffset
from penstock.wire.actions import Action
from penstock.wire.position import Position
from tests.kit.streams import DAY, Reading, X
from tests.kit.wire import at, call, put, trips

GONE = r"topic/x: {rows} rows are gone that this query hasn't read \({which}\)"
CURE = "failOnDataLoss=false; to start elsewhere: a new checkpointLocation and startingOffsets"


def again(offset: StreamOffset) -> StreamOffset:
    """As it comes back from the checkpoint."""
    return StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))


@pytest.fixture
def topic(reading: Reading) -> Reading:
    """Ten rows in shard 0, five in shard 1."""
    reading.create()
    reading.put(0, 10)
    reading.put(1, 5)
    return reading


class TestWhereAQueryStarts:
    @pytest.mark.parametrize(
        ("text", "position"),
        [
            ("earliest", {0: 0, 1: 0}),
            ("latest", {0: 10, 1: 5}),
            ('{"0": 7, "1": 5}', {0: 7, 1: 5}),
            ('{"0": 7}', {0: 7, 1: 0}),
            ("{}", {0: 0, 1: 0}),
            ("2001-02-03T04:05:06Z", {0: 0, 1: 0}),
            ("2999-01-01", {0: 10, 1: 5}),
            ('{"0": "latest"}', {0: 10, 1: 0}),
            ('{"x": {"0": 3, "1": -1}}', {0: 3, 1: 5}),
            ('{"x": {"0": -2, "1": 2}}', {0: 0, 1: 2}),
            ('{"0": "2001-02-03", "1": "2999-01-01"}', {0: 0, 1: 5}),
        ],
    )
    def test_it_is_what_starting_offsets_say(self, text: str, position: dict[int, int], topic: Reading) -> None:
        initial = topic.query(starting=text).initial()
        assert initial.position == initial.initial == position

    def test_a_time_begins_with_the_first_put_since(self, topic: Reading) -> None:
        time.sleep(0.002)  # a put before, and one after
        moment = datetime.now(UTC)
        topic.put(1, 3)
        assert topic.query(starting=moment.isoformat()).initial().position == {0: 10, 1: 5}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("newest", "startingOffsets='newest': expected earliest, latest, a time such as"),
            ("", "startingOffsets='': expected"),
            ('{"0": "soon"}', "expected earliest, latest, a time"),
            ('{"0": [5]}', "expected earliest, latest, a time"),
            ('{"y": {"0": 5}}', "startingOffsets names y, this reads topic/x: expected 'x' alone"),
            ('{"x": {"0": 5}, "y": {"0": 5}}', "expected 'x' alone"),
            ('{"7": "latest"}', "topic/x has no shard 7: expected an offset for each of the shards 0 to 1"),
            ('{"0": true}', "expected earliest, latest, a time"),
            ('{"0": 5', "expected earliest, latest, a time"),
            ('{"7": 5}', "topic/x has no shard 7: expected an offset for each of the shards 0 to 1"),
            ('{"0": -3}', "expected earliest, latest, a time"),
            ('{"0": 11}', "startingOffsets: shard 0 of topic/x has offsets 0 to 10, got 11"),
        ],
    )
    def test_nonsense_is_refused_with_what_was_expected(self, text: str, said: str, topic: Reading) -> None:
        with pytest.raises(InvalidRequest) as refused:
            topic.query(starting=text).initial()
        assert said in str(refused.value)

    def test_asked_twice_it_is_the_same(self, topic: Reading) -> None:
        query = topic.query()
        first = query.initial()
        topic.put(0, 5)
        assert query.initial() == first
        assert topic.query().initial().consumer != first.consumer, "another query is another consumer"

    def test_a_name_is_shown_and_no_other_querys(self, topic: Reading) -> None:
        first, second = (topic.query(name="billing").initial().consumer for _ in range(2))
        assert first.startswith("billing-")
        assert first != second

    def test_a_topic_that_isnt_there_is_named(self, reading: Reading) -> None:
        with pytest.raises(NotFound, match="no topic at topic/x"):
            reading.query().initial()

    def test_asking_where_to_start_registers_nobody(self, topic: Reading) -> None:
        """Spark makes a reader in two processes, and reads by one of them."""
        topic.query().initial()
        assert topic.consumers() == ()


class TestHowMuchABatchHas:
    def test_without_limits_it_is_all_there_is(self, topic: Reading) -> None:
        query = topic.query()
        end = query.latest(query.initial())
        assert end.position == {0: 10, 1: 5}
        assert query.latest(end) == end, "nothing is left"

    @pytest.mark.parametrize("rows", [1, 2, 3, 7, 14, 15, 100])
    def test_rows_are_taken_from_all_shards_up_to_the_limit(self, rows: int, topic: Reading) -> None:
        query = topic.query(max_rows=rows)
        sizes = sizes_of(query, query.initial())
        assert sum(sizes) == 15
        assert all(size == rows for size in sizes[:-1])
        assert 1 <= sizes[-1] <= rows

    def test_bytes_are_a_limit_too_but_a_row_is_always_taken(self, topic: Reading) -> None:
        size = call(topic.bare, "describe", path=X)["bytes"]
        third = topic.query(max_bytes=size // 3)
        assert 3 <= sum(third.latest(third.initial()).position.values()) <= 6
        least = topic.query(max_bytes=1)
        assert sizes_of(least, least.initial()) == [1] * 15

    def test_everything_is_what_trigger_once_takes(self, topic: Reading) -> None:
        query = topic.query(max_rows=1)
        assert query.latest(query.initial(), everything=True).position == {0: 10, 1: 5}

    @pytest.mark.parametrize("limits", [{}, {"max_rows": 4}, {"max_rows": 1}, {"max_bytes": 1}])
    def test_a_pinned_query_ends_where_the_topic_ended(self, limits: dict[str, int], topic: Reading) -> None:
        """However much comes meanwhile, and to whichever shard."""
        query = topic.query(**limits)
        query.pin()
        topic.put(0, 4_000)
        at = query.initial()
        for _ in range(20):
            at = query.latest(at)
        assert at.position == {0: 10, 1: 5}

    def test_few_rows_are_waited_for_and_then_taken(self, topic: Reading) -> None:
        query = topic.query(min_rows=20, max_delay=60)
        start = query.initial()
        end = query.latest(start)
        assert sum(end.position.values()) == 15, "a run's first batch waits for nothing"
        query.planned(start, end)

        topic.put(1, 19)
        assert query.latest(end) == end
        topic.clock.advance(59)
        assert query.latest(end) == end
        topic.clock.advance(1)
        further = query.latest(end)
        assert further.position == {0: 10, 1: 24}
        query.planned(end, further)

        topic.put(1, 19)
        assert query.latest(further) == further, "the wait begins anew with each batch"
        topic.put(1, 1)
        assert query.latest(further).position == {0: 10, 1: 44}, "enough rows aren't waited for"

    def test_a_pinned_query_waits_for_no_rows(self, topic: Reading) -> None:
        query = topic.query(min_rows=1_000)
        query.pin()
        assert sum(query.latest(query.initial()).position.values()) == 15

    def test_how_much_is_left_is_told(self, topic: Reading) -> None:
        query = topic.query(starting="latest")
        assert query.behind() is None, "before it has begun"
        at = query.latest(query.initial())
        topic.put(0, 3)
        progress = query.behind()
        assert progress is not None
        assert progress["shards"] == {"0": 13, "1": 5}
        assert progress["behind"]["rows"] == 3
        assert progress["behind"]["bytes"] > 0
        assert 0 <= progress["behind"]["oldest_seconds"] < 60
        query.latest(query.latest(at))
        assert query.behind()["behind"] == {"rows": 0, "bytes": 0, "oldest_seconds": 0.0}  # type: ignore[index]


def sizes_of(query: Any, at: StreamOffset) -> list[int]:
    """How many rows each batch has, to the end."""
    sizes = []
    while (end := query.latest(at)) != at:
        query.planned(at, end)
        query.committed(end)
        sizes.append(sum(end.position.values()) - sum(at.position.values()))
        at = end
    return sizes


class TestWhatIsDone:
    def test_a_batch_in_the_commit_log_is_done(self, topic: Reading) -> None:
        query, _, end = topic.begun(max_rows=6)
        assert topic.position() == {0: 0, 1: 0}
        query.committed(end)
        assert topic.position() == end.position == {0: 4, 1: 2}

    def test_what_spark_starts_the_next_batch_at_is_done(self, topic: Reading) -> None:
        """It is all that comes of the last batch: an idle tail, and the end of AvailableNow."""
        query, _, end = topic.begun()
        assert query.latest(end) == end
        assert topic.position() == end.position

    def test_a_spark_that_tells_no_start_has_done_its_last_plan(self, topic: Reading) -> None:
        """4.0 and 4.1 ask for the latest offset when the last batch is in their commit log."""
        query = topic.query()
        end = query.latest()
        query.planned(query.initial(), end)
        assert topic.position() == {0: 0, 1: 0}
        assert query.latest() == end
        assert topic.position() == end.position

    def test_what_restarted_spark_saw_is_done_at_its_next_request(self, topic: Reading) -> None:
        """It plans an empty batch at the end of its offset log first; 4.0 and 4.1 tell nothing else of that."""
        _, start, end = topic.begun(max_rows=6)
        restarted = topic.query()
        assert restarted.planned(again(end), again(end)) == (end, end)
        assert topic.position() == start.position, "nobody said that the batch has landed"
        assert restarted.latest().position == {0: 10, 1: 5}
        assert topic.position() == end.position

    def test_what_restarted_spark_saw_is_not_done_while_repeated(self, topic: Reading) -> None:
        """Killed in the middle of a batch, it repeats it: its rows are needed for as long as that takes."""
        query, _, end = topic.begun(max_rows=6)
        further = query.latest(end)
        restarted = topic.query()
        restarted.planned(again(further), again(further))
        assert restarted.planned(again(end), again(further)) == (end, further)
        assert topic.position() == end.position
        restarted.latest()
        assert topic.position() == further.position

    def test_a_batch_that_is_planned_twice_is_one_batch(self, topic: Reading) -> None:
        """As of a union of a stream with itself: Spark scans the one source twice."""
        query = topic.query(max_rows=6)
        at = query.initial()
        for _ in range(3):
            end = query.latest(at)
            for _ in range(2):
                assert query.planned(at, end) == (at, end)
            at = end
            assert query.latest(at) != at or at.position == {0: 10, 1: 5}
            assert topic.position() == at.position
            query.committed(at)
        assert at.position == {0: 10, 1: 5}

    def test_a_position_never_goes_back(self, topic: Reading) -> None:
        query = topic.query(max_rows=6)
        first = query.latest(query.initial())
        second = query.latest(first)
        query.committed(second)
        query.committed(first)
        assert topic.position() == second.position
        restored = topic.query(fail_on_loss=False)  # an older checkpoint
        restored.planned(first, second)
        assert restored.latest(first).position != first.position
        assert topic.position() == second.position

    def test_a_checkpoint_older_than_what_was_committed_is_an_error(self, topic: Reading) -> None:
        query = topic.query(max_rows=6)
        first = query.latest(query.initial())
        second = query.latest(first)
        query.committed(second)
        with pytest.raises(Lost, match=r"the checkpoint is older than .* committed \(shard 0.*failOnDataLoss"):
            topic.query().latest(first)
        assert topic.query().latest(second).position != second.position

    def test_an_idle_query_says_it_once(self, topic: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each saying is an fsync, and Spark asks a hundred times a second."""
        query, _, end = topic.begun()
        called: list[str] = []
        ask = topic.client.call

        def counted(action: Action[Any, Any], request: Any) -> Any:
            called.append(action.name)
            return ask(action, request)

        monkeypatch.setattr(topic.client, "call", counted)
        for _ in range(5):
            query.latest(end)
        query.committed(end)
        assert called == ["consumer.commit", *["consumer.offsets"] * 5]

    def test_a_full_disk_keeps_the_query_from_nothing(
        self, topic: Reading, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        query, start, end = topic.begun(max_rows=6)
        begun = topic.server.state.ledger.change

        def full(function: Any) -> Any:
            raise StoreFull("no room for the ledger", retry_after=5)

        monkeypatch.setattr(topic.server.state.ledger, "change", full)
        topic.later(3_600)
        further = query.latest(end)
        assert further.position == {0: 8, 1: 4}
        query.committed(end)
        (told,) = [record.getMessage() for record in caplog.records]
        assert told == "topic/x: its position can't be committed for now: no room for the ledger"
        assert topic.position() == start.position

        monkeypatch.setattr(topic.server.state.ledger, "change", begun)
        query.latest(end)
        assert topic.position() == end.position

    @pytest.mark.parametrize("since", [0, 5])
    def test_the_first_batch_repeated_is_its_own_consumers(self, since: int, topic: Reading) -> None:
        """Spark asks for the initial offset again, and gets a new name: the end has the old one, and where it began."""
        _, start, end = topic.begun(starting='{"0": 3}')
        if since:
            topic.put(0, since)
        restarted = topic.query(starting="latest")
        begin, until = restarted.planned(restarted.initial(), again(end))
        assert (begin, until) == (start, end)
        (consumer,) = topic.consumers()
        assert (consumer.consumer, consumer.position) == (end.consumer, start.position)


class TestAsyncProgressTracking:
    """Spark goes on with batches before they are in its log, and its `start` goes on with them."""

    def test_start_isnt_believed_after_a_batch_without_a_commit(self, topic: Reading) -> None:
        query = topic.query(max_rows=3)
        offsets = [query.initial()]
        for _ in range(4):
            offsets.append(query.latest(offsets[-1]))
            query.planned(*offsets[-2:])
        assert topic.position() == offsets[1].position, "of the first batch there is no telling"
        assert query.latest(offsets[-1]) != offsets[-1]
        assert topic.position() == offsets[1].position

        query.committed(offsets[3])
        assert topic.position() == offsets[3].position, "what is in the log is done"
        query.latest(offsets[4])
        assert topic.position() == offsets[3].position

    def test_a_later_session_trusts_its_first_start_again(self, topic: Reading) -> None:
        query = topic.query(max_rows=3)
        offsets = [query.initial()]
        for _ in range(3):
            offsets.append(query.latest(offsets[-1]))
            query.planned(*offsets[-2:])
        restarted = topic.query(max_rows=3)
        restarted.planned(again(offsets[1]), again(offsets[2]))
        assert topic.position() == offsets[1].position
        restarted.planned(offsets[2], offsets[3])
        restarted.latest(offsets[3])
        assert topic.position() == offsets[1].position


class TestTwoQueriesOnOneCheckpoint:
    def test_the_older_one_is_told(self, topic: Reading) -> None:
        older, start, end = topic.begun(max_rows=3)
        newer = topic.query(max_rows=3)
        newer.planned(again(start), again(end))
        said = f"another query reads topic/x as consumer {start.consumer}: two queries have one checkpoint"
        for call_it in (lambda: older.latest(end), lambda: older.committed(end), lambda: older.latest(start)):
            with pytest.raises(Fenced, match=said):
                call_it()
        newer.committed(end)
        assert topic.position() == end.position

    def test_the_older_one_is_told_where_it_plans_too(self, topic: Reading) -> None:
        """It has its batch's end already; the newer one, from a copy of the checkpoint, has more rows in that batch."""
        older = topic.query()
        start = older.initial()
        end = older.latest(start)
        topic.put(0, 5)
        newer = topic.query()
        assert newer.latest(again(start)) != end
        with pytest.raises(Fenced):
            older.planned(start, end)

    def test_an_older_checkpoint_ends_its_own_query_only(self, topic: Reading) -> None:
        query = topic.query(max_rows=3)
        offsets = [query.initial()]
        for _ in range(4):
            offsets.append(query.latest(offsets[-1]))
            query.planned(*offsets[-2:])
            query.committed(offsets[-1])
        said = r"topic/x: the checkpoint is older than what this query has committed \(shard 0: 4 of 8, shard 1"
        with pytest.raises(Lost, match=said):
            topic.query().latest(offsets[2])
        with pytest.raises(Lost, match=said):
            topic.query().planned(offsets[1], offsets[2])
        assert query.latest(offsets[-1]).position != offsets[-1].position

    def test_a_batch_between_two_consumers_is_refused_with_the_cure(self, topic: Reading) -> None:
        """4.0 and 4.1 with their wrapper for AvailableNow ask for the end first, and get one of a new consumer."""
        _, _, place = topic.begun(max_rows=3)
        restarted = topic.query()
        end = restarted.latest()
        with pytest.raises(InvalidRequest, match=r"triggerAvailableNowWrapper\.enabled to false"):
            restarted.planned(again(place), end)

    def test_queries_with_checkpoints_of_their_own_dont_meet(self, topic: Reading) -> None:
        queries = [topic.query(), topic.query(max_rows=2)]
        ends = [query.latest(query.initial()) for query in queries]
        for query, end in zip(queries, ends, strict=True):
            query.planned(query.initial(), end)
            query.committed(end)
        positions = {each.consumer: each.position for each in topic.consumers()}
        assert positions == {end.consumer: end.position for end in ends}


class TestAServerThatWasPutBack:
    @staticmethod
    def forget(topic: Reading) -> None:
        topic.server.state.ledger.change(lambda t: t.execute("DELETE FROM consumers"))

    def test_an_unknown_consumer_is_attached_where_the_batch_begins(self, topic: Reading) -> None:
        """What is planned then is still to come."""
        query, _, end = topic.begun(max_rows=6)
        further = query.latest(end)
        self.forget(topic)
        assert query.planned(end, further) == (end, further)
        assert topic.position() == end.position

    @pytest.mark.parametrize("then", ["latest", "committed"])
    def test_an_unknown_consumer_is_attached_again(self, then: str, topic: Reading) -> None:
        query, start, end = topic.begun(max_rows=6)
        self.forget(topic)
        if then == "latest":
            query.latest(end)
        else:
            query.committed(end)
        assert topic.position() == end.position
        (consumer,) = topic.consumers()
        assert (consumer.consumer, consumer.state) == (start.consumer, "live")

    def test_rows_that_it_doesnt_know_any_more_are_told(self, topic: Reading) -> None:
        """The next ones would have the offsets of rows that this query has read."""
        query = topic.query()
        end = query.latest(query.initial())
        ahead = replace(end, position=Position({0: 12, 1: 5}))
        with pytest.raises(Lost, match=r"ends before.*" + CURE):
            topic.query().latest(ahead)
        with pytest.raises(Lost, match=r"ends before this query.s position \(shard 0: 12 of 10\).*put back to"):
            topic.query().latest(replace(ahead, initial=ahead.position))

    def test_told_to_go_on_the_query_waits_for_its_place(self, topic: Reading) -> None:
        query = topic.query()
        ahead = replace(query.latest(query.initial()), position=Position({0: 12, 1: 5}))
        self.forget(topic)
        assert topic.query(fail_on_loss=False).latest(ahead) == ahead
        assert topic.position() == {0: 10, 1: 5}


class TestRowsThatAreGone:
    @pytest.fixture
    def purged(self, topic: Reading) -> StreamOffset:
        """A query was to read shard 0 from 2 on and shard 1 from 1 on; of them 10 and 5 rows are gone, and 3 came."""
        query, _, place = topic.begun(max_rows=3)
        query.committed(place)
        topic.purge()
        topic.put(0, 3)
        assert place.position == {0: 2, 1: 1}
        return place

    WHICH = "shard 0: offsets 2 to 10, shard 1: offsets 1 to 5"

    def test_the_query_fails_with_the_offsets_and_the_cure(self, purged: StreamOffset, topic: Reading) -> None:
        said = GONE.format(rows=12, which=self.WHICH) + ".*" + CURE
        with pytest.raises(Lost, match=said):
            topic.query().latest(purged)
        end = replace(purged, position=Position({0: 13, 1: 5}))
        with pytest.raises(Lost, match=said):
            topic.query().planned(purged, end)

    def test_told_to_go_on_it_warns_once_of_the_exact_gap(
        self, purged: StreamOffset, topic: Reading, caplog: pytest.LogCaptureFixture
    ) -> None:
        query = topic.query(fail_on_loss=False)
        end = query.latest(purged)
        assert query.latest(purged) == end
        begin, until = query.planned(purged, end)
        assert begin.position == {0: 10, 1: 5}
        assert until.position == {0: 13, 1: 5}
        (told,) = [r.getMessage() for r in caplog.records if "rows are gone" in r.getMessage()]
        assert f"12 rows are gone that this query hasn't read ({self.WHICH})" in told
        assert "continues behind them, as failOnDataLoss is false" in told
        query.committed(end)
        assert topic.position() == {0: 13, 1: 5}

    def test_a_batch_to_repeat_of_which_all_is_gone_is_empty(self, purged: StreamOffset, topic: Reading) -> None:
        end = replace(purged, position=Position({0: 6, 1: 1}))
        begin, until = topic.query(fail_on_loss=False).planned(purged, end)
        assert begin.position == until.position == {0: 10, 1: 5}, "an empty range, where there is one"

    def test_a_batch_to_repeat_without_any_of_the_gap_is_whole(self, purged: StreamOffset, topic: Reading) -> None:
        """A shard without rows in the batch may have lost any rows."""
        start, end = (replace(purged, position=Position({0: offset, 1: 1})) for offset in (10, 12))
        begin, until = topic.query().planned(start, end)
        assert (begin.position[0], until.position[0]) == (10, 12)
        assert begin.position[1] == until.position[1] == 5

    def test_a_batch_is_as_large_as_it_may_be_behind_the_gap(self, purged: StreamOffset, topic: Reading) -> None:
        query = topic.query(fail_on_loss=False, max_rows=2)
        assert query.latest(purged).position == {0: 12, 1: 5}


class TestATopicThatWasMadeAgain:
    @pytest.fixture
    def old(self, topic: Reading) -> StreamOffset:
        """A place in the topic that was. Now it has one shard, and six rows."""
        query, _, place = topic.begun(max_rows=3)
        query.committed(place)
        topic.client.delete(X)
        topic.create(shards=1)
        put(topic.bare, at(X), [trips(*range(6))])
        return place

    @pytest.mark.parametrize("way", ["latest", "planned", "committed"])
    def test_the_query_fails_with_the_cure(self, way: str, old: StreamOffset, topic: Reading) -> None:
        query = topic.query()
        with pytest.raises(Lost, match=r"topic/x was deleted and made again since.*" + CURE):
            getattr(query, way)(*[replace(old, position=old.initial)] * (way == "planned"), old)

    def test_told_to_go_on_it_begins_anew_with_one_warning(
        self, old: StreamOffset, topic: Reading, caplog: pytest.LogCaptureFixture
    ) -> None:
        query = topic.query(fail_on_loss=False, max_rows=4)
        end = query.latest(old)
        assert query.latest(old) == end
        begin, until = query.planned(old, end)
        assert begin.position == {0: 0}
        assert (until.position, until.consumer) == (Position({0: 4}), old.consumer)
        query.committed(end)
        assert topic.position() == {0: 4}
        assert query.latest(end).position == {0: 6}
        assert len([record for record in caplog.records if "made again" in record.getMessage()]) == 1

    def test_a_batch_of_it_that_is_repeated_is_empty(self, old: StreamOffset, topic: Reading) -> None:
        query = topic.query(fail_on_loss=False)
        begin, until = query.planned(replace(old, position=old.initial), old)
        assert begin.position == until.position
        assert query.latest(old).position == {0: 6}

    def test_the_first_batch_after_it_is_repeated_whole(self, old: StreamOffset, topic: Reading) -> None:
        first = topic.query(fail_on_loss=False, max_rows=4)
        end = first.latest(old)
        first.planned(old, end)
        begin, until = topic.query(fail_on_loss=False).planned(again(old), again(end))
        assert begin.position == {0: 0}
        assert until.position == {0: 4}
        assert topic.position() == {0: 0}

    def test_how_much_is_left_is_told_of_the_new_one(self, old: StreamOffset, topic: Reading) -> None:
        """Also while few rows are waited for: the old one's shards aren't the new one's."""
        query = topic.query(fail_on_loss=False, min_rows=7)
        first = query.latest(old)
        query.planned(old, first)
        topic.client.delete(X)
        topic.create(shards=1)
        put(topic.bare, at(X), [trips(0)])
        assert query.latest(first) == first
        progress = query.behind()
        assert progress is not None
        assert (progress["shards"], progress["behind"]["rows"]) == ({"0": 1}, 1)

    def test_a_pinned_query_ends_in_the_new_one_too(self, old: StreamOffset, topic: Reading) -> None:
        query = topic.query(fail_on_loss=False)
        query.pin()
        assert query.latest(old).position == {0: 6}

    def test_a_topic_that_is_deleted_ends_the_query_by_name(self, old: StreamOffset, topic: Reading) -> None:
        topic.client.delete(X)
        with pytest.raises(NotFound, match="no topic at topic/x"):
            topic.query(fail_on_loss=False).latest(old)


class TestAConsumerThatIsAway:
    def test_it_expires_loudly_holds_nothing_and_comes_back(
        self, topic: Reading, caplog: pytest.LogCaptureFixture
    ) -> None:
        query, _, place = topic.begun(max_rows=3)
        query.committed(place)
        topic.later(7 * DAY - 60)
        assert topic.desk.expire() == []
        topic.later(7 * DAY + 60)
        assert topic.desk.expire() == [place.consumer]
        (told,) = [record.getMessage() for record in caplog.records]
        assert f"consumer {place.consumer} of topic/x was not seen for 7 days and holds no rows any more" in told
        assert topic.consumers()[0].state == "expired"

        query.latest(place)  # the same process, after a long pause
        (consumer,) = topic.consumers()
        assert (consumer.state, consumer.position) == ("live", place.position)
        assert "is back after it had expired" in caplog.records[-1].getMessage()

    def test_a_new_session_brings_it_back_too(self, topic: Reading) -> None:
        query = topic.query()
        place = query.latest(query.initial())
        topic.later(8 * DAY)
        topic.desk.expire()
        topic.query().latest(place)
        assert topic.consumers()[0].state == "live"


class TestShardsThatComeLater:
    def test_a_query_reads_them_from_their_first_row(self, topic: Reading) -> None:
        query, _, end = topic.begun()
        topic.client.alter_topic(X, shards=4)
        topic.put(3, 7)
        following = query.latest(again(end))
        assert following.position == {0: 10, 1: 5, 2: 0, 3: 7}
        begin, until = query.planned(again(end), following)
        assert begin.position == {0: 10, 1: 5, 2: 0, 3: 0}
        assert until.position == {0: 10, 1: 5, 2: 0, 3: 7}
        query.committed(following)
        assert topic.position() == {0: 10, 1: 5, 2: 0, 3: 7}

    def test_a_batch_that_was_planned_before_has_none_of_their_rows(self, topic: Reading) -> None:
        _, start, end = topic.begun()
        topic.client.alter_topic(X, shards=3)
        topic.put(2, 7)
        restarted = topic.query()
        begin, until = restarted.planned(again(start), again(end))
        assert {shard: (begin.position[shard], until.position[shard]) for shard in until.position} == {
            0: (0, 10), 1: (0, 5),
        }  # fmt: skip
        assert restarted.latest(again(end)).position == {0: 10, 1: 5, 2: 7}

    def test_rows_of_one_that_were_removed_unread_are_named(self, topic: Reading) -> None:
        _, _, end = topic.begun()
        topic.client.alter_topic(X, shards=3)
        topic.put(2, 7)
        topic.purge()
        topic.put(2, 1)
        with pytest.raises(Lost, match=r"7 rows are gone .*shard 2: offsets 0 to 7"):
            topic.query().latest(again(end))
