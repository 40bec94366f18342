"""A topic: one log, and the channels that read it.

Messages before `high_watermark` (H in the docs) belong to the channels. While the topic *flows*, because it has a
channel and isn't paused, H follows the tail. Otherwise it stands still, and new messages wait beyond it. H also stands
still while the topic is *learning* which channels it has on other nodes, so that each of them gets the first messages
that are published here.

A topic has

    feed            the log and H, as the channels see them
    channels        by name
    early_deferrals the deferred and cancelled messages beyond H
    policy          the rules in force; `dry_run` has the rules that are only counted (policy.py)

and this turn's publishes until they are in the log (publish_buffer.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING, Final, final

from pyroaring import BitMap64

from nsqcommon.wire.log_record import COPY
from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.bitmaps import bitmap_of
from nsqd.broker.channel import Channel, microseconds
from nsqd.broker.early_deferrals import EarlyDeferrals
from nsqd.broker.edit import COPY_DELAY_MS
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
    from nsqd.broker.edit import Edit
    from nsqd.broker.journal_replay import ChannelState, TopicState
    from nsqd.broker.rules import TopicRules
    from nsqd.broker.store import TopicLog
    from nsqd.broker.turn_context import TurnContext

# Other keys of deferred publishes to check for each new one. With two, at most half of the keys are unneeded.
_CHECKED_PER_KEY: Final = 2
_CHECKED_ON_RELEASE: Final = 200  # keys to check in `apply_retention`
_TOLD_ONE_BY_ONE: Final = 1_000  # journal entries about early deferrals; a millisecond or two
_STARTS_IN_CHANGE: Final = 2_000
_LEARNED_AT_ONCE: Final = 2_000  # keys; a millisecond or two
_MOST_WAIT: Final = 10.0  # seconds that publishes wait for the removal of files; then they are written anyway
_OF_COPY: Final = -1  # instead of a delay: this message is an edited copy
_SEQUENCES_ASKED: Final = 10_000  # in one call, because the log's answer takes 200 bytes for each


class PublishRefused(Exception):
    """The topic rejects a publish. `cause` is the error for the client."""

    def __init__(self, cause: str, *, is_full: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_full = is_full  # because of a limit of the policy, so the client may try again later


@final
class Topic:
    def __init__(self, name: str, log: TopicLog, turn: TurnContext[Channel, Topic]) -> None:
        self.name = name
        self.log = log
        self.ephemeral = is_ephemeral(name)
        self.feed = TopicFeed(name, log, ephemeral=self.ephemeral)
        self.channels: dict[str, Channel] = {}
        self.paused = False
        self.learning = True  # until we know which channels this topic has on other nodes
        self.closing = False
        self.early_deferrals = EarlyDeferrals()  # beyond H
        self._turn = turn
        self._written_tail = log.tail
        self.idle_since = turn.now  # when `is_idle` last found new messages
        self._seen_tail = log.tail  # at the last `is_idle`
        # Publishes and their keys
        self._keys = TopicKeys(turn.keys, log.refusal_now, is_new=not log.tail)
        keys, forgotten = log.take_keys()
        self._keys.know(keys)
        self._keys.know_forgotten(forgotten)
        self._keys_from = log.keys_from  # as in the journal
        self._buffer = PublishBuffer(log, self._keys, turn)
        self._sealed: list[tuple[Batch, Receipt]] = []  # this turn's, until the channels get them
        self._deferred_ids = DeferredIds()
        self._edits: dict[Receipt, Edit] = {}  # whose copies are among the unsealed or sealed publishes
        # The policy
        rules = turn.rules.topic(name)
        self.policy_counts: dict[str, int] = {}  # by cause: how often rules have acted, or would have
        self.policy = TopicPolicy(rules.in_force())
        self.dry_run = TopicDryRun(rules.dry_run(), self.policy_counts)
        # One flag per publish: true if a pending deletion, or a limit of the topic or of a channel, has to be checked.
        self._is_guarded = self.policy.refuses or self.dry_run.policy.refuses
        self._drops = self.policy.drops or self.dry_run.policy.drops
        self._oldest_file = 0  # first sequence of the file with the slowest cursor, as of the last `must_block`
        self._waits_since = inf  # when publishes began to wait for the removal of files
        # Figures
        self.message_count = 0
        self.message_bytes = 0
        self.outdated_count = 0  # messages that retention dropped before a channel got them
        self._update_dropping()

    @property
    def high_watermark(self) -> int:
        """H: messages before it belong to the channels."""
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
        """Publish one message. Publishes of the same turn share a batch and a receipt.

        `sized_body` begins with the body's size in four bytes. `headers` are encoded, as everywhere in this class.
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
        """Publish all messages in one batch, or none of them. `headers` has the headers of all messages, or is empty.

        If we know the key from an earlier publish, nothing is published, and you get a receipt for the earlier one.
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

    def publish_copy(self, edit: Edit, sized_body: bytes, key: bytes, headers: bytes) -> Receipt:
        """Publish an edited copy for one channel (edit.py). `headers` must have those of a copy.

        As with `publish`, the receipt may be that of an earlier publish with this key. Then nothing happens to the edit, and
        its `receipt` stays None. If the receipt has an error, `edit.refusal` may say why.
        """
        if self.closing:
            raise PublishRefused("exiting")
        if key and (known := self._find_key(key)) is not None:
            return known
        if self._is_guarded:
            self._admit(1, len(sized_body) + len(headers))
        self._turn.unsealed[self] = None
        if key and self._keys_from < 0:
            self._expect_keys()
        self._turn.deferring[self] = None
        delay_ms = max(edit.delay_ms, COPY_DELAY_MS)
        edit.receipt = self._buffer.add(sized_body, (0, len(sized_body)), delay_ms, key, headers, COPY)
        self._edits[edit.receipt] = edit
        return edit.receipt

    def receipt_of(self, key: bytes) -> Receipt | None:
        """Return a receipt for an earlier publish with this key, as a repeat of it would get, or None."""
        return self._find_key(key)

    def _find_key(self, key: bytes) -> Receipt | None:
        """Return a receipt for an earlier publish with this key, possibly in this turn, or None."""
        if (receipt := self._buffer.receipt_of(key)) is not None:
            self._keys.repeats += 1
            return receipt
        if not self._keys.may_know(key):  # a quick check, because most keys are new
            return None
        earlier = self._keys.find(key, self._turn.timestamp, self.waits)
        return self.log.answer_repeat(earlier) if earlier is not None else None

    def _expect_keys(self) -> None:
        """Record that keys begin at the log's tail, so that the next start looks for them. The log has none yet."""
        self._note_keys_from(self.log.tail)

    def _note_keys_from(self, sequence: int) -> None:
        self._keys_from = sequence
        self.record(("keys", self.name, sequence))

    def _note_no_keys(self) -> None:
        self._note_keys_from(~self.log.tail)  # ~: there are no keys, and any before the tail stay forgotten

    def buffered(self) -> Usage:
        """Return the size of the publishes that aren't in the log yet. The bytes may be a few more than on disk."""
        return self._buffer.usage_in_log()

    def record_deferred(self, timestamp: int) -> None:
        """Record this turn's deferred publishes in the journal, with the sequences that `seal` will give them.

        The journal gets them before the log does. So after a crash in between, nothing can be delivered early, and if
        the journal can't be written, there is nothing to undo. If the log is going to refuse the messages, they get no
        sequences, so we record nothing.
        """
        if self.ephemeral or self.log.refusal() is not None:
            return
        if self._edits:
            self._check_edits()
        for sequence, count, delay_ms, receipt in self._buffer.deferrals():
            if self._edits and (edit := self._edits.get(receipt)) is not None:
                self._record_edit(edit, sequence, timestamp)
            elif self.flowing:
                self.record(("defer", self.name, sequence, count, timestamp // 1_000_000 + delay_ms + 1))
            else:
                self.record(("park", self.name, sequence, count, delay_ms))

    def _check_edits(self) -> None:
        """Fail edits of messages that are elsewhere by now, for example because their publish had to wait."""
        taken: set[tuple[str, int]] = set()
        for receipt, edit in list(self._edits.items()):
            place = edit.channel.name, edit.sequence
            if self.channels.get(edit.channel.name) is edit.channel and edit.check_again(is_taken=place in taken):
                taken.add(place)
                continue
            del self._edits[receipt]
            self._buffer.withdraw(receipt, "the message is elsewhere by now")

    def _record_edit(self, edit: Edit, copy: int, timestamp: int) -> None:
        """Record in the journal that the log gets this copy next."""
        edit.copy = copy
        replaced, ledger = edit.sequence if edit.replaces else -1, edit.channel.ledger
        if edit.replaces:
            edit.former = ledger.place_for_journal(replaced, self._turn.wall_milliseconds)
        edit.due_ms = timestamp // 1_000_000 + edit.delay_ms + 1 if edit.delay_ms else 0
        ledger.record_copy(copy, replaced, edit.due_ms, edit.former)
        if not self.flowing:
            self.record(("cancel", self.name, copy))
            return
        for channel in self.channels.values():
            channel.ledger.record_skip(copy, copy + 1)

    def _run_copy(self, copy: int, now: float, *, is_released: bool) -> None:
        """Let the channel of a copy have it, now that the log does. If H has passed it, all channels skip it."""
        ((receipt, edit),) = [it for it in self._edits.items() if it[1].copy == copy]
        del self._edits[receipt]
        for channel in self.channels.values() if is_released else ():
            if channel is edit.channel:
                channel.ledger.skip_unrecorded(copy, copy + 1)
            else:
                channel.ledger.pass_copy(copy)
        edit.run(microseconds(now))

    def seal(self, timestamp: int) -> None:
        """Give this turn's publishes their sequences, and append them to the log's buffer.

        If a log in memory has no room for some messages, these are dropped, but count as published, as in NSQ.
        """
        if self._is_guarded:
            self._forget_room()
        dropped: list[Usage] | None = [] if self.ephemeral and not self.flowing else None
        self._sealed += self._buffer.seal(timestamp, dropped)
        if dropped:
            self.message_count += sum(it.messages for it in dropped)
            self.message_bytes += sum(it.size for it in dropped)

    def refuse(self, cause: str) -> None:
        """Fail this turn's publishes. If the journal has deferrals of them, revert these with a `cut`."""
        self._forget_room()
        self._edits.clear()
        if self._buffer.fail(cause):
            self.record(("cut", self.name, self.log.tail))

    # Release to the channels

    def release_to_channels(self, now: float) -> None:
        """Count the messages that the log has accepted and, if the topic flows, release them to the channels."""
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
                delay_ms = batch.delay_ms if not batch.flags & COPY else _OF_COPY
                deferred.append((batch.base_sequence, batch.count, delay_ms))
                self._deferred_ids.add(batch.base_id, batch.base_sequence, batch.count, self.waits)
                if batch.key:
                    self._keys.drop_unneeded(_CHECKED_PER_KEY, batch.timestamp, self.waits)
                    self._keys.defer(batch.key, batch.base_sequence, batch.count, batch.timestamp)
        self._written_tail = self.log.tail
        if failed:  # the journal has deferrals of messages that are not in the log after all
            self._edits = {receipt: edit for receipt, edit in self._edits.items() if receipt.error is None}
            self.record(("cut", self.name, self._written_tail))
        before, early = self.feed.high_watermark, self.early_deferrals
        if self.flowing and not (early.pieces or early.cancelled):
            self._advance(now, sealed, deferred)
        else:
            for start, count, delay_ms in deferred:
                if delay_ms == _OF_COPY:
                    early.cancel(BitMap64((start,)))
                    self._run_copy(start, now, is_released=False)
                else:
                    early.add(start, count, delay_ms)
            if self.flowing:  # a message was cancelled before its release
                self._start_flowing()
        if self._drops:
            self.drop_beyond_limits(before)

    def _advance(
        self,
        now: float,
        fresh: Sequence[tuple[Batch, Receipt]] | None = None,
        deferred: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        """Move H to the tail, so that the channels get the messages and early deferrals before it.

        `fresh` has this turn's batches with their receipts, if there are no early deferrals. With None, the batches
        come from the log. Each channel gets the first batch directly, so that a consumer that keeps up needs no lookup
        in the log. `deferred` has start, count and delay_ms of the deferred batches among them; an edited copy has
        `_OF_COPY` instead of its delay.
        """
        for channel in self.channels.values():
            if channel.ledger.ephemeral_batches is not None:
                channel.keep(self._in_memory() if fresh is None else _written(fresh))
        before, self.feed.high_watermark = self.feed.high_watermark, self._written_tail
        if fresh is None and self.early_deferrals:
            waiting, self.early_deferrals = self.early_deferrals, EarlyDeferrals()
            for channel in self.channels.values():
                channel.take_early_deferrals(waiting, microseconds(now))
            self._turn.reclaimer.add_blocks(waiting.pieces)  # freed here, unless a channel still uses them
        for start, count, delay_ms in deferred:
            if delay_ms == _OF_COPY:
                self._run_copy(start, now, is_released=True)
                continue
            due = microseconds(now) + delay_ms * 1000
            for channel in self.channels.values():
                channel.defer(start, count, due)
        batch = fresh[0][0] if fresh and fresh[0][1].error is None else None
        for channel in tuple(self.channels.values()):
            channel.take_new(before, batch)
        if self.ephemeral:
            self.log.release(self.high_watermark)

    def _in_memory(self) -> Iterator[Batch]:
        """Yield the batches that are about to be released and are still in memory."""
        sequence = max(self.high_watermark, self.log.cached_from)
        while sequence < self._written_tail and (batch := self.log.batch_at(sequence)) is not None:
            yield batch
            sequence = batch.end_sequence

    def _start_flowing(self) -> None:
        """Release all messages that have waited for a first channel or for the end of a pause.

        The delays of early deferrals begin now.
        """
        if self.early_deferrals:
            self._record_early_deferrals()
            self.record(("unpark", self.name))
        self.record(("flow", self.name))
        before = self.high_watermark
        self._advance(self._turn.now)
        if self._drops:
            self.drop_beyond_limits(before)

    def passed_over(self) -> BitMap64:
        """Implement `TopicOfChannel.passed_over`."""
        return self.early_deferrals.cancelled

    def _record_early_deferrals(self) -> None:
        """Record in the journal that all channels get the early deferrals now.

        If there are few, we use entries that nsqd 0.1.0 can read. Otherwise, a single `start` stands for all of them.
        """
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

    def apply_retention(self) -> None:
        """Record the channels' progress, and then allow the log to remove messages that no channel needs."""
        if self._keys_from >= 0:
            self._turn.keys.forget_old(self._turn.timestamp)
            self._keys.drop_unneeded(_CHECKED_ON_RELEASE, self._turn.timestamp, self.waits)
            if not self._keys and not self._buffer.has_keys:
                self._note_no_keys()
        if not self.channels and not self.learning:
            self._drop_outdated()
        low = passed = self.feed.high_watermark  # before `passed`, channels only need single messages: see `exceptions`
        for channel in self.channels.values():
            ledger = channel.ledger
            ledger.record_progress()
            if ledger.ephemeral_batches is None:
                low, passed = min(low, ledger.low_watermark()), min(passed, ledger.cursor)
        self.log.release(low, passed)

    def passed(self) -> int:
        """Return the first sequence that the slowest channel hasn't delivered, as the topic's limits count it."""
        passed = self.feed.high_watermark
        for channel in self.channels.values():
            if channel.ledger.ephemeral_batches is None:
                passed = min(passed, channel.ledger.cursor)
        return passed

    def rewind_to(self, sequence: int) -> None:
        """Make the log keep the messages from `sequence` on, because a channel needs them again.

        Call this before the log can remove anything else.
        """
        for channel in self.channels.values():
            channel.ledger.record_progress()
        # Compaction may be copying messages, but not these. If we first report a cursor back at `sequence`, the log
        # keeps the segments (see `Compaction`). After that, `apply_retention` reports the real cursors.
        self.log.release(min(sequence, self.low_watermark()))
        self.apply_retention()

    def _drop_outdated(self) -> None:
        """Drop messages that have waited for a first channel for longer than the topic's own retention allows."""
        outdated = min(self.log.outdated(), self._written_tail)
        if outdated <= self.high_watermark:
            return
        dropped = outdated - self.high_watermark
        self.outdated_count += dropped
        self._discard_before(outdated)
        self._turn.note(
            f"TOPIC({self.name}): retention drops {dropped} messages that no channel got, "
            f"{self.outdated_count} since the start"
        )

    def _discard_before(self, end: int) -> None:
        """Discard the messages from H to `end`, which no channel has received."""
        self.feed.high_watermark = end
        self._turn.reclaimer.add_blocks(self.early_deferrals.pass_over(end))
        # The log only removes them after this entry is synced.
        self.record(("freeze", self.name, end))

    def exceptions(self) -> Iterator[Iterable[int]]:
        """Return, in pieces, the sequences that channels need besides the ones ahead of their cursors, as of now.

        The channels' progress is recorded first, so the journal has all other messages as finished.
        """
        channels = [channel for channel in self.channels.values() if channel.ledger.ephemeral_batches is None]
        for channel in channels:
            channel.ledger.record_progress()
        return chain.from_iterable([channel.ledger.exceptions() for channel in channels])

    def low_watermark(self) -> int:
        """Return the sequence before which no channel needs any message, not even a new channel."""
        low = self.feed.high_watermark
        for channel in self.channels.values():
            if channel.ledger.ephemeral_batches is None:
                low = min(low, channel.ledger.low_watermark())
        return low

    @property
    def last_place(self) -> int:
        """The highest cursor that a channel can be given: H, or the tail if a first channel would move H there."""
        return self.high_watermark if self.paused or self.learning else self._written_tail

    # Channels

    def channel(self, name: str, *, cursor: int | None = None) -> Channel:
        """Return the channel with this name, and create it if necessary. A new one begins at `cursor`, or else at H.

        The first channel of a topic also gets the messages that have waited for one.
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
        """Create these channels, which exist on other nodes, and release messages from now on.

        Each topic learns only once, because the journal records it.
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
            self.limits_changed()  # its limit no longer blocks publishes
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
        """Drop the messages that no channel has received yet. Channels keep theirs, and history stays readable."""
        self._buffer.close_shared()  # so that `forget` includes this turn's keys
        if self._keys:
            self._keys.forget()
            # What an earlier turn has postponed will come after the dropped messages, and its publisher may repeat it.
            if self in self._turn.postponed and self._buffer.remember_keys():
                self._expect_keys()
            else:
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
            self.log.release(self.high_watermark)  # frees memory right now; it needs no journal entry first
        else:
            self._turn.to_release[self] = None

    def close(self) -> None:
        """Refuse this turn's publishes and disconnect all consumers, because the topic is being deleted."""
        self.closing = self._is_guarded = True
        self._buffer.close_shared()  # so that `forget` includes its keys
        self._keys.forget()
        self._buffer.fail("exiting")
        self._edits.clear()
        for topics in (self._turn.unsealed, self._turn.deferring, self._turn.postponed, self._turn.dropping):
            topics.pop(self, None)
        # Channels refer to their topic. If it kept them, only the garbage collector could free this cycle.
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.close()

    # Limits

    def take_rules(self, rules: TopicRules) -> None:
        """Apply these rules from now on. Call `limits_changed` when the channels have theirs, too."""
        self.policy.follow(rules.in_force())
        self.dry_run.policy.follow(rules.dry_run())

    def limits_changed(self) -> None:
        """Apply the limits of the topic and its channels again, because limits or channels have changed."""
        policies = [self.policy, self.dry_run.policy]
        refuses, drops = any(it.refuses for it in policies), any(it.drops for it in policies)
        for channel in self.channels.values():
            for policy in (channel.policy, channel.dry_run.policy):
                refuses, drops = refuses or policy.refuses, drops or policy.drops
            channel.records_deliveries = self.policy.drops or channel.policy.drops
            if channel.records_deliveries:
                # Also record earlier deliveries: after a crash, the limit must not drop messages that were delivered.
                channel.ledger.record_progress(urgent=True)
        self._is_guarded, self._drops = self.closing or refuses, drops
        self._forget_room()
        if drops:
            self.drop_beyond_limits()
        self._update_dropping()

    def _update_dropping(self) -> None:
        has_bound = self.policy.drops or any(channel.policy.drops for channel in self.channels.values())
        if has_bound and not self.ephemeral:
            self._turn.dropping[self] = None
        else:
            self._turn.dropping.pop(self, None)

    def _admit(self, count: int, size: int) -> None:
        """Admit a publish, or raise PublishRefused because the topic or one of its channels is full."""
        if self.closing:
            raise PublishRefused("exiting")
        if not self._is_guarded:
            return
        if not self.policy.is_measured:
            self._measure()
        if (full := self.policy.admit(count, size)) is not None:
            if self._buffer.is_empty:
                self.policy.forget_room()  # without publishes, the end of the turn doesn't do it
            self._count(f"{full.rule}, rejected", count)
            raise PublishRefused(full.words, is_full=True)
        self.dry_run.published(count, size)

    def _measure(self) -> None:
        """Measure the room for this turn's publishes."""
        drafted = self._buffer.usage()
        held = self.usage().plus(drafted)
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

    def usage(self) -> Usage:
        """Return how much the topic keeps for its channels, including what they haven't got yet. Bytes are estimated."""
        log, passed = self.log, self.passed()
        usage = Usage(log.tail - passed, log.bytes_from(passed))
        for channel in self.channels.values():
            ledger = channel.ledger
            if (held := ledger.held.total) and ledger.ephemeral_batches is None:
                size = log.bytes_from(ledger.cursor) + ledger.mean_of(held)
                usage = usage.at_least(Usage(log.tail - ledger.cursor + held, size))
        return usage

    def drop_beyond_limits(self, arrived: int | None = None) -> None:
        """Drop the oldest messages that exceed a limit of a channel or of the topic.

        `arrived` is the first sequence of the messages that were just released to the channels.
        """
        for channel in self.channels.values():
            channel.apply_limits(arrived)
        if self.dry_run.policy.drops:
            self.dry_run.holds(self.usage())
        if self.policy.drops and (beyond := self.policy.excess(usage := self.usage())):
            self._drop_before(self._end_of_oldest(beyond, usage))

    def _end_of_oldest(self, count: int, usage: Usage) -> int:
        """Return the `end` for `_drop_before` that reduces the usage by `count` messages."""
        return min(self.log.tail - usage.messages + count, self._written_tail)

    def _drop_before(self, end: int) -> bool:
        """Drop the oldest undelivered messages, until no channel has more than there are from `end` on.

        Returns False if a later turn has to drop more.
        """
        for channel in self.channels.values():
            if channel.ledger.ephemeral_batches is None:
                channel.drop_before(end)
        if any(channel.is_behind for channel in self.channels.values()):
            return False  # channels first: messages beyond H are newer
        if (before := self.high_watermark) < end:  # no channel has got these
            self._count("overflow, dropped", end - before)
            self._discard_before(end)
            for channel in self.channels.values():
                channel.ledger.pass_over(before, end)
        return True

    def must_block(self, incoming: Usage, now: float) -> bool:
        """Drop old messages to make room for incoming ones. Return whether these must wait for the removal of files.

        This is how we keep a limit of bytes. For example, with a limit of 16 MiB and files of 4 MiB, the files of the
        topic never have more than 20 MiB. We drop the oldest messages *before* we write new ones, so the messages that
        channels still need have at most 16 MiB. In addition, the oldest file may have up to 4 MiB of unneeded messages.
        As soon as none of its messages is needed, the file is removed, and until then we don't write more than these 4
        MiB allow. The exception is a single publish of more than 16 MiB. Dropping may take several turns, and publishes
        wait for that, too.
        """
        has_room = self._make_room(incoming)
        passed = self.passed()
        if (base := self.log.file_of(passed)) != self._oldest_file:
            self._oldest_file = base
            self.apply_retention()
        if has_room and not self.log.waits_for_removal(passed):
            self._waits_since = inf
            return False
        self._waits_since = min(self._waits_since, now)
        self._forget_room()  # the next turn measures it again
        return now - self._waits_since < _MOST_WAIT

    def _make_room(self, incoming: Usage) -> bool:
        """Drop the oldest messages to make room for incoming ones. Return False if a later turn has to drop more."""
        has_room = True
        for channel in self.channels.values():
            has_room = channel.make_room(incoming) and has_room
        if not self.policy.drops:
            return has_room
        for _ in range(MOST_LOOKS):
            usage = self.usage()
            if not (beyond := self.policy.excess_with(usage, incoming)):
                break
            if not self._drop_before(self._end_of_oldest(beyond, usage)):
                return False
            if self.usage() == usage:
                break
        return has_room

    def _count(self, cause: str, count: int) -> None:
        count_cause(self.policy_counts, cause, count)

    # Cancelling messages

    def deferred_place(self, key: bytes) -> tuple[int, int] | None:
        """Return the range [start, end) of the messages that were deferred with this key, or None if it is unknown."""
        return self._keys.deferred_place(key)

    def deferred_sequence(self, message_id: int) -> int | None:
        """Return the sequence of a message that was published since nsqd started and is still deferred, or None."""
        sequence = self._deferred_ids.find(message_id)
        return sequence if sequence is not None and self.waits(sequence, sequence + 1) else None

    @property
    def knows_deferred_keys(self) -> bool:
        """Whether `deferred_place` knows all keys. If not, look for others in the log, and call `learn_deferred`."""
        return self._keys.deferred.is_complete

    def learn_deferred(self, places: Iterable[tuple[bytes, int, int]]) -> Iterator[None]:
        """Learn keys from the log, each with start and count of its messages, while there is room for more.

        Yields after every few thousand keys, so that other work can run.
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
        """Return the first of these ranges, as [start, end), in which a message is still waiting."""
        for _, start, count in places:
            if self.waits(start, start + count):
                return start, start + count
        return None

    def knows_key(self, key: bytes) -> bool:
        """Return whether we remember a publish with this key, deferred or not."""
        return self._buffer.receipt_of(key) is not None or self._keys.knows(key, self._turn.timestamp, self.waits)

    def forgotten_place(self, key: bytes) -> tuple[int, int] | None:
        """Return the range of the last messages that had this key before it was forgotten, or None if it wasn't."""
        return self._keys.forgotten_place(key)

    def forget_key(self, key: bytes, start: int, end: int) -> None:
        """Forget the key of the messages [start, end), because all of them were cancelled in all channels.

        This makes the key free again. For example, if you cancel a reminder and then publish it again with the same
        key, it is delivered. The log still has the key, so we record in the journal that it no longer counts.
        """
        self._keys.forget_key(key, start, end - start, self._turn.timestamp)
        self.record(("keyless", self.name, [start]))

    def waits(self, start: int, end: int) -> bool:
        """Return whether one of the messages [start, end) is deferred, or hasn't been released to the channels yet."""
        if end > self.high_watermark:
            return True
        return any(channel.ledger.deferred.has_any(start, end) for channel in self.channels.values())

    def cancel_beyond(self, sequences: BitMap64) -> int:
        """Cancel messages at or after H, so that no channel gets them. Return how many weren't cancelled before."""
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
        """Record a channel's creation or deletion in the journal, unless it is ephemeral."""
        if not channel.ephemeral:
            self.record(change)

    def snapshot_changes(self) -> Iterator[Change | None]:
        """Return changes that describe this topic for a new journal, as of this call, even if you iterate later.

        At each None, other work may run.
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
        early_changes = self._snapshot_early_deferrals(self.early_deferrals.copy())
        channels = [channel.snapshot_changes() for channel in self.channels.values() if not channel.ephemeral]
        return chain(state, early_changes, *channels)

    def _snapshot_early_deferrals(self, early: EarlyDeferrals) -> Iterator[Change]:
        for start, count, delay_ms in early.batches:
            yield "park", self.name, start, count, delay_ms
        for sequence in early.cancelled:
            yield "cancel", self.name, sequence

    def restore(self, state: TopicState) -> None:
        """Take over the recovered state."""
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
        """Read from the log the keys of all messages that are still deferred, even ones older than the window."""
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
        """Remove and count messages that are gone: neither a segment nor a compacted file has them."""
        first, next_readable = self.log.first, self.log.next_readable
        places: Iterator[Iterable[int]] = chain([state.waiting, state.held], state.buried.sequences())
        early = [sequence for piece in places for sequence in piece if sequence < first]
        lost = [sequence for sequence in early if next_readable(sequence) != sequence]
        if lost:
            for sequence in lost:
                if state.waiting.pop(sequence, None) is None:
                    state.held.discard(sequence)
                    state.buried.remove(sequence)
            self._turn.lost[self.name] = self._turn.lost.get(self.name, 0) + len(lost)
        return state

    # Figures

    def is_idle(self, now: float) -> bool:
        """Return whether there are no consumers. If there were publishes since the last call, `idle_since` is now."""
        if self.log.tail != self._seen_tail:
            self._seen_tail, self.idle_since = self.log.tail, now
        return not any(channel.consumers for channel in self.channels.values())

    @property
    def is_unused(self) -> bool:
        """Whether there are no consumers, and nothing was published since the last `is_idle`."""
        return self.log.tail == self._seen_tail and not any(channel.consumers for channel in self.channels.values())

    @property
    def is_empty(self) -> bool:
        """Whether neither the topic nor a channel has any unfinished messages. Retained messages don't count."""
        no_channel_got = self._written_tail - self.high_watermark
        return not no_channel_got and all(channel.is_empty for channel in self.channels.values())

    @property
    def repeat_count(self) -> int:
        """Publishes that were ignored because their keys were known."""
        return self._keys.repeats

    def expires_at(self) -> int | None:
        """Return when the policy will delete the unused topic, or None if it won't."""
        # In this order, because most topics have no such rule, and then we needn't visit their channels.
        if self.policy.rules.expire_after is None or not self.is_unused:
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
