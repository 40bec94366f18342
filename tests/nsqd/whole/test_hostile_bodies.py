"""No hostile body keeps a parser busy for longer than allowed; hostile_bodies.py has the table."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pytest

from tests.nsqd.whole.hostile_bodies import Hostile, hostile_bodies

BUSY: Final = 3  # times slower than where the bounds were set; parsers without a bound took 5 to 800 times as long
REFERENCE: Final = 12.0  # milliseconds that `reference` took there
SPARE: Final = (
    2  # times, on a machine that is slower by itself, because it may be busy with something else a moment later
)
TRIES: Final = 3
# Other programs on the same core make each of its cycles slower, for seconds at a time; a parser without a bound stays slow.
PATIENCE: Final = 40.0


@pytest.mark.parametrize("hostile", list(hostile_bodies()), ids=lambda hostile: hostile.name)
def test_a_hostile_body_costs_no_more_than_it_may(hostile: Hostile) -> None:
    until = time.monotonic() + PATIENCE
    while not any(is_quick(hostile) for _ in range(TRIES)):
        assert time.monotonic() < until, (
            f"it takes more than {hostile.most * BUSY} ms, also for a machine as slow as this"
        )
        time.sleep(0.5)


def is_quick(hostile: Hostile) -> bool:
    took = milliseconds(hostile.work)
    return took < hostile.most * BUSY or took < hostile.most * SPARE * slowness()


def slowness() -> float:
    """Return how many times slower this machine is just now than the one where the bounds were set."""
    return milliseconds(reference) / REFERENCE


def reference() -> None:
    numbers = {}
    for number in range(100_000):
        numbers[number % 1000] = str(number)


def milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000
