"""Finds out which nodes exist: from the nsqlookupds, or without these from the configured nsqds themselves."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus

import trio

from nsqadmin.cluster.copies import successors_of
from nsqadmin.cluster.merge import Directory
from nsqadmin.cluster.model import Health
from nsqadmin.upstream.asked import NO_ANSWER, AskedLookupd, AskedNode, Round
from nsqadmin.upstream.client import Upstream, UpstreamError
from nsqadmin.upstream.discovery import (
    MOST_NAMES,
    Announced,
    merged_nodes,
    names_in,
    producers_in,
    read_info,
    retired_in,
    unwrapped,
)
from nsqcommon.options import seconds

if TYPE_CHECKING:
    from nsqadmin.options import Options

_MOST_INACTIVE: Final = 200  # topics whose registered channels we request
_MOST_CHANNELS: Final = 1000  # registered channels to keep for each of these topics
_WATCH: Final = 60.0  # seconds that a query waits for a change of the nodes
_ALWAYS_DUE: Final = -1e9


class Census:
    def __init__(
        self,
        options: Callable[[], Options],
        upstream: Upstream,
        wall: Callable[[], float],
        *,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_news` is called when the census is due early, because a node has come, gone or changed."""
        self.shortest_interval = 1.0  # seconds between two censuses, however much changes
        self.has_news = False  # nodes have changed, so the next census is early
        self.nodes: dict[str, AskedNode] = {}
        self.lookupds: dict[str, AskedLookupd] = {}
        self._options = options
        self._upstream = upstream
        self._wall = wall
        self._on_news = on_news
        self._static: dict[str, Announced] = {}  # the configured nsqds by address, if there are no nsqlookupds
        self._asked_at = _ALWAYS_DUE
        self.has_settled = False  # we have seen a directory, or the list of configured nsqds

    @property
    def has_lookupds(self) -> bool:
        return bool(self._options().lookupd_http_address)

    @property
    def configured(self) -> Mapping[str, Announced]:
        """The configured nsqds as they describe themselves, if there are no nsqlookupds."""
        return self._static

    def restore(self, nodes: Iterable[AskedNode], configured: Mapping[str, Announced]) -> None:
        """Load the nodes of a history file before the first sweep. They are silent until they answer."""
        self.nodes.update((node.announced.address, node) for node in nodes)
        wanted = self._options().nsqd_http_address
        self._static.update((address, node) for address, node in configured.items() if address in wanted)

    @property
    def is_due(self) -> bool:
        return trio.current_time() - self._asked_at >= seconds(self._options().discovery_interval)

    def start(self, nursery: trio.Nursery) -> Round:
        """Start the requests. Answers count from the next `settle` on."""
        self._asked_at = trio.current_time()
        self.has_news = False
        options = self._options()
        asked = Round()
        if options.lookupd_http_address:
            for address in dict.fromkeys(options.lookupd_http_address):
                state = self.lookupds.setdefault(address, AskedLookupd())
                if state.busy_since is None:
                    asked.start(nursery, self._ask_lookupd, address, state, nursery)
        else:
            for address in dict.fromkeys(options.nsqd_http_address):
                asked.start(nursery, self._ask_info, address)
        for address in self.lookupds.keys() - set(options.lookupd_http_address):
            del self.lookupds[address]
        return asked

    async def _ask_lookupd(self, address: str, state: AskedLookupd, nursery: trio.Nursery) -> None:
        began = trio.current_time()
        with state.question(address, self._wall):
            await self._ask_directory(address, state)
            state.succeeded(trio.current_time() - began, self._wall())
            if state.index and not state.is_watched:
                state.is_watched = True
                nursery.start_soon(self._watch, address, state)
            with trio.move_on_after(seconds(self._options().discovery_interval)):
                await self._ask_inactive(address, state)

    async def _watch(self, address: str, state: AskedLookupd) -> None:
        """Make the census due as soon as this nsqlookupd's nodes change. NSQ's nsqlookupd is only polled at intervals.

        This waits for one change, or a minute; the next census starts it again.
        """
        try:
            found = await self._upstream.next_index(address, "/nodes", index=state.index, wait=_WATCH)
        except UpstreamError:  # the request for the nodes reports the reason
            return
        finally:
            state.is_watched = False
        if found not in ("", state.index) and self.lookupds.get(address) is state:
            await trio.sleep_until(self._asked_at + self.shortest_interval)
            self._asked_at = _ALWAYS_DUE
            self.has_news = True
            self._on_news()

    async def _ask_directory(self, address: str, state: AskedLookupd) -> None:
        ask = partial(self._upstream.get_json, address, is_lookupd=True)
        # NSQ's nsqlookupd ignores the argument.
        document = await self._upstream.get_document(address, "/nodes?missing=true", is_lookupd=True)
        nodes, state.index = document.value, document.index
        listing = producers_in(nodes, most=self._options().max_nodes, known=self.nodes)
        listed = await self._upstream.in_slices(listing)
        state.retired = retired_in(nodes)
        names = await self._upstream.in_slices(names_in(await ask("/topics"), "topics"))
        state.version = str(unwrapped(await ask("/info")).get("version") or "")
        state.producers, state.nodes_left_out = listed.producers, listed.left_out
        state.topics, state.topics_left_out = names[:MOST_NAMES], max(len(names) - MOST_NAMES, 0)

    async def _ask_inactive(self, address: str, state: AskedLookupd) -> None:
        """Request the channels of topics that no node has. Each takes a request, so we limit their number."""
        producers = [producer for lookupd in self.lookupds.values() for producer in lookupd.producers]
        active = {topic for producer in producers for topic in producer.topics}
        inactive = [name for name in state.topics if name not in active][:_MOST_INACTIVE]
        state.channels = {topic: state.channels[topic] for topic in inactive if topic in state.channels}
        for topic in inactive:
            target = f"/channels?topic={quote_plus(topic)}"
            document = await self._upstream.get_json(address, target, is_lookupd=True)
            named = await self._upstream.in_slices(names_in(document, "channels"))
            state.channels[topic] = tuple(sorted(named)[:_MOST_CHANNELS])

    async def _ask_info(self, configured: str) -> None:
        try:
            self._static[configured] = read_info(
                unwrapped(await self._upstream.get_json(configured, "/info")), configured
            )
        except (UpstreamError, *NO_ANSWER):
            # The request for /stats goes to the same address and reports the reason.
            self._static.setdefault(configured, read_info({}, configured))

    def settle(self) -> None:
        """Update `nodes` from the answers so far."""
        answered = [(address, lookupd) for address, lookupd in self.lookupds.items() if lookupd.has_answered]
        if self.has_lookupds:
            if not answered and self.nodes:
                return  # no nsqlookupd answers now, so we keep polling the known nodes
            announced = merged_nodes((address, lookupd.producers) for address, lookupd in answered)
        else:
            announced = list(self._static.values())
        self.has_settled = True
        present = set()
        for node in _known_first(announced, self.nodes, self._options().max_nodes):
            present.add(node.address)
            self.nodes.setdefault(node.address, AskedNode()).announce(node)
        retired = frozenset().union(*(lookupd.retired for _, lookupd in answered))
        for address in self.nodes.keys() - present:
            self._has_left(address, trio.current_time(), is_retired=address in retired)
        self._forget_the_first_to_leave()

    def _has_left(self, address: str, now: float, *, is_retired: bool) -> None:
        """Keep a node that no directory lists any more. It is still polled, and shown with its last answer.

        We only forget a node that has retired, one that was removed from our own configuration, and one that has never
        answered.
        """
        state = self.nodes[address]
        is_gone = not self.has_lookupds or state.answer is None or is_retired
        if is_gone and not (state.has_answered and self.has_lookupds):
            del self.nodes[address]
            return
        state.left_at = state.left_at or now
        state.announced = replace(state.announced, sources=[], remote_addresses=[], topics={})

    def _forget_the_first_to_leave(self) -> None:
        """Forget nodes beyond --max-nodes, so that a client that keeps registering new nodes can't fill the memory."""
        left = [(state.left_at, address) for address, state in self.nodes.items() if state.left_at is not None]
        for _, address in sorted(left)[: max(0, len(left) - self._options().max_nodes)]:
            del self.nodes[address]

    def forget(self, address: str) -> bool:
        """Forget a silent node's last answer, and the node itself unless it is announced. False: it answers."""
        state = self.nodes.get(address)
        if state is None or state.has_answered:
            return state is None
        if state.left_at is None:
            state.answer, state.answered_in, state.answered_at, state.health = None, None, None, Health.NEVER
        else:
            del self.nodes[address]
        return True

    def take_successors(self) -> Mapping[str, str]:
        """Return the successor of each silent node. Forget succeeded nodes that no directory lists any more."""
        answers = {
            address: answer for address, node in self.nodes.items() if (answer := node.last_answer()) is not None
        }
        successors = successors_of(answers)
        for address in [it for it in successors if self.nodes[it].left_at is not None]:
            del self.nodes[address], successors[address]
        return successors

    def directory(self) -> Directory:
        topics: dict[str, list[str]] = {}
        channels: dict[str, tuple[str, ...]] = {}
        for address, lookupd in self.lookupds.items():
            if lookupd.has_answered:
                for topic in lookupd.topics:
                    topics.setdefault(topic, []).append(address)
                for topic, names in lookupd.channels.items():
                    # Most often all nsqlookupds know the same ones.
                    if (known := channels.setdefault(topic, names)) != names:
                        channels[topic] = tuple(sorted({*known, *names})[:_MOST_CHANNELS])
        return Directory(
            topics={topic: tuple(addresses) for topic, addresses in topics.items()},
            channels=channels,
            tombstones=frozenset(
                (topic, address)
                for address, node in self.nodes.items()
                for topic, is_tombstoned in node.announced.topics.items()
                if is_tombstoned
            ),
        )

    def take_restarted(self) -> frozenset[str]:
        """Return the nodes that have restarted since the last call."""
        restarted = frozenset(address for address, node in self.nodes.items() if node.restarted)
        for address in restarted:
            self.nodes[address].restarted = False
        return restarted


def _known_first(announced: list[Announced], known: Container[str], most: int) -> list[Announced]:
    """Return at most `most` nodes, known ones first: several nsqlookupds together may list more than one may."""
    if len(announced) <= most:
        return announced
    return sorted(announced, key=lambda node: node.address not in known)[:most]
