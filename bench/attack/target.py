"""What an attacker knows about its target, and the report that it prints at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Ports on loopback; 0 if the daemon does not listen there."""

    tcp: int
    http: int
    https: int = 0


# Runs until a moment of time.monotonic(), and returns a few words on how much it did.
Attack = Callable[[Target, float], str]
