"""Planted bugs of taking messages back, which the simulation's ledger has to notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from pyroaring import BitMap64

from nsqd.broker.channel import Channel
from nsqd.broker.operated import Found
from nsqd.broker.parked import Parked
from nsqd.broker.positions import Deferred
from nsqd.broker.topic import Topic


def _tell_no_journal(patch: pytest.MonkeyPatch) -> None:
    cancel = Channel.cancel

    def planted(self: Channel, sequences: BitMap64) -> dict[Found, int]:
        untold = self.deferred.take_out(sequences)
        found = cancel(self, sequences - untold)
        return found | {Found.CANCELLED: found.get(Found.CANCELLED, 0) + len(untold)} if untold else found

    patch.setattr(Channel, "cancel", planted)


def _tell_the_journal_later(patch: pytest.MonkeyPatch) -> None:
    record = Channel.record_progress

    def planted(self: Channel, *, urgent: bool = False) -> None:
        if not urgent:
            record(self)

    patch.setattr(Channel, "record_progress", planted)


def _take_a_sibling(patch: pytest.MonkeyPatch) -> None:
    cancel = Channel.cancel

    def planted(self: Channel, sequences: BitMap64) -> dict[Found, int]:
        cancel(self, self.deferred.among(sequences.shift(1)))
        return cancel(self, sequences)

    patch.setattr(Channel, "cancel", planted)


def _forget_what_is_parked(patch: pytest.MonkeyPatch) -> None:
    record = Topic.record

    def planted(self: Topic, change: tuple[object, ...]) -> None:
        if change[0] != "cancel":
            record(self, change)  # type: ignore[arg-type]

    patch.setattr(Topic, "record", planted)


def _hand_it_over(patch: pytest.MonkeyPatch) -> None:
    in_order = Parked.in_order
    patch.setattr(Parked, "in_order", lambda self: (it for it in in_order(self) if it[2] >= 0))


def _leave_it_in_the_heap(patch: pytest.MonkeyPatch) -> None:
    def planted(self: Deferred, wanted: BitMap64) -> BitMap64:
        return self.among(wanted)

    patch.setattr(Deferred, "take_out", planted)


def _move_it_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    move, record = Channel.move, Channel._record_urgent

    def planted(self: Channel, sequences: BitMap64, delay_ms: int) -> dict[Found, int]:
        patch.setattr(Channel, "_record_urgent", lambda self, change: None)
        try:
            return move(self, sequences, delay_ms)
        finally:
            patch.setattr(Channel, "_record_urgent", record)

    patch.setattr(Channel, "move", planted)


CANCEL_BUGS: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "what waits for its time is taken back without the journal": _tell_no_journal,
    "the journal hears of it later": _tell_the_journal_later,
    "its neighbour goes as well": _take_a_sibling,
    "a crash forgets what no channel had got yet": _forget_what_is_parked,
    "what was taken back is handed over": _hand_it_over,
    "what was taken back stays in the heap": _leave_it_in_the_heap,
    "a crash forgets that it was moved": _move_it_in_memory_only,
}
