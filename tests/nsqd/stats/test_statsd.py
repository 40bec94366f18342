"""Metrics for statsd: names, kinds, order, and how lines are packed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsqd.broker import stats
from nsqd.broker.latency import LatencySettings
from nsqd.stats.memory import MemorySnapshot
from nsqd.stats.statsd import StatsdLines, full_prefix, packets
from tests.support.node import Node

MEMORY = MemorySnapshot(heap_objects=1, heap_in_use_bytes=2, gc_total_runs=3)


def lines_of(node: Node, statsd: StatsdLines, memory: MemorySnapshot | None = None) -> list[str]:
    return [line.rstrip("\n") for line in statsd.lines(stats.snapshot(node.broker, clients=False), memory)]


@pytest.fixture
def node() -> Node:
    node = Node(latency=LatencySettings((0.95, 0.995), window=600.0))
    consumer = node.consumer("a", "c", ready=1)
    node.consumer("a", "e#ephemeral")
    publisher = node.client()
    for _ in range(3):
        publisher.ask(b"PUB a\n\0\0\0\5hello")
    publisher.ask(b"PUB b#ephemeral\n\0\0\0\1x")
    consumer.hear()
    return node


def test_every_line_in_nsqs_order(node: Node) -> None:
    told = lines_of(node, StatsdLines("nsq.h_1.", exclude_ephemeral=True), MEMORY)
    assert told == [
        "nsq.h_1.topic.a.message_count:3|c",
        "nsq.h_1.topic.a.message_bytes:15|c",
        "nsq.h_1.topic.a.depth:0|g",
        "nsq.h_1.topic.a.backend_depth:0|g",
        "nsq.h_1.topic.a.e2e_processing_latency_95:0|g",
        "nsq.h_1.topic.a.e2e_processing_latency_100:0|g",
        "nsq.h_1.topic.a.channel.c.message_count:3|c",
        "nsq.h_1.topic.a.channel.c.depth:2|g",
        "nsq.h_1.topic.a.channel.c.backend_depth:0|g",
        "nsq.h_1.topic.a.channel.c.in_flight_count:1|g",
        "nsq.h_1.topic.a.channel.c.deferred_count:0|g",
        "nsq.h_1.topic.a.channel.c.requeue_count:0|c",
        "nsq.h_1.topic.a.channel.c.timeout_count:0|c",
        "nsq.h_1.topic.a.channel.c.clients:1|g",
        "nsq.h_1.topic.a.channel.c.e2e_processing_latency_95:0|g",
        "nsq.h_1.topic.a.channel.c.e2e_processing_latency_100:0|g",
        "nsq.h_1.mem.heap_objects:1|g",
        "nsq.h_1.mem.heap_idle_bytes:0|g",
        "nsq.h_1.mem.heap_in_use_bytes:2|g",
        "nsq.h_1.mem.heap_released_bytes:0|g",
        "nsq.h_1.mem.gc_pause_usec_100:0|g",
        "nsq.h_1.mem.gc_pause_usec_99:0|g",
        "nsq.h_1.mem.gc_pause_usec_95:0|g",
        "nsq.h_1.mem.next_gc_bytes:0|g",
        "nsq.h_1.mem.gc_runs:3|c",
    ]


def test_what_is_ephemeral_is_told_unless_it_is_excluded(node: Node) -> None:
    told = "\n".join(lines_of(node, StatsdLines("", exclude_ephemeral=False)))
    assert "topic.b#ephemeral.depth:1|g" in told
    assert "topic.a.channel.e#ephemeral.depth:" in told


def test_counters_tell_what_came_since(node: Node) -> None:
    statsd = StatsdLines("", exclude_ephemeral=True)
    assert lines_of(node, statsd)[0] == "topic.a.message_count:3|c"
    node.client().ask(b"PUB a\n\0\0\0\5hello")
    assert lines_of(node, statsd)[:2] == ["topic.a.message_count:1|c", "topic.a.message_bytes:5|c"]


def test_buried_messages_are_told_once_there_are_any(node: Node) -> None:
    shown = stats.snapshot(node.broker, clients=False)
    (topic,) = [it for it in shown.topics or () if it.topic_name == "a"]
    channel = replace(topic.channels[0], channel_name="c", buried_count=2, bury_count=5, kick_count=2, discard_count=1)
    told = StatsdLines("", exclude_ephemeral=True).lines(
        replace(shown, topics=[replace(topic, channels=[channel])]), None
    )
    of_channel = [line.rstrip("\n") for line in told if ".channel.c." in line]
    assert of_channel[8:-2] == [
        "topic.a.channel.c.buried_count:2|g",
        "topic.a.channel.c.bury_count:5|c",
        "topic.a.channel.c.kick_count:2|c",
        "topic.a.channel.c.discard_count:1|c",
    ]


def test_a_topic_that_was_made_anew_counts_from_zero(node: Node) -> None:
    statsd = StatsdLines("", exclude_ephemeral=True)
    lines_of(node, statsd)
    node.broker.delete_topic("a")
    node.client().ask(b"PUB a\n\0\0\0\5hello")
    assert lines_of(node, statsd)[0] == "topic.a.message_count:1|c"


@pytest.mark.parametrize(
    ("prefix", "full"),
    [
        ("nsq.%s", "nsq.127_0_0_1_4151."),
        ("my.%s.x%s", "my.127_0_0_1_4151.x127_0_0_1_4151."),
        ("dotted.", "dotted."),
        ("", ""),
    ],
)
def test_the_prefix_names_this_node(prefix: str, full: str) -> None:
    assert full_prefix(prefix, "127.0.0.1", 4151) == full


def test_packets_hold_whole_lines() -> None:
    assert packets(["aaaa\n", "bbbb\n", "cc\n"], 10) == [b"aaaa\nbbbb\n", b"cc\n"]


def test_a_line_that_is_too_long_goes_alone() -> None:
    assert packets(["a\n", "b" * 20 + "\n", "c\n"], 10) == [b"a\n", b"b" * 20 + b"\n", b"c\n"]


def test_nothing_to_say_is_no_packet() -> None:
    assert packets([], 508) == []
