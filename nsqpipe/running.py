"""Running streams: what they report, an end when asked for, and one clear line when a query dies."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from nsqpipe.failures import PipeFailed, first_cause
from nsqpipe.late import LateRows
from nsqpipe.progress import Tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_EVERY: Final = 0.2  # seconds
_LAST_WORDS: Final = 5.0  # seconds that the reports of the last batch may take

Observer = Callable[[str, dict[str, Any]], None]  # of a query's name, and of Spark's report on a batch


def run_queries(
    spark: SparkSession,
    start: Callable[[], Sequence[StreamingQuery]],
    *,
    observers: Sequence[Observer] = (),
    late: LateRows | None = None,
) -> None:
    """Until they end by themselves, one of them fails, rows are late and must not be, or a signal comes; then all are stopped.

    A batch that is interrupted is no loss: the next run does it again, and the table takes it once.
    """
    late = late or LateRows()
    with _signals() as asked, _listening(spark, [*observers, late.observe]) as listener:
        queries: Sequence[StreamingQuery] = ()
        try:
            queries = start()
            while any(query.isActive for query in queries) and not any(query.exception() for query in queries):
                if asked.wait(_LOOK_EVERY) or late.is_error:
                    break
        finally:
            for query in queries:
                query.stop()
        listener.wait_for_end(len(queries))
        for query in queries:
            if error := query.exception():
                raise PipeFailed(f"{query.name or 'the query'}: {first_cause(error)}")
        late.check()


def tasks_of(spark: SparkSession) -> Callable[[], Tasks | None]:
    """Asks how many tasks of the stages that run now are done. Behind Spark Connect nobody can say."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except (AttributeError, NotImplementedError):  # PySpark's own are of these kinds, and Connect has had both
        return lambda: None

    def look() -> Tasks | None:
        stages = [info for it in tracker.getActiveStageIds() if (info := tracker.getStageInfo(it)) is not None]
        return Tasks(sum(it.numCompletedTasks for it in stages), sum(it.numTasks for it in stages)) if stages else None

    return look


class _Listener(StreamingQueryListener):
    """Spark calls it in a thread of its own, for one event after another."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._ended = threading.Semaphore(0)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """There is nothing to report yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        report = json.loads(event.progress.json)
        for observe in self._observers:
            observe(event.progress.name or "query", report)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to do is no news."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._ended.release()

    def wait_for_end(self, queries: int) -> None:
        for _ in range(queries):
            self._ended.acquire(timeout=_LAST_WORDS)


@contextmanager
def _listening(spark: SparkSession, observers: Sequence[Observer]) -> Iterator[_Listener]:
    listener = _Listener(observers)
    spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        spark.streams.removeListener(listener)


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Is set by SIGINT and SIGTERM; the second of them does what it always does."""
    asked = threading.Event()

    def ask(number: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked.set()

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
