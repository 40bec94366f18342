"""Buries, kicks and discards a channel's messages.

Kicking or discarding more than a few thousand messages is a *job*. It runs in steps from the channel's alarm, so that
other work can run in between, and at a limited rate if you want one. The job is in the journal, so it continues after a
crash and repeats at most its last step. It only handles messages that were buried before it began: if a kicked message
fails again, the same job doesn't kick it once more.

For a while, you can undo a kick: messages that haven't been delivered since are buried again. The undo is also a job,
but a crash ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, final

from nsqd.broker.buried import BLOCK_BITS, NOTE_SHIFT, BuriedMessage, parsed_note, unpacked

if TYPE_CHECKING:
    from nsqd.broker.buried import BuriedMessages, Note
    from nsqd.broker.change import ChannelChange
    from nsqd.broker.ledger import Ledger
    from nsqd.broker.reclaimer import Reclaimer
    from nsqd.broker.turn_context import TurnContext

_STEP: Final = 2_000  # messages; a millisecond or two of work
_UNDONE_IN_STEP: Final = 2_000  # waiting messages to check; a few milliseconds, if all are buried again
_LOOKED_AT_IN_STEP: Final = 20_000  # buried messages to check, whether they are selected or not
_SHORTEST_PAUSE: Final = 0.01  # seconds between two steps of a job with a rate
_PAUSE_WITHOUT_ROOM: Final = 0.1  # seconds; consumers may have made room by then
_LOGGED_EVERY: Final = 60.0  # seconds between two log lines about a job
KEPT_FOR: Final = 600.0  # seconds after its end in which a kick can be undone

_FIELDS: Final = 8  # of a job in the journal; a forced kick has one more

_NOTHING: Final[dict[int, int]] = {}

Verb = Literal["kick", "discard"]


class BuriedSelection(NamedTuple):
    """Selects buried messages for a job. All conditions must hold."""

    before: int  # buried before this time (wall clock, milliseconds)
    reason: str = ""  # contained in the burial's reason
    limit: int = 0  # at most this many, the earliest in the log first; 0: all


class BuriedJob:
    """A kick or discard in several steps, or the undo of a kick."""

    __slots__ = (
        "_counted_from",
        "_next_log",
        "_paced_from",
        "done",
        "ended_at",
        "force",
        "kicked",
        "left",
        "next_step",
        "places",
        "rate",
        "selection",
        "started_at",
        "verb",
        "who",
    )

    def __init__(
        self,
        verb: Verb | Literal["undo"],
        selection: BuriedSelection,
        *,
        rate: float,
        who: str,
        started_at: int,
        done: int,
        now: float,
        force: bool = False,
    ) -> None:
        self.verb = verb
        self.selection = selection
        self.rate = rate  # messages per second; 0: no limit
        self.force = force  # kick messages even if the channel is full
        self.who = who  # name of the token's holder, or address of the requester
        self.started_at = started_at  # wall clock, milliseconds
        self.ended_at: int | None = None
        self.done = done
        self.places: Iterator[int | None] = iter(())  # from `BuriedMessages.selected`
        self.kicked: KickUndo | None = None  # messages that a kick has taken out, or that an undo buries again
        self.left = 0  # waiting messages that an undo still has to check
        self.next_step = now
        self._paced_from = now
        self._counted_from = done
        self._next_log = now + _LOGGED_EVERY

    def allowance(self, now: float) -> int:
        """Return how many messages the next step may take."""
        allowed = _STEP
        if self.rate:
            paced = int((now - self._paced_from) * self.rate) - (self.done - self._counted_from)
            allowed = max(0, min(allowed, paced))
        if self.selection.limit:
            allowed = min(allowed, self.selection.limit - self.done)
        return allowed

    @property
    def needs_room(self) -> bool:
        return self.verb == "kick" and not self.force

    def wait_for_room(self, now: float) -> None:
        """Postpone the next step a little. The rate counts from now on, so that we don't catch up in one burst."""
        self._paced_from, self._counted_from = now, self.done
        self.next_step = max(self.next_step, now + _PAUSE_WITHOUT_ROOM)

    def count_done(self, count: int, now: float) -> None:
        self.done += count
        self.next_step = now
        if self.rate:
            due = self._paced_from + (self.done - self._counted_from + 1) / self.rate
            self.next_step = max(due, now + _SHORTEST_PAUSE)

    def is_log_due(self, now: float) -> bool:
        """Return whether to log the job's progress now: at most every `_LOGGED_EVERY` seconds."""
        if now < self._next_log:
            return False
        self._next_log = now + _LOGGED_EVERY
        return True

    @property
    def is_kept(self) -> bool:
        """Whether the job is in the journal, and therefore continues after a crash."""
        return self.verb != "undo"

    @property
    def is_complete(self) -> bool:
        return bool(self.selection.limit) and self.done >= self.selection.limit

    def journal_fields(self) -> list[object]:
        """Return the job as it is written to the journal."""
        before, reason, limit = self.selection
        fields: list[object] = [self.verb, before, reason, limit, self.rate, self.who, self.started_at, self.done]
        return [*fields, True] if self.force else fields


