"""Buries, cancels or reschedules what waits of one group, in slices, as cancel_and_reschedule.py does for named messages.

Which messages of a channel are of the group? `Groups` knows that of the held ones, which are in its group's queue, and of
most of the ones that were delivered before. For all others, we have to read their headers: new messages ahead of the
cursor, messages published with a delay, and after a restart held messages and retries, too. For example, with the group a:

    held, in a's queue                     act on them
    retries and deferred, known            act on those of a
    unsorted, ahead, other deferred ones   read their batches, perhaps from disk, and act on those of a

While the work goes on, messages may move. One that is delivered stays with its consumer, and the others are found wherever
they wait. Messages that arrive after the beginning are left alone.

If a batch has to be read from disk, `waits` is True after the step: call `step` again when the log has read something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from pyroaring import BitMap64

from nsqd.broker import operator_actions
from nsqd.broker.bitmaps import bitmap_of
from nsqd.broker.buried import note_of
from nsqd.broker.operator_actions import CancelOutcome

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.channel import Channel
    from nsqd.broker.groups import Groups
    from nsqd.broker.topic import Topic

SLICE: Final = 2_000  # messages; a few milliseconds of work
_READ_AT_ONCE: Final = 5_000_000  # bytes from files in a slice; some milliseconds, if they are in the page cache
_READ_FOR_ONE: Final = 100_000  # bytes that the log reads, about, to find a batch that doesn't follow the last one

GroupVerb = Literal["bury", "cancel", "due"]


class GroupAction:
    """One request. Call `step` until `is_over`, and then `end`. Call `end` even if you give up early."""

    __slots__ = (
        "_act",
        "_candidates",
        "_channel",
        "_end",
        "_groups",
        "_handled",
        "_is_listed",
        "_leaves_queue",
        "_name",
        "_needs_ids",
        "_slice_is_over",
        "_to_read",
        "_topic",
        "_wants_deferred_only",
        "acted",
        "count",
        "done",
        "is_over",
        "is_stopped",
        "reason",
        "started_at",
        "unread",
        "verb",
        "waits",
        "who",
    )

    def __init__(
        self, topic: Topic, channel: Channel, group: bytes, verb: GroupVerb, *, delay_ms: int, who: str, started_at: int
    ) -> None:
        """Start a request about the channel's group, which isn't empty. The channel's policy must have rules about groups.

        `delay_ms` is for `due`; 0: now.
        """
        self.verb = verb
        self.who = who  # name of the token's holder, or address of the requester
        self.started_at = started_at  # wall clock, milliseconds
        self.acted = 0  # messages that were buried, cancelled or rescheduled
        self.unread = 0  # messages that the disk refuses to read, and held ones behind them: they were left alone
        self.done = 0  # messages that we have looked at
        self.is_over = False
        self.is_stopped = False
        self.waits = False  # for a read
        self._slice_is_over = False  # because it waits, or this slice has read enough
        self._to_read = 0  # bytes that this slice may read from files
        # The reason of a burial names the request, so that a kick with this reason takes it back.
        self.reason = f"with its group {_printable(group)} (request {started_at})"
        self._topic = topic
        self._channel = channel
        self._name = group
        self._end = channel.feed.high_watermark
        self._needs_ids = verb == "bury"
        # What waits for a consumer is due already.
        self._wants_deferred_only = self._leaves_queue = verb == "due" and not delay_ms
        self._act: Callable[[list[tuple[int, int, int]]], int] = {
            "bury": self._bury,
            "cancel": self._cancel,
            "due": lambda found: self._move(found, delay_ms),
        }[verb]
        self._handled = BitMap64()  # a message may be found where we have moved it to
        self._candidates = BitMap64()  # messages that may be of the group, and that we haven't looked at
        assert channel.groups is not None
        self._begin(channel.groups)
        queue = channel.groups.queue_of(group)
        self.count = len(self._candidates) + (queue.count if queue is not None else 0)
        # A request of a single slice isn't listed: it is over before anyone could see it.
        self._is_listed = self.count > SLICE
        if self._is_listed:
            channel.recalls.append(self)

    def _begin(self, groups: Groups) -> None:
        """Look at all messages, also if the groups begin anew in the meantime: then held ones are in no queue any more."""
        self._groups = groups
        ledger, all_of_them = self._channel.ledger, bitmap_of(0, self._end)
        self._candidates = ledger.deferred.among(all_of_them)
        if not self._wants_deferred_only:
            self._candidates |= ledger.retries.among(all_of_them) | ledger.held.among(groups.unsorted & all_of_them)
            self._candidates |= ledger.ahead_among(bitmap_of(ledger.cursor, self._end))
        self._candidates -= self._handled

    @property
    def in_flight(self) -> int:
        """How many messages of the group consumers have now."""
        return self._groups.in_flight_of(self._name)

    def step(self) -> None:
        """Do the next slice."""
        self.waits = self._slice_is_over = False
        self._to_read = _READ_AT_ONCE
        groups = self._channel.groups
        if groups is None or self.is_stopped or self.is_gone:
            self.is_stopped = self.is_over = True  # without groups: the policy has no rules about them any more
            return
        if groups is not self._groups:
            self._begin(groups)
        found: list[tuple[int, int, int]] = []
        left = self._look_into_queue(found, SLICE)
        self._candidates -= self._note(found)  # some were ahead of the cursor when we began, and have been held since
        if not self._slice_is_over and left:
            self._look_at_candidates(found, left)
        if found:
            self.acted += self._act(found)
            self._note(found)
        self._groups.look_at(self._name)
        self.is_over = not (self.waits or self._candidates or self._has_queue)

    def _note(self, found: list[tuple[int, int, int]]) -> BitMap64:
        """Note that these are dealt with. Return them as a bitmap."""
        handled = BitMap64([sequence for sequence, _, _ in found])
        self._handled |= handled
        return handled

    @property
    def is_gone(self) -> bool:
        """Whether the channel was deleted. There may be a new one with its name."""
        return self._topic.closing or self._topic.channels.get(self._channel.name) is not self._channel

    @property
    def _has_queue(self) -> bool:
        queue = self._groups.queue_of(self._name)
        return not self._leaves_queue and queue is not None and queue.first < self._end

    def _look_into_queue(self, found: list[tuple[int, int, int]], left: int) -> int:
        """Take up to `left` entries out of the group's queue. Return how many more messages this slice may look at."""
        ledger, queue = self._channel.ledger, self._groups.queue_of(self._name)
        if self._leaves_queue:
            return left
        batch: Batch | None = None
        while left and queue is not None and queue.first < self._end:
            sequence = queue.first
            if sequence in ledger.held:
                if not self._needs_ids:
                    found.append((sequence, 0, 0))
                elif (batch := self._batch(sequence, batch)) is not None:
                    found.append((sequence, batch.base_id + sequence - batch.base_sequence, 0))
                elif self._slice_is_over:
                    break
                elif ledger.is_lost(sequence):
                    ledger.drop_lost(sequence)
                else:  # The disk refuses it. It has to stay first, so that the group keeps its order.
                    self.unread += queue.count - 1
                    self._leaves_queue = True
                    break
            queue = self._groups.pop_held_of(self._name)
            left -= 1
            self.done += 1
        return left

    def _look_at_candidates(self, found: list[tuple[int, int, int]], left: int) -> None:
        ledger, groups = self._channel.ledger, self._groups
        piece = self._candidates[:left]
        if not piece:
            return
        batch: Batch | None = None
        stop = piece.max() + 1
        for sequence in ledger.waiting_among(piece):
            name, message_id = groups.name_of(sequence), 0
            if name is None or (self._needs_ids and name == self._name):
                batch = self._batch(sequence, batch)
                if batch is None:
                    if self._slice_is_over:
                        stop = sequence
                        break
                    continue
                name = batch.group_of(sequence)
                message_id = batch.base_id + sequence - batch.base_sequence
            if name == self._name:
                found.append((sequence, message_id, ledger.attempts_of(sequence)))
        if stop > piece.min():
            self.done += piece.rank(stop - 1)
            self._candidates.remove_range(piece.min(), stop)

    def _batch(self, sequence: int, batch: Batch | None) -> Batch | None:
        """Return the message's batch. If that is None, the message can't be read, or not in this slice.

        `batch` is the one that was used last, or None. Sets `_slice_is_over` if a later slice has to go on.
        """
        if batch is not None and batch.base_sequence <= sequence < batch.end_sequence:
            return batch
        ledger = self._channel.ledger
        if ledger.is_lost(sequence):
            return None  # the channel finishes it when it comes to it
        is_in_file = sequence < self._channel.feed.log.cached_from
        if is_in_file and self._to_read <= 0:
            self._slice_is_over = True
            return None
        follows = batch is not None and sequence == batch.end_sequence
        batch = ledger.batch_of(sequence)
        if batch is None:
            if ledger.is_refused(sequence):
                self.unread += 1
            else:
                self.waits = self._slice_is_over = True
        elif is_in_file:
            self._to_read -= batch.held if follows else max(batch.held, _READ_FOR_ONE)
        return batch

    def _cancel(self, found: list[tuple[int, int, int]]) -> int:
        counts = operator_actions.cancel(self._channel, BitMap64([sequence for sequence, _, _ in found]))
        return counts.get(CancelOutcome.CANCELLED, 0)

    def _move(self, found: list[tuple[int, int, int]], delay_ms: int) -> int:
        counts = operator_actions.move(self._channel, BitMap64([sequence for sequence, _, _ in found]), delay_ms)
        return counts.get(CancelOutcome.MOVED, 0)

    def _bury(self, found: list[tuple[int, int, int]]) -> int:
        operator_actions.bury(self._channel, found, note_of(self.reason, self.who))
        return len(found)

    def stop(self) -> None:
        """Stop after the current slice. Finished slices stay done."""
        self.is_stopped = True

    def end(self) -> None:
        if self._is_listed:
            self._channel.recalls.remove(self)
            self._is_listed = False


def _printable(group: bytes) -> str:
    text = group.decode("utf-8", "replace")
    return "".join(it if it.isprintable() else "?" for it in text)
