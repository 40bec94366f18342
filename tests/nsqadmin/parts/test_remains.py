"""What a drain does to a node's messages, channel by channel, grouped with the worst first."""

from __future__ import annotations

from nsqadmin.cluster.model import Rates, TopicNode
from nsqadmin.parts.remains import Fate, Staying, Why, remains_on
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
        (Fate.DELIVERED, ["delivered", "delivered-too"], 6),
        (Fate.DEFERRED, ["later", "delivered-too"], 6),
    ]
    hidden = remains_on(picture, it, sees=lambda name: name == "early").groups
    assert [row.topic for group in hidden for row in group.rows] == ["early"]


def test_the_groups_add_up_to_the_sentences_of_the_dialog_also_when_a_channel_has_several_kinds_of_messages() -> None:
    it = node()
    picture = snapshot(
        topic(
            channel(
                channel_node(depth=3800, in_flight_count=2, deferred_count=38, clients=CLIENTS), name="jobs", rates=BUSY
            ),
            channel(channel_node(depth=900, in_flight_count=5, buried_count=7, clients=CLIENTS), name="labels"),
            channel(channel_node(depth=16, deferred_count=111, paused=True, clients=CLIENTS), name="send", rates=BUSY),
            channel(channel_node(depth=2, deferred_count=1, clients=CLIENTS), name="memory#ephemeral", rates=BUSY),
        ),
        topic(name="held", nodes=(TopicNode(node=it.address, depth=6, paused=True),)),
        nodes=(it,),
    )
    remains = remains_on(picture, it, sees=lambda _: True)
    assert {group.fate: group.total for group in remains.groups} == {
        Fate.LOST: 1,
        Fate.HANGS: 905,
        Fate.STAYS: 22,
        Fate.DELIVERED: 3804,
        Fate.DEFERRED: 149,
        Fate.BURIED: 7,
    }
    assert (remains.to_deliver, remains.hanging, remains.staying, remains.lost) == (905 + 3804, 905, 22 + 149 + 7, 1)
    assert remains.stays == (
        Staying(Why.PAUSED, 16, 1),
        Staying(Why.TOPIC_PAUSED, 6, 1),
        Staying(Why.DEFERRED, 149, 2),
        Staying(Why.BURIED, 7, 1),
    )
    part = remains_on(picture, it, sees=lambda name: name == "held")
    sums = part.to_deliver + part.staying + part.lost
    assert sum(group.total for group in part.groups) + part.hidden == sums == sum(row.total for row in remains.rows)
