"""A consumer without its waiting: connections, the queue of messages, answers, attempts, backoff, stop and drain.

One `Consumption` for each consumer, one `ConsumerConnection` for each nsqd that it is connected to.

    nsqd --message--> queue --take--> whoever handles it --finish, requeue--> nsqd
                        |
                        +-- tried too often --> dead letters

Who owns it calls `tick` at `next_tick`, and is told through `notify` that there may be something to take, through `emit` what
has happened, and through each connection's `wake` that it has something to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from common.durations import whole_milliseconds
from common.wire import commands
from common.wire.names import is_valid_name
from nsqclient._backoff import Backoff, Signal, Step
from nsqclient._connection import Connection, Identity
from nsqclient._delivery import Delivery
from nsqclient._errors import AuthError, ConfigError, NSQError, ProtocolError, TLSRefused
from nsqclient._flow import Flow, Seat
from nsqclient._stats import ConnectionStats, ConsumerStats
from nsqclient.events import (
    BackoffEnded,
    BackoffStarted,
    Connected,
    Event,
    GaveUp,
    LateResponse,
    Limited,
    Refused,
)

if TYPE_CHECKING:
    from common.streams.tls import SecureLayer
    from nsqclient._config import Config

_STARVED: Final = 0.85  # of its RDY in flight
_FATAL_AT_START: Final = ("E_BAD_TOPIC", "E_BAD_CHANNEL", "E_INVALID", "E_UNAUTHORIZED", "E_AUTH_")
_LATE: Final = ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED")


class Consumption:
    def __init__(
        self,
        topic: str,
        channel: str,
        config: Config,
        identity: Identity,
        *,
        clock: Callable[[], float],
        notify: Callable[[], None],
        emit: Callable[[Event], None],
        random: Random,
        delivery: type[Delivery] = Delivery,
        has_dead_letters: bool = False,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.config = config
        self.identity = identity
        self.clock = clock
        self.emit = emit
        self.delivery = delivery
        self.notify = notify
        self.flow = Flow(config, choose=random.choice)
        self.backoff = Backoff(
            config.backoff,
            multiplier=config.backoff_multiplier,
            longest=config.max_backoff_duration,
            random=random.random,
        )
        self.queue: deque[Delivery] = deque()
        self.dead: deque[tuple[Delivery, str]] = deque()  # given up, and somebody wants them
        self.connections: list[ConsumerConnection] = []  # those that have subscribed
        self.is_stopping = False
        self.failure: BaseException | None = None  # why there can be no messages, ever
        self.received = 0
        self.finished = 0
        self.requeued = 0
        self.given_up = 0
        self.late_responses = 0
        self._has_dead_letters = has_dead_letters
        self._most_attempts = config.max_attempts or 1 << 16
        self._chosen = config.max_in_flight  # while paused, what `resume` goes back to
        self._is_paused = False
        self._next_round = clock() + config.rdy_redistribute_interval
        self._expected: set[str] = set()  # nsqds that ought to be there
        self._refusals: dict[str, NSQError] = {}  # of those, who will not have us
        self._has_begun = False  # some nsqd has accepted our subscription

    # Connections

    def connect(
        self, address: str, *, make_tls: Callable[[], SecureLayer] | None, wake: Callable[[], None]
    ) -> ConsumerConnection:
        return ConsumerConnection(self, address, make_tls=make_tls, wake=wake)

    def opened(self, connection: ConsumerConnection, now: float) -> None:
        if self.is_stopping:
            connection.close()
            return
        terms = connection.terms
        self.connections.append(connection)
        self.emit(Connected(connection.address, terms.version))
        chosen = self.flow.chosen
        if chosen is not None and terms.max_rdy < chosen:
            text = f"max RDY count {terms.max_rdy} < consumer max in flight {chosen}, truncation possible"
            self.emit(Limited(connection.address, text))
        self.flow.join(connection.seat, now)

    def retire(self, connection: ConsumerConnection) -> None:
        """Nothing new from this one; what it has sent may still be answered, and then it ends."""
        self.flow.retire(connection.seat, self.clock())
        connection.say_close()

    def closed(self, connection: ConsumerConnection, error: BaseException | None) -> None:
        """It has gone, for whatever reason. What was in flight is nsqd's again."""
        now = self.clock()
        connection.lose_messages()
        if connection in self.connections:
            self.connections.remove(connection)
            self.flow.leave(connection.seat, now)
        if isinstance(error, AuthError | TLSRefused):
            self._refused(connection.address, error)
        self.notify()

    def expect(self, addresses: set[str]) -> None:
        """These are all nsqds there are, as far as anybody knows."""
        self._expected = addresses
        self._refused()

    def accepted(self, address: str) -> None:
        self._has_begun = True
        self._refusals.pop(address, None)

    def _refused(self, address: str = "", error: NSQError | None = None) -> None:
        if error is not None:
            self._refusals[address] = error
        if not self._has_begun and self._expected and self._expected <= self._refusals.keys():
            self.failure = next(iter(self._refusals.values()))
            self.notify()

    def error(self, connection: ConsumerConnection, error: ProtocolError) -> None:
        if error.code in _LATE:
            self.late_responses += 1
            words = error.text.split(" ")
            self.emit(LateResponse(words[2] if len(words) > 2 else "", connection.address, error.text))
            return
        self.emit(Refused(connection.address, error.text))
        if not connection.is_subscribed and error.code.startswith(_FATAL_AT_START):
            self._refused(connection.address, error)

    # Messages

    def arrived(self, connection: ConsumerConnection, messages: Sequence[Delivery], now: float) -> None:
        self.received += len(messages)
        if self.is_stopping:
            for message in messages:
                connection.requeue_at_once(message)
            return
        seat = connection.seat
        self.flow.message_from(seat, now)
        if len(connection.in_flight) >= int(seat.rdy * _STARVED):
            seat.starved = True
        most = self._most_attempts
        if any(message.attempts > most for message in messages):  # a list: cheaper than a generator, here
            for message in messages:
                if message.attempts > most:
                    self.give_up(message, f"attempted {message.attempts} times")
            messages = [message for message in messages if message.attempts <= most]
        self.queue.extend(messages)
        self.notify()

    def take(self) -> Delivery | None:
        """The next message for a handler; None: there is none now."""
        queue = self.queue
        while queue:
            message = queue.popleft()
            if message.answered == "no":  # else it came again while it waited here
                return message
        return None

    def give_up(self, message: Delivery, reason: str) -> None:
        """It goes where dead letters go, and is finished then; where nobody wants it, at once."""
        if message.answered != "no":
            return
        self.given_up += 1
        self.emit(GaveUp(message, reason))
        if self._has_dead_letters:
            self.dead.append((message, reason))
            self.notify()
        else:
            self.bury(message)

    def bury(self, message: Delivery) -> bool:
        """Finishes what was given up; for backoff that is neither success nor failure."""
        source = message._source
        assert isinstance(source, ConsumerConnection)
        return message.answered == "no" and source.finish(message, Signal.NEITHER)

    def signal(self, signal: Signal) -> None:
        """A message is about to be answered: RDY goes first."""
        if self.is_stopping:
            return
        now = self.clock()
        match self.backoff.signal(signal, now):
            case Step.WAIT:
                self.flow.hold(now)
                self.emit(BackoffStarted(self.backoff.level, self.backoff.pause))
                self.notify()  # there is a new time to wait for
            case Step.END:
                self.flow.release(now)
                self.emit(BackoffEnded())

    # Time

    def next_tick(self) -> float:
        until = self.backoff.until
        return self._next_round if until is None else min(until, self._next_round)

    def tick(self, now: float) -> None:
        if self.is_stopping:
            self.backoff.clear()
        until = self.backoff.until
        if until is not None and now >= until:
            self.backoff.tested(now, has_begun=self.flow.test_one(now))
        if now >= self._next_round:
            self._next_round = now + self.config.rdy_redistribute_interval
            if not self.is_stopping and self.backoff.until is None:
                self.flow.redistribute(now)

    # Faster, slower, stop

    @property
    def max_in_flight(self) -> int:
        return self.flow.allowed_by(self._chosen)

    def set_max_in_flight(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"max_in_flight of {count}")
        self._chosen = count
        if not self._is_paused and count != self.flow.chosen:
            self.flow.set_max_in_flight(count, self.clock())

    def pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.flow.set_max_in_flight(0, self.clock())

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.flow.set_max_in_flight(self._chosen, self.clock())

    def stop(self) -> None:
        """No new messages. Those that nobody handles yet go back at once; the others may still be answered."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self.backoff.clear()
        for connection in self.connections:
            connection.say_close()
        while self.queue:
            self.queue.popleft().requeue(0, backoff=False)
        self.notify()

    def abandon(self) -> None:
        """As `stop`, and all other messages go back, too."""
        self.stop()
        self.dead.clear()
        for connection in self.connections:
            connection.leave()

    # What can be asked

    def is_starved(self) -> bool:
        """Whether nothing waits here, and some nsqd sends nothing more until it is answered."""
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
                )
                for connection in self.connections
            ),
            oldest_queued_age=now - self.queue[0].received_at if self.queue else 0.0,
        )


def check_names(topic: str, channel: str, config: Config) -> None:
    """Raises ConfigError, before anything is asked of the network."""
    if not is_valid_name(topic):
        raise ConfigError("topic", topic, "invalid topic name")
    if not is_valid_name(channel):
        raise ConfigError("channel", channel, "invalid channel name")
    if config.heartbeat_interval is None:
        raise ConfigError("heartbeat_interval", None, "a consumer needs heartbeats")


class ConsumerConnection(Connection):
    """Implements `Source` of its messages."""

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
        self.seat = Seat(self._tell_rdy, max_rdy=0, now=0.0)
        self.is_subscribed = False  # nsqd has said so
        self.is_closing = False  # CLS was said
        self.topic = consumption.topic
        self.channel = consumption.channel
        self.msg_timeout = 0.0
        self.max_msg_timeout = 0.0
        self._consumption = consumption
        self._has_waited = False  # nsqd has said CLOSE_WAIT
        self._make = consumption.delivery

    # From the connection

    def _opened(self, now: float) -> None:
        self.msg_timeout = self.terms.msg_timeout
        self.max_msg_timeout = self.terms.max_msg_timeout
        self.seat = Seat(self._tell_rdy, max_rdy=self.terms.max_rdy, now=now)
        self._send(commands.sub(self.topic, self.channel))
        self._consumption.opened(self, now)

    def _response(self, content: bytes, now: float) -> None:
        if content == b"CLOSE_WAIT":
            self._has_waited = True
            self._wake()
        elif not self.is_subscribed:
            self.is_subscribed = True
            self._consumption.accepted(self.address)

    def _error(self, error: ProtocolError, now: float) -> None:
        self._consumption.error(self, error)

    def _delivery(self, timestamp: int, attempts: int, id: bytes, body: bytes, now: float) -> Delivery:
        if id in self.in_flight:  # it was too slow, and comes again: who still has it has it no more
            self.in_flight[id].answered = "lost"
        delivery = self.in_flight[id] = self._make(self, timestamp, attempts, id, body, now)
        return delivery

    def _messages(self, messages: Sequence[Delivery], now: float) -> None:
        self._consumption.arrived(self, messages, now)

    def bytes_to_send(self) -> bytes:
        self.seat.take()
        return super().bytes_to_send()

    def written(self, now: float) -> None:
        self._consumption.flow.written(self.seat, now)

    @property
    def finished(self) -> bool:
        return self.is_closed or (self._has_waited and not self.in_flight and not self._outgoing)

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

    def requeue(self, delivery: Delivery, delay: float | None, backoff: bool) -> bool:
        config = self._consumption.config
        if delay is None:
            delay = min(config.default_requeue_delay * delivery.attempts, config.max_requeue_delay)
        self._consumption.signal(Signal.FAILED if backoff else Signal.NEITHER)
        self._requeue(delivery, whole_milliseconds(delay))
        return True

    def requeue_at_once(self, delivery: Delivery) -> None:
        """Without a word to anybody: nobody has handled it."""
        self._requeue(delivery, 0)

    def _requeue(self, delivery: Delivery, delay_ms: int) -> None:
        delivery.answered = "requeued"
        self._consumption.requeued += 1
        del self.in_flight[delivery._id]
        self._send(commands.req(delivery._id, delay_ms))

    def touch(self, delivery: Delivery) -> bool:
        delivery._deadline = min(self._consumption.clock() + self.msg_timeout, delivery.hard_deadline)
        self._send(commands.touch(delivery._id))
        return True

    def _tell_rdy(self, count: int) -> None:
        if not self.is_closing:
            self._send(commands.rdy(count))

    # The end

    def say_close(self) -> None:
        if not self.is_closing:
            self.is_closing = True
            self._send(commands.cls())

    def leave(self) -> None:
        """Everything that has no answer yet goes back, for others to have at once."""
        for delivery in list(self.in_flight.values()):
            self.requeue_at_once(delivery)

    def close(self) -> None:
        self.is_closed = True
        self._wake()

    def lose_messages(self) -> None:
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
