"""`max_in_flight`: no more of a channel's messages are in flight than the policy allows, whoever has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from nsqcommon.wire.commands import fin, identify, mpub, nop, req, touch
from nsqd.broker import operator_actions
from nsqd.broker.channel import Channel
from nsqd.broker.http_consumers import HttpCaller, ids_in
from nsqd.broker.leases import Leases
from nsqd.broker.rules import NO_CHANNEL_RULES, ChannelRules
from tests.nsqd.broker.burying import bury
from tests.support.given_rules import GivenRules
from tests.support.leasing import bounds
from tests.support.node import START, Client, Message, Node

SECOND = 10**9
ANA = HttpCaller(holder="10.0.0.1", remote_address="10.0.0.1:5000")


def node_with(most: int | None, **rules: Any) -> Node:
    node = Node(policy=GivenRules(ChannelRules(max_in_flight=most, **rules)), mem_queue_size=1000)
    node.broker.topic("t").channel("c")
    return node


def publish(node: Node, count: int) -> None:
    node.client().say(mpub("t", [b"%d" % number for number in range(count)]))


def follow(node: Node, rules: ChannelRules) -> None:
    assert isinstance(node.policy, GivenRules)
    node.policy.of_channels = rules
    node.broker.rules_changed(["t"])
    node.turn()


def channel_of(node: Node) -> Channel:
    return node.broker.topics["t"].channels["c"]


def full_since(node: Node) -> float | None:
    """Return since when the limit has been reached, in seconds since the node's start."""
    since = node.channel().in_flight_full_since
    return None if since is None else (since - START) / SECOND


def received(consumers: Iterable[Client]) -> list[tuple[Client, Message]]:
    return [(consumer, message) for consumer in consumers for message in consumer.messages()]


def one_each(node: Node, consumers: int) -> tuple[list[Client], list[Message]]:
    """Return as many consumers as the limit, and the message that each of them has got, of ten."""
    crowd = [node.consumer(ready=5) for _ in range(consumers)]
    publish(node, 10)
    shares = [consumer.messages() for consumer in crowd]
    assert [len(share) for share in shares] == [1] * consumers
    return crowd, [share[0] for share in shares]


def test_all_consumers_together_have_no_more_than_the_limit() -> None:
    node = node_with(3)
    one_each(node, 3)
    assert len(node.consumer(ready=2500).messages()) == 0
    assert (node.channel().in_flight_count, node.channel().depth) == (3, 7)


def test_the_place_of_a_finished_message_is_taken_in_the_same_turn_by_whoever_is_next() -> None:
    node = node_with(3)
    crowd, got = one_each(node, 3)
    in_hand = [*zip(crowd, got, strict=True)]
    bodies = []
    while in_hand:
        consumer, message = in_hand.pop(0)
        consumer.say(fin(message.id))
        in_hand += received(crowd)
        bodies.append(message.body)
        assert node.channel().in_flight_count == len(in_hand) == min(3, 10 - len(bodies))
    assert bodies[3:] == [b"%d" % number for number in range(3, 10)]


def messages_of_each(node: Node, crowd: list[Client], count: int) -> list[int]:
    """Return how many of `count` messages each consumer gets, if all take the same time for each."""
    got: list[Client] = []
    in_hand: list[tuple[Client, Message]] = []
    for _ in range(count):
        in_hand += (new := received(crowd))
        got += [consumer for consumer, _ in new]
        consumer, message = in_hand.pop(0)
        consumer.say(fin(message.id))
        node.load()
    return [got.count(consumer) for consumer in crowd]


@pytest.mark.parametrize(
    ("most", "ready"),
    [(1, [5, 5, 5]), (1, [5, 5, 5, 5]), (2, [1, 1, 1]), (3, [1, 1, 1, 1, 1]), (3, [1, 1, 5, 5])],
)
@pytest.mark.parametrize("from_disk", [False, True])
def test_places_go_round(most: int, ready: list[int], *, from_disk: bool) -> None:
    """For example, two of three consumers with RDY 1 always have room for the free one of two places.

    It must not always be the same one's turn, and nobody's turn passes while a message is read.
    """
    node = node_with(most)
    crowd = [node.consumer(ready=it) for it in ready]
    for _ in range(60):
        publish(node, 1)  # each is a batch of its own
    if from_disk:
        node.store.logs["t"].evict()
    counts = messages_of_each(node, crowd, 60)
    assert max(counts) - min(counts) <= 1


def test_a_requeued_message_frees_its_place() -> None:
    node = node_with(1)
    crowd = [node.consumer(ready=5) for _ in range(2)]
    publish(node, 2)
    ((consumer, message),) = received(crowd)
    consumer.say(req(message.id, 60_000))
    assert [it.body for _, it in received(crowd)] == [b"1"]
    assert (node.channel().in_flight_count, node.channel().deferred_count) == (1, 1)


def test_a_buried_message_frees_its_place() -> None:
    node = node_with(1)
    consumer = node.consumer(ready=5)
    publish(node, 2)
    (message,) = consumer.messages()
    assert bury(node, consumer, message.id) is None
    assert [it.body for it in consumer.messages()] == [b"1"]


