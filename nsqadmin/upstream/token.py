"""The token for nsqd: which nodes get it, and why others don't.

nsqadmin polls every node that registers with nsqlookupd, and anyone can register. So we send the token only to nodes
that the operator has named, by `--nsqd-http-address` or `--nsqd-token-to`, and only over connections that others can't
read or answer: HTTPS with a verified certificate, or loopback. A network on the list is compared with the address that
we connect to. That is why we resolve the name of such a node here, and only once.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from nsqcommon.net import parse_address
from nsqcommon.recipients import Recipients, is_loopback, is_name, read_ip
from nsqcommon.startup import StartupError

if TYPE_CHECKING:
    import httpx

    from nsqadmin.options import Options

NOT_LISTED: Final = "it is not on --nsqd-token-to"
NOT_SECURE: Final = "its connection is plain HTTP (--nsqd-token-over-http allows that)"
NOT_VERIFIED: Final = (
    "its certificate is not verified (--http-client-tls-insecure-skip-verify; --nsqd-token-over-http allows that)"
)


@dataclass(frozen=True, slots=True)
class Way:
    """How to send a request to a node."""

    url: httpx.URL
    headers: Mapping[str, str] = field(default_factory=dict)
    sni_hostname: str = ""  # the name that the certificate must have, if `url` has an address instead
    withheld: str = ""  # why we don't send the token; empty if we do, or there is none


class Token:
    def __init__(self, options: Options) -> None:
        """Read the token file. Raise StartupError if that fails."""
        self._header = _read_header(options.nsqd_token_file)
        self._listed = Recipients(options.nsqd_token_to)
        self._configured = frozenset(
            (where.host.lower(), where.port) for where in map(parse_address, options.nsqd_http_address)
        )
        self._over_http = options.nsqd_token_over_http
        self._verifies = not options.http_client_tls_insecure_skip_verify

    async def way_to(self, url: httpx.URL, announced: tuple[str, int]) -> Way:
        """Return how to query the node at `url`, with the token if the node may have it.

        `announced` is the host and port by which we know the node. For a node with TLS only, `url` has another port.
        """
        if not self._header:
            return Way(url)
        host, is_named = url.raw_host.decode(), self._is_named(url, announced)
        is_private = self._over_http or (url.scheme == "https" and self._verifies)
        if is_named and is_private:
            return Way(url, self._header)
        if not is_named and not self._listed.has_networks:
            return Way(url, withheld=NOT_LISTED)
        addresses = await _addresses_of(host, url.port or 0)
        if not is_named:
            addresses = [address for address in addresses if self._has_address(address, url, announced)]
            if not addresses:
                return Way(url, withheld=NOT_LISTED)
        if not is_private:
            addresses = list(filter(is_loopback, addresses))
            if not addresses:
                return Way(url, withheld=NOT_SECURE if url.scheme == "http" else NOT_VERIFIED)
        return _pinned(url, host, addresses[0], self._header)

    def _is_named(self, url: httpx.URL, announced: tuple[str, int]) -> bool:
        host, port = announced
        if (host.lower(), port) in self._configured:
            return True
        return any(self._listed.has_name(url.raw_host.decode(), either) for either in (port, url.port or 0))

    def _has_address(self, address: str, url: httpx.URL, announced: tuple[str, int]) -> bool:
        return any(self._listed.has_address(address, either) for either in (announced[1], url.port or 0))


def _pinned(url: httpx.URL, host: str, address: str, header: Mapping[str, str]) -> Way:
    """Return the way to this very address, even if the name resolves to another one a moment later."""
    if read_ip(host) is not None:
        return Way(url, header)
    headers = {**header, "host": url.netloc.decode()}
    return Way(url.copy_with(host=address), headers, sni_hostname=host)


async def _addresses_of(host: str, port: int) -> list[str]:
    """Return the host's addresses, IPv4 first as in Go; an empty list if resolving fails, which connecting reports."""
    if read_ip(host) is not None:
        return [host]
    if not is_name(host):
        return []
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    found = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _read_header(path: str) -> Mapping[str, str]:
    if not path:
        return {}
    try:
        with open(path, encoding="ascii") as file:
            return {"authorization": f"Bearer {file.read().strip()}"}
    except (OSError, ValueError) as error:
        raise StartupError(f"failed to read --nsqd-token-file ({path}) - {error}") from error
