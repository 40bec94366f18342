"""One client as nsqd sees it: bytes in, bytes out, nothing awaited.

What is allowed when is the table LEGAL. Bodies are checked in two steps, as the protocol demands: `_admit` looks at state,
parameters and topic as soon as the line is there, the reader then cuts the body, and the handler acts on it.

Responses leave in the order of their commands: see outbox.py.

TLS and compression sit between the socket and `receive`/`bytes_to_send` (see upgrade.py).

Where clients have to AUTH, a command may need an answer from elsewhere: AUTH itself, and a SUB or a publish when what was
answered before has expired. The client then asks its question and is suspended: nothing is read, what has come is kept,
heartbeats go on. `_answered` goes on with the command at the same check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Final, Literal

from common.ration import Ration
from common.wire.commands import (
    MAGIC,
    MOST_FINISHES,
    Body,
    Command,
    CommandReader,
    Finishes,
    Limits,
    Line,
    LineTooLong,
    Publication,
    Publications,
    parse_decimal,
    to_signed64,
)
from common.wire.faults import Fault, ProtocolError
from common.wire.frames import (
    CLOSE_WAIT_FRAME,
    HEARTBEAT_FRAME,
    OK_FRAME,
    error_frame,
    response_frame,
    worded_error_frame,
)
from common.wire.identify import (
    ClientSettings,
    Negotiation,
    ServerFeatures,
    apply_identify,
    decode_identify,
    negotiate,
)
from common.wire.names import decode_name
from common.wire.quoting import quote
from nsqd.auth.grants import Grant, Question
from nsqd.broker.consumer import Closeness, Consumer
from nsqd.broker.snapshot import ClientSnapshot
from nsqd.broker.topic import Refused, Topic
from nsqd.client.outbox import Outbox

if TYPE_CHECKING:
    from common.wire.unfinished import UnfinishedBodies
    from nsqd.broker.broker import Broker
    from nsqd.broker.channel import Channel

_MOST_OWED: Final = 1024  # answers to one client that wait for the log
# What one client may cost at a stretch, before all others have their turn: so many commands, and again as much of what costs
# more than others. The unit is a plain command, about a microsecond. One read may hold 30,000 NOPs, or 920 DPUBs that each
# become a batch of their own, but hardly more than 600 messages of 200 bytes: a publisher of these is never interrupted.
_STRETCH: Final = 1024
_COST_OF_FAILURE: Final = 32  # an answer that is an error
_COST_OF_DEFERRAL: Final = 8  # DPUB or REQ: a batch, or an entry in the journal and another delivery
_COST_OF_TOUCH: Final = 4
_COST_OF_TOPIC: Final = 256  # its files take as much time as hundreds of messages
_MOST_DOUBTFUL: Final = 32  # FINs taken together at first, and after one that failed: all of them may fail
_BREATH: Final = 0.000_001  # seconds; any time that is later lets all others have their turn first
_WRITE_TIMEOUT: Final = 60.0  # seconds, of a client without heartbeats; NSQ would wait for ever
_LONGEST_NOTE: Final = 1024  # bytes of an IDENTIFY in the log
_NANOSECONDS_PER_MS: Final = 1_000_000
_UINT64: Final = (1 << 64) - 1


class State(IntEnum):
    """As /stats shows them; CLOSED is ours."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4
    CLOSED = 5


