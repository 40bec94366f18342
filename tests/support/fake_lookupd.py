"""An nsqlookupd that does what a test tells it, and keeps what nsqd has sent to it.

It speaks over any stream: over memory where the clock jumps, over sockets through `listen`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from ssl import SSLContext

import trio

from nsqcommon.wire.lookup import MAGIC, LookupCommandReader, PeerAddress, encode_reply, identify_reply


@dataclass
class Visit:
    """One connection."""

    stream: trio.abc.Stream
    magic: bytes = b""
    identity: bytes = b""
    commands: list[str] = field(default_factory=list)  # without IDENTIFY
    ended: bool = False

    @property
    def told(self) -> list[str]:
        return [command for command in self.commands if command != "PING"]

    @property
    def pings(self) -> int:
        return self.commands.count("PING")


def ok(command: str) -> bytes | None:
    return b"OK"


def json_answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class FakeLookupd:
    def __init__(self, broadcast_address: str = "127.0.0.1") -> None:
        self.visits: list[Visit] = []
        self.answer: Callable[[str], bytes | None] = ok  # None: silence
        self.identify_answer: bytes | None = identify_reply(PeerAddress(broadcast_address, "fake", 4161, 4160, "1.3.0"))
        self.asked: list[str] = []  # requests over HTTP: request line and Accept
        self.http_answer = json_answer(b'{"channels":[]}')
        self.before_http_answer: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint

    @property
    def last(self) -> Visit:
        return self.visits[-1]

    @property
    def registered(self) -> set[str]:
        """Return what a real one would show now: `topic` and `topic channel`."""
        shown: set[str] = set()
        for command in () if self.last.ended else self.last.told:
            word, _, what = command.partition(" ")
            topic = what.partition(" ")[0]
            if word == "REGISTER":
                shown |= {topic, what}
            else:
                shown.discard(what)
        return shown

    async def serve(self, stream: trio.abc.Stream) -> None:
        visit = Visit(stream)
        self.visits.append(visit)
        reader = LookupCommandReader()
        try:
            async with stream:
                async for data in stream:
                    reader.receive(data)
                    await self._converse(visit, reader)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            visit.ended = True

    async def _converse(self, visit: Visit, reader: LookupCommandReader) -> None:
        visit.magic = visit.magic or reader.take(len(MAGIC)) or b""
        while visit.magic and (words := reader.next_words()) is not None:
            command = b" ".join(words).decode()
            if command == "IDENTIFY":
                visit.identity = reader.next_body() or b""
                reply = self.identify_answer
            else:
                visit.commands.append(command)
                reply = self.answer(command)
            if reply is not None:
                await visit.stream.send_all(encode_reply(reply))

    async def serve_http(self, stream: trio.abc.Stream) -> None:
        """Answer one request, then close. A client that keeps its connection has to make a new one."""
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                data = await stream.receive_some()
                if not data:
                    return
                head += data
            lines = head.decode().split("\r\n")
            self.asked.append(" ".join([lines[0], *(line for line in lines if line.startswith("Accept"))]))
            await self.before_http_answer()
            await stream.send_all(self.http_answer)

    async def listen(
        self, *, tls: SSLContext | None = None, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen on real ports until cancelled. Report the TCP address when ready, and tell nsqd the HTTP port."""

        def wrapped(
            handler: Callable[[trio.abc.Stream], Awaitable[None]],
        ) -> Callable[[trio.abc.Stream], Awaitable[None]]:
            async def handle(stream: trio.abc.Stream) -> None:
                if tls is not None:
                    stream = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
                await handler(stream)

            return handle

        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, port=0, host="127.0.0.1")
            ports = [await nursery.start(serve, wrapped(handler)) for handler in (self.serve, self.serve_http)]
            tcp, http = (int(listeners[0].socket.getsockname()[1]) for listeners in ports)
            self.identify_answer = identify_reply(PeerAddress("127.0.0.1", "fake", http, tcp, "1.3.0"))
            task_status.started(f"127.0.0.1:{tcp}")
