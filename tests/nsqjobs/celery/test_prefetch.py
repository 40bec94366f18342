from hypothesis import given
from hypothesis import strategies as st

from nsqjobs.celery.prefetch import allowances, is_in_excess, stocks

held_counts = st.lists(st.integers(0, 20), min_size=1, max_size=8)


def test_one_queue_has_the_whole_limit() -> None:
    assert allowances(4, [3]) == [4]
    assert not is_in_excess(4, [5])


def test_queues_share_what_is_free() -> None:
    assert allowances(4, [1, 0]) == [3, 2]
    assert allowances(4, [3, 0]) == [4, 1]
    assert allowances(4, [4, 0]) == [4, 0]


@given(st.integers(1, 50), held_counts)
def test_each_queue_may_send_while_anything_is_free(limit: int, held: list[int]) -> None:
    shares = allowances(limit, held)
    if sum(held) < limit:
        assert all(share > count for share, count in zip(shares, held, strict=True)) or len(held) == 1
        assert sum(shares) <= limit + len(held) - 1
    elif len(held) > 1:
        assert shares == held


def test_what_is_too_much_is_in_excess() -> None:
    assert is_in_excess(4, [3, 2])
    assert not is_in_excess(4, [2, 2])


@given(st.integers(1, 50), held_counts)
def test_one_of_each_priority_is_in_stock(limit: int, taken: list[int]) -> None:
    assert all(share > count for share, count in zip(stocks(limit, taken), taken, strict=True))