OPEN: Final = frozenset({State.INIT, State.SUBSCRIBED, State.CLOSING})
CONSUMING: Final = frozenset({State.SUBSCRIBED, State.CLOSING})
LEGAL: Final = {
    b"IDENTIFY": frozenset({State.INIT}),
    b"AUTH": frozenset({State.INIT}),
    b"SUB": frozenset({State.INIT}),
    b"RDY": CONSUMING,  # ignored while closing
    b"FIN": CONSUMING,
    b"REQ": CONSUMING,
    b"TOUCH": CONSUMING,
    b"CLS": frozenset({State.SUBSCRIBED}),
    b"PUB": OPEN,
    b"MPUB": OPEN,
    b"DPUB": OPEN,
    b"NOP": OPEN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRules:
    """What nsqd's options say about clients."""

    limits: Limits
    features: ServerFeatures
    defaults: ClientSettings
    max_req_timeout_ms: int
    max_defer_timeout_ms: int
    max_channel_consumers: int
    tls_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """What lies between the client's socket and its protocol."""

    tls: bool = False
    tls_version: str = ""
    cipher_suite: str = ""
    common_name: str = ""  # of the client's certificate
    snappy: bool = False
    deflate: bool = False

    def compressed(self, *, snappy: bool) -> Transport:
        return replace(self, snappy=snappy, deflate=not snappy)


# Whose connection it is, what was granted, and what came behind the IDENTIFY.
Upgrade = Callable[["ClientProtocol", Negotiation, bytes], None]
# Something for the log, which only a shell can write. "lost" is why nothing more can be read, "magic" what the client
# began with, and "exit" that it is not served any more.
NoteKind = Literal["info", "error", "lost", "magic", "exit"]
Note = Callable[[NoteKind, bytes], None]
Ask = Callable[[Question], None]  # an authorization server, as soon as it can be


class _Suspended(Exception):
    """The command cannot be decided before a question is answered."""


class ClientProtocol:
    def __init__(
        self,
        broker: Broker,
        rules: ClientRules,
        *,
        remote_address: str,
        remote_host: str,
        wake: Callable[[], None],
        note: Note,
        upgrade: Upgrade,
        ask: Ask | None = None,  # None: AUTH is disabled, and everybody may do everything
        unfinished: UnfinishedBodies | None = None,  # what all clients share; None: this one is on its own
    ) -> None:
        self.state = State.INIT
        self.transport = Transport()
        # Until it identifies itself, a client is called by its address.
        self.settings = replace(rules.defaults, client_id=remote_host, hostname=remote_host)  # the latest IDENTIFY's
        self._delivery = self.settings  # the first IDENTIFY's: delivery never looks at a later one
        self._identified = False
        self._broker = broker
        self._rules = rules
        self._wake = wake
        self._note = note
        self._upgrade = upgrade
        self._ask = ask
        self._guarded = ask is not None
        self._secret = b""
        self._grant: Grant | None = None
        self._grant_expires = inf
        self._grant_is_new = False  # it was fetched for the command that is being decided
        self._question: Question | None = None  # its answer is waited for
        self._suspended: Command | None = None  # what goes on then; None: AUTH, or a line that the reader still has
        self._granted: Negotiation | None = None  # an upgrade that is to be made now
        self._remote_address = remote_address
        self._remote_host = remote_host
        self._connected = broker.timestamp // 1_000_000_000
        # For the poller, which looks at these all the time:
        self.next_deadline = inf
        self.reading = True
        self.finished = False
        self.lingers = False
        self.aborted = False
        self._ended = False  # the peer will send nothing more
        # No further command now: it is closed, a question is out, an upgrade comes first, or others have their turn.
        self._stopped = False
        self._paused = False  # the last of these: `tick` goes on
        self._spent = 0  # of the stretch, besides a unit for each command
        self._ration = Ration()
        self._magic: bytes | None = b""
        self._unfinished = unfinished
        self._reader = CommandReader(rules.limits, self._admit, self._hold_body)
        self._reader.most_finishes = _MOST_DOUBTFUL
        self._outbox = Outbox(wake)
        self._heartbeat_at = inf
        self._read_deadline = inf
        self._read_patience = inf
        self._consumer: Consumer | None = None
        self._channel: Channel | None = None
        self._pub_counts: dict[str, int] = {}
        self._topic: Topic | None = None  # of the last publish
        self._topic_raw = b""
        self._delay_ms = 0

    # Between the socket and the commands

    def receive(self, data: bytes, now: float) -> None:
        if self._magic is not None:
            data = self._read_magic(data, now)
        if not data or self.state is State.CLOSED:
            return
        self._reader.receive(data)
        if not self._stopped:
            self._work(now)

    def _work(self, now: float) -> None:
        """Carries out what has come."""
        reader = self._reader
        complete = False
        self._spent = 0
        try:
            for _ in range(_STRETCH):
                command = reader.next_command()
                if command is None:
                    break
                complete = True
                self._handle(command, now)
                if self._stopped:
                    break
            else:
                self._pause(now)
        except ProtocolError as error:
            self._fail(error)
        except LineTooLong:
            self._note("lost", b"line too long")
            self.close()
        except _Suspended:
            pass
        if complete and not self._stopped:
            self._read_deadline = now + self._read_patience
        self._wake()
        if self._granted is not None:
            granted, self._granted = self._granted, None
            self._stopped = False
            self._upgrade(self, granted, reader.take_rest())

    def _spend(self, cost: int) -> None:
        """Counts what costs more than a plain command. The command that exceeds the stretch is still carried out."""
        self._spent += cost
        if self._spent >= _STRETCH and not self._stopped:
            self._pause(self._broker.now)

    def _pause(self, now: float) -> None:
        """Give way: others have their turn before more of what has come is carried out."""
        self._paused = self._stopped = True
        self._read_deadline = inf  # we are the ones who keep the client waiting
        self.next_deadline = now + _BREATH
        self._find_out_whether_to_read()

    def _go_on(self, now: float) -> None:
        """Carry out what was left when the client gave way."""
        self._paused = self._stopped = False
        self._find_out_whether_to_read()
        self._read_deadline = now + self._read_patience
        self.next_deadline = min(self._heartbeat_at, self._read_deadline)
        self._work(now)
        if self._ended and not self._paused:
            self._cut_off(b"")

    def _read_magic(self, data: bytes, now: float) -> bytes:
        magic = (self._magic or b"") + data[:4]
        rest = data[4 - len(self._magic or b"") :]
        magic = magic[:4]
        self._magic = magic
        if len(magic) < 4:
            return b""
        if magic != MAGIC:
            self._fail(ProtocolError(Fault.BAD_PROTOCOL))
            self._wake()
            return b""
        self._magic = None
        self._note("magic", magic)
        self._heartbeat_at = now + self.settings.heartbeat_interval_ms / 1000
        self._keep_alive_from(now)
        return rest

    def end(self) -> None:
        """The peer will send nothing more."""
        self._cut_off(b"")

    def _cut_off(self, reason: bytes) -> None:
        """An empty `reason` means a normal end of the connection, which is not logged."""
        if self.state is State.CLOSED:
            return
        if self._question is not None or self._paused:
            self._ended = True
            return
        if self._magic is None and (error := self._reader.end()) is not None:
            self._fail(error)
        else:
            if reason:
                self._note("lost", reason)
            self.close()
        self._wake()

    def _hold_body(self, size: int) -> None:
        if self._unfinished is not None:
            if size:
                self._unfinished.hold(self, size)
            else:
                self._unfinished.release(self)

    def give_up_body(self) -> None:
        """Close the client as if its read deadline had come in the middle of the body: others need the memory."""
        self._note("info", b"too much is held in unfinished bodies (--max-unfinished-bytes), and this one began first")
        self._cut_off(b"")
        self.lingers = False

    def bytes_to_send(self) -> list[bytes]:
        """Pieces of what may be sent now; they are the caller's."""
        if self._outbox.holds:
            self._let_go()
        return self._outbox.take()

    def _let_go(self) -> None:
        """Moves responses whose receipts are settled to what goes out."""
        if (error := self._outbox.release()) is not None:
            self._fail(error)
        self._find_out_whether_to_read()
        self.finished = self.state is State.CLOSED and not self._outbox.holds

    @property
    def owes_answers(self) -> bool:
        """Whether answers wait for the log; all others are in `bytes_to_send`."""
        return self._outbox.holds

    def sent(self, unsent: int) -> None:
        """`unsent` bytes are still queued for the socket."""
        consumer = self._consumer
        if consumer is not None and consumer.unsent_bytes != unsent:
            had_room = consumer.room > 0
            consumer.unsent_bytes = unsent
            if not had_room and consumer.room > 0 and self._channel is not None:
                self._channel.wants_attention()

    def close(self) -> None:
        """No more commands. What is owed may still be sent."""
        if self.state is State.CLOSED:
            return
        if self._magic is None:
            self._note("exit", b"")
        self._tell_left_out()
        self.state = State.CLOSED
        self._stopped = True
        self._paused = False
        self.finished = not self._outbox.holds
        self.next_deadline = self._heartbeat_at = self._read_deadline = inf
        self._broker.producers.pop(self, None)
        if self._question is not None:
            self._question.waits = False
        consumer = self._consumer
        if consumer is not None and consumer.channel is not None:
            consumer.channel.leave(consumer)
        # All of these hold this client in turn. A client that has gone must not wait for the garbage collector, which
        # looks seldom: after a crowd of connections its memory would be in pieces.
        self._reader.close()
        self._consumer = self._channel = self._question = None

    def abort(self) -> None:
        """The channel was deleted, or the peer is gone: close without a word."""
        self.aborted = True
        self._outbox.clear()
        self.close()
        self._wake()

    # Time

    @property
    def write_timeout(self) -> float:
        """How long the peer may take to read what it is sent, in seconds."""
        interval = self.settings.heartbeat_interval_ms
        return interval / 1000 if interval > 0 else _WRITE_TIMEOUT

    def tick(self, now: float) -> None:
        """A deadline may have come."""
        if now >= self._read_deadline:
            self._cut_off(b"i/o timeout")
            self.lingers = False
            return
        if now >= self._heartbeat_at:
            self._heartbeat_at = max(now, self._heartbeat_at + self._delivery.heartbeat_interval_ms / 1000)
            self._respond(HEARTBEAT_FRAME)
            self._wake()
        self.next_deadline = min(self._heartbeat_at, self._read_deadline)
        if self._paused:
            self._go_on(now)

    def _keep_alive_from(self, now: float) -> None:
        """Starts to watch over the client as its settings say."""
        interval = self.settings.heartbeat_interval_ms
        self._read_patience = 2 * interval / 1000 if interval > 0 else inf
        self._read_deadline = now + self._read_patience
        self.next_deadline = min(self._heartbeat_at, self._read_deadline)

    # What goes out

    def _respond(self, frame: bytes) -> None:
        self._outbox.respond(frame)
        self._find_out_whether_to_read()

    def _find_out_whether_to_read(self) -> None:
        """A client that does not wait for its answers is not read from, so that what we owe it stays bounded."""
        self.reading = self._outbox.owed < _MOST_OWED and self._question is None and not self._paused

    def _fail(self, error: ProtocolError) -> None:
        self._note("error", error.data)
        self._respond(error_frame(error))
        if error.fatal:
            self.lingers = True  # it may be sending what has been refused
            self.close()

    # Commands

    def _admit(self, params: list[bytes]) -> None:
        """State, parameters and topic of a command with a body, before the body is looked at."""
        word = params[0]
        if word == b"PUB" and len(params) > 1 and params[1] == self._topic_raw and self._has_topic():
            return  # as the last one: nothing new to check
        self._check_transport(word)
        self._check_state(word)
        if word == b"PUB" or word == b"MPUB" or word == b"DPUB":
            self._admit_publish(word, params)
        elif word == b"AUTH" and len(params) != 1:
            raise ProtocolError(Fault.INVALID, "AUTH invalid number of parameters")

    def _admit_publish(self, word: bytes, params: list[bytes]) -> None:
        if len(params) < (3 if word == b"DPUB" else 2):
            raise ProtocolError(Fault.INVALID, word + b" insufficient number of parameters")
        raw = params[1]
        if raw != self._topic_raw or not self._has_topic():
            name = decode_name(raw)
            if name is None:
                # The doubled code of MPUB is NSQ's, and clients may compare it.
                prefix = b"E_BAD_TOPIC " if word == b"MPUB" else b""
                detail = prefix + word + b" topic name " + quote(raw) + b" is not valid"
                raise ProtocolError(Fault.BAD_TOPIC, detail)
            self._topic, self._topic_raw = self._broker.find(name), raw
        if word == b"DPUB":
            self._delay_ms = self._parse_delay(params[2])
        elif word == b"MPUB":
            if self._guarded:
                self._check_grant(word, raw.decode(), "", None)
            if self._topic is None:
                self._make_topic()  # also when the body turns out bad, as in NSQ

    def _has_topic(self) -> bool:
        return self._topic is not None and not self._topic.closing

    def _parse_delay(self, raw: bytes) -> int:
        delay_ms = parse_decimal(raw)
        if delay_ms is None:
            raise ProtocolError(Fault.INVALID, b"DPUB could not parse timeout " + raw)
        most = self._rules.max_defer_timeout_ms
        duration = to_signed64(delay_ms * _NANOSECONDS_PER_MS & _UINT64)
        if not 0 <= duration <= most * _NANOSECONDS_PER_MS:
            raise ProtocolError(Fault.INVALID, f"DPUB timeout {delay_ms} out of range 0-{most}")
        return duration // _NANOSECONDS_PER_MS

    def _check_transport(self, word: bytes) -> None:
        if self._rules.tls_required and not self.transport.tls and word != b"IDENTIFY":
            raise ProtocolError(Fault.INVALID, b"cannot " + word + b" in current state (TLS required)")

    def _check_state(self, word: bytes) -> None:
        if self.state not in LEGAL[word]:
            raise ProtocolError(Fault.INVALID, b"cannot " + word + b" in current state")

    def _handle(self, command: Command, now: float) -> None:
        match command:
            case Publication():
                self._publish(command)
            case Finishes():
                self._finish(command.ids)
            case Publications():
                self._publish_many(command)
            case Line():
                self._handle_line(command.params, now)
            case Body():
                if command.params[0] == b"IDENTIFY":
                    self._identify(command.body, now)
                else:
                    self._authenticate(command.body)

    def _handle_line(self, params: list[bytes], now: float) -> None:
        word = params[0]
        self._check_transport(word)
        if word not in LEGAL:
            raise ProtocolError(Fault.INVALID, b"invalid command " + word)
        self._check_state(word)
        match word:
            case b"RDY":
                self._set_ready(params)
            case b"FIN":
                self._finish([_message_id(params, needed=2)])
            case b"REQ":
                self._requeue(params, now)
            case b"TOUCH":
                self._touch(params, now)
            case b"SUB":
                self._subscribe(params)
            case b"CLS":
                self._start_closing()

    # Publishing

    def _publish(self, command: Publication) -> None:
        word = command.params[0]
        if self._guarded:
            self._check_grant(word, self._topic_raw.decode(), "", command)
        delay_ms = 0
        if word == b"DPUB":
            delay_ms = self._delay_ms
            self._spend(_COST_OF_DEFERRAL)
        topic = self._topic
        if topic is None or topic.closing:  # deleted while the body was on its way
            topic = self._make_topic()
        try:
            receipt = topic.publish_one(command.payload, delay_ms)
        except Refused as refused:
            raise _publish_failed(word, refused.cause) from refused
        self._count_publish(topic.name, 1)
        self._outbox.owe_publish(receipt, word, topic)
        self._find_out_whether_to_read()

    def _publish_many(self, command: Publications) -> None:
        topic = self._topic or self._make_topic()
        try:
            receipt = topic.publish(command.payload, command.offsets)
        except Refused as refused:
            raise _publish_failed(b"MPUB", refused.cause) from refused
        self._count_publish(topic.name, len(command.offsets) - 1)
        self._outbox.owe_publish(receipt, b"MPUB", topic)
        self._find_out_whether_to_read()

    def _make_topic(self) -> Topic:
        self._topic = self._broker.topic(self._topic_raw.decode())
        self._spend(_COST_OF_TOPIC)
        return self._topic

    def _count_publish(self, topic: str, count: int) -> None:
        counts = self._pub_counts
        if not counts:
            self._broker.producers[self] = self.describe
        counts[topic] = counts.get(topic, 0) + count

    # Consuming

    def _subscribe(self, params: list[bytes]) -> None:
        if self.settings.heartbeat_interval_ms <= 0:
            raise ProtocolError(Fault.INVALID, "cannot SUB with heartbeats disabled")
        if len(params) < 3:
            raise ProtocolError(Fault.INVALID, "SUB insufficient number of parameters")
        topic_name, channel_name = decode_name(params[1]), decode_name(params[2])
        if topic_name is None:
            raise ProtocolError(Fault.BAD_TOPIC, b"SUB topic name " + quote(params[1]) + b" is not valid")
        if channel_name is None:
            raise ProtocolError(Fault.BAD_CHANNEL, b"SUB channel name " + quote(params[2]) + b" is not valid")
        if self._guarded:
            self._check_grant(b"SUB", topic_name, channel_name, Line(params))
        changes_before = self._broker.urgent_changes
        channel = self._broker.topic(topic_name).channel(channel_name)
        most = self._rules.max_channel_consumers
        if most and len(channel.consumers) >= most:
            detail = f"SUB failed consumers for {topic_name}:{channel_name} exceeds limit of {most}"
            raise ProtocolError(Fault.SUB_FAILED, detail)
        self._consumer = Consumer(
            send=self._outbox.send_messages,
            close=self.abort,
            describe=self.describe,
            msg_timeout=self._delivery.msg_timeout_ms / 1000,
            sample_rate=self._delivery.sample_rate,
            closeness=self._closeness(),
        )
        self._channel = channel
        channel.join(self._consumer)
        self.state = State.SUBSCRIBED
        # A new channel's OK says that it survives us.
        receipt = None if self._broker.urgent_changes == changes_before else self._broker.promise()
        self._outbox.owe_subscription(receipt, channel.topic, self._let_go)
        self._find_out_whether_to_read()

    def _closeness(self) -> Closeness:
        """By what the first IDENTIFY has said; two empty names are equal, as in NSQ."""
        client, server = self._delivery, self._rules.features
        if not (self._broker.prefers_near_consumers and self._identified):
            return Closeness.ELSEWHERE
        if client.topology_zone == server.topology_zone:
            return Closeness.SAME_ZONE
        return Closeness.SAME_REGION if client.topology_region == server.topology_region else Closeness.ELSEWHERE

    def _subscription(self) -> tuple[Consumer, Channel]:
        assert self._consumer is not None
        assert self._channel is not None
        return self._consumer, self._channel

    def _set_ready(self, params: list[bytes]) -> None:
        if self.state is State.CLOSING:
            self._note_some("info", b"ignoring RDY after CLS in state ClientStateV2Closing")
            return
        raw = params[1] if len(params) > 1 else b"1"
        parsed = parse_decimal(raw)
        if parsed is None:
            raise ProtocolError(Fault.INVALID, b"RDY could not parse count " + raw)
        count, most = to_signed64(parsed), self._rules.features.max_rdy_count
        if not 0 <= count <= most:
            raise ProtocolError(Fault.INVALID, f"RDY count {count} out of range 0-{most}")
        consumer, channel = self._subscription()
        consumer.ready_count = count
        channel.wants_attention()

    def _finish(self, ids: Sequence[bytes]) -> None:
        if self.state not in CONSUMING:
            self._check_state(b"FIN")
        consumer, channel = self._subscription()
        failures = channel.finish(consumer, ids)
        for message_id, reason in failures:
            self._fail_softly(b"FIN", message_id, reason)
        self._reader.most_finishes = _MOST_DOUBTFUL if failures else MOST_FINISHES

    def _requeue(self, params: list[bytes], now: float) -> None:
        self._spend(_COST_OF_DEFERRAL)
        message_id = _message_id(params, needed=3)
        delay_ms = parse_decimal(params[2])
        if delay_ms is None:
            raise ProtocolError(Fault.INVALID, b"REQ could not parse timeout " + params[2])
        duration = to_signed64(delay_ms * _NANOSECONDS_PER_MS & _UINT64)
        most = self._rules.max_req_timeout_ms * _NANOSECONDS_PER_MS
        clamped = min(max(duration, 0), most)
        if clamped != duration:
            self._note_some("info", b"REQ timeout %d out of range 0-%d. Setting to %d" % (duration, most, clamped))
        consumer, channel = self._subscription()
        if reason := channel.requeue(consumer, message_id, clamped // _NANOSECONDS_PER_MS, now):
            self._fail_softly(b"REQ", message_id, reason)

    def _touch(self, params: list[bytes], now: float) -> None:
        self._spend(_COST_OF_TOUCH)
        message_id = _message_id(params, needed=2)
        consumer, channel = self._subscription()
        timeout = self.settings.msg_timeout_ms / 1000
        if reason := channel.touch(consumer, message_id, msg_timeout=timeout, now=now):
            self._fail_softly(b"TOUCH", message_id, reason)

    def _fail_softly(self, word: bytes, message_id: bytes, reason: bytes) -> None:
        """E_FIN_FAILED and the like, of which there may be one for each message: they are made without an exception."""
        data = b"E_%b_FAILED %b %b failed %b" % (word, word, message_id, reason)
        self._note_some("error", data)
        self._respond(worded_error_frame(data))
        self._spend(_COST_OF_FAILURE)

    def _note_some(self, kind: NoteKind, text: bytes) -> None:
        """Log a line that every message might cause: of a storm only the first ones."""
        if self._ration.allows(self._broker.now):
            self._tell_left_out()
            self._note(kind, text)

    def _tell_left_out(self) -> None:
        if self._ration.left_out:
            self._note("info", b"%d more lines about its messages were left out" % self._ration.take_left_out())

    def _start_closing(self) -> None:
        consumer, _ = self._subscription()
        consumer.ready_count = 0
        self.state = State.CLOSING
        self._respond(CLOSE_WAIT_FRAME)

    # IDENTIFY

    def _identify(self, body: bytes, now: float) -> None:
        request = decode_identify(body)
        self._note("info", b"IDENTIFY: " + body[:_LONGEST_NOTE])
        self.settings = apply_identify(self.settings, request, self._rules.features)
        negotiation = negotiate(request, self.settings, self._rules.features)
        if negotiation.upgrades:
            if self.transport != Transport():
                raise ProtocolError(Fault.IDENTIFY_FAILED, "connection is already upgraded")
            self._granted = negotiation
            self._stopped = True
        if not self._identified:
            self._identified = True
            self._delivery = self.settings
            interval = self.settings.heartbeat_interval_ms
            self._heartbeat_at = now + interval / 1000 if interval > 0 else inf
        self._keep_alive_from(now)
        self._respond(OK_FRAME if negotiation.reply is None else response_frame(negotiation.reply))

    # AUTH

    def _authenticate(self, secret: bytes) -> None:
        if self._is_authorized:
            raise ProtocolError(Fault.INVALID, "AUTH already set")
        if self._ask is None:
            raise ProtocolError(Fault.AUTH_DISABLED, "AUTH disabled")
        self._secret = secret
        self._suspend(None)

    @property
    def _is_authorized(self) -> bool:
        return self._grant is not None and bool(self._grant.entries)

    def _check_grant(self, word: bytes, topic: str, channel: str, command: Command | None) -> None:
        """Whether this may be done. Raises _Suspended when that has to be asked anew; then `command` comes again."""
        is_new, self._grant_is_new = self._grant_is_new, False
        if not is_new:
            if not self._is_authorized:
                raise ProtocolError(Fault.AUTH_FIRST, b"AUTH required before " + word)
            if self._broker.now >= self._grant_expires:
                self._suspend(command)
                raise _Suspended
        if self._grant is None or not self._grant.allows(topic, channel):
            names = quote(topic.encode()) + b" " + quote(channel.encode())
            raise ProtocolError(Fault.UNAUTHORIZED, b"AUTH failed for " + word + b" on " + names)

    def _suspend(self, command: Command | None) -> None:
        transport = self.transport
        self._stopped = True
        self._read_deadline = inf  # we are the ones who keep the client waiting
        self._suspended = command
        self._question = Question(
            self._secret,
            remote_ip=self._remote_host,
            tls=transport.tls,
            common_name=transport.common_name,
            answer=self._answered,
            drop=self.abort,
        )
        self._find_out_whether_to_read()
        if self._ask is not None:
            self._ask(self._question)

    def _answered(self, grant: Grant | None) -> None:
        """An authorization server has answered; None: none of them has."""
        if self.state is State.CLOSED:
            return
        now = self._broker.now
        suspended, self._suspended = self._suspended, None
        self._question = None
        self._stopped = False
        self._find_out_whether_to_read()
        self._read_deadline = now + self._read_patience
        self.next_deadline = min(self._heartbeat_at, self._read_deadline)
        try:
            self._take(grant, now)
            if suspended is not None:
                self._handle(suspended, now)
        except ProtocolError as error:
            self._fail(error)
            self._wake()
            return
        self._work(now)
        if self._ended:
            self._cut_off(b"")

    def _take(self, grant: Grant | None, now: float) -> None:
        if grant is None:
            raise ProtocolError(Fault.AUTH_FAILED, "AUTH failed")
        is_first = self._grant is None
        if is_first and not grant.entries:
            raise ProtocolError(Fault.UNAUTHORIZED, "AUTH no authorizations found")
        self._grant = grant
        self._grant_expires = now + grant.ttl
        if is_first:
            self._respond(response_frame(grant.reply))
        else:
            self._grant_is_new = True

    # Seen from outside

    def describe(self, topic: str = "") -> ClientSnapshot:
        """`topic` chooses which publish count is shown; there is at most one."""
        consumer, settings, transport = self._consumer, self.settings, self.transport
        counts = self._pub_counts
        shown = topic or next(iter(counts), "")
        return ClientSnapshot(
            client_id=settings.client_id,
            hostname=settings.hostname,
            version="V2",
            remote_address=self._remote_address,
            state=int(self.state),
            ready_count=consumer.ready_count if consumer else 0,
            in_flight_count=consumer.in_flight if consumer else 0,
            message_count=consumer.message_count if consumer else 0,
            finish_count=consumer.finish_count if consumer else 0,
            requeue_count=consumer.requeue_count if consumer else 0,
            connect_ts=self._connected,
            sample_rate=settings.sample_rate,
            deflate=transport.deflate,
            snappy=transport.snappy,
            user_agent=settings.user_agent,
            authed=self._is_authorized,
            auth_identity=self._grant.identity if self._grant is not None else "",
            auth_identity_url=self._grant.identity_url if self._grant is not None else "",
            topology_zone=settings.topology_zone,
            topology_region=settings.topology_region,
            pub_counts=((shown, counts[shown]),) if shown in counts else (),
            tls=transport.tls,
            tls_cipher_suite=transport.cipher_suite,
            tls_version=transport.tls_version,
            tls_negotiated_protocol_is_mutual=transport.tls,
        )


def _message_id(params: list[bytes], *, needed: int) -> bytes:
    if len(params) < needed:
        raise ProtocolError(Fault.INVALID, params[0] + b" insufficient number of params")
    if len(params[1]) != 16:
        raise ProtocolError(Fault.INVALID, "invalid message ID")
    return params[1]


def _publish_failed(word: bytes, cause: str) -> ProtocolError:
    return ProtocolError(Fault(f"E_{word.decode()}_FAILED"), word + b" failed " + cause.encode())
