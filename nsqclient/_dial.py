"""How nsqd is reached from trio: over TCP or a unix socket, read and written without trio's layers; or over any stream."""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import trio

from common.net import AddressError, parse_address
from nsqclient._errors import ConfigError, ConnectError, Disconnected

if TYPE_CHECKING:
    from nsqclient._config import Config

_READ_SIZE: Final = 120 * 1024  # just below what the allocator maps and unmaps anew for each read


@runtime_checkable
class Dialable(Protocol):
    """Something that takes the place of an nsqd's address: `str()` names it, and it is connected to by itself."""

    async def connect(self) -> trio.abc.Stream: ...


Target = str | Dialable


class Transport(Protocol):
    """Bytes in both directions. Raises Disconnected."""

    @property
    def peer(self) -> str:
        """The IP address of the other end; empty if it has none."""

    async def receive(self) -> bytes:
        """What has come; b"" at the end. A checkpoint."""

    def send_now(self, data: bytes) -> int:
        """How much of it could be sent without waiting."""

    async def send(self, data: bytes, *, timeout: float) -> None:
        """`timeout` is for each step, not for all of it."""

    async def end(self) -> None:
        """Says that nothing more comes, and reads until the other side says so, too: so that nothing sent gets lost."""

    async def close(self) -> None: ...


async def dial(target: Target, config: Config) -> Transport:
    """Raises ConnectError."""
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
    """Raises ConfigError for what can never be dialled."""
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
    """Whom a certificate has to name."""
    try:
        return parse_address(target).host or "localhost" if isinstance(target, str) else "localhost"
    except AddressError:  # some nsqlookupd has listed it: `dial` says so
        return "localhost"


def local_host(config: Config) -> str | None:
    if config.local_addr is None:
        return None
    where = parse_address(config.local_addr)
    if where.port:
        raise ConnectError(f"local_addr {config.local_addr}: only port 0 can be shared by several connections")
    return where.host


class SocketTransport:
    """Implements `Transport`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        # trio's own sockets cannot be tried without waiting, which costs twice a turn.
        self._socket = socket.socket(fileno=stream.socket.detach())
        self._socket.setblocking(False)

    @property
    def peer(self) -> str:
        return peer_of(self._socket)

    async def receive(self) -> bytes:
        # Asking first whether there is something is dearer where there is, and cheaper where there is not, which is
        # as a rule: what was sent together has come together.
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
    """Implements `Transport`."""

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
    """trio wraps: one error for all addresses of a name, one for whatever broke a stream; and names the address again."""
    inner = error.__cause__
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    cause = inner or error
    if isinstance(cause, OSError) and cause.errno and not isinstance(cause, socket.gaierror | ssl.SSLError):
        return os.strerror(cause.errno).lower()
    return ((cause.strerror if isinstance(cause, OSError) else None) or str(cause)).lower()
