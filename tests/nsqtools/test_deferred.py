"""The pages of deferred messages that nsq_deferred reads from one nsqd."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from nsqtools.deferred import PAGE, DeferredMessages
from nsqtools.nodes import AskFailed, NodeQueries, Server


class StuckQueries:
    """An nsqd that answers each query with the same page."""

    asked = 0

    async def ask_lines(self, server: Server, target: str, check: object) -> list[Any]:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        assert self.asked < 10, "it is asked without end"
        return [{"due": number, "after": f"{number}"} for number in range(PAGE)]


def test_an_nsqd_that_sends_the_same_page_again_is_asked_no_further() -> None:
    node = DeferredMessages(cast(NodeQueries, StuckQueries()), Server("n1", 4151), "t")

    async def read() -> None:
        async for _ in node.messages("c"):
            pass

    with pytest.raises(AskFailed, match="n1:4151/channel/deferred: the same page twice"):
        trio.run(read)
