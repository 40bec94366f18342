"""The ledger notices each promise that is broken, and forgives what a lost machine may take with it."""

from __future__ import annotations

import time

import pytest

from nsqcommon.wire.message import Message
from tests.failover.ledger import Ledger, Violation

LONG_AGO = 100.0


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(("waiting",), ("other",), ("c",))


def delivery(number: int, *, attempts: int = 1, message_id: bytes = b"") -> Message:
    return Message(0, attempts, message_id or b"%016d" % number, b"%d " % number)


def published(ledger: Ledger, topic: str = "waiting", *, delay: float = 0.0, key: bytes = b"") -> int:
    (number,) = ledger.sending(topic, 1, delay=delay, key=key)
    ledger.answered([number], ledger.life)
    return number


def lost(ledger: Ledger, *, after: float) -> None:
    """Lose the owner so many seconds from now."""
    ledger.ended(time.monotonic() + after)


def test_an_acknowledged_message_that_never_comes_is_lost(ledger: Ledger) -> None:
    published(ledger)
    with pytest.raises(Violation, match="1 messages of channels are lost"):
        ledger.check_all_finished()


def test_a_message_that_was_requeued_and_never_comes_again_is_lost(ledger: Ledger) -> None:
    number = published(ledger)
    ledger.arrived("c", delivery(number), 0)
    ledger.requeueing("c", number, 0.0, 0)
    with pytest.raises(Violation, match="are lost"):
        ledger.check_all_finished()


def test_a_message_that_was_finished_is_not_lost(ledger: Ledger) -> None:
    number = published(ledger)
    ledger.finishing("c", ledger.arrived("c", delivery(number), 0), 0)
    ledger.check_all_finished()


def test_a_message_without_an_answer_may_be_lost(ledger: Ledger) -> None:
    ledger.sending("waiting", 1)
    ledger.check_all_finished()


@pytest.mark.parametrize(("after", "is_lost"), [(0.5, False), (LONG_AGO, True)])
def test_topics_that_do_not_wait_for_the_store_lose_the_last_second(
    ledger: Ledger, after: float, is_lost: bool
) -> None:
    published(ledger, "other")
    lost(ledger, after=after)
    if not is_lost:
        ledger.check_all_finished()
        assert ledger.counts.lost_unshipped == 1
        return
    with pytest.raises(Violation, match="are lost"):
        ledger.check_all_finished()


def test_what_another_owner_has_acknowledged_after_it_was_replaced_may_be_lost_where_nobody_waits(
    ledger: Ledger,
) -> None:
    lost(ledger, after=0)
    (number,) = ledger.sending("other", 1)
    ledger.answered([number], 0)
    ledger.check_all_finished()


def test_a_finished_message_does_not_come_again(ledger: Ledger) -> None:
    number = published(ledger)
    ledger.finishing("c", ledger.arrived("c", delivery(number), 0), 0)
    with pytest.raises(Violation, match="came again after its FIN"):
        ledger.arrived("c", delivery(number), 0)


def test_a_finish_that_was_shipped_is_kept(ledger: Ledger) -> None:
    number = published(ledger)
    ledger.finishing("c", ledger.arrived("c", delivery(number), 0), 0)
    lost(ledger, after=LONG_AGO)
    with pytest.raises(Violation, match=r"finished 100\.\d+ s before"):
        ledger.arrived("c", delivery(number), 1)


def test_a_finish_of_the_last_second_may_be_lost(ledger: Ledger) -> None:
    number = published(ledger)
    ledger.finishing("c", ledger.arrived("c", delivery(number), 0), 0)
    lost(ledger, after=0.5)
    ledger.arrived("c", delivery(number), 1)
    assert ledger.counts.again == 1


def test_a_message_that_comes_from_an_owner_which_was_replaced_says_nothing(ledger: Ledger) -> None:
    number = published(ledger)
    lost(ledger, after=0)
    ledger.finishing("c", ledger.arrived("c", delivery(number), 1), 1)
    ledger.arrived("c", delivery(number), 0)
    ledger.burying("c", number, 0)
    ledger.check_all_finished()


def test_a_deferred_message_does_not_come_early(ledger: Ledger) -> None:
    number = published(ledger, delay=60)
    with pytest.raises(Violation, match="came early"):
        ledger.arrived("c", delivery(number), 0)


@pytest.mark.parametrize(("after", "is_kept"), [(0.5, False), (LONG_AGO, True)])
def test_a_requeue_that_was_shipped_does_not_end_early(ledger: Ledger, after: float, is_kept: bool) -> None:
    number = published(ledger)
    ledger.arrived("c", delivery(number), 0)
    ledger.requeueing("c", number, 60, 0).heeded_at = time.monotonic()
    lost(ledger, after=after)
    if not is_kept:
        ledger.arrived("c", delivery(number), 1)
        return
    with pytest.raises(Violation, match="came early"):
        ledger.arrived("c", delivery(number), 1)


