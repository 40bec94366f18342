"""Counts messages that arrived after a watermark had closed their window.

Spark drops them, and a job may treat that as an error.

Spark counts the rows that reach its state, and each task has summed its own rows before that. So of all messages that
one task has for one window, at most one is counted. The number is 0 only if no message was dropped; otherwise it is a
lower bound.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.kinds import Late
from pyspark_nsq.reports import late_rows_of


class LateRows:
    """Counts the late rows of all queries of a job.

    The listener's thread calls `observe`, the job's thread the rest.
    """

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
        """Number of dropped rows, for each query with late rows."""
        with self._lock:
            return dict(self._rows)

    @property
    def is_error(self) -> bool:
        return self._policy is Late.ERROR and bool(self.rows)

    def summary(self) -> str:
        """Return `aggregate: at least 12 late rows were dropped`; empty if there are none."""
        return ", ".join(f"{query}: at least {rows:,} late rows were dropped" for query, rows in self.rows.items())

    def check(self) -> None:
        """Raise PipeFailed if late rows are an error and there are some."""
        if self.is_error:
            raise PipeFailed(f"{self.summary()}, as their windows were closed; a longer --watermark waits for them")
