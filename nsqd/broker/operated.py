"""A channel as operators change it: paused, emptied, moved, given messages again, its buried messages kicked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyroaring import BitMap64

from nsqd.broker.backlog import Backlog, RedeliveryCounts, Restored, joined, without
from nsqd.broker.buried_queue import UNDONE_IN_STEP, BuriedJob
from nsqd.broker.ledger import Ledger
from nsqd.broker.positions import SkipRanges, between, bitmap_of_ranges, ranges_in

if TYPE_CHECKING:
    from nsqd.broker.buried import Note
    from nsqd.broker.buried_queue import BuriedSelection, TakenFromBuried, Verb
    from nsqd.broker.feed import Feed
    from nsqd.broker.turn_context import TurnContext


_LOOKED_AT: Final = 10  # messages for each that may be too much: some tens of milliseconds at most
_DROPPED_IN_TURN: Final = 1_000  # ranges between skip ranges that bounds drop, in all channels: some milliseconds


class CancelOutcome(StrEnum):
    """In which state a channel had messages that somebody wants to take back or to move, the least finished first."""

    IN_FLIGHT = "in_flight"  # left as they are
    BURIED = "buried"  # left as they are
    CANCELLED = "cancelled"  # they waited, and are finished now
    MOVED = "moved"  # they waited, and are due at another time now
    DONE = "done"  # finished before, or never the channel's
    UNKNOWN = "unknown"  # nobody can tell


_LEAST_FINISHED: Final = list(CancelOutcome)


def least_finished(found: Iterable[CancelOutcome]) -> CancelOutcome:
    """Return the finding that stands for several messages of one publish: that of the least finished one."""
    return min(found, key=_LEAST_FINISHED.index)


class LongRecall(Protocol):
    """A request that takes messages back or moves them, as far as somebody sees and stops it; see recall.py."""

    count: int  # of its messages
    done: int
    who: str
    started_at: int  # milliseconds of the wall clock
    is_stopped: bool

    @property
    def verb(self) -> str: ...

    def stop(self) -> None: ...


class Operated(Ledger):
    """Each operation is a change of the journal, or a job of which the journal knows. None of them waits."""

    def __init__(self, name: str, topic: Feed, turn: TurnContext[Any, Any], *, cursor: int, ephemeral: bool) -> None:
        super().__init__(name, topic, turn, cursor=cursor, ephemeral=ephemeral)
        self.recalls: list[LongRecall] = []  # under way here, each of more than one slice
        self.is_behind = False  # a bound has more to drop, in a later turn
        self._full_from: int | None = None  # where messages begin that found no room, while the bound is behind

    # Operating

    def pause(self) -> None:
        self._hold(True)

    def unpause(self) -> None:
        self._hold(False)
        self.schedule_delivery()

    def _hold(self, paused: bool | str) -> None:
        """Pause or unpause; a text is the reason why nobody but the channel itself pauses."""
        self.paused, self.paused_why = bool(paused), paused if isinstance(paused, str) else ""
        self._record_urgent(("hold", self.topic.name, self.name, paused))

    # What is buried

    def take_buried(self, verb: Verb, sequences: Iterable[int], kick: int = -1) -> int:
        """Kick these messages back into the channel, or discard them, if they are buried. Return how many were.

        `kick`: the number of a kick of which this is a part.
        """
        taken = self._carry_out(self.buried_queue.take(verb, sequences, kick))
        self._wake_at(self.buried_queue.next_step)
        return taken

    def begin_job(
        self, verb: Verb, selection: BuriedSelection, *, rate: float, who: str, force: bool = False
    ) -> BuriedJob:
        """Kick or discard the selected messages step by step. There must be no job under way.

        A kick waits with what has no room, unless it is told to use `force`.
        """
        now, started_at = self._turn.now, self._turn.timestamp // 1_000_000
        job = BuriedJob(verb, selection, rate=rate, who=who, started_at=started_at, done=0, now=now, force=force)
        self.buried_queue.begin(job)
        self._record_urgent(("job", self.topic.name, self.name, job.described()))
        self._work_on_job(now)
        return job

    def stop_job(self) -> None:
        """End the job under way, if there is one. What it has done stays done."""
        if (job := self.buried_queue.job) is not None:
            self.buried_queue.stop()
            if job.is_kept:
                self._record_urgent(("job", self.topic.name, self.name, []))
            self._note_job(job, "was stopped")

    def undo_kick(self, number: int, *, who: str) -> BuriedJob | None:
        """Bury again what the last kick gave back and nobody got since; None: the last kick is another one, or forgotten.

        A kick that is under way ends. There must be no other job.
        """
        kicked = self.buried_queue.kicked
        if kicked is None or kicked.number != number:
            return None
        self.stop_job()
        job = self.buried_queue.begin_undo(kicked, who, self.retries.entries)
        self._work_on_job(self._turn.now)
        return job

    def _work_on_job(self, now: float) -> None:
        self.buried_queue.forget_kick(now)
        if (job := self.buried_queue.job) is not None:
            if job.verb == "undo":
                self._take_back(job)
            else:
                self._take_step(job, now)
            if self.buried_queue.job is None:
                self._note_job(job, "has ended")
            elif job.is_worth_a_note(now):
                self._note_job(job, "goes on")
        self._wake_at(self.buried_queue.next_step)

    def _take_step(self, job: BuriedJob, now: float) -> None:
        taken = self.buried_queue.step(now, self.room())
        if taken is not None and (self._carry_out(taken) or self.buried_queue.job is None):
            described = job.described() if self.buried_queue.job is not None else []
            self._record_urgent(("job", self.topic.name, self.name, described))

    def _take_back(self, job: BuriedJob) -> None:
        """Look through some of what waits for messages that the kick gave back, and bury them as they were."""
        if job.kicked is None:
            return
        sequences = self.retries.turn(min(job.left, UNDONE_IN_STEP), job.kicked)
        job.left -= min(job.left, UNDONE_IN_STEP)
        if sequences:
            self._record_urgent(self.buried_queue.bury_again(self.topic.name, self.name, job, sequences))
        if not job.left:
            self.buried_queue.stop()

    def _note_job(self, job: BuriedJob, what: str) -> None:
        left = len(self.buried_queue.buried)
        self._turn.note(
            f"TOPIC({self.topic.name}): channel({self.name}): {job.verb} {what} messages={job.done} buried={left}"
        )

    def _carry_out(self, taken: TakenFromBuried) -> int:
        sequences = taken.sequences
        if not sequences:
            return 0
        if taken.verb == "kick":
            for sequence in sequences:
                self.retries.add(sequence, 0)
            entries = [it for sequence in sequences for it in (sequence, 0, 0)]
            self._record_urgent(("wait", self.topic.name, self.name, entries))
            self.schedule_delivery()
        else:
            self._finished += joined([(sequence, sequence + 1) for sequence in sequences])
            self.record_progress(urgent=True)
            self._turn.changed[self] = None  # the log may be able to remove something
        return len(sequences)

    def _is_last(self, attempts: int) -> bool:
        """Return whether a message that was delivered so often is not to be delivered again."""
        most = self.rules.max_attempts
        return most is not None and attempts >= most

    def _bury(self, places: Sequence[tuple[int, int, int]], note: Note) -> None:
        """Bury messages, each given as sequence, id and attempts, or drop them if the channel is not on disk."""
        if self.ephemeral_batches is not None:
            self._finished += [(sequence, sequence + 1) for sequence, _, _ in places]
            self._turn.changed[self] = None
            return
        self._record_urgent(self.buried_queue.bury(self.topic.name, self.name, places, note))

    # Taking back what waits

    def cancel(self, sequences: BitMap64) -> dict[CancelOutcome, int]:
        """Finish these messages, which lie before the topic's H, where they wait. Return how many were found how."""
        self.record_progress()
        waiting = self.deferred.take_out(sequences) | self.retries.take_out(sequences)
        self._finished += ranges_in(waiting)
        ahead = self._ahead_among(sequences - waiting)
        for start, end in ranges_in(ahead):
            self._skip(start, end)
            if self.ephemeral_batches is not None:
                self.ephemeral_batches.release(start, end)
        self.record_progress(urgent=True)
        self._turn.changed[self] = None  # the log may be able to remove something
        return self._found(CancelOutcome.CANCELLED, len(waiting) + len(ahead), sequences - waiting - ahead)

    def move(self, sequences: BitMap64, delay_ms: int) -> dict[CancelOutcome, int]:
        """Have those of these messages that wait become due after this delay; 0: now. Return how many were found how."""
        due_ms = self._turn.timestamp // 1_000_000 + delay_ms + 1 if delay_ms else 0
        retried, deferred = self.retries.among(sequences), self.deferred.among(sequences)
        ahead = self._ahead_among(sequences - retried - deferred)
        waiting = retried | deferred | ahead
        moved = waiting if delay_ms else deferred  # the others are due already, and keep their places
        entries = [it for sequence in moved for it in (sequence, self._attempts_of(sequence), due_ms)]
        if delay_ms:
            for start, end in ranges_in(ahead):
                self._skip(start, end)
        if entries:
            self._record_urgent(("wait", self.topic.name, self.name, entries))
        self.buried_queue.forget_kicked(waiting)  # taking a kick back leaves them where they are put now
        self.deferred.take_out(moved)
        self.retries.take_out(moved)
        due = self._turn.due_from_wall(due_ms)
        for sequence, attempts in zip(entries[::3], entries[1::3], strict=True):
            if delay_ms:
                self.deferred.add(due, sequence, attempts)
            else:
                self.retries.add(sequence, attempts)
        self._set_alarm()
        self.schedule_delivery()
        return self._found(CancelOutcome.MOVED, len(waiting), sequences - waiting)

    def _attempts_of(self, sequence: int) -> int:
        """Return how often a message that waits was delivered so far."""
        return self.deferred.attempts_of(sequence) or self.retries.attempts_of(sequence)

    def _ahead_among(self, sequences: BitMap64) -> BitMap64:
        """Return those of these messages, which lie before H, that the cursor is going to meet."""
        return self.skips.free_among(between(sequences, self._advance_over_gaps(), self.topic.high_watermark))

    def _found(self, done: CancelOutcome, count: int, others: BitMap64) -> dict[CancelOutcome, int]:
        in_flight, buried = len(self.in_flight.among(others)), len(self.buried_queue.buried.among(others))
        counts = (done, count), (CancelOutcome.IN_FLIGHT, in_flight), (CancelOutcome.BURIED, buried)
        found = {outcome: count for outcome, count in counts if count}
        if rest := len(others) - in_flight - buried:
            found[CancelOutcome.DONE] = rest
        return found

    def drop_oldest(self, count: int, arrived: int | None = None) -> None:
        """Finish so many of the messages that wait for their first delivery, because of a bound.

        Where they lie between very many skip ranges, a turn drops some of them, and `is_behind` tells that there are more.
        The retries stay. A message there was delivered before, or an operator has given it back: somebody wants it.
        `arrived`: where the messages begin that came just now and found no room; they are counted by themselves.
        """
        end = self.topic.high_watermark
        dropped = self._drop_next(count, end if arrived is None else arrived, "overflow, dropped")
        if arrived is not None and not self.is_behind:
            self._drop_next(count - dropped, end, "full, dropped")

    def drop_before(self, end: int) -> None:
        """Finish what is next before this sequence, because of a bound of the topic. The retries stay."""
        self._drop_next(end, min(end, self.topic.high_watermark), "overflow, dropped")

    def go_on_dropping(self) -> None:
        """Have the topic and its channels drop more, unless bounds have dropped enough in this turn."""
        if self._turn.ranges_dropped < _DROPPED_IN_TURN:
            self.topic.drop_beyond_limits()
        else:
            self._wake_at(self._turn.now)

    def _drop_next(self, count: int, end: int, cause: str) -> int:
        dropped, turn = 0, self._turn
        while dropped < count and (cursor := self._advance_over_gaps()) < end:
            if dropped and turn.ranges_dropped >= _DROPPED_IN_TURN:  # the first one is dropped in any case
                self.is_behind = True
                self.record_progress()  # of thousands of ranges, perhaps: it does not wait for those of other turns
                self._wake_at(turn.now)
                break
            turn.ranges_dropped += 1
            stop = min(cursor + count - dropped, end)
            if (next_skip := self.skips.next_start()) is not None:
                stop = min(stop, next_skip)
            self._finished.append((cursor, stop))
            self.cursor = stop
            dropped += stop - cursor
        self._count(cause, dropped)
        self._batch = None
        turn.changed[self] = None
        return dropped

    # Going back

    def empty(self) -> None:
        """Finish everything handed over so far: waiting, in flight, deferred."""
        self._forget_all(self.topic.high_watermark)
        self._record(("empty", self.topic.name, self.name, self.cursor))

    def waits_before(self, cursor: int) -> bool:
        """Return whether `seek(cursor)` would lose a message: one before it that waits, is deferred or is in flight."""
        lows = self._advance_over_gaps(), self.in_flight.lowest(), self.retries.lowest(), self.deferred.lowest()
        return any(low is not None and low < cursor for low in lows)

    def seek(self, cursor: int) -> None:
        """Empty the channel, and go on at `cursor`, which lies anywhere from the log's first sequence to H."""
        assert self.ephemeral_batches is None, "what is ephemeral has no past"
        self._counted_from = min(self._counted_from, cursor)
        self._forget_all(cursor)
        self.skips.cover(between(self.buried_queue.buried.all(), cursor, self.topic.high_watermark))
        self._record(("seek", self.topic.name, self.name, cursor))
        self.topic.let_go()  # at once, so that no segment is removed that is needed again

    def backlog(self, most: int) -> Backlog | None:
        """Return what the channel has to deliver; None: that is more than `most` ranges and exceptions."""
        exceptions = len(self.skips) + len(self.in_flight) + len(self.retries) + len(self.deferred)
        if exceptions + self.buried_queue.buried.count_ranges() > most:
            return None
        waiting = list(filter(None, self._all_waiting()))
        return Backlog(
            next=self.cursor,
            end=self.topic.high_watermark,
            finished=without(self.skips, [sequence for sequence, _, _ in waiting]),
            requeued=[(sequence, attempts) for sequence, attempts, due_ms in waiting if not due_ms],
            deferred=[entry for entry in waiting if entry[2]],
            buried=self.buried_queue.buried.ranges(0, self.topic.high_watermark),
        )

    def restore_backlog(self, backlog: Backlog, most: int) -> Restored | None:
        """Have every message before the backlog's end wait as the backlog says, and leave the later ones as they are.

        What is in flight now stays in flight, and what is buried stays buried. A message that was buried then and waits
        now, because it was kicked or the channel was moved back, still waits. What the log no longer has is left out.
        Return None, and change nothing, if more than `most` messages are in flight or were buried then: each of them
        is named by this change of the journal.
        """
        assert self.ephemeral_batches is None, "what is ephemeral has no past"
        self.record_progress()
        end, readable, buried = backlog.end, self.topic.log.next_readable, self.buried_queue.buried
        held, kicked = self._in_flight_before(end, most), self._waiting_among(bitmap_of_ranges(backlog.buried), most)
        if held is None or kicked is None:
            return None
        named = backlog.exceptions()
        self.buried_queue.forget_kicked(named)
        requeued = [*backlog.requeued, *((sequence, attempts) for sequence, attempts, due_ms in kicked if not due_ms)]
        deferred = [*backlog.deferred, *(it for it in kicked if it[2])]
        left_out = {*held, *(it[0] for it in chain(requeued, deferred) if readable(it[0]) != it[0])}
        if left_out:
            requeued = [it for it in requeued if it[0] not in left_out]
            deferred = [it for it in deferred if it[0] not in left_out]
        # The journal is told as if nothing were buried: if it has lost a burial, the message has to come again.
        waiting = [it for sequence, attempts in (*held.items(), *requeued) for it in (sequence, attempts, 0)]
        waiting += chain.from_iterable(deferred)
        here = buried.among(BitMap64(named))  # what was kicked is not buried
        if here:
            requeued = [it for it in requeued if it[0] not in here]
            deferred = [it for it in deferred if it[0] not in here]
        places = BitMap64([*held, *(it[0] for it in requeued), *(it[0] for it in deferred)])
        cursor = min(max(backlog.next, self.topic.log.first), end)
        lying, finished = between(buried.all(), cursor, end), bitmap_of_ranges(backlog.finished)
        skipped = between(finished | places, cursor, end) | lying
        flat = [sequence for bounds in ranges_in(skipped - lying) for sequence in bounds]
        self._record(("restore", self.topic.name, self.name, cursor, end, flat, waiting))
        self._replace_before(end, cursor, skipped)
        self.retries.replace_before(end, requeued)
        due = self._turn.due_from_wall
        self.deferred.replace_before(
            end, [(due(due_ms), sequence, attempts) for sequence, attempts, due_ms in deferred]
        )
        self._set_alarm()
        self.topic.rewind_to(min(self.cursor, places.min()) if places else self.cursor)
        ahead = end - cursor - len(skipped)
        lies_buried = len(between(buried.all(), backlog.next, end) - finished) + len(between(here, 0, backlog.next))
        restored = ahead + len(requeued) + len(deferred) - len(kicked) + backlog.count_among(held) + lies_buried
        return Restored(restored, backlog.count - restored)

    def _in_flight_before(self, end: int, most: int) -> dict[int, int] | None:
        """Return the attempts of what is in flight before `end`; None: that is too much."""
        count = len(self.in_flight.before(end))
        if count > most or (count and len(self.in_flight) > _LOOKED_AT * most):
            return None
        return self.in_flight.attempts_before(end) if count else {}

    def _waiting_among(self, sequences: BitMap64, most: int) -> list[tuple[int, int, int]] | None:
        """Return sequence, attempts and due_ms of those of these messages that wait; None: that is too much."""
        retried, deferred = self.retries.among(sequences), self.deferred.among(sequences)
        ahead = self._ahead_among(sequences - retried - deferred)
        if len(retried) + len(deferred) + len(ahead) > most or (deferred and len(self.deferred) > _LOOKED_AT * most):
            return None
        found = [(sequence, self.retries.attempts_of(sequence), 0) for sequence in retried]
        if deferred:
            due_ms = self._turn.wall_milliseconds
            found += [(it, attempts, due_ms(due)) for due, it, attempts in self.deferred.positions_of(deferred)]
        return found + [(sequence, 0, 0) for sequence in ahead]

    def _replace_before(self, end: int, cursor: int, skipped: BitMap64) -> None:
        """Move the cursor, and replace the skip ranges before `end`. What it has passed behind `end` stays passed."""
        later, self.skips = self.skips.behind(max(end, self.cursor)), SkipRanges()
        self.skips.cover(skipped | later)
        self.skips.add(end, self.cursor)
        self._counted_from = min(self._counted_from, cursor)
        self._batch = None
        self._furthest = max(self._furthest, self.cursor, end)
        self._saved_cursor = cursor
        self.cursor = self.skips.pass_over(cursor)
        self._turn.changed[self] = None
        self.schedule_delivery()

    def redeliver(self, sequences: Iterable[int]) -> RedeliveryCounts:
        """Have finished messages delivered once more, with attempts counted anew. They lie before the topic's H."""
        assert self.ephemeral_batches is None, "what is ephemeral has no past"
        self.record_progress()
        wanted = BitMap64(sequences)
        waiting = self.in_flight.among(wanted) | self.buried_queue.buried.among(wanted) | self._ahead_among(wanted)
        waiting |= self.retries.among(wanted) | self.deferred.among(wanted)
        readable = self.topic.log.next_readable
        again = [sequence for sequence in wanted - waiting if readable(sequence) == sequence]
        if again:
            self.buried_queue.forget_kicked(again)
            for sequence in again:
                self.retries.add(sequence, 0)
            self._record(("wait", self.topic.name, self.name, [it for sequence in again for it in (sequence, 0, 0)]))
            self.topic.rewind_to(again[0])
            self.schedule_delivery()
        return RedeliveryCounts(len(again), len(waiting), len(wanted) - len(waiting) - len(again))

    def _forget_all(self, cursor: int) -> None:
        self.in_flight.clear()
        self.retries.clear()
        self.deferred.clear()
        self.skips.clear()
        self._finished.clear()
        if self.ephemeral_batches is not None:
            self.ephemeral_batches.clear()
        self._batch = None
        self._furthest = self.topic.high_watermark
        self.cursor = self._saved_cursor = cursor
        self.buried_queue.drop_kick()  # none of its messages waits any more
        self._full_from = None
        self.alarm = inf
        self._wake_at(self._turn.now if self.is_behind else self.buried_queue.next_step)  # a bound or a job goes on
        for consumer in self.consumers:
            consumer.in_flight = 0
        self._turn.changed[self] = None  # the log may be able to remove something
        self.schedule_delivery()
