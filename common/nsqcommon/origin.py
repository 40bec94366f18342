"""Recognizes requests that a browser sends on behalf of another site's page, and the names of our server.

A server that trusts its network trusts every browser in it, and a browser sends requests wherever a page points it.
That allows two attacks, and we stop both here:

- *A request from another site.* A page of evil.example posts to http://127.0.0.1:4171. Browsers add headers that reveal
  where such a request comes from (`Sec-Fetch-Site`, `Origin`): see `why_foreign`.
- *DNS rebinding.* evil.example first resolves to the attacker's server, and later to 127.0.0.1. The browser then takes
  the page and our server for one site, and even lets the page read our responses. The `Host` header gives the attack
  away, because it still names evil.example: see `OwnHosts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from nsqcommon.recipients import is_name, read_ip
from nsqcommon.startup import StartupError

ANY_HOST: Final = "*"

_OURS: Final = frozenset(("same-origin", "none"))  # none: the user typed the address or opened a bookmark
_PORTS: Final = {"http": 80, "https": 443}
_BROWSER: Final = "Mozilla/"  # how every browser's User-Agent begins


def why_foreign(site: str, origin: str, host: str) -> str:
    """Return the evidence that another site's page sent this request, or "" if one of our pages or a program did.

    The arguments are the headers Sec-Fetch-Site, Origin and Host; pass "" for a missing one.
    """
    if site:
        # Pages can't set this header. Unlike a comparison with Host, it also works with a proxy that changes Host.
        return "" if site in _OURS else f"the request comes from another site (Sec-Fetch-Site: {site})"
    if origin and not _is_ours(origin, host):
        return f"the request comes from another origin ({origin})"
    return ""


def is_from_browser(site: str, origin: str, user_agent: str) -> bool:
    """Return whether a browser sent this request.

    We also need User-Agent, because browsers send Sec-Fetch-Site only to HTTPS and localhost, and Origin only for
    changes and to other sites. For example, a page of http://broker:4151 that reads from there sends neither.
    """
    return bool(site or origin) or user_agent.startswith(_BROWSER)


class OwnHosts:
    """The host names of a server, whatever the port.

    They always include `localhost`, its subdomains and all IP addresses. Browsers never ask DNS about these, so DNS
    can't rebind them.
    """

    def __init__(self, own: Iterable[str], allowed: Iterable[str] = ()) -> None:
        """Combine the names that the server finds itself with the names that its operator allows.

        We skip entries of `own` that aren't host names. Raises ValueError for an entry of `allowed` that is neither a
        name nor an address nor `*`.
        """
        allowed = tuple(allowed)
        for text in allowed:
            if text != ANY_HOST and not is_name(text) and read_ip(text) is None:
                raise ValueError(f"{text!r} is not a host name; expected one without a port, or {ANY_HOST}")
        self._are_all = ANY_HOST in allowed
        self._names = frozenset(_plain(name) for name in (*own, *allowed) if is_name(name))

    def has(self, host: str) -> bool:
        """Return whether a Host header names us.

        A missing header (HTTP/1.0) also passes: browsers always send one, so the request isn't from a browser.
        """
        if not host or self._are_all:
            return True
        if host.startswith("["):
            return read_ip(host.partition("]")[0] + "]") is not None
        name = _plain(host.partition(":")[0])
        return name in self._names or _is_localhost(name) or read_ip(name) is not None

    def why_not(self, host: str, option: str) -> str:
        """Return why we refuse this Host header and which option would allow it, or "" if it names us."""
        if self.has(host):
            return ""
        return (
            f"{_plain(host)[:300]} is not a name of this server: use its address, "
            f"or start it with {option}={_plain(host.partition(':')[0])[:300]}"
        )


def check_hosts(flag: str, names: Iterable[str]) -> None:
    """Raise StartupError if any of an option's values is not a host name."""
    try:
        OwnHosts((), names)
    except ValueError as error:
        raise StartupError(f"failed to parse --{flag} - {error}") from error


def _plain(name: str) -> str:
    return name.rstrip(".").lower()


def _is_localhost(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")


def _is_ours(origin: str, host: str) -> bool:
    # A proxy that terminates TLS keeps Host but changes the scheme, so we compare host and port only.
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
