"""Asks nodes now and then for the largest groups of channels that hold many messages, so that a finding can name them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.message_groups import MANY
from nsqadmin.messages.masking import MASK
from nsqadmin.upstream.channel_survey import ChannelSurvey

if TYPE_CHECKING:
    from nsqadmin.cluster.message_groups import NodeGroups
    from nsqadmin.cluster.model import Channel, ChannelNode, Node
    from nsqadmin.upstream.groups import GroupQuestions

_ROWS: Final = 3


def group_survey(questions: GroupQuestions, *, shows_names: bool) -> ChannelSurvey[NodeGroups]:
    """Return the survey. `shows_names`: all users may see messages, so findings may have the names of groups."""

    async def ask(node: Node, topic: str, channel: str) -> NodeGroups | None:
        (told,) = await questions.ask([node], topic, channel, rows=_ROWS)
        return None if told.untold else told

    def add(row: ChannelNode, told: NodeGroups) -> ChannelNode:
        if not row.held_count:
            return row
        largest = told.largest
        if not shows_names:
            largest = tuple(replace(it, name=MASK if it.name else "") for it in largest)
        return replace(row, max_held=told.max_held, largest_groups=largest)

    return ChannelSurvey(_many_held, ask, add)


def _many_held(it: Channel | ChannelNode) -> int:
    return it.held_count if it.held_count >= MANY else 0
