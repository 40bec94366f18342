"""The table of measures: a number of a topic or channel is shown wherever its field says."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from nsqcommon.prometheus import exposition
from nsqd.broker import stats
from nsqd.broker.stats_records import BrokerSnapshot, ChannelSnapshot, Json, Measure, TopicSnapshot, measures_of
from nsqd.stats.json import stats_json
from nsqd.stats.memory import MemorySnapshot
from nsqd.stats.prometheus import nsqd_metrics
from nsqd.stats.statsd import StatsdLines
from nsqd.stats.text import stats_text
from tests.nsqd.broker.grouping import Grouped
from tests.support.node import Node

MEMORY = MemorySnapshot(heap_objects=1, heap_in_use_bytes=1, gc_total_runs=1)
NUMBER = 4321
OF_CHANNELS = measures_of(ChannelSnapshot)
OF_TOPICS = measures_of(TopicSnapshot)


@pytest.fixture(scope="module")
def node() -> Node:
    node = Node()
    node.broker.topic("t").channel("c")
    return node


def with_number(node: Node, name: str, *, of_topic: bool) -> BrokerSnapshot:
    """Return the node's figures, with NUMBER as one number of its topic or channel, and 0 everywhere else."""
    snapshot = stats.snapshot(node.broker)
    assert snapshot.topics is not None
    (topic,) = snapshot.topics
    changed: dict[str, Any] = {name: NUMBER}
    if not of_topic:
        changed = {"channels": [replace(topic.channels[0], **changed)]}
    return replace(snapshot, topics=[replace(topic, **changed)])


def check(node: Node, name: str, it: Measure, *, of_topic: bool) -> None:
    snapshot = with_number(node, name, of_topic=of_topic)
    assert snapshot.topics is not None
    (topic,) = json.loads(b"".join(stats_json(snapshot, None, version="1")))["topics"]
    assert (topic if of_topic else topic["channels"][0]).get(name) == (None if it.json is Json.NEVER else NUMBER)
    metrics = exposition(
        nsqd_metrics(node.broker, snapshot.topics, MEMORY, waiting=0, policy_error="", policy_is_copy=False)
    ).decode()
    kind, labels = ("topic", '{topic="t"}') if of_topic else ("channel", '{topic="t",channel="c"}')
    metric = f"nsqd_{kind}_{it.metric}{'_total' if it.is_counter else ''}{labels} {NUMBER}\n"
    assert (metric in metrics) == bool(it.metric)
    pushed = list(StatsdLines("", exclude_ephemeral=False).lines(snapshot, None))
    prefix = "topic.t." if of_topic else "topic.t.channel.c."
    line = f"{prefix}{it.statsd or name}:{NUMBER}|{'c' if it.is_counter else 'g'}\n"
    assert (line in pushed) == (it.statsd != "")


@pytest.mark.parametrize("name", OF_CHANNELS)
def test_a_number_of_a_channel_is_shown_where_its_field_says(node: Node, name: str) -> None:
    check(node, name, OF_CHANNELS[name], of_topic=False)


@pytest.mark.parametrize(("ago", "seconds"), [(None, "0"), (2_500_000_000, "2.5")])
def test_the_time_for_which_a_limit_is_reached_is_a_metric(node: Node, ago: int | None, seconds: str) -> None:
    def metrics(**numbers: Any) -> str:
        (topic,) = stats.snapshot(node.broker).topics or ()
        topics = [replace(topic, channels=[replace(topic.channels[0], **numbers)])]
        made = nsqd_metrics(node.broker, topics, MEMORY, waiting=0, policy_error="", policy_is_copy=False)
        return exposition(made).decode()

    since = None if ago is None else node.broker.turn.timestamp - ago
    line = f'nsqd_channel_in_flight_full_seconds{{topic="t",channel="c"}} {seconds}\n'
    assert line in metrics(max_in_flight=3, in_flight_full_since=since)
    assert "nsqd_channel_in_flight_full_seconds{" not in metrics()


