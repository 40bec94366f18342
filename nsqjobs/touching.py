"""When to touch messages whose jobs still run. The rooms wait on different loops, and this is what they do then."""

from __future__ import annotations

from math import inf
from typing import Final, Protocol

_LOOKS: Final = 8  # in the time after which nsqd takes a message back
_SOONEST: Final = 0.05  # seconds between two looks
_LATEST: Final = 1.0
_TOUCHED_AT: Final = 2 / 3  # of the time left: a machine that stands still may miss the moment


class Touchable(Protocol):
    """A message of nsqclient's, on whatever loop."""

    @property
    def received_at(self) -> float: ...
    @property
    def deadline(self) -> float: ...
    @property
    def hard_deadline(self) -> float: ...
    def touch(self) -> object: ...


class Touching:
    """The rule for all messages of a process. Some nsqds may take theirs back sooner: the shortest time counts."""

    def __init__(self) -> None:
        self._timeout = inf

    def arrived(self, message: Touchable) -> bool:
        """Take note of a new message. Return whether the next look has to come sooner than `pause` has said."""
        timeout = message.deadline - message.received_at
        is_shorter = timeout < self._timeout
        self._timeout = min(self._timeout, timeout)
        return is_shorter

    @property
    def pause(self) -> float:
        """The seconds until the next look at the messages."""
        return min(max(self._timeout / _LOOKS, _SOONEST), _LATEST)

    def touch_in_time(self, message: Touchable, now: float) -> bool:
        """Touch a message if a third of its time is over. Return False once nsqd grants no more time."""
        if now >= message.hard_deadline:
            return False
        if message.deadline - now < self._timeout * _TOUCHED_AT and message.deadline < message.hard_deadline:
            message.touch()
        return True
