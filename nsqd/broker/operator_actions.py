"""An operator's actions on a channel, except pausing: empty, seek, restore, redeliver, cancel, reschedule and so on.

Each is a function of a channel. The ledger moves the messages and journals that right away. Then the channel follows
up: for example, it schedules a delivery or drops the undo of a kick. None of them waits. Long work is split into slices
by the caller (cancel_and_reschedule.py), or runs as a job (`begin_job`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from nsqd.broker.backlog import Backlog, RedeliveryCounts, Restored, without
from nsqd.broker.bitmaps import between, bitmap_of, bitmap_of_ranges, number_of_ranges, ranges_in

if TYPE_CHECKING:
    from nsqd.broker.buried import Note
    from nsqd.broker.buried_queue import BuriedJob, BuriedSelection, Verb
    from nsqd.broker.channel import Channel
    from nsqd.broker.ledger import Ledger
    from nsqd.broker.store import TopicLog

# The log may have removed most of what a backlog has before the log's first segment, so we look for the rest.
_READ_FOR_EACH: Final = 3
# A search may check this many entries for each message that the limit allows: a few dozen milliseconds at most.
_LOOKED_AT: Final = 10


class CancelOutcome(StrEnum):
    """The result of cancelling or rescheduling a message in a channel, ordered from least to most final."""

    IN_FLIGHT = "in_flight"  # unchanged
    BURIED = "buried"  # unchanged
    CANCELLED = "cancelled"  # it waited, and is finished now
    MOVED = "moved"  # it waited, and has another due time now
    DONE = "done"  # it was finished already, or was never the channel's
    UNKNOWN = "unknown"  # unchanged, because no channel has it yet


_LEAST_FINISHED: Final = list(CancelOutcome)


def least_finished(found: Iterable[CancelOutcome]) -> CancelOutcome:
    """Return the outcome for a publish of several messages: the outcome of the least finished one."""
    return min(found, key=_LEAST_FINISHED.index)


# Cancel and reschedule


def cancel(channel: Channel, sequences: BitMap64) -> dict[CancelOutcome, int]:
    """Finish the waiting messages among these, and count the outcomes. All must be before the high watermark."""
    finished = channel.ledger.finish_waiting(sequences)
    if channel.groups is not None:  # others of their groups may have waited for them
        channel.schedule_delivery()
    return _found(channel.ledger, CancelOutcome.CANCELLED, len(finished), sequences - finished)


def move(channel: Channel, sequences: BitMap64, delay_ms: int) -> dict[CancelOutcome, int]:
    """Make the waiting messages among these due after `delay_ms` (0: now), and count the outcomes."""
    turn = channel.turn
    # + 1, because the division rounds down: the message must not be due early after a crash.
    due_ms = turn.timestamp // 1_000_000 + delay_ms + 1 if delay_ms else 0
    waiting = channel.ledger.move(sequences, turn.due_from_wall(due_ms), due_ms)
    channel.buried_queue.forget_kicked(waiting)  # the undo of a kick must not bury them now
    channel.set_alarm()
    channel.schedule_delivery()
    return _found(channel.ledger, CancelOutcome.MOVED, len(waiting), sequences - waiting)


def bury(channel: Channel, places: Sequence[tuple[int, int, int]], note: Note) -> None:
    """Bury waiting messages, each given as (sequence, id, attempts). The channel must be on disk.

    Consumers haven't failed, so this doesn't pause the channel, however many are buried.
    """
    ledger, sequences = channel.ledger, BitMap64([sequence for sequence, _, _ in places])
    channel.buried_queue.forget_kicked(sequences)  # the undo of a kick must not bury them once more
    ahead = ledger.take_waiting(sequences)
    channel.buried_queue.bury(places, note)
    for start, end in ahead:
        ledger.record_skip(start, end)
    channel.schedule_delivery()


def _found(ledger: Ledger, done: CancelOutcome, count: int, others: BitMap64) -> dict[CancelOutcome, int]:
    in_flight, buried = len(ledger.in_flight.among(others)), len(ledger.buried.among(others))
    counts = (done, count), (CancelOutcome.IN_FLIGHT, in_flight), (CancelOutcome.BURIED, buried)
    found = {outcome: count for outcome, count in counts if count}
    if rest := len(others) - in_flight - buried:
        found[CancelOutcome.DONE] = rest
    return found


# Empty, seek and restore


def empty(channel: Channel) -> None:
    """Finish all messages that the channel has received so far: waiting, in flight and deferred."""
    channel.ledger.empty()
    channel.start_over()


def seek(channel: Channel, cursor: int) -> None:
    """Empty the channel and continue at `cursor`, anywhere from the log's first sequence to the high watermark."""
    channel.ledger.seek(cursor, channel.turn.wall_milliseconds)
    channel.start_over()
    channel.topic.apply_retention()  # right now, before a segment is removed that we need again


