"""Bodies that have arrived in part: a bound on the memory that they use together, over all connections.

A peer that announces a body of 5 MB, sends half of it and then waits keeps that half in our memory until a deadline,
which may take minutes; five hundred such peers keep more than a gigabyte. No bound on a single connection helps against
that, so their sum is bounded: beyond it, the body that began first is given up. A body that arrives at any ordinary
speed is complete long before that much has begun after it; a body that is being withheld is among the oldest.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

__all__ = ["BodyHolder", "UnfinishedBodies"]


class BodyHolder(Protocol):
    def give_up_body(self) -> None:
        """Free the part of the body that has arrived. Called from within `hold`, perhaps for its own caller."""


class UnfinishedBodies:
    """The bodies of all connections that have arrived in part, `most` bytes at most."""

    def __init__(self, most: int) -> None:
        self.total = 0  # bytes
        self._most = most
        self._sizes: OrderedDict[BodyHolder, int] = OrderedDict()  # in the order in which the bodies began

    def hold(self, holder: BodyHolder, size: int) -> None:
        """Note that `holder` has `size` bytes of a body by now, 0: none. Give up the oldest bodies if the sum is too large.

        A body that is the only one is never given up: its own limit applies.
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
        """Note that the body is complete or that `holder` is gone. Idempotent."""
        self.total -= self._sizes.pop(holder, 0)
