"""The rights required for each action on the pages, and the text of its button."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.actions.plan import Action, Kind
from nsqadmin.messages import buried_actions, deferred_actions, editing, group_actions

if TYPE_CHECKING:
    from nsqadmin.access import Identity

ACTION_WORDS: Final = {
    Kind.CREATE_TOPIC: "Create topic…",
    Kind.CREATE_CHANNEL: "Create channel…",
    Kind.DELETE_TOPIC: "Delete topic…",
    Kind.DELETE_CHANNEL: "Delete channel…",
    Kind.EMPTY_TOPIC: "Empty topic…",
    Kind.EMPTY_CHANNEL: "Empty channel…",
    Kind.PAUSE_TOPIC: "Pause topic",
    Kind.PAUSE_CHANNEL: "Pause",
    Kind.UNPAUSE_TOPIC: "Unpause topic",
    Kind.UNPAUSE_CHANNEL: "Unpause",
    Kind.REMOVE_FROM_NODE: "Remove from node…",
    Kind.SEEK_CHANNEL: "Move…",
    Kind.FORGET_READER: "Forget",
}
_OTHERS: Final = {
    "publish": Right.PUBLISH,
    "replay": Right.PUBLISH,
    "redeliver": Right.OPERATE,
    "peek": Right.PAYLOAD,
    "tail": Right.PAYLOAD,
    "create": Right.OPERATE,
    "delete_topics": Right.ADMIN,
    "forget_node": Right.ADMIN,
    "drain_node": Right.ADMIN,
    **{it.name: it.right for it in (*buried_actions.ACTIONS, *deferred_actions.ACTIONS, *group_actions.ACTIONS)},
}


def why_not(identity: Identity, kind: str, topic: str = "") -> str:
    """Return why the user may not do this; "": they may."""
    if kind == editing.NAME:
        return editing.why_not_edit(identity, topic)
    return identity.why_not(_OTHERS[kind] if kind in _OTHERS else Action(kind=Kind(kind), topic="").right, topic)
