"""The tab with a channel's groups, for users with and without the right to see messages."""

from __future__ import annotations

from nsqadmin.access import Identity, Right, Role
from nsqadmin.cluster.message_groups import MOST_ROWS, MessageGroup, NodeGroups
from nsqadmin.parts.channel_groups import groups_shown
from tests.support.picture import viewer

READER = Identity(roles=(Role(name="reader", can=frozenset((Right.VIEW, Right.PAYLOAD)), topics=("*",)),))
TOLD = NodeGroups(
    node="n1:1", held=5, ahead=2, unsorted=1, largest=(MessageGroup(name="acme", held=4), MessageGroup(name=""))
)
OTHERS = NodeGroups(node="n2:1", has_rules=False), NodeGroups(node="n3:1", untold="it does not answer")


def test_names_are_shown_to_users_who_may_see_messages() -> None:
    shown = groups_shown((TOLD, *OTHERS), "", READER, "t")
    assert [it.name for it in shown.rows] == ["acme", ""]
    assert (shown.held, shown.unlooked, shown.no_names, shown.is_cut) == (5, 3, "", False)
    assert [it.node for it in (*shown.told, *shown.untold)] == ["n1:1", "n3:1"]
    assert shown.without_rules == ("n2:1",)


def test_others_see_numbers_only() -> None:
    shown = groups_shown((TOLD,), "", viewer("*"), "t")
    assert [(it.name, it.held) for it in shown.rows] == [("***", 4), ("", 0)]
    assert shown.no_names


def test_a_long_list_is_cut() -> None:
    some = [
        NodeGroups(node=f"n{at}:1", largest=tuple(MessageGroup(name=f"{at}-{it}") for it in range(60))) for at in (1, 2)
    ]
    shown = groups_shown(some, "", READER, "t")
    assert len(shown.rows) == MOST_ROWS
    assert shown.is_cut
