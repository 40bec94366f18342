"""Requests each node's /stats at every sweep."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

import trio

from nsqadmin.cluster.model import Health
from nsqadmin.cluster.node_stats import standby_answer, stats_in_slices
from nsqadmin.upstream.asked import AskedNode, Round
from nsqadmin.upstream.client import Upstream, UpstreamError
from nsqadmin.upstream.discovery import unwrapped
from nsqadmin.upstream.unpacking import megabytes

if TYPE_CHECKING:
    from nsqadmin.upstream.client import Document

_AT_ONCE: Final = 16  # nodes to query at the same time
_BAD_REQUEST: Final = 400
_UNAVAILABLE: Final = 503
_STANDBY: Final = b"STANDBY"  # a standby's answer until it owns its name


@dataclass(slots=True, eq=False)
class _Share:
    """One node's share of the byte limit for all answers together."""

    node: AskedNode
    size: int = 0
    has_made_way: bool = False  # its answer was dropped for a node that we have known for longer


class Stats:
    def __init__(self, upstream: Upstream, wall: Callable[[], float], *, most: int) -> None:
        self._upstream = upstream
        self._wall = wall
        self._most = most  # byte limit for all answers together
        self._shares: dict[str, _Share] = {}  # by address, longest-known node first
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    def start(
        self, nursery: trio.Nursery, nodes: Iterable[AskedNode], *, has_clients: bool, topics: Sequence[str]
    ) -> Round:
        """Start querying all nodes: with all their clients, or only with the clients of `topics`."""
        asked = Round()
        for node in nodes:
            if node.not_before > trio.current_time():
                continue
            if node.busy_since is None:
                asked.start(nursery, self._ask_in_turn, node, has_clients, topics)
            else:
                node.overdue(self._wall())
        return asked

    async def _ask_in_turn(self, node: AskedNode, has_clients: bool, topics: Sequence[str]) -> None:
        # Nodes that were slow before must not take the slots of fast ones.
        gate = self._limiter if node.health is Health.OK else trio.CapacityLimiter(1)
        with node.question(node.announced.address, self._wall):
            async with gate:
                began = trio.current_time()
                await self._ask(node, has_clients, topics)
            node.succeeded(trio.current_time() - began, self._wall())

    async def _ask(self, node: AskedNode, has_clients: bool, topics: Sequence[str]) -> None:
        address = node.announced.address
        if node.has_history is None:
            node.has_history = await self._keeps_history(address)
        words = "true" if has_clients else "false"
        try:
            got = await self._upstream.get_document(address, f"/stats?format=json&include_clients={words}&ages=true")
        except UpstreamError as error:
            if error.status != _UNAVAILABLE or _STANDBY not in error.body:
                raise
            node.answer = standby_answer(await self._upstream.get_json(address, "/remote"), at=trio.current_time())
            return
        node.clock_skew = got.made_at - self._wall() if got.made_at is not None else None
        node.withheld = got.withheld
        with self._counted(node, got):
            document = dict(unwrapped(got.value))
            if topics:
                await self._add_clients(address, document, topics)
            reading = stats_in_slices(
                address,
                document,
                at=trio.current_time(),
                before=node.answer,
                has_clients=has_clients,
                has_history=node.has_history,
                skew=node.clock_skew or 0.0,
            )
            answer = await self._upstream.in_slices(reading)
        if answer.restarted:
            node.has_history, node.restarted = None, True  # it may run another program now
        node.answer = answer

    @contextmanager
    def _counted(self, node: AskedNode, got: Document) -> Iterator[None]:
        """Count the answer's size while the block reads it, and from then on instead of the previous answer's size.

        It counts from the start of the block, because other answers are read at the same time. If the block fails, the
        previous answer's size counts again.

        Anyone can register with nsqlookupd, so nodes that we have known for longer take precedence: we drop the answer
        of a newer node when they need the space. Raise UpstreamError if the answer, together with the answers of nodes
        known for longer, is too large, and after the block if it was dropped meanwhile.
        """
        address = node.announced.address
        share = self._shares.setdefault(address, _Share(node))
        if self._known_before(share) + got.size > self._most:
            raise self._too_large(address, got.size, got.withheld)
        kept, share.size, share.has_made_way = share.size, max(share.size, got.size), False
        self._make_room()
        try:
            yield
            kept = got.size
        finally:
            share.size = 0 if share.has_made_way else kept
        if share.has_made_way:
            raise self._too_large(address, got.size, got.withheld)

    def _known_before(self, share: _Share) -> int:
        """Return the bytes of the nodes that we have known for longer."""
        return sum(older.size for older in takewhile(lambda older: older is not share, self._shares.values()))

    def _make_room(self) -> None:
        """Drop answers, newest nodes first, until the rest is no longer too large."""
        excess = sum(share.size for share in self._shares.values()) - self._most
        for address, share in reversed(self._shares.items()):
            if excess <= 0:
                return
            if share.size:
                excess -= share.size
                share.node.answer = None
                share.node.failed(self._too_large(address, share.size, share.node.withheld), self._wall())
                share.size, share.has_made_way = 0, True

    def _too_large(self, address: str, size: int, withheld: str) -> UpstreamError:
        reason = (
            f"its answer of {megabytes(size)} and those of nodes that have been known for longer are larger than "
            f"{megabytes(self._most)} together"
        )
        return UpstreamError(f"{address}: {reason}", withheld=withheld, not_read=reason)

    def keep_only(self, addresses: Container[str]) -> None:
        """Forget all other nodes."""
        for address in [known for known in self._shares if known not in addresses]:
            del self._shares[address]

    async def _add_clients(self, address: str, document: dict[str, Any], topics: Sequence[str]) -> None:
        positions = {raw["topic_name"]: at for at, raw in enumerate(document.get("topics") or ())}
        for topic in topics:
            if topic in positions:
                asked = f"/stats?format=json&topic={quote_plus(topic)}&ages=true"
                for raw in unwrapped(await self._upstream.get_json(address, asked)).get("topics") or ():
                    document["topics"][positions[topic]] = raw

    async def _keeps_history(self, address: str) -> bool:
        """Ask without an argument: our nsqd answers that it is missing, and a Go nsqd doesn't know the endpoint."""
        try:
            await self._upstream.get(address, "/topic/log")
        except UpstreamError as error:
            if not error.status:
                raise
            return error.status == _BAD_REQUEST
        return False
