"""A channel: it delivers messages to consumers in fair shares, and takes their answers.

A channel is built in four layers, each a class of its own that inherits from the one above:

    Places      where each message is, and what the journal is told of it
    Operated    what operators do: pause, empty, seek, restore, redeliver, kick
    Ruled       what the policy does: messages expire, the channel stops itself
    Channel     consumers, deliveries, answers, time

They are one object, because a step from one to another would cost each message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from nsqcommon.wire.frames import LARGE
from nsqd.broker.buried import Note, note_of
from nsqd.broker.consumer import Locality
from nsqd.broker.in_flight import Delivery
from nsqd.broker.latency import LatencyWindow
from nsqd.broker.limits import drops
from nsqd.broker.rate_limiter import RateLimiter
from nsqd.broker.ruled import EXPIRED_AT_ONCE, Ruled, breaker_of, is_older, places_in
from nsqd.broker.rules import NO_CHANNEL_RULES, deletion_at
from nsqd.broker.snapshot import NO_LATENCY, ChannelSnapshot, ClientSnapshot

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.consumer import Consumer
    from nsqd.broker.feed import Feed
    from nsqd.broker.rules import ChannelRules
    from nsqd.broker.turn_context import TurnContext

_EXPIRY_GRAIN_OF_EACH: Final = 1e-6  # seconds for each message in flight, so that a pass takes a small part of the time
_DUE_AT_ONCE: Final = 5_000  # messages whose time has come, or was to come before somebody took them out
_DEFERRED_AT_ONCE: Final = 2_000  # past messages that are not due yet; each one is deferred by itself
_JUDGED_IN_TURN: Final = 1_500  # messages whose own times to live are looked at
_PASSED_IN_TURN: Final = 5_000  # entries of retries that were taken out
_PUT_OFF_MS: Final = 60_000  # until what the disk refuses to read is asked for again
_EXPIRY_GRAIN: Final = 0.005  # seconds; deadlines this close are handled together, so a pass is never for one message
NOT_ON_DISK: Final = b"channel is not on disk"


class Channel(Ruled):
    def __init__(
        self, name: str, topic: Feed, turn: TurnContext[Channel, Any], *, cursor: int, ephemeral: bool
    ) -> None:
        super().__init__(name, topic, turn, cursor=cursor, ephemeral=ephemeral)
        self.timeout_count = 0
        self.requeue_count = 0
        self.latency = LatencyWindow(turn.latency, turn.now) if turn.latency is not None else None
        self._taken = [0] * len(Locality)  # number of messages, by the consumer's closeness
        self._next_consumer = 0  # the position of the consumer that is served first
        self._judged = 0  # messages whose own times to live were looked at in one turn,
        self._judged_at = -inf  # which is this one
        self._passed_from = 0  # what the retries had passed when a turn began,
        self._passed_at = -inf  # which is this one
        self._retry_first = False  # alternates, for consumers that have room for one message only
        self._rate_limiter = rate_limiter_of(None, self.rules.max_rate, turn.now)
        self._dry_run_rate_limiter = rate_limiter_of(None, self.dry_run.max_rate, turn.now)

    def take_rules(self, rules: ChannelRules) -> None:
        """Follow these rules from now on."""
        self.rules, self.dry_run = rules.in_force(), rules.dry_run()
        self.is_ruled = rules is not NO_CHANNEL_RULES
        self.records_deliveries = self.records_deliveries or drops(self.rules)  # `bounds_changed` follows
        self._rate_limiter = rate_limiter_of(self._rate_limiter, self.rules.max_rate, self._turn.now)
        self._dry_run_rate_limiter = rate_limiter_of(self._dry_run_rate_limiter, self.dry_run.max_rate, self._turn.now)
        self._breaker = breaker_of(self._breaker, self.rules.breaker)
        self._dry_run_breaker = breaker_of(self._dry_run_breaker, self.dry_run.breaker)
        if self.rules.ttl is not None:
            self._wake_at(self._turn.now)
        self.schedule_delivery()

    # Consumers

    def join(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        consumer.has_joined = True

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer. Its messages in flight stay there until their deadlines, as in NSQ."""
        self.consumers.remove(consumer)
        consumer.has_joined = False
        self.idle_since = self._turn.now
        if self.ephemeral and not self.consumers:
            self.topic.delete_channel(self.name)

    # Delivering

    def distribute(self, now: float) -> None:
        """Give waiting messages to consumers with room, as far as the policy's rate allows."""
        if self.paused:
            return
        taken = self._distribute_paced(now) if self.is_ruled else self._distribute(self.depth, now)
        if taken and self.records_deliveries:
            self.record_progress(urgent=True)

    def _distribute_paced(self, now: float) -> int:
        pace, tried = self._rate_limiter, self._dry_run_rate_limiter
        allowed = self.depth if pace is None else min(self.depth, pace.allowed(now))
        taken = self._distribute(allowed, now)
        if tried is not None:
            within = min(taken, tried.allowed(now))
            tried.spend(within)
            self._count("max_rate, dry run", taken - within)
        if pace is not None:
            pace.spend(taken)
            if self.consumers and self.depth and not pace.allowed(now):
                self._wake_at(pace.next_at(now))
        return taken

    def _distribute(self, available: int, now: float) -> int:
        """Deliver up to so many messages in fair shares. Return how many were delivered."""
        wanted = available
        while available > 0:
            ready = [consumer for consumer in self.consumers if consumer.room > 0]
            if not ready:
                break
            if self._turn.prefers_near_consumers:  # consumers further away get what these leave
                nearest = max(consumer.locality for consumer in ready)
                ready = [consumer for consumer in ready if consumer.locality == nearest]
            self._next_consumer = (self._next_consumer + 1) % len(ready)
            ready = ready[self._next_consumer :] + ready[: self._next_consumer]
            before = available
            may_want_more = self._turn.prefers_near_consumers
            for position, consumer in enumerate(ready):
                room, share = consumer.room, -(-available // (len(ready) - position))
                taken = self._take(consumer, min(room, share), now)
                available -= taken
                if available <= 0:
                    break
                if taken != room or consumer.sample_rate:
                    may_want_more = True
            if available == before or not may_want_more:
                break  # either the log must read first (it calls `Broker.loaded` then), or nobody has room left
        return wanted - available

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
        if consumer.room > 0:
            taken += self._take_new(consumer, limit - taken, now)
        return taken + self._take_retries(consumer, limit - taken, now)

    def _take_new(self, consumer: Consumer, limit: int, now: float) -> int:
        """Give up to `limit` messages that were never delivered to a consumer that has room for some."""
        source, end = self._source, self.topic.high_watermark
        ttl = self.rules.ttl if self.is_ruled else None
        taken = deferred = expired = 0
        while taken < limit:
            cursor, batch = self.cursor, self._batch
            # Within the batch in hand, a channel on disk meets no gap: the log keeps what the channel needs, and there
            # are no skip ranges.
            if (
                batch is None
                or self.ephemeral_batches is not None
                or self.skips.total
                or not batch.base_sequence <= cursor < batch.base_sequence + batch.count
            ):
                cursor = self._advance_over_gaps()
            if cursor >= end:
                break
            if ttl is not None and self._pass_expired(ttl):
                expired += 1
                if expired < EXPIRED_AT_ONCE:
                    continue
                self._wake_at(now)
                break
            batch = self._batch
            if batch is None or not batch.base_sequence <= cursor < batch.base_sequence + batch.count:
                batch = self._batch = source.batch_at(cursor)
                if batch is None:
                    if self._put_off_new(cursor, end):
                        self._wake_at(now)
                    break
                if ttl is not None:
                    continue  # the disk had nothing a moment ago, so the batch may have expired
            stop = batch_end = batch.base_sequence + batch.count
            if end < stop:
                stop = end
            if self.skips.total and (next_skip := self.skips.next_start()) is not None:
                stop = min(stop, next_skip)
            if batch.delay_ms and (due_ms := self._turn.due_ms(batch)) is not None:
                self.cursor = stop
                self._defer_again(cursor, stop, due_ms)
                deferred += stop - cursor
                if deferred < _DEFERRED_AT_ONCE:
                    continue
                self._wake_at(now)
                break
            if batch.headers and batch.may_expire:
                if self._judged >= _JUDGED_IN_TURN and self._judged_at == now:
                    self._wake_at(now)
                    break
                stop, is_over = batch.expired_run(cursor, stop, self._turn.timestamp)
                self._judged = stop - cursor + (self._judged if self._judged_at == now else 0)
                self._judged_at = now
                if is_over:
                    self.cursor = stop
                    self._expire(batch, cursor, stop, "its nsq-ttl")
                    expired += 1
                    if expired < EXPIRED_AT_ONCE:
                        continue
                    self._wake_at(now)
                    break
            if cursor + limit - taken < stop:
                stop = cursor + limit - taken
            self.cursor = stop
            if stop == batch_end:
                self._batch = None
            taken += stop - cursor
            if (
                self.is_ruled
                and self.dry_run.ttl is not None
                and is_older(batch, self._turn.timestamp - self.dry_run.ttl)
            ):
                self._count("ttl, dry run", stop - cursor)
            self._give(consumer, batch, cursor, stop, 1, now, retry=False)
            if taken < limit and consumer.room <= 0:
                break
        if taken:
            self._turn.changed[self] = None
        return taken

    def _take_retries(self, consumer: Consumer, limit: int, now: float) -> int:
        source = self._source
        taken = 0
        if self._passed_at != now:
            self._passed_from, self._passed_at = self.retries.passed, now
        while taken < limit and self.retries and consumer.room > 0:
            if self.retries.passed - self._passed_from >= _PASSED_IN_TURN:
                self._wake_at(now)
                break
            sequence, _ = self.retries.peek()
            if source.next_readable(sequence) != sequence:
                self.retries.pop_run(1, sequence + 1)
                self._finished.append((sequence, sequence + 1))
                continue
            batch = source.batch_at(sequence)
            if batch is None:
                if self._put_off_retries():
                    self._wake_at(now)
                break
            first, stop, attempts = self.retries.pop_run(limit - taken, batch.end_sequence)
            if self._is_last(attempts):  # it had failed so often before the rule was made, or while nsqd was down
                self._bury(places_in(batch, first, stop, attempts), Note(_exhausted(attempts), ""))
                continue
            attempts = attempts + 1 & 0xFFFF
            self._give(consumer, batch, first, stop, attempts, now, retry=True)
            taken += stop - first
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
        due = self._turn.due_from_wall(due_ms)
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
        return self._turn.timestamp // 1_000_000 + _PUT_OFF_MS

    def _defer_again(self, start: int, end: int, due_ms: int) -> None:
        """Defer messages at the cursor until `due_ms`.

        If they are not due yet, that is their publication plus their delay, never earlier. The cursor meets such
        messages only after it has gone back; otherwise they are in skip ranges, which `defer` has made. Messages that
        the disk refuses to read are deferred here as well.
        """
        due = self._turn.due_from_wall(due_ms)
        entries: list[int] = []
        for sequence in range(start, end):
            self.deferred.add(due, sequence, 0)
            entries += (sequence, 0, due_ms)
        self._record_urgent(("wait", self.topic.name, self.name, entries))
        self._set_alarm()

    def _give(
        self, consumer: Consumer, batch: Batch, first: int, stop: int, attempts: int, now: float, *, retry: bool
    ) -> None:
        """Deliver [first, stop). If the consumer samples, deliver (rate + 1) % and finish the rest, as in NSQ."""
        if (
            retry or self.ephemeral_batches is not None or first >= self.topic.log.cached_from
        ):  # NSQ counts only what was in memory
            self._taken[consumer.locality] += stop - first
        if not consumer.sample_rate:
            self._deliver(consumer, batch, first, stop, attempts, now, retry=retry)
            return
        keep_from = first
        for sequence in range(first, stop):
            if self._turn.random_percent() > consumer.sample_rate:
                if keep_from < sequence:
                    self._deliver(consumer, batch, keep_from, sequence, attempts, now, retry=retry)
                self._finished.append((sequence, sequence + 1))
                keep_from = sequence + 1
        if keep_from < stop:
            self._deliver(consumer, batch, keep_from, stop, attempts, now, retry=retry)
        self._turn.changed[self] = None

    def _deliver(
        self, consumer: Consumer, batch: Batch, first: int, stop: int, attempts: int, now: float, *, retry: bool
    ) -> None:
        if retry:
            self._record_urgent(("try", self.topic.name, self.name, attempts, list(range(first, stop))))
        count = stop - first
        offset = batch.base_sequence - batch.base_id
        ids = (b"%016x" % (first - offset),) if count == 1 else batch.ids(first, stop)
        if self.is_ruled:
            self._note_deliveries(count, now)
        deadline = now + consumer.msg_timeout
        delivery = Delivery(consumer, first, count, offset, attempts, now, deadline, batch.timestamp)
        in_flight = self.in_flight
        in_flight.add(ids, delivery)
        if self.ephemeral_batches is not None:
            self.ephemeral_batches.hand_out(first, stop)
        if in_flight.next_deadline < self.alarm:
            self._set_alarm()
        consumer.in_flight += count
        consumer.message_count += count
        size = batch.frames_size(first, stop)
        consumer.unsent_bytes += size
        if batch.headers and consumer.takes_headers:
            consumer.unsent_bytes += batch.headers_size(first, stop)
            consumer.send(batch.frames_with_headers(first, stop, attempts, ids))
        elif size >= count * LARGE and (send_views := consumer.send_views) is not None:
            send_views(batch.frames_of_views(first, stop, attempts, ids))
        else:
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
            self._turn.changed[self] = None
            self._turn.to_deliver[self] = None
        return failures

    def _measure(self, latency: LatencyWindow, consumer: Consumer, ids: Sequence[bytes]) -> None:
        turn = self._turn
        for message_id in dict.fromkeys(ids):
            delivery = self.in_flight.find(consumer, message_id)
            if isinstance(delivery, Delivery):
                latency.add(turn.timestamp - delivery.published_at, turn.now)

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
        if self.ephemeral_batches is not None:
            self.ephemeral_batches.take_back(sequence, sequence + 1)
        if counts and self._is_last(attempts):
            note = _note_by(_exhausted(attempts, "requeued"), consumer)
            self._bury([(sequence, int(message_id, 16), attempts)], note)
        elif counts:
            self._wait(sequence, attempts, max(delay_ms, self._delay_after(attempts)), now)
        else:
            self._wait(sequence, attempts - 1, delay_ms, now)
        consumer.in_flight -= 1
        consumer.requeue_count += 1
        self.requeue_count += 1
        self.schedule_delivery()
        return None

    def _delay_after(self, attempts: int) -> int:
        """Return the milliseconds that a message has to wait at least, after this attempt has failed."""
        if (most := self.dry_run.max_attempts) is not None and attempts == most:
            self._count("max_attempts, dry run", 1)
        if self.dry_run.backoff is not None:
            self._count("backoff, dry run", 1)
        backoff = self.rules.backoff
        if backoff is None:
            return 0
        return backoff.delay_ms(attempts, self._turn.random_percent() if backoff.jitter else 0)

    def _wait(self, sequence: int, attempts: int, delay_ms: int, now: float) -> None:
        if delay_ms == 0:
            self._record_urgent(("wait", self.topic.name, self.name, [sequence, attempts, 0]))
            self.retries.add(sequence, attempts)
            return
        due_ms = self._turn.timestamp // 1_000_000 + delay_ms + 1
        self._record_urgent(("wait", self.topic.name, self.name, [sequence, attempts, due_ms]))
        self.deferred.add(microseconds(now) + delay_ms * 1000, sequence, attempts)
        self._set_alarm()

    def bury(self, consumer: Consumer, message_id: bytes, reason: str, now: float) -> bytes | None:
        """Bury a message of this consumer. Return why that failed, or None."""
        if self.ephemeral_batches is not None:
            return NOT_ON_DISK
        delivery = self.in_flight.take_out(consumer, message_id)
        if not isinstance(delivery, Delivery):
            return delivery
        place = delivery.sequence_of(message_id), int(message_id, 16), delivery.attempts
        self._bury([place], _note_by(reason, consumer))
        consumer.in_flight -= 1
        self.schedule_delivery()
        return None

    def touch(self, consumer: Consumer, message_id: bytes, *, msg_timeout: float, now: float) -> bytes | None:
        """Give a message more time. Return why that failed, or None. At the maximum it succeeds but gives no more."""
        delivery = self.in_flight.find(consumer, message_id)
        if not isinstance(delivery, Delivery):
            return delivery
        deadline = min(now + msg_timeout, delivery.delivered_at + self._turn.max_msg_timeout)
        failure = self.in_flight.touch(consumer, message_id, deadline)
        self._set_alarm()
        return failure

    # Time

    def expire(self, now: float) -> None:
        """Move messages that are overdue or due to the retries, and ask to be called again in time."""
        exhausted: dict[tuple[Consumer, int], list[tuple[int, int, int]]] = {}
        later: list[int] = []
        for sequence, delivery in self.in_flight.expire(now):
            self.timeout_count += 1
            delivery.consumer.in_flight -= 1
            if self.ephemeral_batches is not None:
                self.ephemeral_batches.take_back(sequence, sequence + 1)
            if self._is_last(delivery.attempts):
                place = sequence, sequence - delivery.offset, delivery.attempts
                exhausted.setdefault((delivery.consumer, delivery.attempts), []).append(place)
            elif delay_ms := self._delay_after(delivery.attempts):
                self.deferred.add(microseconds(now) + delay_ms * 1000, sequence, delivery.attempts)
                later += (sequence, delivery.attempts, self._turn.timestamp // 1_000_000 + delay_ms + 1)
            else:
                self.retries.add(sequence, delivery.attempts)
        if later:
            self._record_urgent(("wait", self.topic.name, self.name, later))
        for (consumer, attempts), places in exhausted.items():
            self._bury(places, _note_by(_exhausted(attempts, "timed out"), consumer))
        self._unpack(_DUE_AT_ONCE)
        until = int(now * 1_000_000)
        for sequence, attempts in self.deferred.pop_due(until, _DUE_AT_ONCE):
            self.retries.add(sequence, attempts)
        self.alarm = inf
        self._set_alarm(not_before=now + _EXPIRY_GRAIN + len(self.in_flight) * _EXPIRY_GRAIN_OF_EACH)
        if (
            self.in_flight.is_looking
            or self.deferred.has_runs
            or ((due := self.deferred.next_due()) is not None and due <= until)
        ):
            self._wake_at(now)
        self._work_on_job(now)
        self.look_for_expired(now)
        if self.is_behind:
            self.go_on_dropping()
        elif drops(self.rules):
            self.apply_limits()
        if self.consumers:
            self.schedule_delivery()

    # The end

    def close(self) -> None:
        """End every consumer's connection without a word, because the channel is being deleted."""
        consumers, self.consumers = self.consumers, []
        for consumer in consumers:
            consumer.has_joined = False
            consumer.close()
        self._turn.forget(self)
        self.in_flight.clear()
        self.retries.clear()
        self.deferred.clear()  # an alarm may keep the channel alive for as long as the longest delay
        self.buried_queue.clear()
        if self.ephemeral_batches is not None:
            self.ephemeral_batches.clear()
            self._batch = None
        self.alarm = inf

    # Seen from outside

    def snapshots(self, *, clients: bool, ages_at: float | None = None) -> Iterator[ChannelSnapshot | None]:
        """Yield the figures, and before them None where a turn may end."""
        since: dict[Consumer, float] = {}
        if clients and ages_at is not None:
            # This may look at everything in flight, so it is done only where asked for.
            for _ in self.in_flight.find_oldest({it for it in self.consumers if it.in_flight}, since):
                yield None
        yield self._snapshot(since, clients=clients, ages_at=ages_at)

    def _snapshot(self, since: Mapping[Consumer, float], *, clients: bool, ages_at: float | None) -> ChannelSnapshot:
        return ChannelSnapshot(
            channel_name=self.name,
            depth=self.depth,
            backend_depth=self.backend_depth,
            in_flight_count=len(self.in_flight),
            deferred_count=len(self.deferred),
            buried_count=len(self.buried_queue.buried),
            bury_count=self.buried_queue.bury_count,
            kick_count=self.buried_queue.kick_count,
            discard_count=self.buried_queue.discard_count,
            paused_why=self.paused_why,
            policy_counts=dict(self.policy_counts),
            message_count=self.message_count,
            zone_local_msg_count=self._taken[Locality.SAME_ZONE],
            region_local_msg_count=self._taken[Locality.SAME_REGION],
            global_msg_count=self._taken[Locality.ELSEWHERE],
            requeue_count=self.requeue_count,
            timeout_count=self.timeout_count,
            client_count=len(self.consumers),
            clients=self._describe_clients(since, ages_at) if clients else None,
            paused=self.paused,
            e2e_processing_latency=self.latency.snapshot(self._turn.now) if self.latency else NO_LATENCY,
            oldest_timestamp=self.oldest_timestamp() if ages_at is not None else None,
            expires_at=self._expires_at() if ages_at is not None else None,
        )

    def _expires_at(self) -> int | None:
        if self.consumers:
            return None
        return deletion_at(
            self.rules, self.idle_since, is_empty=self.is_empty, now=self._turn.now, at=self._turn.timestamp
        )

    def _describe_clients(self, since: Mapping[Consumer, float], ages_at: float | None) -> list[ClientSnapshot]:
        described = [consumer.describe() for consumer in self.consumers]
        if ages_at is None:
            return described
        return [
            replace(client, oldest_in_flight_ms=max(0, int((ages_at - since[consumer]) * 1000)))
            if consumer in since
            else client
            for consumer, client in zip(self.consumers, described, strict=True)
        ]


def rate_limiter_of(former: RateLimiter | None, rate: float | None, now: float) -> RateLimiter | None:
    """Return what holds deliveries to this rate. The same rate goes on as it was, so that a new file is no new burst."""
    if rate is None:
        return None
    return former if former is not None and former.rate == rate else RateLimiter(rate, now)


def microseconds(now: float) -> int:
    """Return the time in microseconds, rounded up, so that nothing is ever early."""
    return int(now * 1_000_000) + 1


def _exhausted(attempts: int, how: str = "") -> str:
    """Return the reason for burying a message after its last attempt."""
    return f"{attempts} attempts" + (f", the last one {how}" if how else "")


def _note_by(reason: str, consumer: Consumer) -> Note:
    return note_of(reason, consumer.describe().client_id)