def test_a_message_that_times_out_frees_its_place_even_if_its_consumer_has_left() -> None:
    node = node_with(1)
    consumer = node.consumer(ready=5)
    publish(node, 2)
    assert len(consumer.messages()) == 1
    consumer.protocol.end()
    other = node.consumer(ready=5)
    assert other.messages() == []
    node.pass_time(30)
    other.ask(nop())
    node.pass_time(30)
    assert [it.attempts for it in other.messages()] == [2]
    assert node.channel().in_flight_count == 1


def test_a_touched_message_keeps_its_place() -> None:
    node = node_with(1)
    consumer = node.consumer(ready=5)
    publish(node, 2)
    (message,) = consumer.messages()
    for _ in range(3):
        node.pass_time(40)
        consumer.say(touch(message.id))
        assert consumer.messages() == []
    consumer.say(fin(message.id))
    assert [it.body for it in consumer.messages()] == [b"1"]


def test_an_emptied_channel_has_all_its_places() -> None:
    node = node_with(2)
    consumer = node.consumer(ready=5)
    publish(node, 3)
    assert len(consumer.messages()) == 2
    operator_actions.empty(channel_of(node))
    publish(node, 3)
    assert len(consumer.messages()) == 2


def test_leases_over_http_take_places_like_all_others() -> None:
    node = node_with(3)
    leases = Leases(node.broker.turn, bounds(), on_first_consumer=lambda: None)
    consumer = node.consumer(ready=1)
    publish(node, 10)
    assert len(consumer.messages()) == 1
    poll = leases.poll(channel_of(node), ANA, most=10, lease=60.0)
    node.turn()
    ids = list(ids_in(poll.take()))
    assert len(ids) == 2
    consumer.say(b"RDY 5\n")
    assert consumer.messages() == []
    waiting = leases.poll(channel_of(node), ANA, most=1, lease=60.0)
    node.turn()
    assert waiting.count == 0
    consumer.say(b"RDY 0\n")
    leases.finish(channel_of(node), ANA.holder, ids[:1])
    node.turn()
    assert waiting.count == 1
    consumer.say(b"RDY 5\n")
    leases.requeue(channel_of(node), ANA.holder, ids[1:], 60_000, counts=True)
    node.turn()
    assert len(consumer.messages()) == 1


def test_a_lease_that_ends_frees_its_place() -> None:
    node = node_with(1)
    leases = Leases(node.broker.turn, bounds(), on_first_consumer=lambda: None)
    publish(node, 1)
    poll = leases.poll(channel_of(node), ANA, most=10, lease=10.0)
    node.turn()
    assert len(list(ids_in(poll.take()))) == 1
    consumer = node.consumer(ready=5)
    publish(node, 1)
    assert consumer.messages() == []
    node.pass_time(10)
    assert len(consumer.messages()) == 1


def test_a_poll_waits_for_the_disk_only_if_a_place_is_free() -> None:
    """Otherwise each poll without `wait=` would take as long as the longest read, and count as a waiting one."""
    node = node_with(1)
    leases = Leases(node.broker.turn, bounds(), on_first_consumer=lambda: None)
    consumer = node.consumer(ready=1)
    publish(node, 1)
    publish(node, 1)
    node.store.logs["t"].evict()
    poll = leases.poll(channel_of(node), ANA, most=1, lease=60.0)
    node.turn()
    assert (poll.count, poll.may_get_more_soon) == (0, False)
    (message,) = consumer.messages()
    consumer.say(b"RDY 0\n" + fin(message.id))
    assert (poll.count, poll.may_get_more_soon) == (0, True)
    node.load()
    assert poll.count == 1


def test_an_ephemeral_channel_has_a_limit_too() -> None:
    node = node_with(2)
    consumer = node.consumer(channel="c#ephemeral", ready=50)
    publish(node, 5)
    first, _ = consumer.messages()
    consumer.say(fin(first.id))
    assert len(consumer.messages()) == 1
    assert node.channel(channel="c#ephemeral").in_flight_count == 2


def test_a_lower_limit_takes_nothing_back_and_a_higher_one_holds_at_once() -> None:
    node = node_with(4)
    consumer = node.consumer(ready=50)
    publish(node, 20)
    got = consumer.messages()
    assert len(got) == 4
    follow(node, ChannelRules(max_in_flight=2))
    assert node.channel().in_flight_count == 4
    for left in (3, 2):
        consumer.say(fin(got.pop().id))
        assert (consumer.messages(), node.channel().in_flight_count) == ([], left)
    consumer.say(fin(got.pop().id))
    assert len(consumer.messages()) == 1
    follow(node, ChannelRules(max_in_flight=5))
    assert len(consumer.messages()) == 3
    follow(node, NO_CHANNEL_RULES)
    assert node.channel().depth == 0


