"""Tracks where each message of a channel is, with a cursor into the topic's log and a short list of exceptions.

All messages before the cursor are finished, except for the ones in flight, in the retry queue, deferred, buried or held.
Ahead of the cursor, skip ranges cover the sequences that it must pass over: deferred batches, emptied ranges, buried
messages after a seek, overflow of an ephemeral channel. A message is in exactly one of these places, and leaves only by
FIN, empty, seek, restore, discard or delete. The arrows are methods of the ledger:

               hold            take_held
          ┌──────────────► held ────────┐
          │        take_run             ▼
(ahead of the cursor) ──────────► in flight ───── FIN ───────────► gone
          │ defer               ▲      │ retry             ▲
          ▼                     │      ▼                   │
      deferred ─ release_due ─► retry ─┘      retry_later: deferred
                                ▲      │
                      give_back │      │ bury
                                │      ▼
                               buried ───── finish ──────► gone

A channel only holds messages if its policy has rules about groups (groups.py).

A message that is gone can come back while the log still has it: by a seek, a restored backlog, or a redelivery
(`give_back`).

**The journal.** Only the ledger moves the cursor, and only the ledger records in the journal where messages are. For
example, a channel at 0 has delivered 0 to 5, 1 and 2 are finished, and 4 was requeued with a delay. So the cursor is at
6; 0, 3 and 5 are in flight; 4 is deferred. The deferral is recorded immediately, because otherwise 4 would be
delivered too early after a crash. The progress (1 and 2 are finished) is recorded within 100 ms (`record_progress`); if
we crash before that, 1 and 2 are delivered again. Before each immediate entry, we record all progress (`tell`).
Otherwise the journal would say that 4 waits while its cursor is still at 0, and after a crash 4 would be delivered
twice: from the cursor, and when it is due.

The ledger has no consumers, follows no rules and reads no clock. You pass in the times: `due` is in monotonic
microseconds, like deadlines, and `due_ms` is the same moment in wall-clock milliseconds, because the journal outlives
the process. The ledger doesn't wake consumers either. After calling it, do whatever follows from the change: schedule a
delivery, set an alarm, or release log segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, final

from pyroaring import BitMap64

from nsqd.broker.backlog import joined
from nsqd.broker.bitmaps import SkipRanges, between, bitmap_of, bitmap_of_ranges, ranges_in
from nsqd.broker.buried import BuriedMessage, BuriedMessages, bury_change
from nsqd.broker.deferred_queue import DeferredQueue
from nsqd.broker.edited import EditedMessages
from nsqd.broker.ephemeral_batches import EphemeralBatches
from nsqd.broker.held import HeldMessages
from nsqd.broker.in_flight import InFlight
from nsqd.broker.retry_queue import RetryQueue

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.change import Change, ChannelChange
    from nsqd.broker.early_deferrals import EarlyDeferrals
    from nsqd.broker.feed import TopicFeed
    from nsqd.broker.journal import BrokerJournal
    from nsqd.broker.journal_replay import ChannelState
    from nsqd.broker.reclaimer import Reclaimer
    from nsqd.broker.store import BatchSource

# In the journal, the attempts of a deferred message that a consumer has had, but none of whose deliveries counts. It
# holds up its group if that has an order, and one that was published with a delay doesn't. When such a message is put
# into a queue, only the 16 bits below count, so an earlier version of nsqd reads 0.
_NONE_COUNTS: Final = 1 << 16
_WAIT_ENTRIES_PER_CHANGE: Final = 2_000  # a millisecond or two of work
_HELD_RANGES_PER_CHANGE: Final = 2_000
_DEFERRED_ONE_BY_ONE: Final = 500  # messages of a batch; with more, we put them onto the heap later
# With more of them deferred, we don't search for the due time of one, because that goes through all. It only matters if a power
# cut loses an edited copy, and the journal has got a snapshot since the edit; then the message is due at once.
_DEFERRED_TO_SEARCH: Final = 5_000
_FINISHED_WORTH_RELEASING: Final = 1000  # messages


@final
class Ledger:
    """The state of a channel's messages, and how much of it is in the journal."""

    __slots__ = (
        "_counted_from",
        "_finished",
        "_furthest",
        "_journal",
        "_none_counts",
        "_saved_cursor",
        "_source",
        "batch",
        "buried",
        "cursor",
        "deferred",
        "edited",
        "ephemeral_batches",
        "feed",
        "held",
        "in_flight",
        "name",
        "retries",
        "skips",
    )

    def __init__(
        self,
        name: str,
        feed: TopicFeed,
        journal: BrokerJournal[Ledger],
        reclaimer: Reclaimer,
        *,
        cursor: int,
        ephemeral: bool,
    ) -> None:
        self.name = name  # the channel's
        self.feed = feed
        self.cursor = cursor
        self.batch: Batch | None = None  # usually the batch at the cursor; see `batch_in_hand`
        self.skips = SkipRanges()
        self.in_flight = InFlight(reclaimer)
        self.retries = RetryQueue(reclaimer)
        self.deferred = DeferredQueue(reclaimer)
        self.buried = BuriedMessages()
        self.held = HeldMessages()
        self.edited: EditedMessages | None = None  # None: the channel has no edited copies
        self._none_counts: BitMap64 | None = None  # see `_NONE_COUNTS`; of some, a later delivery counts
        # If the channel or its topic is ephemeral, the log doesn't wait for us, so we keep batches ourselves. We also
        # record nothing in the journal then.
        self.ephemeral_batches = EphemeralBatches(feed.log) if ephemeral or feed.ephemeral else None
        self._source: BatchSource = self.ephemeral_batches if self.ephemeral_batches is not None else feed.log
        self._journal = journal
        self._counted_from = cursor  # `message_count` counts the messages released from here on
        self._finished: list[tuple[int, int]] = []  # ranges that were finished without having been in flight
        self._saved_cursor = cursor  # the cursor in the journal
        self._furthest = feed.high_watermark  # before this, deferred messages may lack a skip range

    # Waiting messages

    @property
    def depth(self) -> int:
        """The number of messages that can be delivered now."""
        return self.depth_without_held + self.held.total

    @property
    def depth_without_held(self) -> int:
        """The depth of a channel that holds no messages. Each turn of each channel asks, so this is as short as it can be."""
        return self.feed.high_watermark - self.cursor - self.skips.total + self.retries.members.count

    @property
    def ahead(self) -> int:
        """The number of messages that wait for their first delivery."""
        return self.feed.high_watermark - self.cursor - self.skips.total + self.held.total

    @property
    def oldest_ahead(self) -> int:
        """The first sequence that was never delivered, or the cursor: all before it were delivered, skipped or dropped."""
        lowest = self.held.lowest()
        return self.cursor if lowest is None else min(self.cursor, lowest)

    @property
    def unfinished(self) -> int:
        """The number of messages that are ready, deferred or in flight."""
        return self.depth + len(self.in_flight) + len(self.deferred)

    @property
    def is_empty(self) -> bool:
        """Whether the channel has no messages: ready, in flight, deferred or buried."""
        return not (self.unfinished or len(self.buried))

    @property
    def message_count(self) -> int:
        return self.feed.high_watermark - self._counted_from

    @property
    def backend_depth(self) -> int:
        """The number of messages in `depth` that are no longer in memory."""
        if self.ephemeral_batches is not None:
            return 0
        end = min(self.feed.log.cached_from, self.feed.high_watermark)
        return max(0, min(self.depth, max(0, end - self.cursor) + self.held.count_before(end)))

    def mean_of(self, messages: int) -> int:
        """Estimate the bytes of a number of messages, based on the mean size of the ones ahead of the cursor."""
        log = self.feed.log
        start = self.cursor if self.cursor < log.tail else log.first
        return messages * log.bytes_from(start) // max(log.tail - start, 1)

    def oldest_timestamp(self) -> int | None:
        """Return the publish time of the oldest waiting message, in nanoseconds. None if nothing waits.

        Also returns None if the message isn't in memory. It is then read from disk; call again a few seconds later.
        """
        waiting = [self.retries.peek()[0]] if self.retries else []
        if (cursor := self.advance()) < self.feed.high_watermark:
            waiting.append(cursor)
        if (held := self.held.lowest()) is not None:
            waiting.append(held)
        batches = [self._source.batch_at(sequence) for sequence in waiting]
        times = [batch.timestamp for batch in batches if batch is not None]
        return min(times) if times and len(times) == len(batches) else None

    def low_watermark(self) -> int:
        """Return the sequence before which this channel needs no messages any more."""
        low = self.cursor
        places = self.in_flight.lowest(), self.retries.lowest(), self.deferred.lowest(), self.buried.lowest()
        for lowest in places:
            if lowest is not None and lowest < low:
                low = lowest
        return min(low, self.oldest_ahead) if self.held.total else low

    def waits_before(self, cursor: int) -> bool:
        """Return whether `seek(cursor)` would lose a ready, deferred or in-flight message before `cursor`."""
        lows = (
            self.advance(),
            self.in_flight.lowest(),
            self.retries.lowest(),
            self.deferred.lowest(),
            self.held.lowest(),
        )
        return any(low is not None and low < cursor for low in lows)

    def exceptions(self) -> Iterator[Iterable[int]]:
        """Return the sequences in flight, in the retry queue, deferred, buried or held, as of this call.

        They come in lists, and each list takes a fraction of a millisecond.
        """
        waiting = chain(self.in_flight.sequences(), self.retries.sequences(), self.deferred.sequences())
        return chain(waiting, self.buried.sequences(), self.held.sequences())

    def ahead_among(self, sequences: BitMap64) -> BitMap64:
        """Return the given sequences that are ahead of the cursor and not skipped. All must be before H."""
        return self.skips.free_among(between(sequences, self.advance(), self.feed.high_watermark))

    def waiting_among(self, sequences: BitMap64) -> BitMap64:
        """Return the given sequences that wait, including deferred ones. All must be before H."""
        passed = self.retries.among(sequences) | self.deferred.among(sequences) | self.held.among(sequences)
        return passed | self.ahead_among(sequences - passed)

    def finished_ahead(self) -> BitMap64:
        """Return the sequences from `oldest_ahead` on that don't wait for their first delivery."""
        passed = self.skips.behind(self.cursor)
        if self.held.total:
            passed |= bitmap_of(self.oldest_ahead, self.cursor)
            passed -= self.held.all()
        return passed

    def attempts_of(self, sequence: int) -> int:
        """Return how many attempts a waiting message has had."""
        return self.deferred.attempts_of(sequence) or self.retries.attempts_of(sequence)

    # New messages, from the cursor on

    def advance(self) -> int:
        """Move the cursor past skip ranges and gaps to the next new message, or else to H. Return the cursor."""
        batch, cursor = self.batch, self.cursor
        if (
            batch is not None
            and batch.base_sequence <= cursor < batch.end_sequence
            and not self.skips.total
            and self.ephemeral_batches is None
        ):
            return cursor  # a channel on disk finds no gap inside a batch, because the log keeps what the channel needs
        while True:
            if self.skips.total:
                self.cursor = self.skips.pass_over(self.cursor)
            readable = min(self._source.next_readable(self.cursor), self.feed.high_watermark)
            if readable == self.cursor:
                return readable
            # The log has a gap here: a damaged record, or messages that it dropped because it doesn't wait for
            # ephemeral channels. Skip ranges may end in this gap or follow it.
            self._finished.append((self.cursor, readable))
            self.cursor = readable

    @property
    def batch_in_hand(self) -> Batch | None:
        """The batch at the cursor, if it has been read already."""
        batch, cursor = self.batch, self.cursor
        if batch is None or not batch.base_sequence <= cursor < batch.end_sequence:
            return None
        return batch

    def offer(self, batch: Batch) -> bool:
        """Remember a batch that was just released, if it begins at the cursor. Return whether it does.

        A delivery in this turn can then use it without a lookup in the log. Call `withdraw` after the delivery.
        """
        if batch.base_sequence != self.cursor or self.ephemeral_batches is not None:
            return False
        self.batch = batch
        return True

    def withdraw(self, batch: Batch) -> None:
        """Forget an offered batch if nothing of it was taken. The log's cache decides when to free it."""
        if self.batch is batch and self.cursor == batch.base_sequence:
            self.batch = None

    def batch_ahead(self) -> Batch | None:
        """Return the batch at the cursor. None if it has to be read from disk. Call `advance` first."""
        batch, cursor = self.batch, self.cursor
        if batch is None or not batch.base_sequence <= cursor < batch.end_sequence:
            batch = self.batch = self._source.batch_at(cursor)
        return batch

    def run_end(self, batch: Batch) -> int:
        """Return the end of the run at the cursor: the end of this batch, H or the next skip range."""
        stop = batch.end_sequence
        if self.feed.high_watermark < stop:
            stop = self.feed.high_watermark
        if self.skips.total and (next_skip := self.skips.next_start()) is not None:
            stop = min(stop, next_skip)
        return stop

    def next_stop(self, most: int) -> int:
        """Return the end of the run at the cursor: up to `most` messages, or up to the next skip range."""
        stop = self.cursor + most
        if (next_skip := self.skips.next_start()) is not None:
            stop = min(stop, next_skip)
        return stop

    def take_run(self, batch: Batch, most: int) -> int:
        """Take the run at the cursor, up to `most` messages. Return its end. `batch` must be the one at the cursor."""
        cursor = self.cursor
        stop = batch_end = batch.end_sequence
        if self.feed.high_watermark < stop:
            stop = self.feed.high_watermark
        if self.skips.total and (next_skip := self.skips.next_start()) is not None:
            stop = min(stop, next_skip)
        if cursor + most < stop:
            stop = cursor + most
        self.cursor = stop
        if stop == batch_end:
            self.batch = None
        self._journal.unsaved[self] = None
        return stop

    def take_ahead(self, stop: int) -> None:
        """Take the messages from the cursor to `stop`, to put them in flight or bury them."""
        self.cursor = stop
        batch = self.batch
        if batch is not None and stop >= batch.end_sequence:
            self.batch = None
        self._journal.unsaved[self] = None

    def finish_ahead(self, stop: int) -> None:
        """Finish the messages from the cursor to `stop` without delivering them."""
        start = self.cursor
        self.take_ahead(stop)
        self.finish_unseen(start, stop)

    def finish_unseen(self, start: int, end: int) -> None:
        """Record [start, end) as finished without a delivery. The cursor must have passed it, or skip it."""
        if self._finished and self._finished[-1][1] == start:
            start = self._finished.pop()[0]
        self._finished.append((start, end))
        self._journal.unsaved[self] = None

    def finish_before(self, end: int, most_behind_skip: int) -> int:
        """Finish the messages from the cursor to `end` that it doesn't skip. Return their number.

        If there is a skip range, stop at most `most_behind_skip` sequences after its start, because there may be as
        many ranges as messages.
        """
        start, count = self.cursor, 0
        if (next_skip := self.skips.next_start()) is not None:
            end = min(end, max(start, next_skip) + most_behind_skip)
        for first, stop in self.skips.free_ranges(start, end):
            self.finish_unseen(first, stop)
            count += stop - first
        self.cursor = self.skips.pass_over(end)
        return count

    @property
    def may_meet_deferred(self) -> bool:
        """Whether the cursor has gone back, so that it may reach a deferred message without a skip range."""
        return self.cursor < self._furthest

    def defer_ahead(self, stop: int, due: int, due_ms: int) -> None:
        """Defer the messages from the cursor to `stop`."""
        start = self.cursor
        self.take_ahead(stop)
        self.retry_later([(sequence, 0, due, due_ms) for sequence in range(start, stop)])

    def end_of_refused(self) -> int:
        """Return where to continue if the disk has refused to read at the cursor for a long time, else the cursor."""
        return min(self._source.end_of_refused(self.cursor), self.feed.high_watermark)

    # Held messages

    def hold(self, stop: int) -> None:
        """Hold the messages from the cursor to `stop`, because their groups may not have them now."""
        start = self.cursor
        self.take_ahead(stop)
        self.held.add(start, stop)

    def take_held(self, start: int, stop: int) -> None:
        """Take [start, stop), all of which are held, to put them in flight."""
        self.held.deliver(start, stop)
        self._journal.unsaved[self] = None

    def take_scattered(self, sequences: Sequence[int]) -> None:
        """Do the same as `take_held` with held messages that aren't neighbours."""
        self.held.deliver_all(BitMap64(sequences))
        self._journal.unsaved[self] = None

    def finish_held(self, sequences: BitMap64) -> None:
        """Finish held messages without delivering them."""
        self._finished += ranges_in(self.held.take_out(sequences))
        self._journal.unsaved[self] = None

    def put_off(self, sequence: int, due: int, due_ms: int) -> None:
        """Defer a held message or a retry if the disk has long refused to read it."""
        if sequence in self.held:
            self.held.take_out(BitMap64((sequence,)))
            attempts = 0
        else:
            attempts = self.take_retry(sequence)
        self.retry_later([(sequence, attempts, due, due_ms)])

    def is_refused(self, sequence: int) -> bool:
        """Return whether the disk has refused to read this message for a long time."""
        return self._source.end_of_refused(sequence) != sequence

    def is_lost(self, sequence: int) -> bool:
        """Return whether the log no longer has this message: it is damaged, or the log didn't wait for the channel."""
        return self._source.next_readable(sequence) != sequence

    def drop_lost(self, sequence: int) -> None:
        """Finish a held message or a retry that the log no longer has."""
        lost = BitMap64((sequence,))
        self._finished += ranges_in(self.held.take_out(lost) | self.retries.take_out(lost))
        self._journal.unsaved[self] = None

    def batch_of(self, sequence: int) -> Batch | None:
        """Return the batch of an unfinished message. None if it has to be read from disk."""
        return self._source.batch_at(sequence)

    # In flight

    def hand_out(self, start: int, end: int) -> None:
        """Note that a consumer has [start, end), so that they don't count as overflow of an ephemeral channel."""
        assert self.ephemeral_batches is not None
        self.ephemeral_batches.hand_out(start, end)

    def note_progress(self) -> None:
        """Schedule `record_progress`, because a message in flight was finished."""
        self._journal.unsaved[self] = None

    def take_back(self, sequence: int) -> None:
        """Undo `hand_out` for an unfinished message. The next call decides where the message goes."""
        if self.ephemeral_batches is not None:
            self.ephemeral_batches.take_back(sequence, sequence + 1)

    # Retries

    def batch_of_retry(self) -> Batch | None:
        """Return the batch of the next retry. None if there is none, or if it has to be read from disk.

        Finishes retries that the log no longer has, because of damage or because it didn't wait for an ephemeral
        channel.
        """
        source = self._source
        while self.retries:
            sequence, _ = self.retries.peek()
            if source.next_readable(sequence) == sequence:
                return source.batch_at(sequence)
            self.retries.pop_run(1, sequence + 1)
            self._finished.append((sequence, sequence + 1))
        return None

    def take_retries(self, most: int, batch: Batch) -> tuple[int, int, int]:
        """Take up to `most` retries with consecutive sequences in `batch` and the same number of attempts.

        Returns (first, stop, attempts so far).
        """
        return self.retries.pop_run(most, batch.end_sequence)

    def take_retry(self, sequence: int) -> int:
        """Take a message out of the middle of the retry queue. Return its attempts so far."""
        attempts = self.retries.attempts_of(sequence)
        self.retries.take_out(BitMap64((sequence,)))
        return attempts

    def note_redelivery(self, first: int, stop: int, attempts: int) -> None:
        """Record in the journal that these messages are now on attempt number `attempts`."""
        self.tell(("try", self.feed.name, self.name, attempts, list(range(first, stop))))

    def put_off_retries(self, most: int, due: int, due_ms: int) -> bool:
        """Defer the first retries if the disk has long refused to read them. Return whether there were any."""
        refused: list[tuple[int, int, int, int]] = []
        while self.retries and len(refused) < most:
            sequence, _ = self.retries.peek()
            if self._source.end_of_refused(sequence) == sequence:
                break
            _, _, attempts = self.retries.pop_run(1, sequence + 1)
            refused.append((sequence, attempts, due, due_ms))
        if refused:
            self.retry_later(refused)
        return bool(refused)

    def retry(self, sequence: int, attempts: int) -> None:
        """Put a message into the retry queue because its consumer requeued it without a delay."""
        self._tell_waiting([sequence, attempts, 0])
        self.retries.add(sequence, attempts)

    def retry_unrecorded(self, sequence: int, attempts: int) -> None:
        """Put a timed-out message into the retry queue.

        The journal needs no entry for that: after a crash, everything that was in flight is retried.
        """
        self.retries.add(sequence, attempts)

    def retry_later(self, places: Sequence[tuple[int, int, int, int]]) -> None:
        """Defer messages, each given as (sequence, attempts, due, due_ms)."""
        entries: list[int] = []
        for sequence, attempts, due, due_ms in places:
            self.deferred.add(due, sequence, attempts)
            entries += (sequence, attempts, due_ms)
        self._tell_waiting(entries)

    def retry_later_as_new(self, sequence: int, due: int, due_ms: int) -> None:
        """Defer a message that a consumer has had, although none of its deliveries counts."""
        if self._none_counts is None:
            self._none_counts = BitMap64()
        self._none_counts.add(sequence)
        self.deferred.add(due, sequence, 0)
        self._tell_waiting([sequence, _NONE_COUNTS, due_ms])

    def deferred_after_delivery(self) -> BitMap64:
        """Return the deferred messages that consumers have had, even if that doesn't count as an attempt."""
        delivered = self.deferred.delivered()
        return delivered | self.deferred.among(self._none_counts) if self._none_counts else delivered

    def _attempts_for_journal(self, sequence: int) -> int:
        attempts = self.attempts_of(sequence)
        return _NONE_COUNTS if not attempts and self._none_counts and sequence in self._none_counts else attempts

    def release_due(self, until: int, most: int) -> None:
        """Move up to `most` deferred messages that are due by `until` to the retry queue."""
        for sequence, attempts in self.deferred.pop_due(until, most):
            self.retries.add(sequence, attempts)

    def give_back(self, sequences: Sequence[int]) -> None:
        """Put buried or finished messages into the retry queue, with their attempts reset to 0."""
        for sequence in sequences:
            self.retries.add(sequence, 0)
        self._tell_waiting([it for sequence in sequences for it in (sequence, 0, 0)])

    def _tell_waiting(self, entries: Sequence[int]) -> None:
        self.tell(("wait", self.feed.name, self.name, entries))

    # The end of a message

    def finish(self, sequences: Iterable[int]) -> None:
        """Finish messages that were just taken out of another place (e.g. discarded), and record that immediately."""
        self._finished += joined([(sequence, sequence + 1) for sequence in sequences])
        self.record_progress(urgent=True)
        self._journal.unsaved[self] = None  # the log may be able to remove something

    def finish_waiting(self, sequences: BitMap64) -> BitMap64:
        """Finish the waiting messages among these, and return them. All must be before H."""
        self.record_progress()
        waiting = self.deferred.take_out(sequences) | self.retries.take_out(sequences) | self.held.take_out(sequences)
        self._finished += ranges_in(waiting)
        ahead = self.ahead_among(sequences - waiting)
        for start, end in ranges_in(ahead):
            self._skip(start, end)
            if self.ephemeral_batches is not None:
                self.ephemeral_batches.release(start, end)
        self.record_progress(urgent=True)
        self._journal.unsaved[self] = None  # the log may be able to remove something
        return waiting | ahead

    def take_waiting(self, sequences: BitMap64) -> list[tuple[int, int]]:
        """Take waiting messages out of their places, to bury them. Return the ranges of those ahead of the cursor.

        All must be before H. Bury them first, and then call `record_skip` for the ranges: with the skip alone, the journal
        would have lost them.
        """
        self.record_progress()
        passed = self.deferred.take_out(sequences)
        passed |= self.retries.take_out(sequences)
        passed |= self.held.take_out(sequences)
        ahead = list(ranges_in(self.ahead_among(sequences - passed)))
        for start, end in ahead:
            self.skips.add(start, end)
        return ahead

    def bury(self, burials: Sequence[BuriedMessage]) -> None:
        """Bury messages that were just taken out of another place. An ephemeral channel drops them instead."""
        if self.ephemeral_batches is not None:
            self._finished += [(burial.sequence, burial.sequence + 1) for burial in burials]
            self._journal.unsaved[self] = None
            return
        for burial in burials:
            self.buried.add(burial)
        self.tell(bury_change(self.feed.name, self.name, burials))

    # Messages that the topic releases

    def defer(self, start: int, count: int, due: int) -> None:
        """Defer the messages of a batch, which is ahead of the cursor, until `due`.

        This writes no journal entry, because the topic has written one for all of its channels.
        """
        self.skips.add(start, start + count)
        if self.ephemeral_batches is not None and self.feed.ephemeral and self.ephemeral_batches.find(start) is None:
            return  # `keep` had no room for the batch
        if count > _DEFERRED_ONE_BY_ONE:  # `DeferredQueue.unpack` creates their entries later
            self.deferred.add_runs(due, [[(start, count, 0)]], bitmap_of(start, start + count))
        else:
            for sequence in range(start, start + count):
                self.deferred.add(due, sequence, 0)

    def take_early_deferrals(self, parked: EarlyDeferrals, at: int) -> None:
        """Take over the early deferrals of the topic when it releases them. Their delays begin at `at` (microseconds).

        This takes the same time for any number of batches, unless the channel keeps batches in memory.
        """
        self.skips.cover(parked.deferred | parked.cancelled)
        pieces, deferred = parked.pieces, parked.deferred
        if self.ephemeral_batches is not None:
            pieces, deferred = self._early_deferrals_kept_by(self.ephemeral_batches, parked)
        if deferred:
            self.deferred.add_runs(at, pieces, deferred)

    def _early_deferrals_kept_by(
        self, kept: EphemeralBatches, parked: EarlyDeferrals
    ) -> tuple[list[list[tuple[int, int, int]]], BitMap64]:
        """Return the batches that this ephemeral channel keeps, and their sequences. Release the cancelled messages."""
        pieces, deferred = parked.pieces, parked.deferred
        if self.feed.ephemeral:
            # `keep` may have had no room for some.
            batches = [batch for batch in parked.batches if kept.find(batch[0]) is not None]
            pieces = [batches]
            deferred = bitmap_of_ranges([(start, start + count) for start, count, _ in batches]) - parked.cancelled
        for start, end in ranges_in(parked.cancelled - bitmap_of(0, self.feed.log.cached_from)):
            kept.release(start, end)
        return pieces, deferred

    def pass_over(self, start: int, end: int) -> None:
        """Skip messages that were never released, because the topic was emptied."""
        self._counted_from += end - start
        self._skip(start, end)
        # Advance the cursor now; otherwise the topic keeps counting these messages until a consumer shows up.
        self.cursor = self.skips.pass_over(self.cursor)
        self._journal.unsaved[self] = None

    def skip_unrecorded(self, start: int, end: int) -> None:
        """Skip messages ahead of the cursor without a journal entry: the caller finishes or buries them next."""
        self.skips.add(start, end)

    def _skip(self, start: int, end: int) -> None:
        if start < end:
            self.skips.add(start, end)
            self.record_skip(start, end)

    def record_skip(self, start: int, end: int) -> None:
        """Record in the journal that [start, end) is never delivered here."""
        self.tell(("skip", self.feed.name, self.name, start, end))

    # Batches that we keep ourselves: of ephemeral channels, and of ephemeral topics

    def keep(self, batches: Iterable[Batch], most: int, most_bytes: int) -> None:
        """Keep batches that are about to be released. Leave out deferred ones that exceed either limit."""
        assert self.ephemeral_batches is not None
        if self.ephemeral_batches.messages > 2 * self.unfinished + _FINISHED_WORTH_RELEASING:
            self.record_progress()
        # We can't drop deferred messages quickly later on, so we decide now whether there is room for them.
        room = most - len(self.deferred)
        if self.feed.ephemeral:
            room -= self.depth
        else:  # the log may still have the deferred messages when they are due, so leave more memory to the others
            most_bytes //= 2
        for batch in batches:
            if batch.delay_ms:
                if batch.count > room or self.ephemeral_batches.bytes + batch.held > most_bytes:
                    continue
                room -= batch.count
            self.ephemeral_batches.add(batch)

    def drop_overflow(self, before: int, most: int, most_bytes: int) -> None:
        """Drop the newest messages, but none before `before`, until the number and bytes are within their limits."""
        if (excess := self._excess(before, most, most_bytes)) > 0:
            assert self.ephemeral_batches is not None
            floor = max(before, self.cursor)
            for start, end in self.skips.add_newest(excess, floor, self.feed.high_watermark):
                self.ephemeral_batches.release(start, end)
                excess -= end - start
            if excess and self.held.total:  # held messages are older than the ones ahead of the cursor
                newest = self.held.from_place(before)
                self.finish_held(newest[max(0, len(newest) - excess) :])

    def _excess(self, before: int, most: int, most_bytes: int) -> int:
        """Return how many of the newest messages to drop to stay within both limits."""
        kept = self.ephemeral_batches
        assert kept is not None
        excess = self.depth - most
        if self.feed.ephemeral:
            excess += len(self.deferred)
        if kept.bytes <= most_bytes:
            return excess
        self.record_progress()  # so that finished messages are not counted
        too_much = kept.bytes - kept.in_hand - most_bytes
        count = 0
        ranges = self.skips.free_ranges(max(before, self.cursor), self.feed.high_watermark)
        for start, end in reversed([*ranges_in(self.held.from_place(before)), *ranges]):
            if too_much <= 0:
                break
            newest, size = kept.newest_within(too_much, start, end)
            too_much -= size
            count += newest
        return max(excess, count)

    # Changes by operators

    def move(self, sequences: BitMap64, due: int, due_ms: int) -> BitMap64:
        """Make the waiting messages among these due at `due`, or now if `due_ms` is 0. Return the waiting ones."""
        retried, deferred = self.retries.among(sequences), self.deferred.among(sequences)
        held = self.held.among(sequences)
        ahead = self.ahead_among(sequences - retried - deferred - held)
        waiting = retried | deferred | held | ahead
        moved = waiting if due_ms else deferred  # the others are due already, and keep their places
        entries = [it for sequence in moved for it in (sequence, self._attempts_for_journal(sequence), due_ms)]
        if due_ms:
            for start, end in ranges_in(ahead):
                self._skip(start, end)
        if entries:
            self._tell_waiting(entries)
        self.deferred.take_out(moved)
        self.retries.take_out(moved)
        self.held.take_out(moved)
        for sequence, attempts in zip(entries[::3], entries[1::3], strict=True):
            if due_ms:
                self.deferred.add(due, sequence, attempts)
            else:
                self.retries.add(sequence, attempts)
        return waiting

    def empty(self) -> None:
        """Finish everything released so far: ready, in flight and deferred messages."""
        self._forget_all(self.feed.high_watermark)
        self._record(("empty", self.feed.name, self.name, self.cursor))

    def seek(self, cursor: int, wall_milliseconds: Callable[[int], int]) -> None:
        """Empty the channel, and continue at `cursor`: anywhere from the log's first sequence to H.

        The cursor won't come to the edited copies that a paused topic has after H, so these wait again.
        """
        copies = self._copies_after_release()
        due = (
            {sequence: at for at, sequence, _ in self.deferred.positions_of(self.deferred.among(copies))}
            if copies
            else {}
        )
        assert self.ephemeral_batches is None, "ephemeral channels can't seek, because the log doesn't wait for them"
        self._counted_from = min(self._counted_from, cursor)
        self._forget_all(cursor)
        self.skips.cover(between(self.buried.all(), cursor, self.feed.high_watermark))
        self._record(("seek", self.feed.name, self.name, cursor))
        for copy in copies:
            if copy in due:
                self.deferred.add(due[copy], copy, 0)
            else:
                self.retries.add(copy, 0)
        if copies:
            self._tell_waiting(
                [it for copy in copies for it in (copy, 0, wall_milliseconds(due[copy]) if copy in due else 0)]
            )

    def _forget_all(self, cursor: int) -> None:
        self.clear()
        self.skips.clear()
        if self.edited is not None:  # or the cursor would meet both the copy and what it has replaced
            self.skips.cover(between(self.edited.replaced, cursor, self.feed.high_watermark))
        self._finished.clear()
        self._furthest = self.feed.high_watermark
        self.cursor = self._saved_cursor = cursor
        self._journal.unsaved[self] = None  # the log may be able to remove something

    def clear(self) -> None:
        """Forget the waiting messages and the ones in flight, without a journal entry."""
        self.in_flight.clear()
        self.retries.clear()
        self.deferred.clear()
        self.held.clear()
        self._none_counts = None
        if self.ephemeral_batches is not None:
            self.ephemeral_batches.clear()
        self.batch = None

    def restore_before(
        self,
        end: int,
        cursor: int,
        skipped: BitMap64,
        retried: Sequence[tuple[int, int]],
        deferred: Sequence[tuple[int, int, int]],
        held: BitMap64,
        told: Sequence[int],
    ) -> None:
        """Replace the waiting messages before `end`. Later ones, and the ones in flight, stay as they are.

        From `cursor` on, messages wait for their first delivery, except for the `skipped` ones, which include the
        buried ones. `retried` has (sequence, attempts), and `deferred` has (due, sequence, attempts). The `held` ones are
        before `cursor`, or were held before, so that the cursor passes them. `told` is for the journal: sequence, attempts
        and due_ms of each message in the two lists or in flight.

        The skip ranges in the journal entry don't include buried messages. So if the journal has lost a burial, that
        message is delivered again.
        """
        flat = [sequence for bounds in ranges_in(skipped - self.buried.all()) for sequence in bounds]
        self._record(("restore", self.feed.name, self.name, cursor, end, flat, told))
        # From `end` on, messages that the cursor has passed stay passed. It will meet the held ones again, unless they stay
        # held.
        later, self.skips = self.skips.behind(max(end, self.cursor)), SkipRanges()
        self.skips.cover(skipped | later)
        self.skips.cover(bitmap_of(end, self.cursor) - (self.held.all() - held))
        self.held.clear()
        if held:
            self.held.fill(held)
            self._record(("held", self.feed.name, self.name, list(chain.from_iterable(ranges_in(held)))))
        self._counted_from = min(self._counted_from, cursor)
        self.batch = None
        self._furthest = max(self._furthest, self.cursor, end)
        self._saved_cursor = cursor
        self.cursor = self.skips.pass_over(cursor)
        if held and held.max() >= cursor:  # the journal's cursor has to pass them in the same record
            self._saved_cursor = self.cursor
            self._record(("progress", self.feed.name, self.name, self.cursor, []))
        self._journal.unsaved[self] = None
        self.retries.replace_before(end, retried)
        self.deferred.replace_before(end, deferred)

    # Edited copies (edit.py)

    def record_copy(self, copy: int, replaced: int, due_ms: int, former: ChannelChange | None) -> None:
        """Record in the journal that `copy` waits here instead of `replaced`. The log must get it next, or a `cut` follows.

        `replaced` is -1 if the copy replaces nothing; otherwise `former` comes from `place_for_journal`.
        """
        topic, name = self.feed.name, self.name
        self.record_progress()
        self._journal.record(("edit", topic, name, copy, replaced, due_ms))
        # An earlier version understands only these.
        if former is not None:
            if replaced >= self.cursor:
                self._record(("skip", topic, name, replaced, replaced + 1))
            self._record(("progress", topic, name, self.cursor, [replaced, replaced + 1]))  # it may be deferred
        self._record(("wait", topic, name, [copy, 0, due_ms]))

    def place_for_journal(self, sequence: int, wall_milliseconds: Callable[[int], int]) -> ChannelChange:
        """Return the change that puts an unfinished message back where it is now."""
        burial = self.buried.get(sequence)
        if burial is not None:
            return bury_change(self.feed.name, self.name, [burial])
        due_ms = 0
        if sequence in self.deferred and len(self.deferred) <= _DEFERRED_TO_SEARCH:
            due_ms = wall_milliseconds(self.deferred.positions_of(BitMap64((sequence,)))[0][0])
        return "wait", self.feed.name, self.name, [sequence, self._attempts_for_journal(sequence), due_ms]

    def take_copy(self, copy: int, replaced: int, due: int, undo: list[Change]) -> None:
        """Let an edited copy wait until `due` (0: now), and finish what it replaces (-1: nothing). The journal has both.

        `undo` is for a snapshot of the journal while the copy isn't synced.
        """
        if replaced >= 0:
            self._forget_replaced(replaced)
        self.forget_old_copies()
        edited = self._own_copies()
        edited.add(copy, replaced)
        edited.unsynced[copy] = undo
        if due:
            self.deferred.add(due, copy, 0)
        else:
            self.retries.add(copy, 0)
        self._journal.unsaved[self] = None  # the log may be able to remove something

    def _copies_after_release(self) -> BitMap64:
        """Return the edited copies that a paused topic has after H, except buried ones."""
        if self.edited is None:
            return BitMap64()
        copies = between(self.edited.copies, self.feed.high_watermark, self.feed.log.tail)
        return copies - self.buried.among(copies)

    def _own_copies(self) -> EditedMessages:
        if self.edited is None:
            self.edited = EditedMessages()
        return self.edited

    def _forget_replaced(self, sequence: int) -> None:
        """Take a message out of its place, after the journal has recorded that."""
        wanted = BitMap64((sequence,))
        if self.buried.remove(sequence):
            return
        if self.retries.take_out(wanted) or self.deferred.take_out(wanted) or self.held.take_out(wanted):
            return
        self.skips.add(sequence, sequence + 1)

    def pass_copy(self, copy: int) -> None:
        """Skip an edited copy for another channel that was just released. The journal has that already."""
        self.skips.add(copy, copy + 1)
        self._counted_from += 1
        if self.ephemeral_batches is not None:
            self.finish_unseen(copy, copy + 1)

    def may_run_copy(self, copy: int, replaces: int | None) -> bool:
        """Return whether to deliver an edited copy of this channel that the cursor has met. See edit.py.

        If the journal has lost the edit, this finishes what the copy replaces, if that still waits or is buried.
        """
        if replaces is None or (self.edited is not None and copy in self.edited.copies):
            return True
        if self.buried.remove(replaces):
            self.finish((replaces,))
        elif not self.finish_waiting(BitMap64((replaces,))):
            return False
        self._own_copies().add(copy, replaces)
        self.tell(("edited", self.feed.name, self.name, [copy, copy + 1], [replaces, replaces + 1]))
        return True

    def forget_old_copies(self) -> None:
        if self.edited is not None:
            log = self.feed.log
            # Not `log.first`: another channel may still need what a copy has replaced here, so a compacted file has it,
            # and an operator can redeliver it.
            self.edited.forget_before(log.next_kept(0), log.synced)

    # The journal

    def record_progress(self, *, urgent: bool = False) -> None:
        """Record in the journal which messages were finished since the last call, and the new cursor."""
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
        if self.held.has_news:
            self._record_held(finished, urgent=urgent)
        if finished or self.cursor != self._saved_cursor:
            self._saved_cursor = self.cursor
            if self.ephemeral_batches is None:
                flat = list(chain.from_iterable(finished))
                self._journal.record(("progress", self.feed.name, self.name, self.cursor, flat), urgent=urgent)

    def _record_held(self, finished: list[tuple[int, int]], *, urgent: bool) -> None:
        """Record in the journal which messages are held now, and which are no longer, because they were delivered.

        The progress that follows has the ones that are finished.
        """
        held, delivered = self.held.take_news(finished)
        if self.ephemeral_batches is not None:
            return
        if held:
            self._journal.record(("held", self.feed.name, self.name, list(chain.from_iterable(held))), urgent=urgent)
        if delivered:
            self._journal.record(("try", self.feed.name, self.name, 1, delivered), urgent=urgent)

    def tell(self, change: ChannelChange) -> None:
        """Record a change in the journal immediately, after all progress."""
        # Otherwise the journal's cursor could be before the sequences of the change, and after a crash their messages
        # would be delivered twice.
        self.record_progress()
        self._record(change)

    def _record(self, change: ChannelChange) -> None:
        if self.ephemeral_batches is None:
            self._journal.record(change)

    def snapshot_changes(self, wall_milliseconds: Callable[[int], int]) -> Iterator[Change | None]:
        """Return changes for a new journal that describe where all messages are, except for the buried ones.

        They describe the state as of this call, even if you iterate later. At each None, other work may run.
        """
        if self._none_counts:
            self._none_counts = self.deferred.among(self._none_counts) | self.retries.among(self._none_counts)
        none_counts = frozenset(self._none_counts or ())
        held = self._snapshot_held(self.held.ranges(), self.oldest_ahead, self.cursor)
        edited = self._snapshot_edited() if self.edited is not None else ()
        return chain(
            edited, held, self._snapshot_changes(self.skips.copy(), self.waiting(wall_milliseconds), none_counts)
        )

    def _snapshot_edited(self) -> list[Change]:
        """Describe the edited copies, and how to undo edits whose copies aren't synced. The other changes follow.

        An earlier version doesn't know the `edit`, so a `progress` also finishes what the undo has put back before it.
        """
        edited, topic, name = self._own_copies(), self.feed.name, self.name
        self.forget_old_copies()
        changes: list[Change] = [("edited", topic, name, *edited.ranges())]
        for copy, undo in edited.unsynced.items():
            changes += undo
            done: list[int] = []
            for change in undo:
                if change[0] == "edit" and change[4] >= 0:
                    done += (change[4], change[4] + 1)
            if not self._is_in_hand(copy):
                done += (copy, copy + 1)
            if done:
                changes.append(("progress", topic, name, self.oldest_ahead, done))
        return changes

    def _is_in_hand(self, sequence: int) -> bool:
        """Return whether a message waits or is in flight. Unlike `waiting_among`, this never moves the cursor."""
        if sequence in self.retries or sequence in self.deferred or sequence in self.held:
            return True
        wanted = BitMap64((sequence,))
        ahead = self.skips.free_among(between(wanted, self.cursor, self.feed.high_watermark))
        return bool(ahead or self.in_flight.among(wanted))

    def _snapshot_held(self, held: Iterator[tuple[int, int]], start: int, cursor: int) -> Iterator[Change]:
        """Describe the held messages, from `start` up to the cursor.

        As in the journal between two snapshots, the cursor passes them after each `held`: otherwise a version that
        doesn't know this word would lose them.
        """
        topic, name = self.feed.name, self.name
        while some := list(islice(held, _HELD_RANGES_PER_CHANGE)):
            flat = list(chain.from_iterable(some))
            yield "held", topic, name, flat
            others = [start, *flat[:-1]]
            yield "progress", topic, name, flat[-1], others[2:] if start == flat[0] else others
            start = flat[-1]
        if start < cursor:
            yield "progress", topic, name, cursor, [start, cursor]

    def _snapshot_changes(
        self,
        skips: SkipRanges,
        waiting: Iterator[tuple[int, int, int] | None],
        none_counts: frozenset[int],
    ) -> Iterator[Change | None]:
        topic, name = self.feed.name, self.name
        for start, end in skips:
            yield "skip", topic, name, start, end
        entries: list[int] = []
        for place in waiting:
            if place is None:
                yield None
                continue
            if none_counts and not place[1] and place[0] in none_counts:
                place = place[0], _NONE_COUNTS, place[2]
            entries += place
            if len(entries) >= 3 * _WAIT_ENTRIES_PER_CHANGE:
                yield "wait", topic, name, entries
                entries = []
        if entries:
            yield "wait", topic, name, entries

    def waiting(self, wall_milliseconds: Callable[[int], int]) -> Iterator[tuple[int, int, int] | None]:
        """Return (sequence, attempts, due_ms) of the messages in flight, to be retried or deferred, as of this call.

        `due_ms` is 0 unless a message is deferred; `wall_milliseconds` converts `due` to it. At each None, other work
        may run.
        """
        # Copying a million packed integers takes a few milliseconds, whereas yielding them takes half a second.
        at_once = chain(self.in_flight.positions(), self.retries.copy())
        return _waiting(at_once, self.deferred.copy(), wall_milliseconds)

    def restore(self, state: ChannelState, wall_ms_to_due: Callable[[int], int]) -> None:
        """Take over the state from recovery, and free its memory. Messages that were in flight are retried."""
        for start, end in state.skips:
            self.skips.add(start, end)
        self.deferred.fill(self._restore_waiting(state.waiting, wall_ms_to_due))
        state.skips.clear()
        state.waiting.clear()
        self.held.fill(state.held)
        self.buried = state.buried
        if state.edited.copies:
            self.edited = state.edited
        self._counted_from = self._furthest = self.feed.high_watermark

    def _restore_waiting(
        self, waiting: dict[int, tuple[int, int]], wall_ms_to_due: Callable[[int], int]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (due, sequence, attempts) of the deferred messages. Put the others into the retry queue."""
        for sequence in sorted(waiting):
            attempts, due_ms = waiting[sequence]
            if attempts == _NONE_COUNTS:
                self._none_counts = self._none_counts or BitMap64()
                self._none_counts.add(sequence)
            if due_ms == 0:
                self.retries.add(sequence, attempts)
            else:
                yield wall_ms_to_due(due_ms), sequence, attempts


def _waiting(
    at_once: Iterator[tuple[int, int] | None],
    later: Iterator[tuple[int, int, int] | None],
    wall_milliseconds: Callable[[int], int],
) -> Iterator[tuple[int, int, int] | None]:
    for place in at_once:
        yield (*place, 0) if place is not None else None
    for deferred in later:
        if deferred is None:
            yield None
        else:
            due, sequence, attempts = deferred
            yield sequence, attempts, wall_milliseconds(due)
