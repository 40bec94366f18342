"""The page of `--metrics-address`: what is known about the queries of this process, and about the tables they fill."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from common.prometheus import Metric, Sample, exposition
from nsqpipe.failures import PipeFailed
from pyspark_nsq.errors import BadOption
from pyspark_nsq.listener import Kind, NsqListener, QueryStates, metrics_of, serve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsqpipe.upkeep import Tended

TABLES: Final[Mapping[str, tuple[Kind, str]]] = {  # labelled with the table
    "nsqpipe_table_files": ("gauge", "Files that the table names."),
    "nsqpipe_files_joined_total": ("counter", "Small files that became part of a large one."),
    "nsqpipe_files_removed_total": ("counter", "Files removed that no version needs, or that a crash has left."),
    "nsqpipe_upkeep_failures_total": ("counter", "Looks at the table that failed; each is tried again."),
}


class Page:
    """Written by Spark's thread and by that of the upkeep, read by the server's."""

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
        """In Prometheus' text format."""
        return exposition([*metrics_of(self._states.snapshot()), *self._of_tables()])

    def _of_tables(self) -> Iterator[Metric]:
        with self._lock:
            tables = {table: dict(found) for table, found in self._tables.items()}
        for name, (kind, meaning) in TABLES.items():
            samples = [Sample(float(found[name]), {"table": table}) for table, found in tables.items()]
            yield Metric(name, kind, meaning, tuple(samples))


@contextmanager
def serving(spark: SparkSession, address: str) -> Iterator[Page]:
    """Meanwhile; without an address nobody asks."""
    listener = NsqListener()
    page = Page(listener.states)
    if not address:
        yield page
        return
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
