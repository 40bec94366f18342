"""The rows of a sample: what silent nodes last reported is a part of each sum."""

from __future__ import annotations

from nsqadmin.cluster.merge import totals_of
from nsqadmin.cluster.model import CLUSTER_SERIES, Health, Metric, Series, Silent, Snapshot, Span, TopicNode
from nsqadmin.cluster.series import SeriesStore
from nsqadmin.upstream.rows import Rows
from tests.support.picture import NOW, channel, channel_node, node, snapshot, topic

NODES = ("n1:4151", "n2:4151")


def cluster(silent: tuple[str, ...] = ()) -> Snapshot:
    rows = [channel_node(it, depth=depth, in_flight_count=2) for it, depth in zip(NODES, (60, 40), strict=True)]
    drawn = topic(
        channel(*rows, silent=silent),
        nodes=tuple(TopicNode(node=it, depth=5) for it in NODES),
        silent=silent,
    )
    return snapshot(
        drawn,
        nodes=tuple(
            node(it, health=Health.DOWN if it in silent else Health.OK, answered_at=NOW, depth=45, in_flight_count=2)
            for it in NODES
        ),
        silent=tuple(Silent(node=it, since=NOW, answered_at=NOW, depth=45) for it in silent),
        totals=totals_of((drawn,)),
    )


def sampled(*pictures: Snapshot, key: str) -> Series:
    store, rows = SeriesStore(most_coarse=0), Rows()
    for number, picture in enumerate(pictures):
        store.put(rows.of(picture, (), {Metric.PROBLEMS: 3.0}), now=NOW + 5 * number)
    series = store.series(key, Span.MINUTES)
    assert series is not None
    return series


def test_no_sum_changes_when_a_node_falls_silent_and_its_part_is_named() -> None:
    for key, total, old in (
        ("channel:t/c", 100.0, 40.0),
        ("topic:t", 10.0, 5.0),
        (CLUSTER_SERIES, 110.0, 45.0),
        ("node:n2:4151", 45.0, 45.0),
    ):
        series = sampled(cluster(), cluster(("n2:4151",)), cluster(), key=key)
        assert series.values["depth"] == (total, total, total), key
        assert series.last_known["depth"] == (0.0, old, 0.0), key
        assert series.partial == (False, True, False), key


def test_in_flight_has_its_part_too_and_the_node_that_answers_has_none() -> None:
    silent = cluster(("n2:4151",))
    assert sampled(silent, silent, key=CLUSTER_SERIES).last_known["in_flight"] == (2.0, 2.0)
    assert sampled(silent, silent, key="node:n1:4151").last_known == {}


def test_what_is_not_in_a_snapshot_is_in_the_row_of_the_cluster() -> None:
    assert sampled(cluster(), key=CLUSTER_SERIES).values["problems"] == (3.0,)
    assert "problems" not in sampled(cluster(), key="topic:t").values
