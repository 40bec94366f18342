"""Connects once to each nsqd that registers, because a node with an unreachable address is useless to clients.

    registered ──► waiting ──► one of a few tasks: resolve the name, decide, connect ──► Registry.set_reachable
                      ▲                                                                       │ not reached
                      └──────────────────────── after RETRY_INTERVAL ◄────────────────────────┘

**Dead names don't hold up other nodes.** A name server that doesn't answer blocks a thread until the system's resolver
gives up, perhaps after half a minute, and a thread can't be killed. So we count threads until they end, even when we no
longer wait for them, and limit them in total and for each address that nodes register from. A node waits until a thread
is free, and only then its timeout starts: if we called it unreachable because of *our* queue, its operator would look
for a fault that isn't there. Meanwhile nodes from other addresses, or with an IP address, go first.

Nothing waits for this: the node is registered and listed in the meantime. We don't try a reachable node again, and an
unreachable one every RETRY_INTERVAL, so that the mark goes once the cause is gone.

**A registration must not make us connect to third parties.** Otherwise anything that can register could use us as a
port scanner, and read the result from `/nodes`. So we connect only to the peer's own address, or to networks that an
operator has named (`--dial-back-to`). We resolve the name once, and connect to the address that we have checked. If the
name leads elsewhere, for example because of address translation, we don't try and report nothing.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
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

AT_ONCE: Final = 16  # nodes; further ones wait
AT_ONCE_OF_ONE: Final = AT_ONCE // 2  # of these, nodes registering from one address
LOOKUPS: Final = 64  # running look-ups, even if abandoned
LOOKUPS_OF_ONE: Final = LOOKUPS // 2  # of these, for nodes registering from one address
LIMIT: Final = 2.0  # seconds for resolving and connecting
RETRY_INTERVAL: Final = 10.0  # seconds

_HIGHEST_PORT: Final = 0xFFFF
_V6_PREFIX: Final = 64
_FEW: Final = 100  # a lane with fewer peers isn't searched for peers that have left


@dataclass(slots=True)
class NameLookup:
    """A name to look up. The look-up may go on long after its timeout."""

    host: str
    port: int
    on_end: Callable[[], object]  # called at the end, in trio's thread
    has_begun: bool = False


Resolve = Callable[[NameLookup], Awaitable[list[str]]]  # raises OSError, or RuntimeError if it couldn't start
Connect = Callable[[str, int], Awaitable[None]]  # raises OSError


class DialBackRules(NamedTuple):
    """Decides which addresses we may connect to."""

    allowed: Sequence[Network] = ()
    is_ours: Callable[[str], bool] = lambda ip: False  # True for an address of this machine

    def permitted(self, found: Iterable[str], peer: str) -> list[str]:
        """Return the addresses among `found` that we may connect to for a peer at the IP address `peer`."""
        return [ip for ip in found if self._is_permitted(ip, peer)]

    def _is_permitted(self, text: str, peer: str) -> bool:
        ip, own = _parsed(text), _parsed(peer)
        if ip is None:
            return False
        if any(ip in network for network in self.allowed):
            return True
        if own is None:  # the peer uses a unix socket
            return False
        # A peer on this machine may have any address of this machine.
        return ip == own or (own.is_loopback and (ip.is_loopback or self.is_ours(text)))


class DialBack:
    """While `run` runs, connects to the nodes passed to `add`."""

    def __init__(
        self,
        registry: Registry,
        turn: Turn,
        rules: DialBackRules,
        *,
        resolve: Resolve | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._registry = registry
        self._turn = turn
        self._rules = rules
        self._resolve = resolve or resolve_in_thread
        self._connect = connect or _connect
        self._new = _Waiting()
        self._due = _Waiting()  # unreachable ones, due for another try
        self._again: deque[tuple[float, Peer]] = deque()  # the next one first, because all wait equally long
        self._news = Wakeup()
        self._busy: Counter[str] = Counter()  # current tries, by source
        self._lookups: Counter[str] = Counter()  # running look-ups, by source

    def add(self, peer: Peer) -> None:
        """Try this peer soon."""
        self._new.add(peer)
        self._news.set()

    async def run(self) -> None:
        """Try the peers until cancelled."""
        slots = trio.Semaphore(AT_ONCE)
        async with trio.open_nursery() as nursery:
            while True:
                await slots.acquire()
                peer = await self._next()
                nursery.start_soon(self._try, peer, self._begun(peer), slots)

    async def _next(self) -> Peer:
        """Wait for a peer to try. New ones come first, because their operators wait for the result."""
        while True:
            while self._again and trio.current_time() >= self._again[0][0]:
                self._due.add(self._again.popleft()[1])
            for waiting in (self._new, self._due):
                if (peer := waiting.take(self._has_room)) is not None:
                    return peer
            self._news.clear()
            with trio.move_on_at(self._again[0][0]) if self._again else trio.CancelScope():
                await self._news.wait()

    def _has_room(self, lane: PeerLane) -> bool:
        """Return True if a peer of this lane can be tried at once, so that its timeout starts with its look-up."""
        if self._busy[lane.source] >= AT_ONCE_OF_ONE:
            return False
        if not lane.is_name:
            return True
        return self._lookups[lane.source] < LOOKUPS_OF_ONE and self._lookups.total() < LOOKUPS

    def _begun(self, peer: Peer) -> NameLookup | None:
        """Count a peer as being tried. Return its look-up, or None if it has an IP address."""
        lane = _lane_of(peer)
        self._busy[lane.source] += 1
        if not lane.is_name:
            return None

        def end() -> None:
            _take_one(self._lookups, lane.source)
            self._news.set()

        self._lookups[lane.source] += 1
        return NameLookup(peer.identity.broadcast_address, peer.identity.tcp_port, end)

    async def _try(self, peer: Peer, lookup: NameLookup | None, slots: trio.Semaphore) -> None:
        try:
            problem = await self._problem_of(peer, lookup)
        except Exception:  # our bug, which must not stop nsqlookupd
            log.exception("client(%s) - internal error while connecting back", peer.id)
            return
        finally:
            _take_one(self._busy, _lane_of(peer).source)
            self._news.set()
            slots.release()
        if peer.has_left:
            return
        if problem is None:
            self._again.append((trio.current_time() + RETRY_INTERVAL, peer))
            return
        with in_turn(self._turn):
            has_changed = self._registry.set_reachable(peer, problem)
        if has_changed:
            _log_verdict(peer, problem)
        if problem:
            self._again.append((trio.current_time() + RETRY_INTERVAL, peer))
            self._news.set()

    async def _problem_of(self, peer: Peer, lookup: NameLookup | None) -> str | None:
        """Return why the peer can't be reached; empty if it was reached or we may not try. None: unknown."""
        host, port = peer.identity.broadcast_address, peer.identity.tcp_port
        if not 0 < port <= _HIGHEST_PORT:
            if lookup is not None:
                lookup.on_end()
            return f"dial {join_host_port(host, port)}: no such port"
        problem = f"lookup {host}: i/o timeout"
        with trio.move_on_after(LIMIT):
            try:
                found = [host] if lookup is None else await self._resolve(lookup)
            except OSError as error:
                return f"lookup {host}: {_cause(error)}"
            except RuntimeError as error:  # the system is out of threads
                log.warning("client(%s) - can't look up %s now: %s", peer.id, host, error)
                return None
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
        return problem if lookup is None or lookup.has_begun else None


