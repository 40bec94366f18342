"""Asks the nodes of a channel what it has buried. Nothing changes by looking."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import trio

from nsqadmin.messages.buried import Burial, BuriedPage, Look, NodeSummary, Summary, burial_in, summary_in
from nsqadmin.messages.lists import Part, merged, missing_of
from nsqadmin.messages.reading import Unreadable, code_of, message_in, silence, why
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from nsqadmin.access.policy import Identity
    from nsqadmin.cluster.model import Channel, ChannelNode, Snapshot
    from nsqadmin.messages.reading import Reader
    from nsqadmin.upstream.client import Upstream

MOST: Final = 500  # messages of a page
_MOST_BYTES: Final = 8 << 20  # of the bodies of one node on one page
_LONGEST_READ: Final = 20.0  # seconds for one node's part of a page
_NONSENSE: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
# Answers of nodes that have nothing buried: those that are no nsqd of ours, and those without the channel.
_NOTHING: Final = frozenset(
    ("NOT_FOUND", "TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND", "EPHEMERAL_TOPIC", "EPHEMERAL_CHANNEL")
)


class BuriedReader:
    """Reads, on trio."""

    def __init__(self, upstream: Upstream, reader: Reader) -> None:
        self._upstream = upstream
        self._reader = reader

    async def summary(self, snapshot: Snapshot, channel: Channel) -> Summary:
        """Ask every node of the channel how many messages are buried there, and why."""
        found: dict[str, NodeSummary] = {}

        async def ask(row: ChannelNode) -> None:
            found[row.node] = await self._summary_of(snapshot, channel, row)

        async with trio.open_nursery() as nursery:
            for row in channel.nodes:
                nursery.start_soon(ask, row)
        return Summary(nodes=tuple(found[row.node] for row in channel.nodes))

    async def _summary_of(self, snapshot: Snapshot, channel: Channel, row: ChannelNode) -> NodeSummary:
        last_known = NodeSummary(node=row.node, count=row.buried_count)
        if reason := silence(snapshot, row.node):
            return replace(last_known, error=reason)
        arguments = urlencode({"topic": channel.topic, "channel": channel.name}, errors="surrogateescape")
        try:
            raw = await self._upstream.get_json(row.node, f"/channel/buried?{arguments}&summary=true")
            jobs = await self._upstream.get_json(row.node, f"/channel/jobs?{arguments}")
            return summary_in(row.node, raw, jobs)
        except UpstreamError as error:
            if code_of(error) in _NOTHING:
                return NodeSummary(node=row.node)
            return replace(last_known, error="it does not answer" if error.timed_out else why(error))
        except _NONSENSE as error:
            return replace(last_known, error=f"its answer cannot be read: {error!r}")

    async def page(self, snapshot: Snapshot, channel: Channel, identity: Identity, look: Look) -> BuriedPage:
        """Return the next messages."""
        after = look.after
        rows = [row for row in channel.nodes if not look.node or row.node == look.node]
        parts = {row.node: Part[Burial]() for row in rows}

        async def read(at: str) -> None:
            arguments = {"limit": look.limit, "reason": look.reason} | ({"after": after[at]} if at in after else {})
            problem = f"it took more than {_LONGEST_READ:.0f} s"
            with trio.move_on_after(_LONGEST_READ):
                problem = await self._read(at, channel, identity, arguments, parts[at].lines)
            parts[at].problem = problem
            parts[at].goes_on = len(parts[at].lines) >= look.limit or bool(problem and parts[at].lines)

        async with trio.open_nursery() as nursery:
            for row in rows:
                if problem := silence(snapshot, row.node):
                    parts[row.node].problem = problem
                else:
                    nursery.start_soon(read, row.node)
        page = merged(parts, after, look.limit)
        return BuriedPage(burials=page.lines, after=page.after, missing=missing_of(parts))

    async def _read(
        self, node: str, channel: Channel, identity: Identity, arguments: Mapping[str, object], into: list[Burial]
    ) -> str:
        """Add a node's messages to `into`. Return why that could not be done, or not to the end; "": it is done."""
        named = {"topic": channel.topic, "channel": channel.name, **arguments}
        target = f"/channel/buried?{urlencode(named, errors='surrogateescape')}"
        size = 0
        try:
            async with aclosing(self._reader.documents(node, target, nothing=_NOTHING)) as lines:
                async for line in lines:
                    message = None
                    if "body" in line or "body_base64" in line:
                        message = self._reader.masked_for(identity, message_in(node, line), channel.topic)
                        message = replace(message, attempts=line.get("attempts"))
                        size += message.size
                    into.append(burial_in(node, line, message))
                    if size >= _MOST_BYTES:
                        return "its bodies are large: look at fewer messages at once"
        except Unreadable as error:
            return str(error)
        except _NONSENSE as error:
            return f"its answer cannot be read: {error!r}"
        return ""
