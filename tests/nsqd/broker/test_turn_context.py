"""The work that topics and channels leave to the end of a turn, and the clocks that they see."""

from __future__ import annotations

from math import inf

from nsqd.broker.turn_context import Alarms
from tests.support.node import Node


def test_alarms_ring_in_the_order_of_time() -> None:
    alarms: Alarms[str] = Alarms()
    assert alarms.next == inf
    for when, channel in [(3.0, "c"), (1.0, "a"), (2.0, "b")]:
        alarms.add(when, channel)
    assert alarms.next == 1.0
    assert list(alarms.pop_due(2.0)) == [(1.0, "a"), (2.0, "b")]
    assert alarms.next == 3.0


def test_an_alarm_that_was_moved_does_not_ring() -> None:
    node = Node()
    client = node.consumer()
    channel = node.broker.topic("t").channel("c")
    node.broker.turn.alarms.add(node.now, channel)
    channel.alarm = inf
    node.broker.expire()
    assert channel.alarm == inf
    assert not client.is_closed


def test_the_journal_hears_nothing_of_what_is_ephemeral() -> None:
    node = Node()
    node.broker.topic("t#ephemeral").channel("c")
    assert node.broker.turn.journal.urgent_changes == 0
    node.broker.topic("t").channel("c#ephemeral")
    node.turn()
    assert [change[0] for change in node.store.journal] == ["topic", "keys", "learned", "flow"]


def test_a_channel_that_is_deleted_leaves_nothing_to_be_done() -> None:
    node = Node()
    topic = node.broker.topic("t")
    channel = topic.channel("c")
    channel.schedule_delivery()
    channel.ledger.note_progress()
    assert channel.ledger in node.broker.turn.journal.unsaved
    topic.delete_channel("c")
    assert channel not in node.broker.turn.to_deliver
    assert channel.ledger not in node.broker.turn.journal.unsaved


def test_a_wall_time_comes_back_as_the_same_time_never_early() -> None:
    turn = Node().broker.turn
    due = int(turn.now * 1_000_000) + 5_000_000
    assert 0 <= turn.due_from_wall(turn.wall_milliseconds(due)) - due <= 3000


def test_a_channel_that_asks_again_for_the_same_time_is_called_once() -> None:
    node = Node()
    topic = node.broker.topic("t")
    channel = topic.channel("c")
    topic.publish_one(b"\0\0\0\1x", 60_000)
    node.turn()
    due = node.now + 10
    for earlier in (due, due - 1, due):  # it was put off in between
        channel.alarm = inf
        channel.wake_at(earlier)
    node.now = node.broker.turn.now = due
    node.broker.expire()
    later = [when for when, _ in node.broker.turn.alarms.pop_due(inf)]
    assert len(later) == 1  # asked for when the message was deferred, and again now


def test_a_channel_may_ask_again_for_a_time_that_has_rung() -> None:
    alarms: Alarms[str] = Alarms()
    for _ in range(2):
        alarms.add(1.0, "a")
        alarms.add(1.0, "a")
        alarms.add(1.0, "b")
        assert list(alarms.pop_due(1.0)) == [(1.0, "a"), (1.0, "b")]
