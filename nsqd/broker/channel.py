"""A channel: delivers messages to consumers in fair shares, handles their answers, and applies the policy.

The channel decides, and its ledger keeps track of each message (ledger.py). A channel has

    ledger          where each message is, including `in_flight`: which consumer has it, and until when
    policy          the rules in force; `dry_run` has the rules that are only counted (policy.py)
    buried_queue    the buried messages, and the job that kicks or discards them
    groups          which message comes next, if the policy has rules about groups (groups.py)
    consumers       the subscriptions that it delivers to

operator_actions.py has the other operations, such as emptying or moving a channel.

**How messages expire.** Messages have no timers for their time to live. We check it at the cursor: for a whole segment
if all of its messages are too old, otherwise batch by batch. The channel's alarm does this too, so messages also expire
if there are no consumers. A message with a shorter time in its `nsq-ttl` header expires when we would deliver it.

**How limits work.** If too many messages wait, we drop or bury the oldest, starting at the cursor. If the retries and
deferred messages alone fill the limit, new messages are dropped or buried as they arrive.

Held messages (groups.py) are older than the ones at the cursor, so both begin with them.

Messages that were delivered before, are deferred, or were given back by an operator don't expire and aren't dropped,
because someone still wants them.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from nsqcommon.wire.frames import LARGE
from nsqcommon.wire.log_record import COPY
from nsqd.broker.bitmaps import bitmap_of, number_of_ranges
from nsqd.broker.buried import Note, note_of
from nsqd.broker.buried_queue import BuriedQueue
from nsqd.broker.consumer import Locality, Touches
from nsqd.broker.groups import Groups
from nsqd.broker.in_flight import Delivery
from nsqd.broker.latency import LatencyWindow
from nsqd.broker.ledger import Ledger
from nsqd.broker.limits import MOST_LOOKS, count_cause
from nsqd.broker.policy import NO_DRY_RUN, dry_run_of, duration_text, policy_of, usage_of
from nsqd.broker.rules import NO_CHANNEL_RULES, deletion_at

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from nsqd.broker.batch import Batch
    from nsqd.broker.change import Change
    from nsqd.broker.consumer import Consumer
    from nsqd.broker.early_deferrals import EarlyDeferrals
    from nsqd.broker.feed import TopicFeed
    from nsqd.broker.journal_replay import ChannelState
    from nsqd.broker.limits import Usage
    from nsqd.broker.rules import ChannelRules
    from nsqd.broker.turn_context import TurnContext

_EXPIRY_GRAIN_OF_EACH: Final = 1e-6  # seconds per message in flight, so that `expire` doesn't run all the time
_DUE_AT_ONCE: Final = 5_000  # due messages, and stale entries of messages that were taken out
_DEFERRED_AT_ONCE: Final = 2_000  # messages to defer at the cursor: not due yet, or unreadable
_UNPACKED_AT_ONCE: Final = 500  # messages of deferred batches that get their entries on release
_UNPACKED_IN_TURN: Final = 5_000  # such messages, over all channels; takes some milliseconds
_TTL_CHECKS_IN_TURN: Final = 1_500  # messages whose `nsq-ttl` we check
_PASSED_IN_TURN: Final = 5_000  # stale entries in the retry queue
_PUT_OFF_MS: Final = 60_000  # before we try again to read messages that the disk has refused
_EXPIRY_GRAIN: Final = 0.005  # seconds; deadlines this close share a run of `expire`
_EXPIRED_AT_ONCE: Final = 200  # batches; after some milliseconds, other work may run
# Messages of old segments to pass after the start of the next skip range. Up to there we pass any number in one step,
# but from there on, there may be as many ranges as messages.
_PASSED_AT_ONCE: Final = 50
_BURIED_AT_ONCE: Final = 2_000  # messages over a limit
_DROPPED_IN_TURN: Final = 1_000  # ranges that limits drop, over all channels; takes some milliseconds
_SAMPLED_AT_ONCE: Final = 200  # more deliveries, because sampling consumers have left places in groups free
# While not all new messages are in the queues of their groups, for fair shares. Most of a turn then is for sorting them:
# otherwise fast consumers would get what was just sorted, and that may be of a single group.
_DELIVERED_WHILE_SORTING: Final = 500
_HELD_AT_ONCE: Final = 2_000  # held messages to look at, while there are ranges left to drop
_HELD_OF_A_RANGE: Final = 100  # neighbours that are held; to drop them takes as long as a range
_MISSES: Final = 20  # groups whose next message isn't in memory; then other work may run
_PAUSE_TO_LOAD: Final = 0.005  # seconds; by then the batch has probably been read
_OVERFLOWN: Final = Note("more waited than the channel may hold (overflow)", "")
_NOT_ASKED: Final = -1  # milliseconds: the consumer has asked for no delay
NOT_ON_DISK: Final = b"channel is not on disk"

_number_of: Final = attrgetter("number")


class TopicOfChannel(Protocol):
    """The topic as channels and operator_actions.py see it. For rare calls only: mypyc looks up its methods by name."""

    def apply_retention(self) -> None:
        """Allow the log to remove messages that no channel needs any more."""

    def rewind_to(self, sequence: int) -> None:
        """Make the log keep the messages from `sequence` on, because a channel needs them again.

        Call this before the log can remove anything else.
        """

    def drop_beyond_limits(self, arrived: int | None = None) -> None:
        """Drop the oldest messages that exceed a limit of a channel or of the topic.

        `arrived` is the first sequence of the messages that were just released to the channels.
        """

    def passed_over(self) -> BitMap64:
        """Return the messages after H that no cursor will come to: cancelled ones and edited copies."""

    def delete_channel(self, name: str) -> bool:
        """Delete a channel. Return False if it is unknown.

        An ephemeral channel calls this when its last consumer leaves.
        """


class LongRecall(Protocol):
    """A request that cancels or reschedules messages in several slices, for listing and stopping it.

    It names messages (cancel_and_reschedule.py) or a group (group_actions.py).
    """

    count: int  # of its messages
    done: int
    who: str
    started_at: int  # wall clock, milliseconds
    is_stopped: bool

    @property
    def verb(self) -> str: ...

    def stop(self) -> None: ...


@final
class Channel:
    # With more than 30 attributes and without this, CPython reads each of them more slowly: 2 % of a FIN.
    __slots__ = (
        "_full_from",
        "_joined",
        "_next_consumer",
        "_passed_at",
        "_passed_from",
        "_retry_first",
        "_started_with",
        "_ttl_checked",
        "_ttl_checked_at",
        "alarm",
        "buried_queue",
        "consumers",
        "dry_run",
        "ephemeral",
        "feed",
        "groups",
        "idle_since",
        "in_flight",
        "is_behind",
        "is_ruled",
        "latency",
        "ledger",
        "name",
        "paused",
        "paused_why",
        "policy",
        "policy_counts",
        "recalls",
        "records_deliveries",
        "requeue_count",
        "taken_by_locality",
        "timeout_count",
        "topic",
        "turn",
    )

    def __init__(
        self,
        name: str,
        topic: TopicOfChannel,
        feed: TopicFeed,
        turn: TurnContext[Channel, Any],
        *,
        cursor: int,
        ephemeral: bool,
    ) -> None:
        self.name = name
        self.topic = topic
        self.feed = feed
        self.ephemeral = ephemeral
        self.paused = False
        self.paused_why = ""  # the reason, if the channel has paused itself
        self.ledger = Ledger(name, feed, turn.journal, turn.reclaimer, cursor=cursor, ephemeral=ephemeral)
        self.in_flight = self.ledger.in_flight
        self.buried_queue = BuriedQueue(self.ledger, turn)
        self.recalls: list[LongRecall] = []  # running
        self.consumers: list[Consumer] = []
        self.idle_since = turn.now  # when the last consumer left
        self.alarm = inf  # the time of the next `expire`, as in the turn's alarms
        self.turn = turn
        self._joined = 0  # how many consumers have joined so far
        self._next_consumer = 0  # where the last delivery started among the consumers with room; it rotates
        self._started_with = 0  # the number of the consumer that was first; with `max_in_flight`, this one rotates
        self._retry_first = False  # alternates for consumers with room for only one message
        self._ttl_checked = 0  # messages whose `nsq-ttl` was checked in the turn of `_ttl_checked_at`
        self._ttl_checked_at = -inf
        self._passed_from = 0  # `retries.passed` at the first delivery in the turn of `_passed_at`
        self._passed_at = -inf
        # The policy
        rules = turn.rules.channel(feed.name, name)
        self.policy_counts: dict[str, int] = {}  # by cause: how often rules have acted, or would have
        self.policy = policy_of(rules.in_force(), turn.now)
        self.dry_run = dry_run_of(rules.dry_run(), self.policy_counts, turn.now)
        self.is_ruled = rules is not NO_CHANNEL_RULES  # so that a delivery without rules checks one flag only
        self.groups: Groups | None = None  # None: the policy has no rules about groups
        # Whether first deliveries are recorded in the journal immediately. They have to be if a limit drops messages:
        # otherwise a crash would make delivered messages new again, and the limit could drop them.
        self.records_deliveries = False
        self.is_behind = False  # a later turn has to drop more messages because of a limit
        self._full_from: int | None = None  # while it is: the first sequence of the new messages that had no room
        # Figures
        self.timeout_count = 0
        self.requeue_count = 0
        self.latency = LatencyWindow(turn.latency, turn.now) if turn.latency is not None else None
        self.taken_by_locality = [0] * len(Locality)  # number of messages by the consumer's locality
        self.renew_groups()

    @property
    def depth(self) -> int:
        """How many messages are ready for delivery."""
        return self.ledger.depth

    @property
    def is_empty(self) -> bool:
        """Whether the channel has no messages at all, not even deferred, buried or in flight."""
        return self.ledger.is_empty

    @property
    def held_count(self) -> int | None:
        """How many messages of the depth are held because of their groups. None: the policy has no rules about groups."""
        held = self.ledger.held.total
        return held if held or self.groups is not None else None

    @property
    def group_count(self) -> int | None:
        """How many groups have messages that are held, wait again or are in flight. None: as in `held_count`."""
        return len(self.groups) if self.groups is not None else None

    # Consumers

    def join(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        consumer.has_joined = True
        self._joined += 1
        consumer.number = self._joined

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer. Its messages in flight stay there until their deadlines, as in NSQ."""
        self.consumers.remove(consumer)
        consumer.has_joined = False
        self.idle_since = self.turn.now
        if self.ephemeral and not self.consumers:
            self.topic.delete_channel(self.name)

    # Pausing

    def pause(self) -> None:
        self._hold(True)

    def unpause(self) -> None:
        self.policy.reset_breaker()
        self._hold(False)
        self.schedule_delivery()

    def _hold(self, paused: bool | str) -> None:
        """Pause or unpause. A string pauses, too, and is the reason for an automatic pause."""
        self.paused, self.paused_why = bool(paused), paused if isinstance(paused, str) else ""
        self.ledger.tell(("hold", self.feed.name, self.name, paused))
        self.turn.shape_unsaved = True  # topology.json records pauses as well; nsqlookupd doesn't

    # New messages from the topic

    def keep(self, batches: Iterable[Batch]) -> None:
        """Keep batches that are about to be released to this ephemeral channel, because the log doesn't keep them."""
        self.ledger.keep(batches, self.turn.mem_queue_size, self.turn.mem_queue_bytes)

    def take_new(self, before: int, batch: Batch | None = None) -> None:
        """Schedule the delivery of the messages from `before` on, which now belong to the channel.

        `batch` is the first batch, if the topic has it in memory.
        """
        if self.ledger.ephemeral_batches is not None:
            self.turn.overflowing.setdefault(self, before)
        if self.consumers:
            self.turn.to_deliver[self] = None
            if batch is not None and self.ledger.offer(batch):
                self.turn.offered.append((self.ledger, batch))
        if self.is_ruled and self.policy.ttl is not None:
            self.wake_at(self.turn.now + self.policy.rules.expiry_pause)

    def drop_overflow(self, before: int) -> None:
        """Drop this turn's newest messages if neither consumers nor memory have room. Called at the turn's end."""
        self.ledger.drop_overflow(before, self.turn.mem_queue_size, self.turn.mem_queue_bytes)

    def defer(self, start: int, count: int, due: int) -> None:
        """Defer the messages of a new batch until `due` (monotonic microseconds), as many as the channel has room for.

        Limits never drop deferred messages later, so we apply them now: the rest is dropped or buried.
        """
        fits = count
        if self.is_ruled:
            self.dry_run.deferred(count, self.ledger)
            if (room := self.room()) is not None:
                fits = min(count, room)
        self.ledger.defer(start, fits, due)
        if fits < count:
            self._turn_away(start, start + fits, start + count, due)
        if self.ledger.deferred.has_runs:
            self.wake_at(self.turn.now)  # `expire` unpacks them
        self.set_alarm()

    def _turn_away(self, base: int, start: int, end: int, due: int) -> None:
        """Drop or bury the messages [start, end) of the deferred batch at `base`, because there is no room for them."""
        batch = self.ledger.batch_of(base) if self._buries else None
        # Burying needs the ids, which are in the batch. If it isn't in memory any more, defer the messages after all.
        if self._buries and batch is None:
            self.ledger.defer(start, end - start, due)
            return
        self.ledger.skip_unrecorded(start, end)
        if batch is None:
            self.ledger.finish_unseen(start, end)
            self._count("full, dropped", end - start)
        else:
            self._bury(places_in(batch, start, end, 0), _OVERFLOWN, has_failed=False)
            self._count("overflow, buried", end - start)

    def take_early_deferrals(self, early: EarlyDeferrals, at: int) -> None:
        """Take over the topic's early deferrals. Their delays begin at `at` (monotonic microseconds)."""
        self.ledger.take_early_deferrals(early, at)
        if self.ledger.deferred.has_runs:
            self._unpack(_UNPACKED_AT_ONCE)
            if self.ledger.deferred.has_runs:
                self.wake_at(self.turn.now)  # `expire` unpacks the rest
            self.set_alarm()

    def _unpack(self, most: int) -> None:
        """Create entries for up to `most` messages of deferred batches, within the turn's limit for all channels."""
        turn = self.turn
        unpacked = self.ledger.deferred.unpack(min(most, _UNPACKED_IN_TURN - turn.unpacked))
        turn.unpacked += unpacked
        if unpacked > _UNPACKED_AT_ONCE:
            gc.collect(1)  # otherwise, after a second of such turns, one collection has to visit a million entries

    # Delivering

    def schedule_delivery(self) -> None:
        """Schedule a delivery attempt for the end of this turn."""
        self.turn.to_deliver[self] = None

    def distribute(self, now: float) -> None:
        """Deliver waiting messages to consumers with room, as fast and as many as the policy allows."""
        if self.paused:
            if self.is_ruled:
                self.policy.note_in_flight(len(self.in_flight), self.turn.timestamp)
            return
        taken = self._distribute_ruled(now) if self.is_ruled else self._distribute(self.ledger.depth_without_held, now)
        if taken and self.records_deliveries:
            self.ledger.record_progress(urgent=True)

    def _distribute_ruled(self, now: float) -> int:
        policy, before = self.policy, len(self.in_flight)
        if self.groups is not None:
            taken = self._distribute_to_groups(self.groups, now)
        elif policy.max_in_flight:
            taken = self._fill_places(now)
        else:
            taken = self._distribute(policy.allowed(self.ledger.depth, now), now)
            policy.spend(taken)
        if policy.max_in_flight:
            policy.note_in_flight(len(self.in_flight), self.turn.timestamp)
        if self.dry_run is not NO_DRY_RUN:
            self.dry_run.delivered(taken, now)
            self.dry_run.put_in_flight(len(self.in_flight) - before, len(self.in_flight))
        if self.consumers and self.ledger.depth and (later := policy.next_delivery(now)) is not None:
            self.wake_at(later)
        return taken

    def _fill_places(self, now: float) -> int:
        """Deliver as many messages as `max_in_flight` allows. Return how many were taken."""
        taken = 0
        while available := self._allowed(self.ledger.depth, now):
            more = self._distribute(available, now)
            self.policy.spend(more)
            taken += more
            if more < available:
                break  # no consumer has room, or the log is reading
            # Consumers that sample finish most messages unseen. So even if we took as many as there were places, some
            # of these may still be free, and no answer would make us look again.
        return taken

    def _distribute_to_groups(self, groups: Groups, now: float) -> int:
        """Deliver messages that their groups may have, as many as `max_in_flight` allows. Return how many were taken."""
        available, taken = self._prepare_groups(groups, now), 0
        for _ in range(_SAMPLED_AT_ONCE):
            groups.gave_up_places = False
            more = self._distribute(self._allowed(available, now), now)
            self.policy.spend(more)
            taken += more
            if not groups.gave_up_places:
                break
            available = groups.available  # consumers that sample have finished messages unseen, as in `_fill_places`
        else:
            self.wake_at(now)
        if groups.full_since is not None:
            groups.note_whether_full()
        return taken

    def _allowed(self, wanted: int, now: float) -> int:
        """Return how many of `wanted` messages the policy's rate and `max_in_flight` allow now."""
        policy = self.policy
        if policy.max_in_flight:
            wanted = min(wanted, policy.places(len(self.in_flight)))
        return policy.allowed(wanted, now)

    def _distribute(self, available: int, now: float) -> int:
        """Deliver up to `available` messages in fair shares. Return how many were delivered.

        For example, 10 messages wait, and three consumers have room for 1, 9 and 9. The first one gets 1, because it
        can't take its share of 4. The second one gets 5, which is half of the 9 left, and the third one gets 4.

        With `max_in_flight`, consumers with room wait for a free place. It goes to the next one in the order of joining,
        and not to the next one of those with room. For example, if three consumers with RDY 1 share two places, two of
        them have room whenever a place is free, and in a rotation of two it could be the same one's turn each time.
        """
        wanted = available
        while available > 0:
            ready = [consumer for consumer in self.consumers if consumer.room > 0]
            if not ready:
                break
            if self.turn.prefers_near_consumers:  # consumers further away get the rest
                nearest = max(consumer.locality for consumer in ready)
                ready = [consumer for consumer in ready if consumer.locality == nearest]
            if self.policy.max_in_flight:
                start = bisect_right(ready, self._started_with, key=_number_of) % len(ready)
            else:
                start = self._next_consumer = (self._next_consumer + 1) % len(ready)
            ready = ready[start:] + ready[:start]
            before = available
            may_want_more = self.turn.prefers_near_consumers
            for position, consumer in enumerate(ready):
                room, share = consumer.room, -(-available // (len(ready) - position))
                if self.ledger.retries.members.count or (self.is_ruled and self.held_count is not None):
                    taken = self._take_both(consumer, min(room, share), now)
                else:
                    taken = self._take_new(consumer, min(room, share), now)
                available -= taken
                if available <= 0:
                    break
                # It may still have room: it only got its share, or sampling finished messages without delivering them.
                if taken != room or consumer.sample_rate:
                    may_want_more = True
            if available == before:
                break  # no consumer has room, or the log is reading; then it calls `Broker.loaded`, and we continue
            self._started_with = ready[0].number
            if not may_want_more:
                break
        return wanted - available

    def _take_both(self, consumer: Consumer, limit: int, now: float) -> int:
        """Deliver up to `limit` messages to one consumer: half retries and half new ones, so that neither starves.

        With groups, half comes from the groups that have something waiting.
        """
        if limit == 1:
            self._retry_first = not self._retry_first
            if self._retry_first and (taken := self._take_waiting(consumer, 1, now)):
                return taken
            return self._take_undelivered(consumer, 1, now) or self._take_waiting(consumer, 1, now)
        taken = self._take_waiting(consumer, limit - limit // 2, now)
        if consumer.room > 0:
            taken += self._take_undelivered(consumer, limit - taken, now)
        return taken + self._take_waiting(consumer, limit - taken, now)

    def _take_waiting(self, consumer: Consumer, limit: int, now: float) -> int:
        if self.groups is None:
            return self._take_retries(consumer, limit, now)
        return self._take_from_groups(self.groups, consumer, limit, now)

    def _take_undelivered(self, consumer: Consumer, limit: int, now: float) -> int:
        """Deliver up to `limit` new messages. Held ones come first, unless they are in the queue of their group."""
        taken = 0
        if self.ledger.held.total and (self.groups is None or self.groups.unsorted):
            taken = self._take_held(consumer, limit, now)
            is_done = not (self.ledger.held.total if self.groups is None else self.groups.unsorted)
            if not is_done or taken >= limit or consumer.room <= 0:
                return taken
        return taken + self._take_new(consumer, limit - taken, now)

    def _take_new(self, consumer: Consumer, limit: int, now: float) -> int:
        """Deliver up to `limit` new messages to a consumer that has room. Return how many it took from the cursor."""
        ledger, end = self.ledger, self.feed.high_watermark
        ttl, groups = (self.policy.ttl, self.groups) if self.is_ruled else (None, None)
        taken = deferred = expired = 0
        while taken < limit:
            cursor = ledger.advance()
            if cursor >= end:
                break
            if ttl is not None and self._pass_expired(ttl):
                expired += 1
                if expired < _EXPIRED_AT_ONCE:
                    continue
                self.wake_at(now)
                break
            checked = ledger.batch_in_hand if ttl is not None else None
            batch = ledger.batch_ahead()
            if batch is None:
                if self._put_off_new(cursor):
                    self.wake_at(now)
                break
            if ttl is not None and batch is not checked:
                continue  # `_pass_expired` hadn't seen this batch, so check it now
            if batch.delay_ms:
                if batch.flags and self._passes_copy(batch):
                    expired += 1
                    if expired < _EXPIRED_AT_ONCE:
                        continue
                    self.wake_at(now)
                    break
                if (due_ms := self.turn.due_ms(batch)) is not None:
                    # Normally the cursor skips deferred messages. We only get here after a seek, for example, has moved it
                    # back. Then we defer them again, until their delay since the publish is over.
                    stop = ledger.run_end(batch)
                    ledger.defer_ahead(stop, self.turn.due_from_wall(due_ms), due_ms)
                    self.set_alarm()
                    deferred += stop - cursor
                    if deferred < _DEFERRED_AT_ONCE:
                        continue
                    self.wake_at(now)
                    break
            most = limit - taken
            if batch.headers and batch.may_expire:
                if self._ttl_checked >= _TTL_CHECKS_IN_TURN and self._ttl_checked_at == now:
                    self.wake_at(now)
                    break
                stop, is_over = batch.expired_run(cursor, ledger.run_end(batch), self.turn.timestamp)
                self._ttl_checked = stop - cursor + (self._ttl_checked if self._ttl_checked_at == now else 0)
                self._ttl_checked_at = now
                if is_over:
                    self._expire(batch, stop, "its nsq-ttl")
                    expired += 1
                    if expired < _EXPIRED_AT_ONCE:
                        continue
                    self.wake_at(now)
                    break
                most = min(most, stop - cursor)
            if groups is not None:
                stop = groups.admit(batch, cursor, min(ledger.run_end(batch), cursor + most))
                if stop == cursor:
                    if self._hold_messages(groups, batch, cursor):
                        continue
                    break
                most = stop - cursor
            stop = ledger.take_run(batch, most)
            taken += stop - cursor
            if self.is_ruled:
                self.dry_run.delivered_new(batch, stop - cursor, self.turn.timestamp)
            if consumer.sample_rate:
                self._deliver_sample(consumer, batch, cursor, stop, 1, now, retry=False)
            else:
                self._deliver(consumer, batch, cursor, stop, 1, now, retry=False)
            if taken < limit and consumer.room <= 0:
                break
        return taken

    def _passes_copy(self, batch: Batch) -> bool:
        """Pass over an edited copy at the cursor that isn't for this channel, or must not run. Return whether it is one.

        Normally the cursor skips copies. We only get here after a seek, or if the journal has lost something.
        """
        if not batch.flags & COPY:
            return False
        mark = batch.copy_mark()
        if mark.channel == self.name and self.ledger.may_run_copy(batch.base_sequence, mark.replaces):
            return False
        self.ledger.finish_ahead(batch.end_sequence)
        return True

    def _is_elsewhere(self, batch: Batch) -> bool:
        """Return whether a retry is an edited copy for another channel, and a request or a lost journal has put it here."""
        return bool(batch.flags & COPY) and batch.copy_mark().channel != self.name

    # Groups

    def renew_groups(self) -> None:
        """Begin anew with the groups, because the rules about them or the places of many messages have changed."""
        former, rules = self.groups, self.policy.rules
        if former is not None:
            former.clear(self.turn.reclaimer)
        self.groups = Groups(self.ledger, rules, self.turn) if rules.has_groups else None
        if self.ledger.held.total:  # also without any rules, so that what former ones have held is delivered
            self.is_ruled = True
        if former is not None and self.groups is None:
            self.ledger.retries.note_changes(wanted=False)
            self.ledger.deferred.note_changes(wanted=False)

    def _prepare_groups(self, groups: Groups, now: float) -> int:
        """Learn and sort what has to be, before a delivery. Return about how many messages can be delivered."""
        groups.begin(now)
        self.wake_at(now if groups.is_behind else groups.put_off_until)
        room = self._allowed(sum([max(0, consumer.room) for consumer in self.consumers]), now)
        if not (room or (groups.shares and self.consumers)):
            return 0  # with shares, we go on sorting: consumers may need an hour for what they have
        if is_getting_ahead := self._learn_groups(groups):
            self.wake_at(now)
        if groups.must_learn_first(is_getting_ahead=is_getting_ahead):
            return 0  # in a later turn, or when the log has read a batch and calls `Broker.loaded`
        groups.choose_way(room)
        if groups.sorts:
            self._take_undelivered(self.consumers[0], 1, now)  # this delivers nothing
        if groups.ignored:
            self._count("nsq-group ignored", groups.ignored)
            groups.ignored = 0
        groups.look_beyond()
        if not room:
            return 0
        if groups.sorts and not groups.has_sorted_all:
            return min(groups.available, _DELIVERED_WHILE_SORTING)
        return groups.available

    def _learn_groups(self, groups: Groups) -> bool:
        """Learn the groups of messages that were delivered before, or that are due.

        Returns whether a later turn can learn more, so that it need not be read from disk.
        """
        ledger, learned, misses = self.ledger, 0, 0
        batch: Batch | None = None
        for sequence in groups.unlearned(self.feed.log.cached_from):
            if batch is None or not batch.base_sequence <= sequence < batch.end_sequence:
                is_lost = ledger.is_lost(sequence)
                if not (is_lost or self._may_read(groups, sequence)):
                    return learned > 0
                batch = ledger.batch_of(sequence) if not is_lost else None
                if batch is None and not (is_lost or ledger.is_refused(sequence)):
                    misses += 1
                    if misses >= _MISSES:
                        return False  # when the log has read a batch for one of them, it calls `Broker.loaded`
                    continue
            groups.learn(sequence, batch)
            learned += 1
        return (learned > 0 or not groups.may_sort) and groups.has_more_to_learn(misses)

    def _may_read(self, groups: Groups, sequence: int) -> bool:
        """Return whether this turn may look for the batch of a message. Count it if it has to be read from a file."""
        if sequence >= self.feed.log.cached_from or self.ledger.ephemeral_batches is not None:
            return True
        if not groups.may_read:
            return False
        groups.note_read()
        return True

    def _hold_messages(self, groups: Groups, batch: Batch, cursor: int) -> bool:
        """Hold messages at the cursor whose groups may not have them now. Return whether to go on at the new cursor."""
        if not groups.may_sort:
            self.wake_at(self.turn.now)
            return False
        stop = groups.sort(batch, cursor, min(self.ledger.run_end(batch), cursor + groups.room))
        if stop == cursor:
            groups.note_full()
            return False
        self.ledger.hold(stop)
        return True

    def _take_held(self, consumer: Consumer, limit: int, now: float) -> int:
        """Deliver up to `limit` held messages that are in no group's queue, or put them there. The oldest come first.

        There are such messages after a restart, and when the rules about groups have changed.
        """
        ledger, groups = self.ledger, self.groups
        taken = passed = 0
        while taken < limit:
            sequence = ledger.held.lowest() if groups is None else groups.first_unsorted()
            if sequence is None:
                break
            if passed >= _EXPIRED_AT_ONCE or (groups is not None and not groups.may_sort):
                self.wake_at(now)
                break
            batch = None if ledger.is_lost(sequence) else ledger.batch_of(sequence)
            if batch is None:
                if not self._give_up_held(sequence):
                    break
                passed += 1
                continue
            end = ledger.held.run_end(sequence, batch.end_sequence)
            stop, why = self._judge_held(batch, sequence, end)
            if why:
                self._expire_held(batch, bitmap_of(sequence, stop), why)
                passed += 1
                continue
            stop = min(stop, sequence + limit - taken)
            if groups is not None and (stop := groups.admit(batch, sequence, stop)) == sequence:
                groups.sort(batch, sequence, end)
                continue
            self._deliver_held(consumer, batch, sequence, stop, now)
            taken += stop - sequence
            if consumer.room <= 0:
                break
        return taken

    def _give_up_held(self, sequence: int) -> bool:
        """Finish a held message that the log has lost, or defer one that the disk refuses to read.

        Returns False if it just isn't in memory yet.
        """
        if self.ledger.is_lost(sequence):
            self.ledger.drop_lost(sequence)
        elif self.ledger.is_refused(sequence):
            self._put_off(sequence)
        else:
            return False
        return True

    def _take_from_groups(self, groups: Groups, consumer: Consumer, limit: int, now: float) -> int:
        """Deliver up to `limit` messages of groups that have something waiting: held ones and retries."""
        ledger = self.ledger
        taken = misses = passed = 0
        batch: Batch | None = None
        groups.look_beyond()
        while taken < limit and consumer.room > 0:
            sequence = groups.next()
            if sequence < 0:
                if groups.is_behind:
                    self.wake_at(now)
                break
            if misses >= _MISSES:
                break  # when the log has read a batch for one of them, it calls `Broker.loaded`
            if passed >= _EXPIRED_AT_ONCE:
                self.wake_at(now)
                break
            is_retry = sequence in ledger.retries
            if batch is None or not batch.base_sequence <= sequence < batch.end_sequence:
                if not self._may_read(groups, sequence):
                    self.wake_at(now)
                    break
                batch = None if ledger.is_lost(sequence) else ledger.batch_of(sequence)
            if batch is None:
                if self._give_up_waiting(groups, sequence, is_retry=is_retry):
                    passed += 1
                elif ledger.is_refused(sequence):
                    groups.put_off(now + _PUT_OFF_MS / 1000)
                    self.wake_at(groups.put_off_until)
                    passed += 1
                else:
                    groups.set_aside()
                    misses += 1
            elif is_retry:
                is_buried = not self._retry_of_group(groups, consumer, batch, sequence, now)
                taken, passed = taken + (not is_buried), passed + is_buried
            else:
                _, why = self._judge_held(batch, sequence, sequence + 1)
                if why:
                    groups.drop(sequence, is_retry=False)
                    self._expire_held(batch, bitmap_of(sequence, sequence + 1), why)
                    passed += 1
                    continue
                most = 1 if consumer.sample_rate or (batch.headers and batch.may_expire) else limit - taken
                going = groups.take_held(batch, most)
                taken += len(going)
                if going == list(range(sequence, sequence + len(going))):
                    self._deliver_held(consumer, batch, sequence, going[-1] + 1, now)
                else:
                    self._deliver_scattered(groups, consumer, batch, going, now)
        return taken

    def _give_up_waiting(self, groups: Groups, sequence: int, *, is_retry: bool) -> bool:
        """Do the same as `_give_up_held` with the message from `groups.next`.

        If the later messages of its group have to wait for it, they wait until the disk can read it. Returns False if the
        whole group waits for a read.
        """
        is_lost = self.ledger.is_lost(sequence)
        if not is_lost and (groups.keeps_order_of_next() or not self.ledger.is_refused(sequence)):
            return False
        groups.drop(sequence, is_retry=is_retry)
        if is_lost:
            self.ledger.drop_lost(sequence)
        else:
            self._put_off(sequence)
        return True

    def _retry_of_group(self, groups: Groups, consumer: Consumer, batch: Batch, sequence: int, now: float) -> int:
        """Deliver the retry from `groups.next`, or bury it because its attempts are used up. Return 1 or 0."""
        attempts = self.ledger.take_retry(sequence)
        if batch.delay_ms and self._is_elsewhere(batch):
            groups.drop(sequence, is_retry=True)
            self.ledger.finish_unseen(sequence, sequence + 1)
            return 0
        if (reason := self.policy.last_attempt(attempts)) is not None:
            groups.drop(sequence, is_retry=True)
            self._bury(places_in(batch, sequence, sequence + 1, attempts), Note(reason, ""))
            return 0
        groups.take(sequence, is_retry=True)
        attempts = attempts + 1 & 0xFFFF
        if consumer.sample_rate:
            self._deliver_sample(consumer, batch, sequence, sequence + 1, attempts, now, retry=True)
        else:
            self._deliver(consumer, batch, sequence, sequence + 1, attempts, now, retry=True)
        return 1

    def _judge_held(self, batch: Batch, first: int, stop: int) -> tuple[int, str]:
        """Return the end of a run of held messages from `first`, and the time to live that they have exceeded, or ""."""
        policy = self.policy
        if policy.ttl is not None and policy.has_expired(batch, self.turn.timestamp):
            return stop, duration_text(policy.ttl)
        if batch.headers and batch.may_expire:
            end, is_over = batch.expired_run(first, stop, self.turn.timestamp)
            return end, "its nsq-ttl" if is_over else ""
        return stop, ""

    def _deliver_held(self, consumer: Consumer, batch: Batch, first: int, stop: int, now: float) -> None:
        """Deliver held messages for the first time. If there are groups, `admit` or `take` have taken their places."""
        self.ledger.take_held(first, stop)
        if self.is_ruled:
            self.dry_run.delivered_new(batch, stop - first, self.turn.timestamp)
        if consumer.sample_rate:
            self._deliver_sample(consumer, batch, first, stop, 1, now, retry=False)
        else:
            self._deliver(consumer, batch, first, stop, 1, now, retry=False)

    def _put_off(self, sequence: int) -> None:
        """Do the same as `_put_off_new` with a held message or a retry."""
        due_ms = self._put_off_until_ms
        self.ledger.put_off(sequence, self.turn.due_from_wall(due_ms), due_ms)
        self.set_alarm()

    # Retries

    def _take_retries(self, consumer: Consumer, limit: int, now: float) -> int:
        ledger, retries = self.ledger, self.ledger.retries
        taken = 0
        if self._passed_at != now:
            self._passed_from, self._passed_at = retries.passed, now
        while taken < limit and retries and consumer.room > 0:
            if retries.passed - self._passed_from >= _PASSED_IN_TURN:
                self.wake_at(now)
                break
            batch = ledger.batch_of_retry()
            if batch is None:
                if self._put_off_retries():
                    self.wake_at(now)
                break
            first, stop, attempts = ledger.take_retries(limit - taken, batch)
            if batch.delay_ms and self._is_elsewhere(batch):
                ledger.finish_unseen(first, stop)
                continue
            # A message may already have had too many attempts, because `max_attempts` was lowered while it waited.
            if (reason := self.policy.last_attempt(attempts)) is not None:
                self._bury(places_in(batch, first, stop, attempts), Note(reason, ""))
                continue
            attempts = attempts + 1 & 0xFFFF  # 16 bits on the wire
            if consumer.sample_rate:
                self._deliver_sample(consumer, batch, first, stop, attempts, now, retry=True)
            else:
                self._deliver(consumer, batch, first, stop, attempts, now, retry=True)
            taken += stop - first
        return taken

    def _put_off_new(self, cursor: int) -> bool:
        """Defer messages at the cursor that we have failed to read for a while, so that later ones can be delivered.

        They are read again when they are due, and a restart doesn't lose them. Returns False if no read has
        failed, but the batch just isn't in memory yet.
        """
        stop = min(self.ledger.end_of_refused(), self.ledger.next_stop(_DEFERRED_AT_ONCE))
        if stop <= cursor:
            return False
        due_ms = self._put_off_until_ms
        self.ledger.defer_ahead(stop, self.turn.due_from_wall(due_ms), due_ms)
        self.set_alarm()
        return True

    def _put_off_retries(self) -> bool:
        """Do the same as `_put_off_new` at the head of the retry queue."""
        due_ms = self._put_off_until_ms
        if not self.ledger.put_off_retries(_DEFERRED_AT_ONCE, self.turn.due_from_wall(due_ms), due_ms):
            return False
        self.set_alarm()
        return True

    @property
    def _put_off_until_ms(self) -> int:
        return self.turn.timestamp // 1_000_000 + _PUT_OFF_MS

    def _deliver_sample(
        self, consumer: Consumer, batch: Batch, first: int, stop: int, attempts: int, now: float, *, retry: bool
    ) -> None:
        """Deliver (rate + 1) % of [first, stop) to a consumer that samples, and finish the rest, as in NSQ."""
        counts = self._counts_as_taken(first, retry=retry)
        keep_from = first
        for sequence in range(first, stop):
            if self.turn.random_percent() > consumer.sample_rate:
                if keep_from < sequence:
                    self._deliver(consumer, batch, keep_from, sequence, attempts, now, retry=retry)
                self.taken_by_locality[consumer.locality] += counts
                self.ledger.finish_unseen(sequence, sequence + 1)
                if self.groups is not None:
                    self.groups.give_up_place(sequence)
                keep_from = sequence + 1
        if keep_from < stop:
            self._deliver(consumer, batch, keep_from, stop, attempts, now, retry=retry)

    def _counts_as_taken(self, first: int, *, retry: bool) -> bool:
        """Return whether to count messages from `first` on by locality. NSQ only counts messages from memory."""
        return retry or self.ledger.ephemeral_batches is not None or first >= self.feed.log.cached_from

    def _deliver(
        self, consumer: Consumer, batch: Batch, first: int, stop: int, attempts: int, now: float, *, retry: bool
    ) -> None:
        ledger = self.ledger
        if retry:
            ledger.note_redelivery(first, stop, attempts)
        count = stop - first
        # The same as `_counts_as_taken`, without the cost of a call per message.
        if retry or ledger.ephemeral_batches is not None or first >= self.feed.log.cached_from:
            self.taken_by_locality[consumer.locality] += count
        offset = batch.base_sequence - batch.base_id
        ids = (b"%016x" % (first - offset),) if count == 1 else batch.ids(first, stop)
        if self.is_ruled:
            self.policy.note_deliveries(count, now)
            self.dry_run.policy.note_deliveries(count, now)
            if self.groups is not None:
                self.groups.deliver(first, ids)
        deadline = now + consumer.msg_timeout
        in_flight = self.in_flight
        in_flight.add(ids, Delivery(consumer, first, count, offset, attempts, now, deadline, batch.timestamp))
        if ledger.ephemeral_batches is not None:
            ledger.hand_out(first, stop)
        if in_flight.next_deadline < self.alarm:
            self.set_alarm()
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

    def _deliver_scattered(
        self, groups: Groups, consumer: Consumer, batch: Batch, sequences: Sequence[int], now: float
    ) -> None:
        """Do the same as `_deliver_held` with messages of a batch that aren't neighbours."""
        ledger, count = self.ledger, len(sequences)
        ledger.take_scattered(sequences)
        counts = self._counts_as_taken(batch.base_sequence, retry=False)
        self.taken_by_locality[consumer.locality] += count * counts
        offset = batch.base_sequence - batch.base_id
        ids = [b"%016x" % (it - offset) for it in sequences]
        self.dry_run.delivered_new(batch, count, self.turn.timestamp)
        self.policy.note_deliveries(count, now)
        self.dry_run.policy.note_deliveries(count, now)
        groups.deliver_scattered(ids)
        deadline = now + consumer.msg_timeout
        delivery = Delivery(consumer, sequences[0], count, offset, 1, now, deadline, batch.timestamp)
        self.in_flight.add_scattered(ids, sequences, delivery)
        if ledger.ephemeral_batches is not None:
            for sequence in sequences:
                ledger.hand_out(sequence, sequence + 1)
        if self.in_flight.next_deadline < self.alarm:
            self.set_alarm()
        consumer.in_flight += count
        consumer.message_count += count
        frames = batch.scattered_frames(sequences, 1, ids, with_headers=consumer.takes_headers)
        consumer.unsent_bytes += sum(map(len, frames))
        consumer.send(frames)

    # Answers of consumers

    def finish(self, consumer: Consumer, ids: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Finish messages that this consumer has in flight. Return the failures as (id, reason)."""
        if self.latency is not None:
            self._measure(self.latency, consumer, ids)
        done, failures = self.in_flight.finish(consumer, ids)
        if done:
            consumer.in_flight -= done
            consumer.finish_count += done
            if self.groups is not None:
                # An id that has failed may still be in flight, for another consumer.
                self.groups.finish([it for it in ids if self.in_flight.owner(it) is None] if failures else ids)
            self.ledger.note_progress()
            self.turn.to_deliver[self] = None
        return failures

    def _measure(self, latency: LatencyWindow, consumer: Consumer, ids: Sequence[bytes]) -> None:
        turn = self.turn
        for message_id in dict.fromkeys(ids):
            delivery = self.in_flight.find(consumer, message_id)
            if isinstance(delivery, Delivery):
                latency.add(turn.timestamp - delivery.published_at, turn.now)

    def requeue(
        self, consumer: Consumer, message_id: bytes, delay_ms: int, now: float, *, counts: bool = True
    ) -> bytes | None:
        """Requeue a message, immediately or after a delay. Return the reason if it fails, otherwise None.

        If `counts` is False, the delivery doesn't count as an attempt.
        """
        delivery = self.in_flight.take_out(consumer, message_id)
        if not isinstance(delivery, Delivery):
            return delivery
        sequence = delivery.sequence_of(message_id)
        if self.groups is not None:
            self.groups.leave(message_id, sequence)
        if counts:
            self._settle_failed([(sequence, delivery)], "requeued", now, asked_ms=delay_ms)
        else:
            self.ledger.take_back(sequence)
            self._wait(sequence, delivery.attempts - 1, delay_ms, now)
        consumer.in_flight -= 1
        consumer.requeue_count += 1
        self.requeue_count += 1
        self.schedule_delivery()
        return None

    def bury(self, consumer: Consumer, message_id: bytes, reason: str, now: float) -> bytes | None:
        """Bury a message that this consumer has in flight. Return an error if it fails, otherwise None."""
        if self.ledger.ephemeral_batches is not None:
            return NOT_ON_DISK
        delivery = self.in_flight.take_out(consumer, message_id)
        if not isinstance(delivery, Delivery):
            return delivery
        place = delivery.sequence_of(message_id), int(message_id, 16), delivery.attempts
        if self.groups is not None:
            self.groups.leave(message_id, place[0])
        self._bury([place], _note_by(reason, consumer))
        consumer.in_flight -= 1
        self.schedule_delivery()
        return None

    def touch(self, consumer: Consumer, message_id: bytes, *, msg_timeout: float, now: float) -> bytes | None:
        """Extend a message's deadline, up to `max_msg_timeout`. Return an error if it fails, otherwise None."""
        delivery = self.in_flight.find(consumer, message_id)
        if not isinstance(delivery, Delivery):
            return delivery
        deadline = min(now + msg_timeout, delivery.delivered_at + self.turn.max_msg_timeout)
        failure = self.in_flight.touch(consumer, message_id, deadline, now)
        consumer.touches = Touches(consumer.touches.times + 1, self.turn.timestamp)
        self.set_alarm()
        return failure

    # Failed messages

    def _settle_failed(
        self, failed: Sequence[tuple[int, Delivery]], how: str, now: float, *, asked_ms: int = _NOT_ASKED
    ) -> None:
        """Bury the messages that have used up their attempts, and requeue the others.

        `how` says how the attempt ended, for the burial's reason. `asked_ms` is the delay that the consumer asked for.
        """
        ledger, policy, turn = self.ledger, self.policy, self.turn
        exhausted: dict[tuple[Consumer, str], list[tuple[int, int, int]]] = {}
        later: list[tuple[int, int, int, int]] = []
        for sequence, delivery in failed:
            attempts = delivery.attempts
            ledger.take_back(sequence)
            if (reason := policy.last_attempt(attempts, how)) is not None:
                place = sequence, sequence - delivery.offset, attempts
                exhausted.setdefault((delivery.consumer, reason), []).append(place)
                continue
            self.dry_run.failed(attempts)
            delay_ms = max(asked_ms, policy.delay_after(attempts, turn.random_percent))
            if delay_ms:
                later.append((sequence, attempts, *self._due_after(delay_ms, now)))
            elif asked_ms == _NOT_ASKED:
                ledger.retry_unrecorded(sequence, attempts)
            else:
                ledger.retry(sequence, attempts)
        if later:
            ledger.retry_later(later)
            self.set_alarm()
        for (consumer, reason), places in exhausted.items():
            self._bury(places, _note_by(reason, consumer))

    def _wait(self, sequence: int, attempts: int, delay_ms: int, now: float) -> None:
        if delay_ms == 0:
            self.ledger.retry(sequence, attempts)
            return
        due, due_ms = self._due_after(delay_ms, now)
        if attempts:
            self.ledger.retry_later([(sequence, attempts, due, due_ms)])
        else:
            self.ledger.retry_later_as_new(sequence, due, due_ms)
        self.set_alarm()

    def _due_after(self, delay_ms: int, now: float) -> tuple[int, int]:
        """Return when a delay ends, as the ledger's `due` and `due_ms`."""
        return microseconds(now) + delay_ms * 1000, self.turn.timestamp // 1_000_000 + delay_ms + 1

    def _bury(self, places: Sequence[tuple[int, int, int]], note: Note, *, has_failed: bool = True) -> None:
        """Bury messages, each given as sequence, id and attempts. A channel that isn't on disk drops them.

        `has_failed` is False for messages that waited too long or had no room. That is no fault of the consumers, so
        the breaker ignores it.
        """
        self.buried_queue.bury(places, note)
        if self.ledger.ephemeral_batches is not None:
            self._count("not on disk, dropped", len(places))
            return
        now, buried = self.turn.now, len(self.ledger.buried)
        self._count("buried", len(places) if not note.who else 0)
        self.dry_run.buried(len(places), buried, now, has_failed=has_failed)
        if has_failed:
            self.policy.note_burials(len(places), now)
        if not self.paused and (why := self.policy.reason_to_pause(buried, now, has_failed=has_failed)) is not None:
            self._hold(why)

    def work_on_job(self, now: float) -> None:
        """Do the next step of a running kick, discard or undo, if it is due."""
        room = self.room() if self.buried_queue.job is not None else None
        if self.buried_queue.work_on_job(now, room):
            self.schedule_delivery()
        self.wake_at(self.buried_queue.next_step)

    # Time

    def set_alarm(self, not_before: float = 0.0) -> None:
        """Set the alarm for the next deadline or deferred message."""
        when = self.in_flight.next_deadline
        if (due := self.ledger.deferred.next_due()) is not None:
            when = min(when, due / 1_000_000)
        self.wake_at(max(when, not_before))

    def wake_at(self, when: float) -> None:
        """Set the alarm, which calls `expire`, unless it is set to an earlier time.

        If `when` is now, other work runs first.
        """
        if when < self.alarm:
            self.alarm = when
            self.turn.alarms.add(when, self)

    def expire(self, now: float) -> None:
        """Handle the alarm: time out deliveries, release deferred messages, expire old ones, and set the next alarm."""
        ledger = self.ledger
        if self.groups is not None:
            self.groups.begin_turn(now)  # also if the time hasn't moved since the last one
        overdue = self.in_flight.expire(now)
        for sequence, delivery in overdue:
            if self.groups is not None:
                self.groups.leave(b"%016x" % (sequence - delivery.offset), sequence)
            self.timeout_count += 1
            delivery.consumer.in_flight -= 1
        self._settle_failed(overdue, "timed out", now)
        self._unpack(_DUE_AT_ONCE)
        until = int(now * 1_000_000)
        ledger.release_due(until, _DUE_AT_ONCE)
        self.alarm = inf
        self.set_alarm(not_before=now + _EXPIRY_GRAIN + len(self.in_flight) * _EXPIRY_GRAIN_OF_EACH)
        if (
            self.in_flight.is_looking
            or ledger.deferred.has_runs
            or ((due := ledger.deferred.next_due()) is not None and due <= until)
        ):
            self.wake_at(now)
        self.work_on_job(now)
        self._look_for_expired(now)
        if self.is_behind:
            self._go_on_dropping()
        elif self.policy.drops:
            self.apply_limits()
        if self.consumers or self.is_ruled:  # without consumers, a limit may not be reached any more
            self.schedule_delivery()

    # Time to live

    def _look_for_expired(self, now: float) -> None:
        """Drop or bury expired messages at the cursor, even if there are no consumers."""
        ttl, ledger = self.policy.ttl, self.ledger
        if ttl is None:
            return
        if self._expire_some(ttl):
            # Possibly thousands of ranges. If we didn't record them now, the ranges of many turns would pile up.
            ledger.record_progress()
            self.wake_at(now)
            return
        if not ledger.held.total and ledger.advance() >= self.feed.high_watermark:
            return  # `take_new` sets the next alarm
        oldest = ledger.held.lowest()
        is_read = ledger.batch_of(oldest) is not None if oldest is not None else ledger.batch_in_hand is not None
        self.wake_at(now + (self.policy.rules.expiry_pause if is_read else _PAUSE_TO_LOAD))

    def _expire_some(self, ttl: int) -> bool:
        """Drop or bury expired messages, as many as one turn may. Return whether there may be more."""
        ledger = self.ledger
        for number in range(_EXPIRED_AT_ONCE):
            if ledger.held.total:
                if number and self.turn.spending.ranges_dropped >= _DROPPED_IN_TURN:
                    return True
                if self._expire_oldest_held(ttl):
                    continue
            if ledger.advance() >= self.feed.high_watermark or not self._pass_expired(ttl):
                return False
        return True

    def _expire_oldest_held(self, ttl: int) -> bool:
        """Drop or bury the expired held messages of the oldest batch that has any. Return whether there were any."""
        ledger, oldest = self.ledger, self.ledger.held.lowest()
        assert oldest is not None
        if ledger.is_lost(oldest):
            ledger.drop_lost(oldest)
            return True
        batch = ledger.batch_of(oldest)
        if batch is None or not self.policy.has_expired(batch, self.turn.timestamp):
            return False
        expired = ledger.held.among(bitmap_of(oldest, batch.end_sequence))
        self._expire_held(batch, self._as_many_ranges(expired), duration_text(ttl))
        return True

    def _expire_held(self, batch: Batch, sequences: BitMap64, ttl: str) -> None:
        """Bury or drop these held messages of a batch, because they have waited for longer than `ttl`."""
        ledger = self.ledger
        if self.policy.rules.ttl_buries and ledger.ephemeral_batches is None:
            ledger.held.take_out(sequences)
            base = batch.base_id - batch.base_sequence
            places = [(sequence, base + sequence, 0) for sequence in sequences]
            self._bury(places, Note(f"waited for more than {ttl} (ttl)", ""), has_failed=False)
            self._count("ttl, buried", len(sequences))
        else:
            ledger.finish_held(sequences)
            self._count("ttl, dropped", len(sequences))

    def _pass_expired(self, ttl: int) -> bool:
        """Drop or bury expired messages at the cursor: whole segments, or one batch. Return whether there were any.

        If there were none, `ledger.batch_in_hand` is the batch at the cursor, or None if it has to be read from disk.
        """
        ledger, timestamp = self.ledger, self.turn.timestamp
        batch = ledger.batch_in_hand
        if batch is None:
            if self._pass_old_segments(timestamp - ttl):
                return True
            batch = ledger.batch_ahead()
        if batch is None or not self.policy.has_expired(batch, timestamp):
            return False
        self._expire(batch, ledger.run_end(batch), duration_text(ttl))
        return True

    def _expire(self, batch: Batch, stop: int, ttl: str) -> None:
        """Bury or drop the messages from the cursor to `stop`, because they have waited for longer than `ttl`."""
        ledger, start = self.ledger, self.ledger.cursor
        if self.policy.rules.ttl_buries and ledger.ephemeral_batches is None:
            ledger.take_ahead(stop)
            note = Note(f"waited for more than {ttl} (ttl)", "")
            self._bury(places_in(batch, start, stop, 0), note, has_failed=False)
            self._count("ttl, buried", stop - start)
        else:
            ledger.finish_ahead(stop)
            self._count("ttl, dropped", stop - start)

    def _pass_old_segments(self, older: int) -> bool:
        ledger = self.ledger
        # The age of a segment says nothing about deferred messages, because a delay doesn't count as waiting.
        if ledger.ephemeral_batches is not None or self.policy.rules.ttl_buries or ledger.may_meet_deferred:
            return False
        end = min(self.feed.log.older_than(older), self.feed.high_watermark)
        if end <= ledger.cursor:
            return False
        self._count("ttl, dropped", ledger.finish_before(end, _PASSED_AT_ONCE))
        return True

    # Limits

    def take_rules(self, rules: ChannelRules) -> None:
        """Apply these rules from now on."""
        now, former = self.turn.now, self.policy.rules
        self.policy = policy_of(rules.in_force(), now, self.policy)
        self.dry_run = dry_run_of(rules.dry_run(), self.policy_counts, now, self.dry_run)
        self.is_ruled = rules is not NO_CHANNEL_RULES or self.ledger.held.total > 0
        self.records_deliveries = self.records_deliveries or self.policy.drops  # `limits_changed` follows
        if self.policy.rules.about_groups != former.about_groups:
            self.renew_groups()
        elif self.groups is not None:
            self.groups.follow_rules(self.policy.rules)
        if self.policy.ttl is not None:
            self.wake_at(now)
        self.schedule_delivery()

    def _count(self, cause: str, count: int) -> None:
        count_cause(self.policy_counts, cause, count)

    @property
    def _buries(self) -> bool:
        """Whether messages over a limit are buried. An ephemeral channel drops them instead."""
        return self.policy.buries and self.ledger.ephemeral_batches is None

    def usage(self) -> Usage:
        """Return the waiting and deferred messages, including the ones not released yet. Bytes are estimated."""
        return usage_of(self.ledger)

    def room(self) -> int | None:
        """Return how many new messages fit in addition to retries and deferred ones, or None if no limit drops any."""
        return self.policy.room(self.ledger)

    def apply_limits(self, arrived: int | None = None) -> None:
        """Drop or bury the oldest messages if there are more than the policy allows.

        `arrived` is the first sequence of the messages that were just released.
        """
        self.is_behind = False
        if beyond := self.policy.beyond(self.ledger):
            if self._buries:
                buried = self._bury_oldest(min(beyond, _BURIED_AT_ONCE))
                self._count("overflow, buried", buried)
                if beyond > buried == _BURIED_AT_ONCE:
                    self.wake_at(self.turn.now)
            else:
                if self._full_from is None and arrived is not None and self.room() == 0:
                    self._full_from = arrived
                self.drop_oldest(beyond, self._full_from)
        if not self.is_behind:
            self._full_from = None
        self.dry_run.waits(self.ledger)

    def make_room(self, incoming: Usage) -> bool:
        """Drop the oldest messages until the incoming ones fit into the limit of bytes.

        Returns False if a later turn has to drop more before they fit.
        """
        if not self.policy.drops or self.policy.buries:
            return True
        for _ in range(MOST_LOOKS):
            if not (beyond := self.policy.beyond_with(self.ledger, incoming)):
                break
            self.drop_oldest(beyond)
            if self.is_behind:
                return False
        return True

    def _bury_oldest(self, count: int) -> int:
        """Bury up to `count` messages at the cursor. Return their number: fewer if the next must be read from disk."""
        ledger, buried = self.ledger, 0
        while buried < count and (held := ledger.held.lowest()) is not None:
            if ledger.is_lost(held):
                ledger.drop_lost(held)
                continue
            batch = ledger.batch_of(held)
            if batch is None:
                self.wake_at(self.turn.now + _PAUSE_TO_LOAD)
                return buried
            stop = ledger.held.run_end(held, min(batch.end_sequence, held + count - buried))
            ledger.held.take_out(bitmap_of(held, stop))
            self._bury(places_in(batch, held, stop, 0), _OVERFLOWN, has_failed=False)
            buried += stop - held
        while buried < count:
            oldest = ledger.advance()
            if oldest >= self.feed.high_watermark:
                break  # there were fewer than `count`, because the log has a gap
            batch = ledger.batch_ahead()
            if batch is None:
                self.wake_at(self.turn.now + _PAUSE_TO_LOAD)
                break
            stop = min(oldest + count - buried, ledger.run_end(batch))
            ledger.take_ahead(stop)
            self._bury(places_in(batch, oldest, stop, 0), _OVERFLOWN, has_failed=False)
            buried += stop - oldest
        return buried

    def drop_oldest(self, count: int, arrived: int | None = None) -> None:
        """Drop the oldest `count` messages that wait for their first delivery, because of a limit.

        If there are very many skip ranges between them, this turn drops only some of them and sets `is_behind`. Retries
        stay, because they were delivered before or an operator has given them back, so someone still wants them.
        Messages from `arrived` on are new ones without room, and are counted separately.
        """
        end = self.feed.high_watermark
        dropped = self._drop_next(count, end if arrived is None else arrived, "overflow, dropped")
        if arrived is not None and not self.is_behind:
            self._drop_next(count - dropped, end, "full, dropped")

    def drop_before(self, end: int) -> None:
        """Drop the oldest undelivered messages, until there are no more than from `end` on. Retries stay.

        For example, the cursor is at 90, `end` is 85, and seven messages are held. The two oldest of them are dropped, and
        then five are held. The topic has a limit that allows so many.
        """
        if held := self.ledger.held.total:
            kept = max(0, self.ledger.cursor - end)
            if held > kept:
                self._count("overflow, dropped", self._drop_held(held - kept, self.ledger.cursor))
            if self.ledger.held.total:
                return
        self._drop_next(end, min(end, self.feed.high_watermark), "overflow, dropped")

    def _drop_next(self, count: int, end: int, cause: str) -> int:
        ledger, turn, dropped = self.ledger, self.turn, 0
        if ledger.held.total:
            dropped = self._drop_held(count, end)
            if dropped < count and (oldest := ledger.held.lowest()) is not None and oldest < end:
                self._count(cause, dropped)
                return dropped  # a later turn drops more of them, and only then the messages at the cursor
        while dropped < count and (cursor := ledger.advance()) < end:
            if (
                dropped and turn.spending.ranges_dropped >= _DROPPED_IN_TURN
            ):  # but always drop one, so that we get ahead
                self.is_behind = True
                ledger.record_progress()  # possibly thousands of ranges, so don't wait for the ones of later turns
                self.wake_at(turn.now)
                break
            turn.spending.ranges_dropped += 1
            stop = min(ledger.next_stop(count - dropped), end)
            ledger.finish_ahead(stop)
            dropped += stop - cursor
        self._count(cause, dropped)
        return dropped

    def _drop_held(self, count: int, end: int) -> int:
        """Drop the oldest `count` held messages before `end`, or fewer in this turn. Return their number."""
        ledger, turn, dropped = self.ledger, self.turn, 0
        while dropped < count and (oldest := ledger.held.first(min(count - dropped, _HELD_AT_ONCE), end)):
            if dropped and turn.spending.ranges_dropped >= _DROPPED_IN_TURN:  # as in `_drop_next`
                self.is_behind = True
                ledger.record_progress()
                self.wake_at(turn.now)
                break
            oldest = self._as_many_ranges(oldest)
            ledger.finish_held(oldest)
            dropped += len(oldest)
        return dropped

    def _as_many_ranges(self, oldest: BitMap64) -> BitMap64:
        """Return as many of these messages, the oldest, as this turn may drop or expire, but at least one. Count them."""
        turn = self.turn
        left = max(1, _DROPPED_IN_TURN - turn.spending.ranges_dropped)
        if (ranges := number_of_ranges(oldest)) > left:
            oldest, ranges = oldest[:left], left
        turn.spending.ranges_dropped += max(ranges, len(oldest) // _HELD_OF_A_RANGE)
        return oldest

    def _go_on_dropping(self) -> None:
        """Continue dropping messages in the whole topic, unless this turn has dropped enough."""
        if self.turn.spending.ranges_dropped < _DROPPED_IN_TURN:
            self.topic.drop_beyond_limits()
        else:
            self.wake_at(self.turn.now)

    # Start and end

    def snapshot_changes(self) -> Iterator[Change | None]:
        """Return changes that describe this channel for a new journal, as of this call, even if you iterate later.

        At each None, other work may run.
        """
        topic, name = self.feed.name, self.name
        state: list[Change] = [("channel", topic, name, self.ledger.oldest_ahead)]
        if self.paused:
            state.append(("hold", topic, name, self.paused_why or True))
        places = self.ledger.snapshot_changes(self.turn.wall_milliseconds)
        return chain(state, places, self.buried_queue.snapshot_changes())

    def restore(self, state: ChannelState) -> None:
        """Take over the recovered state and free its memory. Messages that were in flight are ready for delivery."""
        self.paused, self.paused_why = state.paused, state.paused_why
        self.ledger.restore(state, self.turn.due_from_wall)
        self.buried_queue.resume(state.job)
        self.wake_at(self.buried_queue.next_step)
        if self.policy.ttl is not None:
            self.wake_at(self.turn.now)
        self.set_alarm()
        self.renew_groups()

    def start_over(self) -> None:
        """Start over, because an operator has emptied the channel or moved its cursor."""
        self.buried_queue.drop_kick()  # a kick can't be undone, because none of its messages waits any more
        self._full_from = None
        self.renew_groups()
        self.alarm = inf
        self.wake_at(self.turn.now if self.is_behind else self.buried_queue.next_step)  # dropping or a job continues
        for consumer in self.consumers:
            consumer.in_flight = 0
        self.schedule_delivery()

    def close(self) -> None:
        """Disconnect all consumers, because the channel is being deleted."""
        consumers, self.consumers = self.consumers, []
        for consumer in consumers:
            consumer.has_joined = False
            consumer.close()
        self.turn.forget(self)
        self.turn.journal.forget(self.ledger)
        self.ledger.clear()  # an alarm may refer to the channel until the end of its longest delay
        self.buried_queue.clear()
        if self.groups is not None:
            self.groups.clear(self.turn.reclaimer)
            self.groups = None
        self.alarm = inf

    # Figures

    def expires_at(self) -> int | None:
        """Return when the policy will delete the unused channel, or None if it won't."""
        if self.consumers:
            return None
        return deletion_at(
            self.policy.rules, self.idle_since, is_empty=self.is_empty, now=self.turn.now, at=self.turn.timestamp
        )


def places_in(batch: Batch, first: int, stop: int, attempts: int) -> list[tuple[int, int, int]]:
    """Return sequence, id and attempts of [first, stop)."""
    base = batch.base_id - batch.base_sequence
    return [(sequence, base + sequence, attempts) for sequence in range(first, stop)]


def microseconds(now: float) -> int:
    """Return the time in microseconds, rounded up so that nothing happens early."""
    return int(now * 1_000_000) + 1


def _note_by(reason: str, consumer: Consumer) -> Note:
    return note_of(reason, consumer.describe().client_id)
