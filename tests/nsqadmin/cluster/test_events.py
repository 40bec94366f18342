"""What is told of the difference between two pictures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsqadmin.cluster.events import events_between
from nsqadmin.cluster.model import Channel, ChannelNode, Health, Paused, Snapshot, Topic, TopicNode
from tests.support import picture
from tests.support.picture import channel, channel_node, snapshot, topic


def pictured(paused: Paused = Paused.NO) -> Snapshot:
    rows = tuple(
        ChannelNode(node=node, paused=paused is Paused.YES or (paused is Paused.PARTLY and node == "n1:4151"))
        for node in ("n1:4151", "n2:4151")
    )
    channel = Channel(topic="t", name="c", paused=paused, nodes=rows)
    topic = Topic(name="t", nodes=(TopicNode(node="n1:4151"),), channels=(channel,))
    node = picture.node(answered_at=picture.NOW)
    return Snapshot(index=1, taken_at=picture.NOW, interval=5.0, has_lookupds=True, nodes=(node,), topics=(topic,))


@pytest.mark.parametrize(
    ("before", "now", "what", "text"),
    [
        (Paused.NO, Paused.YES, "paused", "channel t/c is paused"),
        (Paused.NO, Paused.PARTLY, "paused", "channel t/c is paused on 1 of 2 nodes"),
        (Paused.PARTLY, Paused.YES, "paused", "channel t/c is paused"),
        (Paused.YES, Paused.PARTLY, "unpaused", "channel t/c is now paused only on 1 of 2 nodes"),
        (Paused.PARTLY, Paused.NO, "unpaused", "channel t/c is no longer paused"),
    ],
)
def test_a_pause_says_what_somebody_did(before: Paused, now: Paused, what: str, text: str) -> None:
    (event,) = events_between(pictured(before), pictured(now))
    assert (event.what, event.text) == (what, text)


def test_topics_that_go_with_a_forgotten_node_are_not_deleted_by_anybody() -> None:
    before = pictured()
    silent = replace(before.nodes[0], health=Health.DOWN)
    fallen_silent, forgotten = replace(before, nodes=(silent,)), replace(before, nodes=(), topics=())
    assert [event.what for event in events_between(before, fallen_silent)] == ["node_down"]
    assert [event.what for event in events_between(fallen_silent, forgotten)] == ["node_gone"]


def test_a_topic_that_goes_while_a_node_is_silent_is_told() -> None:
    before = pictured()
    silent = replace(before, nodes=(replace(before.nodes[0], health=Health.DOWN),))
    assert [event.what for event in events_between(silent, replace(silent, topics=()))] == ["topic_vanished"]


def test_a_channel_that_stops_itself_is_told_with_the_reason_and_once() -> None:
    rows = [channel_node("n1:4151"), channel_node("n2:4151")]
    stopped = replace(rows[0], paused=True, paused_why="more than 3 messages are buried (max_buried)")
    before, now = (snapshot(topic(channel(row, rows[1]))) for row in (rows[0], stopped))
    (event,) = events_between(before, now)
    assert (event.what, event.topic, event.channel) == ("paused_itself", "t", "c")
    assert event.text == ("channel t/c has paused itself on n1:4151: more than 3 messages are buried (max_buried)")
    assert events_between(now, now) == []
