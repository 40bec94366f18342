"""Recognizes a redelivered message that Celery has acknowledged, because its FIN was lost.

There are two possible reasons, and the number of attempts shows which one it was:

    2 or more   the connection broke before nsqd had read the FIN
    1           nsqd was killed: neither the delivery nor the FIN had reached its disk

If an operator runs a finished job again, its attempts also start at 1. So a first attempt counts as a repeat only if
the job was acknowledged shortly before a connection broke, or before it was back.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import Final

_REMEMBERED: Final = 10_000  # tags
_UNSAFE: Final = 5.0  # seconds until a FIN is on disk for sure; nsqd's --sync-timeout is 2


class Breaks:
    """When a subscription's connections broke last, and when one was back."""

    def __init__(self) -> None:
        self._broken_at = -inf
        self._back_at = -inf

    def broken(self, now: float) -> None:
        self._broken_at = now

    def connected(self, now: float) -> None:
        self._back_at = now

    def may_have_lost(self, at: float) -> bool:
        """Return True if a FIN at this time may be lost."""
        is_back = self._back_at > self._broken_at
        return at >= self._broken_at - _UNSAFE and (not is_back or at <= self._back_at)


class Finished:
    """The tags of the last acknowledged messages, with times."""

    def __init__(self) -> None:
        self._at: OrderedDict[str, float] = OrderedDict()

    def add(self, tag: str, now: float) -> None:
        self._at[tag] = now
        if len(self._at) > _REMEMBERED:
            self._at.popitem(last=False)

    def is_repeat(self, tag: str, attempts: int, breaks: Breaks) -> bool:
        """Return True if a message is back because its FIN was lost. A first attempt counts as one only once."""
        if tag not in self._at:
            return False
        if attempts > 1:
            return True
        return breaks.may_have_lost(self._at[tag]) and self._at.pop(tag) is not None
