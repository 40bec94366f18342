"""Running streams: progress on the terminal, a graceful stop, and one clear line when a query dies."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from nsqpipe.failures import PipeFailed, first_cause
from nsqpipe.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_LOOK_EVERY: Final = 0.2  # seconds

Observer = Callable[[str, dict[str, Any]], None]


def run_queries(queries: Sequence[StreamingQuery], *, quiet: bool = False, observers: Sequence[Observer] = ()) -> None:
    """Until they end by themselves, one of them fails, or a signal comes; then all are stopped at a batch's end."""
    asked = threading.Event()
    previous = {number: _on_signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    progress = Progress(sys.stderr, quiet=quiet)
    seen: dict[str, int] = {}
    try:
        while not asked.is_set() and any(query.isActive for query in queries):
            _look(queries, seen, progress, observers)
            if any(query.exception() is not None for query in queries):
                break
            asked.wait(_LOOK_EVERY)
        _look(queries, seen, progress, observers)
        for query in queries:
            error = query.exception()
            if error is not None:
                raise PipeFailed(f"{query.name or 'the query'}: {first_cause(error)}")
    finally:
        for query in queries:
            query.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)
        progress.close()


def _on_signal(number: int, asked: threading.Event) -> Any:
    def ask(_number: int, _frame: FrameType | None) -> None:
        if asked.is_set():  # the second time it is meant
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked.set()

    return signal.signal(number, ask)


def _look(
    queries: Sequence[StreamingQuery], seen: dict[str, int], progress: Progress, observers: Sequence[Observer]
) -> None:
    for query in queries:
        name = query.name or "query"
        for found in query.recentProgress:
            report: dict[str, Any] = dict(found)
            if report["batchId"] <= seen.get(name, -1) and not report["numInputRows"]:
                continue
            if report["batchId"] <= seen.get(name, -1):
                continue
            seen[name] = report["batchId"]
            progress.show(name, report, time.monotonic())
            for observe in observers:
                observe(name, report)
