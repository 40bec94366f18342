"""Celery's prefetch limit, which holds for all queues of a channel together, as limits of single topics.

One queue gets the whole limit, and nsqd itself keeps to it. Several queues share what is free, and each may send at least
one message as long as any is free: nobody knows which of them has one. So as many as there are queues, less one, may
arrive in excess; these are given back at once, and the attempt does not count.

    limit 4, 1 held of queue a   ->   a: 1 + 2, b: 0 + 2
    limit 4, 3 held of queue a   ->   a: 3 + 1, b: 0 + 1     the second one to arrive is in excess
    limit 4, 4 held              ->   a: 4,     b: 0

With priorities this is different: see `stocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

UNLIMITED: Final = 250  # what a prefetch of 0 means; more would wait here in vain while other workers are idle


def allowances(limit: int, held: Sequence[int]) -> list[int]:
    """Return how many messages each queue may have in flight here, if it holds so many now."""
    if len(held) == 1:
        return [limit]
    free = max(limit - sum(held), 0)
    each = -(-free // len(held)) if held else 0
    return [count + each for count in held]


def stocks(limit: int, taken: Sequence[int]) -> list[int]:
    """Return how many messages each level of priority may have in flight here, if Celery has so many of it now.

    At least one of each level is in stock, so that the highest can be chosen when Celery may have another.
    """
    free = max(limit - sum(taken), 0)
    each = max(-(-free // len(taken)), 1) if taken else 0
    return [count + each for count in taken]


def is_in_excess(limit: int, held: Sequence[int]) -> bool:
    """Return whether more messages have arrived than Celery may have."""
    return len(held) > 1 and sum(held) > limit
