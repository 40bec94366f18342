"""The outbox of one receiver: the posts that wait for it, and the decisions about failed tries. A core.

A post waits until the receiver has accepted it, has refused it for good, or has failed for `RETRY_FOR` seconds. Then the
next one follows, so the posts arrive in the order of their changes. Of an incident at most one post waits: a newer one
takes its place, with the kind that fits. For example, if an incident opens and gets worse while the receiver is away,
the receiver gets one "opened" with the latest severity.

If `MOST_WAITING` incidents wait, the oldest post is dropped for a new one; `dropped` counts these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nsqadmin.diagnosis.incident import ChangeKind

if TYPE_CHECKING:
    from nsqadmin.webhook.post import Post

MOST_WAITING: Final = 1000  # posts
RETRY_FOR: Final = 1800.0  # seconds since the first try of a post
_FIRST_PAUSE: Final = 1.0  # seconds; doubled after each failed try
_LONGEST_PAUSE: Final = 60.0
_RETRIED: Final = frozenset((408, 425, 429))  # refusals that may pass
_OK: Final = range(200, 300)
_REDIRECTS: Final = range(300, 400)
_REFUSALS: Final = range(400, 500)


class Outcome(StrEnum):
    """The end of a try."""

    SENT = "sent"
    RETRY = "retry"
    FAILED = "failed"  # given up: refused, or tried for too long


@dataclass(slots=True)
class _Try:
    post: Post
    began: float | None = None  # when it was tried first
    pause: float = _FIRST_PAUSE


class Outbox:
    def __init__(self, random: Callable[[], float]) -> None:
        """`random()` returns a number from 0 to 1, and spreads the retries of several nsqadmins."""
        self.sent = self.failed = self.dropped = 0
        self.not_before = 0.0  # earliest time of the next try
        self.is_failing = False  # the last try failed
        self._random = random
        self._waiting: dict[str, _Try] = {}  # by the incident's key, oldest first
        self._head: _Try | None = None  # the post that is tried now

    def __len__(self) -> int:
        return len(self._waiting) + (self._head is not None)

    @property
    def is_trying(self) -> bool:
        return self._head is not None

    @property
    def posts(self) -> tuple[Post, ...]:
        """All posts that wait, oldest first, with the one that is tried now."""
        head = (self._head.post,) if self._head is not None else ()
        return (*head, *(it.post for it in self._waiting.values()))

    def add(self, post: Post) -> bool:
        """Add a post. Return False if the oldest one was dropped for it."""
        if (older := self._waiting.get(post.key)) is not None:
            older.post = joined(older.post, post)
            return True
        is_full = len(self._waiting) >= MOST_WAITING
        if is_full:
            del self._waiting[next(iter(self._waiting))]
            self.dropped += 1
        self._waiting[post.key] = _Try(post)
        return not is_full

    def take(self) -> Post | None:
        """Return the post to try next. The caller has to report the end of the try."""
        assert self._head is None, "one try at a time, or posts overtake each other"
        if not self._waiting:
            return None
        self._head = self._waiting.pop(next(iter(self._waiting)))
        return self._head.post

    def answered(self, status: int, now: float, *, retry_after: float = 0.0) -> Outcome:
        """Report the status of the receiver's answer. `retry_after` are the seconds that it asks us to wait."""
        if status in _OK:
            self._head, self.is_failing, self.not_before = None, False, now
            self.sent += 1
            return Outcome.SENT
        if status in _REDIRECTS or (status in _REFUSALS and status not in _RETRIED):
            return self._given_up(now)
        return self.not_answered(now, retry_after=retry_after)

    def not_answered(self, now: float, *, retry_after: float = 0.0) -> Outcome:
        """Report that no answer came, or one that may be different next time."""
        head = self._head
        assert head is not None
        head.began = now if head.began is None else head.began
        if now - head.began >= RETRY_FOR:
            return self._given_up(now)
        self._head, self.is_failing = None, True
        self.not_before = now + max(head.pause * (0.5 + self._random() / 2), min(retry_after, _LONGEST_PAUSE))
        head.pause = min(2 * head.pause, _LONGEST_PAUSE)
        if (newer := self._waiting.pop(head.post.key, None)) is not None:
            head.post = joined(head.post, newer.post)
        self._waiting = {head.post.key: head, **self._waiting}
        return Outcome.RETRY

    def _given_up(self, now: float) -> Outcome:
        self._head, self.is_failing, self.not_before = None, True, now
        self.failed += 1
        return Outcome.FAILED


def joined(older: Post, newer: Post) -> Post:
    """Return the one post for both: the newer state, and "opened" if the receiver hasn't heard of the incident yet."""
    if older.kind is ChangeKind.OPENED and newer.kind is ChangeKind.WORSE:
        return replace(newer, kind=ChangeKind.OPENED)
    return newer
