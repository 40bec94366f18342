"""When to touch messages of running jobs. The libraries' folders wait on different loops, and share this rule."""

from __future__ import annotations

from math import inf
from typing import Final, Protocol

_LOOKS: Final = 8  # in one message timeout
_SOONEST: Final = 0.05  # seconds between two checks
_LATEST: Final = 1.0
_TOUCHED_AT: Final = 2 / 3  # of the time left: a machine that pauses may miss the moment


class Touchable(Protocol):
    """A message of nsqclient, on any loop."""

    @property
    def received_at(self) -> float: ...
    @property
    def deadline(self) -> float: ...
    @property
    def hard_deadline(self) -> float: ...
    def touch(self) -> object: ...


class Touching:
    """The rule for all messages of a process. If nsqds have different timeouts, the shortest counts."""

    def __init__(self) -> None:
        self._timeout = inf

    def arrived(self, message: Touchable) -> bool:
        """Record a new message. Return True if the next check has to come sooner than the last `pause`."""
        timeout = message.deadline - message.received_at
        is_shorter = timeout < self._timeout
        self._timeout = min(self._timeout, timeout)
        return is_shorter

    @property
    def pause(self) -> float:
        """The seconds until the next check."""
        return min(max(self._timeout / _LOOKS, _SOONEST), _LATEST)

    def touch_in_time(self, message: Touchable, now: float) -> bool:
        """Touch a message after a third of its time. Return False once nsqd grants no more time."""
        if now >= message.hard_deadline:
            return False
        if message.deadline - now < self._timeout * _TOUCHED_AT and message.deadline < message.hard_deadline:
            message.touch()
        return True
