"""Cancels or reschedules the messages that a request names, in slices.

It has nothing to do with buried messages (buried_queue.py) or with moving a cursor (`seek` in operator_actions.py).

One request may name a million messages by the key of their batch, and each channel has all of them. So we work in slices
of a few thousand messages. Each slice runs in its own turn and is journalled at once; other work can run in between. A
finished slice stays done, even if the request is stopped or nsqd crashes.

    request ──► Recall ──► slice, slice, slice ──► response
                  │
                  └── listed in `recalls` of its channels, where you can watch and stop it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal

from pyroaring import BitMap64

from nsqd.broker.bitmaps import between
from nsqd.broker.operator_actions import CancelOutcome, cancel, move

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.topic import Topic

SLICE: Final = 2_000  # messages; a few milliseconds of work
_COST_OF_CHANNEL: Final = 20  # each channel costs as much as this many messages

RecallVerb = Literal["cancel", "due"]


class Recall:
    """One request. Call `step` until `is_over`, and then `end`. Call `end` even if you give up early."""

    __slots__ = (
        "_channel",
        "_delay_ms",
        "_key",
        "_parts",
        "_recalled",
        "_sequences",
        "_topic",
        "count",
        "done",
        "found",
        "is_over",
        "is_stopped",
        "started_at",
        "who",
    )

    def __init__(
        self,
        topic: Topic,
        sequences: Sequence[int],
        *,
        key: bytes,
        channel: str,
        delay_ms: int,
        who: str,
        started_at: int,
    ) -> None:
        """Start a request for one channel, or for all of them if `channel` is empty.

        `delay_ms` is -1 to cancel the messages, and 0 to make them due now. If they are all messages of one publish,
        `key` is its key.
        """
        self.count = len(sequences)  # of messages
        self.done = 0  # messages that are done in all channels
        self.who = who  # name of the token's holder, or address of the requester
        self.started_at = started_at  # wall clock, milliseconds
        self.found: dict[str, dict[CancelOutcome, int]] = {}  # by channel: the number of messages with each outcome
        self.is_over = False
        self.is_stopped = False
        self._topic = topic
        self._channel = channel
        self._delay_ms = delay_ms
        self._key = key
        self._sequences = sequences
        self._parts = self._all_parts()
        channels = self._channels()
        # A request of a single slice isn't listed: it is over before anyone could see it.
        self._recalled = channels if self.count + _COST_OF_CHANNEL * len(channels) > SLICE else []
        for it in self._recalled:
            it.recalls.append(self)

    @property
    def verb(self) -> RecallVerb:
        return "cancel" if self._delay_ms < 0 else "due"

    def step(self) -> None:
        """Do the next slice."""
        left = SLICE
        # Stop if the topic was deleted: the journal identifies topics by name, and there may be a new one.
        while left > 0 and not self.is_stopped and not self._topic.closing:
            part = next(self._parts, None)
            if part is None:
                self.is_over = True
                self._forget_key()
                break
            channel, sequences, self.done = part
            if channel is None:
                self._recall_beyond(sequences)
            elif self._delay_ms < 0:
                self._note(channel.name, cancel(channel, sequences))
            else:
                self._note(channel.name, move(channel, sequences, self._delay_ms))
            left -= len(sequences) + _COST_OF_CHANNEL
        self.is_over = self.is_over or self.is_stopped or self._topic.closing

    def _forget_key(self) -> None:
        """If all channels have cancelled all messages of the publish, forget its key, so that it can be used again."""
        is_whole = all(counts == {CancelOutcome.CANCELLED: self.count} for counts in self.found.values())
        all_channels = self._topic.channels.keys() or {""}
        if self._key and self._delay_ms < 0 and is_whole and self.found.keys() == all_channels:
            start = self._sequences[0]
            self._topic.forget_key(self._key, start, start + self.count)

    def stop(self) -> None:
        """Stop after the current slice. Finished slices stay done."""
        self.is_stopped = True

    def end(self) -> None:
        for channel in self._recalled:
            channel.recalls.remove(self)
        self._recalled = []

    def _channels(self) -> list[Channel]:
        channels = self._topic.channels
        if not self._channel:
            return list(channels.values())
        return [channels[self._channel]] if self._channel in channels else []

    def _all_parts(self) -> Iterator[tuple[Channel | None, BitMap64, int]]:
        """Yield (channel, messages, done) for each piece of work. `channel` is None if no channel has the messages yet.

        `done` is how many of the request's messages are done after this piece.
        """
        topic = self._topic
        for at in range(0, self.count, SLICE):
            stop = min(at + SLICE, self.count)
            piece = BitMap64(self._sequences[at:stop])
            if beyond := between(piece, topic.high_watermark, piece.max() + 1):
                piece -= beyond
                yield None, beyond, at if piece else stop
            channels = self._channels() if piece else []
            for left, channel in zip(range(len(channels) - 1, -1, -1), channels, strict=True):
                if topic.channels.get(channel.name) is channel:  # otherwise it was deleted since the last slice
                    yield channel, piece, at if left else stop

    def _recall_beyond(self, sequences: BitMap64) -> None:
        """Handle messages beyond the high watermark. We can cancel them for all channels, but not reschedule them yet.

        If the topic has no channels, the outcomes are listed under the name "".
        """
        channels, outcome, fresh = self._channels(), CancelOutcome.UNKNOWN, 0
        if self._delay_ms < 0 and len(channels) == len(self._topic.channels):
            fresh, outcome = self._topic.cancel_beyond(sequences), CancelOutcome.DONE
        counts = (CancelOutcome.CANCELLED, fresh), (outcome, len(sequences) - fresh)
        for name in [channel.name for channel in channels] or [""]:
            self._note(name, {found: count for found, count in counts if count})

    def _note(self, name: str, counts: dict[CancelOutcome, int]) -> None:
        found = self.found.setdefault(name, {})
        for outcome, count in counts.items():
            found[outcome] = found.get(outcome, 0) + count
