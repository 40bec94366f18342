"""Where each message of a channel is: a cursor into the topic's log, and a short list of exceptions.

Everything before the cursor is finished, except what is in flight, waits to be tried again, is deferred, or is buried.
What the cursor must pass over ahead of it is in skip ranges: deferred batches, emptied stretches, buried messages after
a seek, overflow of an ephemeral channel. A message is in exactly one of these places, and leaves only by FIN, empty,
seek, restore, discard or delete. The verbs are the ledger's:

                   take_run
(ahead of the cursor) ──────────► in flight ───── FIN ───────────► gone
          │ defer               ▲      │ retry             ▲
          ▼                     │      ▼                   │
      deferred ─ release_due ─► retry ─┘      retry_later: deferred
                                ▲      │
                      give_back │      │ bury
                                │      ▼
                               buried ───── finish ──────► gone

What is gone can come back while the log has it: by a seek, a restored backlog, or a redelivery (`give_back`).

Only the ledger moves the cursor, and only the ledger tells the journal where messages are. Say a channel at 0 has
delivered 0 to 5, 1 and 2 are finished, and 4 was requeued with a delay. Then the cursor is at 6, 0, 3 and 5 are in
flight, 4 is deferred, and the journal hears of it in two ways. That 4 is deferred it hears at once, because after a
crash it would come too early. That 1 and 2 are finished it hears within 100 ms (`record_progress`): after a crash
before that they come once more. But before anything that it hears at once, it hears of all progress (`tell`). Otherwise
its cursor would still stand at 0 when it reads that 4 waits, and 4 would come twice: from the cursor, and when it is due.

The ledger has no consumers, follows no rules and asks no clock. You hand it the times: `due` is monotonic microseconds,
as deadlines are, and `due_ms` is the same moment in milliseconds of the wall clock, because the journal outlives the
process. It also wakes no consumer. When you call a verb, you look after what follows from it: a delivery, an alarm, a
log that may let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, final

from nsqd.broker.backlog import joined
from nsqd.broker.buried import BuriedMessage, BuriedMessages, bury_change
from nsqd.broker.ephemeral_batches import EphemeralBatches
from nsqd.broker.in_flight import InFlight
from nsqd.broker.positions import (
    DeferredQueue,
    RetryQueue,
    SkipRanges,
    between,
    bitmap_of,
    bitmap_of_ranges,
    ranges_in,
)

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from nsqd.broker.batch import Batch
    from nsqd.broker.change import Change, ChannelChange
    from nsqd.broker.early_deferrals import EarlyDeferrals
    from nsqd.broker.feed import TopicFeed
    from nsqd.broker.journal import Journal
    from nsqd.broker.reclaimer import Reclaimer
    from nsqd.broker.replay import ChannelState
    from nsqd.broker.store import BatchSource

_WAIT_ENTRIES_PER_CHANGE: Final = 2_000  # a millisecond or two of work
_DEFERRED_ONE_BY_ONE: Final = 500  # messages of a batch; more of them are not put onto the heap at once
_FINISHED_WORTH_LETTING_GO: Final = 1000  # messages


@final
class Ledger:
    """The places of a channel's messages, and what the journal knows of them."""

    __slots__ = (
        "_counted_from",
        "_finished",
        "_furthest",
        "_journal",
        "_saved_cursor",
        "_source",
        "batch",
        "buried",
        "cursor",
        "deferred",
        "ephemeral_batches",
        "feed",
        "in_flight",
        "name",
        "retries",
        "skips",
    )

    def __init__(
        self,
        name: str,
        feed: TopicFeed,
        journal: Journal[Ledger],
        reclaimer: Reclaimer,
        *,
        cursor: int,
        ephemeral: bool,
    ) -> None:
        self.name = name  # the channel's
        self.feed = feed
        self.cursor = cursor
        self.batch: Batch | None = None  # the batch at the cursor, if it was read already
        self.skips = SkipRanges()
        self.in_flight = InFlight(reclaimer)
        self.retries = RetryQueue(reclaimer)
        self.deferred = DeferredQueue(reclaimer)
        self.buried = BuriedMessages()
        # What the log does not keep for us, if the channel or its topic is ephemeral. Then the journal hears nothing.
        self.ephemeral_batches = EphemeralBatches(feed.log) if ephemeral or feed.ephemeral else None
        self._source: BatchSource = self.ephemeral_batches if self.ephemeral_batches is not None else feed.log
        self._journal = journal
        self._counted_from = cursor  # `message_count` is what was handed over from here on
        self._finished: list[tuple[int, int]] = []  # ranges that were finished without having been in flight
        self._saved_cursor = cursor  # as the journal knows it
        self._furthest = feed.high_watermark  # before here, the cursor may meet deferred messages: nothing skips them

    # What waits

    @property
    def depth(self) -> int:
        """How many messages could be taken now."""
        return self.feed.high_watermark - self.cursor - self.skips.total + self.retries.members.count

    @property
    def ahead(self) -> int:
        """How many messages wait for their first delivery."""
        return self.feed.high_watermark - self.cursor - self.skips.total

    @property
    def unfinished(self) -> int:
        """How many messages are ready, deferred or in flight."""
        return self.depth + len(self.in_flight) + len(self.deferred)

    @property
    def is_empty(self) -> bool:
        """Whether the channel has no message: none that waits, is in flight, deferred or buried."""
        return not (self.unfinished or len(self.buried))

    @property
    def message_count(self) -> int:
        return self.feed.high_watermark - self._counted_from

    @property
    def backend_depth(self) -> int:
        """How many messages of the depth are no longer in memory."""
        if self.ephemeral_batches is not None:
            return 0
        end = min(self.feed.log.cached_from, self.feed.high_watermark)
        return max(0, min(self.depth, end - self.cursor))

    def mean_of(self, messages: int) -> int:
        """Estimate the bytes of a number of messages by the mean size of those ahead of the cursor."""
        log = self.feed.log
        start = self.cursor if self.cursor < log.tail else log.first
        return messages * log.bytes_from(start) // max(log.tail - start, 1)

    def oldest_timestamp(self) -> int | None:
        """Return when the oldest waiting message was published, in nanoseconds; None: nothing waits, or not in memory.

        A message that is not in memory is fetched, so a caller that asks every few seconds gets its time later.
        """
        waiting = [self.retries.peek()[0]] if self.retries else []
        if (cursor := self.advance()) < self.feed.high_watermark:
            waiting.append(cursor)
        batches = [self._source.batch_at(sequence) for sequence in waiting]
        times = [batch.timestamp for batch in batches if batch is not None]
        return min(times) if times and len(times) == len(batches) else None

    def low_watermark(self) -> int:
        """Return the sequence before which this channel needs nothing any more."""
        low = self.cursor
        places = self.in_flight.lowest(), self.retries.lowest(), self.deferred.lowest(), self.buried.lowest()
        for lowest in places:
            if lowest is not None and lowest < low:
                low = lowest
        return low

    def waits_before(self, cursor: int) -> bool:
        """Return whether `seek(cursor)` would lose a message: one before it that waits, is deferred or is in flight."""
        lows = self.advance(), self.in_flight.lowest(), self.retries.lowest(), self.deferred.lowest()
        return any(low is not None and low < cursor for low in lows)

    def exceptions(self) -> Iterator[Iterable[int]]:
        """Return the sequences of what waits, is in flight or is buried, as of now.

        They come in pieces, each of which takes a fraction of a millisecond.
        """
        waiting = chain(self.in_flight.sequences(), self.retries.sequences(), self.deferred.sequences())
        return chain(waiting, self.buried.sequences())

    def ahead_among(self, sequences: BitMap64) -> BitMap64:
        """Return those of these messages, which lie before H, that the cursor is going to meet."""
        return self.skips.free_among(between(sequences, self.advance(), self.feed.high_watermark))

    def waiting_among(self, sequences: BitMap64) -> BitMap64:
        """Return those of these messages, which lie before H, that wait, now or for their time."""
        retried, deferred = self.retries.among(sequences), self.deferred.among(sequences)
        return retried | deferred | self.ahead_among(sequences - retried - deferred)

    def attempts_of(self, sequence: int) -> int:
        """Return how often a message that waits was delivered so far."""
        return self.deferred.attempts_of(sequence) or self.retries.attempts_of(sequence)

    # New messages, from the cursor on

    def advance(self) -> int:
        """Move the cursor over what it has to pass, and return it. It stands at the next new message then, or at H."""
        batch, cursor = self.batch, self.cursor
        if (
            batch is not None
            and batch.base_sequence <= cursor < batch.end_sequence
            and not self.skips.total
            and self.ephemeral_batches is None
        ):
            return cursor  # within the batch in hand, a channel on disk meets no gap: the log keeps what is needed
        while True:
            if self.skips.total:
                self.cursor = self.skips.pass_over(self.cursor)
            readable = min(self._source.next_readable(self.cursor), self.feed.high_watermark)
            if readable == self.cursor:
                return readable
            # Damage, or an ephemeral channel for which the log has not waited. Skip ranges may end in this gap or
            # follow it.
            self._finished.append((self.cursor, readable))
            self.cursor = readable

    @property
    def batch_in_hand(self) -> Batch | None:
        """The batch at the cursor, if it was read already."""
        batch, cursor = self.batch, self.cursor
        if batch is None or not batch.base_sequence <= cursor < batch.end_sequence:
            return None
        return batch

    def offer(self, batch: Batch) -> None:
        """Take in hand a batch that was just handed over, if the cursor is at its beginning.

        Then a delivery in this turn need not look for it in the log: `advance` and `batch_ahead` find it here.
        """
        if batch.base_sequence == self.cursor and self.ephemeral_batches is None:
            self.batch = batch

    def batch_ahead(self) -> Batch | None:
        """Return the batch at the cursor, where `advance` has found a message; None: it has to be read from the disk."""
        batch, cursor = self.batch, self.cursor
        if batch is None or not batch.base_sequence <= cursor < batch.end_sequence:
            batch = self.batch = self._source.batch_at(cursor)
        return batch

    def run_end(self, batch: Batch) -> int:
        """Return the end of the run at the cursor: neighbours in this batch that are the channel's, up to a skip range."""
        stop = batch.end_sequence
        if self.feed.high_watermark < stop:
            stop = self.feed.high_watermark
        if self.skips.total and (next_skip := self.skips.next_start()) is not None:
            stop = min(stop, next_skip)
        return stop

    def next_stop(self, most: int) -> int:
        """Return the end of the run at the cursor: up to `most` messages with no skip range between them."""
        stop = self.cursor + most
        if (next_skip := self.skips.next_start()) is not None:
            stop = min(stop, next_skip)
        return stop

    def take_run(self, batch: Batch, most: int) -> int:
        """Take the run at the cursor: up to `most` messages of this batch, which is the one at the cursor. Return its end."""
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
        """Take the messages from the cursor to `stop`: they are about to be in flight, or buried."""
        self.cursor = stop
        batch = self.batch
        if batch is not None and stop >= batch.end_sequence:
            self.batch = None
        self._journal.unsaved[self] = None

    def finish_ahead(self, stop: int) -> None:
        """Finish the messages from the cursor to `stop`, which no consumer gets."""
        start = self.cursor
        self.take_ahead(stop)
        self.finish_unseen(start, stop)

    def finish_unseen(self, start: int, end: int) -> None:
        """Note that [start, end), which the cursor has passed or skips, is finished without having been in flight."""
        if self._finished and self._finished[-1][1] == start:
            start = self._finished.pop()[0]
        self._finished.append((start, end))
        self._journal.unsaved[self] = None

    def finish_before(self, end: int, most_behind_skip: int) -> int:
        """Finish the messages ahead of the cursor and before `end`. Return their number.

        Where there are skip ranges, stop `most_behind_skip` sequences after the first one begins, because there may be as
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
        """Whether the cursor has gone back, so that a deferred message ahead of it is not skipped."""
        return self.cursor < self._furthest

    def defer_ahead(self, stop: int, due: int, due_ms: int) -> None:
        """Defer the messages from the cursor to `stop`."""
        start = self.cursor
        self.take_ahead(stop)
        self.retry_later([(sequence, 0, due, due_ms) for sequence in range(start, stop)])

    def end_of_refused(self) -> int:
        """Return where reading can go on if the disk has refused the message at the cursor for long, else the cursor."""
        return min(self._source.end_of_refused(self.cursor), self.feed.high_watermark)

    def batch_of(self, sequence: int) -> Batch | None:
        """Return the batch of a message that is not finished; None: it has to be read from the disk."""
        return self._source.batch_at(sequence)

    # In flight

    def hand_out(self, start: int, end: int) -> None:
        """Note, for an ephemeral channel, that a consumer has messages in hand: they count less for the bound of memory."""
        assert self.ephemeral_batches is not None
        self.ephemeral_batches.hand_out(start, end)

    def note_progress(self) -> None:
        """Put the ledger on the list of those that have progress to tell, because something in flight is finished."""
        self._journal.unsaved[self] = None

    def take_back(self, sequence: int) -> None:
        """Note that a consumer no longer has this message, although it is not finished: the next verb says where it goes."""
        if self.ephemeral_batches is not None:
            self.ephemeral_batches.take_back(sequence, sequence + 1)

    # What is to be tried again

    def batch_of_retry(self) -> Batch | None:
        """Return the batch of the next retry; None: there is none, or it has to be read from the disk.

        What the log no longer has is finished: damage, or messages of an ephemeral channel for which it has not waited.
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
        """Take the next retries that lie side by side in their batch: first, stop, and their attempts so far."""
        return self.retries.pop_run(most, batch.end_sequence)

    def note_redelivery(self, first: int, stop: int, attempts: int) -> None:
        """Tell the journal that these messages are delivered for the attempts-th time."""
        self.tell(("try", self.feed.name, self.name, attempts, list(range(first, stop))))

    def put_off_retries(self, most: int, due: int, due_ms: int) -> bool:
        """Defer retries, from the first one on, that the disk has refused for long. Return whether there were any."""
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
        """Have a message wait to be tried again at once, because its consumer has said so."""
        self._tell_waiting([sequence, attempts, 0])
        self.retries.add(sequence, attempts)

    def retry_untold(self, sequence: int, attempts: int) -> None:
        """Have a message that has timed out wait. The journal need not know: after a crash, all in flight waits."""
        self.retries.add(sequence, attempts)

    def retry_later(self, places: Sequence[tuple[int, int, int, int]]) -> None:
        """Defer messages, each given as sequence, attempts, due and due_ms."""
        entries: list[int] = []
        for sequence, attempts, due, due_ms in places:
            self.deferred.add(due, sequence, attempts)
            entries += (sequence, attempts, due_ms)
        self._tell_waiting(entries)

    def release_due(self, until: int, most: int) -> None:
        """Move up to `most` deferred messages that are due by `until` to the retries."""
        for sequence, attempts in self.deferred.pop_due(until, most):
            self.retries.add(sequence, attempts)

    def give_back(self, sequences: Sequence[int]) -> None:
        """Have messages that were buried or finished wait to be tried again, with attempts counted anew."""
        for sequence in sequences:
            self.retries.add(sequence, 0)
        self._tell_waiting([it for sequence in sequences for it in (sequence, 0, 0)])

    def _tell_waiting(self, entries: Sequence[int]) -> None:
        self.tell(("wait", self.feed.name, self.name, entries))

    # The end of a message

    def finish(self, sequences: Iterable[int]) -> None:
        """Finish messages that have just been taken out of another place, say discarded ones. The journal hears at once."""
        self._finished += joined([(sequence, sequence + 1) for sequence in sequences])
        self.record_progress(urgent=True)
        self._journal.unsaved[self] = None  # the log may be able to remove something

    def finish_waiting(self, sequences: BitMap64) -> BitMap64:
        """Finish those of these messages, which lie before H, that wait. Return them."""
        self.record_progress()
        waiting = self.deferred.take_out(sequences) | self.retries.take_out(sequences)
        self._finished += ranges_in(waiting)
        ahead = self.ahead_among(sequences - waiting)
        for start, end in ranges_in(ahead):
            self._skip(start, end)
            if self.ephemeral_batches is not None:
                self.ephemeral_batches.release(start, end)
        self.record_progress(urgent=True)
        self._journal.unsaved[self] = None  # the log may be able to remove something
        return waiting | ahead

    def bury(self, burials: Sequence[BuriedMessage]) -> None:
        """Bury messages that have just been taken out of another place. A channel that is not on disk drops them."""
        if self.ephemeral_batches is not None:
            self._finished += [(burial.sequence, burial.sequence + 1) for burial in burials]
            self._journal.unsaved[self] = None
            return
        for burial in burials:
            self.buried.add(burial)
        self.tell(bury_change(self.feed.name, self.name, burials))

    # Handing over

    def defer(self, start: int, count: int, due: int) -> None:
        """Make the messages of a batch wait until `due`, even if they are ahead of the cursor.

        The topic has told the journal already, for all of its channels.
        """
        self.skips.add(start, start + count)
        if self.ephemeral_batches is not None and self.feed.ephemeral and self.ephemeral_batches.find(start) is None:
            return  # `keep` had no room for the batch
        if count > _DEFERRED_ONE_BY_ONE:  # `DeferredQueue.unpack` makes their entries later
            self.deferred.add_runs(due, [[(start, count, 0)]], bitmap_of(start, start + count))
        else:
            for sequence in range(start, start + count):
                self.deferred.add(due, sequence, 0)

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

    def _early_deferrals_kept_by(
        self, kept: EphemeralBatches, parked: EarlyDeferrals
    ) -> tuple[list[list[tuple[int, int, int]]], BitMap64]:
        """Return the batches that this ephemeral channel gets, with their sequences, and let go what was taken back."""
        pieces, deferred = parked.pieces, parked.deferred
        if self.feed.ephemeral:
            # Those for which `keep` had room.
            batches = [batch for batch in parked.batches if kept.find(batch[0]) is not None]
            pieces = [batches]
            deferred = bitmap_of_ranges([(start, start + count) for start, count, _ in batches]) - parked.cancelled
        for start, end in ranges_in(parked.cancelled - bitmap_of(0, self.feed.log.cached_from)):
            kept.release(start, end)
        return pieces, deferred

    def pass_over(self, start: int, end: int) -> None:
        """Skip messages that were never handed over, because the topic was emptied."""
        self._counted_from += end - start
        self._skip(start, end)
        # Nobody has to consume for the cursor to pass them, and until it does, they count as held by the topic.
        self.cursor = self.skips.pass_over(self.cursor)
        self._journal.unsaved[self] = None

    def skip_untold(self, start: int, end: int) -> None:
        """Skip messages ahead of the cursor that the next verb finishes or buries, so the journal hears of that."""
        self.skips.add(start, end)

    def _skip(self, start: int, end: int) -> None:
        if start < end:
            self.skips.add(start, end)
            self.record_skip(start, end)

    def record_skip(self, start: int, end: int) -> None:
        """Tell the journal that [start, end) is never delivered here."""
        self.tell(("skip", self.feed.name, self.name, start, end))

    # Keeping what the log does not keep for us: ephemeral channels, and those of ephemeral topics

    def keep(self, batches: Iterable[Batch], most: int, most_bytes: int) -> None:
        """Keep batches that are about to be handed over, within a limit of messages and one of bytes."""
        assert self.ephemeral_batches is not None
        if self.ephemeral_batches.messages > 2 * self.unfinished + _FINISHED_WORTH_LETTING_GO:
            self.record_progress()
        # Nobody can take a deferred message away at once, so whether it has room is decided now.
        room = most - len(self.deferred)
        if self.feed.ephemeral:
            room -= self.depth
        else:  # The log may still have a deferred message when it is due, and others need the memory more.
            most_bytes //= 2
        for batch in batches:
            if batch.delay_ms:
                if batch.count > room or self.ephemeral_batches.bytes + batch.held > most_bytes:
                    continue
                room -= batch.count
            self.ephemeral_batches.add(batch)

    def drop_overflow(self, before: int, most: int, most_bytes: int) -> None:
        """Drop the newest messages from `before` on that exceed a limit of messages or one of bytes."""
        if (excess := self._excess(before, most, most_bytes)) > 0:
            assert self.ephemeral_batches is not None
            floor = max(before, self.cursor)
            for start, end in self.skips.add_newest(excess, floor, self.feed.high_watermark):
                self.ephemeral_batches.release(start, end)

    def _excess(self, before: int, most: int, most_bytes: int) -> int:
        """Return how many of the newest messages exceed one of the two limits."""
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
        for start, end in reversed(self.skips.free_ranges(max(before, self.cursor), self.feed.high_watermark)):
            if too_much <= 0:
                break
            newest, size = kept.newest_within(too_much, start, end)
            too_much -= size
            count += newest
        return max(excess, count)

    # As operators change it

    def move(self, sequences: BitMap64, due: int, due_ms: int) -> BitMap64:
        """Have those of these messages that wait become due then; `due_ms` 0: now. Return those that wait."""
        retried, deferred = self.retries.among(sequences), self.deferred.among(sequences)
        ahead = self.ahead_among(sequences - retried - deferred)
        waiting = retried | deferred | ahead
        moved = waiting if due_ms else deferred  # the others are due already, and keep their places
        entries = [it for sequence in moved for it in (sequence, self.attempts_of(sequence), due_ms)]
        if due_ms:
            for start, end in ranges_in(ahead):
                self._skip(start, end)
        if entries:
            self._tell_waiting(entries)
        self.deferred.take_out(moved)
        self.retries.take_out(moved)
        for sequence, attempts in zip(entries[::3], entries[1::3], strict=True):
            if due_ms:
                self.deferred.add(due, sequence, attempts)
            else:
                self.retries.add(sequence, attempts)
        return waiting

    def empty(self) -> None:
        """Finish everything handed over so far: waiting, in flight, deferred."""
        self._forget_all(self.feed.high_watermark)
        self._record(("empty", self.feed.name, self.name, self.cursor))

    def seek(self, cursor: int) -> None:
        """Empty the channel, and go on at `cursor`, which lies anywhere from the log's first sequence to H."""
        assert self.ephemeral_batches is None, "what is ephemeral has no past"
        self._counted_from = min(self._counted_from, cursor)
        self._forget_all(cursor)
        self.skips.cover(between(self.buried.all(), cursor, self.feed.high_watermark))
        self._record(("seek", self.feed.name, self.name, cursor))

    def _forget_all(self, cursor: int) -> None:
        self.clear()
        self.skips.clear()
        self._finished.clear()
        self._furthest = self.feed.high_watermark
        self.cursor = self._saved_cursor = cursor
        self._journal.unsaved[self] = None  # the log may be able to remove something

    def clear(self) -> None:
        """Forget what waits and what is in flight, without a word to the journal."""
        self.in_flight.clear()
        self.retries.clear()
        self.deferred.clear()
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
        told: Sequence[int],
    ) -> None:
        """Have every message before `end` wait as these say, and leave the later ones, and what is in flight, as they are.

        What lies from `cursor` on waits for its first delivery, except for what is `skipped`: buried messages are. `retried` are sequence and
        attempts, `deferred` are due, sequence and attempts. `told` is what the journal hears of both and of what is in
        flight, as sequence, attempts and due_ms. It is told as if nothing were buried: if it has lost a burial, the
        message has to come again.
        """
        flat = [sequence for bounds in ranges_in(skipped - self.buried.all()) for sequence in bounds]
        self._record(("restore", self.feed.name, self.name, cursor, end, flat, told))
        # What the cursor has passed behind `end` stays passed.
        later, self.skips = self.skips.behind(max(end, self.cursor)), SkipRanges()
        self.skips.cover(skipped | later)
        self.skips.add(end, self.cursor)
        self._counted_from = min(self._counted_from, cursor)
        self.batch = None
        self._furthest = max(self._furthest, self.cursor, end)
        self._saved_cursor = cursor
        self.cursor = self.skips.pass_over(cursor)
        self._journal.unsaved[self] = None
        self.retries.replace_before(end, retried)
        self.deferred.replace_before(end, deferred)

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
            if self.ephemeral_batches is None:
                flat = list(chain.from_iterable(finished))
                self._journal.record(("progress", self.feed.name, self.name, self.cursor, flat), urgent=urgent)

    def tell(self, change: ChannelChange) -> None:
        """Tell the journal of a change at once, and of all progress before it."""
        # If the journal's cursor lagged behind a sequence that the journal is told about, its message would come
        # twice.
        self.record_progress()
        self._record(change)

    def _record(self, change: ChannelChange) -> None:
        if self.ephemeral_batches is None:
            self._journal.record(change)

    def snapshot_changes(self, wall_milliseconds: Callable[[int], int]) -> Iterator[Change | None]:
        """Return the changes that tell a new journal where all messages are, as of this call, even if iterated later.

        A None among them is an opportunity for others to have their turn. Buried messages are not among them.
        """
        return self._snapshot_changes(self.skips.copy(), self.waiting(wall_milliseconds))

    def _snapshot_changes(
        self, skips: SkipRanges, waiting: Iterator[tuple[int, int, int] | None]
    ) -> Iterator[Change | None]:
        topic, name = self.feed.name, self.name
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

    def waiting(self, wall_milliseconds: Callable[[int], int]) -> Iterator[tuple[int, int, int] | None]:
        """Return sequence, attempts and due_ms (0: at once) of all that waits or is in flight as of now.

        A None among them is an opportunity for others to have their turn. `wall_milliseconds` makes due_ms of due.
        """
        # Copies of packed integers: a million take some milliseconds, where yielding them takes half a second.
        at_once = chain(self.in_flight.positions(), self.retries.copy())
        return _waiting(at_once, self.deferred.copy(), wall_milliseconds)

    def restore(self, state: ChannelState, wall_ms_to_due: Callable[[int], int]) -> None:
        """Take over the places that recovery found, and free its memory. What was in flight is deliverable at once."""
        for start, end in state.skips:
            self.skips.add(start, end)
        self.deferred.fill(self._restored(state.waiting, wall_ms_to_due))
        state.skips.clear()
        state.waiting.clear()
        self.buried = state.buried
        self._counted_from = self._furthest = self.feed.high_watermark

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
