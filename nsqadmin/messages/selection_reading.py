"""Asks the nodes of a channel what it has deferred, and looks through it in bounded steps. Nothing changes by looking."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import trio

from nsqadmin.messages.deferred import (
    Deferral,
    DeferredLook,
    DeferredPage,
    DeferredSummary,
    NodeDeferred,
    deferral_in,
    deferred_in,
)
from nsqadmin.messages.filters import Filter
from nsqadmin.messages.lists import Part, merged, missing_of, parse_places
from nsqadmin.messages.reading import Unreadable, code_of, message_in, of_log, silence, why
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from nsqadmin.access.policy import Identity
    from nsqadmin.cluster.model import Channel, ChannelNode, Snapshot
    from nsqadmin.messages.reading import Reader
    from nsqadmin.upstream.client import Upstream

MOST: Final = 500  # messages of a page
_IN_ONE_REQUEST: Final = 1_000  # messages of a search
_MOST_LOOKED: Final = 20_000  # messages of one node in one step
_MOST_BYTES: Final = 8 << 20  # of the bodies of one node on one page
_LONGEST_READ: Final = 20.0  # seconds for one node's part of a step
_NONSENSE: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
_NOTHING: Final = frozenset(("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"))
_CANNOT_LIST: Final = "it cannot list what is deferred: it is NSQ's nsqd, or older than ours"
_WORDS: Final = {
    "NOT_FOUND": _CANNOT_LIST,
    "STARTED_ANEW": "it has started anew, so its list has to be read from the first again",
    "INVALID_ARG_AFTER": "this is no place in its list",
}
_EVERYTHING: Final = Filter()


class DeferredReader:
    """Reads, on trio."""

    def __init__(self, upstream: Upstream, reader: Reader) -> None:
        self._upstream = upstream
        self._reader = reader

    async def summary(self, snapshot: Snapshot, channel: Channel) -> DeferredSummary:
        """Ask every node of the channel how many messages are deferred there."""
        found: dict[str, NodeDeferred] = {}

        async def ask(row: ChannelNode) -> None:
            found[row.node] = await self._summary_of(snapshot, channel, row)

        async with trio.open_nursery() as nursery:
            for row in channel.nodes:
                nursery.start_soon(ask, row)
        return DeferredSummary(nodes=tuple(found[row.node] for row in channel.nodes))

    async def _summary_of(self, snapshot: Snapshot, channel: Channel, row: ChannelNode) -> NodeDeferred:
        last_known = NodeDeferred(node=row.node, count=row.deferred_count)
        if reason := silence(snapshot, row.node):
            return replace(last_known, error=reason)
        try:
            raw = await self._upstream.get_json(row.node, f"{_target(channel)}&summary=true")
            return deferred_in(row.node, raw)
        except UpstreamError as error:
            if code_of(error) in _NOTHING:
                return NodeDeferred(node=row.node)
            return replace(last_known, error="it does not answer" if error.timed_out else why(error, _WORDS))
        except _NONSENSE as error:
            return replace(last_known, error=f"its answer cannot be read: {error!r}")

    async def page(
        self, channel: Channel, summary: DeferredSummary, identity: Identity, look: DeferredLook
    ) -> DeferredPage:
        """Do one step of a look: return when there are enough messages, when the time is up, or at the end."""
        nodes = [it for it in summary.nodes if not look.node or it.node == look.node]
        parts = {it.node: Part[Deferral](problem=it.error) for it in nodes}
        deadline = trio.current_time() + look.seconds

        async def read(node: NodeDeferred) -> None:
            part, problem = parts[node.node], f"it took more than {_LONGEST_READ:.0f} s"
            with trio.move_on_after(_LONGEST_READ):
                problem = await self._read(node, channel, identity, look, part, deadline)
            part.problem = problem
            part.goes_on |= bool(problem and part.lines)

        async with trio.open_nursery() as nursery:
            for it in nodes:
                if not it.error:
                    nursery.start_soon(read, it)
        page = merged(parts, look.after, look.limit)
        return DeferredPage(
            deferrals=page.lines,
            after=page.after,
            looked=page.looked,
            reached=page.reached,
            missing=tuple(sorted((_not_searched(parts) | dict(missing_of(parts))).items())),
        )

    async def everything(
        self, channel: Channel, summary: DeferredSummary, identity: Identity, look: DeferredLook
    ) -> DeferredPage:
        """Do step after step, until there are `limit` messages, the time is up, or the end is reached."""
        deadline = trio.current_time() + look.seconds
        found: list[Deferral] = []
        missing: dict[str, str] = {}
        looked = 0
        while True:
            rest = replace(look, limit=look.limit - len(found), seconds=max(0.5, deadline - trio.current_time()))
            page = await self.page(channel, summary, identity, rest)
            found += page.deferrals
            looked += page.looked
            missing |= page.missing
            is_over = len(found) >= look.limit or trio.current_time() >= deadline
            # Without progress, what is left is on nodes that cannot be read.
            if not page.after or is_over or not page.looked:
                return replace(page, deferrals=tuple(found), looked=looked, missing=tuple(sorted(missing.items())))
            look = replace(look, after=parse_places(page.after))

    async def _read(
        self,
        node: NodeDeferred,
        channel: Channel,
        identity: Identity,
        look: DeferredLook,
        part: Part[Deferral],
        deadline: float,
    ) -> str:
        """Add a node's messages to its part. Return why that could not be done, or not to the end; "": it is done."""
        is_search = look.wanted != _EVERYTHING or not look.with_bodies
        limit = _IN_ONE_REQUEST if is_search else look.limit
        place, hits, size = look.after.get(node.node, ""), 0, 0
        try:
            while True:
                count = 0
                target = f"{_target(channel)}&limit={limit}{of_log(node.log)}" + (f"&after={place}" if place else "")
                async with aclosing(self._reader.documents(node.node, target, nothing=_NOTHING)) as lines:
                    async for line in lines:
                        one = self._deferral(node, channel, identity, look, line)
                        part.lines.append(one)
                        place, count = one.place, count + 1
                        hits += one.is_wanted
                        size += one.message.size if one.message is not None else 0
                        if size >= _MOST_BYTES:
                            return "its bodies are large: look at fewer messages at once"
                if count < limit:
                    return ""
                if hits >= look.limit or len(part.lines) >= _MOST_LOOKED or trio.current_time() >= deadline:
                    part.goes_on = True
                    return ""
        except Unreadable as error:
            return _WORDS.get(str(error), str(error))
        except _NONSENSE as error:
            return f"its answer cannot be read: {error!r}"

    def _deferral(
        self, node: NodeDeferred, channel: Channel, identity: Identity, look: DeferredLook, line: dict[str, Any]
    ) -> Deferral:
        message = None
        if "body" in line or "body_base64" in line:
            message = message_in(node.node, line, node.log)
            message = self._reader.masked_for(identity, replace(message, attempts=line.get("attempts")), channel.topic)
            is_wanted = look.wanted.matches(message.body or b"", message)
        else:
            is_wanted = look.wanted == _EVERYTHING
        if not (is_wanted and look.with_bodies):
            message = None
        return deferral_in(node.node, node.log, line, message, is_wanted=is_wanted)


def _not_searched(parts: Mapping[str, Part[Deferral]]) -> dict[str, str]:
    """Return the nodes that have messages whose bodies cannot be had, so that nobody knows whether they match."""
    why = "some of its messages cannot be read now, so they were not searched"
    return {node: why for node, part in parts.items() if any(it.unread and not it.is_wanted for it in part.lines)}


def _target(channel: Channel) -> str:
    named = {"topic": channel.topic, "channel": channel.name}
    return f"/channel/deferred?{urlencode(named, errors='surrogateescape')}"
