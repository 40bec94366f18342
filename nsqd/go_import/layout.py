"""The layout of an imported log: which sequences belong to which channel, and the journal changes for that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nsqd.broker.change import Change
    from nsqd.broker.journal_replay import TopicState
    from nsqd.go_import.metadata import GoTopic

_ENTRIES_PER_CHANGE: Final = 3 * 2_000


class SequenceRange(NamedTuple):
    start: int
    end: int


class LogLayout:
    """The ranges of a topic's log: one per channel, then the topic's own.

    `backlogs` has the number of messages waiting in each channel, and `own` the number waiting in the topic.
    """

    def __init__(self, topic: GoTopic, backlogs: Mapping[str, int], own: int) -> None:
        self.topic = topic
        self.backlogs: dict[str, SequenceRange] = {}
        sequence = 0
        for channel in topic.channels:
            if count := backlogs.get(channel, 0):
                self.backlogs[channel] = SequenceRange(sequence, sequence + count)
                sequence += count
        self.own = SequenceRange(sequence, sequence + own)

    @property
    def flows(self) -> bool:
        """Whether the topic's own queue goes to all channels. Otherwise it waits after the high watermark."""
        return bool(self.topic.channels) and not self.topic.paused

    @property
    def tail(self) -> int:
        return self.own.end

    def backlog(self, channel: str) -> SequenceRange:
        """Return the range of messages for this channel alone."""
        return self.backlogs.get(channel, SequenceRange(self.own.start, self.own.start))

    def changes(self) -> Iterator[Change]:
        """Yield the topic's journal changes, except those for messages with attempts (`waiting_changes`)."""
        name = self.topic.name
        yield "snapshot", name
        yield "topic", name
        yield "learned", name
        if self.topic.paused:
            yield "pause", name, True
        for channel, paused in self.topic.channels.items():
            yield "channel", name, channel, self.backlog(channel).start
            if paused:
                yield "hold", name, channel, True
        yield ("flow", name) if self.flows else ("freeze", name, self.own.start)

    def waiting_changes(self, channel: str, waiting: Iterable[tuple[int, int]]) -> Iterator[Change]:
        """Yield the changes that put messages with attempts into the channel's retry queue.

        `waiting` has their (sequence, attempts), ascending. The last change makes the channel skip the backlogs of the
        channels that come after it.
        """
        name = self.topic.name
        start = end = self.backlog(channel).start
        entries: list[int] = []
        for sequence, attempts in waiting:
            if sequence != end:
                if start < end:
                    yield "skip", name, channel, start, end
                start = sequence
            end = sequence + 1
            entries += (sequence, attempts, 0)
            if len(entries) >= _ENTRIES_PER_CHANGE:
                yield "wait", name, channel, entries
                entries = []
        if entries:
            yield "wait", name, channel, entries
        if start < end:
            yield "skip", name, channel, start, end
        if self.backlog(channel).end < self.own.start:
            yield "skip", name, channel, self.backlog(channel).end, self.own.start

    def differences(self, state: TopicState) -> Iterator[str]:
        """Yield a text about each difference between this layout and the state in the journal."""
        if state.paused != self.topic.paused:
            yield f"paused: {state.paused}"
        if state.frozen_at != (None if self.flows else self.own.start):
            yield f"high watermark: {state.frozen_at}"
        if state.channels.keys() != self.topic.channels.keys():
            yield f"channels: {sorted(state.channels)}"
            return
        end = self.tail if self.flows else self.own.start
        for name, channel in state.channels.items():
            own = self.backlog(name)
            if channel.paused != self.topic.channels[name]:
                yield f"channel {name} paused: {channel.paused}"
            # Each channel must have its own backlog, and also the topic's own queue if that is released.
            depth = end - channel.cursor - sum(stop - start for start, stop in channel.skips) + len(channel.waiting)
            if depth != own.end - own.start + end - self.own.start:
                yield f"channel {name} depth: {depth}"
            if not all(own.start <= sequence < own.end for sequence in channel.waiting):
                yield f"channel {name}: has messages of another channel"
