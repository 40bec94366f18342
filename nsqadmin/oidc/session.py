"""A session, and how long it holds.

A session holds for an hour after the provider has confirmed it. With a refresh token we ask every five minutes, so
that a user who was removed from a group loses its rights; without one, the user logs in again after the hour. If the
provider is away, the session goes on until its hour:

    confirmed ──── 5 min ────► due: ask the provider ──► confirmed again, with the groups of now
        │                           ├── it refuses: the session is over
        │                           └── no answer: try again soon
        └──────────────── 60 min without an answer ─────► over
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

CONFIRM_AFTER: Final = 300.0  # seconds
HOLDS_FOR: Final = 3600.0  # seconds after it was confirmed
_SKEW: Final = 300.0  # seconds by which the clock of another nsqadmin may be ahead


class State(Enum):
    CONFIRMED = auto()
    DUE = auto()  # valid, but the provider should be asked
    OVER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A user who has logged in. It travels in a cookie, so there may be older copies of it."""

    id: str  # also the nonce of the login's ID token
    subject: str  # the provider's name for the account, which never changes
    user: str
    groups: tuple[str, ...] = ()
    began: float  # Unix time
    confirmed: float  # Unix time
    version: int = 0  # grows with each refresh, so that of two copies we know the newer one
    refresh_token: str = ""

    def state(self, now: float, *, longest: float) -> State:
        """Return the state now. `longest` is the time between two logins, in seconds."""
        if now >= self.ends_at(longest) or self.confirmed > now + _SKEW:
            return State.OVER
        if self.refresh_token and now >= self.confirmed + CONFIRM_AFTER:
            return State.DUE
        return State.CONFIRMED

    def ends_at(self, longest: float) -> float:
        return min(self.confirmed + HOLDS_FOR, self.began + longest)

    def asks_at(self, longest: float) -> float:
        """Return when we ask the provider again, or when the session ends if there is nothing to ask with."""
        return (
            min(self.confirmed + CONFIRM_AFTER, self.ends_at(longest)) if self.refresh_token else self.ends_at(longest)
        )

    def dump(self) -> bytes:
        fields: list[Any] = [self.id, self.subject, self.user, self.groups, self.began, self.confirmed, self.version]
        return json.dumps([*fields, self.refresh_token], separators=(",", ":")).encode()


def load_session(data: bytes) -> Session | None:
    """Restore the output of `dump`; None if another version of nsqadmin has written it."""
    try:
        id, subject, user, groups, began, confirmed, version, refresh_token = json.loads(data)
        return Session(
            id=str(id),
            subject=str(subject),
            user=str(user),
            groups=tuple(map(str, groups)),
            began=float(began),
            confirmed=float(confirmed),
            version=int(version),
            refresh_token=str(refresh_token),
        )
    except (ValueError, TypeError):
        return None