def test_attempts_never_go_down(ledger: Ledger) -> None:
    number = published(ledger)
    ledger.arrived("c", delivery(number, attempts=3), 0)
    lost(ledger, after=LONG_AGO)
    with pytest.raises(Violation, match="are 2 after 3"):
        ledger.arrived("c", delivery(number, attempts=2), 1)


def test_a_buried_message_does_not_come(ledger: Ledger) -> None:
    number = published(ledger)
    ledger.arrived("c", delivery(number), 0)
    ledger.burying("c", number, 0).heeded_at = time.monotonic()
    with pytest.raises(Violation, match="though it is buried"):
        ledger.arrived("c", delivery(number), 0)


def test_a_buried_message_is_listed_and_comes_after_a_kick(ledger: Ledger) -> None:
    number = published(ledger)
    ledger.arrived("c", delivery(number), 0)
    ledger.burying("c", number, 0).heeded_at = time.monotonic()
    ledger.check_buried("c", "waiting", {number})
    with pytest.raises(Violation, match="isn't buried any more"):
        ledger.check_buried("c", "waiting", set())
    ledger.kicking("c", "waiting")
    ledger.finishing("c", ledger.arrived("c", delivery(number), 0), 0)
    ledger.check_all_finished()


def test_no_two_messages_have_one_id(ledger: Ledger) -> None:
    ledger.arrived("c", delivery(published(ledger), message_id=b"x"), 0)
    with pytest.raises(Violation, match="have the same id"):
        ledger.arrived("c", delivery(published(ledger), message_id=b"x"), 0)


def test_a_message_has_one_id(ledger: Ledger) -> None:
    number = published(ledger, key=b"k")
    ledger.arrived("c", delivery(number, message_id=b"x"), 0)
    lost(ledger, after=0)
    with pytest.raises(Violation, match="is stored twice"):
        ledger.arrived("c", delivery(number, message_id=b"y"), 1)


def test_a_repeat_may_have_another_id_if_the_first_one_was_delivered_by_a_lost_owner_and_never_answered(
    ledger: Ledger,
) -> None:
    (number,) = ledger.sending("waiting", 1, key=b"k")
    ledger.arrived("c", delivery(number, message_id=b"x"), 0)
    lost(ledger, after=0)
    ledger.arrived("c", delivery(number, message_id=b"y"), 1)
    with pytest.raises(Violation, match="is stored twice"):
        ledger.arrived("c", delivery(number, message_id=b"x"), 1)


def test_a_position_means_one_message_for_ever(ledger: Ledger) -> None:
    ledger.read("waiting", "log", 0, published(ledger))
    ledger.read("waiting", "another log", 0, published(ledger))
    with pytest.raises(Violation, match="is message 1, and was 0"):
        ledger.read("waiting", "log", 0, 1)


@pytest.mark.parametrize(
    ("stored", "text"),
    [([0, 0, 1], "more than once"), ([0], "lacks 1 acknowledged"), ([0, 1, 3], "history has shown: \\[2\\]")],
)
def test_the_log_has_each_acknowledged_message_once_and_whatever_it_has_shown(
    ledger: Ledger, stored: list[int], text: str
) -> None:
    published(ledger)
    published(ledger)
    ledger.sending("waiting", 2)
    ledger.read("waiting", "log", 9, 2)
    with pytest.raises(Violation, match=text):
        ledger.check_history("waiting", "log", [*enumerate(stored)])


def test_the_log_has_a_gap_only_where_a_power_cut_is_reported_to_have_taken_something(ledger: Ledger) -> None:
    number = published(ledger)
    ledger.sending("waiting", 1)
    with pytest.raises(Violation, match=r"has the sequences \[0, 2\]"):
        ledger.check_history("waiting", "log", [(0, number), (2, 1)])
    ledger.lost_in_power_cut("waiting", 1, 2)
    ledger.check_history("waiting", "log", [(0, number), (2, 1)])
    assert ledger.is_reported("waiting", 1, 2)
    assert not ledger.is_reported("waiting", 1, 3)
    assert not ledger.is_reported("other", 1, 2)


def test_a_power_cut_takes_nothing_that_was_promised_or_shown(ledger: Ledger) -> None:
    published(ledger)
    ledger.read("waiting", "log", 7, 0)
    with pytest.raises(Violation, match=r"has taken \[7\] of waiting, which history has shown"):
        ledger.lost_in_power_cut("waiting", 6, 8)
    ledger.lost_in_power_cut("waiting", 0, 7)
    with pytest.raises(Violation, match="lacks 1 acknowledged"):
        ledger.check_history("waiting", "log", [])


def test_a_publish_without_an_answer_is_taken_once_to_be_repeated(ledger: Ledger) -> None:
    (number,) = ledger.sending("waiting", 1, key=b"k")
    ledger.send_again(number)
    assert [ledger.take_unanswered(), ledger.take_unanswered()] == [number, None]
