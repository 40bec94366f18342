"""The page at `--metrics-address`: metrics of this process's queries, and of their tables."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nsqcommon.prometheus import Metric, Sample, exposition
from nsqpipe.metric_names import TABLES
from nsqpipe.quality import UNPARSED
from pyspark_nsq.errors import BadOption
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.listener import OBSERVED, NsqListener, QueryStates, metrics_of, serve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_nsq.idle import Look
    from pyspark_nsq.tables.table import Table
    from pyspark_nsq.tables.upkeep import Tended

log = logging.getLogger(__name__)


class Quarantined:
    """Counts rows that couldn't be parsed, from the table's log: if the sink decodes, Spark doesn't know about them."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._seen = table.delta().version() if table.exists() else -1

    def since_last(self, query: str) -> int:
        """Count the rows in this query's commits since the last call.

        If the log can't be read, they count the next time.
        """
        try:
            if not self._table.exists():
                return 0
            table = self._table.delta()
            version = table.version()
            new = version - self._seen
            # history(new) begins with the newest commit in the log, which may be newer than `version`.
            commits = table.history(new)[-new:] if new > 0 else []
        except Exception as error:  # from deltalake, or a library of the store
            log.warning("rows in quarantine are counted later: %s", error)
            return 0
        self._seen = max(version, self._seen)
        return sum(int(it.get("nsq.quarantined", 0)) for it in commits if it.get("nsq.query") == query)


class States(QueryStates):
    def __init__(self, quarantined: Mapping[str, Quarantined]) -> None:
        super().__init__()
        self._quarantined = quarantined

    def observe(self, query: str, report: Mapping[str, Any]) -> None:
        quarantined = self._quarantined.get(query)
        if quarantined is not None and not report.get("observedMetrics"):
            count = quarantined.since_last(str(report.get("id")))
            report = {**report, "observedMetrics": {OBSERVED: {UNPARSED: count}}}
        super().observe(query, report)


class Page:
    """The page with all metrics. Spark's thread and the upkeep's thread write it; the server's threads read it."""

    def __init__(self, states: QueryStates) -> None:
        self._states = states
        self._lock = threading.Lock()
        self._tables: dict[str, dict[str, int]] = {}

    def observe_upkeep(self, done: Tended) -> None:
        with self._lock:
            found = self._tables.setdefault(done.table, dict.fromkeys(TABLES, 0))
            found["nsqpipe_upkeep_failures_total"] += bool(done.failed)
            if not done.failed:
                found["nsqpipe_table_files"] = done.files
                found["nsqpipe_files_joined_total"] += done.joined
                found["nsqpipe_files_removed_total"] += done.removed

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return exposition([*metrics_of(self._states.snapshot()), *self._of_tables()])

    def _of_tables(self) -> Iterator[Metric]:
        with self._lock:
            tables = {table: dict(found) for table, found in self._tables.items()}
        for name, (kind, meaning) in TABLES.items():
            samples = [Sample(float(found[name]), {"table": table}) for table, found in tables.items()]
            yield Metric(name, kind, meaning, tuple(samples))


@contextmanager
def serving(
    spark: SparkSession, address: str, landed: Mapping[str, Table] | None = None, *, look: Look | None = None
) -> Iterator[Page]:
    """Serve the metrics of the session's queries while the block runs, if there is an address.

    `landed` has the Delta tables, by query, whose logs count rows that couldn't be parsed. `look` reports on idle
    queries.
    """
    if not address:
        yield Page(QueryStates())
        return
    listener = NsqListener(States({query: Quarantined(table) for query, table in (landed or {}).items()}), look=look)
    page = Page(listener.states)
    try:
        server = serve(page, address)
    except BadOption as error:
        raise PipeFailed(f"--metrics-address {error}") from None
    spark.streams.addListener(listener)
    try:
        yield page
    finally:
        server.shutdown()
        server.server_close()
        spark.streams.removeListener(listener)
