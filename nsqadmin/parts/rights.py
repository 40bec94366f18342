"""The rights required for each action on the pages, and the text of its button."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqadmin.access import EDIT, Right
from nsqadmin.actions.plan import Action, Kind
from nsqadmin.messages import buried_actions, deferred_actions, group_actions

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.diagnosis.incident import Open

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
    Kind.SEEK_CHANNEL: "Move in history…",
    Kind.FORGET_READER: "Forget",
}
_OTHERS: Final = {
    "publish": Right.PUBLISH,
    "replay": Right.PUBLISH,
    "redeliver": Right.OPERATE,
    "peek": Right.PAYLOAD,
    "tail": Right.PAYLOAD,
    "create": Right.OPERATE,
    "forget_node": Right.ADMIN,
    "drain_node": Right.ADMIN,
    "mark_incidents": Right.OPERATE,
    **{it.name: it.right for it in (*buried_actions.ACTIONS, *deferred_actions.ACTIONS, *group_actions.ACTIONS)},
}


def right_of(kind: str) -> Right:
    if kind in _OTHERS:
        return _OTHERS[kind]
    return Action(kind=Kind(kind), topic="").right


def why_not_marked(identity: Identity, it: Open) -> str:
    """Return why the user may not acknowledge or mute the incident, or "".

    They mark what they see of it, so they need the right to these topics. What is about a node concerns everybody.
    """
    if reason := identity.why_not(Right.OPERATE):
        return reason
    if not identity.sees_everything and any(not finding.topic for finding in it.incident.findings):
        return f"an incident of a node is for users with the right '{Right.OPERATE}' to all topics"
    if all(identity.may(Right.OPERATE, topic) for topic in it.incident.topics):
        return ""
    return f"you do not have the right '{Right.OPERATE}' for all topics of this incident"


def why_not(identity: Identity, kind: str, topic: str = "") -> str:
    """Return why the user may not do this; "": they may."""
    if kind == EDIT:
        return identity.why_not_edit(topic)
    return identity.why_not(right_of(kind), topic)
