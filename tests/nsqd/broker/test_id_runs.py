"""Where the messages of ids lie."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from nsqd.broker.id_runs import DeferredIds
from tests.support.node import Node
from tests.support.recalling import recalled

DELAY = 3_600_000
SIZED = b"\0\0\0\1x"


def always(start: int, end: int) -> bool:
    return True


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 3)), max_size=40),
    st.integers(0, 1 << 63),
)
def test_each_id_leads_to_its_own_message_and_no_other_id_to_any(
    batches: list[tuple[int, int, int]], first: int
) -> None:
    """Before each batch, other topics get messages, and this one gets messages without a delay."""
    ids, there, sequence, message_id = DeferredIds(), dict[int, int](), 0, first
    for elsewhere, at_once, count in batches:
        message_id += elsewhere
        here = {message_id + n: sequence + n for n in range(at_once)}
        sequence += at_once
        message_id += at_once
        ids.add(message_id, sequence, count, always)
        there |= {message_id + n: sequence + n for n in range(count)}
        assert all(ids.find(one) in (None, place) for one, place in here.items())
        there |= here
        sequence += count
        message_id += count
    for one in range(first - 1, message_id + 1):
        assert ids.find(one) in (None, there.get(one))
    starts = accumulate((elsewhere + at_once + count for elsewhere, at_once, count in batches), initial=first)
    deferred = [start + it[0] + it[1] for start, it in zip(starts, batches, strict=False)]
    assert all(ids.find(one) == there[one] for one in deferred)


def test_a_topic_that_is_published_to_alone_has_one_run() -> None:
    ids = DeferredIds()
    for number in range(10_000):
        ids.add(500 + number, number, 1, always)
    assert (len(ids), ids.find(500), ids.find(10_499), ids.find(10_500)) == (1, 0, 9_999, None)


def test_runs_of_which_nothing_waits_are_dropped() -> None:
    ids, first_waiting = DeferredIds(), 0

    def waits(start: int, end: int) -> bool:
        return start < 5 or end > first_waiting

    for number in range(10_000):
        first_waiting = number - 100
        ids.add(2 * number, number, 1, waits)
        assert len(ids) <= 3 * 106 + 64
    assert [ids.find(2 * number) for number in (0, 4, 9_900, 9_999)] == [0, 4, 9_900, 9_999]
    assert ids.find(2 * 5_000) is None


def test_whoever_adds_one_looks_at_a_few_of_the_others() -> None:
    ids, looks, most, number = DeferredIds(), 0, 0, 0

    def waits(start: int, end: int) -> bool:
        nonlocal looks
        looks += 1
        return start % 3 > 0 or start == number

    for number in range(5_000):
        looks = 0
        ids.add(2 * number, number, 1, waits)
        most = max(most, looks)
        assert ids.find(2 * number) == number
    assert most <= 4
    assert [ids.find(2 * number) for number in range(5_000) if number % 3] == [it for it in range(5_000) if it % 3]


def test_a_topic_knows_where_its_deferred_messages_lie() -> None:
    node = Node()
    topic, other = node.broker.topic("t"), node.broker.topic("other")
    topic.channel("c")
    topic.publish(SIZED, (0, 5))
    node.turn()
    batch = node.store.logs["t"].batch_at(0)
    assert batch is not None
    first = batch.base_id + 1
    for number in range(5):
        topic.publish(SIZED, (0, 5), DELAY if number != 2 else 0)
        node.turn()
        other.publish(SIZED, (0, 5))
        node.turn()
    assert [topic.deferred_sequence(first + 2 * number) for number in range(6)] == [1, 2, None, 4, 5, None]
    assert [topic.deferred_sequence(first + 2 * number + 1) for number in range(5)] == [None] * 5
    recalled(topic, 2, 3)
    assert topic.deferred_sequence(first + 2) is None, "it no longer waits, so the log tells"
