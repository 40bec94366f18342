"""What the policy does to a channel's messages besides delivering them later: they expire, or the channel stops itself.

Messages expire lazily. A message that waits ahead of the cursor for longer than its time to live is passed over where
the cursor meets it: whole segments at once where nothing in them is young enough, otherwise batch by batch. A channel
without consumers looks for such messages now and then. A message whose own header `nsq-ttl` says less is passed over
when a consumer would get it.

Messages beyond a bound are dropped or buried from the cursor on, the oldest first. If deferred messages and those that
wait to be tried again fill the bound, new ones go as they arrive.

What was delivered once, deferred, or given back by an operator neither expires nor is too much: somebody wants it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from nsqd.broker.breaker import Breaker
from nsqd.broker.buried import Note
from nsqd.broker.limits import MOST_LOOKS, drops, excess, excess_with
from nsqd.broker.operated import Operated
from nsqd.broker.rules import Overflow

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.feed import Feed
    from nsqd.broker.limits import Usage
    from nsqd.broker.rules import ChannelRules
    from nsqd.broker.turn_context import TurnContext

EXPIRED_AT_ONCE: Final = 200  # batches; some milliseconds, after which others have their turn
# Messages of old files that are passed from the next skip range on: behind it may be as many ranges as messages.
_PASSED_AT_ONCE: Final = 50
_BURIED_AT_ONCE: Final = 2_000  # messages beyond a bound
_PAUSE_TO_LOAD: Final = 0.005  # seconds after which a batch was probably read
_NANOSECONDS: Final = 1_000_000_000
_OVERFLOWN: Final = Note("more waited than the channel may hold (overflow)", "")


class Ruled(Operated):
    def __init__(self, name: str, topic: Feed, turn: TurnContext[Any, Any], *, cursor: int, ephemeral: bool) -> None:
        super().__init__(name, topic, turn, cursor=cursor, ephemeral=ephemeral)
        self._breaker = breaker_of(None, self.rules.breaker)
        self._dry_run_breaker = breaker_of(None, self.dry_run.breaker)
        self._dry_run_beyond = 0  # how many messages a bound that is tried would have dropped last time

    # Time to live

    def look_for_expired(self, now: float) -> None:
        """Pass over expired messages although nobody takes any, and ask to be called again if some are left."""
        ttl = self.rules.ttl
        if ttl is None:
            return
        for _ in range(EXPIRED_AT_ONCE):
            if self._advance_over_gaps() >= self.topic.high_watermark:
                return  # `handed_over` asks for the next look
            if not self._pass_expired(ttl):
                break
        else:
            self.record_progress()  # which may be thousands of ranges, so it does not wait for those of other turns
            self._wake_at(now)
            return
        is_read = self._batch is not None and self._batch.base_sequence <= self.cursor < self._batch.end_sequence
        self._wake_at(now + (self.rules.expiry_pause if is_read else _PAUSE_TO_LOAD))

    def _pass_expired(self, ttl: int) -> bool:
        """Pass over expired messages at the cursor: whole segments, or one batch. Return whether there were any."""
        cursor, older = self.cursor, self._turn.timestamp - ttl
        batch = self._batch
        if batch is None or not batch.base_sequence <= cursor < batch.end_sequence:
            if self._pass_old_segments(older):
                return True
            batch = self._batch = self._source.batch_at(cursor)
        if batch is None or not is_older(batch, older):
            return False
        stop = min(batch.end_sequence, self.topic.high_watermark)
        if (next_skip := self.skips.next_start()) is not None:
            stop = min(stop, next_skip)
        self.cursor = stop
        self._expire(batch, cursor, stop, _text_of(ttl))
        return True

    def _expire(self, batch: Batch, start: int, stop: int, ttl: str) -> None:
        """Bury or drop messages that the cursor has just passed, because they waited for longer than this."""
        if self.rules.ttl_buries and self.ephemeral_batches is None:
            note = Note(f"waited for more than {ttl} (ttl)", "")
            self._bury(places_in(batch, start, stop, 0), note, has_failed=False)
            self._count("ttl, buried", stop - start)
        else:
            self._finish_unseen(start, stop)
            self._count("ttl, dropped", stop - start)

    def _pass_old_segments(self, older: int) -> bool:
        # A cursor that went back meets deferred messages, and a delay does not count as waiting.
        if self.ephemeral_batches is not None or self.rules.ttl_buries or self.cursor < self._furthest:
            return False
        end = min(self.topic.log.older_than(older), self.topic.high_watermark)
        if end <= self.cursor:
            return False
        start = self.cursor
        if (next_skip := self.skips.next_start()) is not None:
            end = min(end, max(start, next_skip) + _PASSED_AT_ONCE)
        for first, stop in self.skips.free_ranges(start, end):
            self._finish_unseen(first, stop)
            self._count("ttl, dropped", stop - first)
        self.cursor = self.skips.pass_over(end)
        return True

    def _finish_unseen(self, start: int, end: int) -> None:
        """Note that [start, end), which the cursor passes, was finished without having been in flight."""
        if self._finished and self._finished[-1][1] == start:
            start = self._finished.pop()[0]
        self._finished.append((start, end))
        self._turn.changed[self] = None

    # Bounds

    @property
    def _buries(self) -> bool:
        """Whether a bound that messages exceed has them buried; a channel in memory drops them instead."""
        return self.rules.overflow is Overflow.BURY and self.ephemeral_batches is None

    def apply_limits(self, arrived: int | None = None) -> None:
        """Drop or bury the oldest messages that are too many, if that is what the policy says.

        `arrived`: where the messages begin that the topic has just handed over.
        """
        self.is_behind = False
        if beyond := self._beyond(self.rules):
            if self._buries:
                buried = self._bury_oldest(min(beyond, _BURIED_AT_ONCE))
                self._count("overflow, buried", buried)
                if beyond > buried == _BURIED_AT_ONCE:
                    self._wake_at(self._turn.now)
            else:
                if self._full_from is None and arrived is not None and self.room() == 0:
                    self._full_from = arrived
                self.drop_oldest(beyond, self._full_from)
        if not self.is_behind:
            self._full_from = None
        beyond = self._beyond(self.dry_run)
        self._count("overflow, dry run", beyond - self._dry_run_beyond)
        self._dry_run_beyond = beyond

    def make_room(self, coming: Usage) -> bool:
        """Drop the oldest messages that would be too many bytes together with those that are about to be published.

        Return False if a later turn has to drop more before there is room.
        """
        if not drops(self.rules) or self.rules.overflow is Overflow.BURY:
            return True
        for _ in range(MOST_LOOKS):
            if not (beyond := min(excess_with(self.rules, self.usage(), coming), self.ahead)):
                break
            self.drop_oldest(beyond)
            if self.is_behind:
                return False
        return True

    def _beyond(self, rules: ChannelRules) -> int:
        return min(excess(rules, self.usage()), self.ahead) if drops(rules) else 0

    def defer(self, start: int, count: int, due: int) -> None:
        """Make the messages of a batch wait, as far as they have room: what is deferred is not dropped later."""
        fits = count
        if self.is_ruled:
            if (room := self._room_by(self.dry_run)) is not None:
                self._count("overflow, dry run", count - room)
            if (room := self.room()) is not None:
                fits = min(count, room)
        super().defer(start, fits, due)
        if fits < count:
            self._turn_away(start, start + fits, start + count, due)

    def _turn_away(self, base: int, start: int, end: int, due: int) -> None:
        """Drop or bury the messages [start, end) of a deferred batch, which have no room."""
        batch = self._source.batch_at(base) if self._buries else None
        if self._buries and batch is None:  # it was deferred long ago, in a topic that was paused
            super().defer(start, end - start, due)
            return
        self.skips.add(start, end)
        if batch is None:
            self._finish_unseen(start, end)
            self._count("full, dropped", end - start)
        else:
            self._bury(places_in(batch, start, end, 0), _OVERFLOWN, has_failed=False)
            self._count("overflow, buried", end - start)

    def _bury_oldest(self, count: int) -> int:
        """Bury so many messages that wait for their first delivery.

        Return how many; the rest has to be read from disk.
        """
        buried = 0
        while buried < count:
            oldest = self._advance_over_gaps()
            if oldest >= self.topic.high_watermark:
                break  # fewer waited than it seemed: some of them are missing in the log
            batch = self._source.batch_at(oldest)
            if batch is None:
                self._wake_at(self._turn.now + _PAUSE_TO_LOAD)
                break
            stop = min(oldest + count - buried, batch.end_sequence, self.topic.high_watermark)
            if (next_skip := self.skips.next_start()) is not None:
                stop = min(stop, next_skip)
            self.cursor = stop
            self._bury(places_in(batch, oldest, stop, 0), _OVERFLOWN, has_failed=False)
            buried += stop - oldest
        return buried

    # A channel that stops itself

    def unpause(self) -> None:
        if self._breaker is not None:
            self._breaker.reset()
        super().unpause()

    def _bury(self, places: Sequence[tuple[int, int, int]], note: Note, *, has_failed: bool = True) -> None:
        """Bury messages. Those that have only waited too long are no fault of a consumer: the breaker leaves them out."""
        super()._bury(places, note)
        if self.ephemeral_batches is not None:
            self._count("not on disk, dropped", len(places))
            return
        now, count = self._turn.now, len(self.buried_queue.buried)
        self._count("buried", len(places) if not note.who else 0)
        if (most := self.dry_run.max_buried) is not None and count > most:
            self._count("max_buried, dry run", 1)
        if has_failed and (tried := self._dry_run_breaker) is not None:
            tried.buried(len(places), now)
            if tried.has_tripped(now):
                self._count("breaker, dry run", 1)
                tried.reset()
        breaker = self._breaker if has_failed else None
        if breaker is not None:
            breaker.buried(len(places), now)
        if self.paused:
            return
        if (most := self.rules.max_buried) is not None and count > most:
            self._hold(f"more than {most} messages are buried (max_buried)")
        elif breaker is not None and breaker.has_tripped(now):
            self._hold(f"at least {breaker.share:.0%} of the last minute's deliveries were buried (breaker)")

    def _note_deliveries(self, count: int, now: float) -> None:
        if self._breaker is not None:
            self._breaker.delivered(count, now)
        if self._dry_run_breaker is not None:
            self._dry_run_breaker.delivered(count, now)


def is_older(batch: Batch, timestamp: int) -> bool:
    """Return whether a batch has waited since before this time. Its delay does not count as waiting."""
    return batch.timestamp + batch.delay_ms * 1_000_000 < timestamp


def places_in(batch: Batch, first: int, stop: int, attempts: int) -> list[tuple[int, int, int]]:
    """Return sequence, id and attempts of [first, stop)."""
    base = batch.base_id - batch.base_sequence
    return [(sequence, base + sequence, attempts) for sequence in range(first, stop)]


def breaker_of(former: Breaker | None, share: float | None) -> Breaker | None:
    """Return what trips at this share. The same share goes on as it was, so that a new file forgets nothing."""
    if share is None:
        return None
    return former if former is not None and former.share == share else Breaker(share)


def _text_of(duration: int) -> str:
    seconds = duration / _NANOSECONDS
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size and not seconds % size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"
