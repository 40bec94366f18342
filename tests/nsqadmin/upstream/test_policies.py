"""Nodes are asked for their policies all at once: those that do not tell are named with the reason, and in time."""

from __future__ import annotations

from typing import Any, cast

import trio
import trio.testing

from nsqadmin.cluster.model import Health
from nsqadmin.upstream.client import Upstream, UpstreamError
from nsqadmin.upstream.policies import NO_SUCH, PATIENCE, PolicyQuestions
from tests.support.picture import node


class FakeUpstream:
    """Answers as the address says."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def get_json(self, address: str, target: str) -> Any:
        self.asked.append((address, target))
        await trio.sleep(1.0)
        match address.partition(":")[0]:
            case "go":
                raise UpstreamError("got response 400", status=400)
            case "closed":
                raise UpstreamError("got response 403", status=403)
            case "odd":
                return ["nonsense"]
            case "hanging":
                await trio.sleep_forever()
        return {"path": "p", "digest": "d", "read_at": 0, "error": ""}


def test_each_node_tells_or_is_named_with_the_reason() -> None:
    upstream = FakeUpstream()
    nodes = [node(f"{name}:4151") for name in ("good", "go", "closed", "odd", "hanging")]
    nodes.append(node("down:4151", health=Health.DOWN, error="refused"))

    async def ask() -> tuple[float, list[tuple[str, str]]]:
        began = trio.current_time()
        told = await PolicyQuestions(cast("Upstream", upstream)).ask(nodes, "a b", "c")
        return trio.current_time() - began, [(it.digest, it.untold) for it in told]

    took, told = trio.run(ask, clock=trio.testing.MockClock(autojump_threshold=0))
    assert took == PATIENCE
    assert told[0] == ("d", "")
    assert [untold for _, untold in told[1:]] == [
        NO_SUCH,
        "it refused the request (HTTP 403)",
        told[3][1],
        "it has not answered within 2 s",
        "it does not answer",
    ]
    assert told[3][1].startswith("its answer cannot be read")
    assert {target for _, target in upstream.asked} == {"/config/policy?topic=a+b&channel=c"}
    assert "down:4151" not in {address for address, _ in upstream.asked}
