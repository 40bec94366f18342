"""Reports on idle queries. Spark only reports on batches, and a query has none while its only node is down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from pyspark_nsq.cluster import GLANCE, Cluster
from pyspark_nsq.errors import NsqError
from pyspark_nsq.http import Http
from pyspark_nsq.lanes import Lane, Offsets
from pyspark_nsq.options import source_options
from pyspark_nsq.reports import Report, ends_in, lanes_of, reached_by

# Takes a query's name and its last report on a batch. Returns a report in the same form about the present state of the
# cluster, or None if it doesn't know the query's source.
Look = Callable[[str, Report | None], Report | None]


class ClusterLook:
    """Looks at the cluster with the options of a query's source, for at most `GLANCE` at each nsqd and nsqlookupd."""

    def __init__(self, options: Mapping[str, str], *, clock: Callable[[], float] = time.time) -> None:
        read = source_options(dict(options))
        access = replace(read.access, timeout=min(GLANCE, read.access.timeout))
        self._where = ", ".join(read.where.lookupd + read.where.nsqd)
        self._cluster = Cluster(replace(read, access=access), Http(access))
        self._clock = clock

    def __call__(self, _query: str, last: Report | None) -> Report:
        """Return Spark's report on a batch without messages; before the first batch, from the cluster alone.

        A lane that can't be seen keeps its last known end, and its node is listed as missing.
        """
        last = last or {}
        reached, ends = reached_by(last), dict(ends_in(last))
        try:
            heads, found = self._cluster.glance(_offsets(last, reached))
        except NsqError as error:
            missing: Mapping[str, str] = {self._where: str(error)}
        else:
            missing = found.missing
            if last:
                ends |= {str(head.lane): head.next for head in heads}
        here = {"v": 1, "lanes": reached}
        source = {"startOffset": here, "endOffset": here, "latestOffset": {"v": 1, "lanes": ends, "missing": missing}}
        now = datetime.fromtimestamp(self._clock(), UTC).isoformat()
        return {"batchId": last.get("batchId", 0), "timestamp": now, "sources": [source]}


def _offsets(last: Report, reached: Mapping[str, int]) -> Offsets:
    closed: dict[str, int] = {}
    for source in last.get("sources", ()):
        closed |= lanes_of(source.get("endOffset"), "closed")
    return Offsets(_parsed(reached), closed=_parsed(closed))


def _parsed(lanes: Mapping[str, int]) -> dict[Lane, int]:
    return {Lane.parse(lane): sequence for lane, sequence in lanes.items()}
