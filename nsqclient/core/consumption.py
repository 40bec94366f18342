"""A consumer without its waiting: connections, the queue of messages, answers, attempts, backoff, stop and drain.

There is one `Consumption` for each topic of a consumer, and one `ConsumerConnection` for each nsqd that it is connected
to. Several topics of a consumer have one queue, and share `max_in_flight` and backoff (topics.py).

    nsqd --message--> queue --take--> a handler --finish, requeue, bury--> nsqd
                        |
                        +-- tried too often --> dead letters, or buried

The owner calls `tick` at `next_tick`. We call its `notify` when there may be messages to take, its `emit` with events,
and a connection's `wake` when the connection has bytes to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from nsqclient.core.backoff import Backoff, BackoffStep, Signal
from nsqclient.core.connection import LATE, IdentifyDefaults, NsqdConnection
from nsqclient.core.delivery import Delivery, reason_of
from nsqclient.core.errors import AuthError, ConfigError, NSQError, ProtocolError, TLSRefused, Unsupported
from nsqclient.core.events import (
    BackoffEnded,
    BackoffStarted,
    Connected,
    Event,
    GaveUp,
    LateResponse,
    Limited,
    Refused,
)
from nsqclient.core.flow import LOOK, Flow, Seat
from nsqclient.core.stats import ConnectionStats, ConsumerStats
from nsqcommon.durations import whole_milliseconds
from nsqcommon.wire import commands, extensions
from nsqcommon.wire.names import is_ephemeral, is_valid_name

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.shares import Shares, TopicShare
    from nsqcommon.streams.tls import SecureLayer

_STARVED: Final = 0.85  # an nsqd counts as starved with this part of its RDY in flight
# Answers to SUB that won't change in later attempts.
_FATAL_AT_START: Final = ("E_BAD_TOPIC", "E_BAD_CHANNEL", "E_INVALID", "E_UNAUTHORIZED", "E_AUTH_")


class Consumption:
    """The decisions of a consumer of one topic, over all of its connections."""

    def __init__(
        self,
        topic: str,
        channel: str,
        config: Config,
        identity: IdentifyDefaults,
        *,
        clock: Callable[[], float],
        notify: Callable[[], None],
        emit: Callable[[Event], None],
        random: Random,
        delivery: type[Delivery] = Delivery,
        has_dead_letters: bool = False,
        runtime: object = None,
        together: Together | None = None,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.config = config
        self.identity = identity
        self.clock = clock
        self.emit = emit
        self.delivery = delivery
        self.runtime = runtime  # how the shell waits for messages
        self.notify = notify
        self.flow = Flow(config, choose=random.choice)
        together = together or Together(config, random, shares=None)
        self.backoff = together.backoff
        self.queue = together.queue
        self.dead_letters = together.dead_letters
        self._shares = together.shares
        self._share: TopicShare | None = None
        self._paced: Paced = self._shares or self.flow
        self.connections: list[ConsumerConnection] = []  # with a finished handshake
        self.is_stopping = False
        self.failure: BaseException | None = None  # why the consumer can never get a message
        self.received = 0
        self.finished = 0
        self.requeued = 0
        self.buried = 0
        self.given_up = 0
        self.late_responses = 0
        self._has_dead_letters = has_dead_letters
        self._most_attempts = config.max_attempts or 1 << 16  # more than the wire's 16 bits can say
        self._requested = config.max_in_flight  # kept while paused, for `resume`
        self._is_paused = False
        self._next_round = clock() + config.rdy_redistribute_interval
        self.has_earlier_tick = False  # `next_tick` is now earlier than it was
        self._refusals = Refusals()

    @property
    def parts(self) -> Sequence[Consumption]:
        """The consumptions of all topics: only this one."""
        return (self,)

    def share_by(self, weight: float) -> None:
        """Share `max_in_flight` with other topics. Called once, at the start."""
        assert self._shares is not None
        self._share = self._shares.add(self.flow, weight, self._allow)

    def _allow(self, count: int, now: float) -> None:
        self.flow.set_max_in_flight(count, now)
        self._look_soon()

    # Connections

    def connect(
        self, address: str, *, make_tls: Callable[[], SecureLayer] | None, wake: Callable[[], None]
    ) -> ConsumerConnection:
        """Return a connection to this nsqd. The caller has to open it."""
        return ConsumerConnection(self, address, make_tls=make_tls, wake=wake)

    def connection_opened(self, connection: ConsumerConnection, now: float) -> None:
        """Add a connection whose handshake is done."""
        if self.is_stopping:
            connection.close()
            return
        terms = connection.terms
        self.connections.append(connection)
        self.emit(Connected(connection.address, terms.version))
        requested = self.flow.requested if self._shares is None else self._shares.requested
        if requested is not None and terms.max_rdy < requested:
            text = f"max RDY count {terms.max_rdy} < consumer max in flight {requested}, truncation possible"
            self.emit(Limited(connection.address, text))
        self.flow.join(connection.seat, now)
        if self._shares is not None:
            self._shares.rebalance(now)
        self._look_soon()

    def retire(self, connection: ConsumerConnection) -> None:
        """Receive nothing new on this connection, and close it once its messages are answered."""
        now = self.clock()
        self.flow.retire(connection.seat, now)
        if self._shares is not None:
            self._shares.rebalance(now)
        connection.send_cls()

    def connection_closed(self, connection: ConsumerConnection, error: BaseException | None) -> None:
        """Remove a closed connection. Its messages in flight go back to nsqd."""
        now = self.clock()
        connection.lose_messages()
        if connection in self.connections:
            self.connections.remove(connection)
            self.flow.leave(connection.seat, now)
            if self._shares is not None:
                self._shares.rebalance(now)
        if isinstance(error, AuthError | TLSRefused):
            self._refused(connection.address, error)
        self.notify()

    def expect(self, addresses: set[str]) -> None:
        """Update the addresses of all known nsqds."""
        self._refusals.expected = addresses
        self._fail_if_all_refuse()

    def subscription_accepted(self, address: str) -> None:
        """Record that an nsqd has accepted the subscription."""
        self._refusals.accepted(address)

    def _refused(self, address: str, error: NSQError) -> None:
        self._refusals.add(address, error)
        self._fail_if_all_refuse()

    def _fail_if_all_refuse(self) -> None:
        if (error := self._refusals.verdict()) is not None:
            self.failure = error
            self.notify()

    def error_received(self, connection: ConsumerConnection, error: ProtocolError) -> None:
        """Handle an error frame."""
        if error.code in LATE:
            self.late_responses += 1
            words = error.text.split(" ")
            self.emit(LateResponse(words[2] if len(words) > 2 else "", connection.address, error.text))
            return
        self.emit(Refused(connection.address, error.text))
        if not connection.is_subscribed and error.code.startswith(_FATAL_AT_START):
            self._refused(connection.address, error)

    # Messages

    def messages_arrived(self, connection: ConsumerConnection, messages: Sequence[Delivery], now: float) -> None:
        """Queue messages, and give up on those with too many attempts."""
        self.received += len(messages)
        if self.is_stopping:
            for message in messages:
                if message.answered == "no":  # void if it was redelivered in the same read
                    connection.requeue_unseen(message)
            return
        seat = connection.seat
        self.flow.message_from(seat, now)
        if self._shares is not None and self._share is not None:
            self._shares.arrived(self._share, len(messages), now)
        if len(connection.in_flight) >= int(seat.rdy * _STARVED):
            seat.starved = True
        most = self._most_attempts
        if any(message.attempts > most for message in messages):  # checked first, because it's almost never true
            for message in messages:
                if message.attempts > most:
                    self.give_up(message, f"attempted {message.attempts} times")
            messages = [message for message in messages if message.attempts <= most]
        self.queue.extend(messages)
        self.notify()

    def written(self, seat: Seat, now: float) -> None:
        """Record that this connection's answers and values of RDY have left the process."""
        self.flow.written(seat, now)
        if self._shares is not None:
            self._shares.freed(now)

    def take(self) -> Delivery | None:
        """Return the next message for a handler, or None if there is none now."""
        queue = self.queue
        while queue:
            message = queue.popleft()
            if message.answered == "no":  # void if it was redelivered while it waited in the queue
                return message
        return None

    def give_up(self, message: Delivery, reason: str) -> None:
        """Make a dead letter of a message. Without a handler for dead letters, bury it, or if nsqd can't, finish it."""
        if message.answered != "no":
            return
        self.given_up += 1
        buries = not self._has_dead_letters and message.can_bury
        self.emit(GaveUp(message, reason, buries))
        if buries:
            message.bury(reason)
        elif self._has_dead_letters:
            self.dead_letters.append((message, reason))
            self.notify()
        else:
            self.finish_dead_letter(message)

    def buries_after(self, attempts: int) -> bool:
        """Return True if a message with this many attempts is buried instead of delivered again."""
        return attempts >= self._most_attempts and not self._has_dead_letters

    def finish_dead_letter(self, message: Delivery) -> bool:
        """Finish a message that we gave up on. For backoff that is neither success nor failure."""
        return message.answered == "no" and _source_of(message).finish(message, Signal.NEITHER)

    def signal(self, signal: Signal) -> None:
        """Tell backoff about an answer. The resulting RDY is sent before the answer."""
        if self.is_stopping:
            return
        now = self.clock()
        match self.backoff.signal(signal, now):
            case BackoffStep.WAIT:
                self._paced.hold(now)
                self.emit(BackoffStarted(self.backoff.level, self.backoff.pause))
                self.notify()  # `next_tick` has changed
            case BackoffStep.END:
                self._paced.release(now)
                self.emit(BackoffEnded())

    # Time

    @property
    def needs_tick(self) -> bool:
        """True if `next_tick` may be earlier than when it was last asked for."""
        return self.backoff.until is not None or self.failure is not None or self.has_earlier_tick

    def next_tick(self) -> float:
        """Return when `tick` has to be called."""
        self.has_earlier_tick = False
        until = self.backoff.until
        return self._next_round if until is None else min(until, self._next_round)

    def tick(self, now: float) -> None:
        """End a backoff pause and redistribute RDY, if it is time."""
        until = self.backoff.until
        if until is not None and now >= until:
            self.backoff.tested(now, has_begun=self._paced.test_one(now))
        if now >= self._next_round:
            self._next_round = now + self._interval()
            if not self.is_stopping and self.backoff.until is None:
                self.flow.redistribute(now)

    def _interval(self) -> float:
        interval = self.config.rdy_redistribute_interval
        return min(interval, LOOK) if self.flow.has_short_turns else interval

    def _look_soon(self) -> None:
        """Move the next tick forward if turns have become short."""
        now = self.clock()
        if self._next_round > now + self._interval():
            self._next_round = now + self._interval()
            self.has_earlier_tick = True
            self.notify()

    # Flow control and stop

    @property
    def max_in_flight(self) -> int:
        return self.flow.allowed_by(self._requested)

    def set_max_in_flight(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"max_in_flight of {count}")
        self._requested = count
        if not self._is_paused and count != self.flow.requested:
            self.flow.set_max_in_flight(count, self.clock())
            self._look_soon()

    def pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.flow.set_max_in_flight(0, self.clock())

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.flow.set_max_in_flight(self._requested, self.clock())
            self._look_soon()

    def stop(self) -> None:
        """Receive no new messages. Requeue those still in the queue; the others may still be answered."""
        if not self.is_stopping:
            self.unsubscribe()
            self.return_queue()

    def unsubscribe(self) -> None:
        """Receive no new messages. The first part of `stop`."""
        self.is_stopping = True
        self.backoff.clear()
        for connection in self.connections:
            connection.send_cls()

    def return_queue(self) -> None:
        """Requeue the messages in the queue. The second part of `stop`."""
        while self.queue:
            message = self.queue.popleft()
            if message.answered == "no":  # void if it was redelivered while it waited in the queue
                _source_of(message).requeue_unseen(message)
        self.notify()

    def abandon(self) -> None:
        """Stop, and requeue all unanswered messages."""
        self.stop()
        self.dead_letters.clear()
        for connection in self.connections:
            connection.requeue_all()

    # Figures

    def is_starved(self) -> bool:
        """Return True if no message is waiting here and some nsqd sends no more until you answer messages."""
        return not self.queue and any(
            connection.in_flight and len(connection.in_flight) >= int(connection.seat.rdy * _STARVED)
            for connection in self.connections
            if not connection.is_closing
        )

    def stats(self) -> ConsumerStats:
        now = self.clock()
        queued: dict[int, int] = {}
        for message in self.queue:
            queued[id(message._source)] = queued.get(id(message._source), 0) + 1
        return ConsumerStats(
            received=self.received,
            finished=self.finished,
            requeued=self.requeued,
            buried=self.buried,
            given_up=self.given_up,
            late_responses=self.late_responses,
            backoff_level=self.backoff.level,
            backing_off_for=max(0.0, self.backoff.until - now) if self.backoff.until is not None else 0.0,
            starved=self.is_starved(),
            connections=tuple(
                ConnectionStats(
                    address=connection.address,
                    rdy=connection.seat.rdy,
                    in_flight=len(connection.in_flight),
                    queued=queued.get(id(connection), 0),
                    last_message_age=now - connection.seat.last_message,
                    server_version=connection.terms.version,
                    topic=connection.topic,
                )
                for connection in self.connections
            ),
            oldest_queued_age=now - self.queue[0].received_at if self.queue else 0.0,
        )


