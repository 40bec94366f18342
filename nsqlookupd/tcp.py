"""nsqd's connections: what ties a socket to its protocol.

After a restart of nsqlookupd every nsqd registers all that it has, at once, and consumers ask meanwhile. So commands are
carried out for a few milliseconds at a stretch; what is left then stands in a `Backlog`, from which connections are
served in turn.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

import trio

from common.net import format_peer
from nsqlookupd.protocol import LookupProtocol, State

if TYPE_CHECKING:
    from common.poller import Connection, Handler, MakeHandler
    from common.wire.lookup import PeerAddress
    from nsqlookupd.registry import Registry
    from nsqlookupd.turn import Turn

log = logging.getLogger(__name__)

_SLICE: Final = 0.001  # seconds at a stretch before others get their turn
_ROUNDS: Final = 5  # of the loop for others between two stretches: an answer over HTTP takes that many
_STEPS: Final = 4  # commands of one connection before the next one's
_MOST_UNREAD: Final = 128 * 1024  # bytes of commands that wait before no more are read
_WRITE_TIMEOUT: Final = 10.0  # a peer reads its answers within 1 s if it is an nsqd
_HANDSHAKE_TIMEOUT: Final = 10.0
_MOST_RECEIVED: Final = 65536  # bytes at once
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def note(level: str, text: str, *arguments: object) -> None:
    log.log(_LEVELS[level], text, *arguments)


class Backlog:
    """Connections with commands that had to wait."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._waiting: deque[LookupClient] = deque()
        self._is_filled = trio.Event()
        self._stop = 0.0

    @property
    def time_is_up(self) -> bool:
        return bool(self._waiting) or monotonic() >= self._stop

    def begin(self) -> float:
        """As the turn's, and a new stretch of time begins."""
        now = self._turn.begin()
        self._stop = now + _SLICE
        return now

    def finish(self) -> None:
        self._turn.finish()

    def add(self, client: LookupClient) -> None:
        self._waiting.append(client)
        self._is_filled.set()

    async def work_off(self) -> None:
        while True:
            await self._is_filled.wait()
            for _ in range(_ROUNDS):
                await trio.lowlevel.checkpoint()
            self.begin()
            while self._waiting and monotonic() < self._stop:
                client = self._waiting.popleft()
                if client.work():
                    self._waiting.append(client)
            if not self._waiting:
                self._is_filled = trio.Event()
            self.finish()


class LookupClient:
    """A handler for the poller."""

    def __init__(self, protocol: LookupProtocol, backlog: Backlog, wake: Callable[[], None]) -> None:
        self._protocol = protocol
        self._backlog = backlog
        self._wake = wake
        self._is_waiting = False  # in the backlog
        self._has_ended = False
        self.aborted = False

    write_timeout: Final = _WRITE_TIMEOUT
    next_deadline: Final = inf

    def receive(self, data: bytes, now: float) -> None:
        self._protocol.receive(data)
        self._work_or_wait()

    def end(self) -> None:
        self._has_ended = True
        self._work_or_wait()

    def work(self) -> bool:
        """Carries out some of the commands that wait; True: there may be more."""
        if self.aborted:
            self._protocol.close("connection lost")
            return False
        self._is_waiting = self._some_steps()
        return self._is_waiting

    def bytes_to_send(self) -> list[bytes]:
        return self._protocol.bytes_to_send()

    def sent(self, unsent: int) -> None: ...

    def abort(self) -> None:
        self.aborted = True
        if not self.finished and not self._is_waiting:
            self._backlog.add(self)  # when a switch fails, hundreds go at once, each with all that it had

    def tick(self, now: float) -> None: ...

    @property
    def reading(self) -> bool:
        return self._protocol.unread < _MOST_UNREAD or not self._is_waiting

    @property
    def finished(self) -> bool:
        return self._protocol.state is State.CLOSED

    def _work_or_wait(self) -> None:
        if self._is_waiting:
            return
        if self._backlog.time_is_up or self._some_steps():
            self._is_waiting = True
            self._backlog.add(self)

    def _some_steps(self) -> bool:
        step = self._protocol.step
        self._wake()
        for _ in range(_STEPS):
            if not step():
                if self._has_ended:
                    self._protocol.end()
                return False
        return True


def client_maker(registry: Registry, backlog: Backlog, address: PeerAddress) -> MakeHandler:
    """Makes the handler of each new connection."""

    def make(connection: Connection, wake: Callable[[], None]) -> Handler:
        log.info("TCP: new client(%s)", connection.peer)
        return LookupClient(LookupProtocol(registry, id=connection.peer, address=address, note=note), backlog, wake)

    return make


class TlsClients:
    """The same over TLS: a task for each connection, as only the commands matter here and not the last microsecond."""

    def __init__(self, registry: Registry, turn: Turn, address: PeerAddress, context: ssl.SSLContext) -> None:
        self._registry = registry
        self._turn = turn
        self._address = address
        self._context = context
        self._count = 0

    def __len__(self) -> int:
        return self._count

    async def accept(self, listener: socket.socket) -> None:
        """Serves until cancelled."""
        trio_listener = trio.SocketListener(trio.socket.from_stdlib_socket(listener.dup()))
        await trio.serve_listeners(self._serve, [trio_listener])

    async def _serve(self, transport: trio.SocketStream) -> None:
        peer = format_peer(cast(socket.socket, transport.socket))  # it has all that is asked here
        log.info("TCP: new client(%s)", peer)
        protocol = LookupProtocol(self._registry, id=peer, address=self._address, note=note)
        stream = trio.SSLStream(transport, self._context, server_side=True)
        self._count += 1
        try:
            with trio.fail_after(_HANDSHAKE_TIMEOUT):
                await stream.do_handshake()
            await self._talk(stream, protocol)
        except trio.TooSlowError:
            log.info("client(%s) - does not go on, connection dropped", peer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.info("client(%s) - %s", peer, error.__cause__ or error)
        except Exception:  # our bug, and only this connection pays for it, as in common/poller.py
            log.exception("client(%s) - internal error, connection dropped", peer)
        finally:
            self._count -= 1
            self._turn.begin()
            protocol.close("EOF")
            self._turn.finish()
            await trio.aclose_forcefully(stream)

    async def _talk(self, stream: trio.SSLStream[trio.SocketStream], protocol: LookupProtocol) -> None:
        while protocol.state is not State.CLOSED:
            data = await stream.receive_some(_MOST_RECEIVED)
            protocol.receive(data)
            is_more = True
            while is_more:
                is_more = self._some_steps(protocol, has_ended=not data)
                with trio.fail_after(_WRITE_TIMEOUT):
                    await stream.send_all(b"".join(protocol.bytes_to_send()))

    def _some_steps(self, protocol: LookupProtocol, *, has_ended: bool) -> bool:
        """Whether there may be more to do with what was received."""
        self._turn.begin()
        try:
            for _ in range(_STEPS):
                if not protocol.step():
                    if has_ended:
                        protocol.end()
                    return False
            return True
        finally:
            self._turn.finish()
