"""Which batches were published with a key, for a while: a publisher that did not hear the answer may try again.

The key lies in the batch's own record, so that a batch and the memory of it are one write; after a start they are known from
the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nsqd.broker.batch import Receipt

MOST_KEYS: Final = 1_000_000  # of one topic; beyond that the oldest are forgotten early

_SETTLED: Final = Receipt()
_SETTLED.settle()


class KeyMemory:
    """Times are of the wall clock, in nanoseconds. `known`: keys and times as the log has them, the oldest first."""

    def __init__(self, window: int, known: Iterable[tuple[bytes, int]] = (), *, most: int = MOST_KEYS) -> None:
        self._window = window
        self._most = most
        self._receipts: dict[bytes, tuple[int, Receipt]] = {key: (timestamp, _SETTLED) for key, timestamp in known}

    def __len__(self) -> int:
        return len(self._receipts)

    def find(self, key: bytes, timestamp: int) -> Receipt | None:
        """The receipt of what was published with this key."""
        found = self._receipts.get(key)
        return found[1] if found is not None and timestamp - found[0] < self._window else None

    def add(self, key: bytes, timestamp: int, receipt: Receipt) -> None:
        """From now on this is what the key stands for."""
        receipts = self._receipts
        receipts.pop(key, None)  # so that the dictionary stays in the order of times
        receipts[key] = (timestamp, receipt)
        while receipts:
            oldest = next(iter(receipts))
            if len(receipts) <= self._most and timestamp - receipts[oldest][0] < self._window:
                return
            del receipts[oldest]
