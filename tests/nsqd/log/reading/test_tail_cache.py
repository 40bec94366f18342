from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsqd.broker.batch import Batch
from nsqd.log.reading.tail_cache import BATCH_OVERHEAD, TailCache
from tests.nsqd.log.batches import batch_runs, make_batch


def cache_with(run: list[Batch], *, most_messages: int = 1000, most_bytes: int = 1 << 20) -> TailCache:
    cache = TailCache(run[0].base_sequence, most_messages=most_messages, most_bytes=most_bytes)
    for batch in run:
        cache.add(batch)
    return cache


@given(batch_runs(first=10), st.integers(0, 200))
def test_every_sequence_in_it_is_found_and_no_other(run: list[Batch], sequence: int) -> None:
    cache = cache_with(run)
    expected = [batch for batch in run if batch.base_sequence <= sequence < batch.end_sequence]
    assert cache.find(sequence) is (expected[0] if expected else None)


@given(batch_runs(), st.integers(0, 40), st.integers(0, 4000))
def test_oldest_go_first_until_both_bounds_are_kept(run: list[Batch], messages: int, size: int) -> None:
    cache = cache_with(run, most_messages=messages, most_bytes=size)
    cache.shrink()
    left = [batch for batch in run if batch.base_sequence >= cache.start]
    assert sum(batch.count for batch in left) == cache.messages <= messages
    assert sum(len(batch.payload) + BATCH_OVERHEAD for batch in left) == cache.bytes <= size
    one_more = [batch for batch in run if batch.base_sequence < cache.start][-1:]
    assert not one_more or not cache.has_room(one_more[0].count, len(one_more[0].payload) + BATCH_OVERHEAD)


def test_start_is_the_tail_when_nothing_is_left() -> None:
    cache = cache_with([make_batch(0, [b"a", b"b"])])
    cache.forget_before(2)
    assert (cache.start, cache.messages, cache.bytes) == (2, 0, 0)


def test_batch_that_is_needed_in_part_stays() -> None:
    cache = cache_with([make_batch(0, [b"a"]), make_batch(1, [b"b", b"c"])])
    cache.forget_before(2)
    assert cache.start == 1
    assert cache.find(2) is not None


def test_what_is_taken_back_is_not_found() -> None:
    cache = cache_with([make_batch(0, [b"a"]), make_batch(1, [b"b"]), make_batch(2, [b"c"])])
    cache.forget_from(1)
    assert cache.find(0) is not None
    assert cache.find(1) is None
    assert cache.messages == 1
