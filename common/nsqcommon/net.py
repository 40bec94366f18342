"""Addresses and listening sockets, with the meanings and the error texts of NSQ.

An address is a TCP address if it splits into host:port (an IPv6 host stands in brackets), and otherwise the path of a
unix socket. This module does not serve the connections that its listeners accept.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from nsqcommon.startup import StartupError

# Go uses the kernel's maximum, which is this by default. A kernel with a lower one reduces the value itself.
BACKLOG: Final = 4096

_IDLE_TIME: Final[int] = getattr(socket, "TCP_KEEPALIVE" if sys.platform == "darwin" else "TCP_KEEPIDLE")
_KEEP_ALIVE: Final = 15  # seconds; the kernel's default of two hours would leave a dead machine in every list

# Python has no single type for the result of getsockname().
SocketName = Any


class AddressError(ValueError):
    """The text is no address to listen on or connect to; the message says why, in Go's words."""


class ListenError(StartupError):
    """A listener could not be opened: `listen (<address>) failed - <cause>`."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen or connect: host and port, or the path of a unix socket (then the others are empty)."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_unix(self) -> bool:
        return bool(self.path)

    def __str__(self) -> str:
        return self.path if self.is_unix else join_host_port(self.host, self.port)


def parse_address(text: str) -> Address:
    """Read the value of `--tcp-address` and similar options.

    Raises AddressError, also for an empty text: what that means is for the caller to decide.
    """
    if not text:
        raise AddressError("empty address")
    parts = _split_host_port(text)
    if parts is None:
        return Address(path=text)
    host, port = parts
    if port and not (port.isascii() and port.isdigit()):
        raise AddressError(f"lookup tcp/{port}: unknown port")
    number = int(port or "0")
    if number > 0xFFFF:
        raise AddressError(f"address {port}: invalid port")
    return Address(host=host, port=number)


def bind(address: Address | str) -> socket.socket:
    """Open a listening, non-blocking socket. Raise ListenError if that fails, also for a text that is no address.

    Port 0 takes any free port; `listening_port()` returns it. Close the socket with `close_listener()`.
    """
    network = "tcp"
    try:
        where = parse_address(address) if isinstance(address, str) else address
        network = "unix" if where.is_unix else "tcp"
        return _open(socket.AF_UNIX, where.path) if where.is_unix else _open_tcp(where)
    except AddressError as error:
        raise ListenError(f"listen ({address}) failed - listen {network}: {error}") from error
    except OSError as error:
        raise ListenError(f"listen ({address}) failed - listen {network} {address}: {_cause(error)}") from error


def close_listener(listener: socket.socket) -> None:
    """Close a listener, and remove a unix socket's file: the next start would find its address in use."""
    path = listener.getsockname() if listener.family == socket.AF_UNIX and listener.fileno() >= 0 else ""
    listener.close()
    if path:
        with suppress(FileNotFoundError):
            os.unlink(path)


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel check whether the other machine is still there, as Go does: after 15 s of silence."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, _IDLE_TIME, _KEEP_ALIVE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEP_ALIVE)


def format_listener(listener: socket.socket) -> str:
    """Return the listener's address as the log prints it."""
    return format_name(listener.getsockname())


def format_name(name: SocketName) -> str:
    """Return a socket name, or the address of an `accept()`, as text.

    IPv4 that came over an IPv6 socket is printed as IPv4.
    """
    if isinstance(name, tuple):
        host, port = str(name[0]), int(name[1])
        return join_host_port(host.removeprefix("::ffff:") if "." in host else host, port)
    return name or "@"  # a unix client has no name


def listening_port(listener: socket.socket) -> int:
    """Return the real port for `/info` and registrations; -1 for a unix socket."""
    return -1 if listener.family == socket.AF_UNIX else int(listener.getsockname()[1])


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split_host_port(text: str) -> tuple[str, str] | None:
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]:")
        return (host, port) if bracket and not set(host + port) & set("[]") and ":" not in port else None
    host, colon, port = text.partition(":")
    return (host, port) if colon and not set(host + port) & set("[]:") else None


def _open_tcp(address: Address) -> socket.socket:
    # Go opens a wildcard address, including 0.0.0.0, for both families if the machine has both. NSQ with its default
    # addresses is therefore reachable in an IPv6-only cluster and by `localhost` as ::1, and so must we be.
    if address.host in ("", "0.0.0.0", "::"):
        if socket.has_dualstack_ipv6():
            return _open(socket.AF_INET6, ("::", address.port), only_ipv6=False)
        return _open(socket.AF_INET, ("0.0.0.0", address.port))
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # not a possible name; a label may be empty or too long
        raise AddressError(f"lookup {address.host}: no such host") from error
    # If a name has both, IPv4 comes first, as in Go.
    family, _, _, _, name = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return _open(family, name)


def _open(family: int, name: SocketName, *, only_ipv6: bool = True) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_ipv6)
        # A unix path that exists is "address already in use", as in NSQ: it may be the socket of a running broker.
        listener.bind(name)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _cause(error: OSError) -> str:
    text = (error.strerror or str(error)).lower()  # Go's texts are the C library's in lower case
    return f"lookup: {text}" if isinstance(error, socket.gaierror) else f"bind: {text}"
