"""Broker URLs.

    nsq://127.0.0.1:4150                            one nsqd
    nsq://:secret@a:4150,b:4150?tls_v1=true         two, with AUTH and NSQ's own client options
    nsq+lookupd://a:4161,b:4161                     all nsqds that these nsqlookupds list

The secret is in the place of the password, because the libraries hide that when they print a URL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from nsqclient import Config
from nsqclient.blocking import Nodes, given_nodes, listed_nodes
from nsqcommon.net import AddressError, parse_address

NSQD: Final = "nsq"
NSQLOOKUPD: Final = "nsq+lookupd"

_PORTS: Final = {NSQD: 4150, NSQLOOKUPD: 4161}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The nsqds to use, named or found by nsqlookupd, and the client's configuration."""

    nsqd: tuple[str, ...]
    lookupd: tuple[str, ...]
    config: Config

    def nodes(self) -> Nodes:
        """Return a BlockingProducer's source of addresses."""
        return listed_nodes(self.lookupd, self.config) if self.lookupd else given_nodes(self.nsqd)


def parse_url(url: str, **defaults: Any) -> Endpoint:
    """Parse a broker URL. `defaults` are Config fields for options missing in the URL.

    Raises ValueError for an invalid URL, and ConfigError for an option that NSQ doesn't have.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ValueError(f"a broker URL begins with nsq:// or nsq+lookupd://, not {parts.scheme or url!r}")
    if parts.path.strip("/"):
        raise ValueError(f"a broker URL has no path: {parts.path!r}")
    login, _, hosts = parts.netloc.rpartition("@")
    secret = unquote(login.partition(":")[2])
    addresses = tuple(_address(host, _PORTS[parts.scheme]) for host in (hosts or "127.0.0.1").split(","))
    options: dict[str, object] = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    if secret:
        defaults["auth_secret"] = secret
    config = Config.from_options(options, **defaults)
    if parts.scheme == NSQLOOKUPD:
        return Endpoint(nsqd=(), lookupd=addresses, config=config)
    return Endpoint(nsqd=addresses, lookupd=(), config=config)


def _address(text: str, port: int) -> str:
    if not text:
        raise ValueError("an empty address in the broker URL")
    has_port = text.rpartition("]")[2].count(":") > 0
    try:
        return str(parse_address(text if has_port else f"{text}:{port}"))
    except AddressError as error:
        raise ValueError(f"{text}: {error}") from error
