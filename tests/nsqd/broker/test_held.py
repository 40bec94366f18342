"""Held messages, compared with plain sets and lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from nsqd.broker.held import HeldMessages, HeldQueue


def held(*ranges: tuple[int, int]) -> HeldMessages:
    messages = HeldMessages()
    for start, end in ranges:
        messages.add(start, end)
    return messages


def test_nothing_is_held_at_first() -> None:
    messages = HeldMessages()
    assert (messages.total, messages.lowest(), 5 in messages, messages.has_news) == (0, None, False, False)
    assert not messages.first(3, 100)
    assert not messages.from_place(0)
    assert not list(messages.sequences())
    assert messages.take_news([]) == ([], [])


def test_held_messages_are_found_by_their_places() -> None:
    messages = held((3, 6), (8, 10))
    assert (messages.total, messages.lowest(), 5 in messages, 6 in messages) == (5, 3, True, False)
    assert list(messages.first(4, 100)) == [3, 4, 5, 8]
    assert list(messages.first(4, 5)) == [3, 4]
    assert list(messages.from_place(5)) == [5, 8, 9]
    assert messages.count_before(9) == 4
    assert list(messages.ranges()) == [(3, 6), (8, 10)]
    assert [messages.run_end(3, 100), messages.run_end(3, 5), messages.run_end(9, 100)] == [6, 5, 10]


def test_what_is_taken_out_is_no_longer_held() -> None:
    messages = held((3, 6))
    assert list(messages.take_out(BitMap64([2, 4]))) == [4]
    messages.deliver(5, 6)
    assert (list(messages.all()), messages.total) == ([3], 1)


def test_the_journal_is_told_what_was_held_and_delivered_since_the_last_time() -> None:
    messages = held((3, 6), (6, 8), (9, 12))
    messages.deliver(4, 7)
    assert messages.has_news
    assert messages.take_news([(5, 6), (20, 30)]) == ([(3, 8), (9, 12)], [4, 6])
    assert not messages.has_news
    messages.deliver(10, 11)
    assert messages.take_news([(10, 11)]) == ([], [])


def test_a_copy_of_all_of_them_does_not_change_with_them() -> None:
    messages = held((3, 6))
    copied = messages.all()
    messages.deliver(3, 4)
    messages.take_out(BitMap64([5]))
    assert list(copied) == [3, 4, 5]


@given(
    st.lists(st.one_of(st.integers(1, 300), st.integers(1, 1 << 45)), max_size=60),
    st.lists(st.booleans(), max_size=80),
)
def test_a_queue_has_the_order_of_the_log(distances: list[int], pops: list[bool]) -> None:
    queue, model, sequence = HeldQueue(), list[int](), 0
    steps = iter(distances)
    for is_pop in pops:
        if is_pop and model:
            queue.pop()
            model.pop(0)
        elif (distance := next(steps, None)) is not None:
            sequence += distance
            queue.append(sequence)
            model.append(sequence)
        assert queue.count == len(model)
        if model:
            assert queue.first == model[0]


def test_a_long_queue_costs_a_byte_or_two_for_each_message() -> None:
    queue = HeldQueue()
    for number in range(100_000):
        queue.append(number * 100)
    assert queue._packed is not None
    assert len(queue._packed) < 100_000
    for number in range(99_000):
        assert queue.first == number * 100
        queue.pop()
    assert len(queue._packed) < 10_000
