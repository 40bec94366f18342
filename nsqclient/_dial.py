"""How trio reaches an nsqd: over TCP or a unix socket without trio's own socket layer, or over any trio stream."""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING, Final, Protocol

import trio

from nsqclient.core.errors import ConnectError, Disconnected
from nsqclient.shell.targets import Dialable, Target, local_host, peer_of
from nsqcommon.net import AddressError, parse_address

if TYPE_CHECKING:
    from nsqclient.core.config import Config

_READ_SIZE: Final = 120 * 1024  # the allocator would map and unmap a larger buffer for each read


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
