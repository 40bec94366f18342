"""Following a topic is allowed only where it does no harm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import trio

from nsqadmin.cluster.model import Health, TopicNode
from nsqadmin.messages.model import Message
from nsqadmin.messages.tail import CannotTail, Tail, nodes_to_tail, sample_rate
from tests.support.picture import channel, channel_node, node, snapshot, topic

NODES = (node("n1:4151"), node("n2:4151"))
ROWS = (TopicNode(node="n1:4151"), TopicNode(node="n2:4151"))


def test_a_topic_without_a_lasting_channel_is_refused() -> None:
    for channels in ((), (channel(name="x#ephemeral"),), (channel(name="nsqadmin_tail_1"),)):
        with pytest.raises(CannotTail, match="no durable channel"):
            nodes_to_tail(snapshot(topic(*channels, nodes=ROWS), nodes=NODES), "t")


def test_only_nodes_where_it_has_one_are_followed() -> None:
    shown = snapshot(topic(channel(channel_node("n2:4151")), nodes=ROWS), nodes=NODES)
    assert [it.address for it in nodes_to_tail(shown, "t")] == ["n2:4151"]


def test_a_node_that_is_down_is_left_out() -> None:
    shown = snapshot(topic(channel(), nodes=ROWS), nodes=(node("n1:4151", health=Health.DOWN),))
    with pytest.raises(CannotTail):
        nodes_to_tail(shown, "t")


def test_a_topic_that_no_node_has() -> None:
    with pytest.raises(CannotTail, match="No node"):
        nodes_to_tail(snapshot(), "t")


@pytest.mark.parametrize(("published", "percent"), [(None, 0), (100.0, 0), (1000.0, 10), (1e6, 1), (500.0, 20)])
def test_of_a_fast_topic_a_share_is_asked_for(published: float | None, percent: int) -> None:
    assert sample_rate(published) == percent


def test_a_message_that_is_none_is_trouble_of_its_node() -> None:
    troubles: dict[str, str] = {}

    async def show(message: Message) -> None:
        raise AssertionError

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"\0\0\0\x07\0\0\0\x02abc")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
            port = listener.socket.getsockname()[1]
            at = replace(node("n1:4151"), broadcast_address="127.0.0.1", tcp_port=port)
            tail = Tail("t", show=show, skip=lambda: None, trouble=troubles.__setitem__)
            await tail.run([at])
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert troubles == {"n1:4151": "message too short 3 < 26"}
