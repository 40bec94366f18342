from __future__ import annotations

from random import Random

import pytest

from nsqd.broker.batch import Batch
from nsqd.broker.ephemeral_batches import EphemeralBatches
from nsqd.log.memory_log import MemoryLog
from tests.nsqd.log.batches import make_batch
from tests.support.log_settings import log_settings


def kept(*counts: int) -> EphemeralBatches:
    """Return batches with these numbers of messages; a negative number is a gap."""
    kept = EphemeralBatches(MemoryLog("t", log_settings()))
    sequence = 0
    for count in counts:
        if count > 0:
            kept.add(make_batch(sequence, [b"x"] * count))
        sequence += abs(count)
    return kept


def found(kept: EphemeralBatches, end: int) -> list[int]:
    return [sequence for sequence in range(end) if kept.find(sequence) is not None]


def test_batch_stays_until_all_of_it_is_let_go() -> None:
    it = kept(3, 2)
    it.release(0, 1)
    it.release(2, 4)
    assert found(it, 5) == [0, 1, 2, 3, 4]
    it.release(1, 2)
    assert found(it, 5) == [3, 4]
    it.release(4, 5)
    assert (it.messages, it.bytes) == (0, 0)


def test_batch_does_not_hold_those_behind_it() -> None:
    it = kept(1, 1, 1)
    it.release(1, 3)
    assert found(it, 3) == [0]


def test_unknown_messages_do_not_matter() -> None:
    it = kept(-2, 2, -2, 2)
    it.release(0, 3)
    assert it.messages == 3
    it.release(4, 20)
    assert found(it, 20) == [2, 3]


def test_reading_goes_on_at_what_is_kept_when_the_log_has_lost_more() -> None:
    log = MemoryLog("t", log_settings())
    log.first = log.tail = 9
    it = EphemeralBatches(log)
    it.add(make_batch(4, [b"x"] * 2))
    assert [it.next_readable(sequence) for sequence in (0, 4, 5, 6, 9)] == [4, 4, 5, 9, 9]


def test_any_order_of_letting_go_leaves_nothing() -> None:
    random = Random(1)
    for _ in range(50):
        counts = [random.randint(1, 5) for _ in range(200)]
        it = kept(*counts)
        left = list(range(sum(counts)))
        random.shuffle(left)
        while left:
            sequence = left.pop()
            batch = it.find(sequence)
            assert isinstance(batch, Batch)
            assert batch.base_sequence <= sequence < batch.end_sequence
            it.release(sequence, sequence + 1)
            assert it.messages == len(left)
        assert it.bytes == 0


@pytest.mark.parametrize(("size", "newest"), [(1, (1, 5)), (5, (1, 5)), (6, (2, 10)), (11, (3, 15)), (99, (5, 25))])
def test_the_newest_messages_of_so_many_bytes_are_found_across_batches(size: int, newest: tuple[int, int]) -> None:
    assert kept(2, 3).newest_within(size, 0, 5) == newest


def test_what_is_not_kept_has_no_bytes() -> None:
    assert kept(2, -3, 1).newest_within(6, 0, 6) == (5, 10)