class Paced(Protocol):
    """What backoff slows down: a topic's flow, or those of all topics of a consumer."""

    def hold(self, now: float) -> None: ...
    def test_one(self, now: float) -> bool: ...
    def release(self, now: float) -> None: ...


class Together:
    """What the topics of one consumer have together."""

    def __init__(self, config: Config, random: Random, *, shares: Shares | None) -> None:
        self.shares = shares  # None: there is one topic
        self.queue: deque[Delivery] = deque()
        self.dead_letters: deque[tuple[Delivery, str]] = deque()  # messages that we gave up on, and why
        self.backoff = Backoff(
            config.backoff,
            multiplier=config.backoff_multiplier,
            longest=config.max_backoff_duration,
            random=random.random,
        )


def _source_of(message: Delivery) -> ConsumerConnection:
    source = message._source
    assert isinstance(source, ConsumerConnection)
    return source


def check_names(topic: str, channel: str, config: Config) -> None:
    """Raise ConfigError for invalid names or missing heartbeats, before anything is sent."""
    if not is_valid_name(topic):
        raise ConfigError("topic", topic, "invalid topic name")
    if not is_valid_name(channel):
        raise ConfigError("channel", channel, "invalid channel name")
    if config.heartbeat_interval is None:
        raise ConfigError("heartbeat_interval", None, "a consumer needs heartbeats")


