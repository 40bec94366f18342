"""A new topic in a cluster: nothing is handed over until its channels on other nodes are known."""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import dpub, pub
from nsqd.broker.journal_replay import replay
from nsqd.broker.turn import finish_turn
from tests.support.fake_store import changes_in
from tests.support.node import Node


@pytest.fixture
def node() -> Node:
    node = Node()
    node.broker.learns = True
    return node


def learned(node: Node, *names: str) -> None:
    node.broker.topic("t").learned(names)
    node.turn()


def depths(node: Node) -> dict[str, int]:
    return {channel.channel_name: channel.depth for channel in node.topic().channels}


def test_where_nobody_can_be_asked_a_topic_is_learned_at_once() -> None:
    node = Node()
    topic = node.broker.topic("t")
    assert not topic.learning
    assert not node.broker.undiscovered


def test_a_new_topic_is_to_be_asked_for(node: Node) -> None:
    topic = node.broker.topic("t")
    assert topic.learning
    assert list(node.broker.undiscovered) == [topic]


def test_publishes_are_answered_meanwhile_and_no_channel_misses_them(node: Node) -> None:
    assert node.client().answers(pub("t", b"a")) == [b"OK"]
    client = node.consumer(channel="here", ready=5)
    assert client.messages() == []
    assert node.topic().depth == 1
    learned(node, "there", "here", "elsewhere")
    assert depths(node) == {"elsewhere": 1, "here": 0, "there": 1}
    assert [message.body for message in client.messages()] == [b"a"]


def test_the_clock_of_a_deferral_starts_when_the_channels_are_known(node: Node) -> None:
    node.client().say(dpub("t", 5000, b"x"))
    client = node.consumer()
    node.pass_time(20)
    learned(node)
    node.pass_time(4.9)
    assert client.messages() == []
    node.pass_time(0.2)
    assert [message.body for message in client.messages()] == [b"x"]


def test_a_paused_topic_stays_paused(node: Node) -> None:
    node.consumer()
    topic = node.broker.topic("t")
    topic.pause()
    learned(node, "c")
    assert not topic.flowing
    topic.unpause()
    assert topic.flowing


def test_deleting_the_topic_ends_it(node: Node) -> None:
    node.broker.topic("t")
    node.broker.delete_topic("t")
    assert not node.broker.undiscovered


def test_a_topic_that_has_learned_does_not_ask_again(node: Node) -> None:
    node.broker.topic("t")
    learned(node, "c")
    node.crash()
    assert not node.broker.topic("t").learning
    assert node.broker.topic("t").flowing


def test_a_crash_meanwhile_loses_nothing(node: Node) -> None:
    node.consumer()
    node.client().say(pub("t", b"a") + dpub("t", 5000, b"later"))
    node.store = node.store.crash()
    node.broker = node._new_broker()
    node.broker.learns = True
    node.broker.restore(replay(node.store.journal), dict(node.store.logs))
    topic = node.broker.topic("t")
    assert topic.learning
    assert list(node.broker.undiscovered) == [topic]
    assert topic.depth == 2
    learned(node, "d")
    assert [(channel.depth, channel.deferred_count) for channel in node.topic().channels] == [(1, 1)] * 2


def test_a_topic_that_comes_back_where_nobody_can_be_asked_flows(node: Node) -> None:
    node.consumer()
    node.client().say(pub("t", b"a"))
    node.crash()
    assert not node.broker.topic("t").learning
    assert depths(node) == {"c": 1}
    node.store.write_journal()
    node.crash()
    assert depths(node) == {"c": 1}


def test_a_rotated_journal_still_knows(node: Node) -> None:
    topic = node.broker.topic("t")
    assert not replay(changes_in(topic.snapshot_changes()))["t"].learned
    learned(node)
    assert replay(changes_in(topic.snapshot_changes()))["t"].learned


def test_each_turn_tells_of_the_topics_that_it_has_changed() -> None:
    node = Node()
    heard: list[list[str]] = []

    def end_turn() -> None:
        finish_turn(node.broker, node.store, announce=lambda topics: heard.append([*topics]), flush=lambda: None)

    for change in (
        lambda: node.broker.topic("t").channel("c"),
        lambda: node.broker.topic("t").delete_channel("c"),
        lambda: node.broker.delete_topic("t"),
        lambda: (node.broker.topic("u"), node.broker.topic("v")),
        lambda: node.broker.topic("u"),
    ):
        change()
        end_turn()
    assert heard == [["t"], ["t"], ["t"], ["u", "v"]]


def test_a_turn_also_tells_of_what_sending_has_changed() -> None:
    """A client found dead may have been the last of an ephemeral channel, and the next turn may be far off."""
    node = Node()
    node.broker.topic("t").channel("c#ephemeral")
    node.turn()
    heard: list[str] = []

    def flush() -> None:
        node.broker.topic("t").delete_channel("c#ephemeral")

    finish_turn(node.broker, node.store, announce=heard.extend, flush=flush)
    assert heard == ["t"]
