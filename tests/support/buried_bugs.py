"""Bugs in the core's handling of buried messages, which a checker has to find: each is planted while a test runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pytest

from nsqd.broker.burials import Taken
from nsqd.broker.buried import Buried, Note
from nsqd.broker.channel import Channel
from nsqd.broker.leftovers import Leftovers
from nsqd.broker.replay import ChannelState

_Places = Sequence[tuple[int, int, int]]


def _drop_at_the_limit(patch: pytest.MonkeyPatch) -> None:
    bury = Channel._bury

    def planted(self: Channel, places: _Places, note: Note) -> None:
        if "attempts" not in note.reason:
            bury(self, places, note)
            return
        self._finished += [(sequence, sequence + 1) for sequence, _, _ in places]
        self._work.changed[self] = None

    patch.setattr(Channel, "_bury", planted)


def _kick_to_all_channels(patch: pytest.MonkeyPatch) -> None:
    carry_out = Channel._carry_out

    def planted(self: Channel, taken: Taken) -> int:
        channels = self.topic.channels.values()  # type: ignore[attr-defined]  # of a Topic, which a channel must not know
        for other in channels if taken.verb == "kick" else ():
            if other is not self and other.kept is None:
                other.redeliver(taken.sequences)
        return carry_out(self, taken)

    patch.setattr(Channel, "_carry_out", planted)


def _allow_one_attempt_too_many(patch: pytest.MonkeyPatch) -> None:
    def planted(self: Channel, attempts: int) -> bool:
        most = self.rules.max_attempts
        return most is not None and attempts > most

    patch.setattr(Channel, "_is_last", planted)


def _pin_nothing(patch: pytest.MonkeyPatch) -> None:
    def planted(self: Channel) -> int:
        lows = [self.cursor, self.in_flight.lowest(), self.retries.lowest(), self.deferred.lowest()]
        return min(low for low in lows if low is not None)

    patch.setattr(Channel, "low_water", planted)


def _forget_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    restore = Channel.restore

    def planted(self: Channel, state: ChannelState, wall_ms_to_due: Callable[[int], int]) -> None:
        state.buried.clear(Leftovers())
        restore(self, state, wall_ms_to_due)

    patch.setattr(Channel, "restore", planted)


def _pass_over_nothing(patch: pytest.MonkeyPatch) -> None:
    def planted(self: Buried, start: int, end: int) -> list[tuple[int, int]]:
        return []

    patch.setattr(Buried, "ranges", planted)


def _reach_the_journal_late(patch: pytest.MonkeyPatch) -> None:
    """A kick that is told to nobody is undone by a crash."""
    record = Channel._record_urgent

    def planted(self: Channel, change: tuple[object, ...]) -> None:
        if change[0] != "wait":
            record(self, change)  # type: ignore[arg-type]

    patch.setattr(Channel, "_record_urgent", planted)


BUGS: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "the message is dropped instead of buried at the limit": _drop_at_the_limit,
    "a kick goes to all channels of the topic": _kick_to_all_channels,
    "the limit is off by one": _allow_one_attempt_too_many,
    "a buried message does not pin the log": _pin_nothing,
    "a crash forgets buried messages": _forget_after_a_crash,
    "a cursor that goes back does not pass over buried messages": _pass_over_nothing,
    "a kick is not told to the journal": _reach_the_journal_late,
}
