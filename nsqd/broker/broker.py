"""The broker: all topics, and the steps that end a turn.

A turn sets `now` and `timestamp`, and handles requests of clients and operators. At its end, the broker seals the
publishes and, once the logs have written them, releases their messages to the channels. turn.py lists all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from nsqd.broker.batch import Receipt
from nsqd.broker.idle import Expired, expired_in
from nsqd.broker.topic import Topic
from nsqd.broker.turn_context import TurnContext

if TYPE_CHECKING:
    from nsqd.broker.change import Change
    from nsqd.broker.channel import Channel
    from nsqd.broker.journal_replay import TopicState
    from nsqd.broker.message_id import IdSource
    from nsqd.broker.rules import RuleSource
    from nsqd.broker.settings import BrokerSettings
    from nsqd.broker.stats_records import ClientSnapshot
    from nsqd.broker.store import Store, TopicLog

MOST_POSTPONED: Final = 64 << 20  # bytes of a topic's publishes that may wait in memory for the removal of its files
_TOPICS_IN_PART: Final = 100  # topics in one part of the topology


def _never(size: int) -> bool:
    return False


class Broker:
    """All topics, and the `TurnContext` that they share with their channels."""

    def __init__(
        self,
        store: Store,
        settings: BrokerSettings,
        *,
        ids: IdSource,
        now: float,
        timestamp: int,
        random_percent: Callable[[], int],
        rules: RuleSource,
        note: Callable[[str], None],
        learns: bool,
    ) -> None:
        self.store = store
        self.turn: TurnContext[Channel, Topic] = TurnContext(
            store,
            settings,
            ids=ids,
            now=now,
            timestamp=timestamp,
            random_percent=random_percent,
            rules=rules,
            note=note,
            delete_topic=self.delete_topic,
        )
        self.start_time = timestamp // 1_000_000_000
        self.learns = learns  # whether an nsqlookupd can say which channels a new topic has on other nodes
        self.undiscovered: dict[Topic, None] = {}  # learning topics that we haven't looked up yet
        self.topics: dict[str, Topic] = {}
        self.producers: dict[object, Callable[[str], ClientSnapshot]] = {}
        self.promised: Receipt | None = None  # of this turn's urgent changes, if a client waits for it: see `promise`
        self.refusal: str | None = None  # the error for all publishes; None: publishing is allowed
        self.is_copy_behind = False  # whether publishes that wait for the copy of --remote are held back
        self.holds_back: Callable[[int], bool] = _never  # publishes of this many bytes that wait for the copy, now
        self._sealed: dict[Topic, None] = {}

    # Topics

    def find(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def topic(self, name: str) -> Topic:
        """Return the topic with this name, and create it if necessary."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name, self.store.create_log(name), self.turn)
            topic.record(("topic", name))
            topic.record(("keys", name, -1))
            self._learn_channels(topic)
            self.turn.note(f"TOPIC({name}): created")
            self.turn.shape_changed(name)
        return topic

    def delete_topic(self, name: str) -> bool:
        topic = self.topics.pop(name, None)
        if topic is None:
            return False
        self.turn.note(f"TOPIC({name}): deleting")
        topic.close()
        self._sealed.pop(topic, None)
        self.turn.to_release.pop(topic, None)
        self.turn.deferring.pop(topic, None)
        self.undiscovered.pop(topic, None)
        topic.record(("drop", name))
        self.store.drop_log(name)
        self.turn.shape_changed(name)
        return True

    def _learn_channels(self, topic: Topic) -> None:
        """Schedule a lookup of the topic's channels on other nodes. Without nsqlookupd, there is nothing to learn."""
        if self.learns:
            self.undiscovered[topic] = None
        else:
            topic.learned(())

    # The steps of a turn

    def make_room(self, refusal: str | None) -> None:
        """Drop old messages to make room for this turn's publishes, or postpone these until files are removed.

        A later turn seals the postponed publishes. It begins when files have been removed, or after a tenth of a
        second, because a removal may fail or take too long. If there is a `refusal`, all publishes fail, so none is
        postponed. Publishes that wait for a copy of the log are postponed as well while that is far behind.
        """
        postponed, self.turn.postponed = self.turn.postponed, {}
        for topic in postponed:
            self.turn.unsealed[topic] = self.turn.deferring[topic] = None
        if refusal is not None or self.refusal:
            return
        for topic in [topic for topic in self.turn.unsealed if topic in self.turn.dropping]:
            incoming = topic.buffered()
            if topic.log.refusal() is None and topic.must_block(incoming, self.turn.now):
                del self.turn.unsealed[topic]
                self.turn.deferring.pop(topic, None)
                if incoming.size > MOST_POSTPONED:
                    topic.refuse(f"topic {topic.name} is full: its oldest files can't be removed fast enough")
                else:
                    self.turn.postponed[topic] = None
        if self.is_copy_behind:
            self._hold_back()

    def _hold_back(self) -> None:
        """Postpone this turn's publishes that wait for the copy, unless it has caught up or they are too many to keep."""
        turn = self.turn
        held = [topic for topic in turn.unsealed if topic.log.waits_for_copy and topic.log.refusal() is None]
        if not held or not self.holds_back(sum(topic.buffered().size for topic in held)):
            return
        for topic in held:
            del turn.unsealed[topic]
            turn.deferring.pop(topic, None)
            turn.postponed[topic] = None

    def record_deferred(self) -> None:
        """Record this turn's deferred publishes in the journal, before the logs get them."""
        deferring, self.turn.deferring = self.turn.deferring, {}
        for topic in deferring:
            topic.record_deferred(self.turn.timestamp)

    def seal(self, refusal: str | None = None) -> None:
        """Move this turn's publishes to the buffers of their logs.

        If there is a `refusal`, for example because the journal can't be written, all publishes to topics on disk fail
        with it.
        """
        if self.turn.deferring:
            self.record_deferred()
        unsealed, self.turn.unsealed = self.turn.unsealed, {}
        for topic in unsealed:
            cause = self.refusal or (None if topic.ephemeral else refusal)
            if cause is not None:
                topic.refuse(cause)
                continue
            topic.seal(self.turn.timestamp)
            self._sealed[topic] = None

    def release_to_channels(self) -> None:
        """Release the messages that the logs have accepted, and deliver them to consumers with room."""
        if self._sealed:
            sealed, self._sealed = self._sealed, {}
            for topic in sealed:
                topic.release_to_channels(self.turn.now)
        while self.turn.to_deliver:
            channels, self.turn.to_deliver = self.turn.to_deliver, {}
            for channel in channels:
                channel.distribute(self.turn.now)
        if self.turn.offered:
            offered, self.turn.offered = self.turn.offered, []
            for ledger, batch in offered:
                ledger.withdraw(batch)  # thousands of channels that can't deliver must not keep a batch each

    def drop_overflow(self) -> None:
        """Drop messages that exceed the limits of ephemeral channels. Call this after sending to all sockets."""
        overflowing, self.turn.overflowing = self.turn.overflowing, {}
        for channel, before in overflowing.items():
            channel.drop_overflow(before)

    def expire(self) -> None:
        """Call `expire` of each channel whose alarm is due."""
        # If the time differs from the channel's alarm, the entry is stale: the alarm has moved, or the channel is
        # deleted. Pop all entries before the first call, because a channel may set its alarm to now.
        due = [channel for when, channel in self.turn.alarms.pop_due(self.turn.now) if channel.alarm == when]
        self.turn.unpacked = 0
        for channel in due:
            channel.expire(self.turn.now)

    def loaded(self, topic_name: str) -> None:
        """Schedule deliveries of a topic's channels, because its log has read a batch that one of them needs."""
        topic = self.topics.get(topic_name)
        if topic is not None:
            for channel in topic.channels.values():
                channel.schedule_delivery()

    def record_progress(self) -> None:
        """Record finished messages in the journal, and then allow the logs to remove unneeded messages.

        This happens up to twenty times a second. The order matters: after a crash, a log must still have each message
        that isn't finished according to the journal.
        """
        topics: dict[Topic, None] = {}
        turn, journal = self.turn, self.turn.journal
        unsaved, journal.unsaved = journal.unsaved, {}
        for ledger in unsaved:
            ledger.record_progress()
            if (topic := self.topics.get(ledger.feed.name)) is not None:
                topics[topic] = None
        to_release, turn.to_release = turn.to_release, {}
        topics.update(to_release)
        for topic in topics:
            topic.apply_retention()

    def apply_retention(self, names: Iterable[str]) -> None:
        """Apply the retention of these topics again, because time has passed."""
        for name in names:
            if (topic := self.topics.get(name)) is not None:
                topic.apply_retention()

    def rules_changed(self, names: Iterable[str]) -> None:
        """Apply the policy to these topics and their channels again."""
        for name in names:
            for _ in self.apply_rules_in_steps(name):
                pass

    def apply_rules_in_steps(self, name: str) -> Iterator[None]:
        """Apply the policy to a topic and its channels again. At each yield, other work may run.

        A channel created in between has the new rules already.
        """
        topic = self.topics.get(name)
        if topic is None:
            return
        topic.take_rules(self.turn.rules.topic(name))
        yield
        for channel in list(topic.channels.values()):
            if topic.channels.get(channel.name) is channel:
                channel.take_rules(self.turn.rules.channel(name, channel.name))
                yield
        if self.topics.get(name) is topic:
            topic.limits_changed()

    def expire_idle(self, names: Iterable[str]) -> list[Expired]:
        """Delete the topics and channels that have been unused for as long as the policy allows.

        Return the deleted ones, and also the ones that a dry run would have deleted.
        """
        expired: list[Expired] = []
        for name in names:
            if (topic := self.topics.get(name)) is None:
                continue
            verdicts = expired_in(topic, self.turn.now)
            for verdict in verdicts:
                if not verdict.is_dry_run and verdict.channel:
                    topic.delete_channel(verdict.channel)
                elif not verdict.is_dry_run:
                    self.delete_topic(name)
            expired += verdicts
        return expired

    # The journal

    def promise(self) -> Receipt:
        """Return a receipt for this turn's urgent changes, settled when they are in the journal or the disk has failed.

        After a failure, the client gets an error, but the changes stay in memory. For example, a new channel exists and
        gets messages, and is recorded once the disk works again.
        """
        if self.promised is None:
            self.promised = Receipt()
        return self.promised

    def settle_promised(self, error: str | None) -> None:
        promised, self.promised = self.promised, None
        if promised is not None:
            promised.settle(error)

    def topology(self) -> dict[str, object]:
        """Return the names and pauses of all durable topics and channels for topology.json, a backup of the journal."""
        return self._topology_of(self.topics.values())

    def topology_parts(self) -> Iterator[dict[str, object]]:
        """Yield `topology` in parts of up to a hundred topics. Other work may run between two parts."""
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

    def snapshot_topic(self, name: str) -> Iterable[Change | None]:
        topic = self.topics.get(name)
        return topic.snapshot_changes() if topic is not None and not topic.ephemeral else ()

    def exceptions(self, name: str) -> Iterable[Iterable[int]]:
        """Return, in pieces, the sequences that the topic's channels need besides the ones ahead of their cursors."""
        topic = self.topics.get(name)
        return topic.exceptions() if topic is not None else ()

    def restore(
        self, states: Mapping[str, TopicState], logs: Mapping[str, TopicLog], *, unrecorded: Collection[str] = ()
    ) -> None:
        """Build topics and channels from the recovered state, and clamp every position to its log's tail.

        A topic that is only in the journal begins with an empty log. One that only has a log has no channels. `unrecorded`
        names the topics whose state isn't in the journal. We record their state now, and also the state of topics in
        doubt, because otherwise all of their later progress would be in doubt, too.
        """
        for name in {**states, **logs}:
            log = logs.get(name) or self.store.create_log(name)
            topic = self.topics[name] = Topic(name, log, self.turn)
            state = states.get(name)
            if state is None:
                topic.feed.high_watermark = log.first  # so that a first channel gets everything in the log
                topic.record(("topic", name))
                topic.record(("freeze", name, log.first))
            else:
                if state.cut(log.tail):
                    topic.record(("cut", name, log.tail))
                topic.restore(state)
                if name in unrecorded or state.in_doubt:
                    topic.record(("snapshot", name))
                    for change in topic.snapshot_changes():
                        if change is not None:
                            topic.record(change)
            if topic.learning:
                self._learn_channels(topic)
            topic.apply_retention()  # nsqd may have stopped between the last FIN of a segment and its removal
        self.turn.shape_unsaved = True  # topology.json may be older than the recovered state
