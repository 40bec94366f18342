"""A channel moves to another position in history: what it forgets, what it gets, and what the log has to keep."""

from __future__ import annotations

from nsqcommon.wire.commands import dpub, fin, mpub, req
from nsqd.broker import operator_actions
from nsqd.broker.channel import Channel
from nsqd.broker.journal_replay import replay
from tests.support.node import Client, Node


def channel_of(node: Node, name: str = "c") -> Channel:
    return node.broker.topics["t"].channels[name]


def seek(node: Node, cursor: int) -> None:
    operator_actions.seek(channel_of(node), cursor)
    node.turn()


def bodies(client: Client) -> list[bytes]:
    return [message.body for message in client.messages()]


def node_with(*messages: bytes) -> Node:
    node = Node()
    node.broker.topic("t").channel("c")
    node.client().say(mpub("t", messages))
    return node


def test_everything_comes_again_from_the_place_on() -> None:
    node = node_with(b"a", b"b", b"c")
    consumer = node.consumer(ready=5)
    for message in consumer.messages():
        consumer.say(fin(message.id))
    assert node.channel().depth == 0
    seek(node, 1)
    assert [(m.body, m.attempts) for m in consumer.messages()] == [(b"b", 1), (b"c", 1)]


def test_seeking_to_the_end_leaves_nothing_behind() -> None:
    node = node_with(b"a", b"b", b"c")
    seek(node, 3)
    assert node.channel().depth == 0
    node.client().say(mpub("t", [b"d"]))
    assert bodies(node.consumer(ready=5)) == [b"d"]


def test_what_was_in_flight_is_nobodys() -> None:
    node = node_with(b"a", b"b")
    consumer = node.consumer(ready=2)
    (first, _) = consumer.messages()
    consumer.say(b"RDY 0\n")
    seek(node, 0)
    assert (node.channel().depth, node.channel().in_flight_count) == (2, 0)
    assert consumer.answers(fin(first.id)) == [b"E_FIN_FAILED FIN %b failed ID not in flight" % first.id]
    consumer.say(b"RDY 2\n")
    assert [m.attempts for m in consumer.messages()] == [1, 1]


def test_what_was_requeued_does_not_come_twice() -> None:
    node = node_with(b"a")
    consumer = node.consumer(ready=1)
    (message,) = consumer.messages()
    consumer.say(req(message.id, 10_000))
    seek(node, 0)
    assert bodies(consumer) == [b"a"]
    node.pass_time(20.0)
    assert bodies(consumer) == []


def test_other_channels_do_not_notice() -> None:
    node = node_with(b"a", b"b")
    node.broker.topic("t").channel("other")
    seek(node, 0)
    assert channel_of(node, "other").depth == 0


def test_message_count_says_how_far_back_it_went() -> None:
    node = node_with(b"a", b"b", b"c")
    late = node.broker.topic("t").channel("late")
    operator_actions.seek(late, 1)
    assert (late.depth, late.ledger.message_count) == (2, 2)
    operator_actions.seek(late, 1)
    assert late.ledger.message_count == 2


def test_the_log_keeps_at_once_what_is_needed_again() -> None:
    node = node_with(b"a", b"b", b"c")
    seek(node, 3)
    node.broker.record_progress()
    assert node.store.logs["t"].released == 3
    operator_actions.seek(channel_of(node), 1)
    assert node.store.logs["t"].released == 1


def test_what_lets_another_channels_messages_go_tells_of_them() -> None:
    node = node_with(b"a", b"b", b"c")
    other = node.broker.topics["t"].channel("other")
    operator_actions.seek(other, 3)
    client = node.consumer(ready=5)
    client.say(b"".join(fin(message.id) for message in client.messages()))
    operator_actions.seek(other, 3)  # before the journal records progress again
    assert node.store.logs["t"].released == 3
    node.store.write_journal(force=True)
    assert replay(node.store.journal)["t"].channels["c"].cursor == 3


def test_a_place_survives_a_crash() -> None:
    node = node_with(b"a", b"b", b"c")
    consumer = node.consumer(ready=5)
    for message in consumer.messages():
        consumer.say(fin(message.id))
    node.broker.record_progress()
    seek(node, 1)
    node.crash()
    node.load()
    assert node.channel().depth == 2


