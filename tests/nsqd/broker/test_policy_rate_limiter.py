from __future__ import annotations

import pytest

from nsqd.broker.policy import RateLimiter
from nsqd.broker.rules import ChannelRules
from tests.support.given_rules import GivenRules
from tests.support.node import Client, Node


def test_a_full_bucket_is_one_second() -> None:
    pace = RateLimiter(500, 10.0)
    assert pace.allowed(10.0) == 500
    assert pace.allowed(60.0) == 500  # an hour of silence saves nothing up


def test_what_is_spent_comes_back_at_the_rate() -> None:
    pace = RateLimiter(500, 0.0)
    pace.spend(500)
    assert [pace.allowed(now) for now in (0.0, 0.001, 0.002, 0.1, 1.0, 1.5)] == [0, 0, 1, 50, 500, 500]


@pytest.mark.parametrize(("rate", "pause"), [(500, 0.01), (50, 0.02), (0.5, 2.0), (100_000, 0.01)])
def test_the_next_look_finds_something_and_looks_are_rare(rate: float, pause: float) -> None:
    pace = RateLimiter(rate, 0.0)
    pace.spend(pace.allowed(0.0))
    when = pace.next_at(0.0)
    assert when == pytest.approx(pause)
    assert pace.allowed(when) >= 1


@pytest.mark.parametrize("rate", [7, 500, 3333])
def test_a_minute_is_exact_however_the_looks_fall(rate: int) -> None:
    pace, now, taken = RateLimiter(rate, 0.0), 0.0, -rate  # without the first second's burst
    while now < 60.0:
        allowed = pace.allowed(now)
        pace.spend(allowed)
        taken += allowed
        now = min(pace.next_at(now) + 0.0007, 60.0)  # a loop is always a little late
    assert taken == pytest.approx(60 * rate, rel=0.002, abs=1)


def node_with(rules: ChannelRules) -> tuple[Node, GivenRules]:
    policy = GivenRules(rules)
    return Node(policy=policy, mem_queue_size=100_000), policy


def publish(node: Node, count: int) -> None:
    node.broker.topic("t").publish(b"\0\0\0\1x" * count, range(0, 5 * count + 1, 5))
    node.turn()


def finish_all(consumer: Client) -> int:
    messages = consumer.messages()
    consumer.say(b"".join(b"FIN %b\n" % message.id for message in messages))
    return len(messages)


@pytest.mark.parametrize("consumers", [1, 50])
def test_a_channel_delivers_at_its_rate_to_all_consumers_together(consumers: int) -> None:
    node, _ = node_with(ChannelRules(max_rate=500))
    crowd = [node.consumer(ready=100) for _ in range(consumers)]
    publish(node, 10_000)
    counts = dict.fromkeys(crowd, 0)
    for _ in range(1_000):  # ten seconds
        node.pass_time(0.01)
        for consumer in crowd:
            counts[consumer] += finish_all(consumer)
    assert sum(counts.values()) == pytest.approx(500 + 5_000, rel=0.02)
    assert max(counts.values()) <= 1.2 * min(counts.values())


def test_a_channel_that_is_held_back_goes_on_by_itself() -> None:
    node, _ = node_with(ChannelRules(max_rate=1))
    consumer = node.consumer(ready=10)
    publish(node, 3)
    assert len(consumer.messages()) == 1
    assert node.broker.turn.alarms.next == pytest.approx(node.now + 1)
    node.pass_time(1.0)
    assert len(consumer.messages()) == 1
    node.pass_time(1.0)
    assert len(consumer.messages()) == 1


def test_retries_count_like_all_deliveries() -> None:
    node, _ = node_with(ChannelRules(max_rate=1))
    consumer = node.consumer(ready=10)
    publish(node, 1)
    [message] = consumer.messages()
    consumer.say(b"REQ %b 0\n" % message.id)
    assert consumer.messages() == []
    node.pass_time(1.0)
    assert [message.attempts for message in consumer.messages()] == [2]


def test_a_new_file_with_the_same_rate_is_no_new_burst_and_one_without_ends_it() -> None:
    node, policy = node_with(ChannelRules(max_rate=2))
    consumer = node.consumer(ready=10)
    publish(node, 8)
    assert len(consumer.messages()) == 2
    policy.of_channels = ChannelRules(max_rate=2, max_attempts=5)
    node.broker.rules_changed(["t"])
    node.turn()
    assert consumer.messages() == []
    policy.of_channels = ChannelRules(max_rate=3)
    node.broker.rules_changed(["t"])
    node.turn()
    assert len(consumer.messages()) == 3
    policy.of_channels = ChannelRules()
    node.broker.rules_changed(["t"])
    node.turn()
    assert len(consumer.messages()) == 3


def test_a_dry_run_rate_holds_nothing_back_and_counts() -> None:
    node, _ = node_with(ChannelRules(max_rate=2, dry=frozenset({"max_rate"})))
    consumer = node.consumer(ready=10)
    publish(node, 8)
    assert len(consumer.messages()) == 8
    assert node.channel().policy_counts == {"max_rate, dry run": 6}
