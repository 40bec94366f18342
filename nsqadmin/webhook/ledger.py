"""The ledger of incidents that receivers were told about: which changes become posts. A core.

The book of incidents says what has changed between two snapshots. That isn't all that receivers need:

- After a restart, an incident must not open twice. The ledger is in `--history-file`, so we know it again.
- If an incident ended while nsqadmin was down, or there were too many to follow, no change closes it. So one that isn't
  there for `LOST` seconds without such a change is closed.
- If an incident opened while it was muted, receivers don't know it: then the first news about it is "opened".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqadmin.diagnosis.incident import ChangeKind
from nsqadmin.webhook.post import Post, post_of

if TYPE_CHECKING:
    from nsqadmin.diagnosis.incident import IncidentChange

LOST: Final = 120.0  # seconds; as long as an incident may take to close
_MOST: Final = 2000  # incidents; beyond that we forget the oldest
_RANKS: Final = {"problem": 0, "warning": 1, "info": 2}


@dataclass(slots=True)
class _Told:
    post: Post
    lost_at: float | None = None  # when we first missed it


class Ledger:
    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    @property
    def posts(self) -> tuple[Post, ...]:
        """The latest post about each incident that receivers know as open."""
        return tuple(told.post for told in self._told.values())

    def restore(self, posts: Iterable[Post]) -> None:
        self._told = {post.key: _Told(post) for post in posts}

    def posts_for(
        self, changes: Iterable[IncidentChange], present: Callable[[], Collection[str]], now: float
    ) -> list[Post]:
        """Return the posts to send after a snapshot. `present()` returns the keys of all incidents, muted ones, too."""
        posts = [post for change in changes if (post := self._entered(post_of(change))) is not None]
        posts += self._closed(present(), now) if self._told else ()
        return posts

    def _entered(self, post: Post) -> Post | None:
        told = self._told.get(post.key)
        if post.kind is ChangeKind.CLOSED:
            return post if self._told.pop(post.key, None) is not None else None
        if told is None:
            post = replace(post, kind=ChangeKind.OPENED)
        elif post.kind is ChangeKind.OPENED:
            if _RANKS[post.severity] >= _RANKS[told.post.severity]:
                return None
            post = replace(post, kind=ChangeKind.WORSE)
        self._told.pop(post.key, None)
        self._told[post.key] = _Told(post)
        if len(self._told) > _MOST:
            del self._told[next(iter(self._told))]
        return post

    def _closed(self, present: Collection[str], now: float) -> Iterator[Post]:
        for key, told in list(self._told.items()):
            if key in present:
                told.lost_at = None
            elif told.lost_at is None:
                told.lost_at = now
            elif now - told.lost_at >= LOST:
                del self._told[key]
                yield replace(told.post, kind=ChangeKind.CLOSED, at=told.lost_at)
