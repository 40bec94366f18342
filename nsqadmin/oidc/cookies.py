"""The cookies of sessions and of logins that are under way.

Cookies know no ports and only loosely paths, so two nsqadmins on one machine would overwrite each other's. Their names
have a digest of the URL under which people open nsqadmin. Over HTTPS they begin with `__Host-`: then another host of
the domain can't set them, so it can't log someone in as another user.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqadmin.oidc.urls import OwnUrls

MOST: Final = 3900  # characters of a value; browsers drop a cookie above 4,096 with its name
ATTEMPT_HOLDS_FOR: Final = 600  # seconds in which a user has to log in at the provider
_MOST_ATTEMPTS: Final = 5  # tabs that may be logging in at the same time: their cookies are sent with each request

_is_state: Final = re.compile(r"[A-Za-z0-9_-]{32}").fullmatch


class Cookies:
    def __init__(self, urls: OwnUrls) -> None:
        digest = hashlib.sha256(urls.base.encode()).hexdigest()[:8]
        self.session = f"{'__Host-' if urls.is_secure else ''}nsqadmin-{digest}"
        self._of_attempts = f"{self.session}-login-"
        # Lax, not Strict: the provider sends the user back from another site, and that request needs the cookie. Pages
        # of other sites can't use it to change anything, because Lax withholds it from their POSTs, and the gate of
        # http/app.py refuses these anyway.
        self._attributes = "; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if urls.is_secure else "")

    def set_session(self, value: str) -> str:
        """Return the header that sets the session; "" ends it. Without an age, it ends with the browser."""
        return self._set(self.session, value)

    def attempt(self, state: str) -> str:
        """Return the name of the cookie of a login attempt: each tab has its own. "" if this is no state of ours."""
        return self._of_attempts + state[:8] if _is_state(state) else ""

    def set_attempt(self, state: str, value: str) -> str:
        return self._set(self.attempt(state), value, age=ATTEMPT_HOLDS_FOR)

    def end_attempt(self, state: str) -> str:
        return self._set(self.attempt(state), "")

    def end_old_attempts(self, names: Iterable[str]) -> list[str]:
        """Return the headers that end attempts if there are so many that another one would be too much."""
        ours = [name for name in names if name.startswith(self._of_attempts)]
        return [self._set(name, "") for name in ours] if len(ours) >= _MOST_ATTEMPTS else []

    def _set(self, name: str, value: str, *, age: int | None = None) -> str:
        if not value:
            age = 0
        return f"{name}={value}{self._attributes}" + ("" if age is None else f"; Max-Age={age}")
