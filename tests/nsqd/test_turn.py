"""A turn of nsqd: when it is full."""

from __future__ import annotations

from nsqcommon.turn import in_turn
from nsqd.turn import MOST_TOPICS, Turn
from tests.support.fake_store import tell_nobody
from tests.support.node import Node, TurnStore


def test_a_turn_is_full_when_many_logs_have_to_be_written() -> None:
    node = Node()
    topics = [node.broker.topic(f"t{number}") for number in range(MOST_TOPICS)]
    turn = Turn(node.broker, TurnStore(node), announce=tell_nobody, flush=lambda: None)
    with in_turn(turn):
        for topic in (*topics[1:], *topics[1:]):
            topic.publish_one(b"\0\0\0\1x")
        assert not turn.is_full()
        topics[0].publish_one(b"\0\0\0\1x")
        assert turn.is_full()
    assert not turn.is_full()
    assert {topic.message_count for topic in topics} == {1, 2}
