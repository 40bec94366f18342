"""Builds the rows that each sweep adds to the series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from nsqadmin.cluster.model import (
    CLUSTER_SERIES,
    Channel,
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

    def of(self, snapshot: Snapshot, findings: Iterable[Finding]) -> Iterator[KeyedRow]:
        totals = snapshot.totals
        wrong = sum(1 for finding in findings if finding.severity is not Severity.INFO)
        is_partial = bool(snapshot.silent)
        row = _row(totals, totals.rates, clients=totals.client_count, findings=wrong, is_partial=is_partial)
        yield CLUSTER_SERIES, row
        for node in snapshot.nodes:
            if node.is_reachable:
                yield node_series(node.address), _row(node, node.rates, clients=node.client_count)
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
    yield topic_series(topic.name), _row(topic, topic.rates, is_partial=bool(topic.silent))
    for channel in topic.channels:
        row = _row(channel, channel.rates, clients=channel.client_count, is_partial=bool(channel.silent))
        yield channel_series(topic.name, channel.name), row


def _row(
    counts: Topic | Channel | Node | Totals,
    rates: Rates,
    *,
    clients: int = 0,
    findings: int = 0,
    is_partial: bool = False,
) -> array[float]:
    return row_of(
        is_partial=is_partial,
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
        findings=findings,
    )
