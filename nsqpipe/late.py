"""Messages that came when a watermark had closed their window: Spark drops them, and here they become a number, or an error.

Spark counts what reaches its state, which is after each task has summed up its own rows. So of the messages that one task had
for one window at most one is counted: the number is 0 only if none was dropped, and otherwise says at least how many.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from nsqpipe.failures import PipeFailed
from nsqpipe.kinds import Late
from pyspark_nsq.reports import late_rows_of


class LateRows:
    """Counts the late rows of all queries of a job. Observed in the listener's thread, asked in the job's."""

    def __init__(self, policy: Late = Late.COUNT) -> None:
        self._policy = policy
        self._rows: dict[str, int] = {}
        self._lock = threading.Lock()

    def observe(self, query: str, report: Mapping[str, Any]) -> None:
        if rows := late_rows_of(report):
            with self._lock:
                self._rows[query] = self._rows.get(query, 0) + rows

    @property
    def rows(self) -> dict[str, int]:
        """How many were dropped, by query; queries without late rows are not in it."""
        with self._lock:
            return dict(self._rows)

    @property
    def is_error(self) -> bool:
        return self._policy is Late.ERROR and bool(self.rows)

    def told(self) -> str:
        """Return `aggregate: at least 12 late rows were dropped`; an empty text if there are none."""
        return ", ".join(f"{query}: at least {rows:,} late rows were dropped" for query, rows in self.rows.items())

    def check(self) -> None:
        """Raise PipeFailed if late rows are an error and there are some."""
        if self.is_error:
            raise PipeFailed(f"{self.told()}, as their windows were closed; a longer --watermark waits for them")
