"""Queries many nodes at once, for each request of a client, as NSQ's nsqadmin does: for NSQ's API and for actions.

The errors name the failed nodes; the others' answers count. A query fails only if no node answers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote_plus, urlencode

import trio

from nsqadmin.cluster.merge import is_out_of_date, version_key
from nsqadmin.cluster.sane import NotUnderstood
from nsqadmin.upstream.client import Upstream, UpstreamError
from nsqadmin.upstream.discovery import (
    Announced,
    Listed,
    info_in,
    merged_nodes,
    names_in,
    producers_in,
    topic_names_in,
    topics_in,
)

if TYPE_CHECKING:
    from nsqadmin.options import Options
    from nsqadmin.upstream.slices import Slices

log = logging.getLogger(__name__)

T = TypeVar("T")

_NOT_FOUND: Final = 404
_AT_ONCE: Final = 100  # nodes to query at the same time for one request
_MOST_WEIGHT: Final = 256 << 20  # bytes of memory for all answers to one request

LOOKUPD: Final = "nsqlookupd"
NSQD: Final = "nsqd"


class TotalFailure(Exception):
    """No node has answered, or no node is configured. The message is NSQ's, with all errors."""


@dataclass(slots=True)
class Answers(Generic[T]):
    """The nodes' answers, in the order of the queries."""

    good: list[tuple[str, T]] = field(default_factory=list)  # a node's address and its answer
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """The result of a query, with the errors of the failed nodes."""

    value: T
    errors: tuple[str, ...] = ()


