"""Reports the runs of jobs, for `report=True`: see docs/decisions/0043-jobs.md.

A worker's threads only add to a `RunLog`. One thread of its own publishes what is there, so no job waits for nsqd, and
none fails because a report can't be sent: reports that find no room, or no nsqd, are dropped and counted.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from threading import Event, Lock, Thread
from traceback import format_exception
from typing import TYPE_CHECKING, Final

from nsqclient import NSQError
from nsqclient.blocking import BlockingProducer
from nsqcommon.job_reports import (
    MOST_EVENTS,
    MOST_TEXT,
    TOPIC,
    JobEvent,
    JobReport,
    State,
    encode,
    end_of,
    one_line,
    size_of,
    size_of_texts,
)
from nsqjobs.names import CHANNEL

if TYPE_CHECKING:
    from nsqjobs.addresses import Endpoint

log = logging.getLogger(__name__)

_PAUSE: Final = 0.5  # seconds between two messages, so that one has many events
_REPEAT: Final = 10.0  # seconds after which we repeat what runs, for an nsqadmin that has missed the start
_MOST_WAITING: Final = 10_000  # events
_MOST_BYTES: Final = 4 << 20  # of waiting events
_IN_A_MESSAGE: Final = 500  # events, but fewer if they have long tracebacks
_BYTES_OF_A_MESSAGE: Final = 256 << 10  # of the ends of runs; nsqd takes a megabyte
_MOST_OF_A_MESSAGE: Final = 900_000  # bytes, with the starts
_RETRY_TIMEOUT: Final = 2.0  # seconds for one message
_REST: Final = 5.0  # seconds after a failure
_TTL: Final = {"nsq-ttl": b"60000"}  # milliseconds: older news mislead
_GOODBYE: Final = 2.0  # seconds for the last message


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One run of a job by this worker. Each is only equal to itself."""

    library: str
    name: str
    id: str
    topic: str
    started_at: float  # seconds since 1970
    message: str = ""
    attempts: int = 1
    retries: int = 0
    pid: int = 0  # of the process that runs it; 0: this one

    def event(
        self,
        state: State,
        host: str,
        pid: int,
        *,
        ms: float | None = None,
        outcome: str = "",
        error: str = "",
        traceback: str = "",
    ) -> JobEvent:
        return JobEvent(
            state=state,
            name=self.name[:MOST_TEXT],
            id=self.id[:MOST_TEXT],
            library=self.library,
            topic=self.topic,
            channel=CHANNEL,
            worker=f"{host}:{self.pid or pid}",
            started_at=self.started_at,
            message=self.message,
            attempts=self.attempts,
            retries=self.retries,
            ms=ms,
            outcome=outcome,
            error=error,
            traceback=end_of(traceback),
        )


class RunLog:
    """What one process has to report. Any thread may call it; nothing in it waits."""

    def __init__(self, host: str, pid: int) -> None:
        self._host = host
        self._pid = pid
        self._lock = Lock()
        self._running: dict[Run, bool] = {}  # True: its start was reported
        self._ended: deque[tuple[JobEvent, int]] = deque()  # with their sizes
        self._bytes = 0  # of `_ended`
        self._dropped = 0
        self._owes_whole = False  # the end of a run was dropped, so we have to say what still runs
        self._repeat_at = 0.0

    @property
    def is_idle(self) -> bool:
        return not self._running

    def start(self, run: Run) -> None:
        with self._lock:
            if len(self._running) < _MOST_WAITING:
                self._running[run] = False
            else:
                self._dropped += 1

    def end(
        self,
        run: Run,
        state: State,
        *,
        outcome: str,
        error: str = "",
        traceback: str = "",
        ms: float | None = None,
    ) -> None:
        """Record the end of a run. Only the first one counts."""
        took = max(0.0, (time.time() - run.started_at) * 1000) if ms is None else ms
        event = run.event(state, self._host, self._pid, ms=took, outcome=outcome, error=error, traceback=traceback)
        size = size_of(event)
        with self._lock:
            was_reported = self._running.pop(run, None)
            if was_reported is None:
                return
            if len(self._ended) >= _MOST_WAITING or self._bytes + size > _MOST_BYTES:
                self._drop(1, was_reported=was_reported)
                return
            self._bytes += size
            self._ended.append((event, size))

    def forget_all(self) -> None:
        """Record that nothing runs here any more: the worker ends, and gives back its jobs."""
        with self._lock:
            self._owes_whole = self._owes_whole or any(self._running.values())
            self._running.clear()

    def take(self, now: float) -> Iterator[JobReport]:
        """Yield the reports to publish now. Each is taken out when it is asked for."""
        if now >= self._repeat_at:
            self._repeat_at = now + _REPEAT
            self._repeat()
        while (report := self._next()) is not None:
            yield report

    def _repeat(self) -> None:
        with self._lock:
            if len(self._running) > MOST_EVENTS:  # in several messages, none of which is whole
                self._running = dict.fromkeys(self._running, False)
            else:
                self._owes_whole = self._owes_whole or bool(self._running)

    def _next(self) -> JobReport | None:
        with self._lock:
            ended, size = self._oldest()
            room = MOST_EVENTS - len(ended) if not self._ended else 0
            started = [run for run, reported in self._running.items() if not reported]
            is_whole = False
            if self._owes_whole and not self._ended:
                self._owes_whole = False  # it is said now, or too many run to say it
                is_whole = len(_fitting(self._running, room, size)) == len(self._running)
            started = list(self._running) if is_whole else _fitting(started, room, size)
            if not (ended or started or is_whole):
                return None
            self._running.update(dict.fromkeys(started, True))
            dropped = self._dropped
        news = [run.event(State.STARTED, self._host, self._pid) for run in started]
        worker = f"{self._host}:{self._pid}"
        return JobReport(worker=worker, events=(*ended, *news), is_whole=is_whole, dropped=dropped)

    def _oldest(self) -> tuple[list[JobEvent], int]:
        """Take events for one message, and return them with their size. The caller has the lock."""
        events: list[JobEvent] = []
        size = 0
        while self._ended and len(events) < _IN_A_MESSAGE and size < _BYTES_OF_A_MESSAGE:
            event, bytes_of_it = self._ended.popleft()
            self._bytes -= bytes_of_it
            size += bytes_of_it
            events.append(event)
        return events, size

    def lost(self, report: JobReport) -> None:
        """Count the events of a report that could not be published."""
        with self._lock:
            self._drop(len(report.events), was_reported=True)

    def _drop(self, count: int, *, was_reported: bool) -> None:
        self._dropped += count
        self._owes_whole = self._owes_whole or was_reported


