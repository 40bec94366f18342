"""Reading and writing the socket of one connection on asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from nsqclient.core.errors import ConnectError, Disconnected, NSQError
from nsqclient.shell.targets import local_host
from nsqcommon.net import AddressError, parse_address

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.connection import Connection

_READ_SIZE: Final = 64 * 1024


class Link(asyncio.BufferedProtocol):
    """Reads and writes for a connection.

    `ended` is set when the connection has gone; then `error` says why, or is None if it was finished.
    """

    def __init__(self, config: Config) -> None:
        self.ended = asyncio.Event()
        self.error: NSQError | None = None
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._transport: asyncio.Transport | None = None
        # asyncio's own buffer of 256 KiB may be mapped and unmapped for each read, which takes half of the time of a
        # publish.
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._is_due = False  # a flush is scheduled
        self._is_full = False  # the last write has not left the process yet
        self._heard_at = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None  # for read_timeout
        self._writing_watch: asyncio.TimerHandle | None = None  # for write_timeout, while `_is_full`

    def wake(self) -> None:
        """Schedule a flush, because the connection has bytes to send."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)

    def attach(self, connection: Connection) -> None:
        """Serve this connection."""
        self._connection = connection
        assert self._transport is not None
        name = self._transport.get_extra_info("peername")
        connection.peer = str(name[0]) if isinstance(name, tuple) else ""
        self._look()
        self.flush()

    def flush(self) -> None:
        """Write what the connection has to send, and close the transport once the connection is finished."""
        self._is_due = False
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or self._is_full or self.ended.is_set():
            return
        try:
            data = connection.bytes_to_send()
        except NSQError as error:
            self.fail(error)
            return
        if data:
            transport.write(data)
            if not self._is_full:
                connection.written(self._loop.time())
        if connection.finished and not self._is_full:
            if goodbye := connection.goodbye():
                transport.write(goodbye)
            transport.close()

    def fail(self, error: NSQError) -> None:
        """End the connection because of an error."""
        self.error = self.error or error
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # From asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do what asyncio.Transport does, and are none.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)  # so that `resume_writing` means that everything has left

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        connection = self._connection
        self._heard_at = self._loop.time()
        if connection is None:
            return
        try:
            connection.receive(bytes(self._buffer[:nbytes]), self._heard_at)
        except NSQError as error:
            self.fail(error)

    def pause_writing(self) -> None:
        self._is_full = True
        self._watch_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        self._stop_watching_writing()
        if self._connection is not None:
            self._connection.written(self._loop.time())
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        if self._connection is not None and not self._connection.finished and self.error is None:
            self.error = Disconnected(str(error or "connection closed by nsqd"))
        if self._watch is not None:
            self._watch.cancel()
        self._stop_watching_writing()
        self.ended.set()

    def _look(self) -> None:
        """Fail if nsqd was silent for too long; otherwise check again later."""
        left = self._heard_at + self._config.read_timeout - self._loop.time()
        if left <= 0:
            self.fail(Disconnected("IO error - read: i/o timeout"))
        else:
            self._watch = self._loop.call_later(left, self._look)

    # Whether nsqd still reads

    def _watch_writing(self) -> None:
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size()
        self._writing_watch = self._loop.call_later(self._config.write_timeout, self._look_at_writing, unsent)

    def _look_at_writing(self, unsent: int) -> None:
        """Fail unless some of the `unsent` bytes of the previous check have left.

        Nothing is added while the link is full, so fewer bytes mean progress.
        """
        assert self._transport is not None
        if self._transport.get_write_buffer_size() < unsent:
            self._watch_writing()
        else:
            self.fail(Disconnected("IO error - write: i/o timeout"))

    def _stop_watching_writing(self) -> None:
        if self._writing_watch is not None:
            self._writing_watch.cancel()
            self._writing_watch = None


async def dial(address: str, config: Config) -> Link:
    """Connect and return the link. Raise ConnectError."""
    loop = asyncio.get_running_loop()
    make: Callable[[], Link] = lambda: Link(config)  # noqa: E731
    try:
        async with asyncio.timeout(config.dial_timeout):
            where = parse_address(address)
            if where.is_unix:
                _, link = await loop.create_unix_connection(make, where.path)
            else:
                local = local_host(config)
                _, link = await loop.create_connection(
                    make, where.host, where.port, local_addr=(local, 0) if local else None
                )
    except TimeoutError as error:
        raise ConnectError(f"dial {address}: i/o timeout") from error
    except (OSError, AddressError) as error:
        # asyncio's own texts contain the address once more.
        number = error.errno if isinstance(error, OSError) else None
        text = os.strerror(number) if number is not None and number > 0 else str(error)
        raise ConnectError(f"dial {address}: {text.lower()}") from error
    return link