def test_a_limit_that_comes_while_more_are_in_flight_waits_for_them() -> None:
    node = node_with(None)
    consumer = node.consumer(ready=4)
    publish(node, 20)
    got = consumer.messages()
    follow(node, ChannelRules(max_in_flight=3))
    consumer.say(fin(got[0].id))
    assert consumer.messages() == []
    consumer.say(fin(got[1].id))
    assert len(consumer.messages()) == 1


def test_what_a_consumer_samples_out_leaves_its_place_to_the_next() -> None:
    """Otherwise the channel would stand still: nothing would be in flight, so nobody would answer."""
    node = node_with(2)
    node.percents = [90] * 7 + [0] + [90] * 4 + [0] + [90] * 100
    sampling = node.client(b"  V2" + identify(b'{"sample_rate":50}') + b"SUB t c\n")
    sampling.say(b"RDY 10\n")
    publish(node, 20)
    assert [message.body for message in sampling.messages()] == [b"7", b"12"]
    assert (node.channel().in_flight_count, node.channel().depth) == (2, 7)


@pytest.mark.parametrize("ready", [1, 7])
def test_nobody_gets_more_than_the_limit_with_a_rate_beside_it(ready: int) -> None:
    node = node_with(5, max_rate=2)
    consumers = [node.consumer(ready=ready) for _ in range(3)]
    publish(node, 20)
    assert node.channel().in_flight_count == 2  # the rate allows no more now
    for seconds in range(1, 5):
        node.pass_time(1.0)
        assert node.channel().in_flight_count == min(2 + 2 * seconds, 5, 3 * ready)
    for consumer, message in received(consumers):
        consumer.say(fin(message.id))
    assert node.channel().in_flight_count == 2  # nothing is saved up beyond a second's worth


def test_a_paused_channel_keeps_its_places_free() -> None:
    node = node_with(2)
    consumer = node.consumer(ready=5)
    publish(node, 5)
    first, _ = consumer.messages()
    channel_of(node).pause()
    node.turn()
    node.pass_time(10)
    consumer.say(fin(first.id))
    assert consumer.messages() == []
    assert full_since(node) is None
    channel_of(node).unpause()
    node.turn()
    assert len(consumer.messages()) == 1
    assert full_since(node) == 10.0


def test_the_time_since_the_limit_is_reached_goes_on_while_places_are_taken_again() -> None:
    node = node_with(2)
    consumer = node.consumer(ready=5)
    assert (node.channel().max_in_flight, full_since(node)) == (2, None)
    node.pass_time(1)
    publish(node, 4)
    got = consumer.messages()
    assert full_since(node) == 1.0
    for _ in range(2):
        node.pass_time(1)
        consumer.say(fin(got.pop(0).id))
        got += consumer.messages()
        assert full_since(node) == 1.0
    consumer.say(fin(got[0].id))
    assert full_since(node) is None
    node.pass_time(1)
    publish(node, 1)
    assert full_since(node) == 4.0
    follow(node, ChannelRules(max_in_flight=2, max_attempts=9))
    assert full_since(node) == 4.0  # the limit is the same
    node.pass_time(1)
    follow(node, ChannelRules(max_in_flight=1))
    assert full_since(node) == 5.0
    follow(node, NO_CHANNEL_RULES)
    assert (node.channel().max_in_flight, full_since(node)) == (0, None)


def test_a_limit_is_not_reached_any_more_once_all_has_timed_out_and_nobody_is_left() -> None:
    node = node_with(1)
    consumer = node.consumer(ready=5)
    publish(node, 1)
    assert full_since(node) == 0.0
    consumer.protocol.end()
    node.pass_time(61)
    assert full_since(node) is None
    node.pass_time(9)
    assert len(node.consumer(ready=5).messages()) == 1
    assert full_since(node) == 70.0


def test_after_a_crash_the_limit_holds_again() -> None:
    node = node_with(2)
    node.consumer(ready=5)
    publish(node, 5)
    node.broker.record_progress()
    node.store.write_journal(force=True)
    node.crash()
    assert full_since(node) is None
    consumer = node.consumer(ready=5)
    node.load()
    assert len(consumer.messages()) == 2


def test_a_dry_run_holds_nothing_back_and_counts_what_would_have_waited() -> None:
    node = node_with(3, dry=frozenset({"max_in_flight"}))
    consumer = node.consumer(ready=50)
    publish(node, 2)
    first, second = consumer.messages()
    assert channel_of(node).policy_counts == {}
    publish(node, 5)
    assert len(consumer.messages()) == 5
    assert channel_of(node).policy_counts == {"max_in_flight, dry run": 4}
    consumer.say(fin(first.id) + fin(second.id))
    publish(node, 1)
    assert channel_of(node).policy_counts == {"max_in_flight, dry run": 5}
    assert (node.channel().max_in_flight, full_since(node)) == (0, None)


def test_a_limit_in_force_beside_a_stricter_one_that_is_tried() -> None:
    node = node_with(3, max_rate=1, dry=frozenset({"max_rate"}))
    consumer = node.consumer(ready=50)
    publish(node, 5)
    assert len(consumer.messages()) == 3
    assert channel_of(node).policy_counts == {"max_rate, dry run": 2}
