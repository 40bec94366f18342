"""A short form of `python -m tests.simulation group-kills`, and does its ledger notice?"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.planted.planting import bugs_for, with_bug
from tests.simulation.group_kills import GroupKills
from tests.simulation.group_ledger import FORGETS, TIMES_OUT, GroupLedger
from tests.simulation.killing import UNTIL_FOUND
from tests.simulation.promise import Violation
from tests.support.lengths import sized

KILLS = sized(short=3, long=50)


@pytest.mark.slow
def test_kills_break_neither_order_nor_limit_and_lose_nothing(tmp_path: Path) -> None:
    run = GroupKills()
    run.run(tmp_path, kills=KILLS, seed=1)
    assert run.ordered.counts["requeued"] > 0
    assert run.ordered.counts["buried"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("bug", bugs_for("group kills"))
def test_a_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    with pytest.raises(AssertionError, match=r"Violation.*ordered: message .* came, and \d+ is not finished"):
        GroupKills().run(tmp_path, kills=UNTIL_FOUND, seed=1, environ=with_bug(bug))


# Does the ledger notice?


class Told:
    """A ledger that hears of messages of one group."""

    def __init__(self, *, limit: int | None = TIMES_OUT, is_ordered: bool = True, count: int = 4) -> None:
        self.ledger = GroupLedger("c", limit=limit, is_ordered=is_ordered)
        self.names = self.ledger.sending(["a"] * count)
        self.ledger.acknowledged(self.names)

    def arrives(self, number: int, attempts: int = 1) -> None:
        self.ledger.arrived(self.names[number], attempts)

    def handles(self, *numbers: int) -> None:
        for number in numbers:
            self.arrives(number)
            self.ledger.finishing(self.names[number])

    def buries(self, number: int) -> None:
        self.arrives(number)
        self.ledger.burying(self.names[number])

    def is_killed(self, after: float = 0.0) -> None:
        self.ledger.ended(time.monotonic() + after)


def test_messages_in_order_are_right_and_the_last_one_is_left() -> None:
    told = Told()
    told.handles(0, 1, 2)
    assert told.ledger.left() == [("a", 3)]


def test_a_message_before_an_earlier_one_is_noticed() -> None:
    told = Told()
    told.handles(0)
    with pytest.raises(Violation, match=r"\('a', 2\) came, and 1 is not finished"):
        told.arrives(2)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_message_before_a_requeued_one_is_noticed(restarts: bool) -> None:
    told = Told()
    told.arrives(0)
    told.ledger.requeueing(told.names[0])
    if restarts:
        told.is_killed()
    with pytest.raises(Violation, match=r"\('a', 1\) came, and 0 is not finished"):
        told.arrives(1)


def test_one_that_was_perhaps_never_stored_is_not_waited_for() -> None:
    told = Told(count=1)
    told.ledger.sending(["a"])
    told.is_killed()
    told.names += [("a", 1), *told.ledger.sending(["a"])]
    told.handles(0, 2)


def test_a_late_copy_of_what_timed_out_is_no_violation() -> None:
    told = Told()
    told.arrives(0, attempts=2)
    told.ledger.finishing(told.names[0])
    told.arrives(1)
    told.arrives(0, attempts=1)


def test_a_group_may_go_back_after_a_kill_and_has_to_go_on_from_there() -> None:
    told = Told()
    told.handles(0, 1)
    told.is_killed()
    told.handles(0)
    with pytest.raises(Violation, match=r"\('a', 2\) came, and 1 is not finished"):
        told.arrives(2)


def test_going_back_without_a_kill_is_noticed() -> None:
    told = Told()
    told.handles(0, 1, 2)
    with pytest.raises(Violation, match=r"\('a', 1\) came after 2"):
        told.arrives(1, attempts=2)


def test_a_finish_long_before_the_kill_is_not_forgotten() -> None:
    told = Told()
    told.handles(0)
    told.ledger.are_gone([told.names[0]])
    told.is_killed(after=FORGETS + 1)
    with pytest.raises(Violation, match=r"came again, though finished 4\.\d\d\d s before the kill"):
        told.arrives(0)


def test_a_buried_message_holds_up_nothing_and_may_come_after_later_ones_if_it_is_kicked() -> None:
    told = Told()
    told.handles(0)
    told.buries(1)
    told.handles(2)
    told.ledger.kicking_all()
    told.handles(1, 3)
    assert not told.ledger.left()


def test_one_that_was_not_kicked_may_not() -> None:
    told = Told()
    told.buries(0)
    told.handles(1)
    with pytest.raises(Violation, match=r"\('a', 0\) came after 1"):
        told.arrives(0, attempts=2)


def test_too_many_in_flight_are_noticed() -> None:
    told = Told(limit=2, is_ordered=False)
    told.handles(0)
    told.arrives(3)
    told.arrives(1)
    with pytest.raises(Violation, match="in flight, 2 may"):
        told.arrives(2)
