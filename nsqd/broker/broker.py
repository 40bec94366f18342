"""The broker: all topics, and what one turn leaves to be done.

A turn sets `now` and `timestamp`, lets clients and operators do things, and then has the broker `seal` what was
published, and, when the log has written it, `hand_over` to the channels. See docs/decisions/0001.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from nsqd.broker.batch import Receipt
from nsqd.broker.channel import Channel
from nsqd.broker.snapshot import BrokerSnapshot, ClientSnapshot
from nsqd.broker.topic import Topic
from nsqd.broker.work import TopicWork

if TYPE_CHECKING:
    from nsqd.broker.change import Change
    from nsqd.broker.changes import TopicState
    from nsqd.broker.feed import Feed
    from nsqd.broker.latency import LatencySettings
    from nsqd.broker.message_id import IdSource
    from nsqd.broker.store import Store, TopicLog

_TOPICS_IN_PART: Final = 100  # of the topology


class Broker(TopicWork[Channel, Topic]):
    """All topics. Of the rest, `TopicWork` is what topics see of it, and `ChannelWork` what channels do."""

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
            ids=ids,
            idempotence_window=idempotence_window,
            note=note,
        )
        self.start_time = timestamp // 1_000_000_000
        self.learns = learns  # whether there is somebody to ask which channels a new topic has elsewhere
        self.undiscovered: dict[Topic, None] = {}  # are learning, and nobody has asked for them yet
        self.topics: dict[str, Topic] = {}
        self.producers: dict[object, Callable[[str], ClientSnapshot]] = {}
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
            topic.record(("topic", name))
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
        topic.record(("drop", name))
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
        # A channel that has another alarm by now was told to come at another time, or is gone.
        due = [channel for when, channel in self.alarms.pop_due(self.now) if channel.alarm == when]
        for channel in due:
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
        topics: list[Feed] = [channel.topic for channel in changed]
        for topic in dict.fromkeys(topics + list(to_release)):
            topic.let_go()

    def let_go(self, names: Iterable[str]) -> None:
        """Re-evaluate the retention of these topics, as time has passed."""
        for name in names:
            if (topic := self.topics.get(name)) is not None:
                topic.let_go()

    # The journal

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
                topic.record(("topic", name))
                topic.record(("freeze", name, log.first))
            else:
                if state.cut(log.tail):
                    topic.record(("cut", name, log.tail))
                topic.restore(state)
                if name in untold or state.in_doubt:
                    topic.record(("snapshot", name))
                    for change in topic.snapshot_changes():
                        topic.record(change)
            if topic.learning:
                self._learn_channels(topic)
            topic.let_go()  # the end may have come between a last FIN and the removal of its segment
        self.shape_unsaved = True  # the second place may be older than what was found

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
