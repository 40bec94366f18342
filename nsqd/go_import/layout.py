"""Where a topic's messages lie in its log, and the journal changes that say which channel sees which of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nsqd.broker.change import Change
    from nsqd.broker.replay import TopicState
    from nsqd.go_import.metadata import GoTopic

_ENTRIES_PER_CHANGE: Final = 3 * 2_000


class SequenceRange(NamedTuple):
    start: int
    end: int


class LogLayout:
    """The ranges of a topic's log.

    `backlogs` are the numbers of messages waiting in each channel, `own` in the topic.
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
        """Whether all channels see the topic's own queue. Otherwise it waits behind a frozen H."""
        return bool(self.topic.channels) and not self.topic.paused

    @property
    def tail(self) -> int:
        return self.own.end

    def backlog(self, channel: str) -> SequenceRange:
        """Return the range of the messages that only this channel sees."""
        return self.backlogs.get(channel, SequenceRange(self.own.start, self.own.start))

    def changes(self) -> Iterator[Change]:
        """Yield what the journal has to know, except for messages with attempts."""
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
        """Yield the changes for messages of the channel that were delivered before: (sequence, attempts), ascending.

        The last change makes the channel skip the backlogs that follow its own.
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
        """Yield each point in which the journal's state differs from this layout."""
        if state.paused != self.topic.paused:
            yield f"paused: {state.paused}"
        if state.frozen_at != (None if self.flows else self.own.start):
            yield f"handed over: {state.frozen_at}"
        if state.channels.keys() != self.topic.channels.keys():
            yield f"channels: {sorted(state.channels)}"
            return
        end = self.tail if self.flows else self.own.start
        for name, channel in state.channels.items():
            own = self.backlog(name)
            if channel.paused != self.topic.channels[name]:
                yield f"channel {name} paused: {channel.paused}"
            depth = end - channel.cursor - sum(stop - start for start, stop in channel.skips) + len(channel.waiting)
            if depth != own.end - own.start + end - self.own.start:
                yield f"channel {name} depth: {depth}"
            if not all(own.start <= sequence < own.end for sequence in channel.waiting):
                yield f"channel {name}: messages of others wait"
