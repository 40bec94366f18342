"""nsqd's connections: each connects a socket to its protocol.

After a restart of nsqlookupd all nsqds register all their topics and channels at once, while consumers keep asking. So
we execute commands in slices of a millisecond. A connection with commands left after a slice waits in
`BusyConnections`, which serves connections in turn.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

import trio

from nsqcommon.budget import Budget
from nsqcommon.poller import Poller, never
from nsqcommon.secure import SecureHandler
from nsqcommon.turn import in_turn
from nsqcommon.wakeup import Wakeup
from nsqlookupd.protocol import LookupProtocol, ProtocolState
from nsqlookupd.turn import Turn

if TYPE_CHECKING:
    from nsqcommon.handshake import TlsServer
    from nsqcommon.poller import Connection, Handler
    from nsqcommon.wire.lookup import PeerAddress
    from nsqlookupd.registry import Registry

log = logging.getLogger(__name__)

_SLICE: Final = 0.001  # seconds before other tasks run
_ROUNDS: Final = 5  # turns of the event loop between two slices: an HTTP answer takes that many
_STEPS: Final = 4  # commands of one connection before the next connection's turn
_MOST_UNREAD: Final = 128 * 1024  # bytes of waiting commands; with more, we don't read the socket
_WRITE_TIMEOUT: Final = 10.0  # seconds; nsqd reads its answers within one second
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    most: int  # connections; further ones wait in the listener's backlog
    silence: float  # seconds that a connection may be silent before IDENTIFY


def note(level: str, text: str, *arguments: object) -> None:
    """Log for the protocol, which as a core has no logger. Implements its `Note`."""
    log.log(_LEVELS[level], text, *arguments)


class BusyConnections:
    """Connections with commands that didn't fit into a slice of time. Also the poller's turn."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._waiting: deque[LookupClient] = deque()
        self._is_filled = Wakeup()
        self._stop = 0.0

    @property
    def time_is_up(self) -> bool:
        """True if a new command has to wait, behind others or for the next slice."""
        return bool(self._waiting) or monotonic() >= self._stop

    def begin(self) -> float:
        """Begin a turn of the registry, and a new slice of time."""
        now = self.turn.begin()
        self._stop = now + _SLICE
        return now

    def take_time(self) -> float:
        return self.turn.take_time()

    def is_full(self) -> bool:
        return False  # commands leave no work for `finish`

    def finish(self) -> None:
        self.turn.finish()

    def add(self, client: LookupClient) -> None:
        self._waiting.append(client)
        self._is_filled.set()

    async def work_off(self) -> None:
        """Execute waiting commands, slice by slice, until cancelled."""
        while True:
            await self._is_filled.wait()
            for _ in range(_ROUNDS):
                await trio.lowlevel.checkpoint()
            with in_turn(self):
                while self._waiting and monotonic() < self._stop:
                    client = self._waiting.popleft()
                    try:
                        if client.work():
                            self._waiting.append(client)
                    except Exception:  # our bug, which costs only this connection, as in common/nsqcommon/poller.py
                        log.exception("client(%s) - internal error, connection dropped", client.id)
                        client.drop()
                if self._waiting:
                    self._is_filled.set()


class LookupClient:
    """One connection of nsqd: a handler for the poller."""

    def __init__(
        self, protocol: LookupProtocol, backlog: BusyConnections, wake: Callable[[], None], silence: float
    ) -> None:
        self.id = protocol.id
        self.aborted = False
        self._protocol = protocol
        self._backlog = backlog
        self._wake = wake
        self._silence = silence
        self._last_heard = monotonic()
        self._is_waiting = False  # True while it is in the backlog
        self._has_ended = False

    write_timeout: Final = _WRITE_TIMEOUT
    lingers: Final = False  # nsqd's commands are small

    def receive(self, data: bytes, now: float) -> None:
        self._last_heard = now
        self._protocol.receive(data)
        self._work_or_wait()

    def end(self) -> None:
        self._has_ended = True
        self._work_or_wait()

    def work(self) -> bool:
        """Execute some of the waiting commands. Return True if there may be more."""
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
            # When a switch fails, hundreds of peers leave at once, each with all its registrations, so they queue up.
            self._backlog.add(self)

    def tick(self, now: float) -> None:
        log.info("client(%s) - no IDENTIFY received, connection dropped", self.id)
        self.drop()

    def drop(self) -> None:
        self.aborted = True
        self._is_waiting = False
        self._wake()

    @property
    def next_deadline(self) -> float:
        """When to drop the connection if it stays silent.

        After IDENTIFY a peer may be silent forever: it becomes inactive, and its next ping reactivates it.
        """
        return inf if self._protocol.is_identified or self.aborted else self._last_heard + self._silence

    @property
    def reading(self) -> bool:
        return self._protocol.unread < _MOST_UNREAD or not self._is_waiting

    @property
    def finished(self) -> bool:
        return self._protocol.state is ProtocolState.CLOSED

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


class Clients:
    """All connections of nsqd, on the poller. With `tls`, only TLS is accepted."""

    def __init__(
        self, registry: Registry, address: PeerAddress, limits: ConnectionLimits, tls: TlsServer | None = None
    ) -> None:
        self._registry = registry
        self.tls = tls
        self._address = address
        self._limits = limits
        self.poller = Poller(lambda flush: BusyConnections(Turn(registry, flush)))
        self._backlog = self.poller.turn
        self.turn = self._backlog.turn
        self._budget = Budget(limits.most, "TCP")

    def __len__(self) -> int:
        return self._budget.taken

    async def accept(self, listener: socket.socket) -> None:
        """Accept connections until cancelled; `run` serves them."""
        is_crowded = self.tls.queue_is_long if self.tls is not None else never
        await self.poller.accept(listener, self._make_client, self._budget, is_crowded=is_crowded)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the connections until cancelled; then close them all."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.poller.run)
                nursery.start_soon(self._backlog.work_off)
                task_status.started()
        finally:
            self.poller.close_all()

    def _make_client(self, connection: Connection, wake: Callable[[], None]) -> Handler:
        log.info("TCP: new client(%s)", connection.peer)
        protocol = LookupProtocol(self._registry, id=connection.peer, address=self._address, note=note)
        client = LookupClient(protocol, self._backlog, wake, self._limits.silence)
        if self.tls is None:
            return client
        say = partial(log.info, "client(%s) - %s", connection.peer)
        secure = SecureHandler(self.tls, now=monotonic(), wake=wake, note=say)
        secure.inner = client
        return secure
