"""The bytes of one connection, on asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from common.net import AddressError, parse_address
from nsqclient._dial import local_host
from nsqclient._errors import ConnectError, Disconnected, NSQError

if TYPE_CHECKING:
    from nsqclient._config import Config
    from nsqclient._connection import Connection

_READ_SIZE: Final = 64 * 1024


class Link(asyncio.BufferedProtocol):
    """Reads and writes for a connection; `ended` is set when it has gone, `error` says why, if it was not finished."""

    def __init__(self, config: Config) -> None:
        self.ended = asyncio.Event()
        self.error: NSQError | None = None
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._transport: asyncio.Transport | None = None
        # Without it asyncio reads into 256 KiB, which the allocator may map and unmap anew each time: half a publish.
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._is_due = False  # a flush
        self._is_full = False  # what was written last has not left yet
        self._heard_at = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._writing_watch: asyncio.TimerHandle | None = None  # while it is full

    def wake(self) -> None:
        """For the connection: there is something to send."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)

    def begin(self, connection: Connection) -> None:
        self._connection = connection
        assert self._transport is not None
        name = self._transport.get_extra_info("peername")
        connection.peer = str(name[0]) if isinstance(name, tuple) else ""
        self._look()
        self.flush()

    def flush(self) -> None:
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
        self.error = self.error or error
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # From asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)  # we know what has left when we are told to go on

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
        """Whether nsqd is still heard of."""
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
        """`unsent`: as it was at the last look; nothing comes to it as long as it is full."""
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
    """Raises ConnectError."""
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
        # asyncio words errors its own way, with the address in them.
        number = error.errno if isinstance(error, OSError) else None
        text = os.strerror(number) if number is not None and number > 0 else str(error)
        raise ConnectError(f"dial {address}: {text.lower()}") from error
    return link
