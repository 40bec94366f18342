"""Which batches were published with a key, for a while: a publisher that did not hear the answer may try again.

HTTP gives the key with `/mpub?key=`, and `--idempotence-window` says for how long it is remembered. The key lies in the
batch's own record, so that the batch and its key are saved by one write. After a start, the keys are known from the
log (nsqd/log/recovery/keys.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nsqd.broker.batch import Receipt

MOST_KEYS: Final = 1_000_000  # of one topic; if there are more, the oldest are forgotten early

_SETTLED: Final = Receipt()  # of every key that a start has found: its batch is in the log
_SETTLED.settle()


class KeyMemory:
    """The receipts of recent keys. Times are of the wall clock, in nanoseconds.

    `known`: the keys that the log has, with their times, the oldest first.
    """

    def __init__(self, window: int, known: Iterable[tuple[bytes, int]] = (), *, most: int = MOST_KEYS) -> None:
        self._window = window
        self._most = most
        self._receipts: dict[bytes, tuple[int, Receipt]] = {key: (timestamp, _SETTLED) for key, timestamp in known}

    def __len__(self) -> int:
        return len(self._receipts)

    def find(self, key: bytes, timestamp: int) -> Receipt | None:
        """Return the receipt of the batch that was published with this key; None: the key is unknown or too old."""
        found = self._receipts.get(key)
        return found[1] if found is not None and timestamp - found[0] < self._window else None

    def add(self, key: bytes, timestamp: int, receipt: Receipt) -> None:
        """Remember the receipt of this key from now on, and forget keys that are too old or too many."""
        receipts = self._receipts
        receipts.pop(key, None)  # so that the dictionary stays in the order of times
        receipts[key] = (timestamp, receipt)
        while receipts:
            oldest = next(iter(receipts))
            if len(receipts) <= self._most and timestamp - receipts[oldest][0] < self._window:
                return
            del receipts[oldest]
