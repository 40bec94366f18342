"""Percentiles of the time from publication to FIN."""

from __future__ import annotations

import random

import pytest

from nsqd.broker.latency import LatencySettings, LatencyWindow, QuantileSummary
from tests.support.node import Node

TARGETS = (0.99, 0.95, 0.5)
MILLISECOND = 1_000_000


def summary_of(values: list[float], targets: tuple[float, ...] = TARGETS) -> QuantileSummary:
    summary = QuantileSummary(targets)
    for value in values:
        summary.add(value)
    return summary


def test_nothing_is_zero() -> None:
    assert QuantileSummary(TARGETS).quantile(0.5) == 0.0


@pytest.mark.parametrize("target", TARGETS)
def test_of_three_samples_every_percentile_is_the_largest_as_in_nsq(target: float) -> None:
    assert summary_of([1.0, 3.0, 2.0]).quantile(target) == 3.0


def test_the_median_of_eight_is_the_sixth_as_in_nsq() -> None:
    assert summary_of([float(n) for n in range(1, 9)]).quantile(0.5) == 6.0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("target", TARGETS)
def test_ranks_are_right_within_the_error(seed: int, target: float) -> None:
    source = random.Random(seed)
    values = [source.lognormvariate(0, 2) for _ in range(20_000)]
    answer = summary_of(values).quantile(target)
    rank = sum(value <= answer for value in values) / len(values)
    assert abs(rank - target) < 0.03


def test_memory_stays_small() -> None:
    source = random.Random(7)
    summary = summary_of([source.random() for _ in range(100_000)])
    assert len(summary) == 100_000
    assert len(summary._entries) < 2_000


def test_the_hundredth_percentile_alone_works() -> None:
    assert summary_of([float(n) for n in range(2_000)], (1.0,)).quantile(1.0) > 1_900


def test_a_window_forgets() -> None:
    latency = LatencyWindow(LatencySettings((0.5,), window=60.0), now=0.0)
    latency.add(5.0, now=1.0)
    assert latency.snapshot(now=29.0).count == 1
    assert latency.snapshot(now=59.0).count == 1
    assert latency.snapshot(now=61.0).count == 0
    latency.add(7.0, now=100_000.0)
    assert latency.snapshot(now=100_000.0).percentiles == ((0.5, 7.0),)


def test_a_channel_and_its_topic_tell_how_long_messages_took() -> None:
    node = Node(latency=LatencySettings((0.99, 0.5), window=600.0))
    consumer = node.consumer(ready=10)
    publisher = node.client()
    for _ in range(4):
        publisher.ask(b"PUB t\n\0\0\0\1a")
    node.now += 0.25
    node.broker.turn.now, node.broker.turn.timestamp = node.now, node._timestamp()
    for message in consumer.messages():
        consumer.say(b"FIN %b\n" % message.id)
    assert node.channel().e2e_processing_latency.percentiles == ((0.99, 250 * MILLISECOND), (0.5, 250 * MILLISECOND))
    assert node.topic().e2e_processing_latency.count == 4


def test_nobody_measures_where_nobody_asked() -> None:
    node = Node()
    node.consumer()
    assert node.channel().e2e_processing_latency.percentiles is None
