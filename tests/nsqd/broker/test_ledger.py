"""Where a ledger has messages, and what it tells the journal, without a channel: tests/model has it in any order."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from nsqd.broker.batch import Batch, Receipt
from nsqd.broker.buried import BuriedMessage, Note
from nsqd.broker.consumer import Consumer
from nsqd.broker.early_deferrals import EarlyDeferrals
from nsqd.broker.feed import TopicFeed
from nsqd.broker.in_flight import Delivery
from nsqd.broker.journal import BrokerJournal
from nsqd.broker.ledger import Ledger
from nsqd.broker.reclaimer import Reclaimer
from tests.support.fake_store import FakeStore

CONSUMER = Consumer(send=lambda pieces: None, close=lambda: None, describe=lambda: None, msg_timeout=1.0)  # type: ignore[arg-type, return-value]
LATER = 9_000_000  # microseconds
LATER_MS = 9_000


class Bench:
    """A ledger, with the topic and the journal that it works in."""

    def __init__(self, *, ephemeral: bool = False) -> None:
        self.store = FakeStore()
        self.log = self.store.create_log("t")
        self.feed = TopicFeed("t", self.log, ephemeral=False)
        self.journal: BrokerJournal[Ledger] = BrokerJournal(self.store)
        self.ledger = Ledger("c", self.feed, self.journal, Reclaimer(), cursor=0, ephemeral=ephemeral)

    def publish(self, count: int, *, delay_ms: int = 0) -> Batch:
        start = self.log.tail
        body = b"\0\0\0\1x" * count
        batch = Batch(start, start, 1, body, range(0, 5 * count + 1, 5), delay_ms, b"", 0, b"")
        self.log.append(batch, Receipt())
        self.store.write_logs()
        self.feed.high_watermark = self.log.tail
        return batch

    def take(self, most: int) -> tuple[int, int]:
        """Have a consumer get the next messages."""
        first = self.ledger.advance()
        batch = self.ledger.batch_ahead()
        assert batch is not None
        stop = self.ledger.take_run(batch, most)
        ids = [b"%016x" % it for it in range(first, stop)]
        self.ledger.in_flight.add(ids, Delivery(CONSUMER, first, stop - first, 0, 1, 0.0, 1.0, 1))
        return first, stop

    def finish(self, *sequences: int) -> None:
        self.ledger.in_flight.finish(CONSUMER, [b"%016x" % it for it in sequences])
        self.ledger.note_progress()

    def take_out(self, *sequences: int) -> None:
        for sequence in sequences:
            self.ledger.in_flight.take_out(CONSUMER, b"%016x" % sequence)

    def told(self) -> list[tuple[object, ...]]:
        """Return what the journal was told since the last call."""
        told, self.store.unwritten = self.store.unwritten, []
        return list(told)


def waiting(ledger: Ledger) -> list[tuple[int, int]]:
    return [(sequence, attempts) for sequence, attempts in ledger.retries]


# From the cursor on


def test_a_run_ends_with_its_batch() -> None:
    it = Bench()
    it.publish(3)
    it.publish(2)
    assert [it.take(2), it.take(5), it.take(5)] == [(0, 2), (2, 3), (3, 5)]
    assert (it.ledger.advance(), it.ledger.ahead) == (5, 0)


def test_a_run_ends_at_a_skip_range() -> None:
    it = Bench()
    it.publish(6)
    it.ledger.finish_waiting(BitMap64([2, 3]))
    assert [it.take(9), it.take(9)] == [(0, 2), (4, 6)]


def test_a_run_ends_where_messages_are_no_longer_the_channels() -> None:
    it = Bench()
    it.publish(4)
    it.feed.high_watermark = 3
    assert it.take(9) == (0, 3)
    assert it.ledger.advance() == 3


def test_what_the_log_lost_is_passed_over_and_counts_as_finished() -> None:
    it = Bench()
    it.publish(2)
    it.publish(2)
    it.log.first = 2
    assert it.take(9) == (2, 4)
    it.ledger.record_progress()
    assert it.told() == [("progress", "t", "c", 4, [0, 2])]


def test_a_batch_that_is_offered_at_the_cursor_need_not_be_read() -> None:
    it = Bench()
    batch = it.publish(2)
    it.log.evict()
    it.ledger.offer(batch)
    assert it.take(9) == (0, 2)


def test_a_batch_that_is_offered_elsewhere_is_not_taken() -> None:
    it = Bench()
    it.publish(2)
    it.ledger.offer(it.publish(2))
    assert it.take(9) == (0, 2)


def test_a_batch_that_has_to_be_read_leaves_the_cursor_where_it_is() -> None:
    it = Bench()
    it.publish(2)
    it.log.evict()
    it.ledger.advance()
    assert it.ledger.batch_ahead() is None
    assert (it.ledger.cursor, it.ledger.batch_in_hand) == (0, None)
    it.log.warm({0})
    assert it.take(1) == (0, 1)


def test_messages_that_no_consumer_gets_are_finished_side_by_side() -> None:
    it = Bench()
    it.publish(5)
    it.ledger.finish_ahead(2)
    it.ledger.finish_ahead(4)
    it.ledger.record_progress()
    assert it.told() == [("progress", "t", "c", 4, [0, 4])]


@pytest.mark.parametrize(("most", "stands_at", "finished"), [(1, 3, 2), (50, 8, 7)])
def test_finishing_old_messages_goes_only_so_far_behind_a_skip_range(most: int, stands_at: int, finished: int) -> None:
    it = Bench()
    it.publish(8)
    it.ledger.finish_waiting(BitMap64([2]))
    assert it.ledger.finish_before(8, most) == finished
    assert it.ledger.cursor == stands_at


# What the journal hears, and when


def test_a_fin_is_told_with_the_next_progress() -> None:
    it = Bench()
    it.publish(4)
    it.take(4)
    it.finish(1, 2)
    assert it.told() == []
    assert list(it.journal.unsaved) == [it.ledger]
    it.ledger.record_progress()
    it.ledger.record_progress()
    assert it.told() == [("progress", "t", "c", 4, [1, 3])]


def test_before_anything_urgent_the_journal_hears_of_all_progress() -> None:
    it = Bench()
    it.publish(3)
    it.take(3)
    it.finish(0)
    it.take_out(1)
    it.ledger.retry_later([(1, 1, LATER, LATER_MS)])
    assert it.told() == [("progress", "t", "c", 3, [0, 1]), ("wait", "t", "c", [1, 1, LATER_MS])]


def test_a_timeout_is_not_told() -> None:
    it = Bench()
    it.publish(1)
    it.take(1)
    it.take_out(0)
    it.ledger.retry_unrecorded(0, 1)
    assert (it.told(), waiting(it.ledger)) == ([], [(0, 1)])


def test_retries_are_told_when_they_are_delivered() -> None:
    it = Bench()
    batch = it.publish(3)
    it.take(3)
    it.take_out(0, 1, 2)
    for sequence in (0, 1, 2):
        it.ledger.retry_unrecorded(sequence, 1)
    assert it.ledger.batch_of_retry() is batch
    assert it.ledger.take_retries(2, batch) == (0, 2, 1)
    it.ledger.note_redelivery(0, 2, 2)
    assert it.told()[-1] == ("try", "t", "c", 2, [0, 1])


def test_an_ephemeral_channel_tells_nothing() -> None:
    it = Bench(ephemeral=True)
    batch = it.publish(3)
    it.ledger.keep([batch], 10, 1000)
    it.take(2)
    it.finish(0)
    it.ledger.empty()
    it.ledger.record_progress()
    assert it.told() == []


# Places


def test_a_deferred_batch_is_skipped_until_it_is_due() -> None:
    it = Bench()
    it.publish(2, delay_ms=5)
    it.publish(1)
    it.ledger.defer(0, 2, LATER)
    assert (it.take(9), it.ledger.depth) == ((2, 3), 0)
    it.ledger.release_due(LATER - 1, 10)
    assert it.ledger.depth == 0
    it.ledger.release_due(LATER, 1)
    assert (waiting(it.ledger), len(it.ledger.deferred)) == ([(0, 0)], 1)


def test_a_cursor_that_went_back_may_meet_what_is_deferred() -> None:
    it = Bench()
    batch = it.publish(2, delay_ms=5)
    it.ledger.defer(0, 2, LATER)
    it.ledger.advance()
    it.ledger.seek(0, lambda due: due)
    assert it.ledger.may_meet_deferred
    assert it.ledger.batch_ahead() is batch
    it.ledger.defer_ahead(2, LATER, LATER_MS)
    assert (it.ledger.cursor, len(it.ledger.deferred), it.ledger.depth) == (2, 2, 0)


def test_early_deferrals_come_with_what_was_taken_back() -> None:
    it = Bench()
    it.publish(4, delay_ms=5)
    parked = EarlyDeferrals()
    parked.add(0, 4, 5)
    parked.cancel(BitMap64([1]))
    it.ledger.take_early_deferrals(parked, LATER)
    it.ledger.deferred.unpack(10)
    assert ([*it.ledger.deferred.among(BitMap64(range(4)))], it.ledger.depth) == ([0, 2, 3], 0)


def test_buried_messages_are_needed_and_are_passed_over_after_a_seek() -> None:
    it = Bench()
    it.publish(3)
    it.take(3)
    it.take_out(1)
    it.ledger.bury([BuriedMessage(1, 1, 1, 0, Note("bad", ""))])
    it.finish(0, 2)
    assert (it.ledger.low_watermark(), it.ledger.is_empty) == (1, False)
    it.ledger.seek(0, lambda due: due)
    assert [it.take(9), it.take(9)] == [(0, 1), (2, 3)]


def test_a_seek_says_before_whether_it_loses_something() -> None:
    it = Bench()
    it.publish(4)
    it.take(2)
    assert (it.ledger.waits_before(0), it.ledger.waits_before(1)) == (False, True)
    it.finish(0, 1)
    assert (it.ledger.waits_before(2), it.ledger.waits_before(3)) == (False, True)


def test_only_waiting_messages_are_moved_and_keep_their_attempts() -> None:
    it = Bench()
    it.publish(4)
    it.take(3)
    it.take_out(1)
    it.ledger.retry_unrecorded(1, 7)
    moved = it.ledger.move(BitMap64([0, 1, 3]), LATER, LATER_MS)
    assert [*moved] == [1, 3]
    assert [it.ledger.attempts_of(sequence) for sequence in (1, 3)] == [7, 0]
    assert it.told()[-1] == ("wait", "t", "c", [1, 7, LATER_MS, 3, 0, LATER_MS])
    assert it.ledger.move(BitMap64([1, 3]), 0, 0) == moved
    assert waiting(it.ledger) == [(1, 7), (3, 0)]


def test_a_restored_backlog_leaves_what_lies_behind_it() -> None:
    it = Bench()
    it.publish(6)
    it.take(5)
    it.finish(0, 1, 2, 4)
    it.ledger.record_progress()
    it.told()
    told = [0, 1, 0, 2, 4, LATER_MS]
    it.ledger.restore_before(3, 1, BitMap64([2]), [(0, 1)], [(LATER, 2, 4)], BitMap64(), told)
    assert it.told() == [("restore", "t", "c", 1, 3, [2, 3], [0, 1, 0, 2, 4, LATER_MS])]
    assert (it.ledger.cursor, [*it.ledger.skips]) == (1, [(2, 5)])
    assert it.ledger.waits_before(2)
    assert it.take(9) == (1, 2)
    assert it.take(9) == (5, 6)
    assert (waiting(it.ledger), len(it.ledger.deferred), len(it.ledger.in_flight)) == ([(0, 1)], 1, 3)


def test_a_topic_that_is_emptied_moves_the_cursor_and_the_count() -> None:
    it = Bench()
    it.publish(3)
    it.feed.high_watermark = 1
    it.ledger.finish_ahead(1)
    it.feed.high_watermark = 3
    it.ledger.pass_over(1, 3)
    assert (it.ledger.cursor, it.ledger.message_count, it.ledger.depth) == (3, 1, 0)


def test_an_ephemeral_channel_drops_the_newest_that_have_no_room() -> None:
    it = Bench(ephemeral=True)
    it.ledger.keep([it.publish(5)], 3, 1000)
    it.ledger.drop_overflow(0, 3, 1000)
    assert (it.take(9), it.ledger.advance()) == ((0, 3), 5)


# Held messages


def test_the_journal_learns_of_held_messages_before_the_cursor_passes_them() -> None:
    it = Bench()
    it.publish(5)
    it.take(1)
    it.ledger.hold(3)
    it.ledger.hold(4)
    it.take(1)
    assert (it.ledger.cursor, it.ledger.depth, it.ledger.ahead, it.ledger.unfinished) == (5, 3, 3, 5)
    it.finish(0)
    it.ledger.record_progress()
    assert it.told() == [("held", "t", "c", [1, 4]), ("progress", "t", "c", 5, [0, 1])]


def test_the_journal_learns_that_a_held_message_was_delivered_unless_it_is_finished() -> None:
    it = Bench()
    it.publish(5)
    it.ledger.hold(5)
    it.ledger.record_progress()
    it.told()
    for sequence in (1, 3):
        it.ledger.take_held(sequence, sequence + 1)
        it.ledger.in_flight.add([b"%016x" % sequence], Delivery(CONSUMER, sequence, 1, 0, 1, 0.0, 1.0, 1))
    it.finish(3)
    it.ledger.record_progress()
    assert it.told() == [("try", "t", "c", 1, [1]), ("progress", "t", "c", 5, [3, 4])]
    it.ledger.record_progress()
    assert it.told() == []


def test_held_messages_are_needed() -> None:
    it = Bench()
    it.publish(5)
    it.ledger.hold(2)
    it.take(9)
    it.finish(2, 3, 4)
    assert (it.ledger.low_watermark(), it.ledger.oldest_ahead, it.ledger.cursor) == (0, 0, 5)
    assert [sequence for piece in it.ledger.exceptions() for sequence in piece] == [0, 1]
    assert it.ledger.waits_before(1)
    assert it.ledger.oldest_timestamp() == 1
    it.log.evict()
    assert it.ledger.backend_depth == 2


def test_what_was_finished_ahead_leaves_out_what_is_held() -> None:
    it = Bench()
    it.publish(8)
    it.take(1)
    it.ledger.hold(3)
    it.take(2)
    it.ledger.finish_waiting(BitMap64([6]))
    assert list(it.ledger.finished_ahead()) == [3, 4, 6]


def test_a_snapshot_has_the_held_messages() -> None:
    it = Bench()
    it.publish(5)
    it.ledger.hold(3)
    it.ledger.take_held(1, 2)
    changes = it.ledger.snapshot_changes(lambda due: due)
    it.ledger.take_held(0, 1)
    assert list(filter(None, changes))[:2] == [
        ("held", "t", "c", [0, 1, 2, 3]),
        ("progress", "t", "c", 3, [1, 2]),
    ]
