"""What bounds never drop: what somebody has had, or asked for. New messages make way for it, and kicks wait."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from nsqd.broker import operator_actions
from nsqd.broker.buried_queue import BuriedSelection
from nsqd.broker.rules import ChannelRules, Overflow, TopicRules
from tests.nsqd.broker.bounded_node import BURY, DROP, SIZE, Bounded, buried

KEEPS = [ChannelRules(max_messages=30, overflow=DROP), ChannelRules(max_messages=30, overflow=Overflow.BURY)]


def all_in_flight(it: Bounded, count: int) -> list[bytes]:
    """Publish messages to a consumer that takes them all. Return their ids."""
    consumer = it.node.consumer(ready=count)
    for _ in range(count):  # one by one, because what comes at once has to fit
        it.publish()
    ids = [message.id for message in consumer.messages()]
    consumer.say(b"RDY 0\n")
    assert len(ids) == count
    return ids


def bury_in_flight(it: Bounded, ids: list[bytes]) -> None:
    for message_id in ids:
        it.real.bury(it.real.consumers[0], message_id, "broken", it.node.now)
    it.node.turn()


@pytest.mark.parametrize("rules", KEEPS)
def test_kicked_messages_are_delivered_by_a_channel_that_is_full(rules: ChannelRules) -> None:
    it = Bounded(rules)
    bury_in_flight(it, all_in_flight(it, 15))
    it.publish(30)
    assert operator_actions.take_buried(it.real, "kick", range(15)) == 15
    it.publish(5)
    assert sorted(it.waiting()) == [*range(10, 25), *range(45, 60)]


@pytest.mark.parametrize("rules", KEEPS)
def test_messages_that_time_out_are_delivered_again_by_a_channel_that_is_full(rules: ChannelRules) -> None:
    it = Bounded(rules)
    all_in_flight(it, 12)
    it.publish(30)
    it.node.pass_time(61)
    it.publish(5)
    assert sorted(it.waiting()) == [*range(10, 22), *range(39, 57)]


@pytest.mark.parametrize("rules", KEEPS)
def test_messages_in_flight_at_a_crash_are_delivered_again_by_a_channel_that_is_full(rules: ChannelRules) -> None:
    it = Bounded(rules)
    all_in_flight(it, 12)
    it.publish(30)
    it.node.crash()  # before anything else has told the journal of the deliveries
    it.publish(5)
    it.node.load()
    it.node.pass_time(0.1)  # what is buried had to be read from disk
    assert sorted(it.waiting()) == [*range(10, 22), *range(39, 57)]


def test_a_bound_of_the_topic_keeps_what_was_in_flight_at_a_crash() -> None:
    it = Bounded(of_topics=TopicRules(max_messages=30, overflow=DROP))
    all_in_flight(it, 12)
    it.publish(30)
    it.node.crash()
    it.publish(5)
    it.node.load()
    assert sorted(it.waiting()) == [*range(10, 22), *range(27, 57)]


@pytest.mark.parametrize(
    "rules",
    [(ChannelRules(max_messages=30, overflow=DROP), None), (None, TopicRules(max_messages=30, overflow=DROP))],
    ids=["channel", "topic"],
)
def test_a_bound_that_comes_keeps_what_was_in_flight_at_a_crash(
    rules: tuple[ChannelRules | None, TopicRules | None],
) -> None:
    it = Bounded()
    all_in_flight(it, 12)
    it.publish(30)
    it.follow(*rules)
    it.node.crash()
    it.node.load()
    assert sorted(it.waiting())[:12] == [*range(10, 22)]


@pytest.mark.parametrize("rules", KEEPS)
def test_requeued_redelivered_and_due_messages_are_delivered_by_a_channel_that_is_full(rules: ChannelRules) -> None:
    it = Bounded(rules)
    requeued, put_off, done = all_in_flight(it, 3)
    it.publish(2, delay_ms=3_600_000)
    it.publish(30)
    it.node.clients[0].say(b"REQ %b 0\nREQ %b 1000\nFIN %b\n" % (requeued, put_off, done))
    operator_actions.redeliver(it.real, [2])
    operator_actions.move(it.real, BitMap64([3]), 0)
    it.publish(5)
    it.node.pass_time(2)
    it.publish(5)
    assert sorted(it.waiting()) == [10, 11, 12, 13, *range(30, 55)]
    assert it.node.channel().deferred_count == 1


def test_new_messages_are_dropped_on_arrival_while_what_may_not_be_dropped_fills_the_channel() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    ids = all_in_flight(it, 4)
    it.publish(2)
    it.node.clients[0].say(b"".join(b"REQ %b 0\n" % message_id for message_id in ids))
    it.publish(5)
    assert it.node.channel().policy_counts == {"overflow, dropped": 2, "full, dropped": 5}
    assert it.node.channel().depth == 4
    it.publish(1)
    assert it.node.channel().policy_counts == {"overflow, dropped": 2, "full, dropped": 6}
    assert it.waiting() == [10, 11, 12, 13]


@pytest.mark.parametrize("name", ["c", "c#ephemeral"])
def test_new_deferred_messages_are_dropped_on_arrival_where_they_do_not_fit(name: str) -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    it.topic.channel(name)
    it.publish(2)
    it.publish(5, delay_ms=1000)
    assert it.node.channel(channel=name).policy_counts == {"overflow, dropped": 2, "full, dropped": 2}
    it.publish(1, delay_ms=1000)
    assert it.node.channel(channel=name).policy_counts["full, dropped"] == 3
    if name == "c":
        it.real.unpause()  # the journal is written with what it was told before
        it.node.turn()
        it.node.crash()
    it.node.pass_time(2)
    assert it.waiting(name) == [12, 13, 14]


def test_new_deferred_messages_are_buried_on_arrival_where_they_do_not_fit() -> None:
    it = Bounded(BURY)
    it.topic.channel("c")
    it.publish(5, delay_ms=1000)
    assert buried(it) == [(3, 0), (4, 0)]
    assert it.node.channel().policy_counts["overflow, buried"] == 2
    it.node.crash()
    assert buried(it) == [(3, 0), (4, 0)]
    it.node.pass_time(2)
    assert it.waiting() == [10, 11, 12]


def test_a_dry_run_bound_spares_the_same_messages() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP, dry=frozenset({"max_messages"})))
    ids = all_in_flight(it, 3)
    it.node.clients[0].say(b"".join(b"REQ %b 0\n" % message_id for message_id in ids))
    it.publish(2)
    assert it.node.channel().policy_counts == {"overflow, dry run": 2}
    it.publish(2, delay_ms=1000)
    assert it.node.channel().policy_counts == {"overflow, dry run": 4}
    it.publish(1)
    assert it.node.channel().policy_counts == {"overflow, dry run": 5}


def test_what_flows_when_a_topic_goes_on_is_dropped_if_what_may_not_be_dropped_fills_its_channel() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    ids = all_in_flight(it, 3)
    it.node.clients[0].say(b"".join(b"REQ %b 0\n" % message_id for message_id in ids))
    it.topic.pause()
    it.publish(2)
    it.topic.unpause()
    it.node.turn()
    assert it.node.channel().policy_counts == {"full, dropped": 2}


@pytest.mark.parametrize(("rules", "room"), [
    (ChannelRules(max_messages=10, overflow=DROP), 6),
    (ChannelRules(max_messages=10, overflow=Overflow.BURY), 6),
    (ChannelRules(max_bytes=8 * SIZE, overflow=DROP), 4),
    (ChannelRules(max_messages=2, overflow=DROP), 0),
    (ChannelRules(max_messages=10), None),
    (None, None),
])  # fmt: skip
def test_the_room_of_a_channel_is_what_fits_beside_messages_that_are_not_dropped(
    rules: ChannelRules | None, room: int | None
) -> None:
    it = Bounded(None)
    ids = all_in_flight(it, 3)
    it.node.clients[0].say(b"".join(b"REQ %b 0\n" % message_id for message_id in ids))
    it.publish(1, delay_ms=1000)
    it.publish(1)
    it.follow(rules)
    assert it.real.room() == room


def test_a_kick_waits_with_what_does_not_fit() -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    ids = all_in_flight(it, 5)
    consumer = it.node.clients[0]
    bury_in_flight(it, ids)
    operator_actions.begin_job(it.real, "kick", BuriedSelection(before=10**15), rate=0, who="me")
    it.node.turn()
    assert (it.node.channel().depth, it.node.channel().buried_count) == (3, 2)
    it.node.pass_time(1)
    assert (it.node.channel().depth, it.node.channel().buried_count) == (3, 2)
    consumer.say(b"RDY 9\n")
    it.node.pass_time(1)
    assert [message.body for message in consumer.messages()] == [b"10", b"11", b"12", b"13", b"14"]
    it.node.pass_time(1)
    assert it.real.buried_queue.job is None


def test_a_rate_holds_also_after_a_kick_has_waited_for_room() -> None:
    it = Bounded(ChannelRules(max_messages=2, overflow=DROP))
    ids = all_in_flight(it, 8)
    consumer = it.node.clients[0]
    bury_in_flight(it, ids)
    operator_actions.begin_job(it.real, "kick", BuriedSelection(before=10**15), rate=1, who="me")
    for _ in range(20):
        it.node.pass_time(1)
    assert it.node.channel().depth == 2
    it.follow(ChannelRules(max_messages=100, overflow=DROP))
    it.node.pass_time(1)
    assert it.node.channel().depth == 3
    assert consumer.messages() == []


def test_a_discard_does_not_wait_for_room() -> None:
    it = Bounded(ChannelRules(max_messages=1, overflow=DROP))
    bury_in_flight(it, all_in_flight(it, 8))
    operator_actions.begin_job(it.real, "discard", BuriedSelection(before=10**15), rate=0, who="me")
    assert it.node.channel().buried_count == 0


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_kick_by_force_takes_all(is_killed: bool) -> None:
    it = Bounded(ChannelRules(max_messages=3, overflow=DROP))
    ids = all_in_flight(it, 5)
    bury_in_flight(it, ids)
    operator_actions.begin_job(it.real, "kick", BuriedSelection(before=10**15), rate=3, who="me", force=True)
    for _ in range(2):
        it.node.pass_time(1)
        if is_killed:
            it.node.crash()
    it.publish(1)
    assert it.node.channel().policy_counts["full, dropped"] == 1
    assert it.waiting() == [10, 11, 12, 13, 14]
