"""The tab with a channel's buried messages and their reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqadmin.http.responses import identity_of
from nsqadmin.messages.buried import BuriedSummary
from nsqadmin.messages.buried_actions import ACTIONS
from nsqadmin.messages.jobs import tasks_of
from nsqadmin.messages.lists import Look, parse_places
from nsqadmin.messages.reason_groups import each, grouped, selecting_text
from nsqadmin.parts.messages import NO_CLUSTER
from nsqadmin.parts.painter import word_of
from nsqadmin.parts.selection_tab import SelectionShown, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.buried import NodeSummary, Reason
    from nsqadmin.messages.reason_groups import ReasonGroup
    from nsqadmin.messages.reasons import ReasonSight
    from nsqadmin.messages.selection_plan import SelectionAction
    from nsqadmin.parts.links import Links
    from nsqadmin.services import Services

_MOST_GROUPS: Final = 50  # of reasons, in the table
_LIMITS: Final = ("20", "50", "100", "500")  # the first is the default


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShown:
    """A row of the table of reasons."""

    group: ReasonGroup
    name: str  # selects its messages, and no others that are listed; empty: nothing does

    @property
    def is_single(self) -> bool:
        return len(self.group.reasons) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BuriedShown(SelectionShown):
    """The content of the tab."""

    summary: BuriedSummary | None = None
    reason: str = ""  # only messages with this text in their reason, as named in the address
    may_search: bool = True  # for any text; otherwise for a listed reason
    groups: tuple[GroupShown, ...] = ()  # the largest groups of reasons
    in_other_groups: int = 0  # messages

    @property
    def actions(self) -> tuple[SelectionAction, ...]:
        """The actions on selected messages."""
        return tuple(it for it in ACTIONS if it.label)

    @property
    def tasks(self) -> tuple[tuple[str, int], ...]:
        """The names of the jobs among these messages, each with its number of jobs."""
        return tasks_of(self.jobs)


async def buried_of(services: Services, links: Links, request: Request, channel: Channel) -> BuriedShown:
    if services.messages is None:
        return BuriedShown(not_possible=NO_CLUSTER)
    buried, arguments, identity = services.messages.buried, request.query_params, identity_of(request)
    sight = buried.sight(channel, identity)
    known = BuriedShown(
        node=arguments.get("node", ""),
        limit=int(word_of(request, "limit", _LIMITS)),
        reason=arguments.get("reason", ""),
        may_search=sight.is_whole,
    )
    try:
        after = parse_places(arguments.get("after", ""))
        look = Look(after=after, limit=known.limit, node=known.node, reason=known.reason)
        summary, page = await buried.read(channel, identity, look)
    except ValueError as error:
        summary = await buried.summary(channel, identity)
        return replace(_with_summary(known, summary.nodes, sight), wrong=f"{error}.")
    kept = {"tab": "buried", "reason": known.reason, "node": known.node, "limit": known.limit}
    return replace(
        _with_summary(known, summary.nodes, sight),
        page=page,
        rows=rows_of("buried", links, channel, page),
        go_on=links.channel(channel.topic, channel.name, **kept, after=page.after) if page.after else "",
        is_first=not after,
    )


def _with_summary(known: BuriedShown, nodes: tuple[NodeSummary, ...], sight: ReasonSight) -> BuriedShown:
    summary = BuriedSummary(nodes=nodes)
    reasons = summary.reasons
    groups = grouped(reasons) if sight.is_whole else each(reasons)
    listed = [it.text for it in reasons]
    shown = tuple(GroupShown(group=it, name=_name_of(it, reasons, listed, sight)) for it in groups[:_MOST_GROUPS])
    others = sum(it.count for it in groups[_MOST_GROUPS:]) + summary.others
    return replace(known, summary=summary, groups=shown, in_other_groups=others)


def _name_of(group: ReasonGroup, reasons: Sequence[Reason], listed: Sequence[str], sight: ReasonSight) -> str:
    if len(group.reasons) == 1:
        return group.reasons[0].name
    part = selecting_text(group, reasons)
    return sight.name_of_part(part, listed) if part else ""
