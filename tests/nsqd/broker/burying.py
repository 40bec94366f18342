"""Nodes with messages that were buried, for the tests of burials."""

from __future__ import annotations

from nsqcommon.wire.commands import fin, mpub
from nsqd.broker import operator_actions
from nsqd.broker.buried_queue import Verb
from nsqd.broker.channel import Channel
from nsqd.broker.consumer import Consumer
from nsqd.broker.rules import ChannelRules
from tests.support.given_rules import GivenRules
from tests.support.node import Client, Node


def channel_of(node: Node, name: str = "c") -> Channel:
    return node.broker.topics["t"].channels[name]


def node_with(*bodies: bytes, max_attempts: int | None = None, max_buried: int | None = None) -> Node:
    node = Node(policy=GivenRules(ChannelRules(max_attempts=max_attempts, max_buried=max_buried)))
    node.broker.topic("t").channel("c")
    node.client().say(mpub("t", bodies))
    return node


def bury(node: Node, client: Client, message_id: bytes, reason: str = "bad") -> bytes | None:
    found = channel_of(node)
    failure = found.bury(consumer_of(found, client), message_id, reason, node.now)
    node.turn()
    return failure


def consumer_of(channel: Channel, client: Client) -> Consumer:
    subscription = client.protocol._subscription
    assert subscription is not None
    return subscription.consumer


def take(node: Node, verb: Verb, *sequences: int) -> int:
    taken = operator_actions.take_buried(channel_of(node), verb, sequences)
    node.turn()
    return taken


def comes(node: Node) -> list[tuple[bytes, int]]:
    """Take everything that the channel delivers now, and return the bodies and attempts."""
    node.load()
    consumer = node.consumer(ready=50)
    node.load()
    return [(message.body, message.attempts) for message in consumer.messages()]


def node_with_two_buried(max_buried: int | None = None) -> Node:
    """Make a node on which 0 and 2 are buried, 1 is finished, and 3 waits."""
    node = node_with(b"a", b"b", b"c", b"d", max_buried=max_buried)
    consumer = node.consumer(ready=3)
    a, b, c = consumer.messages()
    consumer.say(b"RDY 0\n" + fin(b.id))
    assert bury(node, consumer, a.id) is None
    assert bury(node, consumer, c.id, "worse") is None
    return node
