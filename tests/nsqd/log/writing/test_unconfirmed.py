"""How far a log is confirmed, also when the store is away for long."""

from __future__ import annotations

from nsqd.broker.batch import Receipt
from nsqd.log.writing.unconfirmed import MOST_MARKS, Unconfirmed

START = (0, 0, 0)


def end_at(sequence: int) -> tuple[int, int, int]:
    return 0, 10 * sequence, sequence


def test_the_checkpoint_is_the_end_of_the_last_write_that_is_confirmed_as_a_whole() -> None:
    unconfirmed = Unconfirmed(START)
    for position in (10, 20, 30):
        unconfirmed.written(position, end_at(position), [])
    assert not unconfirmed.confirmed(9)
    assert unconfirmed.checkpoint == START
    assert unconfirmed.confirmed(29)
    assert unconfirmed.checkpoint == end_at(20)
    assert not unconfirmed.is_empty
    assert unconfirmed.confirmed(30)
    assert (unconfirmed.checkpoint, unconfirmed.is_empty) == (end_at(30), True)


def test_each_publisher_is_answered_at_its_own_change_even_if_marks_are_joined() -> None:
    unconfirmed = Unconfirmed(START)
    receipts = [Receipt() for _ in range(MOST_MARKS + 3)]
    for position, receipt in enumerate(receipts, 1):
        unconfirmed.written(position, end_at(position), [receipt])
    for position, receipt in enumerate(receipts, 1):
        assert not receipt.settled
        unconfirmed.confirmed(position)
        assert receipt.settled
        assert unconfirmed.checkpoint <= end_at(position)
    assert unconfirmed.checkpoint == end_at(len(receipts))


def test_the_same_change_is_confirmed_once() -> None:
    unconfirmed = Unconfirmed(START)
    unconfirmed.written(1, end_at(1), [])
    assert unconfirmed.confirmed(1)
    assert not unconfirmed.confirmed(1)


def test_a_repeat_is_answered_when_everything_is_confirmed_that_was_written_by_then() -> None:
    unconfirmed, repeat = Unconfirmed(START), Receipt()
    unconfirmed.written(10, end_at(10), [])
    unconfirmed.written(20, end_at(20), [])
    unconfirmed.expect(repeat)
    unconfirmed.written(30, end_at(30), [])
    unconfirmed.confirmed(19)
    assert (repeat.settled, unconfirmed.waiting) == (False, 1)
    unconfirmed.confirmed(20)
    assert (repeat.settled, repeat.error) == (True, None)
