"""Targets to connect to: an nsqd's address, or on trio any object that connects."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nsqclient.core.errors import ConfigError, ConnectError
from nsqcommon.net import AddressError, parse_address

if TYPE_CHECKING:
    from nsqclient.core.config import Config


@runtime_checkable
class Dialable(Protocol):
    """An object that you pass instead of an nsqd's address: `str()` names it, and `connect` connects to it."""

    async def connect(self) -> Any:
        """Return a new connection, a trio.abc.Stream. Raise OSError, BrokenResourceError or ClosedResourceError."""


@runtime_checkable
class Answering(Protocol):
    """A `Dialable` that also serves its nsqd's HTTP."""

    async def post(self, target: str) -> tuple[int, bytes]:
        """Return status and body of the answer to a POST. Raise OSError."""


Target = str | Dialable


def check_target(target: Target) -> None:
    """Raise ConfigError for an address that can never be dialled."""
    if isinstance(target, str):
        try:
            where = parse_address(target)
        except AddressError as error:
            text = str(error)  # names the whole address, or only its port
            raise ConfigError("nsqd", target, text if target in text else f"{target}: {text}") from error
        if not where.is_unix and not where.port:
            raise ConfigError("nsqd", target, f"{target}: missing port")
        if where.is_unix and "/" not in where.path:
            raise ConfigError("nsqd", target, f"address {target}: missing port in address")


def host_of(target: Target) -> str:
    """Return the name to check in the nsqd's certificate."""
    try:
        return parse_address(target).host or "localhost" if isinstance(target, str) else "localhost"
    except AddressError:  # from nsqlookupd; `dial` reports the error
        return "localhost"


def local_host(config: Config) -> str | None:
    """Return the local address to dial from, or None."""
    if config.local_addr is None:
        return None
    where = parse_address(config.local_addr)
    if where.port:
        raise ConnectError(f"local_addr {config.local_addr}: only port 0 can be shared by several connections")
    return where.host


def peer_of(connection: socket.socket) -> str:
    """Return the peer's IP address; empty on a unix socket, or if the peer is gone."""
    try:
        name = connection.getpeername()
    except OSError:
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""
