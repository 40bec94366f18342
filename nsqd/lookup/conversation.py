"""Pipelines commands and replies on one connection to an nsqlookupd."""

from __future__ import annotations

import os
from collections import deque
from typing import Final, NoReturn

import trio

from nsqcommon.wakeup import Wakeup
from nsqcommon.wire.lookup import ReplyReader
from nsqd.lookup.registration import RegistrationRefused
from nsqd.lookup.times import IO_LIMIT

# Commands sent before we wait for a reply. Otherwise a resync would cost a round trip per topic. nsqlookupd answers
# pipelined commands in order.
AT_ONCE: Final = 256

_READ_SIZE: Final = 64 * 1024


class Conversation:
    """Commands and replies on one connection. Raises RegistrationRefused if the peer is too slow or disconnects."""

    def __init__(self, stream: trio.abc.Stream, most: int) -> None:
        self._stream = stream
        self._reader = ReplyReader(most)
        self._replies: deque[bytes] = deque()
        self._arrived = Wakeup()
        self._awaited = 0  # replies that have not arrived, or that we have not read
        self._unread = 0  # commands of `send_now` whose replies the next `ask` will read
        self._unsent = b""
        self._sending = False

    @property
    def room(self) -> int:
        """The number of commands you may send now."""
        return max(0, AT_ONCE - self._awaited)

    @property
    def has_unread_replies(self) -> bool:
        """Whether the next `ask` will read replies to `send_now`."""
        return self._unread > 0

    async def listen(self) -> NoReturn:
        while data := await self._stream.receive_some(_READ_SIZE):
            self._reader.receive(data)
            while (reply := self._reader.next_reply()) is not None:
                self._replies.append(reply)
            self._arrived.set()
            if len(self._replies) > self._awaited + AT_ONCE:
                raise RegistrationRefused("sent more replies than it got commands")
        raise RegistrationRefused("connection closed by peer")

    def send_now(self, commands: list[bytes]) -> None:
        """Write as much as the socket takes without waiting. The next `ask` sends the rest and reads the replies."""
        self._unread += len(commands)
        self._awaited += len(commands)
        self._unsent += b"".join(commands)
        if not self._sending:
            self._unsent = self._unsent[_write_now(self._stream, self._unsent) :]

    async def ask(self, *commands: bytes, before: bytes = b"") -> list[bytes]:
        """Send the commands, and return all replies in order. Replies to earlier calls of `send_now` come first."""
        count, self._unread = self._unread + len(commands), 0
        self._awaited += len(commands)
        self._unsent += before + b"".join(commands)
        try:
            await self._send()
            return [await self._next_reply() for _ in range(count)]
        except trio.TooSlowError as error:
            raise RegistrationRefused(f"no answer within {IO_LIMIT:g} s") from error

    async def _send(self) -> None:
        """Send everything, including commands that `send_now` adds in the meantime."""
        self._sending = True
        try:
            with trio.fail_after(IO_LIMIT):
                while self._unsent:
                    data, self._unsent = self._unsent, b""
                    await self._stream.send_all(data)
        finally:
            self._sending = False

    async def _next_reply(self) -> bytes:
        if not self._replies:
            with trio.fail_after(IO_LIMIT):
                while not self._replies:
                    await self._arrived.wait()
        self._awaited -= 1
        return self._replies.popleft()


def _write_now(stream: trio.abc.Stream, data: bytes) -> int:
    """Write without waiting. Returns the number of bytes written, which is always 0 with TLS."""
    if not isinstance(stream, trio.SocketStream):
        return 0
    try:
        return os.write(stream.socket.fileno(), data)
    except OSError:  # the socket is full or broken; the peer's task will notice
        return 0
