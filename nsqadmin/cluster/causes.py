"""Finds the user behind an event: one of this nsqadmin, or someone outside.

The words are the names of actions (`pause_channel`), which nsqd's record of changes uses, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nsqadmin.cluster.model import Activity

# The actions that can cause an event.
_CAUSES: Final[Mapping[str, frozenset[str]]] = {
    "paused": frozenset(("pause_topic", "pause_channel")),
    "unpaused": frozenset(("unpause_topic", "unpause_channel")),
    "topic_appeared": frozenset(("create_topic", "create_channel")),
    "channel_appeared": frozenset(("create_channel", "restore_channel")),
    "topic_vanished": frozenset(("delete_topic", "tombstone_topic_producer")),
    "channel_vanished": frozenset(("delete_channel", "delete_topic", "tombstone_topic_producer")),
}
# Changes that only people make. Topics and channels also appear when a client publishes or subscribes.
_BY_SOMEBODY: Final = frozenset(("paused", "unpaused", "topic_vanished", "channel_vanished"))
# Changes without an event, because the depth goes up and down all the time anyway.
UNSEEN: Final[Mapping[str, str]] = {
    "empty_topic": "was emptied",
    "empty_channel": "was emptied",
    "seek_channel": "was moved",
    "restore_channel": "was restored",
}
_PAUSING: Final = frozenset(("paused", "unpaused")) | _CAUSES["paused"] | _CAUSES["unpaused"]
_COMING_AND_GOING: Final = (frozenset(_CAUSES) | frozenset().union(*_CAUSES.values())) - _PAUSING
_OF_WHOLE_TOPICS: Final = frozenset(("delete_topic", "tombstone_topic_producer"))
_DONE: Final = frozenset(("ok", "partly"))
_LONGEST: Final = 200  # characters of a text from a node, which may be hostile
_NANOSECONDS: Final = 1e9
_OUR_AGENT: Final = "nsqadmin"


def is_by_somebody(event: Activity) -> bool:
    """Return True if a person must have caused this. Ephemeral topics and channels go with their last client."""
    return event.what in _BY_SOMEBODY and not (event.channel or event.topic).endswith("#ephemeral")


def cause_of(event: Activity, recent: Iterable[Activity]) -> Activity | None:
    """Return the user's action that caused an event, or None.

    `recent` are other recent entries, newest first. The newest entry of the same kind about the same topic or channel
    decides: if an action was reversed in the meantime, it didn't cause later events.
    """
    causes = _CAUSES.get(event.what, frozenset())
    kind = _PAUSING if event.what in _PAUSING else _COMING_AND_GOING
    for entry in recent:
        if entry.what in kind and _is_about(entry.what, entry.topic, entry.channel, event):
            if entry.is_action and entry.result not in _DONE:
                continue
            return entry if entry.what in causes else None
    return None


def _is_about(what: str, topic: str, channel: str, event: Activity) -> bool:
    if topic != event.topic:
        return False
    return channel == event.channel or what in _OF_WHOLE_TOPICS or event.what == "topic_appeared"


@dataclass(frozen=True, slots=True)
class Change:
    """A change recorded by a node. The whole content comes from the node and isn't trusted."""

    at: float  # by our clock
    what: str
    topic: str
    channel: str
    who: str  # name in the node's rights file; "" without one
    remote: str
    user: str  # user of an nsqadmin, as that nsqadmin said
    is_from_nsqadmin: bool


def read_changes(document: object, *, clock_skew: float) -> list[Change]:
    """Read a node's answer to `/changes`. Skips anything it doesn't understand, because the node isn't trusted."""
    entries = document.get("changes") if isinstance(document, Mapping) else None
    found = [_change(entry, clock_skew) for entry in entries] if isinstance(entries, list) else []
    return [change for change in found if change is not None]


def is_number(value: object) -> bool:
    """Return True if a node's number is whole, and small enough to calculate with."""
    return isinstance(value, int) and 0 <= value < 1 << 63


def _change(entry: Any, clock_skew: float) -> Change | None:
    if not isinstance(entry, Mapping) or not is_number(entry.get("at")):
        return None
    names = ("what", "topic", "channel", "who", "remote", "user", "user_agent")
    words = {name: text[:_LONGEST] if isinstance(text := entry.get(name), str) else "" for name in names}
    return Change(
        at=entry["at"] / _NANOSECONDS - clock_skew,
        what=words["what"],
        topic=words["topic"],
        channel=words["channel"],
        who=words["who"] if words["who"] != words["remote"] else "",
        remote=words["remote"],
        user=words["user"],
        is_from_nsqadmin=words["user_agent"] == _OUR_AGENT,
    )


def change_behind(event: Activity, changes: Iterable[Change], *, within: float) -> Change | None:
    """Return the newest change on a node that caused an event, and is at most `within` seconds older."""
    causes = _CAUSES.get(event.what, frozenset())
    fitting = [
        change
        for change in changes
        if change.what in causes
        and abs(event.at - change.at) <= within
        and _is_about(change.what, change.topic, change.channel, event)
    ]
    return max(fitting, key=lambda change: change.at, default=None)


def with_cause(event: Activity, change: Change | None) -> Activity:
    """Return the event as caused outside of this nsqadmin, with the name of the user if a node has recorded it."""
    if change is None:
        return replace(event, is_outside=True)
    through = ", through an nsqadmin" if change.is_from_nsqadmin else ""
    return replace(
        event,
        text=event.text + through,
        user=change.user or change.who,
        remote=change.remote,
        is_outside=True,
    )


def event_of(change: Change, node: str) -> Activity:
    """Return the event for a change that a node has recorded and that was made outside of this nsqadmin."""
    name = f"channel {change.topic}/{change.channel}" if change.channel else f"topic {change.topic}"
    event = Activity(
        at=change.at,
        what=change.what,
        text=f"{name} {UNSEEN[change.what]} on {node}",
        topic=change.topic,
        channel=change.channel,
        nodes=(node,),
    )
    return with_cause(event, change)


def is_made_by(action: Activity, node: str, change: Change, *, within: float) -> bool:
    """Return True if an action of this nsqadmin made the change on a node."""
    is_same = (action.what, action.topic, action.channel) == (change.what, change.topic, change.channel)
    return is_same and change.is_from_nsqadmin and node in action.nodes and abs(action.at - change.at) <= within