def recovered_job(fields: Sequence[object], now: float) -> BuriedJob | None:
    """Return the job with these journal fields, or None if there was no job or its format is unknown."""
    force = list(fields[_FIELDS:]) == [True]
    match fields[:_FIELDS]:
        case [
            "kick" | "discard" as verb,
            int(before),
            str(reason),
            int(limit),
            int() | float() as rate,
            str(who),
            int(at),
            int(done),
        ]:
            selection = BuriedSelection(before, reason, limit)
            rate = float(rate)
            return BuriedJob(verb, selection, rate=rate, who=who, started_at=at, done=done, now=now, force=force)
    return None


class KickUndo:
    """The undo record of a kick: the messages that it took out, with their attempts, burial time and reason.

    A kick may turn out to be a mistake, for example because the consumer still has its bug, or because the selection was
    too wide. The undo buries the messages that haven't been delivered since, just as they were. The record is only in
    memory, so after a restart there is nothing to undo.

    There may be a million messages. So each costs one integer, and they are stored in blocks, because a single dict of a
    million takes too long to grow and to free.
    """

    __slots__ = ("_blocks", "_count", "_numbers", "_texts", "number", "until")

    def __init__(self, number: int) -> None:
        self.number = number  # the kick's name in requests: its start on the wall clock, in milliseconds
        self.until = inf  # when to drop the record (monotonic seconds); inf until the kick has ended
        # block number -> sequence -> number of the note, and the rest as in BuriedMessages
        self._blocks: dict[int, dict[int, int]] = {}
        self._count = 0
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._blocks.values())

    def __contains__(self, sequence: object) -> bool:
        return isinstance(sequence, int) and sequence in self._blocks.get(sequence >> BLOCK_BITS, _NOTHING)

    def keep(self, sequence: int, packed: int, note: str) -> None:
        number = self._numbers.get(note)
        if number is None:
            number = self._numbers[note] = len(self._texts)
            self._texts.append(note)
        block = self._blocks.get(sequence >> BLOCK_BITS)
        if block is None:
            block = self._blocks[sequence >> BLOCK_BITS] = {}
        self._count += sequence not in block
        block[sequence] = number << NOTE_SHIFT | packed

    def give_back(self, sequences: Iterable[int]) -> list[BuriedMessage]:
        """Remove these messages and return them as they were buried."""
        burials: list[BuriedMessage] = []
        for sequence in sequences:
            packed = self._take(sequence)
            assert packed is not None
            burials.append(unpacked(sequence, packed, parsed_note(self._texts[packed >> NOTE_SHIFT])))
        return burials

    def forget(self, sequences: Iterable[int]) -> None:
        """Forget messages that now wait for another reason, so that an undo leaves them alone."""
        for sequence in sequences:
            self._take(sequence)

    def _take(self, sequence: int) -> int | None:
        number = sequence >> BLOCK_BITS
        block = self._blocks.get(number)
        packed = block.pop(sequence, None) if block is not None else None
        if packed is not None:
            self._count -= 1
            if not block:
                del self._blocks[number]
        return packed

    def clear(self, reclaimer: Reclaimer) -> None:
        """Drop all messages. The reclaimer frees their memory bit by bit."""
        reclaimer.add_blocks(self._blocks.values())
        reclaimer.add(self._texts, self._numbers)
        self._blocks, self._count = {}, 0
        self._texts, self._numbers = [], {}


