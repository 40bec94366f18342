"""Tells what a web page made a browser send from what programs send, and which host names are a server's own.

A server that trusts its network trusts every browser in it, and a browser sends requests wherever a page tells it to.
Two attacks follow, and both end here:

- *A request from another site.* A page of evil.example posts to http://127.0.0.1:4171. Browsers say where such a
  request comes from (`Sec-Fetch-Site`, `Origin`), and programs say nothing: `why_foreign`.
- *DNS rebinding.* evil.example resolves to its own server first and to 127.0.0.1 later. For the browser the page and
  the server are then the same site, so that the page may even read the answers. What gives it away is `Host`, which
  still names evil.example: `OwnHosts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from nsqcommon.recipients import is_name, read_ip
from nsqcommon.startup import StartupError

ANY_HOST: Final = "*"

_OURS: Final = frozenset(("same-origin", "none"))  # none: the user has typed the address or opened a bookmark
_PORTS: Final = {"http": 80, "https": 443}
_BROWSER: Final = "Mozilla/"  # how every browser's User-Agent begins


def why_foreign(site: str, origin: str, host: str) -> str:
    """Return why a request comes from another site's page; "" if it comes from one of our pages or from a program.

    The arguments are the headers Sec-Fetch-Site, Origin and Host, or "".
    """
    if site:
        # No page can set this header, and unlike a comparison with Host it is right behind a proxy that changes Host.
        return "" if site in _OURS else f"the request comes from another site (Sec-Fetch-Site: {site})"
    if origin and not _is_ours(origin, host):
        return f"the request comes from another origin ({origin})"
    return ""


def is_from_browser(site: str, origin: str, user_agent: str) -> bool:
    """Return whether a browser has sent this.

    User-Agent counts because it is all that there is when a page reads from a plain HTTP address with a name: browsers
    send Sec-Fetch-Site to HTTPS and localhost only, and Origin with changes and to other sites only.
    """
    return bool(site or origin) or user_agent.startswith(_BROWSER)


class OwnHosts:
    """The host names by which a server is called, whatever the port.

    Always among them are `localhost`, the names below it, which browsers never ask DNS about, and every IP address: a
    browser that connects to an address asks nobody where that is, so nobody can rebind it.
    """

    def __init__(self, own: Iterable[str], allowed: Iterable[str] = ()) -> None:
        """`own` are names that the server knows itself; what is no name among them is left out.

        Raise ValueError for anything else than a name or `*` in `allowed`.
        """
        allowed = tuple(allowed)
        for text in allowed:
            if text != ANY_HOST and not is_name(text) and read_ip(text) is None:
                raise ValueError(f"{text!r} is no host name; expected one without a port, or {ANY_HOST}")
        self._are_all = ANY_HOST in allowed
        self._names = frozenset(_plain(name) for name in (*own, *allowed) if is_name(name))

    def has(self, host: str) -> bool:
        """Return whether a Host header names us. Without one (HTTP/1.0) no browser has sent the request."""
        if not host or self._are_all:
            return True
        if host.startswith("["):
            return read_ip(host.partition("]")[0] + "]") is not None
        name = _plain(host.partition(":")[0])
        return name in self._names or _is_localhost(name) or read_ip(name) is not None

    def why_not(self, host: str, option: str) -> str:
        """Return why a request with this Host header is refused, naming the option that allows it; "" if it is not."""
        if self.has(host):
            return ""
        return (
            f"{_plain(host)[:300]} is not a name of this server: use its address, "
            f"or start it with {option}={_plain(host.partition(':')[0])[:300]}"
        )


def check_hosts(flag: str, names: Iterable[str]) -> None:
    """Raise StartupError if one of an option's values is no host name."""
    try:
        OwnHosts((), names)
    except ValueError as error:
        raise StartupError(f"failed to parse --{flag} - {error}") from error


def _plain(name: str) -> str:
    return name.rstrip(".").lower()


def _is_localhost(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")


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
