"""A topic: one log, and the channels that read it.

`handed_over` (H in the documents) says up to where the log belongs to the channels. While there is a channel and no
pause it follows the tail; otherwise it stands still, and what is published waits behind it. So it does while the topic
is *learning*: until it is known which channels it has elsewhere in the cluster, so that none of them misses what is
published here first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from common.wire.names import is_ephemeral
from nsqd.broker.batch import Batch, Receipt
from nsqd.broker.channel import Channel, microseconds
from nsqd.broker.feed import Feed
from nsqd.broker.keys import KeyMemory
from nsqd.broker.latency import merged_snapshot
from nsqd.broker.snapshot import NO_LATENCY, LatencySnapshot, TopicSnapshot

if TYPE_CHECKING:
    from nsqd.broker.change import Change, TopicChange
    from nsqd.broker.changes import ChannelState, TopicState
    from nsqd.broker.store import TopicLog
    from nsqd.broker.work import TopicWork


_MOST_BYTES_TOGETHER: Final = 1 << 20  # of PUBs in one batch; a batch is read, and sent, as a whole


class Refused(Exception):
    """The topic takes no messages; `cause` is what the client is told."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


# A batch to be, its place in the log not yet known: payload, offsets, delay in ms, receipt, key. A tuple, because every
# single publish makes one, and an object with names would cost it half a microsecond.
_Draft = tuple[bytes, Sequence[int], int, Receipt, bytes]


