"""What becomes of the messages that a channel has buried: they are kicked, discarded, or stay.

A kick or a discard of more than a few thousand messages is a *job*. It works in steps from the channel's alarm, so that
others have their turn, and at a rate if one is given. The journal knows the job, so it goes on after a crash, and does
at most its last step again. It touches only what was buried before it began: a message that fails once more is not
kicked again by the same job.

A kick can be taken back for a while, as far as nobody got its messages yet; that is a job, too, but a crash ends it.
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
_UNDONE_IN_STEP: Final = 2_000  # waiting messages that are looked at; a few milliseconds, if all are buried again
_LOOKED_AT_IN_STEP: Final = 20_000  # messages that may be left out in one step
_SHORTEST_PAUSE: Final = 0.01  # seconds between two steps at a rate
_PAUSE_WITHOUT_ROOM: Final = 0.1  # seconds, after which consumers may have made some
_NOTED_EVERY: Final = 60.0  # seconds between two lines of the log about a job
KEPT_FOR: Final = 600.0  # seconds after a kick has ended, for which it can be taken back

_FIELDS: Final = 8  # of a job in the journal, without the one that only a kick by force has

_NOTHING: Final[dict[int, int]] = {}

Verb = Literal["kick", "discard"]


class BuriedSelection(NamedTuple):
    """Which buried messages a job is about: all, or those to which everything that is given applies."""

    before: int  # buried before this time, in milliseconds of the wall clock
    reason: str = ""  # a part of the reason
    limit: int = 0  # at most so many, the earliest in the log first; 0: all


class BuriedJob:
    """A kick or a discard that takes several steps, or a kick that is taken back."""

    __slots__ = (
        "_counted_from",
        "_next_note",
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
        self.rate = rate  # messages a second; 0: as many as possible
        self.force = force  # kick also what has no room in the channel
        self.who = who  # the holder's name, or the address that has asked for it
        self.started_at = started_at  # milliseconds of the wall clock
        self.ended_at: int | None = None
        self.done = done
        self.places: Iterator[int | None] = iter(())  # as `BuriedMessages.selected` yields them
        self.kicked: KickUndo | None = None  # of a kick: what it takes out; of an undo: what it buries again
        self.left = 0  # waiting messages that an undo has yet to look at
        self.next_step = now
        self._paced_from = now
        self._counted_from = done
        self._next_note = now + _NOTED_EVERY

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
        """Look again soon. The rate counts from now on, so that what had to wait does not come all at once."""
        self._paced_from, self._counted_from = now, self.done
        self.next_step = max(self.next_step, now + _PAUSE_WITHOUT_ROOM)

    def took(self, count: int, now: float) -> None:
        self.done += count
        self.next_step = now
        if self.rate:
            due = self._paced_from + (self.done - self._counted_from + 1) / self.rate
            self.next_step = max(due, now + _SHORTEST_PAUSE)

    def is_worth_a_note(self, now: float) -> bool:
        """Return whether the log has heard nothing of the job for long; it is told now."""
        if now < self._next_note:
            return False
        self._next_note = now + _NOTED_EVERY
        return True

    @property
    def is_kept(self) -> bool:
        """Whether the journal knows it, so that it goes on after a crash."""
        return self.verb != "undo"

    @property
    def is_complete(self) -> bool:
        return bool(self.selection.limit) and self.done >= self.selection.limit

    def described(self) -> list[object]:
        """Return what the journal keeps of it."""
        before, reason, limit = self.selection
        told: list[object] = [self.verb, before, reason, limit, self.rate, self.who, self.started_at, self.done]
        return [*told, True] if self.force else told


def recovered_job(described: Sequence[object], now: float) -> BuriedJob | None:
    force = list(described[_FIELDS:]) == [True]
    match described[:_FIELDS]:
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
    """What one kick has taken out. As of buried messages, there may be a million, so each costs one integer.

    A kick that was a mistake (the consumer is not mended yet, the selection was too wide) is taken back by burying
    again what nobody got since, with the attempts, the time and the reason of before. So what a kick takes out is kept
    for a while. It is in memory only: after a restart there is nothing to take back.

    They lie in blocks, because a single dictionary of a million takes too long to grow, and to free.
    """

    __slots__ = ("_blocks", "_count", "_numbers", "_texts", "number", "until")

    def __init__(self, number: int) -> None:
        self.number = number  # by which a request names the kick: milliseconds of the wall clock when it began
        self.until = inf  # when it is forgotten, in monotonic seconds; known once it has ended
        # By block, then by sequence: the number of the note, and the rest as it was packed.
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
        """Return what was noted of these messages, and forget them."""
        burials: list[BuriedMessage] = []
        for sequence in sequences:
            packed = self._take(sequence)
            assert packed is not None
            burials.append(unpacked(sequence, packed, parsed_note(self._texts[packed >> NOTE_SHIFT])))
        return burials

    def forget(self, sequences: Iterable[int]) -> None:
        """Forget messages that wait for another reason now."""
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
        """Forget everything."""
        reclaimer.add_blocks(self._blocks.values())
        reclaimer.add(self._texts, self._numbers)
        self._blocks, self._count = {}, 0
        self._texts, self._numbers = [], {}


@final
class BuriedQueue:
    """The buried messages of one channel, and the job that is at work on them.

    The messages themselves are in the channel's ledger, which also tells the journal where they go.
    """

    __slots__ = ("_ledger", "_turn", "bury_count", "discard_count", "ended", "job", "kick_count", "kicked")

    def __init__(self, ledger: Ledger, turn: TurnContext[Any, Any]) -> None:
        self.job: BuriedJob | None = None
        self.ended: BuriedJob | None = None  # the last one
        self.kicked: KickUndo | None = None  # the last kick, while it can be taken back
        self.bury_count = 0  # since the start, as the two others
        self.kick_count = 0
        self.discard_count = 0
        self._ledger = ledger
        self._turn = turn

    @property
    def buried(self) -> BuriedMessages:
        return self._ledger.buried

    def bury(self, places: Iterable[tuple[int, int, int]], note: Note) -> None:
        """Bury messages, each given as sequence, id and attempts, or drop them if the channel is not on disk."""
        at = self._turn.timestamp // 1_000_000
        burials = [BuriedMessage(sequence, message_id, attempts, at, note) for sequence, message_id, attempts in places]
        if self._ledger.ephemeral_batches is None:
            self.bury_count += len(burials)
        self._ledger.bury(burials)

    def take(self, verb: Verb, sequences: Iterable[int], kick: int = -1) -> int:
        """Kick these messages back into the channel, or discard them, if they are buried. Return how many were.

        `kick`: the number of a kick of which this is a part; it is the last one again, or else this is a new one.
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
        """Return the changes that tell a new journal of all this, as of this call, even if iterated later."""
        topic, channel = self._ledger.feed.name, self._ledger.name
        job: list[ChannelChange] = []
        if self.job is not None and self.job.is_kept:
            job.append(("job", topic, channel, self.job.described()))
        return chain(self.buried.changes(topic, channel), job)

    # Jobs

    def begin_job(
        self, verb: Verb, selection: BuriedSelection, *, rate: float, who: str, force: bool = False
    ) -> BuriedJob:
        """Begin to kick or discard the selected messages step by step. There must be no job under way.

        A kick waits with what has no room, unless it is told to use `force`. `work_on_job` takes the first step.
        """
        now, started_at = self._turn.now, self._turn.timestamp // 1_000_000
        job = BuriedJob(verb, selection, rate=rate, who=who, started_at=started_at, done=0, now=now, force=force)
        self._begin(job)
        self._tell(job)
        return job

    def resume(self, described: Sequence[object]) -> None:
        """Begin again with the job that a crash has interrupted, if the journal knows one."""
        if (job := recovered_job(described, self._turn.now)) is not None:
            self._begin(job)

    def _begin(self, job: BuriedJob) -> None:
        self.job = job
        if job.verb == "kick":
            job.kicked = self._new_kick()
        job.places = self.buried.selected(job.selection.before, job.selection.reason)

    @property
    def next_step(self) -> float:
        """When something is to be done here next."""
        forgets = self.kicked.until if self.kicked is not None else inf
        return min(self.job.next_step, forgets) if self.job is not None else forgets

    def work_on_job(self, now: float, room: int | None) -> bool:
        """Take the next step of the job under way, if it is time. Return whether that has kicked anything.

        `room`: how many messages fit into the channel; None: any number. A kick leaves the others buried until they fit.
        Afterwards `job` is None if that was the last step. A kick that can no longer be taken back is forgotten.
        """
        if self.kicked is not None and self.kicked.until <= now:
            self.drop_kick()
        job, has_kicked = self.job, False
        if job is not None:
            if job.verb == "undo":
                self._take_back(job)
            else:
                has_kicked = self._step(job, now, room)
            if self.job is None:
                self._note(job, "has ended")
            elif job.is_worth_a_note(now):
                self._note(job, "goes on")
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
        job.took(done, now)
        if allowed < wanted:
            job.wait_for_room(now)
        has_kicked = bool(done) and job.verb == "kick"
        if is_last or job.is_complete:
            self._end(job)
        if done or self.job is None:
            self._tell(self.job)
        return has_kicked

    def stop_job(self) -> None:
        """End the job under way, if there is one. What it has done stays done."""
        if (job := self.job) is not None:
            self._end(job)
            if job.is_kept:
                self._tell(None)
            self._note(job, "was stopped")

    def _end(self, job: BuriedJob) -> None:
        job.ended_at = self._turn.timestamp // 1_000_000
        job.places = iter(())
        if job.kicked is not None:
            job.kicked.until = self._turn.now + KEPT_FOR
        job.kicked = None
        self.job, self.ended = None, job

    def _tell(self, job: BuriedJob | None) -> None:
        """Tell the journal how far the job is; None: there is none any more."""
        described = job.described() if job is not None else []
        self._ledger.tell(("job", self._ledger.feed.name, self._ledger.name, described))

    def _note(self, job: BuriedJob, what: str) -> None:
        topic, name, left = self._ledger.feed.name, self._ledger.name, len(self.buried)
        self._turn.note(f"TOPIC({topic}): channel({name}): {job.verb} {what} messages={job.done} buried={left}")

    # Taking a kick back

    def undo_kick(self, number: int, *, who: str) -> BuriedJob | None:
        """Begin to bury again what the last kick gave back and nobody got since; None: it is another one, or forgotten.

        A kick that is under way ends. There must be no other job. `work_on_job` takes the first step.
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

    def _take_back(self, job: BuriedJob) -> None:
        """Look through some of what waits for messages that the kick gave back, and bury them as they were."""
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
        """Let messages that wait for another reason now wait, even if a kick is taken back."""
        for kicked in (self.kicked, self.job.kicked if self.job is not None else None):
            if kicked is not None:
                kicked.forget(sequences)

    def drop_kick(self) -> None:
        """Have no kick that can be taken back."""
        if self.kicked is not None:
            self.kicked.clear(self._turn.reclaimer)
            self.kicked = None
