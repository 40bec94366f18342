"""How long a request to a store may take before it is given up and repeated.

A request that hangs holds a thread until it is given up. If one of five servers hangs, and each request has half a minute,
soon all threads hang. So small requests get a few seconds, because a store that works answers them in much less.

But a store may be slow as a whole. If it needs eight seconds and each request is given up after five, no slot is ever
stored. So a name whose request has failed gets all the time at the next try, and so do all others while answers take long.

Large requests share the line, so how long one takes depends on the others. They get a few seconds only if the last ones have
taken less than a tenth of that, because no more than eight are under way. Without that, a request for a slot of 8 MiB that
hangs would keep these in memory for half a minute, and on a quick line there would soon be a gigabyte of them.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import Final

from nsqd.remote.pacing import LARGE

SHORT: Final = 5.0  # seconds
LONG: Final = (
    30.0  # a slot is at most 8 MiB, and 8 are under way: with less time, a slow line would never bring one over
)
_SLOW: Final = SHORT / 2  # seconds for an answer, from which on small requests get all the time
_LARGE_SLOW: Final = SHORT / 10  # the same for large ones
_FORGETS: Final = 0.9  # how much of the slowest answer's time still counts after the next answer
_MOST_FAILED: Final = 256


class TimeLimits:
    """Decides which requests of one store have little time. Any thread may call it."""

    def __init__(self) -> None:
        self._slowest = 0.0  # seconds, of the last small requests
        self._slowest_large = inf  # the same of large ones; inf: there was none
        self._failed: OrderedDict[str, None] = OrderedDict()  # names, oldest first

    def is_short(self, name: str, size: int) -> bool:
        """Return whether a request for this many bytes should be given up after `SHORT` instead of `LONG` seconds."""
        is_quick = self._slowest < _SLOW if size < LARGE else self._slowest_large < _LARGE_SLOW
        return is_quick and name not in self._failed

    def answered(self, size: int, seconds: float) -> None:
        if size < LARGE:
            self._slowest = max(seconds, self._slowest * _FORGETS)
        else:
            before = self._slowest_large if self._slowest_large < inf else 0.0
            self._slowest_large = max(seconds, before * _FORGETS)

    def failed(self, name: str) -> None:
        """Note that a request got no answer, in time or at all."""
        self._failed[name] = None
        if len(self._failed) > _MOST_FAILED:
            self._failed.popitem(last=False)  # in one step: in an outage, requests of several threads fail at once
