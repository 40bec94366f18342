"""Decides when to compact a log and applies the result. compaction/rewrite.py decides which files are worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from nsqd.log.compaction.rewrite import MOST_MARKED, CompactionJob, CompactionPlan, SegmentWithEnd

if TYPE_CHECKING:
    from nsqd.log.log_fault import LogFault
    from nsqd.log.reading.log_reader import LogReader
    from nsqd.log.segment_list import SegmentList
    from nsqd.log.segment_removal import Expiry
    from nsqd.log.writing.unsynced import Unsynced

COMPACTION_INTERVAL: Final = 1.0  # seconds until the next plan, if the last one led to a job
LONGEST_COMPACTION_INTERVAL: Final = 60.0  # after several plans without a job, or several failed jobs
COMPACTION_SHARE: Final = 100  # planning may use at most 1/100 of the processor's time
COMPACTION_SLICE: Final = 0.005  # seconds of planning before other tasks get a turn


class CompactionHost(Protocol):
    """The store as a compaction sees it."""

    compaction: dict[Compaction, None]  # logs that may have something to compact, in order

    def now(self) -> float: ...

    def wants_compaction(self, compaction: Compaction) -> None:
        """Add the log to `compaction`, and wake the task."""

    def end_compaction(self, compaction: Compaction, job: CompactionJob) -> None:
        """Log the result of the job, and pass the job to `Compaction.end`."""

    def remove(self, paths: list[Path]) -> None: ...


class Compaction:
    """The compaction of one log: copies the few needed messages out of its oldest segments and compacted files.

    We plan on the event loop and copy in a thread. This class changes compacted files and, through `Expiry`, sealed
    segments. It only reads how far the log is synced and whether the log has a fault.

    **Epochs.** A plan covers segments that every cursor has passed. Copying takes a while, and a cursor can move back
    in the meantime. For example, all cursors are at 900 and only message 17 is still waiting, so a job copies 17 out of
    the segment [0, 500). While the thread writes, an operator moves a channel back to 200. When the job ends, its file
    has message 17, but the channel now needs 200 to 499 too, and only the segment has those. So each step back starts a
    new epoch, and a job from an earlier epoch removes nothing. The next plan starts from the same files. Until then,
    message 17 exists twice, which is harmless: both copies are the same. A single finished message that is needed
    again also starts a new epoch, wherever the cursors are.
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
        self.due_at = 0.0  # when to make the next plan
        self.is_refused = False  # the last job failed because the disk refused a read
        self._folder = folder
        self._host = host
        self._segments = segments
        self._reader = reader
        self._compacted = reader.compacted
        self._expiry = expiry
        self._unsynced = unsynced
        self._fault = fault
        self._passed = 0  # the slowest channel's cursor
        self._epoch = 0  # how often `_passed` went back
        self._awaits_sync = False  # the last plan left out segments that are not synced yet
        self._pause = COMPACTION_INTERVAL  # until the next plan; doubles each time a plan leads to no job
        self._backoff = COMPACTION_INTERVAL / 2  # the pause after a failed job, before it is doubled

    def release(self, sequence: int, passed: int, unwanted: int) -> None:
        """Record new low watermarks, and schedule a plan if there may be something to compact.

        No channel needs anything before `sequence`, the slowest cursor is at `passed`, and retention keeps nothing
        before `unwanted`.
        """
        if passed < self._passed:
            self._epoch += 1
        self._passed = passed
        compacted = self._compacted
        if compacted.files and sequence >= self._segments.first:  # nothing before the segments is needed any more
            self._host.remove(compacted.take_out(compacted.files))
        if compacted.files or self._segments.ends_before(min(passed, unwanted)):
            self._host.wants_compaction(self)

    def synced(self) -> None:
        """Schedule another plan if the last one had to leave out unsynced segments."""
        if self._awaits_sync:
            self._awaits_sync = False
            self._host.wants_compaction(self)

    def begin(self) -> CompactionPlan | None:
        """Return a plan, in which you then mark every needed message, or None if there is nothing to compact.

        Only synced segments are included. If the power fails right after a job, a removed segment may reappear, and
        readers prefer it to the compacted file. So it must be complete, but an unsynced one might have holes.
        """
        if self.dropped or self._fault.error is not None:
            return None
        first = self._segments.first
        unwanted = self._expiry.unwanted_before(self._expiry.age_now())
        ended = self._segments.ended_before(min(self._passed, unwanted, first + MOST_MARKED))
        synced_tail = self._unsynced.synced_tail
        unsynced = self._unsynced.files  # after a restart without a checkpoint, also files before the synced tail
        front = list(takewhile(lambda one: one[1] <= synced_tail and one[0].path not in unsynced, ended))
        self._awaits_sync = len(front) < len(ended)
        if not front and not self._compacted:
            self.is_refused = False
            return None
        return CompactionPlan(self, [SegmentWithEnd(*one) for one in front], self._compacted.files, first, self._epoch)

    def decide(self, plan: CompactionPlan, took: float) -> CompactionJob | None:
        """Return the job to perform in a thread and pass to `end`, or None. `took` is the seconds spent on the plan."""
        if self.dropped:  # a new topic of the same name has the same folder
            return None
        job = plan.decide(self._compacted.next_number, self._folder)
        self.is_refused = self.is_refused and job is not None  # without a job, no refused read is pending
        self._pause = COMPACTION_INTERVAL if job is not None else min(2 * self._pause, LONGEST_COMPACTION_INTERVAL)
        self.due_at = self._host.now() + max(self._pause, took * COMPACTION_SHARE)
        return job

    def end(self, job: CompactionJob) -> None:
        """Remove the files that the job copied from, because their needed messages are durable elsewhere now."""
        if self.dropped:
            return
        for load in job.loads:
            self._reader.learn(load)
        self.is_refused = job.is_refused
        if job.error is not None:
            self._backoff = min(2 * self._backoff, LONGEST_COMPACTION_INTERVAL)
            self.due_at = self._host.now() + self._backoff
            return
        self._backoff = COMPACTION_INTERVAL / 2
        if not job.frees:  # damage keeps a segment from being removed: don't write the same copy every second
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
    """Compact one log, step by step. `exceptions` gives the sequences that the topic's channels still need.

    Yields None about every `stretch` seconds, so that other tasks get a turn. When it yields a job, perform the job
    before you ask for the next step, because that step applies the job's result.
    """
    plan = compaction.begin()
    if plan is None:
        host.compaction.pop(compaction, None)  # until a channel makes progress
        return
    took, began = 0.0, host.now()
    for sequences in exceptions(compaction.topic):
        plan.mark_needed(sequences)
        if (spent := host.now() - began) >= stretch:
            yield None
            took, began = took + spent, host.now()
    job = compaction.decide(plan, took + host.now() - began)
    if job is not None:
        yield job
        host.end_compaction(compaction, job)
