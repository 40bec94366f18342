"""Commands and replies on one connection with an nsqlookupd."""

from __future__ import annotations

import os
from collections import deque
from typing import Final, NoReturn

import trio

from nsqcommon.wakeup import Wakeup
from nsqcommon.wire.lookup import ReplyReader
from nsqd.lookup.registration import RegistrationRefused
from nsqd.lookup.times import IO_LIMIT

# Commands sent without waiting for a reply. Waiting for each would make a resync of many topics cost a round trip per
# topic. nsqlookupd answers pipelined commands in order.
AT_ONCE: Final = 256

_READ_SIZE: Final = 64 * 1024


class Conversation:
    """Commands and their replies on one connection. Raises RegistrationRefused when the peer is too slow or has gone."""

    def __init__(self, stream: trio.abc.Stream, most: int) -> None:
        self._stream = stream
        self._reader = ReplyReader(most)
        self._replies: deque[bytes] = deque()
        self._arrived = Wakeup()
        self._awaited = 0  # replies still to come
        self._told = 0  # commands sent by `tell` whose replies no `ask` has read yet
        self._unsent = b""
        self._sending = False

    @property
    def room(self) -> int:
        """The number of commands that may be sent now."""
        return max(0, AT_ONCE - self._awaited)

    @property
    def was_told(self) -> bool:
        """Whether replies to `tell` are still to be read. The next `ask` reads them."""
        return self._told > 0

    async def listen(self) -> NoReturn:
        while data := await self._stream.receive_some(_READ_SIZE):
            self._reader.receive(data)
            while (reply := self._reader.next_reply()) is not None:
                self._replies.append(reply)
            self._arrived.set()
            if len(self._replies) > self._awaited + AT_ONCE:
                raise RegistrationRefused("says more than it is asked")
        raise RegistrationRefused("connection closed by peer")

    def tell(self, commands: list[bytes]) -> None:
        """Hand the socket what it accepts without waiting. The next `ask` sends the rest and reads the replies."""
        self._told += len(commands)
        self._awaited += len(commands)
        self._unsent += b"".join(commands)
        if not self._sending:
            self._unsent = self._unsent[_send_now(self._stream, self._unsent) :]

    async def ask(self, *commands: bytes, before: bytes = b"") -> list[bytes]:
        """Return all replies in order, beginning with those to commands that `tell` has sent."""
        count, self._told = self._told + len(commands), 0
        self._awaited += len(commands)
        self._unsent += before + b"".join(commands)
        try:
            await self._send()
            return [await self._next_reply() for _ in range(count)]
        except trio.TooSlowError as error:
            raise RegistrationRefused(f"no answer within {IO_LIMIT:g} s") from error

    async def _send(self) -> None:
        """Send everything, including what `tell` adds meanwhile."""
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


def _send_now(stream: trio.abc.Stream, data: bytes) -> int:
    """Return how many bytes the stream has accepted at once: 0 if it can only be awaited, as with TLS."""
    if not isinstance(stream, trio.SocketStream):
        return 0
    try:
        return os.write(stream.socket.fileno(), data)
    except OSError:  # the socket is full, or broken, which the task will notice
        return 0
