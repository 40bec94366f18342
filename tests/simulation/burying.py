"""The part of the ledger about buried messages.

What is promised: BURY, the last failed attempt, a kick and a discard are written to the journal at the end of the turn
in which they happen, before any client hears of that turn. So

- after a kill, a message is where the last such step has left it, also if that step was the last thing to happen;
- after a power cut, it may be where any step since the last sync of the journal has left it, and nowhere else. So a
  buried message may come once more, as after a FIN, but it is never lost, and never twice in the channel.

A buried message keeps its id, attempts, time and reason. Only the channel that had buried it gets it back by a kick.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from nsqd.broker.buried import BuriedMessage
from nsqd.broker.buried_queue import BuriedJob, BuriedSelection, Verb
from tests.simulation.promise import Marks, Violation


class Move(NamedTuple):
    number: int  # of the action
    burial: BuriedMessage | None  # None: kicked or discarded


@dataclass(slots=True)
class JobModel:
    verb: Verb
    selection: BuriedSelection
    number: int  # of the action that has begun it
    ended: int | None = None

    @property
    def is_active(self) -> bool:
        return self.ended is None

    def may_take(self, move: Move) -> bool:
        """Return whether the job may be about a message that was last moved so."""
        burial = move.burial
        if burial is None or burial.buried_at >= self.selection.before:
            return False
        return self.selection.reason in burial.note.reason

    def must_take(self, move: Move) -> bool:
        return self.may_take(move) and move.number < self.number and not self.selection.limit


@dataclass(slots=True)
class BuriedModel:
    """The buried messages of one channel, and how messages came into this place and left it."""

    held: dict[int, BuriedMessage] = field(default_factory=dict)
    moves: dict[int, list[Move]] = field(default_factory=dict)
    job: JobModel | None = None

    def add(self, burial: BuriedMessage, number: int) -> None:
        self.held[burial.sequence] = burial
        self.moves.setdefault(burial.sequence, []).append(Move(number, burial))

    def remove(self, sequence: int, number: int) -> None:
        del self.held[sequence]
        self.moves[sequence].append(Move(number, None))

    def last_of(self, sequence: int) -> BuriedMessage | None:
        """Return how a message was buried the last time."""
        return next((move.burial for move in reversed(self.moves[sequence]) if move.burial is not None), None)

    def possible(self, sequence: int, marks: Marks) -> list[BuriedMessage | None]:
        """Return how the message may be buried, or None for not at all, if only what the marks say has survived."""
        found: list[BuriedMessage | None] = [None]
        for number, burial in self.moves.get(sequence, ()):
            found = [burial] if number <= marks.urgent else [*found, burial]
        return found

    def job_takes(self, sequence: int, verb: Verb) -> bool:
        """Return whether the job under way may have taken a message in a turn that has not ended."""
        job = self.job
        if job is None or not job.is_active or job.verb != verb or sequence not in self.moves:
            return False
        return job.may_take(self.moves[sequence][-1])

    def check_job(self, job: BuriedJob | None, place: str, number: int) -> None:
        """Compare the job under way with the broker's, between two turns. Note if it has come to its end."""
        model = self.job
        if job is not None:
            if model is None or not model.is_active or (model.verb, model.selection) != (job.verb, job.selection):
                raise Violation(f"{place}: a job from nowhere: {job.journal_fields()}")
        elif model is not None and model.is_active:
            model.ended = number
            self._check_that_all_is_done(model, self.held, place)

    def _check_that_all_is_done(self, job: JobModel, held: Collection[int], place: str) -> None:
        left = [sequence for sequence in held if job.must_take(self.moves[sequence][-1])]
        if left:
            raise Violation(f"{place}: the {job.verb} has ended, and left {sorted(left)}")

    def stop_job(self, number: int) -> None:
        if self.job is not None and self.job.is_active:
            self.job.ended = number

    def adopt(
        self, found: list[BuriedMessage], job: BuriedJob | None, *, place: str, marks: Marks, synced: Marks, number: int
    ) -> None:
        """Take over what a start has found, after it was compared. What was not `synced` before may still be lost."""
        model = self.job
        if job is not None:
            is_known = marks.urgent >= 0  # otherwise an earlier channel of this name may be back, with its job
            if is_known and (model is None or (model.ended is not None and model.ended <= marks.urgent)):
                raise Violation(f"{place}: a job from nowhere: {job.journal_fields()}")
        elif model is not None and model.is_active and model.number <= marks.urgent:  # its last turn has not ended
            sure = {burial.sequence for burial in found if self.possible(burial.sequence, marks) == [burial]}
            self._check_that_all_is_done(model, sure, place)
        self.held = {burial.sequence: burial for burial in found}
        for sequence in self.moves.keys() | self.held.keys():
            self.moves[sequence] = self._moves_after_start(sequence, synced, number)
        if job is not None:
            assert job.verb != "undo", "no journal knows of one"
            self.job = JobModel(job.verb, job.selection, number + 1)
        elif model is not None:
            model.ended = number

    def _moves_after_start(self, sequence: int, synced: Marks, number: int) -> list[Move]:
        known, *others = self.possible(sequence, synced)
        burial = self.held.get(sequence)
        is_new = burial is not None and all(move.burial != burial for move in self.moves.get(sequence, ()))
        # What is new was buried in the turn that the crash ended, or by the start itself, which goes on with the job
        # first. So the job need not take it.
        last = Move(number + 1 if is_new else number, burial)
        return [Move(0, known), *(Move(number, other) for other in others), last]

    def wrong(self, found: dict[int, BuriedMessage], marks: Marks) -> Iterator[int]:
        """Yield messages that are buried or not, and should not be so."""
        for sequence in self.moves.keys() | found.keys():
            burial = found.get(sequence)
            if burial in self.possible(sequence, marks):
                continue
            if burial is None and (self.job_takes(sequence, "kick") or self.job_takes(sequence, "discard")):
                continue
            yield sequence
