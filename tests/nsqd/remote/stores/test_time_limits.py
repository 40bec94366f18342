"""Requests that hang are given up soon, unless that could keep a slow store from ever answering."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from nsqd.remote.pacing import LARGE
from nsqd.remote.stores.time_limits import SHORT, TimeLimits


def test_a_small_request_has_little_time_and_a_large_one_has_more() -> None:
    limits = TimeLimits()
    assert limits.is_short("a", LARGE - 1)
    assert not limits.is_short("a", LARGE)


def test_a_name_whose_request_has_failed_has_more_time() -> None:
    limits = TimeLimits()
    limits.failed("a")
    assert (limits.is_short("a", 1), limits.is_short("b", 1)) == (False, True)


def test_all_names_have_more_time_while_answers_take_long() -> None:
    limits = TimeLimits()
    limits.answered(1, SHORT)
    assert not limits.is_short("a", 1)
    for _ in range(20):
        limits.answered(1, 0.01)
    assert limits.is_short("a", 1)


def test_large_requests_that_take_long_do_not_make_a_store_slow() -> None:
    limits = TimeLimits()
    limits.answered(LARGE, 20.0)
    assert limits.is_short("a", 1)


def test_large_requests_have_little_time_on_a_quick_line() -> None:
    """Each one that hangs keeps its bytes in memory, although another one has stored the slot long ago."""
    limits = TimeLimits()
    limits.answered(LARGE, SHORT / 20)
    assert limits.is_short("a", LARGE)
    limits.failed("a")
    assert not limits.is_short("a", LARGE)
    limits.answered(LARGE, SHORT / 4)  # so that eight at the same time would need more than that
    assert not limits.is_short("b", LARGE)
    limits.answered(1, 0.01)
    assert not limits.is_short("b", LARGE)


def test_names_of_long_ago_are_forgotten() -> None:
    limits = TimeLimits()
    for number in range(1000):
        limits.failed(str(number))
    assert limits.is_short("0", 1)
    assert not limits.is_short("999", 1)


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
def test_requests_of_several_threads_may_fail_at_the_same_time() -> None:
    limits = TimeLimits()

    def fail(thread: int) -> None:
        for number in range(10_000):
            limits.failed(f"{thread}-{number}")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(fail, range(8)))  # raises what a thread has raised