def backlog(channel: Channel, most: int) -> Backlog | None:
    """Return everything that the channel has to deliver, or None if that takes more than `most` ranges and messages."""
    ledger, end = channel.ledger, channel.feed.high_watermark
    finished = ledger.finished_ahead()
    exceptions = number_of_ranges(finished) + len(ledger.in_flight) + len(ledger.retries) + len(ledger.deferred)
    if exceptions + ledger.buried.count_ranges() > most:
        return None
    everything = list(filter(None, ledger.waiting(channel.turn.wall_milliseconds)))
    waiting = [it for it in everything if it[0] < end]
    return Backlog(
        next=ledger.oldest_ahead,
        end=end,
        finished=without(ranges_in(finished), [sequence for sequence, _, _ in waiting]),
        requeued=[(sequence, attempts) for sequence, attempts, due_ms in waiting if not due_ms],
        deferred=[entry for entry in waiting if entry[2]],
        buried=ledger.buried.ranges(0, end),
        copies=[it for it in everything if it[0] >= end],
    )


def restore_backlog(channel: Channel, backlog: Backlog, most: int) -> Restored | None:
    """Restore the messages before the backlog's end, so that they wait as in the backlog. Later ones are left alone.

    Only edited copies that a paused topic had come later. Those that are finished wait again.

    Messages that are in flight or buried now stay there. A message that was buried then and waits now, for example
    because it was kicked, still waits. Messages that are no longer in the log are left out.

    The journal entry lists each message that is in flight, or was buried then and waits now. If there are more than
    `most` of either, or searching for them would take too long, this changes nothing and returns None. The same goes if
    more than a few times `most` never delivered messages are in compacted files only.
    """
    ledger, log = channel.ledger, channel.feed.log
    assert ledger.ephemeral_batches is None, "an ephemeral channel has no log to go back to"
    ledger.record_progress()
    end, readable, buried = backlog.end, log.next_readable, ledger.buried
    held = _in_flight_before(ledger, end, most)
    kicked = _waiting_among(channel, bitmap_of_ranges(backlog.buried), most)
    if held is None or kicked is None:
        return None
    named = backlog.exceptions()
    channel.buried_queue.forget_kicked(named)
    requeued = [*backlog.requeued, *((sequence, attempts) for sequence, attempts, due_ms in kicked if not due_ms)]
    deferred = [*backlog.deferred, *(it for it in kicked if it[2])]
    replaced = _replaced_in(ledger)
    left_out = {*held, *(it[0] for it in chain(requeued, deferred) if readable(it[0]) != it[0] or it[0] in replaced)}
    if left_out:
        requeued = [it for it in requeued if it[0] not in left_out]
        deferred = [it for it in deferred if it[0] not in left_out]
    # The journal's entry lists buried messages as waiting. Normally `ChannelState.restore` leaves them buried. But if the
    # journal has lost a burial, this makes sure that the message is delivered again and doesn't vanish.
    journalled = [it for sequence, attempts in (*held.items(), *requeued) for it in (sequence, attempts, 0)]
    journalled += chain.from_iterable(deferred)
    here = buried.among(BitMap64(named))  # not among `kicked`, because they aren't buried
    if here:
        requeued = [it for it in requeued if it[0] not in here]
        deferred = [it for it in deferred if it[0] not in here]
    places = BitMap64([*held, *(it[0] for it in requeued), *(it[0] for it in deferred)])
    cursor = min(max(backlog.next, log.first), end)
    finished = bitmap_of_ranges(backlog.finished) | replaced
    # The cursor can't go back to messages in compacted files, because those are before the log's first segment. They were
    # held, so they are held again.
    early = _readable_among(
        log, bitmap_of(backlog.next, cursor) - finished - places - buried.all(), _READ_FOR_EACH * most
    )
    if early is None:
        return None
    later = between(ledger.held.all(), end, log.first)  # these stay held, for the same reason
    skipped = between(finished | places, cursor, end) | between(buried.all(), cursor, end)
    due = channel.turn.due_from_wall
    again = [(due(due_ms), sequence, attempts) for sequence, attempts, due_ms in deferred]
    ledger.restore_before(end, cursor, skipped, requeued, again, early | later, journalled)
    channel.renew_groups()
    channel.schedule_delivery()
    channel.set_alarm()
    channel.topic.rewind_to(min([ledger.cursor, *(places | early)[:1]]))
    # Count the messages that wait as in the backlog, are in flight or are buried now. `kicked` ones don't count, because
    # they were buried in the backlog.
    ahead = end - cursor - len(skipped)
    lies_buried = len(between(buried.all(), backlog.next, end) - finished) + len(between(here, 0, backlog.next))
    still_kicked = sum(it[0] not in left_out for it in kicked)
    restored = (
        ahead + len(early) + len(requeued) + len(deferred) - still_kicked + backlog.count_among(held) + lies_buried
    ) + _restore_copies(channel, backlog.copies)
    return Restored(restored, backlog.count - restored)


