"""The deferred messages of a topic on one nsqd, over HTTP (docs/reference/http.md, "Deferred messages")."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from nsqtools.json_fields import list_in, number_in, text_in
from nsqtools.nodes import AskFailed, NodeQueries, Server

PAGE: Final = 100  # messages; each may be a read from disk
_NOT_THERE: Final = frozenset({"MESSAGE_NOT_FOUND", "TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"})

REASONS: Final = {"NOT_FOUND": "this nsqd can't list or cancel deferred messages"}


@dataclass(frozen=True, slots=True)
class Name:
    """The key or the id of a message, in one channel or in all ("")."""

    kind: str  # key or id
    text: str
    channel: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.text}"


class DeferredMessages:
    """One topic of one nsqd. All methods raise AskFailed."""

    def __init__(self, queries: NodeQueries, server: Server, topic: str) -> None:
        self._queries = queries
        self.server = server
        self._topic = topic

    async def counts(self) -> dict[str, int] | None:
        """Return the number of deferred messages of each channel; None if there is no such topic."""

        def read(said: Any) -> dict[str, int] | None:
            for it in list_in(said, "topics"):
                if text_in(it, "topic_name") == self._topic:
                    channels = list_in(it, "channels")
                    return {text_in(one, "channel_name"): number_in(one, "deferred_count") for one in channels}
            return None

        arguments = urlencode({"format": "json", "topic": self._topic, "include_clients": "false"})
        return await self._queries.ask(self.server, f"/stats?{arguments}", read)

    async def messages(self, channel: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the deferred messages, ordered by due time."""
        after = ""
        while True:
            page = await self.page(channel, after=after)
            for message in page:
                yield message
            if len(page) < PAGE:
                return
            if page[-1]["after"] == after:
                raise AskFailed(f"{self.server}/channel/deferred: the same page twice")
            after = page[-1]["after"]

    async def page(self, channel: str, *, after: str = "", limit: int = PAGE) -> list[dict[str, Any]]:
        arguments = {"topic": self._topic, "channel": channel, "limit": limit} | ({"after": after} if after else {})
        return await self._queries.ask_lines(self.server, f"/channel/deferred?{urlencode(arguments)}", _check)

    async def cancel(self, name: Name) -> Counter[str] | None:
        """Cancel a message. Return the number of channels by the state in which it was found; None if it is unknown."""
        return await self._change("cancel", name)

    async def due(self, name: Name, defer_ms: int) -> Counter[str] | None:
        """Make a message due after this delay. Return the same as `cancel`."""
        return await self._change("due", name, ("defer", defer_ms))

    async def _change(self, verb: str, name: Name, *more: tuple[str, object]) -> Counter[str] | None:
        asked = [("topic", self._topic), (name.kind, name.text), *more]
        asked += [("channel", name.channel)] if name.channel else []
        try:
            return await self._queries.post(self.server, f"/message/{verb}?{urlencode(asked)}", _counted)
        except AskFailed as error:
            if error.code in _NOT_THERE:
                return None
            raise


def _check(line: Any) -> None:
    number_in(line, "due")
    text_in(line, "after")


def _counted(said: Any) -> Counter[str]:
    return Counter({str(how): int(count) for how, count in said.items()})
