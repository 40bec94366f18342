"""What this process knows about sessions beyond their cookies: newer copies, sessions that are over, and open streams.

A browser sends several requests at once. The first one after five minutes makes us ask the provider, which may give us
a new refresh token and forget the old one. The others still have the cookie with the old one, so they get the newer copy
from here. Both tables have a bound: a forgotten copy costs a question to the provider, and a forgotten end lasts until
the session has to be confirmed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqadmin.oidc.session import Session

MOST: Final = 10_000  # sessions


class SessionBook:
    def __init__(self) -> None:
        self._newest: OrderedDict[str, Session | None] = OrderedDict()  # None: it is over
        self._streams: dict[str, set[Callable[[], None]]] = {}

    def newest(self, session: Session) -> Session | None:
        """Return the newest copy of a session that we have seen, or None if the session is over."""
        known = self._newest.get(session.id, session)
        return session if known is not None and session.version > known.version else known

    def put(self, session: Session) -> None:
        """Remember a newer copy, unless the session has ended meanwhile."""
        if self._newest.get(session.id, session) is not None:
            self._keep(session.id, session)

    def end(self, session: Session) -> None:
        """Remember that a session is over, because browsers may still have its cookie. End its streams."""
        self._keep(session.id, None)
        self.end_streams(session.id)

    def end_streams(self, id: str) -> None:
        for close in tuple(self._streams.get(id, ())):
            close()

    def watch(self, id: str, close: Callable[[], None]) -> Callable[[], None]:
        """Call `close` when the session ends or its rights change. Return the function that undoes this."""
        self._streams.setdefault(id, set()).add(close)

        def leave() -> None:
            with suppress(KeyError):
                self._streams[id].discard(close)
                if not self._streams[id]:
                    del self._streams[id]

        return leave

    def _keep(self, id: str, session: Session | None) -> None:
        self._newest[id] = session
        self._newest.move_to_end(id)
        while len(self._newest) > MOST:
            self._newest.popitem(last=False)
