"""Builds the rows that each sweep adds to the series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from nsqadmin.cluster.model import (
    CLUSTER_SERIES,
    UNKNOWN_RATES,
    Channel,
    Metric,
    Node,
    Rates,
    Severity,
    Snapshot,
    Topic,
    Totals,
    channel_series,
    node_series,
    topic_series,
)
from nsqadmin.cluster.series import row_of

if TYPE_CHECKING:
    from array import array

    from nsqadmin.cluster.model import Finding

    KeyedRow = tuple[str, array[float]]


class Rows:
    """Caches the rows of topics that are the same object as in the previous sweep, which most topics are."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Topic, tuple[KeyedRow, ...]]] = {}

    def of(
        self, snapshot: Snapshot, findings: Iterable[Finding], also: Mapping[Metric, float] | None = None
    ) -> Iterator[KeyedRow]:
        """Yield the rows of a sample. `also` has values of the cluster that aren't in the snapshot."""
        totals = snapshot.totals
        wrong = {Metric.FINDINGS: float(sum(1 for finding in findings if finding.severity is not Severity.INFO))}
        parts = _last_known_of_cluster(snapshot) if snapshot.silent else None
        yield (
            CLUSTER_SERIES,
            _row(totals, totals.rates, clients=totals.client_count, also={**wrong, **(also or {})}, last_known=parts),
        )
        for node in snapshot.nodes:
            if node.is_reachable:
                yield node_series(node.address), _row(node, node.rates, clients=node.client_count)
            elif node.is_known and not node.successor:
                parts = {Metric.DEPTH: node.depth, Metric.IN_FLIGHT: node.in_flight_count}
                row = _row(node, UNKNOWN_RATES, clients=node.client_count, last_known=parts)
                yield node_series(node.address), row
        known, self._known = self._known, {}
        for topic in snapshot.topics:
            if topic.is_inactive:
                continue
            rows = known.get(topic.name)
            if rows is None or rows[0] is not topic:
                rows = topic, tuple(_rows_of(topic))
            self._known[topic.name] = rows
            yield from rows[1]


def _rows_of(topic: Topic) -> Iterator[KeyedRow]:
    yield topic_series(topic.name), _row(topic, topic.rates, last_known=_last_known(topic) if topic.silent else None)
    for channel in topic.channels:
        parts = _last_known(channel) if channel.silent else None
        row = _row(channel, channel.rates, clients=channel.client_count, last_known=parts)
        yield channel_series(topic.name, channel.name), row


def _last_known(of: Topic | Channel) -> Mapping[Metric, float]:
    """Return the part of each count that its silent nodes last reported."""
    rows = [row for row in of.nodes if row.node in of.silent]
    return {
        metric: sum(getattr(row, name, 0) for row in rows)
        for metric, name in (
            (Metric.DEPTH, "depth"),
            (Metric.BACKEND_DEPTH, "backend_depth"),
            (Metric.IN_FLIGHT, "in_flight_count"),
            (Metric.DEFERRED, "deferred_count"),
        )
    }


def _last_known_of_cluster(snapshot: Snapshot) -> Mapping[Metric, float]:
    nodes = [node for it in snapshot.silent if (node := snapshot.node(it.node)) is not None]
    return {
        Metric.DEPTH: sum(it.depth for it in snapshot.silent),
        Metric.IN_FLIGHT: sum(node.in_flight_count for node in nodes),
    }


def _row(
    counts: Topic | Channel | Node | Totals,
    rates: Rates,
    *,
    clients: int = 0,
    also: Mapping[Metric, float] | None = None,
    last_known: Mapping[Metric, float] | None = None,
) -> array[float]:
    """Return the row of a key. `last_known` are parts of its counts; None: all of its nodes have answered."""
    return row_of(
        is_partial=last_known is not None,
        last_known=last_known,
        depth=counts.depth,
        backend_depth=getattr(counts, "backend_depth", 0),
        in_flight=getattr(counts, "in_flight_count", 0),
        deferred=getattr(counts, "deferred_count", 0),
        clients=clients,
        incoming=rates.incoming,
        finished=rates.finished if not isinstance(counts, Topic) else 0.0,
        requeued=rates.requeued if not isinstance(counts, Topic) else 0.0,
        timed_out=rates.timed_out if not isinstance(counts, Topic) else 0.0,
        bytes=rates.bytes if not isinstance(counts, Channel) else 0.0,
        **{metric.value: value for metric, value in (also or {}).items()},
    )
