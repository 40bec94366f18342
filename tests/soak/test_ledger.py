"""The ledger notices every broken promise, and excuses only what is allowed."""

from __future__ import annotations

import pytest

from tests.soak.ledger import GRACE, KEPT, Ledger, LostConnection


@pytest.fixture
def ledger() -> Ledger:
    return Ledger([("t", "c"), ("t", "d")])


def published(ledger: Ledger, count: int = 1, *, at: float = 0.0, delay: float = 0.0) -> list[int]:
    numbers = ledger.sending("t", count, at, delay)
    ledger.acknowledged("t", numbers)
    return numbers


def deliver(ledger: Ledger, number: int, at: float, *, attempts: int = 1, channel: str = "c", node: str = "") -> None:
    ledger.delivered("t", channel, b"%d ..." % number, attempts, at, node)


def finish(ledger: Ledger, number: int, at: float) -> None:
    for channel in ("c", "d"):
        deliver(ledger, number, at, channel=channel)
        ledger.finishing("t", channel, number, at)


def test_what_was_acknowledged_is_owed_by_each_channel_until_it_is_finished(ledger: Ledger) -> None:
    first, second = published(ledger, 2)
    assert ledger.waiting() == 4
    finish(ledger, first, 1)
    assert ledger.waiting() == 2
    ledger.close()
    assert ledger.wrong == {"lost": 2}
    assert f"message {second} on t/c is lost" in ledger.texts[0]


def test_what_was_refused_or_has_no_answer_is_not_lost(ledger: Ledger) -> None:
    ledger.refused("t", ledger.sending("t", 2, 0))
    unanswered = ledger.sending("t", 1, 0)
    ledger.unanswered(unanswered)
    ledger.close()
    assert not ledger.wrong
    deliver(ledger, unanswered[0], 1)  # it may have been stored
    assert not ledger.wrong


def test_what_comes_before_its_answer_is_not_owed_after_it(ledger: Ledger) -> None:
    numbers = ledger.sending("t", 1, 0)
    finish(ledger, numbers[0], 1)
    ledger.acknowledged("t", numbers)
    assert ledger.waiting() == 0


def test_deferred_message_that_comes_early_is_noticed(ledger: Ledger) -> None:
    (number,) = published(ledger, delay=5)
    deliver(ledger, number, 4.9)
    assert ledger.wrong == {"early": 1}


def test_how_late_the_latest_deferred_message_was(ledger: Ledger) -> None:
    (number,) = published(ledger, delay=5)
    deliver(ledger, number, 5.25)
    assert (ledger.latest, ledger.wrong) == (0.25, {})


def test_requeued_message_that_comes_early_is_noticed(ledger: Ledger) -> None:
    (number,) = published(ledger)
    deliver(ledger, number, 1)
    ledger.requeueing("t", "c", number, 5, 1)
    deliver(ledger, number, 5, attempts=2)
    assert ledger.wrong == {"early": 1}


@pytest.mark.parametrize(("killed_at", "forgiven"), [(2, True), (2 + GRACE + 0.1, False)])
def test_requeue_just_before_a_kill_may_not_have_been_heeded(ledger: Ledger, killed_at: float, forgiven: bool) -> None:
    (number,) = published(ledger)
    deliver(ledger, number, 1)
    ledger.requeueing("t", "c", number, 50, 2)
    ledger.interrupted(killed_at, killed_at + 1)
    deliver(ledger, number, killed_at + 2, attempts=2)
    assert (ledger.wrong == {}) == forgiven


@pytest.mark.parametrize(("killed_at", "forgiven"), [(2, True), (2 + GRACE + 0.1, False)])
def test_finished_message_may_come_again_only_if_it_was_just_before_a_kill(
    ledger: Ledger, killed_at: float, forgiven: bool
) -> None:
    (number,) = published(ledger)
    finish(ledger, number, 2)
    ledger.interrupted(killed_at, killed_at + 1)
    deliver(ledger, number, killed_at + 2, attempts=2)
    assert (ledger.wrong, ledger.counts["again"]) == (({}, 1) if forgiven else ({"again": 1}, 0))


def test_a_kill_of_another_node_forgives_nothing(ledger: Ledger) -> None:
    (number,) = published(ledger)
    finish(ledger, number, 2)
    ledger.interrupted(2, 3, "other:4150")
    deliver(ledger, number, 4, attempts=2, node="this:4150")
    assert ledger.wrong == {"again": 1}


