"""Publishers are answered when the store has answered, and refused while it doesn't."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from nsqd.broker.batch import Receipt
from nsqd.broker.store import RemoteSnapshot
from nsqd.log.faults import FaultKind, Faults, StorageFault
from nsqd.log.wakeups import Wakeups
from nsqd.log.writing.unconfirmed import Unconfirmed
from nsqd.remote.confirmations import Confirmations
from nsqd.remote.object_store import StoreFault, StoreFaultKind
from nsqd.remote.sender import Sender
from tests.nsqd.remote.test_owner import INTERVAL, Node
from tests.support.jumping import jumping
from tests.support.object_stores import MemoryStore, Objects

TIMEOUT = 10.0


class Log:
    """A log with only what confirmations ask of it."""

    def __init__(self, topic: str = "t") -> None:
        self.topic = topic
        self.unconfirmed = Unconfirmed((0, 0, 0))

    @property
    def waiting_publishes(self) -> int:
        return self.unconfirmed.waiting

    @property
    def is_confirmed(self) -> bool:
        return self.unconfirmed.is_empty

    def confirm(self, position: int) -> bool:
        return self.unconfirmed.confirmed(position)

    def fail_unconfirmed(self, reason: str) -> None:
        for receipt in self.unconfirmed.take_receipts():
            receipt.settle(reason, stays=True)


class EmptyTurn:
    def __init__(self, finish: Callable[[], None] = lambda: None) -> None:
        self.finish = finish

    def begin(self) -> float:
        return 0.0


class Waiting(Node):
    """An owner with publishers that wait for it. Its sender has no threads: the test answers requests."""

    def __init__(self, *, is_strict: bool = False) -> None:
        super().__init__()
        self.faults = Faults(Wakeups())
        self.sender = Sender(self.owner, lambda on_unknown: MemoryStore(Objects()), depth=8)
        fault = StorageFault(self.faults, FaultKind.REMOTE)
        self.confirmations = Confirmations(self, fault, timeout=TIMEOUT, is_strict=is_strict, clock=lambda: self.now)
        self.log = Log()

    def begin(self) -> None: ...

    def close(self, within: float) -> None:
        self.closed_within = within

    def snapshot(self, *, refusal: str | None, waiting_publishes: int) -> RemoteSnapshot:
        raise NotImplementedError

    def raise_if_lost(self) -> None: ...

    def raise_bug(self) -> None: ...

    def publish(self, *, is_awaited: bool = True) -> Receipt:
        receipt = Receipt()
        position = self.write()
        self.log.unconfirmed.written(position, (0, position, position), [receipt] if is_awaited else [])
        self.confirmations.log_written(self.log, is_awaited=is_awaited)
        return receipt

    def hang(self) -> Callable[[], None]:
        """Send the next slot to a store that doesn't answer within the timeout. Return a function with which it answers."""
        request = self.next_request()
        assert request is not None
        self.now += TIMEOUT
        self.confirmations.check()

        def answer() -> None:
            self.answer(request)
            self.now += INTERVAL
            self.answer_all()
            self.confirmations.end()

        return answer


def test_a_publisher_is_answered_when_its_slot_and_those_ahead_are_stored() -> None:
    node = Waiting()
    first = node.publish()
    earlier = node.next_request()
    node.now += INTERVAL
    second = node.publish()
    later = node.next_request()
    assert earlier is not None
    assert later is not None
    node.answer(later)
    node.confirmations.end()
    assert not first.settled
    assert not second.settled
    node.answer(earlier)
    node.confirmations.end()
    assert (first.error, second.error) == (None, None)
    assert first.settled
    assert second.settled


def test_followers_learn_which_topics_have_more_to_read() -> None:
    node = Waiting()
    topics: list[str] = []
    node.confirmations.follow(topics.append)
    node.publish(is_awaited=False)
    node.wait(INTERVAL)
    node.confirmations.end()
    node.confirmations.end()
    assert topics == ["t"]
    node.confirmations.log_dropped(node.log)
    assert topics == ["t", "t"]


def test_publishers_get_an_error_when_the_store_has_not_answered_for_the_timeout() -> None:
    node = Waiting()
    receipt = node.publish()
    node.hang()
    assert (receipt.error, receipt.stays) == ("remote: the store doesn't answer; it may be stored", True)
    assert node.confirmations.refusal() == "remote: the store doesn't answer"
    assert node.faults.health == "NOK - remote: the store doesn't answer"


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_strict_node_refuses_all_publishes_then(is_strict: bool) -> None:
    node = Waiting(is_strict=is_strict)
    node.publish()
    assert node.confirmations.refusal_of_all() is None
    node.hang()
    assert node.confirmations.refusal_of_all() == ("remote: the store doesn't answer" if is_strict else None)


def test_the_error_says_what_is_wrong_with_the_store() -> None:
    node = Waiting()
    receipt = node.publish()
    node.sender.fault = StoreFault("s3://b/p: there is no bucket of this name", StoreFaultKind.MISSING)
    node.hang()
    assert receipt.error == "remote: s3://b/p: there is no bucket of this name; it may be stored"


