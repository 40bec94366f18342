"""Lets pages of the named sites use some paths, by what browsers ask for: Cross-Origin Resource Sharing.

A browser lets a page read an answer of another site only if the answer names the page's own site. Before a request that
a form could not have made, it asks with OPTIONS (a *preflight*). Programs send no Origin and notice nothing.

Only sites that are named in full are let in: `*` would let every page in the world in, and `null` is what a browser
says for a page that it does not want to name, which any page can bring about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from nsqcommon.startup import StartupError

if TYPE_CHECKING:
    from nsqcommon.http_api import Headers, Request

_MOST_SECONDS: Final = b"600"  # for which a browser may remember the answer to a preflight
_VARY: Final = (b"vary", b"origin")

_is_origin: Final = re.compile(r"https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.ASCII).fullmatch


class Cors:
    def __init__(self, origins: Iterable[str], paths: Iterable[str]) -> None:
        """Let pages of these sites (`https://page.example:8443`) use these paths."""
        self._origins = frozenset(origin.lower().encode() for origin in origins)
        self._paths = frozenset(paths)

    def allows(self, request: Request) -> bool:
        """Return whether a page of one of the sites asks for one of the paths."""
        return request.path in self._paths and request.headers.get(b"origin", b"").lower() in self._origins

    def headers(self, request: Request) -> Headers:
        """Return what tells a browser that the page may read the answer."""
        if not self._origins or request.path not in self._paths:
            return ()
        if not self.allows(request):
            return (_VARY,)
        return ((b"access-control-allow-origin", request.headers[b"origin"]), _VARY)

    def preflight(self, request: Request) -> Headers:
        """Return what tells a browser that it may make the request; `headers` is added to this."""
        if not self.allows(request):
            return ()
        return (
            (b"access-control-allow-headers", b"authorization, content-type, last-event-id"),
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-max-age", _MOST_SECONDS),
        )


def check_origins(flag: str, origins: Iterable[str]) -> None:
    """Raise StartupError if one of an option's values is no site."""
    for origin in origins:
        if _is_origin(origin.lower()) is None:
            raise StartupError(
                f"failed to parse --{flag} - {origin!r} is no site; expected one as https://page.example:8443"
            )
