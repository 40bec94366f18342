"""The impact orders what is wrong: problems first, then lost before stuck before growing before waiting, times size and speed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nsqadmin.cluster.model import Severity
from nsqadmin.diagnosis.impact import impact, together
from nsqadmin.diagnosis.rules import Effect

PROBLEM, WARNING, INFO = Severity.PROBLEM, Severity.WARNING, Severity.INFO

WORST_FIRST = [
    ("100 messages a second are lost", Effect.LOST, PROBLEM, 30_000, 100),
    ("a node with 75 channels is down", Effect.AWAY, PROBLEM, 10_000, 0),
    ("a million wait and grow by 500 a second", Effect.GROWING, PROBLEM, 1_000_000, 500),
    ("59,157 are stuck and grow by 20 a second", Effect.STUCK, PROBLEM, 59_157, 20),
    ("3 messages were lost", Effect.LOST, PROBLEM, 3, 0.01),
    ("50 wait without a consumer", Effect.STUCK, PROBLEM, 50, 0),
    ("50 wait and grow by 2 a second", Effect.GROWING, PROBLEM, 50, 2),
    ("50 wait where consumers fail", Effect.WAITING, PROBLEM, 50, 0),
    ("an empty channel where consumers fail", Effect.WAITING, PROBLEM, 0, 0),
    ("a million expire, and are buried, at 5,000 a second", Effect.LOST, WARNING, 1_000_000, 5_000),
    ("59,157 seem to be stuck and grow by 20 a second", Effect.STUCK, WARNING, 59_157, 20),
    ("50 wait in a paused channel", Effect.WAITING, WARNING, 50, 0),
    ("an empty channel is paused", Effect.WAITING, WARNING, 0, 0),
    ("a clock is wrong", Effect.NONE, WARNING, 0, 0),
    ("a million are deferred", Effect.NONE, INFO, 1_000_000, 0),
]


@pytest.mark.parametrize(("worse", "better"), list(pairwise(WORST_FIRST)), ids=lambda it: it[0])
def test_what_is_worse_comes_first(
    worse: tuple[str, Effect, Severity, float, float], better: tuple[str, Effect, Severity, float, float]
) -> None:
    def of(case: tuple[str, Effect, Severity, float, float]) -> float:
        _, effect, severity, messages, speed = case
        return impact(effect, severity, messages=messages, speed=speed)

    assert of(worse) > of(better)


def test_twice_as_much_is_one_step() -> None:
    once, twice = (impact(Effect.STUCK, PROBLEM, messages=it) for it in (1023, 2047))
    assert twice - once == pytest.approx(1.0)
    assert together([once, once]) == pytest.approx(once + 1.0)


def test_a_backlog_that_shrinks_is_no_less_than_one_that_stands_still() -> None:
    assert impact(Effect.STUCK, PROBLEM, messages=9, speed=-50) == impact(Effect.STUCK, PROBLEM, messages=9)


def test_thousands_of_great_impacts_are_no_overflow() -> None:
    assert together([1e9] * 10_000) == pytest.approx(1e9)
