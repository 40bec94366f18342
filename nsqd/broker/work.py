"""What topics and channels leave to be done in a turn, and what they need to know for it.

Topics and channels do not know the broker. They write into a list of work, which the broker goes through when the turn ends:

    ChannelWork     a Channel has something to deliver, made progress, or wants to be called at a time
        │
    TopicWork       a Topic got something published, needs less of its log, or came or went
        │
    Broker          does it

Each is the one before with a little more, so a channel or topic holds the broker itself, and sees that much of it: an object in
between would cost each publish a step. The types of what stands in the lists are parameters, as those modules import this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.change import Change
    from nsqd.broker.latency import LatencySettings
    from nsqd.broker.message_id import IdSource
    from nsqd.broker.store import Store

_BETWEEN_CLOCKS: Final = 1000  # microseconds

C = TypeVar("C")  # Channel
T = TypeVar("T")  # Topic


class Alarms(Generic[C]):
    """A heap of times and channels that want `expire` called then. A channel whose alarm has moved is in it several times."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, C]] = []
        self._serial = 0

    @property
    def next(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def add(self, when: float, channel: C) -> None:
        self._serial += 1
        heappush(self._heap, (when, self._serial, channel))

    def pop_due(self, now: float) -> Iterator[tuple[float, C]]:
        """Yield each time that has come, and the channel that was to be called then."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            when, _, channel = heappop(heap)
            yield when, channel


class ChannelWork(Generic[C]):
    """What a channel sees of the broker: the time, some settings, the journal, and where it says that it wants something."""

    def __init__(
        self,
        store: Store,
        *,
        now: float,
        timestamp: int,
        mem_queue_size: int,
        mem_queue_bytes: int,
        max_msg_timeout: float,
        random_percent: Callable[[], int],
        latency: LatencySettings | None,
        prefers_near_consumers: bool,
    ) -> None:
        self.store = store
        self.now = now  # monotonic seconds, as of this turn
        self.timestamp = timestamp  # wall clock nanoseconds, as of this turn
        self.mem_queue_size = mem_queue_size  # what waits in something ephemeral is bounded by both
        self.mem_queue_bytes = mem_queue_bytes
        self.max_msg_timeout = max_msg_timeout
        self.random_percent = random_percent  # 0..99
        self.latency = latency  # None: nobody wants to know how long messages take
        self.prefers_near_consumers = prefers_near_consumers
        self.to_deliver: dict[C, None] = {}  # may have something to deliver
        self.overflowing: dict[C, int] = {}  # are ephemeral, and got messages in this turn, from this sequence on
        self.changed: dict[C, None] = {}  # have progress that the journal does not know
        self.alarms: Alarms[C] = Alarms()
        self.urgent_changes = 0  # for the journal, ever

    def record(self, change: Change, *, urgent: bool) -> None:
        """Tell the journal, which knows nothing of what is ephemeral."""
        self.urgent_changes += urgent
        self.store.record(change, urgent=urgent)

    def forget(self, channel: C) -> None:
        """Leave nothing to be done for a channel that is deleted."""
        self.to_deliver.pop(channel, None)
        self.overflowing.pop(channel, None)
        self.changed.pop(channel, None)

    # Two clocks

    def wall_milliseconds(self, due: int) -> int:
        """Return the wall time of a due time in monotonic microseconds."""
        return (self.timestamp // 1000 + due - int(self.now * 1_000_000)) // 1000 + 1

    def due_ms(self, batch: Batch) -> int | None:
        """Return the wall time of a deferred batch, counted from its publication; None: it has come."""
        due_ms = batch.timestamp // 1_000_000 + batch.delay_ms + 1
        return due_ms if due_ms * 1_000_000 > self.timestamp else None

    def due_from_wall(self, wall_ms: int) -> int:
        """Return monotonic microseconds. The clocks are read one after the other, so a millisecond is added: never early."""
        return int(self.now * 1_000_000) + max(0, wall_ms * 1000 - self.timestamp // 1000 + _BETWEEN_CLOCKS)


class TopicWork(ChannelWork[C], Generic[C, T]):
    """What a topic sees of the broker: besides, the ids of messages and where it says what became of itself."""

    def __init__(
        self,
        store: Store,
        *,
        now: float,
        timestamp: int,
        mem_queue_size: int,
        mem_queue_bytes: int,
        max_msg_timeout: float,
        random_percent: Callable[[], int],
        latency: LatencySettings | None,
        prefers_near_consumers: bool,
        ids: IdSource,
        idempotence_window: int,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(
            store,
            now=now,
            timestamp=timestamp,
            mem_queue_size=mem_queue_size,
            mem_queue_bytes=mem_queue_bytes,
            max_msg_timeout=max_msg_timeout,
            random_percent=random_percent,
            latency=latency,
            prefers_near_consumers=prefers_near_consumers,
        )
        self.ids = ids
        self.idempotence_window = idempotence_window  # nanoseconds that a key is remembered; 0: none is
        self.note = note  # something for the log, which only a shell can write
        self.unsealed: dict[T, None] = {}  # have something published in this turn
        self.deferring: dict[T, None] = {}  # have deferred publishes that the journal has not heard of
        self.to_release: dict[T, None] = {}  # need less of their log, once the journal has written why
        self.shape_unsaved = False  # topics, channels or pauses changed
        self.reshaped: dict[str, None] = {}  # came or went, they or their channels, since that was announced last
        self.lost: dict[str, int] = {}  # by topic: messages that waited, and were nowhere when it started

    def shape_changed(self, topic_name: str) -> None:
        """Note that this topic, its channels or a pause came or went."""
        self.shape_unsaved = True
        self.reshaped[topic_name] = None

    def delete_topic(self, name: str) -> bool:
        """Delete a topic; an ephemeral one asks for this when its last channel is gone. False: there is none."""
        raise NotImplementedError
