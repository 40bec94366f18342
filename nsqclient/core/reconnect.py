"""How long to wait before the next attempt to reach an nsqd."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqclient.core.config import Config

_STABLE: Final = 60.0  # seconds after which a connection counts as stable, and earlier failures are forgotten
_MOST_DOUBLINGS: Final = 30


class Reconnect:
    """Pauses from `first` seconds, doubling, up to `longest`.

    Each is a random part of that time, so that many clients don't reconnect at once.
    """

    def __init__(self, config: Config, random: Random, *, first: float = 0.5, longest: float = 60.0) -> None:
        self._fixed = config.lookupd_poll_interval if config.reconnect_delay == "fixed" else None
        self._first = first
        self._longest = longest
        self._random = random
        self._failures = 0

    def worked(self, since: float, until: float) -> None:
        """Record a connection that was open."""
        if until - since >= _STABLE:
            self._failures = 0

    def pause(self) -> float:
        """Return the seconds to wait."""
        if self._fixed is not None:
            return self._fixed
        most = min(self._longest, self._first * 2.0 ** min(self._failures, _MOST_DOUBLINGS))
        self._failures += 1
        return self._random.random() * most
