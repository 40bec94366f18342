"""What all changes of single messages have in common: the right, the audit log, and that they are carried out to the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from time import time
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from nsqadmin.upstream.acting import acting_for
from nsqcommon.http_api import HttpError
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from nsqadmin.access.policy import Right
    from nsqadmin.actions.audit import ActivityLog
    from nsqadmin.http.responses import Caller


class NodeResult(Protocol):
    """What one node has done of what it was asked for."""

    @property
    def node(self) -> str: ...

    @property
    def done(self) -> int: ...

    @property
    def error(self) -> str: ...


R = TypeVar("R", bound=NodeResult)


def result_of(results: Sequence[NodeResult], left_out: Sequence[object] = ()) -> str:
    """Return "ok", "partly" or "failed", as for other actions."""
    if not left_out and not any(it.error for it in results):
        return "ok"
    return "partly" if any(it.done or not it.error for it in results) else "failed"


class Changing:
    """Carries out changes of a channel's messages, for callers on asyncio."""

    def __init__(self, activity: ActivityLog) -> None:
        self._activity = activity

    def need(self, right: Right, caller: Caller, topic: str, channel: str, what: str, words: str) -> None:
        """Audit a refusal, and raise 403, unless the user has the right."""
        if reason := caller.identity.why_not(right, topic):
            text = f"refused to {words} {topic}/{channel}: {reason}"
            self._activity.note(caller, what, text, "refused", topic=topic, channel=channel)
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})

    async def changed(self, change: Callable[[], Awaitable[Sequence[R]]], caller: Caller, topic: str) -> tuple[R, ...]:
        """Do it on trio in the user's name. Once begun, it is carried out even if the caller disconnects."""

        async def shielded() -> tuple[R, ...]:
            with trio.CancelScope(shield=True), acting_for(caller.identity.user or caller.basic_user):
                results = await change()  # each request has its own deadline
            return tuple(results)

        with self._activity.under_way(topic):
            return await run_trio(shielded)

    def note(
        self,
        caller: Caller,
        what: str,
        text: str,
        topic: str,
        channel: str,
        results: Sequence[NodeResult],
        began: float,
    ) -> None:
        failed = [it.node for it in results if it.error]
        text += f"; no answer or refused: {', '.join(failed)}" if failed else ""
        nodes = tuple(it.node for it in results)
        self._activity.note(
            caller,
            what,
            text,
            result_of(results),
            topic=topic,
            channel=channel,
            nodes=nodes,
            at=began,
            took=time() - began,
        )
