"""Asks nodes to cancel deferred messages, or to move when they are due."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import trio

from nsqadmin.messages.buried_taking import failure_of
from nsqadmin.messages.deferred_actions import Recalled, Recalling, RecallShare, RecallVerb
from nsqadmin.messages.lists import whole_in
from nsqadmin.messages.selection import arguments_of
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from nsqadmin.upstream.client import Upstream

_WORDS: Final = {
    "NOT_FOUND": "it cannot take messages back: it is NSQ's nsqd, or older than ours",
    "MISSING_ARG_CHANNEL": "it cannot take messages back by their sequences: it is older than ours",
    "INVALID_REQUEST": "it cannot take messages back by their sequences: it is older than ours",
    "INVALID_DEFER": "it does not defer for that long: see its --max-defer-timeout",
    "EPHEMERAL_TOPIC": "messages of an ephemeral topic cannot be named",
}
_NONSENSE: Final = (KeyError, TypeError, ValueError, RecursionError)


class Recaller:
    """Cancels and moves, on trio."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def recall(self, recalling: Recalling, told: Callable[[str, bool], None]) -> Sequence[Recalled]:
        """Ask each node for its share, all at the same time. `told` is called with each node that has ended."""
        results: dict[RecallShare, Recalled] = {}

        async def ask(share: RecallShare) -> None:
            results[share] = await self._at(share, recalling)
            told(share.node, not results[share].error)

        async with trio.open_nursery() as nursery:
            for share in recalling.shares:
                nursery.start_soon(ask, share)
        return [results[share] for share in recalling.shares]

    async def _at(self, share: RecallShare, recalling: Recalling) -> Recalled:
        verb = recalling.wanted.verb
        named: list[tuple[str, object]] = [("topic", recalling.topic), ("channel", recalling.channel)]
        named += [("log", share.log)] if share.log else []
        named += [("defer", round((recalling.wanted.delay or 0) * 1000))] if verb is RecallVerb.DUE else []
        recalled = Recalled(node=share.node, asked=share.count)
        try:
            for arguments in arguments_of(share.runs):
                target = f"/message/{verb}?{urlencode([*named, *arguments], errors='surrogateescape')}"
                answer: Any = json.loads(await self._upstream.post(share.node, target))
                recalled = replace(
                    recalled,
                    done=recalled.done + whole_in(answer[verb.past]),
                    in_flight=recalled.in_flight + whole_in(answer["in_flight"]),
                    gone=recalled.gone + whole_in(answer["done"]) + whole_in(answer["buried"]),
                )
        except UpstreamError as error:
            return replace(recalled, **failure_of(error, _WORDS))
        except _NONSENSE as error:
            return replace(recalled, error=f"its answer cannot be read: {error!r}")
        return recalled