def _replaced_in(ledger: Ledger) -> BitMap64:
    """Return the messages that must not run again, because edited copies have run instead, or wait."""
    return ledger.edited.replaced if ledger.edited is not None else BitMap64()


def _restore_copies(channel: Channel, copies: Sequence[tuple[int, int, int]]) -> int:
    """Let the finished ones among these wait again, and return how many wait, are in flight or are buried then.

    They are edited copies that were in a paused topic. While it is paused, we take only what the cursor won't come to,
    because a document could name any message.
    """
    ledger, log, high = channel.ledger, channel.feed.log, channel.feed.high_watermark
    named = BitMap64([it[0] for it in copies])
    named &= between(named, 0, high) | channel.topic.passed_over()
    unfinished = ledger.in_flight.among(named) | ledger.buried.among(named) | ledger.retries.among(named)
    unfinished |= ledger.deferred.among(named) | ledger.waiting_among(between(named, 0, high))
    finished = named - unfinished - _replaced_in(ledger)
    again = [it for it in copies if it[0] in finished and log.next_readable(it[0]) == it[0]]
    if again:
        due = channel.turn.due_from_wall
        channel.buried_queue.forget_kicked([it[0] for it in again])
        for sequence, attempts, due_ms in again:
            if not due_ms:
                ledger.retry(sequence, attempts)
        ledger.retry_later(
            [(sequence, attempts, due(due_ms), due_ms) for sequence, attempts, due_ms in again if due_ms]
        )
        channel.topic.rewind_to(min(again)[0])
        channel.schedule_delivery()
        channel.set_alarm()
    return len(unfinished) + len(again)


def _readable_among(log: TopicLog, sequences: BitMap64, most: int) -> BitMap64 | None:
    """Return which of these messages the log still has, or None if it has more than `most`."""
    found, sequence = BitMap64(), -1
    while (place := sequences.rank(sequence) if sequence >= 0 else 0) < len(sequences):
        wanted = sequences[place]
        sequence = log.next_kept(wanted)
        if sequence != wanted:
            sequence -= 1
            continue
        found.add(wanted)
        if len(found) > most:
            return None
    return found


