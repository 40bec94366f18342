"""A node that falls silent makes no number smaller: whatever the cluster, whichever nodes fall silent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.cluster.merge import Directory, Merger, totals_of
from nsqadmin.cluster.model import Channel, Health, Lookupd, Node, Snapshot, Topic, TopicNode, Totals
from nsqadmin.cluster.node_stats import NodeAnswer, read_stats, silenced
from nsqadmin.parts.silence import is_all_unknown, unknown_part, unless_unknown
from tests.support import picture
from tests.support.picture import NOW, channel_node, node, snapshot

COUNTS: Final = ("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count", "client_count")

numbers = st.integers(0, 1000)
channels = st.fixed_dictionaries(
    {
        "channel_name": st.sampled_from("abc"),
        "paused": st.booleans(),
        **{name: numbers for name in COUNTS if name != "client_count"},
        "clients": st.none() | st.lists(st.fixed_dictionaries({"ready_count": numbers}), max_size=2),
        "client_count": numbers,
    }
)
topics = st.fixed_dictionaries(
    {
        "topic_name": st.sampled_from("tu"),
        "depth": numbers,
        "message_count": numbers,
        "channels": st.lists(channels, max_size=3, unique_by=lambda it: it["channel_name"]),
    }
)
nodes = st.lists(st.lists(topics, max_size=2, unique_by=lambda it: it["topic_name"]), min_size=1, max_size=4)


def answers_of(cluster: list[Any]) -> list[NodeAnswer]:
    return [read_stats(f"n{at}:1", {"topics": topics}, at=0.0) for at, topics in enumerate(cluster)]


def merged(answers: list[NodeAnswer]) -> dict[str, Topic]:
    return {topic.name: topic for topic in Merger().merge(answers, Directory(), now=0.0)}


def counts(of: Topic | Channel | Totals) -> list[int]:
    return [getattr(of, name, 0) for name in COUNTS]


@given(nodes, st.data())
def test_no_sum_falls_and_no_row_vanishes_when_nodes_fall_silent(cluster: list[Any], data: st.DataObject) -> None:
    answers = answers_of(cluster)
    silent = data.draw(st.sets(st.sampled_from(range(len(answers)))))
    before = merged(answers)
    after = merged([silenced(it) if at in silent else it for at, it in enumerate(answers)])
    assert after.keys() == before.keys()
    assert counts(totals_of(after.values())) == counts(totals_of(before.values()))
    for name, topic in before.items():
        assert counts(after[name]) == counts(topic)
        assert after[name].silent == tuple(row.node for row in topic.nodes if int(row.node[1]) in silent)
        for channel in topic.channels:
            shown = after[name].channel(channel.name)
            assert shown is not None
            assert counts(shown) == counts(channel)
            assert shown.paused is channel.paused
            assert shown.silent == tuple(row.node for row in channel.nodes if int(row.node[1]) in silent)
            if shown.silent and shown.depth:
                assert shown.drain_time is None


def test_a_topic_with_a_silent_node_is_the_same_object_at_the_next_sweep() -> None:
    document = {"topics": [{"topic_name": "t", "channels": [{"channel_name": "c", "message_count": 5}]}]}
    answer, merger = silenced(read_stats("n1:1", document, at=0.0)), Merger()
    before = merger.merge([answer], Directory(), now=0.0)
    assert silenced(answer) is answer
    assert merger.merge([silenced(answer)], Directory(), now=5.0)[0] is before[0]


def test_rates_of_a_silent_node_are_unknown_and_a_sum_is_what_the_others_do() -> None:
    def answered(node: str, count: int, at: float, before: NodeAnswer | None = None) -> NodeAnswer:
        client = {"remote_address": "a:1", "finish_count": count}
        channel = {"channel_name": "c", "message_count": count, "clients": [client]}
        document = {"topics": [{"topic_name": "t", "message_count": count, "channels": [channel]}]}
        return read_stats(node, document, at=at, before=before)

    one, two = (answered(node, 50, 10.0, answered(node, 0, 0.0)) for node in ("n1:1", "n2:1"))
    (channel,) = merged([one, silenced(two)])["t"].channels
    assert channel.rates.incoming == 5.0
    assert [client.finish_rate for client in channel.clients or ()] == [5.0, None]
    back = answered("n2:1", 100, 20.0, silenced(two))
    assert back.topics["t"].channels["c"].rates.incoming == 5.0


# Sentences that say "nothing"

TEMPLATES: Final = Path(__file__).parents[3] / "nsqadmin" / "web" / "templates"
# These are about this nsqadmin or one request, or name the nodes that they are about.
KNOWN_ANYWAY: Final = frozenset(
    (
        "No nsqd is known, and ",
        "No nsqd has been found",
        "Nothing on the nodes that answer",
        "Nothing is buried here",  # without missing nodes only
        "No messages",  # of a topic's log: what was not read is listed above
        "No topic on this node",  # if it answers
        "Nothing matches",  # the log of this nsqadmin, or with what is unknown beside it
        "Nothing matches “",
    )
)


def nodes_of(*answers: bool | None, **fields: Any) -> tuple[Node, ...]:
    """Return nodes that answer, don't any more, or have never answered (None)."""
    healths = {True: Health.OK, False: Health.DOWN, None: Health.NEVER}
    return tuple(
        node(f"n{at}:4151", health=healths[it], answered_at=None if it is None else NOW - 60, **fields)
        for at, it in enumerate(answers, 1)
    )