class Topic(Feed):
    def __init__(self, name: str, log: TopicLog, work: TopicWork[Channel, Topic]) -> None:
        super().__init__(name, log, ephemeral=is_ephemeral(name))
        self._work = work
        self.paused = False
        self.closing = False
        self.learning = True  # which channels this topic has elsewhere
        self.channels: dict[str, Channel] = {}
        self.message_count = 0
        self.message_bytes = 0
        self.outdated_count = 0  # messages that retention dropped before a channel got them
        self._written_tail = log.tail
        self._singles: list[bytes] = []  # PUBs of this turn; they become one batch
        self._singles_bytes = 0
        self._singles_receipt = Receipt()
        self._drafts: list[_Draft] = []
        self._keys = KeyMemory(work.idempotence_window, log.keys)
        self._sealed: list[tuple[Batch, Receipt]] = []
        self._parked: list[tuple[int, int, int]] = []  # deferred beyond H: start, count, delay_ms

    @property
    def flowing(self) -> bool:
        """Whether H follows the tail."""
        return not self.paused and not self.learning and bool(self.channels)

    @property
    def depth(self) -> int:
        return self._written_tail - self.handed_over

    @property
    def backend_depth(self) -> int:
        return max(0, min(self.depth, self.log.cached_from - self.handed_over))

    # Publishing

    def publish_one(self, sized_body: bytes, delay_ms: int = 0) -> Receipt:
        """One message, its four bytes of size in front. Those of one turn share a batch and a receipt."""
        if self.closing:
            raise Refused("exiting")
        if delay_ms:
            return self.publish(sized_body, (0, len(sized_body)), delay_ms)
        if not self._singles:
            self._singles_receipt = Receipt()
            self._work.unsealed[self] = None
        self._singles.append(sized_body)
        self._singles_bytes += len(sized_body)
        receipt = self._singles_receipt
        if self._singles_bytes > _MOST_BYTES_TOGETHER:
            self._close_singles()
        return receipt

    def publish(self, payload: bytes, offsets: Sequence[int], delay_ms: int = 0, key: bytes = b"") -> Receipt:
        """What was published with the same key not long ago is not published again: it has the receipt of that time."""
        if self.closing:
            raise Refused("exiting")
        if key and (known := self._known(key)) is not None:
            return known
        self._close_singles()
        receipt = Receipt()
        if key:
            self._keys.add(key, self._work.timestamp, receipt)
        self._drafts.append((payload, offsets, delay_ms, receipt, key))
        self._work.unsealed[self] = None
        if delay_ms:
            self._work.deferring[self] = None
        return receipt

    def _known(self, key: bytes) -> Receipt | None:
        receipt = self._keys.find(key, self._work.timestamp)
        if receipt is None or not receipt.settled or receipt.error is None:
            return receipt
        if not receipt.stays:  # it never got into the log
            return None
        # It is in the log, but was not durable. When the log takes messages again, that has been proven.
        answer = Receipt()
        answer.settle(self.log.refusal())
        return answer

    def _close_singles(self) -> None:
        singles = self._singles
        if not singles:
            return
        self._singles = []
        self._singles_bytes = 0
        if len(singles) == 1:
            payload = singles[0]
            offsets = [0, len(payload)]
        else:
            payload = b"".join(singles)
            offsets = [0]
            end = 0
            for sized_body in singles:
                end += len(sized_body)
                offsets.append(end)
        self._drafts.append((payload, offsets, 0, self._singles_receipt, b""))

    def seal(self, timestamp: int) -> None:
        """Gives this turn's publishes their place in the log's buffer."""
        self._close_singles()
        drafts: Iterable[_Draft] = self._drafts
        self._drafts = []
        if self.ephemeral and not self.flowing:
            drafts = self._fitted(drafts)
        log = self.log
        for payload, offsets, delay_ms, receipt, key in drafts:
            base_sequence = log.tail
            count = len(offsets) - 1
            batch = Batch(base_sequence, self._work.ids.take(count), timestamp, payload, offsets, delay_ms, key)
            log.append(batch, receipt)
            self._sealed.append((batch, receipt))

    def _fitted(self, drafts: Iterable[_Draft]) -> Iterator[_Draft]:
        """What the log has room for; the rest counts as published, and is dropped. Message by message, as in NSQ.

        The log must have taken the one before when the next is asked for.
        """
        for payload, offsets, delay_ms, receipt, key in drafts:
            count = fitting = len(offsets) - 1
            if not self.log.has_room(count, len(payload)):
                fitting = bisect_left(range(1, count + 1), True, key=lambda n: not self.log.has_room(n, offsets[n]))
                self.message_count += count - fitting
                self.message_bytes += len(payload) - offsets[fitting] - 4 * (count - fitting)
            if fitting == count:
                yield payload, offsets, delay_ms, receipt, key
            elif fitting:
                yield payload[: offsets[fitting]], offsets[: fitting + 1], delay_ms, receipt, key
            else:
                receipt.settle()

    def record_deferred(self, timestamp: int) -> None:
        """Tells the journal what of this turn will be deferred, and where `seal` is going to place it.

        Before the log has it: after a crash in between there is nothing that could be early, and when the journal cannot be
        written, nothing has to be taken back. A log that will refuse gets no place to be told about.
        """
        if self.ephemeral or self.log.refusal() is not None:
            return
        self._close_singles()
        sequence = self.log.tail
        for _, offsets, delay_ms, _, _ in self._drafts:
            count = len(offsets) - 1
            if delay_ms and self.flowing:
                self.record(("defer", self.name, sequence, count, timestamp // 1_000_000 + delay_ms + 1))
            elif delay_ms:
                self.record(("park", self.name, sequence, count, delay_ms))
            sequence += count

    def refuse(self, cause: str) -> None:
        """Fails this turn's publishes. What was announced of them is taken back when the journal works again."""
        self._close_singles()
        drafts, self._drafts = self._drafts, []
        if any(delay_ms for _, _, delay_ms, _, _ in drafts):
            self.record(("cut", self.name, self.log.tail))
        for _, _, _, receipt, _ in drafts:
            receipt.settle(cause)

    def hand_over(self, now: float) -> None:
        """What the log has taken is accounted for and, if the topic flows, given to the channels."""
        sealed, self._sealed = self._sealed, []
        failed = False
        for batch, receipt in sealed:
            if receipt.error is not None:
                failed = failed or batch.delay_ms > 0
                continue
            self.message_count += batch.count
            self.message_bytes += batch.body_bytes
            if batch.delay_ms:
                self._parked.append((batch.base_sequence, batch.count, batch.delay_ms))
        self._written_tail = self.log.tail
        if failed:
            self.record(("cut", self.name, self._written_tail))
        if self.flowing:
            self._advance(now, sealed)

    def _advance(self, now: float, fresh: Sequence[tuple[Batch, Receipt]] | None = None) -> None:
        """`fresh`: what of it was written in this turn; None: ask the log."""
        for channel in self.channels.values():
            if channel.kept is not None:
                channel.keep(self._in_memory() if fresh is None else _written(fresh))
        before, self.handed_over = self.handed_over, self._written_tail
        for start, count, delay_ms in self._parked:
            due = microseconds(now) + delay_ms * 1000
            for channel in self.channels.values():
                channel.defer(start, count, due)
        self._parked.clear()
        for channel in tuple(self.channels.values()):
            channel.handed_over(before)
        if self.ephemeral:
            self.log.release(self.handed_over)

    def _in_memory(self) -> Iterator[Batch]:
        """What is about to be handed over, as far as it need not be read from disk."""
        sequence = max(self.handed_over, self.log.cached_from)
        while sequence < self._written_tail and (batch := self.log.batch_at(sequence)) is not None:
            yield batch
            sequence = batch.end_sequence

    def _start_flowing(self) -> None:
        """A first channel came, or the pause ended: the clocks of parked deferrals start now."""
        now_ms = self._work.timestamp // 1_000_000
        for start, count, delay_ms in self._parked:
            self.record(("defer", self.name, start, count, now_ms + delay_ms + 1))
        if self._parked:
            self.record(("unpark", self.name))
        self.record(("flow", self.name))
        self._advance(self._work.now)

    def let_go(self) -> None:
        """Tells the log what it need not keep any more, and the journal first why so: nothing else may outlive it."""
        for channel in self.channels.values():
            channel.record_progress()
        if not self.channels and not self.learning:
            self._drop_outdated()
        self.log.release(self.low_water(), self.passed())

    def _drop_outdated(self) -> None:
        """What waited for a first channel for longer than this topic's own retention has it."""
        outdated = min(self.log.outdated(), self._written_tail)
        if outdated <= self.handed_over:
            return
        dropped = outdated - self.handed_over
        self.outdated_count += dropped
        self.handed_over = outdated
        self._parked = [parked for parked in self._parked if parked[0] >= outdated]
        # The log unlinks nothing before the journal that says this is synced.
        self.record(("freeze", self.name, outdated))
        self._work.note(
            f"TOPIC({self.name}): retention drops {dropped} messages that no channel got, "
            f"{self.outdated_count} since the start"
        )

    def passed(self) -> int:
        """Before this sequence channels need single messages only; see `exceptions`."""
        return min([self.handed_over, *(c.cursor for c in self.channels.values() if c.kept is None)])

    def exceptions(self) -> Iterator[Iterable[int]]:
        """The sequences of all that waits or is in flight, as of now, in pieces. The journal knows what is missing in them."""
        channels = [channel for channel in self.channels.values() if channel.kept is None]
        for channel in channels:
            channel.record_progress()
        return chain.from_iterable([channel.exceptions() for channel in channels])

    def low_water(self) -> int:
        """Nothing before this sequence is needed by any channel, or would be by a new one."""
        low = self.handed_over
        for channel in self.channels.values():
            if channel.kept is None:
                low = min(low, channel.low_water())
        return low

    @property
    def last_place(self) -> int:
        """The highest cursor that a channel can be given: H, or where a first channel would bring it."""
        return self.handed_over if self.paused or self.learning else self._written_tail

    # Channels

    def channel(self, name: str) -> Channel:
        """The channel of this name, made if need be. The first one gets what has waited."""
        channel = self.channels.get(name)
        if channel is None:
            was_flowing = self.flowing
            channel = Channel(name, self, self._work, cursor=self.handed_over, ephemeral=is_ephemeral(name))
            self.channels[name] = channel
            self._record_name(channel, ("channel", self.name, name, channel.cursor))
            self._work.note(f"TOPIC({self.name}): new channel({name})")
            if self.flowing and not was_flowing:
                self._start_flowing()
            self._work.shape_changed(self.name)
        return channel

    def learned(self, names: Iterable[str]) -> None:
        """These channels exist elsewhere; from now on messages are handed over. Once is enough: the journal knows."""
        for name in sorted(names):
            self.channel(name)
        self.learning = False
        self.record(("learned", self.name))
        if self.flowing:
            self._start_flowing()

    def delete_channel(self, name: str) -> bool:
        was_flowing = self.flowing
        channel = self.channels.pop(name, None)
        if channel is None:
            return False
        self._work.note(f"TOPIC({self.name}): deleting channel {name}")
        self._record_name(channel, ("nochannel", self.name, name))
        channel.close()
        if not self.channels:
            if was_flowing:
                self.record(("freeze", self.name, self.handed_over))
            if self.ephemeral:
                self._work.delete_topic(self.name)
        self._work.to_release[self] = None
        self._work.shape_changed(self.name)
        return True

    # Operating

    def pause(self) -> None:
        if not self.paused:
            was_flowing = self.flowing
            self.paused = True
            self.record(("pause", self.name, True))
            if was_flowing:
                self.record(("freeze", self.name, self.handed_over))
            self._work.shape_changed(self.name)

    def unpause(self) -> None:
        if self.paused:
            self.paused = False
            self.record(("pause", self.name, False))
            if self.flowing:
                self._start_flowing()
            self._work.shape_changed(self.name)

    def empty(self) -> None:
        """Drops what no channel has got yet; channels keep theirs, and history stays readable."""
        before, self.handed_over = self.handed_over, self._written_tail
        if before == self.handed_over:
            return
        self._parked.clear()
        for channel in self.channels.values():
            channel.pass_over(before, self.handed_over)
        self.record(("unpark", self.name))
        self.record(("freeze", self.name, self.handed_over))
        if self.ephemeral:
            self.log.release(self.handed_over)  # there is room again at once, and no journal
        else:
            self._work.to_release[self] = None

    def close(self) -> None:
        """The topic is being deleted: publishes of this turn are refused, consumers are dropped."""
        self.closing = True
        self._singles.clear()
        self._singles_bytes = 0
        self._singles_receipt.settle("exiting")
        for _, _, _, receipt, _ in self._drafts:
            receipt.settle("exiting")
        self._drafts.clear()
        self._work.unsealed.pop(self, None)
        # A channel refers to its topic: if the topic kept its channels, both would wait for the garbage collector.
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.close()

    # The journal

    def record(self, change: Change) -> None:
        """Tell the journal something about this topic."""
        if not self.ephemeral:
            self._work.record(change, urgent=True)

    def _record_name(self, channel: Channel, change: TopicChange) -> None:
        """Tell the journal that a channel begins or ends."""
        if not channel.ephemeral:
            self.record(change)

    def snapshot_changes(self) -> Iterator[Change]:
        """What the journal needs to know to begin anew with this topic: as it is now, whenever it is looked at."""
        state: list[Change] = [("topic", self.name)]
        if not self.learning:
            state.append(("learned", self.name))
        if self.paused:
            state.append(("pause", self.name, True))
        state.append(("flow", self.name) if self.flowing else ("freeze", self.name, self.handed_over))
        parked = self._snapshot_parked(self._parked.copy())
        channels = [channel.snapshot_changes() for channel in self.channels.values() if not channel.ephemeral]
        return chain(state, parked, *channels)

    def _snapshot_parked(self, parked: list[tuple[int, int, int]]) -> Iterator[Change]:
        for start, count, delay_ms in parked:
            yield "park", self.name, start, count, delay_ms

    def restore(self, state: TopicState) -> None:
        """Takes up what recovery found."""
        self.paused = state.paused
        self.learning = not state.learned
        for name, channel_state in state.channels.items():
            self.channels[name] = Channel(
                name, self, self._work, cursor=channel_state.cursor, ephemeral=is_ephemeral(name)
            )
        if not self.flowing:
            if state.frozen_at is None:  # its last channels were ephemeral, and ended with the process
                self.record(("freeze", self.name, self.handed_over))
            else:
                self.handed_over = state.frozen_at
        self._parked = list(state.parked)
        for name, channel_state in state.channels.items():
            self.channels[name].restore(self._without_lost(channel_state), self._work.due_from_wall)

    def _without_lost(self, state: ChannelState) -> ChannelState:
        """Takes out, and counts, what waits and is nowhere any more: neither in the log nor beside it."""
        first, next_readable = self.log.first, self.log.next_readable
        lost = [sequence for sequence in state.waiting if sequence < first and next_readable(sequence) != sequence]
        if lost:
            for sequence in lost:
                del state.waiting[sequence]
            self._work.lost[self.name] = self._work.lost.get(self.name, 0) + len(lost)
        return state

    # Seen from outside

    def snapshot(self, *, channel: str, clients: bool) -> TopicSnapshot:
        return TopicSnapshot(
            topic_name=self.name,
            channels=tuple(
                self.channels[name].snapshot(clients=clients)
                for name in sorted(self.channels)
                if not channel or name == channel
            ),
            depth=self.depth,
            backend_depth=self.backend_depth,
            message_count=self.message_count,
            message_bytes=self.message_bytes,
            paused=self.paused,
            e2e_processing_latency=self._latency_snapshot(),
        )

    def _latency_snapshot(self) -> LatencySnapshot:
        latencies = [channel.latency for channel in self.channels.values() if channel.latency is not None]
        if self._work.latency is None or not latencies:
            return NO_LATENCY
        return merged_snapshot(self._work.latency, latencies, self._work.now)


def _written(sealed: Iterable[tuple[Batch, Receipt]]) -> list[Batch]:
    return [batch for batch, receipt in sealed if receipt.error is None]
