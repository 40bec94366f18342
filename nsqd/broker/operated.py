"""A channel as operators change it: paused, emptied, moved, given messages again, its buried messages kicked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Final

from nsqd.broker.backlog import Backlog, Redelivered, Restored, from_place, is_in, joined, without
from nsqd.broker.burials import UNDONE_IN_STEP, Job
from nsqd.broker.places import Places
from nsqd.broker.positions import SkipRanges

if TYPE_CHECKING:
    from nsqd.broker.burials import Selection, Taken, Verb
    from nsqd.broker.buried import Note


class Found(StrEnum):
    """In which state a channel had messages that somebody wants to take back or to move, the least finished first."""

    IN_FLIGHT = "in_flight"  # left as they are
    BURIED = "buried"  # left as they are
    CANCELLED = "cancelled"  # they waited, and are finished now
    MOVED = "moved"  # they waited, and are due at another time now
    DONE = "done"  # finished before, or never the channel's
    UNKNOWN = "unknown"  # nobody can tell


_LEAST_FINISHED: Final = list(Found)


def least_finished(found: Sequence[Found]) -> Found:
    """Return the finding that stands for several messages of one publish: that of the least finished one."""
    return min(found, key=_LEAST_FINISHED.index)


class Operated(Places):
    """Each operation is a change of the journal, or a job of which the journal knows. None of them waits."""

    # Operating

    def pause(self) -> None:
        self._hold(True)

    def unpause(self) -> None:
        self._hold(False)
        self.wants_attention()

    def _hold(self, paused: bool | str) -> None:
        """Pause or unpause; a text is the reason why nobody but the channel itself pauses."""
        self.paused, self.paused_why = bool(paused), paused if isinstance(paused, str) else ""
        self._record_urgent(("hold", self.topic.name, self.name, paused))

    # What is buried

    def take_buried(self, verb: Verb, sequences: Iterable[int], kick: int = -1) -> int:
        """Kick these messages back into the channel, or discard them, if they are buried. Return how many were.

        `kick`: the number of a kick of which this is a part.
        """
        taken = self._carry_out(self.burials.take(verb, sequences, kick))
        self._come_back(self.burials.next_step)
        return taken

    def begin_job(self, verb: Verb, selection: Selection, *, rate: float, who: str, force: bool = False) -> Job:
        """Kick or discard the selected messages step by step. There must be no job under way.

        A kick waits with what has no room, unless it is told to use `force`.
        """
        now, started_at = self._work.now, self._work.timestamp // 1_000_000
        job = Job(verb, selection, rate=rate, who=who, started_at=started_at, done=0, now=now, force=force)
        self.burials.begin(job)
        self._record_urgent(("job", self.topic.name, self.name, job.described()))
        self._work_on_job(now)
        return job

    def stop_job(self) -> None:
        """End the job under way, if there is one. What it has done stays done."""
        if (job := self.burials.job) is not None:
            self.burials.stop()
            if job.is_kept:
                self._record_urgent(("job", self.topic.name, self.name, []))
            self._note_job(job, "was stopped")

    def undo_kick(self, number: int, *, who: str) -> Job | None:
        """Bury again what the last kick gave back and nobody got since; None: the last kick is another one, or forgotten.

        A kick that is under way ends. There must be no other job.
        """
        kicked = self.burials.kicked
        if kicked is None or kicked.number != number:
            return None
        self.stop_job()
        job = self.burials.begin_undo(kicked, who, len(self.retries))
        self._work_on_job(self._work.now)
        return job

    def _work_on_job(self, now: float) -> None:
        self.burials.forget_kick(now)
        if (job := self.burials.job) is not None:
            if job.verb == "undo":
                self._take_back(job)
            else:
                self._take_step(job, now)
            if self.burials.job is None:
                self._note_job(job, "has ended")
            elif job.is_worth_a_note(now):
                self._note_job(job, "goes on")
        self._come_back(self.burials.next_step)

    def _take_step(self, job: Job, now: float) -> None:
        taken = self.burials.step(now, self.room())
        if taken is not None and (self._carry_out(taken) or self.burials.job is None):
            described = job.described() if self.burials.job is not None else []
            self._record_urgent(("job", self.topic.name, self.name, described))

    def _take_back(self, job: Job) -> None:
        """Look through some of what waits for messages that the kick gave back, and bury them as they were."""
        if job.kicked is None:
            return
        sequences = self.retries.turn(min(job.left, UNDONE_IN_STEP), job.kicked)
        job.left -= min(job.left, UNDONE_IN_STEP)
        if sequences:
            self._record_urgent(self.burials.bury_again(self.topic.name, self.name, job, sequences))
        if not job.left:
            self.burials.stop()

    def _note_job(self, job: Job, what: str) -> None:
        left = len(self.burials.buried)
        self._work.note(
            f"TOPIC({self.topic.name}): channel({self.name}): {job.verb} {what} messages={job.done} buried={left}"
        )

    def _carry_out(self, taken: Taken) -> int:
        sequences = taken.sequences
        if not sequences:
            return 0
        if taken.verb == "kick":
            for sequence in sequences:
                self.retries.add(sequence, 0)
            entries = [it for sequence in sequences for it in (sequence, 0, 0)]
            self._record_urgent(("wait", self.topic.name, self.name, entries))
            self.wants_attention()
        else:
            self._finished += joined([(sequence, sequence + 1) for sequence in sequences])
            self.record_progress(urgent=True)
            self._work.changed[self] = None  # the log may be able to remove something
        return len(sequences)

    def _is_last(self, attempts: int) -> bool:
        """Return whether a message that was delivered so often is not to be delivered again."""
        most = self.rules.max_attempts
        return most is not None and attempts >= most

    def _bury(self, places: Sequence[tuple[int, int, int]], note: Note) -> None:
        """Bury messages, each given as sequence, id and attempts, or drop them if the channel is not on disk."""
        if self.kept is not None:
            self._finished += [(sequence, sequence + 1) for sequence, _, _ in places]
            self._work.changed[self] = None
            return
        self._record_urgent(self.burials.bury(self.topic.name, self.name, places, note))

    # Taking back what waits

    def cancel(self, sequences: Sequence[int]) -> list[Found]:
        """Finish these messages, which lie before the topic's H, where they wait. Return how each was found."""
        retried = self._taken_from_retries(sequences)
        found = [self._cancel(sequence, retried) for sequence in sequences]
        self.record_progress(urgent=True)
        self._work.changed[self] = None  # the log may be able to remove something
        return found

    def _cancel(self, sequence: int, retried: dict[int, int]) -> Found:
        if self.deferred.take_out(sequence) or retried.pop(sequence, None) is not None:
            self._finished.append((sequence, sequence + 1))
            return Found.CANCELLED
        if self._is_ahead(sequence):
            self._pass_over_one(sequence)
            return Found.CANCELLED
        return self._without_waiting(sequence)

    def move(self, sequences: Sequence[int], delay_ms: int) -> list[Found]:
        """Have those of these messages that wait become due after this delay; 0: now. Return how each was found."""
        due_ms = self._work.timestamp // 1_000_000 + delay_ms + 1 if delay_ms else 0
        taken = self._taken_from_retries(sequences) | self.deferred.take(sequences)
        entries: list[int] = []
        found: list[Found] = []
        for sequence in sequences:
            if sequence in taken:
                entries += (sequence, taken.pop(sequence), due_ms)
            elif not self._is_ahead(sequence):
                found.append(self._without_waiting(sequence))
                continue
            elif delay_ms:
                self._skip_one(sequence)
                entries += (sequence, 0, due_ms)
            found.append(Found.MOVED)
        if entries:
            self._record_urgent(("wait", self.topic.name, self.name, entries))
            self.burials.forget_kicked(entries[::3])  # taking a kick back leaves them where they are put now
        for sequence, attempts in zip(entries[::3], entries[1::3], strict=True):
            if delay_ms:
                self.deferred.add(self._work.due_from_wall(due_ms), sequence, attempts)
            else:
                self.retries.add(sequence, attempts)
        self._set_alarm()
        self.wants_attention()
        return found

    def _taken_from_retries(self, sequences: Sequence[int]) -> dict[int, int]:
        """Take out those of these messages that wait to be delivered again. Return their attempts."""
        if not self.retries:
            return {}
        return self.retries.take({sequence for sequence in sequences if sequence not in self.deferred})

    def _is_ahead(self, sequence: int) -> bool:
        """Return whether the cursor is going to meet this message, which lies before H."""
        return sequence >= self._advance_over_gaps() and not self.skips.covers(sequence)

    def _without_waiting(self, sequence: int) -> Found:
        if self.in_flight.holds(sequence):
            return Found.IN_FLIGHT
        return Found.BURIED if sequence in self.burials.buried else Found.DONE

    def _pass_over_one(self, sequence: int) -> None:
        self._skip_one(sequence)
        if self.kept is not None:
            self.kept.let_go(sequence, sequence + 1)

    def _skip_one(self, sequence: int) -> None:
        self.skips.insert(sequence)
        self._record_urgent(("skip", self.topic.name, self.name, sequence, sequence + 1))

    def drop_oldest(self, count: int, arrived: int | None = None) -> None:
        """Finish so many of the messages that wait for their first delivery, because of a bound.

        The retries stay. A message there was delivered before, or an operator has given it back: somebody wants it.
        `arrived`: where the messages begin that came just now and found no room; they are counted by themselves.
        """
        end = self.topic.handed_over
        dropped = self._drop_next(count, end if arrived is None else arrived, "overflow, dropped")
        if arrived is not None:
            self._drop_next(count - dropped, end, "full, dropped")

    def drop_before(self, end: int) -> None:
        """Finish what is next before this sequence, because of a bound of the topic. The retries stay."""
        self._drop_next(end, min(end, self.topic.handed_over), "overflow, dropped")

    def _drop_next(self, count: int, end: int, cause: str) -> int:
        dropped = 0
        while dropped < count and (cursor := self._advance_over_gaps()) < end:
            stop = min(cursor + count - dropped, end)
            if (next_skip := self.skips.next_start()) is not None:
                stop = min(stop, next_skip)
            self._finished.append((cursor, stop))
            self.cursor = stop
            dropped += stop - cursor
        self._count(cause, dropped)
        self._batch = None
        self._work.changed[self] = None
        return dropped

    # Going back

    def empty(self) -> None:
        """Finish everything handed over so far: waiting, in flight, deferred."""
        self._forget_all(self.topic.handed_over)
        self._record(("empty", self.topic.name, self.name, self.cursor))

    def waits_before(self, cursor: int) -> bool:
        """Return whether `seek(cursor)` would lose a message: one before it that waits, is deferred or is in flight."""
        if self._advance_over_gaps() < cursor:
            return True
        pieces = chain(self.in_flight.sequences(), self.retries.sequences(), self.deferred.sequences())
        return any(sequence < cursor for piece in pieces for sequence in piece)

    def seek(self, cursor: int) -> None:
        """Empty the channel, and go on at `cursor`, which lies anywhere from the log's first sequence to H."""
        assert self.kept is None, "what is ephemeral has no past"
        self._counted_from = min(self._counted_from, cursor)
        self._forget_all(cursor)
        for start, end in self.burials.buried.ranges(cursor, self.topic.handed_over):
            self.skips.add(start, end)
        self._record(("seek", self.topic.name, self.name, cursor))
        self.topic.let_go()  # at once, so that no segment is removed that is needed again

    def backlog(self, most: int) -> Backlog | None:
        """Return what the channel has to deliver; None: that is more than `most` ranges and exceptions."""
        buried = self.burials.buried.ranges(0, self.topic.handed_over)
        if len(self.skips) + len(self.in_flight) + len(self.retries) + len(self.deferred) + len(buried) > most:
            return None
        waiting = list(self._all_waiting())
        return Backlog(
            next=self.cursor,
            end=self.topic.handed_over,
            finished=without(self.skips, [sequence for sequence, _, _ in waiting]),
            requeued=[(sequence, attempts) for sequence, attempts, due_ms in waiting if not due_ms],
            deferred=[entry for entry in waiting if entry[2]],
            buried=buried,
        )

    def restore_backlog(self, backlog: Backlog) -> Restored:
        """Have every message before the backlog's end wait as the backlog says, and leave the later ones as they are.

        What is in flight now stays in flight, and what is buried stays buried. A message that was buried then and waits
        now, because it was kicked or the channel was moved back, still waits. What the log no longer has is left out.
        """
        assert self.kept is None, "what is ephemeral has no past"
        self.record_progress()
        self.burials.forget_kicked(backlog.exceptions())
        end, readable, buried = backlog.end, self.topic.log.next_readable, self.burials.buried
        held = {sequence: attempts for sequence, attempts in self.in_flight.positions() if sequence < end}
        kicked = [it for it in self._all_waiting() if it[0] not in held and is_in(it[0], backlog.buried)]
        kicked += [(sequence, 0, 0) for sequence in self._ahead_among(backlog.buried)]
        requeued = [*backlog.requeued, *((sequence, attempts) for sequence, attempts, due_ms in kicked if not due_ms)]
        deferred = [*backlog.deferred, *(it for it in kicked if it[2])]
        requeued = [it for it in requeued if it[0] not in held and readable(it[0]) == it[0]]
        deferred = [it for it in deferred if it[0] not in held and readable(it[0]) == it[0]]
        # The journal is told as if nothing were buried: if it has lost a burial, the message has to come again.
        waiting = [it for sequence, attempts in (*held.items(), *requeued) for it in (sequence, attempts, 0)]
        waiting += [it for entry in deferred for it in entry]
        requeued = [it for it in requeued if it[0] not in buried]
        deferred = [it for it in deferred if it[0] not in buried]
        places = [*held, *(it[0] for it in requeued), *(it[0] for it in deferred)]
        cursor = min(max(backlog.next, self.topic.log.first), end)
        lying = buried.ranges(cursor, end)
        skipped = joined(from_place([*backlog.finished, *((place, place + 1) for place in places), *lying], cursor))
        told = without(skipped, [sequence for start, stop in lying for sequence in range(start, stop)])
        flat = [sequence for bounds in told for sequence in bounds]
        self._record(("restore", self.topic.name, self.name, cursor, end, flat, waiting))
        self._replace_before(end, cursor, skipped)
        self.retries.replace_before(end, requeued)
        due = self._work.due_from_wall
        self.deferred.replace_before(
            end, [(due(due_ms), sequence, attempts) for sequence, attempts, due_ms in deferred]
        )
        self._set_alarm()
        self.topic.need_again(min([self.cursor, *places]))
        ahead = end - cursor - sum(stop - start for start, stop in skipped)
        lies_buried = backlog.count_among_ranges(buried.ranges(backlog.next, end))
        lies_buried += sum(sequence < backlog.next and sequence in buried for sequence in backlog.exceptions())
        restored = ahead + len(requeued) + len(deferred) - len(kicked) + backlog.count_among(held) + lies_buried
        return Restored(restored, backlog.count - restored)

    def _ahead_among(self, ranges: Iterable[tuple[int, int]]) -> list[int]:
        """Return the messages of these ranges that the cursor is going to meet."""
        skips = list(self.skips)
        ahead = [range(start, end) for start, end in from_place(ranges, self.cursor)]
        return [sequence for sequences in ahead for sequence in sequences if not is_in(sequence, skips)]

    def _replace_before(self, end: int, cursor: int, skipped: list[tuple[int, int]]) -> None:
        """Move the cursor, and replace the skip ranges before `end`. What it has passed behind `end` stays passed."""
        later = [(end, self.cursor), *from_place(self.skips, max(end, self.cursor))]
        self.skips = SkipRanges()
        for start, stop in [*skipped, *later]:
            self.skips.add(start, stop)
        self._counted_from = min(self._counted_from, cursor)
        self._batch = None
        self._furthest = max(self._furthest, self.cursor, end)
        self._saved_cursor = cursor
        self.cursor = self.skips.pass_over(cursor)
        self._work.changed[self] = None
        self.wants_attention()

    def redeliver(self, sequences: Iterable[int]) -> Redelivered:
        """Have finished messages delivered once more, with attempts counted anew. They lie before the topic's H."""
        assert self.kept is None, "what is ephemeral has no past"
        self.record_progress()
        wanted = set(sequences)
        waiting: set[int] = set()
        for piece in self.exceptions():
            waiting |= wanted.intersection(piece)
        skips = list(self.skips)
        waiting |= {sequence for sequence in wanted if sequence >= self.cursor and not is_in(sequence, skips)}
        readable = self.topic.log.next_readable
        again = sorted(sequence for sequence in wanted - waiting if readable(sequence) == sequence)
        if again:
            self.burials.forget_kicked(again)
            for sequence in again:
                self.retries.add(sequence, 0)
            self._record(("wait", self.topic.name, self.name, [it for sequence in again for it in (sequence, 0, 0)]))
            self.topic.need_again(again[0])
            self.wants_attention()
        return Redelivered(len(again), len(waiting), len(wanted) - len(waiting) - len(again))

    def _forget_all(self, cursor: int) -> None:
        self.in_flight.clear()
        self.retries.clear()
        self.deferred.clear()
        self.skips.clear()
        self._finished.clear()
        if self.kept is not None:
            self.kept.clear()
        self._batch = None
        self._furthest = self.topic.handed_over
        self.cursor = self._saved_cursor = cursor
        self.burials.kicked = None  # none of its messages waits any more
        self.alarm = inf
        self._come_back(self.burials.next_step)  # a job goes on
        for consumer in self.consumers:
            consumer.in_flight = 0
        self._work.changed[self] = None  # the log may be able to remove something
        self.wants_attention()
