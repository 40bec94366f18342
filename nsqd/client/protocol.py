"""One client's protocol in nsqd: bytes in, bytes out, and no waiting.

The table LEGAL in states.py says which commands are allowed in which state. A command with a body takes two steps, as
NSQ's protocol requires: `_admit` checks state, parameters and topic as soon as the line is complete; then the reader
collects the body, and `_handle` carries out the command.

This module is the state machine. The other parts of a client are in modules of their own, which don't depend on it:

    ClientProtocol ──┬── Outbox          frames owed, in the order of the commands
                     ├── KeepAlive       heartbeats and deadlines
                     ├── Authorization   if clients have to AUTH: the grant, and the pending question
                     ├── ClientPublisher       PUB, MPUB, DPUB ──────────────────────► Topic
                     ├── ClientSubscription    from SUB on: RDY, FIN, REQ, ... ──────► Channel
                     ├── ClientProfile         addresses, transport, IDENTIFY
                     └── WorkBudget         the extra costs of commands since other clients had their turn

TLS and compression sit between the socket and `receive`/`bytes_to_send` (see upgrade.py).

**How a client is closed.** All of these lead to `close`, after which no more commands are accepted:

    _fail       the client broke the protocol: it gets an error frame, and a fatal error closes it
    end         the peer will send nothing more: we first carry out the commands that have arrived
    _cut_off    like `end`, but because we stop reading, e.g. after the client was silent for too long
    abort       we must not send any more, because the channel was deleted or the connection is gone
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from nsqcommon.wire.commands import (
    MAGIC,
    BodyCommand,
    Command,
    CommandReader,
    Finishes,
    LineCommand,
    LineTooLong,
    Publications,
    PublishCommand,
)
from nsqcommon.wire.extensions import HEADERS, KEYS
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.frames import CLOSE_WAIT_FRAME, HEARTBEAT_FRAME, OK_FRAME, error_frame, response_frame
from nsqcommon.wire.identify import Negotiation, decode_identify
from nsqcommon.wire.wrong_port import HTTP_REQUESTS
from nsqd.client.authorization import Ask, Authorization, Suspended
from nsqd.client.keepalive import KeepAlive
from nsqd.client.outbox import Outbox
from nsqd.client.profile import ClientProfile
from nsqd.client.publisher import ClientPublisher
from nsqd.client.states import EXTENDED, LEGAL, ClientState, PauseReason
from nsqd.client.subscription import MOST_DOUBTFUL, ClientSubscription, names_of
from nsqd.client.work_budget import STRETCH, WorkBudget

if TYPE_CHECKING:
    from nsqcommon.wire.frames import Piece
    from nsqcommon.wire.unfinished import UnfinishedBodies
    from nsqd.auth.grants import Grant
    from nsqd.broker.broker import Broker
    from nsqd.broker.stats_records import ClientSnapshot
    from nsqd.client.note import Note
    from nsqd.client.rules import ClientRules

_MOST_OWED: Final = 1024  # responses to one client that wait for the log; while its copy is behind, none may
_NEXT_TURN: Final = 0.000_001  # seconds; any time in the future lets all others go first
_LONGEST_NOTE: Final = 1024  # bytes of an IDENTIFY in the log
_CLOSED: Final = ClientState.CLOSED  # we need it for each packet, and this is quicker than the class attribute

# Called with the client, the granted upgrade, and the bytes after the IDENTIFY.
Upgrade = Callable[["ClientProtocol", Negotiation, bytes], None]


class ClientProtocol:
    """Implements `nsqcommon.poller.Handler`: parses commands, checks them, and has its parts carry them out.

    Only this class changes the client's state and the attributes that the poller reads, and only this class registers
    the client with the broker as a producer.
    """

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
        ask: Ask | None = None,  # None: AUTH is disabled, and every client may do everything
        unfinished: UnfinishedBodies | None = None,  # shared by all clients; None: no limit across clients
    ) -> None:
        self.state = ClientState.INIT
        # The poller reads these after every event. `nsqcommon.poller.Handler` explains them.
        self.next_deadline = inf
        self.reading = True
        self.finished = False
        self.lingers = False
        self.aborted = False
        # Its surroundings.
        self._broker = broker
        self._note = note
        self._upgrade = upgrade
        # Its parts.
        connected = broker.turn.timestamp // 1_000_000_000
        self.profile = ClientProfile(rules, remote_address=remote_address, remote_host=remote_host, connected=connected)
        self._reader = CommandReader(
            rules.limits, self._admit, partial(unfinished.hold, self) if unfinished is not None else None
        )
        self._reader.most_finishes = MOST_DOUBTFUL
        self._outbox = Outbox(wake)
        self._keep_alive = KeepAlive()
        self._authorization = Authorization(ask, remote_host) if ask is not None else None
        self._work_budget = WorkBudget()
        self._publisher = ClientPublisher(
            broker, self._outbox, self._work_budget, max_defer_ms=rules.max_defer_timeout_ms
        )
        self._subscription: ClientSubscription | None = None  # from SUB until the client is closed
        # Its progress, in addition to `state`.
        self._magic: bytes | None = b""  # the bytes of the magic so far; None: complete
        self._holdup: PauseReason | None = None
        self._ended = False  # the peer will send nothing more; acted on once the holdup is over

    # Between the socket and the commands

    def receive(self, data: bytes, now: float) -> None:
        if self._magic is not None:
            data = self._read_magic(data, now)
        if not data or self.state is _CLOSED:
            return
        self._reader.receive(data)
        if self._holdup is None:
            self._work(now)

    def _work(self, now: float) -> None:
        """Carry out the commands received so far, or as many as the budget allows."""
        reader, budget = self._reader, self._work_budget
        complete = False
        budget.spent = 0
        try:
            for _ in range(STRETCH):
                command = reader.next_command()
                if command is None:
                    break
                complete = True
                self._handle(command, now)
                if self._holdup is not None or self.state is _CLOSED:
                    break
                if budget.spent >= STRETCH:
                    self._give_way(now)
                    break
            else:
                self._give_way(now)
        except ProtocolError as error:
            self._fail(error)
        except LineTooLong:
            self._note("lost", b"line too long")
            self.close()
        except Suspended:
            self._ask()
        if complete and self._holdup is None and self.state is not _CLOSED:
            self._keep_alive.heard(now)
        if self._outbox.owed >= _MOST_OWED:
            self.reading = False
        self._outbox.wake()
        # The first check spares plain commands the lookup of an enum member, which is slow in compiled code.
        if self._holdup is not None and self._holdup is PauseReason.UPGRADE:
            self._make_upgrade()

    def _give_way(self, now: float) -> None:
        """Let other clients have their turn before we carry out more commands. `tick` resumes this one."""
        self._hold_up(PauseReason.OTHERS)
        self.next_deadline = now + _NEXT_TURN

    def _hold_up(self, why: PauseReason) -> None:
        self._holdup = why
        self._keep_alive.excuse()
        self._update_reading()

    def _resume(self, now: float) -> None:
        """End the holdup. The caller then carries out commands, and after that checks `_ended`."""
        self._holdup = None
        self._keep_alive.heard(now)
        self.next_deadline = self._keep_alive.next_deadline
        self._update_reading()

    def _read_magic(self, data: bytes, now: float) -> bytes:
        magic = (self._magic or b"") + data[:4]
        rest = data[4 - len(self._magic or b"") :]
        magic = magic[:4]
        self._magic = magic
        if len(magic) < 4:
            return b""
        if magic != MAGIC:
            if magic in HTTP_REQUESTS:
                self._note("error", b"an HTTP request at the TCP port; HTTP has a port of its own")
            self._fail(ProtocolError(Fault.BAD_PROTOCOL))
            self._outbox.wake()
            return b""
        self._magic = None
        self._note("magic", magic)
        self._keep_alive.start_heartbeats(now, self.profile.settings.heartbeat_interval_ms)
        self._expect_commands(now)
        return rest

    def _expect_commands(self, now: float) -> None:
        """Set the deadline for the next command, according to the latest settings."""
        self._keep_alive.expect_commands(now, self.profile.settings.heartbeat_interval_ms)
        self.next_deadline = self._keep_alive.next_deadline

    def end(self) -> None:
        """Close the client (after the holdup, if there is one), because the peer will send nothing more."""
        self._cut_off(b"")

    def _cut_off(self, reason: bytes) -> None:
        """Close the client, because we won't read any more bytes.

        An empty `reason` means a normal end, which isn't logged.
        """
        if self.state is ClientState.CLOSED:
            return
        if self._holdup is not None:
            self._ended = True
            return
        if self._magic is None and (error := self._reader.end()) is not None:
            self._fail(error)
        else:
            if reason:
                self._note("lost", reason)
            self.close()
        self._outbox.wake()

    def give_up_body(self) -> None:
        """Close the client as if its read deadline had passed during the body, because other bodies need the memory."""
        self._note("info", b"unfinished bodies exceed --max-unfinished-bytes; dropping this one, the oldest")
        self._cut_off(b"")
        self.lingers = False

    def bytes_to_send(self) -> list[Piece]:
        """Return the pieces that are ready to send, and forget them."""
        outbox = self._outbox
        if outbox.held:
            self._release()
        return outbox.take()

    def _release(self) -> None:
        """Make responses with settled receipts ready to send. Closes the client if a publish or SUB has failed."""
        outbox = self._outbox
        if (error := outbox.release()) is not None:
            self._fail(error)
        if not self.reading or (outbox.held and self._broker.is_copy_behind):
            self._update_reading()
        self.finished = self.state is _CLOSED and not outbox.held

    @property
    def owes_answers(self) -> bool:
        """Whether responses are waiting for the log."""
        return bool(self._outbox.held)

    @property
    def write_timeout(self) -> float:
        """How long the peer may leave sent data unread, in seconds."""
        return self.profile.write_timeout

    def sent(self, unsent: int) -> None:
        """Record that `unsent` bytes are still queued for the socket."""
        if self._subscription is not None:
            self._subscription.sent(unsent)

    def _update_reading(self) -> None:
        """Read from the client, unless it is held up or we owe it too many responses.

        This limits the number of responses that we keep for a client that sends without waiting for them. While the
        copy is behind, a publisher has to wait for each, but a consumer's FINs shouldn't wait as well. And while we
        don't read, we can't know whether the client is silent.
        """
        is_held_back = self._broker.is_copy_behind and self._subscription is None
        owes_too_much = self._outbox.owed >= (1 if is_held_back else _MOST_OWED)
        if self.state is not _CLOSED:
            if owes_too_much:
                self._keep_alive.excuse()
            elif not self.reading and self._holdup is None:
                self._keep_alive.heard(self._broker.turn.now)
                self.next_deadline = self._keep_alive.next_deadline
        self.reading = not owes_too_much and self._holdup is None

    def _fail(self, error: ProtocolError) -> None:
        self._note("error", error.data)
        self._outbox.respond(error_frame(error))
        if error.fatal:
            self.lingers = True  # the peer may still be sending the rest of the refused command
            self.close()

    def close(self) -> None:
        """Accept no more commands. We may still send the responses that we owe."""
        if self.state is ClientState.CLOSED:
            return
        if self._magic is None:
            self._note("exit", b"")
        self.state = ClientState.CLOSED
        self._holdup = None
        self.finished = not self._outbox.held
        self._keep_alive.stop()
        self.next_deadline = inf
        self._broker.producers.pop(self, None)
        # These refer back to this client. We break the cycles to free it immediately: the garbage collector runs
        # rarely, and after a crowd of connections the memory would be fragmented.
        if self._authorization is not None:
            self._authorization.close()
        if self._subscription is not None:
            self._subscription.leave()
            self._subscription = None
        self._reader.close()

    def abort(self) -> None:
        """Close without sending anything, because the channel was deleted or the peer is gone."""
        self.aborted = True
        self._outbox.clear()
        self.close()
        self._outbox.wake()

    def tick(self, now: float) -> None:
        """Act on the deadlines that have passed: close a silent client, send a heartbeat, or resume after a stretch."""
        keep_alive = self._keep_alive
        if keep_alive.is_too_late(now):
            self._cut_off(b"i/o timeout")
            self.lingers = False
            return
        if keep_alive.take_heartbeat(now):
            self._outbox.respond(HEARTBEAT_FRAME)
            self._update_reading()
            self._outbox.wake()
        self.next_deadline = keep_alive.next_deadline
        if self._holdup is PauseReason.OTHERS:
            self._resume(now)
            self._work(now)
            if self._ended:
                self._cut_off(b"")

    # Commands

    def _admit(self, params: list[bytes]) -> bool:
        """Check the client's state, and a command's parameters and topic, before the command's body is read.

        Return whether the reader may admit the same line again without these checks. For PUB it may, because PUB is
        legal until the client is closed, and we handle authorization and a deleted topic after the body is read.
        """
        word, publisher = params[0], self._publisher
        # An MPUB is authorized before its body is read.
        is_known = word == b"PUB" or (word == b"MPUB" and self._authorization is None)
        if is_known and publisher.is_as_before(params):
            return word == b"PUB"
        self._check_transport(word)
        self._check_state(word)
        if word == b"PUB" or word == b"MPUB" or word == b"DPUB":
            publisher.admit(word, params)
            if word == b"MPUB":
                if self._authorization is not None:
                    self._authorization.check(word, publisher.topic_name, "", None, self._broker.turn.now)
                publisher.make_topic()  # even if the body turns out to be bad, as in NSQ
        elif word == b"AUTH" and len(params) != 1:
            raise ProtocolError(Fault.INVALID, "AUTH invalid number of parameters")
        return word == b"PUB"

    def _check_transport(self, word: bytes) -> None:
        if self.profile.must_secure and word != b"IDENTIFY":
            raise ProtocolError(Fault.INVALID, b"cannot " + word + b" in current state (TLS required)")

    def _check_state(self, word: bytes) -> None:
        if self.state not in LEGAL[word]:
            raise ProtocolError(Fault.INVALID, b"cannot " + word + b" in current state")

    def _handle(self, command: Command, now: float) -> None:
        match command:
            case PublishCommand():
                if self._authorization is not None:
                    topic = self._publisher.topic_name
                    self._authorization.check(command.params[0], topic, "", command, self._broker.turn.now)
                if not self._publisher.counts:
                    self._become_producer()
                self._publisher.publish(command)
            case Finishes():
                if self._subscription is not None:
                    self._subscription.finish(command.ids)
                else:
                    self._check_state(b"FIN")  # always raises here
            case Publications():
                if not self._publisher.counts:
                    self._become_producer()
                self._publisher.publish_many(command)
            case LineCommand():
                self._handle_line(command.params, now)
            case BodyCommand():
                if command.params[0] == b"IDENTIFY":
                    self._identify(command.body, now)
                else:
                    self._authenticate(command.body)

    def _handle_line(self, params: list[bytes], now: float) -> None:
        word = params[0]
        self._check_transport(word)
        if word not in LEGAL:
            self._handle_extended(params)
            return
        self._check_state(word)
        if word == b"SUB":
            self._subscribe(params)
        elif (subscription := self._subscription) is not None:
            match word:
                case b"RDY":
                    self._set_ready(subscription, params)
                case b"FIN":
                    subscription.finish_one(params)
                case b"REQ":
                    subscription.requeue(params, now)
                case b"TOUCH":
                    subscription.touch(params, now)
                case b"CLS":
                    self._start_closing(subscription)

    def _handle_extended(self, params: list[bytes]) -> None:
        word = params[0]
        extension, legal = EXTENDED.get(word, (None, None))
        if legal is None or extension not in self.profile.extensions:
            raise ProtocolError(Fault.INVALID, b"invalid command " + word)
        if self._subscription is None or self.state not in legal:
            raise ProtocolError(Fault.INVALID, b"cannot " + word + b" in current state")
        self._subscription.bury(params, self._broker.turn.now)

    def _become_producer(self) -> None:
        """Show the client in /stats from its first publish on."""
        self._broker.producers[self] = self.describe

    # Consuming

    def _subscribe(self, params: list[bytes]) -> None:
        if self.profile.settings.heartbeat_interval_ms <= 0:
            raise ProtocolError(Fault.INVALID, "cannot SUB with heartbeats disabled")
        topic_name, channel_name = names_of(params)
        if self._authorization is not None:
            self._authorization.check(b"SUB", topic_name, channel_name, LineCommand(params), self._broker.turn.now)
        changes_before = self._broker.turn.journal.urgent_changes
        channel = self._broker.topic(topic_name).channel(channel_name)
        most = self.profile.rules.max_channel_consumers
        if most and len(channel.consumers) >= most:
            detail = f"SUB failed consumers for {topic_name}:{channel_name} exceeds limit of {most}"
            raise ProtocolError(Fault.SUB_FAILED, detail)
        self._subscription = ClientSubscription(
            channel,
            self.profile,
            broker=self._broker,
            reader=self._reader,
            outbox=self._outbox,
            stretch=self._work_budget,
            note=self._note,
            close=self.abort,
            describe=self.describe,
        )
        self.state = ClientState.SUBSCRIBED
        # The OK for a new channel promises that the channel survives a crash of nsqd.
        receipt = None if self._broker.turn.journal.urgent_changes == changes_before else self._broker.promise()
        self._outbox.owe_subscription(receipt, channel.feed, self._release)

    def _set_ready(self, subscription: ClientSubscription, params: list[bytes]) -> None:
        if self.state is ClientState.CLOSING:
            subscription.note_some("info", b"ignoring RDY after CLS in state ClientStateV2Closing")
        else:
            subscription.set_ready(params)

    def _start_closing(self, subscription: ClientSubscription) -> None:
        subscription.consumer.ready_count = 0
        self.state = ClientState.CLOSING
        self._outbox.respond(CLOSE_WAIT_FRAME)

    # IDENTIFY

    def _identify(self, body: bytes, now: float) -> None:
        request = decode_identify(body)
        self._note("info", b"IDENTIFY: " + body[:_LONGEST_NOTE])
        profile = self.profile
        is_first = not profile.is_identified
        negotiation = profile.identify(request)
        self._publisher.takes_keys = KEYS in profile.extensions
        self._reader.take_headers(HEADERS in profile.extensions)
        if profile.granted is not None:
            self._holdup = PauseReason.UPGRADE
        if is_first:
            self._keep_alive.start_heartbeats(now, profile.settings.heartbeat_interval_ms)
        self._expect_commands(now)
        self._outbox.respond(OK_FRAME if negotiation.reply is None else response_frame(negotiation.reply))

    def _make_upgrade(self) -> None:
        """Call `_upgrade`, which puts an UpgradedClient between this client and the poller."""
        granted, self.profile.granted = self.profile.granted, None
        assert granted is not None
        self._holdup = None
        self._update_reading()
        self._upgrade(self, granted, self._reader.take_rest())

    # AUTH

    def _authenticate(self, secret: bytes) -> None:
        if self._authorization is None:
            raise ProtocolError(Fault.AUTH_DISABLED, "AUTH disabled")
        self._authorization.begin(secret)
        self._ask()

    def _ask(self) -> None:
        """Ask for this client's grant. `_answered` resumes the command that needs it."""
        assert self._authorization is not None
        self._hold_up(PauseReason.QUESTION)
        transport = self.profile.transport
        self._authorization.ask(
            tls=transport.tls, common_name=transport.common_name, answer=self._answered, drop=self.abort
        )

    def _answered(self, grant: Grant | None) -> None:
        """Resume the command that waited for this grant, which is None if no authorization server has answered."""
        authorization = self._authorization
        if self.state is ClientState.CLOSED or authorization is None:
            return
        now = self._broker.turn.now
        suspended = authorization.take_suspended()
        self._resume(now)
        try:
            if (reply := authorization.take(grant, now)) is not None:
                self._outbox.respond(response_frame(reply))
            if suspended is not None:
                self._handle(suspended, now)
        except ProtocolError as error:
            self._fail(error)
            self._outbox.wake()
            return
        self._work(now)
        if self._ended:
            self._cut_off(b"")

    # Seen from outside

    def describe(self, topic: str = "") -> ClientSnapshot:
        """Describe the client for /stats, with its publish count for `topic`, or if that is empty, its first topic."""
        return self.profile.snapshot(
            topic,
            state=int(self.state),
            pub_counts=self._publisher.counts,
            consumer=self._subscription.consumer if self._subscription is not None else None,
            authorization=self._authorization,
        )
