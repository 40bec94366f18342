"""A policy's time to live, and a channel that stops itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from nsqcommon.wire.commands import dpub, fin, hdpub, hmpub, identify, mpub, req
from nsqcommon.wire.headers import NONE, encode_headers
from nsqd.broker import operator_actions
from nsqd.broker.backlog import Backlog
from nsqd.broker.channel import Channel
from nsqd.broker.rules import ChannelRules
from tests.support.given_rules import GivenRules
from tests.support.node import Node

HOUR = 3_600_000_000_000


def node_with(*bodies: bytes, **rules: object) -> Node:
    node = Node(policy=GivenRules(replace(ChannelRules(), **rules)))  # type: ignore[arg-type]
    node.broker.topic("t").channel("c")
    publish(node, *bodies)
    return node


def publish(node: Node, *bodies: bytes) -> None:
    node.client().say(mpub("t", bodies))


def channel_of(node: Node) -> Channel:
    return node.broker.topics["t"].channels["c"]


def comes(node: Node, ready: int = 50) -> list[bytes]:
    node.load()
    consumer = node.consumer(ready=ready)
    node.load()
    found = consumer.messages()
    consumer.say(b"RDY 0\n" + b"".join(fin(message.id) for message in found))
    return [message.body for message in found]


def test_a_message_that_waited_too_long_is_passed_over_and_counted() -> None:
    node = node_with(b"old", b"old", ttl=HOUR)
    node.pass_time(3_601)
    publish(node, b"new")
    assert comes(node) == [b"new"]
    assert channel_of(node).policy_counts == {"ttl, dropped": 2}
    node.broker.record_progress()
    node.store.write_journal(force=True)
    node.crash()
    assert comes(node) == []


def test_a_message_that_is_just_young_enough_is_delivered() -> None:
    node = node_with(b"a", ttl=HOUR)
    node.pass_time(3_600)
    assert comes(node) == [b"a"]


def test_an_old_message_that_the_disk_yields_at_the_second_look_is_not_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = node_with(b"old", ttl=HOUR, ttl_buries=True)
    log = node.store.logs["t"]
    node.pass_time(3_599.5)
    consumer = node.consumer(ready=0)
    channel_of(node).ledger.batch = None
    batch_at, looks = log.batch_at, count()
    monkeypatch.setattr(log, "batch_at", lambda sequence: batch_at(sequence) if next(looks) else None)
    node.broker.turn.timestamp += 1_000_000_000
    consumer.say(b"RDY 1\n")
    assert (consumer.messages(), channel_of(node).policy_counts["ttl, buried"]) == ([], 1)


def test_expired_messages_leave_the_depth_without_any_consumer() -> None:
    node = node_with(b"a", b"b", ttl=HOUR)
    node.pass_time(3_601)
    node.pass_time(61)
    assert node.channel().depth == 0
    publish(node, b"c")
    assert node.channel().depth == 1


def test_what_expires_may_be_buried() -> None:
    node = node_with(b"a", b"b", ttl=HOUR, ttl_buries=True)
    node.pass_time(3_601)
    assert comes(node) == []
    assert [it.note.reason for it in channel_of(node).buried_queue.buried.from_place(0)] == [
        "waited for more than 1h (ttl)"
    ] * 2
    operator_actions.take_buried(channel_of(node), "kick", [0])
    node.turn()
    assert comes(node) == [b"a"]  # somebody wants it, so it does not expire again


def test_a_delay_is_no_waiting() -> None:
    node = node_with(ttl=HOUR)
    node.client().say(dpub("t", 3_600_000, b"late"))
    node.pass_time(3_599)
    operator_actions.seek(channel_of(node), 0)
    node.turn()
    node.pass_time(3_599)
    assert comes(node) == [b"late"]


def test_old_segments_are_passed_without_reading_them() -> None:
    node = node_with(b"a", b"b", ttl=HOUR)
    publish(node, b"c")
    node.store.logs["t"].evict()
    node.pass_time(3_601)
    publish(node, b"new")
    node.store.wanted.clear()
    consumer = node.consumer(ready=5)
    assert [message.body for message in consumer.messages()] == [b"new"]
    assert not node.store.wanted


def test_segments_with_deferred_messages_are_passed_without_them() -> None:
    node = node_with(b"a", ttl=HOUR)
    node.client().say(dpub("t", 3_600_000, b"late"))
    publish(node, b"b")
    node.pass_time(3_500)
    node.store.logs["t"].evict()
    node.pass_time(200)
    assert comes(node) == [b"late"]
    assert channel_of(node).policy_counts == {"ttl, dropped": 2}


@pytest.mark.parametrize("way", ["seek", "restore", "create"])
def test_a_deferred_message_does_not_expire_before_it_is_due_after_a_channel_was_moved(way: str) -> None:
    node = node_with(b"a", b"b", ttl=HOUR // 60)
    node.client().say(dpub("t", 3_600_000, b"late"))
    channel = channel_of(node)
    if way == "seek":
        operator_actions.seek(channel, 1)  # forward, over nothing that is deferred
    elif way == "restore":
        operator_actions.restore_backlog(
            channel, Backlog(next=1, end=3, finished=[], requeued=[], deferred=[], buried=[]), 10_000
        )
    else:
        node.broker.topics["t"].delete_channel("c")
        node.broker.topics["t"].channel("c", cursor=1)
    node.store.logs["t"].evict()
    node.pass_time(300)
    assert comes(node) == []
    node.pass_time(3_301)
    assert comes(node) == [b"late"]


def test_what_was_delivered_once_does_not_expire() -> None:
    node = node_with(b"a", ttl=HOUR)
    consumer = node.consumer()
    (a,) = consumer.messages()
    consumer.say(b"RDY 0\n" + req(a.id, 0))
    node.pass_time(7_200)
    assert comes(node) == [b"a"]


def test_a_dry_run_time_to_live_drops_nothing() -> None:
    node = node_with(b"a", ttl=HOUR, dry=frozenset({"ttl"}))
    node.pass_time(3_601)
    assert comes(node) == [b"a"]
    assert channel_of(node).policy_counts == {"ttl, dry run": 1}


def fail_all(node: Node, count: int) -> None:
    consumer = node.consumer(ready=count)
    for message in consumer.messages():
        consumer.say(req(message.id, 0))
    consumer.say(b"RDY 0\n")


def test_the_breaker_pauses_a_channel_that_buries_too_much() -> None:
    node = node_with(*[b"x"] * 60, max_attempts=1, breaker=0.5)
    fail_all(node, 20)
    assert channel_of(node).paused
    assert channel_of(node).paused_why == "at least 50% of the last minute's deliveries were buried (breaker)"
    assert node.channel().depth + node.channel().in_flight_count == 40


def test_a_channel_that_is_let_go_on_is_judged_anew() -> None:
    node = node_with(*[b"x"] * 60, max_attempts=1, breaker=0.5)
    fail_all(node, 20)
    channel_of(node).unpause()
    node.turn()
    fail_all(node, 5)
    assert not channel_of(node).paused


def test_messages_that_have_only_waited_too_long_are_no_reason_for_the_breaker() -> None:
    node = node_with(*[b"x"] * 60, max_attempts=1, breaker=0.5, ttl=60 * 1_000_000_000, ttl_buries=True)
    consumer = node.consumer(ready=20)
    consumer.say(b"RDY 0\n" + b"".join(fin(message.id) for message in consumer.messages()))
    node.turn()
    node.pass_time(61.0)
    assert node.channel().buried_count == 40
    assert not channel_of(node).paused


@pytest.mark.parametrize("rule", ["breaker", "max_buried"])
def test_a_dry_run_rule_pauses_nothing(rule: str) -> None:
    given = {"breaker": 0.5, "max_buried": 1}
    node = node_with(*[b"x"] * 30, max_attempts=1, **{rule: given[rule]}, dry=frozenset({rule}))
    fail_all(node, 30)
    assert not channel_of(node).paused
    assert channel_of(node).policy_counts[f"{rule}, dry run"]


# A time to live of a message's own


def publish_with(node: Node, *messages: tuple[bytes, bytes | None]) -> None:
    """Publish bodies, each with its own time to live."""
    publisher = node.client()
    publisher.say(identify(b'{"feature_negotiation":true,"extensions":["headers"]}'))
    headed = [
        (encode_headers({"nsq-ttl": ttl, "other": b"nsq-ttl"}) if ttl is not None else NONE, body)
        for body, ttl in messages
    ]
    publisher.say(hmpub("t", headed))


def test_each_message_may_say_how_long_it_may_wait() -> None:
    node = node_with()
    publish_with(
        node, (b"0", None), (b"1", b"1000"), (b"2", b"1000"), (b"3", b"60000"), (b"4", b"soon"), (b"5", b"1000")
    )
    node.pass_time(1.5)
    publish_with(node, (b"6", b"1000"))
    assert comes(node) == [b"0", b"3", b"4", b"6"]
    assert channel_of(node).policy_counts == {"ttl, dropped": 3}
    node.broker.record_progress()
    node.store.write_journal(force=True)
    node.crash()
    assert comes(node) == []


def test_just_in_time_it_is_delivered_and_then_does_not_expire() -> None:
    node = node_with()
    publish_with(node, (b"a", b"1000"))
    node.pass_time(1)
    consumer = node.consumer(ready=1)
    (message,) = consumer.messages()
    node.pass_time(5)
    consumer.say(req(message.id, 0))
    assert [it.body for it in consumer.messages()] == [b"a"]


def test_its_delay_does_not_count_as_waiting() -> None:
    node = node_with()
    publisher = node.client()
    publisher.say(identify(b'{"feature_negotiation":true,"extensions":["headers"]}'))
    publisher.say(hdpub("t", 5000, encode_headers({"nsq-ttl": b"1000"}), b"later"))
    node.pass_time(5.5)
    assert comes(node) == [b"later"]


def test_the_policy_says_what_happens_to_it_and_may_be_shorter() -> None:
    node = node_with(ttl=2_000_000_000, ttl_buries=True)
    publish_with(node, (b"a", b"1000"), (b"b", b"60000"), (b"c", None))
    node.pass_time(1.5)
    assert comes(node, ready=1) == [b"b"]
    buried = list(channel_of(node).buried_queue.buried.from_place(0))
    assert [it.note.reason for it in buried] == ["waited for more than its nsq-ttl (ttl)"]
    node.pass_time(1)
    assert comes(node) == []
    assert channel_of(node).policy_counts["ttl, buried"] == 2


def test_a_backlog_of_expired_messages_gives_others_their_turn() -> None:
    node = node_with()
    for _ in range(300):
        publish_with(node, (b"old", b"1"))
    node.pass_time(1)
    publish_with(node, (b"new", b"60000"))
    consumer = node.consumer(ready=1)
    node.pass_time(0.1)
    assert [it.body for it in consumer.messages()] == [b"new"]
