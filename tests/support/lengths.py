"""Tests with two forms: a short one for each change, and a long one, which `scripts/test-long` runs.

    CYCLES = sized(short=3, long=17)

What a short form leaves out by chance is the same in each run in CI, so that a red run is about the change. Elsewhere
it is different each time.
"""

from __future__ import annotations

import os
from random import Random
from typing import Final, TypeVar

LONG: Final = "NSQ_TEST_LONG"  # the variable that asks for long forms
IS_LONG: Final = bool(os.environ.get(LONG))

_T = TypeVar("_T")


def sized(*, short: _T, long: _T) -> _T:
    return long if IS_LONG else short


def new_chance() -> Random:
    """Return where a short form gets its choice of what it does, the same each time in CI."""
    return Random(0 if os.environ.get("CI") else None)
