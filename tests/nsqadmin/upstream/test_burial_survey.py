"""Nodes that bury messages are asked why, now and then, and findings name the most frequent reasons."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio
import trio.testing

from nsqadmin.cluster.model import BuriedReason, ChannelNode, Snapshot
from nsqadmin.upstream.burial_survey import burial_survey
from nsqadmin.upstream.channel_survey import ChannelSurvey
from nsqadmin.upstream.client import Upstream, UpstreamError
from tests.support.picture import channel, channel_node, node, snapshot, topic

BurialSurvey = ChannelSurvey[tuple[BuriedReason, ...]]
Look = Callable[[BurialSurvey, "Nodes"], Awaitable[None]]


class Nodes:
    """Stands in for `Upstream`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Any = {
            "reasons": [
                {"reason": "no such customer: 17", "client": "a", "count": 3},
                {"reason": "no such customer: 4711", "client": "a", "count": 4},
                {"reason": "5 attempts, the last one timed out", "client": "", "count": 5},
            ]
        }

    async def get_json(self, address: str, target: str) -> Any:
        await trio.lowlevel.checkpoint()
        self.asked.append(f"{address}{target}")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def picture(recent: int = 7) -> Snapshot:
    rows = channel_node("n1:4151", buried_count=12, buried_recent=recent), channel_node("n2:4151", buried_count=900)
    return snapshot(topic(channel(*rows)), nodes=(node(), node("n2:4151")))


def surveyed(look: Look, *, shows_texts: bool = True) -> None:
    nodes = Nodes()
    survey = burial_survey(cast("Upstream", nodes), shows_texts=shows_texts)
    trio.run(look, survey, nodes, clock=trio.testing.MockClock(autojump_threshold=0))


async def sweep(survey: BurialSurvey, shown: Snapshot) -> tuple[ChannelNode, ...]:
    """Return the rows of the channel in the next sweep's picture."""
    async with trio.open_nursery() as nursery:
        survey.start(nursery, shown)
    return survey.shown(shown.topics)[0].channels[0].nodes


def test_reasons_that_differ_in_a_number_are_one() -> None:
    async def look(survey: BurialSurvey, nodes: Nodes) -> None:
        first, second = await sweep(survey, picture())
        assert nodes.asked == ["n1:4151/channel/buried?topic=t&channel=c&summary=true"]
        customers = BuriedReason(pattern="no such customer: *", count=7)
        assert first.buried_reasons == (customers, BuriedReason(pattern="5 attempts, the last one timed out", count=5))
        assert second.buried_reasons == ()

    surveyed(look)


@pytest.mark.parametrize("answer", [UpstreamError("no answer"), {}, [], {"reasons": [{"reason": 7, "count": 1}]}])
def test_an_answer_that_makes_no_sense_leaves_the_earlier_one(answer: Any) -> None:
    async def look(survey: BurialSurvey, nodes: Nodes) -> None:
        before, _ = await sweep(survey, picture())
        nodes.answer = answer
        await trio.sleep(16)
        after, _ = await sweep(survey, picture())
        assert len(nodes.asked) == 2
        assert after.buried_reasons == before.buried_reasons != ()

    surveyed(look)


def test_reasons_that_may_quote_messages_are_hidden_if_not_all_users_see_these() -> None:
    async def look(survey: BurialSurvey, nodes: Nodes) -> None:
        first, _ = await sweep(survey, picture())
        assert [it.pattern for it in first.buried_reasons] == ["***", "5 attempts, the last one timed out"]

    surveyed(look, shows_texts=False)
