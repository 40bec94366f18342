"""Tells whether a request that changes something comes from one of our pages, from a program, or from a foreign page.

Browsers send where a request comes from, and programs send nothing. So scripts written for NSQ's API work unchanged,
but a page of another origin cannot change anything in its viewer's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_OURS: Final = frozenset(("same-origin", "none"))  # none: the user has typed the address or opened a bookmark
_PORTS: Final = {"http": 80, "https": 443}


def why_foreign(headers: Mapping[str, str]) -> str:
    """Return why the request must be refused; "" if it may be carried out."""
    if site := headers.get("sec-fetch-site", ""):
        # No page can set this header, and unlike a comparison with Host it is right behind a proxy that changes Host.
        return "" if site in _OURS else f"the request comes from another site (Sec-Fetch-Site: {site})"
    origin = headers.get("origin", "")
    if origin and not _is_ours(origin, headers.get("host", "")):
        return f"the request comes from another origin ({origin})"
    return ""


def _is_ours(origin: str, host: str) -> bool:
    # A proxy that terminates TLS keeps Host but not the scheme, so we compare host and port without the scheme.
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