def on_the_first(*silent: str) -> Topic:
    rows = (TopicNode(node="n1:4151"),)
    it = picture.channel(channel_node("n1:4151"), silent=silent)
    return picture.topic(it, nodes=rows, silent=silent)


@pytest.mark.parametrize(
    ("answers", "everything", "topic_on_first"),
    [
        ((True, True), "", ""),
        ((True, False), "Unknown: 1 of 2 nodes is silent.", ""),  # it had not this topic
        ((True, None), "Unknown: 1 of 2 nodes is silent.", "Unknown: 1 of 2 nodes is silent."),
        ((False, True), "Unknown: 1 of 2 nodes is silent.", "Unknown: the only node is silent."),
        ((False, False, True), "Unknown: 2 of 3 nodes are silent.", "Unknown: the only node is silent."),
        ((False, None), "Unknown: all 2 nodes are silent.", "Unknown: all 2 nodes are silent."),
    ],
)
def test_nothing_is_only_said_when_every_node_has_answered(
    answers: tuple[bool | None, ...], everything: str, topic_on_first: str
) -> None:
    it = on_the_first(*(() if answers[0] else ("n1:4151",)))
    shown = snapshot(it, nodes=nodes_of(*answers))
    assert unless_unknown(shown, "No messages wait.") == (everything or "No messages wait.")
    assert unknown_part(shown, it) == unknown_part(shown, it.channels[0]) == topic_on_first
    assert is_all_unknown(shown) == (True not in answers)


def test_without_the_nsqlookupds_nobody_knows_all_nodes() -> None:
    shown = snapshot(lookupds=(Lookupd(address="l1:4161", health=Health.DOWN),))
    assert unknown_part(shown) == "Unknown: no nsqlookupd answers, and only they know all nodes."
    assert unknown_part(Snapshot(index=0, taken_at=0.0, interval=5.0, has_lookupds=False)).startswith("Unknown")


def test_a_node_whose_messages_another_has_taken_over_leaves_nothing_unknown() -> None:
    (lost,) = nodes_of(False, successor="n2:4151")
    assert unknown_part(snapshot(nodes=(lost, node("n2:4151")))) == ""


def test_every_empty_list_of_a_page_says_so_only_if_that_is_known() -> None:
    said = [
        (path.name, sentence)
        for path in sorted(TEMPLATES.rglob("*.html"))
        for sentence in re.findall(r"ui\.empty\(\"((?:No|Nothing|None|On no)\b[^\"]*)\"", path.read_text())
    ]
    assert said
    assert [it for it in said if it[1] not in KNOWN_ANYWAY] == []
