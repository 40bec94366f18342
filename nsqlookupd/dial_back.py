"""Connects once to each nsqd that registers: a node that announces an address where it cannot be reached is of no use.

    registered ──► waiting ──► one of a few tasks: resolve the name, decide, connect ──► Registry.set_reachable
                      ▲                                                                       │ not reached
                      └──────────────────────── after RETRY_INTERVAL ◄────────────────────────┘

Nothing waits for this: the node is registered and listed meanwhile. A node that was reached is not tried again. One
that was not is tried every RETRY_INTERVAL, so that it is no longer called unreachable once the cause is gone.

**A registration must not make us connect to somebody else.** Whoever can register could otherwise have us knock at any
door, and learn from `/nodes` whether it is open. So we connect only to an address that is the peer's own, or that an
operator has named (`--dial-back-to`). The name is resolved once, and the address that was judged is the one that is
connected to. Where the name leads elsewhere, as behind address translation, nothing is tried and nothing is said.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from nsqcommon.net import join_host_port
from nsqcommon.turn import in_turn
from nsqcommon.wakeup import Wakeup

if TYPE_CHECKING:
    from nsqcommon.turn import Turn
    from nsqlookupd.options import Network
    from nsqlookupd.registry import Peer, Registry

log = logging.getLogger(__name__)

AT_ONCE: Final = 16  # nodes; more of them wait their turn
LIMIT: Final = 2.0  # seconds for resolving and connecting
RETRY_INTERVAL: Final = 10.0  # seconds

_HIGHEST_PORT: Final = 0xFFFF

Resolve = Callable[[str, int], Awaitable[list[str]]]  # raises OSError
Connect = Callable[[str, int], Awaitable[None]]  # raises OSError


class Rules(NamedTuple):
    """Decides which addresses we may connect to."""

    allowed: Sequence[Network] = ()
    is_ours: Callable[[str], bool] = lambda ip: False  # whether an address is one of this machine's

    def permitted(self, found: Iterable[str], peer: str) -> list[str]:
        """Return the addresses among `found` that we may connect to for a peer at the IP address `peer`."""
        return [ip for ip in found if self._is_permitted(ip, peer)]

    def _is_permitted(self, text: str, peer: str) -> bool:
        ip, own = _parsed(text), _parsed(peer)
        if ip is None:
            return False
        if any(ip in network for network in self.allowed):
            return True
        if own is None:  # it came over a unix socket
            return False
        # A peer on this machine may have any address of this machine.
        return ip == own or (own.is_loopback and (ip.is_loopback or self.is_ours(text)))


class DialBack:
    """Connects to nodes that `add` was called for, while `run` runs."""

    def __init__(
        self,
        registry: Registry,
        turn: Turn,
        rules: Rules,
        *,
        resolve: Resolve | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._registry = registry
        self._turn = turn
        self._rules = rules
        self._resolve = resolve or _resolve
        self._connect = connect or _connect
        self._new: OrderedDict[Peer, None] = OrderedDict()
        self._again: deque[tuple[float, Peer]] = deque()  # the next one first, as all wait equally long
        self._news = Wakeup()

    def add(self, peer: Peer) -> None:
        """Try this peer soon. There are never more of these than peers with a connection."""
        self._new[peer] = None
        self._news.set()

    async def run(self) -> None:
        """Try the peers until cancelled."""
        slots = trio.Semaphore(AT_ONCE)
        async with trio.open_nursery() as nursery:
            while True:
                await slots.acquire()
                nursery.start_soon(self._try, await self._next(), slots)

    async def _next(self) -> Peer:
        """Wait for a peer that is due. New ones come first: they and their operator wait for the verdict."""
        while True:
            while self._new:
                peer, _ = self._new.popitem(last=False)
                if not peer.has_left:
                    return peer
            if self._again and trio.current_time() >= self._again[0][0]:
                _, peer = self._again.popleft()
                if not peer.has_left:
                    return peer
                continue
            self._news.clear()
            with trio.move_on_at(self._again[0][0]) if self._again else trio.CancelScope():
                await self._news.wait()

    async def _try(self, peer: Peer, slots: trio.Semaphore) -> None:
        try:
            problem = await self._problem_of(peer)
        except Exception:  # our bug, which must not end the directory
            log.exception("client(%s) - internal error while connecting back", peer.id)
            return
        finally:
            slots.release()
        if peer.has_left:
            return
        with in_turn(self._turn):
            has_changed = self._registry.set_reachable(peer, problem)
        if has_changed:
            _log_verdict(peer, problem)
        if problem:
            self._again.append((trio.current_time() + RETRY_INTERVAL, peer))
            self._news.set()

    async def _problem_of(self, peer: Peer) -> str:
        """Return why the peer cannot be reached; empty: it was reached, or may not be tried."""
        host, port = peer.identity.broadcast_address, peer.identity.tcp_port
        if not 0 < port <= _HIGHEST_PORT:
            return f"dial {join_host_port(host, port)}: no such port"
        problem = f"lookup {host}: i/o timeout"
        with trio.move_on_after(LIMIT):
            try:
                found = await self._resolve(host, port)
            except OSError as error:
                return f"lookup {host}: {_cause(error)}"
            permitted = self._rules.permitted(found, _ip_of(peer))
            if not permitted:
                log.info(
                    "client(%s) - %s is another's address as seen from here (%s): not connecting back",
                    peer.id,
                    host,
                    ", ".join(found),
                )
            for ip in permitted:
                problem = f"dial {join_host_port(ip, port)}: i/o timeout"
                try:
                    await self._connect(ip, port)
                except OSError as error:
                    problem = f"dial {join_host_port(ip, port)}: {_cause(error)}"
                else:
                    return ""
            return problem if permitted else ""
        return problem


def _log_verdict(peer: Peer, problem: str) -> None:
    identity = peer.identity
    address = join_host_port(identity.broadcast_address, identity.tcp_port)
    if problem:
        log.warning(
            "client(%s) - cannot be reached at %s, where clients will look for it: %s; it needs another --broadcast-address",
            peer.id,
            address,
            problem,
        )
    else:
        log.info("client(%s) - can be reached at %s now", peer.id, address)


def is_ours(ip: str) -> bool:
    """Return whether this is an address of this machine: only to such a one a socket can be bound."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((ip, 0))
    except OSError:
        return False
    return True


async def _resolve(host: str, port: int) -> list[str]:
    try:
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    except ValueError as error:  # a label is empty or too long, or has a letter that no name may have
        raise OSError("no such host") from error
    return list(dict.fromkeys(str(name[0]) for _, _, _, _, name in found))


async def _connect(ip: str, port: int) -> None:
    with trio.socket.socket(trio.socket.AF_INET6 if ":" in ip else trio.socket.AF_INET) as connection:
        await connection.connect((ip, port))


def _ip_of(peer: Peer) -> str:
    """Return the IP address that the peer has connected from; of a unix socket, something that is none."""
    return peer.id.rpartition(":")[0].strip("[]")


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def _cause(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host"
    return (os.strerror(error.errno) if error.errno else str(error)).lower()
