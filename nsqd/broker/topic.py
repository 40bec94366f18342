"""A topic: one log, and the channels that read it.

`high_watermark` (H in the documents) tells up to where the log belongs to the channels. While the topic has a channel and
is not paused, H follows the tail; otherwise it stands still, and what is published waits behind it. H also stands still
while the topic is *learning* which channels it has elsewhere in the cluster, so that none of them misses what is
published here first.

A topic has

    feed            what its channels see of it: the log, and H
    channels        by name
    early_deferrals what lies beyond H and is deferred, or was taken back
    policy          what the rules say, and a second one whose answers are only counted (policy.py)

and the publishes of this turn, until the log has them (publish_buffer.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING, Final, final

from pyroaring import BitMap64

from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.bitmaps import bitmap_of
from nsqd.broker.channel import Channel, microseconds
from nsqd.broker.early_deferrals import EarlyDeferrals
from nsqd.broker.feed import TopicFeed
from nsqd.broker.id_runs import DeferredIds
from nsqd.broker.keys import TopicKeys
from nsqd.broker.latency import merged_snapshot
from nsqd.broker.limits import MOST_LOOKS, Usage, count_cause, has_limit
from nsqd.broker.policy import TopicDryRun, TopicPolicy
from nsqd.broker.publish_buffer import PublishBuffer
from nsqd.broker.rules import deletion_at
from nsqd.broker.stats_records import NO_LATENCY, LatencySnapshot

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch, Receipt
    from nsqd.broker.change import Change, TopicChange
    from nsqd.broker.journal_replay import ChannelState, TopicState
    from nsqd.broker.rules import TopicRules
    from nsqd.broker.store import TopicLog
    from nsqd.broker.turn_context import TurnContext

# Keys of other deferred publishes that are looked at for each one that is added: so at most half of them are not needed.
_LOOKED_AT: Final = 2
_MOST_LOOKED_AT: Final = 200  # when the log is told what it can let go
_TOLD_ONE_BY_ONE: Final = 1_000  # changes of the journal about what was parked; a millisecond or two
_STARTS_IN_CHANGE: Final = 2_000
_LEARNED_AT_ONCE: Final = 2_000  # keys; a millisecond or two
_MOST_WAIT: Final = 10.0  # seconds that publishes wait for files to be removed; after that, an answer matters more
_SEQUENCES_ASKED: Final = 10_000  # at a time: what the log answers takes 200 bytes for each


class PublishRefused(Exception):
    """The topic takes no messages; `cause` is the error for the client."""

    def __init__(self, cause: str, *, is_full: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_full = is_full  # a bound of the policy is reached, so trying again later may help


@final
class Topic:
    def __init__(self, name: str, log: TopicLog, turn: TurnContext[Channel, Topic]) -> None:
        self.name = name
        self.log = log
        self.ephemeral = is_ephemeral(name)
        self.feed = TopicFeed(name, log, ephemeral=self.ephemeral)
        self.channels: dict[str, Channel] = {}
        self.paused = False
        self.learning = True  # until it is known which channels this topic has elsewhere
        self.closing = False
        self.early_deferrals = EarlyDeferrals()  # beyond H
        self._turn = turn
        self._written_tail = log.tail
        self.idle_since = turn.now  # when the last look has found new messages
        self._seen_tail = log.tail  # by that look
        # Publishes and their keys
        self._keys = TopicKeys(turn.keys, log.refusal, is_new=not log.tail)
        keys, forgotten = log.take_keys()
        self._keys.know(keys)
        self._keys.know_forgotten(forgotten)
        self._keys_from = log.keys_from  # as the journal knows it
        self._buffer = PublishBuffer(log, self._keys, turn)
        self._sealed: list[tuple[Batch, Receipt]] = []  # in this turn, and not released to the channels yet
        self._deferred_ids = DeferredIds()
        # The policy
        rules = turn.rules.topic(name)
        self.policy_counts: dict[str, int] = {}  # by cause: what rules have done, or would have done
        self.policy = TopicPolicy(rules.in_force())
        self.dry_run = TopicDryRun(rules.dry_run(), self.policy_counts)
        # One flag for each publish: whether a deletion, or a bound of the topic or of a channel, has to be checked.
        self._is_guarded = self.policy.refuses or self.dry_run.policy.refuses
        self._drops = self.policy.drops or self.dry_run.policy.drops
        self._oldest_file = 0  # as of the last publish under a bound that drops: the first sequence of the oldest file
        self._waits_since = inf  # since when publishes wait for files to be removed
        # Figures
        self.message_count = 0
        self.message_bytes = 0
        self.outdated_count = 0  # messages that retention dropped before a channel got them
        self._note_dropping()

    @property
    def high_watermark(self) -> int:
        """H: what lies before belongs to the channels."""
        return self.feed.high_watermark

    @property
    def flowing(self) -> bool:
        """Whether H follows the tail."""
        return not self.paused and not self.learning and bool(self.channels)

    @property
    def depth(self) -> int:
        return self._written_tail - self.high_watermark - len(self.early_deferrals.cancelled)

    @property
    def backend_depth(self) -> int:
        return max(0, min(self.depth, self.log.cached_from - self.high_watermark))

    # Publishing

    def publish_one(self, sized_body: bytes, delay_ms: int = 0, key: bytes = b"", headers: bytes = b"") -> Receipt:
        """Publish one message, given with its four bytes of size. Publishes of one turn share a batch and a receipt.

        `headers` are encoded, as everywhere here.
        """
        if delay_ms:
            return self.publish(sized_body, (0, len(sized_body)), delay_ms, key, headers)
        if key:
            if self.closing:
                raise PublishRefused("exiting")
            if (known := self._find_key(key)) is not None:
                return known
        if self._is_guarded:
            self._admit(1, len(sized_body) + len(headers))
        self._turn.unsealed[self] = None
        if key and self._keys_from < 0:
            self._expect_keys()
        return self._buffer.add_one(sized_body, key, headers)

    def publish(
        self, payload: bytes, offsets: Sequence[int], delay_ms: int = 0, key: bytes = b"", headers: bytes = b""
    ) -> Receipt:
        """Publish messages in one batch: all of them or none. `headers` are those of all messages, or empty.

        If the key was used not long ago, nothing is published, and the receipt of that time is returned.
        """
        if self.closing:
            raise PublishRefused("exiting")
        if key and (known := self._find_key(key)) is not None:
            return known
        if self._is_guarded:
            self._admit(len(offsets) - 1, len(payload) + len(headers))
        self._turn.unsealed[self] = None
        if key and self._keys_from < 0:
            self._expect_keys()
        if delay_ms:
            self._turn.deferring[self] = None
        return self._buffer.add(payload, offsets, delay_ms, key, headers)

    def _find_key(self, key: bytes) -> Receipt | None:
        """Return the receipt of the publish that was made with this key, in this turn or before; None: there is none."""
        if (receipt := self._buffer.receipt_of(key)) is not None:
            self._keys.repeats += 1
            return receipt
        if not self._keys.may_know(key):  # most keys are new, and only a known one needs the time
            return None
        return self._keys.find(key, self._turn.timestamp, self.waits)

    def _expect_keys(self) -> None:
        """Tell the journal that there are keys from here on, before the log has them, so that a start looks for them."""
        self._note_keys_from(self.log.tail)

    def _note_keys_from(self, sequence: int) -> None:
        self._keys_from = sequence
        self.record(("keys", self.name, sequence))

    def _note_no_keys(self) -> None:
        self._note_keys_from(~self.log.tail)  # keys that lie before, in what was emptied, stay forgotten

    def buffered(self) -> Usage:
        """Return what was published and has no place in the log yet, with the bytes that it will take there, or a few more."""
        return self._buffer.usage_in_log()

    def record_deferred(self, timestamp: int) -> None:
        """Tell the journal which of this turn's publishes are deferred, and where `seal` is going to place them.

        The journal is told before the log has them. So a crash in between leaves nothing that could be delivered early,
        and if the journal cannot be written, nothing has to be taken back. A log that is going to refuse the messages
        gives them no place, so the journal is told nothing.
        """
        if self.ephemeral or self.log.refusal() is not None:
            return
        for sequence, count, delay_ms in self._buffer.deferrals():
            if self.flowing:
                self.record(("defer", self.name, sequence, count, timestamp // 1_000_000 + delay_ms + 1))
            else:
                self.record(("park", self.name, sequence, count, delay_ms))

    def seal(self, timestamp: int) -> None:
        """Give this turn's publishes their places in the log, and append them to its buffer.

        A log in memory may have no room for some of them. These are dropped, but count as published, as in NSQ.
        """
        if self._is_guarded:
            self._forget_room()
        dropped: list[Usage] | None = [] if self.ephemeral and not self.flowing else None
        self._sealed += self._buffer.seal(timestamp, dropped)
        if dropped:
            self.message_count += sum(it.messages for it in dropped)
            self.message_bytes += sum(it.size for it in dropped)

    def refuse(self, cause: str) -> None:
        """Fail this turn's publishes. A `cut` takes back what the journal was told of them, once it works again."""
        self._forget_room()
        if self._buffer.fail(cause):
            self.record(("cut", self.name, self.log.tail))

    # Handing over

    def release_to_channels(self, now: float) -> None:
        """Count the messages that the log has taken and, if the topic flows, give them to the channels."""
        sealed, self._sealed = self._sealed, []
        failed = False
        deferred: list[tuple[int, int, int]] = []
        for batch, receipt in sealed:
            if receipt.error is not None:
                failed = failed or batch.delay_ms > 0
                continue
            self.message_count += batch.count
            self.message_bytes += len(batch.payload) - 4 * batch.count  # without the sizes of the messages
            if batch.delay_ms:
                deferred.append((batch.base_sequence, batch.count, batch.delay_ms))
                self._deferred_ids.add(batch.base_id, batch.base_sequence, batch.count, self.waits)
                if batch.key:
                    self._keys.drop_unneeded(_LOOKED_AT, batch.timestamp, self.waits)
                    self._keys.defer(batch.key, batch.base_sequence, batch.count, batch.timestamp)
        self._written_tail = self.log.tail
        if failed:
            self.record(("cut", self.name, self._written_tail))
        before, early = self.feed.high_watermark, self.early_deferrals
        if self.flowing and not (early.pieces or early.cancelled):
            self._advance(now, sealed, deferred)
        else:
            for start, count, delay_ms in deferred:
                early.add(start, count, delay_ms)
            if self.flowing:  # something was taken back before it was handed over
                self._start_flowing()
        if self._drops:
            self.drop_beyond_limits(before)

    def _advance(
        self,
        now: float,
        fresh: Sequence[tuple[Batch, Receipt]] | None = None,
        deferred: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        """Move H to the tail, and hand over what is parked.

        `fresh`: the batches of this turn with their receipts, if nothing is parked; None: take them from the log. Each
        channel gets the first of them, so that a consumer that keeps up need not wait for a look into the log.
        `deferred`: start, count and delay_ms of those among them that are deferred.
        """
        for channel in self.channels.values():
            if channel.ledger.ephemeral_batches is not None:
                channel.keep(self._in_memory() if fresh is None else _written(fresh))
        before, self.feed.high_watermark = self.feed.high_watermark, self._written_tail
        if fresh is None and self.early_deferrals:
            parked, self.early_deferrals = self.early_deferrals, EarlyDeferrals()
            for channel in self.channels.values():
                channel.take_early_deferrals(parked, microseconds(now))
            self._turn.reclaimer.add_blocks(parked.pieces)  # unless channels have them, they end here
        for start, count, delay_ms in deferred:
            due = microseconds(now) + delay_ms * 1000
            for channel in self.channels.values():
                channel.defer(start, count, due)
        batch = fresh[0][0] if fresh and fresh[0][1].error is None else None
        for channel in tuple(self.channels.values()):
            channel.take_new(before, batch)
        if self.ephemeral:
            self.log.release(self.high_watermark)

    def _in_memory(self) -> Iterator[Batch]:
        """Yield what is about to be handed over, as far as it is in memory."""
        sequence = max(self.high_watermark, self.log.cached_from)
        while sequence < self._written_tail and (batch := self.log.batch_at(sequence)) is not None:
            yield batch
            sequence = batch.end_sequence

    def _start_flowing(self) -> None:
        """Move H after a first channel came or the pause ended. The delays of parked deferrals begin now."""
        if self.early_deferrals:
            self._record_early_deferrals()
            self.record(("unpark", self.name))
        self.record(("flow", self.name))
        before = self.high_watermark
        self._advance(self._turn.now)
        if self._drops:
            self.drop_beyond_limits(before)

    def _record_early_deferrals(self) -> None:
        """Tell the journal that all channels get now what is parked: in words that 0.1.0 knows, if these are few."""
        now_ms = self._turn.timestamp // 1_000_000
        if self.early_deferrals.parts * len(self.channels) > _TOLD_ONE_BY_ONE:
            self.record(("start", self.name, now_ms))
            return
        for start, count, delay_ms in self.early_deferrals.in_order():
            if delay_ms < 0:
                for channel in self.channels.values():
                    channel.ledger.record_skip(start, start + count)
            else:
                self.record(("defer", self.name, start, count, now_ms + delay_ms + 1))

    def let_go(self) -> None:
        """Tell the log which messages it need not keep any more, after telling the journal why."""
        if self._keys_from >= 0:
            self._turn.keys.forget_old(self._turn.timestamp)
            self._keys.drop_unneeded(_MOST_LOOKED_AT, self._turn.timestamp, self.waits)
            if not self._keys and not self._buffer.has_keys:
                self._note_no_keys()
        if not self.channels and not self.learning:
            self._drop_outdated()
        low = passed = self.feed.high_watermark  # as `low_watermark` and `passed` return, in one loop over the channels
        for channel in self.channels.values():
            ledger = channel.ledger
            ledger.record_progress()
            if ledger.ephemeral_batches is None:
                low, passed = min(low, ledger.low_watermark()), min(passed, ledger.cursor)
        self.log.release(low, passed)

    def passed(self) -> int:
        """Return the sequence before which channels need single messages only; see `exceptions`."""
        passed = self.feed.high_watermark
        for channel in self.channels.values():
            if channel.ledger.ephemeral_batches is None:
                passed = min(passed, channel.ledger.cursor)
        return passed

    def rewind_to(self, sequence: int) -> None:
        """Tell the log, before it removes anything else, that a channel needs messages from here on once more."""
        for channel in self.channels.values():
            channel.ledger.record_progress()
        # Copying messages forward may be under way, without those that are needed again. For the log this looks as if
        # a cursor had gone back there: it keeps the originals (see `Carrying`). Then it learns where the cursors are.
        self.log.release(min(sequence, self.low_watermark()))
        self.let_go()

    def _drop_outdated(self) -> None:
        """Drop what waited for a first channel longer than this topic's own retention allows."""
        outdated = min(self.log.outdated(), self._written_tail)
        if outdated <= self.high_watermark:
            return
        dropped = outdated - self.high_watermark
        self.outdated_count += dropped
        self._pass_over(outdated)
        self._turn.note(
            f"TOPIC({self.name}): retention drops {dropped} messages that no channel got, "
            f"{self.outdated_count} since the start"
        )

    def _pass_over(self, end: int) -> None:
        self.feed.high_watermark = end
        self._turn.reclaimer.add_blocks(self.early_deferrals.pass_over(end))
        # The log removes nothing before the journal entry that says this is synced.
        self.record(("freeze", self.name, end))

    def exceptions(self) -> Iterator[Iterable[int]]:
        """Return, in pieces, the sequences of all that waits or is in flight, as of now.

        The channels' progress is recorded first, so the journal knows about everything that is not in the result.
        """
        channels = [channel for channel in self.channels.values() if channel.ledger.ephemeral_batches is None]
        for channel in channels:
            channel.ledger.record_progress()
        return chain.from_iterable([channel.ledger.exceptions() for channel in channels])

    def low_watermark(self) -> int:
        """Return the sequence before which no channel needs anything, and a new one would not either."""
        low = self.feed.high_watermark
        for channel in self.channels.values():
            if channel.ledger.ephemeral_batches is None:
                low = min(low, channel.ledger.low_watermark())
        return low

    @property
    def last_place(self) -> int:
        """The highest cursor that a channel can be given: H, or the place to which a first channel would move H."""
        return self.high_watermark if self.paused or self.learning else self._written_tail

    # Channels

    def channel(self, name: str, *, cursor: int | None = None) -> Channel:
        """Return the channel of this name, and create it if need be. The first channel gets what has waited.

        A new channel begins at `cursor`, or else where messages are handed over now.
        """
        channel = self.channels.get(name)
        if channel is None:
            was_flowing = self.flowing
            begins = self.high_watermark if cursor is None else cursor
            channel = Channel(name, self, self.feed, self._turn, cursor=begins, ephemeral=is_ephemeral(name))
            self.channels[name] = channel
            self._record_name(channel, ("channel", self.name, name, channel.ledger.cursor))
            self._turn.note(f"TOPIC({self.name}): new channel({name})")
            if self.flowing and not was_flowing:
                self._start_flowing()
            self._turn.shape_changed(self.name)
            if self._is_guarded or self._drops or has_limit(channel.policy.rules) or has_limit(channel.dry_run.rules):
                self.limits_changed()
        return channel

    def learned(self, names: Iterable[str]) -> None:
        """Create these channels, which exist elsewhere, and hand messages over from now on.

        Once is enough for each topic: the journal remembers it.
        """
        for name in sorted(names):
            self.channel(name)
        self.learning = False
        self.record(("learned", self.name))
        if self.flowing:
            self._start_flowing()

    def delete_channel(self, name: str) -> bool:
        """Delete a channel. Return False if it is unknown."""
        was_flowing = self.flowing
        channel = self.channels.pop(name, None)
        if channel is None:
            return False
        self._turn.note(f"TOPIC({self.name}): deleting channel {name}")
        self._record_name(channel, ("nochannel", self.name, name))
        channel.close()
        if self._is_guarded or self._drops:
            self.limits_changed()  # its own bound is in nobody's way any more
        if not self.channels:
            if was_flowing:
                self.record(("freeze", self.name, self.high_watermark))
            if self.ephemeral:
                self._turn.delete_topic(self.name)
        self._turn.to_release[self] = None
        self._turn.shape_changed(self.name)
        return True

    # Operating

    def pause(self) -> None:
        if not self.paused:
            was_flowing = self.flowing
            self.paused = True
            self.record(("pause", self.name, True))
            if was_flowing:
                self.record(("freeze", self.name, self.high_watermark))
            self._turn.shape_changed(self.name)

    def unpause(self) -> None:
        if self.paused:
            self.paused = False
            self.record(("pause", self.name, False))
            if self.flowing:
                self._start_flowing()
            self._turn.shape_changed(self.name)

    def empty(self) -> None:
        """Drop what no channel has got yet. Channels keep what they have, and history stays readable."""
        self._buffer.close_shared()  # the keys of this turn are forgotten as well
        if self._keys:
            self._keys.forget()
            self._note_no_keys()
        before, self.feed.high_watermark = self.feed.high_watermark, self._written_tail
        if before == self.high_watermark:
            return
        self._turn.reclaimer.add_blocks(self.early_deferrals.clear())
        for channel in self.channels.values():
            channel.ledger.pass_over(before, self.high_watermark)
        self.record(("unpark", self.name))
        self.record(("freeze", self.name, self.high_watermark))
        if self.ephemeral:
            self.log.release(self.high_watermark)  # makes room at once; a journal entry is not needed
        else:
            self._turn.to_release[self] = None

    def close(self) -> None:
        """Refuse this turn's publishes and disconnect all consumers, because the topic is being deleted."""
        self.closing = self._is_guarded = True
        self._buffer.close_shared()  # its keys are forgotten with the others
        self._keys.forget()
        self._buffer.fail("exiting")
        for place in (self._turn.unsealed, self._turn.deferring, self._turn.postponed, self._turn.dropping):
            place.pop(self, None)
        # A channel refers to its topic. If the topic kept its channels, both would wait for the garbage collector.
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.close()

    # Bounds

    def take_rules(self, rules: TopicRules) -> None:
        """Follow these rules from now on; `limits_changed` has to be called when the channels have theirs, too."""
        self.policy.follow(rules.in_force())
        self.dry_run.policy.follow(rules.dry_run())

    def limits_changed(self) -> None:
        """Note that bounds of the topic or of a channel came or went."""
        policies = [self.policy, self.dry_run.policy]
        refuses, drops = any(it.refuses for it in policies), any(it.drops for it in policies)
        for channel in self.channels.values():
            for policy in (channel.policy, channel.dry_run.policy):
                refuses, drops = refuses or policy.refuses, drops or policy.drops
            channel.records_deliveries = self.policy.drops or channel.policy.drops
            if channel.records_deliveries:
                # What was delivered before is not to be dropped after a crash, either.
                channel.ledger.record_progress(urgent=True)
        self._is_guarded, self._drops = self.closing or refuses, drops
        self._forget_room()
        if drops:
            self.drop_beyond_limits()
        self._note_dropping()

    def _note_dropping(self) -> None:
        has_bound = self.policy.drops or any(channel.policy.drops for channel in self.channels.values())
        if has_bound and not self.ephemeral:
            self._turn.dropping[self] = None
        else:
            self._turn.dropping.pop(self, None)

    def _admit(self, count: int, size: int) -> None:
        """Let messages of the topic or of one of its channels be published, unless that is full. Raises PublishRefused."""
        if self.closing:
            raise PublishRefused("exiting")
        if not self._is_guarded:
            return
        if not self.policy.is_measured:
            self._measure()
        if (full := self.policy.admit(count, size)) is not None:
            if self._buffer.is_empty:
                self.policy.forget_room()  # this turn may end without a look at the topic
            self._count(f"{full.rule}, rejected", count)
            raise PublishRefused(full.words, is_full=True)
        self.dry_run.published(count, size)

    def _measure(self) -> None:
        """Measure how much room this turn's publishes have."""
        drafted = self._buffer.usage()
        held = self._usage().plus(drafted)
        channels = [
            (channel, channel.usage().plus(drafted))
            for channel in self.channels.values()
            if channel.policy.refuses or channel.dry_run.policy.refuses
        ]
        self.policy.measure(self.name, held, [(it.name, it.policy.rules, usage) for it, usage in channels])
        self.dry_run.policy.measure(self.name, held, [(it.name, it.dry_run.rules, usage) for it, usage in channels])

    def _forget_room(self) -> None:
        self.policy.forget_room()
        self.dry_run.policy.forget_room()

    def _usage(self) -> Usage:
        passed = self.passed()
        return Usage(self.log.tail - passed, self.log.bytes_from(passed))

    def drop_beyond_limits(self, arrived: int | None = None) -> None:
        """Drop the oldest messages of channels that have too many by their own bounds or by the topic's.

        `arrived`: where the messages begin that were just handed over.
        """
        for channel in self.channels.values():
            channel.apply_limits(arrived)
        if self.dry_run.policy.drops:
            self.dry_run.holds(self._usage())
        if self.policy.drops and (beyond := self.policy.excess(self._usage())):
            self._drop_before(min(self.passed() + beyond, self._written_tail))

    def _drop_before(self, end: int) -> bool:
        """Drop what lies before this sequence. Return False if a later turn has to drop more of it."""
        for channel in self.channels.values():
            if channel.ledger.ephemeral_batches is None:
                channel.drop_before(end)
        if any(channel.is_behind for channel in self.channels.values()):
            return False  # what nobody got yet is newer than what these still have
        if (before := self.high_watermark) < end:  # nobody got these yet
            self._count("overflow, dropped", end - before)
            self._pass_over(end)
            for channel in self.channels.values():
                channel.ledger.pass_over(before, end)
        return True

    def must_block(self, coming: Usage, now: float) -> bool:
        """Make room for what is about to be published. Return whether it has to wait until files are removed.

        This is how a bound of bytes holds by construction. Say it is 16 MiB, and files have 4 MiB. What waits is never
        more than the bound, because the oldest messages are dropped *before* others are written. The file of the oldest
        one may have up to 4 MiB that nobody needs. When all of that file is dropped, it is removed at once, and until it
        is gone nothing more is written than those 4 MiB allow. So the files never have more than 20 MiB, unless what is
        published at once is more than 16 MiB by itself. Dropping may take several turns, for which publishes wait as well.
        """
        has_room = self._make_room(coming)
        passed = self.passed()
        if (base := self.log.file_of(passed)) != self._oldest_file:
            self._oldest_file = base
            self.let_go()
        if has_room and not self.log.waits_for_removal(passed):
            self._waits_since = inf
            return False
        self._waits_since = min(self._waits_since, now)
        self._forget_room()  # it is measured anew in each turn
        return now - self._waits_since < _MOST_WAIT

    def _make_room(self, coming: Usage) -> bool:
        """Drop what has to go for what is about to be published. Return False if a later turn has to drop more."""
        has_room = True
        for channel in self.channels.values():
            has_room = channel.make_room(coming) and has_room
        if not self.policy.drops:
            return has_room
        for _ in range(MOST_LOOKS):
            if not (beyond := self.policy.excess_with(self._usage(), coming)):
                break
            passed = self.passed()
            if not self._drop_before(min(passed + beyond, self._written_tail)):
                return False
            if self.passed() == passed:
                break
        return has_room

    def _count(self, cause: str, count: int) -> None:
        count_cause(self.policy_counts, cause, count)

    # Taking messages back

    def deferred_place(self, key: bytes) -> tuple[int, int] | None:
        """Return the place, as [start, end), of the messages that were published with this key and a delay."""
        return self._keys.deferred_place(key)

    def deferred_sequence(self, message_id: int) -> int | None:
        """Return the sequence of a message that was published with a delay since the start, and waits for its time."""
        sequence = self._deferred_ids.find(message_id)
        return sequence if sequence is not None and self.waits(sequence, sequence + 1) else None

    @property
    def knows_deferred_keys(self) -> bool:
        """Whether `deferred_place` knows all of them; otherwise the log may have more, for `learn_deferred`."""
        return self._keys.deferred.is_complete

    def learn_deferred(self, places: Iterable[tuple[bytes, int, int]]) -> Iterator[None]:
        """Take keys, with the starts and counts of their messages, that the log has: as many as there is room for.

        Yield after each few thousand, when others should have their turn.
        """
        keys = self._keys
        for number, (key, start, count) in enumerate(places, 1):
            is_new = keys.deferred_place(key) is None and self.waits(start, start + count)
            if self.closing or (is_new and not keys.learn_deferred(key, start, count)):
                return
            if number % _LEARNED_AT_ONCE == 0:
                yield
        keys.deferred.is_complete = True

    def waiting_place(self, places: Iterable[tuple[bytes, int, int]]) -> tuple[int, int] | None:
        """Return the first of these places, as [start, end), that has a message that waits for its time."""
        for _, start, count in places:
            if self.waits(start, start + count):
                return start, start + count
        return None

    def knows_key(self, key: bytes) -> bool:
        """Return whether a publish with this key is remembered, with a delay or without."""
        return self._buffer.receipt_of(key) is not None or self._keys.knows(key, self._turn.timestamp, self.waits)

    def forgotten_place(self, key: bytes) -> tuple[int, int] | None:
        """Return the place of the messages that were all taken back by this key, which was forgotten then."""
        return self._keys.forgotten_place(key)

    def forget_key(self, key: bytes, start: int, end: int) -> None:
        """Forget the key of [start, end), as somebody has taken all of these messages back from all channels.

        So the key is free again: a reminder that is cancelled and set anew is delivered. The log still has the key, so
        the journal is told that it no longer counts.
        """
        self._keys.forget_key(key, start, end - start, self._turn.timestamp)
        self.record(("keyless", self.name, [start]))

    def waits(self, start: int, end: int) -> bool:
        """Return whether one of the messages [start, end) waits for its time, or for a channel."""
        if end > self.high_watermark:
            return True
        return any(channel.ledger.deferred.has_any(start, end) for channel in self.channels.values())

    def cancel_beyond(self, sequences: BitMap64) -> int:
        """Take messages at or behind H back, so that no channel ever gets them. Return how many were not taken back before."""
        fresh = self.early_deferrals.cancel(sequences)
        for sequence in fresh:
            self.record(("cancel", self.name, sequence))
        return len(fresh)

    # The journal

    def record(self, change: Change) -> None:
        """Record a change of this topic in the journal."""
        if not self.ephemeral:
            self._turn.journal.record(change)

    def _record_name(self, channel: Channel, change: TopicChange) -> None:
        """Record in the journal that a channel begins or ends."""
        if not channel.ephemeral:
            self.record(change)

    def snapshot_changes(self) -> Iterator[Change | None]:
        """Return the changes that tell a new journal of this topic, as of this call, even if iterated later.

        A None among them is an opportunity for others to have their turn.
        """
        state: list[Change] = [("topic", self.name)]
        if not self.learning:
            state.append(("learned", self.name))
        state.append(("keys", self.name, self._keys_from))
        forgotten = self._keys.forgotten_starts()
        pieces = range(0, len(forgotten), _STARTS_IN_CHANGE)
        state += [("keyless", self.name, forgotten[at : at + _STARTS_IN_CHANGE]) for at in pieces]
        if self.paused:
            state.append(("pause", self.name, True))
        state.append(("flow", self.name) if self.flowing else ("freeze", self.name, self.high_watermark))
        parked = self._snapshot_early_deferrals(self.early_deferrals.copy())
        channels = [channel.snapshot_changes() for channel in self.channels.values() if not channel.ephemeral]
        return chain(state, parked, *channels)

    def _snapshot_early_deferrals(self, parked: EarlyDeferrals) -> Iterator[Change]:
        for start, count, delay_ms in parked.batches:
            yield "park", self.name, start, count, delay_ms
        for sequence in parked.cancelled:
            yield "cancel", self.name, sequence

    def restore(self, state: TopicState) -> None:
        """Take over the state that recovery found."""
        self.paused = state.paused
        self.learning = not state.learned
        for name, channel_state in state.channels.items():
            self.channels[name] = Channel(
                name, self, self.feed, self._turn, cursor=channel_state.cursor, ephemeral=is_ephemeral(name)
            )
        if not self.flowing:
            if state.frozen_at is None:  # its last channels were ephemeral, and ended with the process
                self.record(("freeze", self.name, self.high_watermark))
            else:
                self.feed.high_watermark = state.frozen_at
        self.early_deferrals = state.parked
        for name, channel_state in state.channels.items():
            self.channels[name].restore(self._without_lost(channel_state))
        self._find_deferred_keys()
        self.limits_changed()

    def _find_deferred_keys(self) -> None:
        """Have the log tell the keys of what was published with a delay and still waits, before the window or within it."""
        if not self._turn.keys.window or self._keys_from < 0:
            return
        with_keys, waiting = bitmap_of(self._keys_from, self.log.tail), BitMap64()
        for channel in self.channels.values():
            waiting |= channel.ledger.deferred.among(with_keys)
        for start, count, _ in self.early_deferrals.delayed():
            waiting |= bitmap_of(max(start, self._keys_from), start + count)
        rest = iter(waiting)
        while some := list(islice(rest, _SEQUENCES_ASKED)):
            for key, start, count, published in self.log.deferred_keys(some):
                self._keys.defer_part(key, start, count, published)

    def _without_lost(self, state: ChannelState) -> ChannelState:
        """Take out, and count, messages that are nowhere any more: neither in the log nor in a side file."""
        first, next_readable = self.log.first, self.log.next_readable
        places = chain([state.waiting], state.buried.sequences())
        early = [sequence for piece in places for sequence in piece if sequence < first]
        lost = [sequence for sequence in early if next_readable(sequence) != sequence]
        if lost:
            for sequence in lost:
                if state.waiting.pop(sequence, None) is None:
                    state.buried.remove(sequence)
            self._turn.lost[self.name] = self._turn.lost.get(self.name, 0) + len(lost)
        return state

    # Seen from outside

    def is_idle(self, now: float) -> bool:
        """Return whether nothing was published since some look before, nobody consumes, and there is no message."""
        if self.log.tail != self._seen_tail:
            self._seen_tail, self.idle_since = self.log.tail, now
        return not any(channel.consumers for channel in self.channels.values())

    @property
    def is_unused(self) -> bool:
        """Whether nobody consumes, and nothing was published since the last look at `is_idle`."""
        return self.log.tail == self._seen_tail and not any(channel.consumers for channel in self.channels.values())

    @property
    def is_empty(self) -> bool:
        """Whether neither the topic nor a channel has a message. What retention keeps is finished."""
        no_channel_got = self._written_tail - self.high_watermark
        return not no_channel_got and all(channel.is_empty for channel in self.channels.values())

    @property
    def repeat_count(self) -> int:
        """Publishes that were ignored because their keys were known."""
        return self._keys.repeats

    def expires_at(self) -> int | None:
        """Return when the policy deletes the topic, because nothing uses it, or None."""
        if (
            self.policy.rules.expire_after is None or not self.is_unused
        ):  # the channels of most topics need not be looked at
            return None
        return deletion_at(
            self.policy.rules, self.idle_since, is_empty=self.is_empty, now=self._turn.now, at=self._turn.timestamp
        )

    def latency(self) -> LatencySnapshot:
        """Return how long messages take from publish to FIN, over all channels."""
        latencies = [channel.latency for channel in self.channels.values() if channel.latency is not None]
        if self._turn.latency is None or not latencies:
            return NO_LATENCY
        return merged_snapshot(self._turn.latency, latencies, self._turn.now)


def _written(sealed: Iterable[tuple[Batch, Receipt]]) -> list[Batch]:
    return [batch for batch, receipt in sealed if receipt.error is None]
