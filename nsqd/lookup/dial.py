"""Turns the value of --lookupd-tcp-address into connections: parse, resolve, connect."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

import trio

from nsqcommon.net import AddressError, join_host_port, parse_address
from nsqd.lookup.times import IO_LIMIT

Place = tuple[str, int]  # an IP address and a port
Dial = Callable[[Place, str], Awaitable[trio.abc.Stream]]  # the string is the host name expected in the certificate
Resolve = Callable[[str, int], Awaitable[list[Place]]]


def host_and_port(text: str) -> Place:
    address = parse_address(text)
    if address.is_unix:
        raise AddressError("expected host:port")
    return address.host or "localhost", address.port


async def resolve(host: str, port: int) -> list[Place]:
    """Return all addresses of a name. Raises OSError if it has none."""
    try:
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    except UnicodeError as error:  # a label is empty or too long, or has an invalid character
        raise OSError(f"no such host: {error}") from error
    return list(dict.fromkeys((str(name[0]), int(name[1])) for _, _, _, _, name in found))


async def dial(place: Place, name: str, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    """Connect, with TLS if `tls` is given. Raises OSError. `name` is the host name expected in the certificate."""
    connection = trio.socket.socket(trio.socket.AF_INET6 if is_ipv6(place) else trio.socket.AF_INET)
    try:
        with trio.move_on_after(IO_LIMIT) as limit:
            await connection.connect(place)
        if limit.cancelled_caught:
            raise TimeoutError(f"dial {join_host_port(*place)}: i/o timeout")
        stream = trio.SocketStream(connection)
        return stream if tls is None else trio.SSLStream(stream, tls, server_hostname=name)
    except ValueError as error:  # from ssl: no certificate can have this name
        connection.close()
        raise OSError(str(error)) from error
    except BaseException:
        connection.close()
        raise


def is_ipv6(place: Place) -> bool:
    return ":" in place[0]
