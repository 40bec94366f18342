"""How many of Hypothesis' examples a test tries that needs another number than all others."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """Return the number, or in scripts/test-quick a tenth of it, as for all other tests.

    @settings(max_examples=examples(40))
    """
    default = settings.default
    assert default is not None, "conftest.py loads a profile"
    return max(1, count * default.max_examples // 100)
