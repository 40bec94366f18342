"""How many of Hypothesis' examples a test tries."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

from tests.support.lengths import sized

# Bugs that a hundred find are found by the first fifty: bench/results/suite/rules-moved.tsv.
USUAL: Final = sized(short=50, long=100)
QUICK: Final = USUAL // 5


def examples(count: int) -> int:
    """Return the number for a test that needs another than USUAL, or in scripts/test-quick a fifth of it.

    @settings(max_examples=examples(40))
    """
    default = settings.default
    assert default is not None, "conftest.py loads a profile"
    return max(1, count * default.max_examples // USUAL)
