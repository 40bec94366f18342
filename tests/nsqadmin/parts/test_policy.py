"""What rules have done, as pages show it: what loses messages first and in red, what is only tried last and in grey."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from nsqadmin.cluster.model import TopicNode
from nsqadmin.cluster.series import SeriesStore
from nsqadmin.diagnosis.findings import diagnose
from nsqadmin.parts.policy import OnNode, limit_in_words, lines_of_channel, lines_of_cluster, lines_of_topic
from nsqadmin.parts.status import PAUSED, PAUSED_ITSELF, Standing
from tests.support.picture import NOW, channel, channel_node, snapshot, topic

LIMITS = Path(__file__).parents[3] / "docs" / "how-to" / "limits.md"


def test_what_loses_messages_is_first_and_red_and_what_is_tried_is_last_and_grey() -> None:
    counts = tuple((cause, 5) for cause in ("buried", "ttl, dropped", "ttl, dry run", "max_bytes, rejected"))
    lines = lines_of_channel(channel(policy_counts=counts))
    assert [(line.cause, line.state.word, line.state.kind) for line in lines] == [
        ("max_bytes, rejected", "Refused", "problem"),
        ("ttl, dropped", "Lost", "problem"),
        ("buried", "Held back", "info"),
        ("ttl, dry run", "Dry run", "muted"),
    ]


def test_what_goes_on_comes_before_what_is_over() -> None:
    it = channel(policy_counts=(("overflow, dropped", 9000), ("ttl, dropped", 7)), policy_recent=(("ttl, dropped", 2),))
    assert [(line.cause, line.recent) for line in lines_of_channel(it)] == [
        ("ttl, dropped", 2),
        ("overflow, dropped", 0),
    ]


def test_the_effects_of_a_cluster_or_a_node_are_those_of_all_topics_and_channels() -> None:
    dropped, refused = ("ttl, dropped", 3), ("max_bytes, rejected", 9)
    rows = (
        channel_node("n1:4151", policy_counts=(dropped,), policy_recent=(("ttl, dropped", 1),)),
        channel_node("n2:4151", policy_counts=(("ttl, dropped", 4),)),
    )
    held = channel(
        *rows, topic="a", name="c", policy_counts=(("ttl, dropped", 7),), policy_recent=(("ttl, dropped", 1),)
    )
    of_topic = TopicNode(node="n2:4151", policy_counts=(refused,))
    picture = snapshot(
        topic(held, name="a"), topic(channel(topic="b"), name="b", nodes=(of_topic,), policy_counts=(refused,))
    )
    assert [(it.topic, it.channel, it.cause, it.count) for it in lines_of_cluster(picture)] == [
        ("a", "c", "ttl, dropped", 7),
        ("b", "", "max_bytes, rejected", 9),
    ]
    assert [(it.topic, it.count, it.recent) for it in lines_of_cluster(picture, "n1:4151")] == [("a", 3, 1)]
    assert [(it.topic, it.count, it.recent) for it in lines_of_cluster(picture, "n2:4151")] == [
        ("b", 9, 0),
        ("a", 4, 0),
    ]
    assert lines_of_cluster(picture, "n3:4151") == ()


def test_each_node_has_its_part_and_a_silent_one_no_last_minutes() -> None:
    rows = (
        channel_node("n1:4151", policy_counts=(("ttl, dropped", 3),), policy_recent=(("ttl, dropped", 1),)),
        channel_node("n2:4151", policy_counts=(("ttl, dropped", 4),)),
        channel_node("n3:4151"),
    )
    (line,) = lines_of_channel(channel(*rows, policy_counts=(("ttl, dropped", 7),), silent=("n2:4151",)))
    assert line.nodes == (OnNode(node="n1:4151", count=3, recent=1), OnNode(node="n2:4151", count=4, recent=None))


def test_a_topic_shows_its_own_and_its_channels() -> None:
    it = topic(channel(policy_counts=(("ttl, dropped", 1),)), policy_counts=(("max_messages, rejected", 2),))
    assert [(line.channel, line.cause) for line in lines_of_topic(it)] == [
        ("", "max_messages, rejected"),
        ("c", "ttl, dropped"),
    ]


def test_a_limit_of_messages_in_flight_is_shown_with_how_long_it_has_been_reached() -> None:
    assert limit_in_words(channel(), NOW) == ""
    row = channel_node("n1:4151", max_in_flight=3)
    assert limit_in_words(channel(row), NOW) == "3"
    full = replace(row, in_flight_full_since=NOW - 125)
    assert limit_in_words(channel(full), NOW) == "3; reached for 2m 5s"
    three = full, channel_node("n2:4151", max_in_flight=3), channel_node("n3:4151", max_in_flight=3)
    words = "3 on each node, up to 9 on these three"
    assert limit_in_words(channel(*three), NOW) == f"{words}; reached for 2m 5s on n1:4151"
    assert limit_in_words(channel(*three, silent=("n1:4151",)), NOW) == words
    all_full = [replace(it, in_flight_full_since=NOW - 125) for it in three]
    assert limit_in_words(channel(*all_full), NOW) == f"{words}; reached for 2m 5s"


def test_every_cause_of_the_documents_is_explained_and_an_unknown_one_is_shown() -> None:
    table = LIMITS.read_text(encoding="utf-8").partition("| Cause |")[2]
    causes = [
        cause
        for line in table.splitlines()
        for cause in re.findall(r"`([^`]+)`", line.split("|")[1] if "|" in line else "")
    ]
    assert len(causes) > 15
    lines = lines_of_channel(channel(policy_counts=(*((cause, 1) for cause in causes), ("of tomorrow, dropped", 1))))
    assert [line.cause for line in lines if not line.text] == ["of tomorrow, dropped"]


def test_a_channel_that_has_paused_itself_is_a_problem_and_one_that_a_person_has_paused_is_not() -> None:
    rows = [channel_node(paused=True, paused_why=why) for why in ("more than 3 messages are buried (max_buried)", "")]
    channels = [channel(row, name=name) for row, name in zip(rows, "ab", strict=True)]
    shown = topic(*channels)
    standing = Standing(diagnose(snapshot(shown), SeriesStore(most_coarse=10)))
    assert [standing.channel(it) for it in channels] == [PAUSED_ITSELF, PAUSED]
    assert standing.whole_topic(shown).word == "1 problem"
