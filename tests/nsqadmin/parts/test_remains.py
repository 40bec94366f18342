"""What a drain does to a node's messages, channel by channel, grouped with the worst first."""

from __future__ import annotations

from nsqadmin.cluster.model import Rates, TopicNode
from nsqadmin.parts.remains import Fate, remains_on
from tests.support.picture import channel, channel_node, client, node, snapshot, topic

BUSY = Rates(incoming=1.0, finished=1.0, requeued=0.0, timed_out=0.0)
CLIENTS = (client(),)


def test_the_channels_of_a_node_are_grouped_by_what_a_drain_does_to_them() -> None:
    it = node()
    picture = snapshot(
        topic(
            channel(channel_node(depth=5, clients=CLIENTS), name="delivered", rates=BUSY),
            channel(channel_node(depth=1, deferred_count=2, clients=CLIENTS), name="delivered-too", rates=BUSY),
            channel(channel_node(depth=7, clients=CLIENTS), name="stuck"),
            channel(channel_node(depth=9), name="unread"),
            channel(channel_node(depth=3, paused=True, clients=CLIENTS), name="paused", rates=BUSY),
            channel(channel_node(deferred_count=4, clients=CLIENTS), name="later", rates=BUSY),
            channel(channel_node(depth=2), name="memory#ephemeral"),
            channel(channel_node(clients=CLIENTS), name="empty", rates=BUSY),
        ),
        topic(name="early", nodes=(TopicNode(node=it.address, depth=6),)),
        nodes=(it,),
    )
    groups = remains_on(picture, it, sees=lambda _: True).groups
    assert [(group.fate, [row.channel for row in group.rows], group.total) for group in groups] == [
        (Fate.LOST, ["memory#ephemeral"], 2),
        (Fate.HANGS, ["stuck"], 7),
        (Fate.STAYS, ["unread", "", "paused"], 18),
        (Fate.DELIVERED, ["delivered", "delivered-too"], 8),
        (Fate.DEFERRED, ["later"], 4),
    ]
    hidden = remains_on(picture, it, sees=lambda name: name == "early").groups
    assert [row.topic for group in hidden for row in group.rows] == ["early"]
