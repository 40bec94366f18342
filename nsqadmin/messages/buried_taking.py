"""Asks nodes to kick or discard buried messages, and to stop."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import trio

from nsqadmin.actions.execution import may_follow
from nsqadmin.messages.buried import Job, job_in, kick_in
from nsqadmin.messages.buried_actions import Share, Taken, Taking
from nsqadmin.messages.reading import why
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from nsqadmin.upstream.client import Upstream

_IN_ONE_REQUEST: Final = 200  # messages by their ids, so that the URL stays below 8 kB
_NO_ANSWER: Final = "asked, no answer: it may have done it, or still do it"
_WORDS: Final = {
    "NOT_FOUND": "it buries nothing: it is NSQ's nsqd, or older than ours",
    "JOB_UNDER_WAY": "a kick or discard is under way there already",
    "FULL": "the channel has no room for them: kick fewer, wait until consumers have made room, or use force",
    "KICK_NOT_FOUND": "it is too late: the kick was more than 10 minutes ago, there was another one, or nsqd started anew",
}
_NONSENSE: Final = (KeyError, TypeError, ValueError, RecursionError)


class BuriedTaker:
    """Kicks and discards, on trio."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def take(self, taking: Taking) -> tuple[Taken, ...]:
        """Ask each node for its share, all at the same time."""
        results: dict[str, Taken] = {}

        async def ask(share: Share) -> None:
            results[share.node] = await self._take_at(share, taking)

        async with trio.open_nursery() as nursery:
            for share in taking.shares:
                nursery.start_soon(ask, share)
        return tuple(results[share.node] for share in taking.shares)

    async def _take_at(self, share: Share, taking: Taking) -> Taken:
        verb = taking.wanted.verb
        named = [("topic", taking.topic), ("channel", taking.channel)]
        taken = Taken(node=share.node, asked=share.count)
        if len(share.ids) > _IN_ONE_REQUEST and taking.needs_force and not taking.wanted.force and not share.has_room:
            return replace(taken, error=_WORDS["FULL"])  # the node would take the first requests, and refuse the last
        try:
            for arguments in _requests(share, taking.text, force=taking.wanted.force):
                goes_on = [("kick", taken.kick)] if taken.kick and share.ids else []
                answer = await self._post(share.node, f"/channel/{verb}", [*named, *arguments, *goes_on])
                done, job = taken.done + _count(answer[verb.past]), job_in(answer["job"])
                taken = replace(taken, done=done, job=job, kick=kick_in(answer))
        except UpstreamError as error:
            return replace(taken, **failure_of(error, _WORDS))
        except _NONSENSE as error:
            return replace(taken, error=f"its answer cannot be read: {error!r}")
        return taken

    async def undo(self, topic: str, channel: str, kicks: Sequence[tuple[str, int]]) -> tuple[Taken, ...]:
        """Take kicks back, each on its node: bury again what nobody got since. `asked` is what the kick gave back."""
        results: dict[str, Taken] = {}

        async def ask(node: str, kick: int) -> None:
            results[node] = await self._undo_at(node, [("topic", topic), ("channel", channel), ("kick", kick)])

        async with trio.open_nursery() as nursery:
            for node, kick in kicks:
                nursery.start_soon(ask, node, kick)
        return tuple(results[node] for node, _ in kicks)

    async def _undo_at(self, node: str, named: Sequence[tuple[str, object]]) -> Taken:
        try:
            answer = await self._post(node, "/channel/kick/undo", named)
            job = job_in(answer["job"])
            return Taken(node=node, asked=_count(answer["kicked"]), done=_count(answer["buried"]), job=job)
        except UpstreamError as error:
            return Taken(node=node, asked=0, **failure_of(error, _WORDS))
        except _NONSENSE as error:
            return Taken(node=node, asked=0, error=f"its answer cannot be read: {error!r}")

    async def stop(self, topic: str, channel: str, nodes: Sequence[str]) -> tuple[Taken, ...]:
        """End the jobs under way on these nodes. A node without one has no `job` in its result."""
        results: dict[str, Taken] = {}

        async def ask(node: str) -> None:
            results[node] = await self._stop_at(node, [("topic", topic), ("channel", channel)])

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(ask, node)
        return tuple(results[node] for node in nodes)

    async def _stop_at(self, node: str, named: Sequence[tuple[str, object]]) -> Taken:
        try:
            job: Job | None = job_in((await self._post(node, "/channel/jobs/stop", named))["job"])
        except UpstreamError as error:
            return Taken(node=node, asked=0, **failure_of(error, _WORDS))
        except _NONSENSE as error:
            return Taken(node=node, asked=0, error=f"its answer cannot be read: {error!r}")
        return Taken(node=node, asked=job.limit if job is not None else 0, done=job.done if job else 0, job=job)

    async def _post(self, node: str, path: str, arguments: Sequence[tuple[str, object]]) -> Any:
        target = f"{path}?{urlencode(arguments, errors='surrogateescape')}"
        return json.loads(await self._upstream.post(node, target))


def _requests(share: Share, reason: str, *, force: bool) -> Iterator[list[tuple[str, object]]]:
    """Yield the arguments of each request.

    A selection has the number of the plan as its limit: what is buried after the user has looked is not taken.
    """
    forced: list[tuple[str, object]] = [("force", "true")] if force else []
    if share.ids:
        for at in range(0, len(share.ids), _IN_ONE_REQUEST):
            yield [*(("id", id) for id in share.ids[at : at + _IN_ONE_REQUEST]), *forced]
        return
    arguments: list[tuple[str, object]] = [("limit", share.count), *forced]
    if reason:
        arguments.append(("reason", reason))
    if share.rate:
        arguments.append(("rate", f"{share.rate:.3f}"))
    yield arguments


def failure_of(error: UpstreamError, words: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a result that say why a node did not do what it was asked for, or has not said so."""
    follows = may_follow(error)
    return {"error": _NO_ANSWER if follows else why(error, words), "may_follow": follows}


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{type(value).__name__} is not a count")
    return value
