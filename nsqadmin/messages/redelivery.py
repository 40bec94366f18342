"""Redelivers selected messages: to one channel only, or to all channels by publishing them again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import trio

from nsqadmin.messages.model import Redelivered
from nsqadmin.messages.publishing import CannotPublish
from nsqadmin.messages.reading import why
from nsqadmin.messages.selection import arguments_of
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from nsqadmin.messages.publishing import Publisher
    from nsqadmin.messages.reading import Reader
    from nsqadmin.messages.selection import Selection, Source
    from nsqadmin.upstream.client import Upstream

MOST_PIECES: Final = 1000  # ranges to publish again at once, because reading each takes a request
_WORDS: Final = {
    "NOT_FOUND": "it cannot deliver to one channel: it is a Go nsqd or an older version",
    "BEYOND_END": "the channel has not received some of these messages yet",
}


class Redeliverer:
    """Redelivers, on trio."""

    def __init__(self, upstream: Upstream, reader: Reader, publisher: Publisher) -> None:
        self._upstream = upstream
        self._reader = reader
        self._publisher = publisher

    async def redeliver(self, topic: str, channel: str, selection: Selection) -> tuple[Redelivered, ...]:
        """Ask each node that has some of the messages to deliver them to this channel once more."""
        results: dict[Source, Redelivered] = {}

        async def ask(source: Source) -> None:
            results[source] = await self._at(source, topic, channel, selection.runs[source])

        async with trio.open_nursery() as nursery:
            for source in selection.runs:
                nursery.start_soon(ask, source)
        return tuple(results[source] for source in selection.runs)

    async def _at(self, source: Source, topic: str, channel: str, runs: Sequence[tuple[int, int]]) -> Redelivered:
        counts = {"redelivered": 0, "waiting": 0, "gone": 0}
        error = ""
        named = [("topic", topic), ("channel", channel), *([("log", source.log)] if source.log else [])]
        try:
            for arguments in arguments_of(runs):
                target = urlencode([*named, *arguments])
                answer = json.loads(await self._upstream.post(source.node, f"/channel/redeliver?{target}"))
                counts = {name: counts[name] + int(answer[name]) for name in counts}
        except UpstreamError as failure:
            error = why(failure, _WORDS)
        except (ValueError, KeyError, TypeError, RecursionError) as failure:
            error = f"its answer cannot be read: {failure!r}"
        return Redelivered(node=source.node, asked=sum(end - first for first, end in runs), error=error, **counts)

    async def publish_again(self, topic: str, selection: Selection) -> tuple[Redelivered, ...]:
        """Publish the messages to their topic again, each on the node that has it. Raise CannotPublish."""
        pieces = sum(len(runs) for runs in selection.runs.values())
        if pieces > MOST_PIECES:
            raise CannotPublish(
                "TOO_SCATTERED", f"the messages lie in {pieces:,} places; at most {MOST_PIECES:,} at once"
            )
        return tuple([await self._publish_at(source, topic, runs) for source, runs in selection.runs.items()])

    async def _publish_at(self, source: Source, topic: str, runs: Sequence[tuple[int, int]]) -> Redelivered:
        asked = sum(end - first for first, end in runs)
        published, error = 0, ""
        log = await self._reader.log_at(source.node, topic)
        for first, end in runs:
            try:
                plan = self._publisher.plan_replay(log, topic, first, end, topic, expected=source.log)
                receipt = await self._publisher.replay(plan)
            except CannotPublish as refusal:
                if refusal.code == "EMPTY_RANGE":
                    continue
                error = refusal.reason
                break
            published += receipt.published
            if receipt.error:
                error = receipt.error
                break
        gone = 0 if error else asked - published
        return Redelivered(node=source.node, asked=asked, redelivered=published, gone=gone, error=error)
