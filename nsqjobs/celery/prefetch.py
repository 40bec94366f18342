"""Splits Celery's prefetch limit, which applies to all queues of a channel together, into limits for single topics.

A single queue gets the whole limit, and nsqd keeps it. Several queues share the free places, but while there is one,
each queue may send at least one message, because we can't know which of them has one. So one message too many may
arrive from every queue but one; these are given back at once, and the attempt doesn't count.

    limit 4, 1 held of queue a   ->   a: 1 + 2, b: 0 + 2
    limit 4, 3 held of queue a   ->   a: 3 + 1, b: 0 + 1     the second one to arrive is too many
    limit 4, 4 held              ->   a: 4,     b: 0

Priorities work differently: see `stocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

UNLIMITED: Final = 250  # for a prefetch of 0; more would only wait here while other workers are idle


def allowances(limit: int, held: Sequence[int]) -> list[int]:
    """Return how many messages each queue may have in flight here. `held` is how many it has now."""
    if len(held) == 1:
        return [limit]
    free = max(limit - sum(held), 0)
    each = -(-free // len(held)) if held else 0
    return [count + each for count in held]


def stocks(limit: int, taken: Sequence[int]) -> list[int]:
    """Return how many messages each priority may have in flight here, given how many of each Celery has now.

    We keep at least one of each priority in stock, so that Celery can get the highest one next.
    """
    free = max(limit - sum(taken), 0)
    each = max(-(-free // len(taken)), 1) if taken else 0
    return [count + each for count in taken]


def is_in_excess(limit: int, held: Sequence[int]) -> bool:
    """Return True if more messages have arrived than Celery may have."""
    return len(held) > 1 and sum(held) > limit
