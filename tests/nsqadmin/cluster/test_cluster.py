"""Nodes' answers are merged into one picture: rates, sums, ages, restarts, odd answers."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.cluster.merge import Directory, Merger, drain_time, merged_latency, version_key
from nsqadmin.cluster.model import Latency, Paused, Percentile, Rates
from nsqadmin.cluster.node_stats import NodeAnswer, read_stats
from nsqadmin.cluster.sane import NotUnderstood
from nsqadmin.upstream.discovery import Announced, merged_nodes, producers_in, read_info
from nsqadmin.upstream.slices import at_once
from tests.support.picture import channel


def producers(document: Any) -> list[Announced]:
    return at_once(producers_in(document, most=1000)).producers


def stats(*, start_time: int = 1, **channel: Any) -> dict[str, Any]:
    described = {"channel_name": "c", "depth": 0, "message_count": 0, "clients": [], "paused": False, **channel}
    topic = {"topic_name": "t", "message_count": described["message_count"], "channels": [described]}
    return {"version": "1.3.0", "health": "OK", "start_time": start_time, "topics": [topic]}


def read(document: Any, *, at: float = 0.0, before: NodeAnswer | None = None, node: str = "n1:4151") -> NodeAnswer:
    return read_stats(node, document, at=at, before=before)


def test_rates_are_counted_between_two_answers() -> None:
    first = read(stats(message_count=100, depth=10, requeue_count=1))
    second = read(stats(message_count=150, depth=20, in_flight_count=5, requeue_count=11), at=10.0, before=first)
    rates = second.topics["t"].channels["c"].rates
    nothing_else = {"dropped": 0.0, "expired": 0.0, "buried": 0.0, "removed": 0.0}
    assert rates == Rates(incoming=5.0, finished=3.5, requeued=1.0, timed_out=0.0, failed=1.0, **nothing_else)
    assert second.topics["t"].rates.incoming == 5.0


@pytest.mark.parametrize("gone", [
    {"buried_count": 10},
    {"policy_counts": {"ttl, dropped": 10}},
    {"policy_counts": {"overflow, dropped": 4, "not on disk, dropped": 6}},
])  # fmt: skip
def test_what_is_buried_or_dropped_was_not_finished(gone: dict[str, Any]) -> None:
    first = read(stats(message_count=100, depth=10))
    second = read(stats(message_count=100, **gone), at=10.0, before=first)
    assert second.topics["t"].channels["c"].rates.finished == 0.0


def test_what_a_rule_would_drop_or_has_buried_is_not_taken_off_twice() -> None:
    first = read(stats(message_count=100, depth=20))
    counts = {"ttl, buried": 10, "overflow, dry run": 10}
    second = read(stats(message_count=100, buried_count=10, policy_counts=counts), at=10.0, before=first)
    assert second.topics["t"].channels["c"].rates.finished == 1.0


def test_the_first_answer_has_no_rates() -> None:
    assert read(stats(message_count=100)).topics["t"].channels["c"].rates.incoming is None


def test_a_restarted_node_has_no_negative_rates() -> None:
    first = read(stats(message_count=100))
    second = read(stats(message_count=3, start_time=2), at=10.0, before=first)
    assert second.restarted
    assert second.topics["t"].channels["c"].rates.incoming is None


def test_a_channel_that_was_made_again_has_none_either() -> None:
    first = read(stats(message_count=100))
    second = read(stats(message_count=3), at=10.0, before=first)
    assert second.topics["t"].channels["c"].rates.incoming is None


def test_what_says_the_same_again_is_the_same_object() -> None:
    first = read(stats(message_count=100))
    second = read(stats(message_count=100), at=5.0, before=first)
    third = read(stats(message_count=100), at=10.0, before=second)
    assert second.topics["t"].channels["c"].rates.incoming == 0.0
    assert third.topics["t"] is second.topics["t"]


def test_clients_have_rates_of_their_own() -> None:
    def with_client(finished: int) -> dict[str, Any]:
        return stats(clients=[{"remote_address": "a:1", "connect_ts": 5, "finish_count": finished, "ready_count": 2}])

    second = read(with_client(70), at=10.0, before=read(with_client(50)))
    clients = second.topics["t"].channels["c"].row.clients
    assert clients is not None
    assert (clients[0].finish_rate, clients[0].ready_count) == (2.0, 2)


@pytest.mark.parametrize(
    "document", [None, [], {"topics": [1]}, {"topics": [{}]}, {"topics": [{"topic_name": "t", "channels": 3}]}]
)
def test_what_is_no_answer_is_refused(document: Any) -> None:
    with pytest.raises(NotUnderstood):
        read(document)


def test_a_foreign_nodes_nulls_are_nothing() -> None:
    topic = {"topic_name": "t", "channels": None, "e2e_processing_latency": None, "depth": None}
    answer = read({"topics": [topic], "producers": None})
    assert answer.topics["t"].row.depth == 0
    assert read({"topics": None}).topics == {}


def test_the_envelope_of_old_nodes_is_opened() -> None:
    assert "t" in read({"status_code": 200, "data": stats()}).topics


def merged(*answers: NodeAnswer, directory: Directory | None = None) -> Any:
    return Merger().merge(answers, directory or Directory(), now=100.0)


def test_sums_over_nodes() -> None:
    one = read(stats(depth=3, paused=True), node="n1:1")
    two = read(stats(depth=4), node="n2:1")
    (topic,) = merged(one, two)
    channel = topic.channels[0]
    assert (channel.depth, channel.paused, [row.node for row in channel.nodes]) == (7, Paused.PARTLY, ["n1:1", "n2:1"])


def test_topics_that_are_only_registered_are_shown_as_inactive() -> None:
    directory = Directory(topics={"old": ("l1:1",)}, channels={"old": ("c",), "t": ("c",)})
    old, active = merged(read(stats()), directory=directory)
    assert (old.name, old.is_inactive, old.registered_channels) == ("old", True, ("c",))
    assert not active.registered_channels


def test_tombstones_are_marked() -> None:
    (topic,) = merged(read(stats()), directory=Directory(tombstones=frozenset({("t", "n1:4151")})))
    assert topic.nodes[0].tombstoned


def test_a_topic_of_which_nothing_new_is_said_is_the_same_object() -> None:
    merger = Merger()
    first = read(stats(message_count=5))
    second = read(stats(message_count=5), at=5.0, before=first)
    third = read(stats(message_count=5), at=10.0, before=second)
    before = merger.merge([second], Directory(), now=5.0)
    assert merger.merge([third], Directory(), now=10.0)[0] is before[0]


def test_the_age_of_the_oldest_message_is_told_from_our_samples() -> None:
    merger = Merger()
    answer = None
    for second, (count, depth) in enumerate([(10, 0), (20, 10), (30, 20), (40, 25)]):
        answer = read(stats(message_count=count, depth=depth), at=float(second), before=answer)
        (topic,) = merger.merge([answer], Directory(), now=float(second))
    # 15 were taken: the next one is the 16th, which came between the first sample (10) and the second (20).
    assert (topic.channels[0].oldest_age, topic.channels[0].oldest_is_older) == (3.0, False)


def test_a_backlog_from_before_us_is_at_least_as_old_as_we_watch() -> None:
    merger = Merger()
    first = read(stats(message_count=50, depth=40))
    merger.merge([first], Directory(), now=0.0)
    second = read(stats(message_count=50, depth=30), at=60.0, before=first)
    (topic,) = merger.merge([second], Directory(), now=60.0)
    assert (topic.channels[0].oldest_age, topic.channels[0].oldest_is_older) == (60.0, True)


def test_an_idle_channel_that_gets_a_message_has_a_young_one() -> None:
    merger = Merger()
    answer = None
    for second, (count, depth) in enumerate([(10, 0)] * 50 + [(12, 2)]):
        answer = read(stats(message_count=count, depth=depth), at=float(second), before=answer)
        (topic,) = merger.merge([answer], Directory(), now=float(second))
    assert topic.channels[0].oldest_age == 1.0


@pytest.mark.parametrize(
    ("depth", "growth", "expected"),
    [(0, None, 0.0), (100, -10.0, 10.0), (100, 0.0, None), (100, 5.0, None), (100, None, None)],
)
def test_drain_time(depth: int, growth: float | None, expected: float | None) -> None:
    assert drain_time(depth, growth) == expected


def test_latencies_without_a_sample_are_unknown() -> None:
    def of(count: int, value: int) -> dict[str, Any]:
        return {"count": count, "percentiles": [{"quantile": 0.99, "value": value}]}

    def latency(*parts: dict[str, Any]) -> Latency | None:
        answers = [read(stats(e2e_processing_latency=it), node=f"n{at}:1") for at, it in enumerate(parts)]
        found: Latency | None = merged(*answers)[0].channels[0].latency
        return found

    nothing = latency(of(0, 0), of(0, 0))
    assert nothing is not None
    assert (nothing.count, nothing.percentiles[0].average, nothing.percentiles[0].maximum) == (0, None, None)
    one = latency(of(0, 0), of(7, 300))
    assert one is not None
    assert (one.count, one.percentiles[0].minimum, one.percentiles[0].maximum) == (7, 300.0, 300.0)


def test_latencies_are_merged_as_nsq_does_but_for_the_lowest() -> None:
    def of(value: float, count: int) -> Latency:
        point = Percentile(quantile=0.99, average=value, minimum=value, maximum=value)
        return Latency(count=count, percentiles=(point,))

    merged_one = merged_latency([of(100, 10), None, of(300, 30)])
    assert merged_one is not None
    assert merged_one.count == 40
    (point,) = merged_one.percentiles
    assert (point.average, point.minimum, point.maximum) == (250.0, 100.0, 300.0)


def test_versions_are_compared_as_numbers() -> None:
    assert version_key("1.10.0") > version_key("1.9.9") > version_key("1.0.0-alpha") > version_key("what")


# Nodes


def test_nodes_of_several_nsqlookupds_are_one() -> None:
    producer = {
        "broadcast_address": "n1",
        "tcp_port": 4150,
        "http_port": 4151,
        "hostname": "h",
        "remote_address": "10.0.0.5:1",
        "topics": ["a", "b"],
        "tombstones": [True],
    }
    one = producers({"producers": [producer]})
    two = producers({"producers": [{**producer, "remote_address": "", "topics": ["c"], "tombstones": []}]})
    for _ in range(2):  # merging does not change its input
        (node,) = merged_nodes([("l1:1", one), ("l2:1", two)])
        assert node.remote_addresses == ["l1:1/10.0.0.5:1", "l2:1/N/A"]
    assert node.topics == {"a": True, "b": False, "c": False}
    assert node.address == "n1:4151"


def test_what_nsqlookupds_say_of_a_node_is_merged() -> None:
    node = {"broadcast_address": "n1", "http_port": 4151, "tcp_port": 4150}
    one = producers({"producers": [{**node, "state": "full", "reachable": False, "unreachable": "no such host"}]})
    two = producers({"producers": [{**node, "reachable": False}]})
    (merged,) = merged_nodes([("l1:1", one), ("l2:1", two)])
    assert merged.state == "full"
    assert merged.problems == ["l1:1: no such host", "l2:1: it does not say why"]


@pytest.mark.parametrize("said", [
    {}, {"state": "excellent"}, {"state": ["full"]}, {"state": None}, {"reachable": True}, {"reachable": "no"},
    {"unreachable": "because"},
])  # fmt: skip
def test_a_node_of_which_nothing_sensible_is_said_is_as_any_other(said: dict[str, Any]) -> None:
    (node,) = producers({"producers": [{"broadcast_address": "n1", "http_port": 4151, **said}]})
    assert (node.state, node.unreachable) == ("", "")


def test_ipv6_is_in_brackets() -> None:
    (node,) = producers({"producers": [{"broadcast_address": "::1", "http_port": 4151}]})
    assert node.address == "[::1]:4151"


def test_a_node_that_says_nothing_of_itself_is_what_we_were_told() -> None:
    assert read_info({}, "[::1]:4151").address == "[::1]:4151"
    assert read_info({"broadcast_address": "b", "http_port": 9}, "a:1").address == "b:9"


def test_since_when_a_limit_is_reached_is_told_by_our_clock() -> None:
    full = stats(max_in_flight=3, in_flight_full_since=1_700_000_000 * 10**9)
    row = read_stats("n1:1", full, at=0.0, skew=30.0).topics["t"].channels["c"].row
    assert (row.max_in_flight, row.in_flight_full_since) == (3, 1_700_000_000 - 30.0)
    assert read(stats(max_in_flight=3)).topics["t"].channels["c"].row.in_flight_full_since is None


def test_since_when_no_more_may_be_held_is_told_by_our_clock() -> None:
    full = stats(held_count=50, group_count=3, held_full_since=1_700_000_000 * 10**9)
    row = read_stats("n1:1", full, at=0.0, skew=30.0).topics["t"].channels["c"].row
    assert (row.held_count, row.group_count, row.held_full_since) == (50, 3, 1_700_000_000 - 30.0)
    row = read(stats()).topics["t"].channels["c"].row
    assert (row.held_count, row.group_count, row.held_full_since) == (0, None, None)


def test_when_a_client_last_touched_a_message_is_told_by_our_clock() -> None:
    busy = {"client_id": "a", "touch_count": 7, "last_touch_at": 1_700_000_000 * 10**9}
    row = read_stats("n1:1", stats(clients=[busy, {"client_id": "b"}]), at=0.0, skew=30.0).topics["t"].channels["c"].row
    assert [(it.touch_count, it.last_touch) for it in row.clients or ()] == [(7, 1_700_000_000 - 30.0), (0, None)]


@pytest.mark.parametrize(
    ("numbers", "has_groups"),
    [({}, False), ({"held_count": 0, "group_count": 0}, True), ({"held_count": 2}, True)],
)
def test_a_channel_has_groups_with_rules_about_them_or_while_former_ones_hold_messages(
    numbers: dict[str, int], *, has_groups: bool
) -> None:
    row = read(stats(**numbers)).topics["t"].channels["c"].row
    assert channel(row).has_groups == has_groups
