"""Refuses requests to nsqd and nsqlookupd that a browser sends on behalf of a foreign web page.

    a request from another site that changes something    403 FOREIGN_SITE
    a host name that is not our own                       421 FOREIGN_HOST

This only affects browsers. Both daemons trust everything that can reach them, and a browser on their machine can. See
origin.py for the two attacks. NSQ accepts such requests, and people may have pages that publish, so `/pub` and `/mpub`
accept them too, unless `strict` is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import HttpError, Request, Response, Route
from nsqcommon.origin import is_from_browser, why_foreign

if TYPE_CHECKING:
    from nsqcommon.cors import Cors
    from nsqcommon.origin import OwnHosts

# A page that publishes sends at least one of these, because browsers add Origin to every POST.
OF_BROWSERS: Final = frozenset((b"origin", b"sec-fetch-site"))

_HARMLESS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_PUBLISHING: Final = frozenset(("/pub", "/mpub"))
_PROBES: Final = frozenset(("/ping", "/healthz", "/readyz"))  # they reveal nothing, and monitors pose as browsers


class SameSite:
    def __init__(
        self, hosts: OwnHosts, *, strict: bool, cors: Cors | None = None, taking: frozenset[str] = frozenset()
    ) -> None:
        """`cors` allows some sites to use some paths. On the paths in `taking`, even a GET changes something."""
        self._hosts = hosts
        self._cors = cors
        self._taking = taking
        self._free = _PROBES if strict else _PROBES | _PUBLISHING

    def refusal(self, request: Request, route: Route) -> Response | None:
        """Return the response that refuses a request, or None to let it pass."""
        if route.path in self._free:
            return None
        site, origin, host, agent = (
            request.headers.get(name, b"").decode("latin-1")
            for name in (b"sec-fetch-site", b"origin", b"host", b"user-agent")
        )
        if not is_from_browser(site, origin, agent):
            return None
        if reason := self._hosts.why_not(host, "--http-allowed-host"):
            return HttpError(421, "FOREIGN_HOST", details={"reason": reason}).response
        if route.method in _HARMLESS and route.path not in self._taking:
            return None
        if self._cors is not None and self._cors.allows(request):
            return None
        if reason := why_foreign(site, origin, host):
            return HttpError(403, "FOREIGN_SITE", details={"reason": reason}).response
        return None