class Queries:
    """The queries, on trio."""

    def __init__(self, options: Callable[[], Options], upstream: Upstream) -> None:
        """`options()` is called for each query, because the list of nsqlookupds can change at run time."""
        self._options = options
        self._upstream = upstream

    @property
    def lookupds(self) -> tuple[str, ...]:
        return self._options().lookupd_http_address

    @property
    def has_lookupds(self) -> bool:
        return bool(self.lookupds)

    # Names

    async def topics(self) -> Found[list[str]]:
        if self.has_lookupds:
            answers = await self._ask_lookupds("/topics", partial(names_in, key="topics"))
        else:
            answers = await self._ask_nsqds(self._options().nsqd_http_address, "/stats?format=json", topic_names_in)
        named = {name for _, names in answers.good for name in names}
        return Found(sorted(named, key=_bytewise), tuple(answers.errors))

    async def inactive_topics(self) -> Found[dict[str, list[str]]]:
        """Return the topics that no node has, with their channels.

        We request all topics at once, so that a slow nsqlookupd costs its time once, not once per topic.
        """
        found = await self.topics()
        if not self.has_lookupds:
            return Found({}, found.errors)
        inactive: dict[str, list[str]] = {}

        async def look(topic: str) -> None:
            try:
                if (await self.topic_producers(topic)).value:
                    return
            except TotalFailure:
                pass
            try:
                target = f"/channels?topic={quote_plus(topic)}"
                answers = await self._ask_lookupds(target, partial(names_in, key="channels"))
            except TotalFailure:
                answers = Answers()
            inactive[topic] = sorted({name for _, names in answers.good for name in names})

        await _in_parallel(found.value, look)
        return Found({topic: inactive[topic] for topic in found.value if topic in inactive}, found.errors)

    # Nodes

    async def topic_producers(self, topic: str) -> Found[list[Announced]]:
        """Return the nodes that have the topic.

        If no nsqlookupd knows the topic, raise TotalFailure, as NSQ does. Without nsqlookupds the list is then empty.
        """
        if not self.has_lookupds:
            return await self._static_producers(topic)
        target = f"/lookup?topic={quote_plus(topic)}"
        answers = await self._ask_lookupds(target, self._producers_in, missing_is_fine=True)
        merged: dict[str, Announced] = {}
        for _, listed in answers.good:
            for producer in listed.producers:
                merged.setdefault(producer.address, producer)
        return Found(list(merged.values()), (*answers.errors, *_left_out(answers)))

    async def _static_producers(self, topic: str) -> Found[list[Announced]]:
        configured = self._options().nsqd_http_address
        asked = f"/stats?format=json&topic={quote_plus(topic)}&include_clients=false"
        answers = await self._ask_nsqds(configured, asked, topic_names_in)
        having = [at for at, names in answers.good if topic in names]
        if not having:
            return Found([], tuple(answers.errors))
        infos = await self._ask_infos(having)
        return Found([it for _, it in infos.good], (*answers.errors, *infos.errors))

    async def nodes(self) -> Found[list[tuple[Announced, bool]]]:
        """Return all nodes, by hostname and then address, each with a flag for an outdated version."""
        if self.has_lookupds:
            answers = await self._ask_lookupds("/nodes", self._producers_in)
            merged = merged_nodes((at, listed.producers) for at, listed in answers.good)
            newest = max((version_key(node.version) for node in merged), default=(0, 0, 0))
            found = [(node, is_out_of_date(node.version, newest)) for node in merged]
            errors = (*answers.errors, *_left_out(answers))
        else:
            found, errors = await self._static_nodes()
        return Found(sorted(found, key=lambda entry: (entry[0].hostname, entry[0].address)), errors)

    async def _static_nodes(self) -> tuple[list[tuple[Announced, bool]], tuple[str, ...]]:
        infos = await self._ask_infos(self._options().nsqd_http_address)
        there = dict(infos.good)
        stats = await self._ask_nsqds(list(there), "/stats?format=json&include_clients=false", topic_names_in)
        for at, names in stats.good:
            there[at].topics = dict.fromkeys(names, False)
        return [(it, False) for it in there.values()], (*infos.errors, *stats.errors)

    # Numbers

    async def stats(
        self, nodes: Sequence[Announced], query: str
    ) -> Found[list[tuple[Announced, list[dict[str, Any]]]]]:
        """Return each node's topics, unchanged from its /stats; nodes by hostname, then address."""
        ordered = sorted(nodes, key=lambda node: (node.hostname, node.address))
        answers = await self._ask_nsqds([node.address for node in ordered], f"/stats?format=json{query}", topics_in)
        by_address = {node.address: node for node in ordered}
        return Found([(by_address[at], topics) for at, topics in answers.good], tuple(answers.errors))

    # Changes

    async def info(self, address: str) -> Announced:
        """Ask one nsqd to describe itself. Raise UpstreamError."""
        log.info("CI: querying nsqd http://%s/info", address)
        try:
            return info_in(await self._upstream.get_json(address, "/info"), address)
        except NotUnderstood as error:
            raise UpstreamError(f"{address}: {error}") from error

    async def post(self, address: str, target: str, *, is_lookupd: bool) -> UpstreamError | None:
        """Send a POST. Return the error, or None if it succeeded."""
        log.info("CI: querying %s http://%s%s", LOOKUPD if is_lookupd else NSQD, address, target)
        try:
            await self._upstream.post(address, target, is_lookupd=is_lookupd)
        except UpstreamError as error:
            return error
        return None

    async def channel_state(self, address: str, topic: str, channel: str) -> bytes:
        """Return a channel's undelivered messages as reported by one of our nsqds. Raise UpstreamError."""
        return await self._upstream.get(address, f"/channel/state?{_of_channel(topic, channel)}")

    async def restore_channel(self, address: str, topic: str, channel: str, state: bytes) -> bytes:
        """Restore a channel to its `channel_state`. Raise UpstreamError."""
        return await self._upstream.post(address, f"/channel/restore?{_of_channel(topic, channel)}", state)

    # Asking many nodes

    def _producers_in(self, document: Any) -> Slices[Listed]:
        return producers_in(document, most=self._options().max_nodes)

    async def _ask_lookupds(
        self, target: str, read: Callable[[Any], Slices[T]], *, missing_is_fine: bool = False
    ) -> Answers[T]:
        return await self._fan_out(LOOKUPD, self.lookupds, target, lambda document, _: read(document), missing_is_fine)

    async def _ask_nsqds(self, addresses: Sequence[str], target: str, read: Callable[[Any], Slices[T]]) -> Answers[T]:
        return await self._fan_out(NSQD, addresses, target, lambda document, _: read(document), False)

    async def _ask_infos(self, addresses: Sequence[str]) -> Answers[Announced]:
        return await self._fan_out(NSQD, addresses, "/info", _info_in, False)

    async def _fan_out(
        self,
        kind: str,
        addresses: Sequence[str],
        target: str,
        read: Callable[[Any, str], Slices[T]],
        missing_is_fine: bool,
    ) -> Answers[T]:
        """Query all addresses. If `read(document, address)` can't parse an answer, only that node fails.

        All answers together may take _MOST_WEIGHT of memory; a node whose answer exceeds that fails, too. With
        `missing_is_fine`, an nsqlookupd that doesn't know a topic isn't an error as long as another one does.
        """
        answered: dict[int, T] = {}
        failed: dict[int, UpstreamError] = {}
        left = _MOST_WEIGHT

        async def ask(number: int) -> None:
            nonlocal left
            address = addresses[number]
            log.info("CI: querying %s http://%s%s", kind, address, target)
            try:
                got = await self._upstream.get_document(address, target, is_lookupd=kind == LOOKUPD)
                left -= got.weight
                if left < 0:
                    raise UpstreamError(f"{address}: its answer and those of other nodes are too large together")
                answered[number] = await self._upstream.in_slices(read(got.value, address))
            except UpstreamError as error:
                failed[number] = error
            except NotUnderstood as error:
                failed[number] = UpstreamError(f"{address}: {error}")

        await _in_parallel(range(len(addresses)), ask, at_once=_AT_ONCE)
        errors = [failed[number] for number in sorted(failed)]
        if not answered:
            text = "\n".join(str(error) for error in errors)
            raise TotalFailure(f"failed to query any {kind}: {text}")
        if missing_is_fine:
            errors = [error for error in errors if error.status != _NOT_FOUND]
        return Answers(
            [(addresses[number], answered[number]) for number in sorted(answered)], [str(error) for error in errors]
        )


async def _in_parallel(items: Iterable[T], ask: Callable[[T], Awaitable[None]], *, at_once: float = inf) -> None:
    limiter = trio.CapacityLimiter(at_once)

    async def ask_in_turn(item: T) -> None:
        async with limiter:
            await ask(item)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(ask_in_turn, item)


def _info_in(document: Any, address: str) -> Slices[Announced]:
    yield
    return info_in(document, address)


def _left_out(answers: Answers[Listed]) -> tuple[str, ...]:
    return tuple(
        f"{at} lists {listed.left_out:,} more nodes than --max-nodes" for at, listed in answers.good if listed.left_out
    )


def _of_channel(topic: str, channel: str) -> str:
    return urlencode({"topic": topic, "channel": channel}, errors="surrogateescape")


def _bytewise(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
