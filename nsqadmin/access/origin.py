"""Whether a request that changes something comes from a page of ours, from a program, or from somebody else's page.

Browsers say where a request comes from, programs say nothing: so scripts for NSQ's API work as they are, and a page of
another origin can do nothing in the name of the one who looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_OURS: Final = frozenset(("same-origin", "none"))  # none: typed by hand, or from a bookmark
_PORTS: Final = {"http": 80, "https": 443}


def why_foreign(headers: Mapping[str, str]) -> str:
    """Why it must not be done; empty when it may."""
    if site := headers.get("sec-fetch-site", ""):
        # No page can set this header, and it is right also where a proxy has changed Host.
        return "" if site in _OURS else f"the request comes from another site (Sec-Fetch-Site: {site})"
    origin = headers.get("origin", "")
    if origin and not _is_ours(origin, headers.get("host", "")):
        return f"the request comes from another origin ({origin})"
    return ""


def _is_ours(origin: str, host: str) -> bool:
    # A proxy that ends TLS leaves Host as it is, but not the scheme: that is not compared, the port is.
    try:
        parts = urlsplit(origin)
        given = urlsplit(f"//{host}")
        port = _PORTS.get(parts.scheme)
        same_port = (
            parts.port == given.port
            or (given.port is None and parts.port == port)
            or (parts.port is None and given.port == port)
        )
        return bool(parts.hostname) and parts.hostname == given.hostname and same_port
    except ValueError:
        return False
