"""What clients and operators can do to a machine, recorded in the ledger as they see it; also its ends and starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import accumulate
from random import Random
from struct import Struct
from typing import Any, Final
from unittest import mock

from nsqcommon.wire.headers import NONE, encode_headers
from nsqcommon.wire.names import is_ephemeral
from nsqd.ack_option import Ack
from nsqd.broker import operator_actions
from nsqd.broker.backlog import Backlog, is_in
from nsqd.broker.batch import Receipt
from nsqd.broker.buried_queue import BuriedSelection, Verb
from nsqd.broker.channel import NOT_ON_DISK, Channel
from nsqd.broker.consumer import Consumer
from nsqd.broker.operator_actions import CancelOutcome
from nsqd.broker.rules import NO_CHANNEL_RULES, NO_TOPIC_RULES, ChannelRules, TopicRules
from nsqd.broker.stats_records import ClientSnapshot
from nsqd.broker.topic import PublishRefused
from nsqd.log.data_path import DataPathError, is_journal
from nsqd.log.faults import FaultKind
from nsqd.log.files import Files
from nsqd.log.recovery.store import Recovered
from nsqd.log.remote import Remote
from nsqd.log.topic_log import DiskLog
from nsqd.options import Options
from tests.simulation import limiting
from tests.simulation.comparison import reconcile
from tests.simulation.contents import ahead_in
from tests.simulation.disk import Crash, SimulatedDisk, Stopped
from tests.simulation.grouping import Grouping, Stand, group_of
from tests.simulation.ledger import Ledger
from tests.simulation.machine import Clock, Machine
from tests.simulation.models import ROUNDING, ChannelModel, Due, Owed, Published, TopicModel
from tests.simulation.promise import Marks, Violation
from tests.support.given_rules import GivenRules
from tests.support.log_settings import log_settings
from tests.support.recalling import recalled

SMALL_JOURNAL: Final = {
    "rotation.ROTATE_AT": 3000,
    "rotation.ROTATE_AT_GROWTH": 2,
    "rotation.PIECE_WEIGHT": 12,
    "journal.AHEAD": 1000,
    "journal.ASK_AGAIN_AFTER": 100,
}
MAX_MSG_TIMEOUT: Final = 90.0
DRAIN_ROUNDS: Final = 200
LONG_PAUSE: Final = 1.5  # seconds; by then, all that has to be read is read

_frame: Final = Struct(">IIqH16s")


@contextmanager
def small_journal() -> Iterator[None]:
    """Return settings of a journal that rotates after some kilobytes, and writes snapshots in small pieces."""
    with ExitStack() as stack:
        for name, value in SMALL_JOURNAL.items():
            stack.enter_context(mock.patch(f"nsqd.log.journal.{name}", value))
        yield


@dataclass(eq=False)
class Client:
    number: int
    consumer: Consumer
    topic: TopicModel
    channel: str
    in_hand: dict[bytes, int] = field(default_factory=dict)  # id -> sequence
    outbox: list[bytes] = field(default_factory=list)
    is_open: bool = True


@dataclass(frozen=True)
class Noted:
    """What a channel had to deliver when somebody looked, and of which log."""

    topic: str
    log_id: str
    channel: str
    backlog: Backlog


@dataclass
class Draft:
    """A message published in the turn that is not over yet."""

    topic: TopicModel
    bodies: list[bytes]
    receipt: Receipt
    has_waited: bool = False  # until files were removed


def _doubts(recovered: Recovered) -> dict[str, int]:
    """Return from where each topic is read again: from its last checkpoint before reported damage in the journal."""
    doubts: dict[str, int] = {}
    if any(is_journal(damage.file) and damage.text.startswith("damaged") for damage in recovered.damage):
        for change in recovered.changes:
            match change:
                case ["doubt", str(topic), int(sequence)]:
                    doubts[topic] = min(sequence, doubts.get(topic, sequence))
    return doubts


class Life:
    """`note` is called with everything that happens, for a trace."""

    def __init__(
        self,
        random: Random,
        *,
        disk: SimulatedDisk | None = None,
        ack: str = Ack.WRITTEN,
        note: Callable[[str], None] = lambda text: None,
        **settings: Any,
    ) -> None:
        self.random = random
        self.note = note
        self.disk = disk or SimulatedDisk(random=random)
        self.clock = Clock()
        self.settings = log_settings(ack=ack, **settings)
        self.ledger = Ledger(may_drop=[name for name, kept in self.settings.topic_retention.items() if kept])
        self.options = Options(
            max_msg_timeout=int(MAX_MSG_TIMEOUT * 1e9), mem_queue_size=self.settings.options.mem_queue_size
        )
        self.rules = GivenRules()
        self.machine: Machine | None = None
        self.clients: list[Client] = []
        self.starts = 0
        self.noted: list[Noted] = []
        self.rules_at_end = NO_CHANNEL_RULES
        self.grouping = Grouping(self.ledger)
        self._drafts: list[Draft] = []
        self._admission = limiting.Admission()
        self._reshaped: list[TopicModel] = []
        self._numbers = 0
        self._marks_at_round = Marks(0, 0)
        self._firsts: dict[str, int] = {}  # where each log began at the last look
        self._journal_in_doubt = False
        self._failed_syncs = 0  # failed syncs of the disk that were noted

    # From start to end

    @property
    def running(self) -> Machine:
        assert self.machine is not None
        return self.machine

    def start(self, crash: Crash) -> None:
        """Start, for the first time or after a crash. The ledger compares whether everything is there."""
        self.clock.restart(self.random)
        machine = Machine(
            self.disk,
            self.clock,
            self.settings,
            self.options,
            self.random,
            self.rules,
            files=self.files_of_disk(),
            remote=self.remote_of_disk(),
        )
        self.machine = machine
        self.starts += 1
        machine.flush = self._flush
        machine.observe = self._observe
        machine.on_sync_begun = self._sync_begun
        machine.on_sync_ended = self._sync_ended
        self._journal_in_doubt = False
        self._firsts.clear()
        self.grouping.began()
        for damage in machine.recovered.damage:
            self.note(f"found: {damage.topic} {damage.file} at {damage.offset}: {damage.text}")
        self._note_failed_syncs(machine.store.journal_error)  # the start's own failed syncs
        reconcile(
            self.ledger,
            machine.broker,
            self.disk,
            crash,
            synced=machine.starts_synced,
            doubts=_doubts(machine.recovered),
        )
        self._note_failed_syncs(None)
        self._observe()
        self.ledger.check(machine.broker)

    def files_of_disk(self) -> Files:
        """Return what the log of the next machine sees of the disk."""
        return self.disk

    def remote_of_disk(self) -> Remote | None:
        """Return the copy that the log of the next machine has elsewhere. None: it has none."""
        return None

    def try_to_start(self, crash: Crash) -> bool:
        try:
            self.start(crash)
        except DataPathError as error:
            self.note(f"does not start: {error}")
            self._hear_of_failed_syncs()
            self.machine = None
            return False
        return True

    def crash(self, crash: Crash) -> None:
        """Let the process end, and with it perhaps the power."""
        self.note(f"crash: {crash}")
        self._settle_drafts()
        if self.machine is not None:
            self._look_at_limits(is_last=True)
        self._hear_of_failed_syncs()
        self._forget_clients()
        self.machine = None
        self.disk.crash(crash, self.random)

    def _hear_of_failed_syncs(self) -> None:
        """Note failed syncs of a round that has not ended, or of a failed start: too late to write again."""
        if self.disk.failed_syncs > self._failed_syncs:
            self._failed_syncs = self.disk.failed_syncs
            self.ledger.sync_failed(lost_pages=self.disk.drops_pages)

    def stop(self) -> Crash:
        """Stop properly, and return how durable the rest is."""
        machine = self.running
        machine.stop()
        self._note_failed_syncs(machine.store.journal_error)
        self._settle_drafts()
        is_clean = not machine.store.faults and machine.store.journal.waiting == 0
        self.note(f"stop: {'clean' if is_clean else machine.store.health}")
        if is_clean:
            number = self.ledger.number
            self.ledger.written = self.ledger.synced = Marks(number, number)
            for topic in self.ledger.topics.values():
                topic.written_tail = topic.synced_tail = topic.tail
        self._forget_clients()
        self.machine = None
        left = self.disk.open_descriptors()
        if left and is_clean:
            raise Violation(f"still open: {left}")
        self.disk.crash(Crash.KILL, self.random)
        return Crash.KILL

    def _forget_clients(self) -> None:
        if self.machine is not None and FaultKind.IDS in self.machine.store.faults:
            self.ledger.forget_ids()
        for client in self.clients:
            client.is_open = False
        self.clients.clear()
        self._drafts.clear()  # of publishes that waited for files to be removed, and were never answered

    # Turns

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run the block as one turn: everything in it arrives together."""
        with self.running.turn():
            yield

    def _flush(self) -> None:
        """Send the frames: only now have clients seen them, and publishes of this turn have their answers."""
        fed = self._settle_drafts()
        self._look_at_limits()
        for topic in fed:
            if self.ledger.topics.get(topic.name) is topic:
                limiting.check_bounds(self.ledger, topic, self.running.broker.topics[topic.name])
        delivered: dict[tuple[str, str], list[int]] = {}
        for client in self.clients:
            pieces, client.outbox = client.outbox, []
            had_room = client.consumer.room > 0
            client.consumer.unsent_bytes = 0
            if not had_room and client.consumer.room > 0 and client.consumer.has_joined:
                self._real_channel(client).schedule_delivery()
            if sequences := self._received(client, b"".join(pieces)):
                delivered.setdefault((client.topic.name, client.channel), []).extend(sequences)
        for (topic_name, name), sequences in delivered.items():
            topic, real = self.ledger.topics[topic_name], self.running.broker.topics[topic_name].channels[name]
            self.grouping.delivered(topic, topic.channels[name], real, sequences, self.clock.true)
        if self.rules.of_channels.max_held is not None:
            self._look_at_held()

    def _look_at_held(self) -> None:
        for topic in self.ledger.topics.values():
            for name, channel in topic.channels.items():
                if (real := self.running.broker.topics[topic.name].channels.get(name)) is not None:
                    self.grouping.look_at_held(topic, channel, real)

    def _received(self, client: Client, data: bytes) -> list[int]:
        """Note what a client gets. Return the sequences."""
        sequences = []
        for attempts, message_id, body in _messages(data):
            self.note(f"  client {client.number} gets {message_id.decode()} {body[:8]!r} attempts {attempts}")
            if client.topic.name not in self.ledger.topics or client.channel not in client.topic.channels:
                continue  # the channel was deleted in this turn
            sequence = self.ledger.was_delivered(
                client.topic,
                client.channel,
                message_id,
                body,
                attempts,
                now=self.clock.true,
                forward=self.clock.forward,
                timestamp=self.running.broker.turn.timestamp,
                held_until=self.clock.true + client.consumer.msg_timeout - 0.001,
            )
            client.in_hand[message_id] = sequence
            sequences.append(sequence)
        return sequences

    def _settle_drafts(self) -> list[TopicModel]:
        """Note what was published in this turn, or before it, and was sealed in it. Return its topics."""
        drafts, self._drafts = self._drafts, []
        self._admission.turn_over()
        touched: dict[str, tuple[TopicModel, int]] = {}
        for draft in drafts:
            receipt, topic = draft.receipt, draft.topic
            if receipt.settled and receipt.error is not None:
                self.note(f"  refused: {receipt.error}")
                continue
            if self.ledger.topics.get(topic.name) is not topic:
                continue
            if not receipt.settled and self.running.broker.topics[topic.name] in self.running.broker.turn.postponed:
                self._drafts.append(replace(draft, has_waited=True))  # a later turn seals it, when files are removed
                continue
            if not self._is_sealed(draft):
                continue
            if draft.has_waited:
                for body in draft.bodies:
                    self._published_now(self.ledger.published[body])
            touched.setdefault(topic.name, (topic, topic.tail))
            first = self.ledger.appended(topic, draft.bodies)
            count = len(draft.bodies)
            receipt.when_settled(partial(self._answered, receipt, topic, first, count))
        for topic, first in touched.values():
            self.ledger.turn_over(topic, first, self.clock.true, self.clock.forward)
        return [topic for topic, _ in touched.values()]

    def _published_now(self, published: Published) -> None:
        """Note that a message is published in this turn, although it was sent earlier."""
        published.at, published.forward = self.clock.true, self.clock.forward
        published.timestamp = self.running.broker.turn.timestamp

    def _is_sealed(self, draft: Draft) -> bool:
        """Return whether the log has it. A machine that stops in the middle of a turn may not have come that far."""
        if draft.receipt.settled:
            return True
        log = self.running.broker.topics[draft.topic.name].log
        return log.tail > draft.topic.tail

    def _answered(self, receipt: Receipt, topic: TopicModel, first: int, count: int) -> None:
        if receipt.error is None:
            self.ledger.was_acknowledged(topic, first, count)

    # What the disk has

    def _observe(self) -> None:
        store = self.running.store
        self.ledger.second_place_is_old = self.running.topology_is_unsaved
        if store.journal_error is None:
            self._journal_in_doubt = False
        self._observe_retention()
        self._look_at_limits()
        self.ledger.observe(self.running.broker, store.journal.waiting, written=not self._journal_in_doubt)

    def _look_at_limits(self, *, is_last: bool = False) -> None:
        limiting.look(self.ledger, self.running.broker, self.clock.true, self._unsent, is_last=is_last)

    def _unsent(self, topic: TopicModel, channel: str) -> int:
        clients = [client for client in self.clients if (client.topic, client.channel) == (topic, channel)]
        return sum(1 for client in clients for _ in _messages(b"".join(client.outbox)))

    def _observe_retention(self) -> None:
        for topic in self.ledger.topics.values():
            real = self.running.broker.topics[topic.name]
            assert isinstance(real.log, DiskLog)
            before = self._firsts.get(topic.log_id, real.log.first)
            if real.log.first > before:
                self._check_what_went(topic, real.log, before)
            self._firsts[topic.log_id] = real.log.first
            may_drop = topic.name in self.ledger.may_drop and not topic.channels
            if may_drop and real.high_watermark > topic.high_watermark:
                self.note(f"  retention drops {topic.name} to {real.high_watermark}")
                self.ledger.outdated(topic, real.high_watermark)

    def _check_what_went(self, topic: TopicModel, log: DiskLog, before: int) -> None:
        """Check that retention has kept removed messages for as long as it should."""
        retention = self.settings.retention_of(topic.name)
        left = sum(segment.size for segment in log._segments)
        if retention.bytes and left > retention.bytes:
            return
        if retention.bytes and not retention.time:
            raise Violation(f"{topic.name}: went to {log.first}, and {left} bytes are left")
        for sequence in range(before, log.first) if retention.time else ():
            published = self.ledger.published.get(topic.messages.get(sequence, b""))
            if published is not None:
                age = self.clock.true - published.at + self.clock.forward
                if age < retention.time / 1e9 - ROUNDING:
                    raise Violation(f"{topic.name}: message {sequence} went after {age:.3f} seconds")

    def _sync_begun(self) -> None:
        self._observe()
        self._marks_at_round = self.ledger.written

    def _sync_ended(self, error: str | None) -> None:
        if error is None and not self._journal_in_doubt:
            self.ledger.synced = self._marks_at_round
        self._note_failed_syncs(error)

    def _note_failed_syncs(self, error: str | None) -> None:
        self._failed_syncs = self.disk.failed_syncs
        store = self.running.store
        if (
            any(isinstance(log, DiskLog) and log._unsynced.has_failed for log in store.logs.values())
            or error is not None
        ):
            self._journal_in_doubt = self.disk.drops_pages
            self.ledger.sync_failed(lost_pages=self.disk.drops_pages)

    # Publishing

    def bodies(
        self, topic: str, count: int, delay: float = 0.0, size: int = 0, groups: Sequence[bytes | None] = ()
    ) -> list[bytes]:
        found = []
        for _, group in zip(range(count), groups or (None,) * count, strict=True):
            self._numbers += 1
            body = b"%d." % self._numbers
            body = body.ljust(size, b"x")
            timestamp = self.running.broker.turn.timestamp
            published = Published(topic, self.clock.true, delay, self.clock.forward, timestamp, group=group_of(group))
            self.ledger.sent(body, published)
            found.append(body)
        return found

    def topic(self, name: str) -> TopicModel:
        self.ledger.topic_begun(name)
        real = self.running.broker.topic(name)
        if name not in self.ledger.topics:
            assert isinstance(real.log, DiskLog)
            return self.ledger.topic_created(name, real.log, self.settings.ack_of(name))
        return self.ledger.topics[name]

    def publish(
        self,
        name: str,
        count: int = 1,
        *,
        delay: float = 0.0,
        size: int = 0,
        single: bool = False,
        groups: Sequence[bytes | None] = (),
    ) -> None:
        """Publish so many messages. `groups` has an `nsq-group` for each, or None: it has no such header."""
        topic = self.topic(name)
        real = self.running.broker.topics[name]
        bodies = self.bodies(name, count, delay, size, groups)
        of = f", groups {[(it or b'')[:8] for it in groups]}" if groups else ""
        self.note(f"publish to {name}: {bodies[0][:8]!r} and {count - 1} more, delay {delay}, size {size}{of}")
        headers = [encode_headers({"nsq-group": it}) if it is not None else NONE for it in groups] or [b""] * count
        sized = [len(body).to_bytes(4, "big") + body for body in bodies]
        if single:
            for body, one, of_one in zip(bodies, sized, headers, strict=True):
                self._publish(topic, [body], partial(real.publish_one, one, int(delay * 1000), headers=of_one))
        else:
            offsets = [0, *accumulate(map(len, sized))]
            publish = partial(real.publish, b"".join(sized), offsets, int(delay * 1000), headers=b"".join(headers))
            self._publish(topic, bodies, publish)

    def _publish(self, topic: TopicModel, bodies: list[bytes], publish: Callable[[], Receipt]) -> None:
        drafted = sum(len(draft.bodies) for draft in self._drafts if draft.topic is topic)
        check = partial(
            self._admission.check, self.ledger, self.running.broker.topics[topic.name], len(bodies), drafted
        )
        try:
            receipt = publish()
        except PublishRefused as error:
            self.note(f"  refused: {error}")
            check(refused=True)
        else:
            check(refused=False)
            self._drafts.append(Draft(topic, bodies, receipt))

    # Operating

    def create_channel(self, topic_name: str, name: str) -> ChannelModel:
        topic = self.topic(topic_name)
        self.running.broker.topics[topic_name].channel(name)
        if name not in topic.channels:
            self.note(f"create {topic_name}/{name}")
            self.ledger.channel_created(topic, name, self.clock.true, self.clock.forward)
            self._look_at_limits()  # a new channel has all bounds of its topic looked at
        return topic.channels[name]

    def place_in(self, topic: TopicModel) -> int:
        """Return any place in what is left of its history."""
        real = self.running.broker.topics[topic.name]
        first, last = real.log.first, real.high_watermark
        return self.random.choice((first, last, self.random.randint(first, last)))

    def create_channel_from(self, topic: TopicModel, name: str) -> None:
        if name not in topic.channels:
            self.create_channel(topic.name, name)
            self.seek(topic, name, self.place_in(topic))

    def seek(self, topic: TopicModel, name: str, cursor: int) -> None:
        self.note(f"seek {topic.name}/{name} to {cursor}")
        operator_actions.seek(self.running.broker.topics[topic.name].channels[name], cursor)
        self.ledger.channel_sought(topic, topic.channels[name], cursor)
        self.grouping.began()
        self._forget_in_hand(topic, name)

    def note_backlog(self, topic: TopicModel, name: str) -> None:
        """Keep what the channel has to deliver, for `restore`. HTTP syncs it as well before it answers."""
        real = self.running.broker.topics[topic.name]
        with self.turn():
            backlog = operator_actions.backlog(real.channels[name], 1000)
        if backlog is not None and self.make_durable():
            self.note(f"note {topic.name}/{name}: {backlog}")
            self.noted = [*self.noted[-3:], Noted(topic.name, topic.log_id, name, backlog)]

    def restore(self, noted: Noted) -> bool:
        """Give a channel back what it had. Return whether its topic still is what it was."""
        topic, backlog = self.ledger.topics.get(noted.topic), noted.backlog
        if topic is None or topic.log_id != noted.log_id:
            return False
        real = self.running.broker.topics[topic.name]
        if backlog.end > real.high_watermark:
            return False
        self.note(f"restore {topic.name}/{noted.channel}: {backlog}")
        if noted.channel not in topic.channels:
            cursor = max(backlog.end, real.log.first)
            real.channel(noted.channel, cursor=cursor)
            self.ledger.channel_created(topic, noted.channel, self.clock.true, self.clock.forward, cursor=cursor)
            self._look_at_limits()
        channel = real.channels[noted.channel]
        owed_now = topic.channels[noted.channel].owed
        held = {sequence for sequence, _ in channel.in_flight.positions()}
        held |= {sequence for sequence in owed_now if is_in(sequence, backlog.buried)}  # kicked since
        restored = self._owed_by(topic, backlog)
        result = operator_actions.restore_backlog(channel, backlog, 1000)
        assert result is not None
        self.note(f"  {result}")
        if sum(result) != backlog.count or result.gone > backlog.count - len(restored):
            raise Violation(f"{topic.name}/{noted.channel}: {result}, {len(restored)} are there")
        self.ledger.channel_restored(topic.channels[noted.channel], restored, backlog.end, held)
        self.grouping.began()
        return True

    def _owed_by(self, topic: TopicModel, backlog: Backlog) -> dict[int, Owed]:
        """Return what the backlog says of messages that the log still has."""
        log, ledger = self.running.broker.topics[topic.name].log, self.ledger
        owed = {}
        for sequence in range(backlog.next, backlog.end):
            if not is_in(sequence, backlog.finished) and (sequence >= log.first or log.next_kept(sequence) == sequence):
                owed[sequence] = Owed(due=ledger.due_by_publication(topic, sequence))
        for sequence, attempts in backlog.requeued:
            owed[sequence] = Owed(attempts, is_new=False, holds_up=attempts > 0)
        for sequence, attempts, due_ms in backlog.deferred:
            at = self.clock.true + due_ms / 1e3 - self.clock.wall() / 1e9
            due = Due(at, self.clock.forward, ledger.number, is_publication=False)
            owed[sequence] = Owed(attempts, due=due, is_new=False, holds_up=attempts > 0)
        exceptions = backlog.exceptions()
        return {s: it for s, it in owed.items() if s not in exceptions or log.next_readable(s) == s}

    def redeliver(self, topic: TopicModel, name: str, sequences: range) -> None:
        real, channel = self.running.broker.topics[topic.name], topic.channels[name]
        log = real.log
        there = channel.owed.keys() | channel.buried.held.keys()
        expected = [s for s in sequences if s not in there and log.next_readable(s) == s]
        result = operator_actions.redeliver(real.channels[name], sequences)
        self.note(f"redeliver {topic.name}/{name} {sequences}: {result}")
        if result.redelivered != len(expected) and not topic.vague.intersection(sequences):
            raise Violation(f"{topic.name}/{name}: {result}, expected {expected}")
        self.ledger.redelivery(channel, expected)

    def delete_channel(self, topic: TopicModel, name: str) -> None:
        self.note(f"delete {topic.name}/{name}")
        self.running.broker.topics[topic.name].delete_channel(name)
        self._channel_deleted(topic, name)

    def _channel_deleted(self, topic: TopicModel, name: str) -> None:
        self.ledger.channel_deleted(topic, name)
        for client in self.clients:
            client.is_open = client.is_open and (client.topic, client.channel) != (topic, name)

    def delete_topic(self, topic: TopicModel) -> None:
        self.note(f"delete {topic.name}")
        self.running.broker.delete_topic(topic.name)
        self.ledger.topic_deleted(topic)
        for client in self.clients:
            client.is_open = client.is_open and client.topic is not topic

    def pause_topic(self, topic: TopicModel, paused: bool) -> None:
        self.note(f"{'pause' if paused else 'unpause'} {topic.name}")
        real = self.running.broker.topics[topic.name]
        (real.pause if paused else real.unpause)()
        self.ledger.pause_topic(topic, paused, self.clock.true, self.clock.forward)

    def pause_channel(self, topic: TopicModel, name: str, paused: bool) -> None:
        self.note(f"{'pause' if paused else 'unpause'} {topic.name}/{name}")
        real = self.running.broker.topics[topic.name].channels[name]
        (real.pause if paused else real.unpause)()
        self.ledger.pause_channel(topic.channels[name], paused)

    def empty_topic(self, topic: TopicModel) -> None:
        self.note(f"empty {topic.name}")
        self.running.broker.topics[topic.name].empty()
        self.ledger.empty_topic(topic)

    def empty_channel(self, topic: TopicModel, name: str) -> None:
        self.note(f"empty {topic.name}/{name}")
        operator_actions.empty(self.running.broker.topics[topic.name].channels[name])
        self.ledger.empty_channel(topic, topic.channels[name])
        self.grouping.began()
        self._forget_in_hand(topic, name)

    def _forget_in_hand(self, topic: TopicModel, name: str) -> None:
        for client in self.clients:
            if (client.topic, client.channel) == (topic, name):
                client.in_hand.clear()

    def make_durable(self) -> bool:
        """Make the change durable, as HTTP does before it answers."""
        number = self.ledger.number
        error = self.running.sync()
        if error is None:
            self.ledger.answered = number
        self.note(f"  durable: {error or 'yes'}")
        return error is None

    # Consuming

    def subscribe(self, topic_name: str, channel_name: str, *, ready: int, timeout: float) -> Client:
        self.create_channel(topic_name, channel_name)
        self._numbers += 1
        number = self._numbers

        def send(pieces: list[bytes]) -> None:
            client.outbox += pieces

        def close() -> None:
            client.is_open = False

        def describe() -> ClientSnapshot:
            return ClientSnapshot(client_id=str(number), hostname="", remote_address="", state=3, connect_ts=0)

        consumer = Consumer(send=send, close=close, describe=describe, msg_timeout=timeout)
        client = Client(number, consumer, self.ledger.topics[topic_name], channel_name)
        self.note(f"subscribe client {number} to {topic_name}/{channel_name}, RDY {ready}, timeout {timeout}")
        self.clients.append(client)
        self.running.broker.topics[topic_name].channels[channel_name].join(consumer)
        self.set_ready(client, ready)
        return client

    def set_ready(self, client: Client, ready: int) -> None:
        client.consumer.ready_count = ready
        self._real_channel(client).schedule_delivery()

    def finish(self, client: Client, ids: list[bytes]) -> None:
        real = self._real_channel(client)
        failed = {message_id for message_id, _ in real.finish(client.consumer, ids)}
        self.note(f"client {client.number} finishes {len(ids) - len(failed)} of {[i.decode() for i in ids]}")
        for message_id in ids:
            sequence = client.in_hand.pop(message_id)
            if message_id not in failed:
                self.ledger.finished(client.topic.channels[client.channel], sequence)

    def requeue(self, client: Client, message_id: bytes, delay: float, *, counts: bool = True) -> None:
        real, ledger = self._real_channel(client), self.ledger
        now = self.running.broker.turn.now
        failure = real.requeue(client.consumer, message_id, int(delay * 1000), now, counts=counts)
        free = "" if counts else " free"
        self.note(f"client {client.number} requeues {message_id.decode()} for {delay}{free}: {failure!r}")
        sequence = client.in_hand.pop(message_id)
        if failure is not None:
            return
        channel = client.topic.channels[client.channel]
        most = ledger.rules.max_attempts
        if not counts or most is None or channel.owed[sequence].attempts < most:
            ledger.requeued(channel, sequence, delay, self.clock.true, self.clock.forward, counts=counts)
        elif real.ledger.ephemeral_batches is not None:
            ledger.finished(channel, sequence)
        else:
            self._was_buried(client, sequence)

    def bury(self, client: Client, message_id: bytes) -> None:
        real = self._real_channel(client)
        reason = self.random.choice(("bad", "worse"))
        failure = real.bury(client.consumer, message_id, reason, self.running.broker.turn.now)
        self.note(f"client {client.number} buries {message_id.decode()}, {reason}: {failure!r}")
        if real.ledger.ephemeral_batches is not None:
            assert failure == NOT_ON_DISK
            return
        sequence = client.in_hand.pop(message_id)
        if failure is None:
            self._was_buried(client, sequence)

    def _was_buried(self, client: Client, sequence: int) -> None:
        burial = self._real_channel(client).buried_queue.buried.get(sequence)
        if burial is None:
            raise Violation(f"{client.topic.name}/{client.channel}: message {sequence} should be buried")
        self.ledger.was_buried(client.topic.channels[client.channel], burial, self.clock.true)
        self._look_at_limits()  # the channel may have paused itself

    def take_buried(self, topic: TopicModel, name: str, verb: Verb, sequences: list[int]) -> None:
        real, channel = self.running.broker.topics[topic.name].channels[name], topic.channels[name]
        expected = [sequence for sequence in dict.fromkeys(sequences) if sequence in channel.buried.held]
        taken = operator_actions.take_buried(real, verb, sequences)
        self.note(f"{verb} {topic.name}/{name} {sequences}: {taken}")
        if taken != len(expected):
            raise Violation(f"{topic.name}/{name}: {verb} of {taken} messages, {expected} were buried")
        for sequence in expected:
            self.ledger.was_taken(channel, verb, sequence)

    def cancel(self, topic: TopicModel, start: int, end: int, names: list[str]) -> int:
        """Take messages back. Return from how many channels."""
        real = self.running.broker.topics[topic.name]
        if end > real.log.tail:
            return 0
        if start < real.high_watermark < end:
            end = real.high_watermark  # what was published with one key lies on one side
        before = [self._expected(topic, name, range(start, end), CancelOutcome.CANCELLED) for name in names]
        is_beyond = end > real.high_watermark
        fresh = [s for s in range(max(start, real.high_watermark), end) if s not in topic.cancelled]
        by_name = recalled(real, start, end, channel=self._only(topic, names))
        found = [by_name[name] for name in names or by_name]
        self.note(f"cancel {topic.name}/{names} [{start}, {end}): {found}")
        if is_beyond:
            if len(names) != len(topic.channels):
                return 0
            if found != [CancelOutcome.CANCELLED if fresh else CancelOutcome.DONE] * max(len(names), 1):
                raise Violation(f"{topic.name}: cancel of [{start}, {end}) finds {found}, {fresh} were not handed over")
            self.ledger.cancelled_beyond(topic, fresh)
            return len(names)
        for name, (waiting, expected), it in zip(names, before, found, strict=True):
            self._check_found(topic, name, range(start, end), it, expected)
            self.ledger.cancelled(topic.channels[name], waiting)
        return found.count(CancelOutcome.CANCELLED)

    def move(self, topic: TopicModel, sequence: int, delay: float, names: list[str]) -> int:
        """Have a message become due after this delay. Return in how many channels."""
        real = self.running.broker.topics[topic.name]
        if sequence >= real.high_watermark:
            return 0
        one = range(sequence, sequence + 1)
        before = [self._expected(topic, name, one, CancelOutcome.MOVED) for name in names]
        ahead = [sequence in ahead_in(real.channels[name]) for name in names]
        by_name = recalled(real, sequence, sequence + 1, channel=self._only(topic, names), delay_ms=int(delay * 1000))
        found = [by_name[name] for name in names]
        self.note(f"move {topic.name}/{names} {sequence} by {delay}: {found}")
        for name, (waiting, expected), it, stays in zip(names, before, found, ahead, strict=True):
            self._check_found(topic, name, one, it, expected)
            if waiting and (delay or not stays):
                self.ledger.moved(topic.channels[name], sequence, delay, self.clock.true, self.clock.forward)
        return found.count(CancelOutcome.MOVED)

    def _only(self, topic: TopicModel, names: list[str]) -> str:
        """Return the channel that a request names; an empty name: all of them."""
        return "" if len(names) == len(topic.channels) else names[0]

    def _expected(
        self, topic: TopicModel, name: str, sequences: range, done: CancelOutcome
    ) -> tuple[list[int], CancelOutcome]:
        """Return which of these messages wait in a channel, and what it should say of all of them together."""
        channel, real = topic.channels[name], self.running.broker.topics[topic.name].channels[name]
        held = {sequence for sequence, _ in real.in_flight.positions()}
        waiting = [sequence for sequence in sequences if sequence in channel.owed and sequence not in held]
        if not held.isdisjoint(sequences):
            return waiting, CancelOutcome.IN_FLIGHT
        if not channel.buried.held.keys().isdisjoint(sequences):
            return waiting, CancelOutcome.BURIED
        return waiting, done if waiting else CancelOutcome.DONE

    def _check_found(
        self, topic: TopicModel, name: str, sequences: range, found: CancelOutcome, expected: CancelOutcome
    ) -> None:
        if found is not expected and not is_ephemeral(name) and not topic.vague.intersection(sequences):
            raise Violation(f"{topic.name}/{name}: {sequences} are {found}, {expected} is right")

    def begin_job(self, topic: TopicModel, name: str, verb: Verb, *, rate: float, reason: str, limit: int) -> None:
        real = self.running.broker.topics[topic.name].channels[name]
        if real.buried_queue.job is not None:
            return
        selection = BuriedSelection(self.running.broker.turn.timestamp // 1_000_000 + 1, reason, limit)
        self.note(f"begin to {verb} {topic.name}/{name}: {selection}, {rate} a second")
        self.ledger.job_begun(topic.channels[name], verb, selection)
        operator_actions.begin_job(real, verb, selection, rate=rate, who="operator")
        self._look_at_limits()

    def undo_kick(self, topic: TopicModel, name: str) -> int:
        """Take the channel's last kick back, if there is one. Return how many messages are buried again."""
        burials = self.running.broker.topics[topic.name].channels[name].buried_queue
        if burials.kicked is None or (burials.job is not None and burials.job.verb != "kick"):
            return 0
        kicked = set(burials.kicked)
        operator_actions.undo_kick(
            self.running.broker.topics[topic.name].channels[name], burials.kicked.number, who="operator"
        )
        self.ledger.job_stopped(topic.channels[name])
        again = self.ledger.kick_taken_back(topic.channels[name], burials.buried, kicked)
        self.note(f"take the kick of {topic.name}/{name} back: {again} of {sorted(kicked)}")
        self._look_at_limits()
        return len(again)

    def stop_job(self, topic: TopicModel, name: str) -> None:
        self.note(f"stop the job of {topic.name}/{name}")
        self.running.broker.topics[topic.name].channels[name].buried_queue.stop_job()
        self.ledger.job_stopped(topic.channels[name])

    def change_rules(self, rules: ChannelRules, topic_rules: TopicRules = NO_TOPIC_RULES) -> None:
        """Have these rules from now on, and in the next lives."""
        self.note(f"rules: {_described(rules)}; of topics: {_described(topic_rules)}")
        self.rules.of_channels, self.rules.of_topics = rules, topic_rules
        self.ledger.rules_changed(rules, topic_rules)
        self.grouping.began()
        if self.machine is not None:
            with self.turn():
                self.machine.broker.rules_changed(list(self.machine.broker.topics))
                self._look_at_limits()

    def touch(self, client: Client, message_id: bytes) -> None:
        real = self._real_channel(client)
        timeout = client.consumer.msg_timeout
        real.touch(client.consumer, message_id, msg_timeout=timeout, now=self.running.broker.turn.now)

    def disconnect(self, client: Client) -> None:
        self.note(f"client {client.number} leaves")
        self.clients.remove(client)
        client.is_open = False
        if client.consumer.has_joined:
            self._real_channel(client).leave(client.consumer)
            if is_ephemeral(client.channel) and not client.topic.channels.keys() <= self._real_channels(client.topic):
                self._channel_deleted(client.topic, client.channel)

    def _real_channel(self, client: Client) -> Channel:
        assert client.consumer.has_joined
        return self.running.broker.topics[client.topic.name].channels[client.channel]

    def _real_channels(self, topic: TopicModel) -> set[str]:
        return set(self.running.broker.topics[topic.name].channels)

    # Time

    def pass_time(self, seconds: float) -> None:
        before = self._could_go() if seconds >= LONG_PAUSE else {}
        self.running.pass_time(seconds)
        after = self._could_go() if before else {}
        for place, groups in before.items():
            if place in after and (stuck := {group for group in groups if after[place].get(group) == groups[group]}):
                raise Violation(f"{place}: groups {stuck} wait although they could go: {groups}")

    def _could_go(self) -> dict[tuple[str, str, int], dict[bytes, Stand]]:
        """Return the groups that could go, of channels with a consumer that has room, and what these have delivered."""
        found = {}
        for client in self.clients if self.rules.of_channels.has_groups else ():
            topic, channel = client.topic, client.topic.channels.get(client.channel)
            if channel is None or channel.paused or is_ephemeral(channel.name):
                continue
            if not client.is_open or client.consumer.room <= 0:
                continue
            real = self._real_channel(client)
            delivered = sum(len(owed.history) for owed in channel.owed.values()) + len(channel.gone)
            found[topic.name, channel.name, delivered] = self.grouping.ready(topic, channel, real)
        return found

    def check(self) -> None:
        self.ledger.check(self.running.broker)

    # The end

    def drain(self) -> None:
        """Deliver and finish everything that is owed. Then nothing may be left anywhere."""
        self.disk.heal()
        self.disk.stop_at = None
        self.pass_time(5.0)  # the disk works again
        self.change_rules(self.rules_at_end)
        self._check_that_it_publishes()
        with self.turn():
            for topic in list(self.ledger.topics.values()):
                for name, channel in topic.channels.items():
                    if not is_ephemeral(name):
                        self.stop_job(topic, name)
                        self.take_buried(topic, name, "kick", list(channel.buried.held))
                if not topic.channels:
                    self.create_channel(topic.name, "drain")
                self.pause_topic(topic, False)
                for name in topic.channels:
                    self.pause_channel(topic, name, False)
        for client in [*self.clients]:
            with self.turn():
                self.disconnect(client)
        with self.turn():
            for topic in list(self.ledger.topics.values()):
                for name in [name for name in topic.channels if not is_ephemeral(name)]:
                    self.subscribe(topic.name, name, ready=100, timeout=60.0)
        for _ in range(DRAIN_ROUNDS):
            for client in self.clients:
                while client.in_hand:
                    with self.turn():
                        self.finish(client, list(client.in_hand))
                    if not self.rules.of_channels.has_groups:
                        break
            self.check()
            if not self.ledger.unfinished():
                return
            self.pass_time(self.random.choice((0.1, 1.0, 60.0, 1000.0)))
        left = {
            f"{topic.name}/{name}": sorted(channel.owed)
            for topic in self.ledger.topics.values()
            for name, channel in topic.channels.items()
            if channel.owed
        }
        raise Violation(f"never delivered: {left}")

    def _check_that_it_publishes(self) -> None:
        refused: list[str] = []
        with self.turn():
            for name in list(self.ledger.topics):
                self.publish(name)
            for draft in self._drafts:
                draft.receipt.when_settled(partial(_note_refusal, draft.receipt, refused))
        if refused:
            raise Violation(f"publishing is still refused: {refused[0]}")


def _messages(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield attempts, id and body of each frame."""
    while data:
        size, _, _, attempts, message_id = _frame.unpack_from(data)
        yield attempts, message_id, data[_frame.size : 4 + size]
        data = data[4 + size :]


def _described(rules: ChannelRules | TopicRules) -> str:
    values = {field.name: getattr(rules, field.name) for field in fields(rules)}
    return ", ".join(f"{name} {value}" for name, value in values.items() if value) or "none"


def _note_refusal(receipt: Receipt, refused: list[str]) -> None:
    if receipt.error is not None:
        refused.append(receipt.error)


__all__ = ["Client", "Life", "Stopped", "small_journal"]
