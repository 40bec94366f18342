"""A ledger by itself against a dictionary that says where each message is: no consumers, no rules, no broker.

Whatever the order of verbs and crashes, each message is in exactly one place, and that is where the verbs have put it.
The journal is real: a crash replays it, and gives a new ledger what it finds.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap64

from nsqcommon.wire.log_record import COPY
from nsqd.broker.batch import Batch, Receipt
from nsqd.broker.buried import BuriedMessage, Note
from nsqd.broker.change import Change
from nsqd.broker.consumer import Consumer
from nsqd.broker.feed import TopicFeed
from nsqd.broker.in_flight import Delivery
from nsqd.broker.journal import BrokerJournal
from nsqd.broker.journal_replay import replay
from nsqd.broker.ledger import Ledger
from nsqd.broker.reclaimer import Reclaimer
from tests.model.reference import Place
from tests.support.fake_store import FakeStore, changes_in
from tests.support.lengths import sized

ID = 1000  # ids are sequences plus this
SEQUENCES = st.sets(st.one_of(st.integers(0, 11), st.integers(0, 40)), min_size=1, max_size=8)  # most are there
NOTE = Note("bad", "")


def consumer() -> Consumer:
    return Consumer(send=lambda pieces: None, close=lambda: None, describe=lambda: None, msg_timeout=1.0)  # type: ignore[arg-type, return-value]


def wire_id(sequence: int) -> bytes:
    return b"%016x" % (sequence + ID)


class LedgerMachine(RuleBasedStateMachine):
    @initialize(deliveries=st.integers(0, 4))
    def begin(self, deliveries: int) -> None:
        self.store = FakeStore()
        self.log = self.store.create_log("t")
        self.feed = TopicFeed("t", self.log, ephemeral=False)
        self.consumer = consumer()
        self.now_ms = 1_000
        self.places: dict[int, Place] = {}
        self.attempts: dict[int, int] = {}
        self.replaced: set[int] = set()  # by edited copies
        self.told: dict[int, Place] = {}  # where the journal knows each message to be, unless it came back
        for change in (("topic", "t"), ("learned", "t"), ("flow", "t"), ("channel", "t", "c", 0)):
            self.store.record(change, urgent=True)
        self.ledger = self._ledger(0)
        for count in (4, 1, 4, 3):
            self.hand_over_batch(count, deferred=False)
        for _ in range(deliveries):
            self.take_ahead(most=5)

    def _ledger(self, cursor: int) -> Ledger:
        return Ledger("c", self.feed, BrokerJournal(self.store), Reclaimer(), cursor=cursor, ephemeral=False)

    def at(self, place: Place) -> list[int]:
        return sorted(sequence for sequence, it in self.places.items() if it is place)

    def put(self, sequences: list[int] | BitMap64, place: Place) -> None:
        self.places.update(dict.fromkeys(sequences, place))
        if place is not Place.DONE:  # whatever the journal knew of an earlier end
            for sequence in sequences:
                self.told.pop(sequence, None)

    # Handing over and taking

    @rule(count=st.integers(1, 4), deferred=st.booleans())
    def hand_over(self, count: int, deferred: bool) -> None:
        if len(self.places) <= 40:
            self.hand_over_batch(count, deferred=deferred)

    def hand_over_batch(self, count: int, *, deferred: bool) -> None:
        start = self.log.tail
        body = b"\0\0\0\1x" * count
        delay = 5 if deferred else 0
        batch = Batch(start, start + ID, 1, body, range(0, 5 * count + 1, 5), delay, b"", 0, b"")
        self.log.append(batch, Receipt())
        self.store.write_logs()
        due_ms = self.now_ms + 5
        if deferred:
            self.store.record(("defer", "t", start, count, due_ms), urgent=True)
        self.feed.high_watermark = self.log.tail
        if deferred:
            self.ledger.defer(start, count, due_ms * 1000)
        self.put(list(range(start, start + count)), Place.DEFERRED if deferred else Place.WAITING)
        self.attempts.update(dict.fromkeys(range(start, start + count), 0))

    @rule(most=st.integers(1, 5))
    def take_ahead(self, most: int) -> None:
        ledger = self.ledger
        first = ledger.advance()
        if first == self.feed.high_watermark:
            assert ledger.ahead == ledger.held.total
            return
        batch = ledger.batch_ahead()
        assert batch is not None
        if batch.delay_ms:  # only a cursor that has gone back meets it
            stop = ledger.run_end(batch)
            assert ledger.may_meet_deferred
            ledger.defer_ahead(stop, self.now_ms * 1000, self.now_ms)
            self.put(list(range(first, stop)), Place.DEFERRED)
            return
        expected = min(ledger.run_end(batch), first + most)
        stop = ledger.take_run(batch, most)
        assert stop == expected
        assert [self.places[it] for it in range(first, stop)] == [Place.WAITING] * (stop - first)
        self._deliver(first, stop, 1)

    @rule(most=st.integers(1, 5))
    def hold(self, most: int) -> None:
        ledger = self.ledger
        first = ledger.advance()
        if first == self.feed.high_watermark:
            return
        batch = ledger.batch_ahead()
        assert batch is not None
        if batch.delay_ms:
            return
        stop = min(ledger.run_end(batch), first + most)
        assert [self.places[it] for it in range(first, stop)] == [Place.WAITING] * (stop - first)
        ledger.hold(stop)

    @rule(which=SEQUENCES)
    def take_held(self, which: set[int]) -> None:
        for sequence in self.ledger.held.among(BitMap64(which)):
            assert (self.places[sequence], self.attempts[sequence]) == (Place.WAITING, 0)
            self.ledger.take_held(sequence, sequence + 1)
            self._deliver(sequence, sequence + 1, 1)

    @rule(which=SEQUENCES)
    def drop_held(self, which: set[int]) -> None:
        dropped = self.ledger.held.among(BitMap64(which))
        self.ledger.finish_held(dropped)
        self.put(dropped, Place.DONE)

    @rule(most=st.integers(1, 5))
    def take_retries(self, most: int) -> None:
        if (batch := self.ledger.batch_of_retry()) is None:
            assert not self.ledger.retries
            return
        first, stop, attempts = self.ledger.take_retries(most, batch)
        assert [(self.places[it], self.attempts[it]) for it in range(first, stop)] == [(Place.WAITING, attempts)] * (
            stop - first
        )
        self.ledger.note_redelivery(first, stop, attempts + 1)
        self._deliver(first, stop, attempts + 1)

    def _deliver(self, first: int, stop: int, attempts: int) -> None:
        count = stop - first
        ids = [wire_id(it) for it in range(first, stop)]
        self.ledger.in_flight.add(ids, Delivery(self.consumer, first, count, -ID, attempts, 0.0, 1.0, 1))
        self.put(list(range(first, stop)), Place.IN_FLIGHT)
        self.attempts.update(dict.fromkeys(range(first, stop), attempts))

    # In flight

    @rule(which=SEQUENCES)
    def finish(self, which: set[int]) -> None:
        done = [it for it in self.at(Place.IN_FLIGHT) if it in which]
        if done:
            assert self.ledger.in_flight.finish(self.consumer, [wire_id(it) for it in done]) == (len(done), [])
            self.ledger.note_progress()
        self.put(done, Place.DONE)

    @rule(which=SEQUENCES, later=st.booleans(), told=st.booleans())
    def retry(self, which: set[int], later: bool, told: bool) -> None:
        for sequence in [it for it in self.at(Place.IN_FLIGHT) if it in which]:
            self.ledger.in_flight.take_out(self.consumer, wire_id(sequence))
            self.ledger.take_back(sequence)
            attempts, due_ms = self.attempts[sequence], self.now_ms + 7
            if later:
                self.ledger.retry_later([(sequence, attempts, due_ms * 1000, due_ms)])
            elif told:
                self.ledger.retry(sequence, attempts)
            else:
                self.ledger.retry_unrecorded(sequence, attempts)
            self.put([sequence], Place.DEFERRED if later else Place.WAITING)

    @rule(milliseconds=st.integers(1, 10), most=st.integers(1, 10))
    def release_due(self, milliseconds: int, most: int) -> None:
        self.now_ms += milliseconds
        before = len(self.ledger.retries)
        self.ledger.release_due(self.now_ms * 1000, most)
        assert len(self.ledger.retries) <= before + most
        self.put(self.ledger.retries.among(BitMap64(self.at(Place.DEFERRED))), Place.WAITING)

    # Buried

    @rule(which=SEQUENCES)
    def bury(self, which: set[int]) -> None:
        found = [it for it in self.at(Place.IN_FLIGHT) if it in which]
        for sequence in found:
            self.ledger.in_flight.take_out(self.consumer, wire_id(sequence))
        if found:
            self.ledger.bury([BuriedMessage(it, it + ID, self.attempts[it], self.now_ms, NOTE) for it in found])
        self.put(found, Place.BURIED)

    @rule(which=SEQUENCES, discards=st.booleans())
    def take_buried(self, which: set[int], discards: bool) -> None:
        found = [it for it in self.at(Place.BURIED) if it in which]
        assert [self.ledger.buried.remove(it) for it in found] == [True] * len(found)
        if discards:
            self.ledger.finish(found)
        else:
            self.ledger.give_back(found)
            self.attempts.update(dict.fromkeys(found, 0))
        self.put(found, Place.DONE if discards else Place.WAITING)

    # Operators

    @rule(which=SEQUENCES)
    def cancel(self, which: set[int]) -> None:
        handed_over = BitMap64([it for it in which if it < self.feed.high_watermark])
        waiting = {it for it in handed_over if self.places[it] in (Place.WAITING, Place.DEFERRED)}
        assert set(self.ledger.finish_waiting(handed_over)) == waiting
        self.put(sorted(waiting), Place.DONE)

    @rule(which=SEQUENCES, delay_ms=st.integers(0, 9))
    def move(self, which: set[int], delay_ms: int) -> None:
        handed_over = BitMap64([it for it in which if it < self.feed.high_watermark])
        waiting = {it for it in handed_over if self.places[it] in (Place.WAITING, Place.DEFERRED)}
        due_ms = self.now_ms + delay_ms if delay_ms else 0
        assert set(self.ledger.move(handed_over, due_ms * 1000, due_ms)) == waiting
        self.put(sorted(waiting), Place.DEFERRED if delay_ms else Place.WAITING)

    @rule()
    def empty(self) -> None:
        self.ledger.empty()
        self.put([it for it, place in self.places.items() if place is not Place.BURIED], Place.DONE)

    @rule(back=st.integers(0, 40))
    def seek(self, back: int) -> None:
        cursor = max(0, self.feed.high_watermark - back)
        loses = any(
            it < cursor and place in (Place.WAITING, Place.IN_FLIGHT, Place.DEFERRED)
            for it, place in self.places.items()
        )
        assert self.ledger.waits_before(cursor) == loses
        self.ledger.seek(cursor, lambda due: due // 1000)
        for sequence, place in list(self.places.items()):
            if place is not Place.BURIED:
                comes_back = sequence >= cursor and sequence not in self.replaced
                self.put([sequence], Place.WAITING if comes_back else Place.DONE)
                self.attempts[sequence] = 0
                if sequence in self.replaced:
                    self.told[sequence] = Place.DONE

    @rule(which=SEQUENCES)
    def redeliver(self, which: set[int]) -> None:
        self.ledger.record_progress()
        # Redelivery leaves out what an edited copy has replaced (operator_actions.py).
        found = [it for it in self.at(Place.DONE) if it in which and it not in self.replaced]
        if found:
            self.ledger.give_back(found)
        self.put(found, Place.WAITING)
        self.attempts.update(dict.fromkeys(found, 0))

    @rule(most=st.integers(1, 5))
    def drop_ahead(self, most: int) -> None:
        if (first := self.ledger.advance()) < self.feed.high_watermark:
            stop = min(self.ledger.next_stop(most), self.feed.high_watermark)
            self.ledger.finish_ahead(stop)
            self.put(list(range(first, stop)), Place.DONE)

    # Edited copies

    @rule(which=SEQUENCES, is_again=st.booleans(), later=st.booleans())
    def edit(self, which: set[int], is_again: bool, later: bool) -> None:
        places = (Place.DONE,) if is_again else (Place.WAITING, Place.DEFERRED, Place.BURIED)
        found = [it for it in sorted(which) if self.places.get(it) in places]
        if found and len(self.places) <= 40:
            self._edit(-1 if is_again else found[0], later=later)

    def _edit(self, replaced: int, *, later: bool) -> int:
        ledger, copy, due_ms = self.ledger, self.log.tail, self.now_ms + 6 if later else 0
        former = ledger.place_for_journal(replaced, lambda due: due // 1000) if replaced >= 0 else None
        ledger.record_copy(copy, replaced, due_ms, former)
        self._append_copy()
        ledger.skip_unrecorded(copy, copy + 1)
        edit: Change = ("edit", "t", "c", copy, replaced, due_ms)
        ledger.take_copy(copy, replaced, due_ms * 1000, [edit] if former is None else [former, edit])
        if replaced >= 0:
            self.put([replaced], Place.DONE)
            self.told[replaced] = Place.DONE
            self.replaced.add(replaced)
        self.put([copy], Place.DEFERRED if later else Place.WAITING)
        self.attempts[copy] = 0
        return copy

    @rule()
    def edit_in_another_channel(self) -> None:
        copy = self.log.tail
        if len(self.places) <= 40:
            self.ledger.record_progress()
            self.store.record(("edit", "t", "another", copy, -1, 0), urgent=True)
            self._append_copy()
            self.ledger.pass_copy(copy)
            self.put([copy], Place.DONE)
            self.told[copy], self.attempts[copy] = Place.DONE, 0

    def _append_copy(self) -> None:
        copy = self.log.tail
        self.log.append(Batch(copy, copy + ID, 1, b"\0\0\0\1x", (0, 5), 1, b"", COPY), Receipt())
        self.store.write_logs()
        self.feed.high_watermark = self.log.tail

    @rule(which=SEQUENCES, snapshot=st.booleans())
    def edit_and_lose_power(self, which: set[int], snapshot: bool) -> None:
        """The journal has the edit, and perhaps a snapshot since, and the log has lost the copy."""
        found = [it for it in sorted(which) if self.places.get(it) in (Place.WAITING, Place.DEFERRED, Place.BURIED)]
        if not found or len(self.places) > 40:
            return
        self.record_progress()
        former, was_replaced = self.places[found[0]], found[0] in self.replaced
        self.log.synced_before = self.log.tail
        copy = self._edit(found[0], later=False)
        self._crash(snapshot, lost=copy)
        now = self._found()[found[0]]
        assert now is former or (former, now) == (Place.WAITING, Place.DEFERRED)  # see `_crash`
        self.put([found[0]], now)
        self.attempts[found[0]] = self._attempts(found[0])
        if not was_replaced:
            self.replaced.discard(found[0])

    # The journal

    @rule()
    def record_progress(self) -> None:
        self.ledger.record_progress()
        self.store.write_journal(force=True)
        self.told = dict(self.places)

    @precondition(lambda self: self.places)
    @rule(snapshot=st.booleans())
    def crash(self, snapshot: bool) -> None:
        self._crash(snapshot)

    def _crash(self, snapshot: bool, lost: int = -1) -> None:
        """Start again. With `lost`, the log has lost this message, which was the last one."""
        self.store.write_journal()  # what is urgent, and all that was recorded before it
        if snapshot:
            self.told = dict(self.places)
            ledger = self.ledger
            changes = changes_in(ledger.snapshot_changes(lambda due: due // 1000))
            buried = list(ledger.buried.changes("t", "c"))
            beginning = [("topic", "t"), ("learned", "t"), ("flow", "t"), ("channel", "t", "c", ledger.cursor)]
            self.store.journal = [*beginning, *changes, *buried]  # type: ignore[list-item]
        self.store.unwritten.clear()
        topic = replay(list(self.store.journal))["t"]
        if lost >= 0:
            self.log.lose_unsynced()
            self.log.synced_before = None
            self.feed.high_watermark = self.log.tail
            assert topic.cut(self.log.tail)
            self.store.record(("cut", "t", self.log.tail), urgent=True)
            del self.places[lost], self.attempts[lost]
            self.places.update((it, Place.BURIED) for it in topic.channels["c"].buried.all())
        state = topic.channels["c"]
        if snapshot and lost < 0:
            assert state.held == self.ledger.held.all()
        self.ledger = self._ledger(state.cursor)
        self.ledger.restore(state, lambda due_ms: due_ms * 1000)
        found = self._found()
        for sequence, place in self.places.items():
            if place is Place.DONE and self.told.get(sequence) is not Place.DONE:
                self.places[sequence] = found[sequence]  # it may come again
                self.attempts[sequence] = self._attempts(sequence)
            elif place is Place.IN_FLIGHT or (place is Place.WAITING and found[sequence] is Place.DEFERRED):
                self.places[sequence] = found[sequence]  # when something is due, the journal need not hear of it
                assert found[sequence] in (Place.WAITING, Place.DEFERRED)
            if place in (Place.IN_FLIGHT, Place.WAITING, Place.DEFERRED):
                known = self._attempts(sequence)
                assert known == self.attempts[sequence] or (self.attempts[sequence], known) == (1, 0)
                self.attempts[sequence] = known

    def _attempts(self, sequence: int) -> int:
        return self.ledger.attempts_of(sequence)

    def _found(self) -> dict[int, Place]:
        """Return where the ledger has each message, and check that it has none twice."""
        ledger = self.ledger
        everything = BitMap64(self.places)
        by_place = [
            (Place.IN_FLIGHT, ledger.in_flight.among(everything)),
            (Place.DEFERRED, ledger.deferred.among(everything)),
            (Place.BURIED, ledger.buried.among(everything)),
            (Place.WAITING, ledger.retries.among(everything)),
            (Place.WAITING, ledger.ahead_among(everything)),
            (Place.WAITING, ledger.held.among(everything)),
        ]
        found: dict[int, Place] = {}
        for place, sequences in by_place:
            assert not found.keys() & set(sequences), "a message is in two places"
            found.update(dict.fromkeys(sequences, place))
        return {sequence: found.get(sequence, Place.DONE) for sequence in self.places}

    @invariant()
    def each_message_is_where_the_verbs_have_put_it(self) -> None:
        self.store.write_journal()
        assert self._found() == self.places
        ledger = self.ledger
        waiting = self.at(Place.WAITING)
        assert ledger.depth == len(waiting)
        assert ledger.unfinished == len(waiting) + len(self.at(Place.DEFERRED)) + len(self.at(Place.IN_FLIGHT))
        needed = [it for it, place in self.places.items() if place is not Place.DONE]
        assert ledger.is_empty == (not needed)
        assert ledger.low_watermark() <= min(needed, default=self.feed.high_watermark)
        excepted = {it for piece in ledger.exceptions() for it in piece}
        assert excepted | set(range(ledger.cursor, self.feed.high_watermark)) >= set(needed)


EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "1000"))

TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    max_examples=EXAMPLES // sized(short=10, long=5),
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def test_a_message_that_a_seek_brought_back_may_come_again_after_a_crash() -> None:
    """The journal knew of its first end, and then of the seek, and not of its second end."""
    machine = LedgerMachine()
    machine.begin(deliveries=0)
    machine.empty()
    machine.hand_over(count=1, deferred=False)
    machine.drop_ahead(most=1)
    machine.crash(snapshot=True)
    machine.seek(back=1)
    machine.drop_ahead(most=1)
    machine.crash(snapshot=False)
    machine.each_message_is_where_the_verbs_have_put_it()
    assert machine.at(Place.WAITING) == [max(machine.places)]


def test_what_fails_again_and_again_keeps_its_count_of_attempts() -> None:
    machine = LedgerMachine()
    machine.begin(deliveries=4)
    for _ in range(3):
        machine.retry(which=set(range(40)), later=False, told=True)
        while machine.ledger.retries:
            machine.take_retries(most=5)
        machine.each_message_is_where_the_verbs_have_put_it()
    assert set(machine.attempts.values()) == {4}
