"""Addresses and listening sockets, with NSQ's rules and error texts.

If an address splits into host:port (with brackets around an IPv6 host), it is a TCP address; otherwise it is the path
of a unix socket. Unlike NSQ, we refuse a path that is more likely a host without a port. This module opens listeners,
but doesn't accept their connections.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from nsqcommon.startup import StartupError

# Go uses the kernel's maximum, by default this number. A kernel with a lower maximum reduces it by itself.
BACKLOG: Final = 4096

_IDLE_TIME: Final[int] = getattr(socket, "TCP_KEEPALIVE" if sys.platform == "darwin" else "TCP_KEEPIDLE")
_KEEP_ALIVE: Final = 15  # seconds; with the kernel's default, a dead machine would stay in every list for two hours

_SOCKET_NAMES: Final = (".sock", ".socket")

# Python has no single type for the result of getsockname().
SocketName = Any


class AddressError(ValueError):
    """The text is not an address to listen on or connect to; the message says why, in Go's words."""


class ListenError(StartupError):
    """A listener could not be opened: `listen (<address>) failed - <cause>`."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen or connect: host and port, or only the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_unix(self) -> bool:
        return bool(self.path)

    def __str__(self) -> str:
        return self.path if self.is_unix else join_host_port(self.host, self.port)


def parse_address(text: str) -> Address:
    """Parse the value of `--tcp-address` or a similar option.

    Raises AddressError, also for an empty text, because its meaning depends on the option.
    """
    if not text:
        raise AddressError("empty address")
    parts = _split_host_port(text)
    if parts is None:
        if not ("/" in text or text.startswith("@") or text.endswith(_SOCKET_NAMES)):
            reason = "missing port" if text.startswith("[") or text.count(":") < 2 else "too many colons"
            raise AddressError(f"address {text}: {reason} in address")
        return Address(path=text)
    host, port = parts
    if port and not (port.isascii() and port.isdigit()):
        raise AddressError(f"lookup tcp/{port}: unknown port")
    number = int(port or "0")
    if number > 0xFFFF:
        raise AddressError(f"address {port}: invalid port")
    return Address(host=host, port=number)


def bind(address: Address | str, *, listens: bool = True) -> socket.socket:
    """Open a listening, non-blocking socket. Raises ListenError if that fails or the text is not an address.

    Without `listens`, connections are refused until you call `begin_listening`, and yet other processes can't get the
    address. Port 0 means any free port; call `listening_port()` to find out which. Close the socket with `close_listener()`.
    """
    network = "tcp"
    try:
        where = parse_address(address) if isinstance(address, str) else address
        network = "unix" if where.is_unix else "tcp"
        listener = _open(socket.AF_UNIX, where.path) if where.is_unix else _open_tcp(where)
        if listens:
            _listen_or_close(listener)
        return listener
    except AddressError as error:
        text = f"listen ({address}) failed - listen {network}: {error}"
        if str(error).endswith(" in address"):
            text += f"; expected host:port, or ./{address} for a unix socket of that name"
        raise ListenError(text) from error
    except OSError as error:
        raise ListenError(f"listen ({address}) failed - listen {network} {address}: {_cause(error)}") from error


def begin_listening(listener: socket.socket) -> None:
    """Accept connections from now on. Raises ListenError, for example if another process was faster."""
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        raise ListenError(f"listen ({format_listener(listener)}) failed - {_cause(error)}") from error


def close_listener(listener: socket.socket) -> None:
    """Close a listener, and remove a unix socket's file, because the next `bind` would find the address in use."""
    path = listener.getsockname() if listener.family == socket.AF_UNIX and listener.fileno() >= 0 else ""
    listener.close()
    if path:
        with suppress(FileNotFoundError):
            os.unlink(path)


def keep_alive(connection: socket.socket) -> None:
    """Make the kernel check after 15 s of silence whether the other machine is still there, as Go does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, _IDLE_TIME, _KEEP_ALIVE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEP_ALIVE)


def format_listener(listener: socket.socket) -> str:
    """Return the listener's address as text, for the log."""
    return format_name(listener.getsockname())


def format_name(name: SocketName) -> str:
    """Return a socket name, or an address from `accept()`, as text.

    An IPv4 address of an IPv6 socket (`::ffff:10.0.0.1`) is written as IPv4.
    """
    if isinstance(name, tuple):
        host, port = str(name[0]), int(name[1])
        return join_host_port(host.removeprefix("::ffff:") if "." in host else host, port)
    if isinstance(name, bytes):  # in Linux's abstract namespace, which has no files
        return name.replace(b"\0", b"@").decode(errors="replace")
    return name or "@"  # a unix client has no name


def listening_port(listener: socket.socket) -> int:
    """Return the actual port, for `/info` and registrations, or -1 for a unix socket."""
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
    # Go opens a wildcard address, including 0.0.0.0, for both families if the machine has both. So NSQ's default
    # addresses work in an IPv6-only cluster, and for `localhost` as ::1, and ours must too.
    if address.host in ("", "0.0.0.0", "::"):
        if socket.has_dualstack_ipv6():
            return _open(socket.AF_INET6, ("::", address.port), only_ipv6=False)
        return _open(socket.AF_INET, ("0.0.0.0", address.port))
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # an impossible name; for example, a label is empty or too long
        raise AddressError(f"lookup {address.host}: no such host") from error
    # If a name has addresses of both families, take IPv4, as Go does.
    family, _, _, _, name = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return _open(family, name)


def _open(family: int, name: SocketName, *, only_ipv6: bool = True) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:  # as in Go, so that a restart needn't wait for old connections to time out
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_ipv6)
        # An existing unix path is "address already in use", as in NSQ: it may be the socket of a running broker.
        listener.bind(name)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _listen_or_close(listener: socket.socket) -> None:
    try:
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise


def _cause(error: OSError) -> str:
    text = (error.strerror or str(error)).lower()  # Go's texts are the C library's in lower case
    return f"lookup: {text}" if isinstance(error, socket.gaierror) else f"bind: {text}"