# The order of the peers


class PeerLane(NamedTuple):
    """A queue of peers that wait for the same resource."""

    source: str  # the address that they connect from
    is_name: bool  # they announce a name, which has to be looked up


class _Waiting:
    """Waiting peers. Lanes take turns, so a source with many peers doesn't hold up the others."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[PeerLane, OrderedDict[Peer, None]] = OrderedDict()
        self._sizes: dict[PeerLane, int] = {}  # a lane with more peers is searched for peers that have left

    def add(self, peer: Peer) -> None:
        lane = _lane_of(peer)
        peers = self._lanes.setdefault(lane, OrderedDict())
        peers[peer] = None
        if len(peers) >= self._sizes.setdefault(lane, _FEW):
            for gone in [it for it in peers if it.has_left]:
                del peers[gone]
            self._sizes[lane] = max(_FEW, 2 * len(peers))

    def take(self, has_room: Callable[[PeerLane], bool]) -> Peer | None:
        """Return the next peer of the next lane with room; None if there is none."""
        for lane in [it for it in self._lanes if has_room(it)]:
            peers = self._lanes.pop(lane)
            while peers:
                peer, _ = peers.popitem(last=False)
                if not peer.has_left:
                    self._put_back(lane, peers)
                    return peer
            self._put_back(lane, peers)
        return None

    def _put_back(self, lane: PeerLane, peers: OrderedDict[Peer, None]) -> None:
        """Move a lane behind the others, if it still has peers."""
        if peers:
            self._lanes[lane] = peers
        else:
            self._sizes.pop(lane, None)


def _lane_of(peer: Peer) -> PeerLane:
    ip = _parsed(_ip_of(peer))
    # A host with one IPv6 address usually has a whole /64.
    source = str(ip)
    if isinstance(ip, ipaddress.IPv6Address):
        source = str(ipaddress.IPv6Network((int(ip), _V6_PREFIX), strict=False))
    return PeerLane(source, _parsed(peer.identity.broadcast_address) is None)


def _take_one(counts: Counter[str], source: str) -> None:
    counts[source] -= 1
    if not counts[source]:
        del counts[source]


def _log_verdict(peer: Peer, problem: str) -> None:
    identity = peer.identity
    address = join_host_port(identity.broadcast_address, identity.tcp_port)
    if problem:
        log.warning(
            "client(%s) - unreachable at its broadcast address %s: %s; set another --broadcast-address on this nsqd",
            peer.id,
            address,
            problem,
        )
    else:
        log.info("client(%s) - reachable again at %s", peer.id, address)


def is_ours(ip: str) -> bool:
    """Return True for an address of this machine. The test is whether a socket can bind to it."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((ip, 0))
    except OSError:
        return False
    return True


async def resolve_in_thread(lookup: NameLookup) -> list[str]:
    """Look the name up in a thread under our own limit, because trio's limit is shared with other uses."""
    token = trio.lowlevel.current_trio_token()

    def look_up() -> list[str]:
        lookup.has_begun = True
        try:
            found = socket.getaddrinfo(lookup.host, lookup.port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(name[0]) for _, _, _, _, name in found))
        finally:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(lookup.on_end)

    try:
        return await trio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
    except ValueError as error:  # a label is empty, too long, or has an invalid character
        raise OSError("no such host") from error
    except RuntimeError:
        lookup.on_end()
        raise


async def _connect(ip: str, port: int) -> None:
    with trio.socket.socket(trio.socket.AF_INET6 if ":" in ip else trio.socket.AF_INET) as connection:
        await connection.connect((ip, port))


def _ip_of(peer: Peer) -> str:
    """Return the peer's IP address, or for a unix socket something that isn't an address."""
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
