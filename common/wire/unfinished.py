"""Bodies of which a part has come: how much memory they hold together, over all connections.

Whoever announces a body of 5 MB, sends half of it and then waits keeps that half in our memory until a deadline comes, which may
take minutes, and five hundred of them keep more than a gigabyte. No bound on a single connection helps against that, so there
is one on their sum: beyond it, the body that began first is given up. A body that arrives at any ordinary speed is whole long
before so much has begun after it; a body that is being withheld is among the oldest.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

__all__ = ["Holder", "UnfinishedBodies"]


class Holder(Protocol):
    def give_up_body(self) -> None:
        """Let go of what has come of the body. Called from within `hold`, perhaps by the holder itself."""


class UnfinishedBodies:
    def __init__(self, most: int) -> None:
        self.total = 0  # bytes
        self._most = most
        self._sizes: OrderedDict[Holder, int] = OrderedDict()  # in the order in which they began

    def hold(self, holder: Holder, size: int) -> None:
        """Note that `holder` has `size` bytes of a body by now. One that is alone is never given up: it has its own limit."""
        sizes = self._sizes
        self.total += size - sizes.get(holder, 0)
        sizes[holder] = size
        while self.total > self._most and len(sizes) > 1:
            oldest, its_size = sizes.popitem(last=False)
            self.total -= its_size
            oldest.give_up_body()

    def release(self, holder: Holder) -> None:
        """Note that the body is whole, or that `holder` is gone. Idempotent."""
        self.total -= self._sizes.pop(holder, 0)
