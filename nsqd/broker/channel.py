"""A channel: a cursor into its topic's log, and a short list of exceptions.

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Final

from nsqd.broker.backlog import Backlog, Redelivered, Restored, from_place, is_in, joined, without
from nsqd.broker.burials import Burials, Job, recovered_job
from nsqd.broker.buried import Note
from nsqd.broker.consumer import Closeness
from nsqd.broker.in_flight import Delivery, InFlight
from nsqd.broker.kept import Kept
from nsqd.broker.latency import Latency
from nsqd.broker.positions import Deferred, Retries, SkipRanges
from nsqd.broker.snapshot import NO_LATENCY, ChannelSnapshot, ClientSnapshot

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.burials import Selection, Taken, Verb
    from nsqd.broker.change import Change, ChannelChange
    from nsqd.broker.consumer import Consumer
    from nsqd.broker.feed import Feed
    from nsqd.broker.replay import ChannelState
    from nsqd.broker.store import BatchSource
    from nsqd.broker.work import ChannelWork

_WAIT_ENTRIES_PER_CHANGE: Final = 2_000  # a millisecond or two of work
_EXPIRY_GRAIN_OF_EACH: Final = 1e-6  # seconds for each message in flight, so that a pass takes a small part of the time
_FINISHED_WORTH_LETTING_GO: Final = 1000  # messages
_DEFERRED_AT_ONCE: Final = 2_000  # past messages that are not due yet; each one is deferred by itself
_PUT_OFF_MS: Final = 60_000  # until what the disk refuses to read is asked for again
_EXPIRY_GRAIN: Final = 0.005  # seconds; deadlines this close are handled together, so a pass is never for one message
NOT_ON_DISK: Final = b"channel is not on disk"


class Channel:
    def __init__(self, name: str, topic: Feed, work: ChannelWork[Channel], *, cursor: int, ephemeral: bool) -> None:
        self.name = name
        self.topic = topic
        self.ephemeral = ephemeral
        self.paused = False
        self.paused_why = ""  # if it was not a person who has paused it
        self.rules = work.rules.channel(topic.name, name)
        self.cursor = cursor
        self.skips = SkipRanges()
        self.in_flight = InFlight()
        self.retries = Retries()
        self.deferred = Deferred()
        self.burials = Burials(work)
        self.consumers: list[Consumer] = []
        self.timeout_count = 0
        self.requeue_count = 0
        self._taken = [0] * len(Closeness)  # number of messages, by the consumer's closeness
        self.latency = Latency(work.latency, work.now) if work.latency is not None else None
        self.alarm = inf  # when `expire` wants to be called next, as last added to the alarms
        self._counted_from = cursor  # `message_count` is what was handed over from here on
        self._finished: list[tuple[int, int]] = []  # ranges that were finished without having been in flight
        self._saved_cursor = cursor
        self._next_consumer = 0  # the position of the consumer that is served first
        self._retry_first = False  # alternates, for consumers that have room for one message only
        self._batch: Batch | None = None  # the batch at the cursor
        self.kept = Kept(topic.log) if ephemeral or topic.ephemeral else None  # what the log does not keep for us
        self._source: BatchSource = self.kept if self.kept is not None else topic.log
        self._work = work

    # What waits

    @property
    def depth(self) -> int:
        """How many messages could be taken now."""
        return self.topic.handed_over - self.cursor - self.skips.total + len(self.retries)

    @property
    def message_count(self) -> int:
        return self.topic.handed_over - self._counted_from

    @property
    def backend_depth(self) -> int:
        """How many messages of the depth are no longer in memory."""
        if self.kept is not None:
            return 0
        end = min(self.topic.log.cached_from, self.topic.handed_over)
        return max(0, min(self.depth, end - self.cursor))

    def oldest_timestamp(self) -> int | None:
        """Return when the oldest waiting message was published, in nanoseconds; None: nothing waits, or not in memory.

        A message that is not in memory is fetched, so a caller that asks every few seconds gets its time later.
        """
        waiting = [self.retries.peek()[0]] if self.retries else []
        if (cursor := self._advance_over_gaps()) < self.topic.handed_over:
            waiting.append(cursor)
        batches = [self._source.batch_at(sequence) for sequence in waiting]
        times = [batch.timestamp for batch in batches if batch is not None]
        return min(times) if times and len(times) == len(batches) else None

    def low_water(self) -> int:
        """Return a sequence before which this channel needs nothing any more; it may be lower than it has to be."""
        places = (self.retries.pins, self.deferred.pins, self.burials.buried.pins)
        lows = [self.cursor, self.in_flight.lowest(), *(pins.lowest() for pins in places)]
        return min(low for low in lows if low is not None)

    def exceptions(self) -> Iterator[Iterable[int]]:
        """Return the sequences of what waits, is in flight or is buried, as of now.

        They come in pieces, each of which takes a fraction of a millisecond.
        """
        waiting = chain(self.in_flight.sequences(), self.retries.sequences(), self.deferred.sequences())
        return chain(waiting, self.burials.buried.sequences())

    # Handing over

    def handed_over(self, before: int) -> None:
        """Note that the topic's messages from `before` on belong to the channel now."""
        if self.kept is not None:
            self._work.overflowing.setdefault(self, before)
        if self.consumers:
            self.wants_attention()

    def defer(self, start: int, count: int, due: int) -> None:
        """Make the messages of a batch wait until `due` (microseconds), even if they are ahead of the cursor."""
        self.skips.add(start, start + count)
        if self.kept is not None and self.topic.ephemeral and self.kept.find(start) is None:
            return  # `keep` had no room for the batch
        for sequence in range(start, start + count):
            self.deferred.add(due, sequence, 0)
        self._set_alarm()

    def pass_over(self, start: int, end: int) -> None:
        """Skip messages that were never handed over, because the topic was emptied."""
        self._counted_from += end - start
        self._skip(start, end)

    def _skip(self, start: int, end: int) -> None:
        if start < end:
            self.skips.add(start, end)
            self._record(("skip", self.topic.name, self.name, start, end))

    # Keeping what the log does not keep for us: ephemeral channels, and those of ephemeral topics

    def keep(self, batches: Iterable[Batch]) -> None:
        """Keep batches that are about to be handed over, as far as they have room."""
        assert self.kept is not None
        if self.kept.messages > 2 * self._live + _FINISHED_WORTH_LETTING_GO:
            self.record_progress()
        # Nobody can take a deferred message away at once, so whether it has room is decided now.
        room = self._work.mem_queue_size - len(self.deferred)
        most_bytes = self._work.mem_queue_bytes
        if self.topic.ephemeral:
            room -= self.depth
        else:  # The log may still have a deferred message when it is due, and others need the memory more.
            most_bytes //= 2
        for batch in batches:
            if batch.delay_ms:
                if batch.count > room or self.kept.bytes + len(batch.payload) > most_bytes:
                    continue
                room -= batch.count
            self.kept.add(batch)

    @property
    def _live(self) -> int:
        """How many messages are not finished."""
        return self.depth + len(self.in_flight) + len(self.deferred)

    def drop_overflow(self, before: int) -> None:
        """Drop the newest messages of this turn that found neither consumer nor room. Called when the turn ends."""
        if (excess := self._excess(before)) > 0:
            assert self.kept is not None
            floor = max(before, self.cursor)
            for start, end in self.skips.add_newest(excess, floor, self.topic.handed_over):
                self.kept.let_go(start, end)

    def _excess(self, before: int) -> int:
        """Return how many of the newest messages are beyond one of the two bounds."""
        kept, work = self.kept, self._work
        assert kept is not None
        excess = self.depth - work.mem_queue_size
        if self.topic.ephemeral:
            excess += len(self.deferred)
        if kept.bytes <= work.mem_queue_bytes:
            return excess
        self.record_progress()  # so that finished messages are not counted
        # Messages in flight are not counted either. This happens so seldom that no running count is kept of them.
        too_much = kept.bytes - work.mem_queue_bytes
        too_much -= sum(kept.size_of(sequence) for sequence, _ in self.in_flight.positions())
        count = 0
        for sequence in self.skips.free_backwards(max(before, self.cursor), self.topic.handed_over):
            if too_much <= 0:
                break
            too_much -= kept.size_of(sequence)
            count += 1
        return max(excess, count)

    # Consumers

    def join(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        consumer.has_joined = True

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer. Its messages in flight stay there until their deadlines, as in NSQ."""
        self.consumers.remove(consumer)
        consumer.has_joined = False
        if self.ephemeral and not self.consumers:
            self.topic.delete_channel(self.name)

    def wants_attention(self) -> None:
        """Look at this channel when the turn ends, because a consumer may have room or something came to deliver."""
        self._work.to_deliver[self] = None

    # Delivering

    def distribute(self, now: float) -> None:
        """Give waiting messages to consumers with room, in fair shares, until one of the two runs out."""
        if self.paused:
            return
        available = self.depth
        while available > 0:
            ready = [consumer for consumer in self.consumers if consumer.room > 0]
            if not ready:
                return
            if self._work.prefers_near_consumers:  # consumers further away get what these leave
                nearest = max(consumer.closeness for consumer in ready)
                ready = [consumer for consumer in ready if consumer.closeness == nearest]
            self._next_consumer = (self._next_consumer + 1) % len(ready)
            ready = ready[self._next_consumer :] + ready[: self._next_consumer]
            before = available
            for position, consumer in enumerate(ready):
                share = -(-available // (len(ready) - position))
                available -= self._take(consumer, min(consumer.room, share), now)
                if available <= 0:
                    break
            if available == before:
                return  # the log must read first; `Broker.loaded` is called then

    def _take(self, consumer: Consumer, limit: int, now: float) -> int:
        """Give up to `limit` messages to one consumer. Retries and new messages take turns, so that neither starves."""
        if not self.retries:
            return self._take_new(consumer, limit, now)
        if limit == 1:
            self._retry_first = not self._retry_first
            first, second = self._take_retries, self._take_new
            if not self._retry_first:
                first, second = second, first
            return first(consumer, 1, now) or second(consumer, 1, now)
        taken = self._take_retries(consumer, limit - limit // 2, now)
        taken += self._take_new(consumer, limit - taken, now)
        return taken + self._take_retries(consumer, limit - taken, now)

    def _take_new(self, consumer: Consumer, limit: int, now: float) -> int:
        source, end = self._source, self.topic.handed_over
        taken = deferred = 0
        while taken < limit and consumer.room > 0:
            cursor = self._advance_over_gaps()
            if cursor >= end:
                break
            batch = self._batch
            if batch is None or not batch.base_sequence <= cursor < batch.end_sequence:
                batch = self._batch = source.batch_at(cursor)
                if batch is None:
                    if self._put_off_new(cursor, end):
                        self._come_back(now)
                    break
            stop = min(batch.end_sequence, end)
            if self.skips.total and (next_skip := self.skips.next_start()) is not None:
                stop = min(stop, next_skip)
            if batch.delay_ms and (due_ms := self._work.due_ms(batch)) is not None:
                self.cursor = stop
                self._defer_again(cursor, stop, due_ms)
                deferred += stop - cursor
                if deferred < _DEFERRED_AT_ONCE:
                    continue
                self._come_back(now)
                break
            stop = min(stop, cursor + limit - taken)
            self.cursor = stop
            if stop == batch.end_sequence:
                self._batch = None
            taken += stop - cursor
            self._give(consumer, batch, cursor, stop, 1, now, retry=False)
        if taken:
            self._work.changed[self] = None
        return taken

    def _put_off_new(self, cursor: int, end: int) -> bool:
        """Defer messages that the disk has refused for long to read, so that those behind them can be delivered.

        Deferred messages keep their place on the disk, also across a restart, and are read again when they are due.
        Return False if nothing was refused: then the batch is only not in memory yet.
        """
        stop = min(self._source.end_of_refused(cursor), end, cursor + _DEFERRED_AT_ONCE)
        if (next_skip := self.skips.next_start()) is not None:
            stop = min(stop, next_skip)
        if stop <= cursor:
            return False
        self.cursor = stop
        self._defer_again(cursor, stop, self._put_off_until_ms)
        return True

    def _put_off_retries(self) -> bool:
        """Defer refused messages at the head of the retry queue, like `_put_off_new`. Return whether there were any."""
        due_ms = self._put_off_until_ms
        due = self._work.due_from_wall(due_ms)
        entries: list[int] = []
        while self.retries and len(entries) < 3 * _DEFERRED_AT_ONCE:
            sequence, _ = self.retries.peek()
            if self._source.end_of_refused(sequence) == sequence:
                break
            _, _, attempts = self.retries.pop_run(1, sequence + 1)
            self.deferred.add(due, sequence, attempts)
            entries += (sequence, attempts, due_ms)
        if entries:
            self._record_urgent(("wait", self.topic.name, self.name, entries))
            self._set_alarm()
        return bool(entries)

    @property
    def _put_off_until_ms(self) -> int:
        return self._work.timestamp // 1_000_000 + _PUT_OFF_MS

    def _defer_again(self, start: int, end: int, due_ms: int) -> None:
        """Defer messages at the cursor until `due_ms`.

        If they are not due yet, that is their publication plus their delay, never earlier. The cursor meets such
        messages only after it has gone back; otherwise they are in skip ranges, which `defer` has made. Messages that
        the disk refuses to read are deferred here as well.
        """
        due = self._work.due_from_wall(due_ms)
        entries: list[int] = []
        for sequence in range(start, end):
            self.deferred.add(due, sequence, 0)
            entries += (sequence, 0, due_ms)
        self._record_urgent(("wait", self.topic.name, self.name, entries))
        self._set_alarm()

    def _come_back(self, when: float) -> None:
        """Ask to be called then. If that is now, this channel has more to do, but others have their turn first."""
        if when < self.alarm:
            self.alarm = when
            self._work.alarms.add(when, self)

    def _advance_over_gaps(self) -> int:
        while True:
            if self.skips.total:
                self.cursor = self.skips.pass_over(self.cursor)
            readable = min(self._source.next_readable(self.cursor), self.topic.handed_over)
            if readable == self.cursor:
                return readable
            # Damage, or an ephemeral channel for which the log has not waited. Skip ranges may end in this gap or
            # follow it.
            self._finished.append((self.cursor, readable))
            self.cursor = readable

    def _take_retries(self, consumer: Consumer, limit: int, now: float) -> int:
        source = self._source
        taken = 0
        while taken < limit and self.retries and consumer.room > 0:
            sequence, _ = self.retries.peek()
            if source.next_readable(sequence) != sequence:
                self.retries.pop_run(1, sequence + 1)
                self._finished.append((sequence, sequence + 1))
                continue
            batch = source.batch_at(sequence)
            if batch is None:
                if self._put_off_retries():
                    self._come_back(now)
                break
            first, stop, attempts = self.retries.pop_run(limit - taken, batch.end_sequence)
            if self._is_last(attempts):  # it had failed so often before the rule was made, or while nsqd was down
                self._bury(_places(batch, first, stop, attempts), Note(_exhausted(attempts), ""))
                continue
            attempts = attempts + 1 & 0xFFFF
            self._give(consumer, batch, first, stop, attempts, now, retry=True)
            taken += stop - first
        return taken

    def _give(
        self, consumer: Consumer, batch: Batch, first: int, stop: int, attempts: int, now: float, *, retry: bool
    ) -> None:
        """Deliver [first, stop). If the consumer samples, deliver (rate + 1) % and finish the rest, as in NSQ."""
        if retry or self.kept is not None or first >= self.topic.log.cached_from:  # NSQ counts only what was in memory
            self._taken[consumer.closeness] += stop - first
        if not consumer.sample_rate:
            self._deliver(consumer, batch, first, stop, attempts, now, retry=retry)
            return
        keep_from = first
        for sequence in range(first, stop):
            if self._work.random_percent() > consumer.sample_rate:
                if keep_from < sequence:
                    self._deliver(consumer, batch, keep_from, sequence, attempts, now, retry=retry)
                self._finished.append((sequence, sequence + 1))
                keep_from = sequence + 1
        if keep_from < stop:
            self._deliver(consumer, batch, keep_from, stop, attempts, now, retry=retry)
        self._work.changed[self] = None

    def _deliver(
        self, consumer: Consumer, batch: Batch, first: int, stop: int, attempts: int, now: float, *, retry: bool
    ) -> None:
        if retry:
            self._record_urgent(("try", self.topic.name, self.name, attempts, list(range(first, stop))))
        ids = batch.ids(first, stop)
        count = stop - first
        offset = batch.base_sequence - batch.base_id
        deadline = now + consumer.msg_timeout
        delivery = Delivery(consumer, first, count, offset, attempts, now, deadline, batch.timestamp)
        self.in_flight.add(ids, delivery)
        if self.in_flight.next_deadline < self.alarm:
            self._set_alarm()
        consumer.in_flight += count
        consumer.message_count += count
        consumer.unsent_bytes += batch.frames_size(first, stop)
        consumer.send(batch.frames(first, stop, attempts, ids))

    # What consumers answer

    def finish(self, consumer: Consumer, ids: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Finish messages of this consumer. Return (id, reason) of those that could not be finished."""
        if self.latency is not None:
            self._measure(self.latency, consumer, ids)
        done, failures = self.in_flight.finish(consumer, ids)
        if done:
            consumer.in_flight -= done
            consumer.finish_count += done
            self._work.changed[self] = None
            self._work.to_deliver[self] = None
        return failures

    def _measure(self, latency: Latency, consumer: Consumer, ids: Sequence[bytes]) -> None:
        work = self._work
        for message_id in dict.fromkeys(ids):
            delivery = self.in_flight.find(consumer, message_id)
            if isinstance(delivery, Delivery):
                latency.add(work.timestamp - delivery.published_at, work.now)

    def requeue(
        self, consumer: Consumer, message_id: bytes, delay_ms: int, now: float, *, counts: bool = True
    ) -> bytes | None:
        """Queue a message of this consumer again, at once or after a delay. Return why that failed, or None.

        An attempt that does not count leaves the number of attempts as it was before.
        """
        delivery = self.in_flight.take_out(consumer, message_id)
        if not isinstance(delivery, Delivery):
            return delivery
        sequence, attempts = delivery.sequence_of(message_id), delivery.attempts
        if counts and self._is_last(attempts):
            note = Note(_exhausted(attempts, "requeued"), consumer.describe().client_id)
            self._bury([(sequence, int(message_id, 16), attempts)], note)
        else:
            self._wait(sequence, attempts if counts else attempts - 1, delay_ms, now)
        consumer.in_flight -= 1
        consumer.requeue_count += 1
        self.requeue_count += 1
        self.wants_attention()
        return None

    def _wait(self, sequence: int, attempts: int, delay_ms: int, now: float) -> None:
        if delay_ms == 0:
            self._record_urgent(("wait", self.topic.name, self.name, [sequence, attempts, 0]))
            self.retries.add(sequence, attempts)
            return
        due_ms = self._work.timestamp // 1_000_000 + delay_ms + 1
        self._record_urgent(("wait", self.topic.name, self.name, [sequence, attempts, due_ms]))
        self.deferred.add(microseconds(now) + delay_ms * 1000, sequence, attempts)
        self._set_alarm()

    def bury(self, consumer: Consumer, message_id: bytes, reason: str, now: float) -> bytes | None:
        """Bury a message of this consumer. Return why that failed, or None."""
        if self.kept is not None:
            return NOT_ON_DISK
        delivery = self.in_flight.take_out(consumer, message_id)
        if not isinstance(delivery, Delivery):
            return delivery
        place = delivery.sequence_of(message_id), int(message_id, 16), delivery.attempts
        self._bury([place], Note(reason, consumer.describe().client_id))
        consumer.in_flight -= 1
        self.wants_attention()
        return None

    def _is_last(self, attempts: int) -> bool:
        """Return whether a message that was delivered so often is not to be delivered again."""
        most = self.rules.max_attempts
        return most is not None and attempts >= most

    def _bury(self, places: Iterable[tuple[int, int, int]], note: Note) -> None:
        """Bury messages, each given as sequence, id and attempts, or drop them if the channel is not on disk."""
        if self.kept is not None:
            self._finished += [(sequence, sequence + 1) for sequence, _, _ in places]
            self._work.changed[self] = None
            return
        self._record_urgent(self.burials.bury(self.topic.name, self.name, places, note))
        most = self.rules.max_buried
        if most is not None and len(self.burials.buried) > most and not self.paused:
            self._hold(f"more than {most} messages are buried (max_buried)")

    def touch(self, consumer: Consumer, message_id: bytes, *, msg_timeout: float, now: float) -> bytes | None:
        """Give a message more time. Return why that failed, or None. At the maximum it succeeds but gives no more."""
        delivery = self.in_flight.find(consumer, message_id)
        if not isinstance(delivery, Delivery):
            return delivery
        deadline = min(now + msg_timeout, delivery.delivered_at + self._work.max_msg_timeout)
        failure = self.in_flight.touch(consumer, message_id, deadline)
        self._set_alarm()
        return failure

    # Time

    def expire(self, now: float) -> None:
        """Move messages that are overdue or due to the retries, and ask to be called again in time."""
        exhausted: dict[tuple[Consumer, int], list[tuple[int, int, int]]] = {}
        for sequence, delivery in self.in_flight.expire(now):
            self.timeout_count += 1
            delivery.consumer.in_flight -= 1
            if self._is_last(delivery.attempts):
                place = sequence, sequence - delivery.offset, delivery.attempts
                exhausted.setdefault((delivery.consumer, delivery.attempts), []).append(place)
            else:
                self.retries.add(sequence, delivery.attempts)
        for (consumer, attempts), places in exhausted.items():
            self._bury(places, Note(_exhausted(attempts, "timed out"), consumer.describe().client_id))
        for sequence, attempts in self.deferred.pop_due(int(now * 1_000_000)):
            self.retries.add(sequence, attempts)
        self.alarm = inf
        self._set_alarm(not_before=now + _EXPIRY_GRAIN + len(self.in_flight) * _EXPIRY_GRAIN_OF_EACH)
        self._work_on_job(now)
        if self.consumers:
            self.wants_attention()

    def _set_alarm(self, not_before: float = 0.0) -> None:
        when = self.in_flight.next_deadline
        if (due := self.deferred.next_due()) is not None:
            when = min(when, due / 1_000_000)
        when = max(when, not_before)
        if when < self.alarm:
            self.alarm = when
            self._work.alarms.add(when, self)

    # Operating

    def pause(self) -> None:
        self._hold(True)

    def unpause(self) -> None:
        self._hold(False)
        self.wants_attention()

    def _hold(self, paused: bool | str) -> None:
        """Pause or unpause; a text is the reason why nobody but the channel itself pauses."""
        self.paused, self.paused_why = bool(paused), paused if isinstance(paused, str) else ""
        self._record_urgent(("hold", self.topic.name, self.name, paused))

    # What is buried

    def take_buried(self, verb: Verb, sequences: Iterable[int]) -> int:
        """Kick these messages back into the channel, or discard them, if they are buried. Return how many were."""
        return self._carry_out(self.burials.take(verb, sequences))

    def begin_job(self, verb: Verb, selection: Selection, *, rate: float, who: str) -> Job:
        """Kick or discard the selected messages step by step. There must be no job under way."""
        now, started_at = self._work.now, self._work.timestamp // 1_000_000
        job = Job(verb, selection, rate=rate, who=who, started_at=started_at, done=0, now=now)
        self.burials.begin(job)
        self._record_urgent(("job", self.topic.name, self.name, job.described()))
        self._work_on_job(now)
        return job

    def stop_job(self) -> None:
        """End the job under way, if there is one. What it has done stays done."""
        if self.burials.job is not None:
            self.burials.stop()
            self._record_urgent(("job", self.topic.name, self.name, []))

    def _work_on_job(self, now: float) -> None:
        job = self.burials.job
        if job is None:
            return
        taken = self.burials.step(now)
        if taken is not None and (self._carry_out(taken) or self.burials.job is None):
            described = job.described() if self.burials.job is not None else []
            self._record_urgent(("job", self.topic.name, self.name, described))
        self._come_back(self.burials.next_step)

    def _carry_out(self, taken: Taken) -> int:
        sequences = taken.sequences
        if not sequences:
            return 0
        if taken.verb == "kick":
            for sequence in sequences:
                self.retries.add(sequence, 0)
            entries = [it for sequence in sequences for it in (sequence, 0, 0)]
            self._record_urgent(("wait", self.topic.name, self.name, entries))
            self.wants_attention()
        else:
            self._finished += joined([(sequence, sequence + 1) for sequence in sequences])
            self.record_progress(urgent=True)
            self._work.changed[self] = None  # the log may be able to remove something
        return len(sequences)

    # Going back

    def empty(self) -> None:
        """Finish everything handed over so far: waiting, in flight, deferred."""
        self._forget_all(self.topic.handed_over)
        self._record(("empty", self.topic.name, self.name, self.cursor))

    def seek(self, cursor: int) -> None:
        """Empty the channel, and go on at `cursor`, which lies anywhere from the log's first sequence to H."""
        assert self.kept is None, "what is ephemeral has no past"
        self._counted_from = min(self._counted_from, cursor)
        self._forget_all(cursor)
        for start, end in self.burials.buried.ranges(cursor, self.topic.handed_over):
            self.skips.add(start, end)
        self._record(("seek", self.topic.name, self.name, cursor))
        self.topic.let_go()  # at once, so that no segment is removed that is needed again

    def backlog(self, most: int) -> Backlog | None:
        """Return what the channel has to deliver; None: that is more than `most` ranges and exceptions."""
        buried = self.burials.buried.ranges(0, self.topic.handed_over)
        if len(self.skips) + len(self.in_flight) + len(self.retries) + len(self.deferred) + len(buried) > most:
            return None
        waiting = list(self._all_waiting())
        return Backlog(
            next=self.cursor,
            end=self.topic.handed_over,
            finished=without(self.skips, [sequence for sequence, _, _ in waiting]),
            requeued=[(sequence, attempts) for sequence, attempts, due_ms in waiting if not due_ms],
            deferred=[entry for entry in waiting if entry[2]],
            buried=buried,
        )

    def restore_backlog(self, backlog: Backlog) -> Restored:
        """Have every message before the backlog's end wait as the backlog says, and leave the later ones as they are.

        What is in flight now stays in flight, and what is buried stays buried. A message that was buried then and was
        kicked since waits as it does now. What the log no longer has is left out.
        """
        assert self.kept is None, "what is ephemeral has no past"
        self.record_progress()
        end, readable, buried = backlog.end, self.topic.log.next_readable, self.burials.buried
        held = {sequence: attempts for sequence, attempts in self.in_flight.positions() if sequence < end}
        kicked = [it for it in self._all_waiting() if it[0] not in held and is_in(it[0], backlog.buried)]
        requeued = [*backlog.requeued, *((sequence, attempts) for sequence, attempts, due_ms in kicked if not due_ms)]
        deferred = [*backlog.deferred, *(it for it in kicked if it[2])]
        requeued = [it for it in requeued if it[0] not in held and it[0] not in buried and readable(it[0]) == it[0]]
        deferred = [it for it in deferred if it[0] not in held and it[0] not in buried and readable(it[0]) == it[0]]
        places = [*held, *(it[0] for it in requeued), *(it[0] for it in deferred)]
        cursor = min(max(backlog.next, self.topic.log.first), end)
        passed = [*backlog.finished, *((place, place + 1) for place in places), *buried.ranges(cursor, end)]
        skipped = joined(from_place(passed, cursor))
        waiting = [it for sequence, attempts in (*held.items(), *requeued) for it in (sequence, attempts, 0)]
        waiting += [it for entry in deferred for it in entry]
        flat = [sequence for bounds in skipped for sequence in bounds]
        self._record(("restore", self.topic.name, self.name, cursor, end, flat, waiting))
        self._replace_before(end, cursor, skipped)
        self.retries.replace_before(end, requeued)
        due = self._work.due_from_wall
        self.deferred.replace_before(
            end, [(due(due_ms), sequence, attempts) for sequence, attempts, due_ms in deferred]
        )
        self._set_alarm()
        self.topic.need_again(min([self.cursor, *places]))
        ahead = end - cursor - sum(stop - start for start, stop in skipped)
        lies_buried = backlog.count_among_ranges(buried.ranges(backlog.next, end))
        lies_buried += sum(sequence < backlog.next and sequence in buried for sequence in backlog.exceptions())
        restored = ahead + len(requeued) + len(deferred) - len(kicked) + backlog.count_among(held) + lies_buried
        return Restored(restored, backlog.count - restored)

    def _replace_before(self, end: int, cursor: int, skipped: list[tuple[int, int]]) -> None:
        """Move the cursor, and replace the skip ranges before `end`. What it has passed behind `end` stays passed."""
        later = [(end, self.cursor), *from_place(self.skips, max(end, self.cursor))]
        self.skips = SkipRanges()
        for start, stop in [*skipped, *later]:
            self.skips.add(start, stop)
        self._counted_from = min(self._counted_from, cursor)
        self._batch = None
        self._saved_cursor = cursor
        self.cursor = self.skips.pass_over(cursor)
        self._work.changed[self] = None
        self.wants_attention()

    def redeliver(self, sequences: Iterable[int]) -> Redelivered:
        """Have finished messages delivered once more, with attempts counted anew. They lie before the topic's H."""
        assert self.kept is None, "what is ephemeral has no past"
        self.record_progress()
        wanted = set(sequences)
        waiting: set[int] = set()
        for piece in self.exceptions():
            waiting |= wanted.intersection(piece)
        skips = list(self.skips)
        waiting |= {sequence for sequence in wanted if sequence >= self.cursor and not is_in(sequence, skips)}
        readable = self.topic.log.next_readable
        again = sorted(sequence for sequence in wanted - waiting if readable(sequence) == sequence)
        if again:
            for sequence in again:
                self.retries.add(sequence, 0)
            self._record(("wait", self.topic.name, self.name, [it for sequence in again for it in (sequence, 0, 0)]))
            self.topic.need_again(again[0])
            self.wants_attention()
        return Redelivered(len(again), len(waiting), len(wanted) - len(waiting) - len(again))

    def _forget_all(self, cursor: int) -> None:
        self.in_flight.clear()
        self.retries.clear()
        self.deferred.clear()
        self.skips.clear()
        self._finished.clear()
        if self.kept is not None:
            self.kept.clear()
        self._batch = None
        self.cursor = self._saved_cursor = cursor
        self.alarm = inf
        for consumer in self.consumers:
            consumer.in_flight = 0
        self._work.changed[self] = None  # the log may be able to remove something
        self.wants_attention()

    def close(self) -> None:
        """End every consumer's connection without a word, because the channel is being deleted."""
        consumers, self.consumers = self.consumers, []
        for consumer in consumers:
            consumer.has_joined = False
            consumer.close()
        self._work.forget(self)
        self.in_flight.clear()
        self.retries.clear()
        self.deferred.clear()  # an alarm may keep the channel alive for as long as the longest delay
        self.burials.clear()
        if self.kept is not None:
            self.kept.clear()
            self._batch = None
        self.alarm = inf

    # The journal

    def record_progress(self, *, urgent: bool = False) -> None:
        """Tell the journal what was finished, and how far the cursor came, since the last call."""
        finished = self.in_flight.take_finished()
        if self._finished:
            finished = sorted(finished + self._finished)
            self._finished = []
        if self.kept is not None:
            for start, end in finished:
                self.kept.let_go(start, end)
        if finished or self.cursor != self._saved_cursor:
            self._saved_cursor = self.cursor
            flat = [sequence for bounds in finished for sequence in bounds]
            if self.kept is None:
                self._work.record(("progress", self.topic.name, self.name, self.cursor, flat), urgent=urgent)

    def _record_urgent(self, change: ChannelChange) -> None:
        # If the journal's cursor lagged behind a sequence that the journal is told about, its message would come
        # twice.
        self.record_progress()
        self._record(change)

    def _record(self, change: ChannelChange) -> None:
        if self.kept is None:
            self._work.record(change, urgent=True)

    def snapshot_changes(self) -> Iterator[Change]:
        """Return the changes that tell a new journal of this channel, as of this call, even if iterated later."""
        changes = self._snapshot_changes(
            self.cursor, self.paused_why or self.paused, self.skips.copy(), self._all_waiting()
        )
        return chain(changes, self.burials.snapshot_changes(self.topic.name, self.name))

    def _snapshot_changes(
        self, cursor: int, paused: bool | str, skips: SkipRanges, waiting: Iterator[tuple[int, int, int]]
    ) -> Iterator[Change]:
        topic, name = self.topic.name, self.name
        yield "channel", topic, name, cursor
        if paused:
            yield "hold", topic, name, paused
        for start, end in skips:
            yield "skip", topic, name, start, end
        entries: list[int] = []
        for sequence, attempts, due_ms in waiting:
            entries += (sequence, attempts, due_ms)
            if len(entries) >= 3 * _WAIT_ENTRIES_PER_CHANGE:
                yield "wait", topic, name, entries
                entries = []
        if entries:
            yield "wait", topic, name, entries

    def _all_waiting(self) -> Iterator[tuple[int, int, int]]:
        # Copies of packed integers: a million take some milliseconds, where yielding them takes half a second.
        at_once = chain(tuple(self.in_flight.positions()), self.retries.copy())
        return self._waiting(at_once, self.deferred.copy())

    def _waiting(
        self, at_once: Iterator[tuple[int, int]], later: Iterator[tuple[int, int, int]]
    ) -> Iterator[tuple[int, int, int]]:
        for sequence, attempts in at_once:
            yield sequence, attempts, 0
        wall_milliseconds = self._work.wall_milliseconds
        for due, sequence, attempts in later:
            yield sequence, attempts, wall_milliseconds(due)

    def restore(self, state: ChannelState, wall_ms_to_due: Callable[[int], int]) -> None:
        """Take over the state that recovery found, and free its memory. What was in flight is deliverable at once."""
        self.paused, self.paused_why = state.paused, state.paused_why
        for start, end in state.skips:
            self.skips.add(start, end)
        self.deferred.fill(self._restored(state.waiting, wall_ms_to_due))
        state.skips.clear()
        state.waiting.clear()
        self.burials.buried = state.buried
        if (job := recovered_job(state.job, self._work.now)) is not None:
            self.burials.begin(job)
            self._come_back(job.next_step)
        self._counted_from = self.topic.handed_over
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

    # Seen from outside

    def snapshot(self, *, clients: bool, ages_at: float | None = None) -> ChannelSnapshot:
        return ChannelSnapshot(
            channel_name=self.name,
            depth=self.depth,
            backend_depth=self.backend_depth,
            in_flight_count=len(self.in_flight),
            deferred_count=len(self.deferred),
            buried_count=len(self.burials.buried),
            message_count=self.message_count,
            zone_local_msg_count=self._taken[Closeness.SAME_ZONE],
            region_local_msg_count=self._taken[Closeness.SAME_REGION],
            global_msg_count=self._taken[Closeness.ELSEWHERE],
            requeue_count=self.requeue_count,
            timeout_count=self.timeout_count,
            client_count=len(self.consumers),
            clients=self._describe_clients(ages_at) if clients else None,
            paused=self.paused,
            e2e_processing_latency=self.latency.snapshot(self._work.now) if self.latency else NO_LATENCY,
            oldest_timestamp=self.oldest_timestamp() if ages_at is not None else None,
        )

    def _describe_clients(self, ages_at: float | None) -> list[ClientSnapshot]:
        described = [consumer.describe() for consumer in self.consumers]
        if ages_at is None:
            return described
        since = self.in_flight.held_since()  # looks at everything in flight, so it is done only where asked for
        return [
            replace(client, oldest_in_flight_ms=max(0, int((ages_at - since[consumer]) * 1000)))
            if consumer in since
            else client
            for consumer, client in zip(self.consumers, described, strict=True)
        ]


def microseconds(now: float) -> int:
    """Return the time in microseconds, rounded up, so that nothing is ever early."""
    return int(now * 1_000_000) + 1


def _places(batch: Batch, first: int, stop: int, attempts: int) -> list[tuple[int, int, int]]:
    """Return sequence, id and attempts of [first, stop)."""
    base = batch.base_id - batch.base_sequence
    return [(sequence, base + sequence, attempts) for sequence in range(first, stop)]


def _exhausted(attempts: int, how: str = "") -> str:
    """Return the reason for burying a message after its last attempt."""
    return f"{attempts} attempts" + (f", the last one {how}" if how else "")
