"""Takes actions back: the opposite of a pause, on exactly the nodes that the pause changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from nsqadmin.actions.plan import Action, Kind, Receipt
from nsqcommon.wire.names import is_ephemeral

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Activity, Node, Snapshot

_OPPOSITES: Final = {
    Kind.PAUSE_TOPIC: Kind.UNPAUSE_TOPIC,
    Kind.UNPAUSE_TOPIC: Kind.PAUSE_TOPIC,
    Kind.PAUSE_CHANNEL: Kind.UNPAUSE_CHANNEL,
    Kind.UNPAUSE_CHANNEL: Kind.PAUSE_CHANNEL,
}
_CHANGED_NOTHING: Final = ("refused", "failed")  # results
_PAUSES: Final = frozenset((Kind.PAUSE_TOPIC, Kind.PAUSE_CHANNEL))


def is_light(kind: Kind, topic: str, channel: str = "") -> bool:
    """Return True if the action is so easy to take back that it needs no confirmation.

    A paused ephemeral topic or channel drops messages that don't fit into memory, so we ask before pausing it.
    """
    if kind in _PAUSES and (is_ephemeral(topic) or is_ephemeral(channel)):
        return False
    return kind in _OPPOSITES


def opposite(snapshot: Snapshot, receipt: Receipt, activity: Iterable[Activity] = ()) -> Action | None:
    """Return the opposite of a pause or unpause, or None if there is nothing to take back.

    `snapshot` is from before it; `activity` has the newest actions first. If you press Undo at once, the next snapshot
    may not be there yet.
    """
    action = receipt.action
    kind = _OPPOSITES.get(action.kind)
    topic = snapshot.topic(action.topic)
    if kind is None or topic is None:
        return None
    channel = topic.channel(action.channel) if action.channel else None
    rows = channel.nodes if channel is not None else topic.nodes
    paused = {row.node: row.paused for row in rows}
    earlier = [
        it
        for it in activity
        if it.what in (kind, action.kind)
        and (it.topic, it.channel) == (action.topic, action.channel)
        and it.at < receipt.at
        and it.result not in _CHANGED_NOTHING
    ]
    for entry in reversed(earlier):
        for address in entry.nodes:
            if _is_newer(entry, snapshot.node(address)):
                paused[address] = entry.what in _PAUSES
    nodes = tuple(
        step.address for step in receipt.steps if step.is_done and paused.get(step.address) != (action.kind in _PAUSES)
    )
    return Action(kind=kind, topic=action.topic, channel=action.channel, nodes=nodes) if nodes else None


def _is_newer(entry: Activity, node: Node | None) -> bool:
    """Return True if the action may have changed the node after the snapshot was taken."""
    if node is None or node.answered_at is None:
        return True
    return entry.at + (entry.took or 0) > node.answered_at - (node.answered_in or 0)
