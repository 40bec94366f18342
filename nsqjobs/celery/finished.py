"""Recognizing a message that comes again although Celery has acknowledged it, because its FIN was lost.

That may have two reasons, which the number of attempts tells apart:

    2 or more   the connection broke before nsqd had read the FIN
    1           nsqd was killed: of the last seconds, neither the delivery nor the FIN was on its disk

An operator who has a finished job run again begins a new count, too. So a first attempt is a repeat only if the job was
acknowledged shortly before a connection broke, or until it was there again.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import Final

_REMEMBERED: Final = 10_000  # tags
_UNSAFE: Final = 5.0  # seconds until a FIN is surely on disk; nsqd's --sync-timeout is 2


class Breaks:
    """When the connections of a subscription broke last, and when one was there again."""

    def __init__(self) -> None:
        self._broken_at = -inf
        self._back_at = -inf

    def broken(self, now: float) -> None:
        self._broken_at = now

    def connected(self, now: float) -> None:
        self._back_at = now

    def may_have_lost(self, at: float) -> bool:
        """Return whether a FIN of this time may be lost."""
        is_back = self._back_at > self._broken_at
        return at >= self._broken_at - _UNSAFE and (not is_back or at <= self._back_at)


class Finished:
    """The tags of the messages that were acknowledged last, and when that was."""

    def __init__(self) -> None:
        self._at: OrderedDict[str, float] = OrderedDict()

    def add(self, tag: str, now: float) -> None:
        self._at[tag] = now
        if len(self._at) > _REMEMBERED:
            self._at.popitem(last=False)

    def is_repeat(self, tag: str, attempts: int, breaks: Breaks) -> bool:
        """Return whether a message comes again for want of its FIN. It may be a first attempt once."""
        if tag not in self._at:
            return False
        if attempts > 1:
            return True
        return breaks.may_have_lost(self._at[tag]) and self._at.pop(tag) is not None
