"""A broker without sockets: clients are protocol cores, a turn is a call, and a test moves the clock."""

from __future__ import annotations

from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqcommon.handshake import TlsServer
from nsqcommon.wire.extensions import EXTENSIONS
from nsqcommon.wire.frames import FrameReader, FrameType
from nsqcommon.wire.identify import ClientSettings, Negotiation, ServerFeatures
from nsqcommon.wire.limits import SizeLimits
from nsqcommon.wire.unfinished import UnfinishedBodies
from nsqd.auth.grants import AuthQuestion, Grant, decode_grant
from nsqd.broker import stats
from nsqd.broker.broker import Broker
from nsqd.broker.journal_replay import replay
from nsqd.broker.message_id import IdSource
from nsqd.broker.rules import NO_RULES, RuleSource
from nsqd.broker.turn import Announce
from nsqd.client.note import NoteKind
from nsqd.client.protocol import ClientProtocol
from nsqd.client.rules import ClientRules
from nsqd.client.states import ClientState
from nsqd.client.upgrade import UpgradedClient
from tests.support.broker_settings import broker_settings
from tests.support.fake_store import FakeStore, finish_turn, tell_nobody

if TYPE_CHECKING:
    from nsqd.broker.latency import LatencySettings
    from nsqd.broker.stats_records import ChannelSnapshot, TopicSnapshot
    from nsqd.turn import TurnSyncer

START = 1_700_000_000_000_000_000  # wall clock

RULES = ClientRules(
    limits=SizeLimits(max_message=1024, max_body=5120),
    features=ServerFeatures(
        max_rdy_count=2500,
        version="1.3.0",
        max_msg_timeout_ms=900_000,
        max_heartbeat_interval_ms=60_000,
        max_output_buffer_size=65_536,
        min_output_buffer_timeout_ms=25,
        max_output_buffer_timeout_ms=30_000,
        max_deflate_level=6,
        tls=False,
        snappy=False,
        deflate=False,
        auth_required=False,
        topology_region="",
        topology_zone="",
        extensions=EXTENSIONS,
    ),
    defaults=ClientSettings(output_buffer_timeout_ms=250, msg_timeout_ms=60_000),
    max_req_timeout_ms=3_600_000,
    max_defer_timeout_ms=3_600_000,
    max_channel_consumers=0,
)

_message = Struct(">qH16s")


class Message(NamedTuple):
    id: bytes
    attempts: int
    body: bytes


class Node:
    def __init__(
        self,
        *,
        mem_queue_size: int = 10,
        mem_queue_bytes: int = 1 << 20,
        latency: LatencySettings | None = None,
        prefers_near_consumers: bool = False,
        idempotence_window: int = 600_000_000_000,
        policy: RuleSource = NO_RULES,
        **rules: Any,
    ) -> None:
        self.policy = policy
        self.settings = broker_settings(
            mem_queue_size=mem_queue_size,
            mem_queue_bytes=mem_queue_bytes,
            latency=latency,
            prefers_near_consumers=prefers_near_consumers,
            idempotence_window=idempotence_window,
        )
        self.rules = replace(RULES, **rules)
        self.tls_server: TlsServer | None = None
        self.unfinished = UnfinishedBodies(1 << 20)
        self.questions: list[AuthQuestion] | None = None  # None: clients need no AUTH; a list collects their questions
        self.store = FakeStore()
        self.store.memory_capacity = mem_queue_size
        self.percents: list[int] = []  # the random percents that the broker draws next
        self.now = 1000.0
        self.broker = self._new_broker()
        self.clients: list[Client] = []
        self.announce: Announce = tell_nobody  # with the names of changed topics

    def _new_broker(self) -> Broker:
        timestamp = self._timestamp()
        reserved = self.store.reserved_ids
        return Broker(
            self.store,
            self.settings,
            ids=IdSource(1, timestamp=timestamp, reserved=reserved, reserve=self.store.reserve_ids),
            now=self.now,
            timestamp=timestamp,
            random_percent=lambda: self.percents.pop(0),
            rules=self.policy,
            note=print,
            learns=False,
        )

    def _timestamp(self) -> int:
        return START + int((self.now - 1000.0) * 1_000_000_000)

    def crash(self) -> None:
        """Let the process die and start again. No client is connected then."""
        self.store = self.store.crash()
        self.broker = self._new_broker()
        self.broker.restore(replay(self.store.journal), dict(self.store.logs))
        self.clients = []

    def load(self) -> None:
        """Load what the log was asked for, until nothing is left."""
        while self.store.wanted:
            self.store.load(self.broker)
            self.turn()

    def client(self, said: bytes = b"  V2") -> Client:
        client = Client(self)
        self.clients.append(client)
        client.say(said)
        client.hear()
        return client

    def consumer(self, topic: str = "t", channel: str = "c", ready: int = 1) -> Client:
        client = self.client(b"  V2SUB %b %b\n" % (topic.encode(), channel.encode()))
        client.say(b"RDY %d\n" % ready)
        return client

    def turn(self) -> None:
        finish_turn(self.broker, self.store, self.announce)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and run whatever is due at its end."""
        self.now += seconds
        self.broker.turn.now = self.now
        self.broker.turn.timestamp = self._timestamp()
        self.broker.expire()
        for client in self.clients:
            if client.handler.next_deadline <= self.now:
                client.handler.tick(self.now)
        self.turn()

    def answer(self, grant: bytes | None) -> None:
        """Answer the oldest question, with a server's document or not at all."""
        assert self.questions is not None
        question = self.questions.pop(0)
        decoded: Grant | None = None if grant is None else decode_grant(grant)
        question.answer(decoded)
        self.turn()

    def topic(self, name: str = "t") -> TopicSnapshot:
        topics = stats.snapshot(self.broker, name).topics
        assert topics
        return topics[0]

    def channel(self, topic: str = "t", channel: str = "c") -> ChannelSnapshot:
        return next(c for c in self.topic(topic).channels if c.channel_name == channel)


