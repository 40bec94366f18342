"""What an attacker knows of its victim, and what it says when it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Ports on loopback; 0 where the daemon does not listen."""

    tcp: int
    http: int
    https: int = 0


# Returns when its time is up, a moment in time.monotonic(), with a few words on how much it did.
Attack = Callable[[Target, float], str]