@final
class BuriedQueue:
    """Works on a channel's buried messages, immediately or in a job.

    The channel's ledger has the messages, and journals their moves.
    """

    __slots__ = ("_ledger", "_turn", "bury_count", "discard_count", "ended", "job", "kick_count", "kicked")

    def __init__(self, ledger: Ledger, turn: TurnContext[Any, Any]) -> None:
        self.job: BuriedJob | None = None
        self.ended: BuriedJob | None = None  # the last job that has ended
        self.kicked: KickUndo | None = None  # the last kick, while it can be undone
        self.bury_count = 0  # these three count from the start of nsqd
        self.kick_count = 0
        self.discard_count = 0
        self._ledger = ledger
        self._turn = turn

    @property
    def buried(self) -> BuriedMessages:
        return self._ledger.buried

    def bury(self, places: Iterable[tuple[int, int, int]], note: Note) -> None:
        """Bury messages, given as (sequence, id, attempts). If the channel is ephemeral, drop them."""
        at = self._turn.timestamp // 1_000_000
        burials = [BuriedMessage(sequence, message_id, attempts, at, note) for sequence, message_id, attempts in places]
        if self._ledger.ephemeral_batches is None:
            self.bury_count += len(burials)
        self._ledger.bury(burials)

    def take(self, verb: Verb, sequences: Iterable[int], kick: int = -1) -> int:
        """Kick or discard the buried messages among these. Return their number.

        If a kick is running, or `kick` is the number of the last one, they become part of it; otherwise this is a new
        kick.
        """
        if verb == "discard":
            return self._discard(sequences)
        if self.job is not None and self.job.kicked is not None and self.job.verb == "kick":
            return self._kick(sequences, self.job.kicked)
        last = self.kicked
        kicked = last if last is not None and last.number == kick else self._new_kick()
        kicked.until = self._turn.now + KEPT_FOR
        return self._kick(sequences, kicked)

    def _new_kick(self) -> KickUndo:
        last = self.kicked.number if self.kicked is not None else 0
        self.drop_kick()
        self.kicked = KickUndo(max(self._turn.timestamp // 1_000_000, last + 1))
        return self.kicked

    def _discard(self, sequences: Iterable[int]) -> int:
        taken = [sequence for sequence in sequences if self.buried.remove(sequence)]
        self.discard_count += len(taken)
        if taken:
            self._ledger.finish(taken)
        return len(taken)

    def _kick(self, sequences: Iterable[int], kicked: KickUndo) -> int:
        taken: list[int] = []
        for sequence in sequences:
            if (found := self.buried.take(sequence)) is not None:
                kicked.keep(sequence, *found)
                taken.append(sequence)
        self.kick_count += len(taken)
        if taken:
            self._ledger.give_back(taken)
        return len(taken)

    def clear(self) -> None:
        self.job = None
        self.drop_kick()
        self.buried.clear(self._turn.reclaimer)

    def snapshot_changes(self) -> Iterator[ChannelChange]:
        """Return changes that recreate the state as of this call in a new journal, even if you iterate later."""
        topic, channel = self._ledger.feed.name, self._ledger.name
        job: list[ChannelChange] = []
        if self.job is not None and self.job.is_kept:
            job.append(("job", topic, channel, self.job.journal_fields()))
        return chain(self.buried.changes(topic, channel), job)

    # Jobs

    def begin_job(
        self, verb: Verb, selection: BuriedSelection, *, rate: float, who: str, force: bool = False
    ) -> BuriedJob:
        """Start a job that kicks or discards the selected messages. No other job may be running.

        If the channel is full, a kick waits for room, unless `force` is set. `work_on_job` does the first step.
        """
        now, started_at = self._turn.now, self._turn.timestamp // 1_000_000
        job = BuriedJob(verb, selection, rate=rate, who=who, started_at=started_at, done=0, now=now, force=force)
        self._begin(job)
        self._journal(job)
        return job

    def resume(self, fields: Sequence[object]) -> None:
        """Continue the job that a restart has interrupted, if there is one. `fields` are as in the journal."""
        if (job := recovered_job(fields, self._turn.now)) is not None:
            self._begin(job)

    def _begin(self, job: BuriedJob) -> None:
        self.job = job
        if job.verb == "kick":
            job.kicked = self._new_kick()
        job.places = self.buried.selected(job.selection.before, job.selection.reason)

    @property
    def next_step(self) -> float:
        """When to call `work_on_job` next."""
        expiry = self.kicked.until if self.kicked is not None else inf
        return min(self.job.next_step, expiry) if self.job is not None else expiry

    def work_on_job(self, now: float, room: int | None) -> bool:
        """Do the next step of the job, if it is due. Return whether any message was kicked.

        `room` is the number of messages that fit into the channel, or None for no limit. A kick leaves the others buried
        until there is room. After the last step, `job` is None. This also drops an undo record that has expired.
        """
        if self.kicked is not None and self.kicked.until <= now:
            self.drop_kick()
        job, has_kicked = self.job, False
        if job is not None:
            if job.verb == "undo":
                self._undo_some(job)
            else:
                has_kicked = self._step(job, now, room)
            if self.job is None:
                self._log(job, "has ended")
            elif job.is_log_due(now):
                self._log(job, "is running")
        return has_kicked

    def _step(self, job: BuriedJob, now: float, room: int | None) -> bool:
        if now < job.next_step:
            return False
        wanted = allowed = job.allowance(now)
        if room is not None and job.needs_room:
            allowed = min(wanted, room)
        found: list[int] = []
        is_last = job.is_complete
        for _ in range(_LOOKED_AT_IN_STEP):
            if len(found) >= allowed:
                break
            sequence = next(job.places, -1)
            if sequence == -1:
                is_last = True
                break
            if sequence is not None:
                found.append(sequence)
        done = self._discard(found) if job.kicked is None else self._kick(found, job.kicked)
        job.count_done(done, now)
        if allowed < wanted:
            job.wait_for_room(now)
        has_kicked = bool(done) and job.verb == "kick"
        if is_last or job.is_complete:
            self._end(job)
        if done or self.job is None:
            self._journal(self.job)
        return has_kicked

    def stop_job(self) -> None:
        """Stop the job, if there is one. Its finished steps aren't undone."""
        if (job := self.job) is not None:
            self._end(job)
            if job.is_kept:
                self._journal(None)
            self._log(job, "was stopped")

    def _end(self, job: BuriedJob) -> None:
        job.ended_at = self._turn.timestamp // 1_000_000
        job.places = iter(())
        if job.kicked is not None:
            job.kicked.until = self._turn.now + KEPT_FOR
        job.kicked = None
        self.job, self.ended = None, job

    def _journal(self, job: BuriedJob | None) -> None:
        """Journal the job's progress, or its end if `job` is None."""
        fields = job.journal_fields() if job is not None else []
        self._ledger.tell(("job", self._ledger.feed.name, self._ledger.name, fields))

    def _log(self, job: BuriedJob, event: str) -> None:
        topic, name, left = self._ledger.feed.name, self._ledger.name, len(self.buried)
        self._turn.note(f"TOPIC({topic}): channel({name}): {job.verb} {event} messages={job.done} buried={left}")

    # Undoing a kick

    def undo_kick(self, number: int, *, who: str) -> BuriedJob | None:
        """Start to undo the last kick: bury its messages again unless they have been delivered since.

        Returns None if `number` isn't the last kick's, or its undo has expired. This stops a running kick; no other job
        may be running. `work_on_job` does the first step.
        """
        kicked = self.kicked
        if kicked is None or kicked.number != number:
            return None
        self.stop_job()
        now, at = self._turn.now, self._turn.timestamp // 1_000_000
        job = BuriedJob("undo", BuriedSelection(number), rate=0.0, who=who, started_at=at, done=0, now=now)
        self.job = job
        job.kicked, job.left = kicked, self._ledger.retries.entries
        if self.kicked is kicked:
            self.kicked = None
        return job

    def _undo_some(self, job: BuriedJob) -> None:
        """Check some of the waiting messages, and bury the kicked ones again, as they were."""
        kicked = job.kicked
        if kicked is None:
            return
        sequences = self._ledger.retries.turn(min(job.left, _UNDONE_IN_STEP), kicked)
        job.left -= min(job.left, _UNDONE_IN_STEP)
        if sequences:
            burials = kicked.give_back(sequences)
            job.done += len(burials)
            self.bury_count += len(burials)
            self._ledger.bury(burials)
        if not job.left:
            self._end(job)

    def forget_kicked(self, sequences: Iterable[int]) -> None:
        """Exclude these messages from the undo of a kick, because they now wait for another reason."""
        for kicked in (self.kicked, self.job.kicked if self.job is not None else None):
            if kicked is not None:
                kicked.forget(sequences)

    def drop_kick(self) -> None:
        """Drop the undo record of the last kick."""
        if self.kicked is not None:
            self.kicked.clear(self._turn.reclaimer)
            self.kicked = None
