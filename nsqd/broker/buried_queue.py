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
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from nsqd.broker.buried import BuriedMessage, BuriedMessages, Note, bury_change
from nsqd.broker.kick_undo import KEPT_FOR, KickUndo

if TYPE_CHECKING:
    from nsqd.broker.change import ChannelChange
    from nsqd.broker.turn_context import TurnContext

_STEP: Final = 2_000  # messages; a millisecond or two of work
UNDONE_IN_STEP: Final = 2_000  # waiting messages that are looked at; a few milliseconds, if all are buried again
_LOOKED_AT_IN_STEP: Final = 20_000  # messages that may be left out in one step
_SHORTEST_PAUSE: Final = 0.01  # seconds between two steps at a rate
_PAUSE_WITHOUT_ROOM: Final = 0.1  # seconds, after which consumers may have made some
_NOTED_EVERY: Final = 60.0  # seconds between two lines of the log about a job

_FIELDS: Final = 8  # of a job in the journal, without the one that only a kick by force has

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


class TakenFromBuried(NamedTuple):
    """What a step takes out of the buried messages."""

    verb: Verb
    sequences: list[int]


class BuriedQueue:
    """The buried messages of one channel, and the job that is at work on them.

    It records nothing itself. What it returns, the channel carries out: it has the other places of a message.
    """

    __slots__ = ("_turn", "buried", "bury_count", "discard_count", "ended", "job", "kick_count", "kicked")

    def __init__(self, turn: TurnContext[Any, Any]) -> None:
        self.buried = BuriedMessages()
        self.job: BuriedJob | None = None
        self.ended: BuriedJob | None = None  # the last one
        self.kicked: KickUndo | None = None  # the last kick, while it can be taken back
        self.bury_count = 0  # since the start, as the two others
        self.kick_count = 0
        self.discard_count = 0
        self._turn = turn

    def bury(self, topic: str, channel: str, places: Iterable[tuple[int, int, int]], note: Note) -> ChannelChange:
        """Bury messages, each given as sequence, id and attempts. Return the change for the journal."""
        at = self._turn.timestamp // 1_000_000
        burials = [BuriedMessage(sequence, message_id, attempts, at, note) for sequence, message_id, attempts in places]
        for burial in burials:
            self.buried.add(burial)
        self.bury_count += len(burials)
        return bury_change(topic, channel, burials)

    def take(self, verb: Verb, sequences: Iterable[int], kick: int = -1) -> TakenFromBuried:
        """Take out those of these messages that are buried, in a kick of their own unless it is the last one again."""
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

    def _discard(self, sequences: Iterable[int]) -> TakenFromBuried:
        taken = [sequence for sequence in sequences if self.buried.remove(sequence)]
        self.discard_count += len(taken)
        return TakenFromBuried("discard", taken)

    def _kick(self, sequences: Iterable[int], kicked: KickUndo) -> TakenFromBuried:
        taken: list[int] = []
        for sequence in sequences:
            if (found := self.buried.take(sequence)) is not None:
                kicked.keep(sequence, *found)
                taken.append(sequence)
        self.kick_count += len(taken)
        return TakenFromBuried("kick", taken)

    def clear(self) -> None:
        self.job = None
        self.drop_kick()
        self.buried.clear(self._turn.reclaimer)

    def snapshot_changes(self, topic: str, channel: str) -> Iterator[ChannelChange]:
        """Return the changes that tell a new journal of all this, as of this call, even if iterated later."""
        job: list[ChannelChange] = []
        if self.job is not None and self.job.is_kept:
            job.append(("job", topic, channel, self.job.described()))
        return chain(self.buried.changes(topic, channel), job)

    # Jobs

    def begin(self, job: BuriedJob) -> None:
        """Begin a job, or go on with one that a crash has interrupted. There is never another one under way."""
        self.job = job
        if job.verb == "kick":
            job.kicked = self._new_kick()
        job.places = self.buried.selected(job.selection.before, job.selection.reason)

    @property
    def next_step(self) -> float:
        """When something is to be done here next."""
        forgets = self.kicked.until if self.kicked is not None else inf
        return min(self.job.next_step, forgets) if self.job is not None else forgets

    def step(self, now: float, room: int | None = None) -> TakenFromBuried | None:
        """Take the next step of a kick or discard, if it is time; afterwards `job` is None if that was the last one.

        `room`: how many messages fit into the channel; None: any number. A kick leaves the others buried until they fit.
        """
        job = self.job
        if job is None or job.verb == "undo" or now < job.next_step:
            return None
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
        taken = self._discard(found) if job.kicked is None else self._kick(found, job.kicked)
        job.took(len(taken.sequences), now)
        if allowed < wanted:
            job.wait_for_room(now)
        if is_last or job.is_complete:
            self._end(job)
        return taken

    def stop(self) -> None:
        """End the job before it is complete."""
        if self.job is not None:
            self._end(self.job)

    def _end(self, job: BuriedJob) -> None:
        job.ended_at = self._turn.timestamp // 1_000_000
        job.places = iter(())
        if job.kicked is not None:
            job.kicked.until = self._turn.now + KEPT_FOR
        job.kicked = None
        self.job, self.ended = None, job

    # Taking a kick back

    def begin_undo(self, kicked: KickUndo, who: str, waiting: int) -> BuriedJob:
        """Begin to bury this kick's messages again, as far as they are among so many that wait."""
        now, at = self._turn.now, self._turn.timestamp // 1_000_000
        job = self.job = BuriedJob(
            "undo", BuriedSelection(kicked.number), rate=0.0, who=who, started_at=at, done=0, now=now
        )
        job.kicked, job.left = kicked, waiting
        if self.kicked is kicked:
            self.kicked = None
        return job

    def bury_again(self, topic: str, channel: str, job: BuriedJob, sequences: Sequence[int]) -> ChannelChange:
        """Bury messages of a kick as they were. Return the change for the journal."""
        assert job.kicked is not None
        burials = job.kicked.give_back(sequences)
        for burial in burials:
            self.buried.add(burial)
        job.done += len(burials)
        self.bury_count += len(burials)
        return bury_change(topic, channel, burials)

    def forget_kicked(self, sequences: Iterable[int]) -> None:
        """Let messages that wait for another reason now wait, even if a kick is taken back."""
        for kicked in (self.kicked, self.job.kicked if self.job is not None else None):
            if kicked is not None:
                kicked.forget(sequences)

    def forget_kick(self, now: float) -> None:
        """Forget the last kick if it is too late to take it back."""
        if self.kicked is not None and self.kicked.until <= now:
            self.drop_kick()

    def drop_kick(self) -> None:
        """Have no kick that can be taken back."""
        if self.kicked is not None:
            self.kicked.clear(self._turn.reclaimer)
            self.kicked = None
