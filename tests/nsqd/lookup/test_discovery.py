"""Many channels that a new topic has elsewhere."""

from __future__ import annotations

import trio

from nsqcommon.wire.commands import pub
from nsqd.lookup.discovery import add_channels
from tests.support.node import Node, NodeTurn


class CountingTurn(NodeTurn):
    """Notes after each turn how many channels the topic has."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._broker = node.broker
        self.channels: list[int] = [0]

    def finish(self) -> None:
        super().finish()
        if (topic := self._broker.find("t")) is not None:
            self.channels.append(len(topic.channels))


def learning_node() -> Node:
    node = Node()
    node.broker.learns = True
    node.client().say(pub("t", b"a"))
    return node


def test_thousands_of_channels_are_created_in_many_turns_and_each_gets_every_message() -> None:
    node = learning_node()
    turn = CountingTurn(node)
    topic = node.broker.topic("t")
    trio.run(add_channels, topic, {f"c{number}" for number in range(2_000)}, turn)
    assert turn.channels[-1] == 2_000
    assert max(after - before for before, after in zip(turn.channels, turn.channels[1:], strict=False)) <= 50
    assert not topic.learning
    assert {channel.depth for channel in topic.channels.values()} == {1}


def test_a_topic_that_is_deleted_meanwhile_learns_nothing_more() -> None:
    node = learning_node()
    topic = node.broker.topic("t")

    async def delete() -> None:
        while not topic.channels:
            await trio.lowlevel.checkpoint()
        node.broker.delete_topic("t")
        node.turn()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add_channels, topic, {f"c{number}" for number in range(2_000)}, NodeTurn(node))
            nursery.start_soon(delete)

    trio.run(main)
    assert node.broker.topics == {}
    assert topic.channels == {}