def _fitting(runs: Iterable[Run], room: int, size: int) -> list[Run]:
    """Return the first runs for which a message of this size has room."""
    found: list[Run] = []
    for run in islice(runs, room):
        size += size_of_texts(run.name[:MOST_TEXT], run.id[:MOST_TEXT])
        if size > _MOST_OF_A_MESSAGE:
            break
        found.append(run)
    return found


class Reporter:
    """Reports this process's runs. A forked process starts from scratch, without its parent's thread and runs."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._host = socket.gethostname().partition(".")[0][:MOST_TEXT] or "localhost"
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._log = RunLog(self._host, self._pid)
        self._lock = Lock()
        self._thread: Thread | None = None
        self._news = Event()
        self._closing = Event()
        self._producer = BlockingProducer(
            self._endpoint.nodes(), config=self._endpoint.config, retry_timeout=_RETRY_TIMEOUT
        )

    def start(self, run: Run) -> None:
        """Record the start of a run."""
        if self._pid != os.getpid():
            self._begin()
        self._log.start(run)
        self._notify()

    def succeeded(self, run: Run, *, outcome: str = "finished", ms: float | None = None) -> None:
        self._end(run, State.SUCCEEDED, outcome=outcome, ms=ms)

    def failed(self, run: Run, error: BaseException | str, *, outcome: str, traceback: str = "") -> None:
        """Record the end of a run that does not run again by itself."""
        self._end(run, State.FAILED, outcome=outcome, error=_line(error), traceback=traceback or _trace(error))

    def retrying(self, run: Run, error: BaseException | str, *, outcome: str, traceback: str = "") -> None:
        """Record the end of a run whose job runs again."""
        self._end(run, State.RETRYING, outcome=outcome, error=_line(error), traceback=traceback or _trace(error))

    def _end(
        self, run: Run, state: State, *, outcome: str, error: str = "", traceback: str = "", ms: float | None = None
    ) -> None:
        if self._pid == os.getpid():  # otherwise the run is the parent's
            self._log.end(run, state, outcome=outcome, error=error, traceback=traceback, ms=ms)
            self._notify()

    def close(self) -> None:
        """Report that nothing runs here any more, and wait a moment until that is sent. The next start begins again."""
        if self._pid != os.getpid() or (thread := self._thread) is None:
            return
        atexit.unregister(self.close)
        self._log.forget_all()
        self._closing.set()
        self._news.set()
        thread.join(_GOODBYE)
        self._begin()

    def _notify(self) -> None:
        if not self._news.is_set():
            self._news.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._begin_thread()

    def _begin_thread(self) -> None:
        thread = Thread(target=self._publish_all, name="nsqjobs.reports", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread is left, or Python ends: the job mustn't fail for that
            log.debug("cannot report jobs yet: %s", error)
            return
        self._thread = thread
        atexit.register(self.close)

    # The reporter's thread

    def _publish_all(self) -> None:
        log_of, closing, news = self._log, self._closing, self._news  # `close` makes new ones
        producer, is_away = self._producer, False
        while not closing.is_set():
            news.wait(None if log_of.is_idle else _REPEAT)
            closing.wait(_PAUSE)
            news.clear()
            has_failed = not self._publish_news(producer, log_of, warn=not is_away)
            if has_failed and not closing.wait(_REST):
                news.set()  # what has come meanwhile
            is_away = has_failed
        self._publish_news(producer, log_of, warn=not is_away)
        producer.close()

    def _publish_news(self, producer: BlockingProducer, log_of: RunLog, *, warn: bool) -> bool:
        """Publish what there is. Return False if nsqd didn't take it all."""
        for report in log_of.take(time.monotonic()):
            try:
                producer.publish(TOPIC, encode(report), headers=_TTL)
            except (NSQError, OSError) as error:
                log_of.lost(report)
                if warn:
                    log.warning("cannot report jobs, dropping reports: %s", error)
                return False
            except Exception:  # our bug: it must not end the reports of the jobs after this one
                log_of.lost(report)
                log.exception("cannot report jobs, dropping reports")
                return False
        return True


def _line(error: BaseException | str) -> str:
    return error if isinstance(error, str) else one_line(error)


def _trace(error: BaseException | str) -> str:
    return "" if isinstance(error, str) else "".join(format_exception(error))
