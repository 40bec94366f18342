"""Backoff: levels, waits, single tries; and that it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqclient.core.backoff import Backoff, BackoffStep, Signal


def backoff(strategy: object = "exponential", *, multiplier: float = 0.1, longest: float = 1.0) -> Backoff:
    return Backoff(strategy, multiplier=multiplier, longest=longest, random=lambda: 0.5)  # type: ignore[arg-type]


def test_levels_go_up_until_the_next_would_be_too_long_and_down_one_by_one() -> None:
    it, now, pauses = backoff(), 0.0, []
    for signal in [Signal.FAILED] * 5 + [Signal.SUCCEEDED] * 2:
        assert it.signal(signal, now) is BackoffStep.WAIT
        assert it.until is not None
        pauses.append((it.level, round(it.until - now, 6)))
        now = it.until
        it.tested(now, has_begun=True)
    assert pauses == [(1, 0.2), (2, 0.4), (3, 0.8), (3, 0.8), (3, 0.8), (2, 0.4), (1, 0.2)]
    assert it.signal(Signal.SUCCEEDED, now) is BackoffStep.END
    assert not it.active


def test_while_it_waits_answers_mean_nothing() -> None:
    it = backoff()
    it.signal(Signal.FAILED, 0.0)
    assert [it.signal(signal, 0.1) for signal in Signal] == [BackoffStep.NOTHING] * 3
    assert (it.level, it.until) == (1, 0.2)


def test_neither_success_nor_failure_waits_again_on_the_same_level() -> None:
    it = backoff()
    assert it.signal(Signal.NEITHER, 0.0) is BackoffStep.NOTHING
    it.signal(Signal.FAILED, 0.0)
    it.tested(0.2, has_begun=True)
    assert it.signal(Signal.NEITHER, 1.0) is BackoffStep.WAIT
    assert (it.level, it.until) == (1, 1.2)


def test_nobody_to_test_is_asked_for_again_a_second_later() -> None:
    it = backoff()
    it.signal(Signal.FAILED, 0.0)
    it.tested(0.2, has_begun=False)
    assert (it.level, it.until) == (1, 1.2)


@pytest.mark.parametrize("settings", [{"longest": 0}, {"multiplier": 1.0, "longest": 1.9}])
def test_no_backoff(settings: dict[str, float]) -> None:
    it = backoff(**settings)
    assert it.signal(Signal.FAILED, 0.0) is BackoffStep.NOTHING
    assert not it.active


def test_strategies() -> None:
    assert backoff("none").signal(Signal.FAILED, 0.0) is BackoffStep.NOTHING
    jitter, own = backoff("full_jitter"), backoff(lambda level: level * 0.3)
    jitter.signal(Signal.FAILED, 0.0)
    own.signal(Signal.FAILED, 0.0)
    assert (jitter.pause, own.pause) == (0.1, 0.3)


def test_pauses_of_nothing_may_come_as_often_as_they_like() -> None:
    it = Backoff("exponential", multiplier=0.0, longest=1.0, random=lambda: 0.5)
    for _ in range(1100):
        it.signal(Signal.FAILED, 0.0)
        it.tested(0.0, has_begun=True)
    assert it.pause == 0


@given(
    st.lists(st.sampled_from(list(Signal)), max_size=200),
    st.floats(0.001, 10),
    st.floats(0, 100),
    st.sampled_from(["exponential", "full_jitter", "none"]),
    st.randoms(use_true_random=False),
)
def test_it_ends(signals: list[Signal], multiplier: float, longest: float, strategy: str, random: object) -> None:
    """Whatever has happened, as many successes as there are levels end it, and no wait is too long."""
    it = Backoff(strategy, multiplier=multiplier, longest=longest, random=random.random)  # type: ignore[arg-type, attr-defined]
    now = 0.0

    def after_waiting() -> None:
        nonlocal now
        if it.until is not None:
            assert it.pause <= longest
            assert it.until == now + it.pause
            now = it.until
            it.tested(now, has_begun=True)

    for signal in signals:
        it.signal(signal, now)
        after_waiting()
    for _ in range(it.level):
        it.signal(Signal.SUCCEEDED, now)
        after_waiting()
    assert not it.active
