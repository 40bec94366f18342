"""What operators do to a channel beyond pausing it: empty and move it, take messages back, give it messages again.

Each is a function of a channel. It has the ledger change where messages are, which the journal hears at once, and then
the channel do what follows: wake consumers, forget a kick, let the log go. None of them waits. What may be long work is
cut into slices by its caller (recall.py), or is a job that goes on by itself (`begin_job`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from nsqd.broker.backlog import Backlog, RedeliveryCounts, Restored, without
from nsqd.broker.positions import between, bitmap_of_ranges

if TYPE_CHECKING:
    from nsqd.broker.buried_queue import BuriedJob, BuriedSelection, Verb
    from nsqd.broker.channel import Channel
    from nsqd.broker.ledger import Ledger

_LOOKED_AT: Final = 10  # messages for each that may be too much: some tens of milliseconds at most


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


# Taking back what waits


def cancel(channel: Channel, sequences: BitMap64) -> dict[CancelOutcome, int]:
    """Finish these messages, which lie before the topic's H, where they wait. Return how many were found how."""
    finished = channel.ledger.finish_waiting(sequences)
    return _found(channel.ledger, CancelOutcome.CANCELLED, len(finished), sequences - finished)


def move(channel: Channel, sequences: BitMap64, delay_ms: int) -> dict[CancelOutcome, int]:
    """Have those of these messages that wait become due after this delay; 0: now. Return how many were found how."""
    turn = channel.turn
    due_ms = turn.timestamp // 1_000_000 + delay_ms + 1 if delay_ms else 0
    waiting = channel.ledger.move(sequences, turn.due_from_wall(due_ms), due_ms)
    channel.buried_queue.forget_kicked(waiting)  # taking a kick back leaves them where they are put now
    channel.set_alarm()
    channel.schedule_delivery()
    return _found(channel.ledger, CancelOutcome.MOVED, len(waiting), sequences - waiting)


def _found(ledger: Ledger, done: CancelOutcome, count: int, others: BitMap64) -> dict[CancelOutcome, int]:
    in_flight, buried = len(ledger.in_flight.among(others)), len(ledger.buried.among(others))
    counts = (done, count), (CancelOutcome.IN_FLIGHT, in_flight), (CancelOutcome.BURIED, buried)
    found = {outcome: count for outcome, count in counts if count}
    if rest := len(others) - in_flight - buried:
        found[CancelOutcome.DONE] = rest
    return found


# Going back


def empty(channel: Channel) -> None:
    """Finish everything handed over so far: waiting, in flight, deferred."""
    channel.ledger.empty()
    channel.begin_anew()


def seek(channel: Channel, cursor: int) -> None:
    """Empty the channel, and go on at `cursor`, which lies anywhere from the log's first sequence to H."""
    channel.ledger.seek(cursor)
    channel.begin_anew()
    channel.topic.let_go()  # at once, so that no segment is removed that is needed again


def backlog(channel: Channel, most: int) -> Backlog | None:
    """Return what the channel has to deliver; None: that is more than `most` ranges and exceptions."""
    ledger, end = channel.ledger, channel.feed.high_watermark
    exceptions = len(ledger.skips) + len(ledger.in_flight) + len(ledger.retries) + len(ledger.deferred)
    if exceptions + ledger.buried.count_ranges() > most:
        return None
    waiting = list(filter(None, ledger.waiting(channel.turn.wall_milliseconds)))
    return Backlog(
        next=ledger.cursor,
        end=end,
        finished=without(ledger.skips, [sequence for sequence, _, _ in waiting]),
        requeued=[(sequence, attempts) for sequence, attempts, due_ms in waiting if not due_ms],
        deferred=[entry for entry in waiting if entry[2]],
        buried=ledger.buried.ranges(0, end),
    )


