"""Reads a channel's messages of one kind from the nodes, in bounded steps: buried, deferred, or in flight.

Reading changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlencode

import trio

from nsqadmin.messages.lists import (
    ListedMessage,
    ListKind,
    ListPage,
    Look,
    NodeCount,
    Part,
    Summary,
    merged,
    parse_places,
)
from nsqadmin.messages.reading import Unreadable, code_of, message_in, silence, why
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Channel, ChannelNode, Snapshot
    from nsqadmin.messages.looking import Seen
    from nsqadmin.messages.model import Message
    from nsqadmin.messages.reading import Reader
    from nsqadmin.upstream.client import Upstream

MOST: Final = 500  # messages of a page
_IN_ONE_REQUEST: Final = 1_000  # messages of a search
_MOST_LOOKED: Final = 20_000  # messages of one node in one step
_MOST_BYTES: Final = 8 << 20  # of the bodies of one node on one page
_LONGEST_READ: Final = 20.0  # seconds for one node's part of a step
_NONSENSE: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError)

N = TypeVar("N", bound=NodeCount)
M = TypeVar("M", bound=ListedMessage)


class SelectionReader(Generic[N, M]):
    """Reads lists of one kind, on trio."""

    def __init__(self, kind: ListKind[N, M], upstream: Upstream, reader: Reader) -> None:
        self.kind = kind
        self._upstream = upstream
        self._reader = reader

    async def summary(self, snapshot: Snapshot, channel: Channel) -> Summary[N]:
        """Ask every node of the channel for its number of messages."""
        found: dict[str, N] = {}

        async def ask(row: ChannelNode) -> None:
            found[row.node] = await self._count_of(snapshot, channel, row)

        async with trio.open_nursery() as nursery:
            for row in channel.nodes:
                nursery.start_soon(ask, row)
        return Summary(nodes=tuple(found[row.node] for row in channel.nodes))

    async def _count_of(self, snapshot: Snapshot, channel: Channel, row: ChannelNode) -> N:
        kind = self.kind
        if reason := silence(snapshot, row.node):
            return kind.last_known(row, reason)
        targets = [f"{_target(kind.path, channel)}&summary=true", *(_target(it, channel) for it in kind.also)]
        try:
            return kind.count_in(row.node, [await self._upstream.get_json(row.node, it) for it in targets])
        except UpstreamError as error:
            if code_of(error) in kind.nothing:
                return replace(kind.last_known(row, ""), count=0)
            return kind.last_known(row, "it does not answer" if error.timed_out else why(error, kind.words))
        except _NONSENSE as error:
            return kind.last_known(row, f"its answer cannot be read: {error!r}")

    async def page(self, channel: Channel, summary: Summary[N], identity: Identity, look: Look) -> ListPage[M]:
        """Do one step: return when there are enough messages, when the time is up, or at the end."""
        nodes = [it for it in summary.nodes if not look.node or it.node == look.node]
        parts = {it.node: Part[M](problem=it.error) for it in nodes}
        deadline = trio.current_time() + look.seconds

        async def read(node: N) -> None:
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
        return replace(page, missing=tuple(sorted((_not_searched(parts) | dict(page.missing)).items())))

    async def one(self, snapshot: Snapshot, channel: Channel, identity: Identity, node: str, place: str) -> ListPage[M]:
        """Look up the message at this position. Raise ValueError if the position is invalid.

        We don't ask other nodes, and we only ask this node for its number of messages if we have to: another node may
        hang, and an unreadable number must not hide a message.
        """
        before = self.kind.place_before(place)
        look = Look(after={node: before} if before else {}, limit=1, node=node)
        found: list[N] = []
        for row in channel.nodes:
            if row.node == node and self.kind.has_log:
                found.append(await self._count_of(snapshot, channel, row))
            elif row.node == node:
                found.append(self.kind.last_known(row, silence(snapshot, node)))
        page = await self.page(channel, Summary(nodes=tuple(found)), identity, look)
        return replace(page, lines=tuple(it for it in page.lines if it.place == place))

    async def everything(self, channel: Channel, summary: Summary[N], identity: Identity, look: Look) -> ListPage[M]:
        """Do step after step, until there are `limit` messages, the time is up, or the end is reached."""
        deadline = trio.current_time() + look.seconds
        found: list[M] = []
        missing: dict[str, str] = {}
        looked = 0
        while True:
            rest = replace(look, limit=look.limit - len(found), seconds=max(0.5, deadline - trio.current_time()))
            page = await self.page(channel, summary, identity, rest)
            found += page.lines
            looked += page.looked
            missing |= page.missing
            is_over = len(found) >= look.limit or trio.current_time() >= deadline
            # Without progress, the rest is on nodes that can't be read.
            if not page.after or is_over or not page.looked:
                return replace(page, lines=tuple(found), looked=looked, missing=tuple(sorted(missing.items())))
            look = replace(look, after=parse_places(page.after))

    async def _read(
        self, node: N, channel: Channel, identity: Identity, look: Look, part: Part[M], deadline: float
    ) -> str:
        """Add a node's messages to its part. Return why that failed, or ended early; "": it is complete."""
        kind, log = self.kind, self.kind.log_of(node)
        limit = _IN_ONE_REQUEST if look.is_search else look.limit
        place, hits, size = look.after.get(node.node, ""), 0, 0
        looking = self._reader.look(identity, channel.topic, look.wanted)

        def add(ready: Sequence[Seen[Mapping[str, Any]]]) -> None:
            nonlocal hits, size, place
            for line, message, is_wanted in ready:
                one = kind.line_in(node, line, message if is_wanted and look.with_bodies else None, is_wanted=is_wanted)
                part.lines.append(one)
                place = one.place
                hits += is_wanted
                size += one.message.held if one.message is not None else 0

        try:
            while True:
                count = 0
                asked = {"limit": limit, **kind.arguments(look), "log": log, "after": place}
                target = _target(kind.path, channel, **{name: it for name, it in asked.items() if it})
                async with aclosing(self._reader.documents(node.node, target, nothing=kind.nothing)) as lines:
                    async for line in lines:
                        count += 1
                        add(await looking.add(line, _message_in(node.node, line, log)))
                        if size >= _MOST_BYTES:
                            return "its bodies are large: look at fewer messages at once"
                add(await looking.rest())
                if size >= _MOST_BYTES:
                    return "its bodies are large: look at fewer messages at once"
                if count < limit:
                    return ""
                if hits >= look.limit or len(part.lines) >= _MOST_LOOKED or trio.current_time() >= deadline:
                    part.goes_on = True
                    return ""
        except Unreadable as error:
            add(await looking.rest())  # what has arrived still counts
            return kind.words.get(str(error), str(error))
        except _NONSENSE as error:
            return f"its answer cannot be read: {error!r}"


def _message_in(node: str, line: dict[str, Any], log: str) -> Message | None:
    """Return the message of a line; None if its body can't be read. Raise Unreadable."""
    if "body" not in line and "body_base64" not in line:
        return None
    return replace(message_in(node, line, log), attempts=line.get("attempts"))


def _not_searched(parts: Mapping[str, Part[M]]) -> dict[str, str]:
    """Return the nodes with messages whose bodies we couldn't get, so that we don't know if they match."""
    why = "some of its messages cannot be read now, so they were not searched"
    return {node: why for node, part in parts.items() if any(it.unread and not it.is_wanted for it in part.lines)}


def _target(path: str, channel: Channel, **arguments: object) -> str:
    named = {"topic": channel.topic, "channel": channel.name, **arguments}
    return f"{path}?{urlencode(named, errors='surrogateescape')}"
