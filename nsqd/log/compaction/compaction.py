"""When a log carries messages forward, and what happens with the result. See compaction/job.py for what is worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nsqd.log.compaction.job import MOST_MARKED, CompactionJob, CompactionPlan, Ended

if TYPE_CHECKING:
    from nsqd.log.expiry import Expiry
    from nsqd.log.log_fault import LogFault
    from nsqd.log.reading.log_reader import LogReader
    from nsqd.log.segment_list import SegmentList
    from nsqd.log.writing.unsynced import Unsynced

COMPACTION_INTERVAL: Final = (
    1.0  # seconds between two looks for what can be carried forward, if the last look found some
)
LONGEST_COMPACTION_INTERVAL: Final = 60.0  # after several looks that found nothing, or jobs that failed
COMPACTION_SHARE: Final = 100  # looking may take one part in this many of the processor's time
COMPACTION_SLICE: Final = 0.005  # seconds of looking at what is needed, before other tasks have their turn


class CompactionHost(Protocol):
    """What carrying forward asks of the store."""

    compaction: dict[Compaction, None]  # logs whose segments or side files could go after carrying forward

    def now(self) -> float: ...

    def wants_compaction(self, compaction: Compaction) -> None:
        """Add the log to those that `carry_forward` looks at."""

    def end_compaction(self, compaction: Compaction, job: CompactionJob) -> None:
        """Log what the job has done, and hand it back with `Carrying.end`."""

    def remove(self, paths: list[Path]) -> None: ...


class Compaction:
    """Copies the few messages still needed out of a log's oldest segments and side files, so that these can go.

    May touch side files and, through `Expiry`, the sealed segments. It reads what is synced, and whether the log is
    broken. It decides on the loop; a thread does the copying.

    **Epochs.** A plan lists what is needed of segments that every cursor has passed. Copying takes a while, and a
    cursor may go back meanwhile. Say all cursors stand at 900 and only 17 is waiting, so a job copies 17 out of the
    segment [0, 500). While the thread writes, somebody moves a channel back to 200. When the job ends, the side file
    holds 17, but the channel needs 200 to 499 as well, and only the segment has them. So each step backwards begins a
    new epoch, and a job of an earlier epoch removes nothing. The next plan carries from the same files anew; until then
    17 is in both places, which is harmless, as either copy will do. A single finished message that is needed again also
    begins a new epoch, wherever the cursors are.
    """

    def __init__(
        self,
        topic: str,
        folder: Path,
        host: CompactionHost,
        *,
        segments: SegmentList,
        reader: LogReader,
        expiry: Expiry,
        unsynced: Unsynced,
        fault: LogFault,
    ) -> None:
        self.topic = topic
        self.dropped = False  # also read by a job in its thread
        self.due_at = 0.0  # when to look next for what can be carried forward
        self.is_refused = False  # whether the disk refuses to read what the last job wanted to copy
        self._folder = folder
        self._host = host
        self._segments = segments
        self._reader = reader
        self._compacted = reader.compacted
        self._expiry = expiry
        self._unsynced = unsynced
        self._fault = fault
        self._passed = 0  # every cursor is here or beyond
        self._epoch = 0  # how often `_passed` went back
        self._awaits_sync = False  # some segments could be carried from, but are not synced
        self._pause = COMPACTION_INTERVAL  # until the next look; doubled by each look that finds nothing
        self._rest = COMPACTION_INTERVAL / 2  # the same after a job that fails; doubled by each

    def release(self, sequence: int, passed: int, unwanted: int) -> None:
        """Note that nothing before `sequence` is needed, and that every cursor is at `passed` or beyond.

        Retention does not want what lies before `unwanted`.
        """
        if passed < self._passed:
            self._epoch += 1
        self._passed = passed
        compacted = self._compacted
        if compacted and sequence >= self._segments.first:
            self._host.remove(compacted.take_out(compacted.files))
        if compacted or self._segments.ends_before(min(passed, unwanted)):
            self._host.wants_compaction(self)

    def synced(self) -> None:
        """Look again, if the last look found segments that were not synced."""
        if self._awaits_sync:
            self._awaits_sync = False
            self._host.wants_compaction(self)

    def begin(self) -> CompactionPlan | None:
        """Return a plan, which then has to be told of every message that is needed; None: there is nothing to look at.

        The plan covers only what is synced. The removal of a segment may not be durable when the power fails; then the
        segment is there again, and is read before the side file. So it must be as good as the side file.
        """
        if self.dropped or self._fault.error is not None:
            return None
        first = self._segments.first
        unwanted = self._expiry.unwanted_before(self._expiry.age_now())
        ended = self._segments.ended_before(min(self._passed, unwanted, first + MOST_MARKED))
        synced_tail = self._unsynced.synced_tail
        unsynced = self._unsynced.files  # after a start without a checkpoint, also files before the synced tail
        front = list(takewhile(lambda one: one[1] <= synced_tail and one[0].path not in unsynced, ended))
        self._awaits_sync = len(front) < len(ended)
        if not front and not self._compacted:
            self.is_refused = False
            return None
        return CompactionPlan(self, [Ended(*one) for one in front], self._compacted.files, first, self._epoch)

    def decide(self, plan: CompactionPlan, took: float) -> CompactionJob | None:
        """Return the job for a thread, for `end` to take back. `took`: seconds of work to make the plan."""
        if self.dropped:  # a new topic of the same name has the same folder
            return None
        job = plan.decide(self._compacted.next_number, self._folder)
        self.is_refused = self.is_refused and job is not None  # without a job, nothing refused has to be carried
        self._pause = COMPACTION_INTERVAL if job is not None else min(2 * self._pause, LONGEST_COMPACTION_INTERVAL)
        self.due_at = self._host.now() + max(self._pause, took * COMPACTION_SHARE)
        return job

    def end(self, job: CompactionJob) -> None:
        """Remove what the job has copied from: the needed messages are in the side file, which is durable."""
        if self.dropped:
            return
        for load in job.loads:
            self._reader.learn(load)
        self.is_refused = job.is_refused
        if job.error is not None:
            self._rest = min(2 * self._rest, LONGEST_COMPACTION_INTERVAL)
            self.due_at = self._host.now() + self._rest
            return
        self._rest = COMPACTION_INTERVAL / 2
        if not job.frees:  # because of damage; trying again every second would write the same again and again
            self.due_at = self._host.now() + LONGEST_COMPACTION_INTERVAL
        if len(job.target):
            self._compacted.add(job.target)
        if job.epoch == self._epoch:
            self._host.remove(self._compacted.take_out(job.done))
            self._expiry.remove_before(min(job.end, self._passed))


def compact(
    host: CompactionHost,
    compaction: Compaction,
    exceptions: Callable[[str], Iterable[Iterable[int]]],
    *,
    stretch: float = COMPACTION_SLICE,
) -> Iterator[CompactionJob | None]:
    """Carry forward what is worth it in one log, step by step. `exceptions`: what the topic's channels need of the log.

    Yields None after each stretch of `stretch` seconds, so that others have their turn. A job that is yielded must be
    performed before the next step is asked for, because that step takes the job's result.
    """
    plan = compaction.begin()
    if plan is None:
        host.compaction.pop(compaction, None)  # until a channel makes progress
        return
    took, began = 0.0, host.now()
    for sequences in exceptions(compaction.topic):
        plan.need(sequences)
        if (spent := host.now() - began) >= stretch:
            yield None
            took, began = took + spent, host.now()
    job = compaction.decide(plan, took + host.now() - began)
    if job is not None:
        yield job
        host.end_compaction(compaction, job)
