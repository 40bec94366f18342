"""Shows a job's progress: a line that is rewritten on a terminal, a line now and then elsewhere, and a last line."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

if TYPE_CHECKING:
    from pyspark_nsq.tables.upkeep import Tended

_ERASE: Final = "\r\x1b[2K"
_ELSEWHERE: Final = 10.0  # seconds between lines without a terminal
_TICK: Final = 1.0  # seconds between checks of a batch's tasks
_RECENT: Final = 0.3  # weight of the last batch in the average speed


@dataclass(slots=True)
class Tally:
    """A query's reports so far."""

    batch: int = 0  # number of the last one
    rows: int = 0
    late: int = 0  # rows that arrived after their window was closed; a lower bound, see `late`
    behind: int = 0
    speed: float = 0.0  # rows a second, an average that favours recent batches
    missing: dict[str, str] = field(default_factory=dict)  # nodes, and why they count as missing

    def add(self, report: Mapping[str, Any]) -> None:
        from pyspark_nsq.reports import (  # its package imports Spark
            lag_of,
            late_rows_of,
            missing_in,
            rows_of,
            seconds_of,
        )

        rows = rows_of(report)
        seconds = seconds_of(report)
        if rows and seconds:
            speed = rows / seconds
            self.speed = speed if not self.speed else self.speed + _RECENT * (speed - self.speed)
        self.batch = int(report.get("batchId", 0))
        self.rows += rows
        self.late += late_rows_of(report)
        self.behind = lag_of(report)
        self.missing = missing_in(report)

    @property
    def seconds_left(self) -> float | None:
        """Time needed to read the present messages; None if unknown."""
        return self.behind / self.speed if self.behind and self.speed else None


@dataclass(frozen=True, slots=True)
class Tasks:
    """The number of tasks in the running stages, and how many of these are done."""

    done: int
    all: int

    def text(self, so_far: float) -> str:
        left = f", about {_spelled(so_far / self.done * (self.all - self.done))} left" if self.done else ""
        return f"{self.done} of {self.all} tasks done{left}"


@dataclass(slots=True)
class Status:
    """The status of a job; `line` puts it into words."""

    stage: str = ""
    since: float = 0.0  # start of the stage, or of the batch
    tallies: dict[str, Tally] = field(default_factory=dict)
    tasks: Tasks | None = None
    failed: list[str] = field(default_factory=list)  # names of failed jobs while others continue

    def line(self, now: float) -> str:
        """Return the status in one line. If there are several queries, show the one that is furthest behind."""
        query = max(self.tallies, key=lambda it: self.tallies[it].behind, default=None)
        parts = [self.stage if query is None else _query_line(query, self.tallies[query])]
        if len(self.tallies) > 1:
            parts.append(f"the furthest behind of {len(self.tallies)} streams")
        if self.failed:
            parts.append(f"{', '.join(self.failed)} failed")
        since = now - self.since
        if self.tasks is not None and self.tasks.all:
            parts.append(self.tasks.text(since))
        if since >= _TICK:
            is_idle = query is not None and self.tasks is None
            parts.append(f"{since:.0f} s {'ago' if is_idle else 'so far'}")
        return ", ".join(parts)


def _query_line(query: str, tally: Tally) -> str:
    """Return one query's part of the line: `land: batch 12, 60,000 rows read, 12,300/s, 3,210 behind, 1 s to go`."""
    left = tally.seconds_left
    parts = [f"batch {tally.batch}", f"{tally.rows:,} rows read", f"{tally.speed:,.0f}/s", f"{tally.behind:,} behind"]
    if left is not None:
        parts.append(f"{_spelled(left)} to go")
    if tally.late:
        parts.append(f"at least {tally.late:,} late")
    if tally.missing:
        parts.append(f"without {', '.join(tally.missing)}")
    return f"{query}: {', '.join(parts)}"


def _spelled(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


class Progress:
    """Shows a status. A thread refreshes it, so that a long stage or batch doesn't look as if the job hung."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._on_terminal = stream.isatty()
        self._lock = threading.RLock()
        self._status = Status(since=clock())
        self._last = clock()  # time of the last line
        self._is_open = False
        self._look: Callable[[], Tasks | None] = lambda: None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._renew_until_the_end, daemon=True, name="progress").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._lock:
            if self._is_open:  # the job failed, so its last status is no longer interesting
                self._put(_ERASE)
                self._is_open = False

    def stage(self, text: str, look: Callable[[], Tasks | None] = lambda: None, *, is_news: bool = True) -> None:
        """Show that a stage begins; `look` returns its progress. Without a terminal, only news is shown at once."""
        with self._lock:
            self._look = look
            self._status.stage, self._status.since = text, self._clock()
            self._status.tasks = None
            self._show(is_news=is_news)

    def tell(self, text: str) -> None:
        """Show this text as the status of a job without queries. Its tasks are still tracked."""
        with self._lock:
            self._status.stage = text
            self._show(is_news=False)

    def observe(self, query: str, report: Mapping[str, Any]) -> None:
        with self._lock:
            is_first = query not in self._status.tallies
            self._status.tallies.setdefault(query, Tally()).add(report)
            self._status.since = self._clock()
            self._status.tasks = None
            self._show(is_news=is_first)

    def observe_upkeep(self, done: Tended) -> None:
        """Show the results of an upkeep, if there are any."""
        if done.failed or done.joined or done.removed:
            self.note(str(done))

    def note(self, text: str) -> None:
        """Write a line that stays, while the job continues."""
        with self._lock:
            if not self._ended.is_set():
                self._write(text, is_last=True)
                if self._is_open:  # the next line doesn't replace it
                    self._put("\n")

    def give_up(self, prefix: str) -> None:
        """Mark the queries with this prefix as failed, so that they no longer count as behind."""
        with self._lock:
            self._status.failed.append(prefix.rstrip("."))
            for query in [it for it in self._status.tallies if it.startswith(prefix)]:
                del self._status.tallies[query]

    def finish(self, text: str) -> None:
        """Write the last line, and nothing after it."""
        with self._lock:
            self._ended.set()
            self._write(text, is_last=True)
            if self._is_open:
                self._put("\n")
                self._is_open = False

    def renew(self) -> None:
        """Check the progress of the tasks, and show it."""
        try:
            tasks = self._look()
        except Exception:  # Spark has ended: the job itself reports that, and until then the line stays
            tasks = None
        with self._lock:
            if not self._ended.is_set():
                self._status.tasks = tasks
                self._show(is_news=False)

    def _renew_until_the_end(self) -> None:
        while not self._ended.wait(_TICK):
            self.renew()

    def _show(self, *, is_news: bool) -> None:
        now = self._clock()
        if self._on_terminal or is_news or now - self._last >= _ELSEWHERE:
            self._last = now
            self._write(self._status.line(now))

    def _write(self, text: str, *, is_last: bool = False) -> None:
        if self._on_terminal:
            width = get_terminal_size().columns  # a line that wraps cannot be rewritten
            self._put(f"{_ERASE}{text if is_last else text[: width - 1]}")
            self._is_open = True
        else:
            self._put(f"{text}\n")

    def _put(self, text: str) -> None:
        """Write to the stream. The job goes on if that fails, as after `| head`, or when the disk is full."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            # Python would try to write the rest of its buffer at exit, and fail again.
            with suppress(OSError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
        except (OSError, ValueError):  # ValueError: the stream is closed
            pass
