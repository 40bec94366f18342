"""The broker: all topics, and what one turn leaves to be done.

A turn sets `now` and `timestamp`, lets clients and operators do things, and then has the broker `seal` what was
published, and, when the log has written it, `hand_over` to the channels. See docs/decisions/0001.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final

from nsqd.broker.batch import Receipt
from nsqd.broker.snapshot import BrokerSnapshot, ClientSnapshot
from nsqd.broker.topic import Topic

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.change import Change
    from nsqd.broker.changes import TopicState
    from nsqd.broker.channel import Channel
    from nsqd.broker.latency import LatencySettings
    from nsqd.broker.message_id import IdSource
    from nsqd.broker.store import Store, TopicLog

_TOPICS_IN_PART: Final = 100  # of the topology
_BETWEEN_CLOCKS: Final = 1000  # microseconds


class Alarms:
    """A heap of times and channels that want `expire` called then; stale duplicates of a channel are skipped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Channel]] = []
        self._serial = 0

    @property
    def next(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def add(self, when: float, channel: Channel) -> None:
        self._serial += 1
        heappush(self._heap, (when, self._serial, channel))

    def pop_due(self, now: float) -> Iterator[Channel]:
        heap = self._heap
        while heap and heap[0][0] <= now:
            when, _, channel = heappop(heap)
            if channel.alarm == when:  # else it was told to come at another time, or is gone
                yield channel


class Broker:
    def __init__(
        self,
        store: Store,
        *,
        ids: IdSource,
        now: float,
        timestamp: int,
        mem_queue_size: int,
        mem_queue_bytes: int,
        max_msg_timeout: float,
        random_percent: Callable[[], int],
        note: Callable[[str], None],
        learns: bool,
        latency: LatencySettings | None = None,
        prefers_near_consumers: bool = False,
        idempotence_window: int = 0,
    ) -> None:
        self.store = store
        self.ids = ids
        self.now = now  # monotonic seconds, as of this turn
        self.timestamp = timestamp  # wall clock nanoseconds, as of this turn
        self.start_time = timestamp // 1_000_000_000
        self.mem_queue_size = mem_queue_size  # what waits in something ephemeral is bounded by both
        self.mem_queue_bytes = mem_queue_bytes
        self.max_msg_timeout = max_msg_timeout
        self.random_percent = random_percent  # 0..99
        self.prefers_near_consumers = prefers_near_consumers
        self.idempotence_window = idempotence_window  # nanoseconds that a key is remembered; 0: none is
        self.latency = latency  # None: nobody wants to know how long messages take
        self.note = note  # something for the log, which only a shell can write
        self.learns = learns  # whether there is somebody to ask which channels a new topic has elsewhere
        self.undiscovered: dict[Topic, None] = {}  # are learning, and nobody has asked for them yet
        self.topics: dict[str, Topic] = {}
        self.producers: dict[object, Callable[[str], ClientSnapshot]] = {}
        self.unsealed: dict[Topic, None] = {}  # have something published in this turn
        self.to_deliver: dict[Channel, None] = {}  # may have something to deliver
        self.overflowing: dict[Channel, int] = {}  # are ephemeral, and got messages in this turn, from this sequence on
        self.changed: dict[Channel, None] = {}  # have progress that the journal does not know
        self.to_release: dict[Topic, None] = {}  # need less of their log, once the journal has written why
        self.alarms = Alarms()
        self.lost: dict[str, int] = {}  # by topic: messages that waited, and were nowhere when it started
        self.shape_unsaved = False  # topics, channels or pauses changed
        self.reshaped: dict[str, None] = {}  # came or went, they or their channels, since that was announced last
        self.deferring: dict[Topic, None] = {}  # have deferred publishes that the journal has not heard of
        self.urgent_changes = 0  # for the journal, ever
        self.promised: Receipt | None = None
        self.refusal: str | None = None  # why nobody may publish any more
        self._sealed: dict[Topic, None] = {}

    # Topics

    def find(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def topic(self, name: str) -> Topic:
        """The topic of this name, made if need be."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name, self.store.create_log(name), self)
            self.record_topic(topic, ("topic", name))
            self._learn_channels(topic)
            self.note(f"TOPIC({name}): created")
            self.shape_changed(name)
        return topic

    def delete_topic(self, name: str) -> bool:
        topic = self.topics.pop(name, None)
        if topic is None:
            return False
        self.note(f"TOPIC({name}): deleting")
        topic.close()
        self._sealed.pop(topic, None)
        self.to_release.pop(topic, None)
        self.deferring.pop(topic, None)
        self.undiscovered.pop(topic, None)
        self.record_topic(topic, ("drop", name))
        self.store.drop_log(name)
        self.shape_changed(name)
        return True

    def _learn_channels(self, topic: Topic) -> None:
        """Where nobody can be asked, nothing is to be learned."""
        if self.learns:
            self.undiscovered[topic] = None
        else:
            topic.learned(())

    # The steps of a turn

    def record_deferred(self) -> None:
        """Tells the journal which of this turn's publishes are deferred, before the logs have them."""
        deferring, self.deferring = self.deferring, {}
        for topic in deferring:
            topic.record_deferred(self.timestamp)

    def seal(self, refusal: str | None = None) -> None:
        """What was published in this turn goes into the buffers of its logs.

        A `refusal` (the journal cannot be written) is the answer to all publishes to topics that it concerns.
        """
        if self.deferring:
            self.record_deferred()
        unsealed, self.unsealed = self.unsealed, {}
        for topic in unsealed:
            cause = self.refusal or (None if topic.ephemeral else refusal)
            if cause is not None:
                topic.refuse(cause)
                continue
            topic.seal(self.timestamp)
            self._sealed[topic] = None

    def hand_over(self) -> None:
        """What the logs have taken goes to channels, and from there to whoever has room."""
        if self._sealed:
            sealed, self._sealed = self._sealed, {}
            for topic in sealed:
                topic.hand_over(self.now)
        while self.to_deliver:
            channels, self.to_deliver = self.to_deliver, {}
            for channel in channels:
                channel.distribute(self.now)

    def drop_overflow(self) -> None:
        """When all have been served whose sockets took something: what is ephemeral keeps only what fits."""
        overflowing, self.overflowing = self.overflowing, {}
        for channel, before in overflowing.items():
            channel.drop_overflow(before)

    def expire(self) -> None:
        for channel in tuple(self.alarms.pop_due(self.now)):
            channel.expire(self.now)

    def loaded(self, topic_name: str) -> None:
        """The log has fetched what somebody asked for."""
        topic = self.topics.get(topic_name)
        if topic is not None:
            for channel in topic.channels.values():
                channel.wants_attention()

    def record_progress(self) -> None:
        """Ten times a second: what was finished since, for the journal, and what logs may let go."""
        changed, self.changed = self.changed, {}
        for channel in changed:
            channel.record_progress()
        to_release, self.to_release = self.to_release, {}
        for topic in {channel.topic: None for channel in changed} | to_release:
            topic.let_go()

    def let_go(self, names: Iterable[str]) -> None:
        """Re-evaluate the retention of these topics, as time has passed."""
        for name in names:
            if (topic := self.topics.get(name)) is not None:
                topic.let_go()

    def forget(self, channel: Channel) -> None:
        self.to_deliver.pop(channel, None)
        self.overflowing.pop(channel, None)
        self.changed.pop(channel, None)

    # The journal

    def record(self, channel: Channel, change: Change, *, urgent: bool) -> None:
        if not channel.ephemeral and not channel.topic.ephemeral:
            self.urgent_changes += urgent
            self.store.record(change, urgent=urgent)

    def record_topic(self, topic: Topic, change: Change) -> None:
        if not topic.ephemeral:
            self.urgent_changes += 1
            self.store.record(change, urgent=True)

    def promise(self) -> Receipt:
        """Settled by this turn, when the journal has its urgent changes; with an error when the disk does not take them.

        What was decided stays decided in memory in either case. A channel that could not be made durable, say, is there,
        gets its messages, and is written when the disk works again; but who asked for it was told that it failed.
        """
        if self.promised is None:
            self.promised = Receipt()
        return self.promised

    def keep_promise(self, error: str | None) -> None:
        promised, self.promised = self.promised, None
        if promised is not None:
            promised.settle(error)

    def shape_changed(self, topic_name: str) -> None:
        self.shape_unsaved = True
        self.reshaped[topic_name] = None

    def topology(self) -> dict[str, object]:
        """The names of all that is durable: the second place where a channel is named."""
        return self._topology_of(self.topics.values())

    def topology_parts(self) -> Iterator[dict[str, object]]:
        """Yield `topology` in parts of some topics, each as it is when its part is taken."""
        names = iter(list(self.topics))
        while some := list(islice(names, _TOPICS_IN_PART)):
            yield self._topology_of([topic for name in some if (topic := self.topics.get(name)) is not None])

    def _topology_of(self, topics: Iterable[Topic]) -> dict[str, object]:
        return {
            topic.name: {
                "paused": topic.paused,
                "channels": {c.name: {"paused": c.paused} for c in topic.channels.values() if not c.ephemeral},
            }
            for topic in topics
            if not topic.ephemeral
        }

    def snapshot_topic(self, name: str) -> Iterable[Change]:
        topic = self.topics.get(name)
        return topic.snapshot_changes() if topic is not None and not topic.ephemeral else ()

    def exceptions(self, name: str) -> Iterable[Iterable[int]]:
        """The sequences that channels of the topic need besides what lies ahead of their cursors, in pieces, as of now."""
        topic = self.topics.get(name)
        return topic.exceptions() if topic is not None else ()

    def restore(
        self, states: Mapping[str, TopicState], logs: Mapping[str, TopicLog], *, untold: Collection[str] = ()
    ) -> None:
        """Builds topics and channels from what recovery found, every position clamped to its log's tail.

        A topic that only the journal knows begins with an empty log; one that only its log knows has no channels.
        `untold` names topics whose state did not come from the journal, so that it is told now; so is what was in doubt,
        or progress that is made from here on would be, too.
        """
        for name in {**states, **logs}:
            log = logs.get(name) or self.store.create_log(name)
            topic = self.topics[name] = Topic(name, log, self)
            state = states.get(name)
            if state is None:
                topic.handed_over = log.first
                self.record_topic(topic, ("topic", name))
                self.record_topic(topic, ("freeze", name, log.first))
            else:
                if state.cut(log.tail):
                    self.record_topic(topic, ("cut", name, log.tail))
                topic.restore(state)
                if name in untold or state.in_doubt:
                    self.record_topic(topic, ("snapshot", name))
                    for change in topic.snapshot_changes():
                        self.record_topic(topic, change)
            if topic.learning:
                self._learn_channels(topic)
            topic.let_go()  # the end may have come between a last FIN and the removal of its segment
        self.shape_unsaved = True  # the second place may be older than what was found

    # Two clocks

    def wall_milliseconds(self, due: int) -> int:
        """The wall time of a due time in monotonic microseconds."""
        return (self.timestamp // 1000 + due - int(self.now * 1_000_000)) // 1000 + 1

    def due_ms(self, batch: Batch) -> int | None:
        """The wall time of a deferred batch, counted from its publication; None: it has come."""
        due_ms = batch.timestamp // 1_000_000 + batch.delay_ms + 1
        return due_ms if due_ms * 1_000_000 > self.timestamp else None

    def due_from_wall(self, wall_ms: int) -> int:
        """In monotonic microseconds. The clocks are read one after the other, so a millisecond is added: never early."""
        return int(self.now * 1_000_000) + max(0, wall_ms * 1000 - self.timestamp // 1000 + _BETWEEN_CLOCKS)

    # Seen from outside

    def snapshot(self, topic: str = "", channel: str = "", *, clients: bool = True) -> BrokerSnapshot:
        """The figures of everything, or of one topic (None when it is unknown) and of one channel."""
        names = [topic] if topic else sorted(self.topics)
        topics = None
        if not topic or topic in self.topics:
            found = [self.topics[name] for name in names]
            topics = tuple(
                t.snapshot(channel=channel, clients=clients) for t in found if not channel or channel in t.channels
            )
        producers = None
        if clients and topics is not None and self.producers:
            producers = tuple(describe(topic) for describe in self.producers.values())
        return BrokerSnapshot(health=self.store.health, start_time=self.start_time, topics=topics, producers=producers)