def test_finished_message_that_comes_again_without_a_kill_is_noticed(ledger: Ledger) -> None:
    (number,) = published(ledger)
    finish(ledger, number, 2)
    deliver(ledger, number, 3, attempts=2)
    assert ledger.wrong == {"again": 1}


def test_attempts_have_to_go_up_and_after_a_kill_must_not_go_down(ledger: Ledger) -> None:
    (number,) = published(ledger)
    deliver(ledger, number, 1, attempts=2)
    deliver(ledger, number, 2, attempts=2)
    assert ledger.wrong == {"attempts": 1}
    ledger.interrupted(3, 4)
    deliver(ledger, number, 5, attempts=2)
    assert ledger.wrong == {"attempts": 1}
    ledger.interrupted(6, 7)
    deliver(ledger, number, 8, attempts=1)
    assert ledger.wrong == {"attempts": 2}


def test_message_that_nobody_sent_is_noticed(ledger: Ledger) -> None:
    deliver(ledger, 7, 1)
    assert ledger.wrong == {"unknown": 1}


def test_finished_messages_are_forgotten_in_the_end(ledger: Ledger) -> None:
    first, second = published(ledger, 2)
    finish(ledger, first, 1)
    finish(ledger, second, 2 + KEPT)
    deliver(ledger, first, 3 + KEPT, attempts=2)
    assert ledger.wrong == {"unknown": 1}


def test_nothing_may_come_while_a_channel_is_paused(ledger: Ledger) -> None:
    first, second = published(ledger, 2)
    ledger.pausing("t", "c", 10)
    deliver(ledger, first, 9)
    deliver(ledger, second, 11)
    assert ledger.wrong == {"while paused": 1}
    assert ledger.oldest(20) == 20  # on the other channel


def test_copies_are_owed_where_they_are_published() -> None:
    ledger = Ledger([("t", "c"), ("copies", "c")])
    numbers = published(ledger, 2)
    ledger.copying("copies", numbers, 1)
    ledger.acknowledged("copies", numbers)
    assert ledger.waiting() == 4
    ledger.delivered("copies", "c", b"%d" % numbers[0], 1, 2)
    ledger.finishing("copies", "c", numbers[0], 2)
    assert ledger.waiting() == 3


def test_what_comes_during_an_interruption_is_forgiven_before_its_end_is_known(ledger: Ledger) -> None:
    (number,) = published(ledger)
    finish(ledger, number, 2)
    interruption = ledger.interrupted(2.5)
    deliver(ledger, number, 4, attempts=2)
    interruption.until = 5
    assert (ledger.wrong, ledger.counts["again"]) == ({}, 1)


LOST = LostConnection(since=10, until=13, timeout=7)


def requeue(ledger: Ledger, number: int, at: float) -> None:
    deliver(ledger, number, at)
    ledger.requeueing("t", "c", number, 60, at)


@pytest.mark.parametrize(
    ("answered", "came", "early"),
    [
        pytest.param(12, 19.5, 0, id="when it has timed out"),
        pytest.param(12, 18.5, 1, id="before it can have timed out"),
        pytest.param(9, 19.5, 1, id="answered while the connection was sound"),
        pytest.param(14, 24, 1, id="answered on the next connection"),
    ],
)
def test_only_what_was_answered_on_a_lost_connection_may_time_out(
    ledger: Ledger, answered: float, came: float, early: int
) -> None:
    (number,) = published(ledger)
    requeue(ledger, number, answered)
    ledger.connection_lost("t", "c", LOST)
    deliver(ledger, number, came, attempts=2)
    assert ledger.wrong["early"] == early


@pytest.mark.parametrize(("came", "again"), [(19.5, 0), (18.5, 1)])
def test_finished_message_may_time_out_as_well(ledger: Ledger, came: float, again: int) -> None:
    (number,) = published(ledger)
    finish(ledger, number, 12)
    ledger.connection_lost("t", "c", LOST)
    deliver(ledger, number, came, attempts=2)
    assert ledger.wrong["again"] == again


def test_a_lost_connection_makes_no_publication_due(ledger: Ledger) -> None:
    (number,) = published(ledger, at=12, delay=60)
    ledger.connection_lost("t", "c", LOST)
    deliver(ledger, number, 30)
    assert ledger.wrong["early"] == 1


def test_a_lost_connection_is_one_of_its_channel(ledger: Ledger) -> None:
    (number,) = published(ledger)
    requeue(ledger, number, 12)
    ledger.connection_lost("t", "d", LOST)
    deliver(ledger, number, 19.5, attempts=2)
    assert ledger.wrong["early"] == 1
