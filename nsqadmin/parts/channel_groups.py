"""The tab with a channel's groups, the largest first, and a search by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.cluster.message_groups import MessageGroup, NodeGroups, is_cut, merged_groups
from nsqadmin.http.responses import identity_of
from nsqadmin.messages.group_actions import VERBS
from nsqadmin.messages.masking import MASK
from nsqadmin.parts.messages import NO_CLUSTER
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Channel, Snapshot
    from nsqadmin.messages.selection_plan import SelectionAction
    from nsqadmin.services import Services

_MOST_ROWS: Final = 100
_LONGEST_SEARCH: Final = 128  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsShown:
    """The content of the tab."""

    not_possible: str = ""
    name: str = ""  # the search as typed
    told: tuple[NodeGroups, ...] = ()  # by nodes that answer and have rules about groups
    untold: tuple[NodeGroups, ...] = ()
    without_rules: tuple[str, ...] = ()  # nodes
    rows: tuple[MessageGroup, ...] = ()
    no_names: str = ""  # why the names are hidden
    is_cut: bool = False  # some groups are missing, and sums may be too low

    @property
    def held(self) -> int:
        return sum(it.held for it in self.told)

    @property
    def groups(self) -> int:
        """The greatest number of groups of a node. Nodes may share groups, so their sum would be too high."""
        return max((it.groups for it in self.told), default=0)

    @property
    def actions(self) -> tuple[SelectionAction, ...]:
        return tuple(VERBS.values())

    @property
    def unlooked(self) -> int:
        """Waiting messages that are in no row."""
        return sum(it.ahead + it.unsorted for it in self.told)


async def groups_of(services: Services, request: Request, snapshot: Snapshot, channel: Channel) -> GroupsShown:
    if services.groups is None:
        return GroupsShown(not_possible=NO_CLUSTER)
    identity = identity_of(request)
    name = request.query_params.get("name", "").strip()[:_LONGEST_SEARCH]
    if identity.why_not(Right.PAYLOAD, channel.topic):
        name = ""  # a search would tell the names letter by letter
    found = await run_trio(services.groups.of_channel, snapshot, channel, name)
    return groups_shown(found, name, identity, channel.topic)


def groups_shown(found: Sequence[NodeGroups], name: str, identity: Identity, topic: str) -> GroupsShown:
    """Return what this user may see of the nodes' answers to a search for `name`.

    A group's name is the value of a header, so only users who may see messages see it.
    """
    told = tuple(it for it in found if it.has_rules and not it.untold)
    rows = merged_groups(told)
    hidden = identity.why_not(Right.PAYLOAD, topic)
    return GroupsShown(
        name=name,
        told=told,
        untold=tuple(replace(it, untold=identity.quoted(it.untold)) for it in found if it.untold),
        without_rules=tuple(it.node for it in found if not it.has_rules),
        rows=tuple(replace(it, name=MASK) if hidden and it.name else it for it in rows[:_MOST_ROWS]),
        is_cut=is_cut(told) or len(rows) > _MOST_ROWS,
        no_names=hidden,
    )
