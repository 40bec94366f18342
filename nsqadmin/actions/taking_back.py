"""What takes an action back: after a pause, the opposite on exactly those nodes that the pause has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqadmin.actions.plan import Action, Kind, Receipt
from nsqcommon.wire.names import is_ephemeral

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Snapshot

_OPPOSITES: Final = {
    Kind.PAUSE_TOPIC: Kind.UNPAUSE_TOPIC,
    Kind.UNPAUSE_TOPIC: Kind.PAUSE_TOPIC,
    Kind.PAUSE_CHANNEL: Kind.UNPAUSE_CHANNEL,
    Kind.UNPAUSE_CHANNEL: Kind.PAUSE_CHANNEL,
}
_PAUSES: Final = frozenset((Kind.PAUSE_TOPIC, Kind.PAUSE_CHANNEL))


def is_light(kind: Kind, topic: str, channel: str = "") -> bool:
    """Return whether the action is so easily taken back that it needs no confirmation.

    A paused ephemeral topic or channel drops what does not fit into memory, so that its pause is confirmed first.
    """
    if kind in _PAUSES and (is_ephemeral(topic) or is_ephemeral(channel)):
        return False
    return kind in _OPPOSITES


def opposite(snapshot: Snapshot, receipt: Receipt) -> Action | None:
    """Return what takes back a pause or unpause. `snapshot` is from before it; None if there is nothing to take back."""
    action = receipt.action
    kind = _OPPOSITES.get(action.kind)
    topic = snapshot.topic(action.topic)
    if kind is None or topic is None:
        return None
    channel = topic.channel(action.channel) if action.channel else None
    rows = channel.nodes if channel is not None else topic.nodes
    already = {row.node for row in rows if row.paused == (action.kind in _PAUSES)}
    nodes = tuple(step.address for step in receipt.steps if step.is_done and step.address not in already)
    return Action(kind=kind, topic=action.topic, channel=action.channel, nodes=nodes) if nodes else None