def _in_flight_before(ledger: Ledger, end: int, most: int) -> dict[int, int] | None:
    """Return the attempts of each message in flight before `end`, or None if there are too many."""
    count = len(ledger.in_flight.before(end))
    if count > most or (count and len(ledger.in_flight) > _LOOKED_AT * most):
        return None
    return ledger.in_flight.attempts_before(end) if count else {}


def _waiting_among(channel: Channel, sequences: BitMap64, most: int) -> list[tuple[int, int, int]] | None:
    """Return (sequence, attempts, due_ms) of the waiting messages among these, or None if there are too many."""
    ledger = channel.ledger
    retried, deferred = ledger.retries.among(sequences), ledger.deferred.among(sequences)
    ahead = ledger.held.among(sequences) | ledger.ahead_among(sequences - retried - deferred)
    if len(retried) + len(deferred) + len(ahead) > most or (deferred and len(ledger.deferred) > _LOOKED_AT * most):
        return None
    found = [(sequence, ledger.retries.attempts_of(sequence), 0) for sequence in retried]
    if deferred:
        due_ms = channel.turn.wall_milliseconds
        found += [(it, attempts, due_ms(due)) for due, it, attempts in ledger.deferred.positions_of(deferred)]
    return found + [(sequence, 0, 0) for sequence in ahead]


def redeliver(channel: Channel, sequences: Iterable[int]) -> RedeliveryCounts:
    """Deliver finished messages again, with attempts counted from zero. All must be before the high watermark.

    Messages that edited copies have replaced never run again, so they count as gone.
    """
    ledger = channel.ledger
    assert ledger.ephemeral_batches is None, "an ephemeral channel has no log to go back to"
    ledger.record_progress()
    wanted = BitMap64(sequences)
    waiting = ledger.in_flight.among(wanted) | ledger.buried.among(wanted) | ledger.waiting_among(wanted)
    readable = channel.feed.log.next_readable
    replaced = _replaced_in(ledger)
    again = [sequence for sequence in wanted - waiting - replaced if readable(sequence) == sequence]
    if again:
        channel.buried_queue.forget_kicked(again)
        ledger.give_back(again)
        channel.topic.rewind_to(again[0])
        channel.schedule_delivery()
    return RedeliveryCounts(len(again), len(waiting), len(wanted) - len(waiting) - len(again))


# Buried messages


def take_buried(channel: Channel, verb: Verb, sequences: Iterable[int], kick: int = -1) -> int:
    """Kick or discard the buried messages among these. Return their number.

    `kick` continues the kick with this number, so that both parts can be undone together.
    """
    taken = channel.buried_queue.take(verb, sequences, kick)
    if taken and verb == "kick":
        channel.schedule_delivery()
    channel.wake_at(channel.buried_queue.next_step)
    return taken


def begin_job(
    channel: Channel, verb: Verb, selection: BuriedSelection, *, rate: float, who: str, force: bool = False
) -> BuriedJob:
    """Start a job that kicks or discards the selected messages step by step. No other job may be running.

    If the channel is full, a kick waits for room, unless `force` is set.
    """
    job = channel.buried_queue.begin_job(verb, selection, rate=rate, who=who, force=force)
    channel.work_on_job(channel.turn.now)
    return job


def undo_kick(channel: Channel, number: int, *, who: str) -> BuriedJob | None:
    """Undo the last kick: bury its messages again unless they have been delivered since.

    Returns None if `number` isn't the last kick's, or its undo has expired. This stops a running kick; no other job may
    be running.
    """
    job = channel.buried_queue.undo_kick(number, who=who)
    if job is not None:
        channel.work_on_job(channel.turn.now)
    return job
