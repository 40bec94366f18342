"""The metrics of topics and channels."""

from __future__ import annotations

from nsqadmin.http.metrics import topic_metrics
from tests.support.picture import channel, channel_node, topic


def test_what_is_buried_is_exported_and_no_metric_comes_twice() -> None:
    metrics = topic_metrics([topic(channel(channel_node(buried_count=3)))])
    names = [it.name for it in metrics]
    assert sorted(set(names)) == sorted(names)
    (buried,) = (it for it in metrics if it.name == "nsq_channel_buried")
    assert [(it.value, it.labels) for it in buried.samples] == [(3.0, {"topic": "t", "channel": "c"})]


def test_repeats_are_exported() -> None:
    (repeats,) = (it for it in topic_metrics([topic(repeat_count=7)]) if it.name == "nsq_topic_repeats")
    assert [(it.value, it.labels) for it in repeats.samples] == [(7.0, {"topic": "t"})]
