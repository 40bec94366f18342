from __future__ import annotations

import pytest

from nsqd.broker.rules import BackoffRule, ChannelRules
from tests.support.given_rules import GivenRules
from tests.support.node import Node

DOUBLING = BackoffRule(exponential=True, shortest_ms=1_000, longest_ms=5_000, jitter=0.0)


def node_with(backoff: BackoffRule, **rules: object) -> Node:
    node = Node(policy=GivenRules(ChannelRules(backoff=backoff, **rules)))  # type: ignore[arg-type]  # of any rule
    node.percents = [49] * 100
    return node


@pytest.mark.parametrize(("exponential", "delays"), [(True, [1, 2, 4, 5, 5]), (False, [1, 2, 3, 4, 5, 5])])
def test_each_failure_waits_longer_up_to_the_longest(exponential: bool, delays: list[int]) -> None:
    node = node_with(BackoffRule(exponential=exponential, shortest_ms=1_000, longest_ms=5_000, jitter=0.0))
    consumer = node.consumer(ready=1)
    node.client().say(b"PUB t\n\0\0\0\1x")
    for attempt, delay in enumerate(delays, 1):
        [message] = consumer.messages()
        assert message.attempts == attempt
        consumer.say(b"REQ %b 0\n" % message.id)
        node.pass_time(delay - 0.01)
        assert consumer.messages() == []
        node.pass_time(0.02)


@pytest.mark.parametrize(("asked", "waits"), [(300, 1.0), (3_000, 3.0)])
def test_a_longer_delay_of_the_consumer_holds(asked: int, waits: float) -> None:
    node = node_with(DOUBLING)
    consumer = node.consumer(ready=1)
    node.client().say(b"PUB t\n\0\0\0\1x")
    [message] = consumer.messages()
    consumer.say(b"REQ %b %d\n" % (message.id, asked))
    node.pass_time(waits - 0.01)
    assert consumer.messages() == []
    node.pass_time(0.02)
    assert len(consumer.messages()) == 1


def test_a_time_out_waits_too_and_so_it_does_after_a_crash() -> None:
    node = node_with(DOUBLING)
    consumer = node.consumer(ready=1)
    node.client().say(b"PUB t\n\0\0\0\1x")
    assert len(consumer.messages()) == 1
    node.pass_time(60.1)
    assert (consumer.messages(), node.channel().deferred_count, node.channel().timeout_count) == ([], 1, 1)
    node.crash()
    consumer = node.consumer(ready=1)
    assert consumer.messages() == []
    node.pass_time(1.1)
    node.load()
    [message] = consumer.messages()
    assert message.attempts == 2


def test_an_attempt_that_does_not_count_does_not_wait() -> None:
    node = node_with(DOUBLING)
    consumer = node.consumer(ready=1)
    node.client().say(b"PUB t\n\0\0\0\1x")
    [message] = consumer.messages()
    channel = node.broker.topics["t"].channels["c"]
    assert channel.requeue(channel.consumers[0], message.id, 0, node.now, counts=False) is None
    node.turn()
    [message] = consumer.messages()
    assert message.attempts == 1


@pytest.mark.parametrize(("percent", "delay_ms"), [(0, 800), (49, 997), (99, 1_200)])
def test_jitter_is_a_share_of_the_delay(percent: int, delay_ms: int) -> None:
    backoff = BackoffRule(exponential=True, shortest_ms=1_000, longest_ms=5_000, jitter=0.2)
    assert backoff.delay_ms(1, percent) == delay_ms


def test_dry_run_rules_delay_and_bury_nothing_and_count() -> None:
    dry = frozenset({"backoff", "max_attempts"})
    node = node_with(DOUBLING, max_attempts=2, dry=dry)
    consumer = node.consumer(ready=1)
    node.client().say(b"PUB t\n\0\0\0\1x")
    for attempt in (1, 2, 3):
        [message] = consumer.messages()
        assert message.attempts == attempt
        consumer.say(b"REQ %b 0\n" % message.id)
    assert node.channel().policy_counts == {"backoff, dry run": 3, "max_attempts, dry run": 1}
