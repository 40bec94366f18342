"""What `scripts/test-quick` tries less of, as with Hypothesis' examples (examples.py).

LIVES = unless_quick(range(25), quick=range(5))
"""

from __future__ import annotations

import os
from typing import Final, TypeVar

VARIABLE: Final = "NSQ_TEST_QUICK"  # scripts/test-quick and scripts/test-pythons set it

_T = TypeVar("_T")


def unless_quick(usual: _T, *, quick: _T) -> _T:
    return quick if os.environ.get(VARIABLE) else usual
