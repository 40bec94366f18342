"""How much of what rules have done was done lately, whatever a node tells."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.cluster.merge import Directory, Merger
from nsqadmin.cluster.model import Counts
from nsqadmin.cluster.node_stats import NodeAnswer, read_stats, silenced
from nsqadmin.cluster.policy_counts import LATELY, Reading, counted_lately
from nsqadmin.cluster.sane import NotUnderstood


def told(counts: Any, *, of_topic: Any = None) -> dict[str, Any]:
    channel = {"channel_name": "c", "clients": [], "policy_counts": counts}
    return {"start_time": 1, "topics": [{"topic_name": "t", "channels": [channel], "policy_counts": of_topic}]}


def read(document: Any, at: float, before: NodeAnswer | None = None) -> NodeAnswer:
    return read_stats("n1:4151", document, at=at, before=before)


def recent(answer: NodeAnswer) -> Counts:
    return answer.topics["t"].channels["c"].row.policy_recent


def test_what_was_done_before_anybody_looked_is_not_recent() -> None:
    first = read(told({"ttl, dropped": 7}), 0.0)
    assert recent(first) == ()
    assert recent(read(told({"ttl, dropped": 9}), 5.0, first)) == (("ttl, dropped", 2),)


def test_a_cause_that_appears_has_been_counted_since_the_answer_before() -> None:
    second = read(told({"overflow, dropped": 4}), 5.0, read(told(None), 0.0))
    assert recent(second) == (("overflow, dropped", 4),)


def test_what_goes_on_is_counted_over_five_minutes_and_what_is_over_is_forgotten() -> None:
    answer = read(told({"ttl, dropped": 0}), 0.0)
    for second in range(5, 601, 5):  # one message a second, for ten minutes
        answer = read(
            told({"ttl, dropped": second}, of_topic={"max_messages, rejected": second}), float(second), answer
        )
    ((_, count),) = recent(answer)
    assert LATELY - 65 < count <= LATELY
    (of_topic,) = answer.topics["t"].row.policy_recent
    assert of_topic == ("max_messages, rejected", count)
    last = told({"ttl, dropped": 600}, of_topic={"max_messages, rejected": 600})
    for at in range(605, 1200, 5):  # and then none: the node's answer is the same each time
        answer = read(last, float(at), answer)
    assert (recent(answer), answer.topics["t"].row.policy_recent) == ((), ())
    assert read(last, 1205.0, answer).topics["t"] is answer.topics["t"]  # which costs nothing any more


def test_after_a_long_silence_everything_since_the_last_answer_is_news() -> None:
    first = read(told({"ttl, dropped": 7}), 0.0)
    assert recent(read(told({"ttl, dropped": 9}), 4000.0, first)) == (("ttl, dropped", 2),)


def test_counts_of_a_topic_that_was_created_again_begin_at_nothing() -> None:
    answer = read(told({"ttl, dropped": 9}), 5.0, read(told({"ttl, dropped": 8}), 0.0))
    assert recent(read(told({"ttl, dropped": 3}), 10.0, answer)) == (("ttl, dropped", 3),)


def test_readings_are_few() -> None:
    readings: tuple[Reading, ...] = ()
    for at in range(10_000):
        readings, _ = counted_lately(readings, Reading(float(at), (("ttl, dropped", at + 1),)))
        assert len(readings) <= LATELY / 60 + 1


def test_a_silent_node_says_nothing_about_the_last_minutes() -> None:
    answer = read(told({"ttl, dropped": 9}), 5.0, read(told({"ttl, dropped": 8}), 0.0))
    (topic,) = Merger().merge([silenced(answer)], Directory(), now=6.0)
    (channel,) = topic.channels
    assert (channel.policy_counts, channel.policy_recent) == ((("ttl, dropped", 9),), ())


def test_counts_of_nodes_add_up() -> None:
    answers = [
        read_stats(name, told({"ttl, dropped": 9}), at=5.0, before=read_stats(name, told({"ttl, dropped": 8}), at=0.0))
        for name in ("n1:4151", "n2:4151")
    ]
    (topic,) = Merger().merge(answers, Directory(), now=6.0)
    assert topic.channels[0].policy_counts == (("ttl, dropped", 18),)
    assert topic.channels[0].policy_recent == (("ttl, dropped", 2),)


@pytest.mark.parametrize("odd", [[1], "x", {"a": "b"}, {str(n): n for n in range(200)}])
def test_odd_counts_fail_the_node_and_nothing_else(odd: Any) -> None:
    with pytest.raises(NotUnderstood):
        read(told(odd), 0.0)
