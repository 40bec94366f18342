"""Where each message of a channel is: a cursor into the topic's log, and a short list of exceptions.

Everything before the cursor is finished, except what is in flight, waits to be tried again, is deferred, or is buried.
What the cursor must pass over ahead of it is in skip ranges: deferred batches, emptied stretches, buried messages after
a seek, overflow of an ephemeral channel. A message is in exactly one of these places, and leaves only by FIN, empty,
seek, restore, discard or delete:

          publish                  take                  FIN
(ahead of the cursor) ──────────► in flight ───────────────────► gone
          │ with a delay        ▲      │ REQ 0, timeout    ▲
          ▼                     │      ▼                   │
      deferred ──── due ────► retry ───┘      REQ with a delay: deferred
                                ▲      │
                           kick │      │ failed too often; BURY from in flight
                                │      ▼
                               buried ──── discard ────► gone

What is gone can come back while the log has it: by a seek, a restored backlog, or a redelivery (a retry).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final

from nsqd.broker.buried_queue import BuriedQueue, recovered_job
from nsqd.broker.ephemeral_batches import EphemeralBatches
from nsqd.broker.in_flight import InFlight
from nsqd.broker.limits import Usage, capacity, drops
from nsqd.broker.positions import DeferredQueue, RetryQueue, SkipRanges, bitmap_of, bitmap_of_ranges, ranges_in
from nsqd.broker.rules import NO_CHANNEL_RULES

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from nsqd.broker.batch import Batch
    from nsqd.broker.change import Change, ChannelChange
    from nsqd.broker.consumer import Consumer
    from nsqd.broker.early_deferrals import EarlyDeferrals
    from nsqd.broker.feed import Feed
    from nsqd.broker.replay import ChannelState
    from nsqd.broker.rules import ChannelRules
    from nsqd.broker.store import BatchSource
    from nsqd.broker.turn_context import TurnContext

_WAIT_ENTRIES_PER_CHANGE: Final = 2_000  # a millisecond or two of work
_DEFERRED_ONE_BY_ONE: Final = 500  # messages of a batch; more of them are not put onto the heap at once
_UNPACKED_IN_TURN: Final = 5_000  # such messages, in all channels; some milliseconds
_FINISHED_WORTH_LETTING_GO: Final = 1000  # messages
_SAMPLE: Final = 1_000_000  # messages whose size tells the mean of one


class Ledger:
    """The places of a channel's messages, and what the journal is told of them.

    It delivers nothing and decides nothing; `Operated` and `Channel` build on it.
    """

    def __init__(self, name: str, topic: Feed, turn: TurnContext[Any, Any], *, cursor: int, ephemeral: bool) -> None:
        self.name = name
        self.topic = topic
        self.ephemeral = ephemeral
        self.paused = False
        self.paused_why = ""  # if it was not a person who has paused it
        rules = turn.rules.channel(topic.name, name)
        self.rules = rules.in_force()
        self.dry_run = rules.dry_run()
        self.is_ruled = rules is not NO_CHANNEL_RULES  # one look for each delivery tells that there is nothing to obey
        # Whether the journal has to hear of first deliveries at once: after a crash, a bound could drop what is new again.
        self.records_deliveries = False
        self.policy_counts: dict[str, int] = {}  # by cause: what rules have done, or would have done
        self.cursor = cursor
        self.skips = SkipRanges()
        self.in_flight = InFlight(turn.reclaimer)
        self.retries = RetryQueue(turn.reclaimer)
        self.deferred = DeferredQueue(turn.reclaimer)
        self.buried_queue = BuriedQueue(turn)
        self.consumers: list[Consumer] = []
        self.idle_since = turn.now  # when the last consumer left
        self.alarm = inf  # when `expire` wants to be called next, as last added to the alarms
        self._counted_from = cursor  # `message_count` is what was handed over from here on
        self._finished: list[tuple[int, int]] = []  # ranges that were finished without having been in flight
        self._saved_cursor = cursor
        self._furthest = topic.high_watermark  # before here, the cursor may meet deferred messages: nothing skips them
        self._batch: Batch | None = None  # the batch at the cursor
        self.ephemeral_batches = (
            EphemeralBatches(topic.log) if ephemeral or topic.ephemeral else None
        )  # what the log does not keep for us
        self._source: BatchSource = self.ephemeral_batches if self.ephemeral_batches is not None else topic.log
        self._turn = turn

    # What waits

    @property
    def depth(self) -> int:
        """How many messages could be taken now."""
        return self.topic.high_watermark - self.cursor - self.skips.total + len(self.retries)

    @property
    def ahead(self) -> int:
        """How many messages wait for their first delivery."""
        return self.topic.high_watermark - self.cursor - self.skips.total

    def usage(self) -> Usage:
        """Return what waits, now or for its time, with what the topic has not handed over yet. Bytes are estimated."""
        return self._sized(self.depth + len(self.deferred) + self.topic.log.tail - self.topic.high_watermark)

    def _sized(self, messages: int) -> Usage:
        """Return so many messages with their bytes, if they are as large as the mean."""
        log = self.topic.log
        start = self.cursor if self.cursor < log.tail else log.first
        return Usage(messages, messages * log.bytes_from(start) // max(log.tail - start, 1))

    def room(self) -> int | None:
        """Return how many messages fit beside those that no bound drops; None: any number, because no bound drops."""
        return self._room_by(self.rules)

    def _room_by(self, rules: ChannelRules) -> int | None:
        if not drops(rules):
            return None
        most = capacity(rules, self._sized(_SAMPLE) if rules.max_bytes is not None else Usage(0, 0))
        return None if most is None else max(0, most - len(self.retries) - len(self.deferred))

    @property
    def message_count(self) -> int:
        return self.topic.high_watermark - self._counted_from

    @property
    def backend_depth(self) -> int:
        """How many messages of the depth are no longer in memory."""
        if self.ephemeral_batches is not None:
            return 0
        end = min(self.topic.log.cached_from, self.topic.high_watermark)
        return max(0, min(self.depth, end - self.cursor))

    def oldest_timestamp(self) -> int | None:
        """Return when the oldest waiting message was published, in nanoseconds; None: nothing waits, or not in memory.

        A message that is not in memory is fetched, so a caller that asks every few seconds gets its time later.
        """
        waiting = [self.retries.peek()[0]] if self.retries else []
        if (cursor := self._advance_over_gaps()) < self.topic.high_watermark:
            waiting.append(cursor)
        batches = [self._source.batch_at(sequence) for sequence in waiting]
        times = [batch.timestamp for batch in batches if batch is not None]
        return min(times) if times and len(times) == len(batches) else None

    def low_watermark(self) -> int:
        """Return the sequence before which this channel needs nothing any more."""
        places = (self.in_flight, self.retries, self.deferred, self.buried_queue.buried)
        lows = [self.cursor, *(place.lowest() for place in places)]
        return min(low for low in lows if low is not None)

    def exceptions(self) -> Iterator[Iterable[int]]:
        """Return the sequences of what waits, is in flight or is buried, as of now.

        They come in pieces, each of which takes a fraction of a millisecond.
        """
        waiting = chain(self.in_flight.sequences(), self.retries.sequences(), self.deferred.sequences())
        return chain(waiting, self.buried_queue.buried.sequences())

    def _advance_over_gaps(self) -> int:
        while True:
            if self.skips.total:
                self.cursor = self.skips.pass_over(self.cursor)
            readable = min(self._source.next_readable(self.cursor), self.topic.high_watermark)
            if readable == self.cursor:
                return readable
            # Damage, or an ephemeral channel for which the log has not waited. Skip ranges may end in this gap or
            # follow it.
            self._finished.append((self.cursor, readable))
            self.cursor = readable

    def _count(self, cause: str, count: int) -> None:
        """Count what a rule has done to messages, or would have done."""
        if count > 0:
            self.policy_counts[cause] = self.policy_counts.get(cause, 0) + count

    # Handing over

    def take_new(self, before: int) -> None:
        """Note that the topic's messages from `before` on belong to the channel now."""
        if self.ephemeral_batches is not None:
            self._turn.overflowing.setdefault(self, before)
        if self.consumers:
            self.schedule_delivery()
        if self.is_ruled and self.rules.ttl is not None:
            self._wake_at(self._turn.now + self.rules.expiry_pause)

    def defer(self, start: int, count: int, due: int) -> None:
        """Make the messages of a batch wait until `due` (microseconds), even if they are ahead of the cursor."""
        self.skips.add(start, start + count)
        if self.ephemeral_batches is not None and self.topic.ephemeral and self.ephemeral_batches.find(start) is None:
            return  # `keep` had no room for the batch
        if count > _DEFERRED_ONE_BY_ONE:
            self.deferred.add_runs(due, [[(start, count, 0)]], bitmap_of(start, start + count))
            self._wake_at(self._turn.now)  # `expire` unpacks it
        else:
            for sequence in range(start, start + count):
                self.deferred.add(due, sequence, 0)
        self._set_alarm()

    def take_early_deferrals(self, parked: EarlyDeferrals, at: int) -> None:
        """Take over what a topic had parked, as its messages are handed over: delays begin at a time (microseconds).

        This looks at no batch, unless the channel keeps them for itself.
        """
        self.skips.cover(parked.deferred | parked.cancelled)
        pieces, deferred = parked.pieces, parked.deferred
        if self.ephemeral_batches is not None:
            pieces, deferred = self._early_deferrals_kept_by(self.ephemeral_batches, parked)
        if deferred:
            self.deferred.add_runs(at, pieces, deferred)
            self._unpack(_DEFERRED_ONE_BY_ONE)
            if self.deferred.has_runs:
                self._wake_at(self._turn.now)  # `expire` unpacks the rest
            self._set_alarm()

    def _unpack(self, most: int) -> None:
        """Make entries of up to so many deferred messages that have none yet, as far as other channels leave room for it."""
        turn = self._turn
        unpacked = self.deferred.unpack(min(most, _UNPACKED_IN_TURN - turn.unpacked))
        turn.unpacked += unpacked
        if unpacked > _DEFERRED_ONE_BY_ONE:
            gc.collect(1)  # otherwise one collection, after a second of such turns, goes over the entries of a million

    def _early_deferrals_kept_by(
        self, kept: EphemeralBatches, parked: EarlyDeferrals
    ) -> tuple[list[list[tuple[int, int, int]]], BitMap64]:
        """Return the batches that this ephemeral channel gets, with their sequences, and let go what was taken back."""
        pieces, deferred = parked.pieces, parked.deferred
        if self.topic.ephemeral:
            # Those for which `keep` had room.
            batches = [batch for batch in parked.batches if kept.find(batch[0]) is not None]
            pieces = [batches]
            deferred = bitmap_of_ranges([(start, start + count) for start, count, _ in batches]) - parked.cancelled
        for start, end in ranges_in(parked.cancelled - bitmap_of(0, self.topic.log.cached_from)):
            kept.release(start, end)
        return pieces, deferred

    def pass_over(self, start: int, end: int) -> None:
        """Skip messages that were never handed over, because the topic was emptied."""
        self._counted_from += end - start
        self._skip(start, end)
        # Nobody has to consume for the cursor to pass them, and until it does, they count as held by the topic.
        self.cursor = self.skips.pass_over(self.cursor)
        self._turn.changed[self] = None

    def _skip(self, start: int, end: int) -> None:
        if start < end:
            self.skips.add(start, end)
            self.record_skip(start, end)

    def record_skip(self, start: int, end: int) -> None:
        self._record_urgent(("skip", self.topic.name, self.name, start, end))

    # Keeping what the log does not keep for us: ephemeral channels, and those of ephemeral topics

    def keep(self, batches: Iterable[Batch]) -> None:
        """Keep batches that are about to be handed over, as far as they have room."""
        assert self.ephemeral_batches is not None
        if self.ephemeral_batches.messages > 2 * self._live + _FINISHED_WORTH_LETTING_GO:
            self.record_progress()
        # Nobody can take a deferred message away at once, so whether it has room is decided now.
        room = self._turn.mem_queue_size - len(self.deferred)
        most_bytes = self._turn.mem_queue_bytes
        if self.topic.ephemeral:
            room -= self.depth
        else:  # The log may still have a deferred message when it is due, and others need the memory more.
            most_bytes //= 2
        for batch in batches:
            if batch.delay_ms:
                if batch.count > room or self.ephemeral_batches.bytes + batch.held > most_bytes:
                    continue
                room -= batch.count
            self.ephemeral_batches.add(batch)

    @property
    def is_empty(self) -> bool:
        """Whether the channel has no message: none that waits, is in flight, deferred or buried."""
        return not (self._live or len(self.buried_queue.buried))

    @property
    def _live(self) -> int:
        """How many messages are not finished."""
        return self.depth + len(self.in_flight) + len(self.deferred)

    def drop_overflow(self, before: int) -> None:
        """Drop the newest messages of this turn that found neither consumer nor room. Called when the turn ends."""
        if (excess := self._excess(before)) > 0:
            assert self.ephemeral_batches is not None
            floor = max(before, self.cursor)
            for start, end in self.skips.add_newest(excess, floor, self.topic.high_watermark):
                self.ephemeral_batches.release(start, end)

    def _excess(self, before: int) -> int:
        """Return how many of the newest messages are beyond one of the two bounds."""
        kept, turn = self.ephemeral_batches, self._turn
        assert kept is not None
        excess = self.depth - turn.mem_queue_size
        if self.topic.ephemeral:
            excess += len(self.deferred)
        if kept.bytes <= turn.mem_queue_bytes:
            return excess
        self.record_progress()  # so that finished messages are not counted
        too_much = kept.bytes - kept.in_hand - turn.mem_queue_bytes
        count = 0
        for start, end in reversed(self.skips.free_ranges(max(before, self.cursor), self.topic.high_watermark)):
            if too_much <= 0:
                break
            newest, size = kept.newest_within(too_much, start, end)
            too_much -= size
            count += newest
        return max(excess, count)

    def _set_alarm(self, not_before: float = 0.0) -> None:
        when = self.in_flight.next_deadline
        if (due := self.deferred.next_due()) is not None:
            when = min(when, due / 1_000_000)
        when = max(when, not_before)
        if when < self.alarm:
            self.alarm = when
            self._turn.alarms.add(when, self)

    # The turn

    def schedule_delivery(self) -> None:
        """Look at this channel when the turn ends, because a consumer may have room or something came to deliver."""
        self._turn.to_deliver[self] = None

    def _wake_at(self, when: float) -> None:
        """Ask to be called then. If that is now, this channel has more to do, but others have their turn first."""
        if when < self.alarm:
            self.alarm = when
            self._turn.alarms.add(when, self)

    # The journal

    def record_progress(self, *, urgent: bool = False) -> None:
        """Tell the journal what was finished, and how far the cursor came, since the last call."""
        finished = self.in_flight.take_finished()
        if self.ephemeral_batches is not None:
            for start, end in finished:
                self.ephemeral_batches.take_back(start, end)
        if self._finished:
            finished = sorted(finished + self._finished)
            self._finished = []
        if self.ephemeral_batches is not None:
            for start, end in finished:
                self.ephemeral_batches.release(start, end)
        if finished or self.cursor != self._saved_cursor:
            self._saved_cursor = self.cursor
            flat = [sequence for bounds in finished for sequence in bounds]
            if self.ephemeral_batches is None:
                self._turn.record(("progress", self.topic.name, self.name, self.cursor, flat), urgent=urgent)

    def _record_urgent(self, change: ChannelChange) -> None:
        # If the journal's cursor lagged behind a sequence that the journal is told about, its message would come
        # twice.
        self.record_progress()
        self._record(change)

    def _record(self, change: ChannelChange) -> None:
        if self.ephemeral_batches is None:
            self._turn.record(change, urgent=True)

    def snapshot_changes(self) -> Iterator[Change | None]:
        """Return the changes that tell a new journal of this channel, as of this call, even if iterated later.

        A None among them is an opportunity for others to have their turn.
        """
        changes = self._snapshot_changes(
            self.cursor, self.paused_why or self.paused, self.skips.copy(), self._all_waiting()
        )
        return chain(changes, self.buried_queue.snapshot_changes(self.topic.name, self.name))

    def _snapshot_changes(
        self, cursor: int, paused: bool | str, skips: SkipRanges, waiting: Iterator[tuple[int, int, int] | None]
    ) -> Iterator[Change | None]:
        topic, name = self.topic.name, self.name
        yield "channel", topic, name, cursor
        if paused:
            yield "hold", topic, name, paused
        for start, end in skips:
            yield "skip", topic, name, start, end
        entries: list[int] = []
        for place in waiting:
            if place is None:
                yield None
                continue
            entries += place
            if len(entries) >= 3 * _WAIT_ENTRIES_PER_CHANGE:
                yield "wait", topic, name, entries
                entries = []
        if entries:
            yield "wait", topic, name, entries

    def _all_waiting(self) -> Iterator[tuple[int, int, int] | None]:
        # Copies of packed integers: a million take some milliseconds, where yielding them takes half a second.
        at_once = chain(self.in_flight.positions(), self.retries.copy())
        return self._waiting(at_once, self.deferred.copy())

    def _waiting(
        self, at_once: Iterator[tuple[int, int] | None], later: Iterator[tuple[int, int, int] | None]
    ) -> Iterator[tuple[int, int, int] | None]:
        for place in at_once:
            yield (*place, 0) if place is not None else None
        wall_milliseconds = self._turn.wall_milliseconds
        for deferred in later:
            if deferred is None:
                yield None
            else:
                due, sequence, attempts = deferred
                yield sequence, attempts, wall_milliseconds(due)

    def restore(self, state: ChannelState, wall_ms_to_due: Callable[[int], int]) -> None:
        """Take over the state that recovery found, and free its memory. What was in flight is deliverable at once."""
        self.paused, self.paused_why = state.paused, state.paused_why
        for start, end in state.skips:
            self.skips.add(start, end)
        self.deferred.fill(self._restored(state.waiting, wall_ms_to_due))
        state.skips.clear()
        state.waiting.clear()
        self.buried_queue.buried = state.buried
        if (job := recovered_job(state.job, self._turn.now)) is not None:
            self.buried_queue.begin(job)
            self._wake_at(job.next_step)
        self._counted_from = self._furthest = self.topic.high_watermark
        if self.rules.ttl is not None:
            self._wake_at(self._turn.now)
        self._set_alarm()

    def _restored(
        self, waiting: dict[int, tuple[int, int]], wall_ms_to_due: Callable[[int], int]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (due, sequence, attempts) of what waits for its time. The rest is added to the retries."""
        for sequence in sorted(waiting):
            attempts, due_ms = waiting[sequence]
            if due_ms == 0:
                self.retries.add(sequence, attempts)
            else:
                yield wall_ms_to_due(due_ms), sequence, attempts
