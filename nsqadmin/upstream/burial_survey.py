"""Asks nodes now and then why they bury messages, so that a finding can name the most frequent reasons."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import trio

from nsqadmin.cluster.model import BuriedReason
from nsqadmin.diagnosis.names import pattern_of
from nsqadmin.messages.lists import text_in, whole_in
from nsqadmin.messages.masking import MASK
from nsqadmin.messages.policy_words import is_of_nsqd
from nsqadmin.upstream.channel_survey import ChannelSurvey
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from nsqadmin.cluster.model import ChannelNode, Node
    from nsqadmin.upstream.client import Upstream

_REASONS: Final = 5  # of one node, after numbers and ids in them have become `*`
_LISTED: Final = 1_000  # in a node's answer; nsqd sends no more
_LONGEST: Final = 200  # characters
_PATIENCE: Final = 5.0  # seconds

_Reasons = tuple[BuriedReason, ...]


def burial_survey(upstream: Upstream, *, shows_texts: bool) -> ChannelSurvey[_Reasons]:
    """Return the survey of nodes that have buried messages lately.

    `shows_texts`: all users may see messages, so findings may quote reasons, which often quote a message.
    """

    async def ask(node: Node, topic: str, channel: str) -> _Reasons | None:
        target = f"/channel/buried?{urlencode({'topic': topic, 'channel': channel, 'summary': 'true'})}"
        try:
            with trio.move_on_after(_PATIENCE):
                return _reasons_in(await upstream.get_json(node.address, target), shows_texts=shows_texts)
        except (UpstreamError, KeyError, TypeError, ValueError):
            pass  # the finding stands without a reason, or with an earlier one
        return None

    return ChannelSurvey(lambda it: it.buried_recent, ask, _with_reasons)


def _reasons_in(document: Any, *, shows_texts: bool) -> _Reasons:
    counts: Counter[str] = Counter()
    for it in document["reasons"][:_LISTED]:
        counts[_pattern(text_in(it["reason"]), shows_texts=shows_texts)] += whole_in(it["count"])
    return tuple(BuriedReason(pattern=text, count=count) for text, count in counts.most_common(_REASONS) if text)


def _pattern(reason: str, *, shows_texts: bool) -> str:
    if is_of_nsqd(reason):
        return reason
    return pattern_of(reason[:_LONGEST]) if shows_texts or not reason else MASK


def _with_reasons(row: ChannelNode, reasons: _Reasons) -> ChannelNode:
    return replace(row, buried_reasons=reasons) if row.buried_count else row
