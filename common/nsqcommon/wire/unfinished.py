"""Limits the memory of all partly received bodies together, over all connections.

A peer may announce a body of 5 MB, send half of it and then wait. We keep that half until a deadline, perhaps for
minutes, and five hundred such peers take more than a gigabyte. A limit for each connection doesn't help, so we limit
the sum: beyond that, we give up the body that began first. A body that arrives at a normal speed is complete long
before newer bodies fill the limit. A body that its peer withholds is soon the oldest.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

__all__ = ["BodyHolder", "UnfinishedBodies"]


class BodyHolder(Protocol):
    def give_up_body(self) -> None:
        """Free the part of the body that has arrived. `hold` may call this even on the holder that called it."""


class UnfinishedBodies:
    """The partly received bodies of all connections. Together, they take at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self.total = 0  # bytes
        self._most = most
        self._sizes: OrderedDict[BodyHolder, int] = OrderedDict()  # the oldest body first

    def hold(self, holder: BodyHolder, size: int) -> None:
        """Record that `holder` now has `size` bytes of a body, and give up the oldest bodies if the sum is too large.

        Size 0 is the same as `release`. We never give up the only body, because the limit on a single body is enough.
        """
        if size == 0:
            self.release(holder)
            return
        sizes = self._sizes
        self.total += size - sizes.get(holder, 0)
        sizes[holder] = size
        while self.total > self._most and len(sizes) > 1:
            oldest, its_size = sizes.popitem(last=False)
            self.total -= its_size
            oldest.give_up_body()

    def release(self, holder: BodyHolder) -> None:
        """Record that the body is complete or `holder` has gone. Idempotent."""
        self.total -= self._sizes.pop(holder, 0)
