"""Metrics of streaming queries, collected by a Spark listener and served as a page for Prometheus.

    listener = NsqListener(look=ClusterLook(options))
    spark.streams.addListener(listener)
    serve(listener.states, "127.0.0.1:9108")

`QueryStates` has the data and uses neither Spark nor sockets; `NsqListener` passes Spark's events on to it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal, Protocol

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from nsqcommon.prometheus import CONTENT_TYPE, Metric, Sample, exposition
from pyspark_nsq import reports
from pyspark_nsq.errors import BadOption
from pyspark_nsq.idle import Look

# Names of `DataFrame.observe` whose results the listener counts:
OBSERVED: Final = "quality"  # rows by the rule that they broke
BYTES: Final = "nsq"  # `bytes`: the size of the bodies
_LOCAL: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class QueryState:
    """The state of one query. Totals are since the listener was added."""

    is_active: bool = True
    starts: int = 0
    failures: int = 0
    failed_starts: int = 0  # failures before any batch: a restart didn't help
    error: str = ""  # the text of the last failure
    batches: int = 0
    rows: int = 0
    late_rows: int = 0
    gap: int = 0  # messages left out: removed by retention, or of a lane that is gone
    bytes: int | None = None  # None: the query doesn't observe them
    lag: int = 0  # messages in the logs that no batch has taken yet
    lag_seconds: float | None = None
    state_rows: int = 0
    batch_seconds: float = 0.0
    commit_seconds: float = 0.0
    # When the last batch ended, or the last look that found nothing to do and no node missing; in seconds since 1970.
    last_success: float | None = None
    lanes: Mapping[str, int] = field(default_factory=dict)  # next sequence of each
    missing: Mapping[str, str] = field(default_factory=dict)  # nodes that don't answer, and why
    broken: Mapping[str, int] = field(default_factory=dict)  # rows, by the rule that they broke


class QueryStates:
    """The states of all queries, by name. Spark's thread writes them; any thread may read them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, QueryState] = {}
        self._times: dict[str, dict[str, reports.EndTimes]] = {}
        self._has_run: set[str] = set()  # queries that have finished a batch, or were idle, since their last start

    def started(self, query: str) -> None:
        with self._lock:
            state = self._states.get(query, QueryState())
            self._states[query] = replace(state, is_active=True, starts=state.starts + 1)
            self._has_run.discard(query)

    def observe(self, query: str, report: Mapping[str, Any]) -> None:
        """Count a batch that is done."""
        with self._lock:
            state = self._states.get(query, QueryState())
            self._has_run.add(query)
            self._note_ends(query, report)
            self._states[query] = replace(
                state,
                batches=state.batches + 1,
                rows=state.rows + reports.rows_of(report),
                late_rows=state.late_rows + reports.late_rows_of(report),
                gap=state.gap + reports.gap_of(report),
                bytes=_bytes(state, report),
                lag=reports.lag_of(report),
                state_rows=reports.state_rows_of(report),
                batch_seconds=reports.seconds_of(report),
                commit_seconds=reports.commit_seconds_of(report),
                last_success=self._clock(),
                lanes=reports.reached_by(report),
                missing=reports.missing_in(report),
                broken=_broken(state, report),
            )

    def idle(self, query: str, report: reports.Report | None = None) -> None:
        """Record that the query had nothing to do, with the report of a look at the cluster (`idle.Look`).

        If no node is missing, this counts as a success, like a batch. Without a report it doesn't, because the query
        may be idle because its only node is down.
        """
        with self._lock:
            self._has_run.add(query)
            state = self._states.get(query, QueryState())
            if report is None:
                self._states[query] = state
                return
            self._note_ends(query, report)
            missing = reports.missing_in(report)
            last_success = state.last_success if missing else self._clock()
            self._states[query] = replace(state, lag=reports.lag_of(report), missing=missing, last_success=last_success)

    def ended(self, query: str, error: str | None) -> None:
        with self._lock:
            state = replace(self._states.get(query, QueryState()), is_active=False)
            if error is not None:
                failed_starts = state.failed_starts + (query not in self._has_run)
                state = replace(state, failures=state.failures + 1, failed_starts=failed_starts, error=error)
            self._states[query] = state

    def _note_ends(self, query: str, report: Mapping[str, Any]) -> None:
        reached = reports.reached_by(report)
        now = reports.time_of(report) or self._clock()
        times = self._times.setdefault(query, {})
        for lane, end in reports.ends_in(report).items():
            times.setdefault(lane, reports.EndTimes()).note(now, end, reached.get(lane, 0))

    def snapshot(self) -> dict[str, QueryState]:
        now = self._clock()
        with self._lock:
            return {
                query: replace(
                    state,
                    # We don't know how old the messages of a missing node are.
                    lag_seconds=None
                    if state.missing
                    else reports.longest(it.lag(now) for it in self._times.get(query, {}).values()),
                )
                for query, state in self._states.items()
            }

    def page(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return exposition(metrics_of(self.snapshot()))


def _bytes(state: QueryState, report: Mapping[str, Any]) -> int | None:
    counted = (report.get("observedMetrics", {}).get(BYTES) or {}).get("bytes")
    return state.bytes if counted is None else (state.bytes or 0) + int(counted)


def _broken(state: QueryState, report: Mapping[str, Any]) -> dict[str, int]:
    broken = dict(state.broken)
    for rule, count in (report.get("observedMetrics", {}).get(OBSERVED) or {}).items():
        broken[rule] = broken.get(rule, 0) + int(count)
    return broken


# Prometheus

Kind = Literal["counter", "gauge"]
# name: kind, meaning, value. A value of None is unknown and gives no sample. docs/reference/metrics.md has the same
# table.
_EACH: Final[Mapping[str, tuple[Kind, str, Callable[[QueryState], float | None]]]] = {
    "active": ("gauge", "1 while the query runs.", lambda it: it.is_active),
    "starts_total": ("counter", "Starts of the query.", lambda it: it.starts),
    "failures_total": ("counter", "Times that the query ended with an error.", lambda it: it.failures),
    "failed_starts_total": ("counter", "Failures before any batch was done.", lambda it: it.failed_starts),
    "last_success_timestamp_seconds": (
        "gauge",
        "When a batch was last done, or a look last found nothing to do and no node missing.",
        lambda it: it.last_success,
    ),
    "batches_total": ("counter", "Batches that were committed.", lambda it: it.batches),
    "batch_seconds": ("gauge", "How long the last batch took.", lambda it: it.batch_seconds),
    "commit_seconds": ("gauge", "Its part for Spark's log of offsets and commits.", lambda it: it.commit_seconds),
    "rows_total": ("counter", "Messages that batches took.", lambda it: it.rows),
    "bytes_total": ("counter", "Bytes of their bodies, where the query observes them.", lambda it: it.bytes),
    "lag_messages": ("gauge", "Messages in the logs that no batch has taken yet.", lambda it: it.lag),
    "lag_seconds": (
        "gauge",
        "Upper bound of the age of the oldest of them, where it is known.",
        lambda it: it.lag_seconds,
    ),
    "late_rows_total": ("counter", "Rows that a watermark dropped, as Spark counts them.", lambda it: it.late_rows),
    "gap_messages_total": ("counter", "Messages left out: removed by retention, or of a lane that is gone.", lambda it: it.gap),
    "missing_nodes": ("gauge", "Nodes that are known and do not answer.", lambda it: len(it.missing)),
    "state_rows": ("gauge", "Rows in the query's state.", lambda it: it.state_rows),
}  # fmt: skip


def metrics_of(states: Mapping[str, QueryState]) -> Iterable[Metric]:
    for name, (kind, meaning, value) in _EACH.items():
        known = [(query, found) for query, state in states.items() if (found := value(state)) is not None]
        yield _metric(name, kind, meaning, [Sample(float(found), {"query": query}) for query, found in known])
    yield _metric(
        "lane_next", "gauge", "The next sequence to read of a lane.", _by(states, "lane", lambda it: it.lanes)
    )
    yield _metric(
        "rule_broken_total",
        "counter",
        "Rows that broke a rule, or could not be parsed.",
        _by(states, "rule", lambda it: it.broken),
    )


def _by(
    states: Mapping[str, QueryState], label: str, values: Callable[[QueryState], Mapping[str, int]]
) -> list[Sample]:
    return [
        Sample(value, {"query": query, label: key})
        for query, state in states.items()
        for key, value in values(state).items()
    ]


def _metric(name: str, kind: Kind, meaning: str, samples: list[Sample]) -> Metric:
    return Metric(f"nsq_query_{name}", kind, meaning, tuple(samples))


# Spark and HTTP


class NsqListener(StreamingQueryListener):
    """Passes Spark's events to `states`. Spark calls it from one thread, one event after another."""

    def __init__(self, states: QueryStates | None = None, *, look: Look | None = None) -> None:
        """`look` reports on idle queries: `ClusterLook` with the options of their source."""
        self.states = states or QueryStates()
        self._look = look
        self._names: dict[str, str] = {}  # of queries, by id
        self._last: dict[str, reports.Report] = {}  # last report on a batch of each query, by its id

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.states.started(self._name(event.id, event.name))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        name = self._name(event.progress.id, event.progress.name)
        report = self._last[str(event.progress.id)] = json.loads(event.progress.json)
        self.states.observe(name, report)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        name = self._name(event.id, None)
        report = self._look(name, self._last.get(str(event.id))) if self._look is not None else None
        self.states.idle(name, report)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.states.ended(self._name(event.id, None), event.exception)

    def _name(self, id: object, name: str | None) -> str:
        """Return the query's name, or its id if it has none. Only some events have the name, so we remember it."""
        if name:
            self._names[str(id)] = name
        return self._names.get(str(id), str(id))


class HasPage(Protocol):
    def page(self) -> bytes:
        """Return metrics in Prometheus' text format."""


def serve(states: HasPage, address: str) -> ThreadingHTTPServer:
    """Serve `/metrics` until `shutdown()`, in a daemon thread. Raises BadOption if the address can't be used."""
    host, _, port = address.rpartition(":")

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_ours = self.path == "/metrics"
            body = states.page() if is_ours else b"see /metrics\n"
            self.send_response(200 if is_ours else 404)
            self.send_header("Content-Type", CONTENT_TYPE.decode())
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: a line for each scrape would only be noise."""

    try:
        server = ThreadingHTTPServer((host or _LOCAL, int(port)), Page)
    except (OSError, ValueError, OverflowError) as error:
        raise BadOption(f"{address}: {error}") from None
    threading.Thread(target=server.serve_forever, daemon=True, name="metrics").start()
    return server
