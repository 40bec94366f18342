"""A bad network between clients and nodes: a TCP proxy that disturbs connections as networks do, driven by a seed.

    client ---> Link (a port of its own) ---> nsqd, nsqlookupd, ...

Bytes that pass arrive in their order and unchanged; a connection may end anywhere between two of them. What no TCP
network does (lose or exchange bytes within a connection) is left out, because TCP itself repairs that.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from random import Random
from typing import Final

import trio

from tests.soak.ledger import Ledger

_READ_SIZE: Final = 65536
_LONGEST_DELAY: Final = 0.3
_NEXT: Final = 0.05  # seconds that a cut waits for bytes, so that it comes in the middle of them
_SETTLES: Final = 2.0  # seconds after which both ends have noticed what happened to their connection


class Fault(StrEnum):
    """What happens to existing and new connections while the fault lasts."""

    CUT = "cut"  # existing ones are closed after a part of what was under way; new ones are closed at once
    RESET = "reset"  # the same with RST
    STALL = "stall"  # nothing passes, and neither end notices; new ones are accepted
    HALF_CLOSE = "half-close"  # the server sees the end of the client's stream, and goes on sending
    DELAY = "delay"  # each piece is delayed
    DRIP = "drip"  # a few bytes at a time
    BLACK_HOLE = "black hole"  # new ones are accepted and lead nowhere; the others go on


class Link:
    """An address behind the bad network."""

    def __init__(self, target: tuple[str, int], chance: Random) -> None:
        self.target = target
        self.address = ("", 0)
        self.fault: Fault | None = None
        self.connections = 0
        self._chance = chance
        self._healed = trio.Event()
        self._passing: set[_Passage] = set()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. The address is known when this has started."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = listeners[0].socket.getsockname()
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._connected, listeners)
            task_status.started()

    def begin(self, fault: Fault) -> None:
        self.fault = fault
        self._healed = trio.Event()
        for passage in list(self._passing):
            passage.suffer(fault)

    def heal(self) -> None:
        self.fault = None
        self._healed.set()

    async def _connected(self, client: trio.SocketStream) -> None:
        self.connections += 1
        if self.fault in (Fault.CUT, Fault.RESET):
            await _end(client, with_reset=self.fault is Fault.RESET)
            return
        while self.fault is Fault.BLACK_HOLE:
            await self._healed.wait()
        try:
            server = await trio.open_tcp_stream(*self.target)
        except OSError:  # the node is down
            await _end(client, with_reset=True)
            return
        passage = _Passage(self, client, server)
        self._passing.add(passage)
        try:
            await passage.run()
        finally:
            self._passing.remove(passage)

    async def weather(self, data: bytes) -> list[bytes]:
        """Wait until these bytes may go on, and return the pieces in which they do."""
        while self.fault is Fault.STALL:
            await self._healed.wait()
        if self.fault is Fault.DELAY:
            await trio.sleep(self._chance.uniform(0, _LONGEST_DELAY))
        if self.fault is not Fault.DRIP:
            return [data]
        size = max(1, len(data) // self._chance.randint(2, 50))
        return [data[place : place + size] for place in range(0, len(data), size)]

    def torn(self, data: bytes) -> bytes:
        return data[: self._chance.randint(0, len(data))]


class _Passage:
    """One connection through a link."""

    def __init__(self, link: Link, client: trio.SocketStream, server: trio.SocketStream) -> None:
        self._link = link
        self._client = client
        self._server = server
        self._scope = trio.CancelScope()
        self._upward = trio.CancelScope()  # from client to server
        self._is_ending = False
        self._with_reset = False

    async def run(self) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._compact_logs, self._client, self._server, self._upward)
                    nursery.start_soon(self._compact_logs, self._server, self._client, trio.CancelScope())
        finally:
            for stream in (self._client, self._server):
                await _end(stream, with_reset=self._with_reset)

    def suffer(self, fault: Fault) -> None:
        if fault is Fault.HALF_CLOSE:
            self._upward.cancel()
        elif fault in (Fault.CUT, Fault.RESET):
            self._with_reset = fault is Fault.RESET
            self._is_ending = True  # the connection ends in the middle of what comes next, if anything does
            self._scope.deadline = trio.current_time() + _NEXT

    async def _compact_logs(self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
        """Carry bytes in one direction, in order, up to their end, which is passed on, too."""
        try:
            with scope:
                while data := bytes(await source.receive_some(_READ_SIZE)):
                    for piece in await self._link.weather(data):
                        await sink.send_all(self._link.torn(piece) if self._is_ending else piece)
                        if self._is_ending:
                            self._scope.cancel()
                        await trio.lowlevel.checkpoint()
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):  # one end has gone, so the other is closed
            self._scope.cancel()


async def _end(stream: trio.SocketStream, *, with_reset: bool) -> None:
    if with_reset:
        with suppress(OSError):
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(stream)


async def storm(
    links: Sequence[Link],
    ledger: Ledger,
    chance: Random,
    *,
    longest: float,
    say: Callable[[str], None],
    faults: Sequence[Fault] = tuple(Fault),
) -> None:
    """Let one fault follow another on these links until cancelled, and tell the ledger when; at the end, heal all links."""
    try:
        while True:
            link, fault = chance.choice(links), chance.choice(faults)
            await _break(link, fault, chance.uniform(0.1, longest), ledger, say)
            await trio.sleep(chance.uniform(0.1, longest))
    finally:
        for link in links:
            link.heal()


async def each_once(
    link: Link,
    ledger: Ledger,
    chance: Random,
    *,
    longest: float,
    say: Callable[[str], None],
    recovered: Callable[[], Awaitable[None]],
) -> None:
    """Let each fault come once, in a random order, and go on when the load has recovered from it."""
    for fault in chance.sample(list(Fault), len(Fault)):
        await _break(link, fault, chance.uniform(0.1, longest), ledger, say)
        await recovered()


async def _break(link: Link, fault: Fault, length: float, ledger: Ledger, say: Callable[[str], None]) -> None:
    """Have a fault on a link for so many seconds, and tell the ledger when."""
    say(f"{fault} for {length:.1f} s")
    began = trio.current_time()
    ledger.interrupted(began, began + length + _SETTLES)
    link.begin(fault)
    await trio.sleep(length)
    link.heal()
