"""The table of measures: a number that nsqd tells reaches the model, and whatever its field names."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.cluster.measures import ChannelNumbers, Measure, TopicNumbers, measures_of
from nsqadmin.cluster.merge import Directory, Merger
from nsqadmin.cluster.model import Channel, ChannelNode, Topic, TopicNode
from nsqadmin.cluster.node_stats import read_stats
from nsqadmin.cluster.recording import from_json, members_of, to_json
from nsqadmin.http.live_cells import cells_of
from nsqadmin.http.metrics import topic_metrics
from nsqadmin.parts.glossary import GLOSSARY
from nsqadmin.parts.tables import KEYS, number_columns
from tests.support.picture import channel, channel_node, snapshot


def merged(topic: dict[str, Any], channel: dict[str, Any]) -> Topic:
    """Return what two nodes tell that have these numbers."""
    told = {"topic_name": "t", **topic, "channels": [{"channel_name": "c", "clients": [], **channel}]}
    document = {"version": "1.3.0", "start_time": 1, "topics": [told]}
    answers = [read_stats(node, document, at=0.0) for node in ("n1:4151", "n2:4151")]
    (found,) = Merger().merge(answers, Directory(), now=0.0)
    return found


def names(measure: Measure) -> str:
    return measure.name


@pytest.mark.parametrize("it", measures_of(Channel), ids=names)
def test_a_number_of_a_channel_goes_all_the_way(it: Measure) -> None:
    topic = merged({}, {it.key: 7})
    (found,) = topic.channels
    assert [it.read(row) for row in found.nodes] == [7, 7]
    assert it.read(found) == 14
    cells = cells_of(snapshot(topic), "channel:t/c")
    assert cells[f"topics/t/c/{it.cell}"] == 14
    assert cells[f"topics/t/c@n2:4151/{it.cell}"] == 7
    samples = {metric.name: metric.samples for metric in topic_metrics([topic])}
    assert not it.metric or [sample.value for sample in samples[f"nsq_channel_{it.metric}"]] == [14.0]
    assert (it.name in map(names, number_columns(found))) == bool(it.column)
    assert not it.column or [KEYS["channel-nodes"][it.column](row) for row in found.nodes] == [7, 7]


@pytest.mark.parametrize("it", measures_of(Topic), ids=names)
def test_a_number_of_a_topic_goes_all_the_way(it: Measure) -> None:
    topic = merged({it.key: 7}, {})
    assert [it.read(row) for row in topic.nodes] == [7, 7]
    assert it.read(topic) == 14
    assert cells_of(snapshot(topic), "topic:t").get(f"topics/t/{it.cell}") == (14 if it.is_live else None)
    samples = {metric.name: metric.samples for metric in topic_metrics([topic])}
    assert not it.metric or [sample.value for sample in samples[f"nsq_topic_{it.metric}"]] == [14.0]
    assert not it.column or [KEYS["topic-nodes"][it.column](row) for row in topic.nodes] == [7, 7]


def test_what_only_a_node_has_is_read_and_not_added_up() -> None:
    (found,) = merged({}, {"zone_local_msg_count": 7}).channels
    assert [row.zone_local_count for row in found.nodes] == [7, 7]
    assert "zone_local_count" not in to_json(found)


@pytest.mark.parametrize("record", [Channel, Topic])
def test_each_word_is_in_the_glossary_and_no_two_measures_have_the_same_place(
    record: type[ChannelNumbers | TopicNumbers],
) -> None:
    measures = measures_of(record)
    assert all(it.word in GLOSSARY for it in measures if it.word)
    for places in (
        [it.key for it in measures],
        [it.cell for it in measures],
        [it.column for it in measures if it.column],
    ):
        assert len(set(places)) == len(places)


def test_a_column_of_ours_is_there_where_it_is_not_0() -> None:
    assert "Buried" not in [it.label for it in number_columns(channel(channel_node()))]
    labels = [it.label for it in number_columns(channel(channel_node(buried_count=1)))]
    assert labels.index("Deferred") + 1 == labels.index("Buried") == labels.index("Requeued") - 1


def test_in_json_the_numbers_come_after_the_names() -> None:
    assert members_of(TopicNode)[:6] == [
        "node",
        "depth",
        "backend_depth",
        "message_count",
        "message_bytes",
        "repeat_count",
    ]
    members = members_of(Channel)
    assert members[:5] == ["topic", "name", "nodes", "silent", "depth"]
    assert members.index("rates") + 1 == members.index("buried_count")
    row = channel_node(depth=3, zone_local_count=2)
    assert list(to_json(row)) == members_of(ChannelNode)
    assert from_json(ChannelNode, to_json(row)) == row
