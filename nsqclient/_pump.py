"""The tasks that move the bytes of one connection on trio."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from nsqclient.core.errors import Disconnected, NSQError
from nsqcommon.wakeup import Wakeup

if TYPE_CHECKING:
    from nsqclient._dial import Transport
    from nsqclient.core.config import Config
    from nsqclient.core.connection import Connection

_DEADLINES: Final = 16  # how often a deadline is moved at most within its own length
_GOODBYE: Final = 0.5  # seconds for the peer to notice the end and end its side


class Pump:
    """Reads and writes for a connection until it is finished or has failed."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._wakeup = Wakeup()
        self._transport: Transport | None = None
        self._connection: Connection | None = None
        self._is_writing = False
        self._rest = b""  # unsent part of the last write
        self._is_held = False
        self._error: NSQError | None = None

    def wake(self) -> None:
        """Wake the writing task, because the connection has bytes to send."""
        if not self._is_held:
            self._wakeup.set()

    async def run(self, connection: Connection, transport: Transport) -> None:
        """Serve the connection, and return when it was finished. Raise the NSQError that has ended it otherwise.

        Cancelling it closes the socket.
        """
        self._connection, self._transport = connection, transport
        connection.peer = transport.peer
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, connection, transport, nursery.cancel_scope)
                await self._write(connection, transport)
                nursery.cancel_scope.cancel()
            if self._error is not None:
                raise self._error
            await self._end(connection, transport)
        finally:
            self._connection = None
            with trio.CancelScope(shield=True):
                await transport.close()

    def hold(self) -> None:
        """Collect what the connection sends until `release`, which writes it at once if that needs no waiting."""
        self._is_held = not (self._is_writing or self._rest)

    def release(self) -> None:
        """Write what was collected since `hold`."""
        if self._is_held:
            self._is_held = False
            self._flush()

    def _flush(self) -> None:
        connection, transport = self._connection, self._transport
        if connection is None or transport is None:
            return
        data = connection.bytes_to_send()
        sent = 0
        with suppress(Disconnected):  # the reading or writing task gets the same error
            sent = transport.send_now(data)
        if sent == len(data):
            connection.written(trio.current_time())
        else:
            self._rest = data[sent:]
            self._wakeup.set()

    async def _read(self, connection: Connection, transport: Transport, scope: trio.CancelScope) -> None:
        timeout = self._config.read_timeout
        slack = timeout / _DEADLINES  # moving a deadline costs as much as a message
        now = moved_at = trio.current_time()
        try:
            with trio.CancelScope(deadline=now + timeout + slack) as waiting:
                while True:
                    data = await transport.receive()
                    if not data:
                        raise Disconnected("connection closed by nsqd")
                    now = trio.current_time()
                    if now > moved_at + slack:
                        moved_at = now
                        waiting.deadline = now + timeout + slack
                    connection.receive(data, now)
            if waiting.cancelled_caught:
                raise Disconnected("IO error - read: i/o timeout")
        except NSQError as error:
            self._error = self._error or error
            scope.cancel()

    async def _write(self, connection: Connection, transport: Transport) -> None:
        timeout = self._config.write_timeout
        try:
            while True:
                data, self._rest = self._rest or connection.bytes_to_send(), b""
                if data:
                    self._is_writing = True
                    await transport.send(data, timeout=timeout)
                    self._is_writing = False
                    connection.written(trio.current_time())
                elif connection.finished:
                    return
                else:
                    await self._wakeup.wait()
        except NSQError as error:
            self._error = self._error or error

    async def _end(self, connection: Connection, transport: Transport) -> None:
        with trio.move_on_after(_GOODBYE), suppress(Disconnected):
            if goodbye := connection.goodbye():
                await transport.send(goodbye, timeout=_GOODBYE)
            await transport.end()
