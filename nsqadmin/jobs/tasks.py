"""One row per task, over all queues and libraries: from the snapshot, a survey of messages, and workers' reports.

A number says how much it can be trusted: exact, at least (a part wasn't read), about (estimated), or unknown. Unknown is
never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nsqadmin.jobs.run_book import percentile
from nsqadmin.jobs.survey import Kind, KindReading, QueueReading
from nsqadmin.messages.reason_groups import most_frequent

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel
    from nsqadmin.jobs.run_book import TaskRuns

NO_JOB: Final = ""  # the task of messages that are no jobs


class Trust(StrEnum):
    EXACT = "exact"
    AT_LEAST = "at least"
    ABOUT = "about"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, and how much it can be trusted."""

    value: int | None = 0  # None: unknown
    trust: Trust = Trust.EXACT

    def __add__(self, other: Quantity) -> Quantity:
        trusts = (self.trust, other.trust)
        if self.value is None or other.value is None:
            known = self.value if self.value is not None else other.value
            # What is known of a part is a lower bound of the whole, unless there is nothing of it.
            return Quantity(known, Trust.AT_LEAST) if known else UNKNOWN
        for trust in (Trust.AT_LEAST, Trust.ABOUT):
            if trust in trusts:
                return Quantity(self.value + other.value, trust)
        return Quantity(self.value + other.value)


UNKNOWN: Final = Quantity(None, Trust.UNKNOWN)
NONE: Final = Quantity()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task over all queues that a user may see."""

    name: str
    libraries: tuple[str, ...]
    queues: tuple[tuple[str, str], ...]  # topics and channels
    waiting: Quantity
    in_flight: Quantity  # with workers; some may not have started
    running: int | None  # None: not reported
    scheduled: Quantity
    retrying: Quantity
    failed: Quantity  # buried
    failed_in: tuple[tuple[str, str], ...] = ()  # the queues where some are buried
    done_a_minute: int | None = None  # None: not reported
    p50: float | None = None  # seconds
    p95: float | None = None
    error: str = ""  # the most frequent one, or the pattern of several
    error_count: int = 0
    is_reported: bool = False
    done_lately: tuple[int, ...] = ()  # runs that ended, in each half minute of the last 12; empty: not reported
    failed_lately: tuple[int, ...] = ()
    raised: int = 0  # reported failures of jobs that aren't buried, so they can only be run again
    raised_in: tuple[tuple[str, str], ...] = ()

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """Orders tasks, those that need attention first."""
        return (
            -(self.failed.value or 0) - self.raised,
            -(self.retrying.value or 0),
            -((self.waiting.value or 0) + (self.in_flight.value or 0)),
            self.name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue: as it was read for its tasks, so that their numbers add up to its own, or as in the last snapshot."""

    topic: str
    channel: str
    waiting: int
    in_flight: int
    deferred: int
    buried: int
    silent: tuple[str, ...] = ()  # nodes with last known numbers