def outputs(it: Grouped) -> str:
    """Return what a push to statsd, /metrics and both forms of /stats say of the channel."""
    snapshot = stats.snapshot(it.node.broker)
    topics = snapshot.topics or ()
    metrics = exposition(nsqd_metrics(it.node.broker, topics, MEMORY, waiting=0, policy_error="", policy_is_copy=False))
    text = stats_text(snapshot, None, version="1", timestamp=it.node.broker.turn.timestamp)
    pushed = StatsdLines("", exclude_ephemeral=False).lines(snapshot, None)
    samples = [line for line in metrics.decode().splitlines() if not line.startswith("#")]
    return "\n".join([b"".join(stats_json(snapshot, None, version="1")).decode(), *samples, *text, *pushed])


def test_held_messages_and_groups_are_shown_of_channels_with_such_rules_only() -> None:
    it = Grouped(order="group", max_held=2)
    consumer = it.consumer()
    it.publish("a1 a2 b1 a3 b2 b3")
    shown = outputs(it)
    assert it.got(consumer) == "a1 b1"
    since = it.node.broker.turn.timestamp
    assert '"held_count":2,"group_count":2' in shown
    assert f'"held_full_since":{since}' in shown
    assert " held: 2, full for 0s groups: 2" in shown
    assert 'nsqd_channel_held{topic="t",channel="c"} 2' in shown
    assert 'nsqd_channel_groups{topic="t",channel="c"} 2' in shown
    it.node.pass_time(2.5)
    assert 'nsqd_channel_held_full_seconds{topic="t",channel="c"} 2.5' in outputs(it)
    assert it.drain(consumer, "a1 b1") == "a2 b2 a3 b3"
    shown = outputs(it)
    assert 'nsqd_channel_held_full_seconds{topic="t",channel="c"} 0' in shown
    assert "topic.t.channel.c.held_count:0|g" in shown  # a gauge of statsd falls to 0 again
    assert " held: 0 groups: 0" in shown
    assert "held_full_since" not in shown
    it.follow()
    assert "held" not in outputs(it)
    assert "group" not in outputs(it)


def test_messages_that_rules_have_left_held_are_shown_until_they_are_delivered() -> None:
    it = Grouped(order="group")
    consumer = it.consumer(ready=1)
    it.publish("a1 a2 a3")
    it.node.consumer(channel="c", ready=1)
    assert '"held_count":2,"group_count":1' in outputs(it)
    it.follow()
    assert it.real.held_count
    it.drain(consumer, it.got(consumer))
    assert "group_count" not in outputs(it)


@pytest.mark.parametrize("name", OF_TOPICS)
def test_a_number_of_a_topic_is_shown_where_its_field_says(node: Node, name: str) -> None:
    check(node, name, OF_TOPICS[name], of_topic=True)


def test_what_is_positional_is_read_from_the_broker(node: Node) -> None:
    channel = node.broker.topic("t").channel("c")
    channel.requeue_count, channel.timeout_count, channel.buried_queue.kick_count = 2, 3, 4
    (topic,) = stats.snapshot(node.broker).topics or ()
    (found,) = topic.channels
    assert (found.requeue_count, found.timeout_count, found.kick_count) == (2, 3, 4)
    assert all(it.name in OF_CHANNELS for it in fields(ChannelSnapshot) if not it.kw_only)


def test_what_is_not_positional_is_computed() -> None:
    """Otherwise nothing fills it. A new number that the broker counts has to be positional: `kw_only=False`."""
    lengths = {"in_flight_count", "deferred_count", "buried_count", "client_count"}
    by_locality = {"zone_local_msg_count", "region_local_msg_count", "global_msg_count"}
    assert {it.name for it in fields(ChannelSnapshot) if it.kw_only} & OF_CHANNELS.keys() == lengths | by_locality
    assert not {it.name for it in fields(TopicSnapshot) if it.kw_only} & OF_TOPICS.keys()
