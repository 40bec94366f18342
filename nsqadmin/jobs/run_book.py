"""What workers have reported, as far as nsqadmin keeps it: running jobs, figures by task, and the last failures.

Everything is bounded: 1,000 tasks, 10,000 running jobs, 10,000 failures in 32 MiB, 2,000 ended jobs. We say what we left
out, because a figure that misses something must not look whole.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from sys import getsizeof
from typing import Final

from nsqcommon.job_reports import JobEvent, JobReport, State

MOST_TASKS: Final = 1_000
MOST_FAILURES: Final = 10_000
MOST_BYTES: Final = 32 << 20  # of the kept failures
MOST_ENDED: Final = 2_000
MOST_OF_A_JOB: Final = 100  # failures that are shown
BURIED: Final = "buried"  # outcome of a job that stays in its queue
_MOST_RUNNING: Final = 10_000
_MOST_WORKERS: Final = 5_000
_MOST_TIMES: Final = 512  # of a task's last runs, for percentiles
_SILENT: Final = 35.0  # seconds: a worker repeats what it runs every ten
_WINDOW: Final = 60  # seconds of "done a minute"
_SLOT: Final = 5
HISTORY_STEP: Final = 30  # seconds
HISTORY_SLOTS: Final = 24  # 12 minutes, as the samples of charts
_ENVELOPE: Final = 400  # bytes of a kept event without its texts, about

Key = tuple[str, str]  # topic, and a job's id or nsqd's id of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRuns:
    """What workers have reported about one task of one topic."""

    topic: str
    channel: str
    name: str
    library: str
    succeeded: int  # since nsqadmin listens
    failed: int
    retried: int
    done_a_minute: int  # ended well or badly in the last minute
    times: tuple[float, ...]  # milliseconds of its last runs that succeeded
    running: int
    done_lately: tuple[
        int, ...
    ] = ()  # runs that ended well or badly, in each half minute of the last 12 min, as far as we were there, oldest first
    failed_lately: tuple[int, ...] = ()
    raised: int = 0  # kept failures of jobs that weren't buried


class History:
    """Runs that ended in each half minute of the last 12 minutes. It takes about 300 bytes for each of 1,000 tasks."""

    __slots__ = ("_counts", "_newest")

    def __init__(self) -> None:
        self._counts = array("I", bytes(4 * 2 * HISTORY_SLOTS))  # all of them, then the failed ones
        self._newest = 0  # half minute since 1970

    def count(self, now: float, *, has_failed: bool) -> None:
        self._go_on(now)
        at = self._newest % HISTORY_SLOTS
        self._counts[at] += 1
        self._counts[HISTORY_SLOTS + at] += has_failed

    def until(self, now: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the number of all runs in each half minute, oldest first, and of failed ones."""
        self._go_on(now)
        order = [number % HISTORY_SLOTS for number in range(self._newest + 1 - HISTORY_SLOTS, self._newest + 1)]
        return tuple(self._counts[at] for at in order), tuple(self._counts[HISTORY_SLOTS + at] for at in order)

    def _go_on(self, now: float) -> None:
        newest = int(now) // HISTORY_STEP
        for number in range(max(self._newest + 1, newest + 1 - HISTORY_SLOTS), newest + 1):
            self._counts[number % HISTORY_SLOTS] = self._counts[HISTORY_SLOTS + number % HISTORY_SLOTS] = 0
        self._newest = max(self._newest, newest)  # a clock that was set back counts in the newest one


class _Counted:
    """The figures of one task of one topic."""

    __slots__ = ("channel", "failed", "history", "library", "retried", "slots", "succeeded", "times")

    def __init__(self, event: JobEvent) -> None:
        self.channel = event.channel
        self.library = event.library
        self.succeeded = self.failed = self.retried = 0
        self.times: deque[float] = deque(maxlen=_MOST_TIMES)
        self.history = History()
        self.slots: deque[list[int]] = deque()  # [slot, runs that ended in it]

    def count(self, event: JobEvent, now: float) -> None:
        self.channel, self.library = event.channel, event.library
        if event.state is State.RETRYING:
            self.retried += 1
            return
        if event.state is State.FAILED:
            self.failed += 1
        else:
            self.succeeded += 1
            if event.ms is not None:
                self.times.append(event.ms)
        self.history.count(now, has_failed=event.state is State.FAILED)
        slot = int(now) // _SLOT
        if not self.slots or self.slots[-1][0] != slot:
            self.slots.append([slot, 0])
            self.forget_old(now)
        self.slots[-1][1] += 1

    def forget_old(self, now: float) -> None:
        oldest = (int(now) - _WINDOW) // _SLOT
        while self.slots and self.slots[0][0] <= oldest:
            self.slots.popleft()