@dataclass(slots=True)
class _Sum:
    libraries: set[str] = field(default_factory=set)
    queues: dict[tuple[str, str], None] = field(default_factory=dict)
    waiting: Quantity = NONE
    in_flight: Quantity = NONE
    scheduled: Quantity = NONE
    retrying: Quantity = NONE
    failed: Quantity = NONE
    failed_in: list[tuple[str, str]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    running: int = 0
    done: int = 0
    times: list[float] = field(default_factory=list)
    done_lately: tuple[int, ...] = ()
    failed_lately: tuple[int, ...] = ()
    is_reported: bool = False
    raised: int = 0
    raised_in: list[tuple[str, str]] = field(default_factory=list)


def queue_rows(channels: Iterable[Channel], readings: Iterable[QueueReading] = ()) -> tuple[QueueRow, ...]:
    read = {(it.topic, it.channel): it.kinds for it in readings}
    return tuple(_queue_row(it, read.get((it.topic, it.name), {})) for it in channels)


def _queue_row(it: Channel, read: Mapping[Kind, KindReading]) -> QueueRow:
    def count(kind: Kind, in_snapshot: int) -> int:
        reading = read.get(kind)
        if reading is None or not reading.is_whole:
            return in_snapshot
        return reading.total if kind is Kind.WAITING else reading.read

    return QueueRow(
        topic=it.topic,
        channel=it.name,
        waiting=count(Kind.WAITING, it.depth),
        in_flight=count(Kind.IN_FLIGHT, it.in_flight_count),
        deferred=count(Kind.DEFERRED, it.deferred_count),
        buried=count(Kind.BURIED, it.buried_count),
        silent=it.silent,
    )


def task_rows(queues: Sequence[QueueReading], reported: Iterable[TaskRuns]) -> tuple[TaskRow, ...]:
    """Return a row for each task, those that need attention first."""
    runs = list(reported)
    sums: dict[str, _Sum] = {}
    names_of: dict[tuple[str, str], set[str]] = {}
    for it in runs:
        names_of.setdefault((it.topic, it.channel), set()).add(it.name)
    for queue in queues:
        names = {name for kind in queue.kinds.values() for name in kind.by_task if name != NO_JOB}
        for name in names | names_of.get((queue.topic, queue.channel), set()):
            _add_queue(sums.setdefault(name, _Sum()), queue, name)
    for it in runs:
        _add_runs(sums.setdefault(it.name, _Sum()), it)
    return tuple(sorted((_row(name, it) for name, it in sums.items()), key=lambda row: row.rank))


def unlisted_row(name: str, queues: Iterable[QueueReading]) -> TaskRow | None:
    """Return a row without figures for a task that may be among those whose names weren't listed; None: it isn't."""
    where = tuple((it.topic, it.channel) for it in queues if it.unlisted and name not in it.names)
    if not (where and name):
        return None
    return TaskRow(
        name=name,
        libraries=(),
        queues=where,
        waiting=UNKNOWN,
        in_flight=UNKNOWN,
        running=None,
        scheduled=UNKNOWN,
        retrying=UNKNOWN,
        failed=UNKNOWN,
    )


def _add_queue(it: _Sum, queue: QueueReading, name: str) -> None:
    it.queues[queue.topic, queue.channel] = None
    if library := queue.libraries.get(name):
        it.libraries.add(library)
    it.failed += _counted(queue, Kind.BURIED, name)
    if queue.kinds[Kind.BURIED].by_task[name]:
        it.failed_in.append((queue.topic, queue.channel))
    it.in_flight += _counted(queue, Kind.IN_FLIGHT, name)
    it.waiting += _estimated(queue, name)
    deferred = _counted(queue, Kind.DEFERRED, name)
    retrying = queue.kinds[Kind.DEFERRED].retrying[name]
    if deferred.value is None:
        it.scheduled += UNKNOWN
        it.retrying += UNKNOWN
    else:
        it.scheduled += Quantity(deferred.value - retrying, deferred.trust)
        it.retrying += Quantity(retrying, deferred.trust)
    it.errors.update(queue.kinds[Kind.BURIED].errors.get(name, {}))


def _counted(queue: QueueReading, kind: Kind, name: str) -> Quantity:
    reading = queue.kinds[kind]
    count = reading.by_task[name]
    if _may_hide(queue, reading, name):
        return UNKNOWN
    if reading.is_whole:
        return Quantity(count)
    return Quantity(count, Trust.AT_LEAST) if count else UNKNOWN


def _may_hide(queue: QueueReading, reading: KindReading, name: str) -> bool:
    """Return True if jobs of this task may be among those whose names weren't listed."""
    return bool(reading.unlisted) and name not in queue.names


def _estimated(queue: QueueReading, name: str) -> Quantity:
    """Return how many messages of a task wait, by its share of those that were read."""
    reading = queue.kinds[Kind.WAITING]
    seen = reading.by_task[name]
    if _may_hide(queue, reading, name):
        return UNKNOWN
    if reading.read >= reading.total and reading.is_whole and not reading.is_guessed:
        return Quantity(seen)
    if not seen:
        return UNKNOWN  # the task may be among the others
    if not reading.is_whole:
        return Quantity(seen, Trust.AT_LEAST)
    return Quantity(round(reading.total * seen / reading.read), Trust.ABOUT)


def _add_runs(it: _Sum, runs: TaskRuns) -> None:
    it.queues[runs.topic, runs.channel] = None
    it.libraries.add(runs.library)
    it.is_reported = True
    it.running += runs.running
    it.done += runs.done_a_minute
    it.times += runs.times
    it.done_lately = _together(it.done_lately, runs.done_lately)
    it.failed_lately = _together(it.failed_lately, runs.failed_lately)
    it.raised += runs.raised
    if runs.raised:
        it.raised_in.append((runs.topic, runs.channel))


def _together(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(sum, zip(one, other, strict=True))) if one and other else one or other


def _row(name: str, it: _Sum) -> TaskRow:
    times = tuple(it.times)
    p50, p95 = percentile(times, 0.5), percentile(times, 0.95)
    error, count = next(iter(most_frequent(it.errors, 1)), ("", 0))
    return TaskRow(
        name=name,
        libraries=tuple(sorted(it.libraries - {""})),
        queues=tuple(it.queues),
        waiting=it.waiting,
        in_flight=it.in_flight,
        running=it.running if it.is_reported else None,
        scheduled=it.scheduled,
        retrying=it.retrying,
        failed=it.failed,
        failed_in=tuple(it.failed_in),
        done_a_minute=it.done if it.is_reported else None,
        p50=p50 / 1000 if p50 is not None else None,
        p95=p95 / 1000 if p95 is not None else None,
        error=error,
        error_count=count,
        is_reported=it.is_reported,
        done_lately=it.done_lately,
        failed_lately=it.failed_lately,
        raised=it.raised,
        raised_in=tuple(it.raised_in),
    )
