"""What channels have buried, for request handlers: bridges to trio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.web import run_trio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqadmin.access.policy import Identity
    from nsqadmin.cluster.model import Channel
    from nsqadmin.cluster.view import View
    from nsqadmin.messages.burials import BuriedPage, Summary
    from nsqadmin.messages.buried_reading import BuriedReader


class Buried:
    """Buried messages, for callers on asyncio. The caller has checked that the user may see the topic."""

    def __init__(self, reader: BuriedReader, view: View) -> None:
        self._reader = reader
        self._view = view

    async def summary(self, channel: Channel) -> Summary:
        """Return how many messages are buried on each node, and why."""
        return await run_trio(self._reader.summary, self._view.snapshot, channel)

    async def page(
        self,
        channel: Channel,
        identity: Identity,
        *,
        after: Mapping[str, int],
        limit: int,
        reason: str = "",
        node: str = "",
    ) -> BuriedPage:
        """Return the next buried messages; see `BuriedReader.page`."""

        async def read() -> BuriedPage:
            return await self._reader.page(
                self._view.snapshot, channel, identity, after=after, limit=limit, reason=reason, node=node
            )

        return await run_trio(read)
