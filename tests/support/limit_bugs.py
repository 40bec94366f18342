"""Bugs in the core's time to live, bounds and breaker, which a checker has to find: each is planted for one test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pytest
from pyroaring import BitMap64

from nsqd.broker import bounded, bounds, ruled
from nsqd.broker.bounds import Full, Held, Room
from nsqd.broker.breaker import Breaker
from nsqd.broker.buried import Note
from nsqd.broker.channel import Channel
from nsqd.broker.rules import ChannelRules, TopicRules
from nsqd.broker.topic import Topic

_Places = Sequence[tuple[int, int, int]]


def _read_another_clock(patch: pytest.MonkeyPatch) -> None:
    """The time since the machine's start instead of the wall clock."""
    pass_expired = Channel._pass_expired

    def planted(self: Channel, ttl: int) -> bool:
        work = self._work
        right, work.timestamp = work.timestamp, int(work.now * 1_000_000_000)
        try:
            return pass_expired(self, ttl)
        finally:
            work.timestamp = right

    patch.setattr(Channel, "_pass_expired", planted)


def _expire_early(patch: pytest.MonkeyPatch) -> None:
    pass_expired = Channel._pass_expired
    patch.setattr(Channel, "_pass_expired", lambda self, ttl: pass_expired(self, ttl // 2))


def _drop_one_too_many(patch: pytest.MonkeyPatch) -> None:
    drop_oldest = Channel.drop_oldest
    patch.setattr(Channel, "drop_oldest", lambda self, count, arrived=None: drop_oldest(self, count + 1, arrived))


def _drop_retries_first(patch: pytest.MonkeyPatch) -> None:
    drop_oldest = Channel.drop_oldest

    def planted(self: Channel, count: int, arrived: int | None = None) -> None:
        while count and self.retries:
            first, stop, _ = self.retries.pop_run(count, self.topic.handed_over)
            self._finished.append((first, stop))
            self._count("overflow, dropped", stop - first)
            count -= stop - first
        drop_oldest(self, count, arrived)

    patch.setattr(Channel, "drop_oldest", planted)


def _bury_retries(patch: pytest.MonkeyPatch) -> None:
    bury_oldest = Channel._bury_oldest

    def planted(self: Channel, count: int) -> int:
        if not self.retries or (batch := self._source.batch_at(self.retries.peek()[0])) is None:
            return bury_oldest(self, count)
        first, stop, attempts = self.retries.pop_run(count, batch.end_sequence)
        self._bury(ruled.places_in(batch, first, stop, attempts), ruled._OVERFLOWN, has_failed=False)
        return stop - first

    patch.setattr(Channel, "_bury_oldest", planted)


def _forget_deliveries_at_a_crash(patch: pytest.MonkeyPatch) -> None:
    """The journal hears of first deliveries later, so that a crash makes these messages new again."""
    bounds_changed = Topic.bounds_changed

    def planted(self: Topic) -> None:
        bounds_changed(self)
        for channel in self.channels.values():
            channel.records_deliveries = False

    patch.setattr(Topic, "bounds_changed", planted)


def _drop_deferred_messages_later(patch: pytest.MonkeyPatch) -> None:
    drop_oldest = Channel.drop_oldest

    def planted(self: Channel, count: int, arrived: int | None = None) -> None:
        for _, sequence, _ in sorted(self.deferred)[:count]:
            self.deferred.take_out(BitMap64([sequence]))
            self._finished.append((sequence, sequence + 1))
            self._count("overflow, dropped", 1)
            count -= 1
        drop_oldest(self, count, arrived)

    patch.setattr(Channel, "drop_oldest", planted)


def _allow_one_too_many(patch: pytest.MonkeyPatch) -> None:
    excess, take = bounds.excess, Room.take

    def planted_excess(rules: ChannelRules | TopicRules, held: Held) -> int:
        return max(0, excess(rules, held) - 1)

    def planted_take(self: Room, messages: int, size: int) -> Full | None:
        return take(self, max(0, messages - 1), size)

    patch.setattr(ruled, "excess", planted_excess)
    patch.setattr(bounded, "excess", planted_excess)
    patch.setattr(Room, "take", planted_take)


def _drop_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    drop_oldest = Channel.drop_oldest

    def planted(self: Channel, count: int, arrived: int | None = None) -> None:
        in_flight = sorted(sequence for sequence, _ in self.in_flight.positions())
        if len(in_flight) < count:
            drop_oldest(self, count, arrived)
            return
        self.in_flight.clear()
        for consumer in self.consumers:
            consumer.in_flight = 0
        self._finished += [(sequence, sequence + 1) for sequence in in_flight]
        self._count("overflow, dropped", len(in_flight))

    patch.setattr(Channel, "drop_oldest", planted)


def _bury(patch: pytest.MonkeyPatch, planted: Callable[[Channel, _Places, Note], None]) -> None:
    """Have messages beyond a bound buried in this way."""
    bury = Channel._bury

    def choose(self: Channel, places: _Places, note: Note, *, has_failed: bool = True) -> None:
        if note.reason.endswith("(overflow)"):
            planted(self, places, note)
        else:
            bury(self, places, note, has_failed=has_failed)

    patch.setattr(Channel, "_bury", choose)


def _bury_without_a_journal(patch: pytest.MonkeyPatch) -> None:
    def planted(self: Channel, places: _Places, note: Note) -> None:
        self.burials.bury(self.topic.name, self.name, places, note)

    _bury(patch, planted)


def _lose_what_is_buried(patch: pytest.MonkeyPatch) -> None:
    def planted(self: Channel, places: _Places, note: Note) -> None:
        self._finished += [(sequence, sequence + 1) for sequence, _, _ in places]

    _bury(patch, planted)


def _count_nothing(patch: pytest.MonkeyPatch) -> None:
    count = Channel._count

    def planted(self: Channel, cause: str, amount: int) -> None:
        if cause not in ("overflow, dropped", "full, dropped"):
            count(self, cause, amount)

    patch.setattr(Channel, "_count", planted)


def _never_trip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Breaker, "has_tripped", lambda self, now: False)


def _trip_at_each_burial(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Breaker, "has_tripped", lambda self, now: True)


LIMIT_BUGS: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "a bound is off by one": _allow_one_too_many,
    "drop-oldest drops one too many": _drop_one_too_many,
    "drop-oldest drops what is in flight": _drop_what_is_in_flight,
    "drop-oldest drops what is to be tried again": _drop_retries_first,
    "drop-oldest drops what was deferred before": _drop_deferred_messages_later,
    "a bound buries what is to be tried again": _bury_retries,
    "the journal does not know what was delivered before a crash": _forget_deliveries_at_a_crash,
    "what overflows is lost instead of buried": _lose_what_is_buried,
    "what overflows is buried without the journal": _bury_without_a_journal,
    "the time to live is judged by another clock": _read_another_clock,
    "messages expire after half of their time": _expire_early,
    "what is dropped is not counted": _count_nothing,
    "the breaker never trips": _never_trip,
    "the breaker trips at each burial": _trip_at_each_burial,
}