class NoSyncer:
    """What a turn of nsqd sees of a syncer for which no client ever waits."""

    holds_up_clients = False

    def hurry(self) -> None: ...


class TurnStore:
    """A node's store as a turn of nsqd sees it."""

    def __init__(self, node: Node) -> None:
        self._store = node.store
        self.syncer: TurnSyncer = NoSyncer()
        self.journal_error: str | None = None
        self.publishing_error: str | None = None

    def write_journal(self) -> bool:
        return self._store.write_journal()

    def write_logs(self) -> None:
        self._store.write_logs()

    async def sync(self) -> None: ...


class NodeTurn:
    """A turn of the node, for shells. Time passes only when a test moves it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def begin(self) -> float:
        return self._node.now

    def finish(self) -> None:
        self._node.turn()


_BREATH = 0.001  # seconds; a client that wants to go on sooner has given way to others


class Client:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.wakes = 0
        self.notes: list[tuple[str, bytes]] = []
        self.protocol = ClientProtocol(
            node.broker,
            node.rules,
            remote_address="127.0.0.1:4000",
            remote_host="127.0.0.1",
            wake=self._wake,
            note=self._note,
            upgrade=self._upgrade,
            ask=node.questions.append if node.questions is not None else None,
            unfinished=node.unfinished,
        )
        self.handler: ClientProtocol | UpgradedClient = self.protocol

    def _upgrade(self, client: ClientProtocol, granted: Negotiation, early: bytes) -> None:
        self.handler = UpgradedClient(
            client,
            granted,
            self.node.tls_server,
            early=early,
            now=self.node.now,
            wake=self._wake,
            note=lambda text: self._note("error", text.encode()),
        )

    def _wake(self) -> None:
        self.wakes += 1

    def _note(self, kind: NoteKind, text: bytes) -> None:
        self.notes.append((kind, text))

    @property
    def is_closed(self) -> bool:
        return self.protocol.state is ClientState.CLOSED

    def say(self, data: bytes) -> None:
        """Receive these bytes in one piece, in a turn of their own."""
        self.handler.receive(data, self.node.now)
        self.node.turn()

    def go_on(self) -> None:
        """Call the client again, as the poller would, whenever it gives way to others."""
        while not self.handler.reading and self.handler.next_deadline <= self.node.now + _BREATH:
            self.handler.tick(self.handler.next_deadline)
            self.node.turn()

    def hear(self) -> bytes:
        """Return everything that the client has to send now."""
        pieces = self.handler.bytes_to_send()
        self.handler.sent(0)
        self.node.turn()
        return b"".join([*pieces, *self.handler.bytes_to_send()])

    def ask(self, data: bytes) -> bytes:
        self.say(data)
        return self.hear()

    def answers(self, data: bytes = b"") -> list[bytes]:
        """Return the texts of responses and errors; a message is `<attempts> body`."""
        if data:
            self.say(data)
        said = []
        for frame_type, frame in frames(self.hear()):
            if frame_type is FrameType.MESSAGE:
                message = cut_message(frame)
                frame = b"<%d> %b" % (message.attempts, message.body)
            said.append(frame)
        return said

    def messages(self) -> list[Message]:
        return [cut_message(frame) for kind, frame in frames(self.hear()) if kind is FrameType.MESSAGE]


def frames(data: bytes) -> list[tuple[FrameType, bytes]]:
    reader = FrameReader(1 << 20)
    reader.receive(data)
    return [(frame.type, frame.data) for frame in iter(reader.next_frame, None)]


def cut_message(data: bytes) -> Message:
    _, attempts, message_id = _message.unpack_from(data)
    return Message(message_id, attempts, data[_message.size :])