class _Worker:
    """A process that reports."""

    __slots__ = ("dropped", "running", "seen_at")

    def __init__(self) -> None:
        self.running: dict[Key, JobEvent] = {}
        self.seen_at = 0.0
        self.dropped = 0


class RunBook:
    def __init__(self, wall: Callable[[], float]) -> None:
        self.version = 0  # changes with each report
        self.unlisted = 0  # events of tasks beyond `MOST_TASKS`
        self.is_running_cut = False  # more jobs run than we keep
        self._wall = wall
        self._running = 0  # of all workers
        self._began = int(wall())
        self._tasks: dict[tuple[str, str], _Counted] = {}
        self._workers: OrderedDict[str, _Worker] = OrderedDict()  # those heard of last at the end
        self.failed = 0  # runs since nsqadmin listens, also of tasks that aren't listed
        self._failures: OrderedDict[int, JobEvent] = OrderedDict()
        self._bytes = 0
        self._number = 0
        self._failed_at: dict[Key, list[int]] = {}  # numbers in `_failures`, by the job's id
        self._ended: OrderedDict[Key, JobEvent] = OrderedDict()  # by the job's id

    # What happens

    def observe(self, report: JobReport) -> None:
        """Note a report that has just arrived."""
        now = self._wall()
        self.version += 1
        worker = self._worker(report.worker)
        worker.seen_at, worker.dropped = now, report.dropped
        if report.is_whole:
            self._forget_running(worker)
        for event in report.events:
            if event.state is not State.FAILED and event.state is not State.RETRYING and event.traceback:
                event = replace(event, traceback="")  # only failures have room for one
            key = event.topic, event.id
            if event.state is State.STARTED:
                self._start(worker, key, event)
                self._count(event, None)
            else:
                if worker.running.pop(key, None) is not None:
                    self._running -= 1
                self._count(event, now)
                self._end(event)
        self.is_running_cut = self._running >= _MOST_RUNNING

    def _start(self, worker: _Worker, key: Key, event: JobEvent) -> None:
        if key not in worker.running:
            if self._running >= _MOST_RUNNING:
                self._forget_silent()
            if self._running >= _MOST_RUNNING:
                return
            self._running += 1
        worker.running[key] = event

    def _forget_silent(self) -> None:
        since = self._wall() - _SILENT
        for worker in self._workers.values():
            if worker.seen_at >= since:
                break
            self._forget_running(worker)

    def _forget_running(self, worker: _Worker) -> None:
        self._running -= len(worker.running)
        worker.running.clear()

    def _worker(self, name: str) -> _Worker:
        worker = self._workers.get(name)
        if worker is None:
            worker = self._workers[name] = _Worker()
            if len(self._workers) > _MOST_WORKERS:
                self._forget_running(self._workers.popitem(last=False)[1])
        self._workers.move_to_end(name)
        return worker

    def _count(self, event: JobEvent, now: float | None) -> None:
        key = event.topic, event.name
        counted = self._tasks.get(key)
        if counted is None:
            if len(self._tasks) >= MOST_TASKS:
                self.unlisted += 1
                return
            counted = self._tasks[key] = _Counted(event)
        if now is not None:
            counted.count(event, now)

    def _end(self, event: JobEvent) -> None:
        key = event.topic, event.id
        if event.state is State.SUCCEEDED:
            self._ended[key] = event
            self._ended.move_to_end(key)
            if len(self._ended) > MOST_ENDED:
                self._ended.popitem(last=False)
            return
        self.failed += event.state is State.FAILED
        self._number += 1
        self._failures[self._number] = event
        self._failed_at.setdefault(key, []).append(self._number)
        self._bytes += _size_of(event)
        while len(self._failures) > MOST_FAILURES or self._bytes > MOST_BYTES:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        number, event = self._failures.popitem(last=False)
        self._bytes -= _size_of(event)
        key = event.topic, event.id
        numbers = self._failed_at[key]
        numbers.remove(number)
        if not numbers:
            del self._failed_at[key]

    # What is known

    @property
    def has_reports(self) -> bool:
        return bool(self._workers)

    @property
    def bytes(self) -> int:
        """About how much memory the failures take."""
        return self._bytes

    @property
    def dropped(self) -> int:
        """Events that the workers heard of could not send."""
        return sum(it.dropped for it in self._workers.values())

    def queues_by_task(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, topic and channel of each task."""
        return ((name, topic, it.channel) for (topic, name), it in self._tasks.items())

    def queues(self) -> frozenset[tuple[str, str]]:
        """Return the topics and channels whose workers report."""
        return frozenset((topic, it.channel) for (topic, _), it in self._tasks.items())

    def tasks(self) -> Iterator[TaskRuns]:
        """Yield what was reported about each task."""
        now = self._wall()
        running: dict[tuple[str, str], int] = {}
        for event in self.running():
            key = event.topic, event.name
            running[key] = running.get(key, 0) + 1
        raised = Counter((event.topic, event.name) for event in self.raised())
        observed = max(
            1, int(now) // HISTORY_STEP - self._began // HISTORY_STEP + 1
        )  # half minutes; none before is known
        for (topic, name), it in self._tasks.items():
            it.forget_old(now)
            done_lately, failed_lately = (counts[-observed:] for counts in it.history.until(now))
            yield TaskRuns(
                topic=topic,
                channel=it.channel,
                name=name,
                library=it.library,
                succeeded=it.succeeded,
                failed=it.failed,
                retried=it.retried,
                done_a_minute=sum(count for _, count in it.slots),
                times=tuple(it.times),
                running=running.get((topic, name), 0),
                done_lately=done_lately,
                failed_lately=failed_lately,
                raised=raised[topic, name],
            )

    def running(self) -> Iterator[JobEvent]:
        """Yield the jobs that run now. Workers that have fallen silent count as gone."""
        since = self._wall() - _SILENT
        for worker in self._workers.values():
            if worker.seen_at >= since:
                yield from worker.running.values()

    def running_job(self, topic: str, id: str) -> JobEvent | None:
        return next((it for it in self.running() if it.id == id and it.topic == topic), None)

    def failures(self) -> Iterator[JobEvent]:
        """Yield the kept failures, the newest first; those that were retried, too."""
        return reversed(self._failures.values())

    def raised(self) -> Iterator[JobEvent]:
        """Yield the last failure of each job that failed for good and wasn't buried, the newest first.

        Such a job was acknowledged before it ran, or has no place in the queue any more for another reason. What has
        succeeded since isn't among them.
        """
        seen: set[Key] = set()
        for event in self.failures():
            key = event.topic, event.id
            if key in seen:
                continue
            seen.add(key)
            success = self._ended.get(key)
            is_away = event.state is State.FAILED and event.outcome not in ("", BURIED)
            if is_away and (success is None or success.ended_at < event.ended_at):
                yield event

    def failures_of(self, topic: str, id: str) -> tuple[JobEvent, ...]:
        """Return the last kept failures of one job, the oldest first: a job may be retried for ever."""
        return tuple(self._failures[number] for number in self._failed_at.get((topic, id), ())[-MOST_OF_A_JOB:])

    def success_of(self, topic: str, id: str) -> JobEvent | None:
        return self._ended.get((topic, id))

    def jobs_with(self, id: str) -> Iterator[JobEvent]:
        """Yield the events about jobs with this id in any topic: the running ones, then ended ones."""
        yield from (it for it in self.running() if it.id == id)
        yield from (it for (_, of), it in self._ended.items() if of == id)
        for (_, of), numbers in self._failed_at.items():
            if of == id:
                yield self._failures[numbers[-1]]


class FailureRate:
    """Failed runs a second between two questions, for the samples of charts."""

    def __init__(self, book: RunBook, wall: Callable[[], float]) -> None:
        self._book = book
        self._wall = wall
        self._asked_at = wall()
        self._failed = 0

    def since_last(self) -> float:
        now, failed = self._wall(), self._book.failed
        passed, grown = now - self._asked_at, failed - self._failed
        self._asked_at, self._failed = now, failed
        return grown / passed if passed > 0 else 0.0


def _size_of(event: JobEvent) -> int:
    # Python keeps text in 1, 2 or 4 bytes a character, by its widest one.
    texts = (
        event.name,
        event.id,
        event.library,
        event.topic,
        event.channel,
        event.worker,
        event.message,
        event.outcome,
        event.error,
        event.traceback,
    )
    return _ENVELOPE + sum(map(getsizeof, texts))


def percentile(times: tuple[float, ...], share: float) -> float | None:
    """Return the time below which this share of the runs ended; None without runs."""
    if not times:
        return None
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
