"""How late something is, where other processes may keep the machine busy meanwhile.

What they take only ever adds to what a test measures. So the least of several measurements is nearest to how late the
daemon itself is. A daemon that is late by design is late in all of them, also one that looks at its timers every 100 ms, as
the original does: a measurement begins as soon as the message of the one before has come, which is just after such a look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MEASUREMENTS: Final = 10


def is_within(most: float, measure: Callable[[], float]) -> bool:
    """Measure until a result is below `most` seconds, and return whether one of them is."""
    return any(_shown(measure()) < most for _ in range(_MEASUREMENTS))


def _shown(seconds: float) -> float:
    print(f"{seconds:.3f} s")  # noqa: T201  # pytest shows it with a failure
    return seconds
