"""Nodes are asked for a channel's groups all at once: those that do not tell are named with the reason, and in time."""

from __future__ import annotations

from typing import Any, cast

import trio
import trio.testing

from nsqadmin.cluster.model import Health
from nsqadmin.upstream.client import Upstream, UpstreamError
from nsqadmin.upstream.groups import NO_SUCH, PATIENCE, GroupQuestions
from tests.support.picture import node

TOTALS = {"held": 3, "groups": 1, "unsorted": 0, "ahead": 0, "max_held": 9}


def refusal(code: str) -> UpstreamError:
    return UpstreamError("got response 404", status=404, body=b'{"message":"%b"}' % code.encode())


class FakeUpstream:
    """Answers as the address says."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def get_json(self, address: str, target: str) -> Any:
        self.asked.append((address, target))
        await trio.sleep(1.0)
        match address.partition(":")[0]:
            case "go":
                raise refusal("NOT_FOUND")
            case "ruleless":
                raise refusal("NO_GROUPS")
            case "empty":
                raise refusal("CHANNEL_NOT_FOUND")
            case "closed":
                raise UpstreamError("got response 403", status=403)
            case "odd":
                return ["nonsense"]
            case "hanging":
                await trio.sleep_forever()
        return {**TOTALS, "largest": []}


def test_each_node_tells_or_is_named_with_the_reason() -> None:
    upstream = FakeUpstream()
    names = "good", "go", "ruleless", "empty", "closed", "odd", "hanging"
    nodes = [node(f"{name}:4151") for name in names]
    nodes.append(node("down:4151", health=Health.DOWN, error="refused"))

    async def ask() -> tuple[float, list[tuple[int, bool, str]]]:
        began = trio.current_time()
        told = await GroupQuestions(cast("Upstream", upstream)).ask(nodes, "a b", "c", "x&y")
        return trio.current_time() - began, [(it.held, it.has_rules, it.untold) for it in told]

    took, told = trio.run(ask, clock=trio.testing.MockClock(autojump_threshold=0))
    assert took == PATIENCE
    assert told[:5] == [
        (3, True, ""),
        (0, True, NO_SUCH),
        (0, False, ""),
        (0, True, ""),
        (0, True, "it refused the request (HTTP 403)"),
    ]
    assert told[5][2].startswith("its answer cannot be read")
    assert [untold for _, _, untold in told[6:]] == [
        "it has not answered within 5 s",
        "it does not answer",
    ]
    assert {target for _, target in upstream.asked} == {"/channel/groups?topic=a+b&channel=c&limit=100&name=x%26y"}
    assert "down:4151" not in {address for address, _ in upstream.asked}