class Refusals:
    """The nsqds that refuse the subscription, until one accepts it.

    If all refuse it from the start, for example because the channel is invalid, the consumer can never get a message.
    """

    def __init__(self) -> None:
        self.expected: set[str] = set()  # addresses of all nsqds to connect to
        self._errors: dict[str, NSQError] = {}  # by address of the refusing nsqd
        self._has_begun = False  # some nsqd has accepted the subscription

    def accepted(self, address: str) -> None:
        """Record that an nsqd has accepted the subscription."""
        self._has_begun = True
        self._errors.pop(address, None)

    def add(self, address: str, error: NSQError) -> None:
        """Record that an nsqd refuses the subscription or the connection."""
        self._errors[address] = error

    def verdict(self) -> NSQError | None:
        """Return one of the errors if the consumer can never get a message, else None."""
        if self._has_begun or not self.expected or not self.expected <= self._errors.keys():
            return None
        return next(iter(self._errors.values()))


class ConsumerConnection(NsqdConnection):
    """A connection that subscribes. The `DeliverySource` of its messages."""

    def __init__(
        self,
        consumption: Consumption,
        address: str,
        *,
        make_tls: Callable[[], SecureLayer] | None,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(
            address,
            consumption.config,
            consumption.identity,
            make_tls=make_tls,
            wake=wake,
            emit=consumption.emit,
        )
        self.in_flight: dict[bytes, Delivery] = {}
        self.seat = Seat(self._tell_rdy, max_rdy=0, now=0.0)  # replaced once `terms` are known
        self.is_subscribed = False  # nsqd has confirmed SUB
        self.is_closing = False  # CLS was sent
        self.topic = consumption.topic
        self.channel = consumption.channel
        self.runtime = consumption.runtime
        self.msg_timeout = 0.0
        self.max_msg_timeout = 0.0
        self.can_requeue_uncounted = False  # nsqd grants the extension
        self.can_bury = False  # and the channel isn't ephemeral
        self._consumption = consumption
        self._close_wait_received = False  # nsqd has answered CLS with CLOSE_WAIT
        self._delivery_class = consumption.delivery

    # From the connection

    def _opened(self, now: float) -> None:
        self.msg_timeout = self.terms.msg_timeout
        self.max_msg_timeout = self.terms.max_msg_timeout
        self.can_requeue_uncounted = extensions.BURY in self.terms.extensions
        self.can_bury = self.can_requeue_uncounted and not (is_ephemeral(self.topic) or is_ephemeral(self.channel))
        self.seat = Seat(self._tell_rdy, max_rdy=self.terms.max_rdy, now=now, in_flight=self.in_flight.__len__)
        self._send(commands.sub(self.topic, self.channel))
        self._consumption.connection_opened(self, now)

    def _response(self, content: bytes, now: float) -> None:
        if content == b"CLOSE_WAIT":
            self._close_wait_received = True
            self._wake()
        elif not self.is_subscribed:
            self.is_subscribed = True
            self._consumption.subscription_accepted(self.address)

    def _error(self, error: ProtocolError, now: float) -> None:
        self._consumption.error_received(self, error)

    def _delivery(
        self, timestamp: int, attempts: int, id: bytes, body: bytes, now: float, headers: bytes = b""
    ) -> Delivery:
        if id in self.in_flight:  # redelivered after its timeout, so the earlier delivery is void
            self.in_flight[id].answered = "lost"
        delivery = self.in_flight[id] = self._delivery_class(self, timestamp, attempts, id, body, now, headers)
        return delivery

    def _messages(self, messages: Sequence[Delivery], now: float) -> None:
        self._consumption.messages_arrived(self, messages, now)

    def bytes_to_send(self) -> bytes:
        self.seat.mark_sending()
        return super().bytes_to_send()

    def written(self, now: float) -> None:
        self._consumption.written(self.seat, now)

    @property
    def finished(self) -> bool:
        return self.is_closed or (self._close_wait_received and not self.in_flight and not self._outgoing)

    # Answers

    def finish(self, delivery: Delivery, signal: Signal = Signal.SUCCEEDED) -> bool:
        delivery.answered = "finished"
        consumption = self._consumption
        consumption.finished += 1
        if consumption.backoff.level:
            consumption.signal(signal)
        del self.in_flight[delivery._id]
        outgoing = self._outgoing
        if not outgoing:
            self._wake()
        outgoing.append(b"FIN %b\n" % delivery._id)
        return True

    def requeue(self, delivery: Delivery, delay: float | None, backoff: bool, count: bool) -> bool:
        if not count and not self.can_requeue_uncounted:
            raise Unsupported(f"nsqd {self.address} counts every attempt: it does not grant the extension `bury`")
        config = self._consumption.config
        if delay is None:
            delay = min(config.default_requeue_delay * delivery.attempts, config.max_requeue_delay)
        self._consumption.signal(Signal.FAILED if backoff else Signal.NEITHER)
        self._requeue(delivery, whole_milliseconds(delay), count)
        return True

    def requeue_unseen(self, delivery: Delivery) -> None:
        """Requeue a message from the queue, without a delay and, if nsqd can do that, without counting the attempt."""
        self._requeue(delivery, 0, count=not self.can_requeue_uncounted)

    def _requeue(self, delivery: Delivery, delay_ms: int, count: bool) -> None:
        delivery.answered = "requeued"
        self._consumption.requeued += 1
        del self.in_flight[delivery._id]
        encode = commands.req if count else extensions.req_free
        self._send(encode(delivery._id, delay_ms))

    def bury(self, delivery: Delivery, reason: str) -> bool:
        if not self.can_requeue_uncounted:
            raise Unsupported(f"nsqd {self.address} can't bury messages: it does not grant the extension `bury`")
        if not self.can_bury:
            raise Unsupported(f"nsqd can't bury messages of {self.topic}/{self.channel}, which is ephemeral")
        delivery.answered = "buried"
        self._consumption.buried += 1
        self._consumption.signal(Signal.NEITHER)
        del self.in_flight[delivery._id]
        self._send(extensions.bury(delivery._id, reason))
        return True

    def bury_after_last(self, delivery: Delivery, error: BaseException | None, backoff: bool) -> bool:
        """Bury a message if its last attempt has failed. Return False if attempts are left or nsqd can't bury."""
        consumption = self._consumption
        if not self.can_bury or not consumption.buries_after(delivery.attempts):
            return False
        if backoff:
            consumption.signal(Signal.FAILED)
        requeued = f"{delivery.attempts} attempts, the last one requeued"
        consumption.give_up(delivery, reason_of(error) if error is not None else requeued)
        return True

    def touch(self, delivery: Delivery) -> bool:
        delivery._deadline = min(self._consumption.clock() + self.msg_timeout, delivery.hard_deadline)
        self._send(commands.touch(delivery._id))
        return True

    def _tell_rdy(self, count: int) -> None:
        if not self.is_closing:
            self._send(commands.rdy(count))

    # The end

    def send_cls(self) -> None:
        """Send CLS, after which nsqd sends no more messages."""
        if not self.is_closing:
            self.is_closing = True
            self._send(commands.cls())

    def requeue_all(self) -> None:
        """Requeue all unanswered messages without delay, so that other consumers get them at once."""
        for delivery in list(self.in_flight.values()):
            self._requeue(delivery, 0, count=True)

    def close(self) -> None:
        """Close the connection at once."""
        self.is_closed = True
        self._wake()

    def lose_messages(self) -> None:
        """Void all unanswered messages, because the connection is gone."""
        self.is_closed = True
        if not self.in_flight:
            return
        for delivery in self.in_flight.values():
            delivery.answered = "lost"
        self.in_flight.clear()
        queue = self._consumption.queue
        kept = [delivery for delivery in queue if delivery.answered == "no"]
        queue.clear()
        queue.extend(kept)
