"""Messages that somebody takes back, or has become due at another time: as many as a request names, in slices.

A request may name a million messages, by the key of their batch, and each channel has them. So the work is cut into
slices of a few thousand messages, each of which is a turn of its own with its own change of the journal, and others
have their turns in between. What a slice has done is done: nothing takes it back if the work is stopped or nsqd dies.

    request ──► Recall ──► slice, slice, slice ──► answer
                  │
                  └── in `recalls` of its channels, where somebody sees how far it is, and can stop it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal

from pyroaring import BitMap64

from nsqd.broker.operations import CancelOutcome, cancel, move
from nsqd.broker.positions import between

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.topic import Topic

SLICE: Final = 2_000  # messages; some milliseconds of work
_COST_OF_CHANNEL: Final = 20  # as that of so many messages

RecallVerb = Literal["cancel", "due"]


class Recall:
    """One request. `step` does a slice, until `is_over`; then `end` has to be called, also if it is not over."""

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
        """Begin. An empty `channel`: all of them. `delay_ms` -1: take the messages back; 0: they are due now.

        `key` is that of the publish, if the sequences are those of a whole one.
        """
        self.count = len(sequences)  # of messages
        self.done = 0  # messages that every channel has dealt with
        self.who = who  # the holder's name, or the address that has asked for it
        self.started_at = started_at  # milliseconds of the wall clock
        self.found: dict[str, dict[CancelOutcome, int]] = {}  # by channel: how many were found how
        self.is_over = False
        self.is_stopped = False
        self._topic = topic
        self._channel = channel
        self._delay_ms = delay_ms
        self._key = key
        self._sequences = sequences
        self._parts = self._all_parts()
        channels = self._channels()
        self._recalled = channels if self.count + _COST_OF_CHANNEL * len(channels) > SLICE else []
        for it in self._recalled:
            it.recalls.append(self)

    @property
    def verb(self) -> RecallVerb:
        return "cancel" if self._delay_ms < 0 else "due"

    def step(self) -> None:
        """Do the next slice."""
        left = SLICE
        # A topic that is deleted and made anew is another one: the journal knows both by their name.
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
        """Have the topic forget the key of a publish that no channel has kept a message of: it can be made anew."""
        is_whole = all(counts == {CancelOutcome.CANCELLED: self.count} for counts in self.found.values())
        everybody = self._topic.channels.keys() or {""}
        if self._key and self._delay_ms < 0 and is_whole and self.found.keys() == everybody:
            start = self._sequences[0]
            self._topic.forget_key(self._key, start, start + self.count)

    def stop(self) -> None:
        """End before it is complete. What it has done stays done."""
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
        """Yield what is to be done: some messages of one channel, or some that no channel has got yet.

        With each comes how many messages of the request are done afterwards.
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
                if topic.channels.get(channel.name) is channel:  # otherwise it was deleted meanwhile
                    yield channel, piece, at if left else stop

    def _recall_beyond(self, sequences: BitMap64) -> None:
        """Take messages back from all channels that are going to get them. Their delays cannot be changed yet.

        A topic without channels counts as one.
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
