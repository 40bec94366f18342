"""Cross-Origin Resource Sharing (CORS): allows pages from the sites you name to use some paths.

A browser lets a page read another site's response only if the response names the page's site. Before it sends a request
that an HTML form couldn't send, it asks for permission with OPTIONS (a *preflight*). Programs that aren't browsers send
no Origin, so nothing changes for them.

You have to name each site in full. `*` would let in every page in the world. So would `null`, because browsers send it
for pages with an opaque origin, and any page can arrange to have one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from nsqcommon.startup import StartupError

if TYPE_CHECKING:
    from nsqcommon.http_api import Headers, Request

_MOST_SECONDS: Final = b"600"  # for which a browser may remember the response to a preflight
_VARY: Final = (b"vary", b"origin")

_is_origin: Final = re.compile(r"https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.ASCII).fullmatch


class Cors:
    def __init__(self, origins: Iterable[str], paths: Iterable[str]) -> None:
        """Allow pages of these sites (`https://page.example:8443`) to use these paths."""
        self._origins = frozenset(origin.lower().encode() for origin in origins)
        self._paths = frozenset(paths)

    def allows(self, request: Request) -> bool:
        """Return whether the request comes from a page of an allowed site, and is for an allowed path."""
        return request.path in self._paths and request.headers.get(b"origin", b"").lower() in self._origins

    def headers(self, request: Request) -> Headers:
        """Return the headers that let the page read the response."""
        if not self._origins or request.path not in self._paths:
            return ()
        if not self.allows(request):
            return (_VARY,)
        return ((b"access-control-allow-origin", request.headers[b"origin"]), _VARY)

    def preflight(self, request: Request) -> Headers:
        """Return the headers that let a browser send the actual request, in addition to `headers`."""
        if not self.allows(request):
            return ()
        return (
            (b"access-control-allow-headers", b"authorization, content-type, last-event-id"),
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-max-age", _MOST_SECONDS),
        )


def check_origins(flag: str, origins: Iterable[str]) -> None:
    """Raise StartupError if any of an option's values is not a site."""
    for origin in origins:
        if _is_origin(origin.lower()) is None:
            raise StartupError(
                f"failed to parse --{flag} - {origin!r} is not a site; expected, for example, https://page.example:8443"
            )
