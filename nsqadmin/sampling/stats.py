"""What they have: each node's /stats, asked for at every sweep."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

import trio

from nsqadmin.answered import stats_in_slices
from nsqadmin.discovery import unwrapped
from nsqadmin.model import Health
from nsqadmin.sampling.asked import AskedNode, Round
from nsqadmin.unpacking import megabytes
from nsqadmin.upstream import Upstream, UpstreamError

if TYPE_CHECKING:
    from nsqadmin.upstream import Document

_AT_ONCE: Final = 16  # nodes that are asked at the same time
_BAD_REQUEST: Final = 400


class Stats:
    def __init__(self, upstream: Upstream, wall: Callable[[], float], *, most: int) -> None:
        self._upstream = upstream
        self._wall = wall
        self._most = most  # bytes of all answers together
        self._sizes: dict[str, int] = {}  # of each node's last answer
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    def start(
        self, nursery: trio.Nursery, nodes: Iterable[AskedNode], *, has_clients: bool, topics: Sequence[str]
    ) -> Round:
        """Asks all nodes; with their clients, or with those of these topics."""
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
        # Who was slow before must not take the place of those who are quick.
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
        got = await self._upstream.get_document(address, f"/stats?format=json&include_clients={words}")
        node.clock_skew = got.made_at - self._wall() if got.made_at is not None else None
        node.withheld = got.withheld
        with self._counted(address, got):
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
            )
            answer = await self._upstream.in_slices(reading)
        if answer.restarted:
            node.has_history, node.restarted = None, True  # it may be another program now
        node.answer = answer

    @contextmanager
    def _counted(self, address: str, got: Document) -> Iterator[None]:
        """Count the answer while the block reads it, and afterwards instead of the last one if the block succeeds.

        Other answers are read meanwhile, so it counts from the beginning. Raises UpstreamError when the answers of all
        nodes together are too large.
        """
        kept = self._sizes.get(address, 0)
        others = sum(self._sizes.values()) - kept
        if others + got.size > self._most:
            reason = (
                f"its answer of {megabytes(got.size)} and those of other nodes are larger than "
                f"{megabytes(self._most)} together"
            )
            raise UpstreamError(f"{address}: {reason}", withheld=got.withheld, not_read=reason)
        self._sizes[address] = max(kept, got.size)
        try:
            yield
            kept = got.size
        finally:
            self._sizes[address] = kept

    def forget_but(self, addresses: Container[str]) -> None:
        for address in [it for it in self._sizes if it not in addresses]:
            del self._sizes[address]

    async def _add_clients(self, address: str, document: dict[str, Any], topics: Sequence[str]) -> None:
        there = {it["topic_name"]: at for at, it in enumerate(document.get("topics") or ())}
        for topic in topics:
            if topic in there:
                asked = f"/stats?format=json&topic={quote_plus(topic)}"
                for it in unwrapped(await self._upstream.get_json(address, asked)).get("topics") or ():
                    document["topics"][there[topic]] = it

    async def _keeps_history(self, address: str) -> bool:
        """Ours say which argument is missing, where a Go nsqd knows no such endpoint."""
        try:
            await self._upstream.get(address, "/topic/log")
        except UpstreamError as error:
            if not error.status:
                raise
            return error.status == _BAD_REQUEST
        return False