def restore_backlog(channel: Channel, backlog: Backlog, most: int) -> Restored | None:
    """Have every message before the backlog's end wait as the backlog says, and leave the later ones as they are.

    What is in flight now stays in flight, and what is buried stays buried. A message that was buried then and waits
    now, because it was kicked or the channel was moved back, still waits. What the log no longer has is left out.
    Return None, and change nothing, if more than `most` messages are in flight or were buried then: each of them
    is named by this change of the journal.
    """
    ledger, log = channel.ledger, channel.feed.log
    assert ledger.ephemeral_batches is None, "what is ephemeral has no past"
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
    left_out = {*held, *(it[0] for it in chain(requeued, deferred) if readable(it[0]) != it[0])}
    if left_out:
        requeued = [it for it in requeued if it[0] not in left_out]
        deferred = [it for it in deferred if it[0] not in left_out]
    # The journal is told as if nothing were buried: if it has lost a burial, the message has to come again.
    told = [it for sequence, attempts in (*held.items(), *requeued) for it in (sequence, attempts, 0)]
    told += chain.from_iterable(deferred)
    here = buried.among(BitMap64(named))  # what was kicked is not buried
    if here:
        requeued = [it for it in requeued if it[0] not in here]
        deferred = [it for it in deferred if it[0] not in here]
    places = BitMap64([*held, *(it[0] for it in requeued), *(it[0] for it in deferred)])
    cursor = min(max(backlog.next, log.first), end)
    finished = bitmap_of_ranges(backlog.finished)
    skipped = between(finished | places, cursor, end) | between(buried.all(), cursor, end)
    due = channel.turn.due_from_wall
    again = [(due(due_ms), sequence, attempts) for sequence, attempts, due_ms in deferred]
    ledger.restore_before(end, cursor, skipped, requeued, again, told)
    channel.schedule_delivery()
    channel.set_alarm()
    channel.topic.rewind_to(min(ledger.cursor, places.min()) if places else ledger.cursor)
    ahead = end - cursor - len(skipped)
    lies_buried = len(between(buried.all(), backlog.next, end) - finished) + len(between(here, 0, backlog.next))
    restored = ahead + len(requeued) + len(deferred) - len(kicked) + backlog.count_among(held) + lies_buried
    return Restored(restored, backlog.count - restored)


def _in_flight_before(ledger: Ledger, end: int, most: int) -> dict[int, int] | None:
    """Return the attempts of what is in flight before `end`; None: that is too much."""
    count = len(ledger.in_flight.before(end))
    if count > most or (count and len(ledger.in_flight) > _LOOKED_AT * most):
        return None
    return ledger.in_flight.attempts_before(end) if count else {}


def _waiting_among(channel: Channel, sequences: BitMap64, most: int) -> list[tuple[int, int, int]] | None:
    """Return sequence, attempts and due_ms of those of these messages that wait; None: that is too much."""
    ledger = channel.ledger
    retried, deferred = ledger.retries.among(sequences), ledger.deferred.among(sequences)
    ahead = ledger.ahead_among(sequences - retried - deferred)
    if len(retried) + len(deferred) + len(ahead) > most or (deferred and len(ledger.deferred) > _LOOKED_AT * most):
        return None
    found = [(sequence, ledger.retries.attempts_of(sequence), 0) for sequence in retried]
    if deferred:
        due_ms = channel.turn.wall_milliseconds
        found += [(it, attempts, due_ms(due)) for due, it, attempts in ledger.deferred.positions_of(deferred)]
    return found + [(sequence, 0, 0) for sequence in ahead]


def redeliver(channel: Channel, sequences: Iterable[int]) -> RedeliveryCounts:
    """Have finished messages delivered once more, with attempts counted anew. They lie before the topic's H."""
    ledger = channel.ledger
    assert ledger.ephemeral_batches is None, "what is ephemeral has no past"
    ledger.record_progress()
    wanted = BitMap64(sequences)
    waiting = ledger.in_flight.among(wanted) | ledger.buried.among(wanted) | ledger.waiting_among(wanted)
    readable = channel.feed.log.next_readable
    again = [sequence for sequence in wanted - waiting if readable(sequence) == sequence]
    if again:
        channel.buried_queue.forget_kicked(again)
        ledger.give_back(again)
        channel.topic.rewind_to(again[0])
        channel.schedule_delivery()
    return RedeliveryCounts(len(again), len(waiting), len(wanted) - len(waiting) - len(again))


# What is buried


def take_buried(channel: Channel, verb: Verb, sequences: Iterable[int], kick: int = -1) -> int:
    """Kick these messages back into the channel, or discard them, if they are buried. Return how many were.

    `kick`: the number of a kick of which this is a part.
    """
    taken = channel.buried_queue.take(verb, sequences, kick)
    if taken and verb == "kick":
        channel.schedule_delivery()
    channel.wake_at(channel.buried_queue.next_step)
    return taken


def begin_job(
    channel: Channel, verb: Verb, selection: BuriedSelection, *, rate: float, who: str, force: bool = False
) -> BuriedJob:
    """Kick or discard the selected messages step by step. There must be no job under way.

    A kick waits with what has no room, unless it is told to use `force`.
    """
    job = channel.buried_queue.begin_job(verb, selection, rate=rate, who=who, force=force)
    channel.work_on_job(channel.turn.now)
    return job


def undo_kick(channel: Channel, number: int, *, who: str) -> BuriedJob | None:
    """Bury again what the last kick gave back and nobody got since; None: the last kick is another one, or forgotten.

    A kick that is under way ends. There must be no other job.
    """
    job = channel.buried_queue.undo_kick(number, who=who)
    if job is not None:
        channel.work_on_job(channel.turn.now)
    return job
