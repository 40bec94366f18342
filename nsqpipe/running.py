"""Runs streams: passes on their reports, stops them on request, and fails with one clear line when a query dies."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from nsqpipe.late import LateRows
from nsqpipe.progress import Tasks
from pyspark_nsq.failures import PipeFailed, SeveralFailed, first_cause, of_job
from pyspark_nsq.observing import tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_nsq.idle import Look

_LOOK_EVERY: Final = 0.2  # seconds
_STARTING: Final = 30.0  # seconds after which to start the next job in any case
_PLANNING: Final = ("Initializing", "Getting offsets")  # Spark's status until a query knows what to read
_LAST_WORDS: Final = 5.0  # seconds for the reports of the last batch to arrive

Observer = Callable[[str, dict[str, Any]], None]  # takes a query's name, and Spark's report on a batch
OnFailed = Callable[[str, PipeFailed], None]  # takes the prefix of a job's queries, and why the job failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One job's queries, which end together."""

    start: Callable[[], Iterable[StreamingQuery]]
    late: LateRows = field(default_factory=LateRows)
    prefix: str = ""  # of their names, if there are several jobs


def run_queries(
    spark: SparkSession,
    start: Callable[[], Iterable[StreamingQuery]],
    *,
    observers: Sequence[Observer] = (),
    late: LateRows | None = None,
) -> bool:
    """Run the queries of a single job, as `run_groups` does."""
    return run_groups(spark, [Group(start=start, late=late or LateRows())], observers=observers)


def run_groups(
    spark: SparkSession,
    groups: Sequence[Group],
    *,
    observers: Sequence[Observer] = (),
    goes_on: bool = False,
    on_failure: OnFailed = lambda _prefix, _failure: None,
    look: Look | None = None,
) -> bool:
    """Run until all queries have ended on their own, or a signal stops them. Return True if all have ended.

    A group ends when one of its queries fails, or when late rows are an error and there are some. With `goes_on` the
    other groups continue, otherwise they are stopped. Raises PipeFailed at the end, with a line for each group that
    failed; `on_failure` is called at once.

    Interrupting a batch loses nothing: the next run repeats the batch, and the table takes it once.
    """
    running = [_Running(spark, group) for group in groups]
    with _signals() as asked, _listening(spark, [*(it.observe for it in running), *observers], look) as listener:
        try:
            have_ended = _watch(running, asked, goes_on=goes_on, on_failure=on_failure)
        finally:
            with ExitStack() as stopping:
                for it in running:
                    stopping.callback(it.stop)
        listener.wait_for_end(sum(len(it.queries) for it in running))
    failures = [it.failure for it in running if it.has_failed() and it.failure is not None]
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise SeveralFailed(failures) from failures[0]
    return have_ended


def _watch(
    running: Sequence[_Running],
    asked: threading.Event,
    *,
    goes_on: bool,
    on_failure: OnFailed,
) -> bool:
    """Return True if all have ended on their own."""
    for it in running:
        it.start()
        it.wait_for_plans(asked)
        if asked.is_set() or (it.failure is not None and not goes_on):
            return False
    active = list(running)
    while active:
        for it in list(active):
            may_go_on = it.is_active  # before `has_failed`: or a query that fails in between seems done
            if it.has_failed():
                it.stop()
                if not goes_on:
                    return False
                assert it.failure is not None
                on_failure(it.prefix, it.failure)
            if it.failure is not None or not may_go_on:
                active.remove(it)
        if active and asked.wait(_LOOK_EVERY):
            return False
    return True


class _Running:
    """A running group. The listener's thread calls `observe`, the job's thread the rest."""

    def __init__(self, spark: SparkSession, group: Group) -> None:
        self._spark = spark
        self._group = group
        self.prefix = group.prefix
        self.queries: list[StreamingQuery] = []
        self.failure: PipeFailed | None = None

    def start(self) -> None:
        try:
            for query in self._group.start():
                self.queries.append(query)  # at once: if a later query can't start, we have to stop this one
        except Exception as error:
            if not self.prefix:
                raise
            self.failure = of_job(f"{self.prefix.rstrip('.')}:", error)
            self.failure.__cause__ = error

    def wait_for_plans(self, asked: threading.Event) -> None:
        """Wait until the queries know what to read, before starting more jobs.

        Each source starts a Python worker to plan, and Spark gives it ten seconds. Many at the same time might need
        longer.
        """
        deadline = time.monotonic() + _STARTING
        while self.prefix and time.monotonic() < deadline:
            messages = [str(query.status["message"]) for query in self.queries if query.isActive]
            if not any(it.startswith(_PLANNING) for it in messages) or asked.wait(_LOOK_EVERY):
                return

    def observe(self, query: str, report: dict[str, Any]) -> None:
        if query.startswith(self.prefix):
            self._group.late.observe(query, report)

    @property
    def is_active(self) -> bool:
        """True if any query is still running."""
        return any(query.isActive for query in self.queries)

    def has_failed(self) -> bool:
        """Return True if the group has failed, and keep the reason in `failure`."""
        if self.failure is None:
            self.failure = next(self._failures(), None)
        return self.failure is not None

    def _failures(self) -> Iterator[PipeFailed]:
        for query in self.queries:
            if error := query.exception():
                yield PipeFailed(f"{query.name or 'the query'}: {first_cause(error)}")
        try:
            self._group.late.check()
        except PipeFailed as error:
            yield error

    def stop(self) -> None:
        """Stop all queries, including one that Spark has started without returning it because of an error."""
        started = self._spark.streams.active if self.prefix else ()
        for query in (*self.queries, *(it for it in started if (it.name or "").startswith(self.prefix))):
            query.stop()


def tasks_of(spark: SparkSession) -> Callable[[], Tasks | None]:
    """Return a function that counts the tasks of the running stages. With Spark Connect the number is unknown."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except (AttributeError, NotImplementedError):  # what Spark Connect raises, depending on its version
        return lambda: None

    def look() -> Tasks | None:
        stages = [info for it in tracker.getActiveStageIds() if (info := tracker.getStageInfo(it)) is not None]
        return Tasks(sum(it.numCompletedTasks for it in stages), sum(it.numTasks for it in stages)) if stages else None

    return look


class _Listener(StreamingQueryListener):
    """Passes Spark's reports to observers. Spark calls it from one thread, one event after another."""

    def __init__(self, observers: Sequence[Observer], look: Look | None = None) -> None:
        self._observers = observers
        self._look = look
        self._last: dict[str, tuple[str, dict[str, Any]]] = {}  # name and report of each query, by its id
        self._ended = threading.Semaphore(0)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there is nothing to report yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        name, report = event.progress.name or "query", json.loads(event.progress.json)
        self._last[str(event.progress.id)] = name, report
        tell(self._observers, name, report)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Report missing nodes, so that the last line of a job doesn't claim to have read everything."""
        name, last = self._last.get(str(event.id), ("", None))
        if self._look is not None and last is not None and (report := self._look(name, last)) is not None:
            tell(self._observers, name, dict(report))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._ended.release()

    def wait_for_end(self, queries: int) -> None:
        for _ in range(queries):
            self._ended.acquire(timeout=_LAST_WORDS)


@contextmanager
def _listening(spark: SparkSession, observers: Sequence[Observer], look: Look | None) -> Iterator[_Listener]:
    listener = _Listener(observers, look)
    spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        spark.streams.removeListener(listener)


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set. A second signal has its default effect."""
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
