"""A query of Spark that lands the topics of a node in a table, while one machine after the other owns the node.

Nobody tells it of a takeover. It may be stopped and started again at any time, and goes on from its checkpoint.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from tests.failover.ledger import Ledger, Violation
from tests.support.process import Nsqd

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LIMIT: Final = 120.0  # seconds until the query has what is there, on a busy machine
_TICK: Final = 0.05


class SparkReader:
    """The query, in the session of this process. `where`: the options that say where the node is."""

    def __init__(self, folder: Path, topics: Sequence[str], where: Mapping[str, str]) -> None:
        self._table = str(folder / "table")
        self._checkpoint = folder / "checkpoint"
        self._topics = topics
        self._where = where
        self._query: StreamingQuery | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._query is not None:
            self._query.stop()

    def start(self, nsqd: Nsqd) -> None:
        """Start the query, and return when it has what this owner has: a query doesn't start without its node."""
        from pyspark.sql import SparkSession

        options = {"topic": ",".join(self._topics), "discoverySeconds": "1", **self._where}
        rows = SparkSession.builder.getOrCreate().readStream.format("nsq").options(**options)
        landing = rows.schema("topic string, sequence bigint, body binary").load().writeStream.format("parquet")
        self._query = landing.option("checkpointLocation", str(self._checkpoint)).start(self._table)
        self.catch_up(nsqd)

    def stop(self) -> None:
        """Stop the query, wherever it is. The next one goes on from its checkpoint."""
        self.check()
        self._running.stop()

    @property
    def _running(self) -> StreamingQuery:
        assert self._query is not None, "not started"
        return self._query

    def check(self) -> None:
        """Raise Violation if the query has failed."""
        if not self._running.isActive:
            raise Violation(f"the query of Spark has failed: {str(self._running.exception())[:2000]}")

    def catch_up(self, nsqd: Nsqd) -> float:
        """Wait until all is committed that history has at this moment. Return how many seconds that took."""
        began = time.monotonic()
        wanted = {topic: _log_of(nsqd, topic) for topic in self._topics}
        while (found := self._committed()) is None or any(found.get(it, -1) < wanted[it][1] for it in wanted):
            self.check()
            if time.monotonic() > began + LIMIT:
                raise Violation(f"Spark has committed {found}, and there is {wanted}")
            time.sleep(_TICK)  # another process gives no event to wait for
        return time.monotonic() - began

    def _committed(self) -> Mapping[str, int] | None:
        """Return where the last batch ended that Spark has committed, for each topic. None: there is none."""
        done = [int(it.name) for it in (self._checkpoint / "commits").glob("[0-9]*")]
        if not done:
            return None
        text = (self._checkpoint / "offsets" / str(max(done))).read_text()
        lanes: Mapping[str, int] = json.loads(text.splitlines()[-1])["lanes"]
        by_topic = {lane.split("/")[1]: place for lane, place in lanes.items()}
        if len(by_topic) < len(lanes):
            raise Violation(f"a topic has got another log: {sorted(lanes)}")
        return by_topic

    def check_table(self, nsqd: Nsqd, ledger: Ledger) -> int:
        """Compare the table with the ledger, and return how many rows it has.

        Every acknowledged message has to be there, each sequence once, and no sequence is left out.
        """
        from pyspark.sql import SparkSession

        self.catch_up(nsqd)
        self._running.stop()
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for row in SparkSession.builder.getOrCreate().read.parquet(self._table).collect():
            found[row.topic].append((row.sequence, int(bytes(row.body).split()[0])))
        for topic in self._topics:
            rows = sorted(found[topic])
            sequences = [sequence for sequence, _ in rows]
            if sequences != [*range(len(rows))]:
                twice = sorted({it for it in sequences if sequences.count(it) > 1})
                missing = sorted({*range(max(sequences, default=0))} - {*sequences})
                raise Violation(f"in Spark's table {topic} lacks {missing[:10]}, and has {twice[:10]} more than once")
            log, _ = _log_of(nsqd, topic)
            ledger.check_history(topic, log, rows)
        return sum(map(len, found.values()))


def _log_of(nsqd: Nsqd, topic: str) -> tuple[str, int]:
    """Return the id of a topic's log, and the sequence after its last message."""
    found = nsqd.http("GET", f"/topic/log?topic={topic}").json
    return found["log"], found["next"]