def test_a_store_that_is_slow_is_no_fault() -> None:
    node = Waiting()
    receipt = node.publish()
    assert node.next_request() is not None
    node.now += TIMEOUT - 0.1
    node.confirmations.check()
    assert not receipt.settled
    assert node.confirmations.refusal() is None
    assert node.faults.health == "OK"


def test_a_store_that_is_silent_is_a_fault_even_if_no_publisher_waits() -> None:
    node = Waiting()
    node.publish(is_awaited=False)
    node.next_look()
    node.now += INTERVAL
    node.hang()
    assert node.faults.health.startswith("NOK - remote")


def test_publishes_are_refused_until_all_that_has_stayed_is_confirmed() -> None:
    node = Waiting()
    node.publish()
    request = node.next_request()
    stayed = node.publish()  # not in a slot yet
    assert request is not None
    node.now += TIMEOUT
    node.confirmations.check()
    node.answer(request)
    node.confirmations.end()
    assert stayed.stays
    assert node.confirmations.refusal() is not None
    node.answer_all()
    node.confirmations.end()
    assert node.confirmations.refusal() is None
    assert node.faults.health == "OK"


def test_changes_after_the_error_do_not_prolong_the_refusal() -> None:
    node = Waiting()
    node.publish()
    answer = node.hang()
    node.now += TIMEOUT
    node.publish(is_awaited=False)
    node.confirmations.check()
    answer()
    assert node.confirmations.refusal() is None


def test_a_publish_that_was_on_its_way_at_the_first_error_prolongs_the_refusal() -> None:
    """Otherwise a repeat of it with the same key would be answered OK before the store has it."""
    node = Waiting()
    node.publish()
    request = node.next_request()
    assert request is not None
    node.now += TIMEOUT
    node.confirmations.check()
    late = node.publish()
    node.confirmations.check()
    assert late.error is not None
    node.answer(request)
    node.confirmations.end()
    assert node.confirmations.refusal() is not None
    node.now += INTERVAL
    node.answer_all()
    node.confirmations.end()
    assert node.confirmations.refusal() is None


def test_a_publish_after_the_refusal_is_answered() -> None:
    node = Waiting()
    node.publish()
    node.hang()()
    receipt = node.publish()
    node.wait(INTERVAL)
    node.confirmations.end()
    assert (receipt.settled, receipt.error) == (True, None)


def test_publishers_learn_that_the_name_was_taken_over() -> None:
    node = Waiting()
    node.shelf.claimed("b")
    waiting = node.publish()
    node.answer_all()
    node.confirmations.end()
    taken = "fenced: the name was taken over by process 1 on machine-b"
    assert waiting.error == f"{taken}; it may be stored"
    assert node.confirmations.refusal() == taken
    assert node.confirmations.is_lost


def test_a_name_that_is_lost_while_publishes_are_refused_is_not_got_back() -> None:
    node = Waiting()
    node.shelf.claimed("b")
    node.publish()
    node.hang()()
    node.now += TIMEOUT
    node.confirmations.check()
    node.confirmations.end()
    assert node.confirmations.refusal() == "fenced: the name was taken over by process 1 on machine-b"


@jumping
async def test_a_stop_waits_until_publishers_are_answered_and_refuses_others() -> None:
    node = Waiting()
    receipt = node.publish()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.confirmations.answer_publishers, EmptyTurn())
        await trio.testing.wait_all_tasks_blocked()
        assert node.confirmations.refusal() == "remote: nsqd is stopping"
        assert not receipt.settled
        node.answer_all()
        node.confirmations.end()
    assert (receipt.settled, receipt.error) == (True, None)
    assert node.confirmations.refusal() == "remote: nsqd is stopping"
    assert node.faults.health == "OK"


@jumping
async def test_a_stop_gives_publishers_an_error_if_the_store_does_not_answer_in_time() -> None:
    node = Waiting()
    receipt = node.publish()
    began = trio.current_time()
    await node.confirmations.answer_publishers(EmptyTurn())
    assert trio.current_time() - began == TIMEOUT
    assert receipt.error == "remote: nsqd is stopping, and the store doesn't answer; it may be stored"


@jumping
async def test_a_stop_does_not_wait_for_the_store_if_no_publisher_does() -> None:
    node = Waiting()
    node.publish(is_awaited=False)
    began = trio.current_time()
    await node.confirmations.answer_publishers(EmptyTurn())
    assert trio.current_time() == began


@jumping
async def test_a_stop_refuses_publishers_that_were_held_back() -> None:
    node = Waiting()
    refusals: list[str | None] = []
    await node.confirmations.answer_publishers(EmptyTurn(lambda: refusals.append(node.confirmations.refusal())))
    assert refusals == ["remote: nsqd is stopping"], "the turn that refuses what an earlier one has postponed"


@jumping
async def test_a_stop_takes_the_timeout_once() -> None:
    node = Waiting()
    await node.confirmations.answer_publishers(EmptyTurn())
    node.now += 0.3 * TIMEOUT
    node.confirmations.close()
    assert node.closed_within == pytest.approx(0.7 * TIMEOUT)
    node.now += TIMEOUT
    node.confirmations.close()
    assert node.closed_within == 1.0


def test_a_start_that_is_given_up_has_the_timeout_to_leave_the_name() -> None:
    node = Waiting()
    node.confirmations.close()
    assert node.closed_within == TIMEOUT
