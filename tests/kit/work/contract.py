"""What every LeaseQueue promises: subclass it with a fixture `queue` whose clock is `clock`."""

from __future__ import annotations

import itertools

import pytest

from penstock.errors import InvalidRequest, NotFound
from penstock.queue.work.lease_queue import Forward, LeaseQueue
from penstock.wire.queue import Failure, LeaseKey, QueueRoom
from tests.kit.clock import Clock
from tests.kit.work.queues import IN, LAST, LEASE, OUT, claim, claimed, names, new, results


class LeaseQueueContract:
    # --- push and claim -----------------------------------------------------------------------

    def test_messages_are_claimed_whole_in_order(self, queue: LeaseQueue) -> None:
        assert queue.push(new(IN, "a", "b", "c", size=7, key="k")) == 3
        first, second = claim(queue, IN, 2), claim(queue, IN, 2)
        assert (names(first), names(second), names(claim(queue, IN))) == (["a", "b"], ["c"], [])
        lease = first.leases[0]
        assert (lease.message, lease.tries, lease.bytes) == (new(IN, "a", key="k")[0].message, 1, 7)

    def test_a_repeated_push_adds_nothing(self, queue: LeaseQueue) -> None:
        assert queue.push(new(IN, "a", "b")) == 2
        assert queue.push(new(IN, "b", "c")) == 1
        queue.ack(claimed(queue, IN, 9))
        assert queue.push(new(IN, "a")) == 0
        assert queue.counts(IN).pushed == 3

    def test_one_push_serves_several_queues(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a") + new(OUT, "a"))
        assert names(claim(queue, IN)) == names(claim(queue, OUT)) == ["a"]

    def test_a_queue_that_is_not_there_is_named(self, queue: LeaseQueue) -> None:
        for verb in (lambda: claim(queue, IN), lambda: queue.counts(IN), lambda: queue.redrive(IN)):
            with pytest.raises(NotFound):
                verb()

    def test_a_repeated_claim_gets_the_same_messages(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a", "b", "c"))
        first = queue.claim(IN, "c1", worker="w", most=2)
        assert queue.claim(IN, "c1", worker="w", most=2) == first
        queue.ack([first.leases[0].key])
        assert queue.claim(IN, "c1", worker="w", most=2).leases == first.leases[1:]
        queue.ack([first.leases[1].key])
        assert queue.claim(IN, "c1", worker="w", most=2).leases == ()

    # --- leases -------------------------------------------------------------------------------

    def test_a_repeated_ack_gets_the_first_answer(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a"))
        leases = claimed(queue, IN)
        assert results(queue.ack(leases)) == results(queue.ack(leases)) == ["done"]
        assert queue.counts(IN).done == 1

    def test_a_lease_ends_at_its_deadline(self, queue: LeaseQueue, clock: Clock) -> None:
        queue.push(new(IN, "a"))
        late = claimed(queue, IN)
        clock.advance(LEASE)
        assert results(queue.ack(late)) == results(queue.extend(late)) == ["lease-lost"]
        again = claim(queue, IN)
        assert (names(again), again.leases[0].tries) == (["a"], 2)
        assert results(queue.ack(late)) == ["lease-lost"]
        assert results(queue.ack([again.leases[0].key])) == ["done"]
        assert results(queue.ack(late)) == ["lease-lost"]

    def test_an_extended_lease_lasts(self, queue: LeaseQueue, clock: Clock) -> None:
        queue.push(new(IN, "a", "b"))
        kept, late = claimed(queue, IN, 2)
        for _ in range(4):
            clock.advance(LEASE - 1)
            assert results(queue.extend([kept])) == ["claimed"]
        assert results(queue.ack([kept, late])) == ["done", "lease-lost"]

    def test_each_lease_of_a_call_has_its_outcome(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a", "b"))
        a, b = claimed(queue, IN, 2)
        wrong = [LeaseKey(IN, "a", b.token), LeaseKey(IN, "z", a.token), LeaseKey(OUT, "a", a.token)]
        assert results(queue.ack([*wrong, a, b])) == ["lease-lost"] * 3 + ["done"] * 2

    def test_a_released_message_comes_again(self, queue: LeaseQueue, clock: Clock) -> None:
        queue.push(new(IN, "a", "b"))
        lease = claimed(queue, IN)
        assert results(queue.release(lease)) == results(queue.release(lease)) == ["pending"]
        assert results(queue.ack(lease)) == results(queue.extend(lease)) == ["lease-lost"]
        lease = claimed(queue, IN)
        assert results(queue.release(lease, delay=60)) == results(queue.release(lease)) == ["pending"]
        assert results(queue.extend(lease)) == ["lease-lost"]
        assert (names(claim(queue, IN)), names(claim(queue, IN))) == (["b"], [])
        clock.advance(60)
        assert "a" in names(claim(queue, IN, 2))

    def test_too_many_tries_make_a_message_dead(self, queue: LeaseQueue, clock: Clock) -> None:
        queue.push(new(IN, "a", "b"))
        for _ in range(4):
            assert results(queue.release(claimed(queue, IN, 2), failure=Failure("E"))) == ["pending"] * 2
        released, _ = claimed(queue, IN, 2)
        assert results(queue.release([released], failure=Failure("ValueError"))) == ["dead"]
        clock.advance(LEASE)
        assert names(claim(queue, IN)) == []
        assert (queue.counts(IN).dead, queue.counts(IN).claimed) == (2, 0)

    def test_a_message_released_without_failure_has_no_try(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a"))
        for _ in range(9):
            assert results(queue.release(claimed(queue, IN))) == ["pending"]
        assert claim(queue, IN).leases[0].tries == 1

    def test_what_a_worker_has_is_given_back_at_once(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a", "b", "c"))
        queue.claim(IN, "c1", worker="w1", most=2)
        [kept] = queue.claim(IN, "c2", worker="w2").leases
        assert (queue.release_worker(IN, "w1"), queue.release_worker(IN, "w1")) == (2, 0)
        again = claim(queue, IN, 9)
        assert (names(again), [lease.tries for lease in again.leases]) == (["a", "b"], [1, 1])
        assert results(queue.ack([kept.key])) == ["done"]

    def test_no_more_is_claimed_than_queues_below_have_room_for(self, queue: LeaseQueue) -> None:
        """What is claimed counts, too; a queue with nothing to do has room for one message, however large."""
        room, number = QueueRoom(3, 100), itertools.count()

        def some() -> list[str]:
            claimed = queue.claim(IN, f"room-{next(number)}", worker="w", most=9, to=[OUT, LAST], room=room)
            return names(claimed)

        queue.push(new(IN, *"abcdefgh") + new(OUT, "x", size=9))
        assert (some(), some()) == (["a", "b"], [])
        queue.ack(claimed(queue, OUT))
        assert (some(), some()) == (["c"], [])
        queue.push(new(LAST, "y", size=100))
        queue.release_worker(IN, "w")
        assert some() == []
        queue.drop(claimed(queue, LAST), Failure("E"))
        assert some() == ["a", "b", "c"]

    def test_a_dropped_message_is_dead_until_redriven(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a", "b", "c", size=5))
        leases = claimed(queue, IN, 3)
        assert results(queue.drop(leases, Failure("E"))) == results(queue.drop(leases, Failure("E"))) == ["dead"] * 3
        assert results(queue.ack(leases)) == ["lease-lost"] * 3
        assert (names(claim(queue, IN)), queue.counts(IN).bytes) == ([], 15)
        assert queue.redrive(IN, ["b", "z"]) == 1
        assert queue.redrive(IN) == 2
        again = claim(queue, IN, 3)
        assert (names(again), again.leases[0].tries) == (["a", "b", "c"], 1)

    # --- forward ------------------------------------------------------------------------------

    def test_a_forward_acks_and_pushes_once(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a"))
        forward = Forward(tuple(claimed(queue, IN)), tuple(new(OUT, "a/0", "a/1") + new(LAST, "a/0")))
        assert results(queue.forward([forward])) == results(queue.forward([forward])) == ["done"]
        assert results(queue.ack(forward.leases)) == ["done"]
        assert (queue.counts(OUT).pushed, queue.counts(LAST).pushed, queue.counts(IN).done) == (2, 1, 1)

    def test_a_late_forward_leaves_nothing(self, queue: LeaseQueue, clock: Clock) -> None:
        queue.push(new(IN, "a", "b"))
        late, (good,) = tuple(claimed(queue, IN)), claimed(queue, IN)
        clock.advance(LEASE - 1)
        queue.extend([good])
        clock.advance(1)
        forwards = [
            Forward((*late, good), tuple(new(OUT, "x"))), Forward(late, tuple(new(OUT, "y"))),
            Forward((good,), tuple(new(OUT, "z"))),
        ]  # fmt: skip
        assert results(queue.forward(forwards)) == ["lease-lost", "lease-lost", "done"]
        assert names(claim(queue, OUT, 9)) == ["z"]

    def test_a_forward_after_an_ack_is_refused(self, queue: LeaseQueue) -> None:
        """Its outputs would be missing, while the worker took them for pushed."""
        queue.push(new(IN, "a", "b"))
        a, b = claimed(queue, IN, 2)
        queue.ack([a])
        queue.forward([Forward((b,), tuple(new(OUT, "b")))])
        other = [Forward((a,), tuple(new(OUT, "a"))), Forward((b,), tuple(new(OUT, "c")))]
        assert results(queue.forward(other)) == ["lease-lost", "lease-lost"]

    def test_a_forward_to_the_same_queue_is_counted(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a"))
        queue.finish(IN)
        queue.forward([Forward(tuple(claimed(queue, IN)), tuple(new(IN, "a/0")))])
        assert queue.counts(IN).state == "open"
        queue.ack(claimed(queue, IN))
        assert queue.counts(IN).state == "complete"

    # --- completion ---------------------------------------------------------------------------

    def test_an_empty_queue_is_open_until_finished(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a"))
        queue.ack(claimed(queue, IN))
        assert claim(queue, IN).state == "open"
        assert queue.finish(IN).state == queue.finish(IN).state == claim(queue, IN).state == "complete"

    def test_a_finished_queue_is_complete_when_drained(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a", "b"))
        assert queue.finish(IN).state == "open"
        a, b = claimed(queue, IN, 2)
        queue.ack([a])
        assert claim(queue, IN).state == "open"
        queue.drop([b], Failure("E"))
        assert claim(queue, IN).state == "complete"
        queue.redrive(IN)
        assert claim(queue, IN).state == "open"

    def test_a_finished_queue_takes_no_new_message(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a"))
        queue.finish(IN)
        assert queue.push(new(IN, "a")) == 0
        with pytest.raises(InvalidRequest):
            queue.push(new(IN, "b"))

    def test_a_chain_of_queues_completes_in_turn(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a", "b"))
        queue.finish(IN)
        a, b = claimed(queue, IN, 2, to=[OUT])
        queue.forward([Forward((a,), tuple(new(OUT, "a")))])
        (below,) = claimed(queue, OUT, 1, to=[LAST])
        queue.ack([below])
        assert [queue.counts(path).state for path in (IN, OUT, LAST)] == ["open"] * 3
        queue.ack([b])
        assert [queue.counts(path).state for path in (IN, OUT, LAST)] == ["complete"] * 3

    def test_a_queue_waits_for_all_its_upstreams(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a") + new(OUT, "b"))
        queue.finish(IN)
        claimed(queue, IN, to=[LAST])
        outs = claimed(queue, OUT, to=[LAST])
        queue.ack(outs)
        queue.finish(OUT)
        assert (queue.counts(OUT).state, queue.counts(LAST).state) == ("complete", "open")

    def test_a_circle_of_queues_is_refused(self, queue: LeaseQueue) -> None:
        queue.push(new(IN, "a"))
        claimed(queue, IN, to=[OUT])
        with pytest.raises(InvalidRequest):
            claim(queue, OUT, to=[IN])