def test_a_crash_before_the_journal_is_written_leaves_the_old_place() -> None:
    node = node_with(b"a", b"b", b"c")
    seek(node, 3)
    operator_actions.seek(channel_of(node), 0)
    node.crash()
    assert node.channel().depth == 0


def test_seek_is_forgotten_when_the_tail_is_cut_before_it() -> None:
    state = replay([("topic", "t"), ("channel", "t", "c", 0), ("flow", "t"), ("seek", "t", "c", 9), ("cut", "t", 4)])
    assert state["t"].channels["c"].cursor == 4


def test_seek_forgets_what_the_journal_knew() -> None:
    changes = [
        ("topic", "t"),
        ("channel", "t", "c", 0),
        ("defer", "t", 3, 1, 99),
        ("wait", "t", "c", [1, 2, 0]),
        ("progress", "t", "c", 6, [0, 1]),
        ("seek", "t", "c", 2),
    ]
    channel = replay(changes)["t"].channels["c"]
    assert (channel.cursor, list(channel.skips), channel.waiting) == (2, [], {})


# Deferred messages in history


def node_with_deferred() -> Node:
    """Make a node on which message 1 is deferred for ten seconds."""
    node = node_with(b"a")
    node.client().say(dpub("t", 10_000, b"late"))
    node.client().say(mpub("t", [b"b"]))
    seek(node, 3)
    return node


def test_what_is_not_due_is_passed_over_and_comes_in_its_time() -> None:
    node = node_with_deferred()
    node.pass_time(4.0)
    seek(node, 0)
    consumer = node.consumer(ready=5)
    assert bodies(consumer) == [b"a", b"b"]
    assert node.channel().deferred_count == 1
    node.pass_time(5.9)
    assert bodies(consumer) == []
    node.pass_time(0.2)
    assert [(m.body, m.attempts) for m in consumer.messages()] == [(b"late", 1)]


def test_what_is_due_comes_in_its_order() -> None:
    node = node_with_deferred()
    node.pass_time(10.1)
    seek(node, 0)
    assert bodies(node.consumer(ready=5)) == [b"a", b"late", b"b"]


def test_it_keeps_its_time_across_a_crash() -> None:
    node = node_with_deferred()
    seek(node, 0)
    consumer = node.consumer(ready=5)
    assert bodies(consumer) == [b"a", b"b"]
    node.crash()
    node.load()
    assert node.channel().deferred_count == 1
    consumer = node.consumer(ready=5)
    node.load()
    assert b"late" not in bodies(consumer)
    node.pass_time(10.1)
    node.turn()
    node.load()
    assert b"late" in bodies(consumer)


def test_many_of_them_are_met_a_part_at_a_time() -> None:
    """A million of them at once would keep other clients waiting."""
    node = node_with()
    batch = [b"x"] * 1500
    payload = b"".join(len(body).to_bytes(4, "big") + body for body in batch)
    for _ in range(3):
        node.broker.topic("t").publish(payload, range(0, len(payload) + 1, 5), delay_ms=10_000)
    node.client().say(mpub("t", [b"now"]))
    seek(node, 0)
    consumer = node.consumer(ready=5)
    assert (bodies(consumer), node.channel().deferred_count) == ([], 3000)
    assert node.broker.turn.alarms.next <= node.now, "nobody would come back"
    node.pass_time(0.001)
    assert (bodies(consumer), node.channel().deferred_count) == ([b"now"], 4500)


def test_a_seek_loses_what_is_not_finished_before_its_place() -> None:
    node = node_with(b"a", b"b", b"c", b"d")
    consumer = node.consumer(ready=3)
    first, second, _ = consumer.messages()
    channel = channel_of(node)
    assert [place for place in range(5) if not channel.ledger.waits_before(place)] == [0]
    consumer.say(fin(first.id) + req(second.id, 60_000))
    assert [place for place in range(5) if not channel.ledger.waits_before(place)] == [0, 1]


def test_a_seek_to_the_end_of_a_finished_channel_loses_nothing() -> None:
    node = node_with(b"a", b"b")
    consumer = node.consumer(ready=2)
    for message in consumer.messages():
        consumer.say(fin(message.id))
    assert not channel_of(node).ledger.waits_before(2)
