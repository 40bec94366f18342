"""How trio reaches an nsqd: over TCP or a unix socket without trio's own socket layer, or over any trio stream."""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import trio

from nsqclient.core.errors import ConfigError, ConnectError, Disconnected
from nsqcommon.net import AddressError, parse_address

if TYPE_CHECKING:
    from nsqclient.core.config import Config

_READ_SIZE: Final = 120 * 1024  # the allocator would map and unmap a larger buffer for each read


@runtime_checkable
class Dialable(Protocol):
    """An object that stands for an nsqd instead of its address: `str()` names it, and `connect` connects to it."""

    async def connect(self) -> trio.abc.Stream:
        """Return a new connection. Raise OSError, or trio's BrokenResourceError or ClosedResourceError."""


@runtime_checkable
class Answering(Protocol):
    """A `Dialable` that also stands for the HTTP side of its nsqd."""

    async def post(self, target: str) -> tuple[int, bytes]:
        """Return status and body of the answer to a POST. Raise OSError."""


Target = str | Dialable


class Transport(Protocol):
    """Bytes in both directions. Every method may raise Disconnected."""

    @property
    def peer(self) -> str:
        """The IP address of the other end; empty if it has none."""

    async def receive(self) -> bytes:
        """Return received bytes, or b"" at the end of the stream. This is a checkpoint."""

    def send_now(self, data: bytes) -> int:
        """Send as much as is possible without waiting, and return the number of bytes."""

    async def send(self, data: bytes, *, timeout: float) -> None:
        """Send all of `data`; `timeout` is the longest time without progress."""

    async def end(self) -> None:
        """Half-close the stream and read until the peer has done so, too: closing earlier could lose sent data."""

    async def close(self) -> None:
        """Close the stream at once."""


async def dial(target: Target, config: Config) -> Transport:
    """Connect to an nsqd. Raise ConnectError."""
    try:
        with trio.fail_after(config.dial_timeout):
            if isinstance(target, Dialable):
                return StreamTransport(await target.connect())
            where = parse_address(target)
            if where.is_unix:
                return SocketTransport(await trio.open_unix_socket(where.path))
            stream = await trio.open_tcp_stream(where.host, where.port, local_address=local_host(config))
            return SocketTransport(stream)
    except trio.TooSlowError as error:
        raise ConnectError(f"dial {target}: i/o timeout") from error
    except (OSError, AddressError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise ConnectError(f"dial {target}: {_cause(error)}") from error


def check_target(target: Target) -> None:
    """Raise ConfigError for an address that can never be dialled."""
    if isinstance(target, str):
        try:
            where = parse_address(target)
        except AddressError as error:
            raise ConfigError("nsqd", target, f"{target}: {error}") from error
        if not where.is_unix and not where.port:
            raise ConfigError("nsqd", target, f"{target}: missing port")
        if where.is_unix and "/" not in where.path:
            raise ConfigError("nsqd", target, f"address {target}: missing port in address")


def peer_of(connection: socket.socket) -> str:
    """Return the IP address of the other end; empty on a unix socket, and if the peer has gone."""
    try:
        name = connection.getpeername()
    except OSError:
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""


def host_of(target: Target) -> str:
    """Return the name that the nsqd's certificate must have."""
    try:
        return parse_address(target).host or "localhost" if isinstance(target, str) else "localhost"
    except AddressError:  # an nsqlookupd has listed it; `dial` reports the error
        return "localhost"


def local_host(config: Config) -> str | None:
    """Return the local address to dial from, or None."""
    if config.local_addr is None:
        return None
    where = parse_address(config.local_addr)
    if where.port:
        raise ConnectError(f"local_addr {config.local_addr}: only port 0 can be shared by several connections")
    return where.host


class SocketTransport:
    """Implements `Transport` for a socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        # trio's sockets have no way to try without waiting, and waiting costs a turn of the loop for each read and
        # write.
        self._socket = socket.socket(fileno=stream.socket.detach())
        self._socket.setblocking(False)

    @property
    def peer(self) -> str:
        return peer_of(self._socket)

    async def receive(self) -> bytes:
        # Waiting before the read costs more if data are there, and less if none are. Usually none are, because data
        # that were sent together have arrived together.
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(_READ_SIZE)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                raise Disconnected(_cause(error)) from error

    def send_now(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise Disconnected(_cause(error)) from error

    async def send(self, data: bytes, *, timeout: float) -> None:
        at = self.send_now(data)
        while at < len(data):
            with trio.move_on_after(timeout) as scope:
                await trio.lowlevel.wait_writable(self._socket)
            if scope.cancelled_caught:
                raise Disconnected("IO error - write: i/o timeout")
            at += self.send_now(data[at:])

    async def end(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
        while await self.receive():
            pass

    async def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class StreamTransport:
    """Implements `Transport` for any trio stream."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    @property
    def peer(self) -> str:
        return ""

    async def receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(_READ_SIZE))
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            raise Disconnected(_cause(error)) from error

    def send_now(self, data: bytes) -> int:
        return 0

    async def send(self, data: bytes, *, timeout: float) -> None:
        try:
            with trio.fail_after(timeout):
                await self._stream.send_all(data)
        except trio.TooSlowError as error:
            raise Disconnected("IO error - write: i/o timeout") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            raise Disconnected(_cause(error)) from error

    async def end(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
            while await self.receive():
                pass

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


def _cause(error: BaseException) -> str:
    """Return the text of the innermost cause.

    trio wraps the errors of all addresses of a name, and any error of a stream. Its own texts repeat the address.
    """
    inner = error.__cause__
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    cause = inner or error
    if isinstance(cause, OSError) and cause.errno and not isinstance(cause, socket.gaierror | ssl.SSLError):
        return os.strerror(cause.errno).lower()
    return ((cause.strerror if isinstance(cause, OSError) else None) or str(cause)).lower()
