"""Carries out a plan: sends its requests to the nodes, and passes it their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlencode

import trio

from nsqadmin.actions.execution import may_follow
from nsqadmin.messages.reading import why
from nsqadmin.messages.selection_plan import NodeResult, NodeShare, SelectionPlan
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from nsqadmin.upstream.client import Upstream

_NO_ANSWER: Final = "asked, no answer: it may have done it, or still do it"
_NONSENSE: Final = (KeyError, TypeError, ValueError, RecursionError)

S = TypeVar("S", bound=NodeShare)
R = TypeVar("R", bound=NodeResult)


async def act(plan: SelectionPlan[S, R], upstream: Upstream, told: Callable[[str, bool], None]) -> tuple[R, ...]:
    """Ask each node for its share, all at the same time; on trio. `told` is called with each finished node."""
    results: dict[int, R] = {}

    async def ask(at: int, share: S) -> None:
        results[at] = await _act_at(share, plan, upstream)
        told(share.node, not results[at].error)

    async with trio.open_nursery() as nursery:
        for at, share in enumerate(plan.shares):
            nursery.start_soon(ask, at, share)
    return tuple(results[at] for at in range(len(plan.shares)))


async def _act_at(share: S, plan: SelectionPlan[S, R], upstream: Upstream) -> R:
    conversation = plan.conversation(share)
    try:
        result, request = next(conversation)
    except StopIteration as end:
        return cast("R", end.value)
    try:
        while True:
            target = f"{request.path}?{urlencode(request.arguments, errors='surrogateescape')}"
            result, request = conversation.send(await upstream.post(share.node, target, request.body))
    except StopIteration as end:
        return cast("R", end.value)
    except UpstreamError as error:
        return replace(result, **_failure(error, plan.action.words))
    except _NONSENSE as error:
        return replace(result, error=f"its answer cannot be read: {error!r}")


def _failure(error: UpstreamError, words: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a result that say why a node failed, or hasn't confirmed."""
    follows = may_follow(error)
    return {"error": _NO_ANSWER if follows else why(error, words), "may_follow": follows}
