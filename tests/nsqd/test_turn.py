"""A turn of nsqd: when it is full, and when it begins a sync."""

from __future__ import annotations

import pytest

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


class Syncer:
    def __init__(self, *, holds_up_clients: bool) -> None:
        self.holds_up_clients = holds_up_clients
        self.hurried = 0

    def hurry(self) -> None:
        self.hurried += 1


@pytest.mark.parametrize("waits", [True, False])
def test_a_turn_begins_a_sync_if_clients_wait_for_it(*, waits: bool) -> None:
    store = TurnStore(node := Node())
    store.syncer = syncer = Syncer(holds_up_clients=waits)
    turn = Turn(node.broker, store, announce=tell_nobody, flush=lambda: None)
    with in_turn(turn):
        assert not syncer.hurried
    assert syncer.hurried == waits


class Remote:
    def __init__(self) -> None:
        self.is_behind = False

    def hurry(self) -> None: ...

    def holds_back(self, size: int) -> bool:
        return self.is_behind


def test_a_turn_finds_out_whether_the_copy_is_behind() -> None:
    node, remote = Node(), Remote()
    turn = Turn(node.broker, TurnStore(node), announce=tell_nobody, flush=lambda: None, remote=remote)
    for is_behind in (True, False):
        remote.is_behind = is_behind
        with in_turn(turn):
            pass
        assert node.broker.is_copy_behind == node.broker.holds_back(1) == is_behind
