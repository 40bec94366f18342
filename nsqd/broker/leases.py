"""Consumers over HTTP, which take messages with one request and finish them with another.

A message in flight to such a consumer is a *lease*. It belongs to a holder (a name or an address) and not to a
connection, and ends with the message timeout. To its channel, an `HttpConsumer` (http_consumers.py) is like any other
consumer.

    PollingConsumer      serves a holder's polls, one after the other; only the first one has room at the channel
    StreamingConsumer    sends messages to a stream while it is open; a reconnect finishes the messages that have arrived

    joined ──► polls or a stream, or leases ──► neither for LINGER seconds ──► left
                        ▲                                   │
                        └──────── another request ──────────┘

Nothing here waits. The HTTP handlers do (nsqd/http/consuming.py), and we wake them when messages arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nsqd.broker.http_consumers import (
    NANOSECONDS,
    HttpCaller,
    HttpConsumer,
    LeasePoll,
    PollingConsumer,
    StreamingConsumer,
)
from nsqd.broker.in_flight import NOT_IN_FLIGHT, NOT_OWNER, Delivery

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.turn_context import TurnContext

LINGER: Final = 30.0  # seconds after its last request that a consumer stays in its channel


class TooMany(Exception):
    """A limit is reached. Retrying later may help."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLimits:
    in_channel: int  # leases
    of_holder: int  # leases
    waiting: int  # waiting polls, and streams
    consumers: int  # in a channel; 0: no limit


def _ignore() -> None:
    pass


def _too_many_leases() -> TooMany:
    return TooMany("too many messages are leased and not finished (--max-channel-leases, --max-holder-leases)")


class Leases:
    """All consumers over HTTP, and their limits."""

    def __init__(
        self, turn: TurnContext[Channel, Any], limits: LeaseLimits, *, on_first_consumer: Callable[[], None] = _ignore
    ) -> None:
        """`on_first_consumer` is called when a consumer joins and is the only one. Then call `sweep` every second."""
        self._turn = turn
        self._limits = limits
        self._on_first_consumer = on_first_consumer
        self._pollers: dict[tuple[Channel, str], PollingConsumer] = {}
        self._of_holder: dict[str, dict[HttpConsumer, None]] = {}
        self.waiting = 0  # waiting polls, and streams
        # How many more leases the limits allow, or fewer: counted once, and then reduced with each lease that is taken.
        self._left_in_channel: dict[Channel, int] = {}
        self._left_of_holder: dict[str, int] = {}
        self._some_starve = False  # some poll only waits because of the limits

    @property
    def http_consumers(self) -> list[HttpConsumer]:
        return [consumer for consumers in self._of_holder.values() for consumer in consumers]

    # Limits

    def left(self, channel: Channel, holder: str) -> int:
        """Return how many more leases the limits allow."""
        return max(0, min(self._left_in(channel), self._left_of(holder)))

    def _left_in(self, channel: Channel) -> int:
        return self._limits.in_channel - sum([it.held for it in channel.consumers if isinstance(it, HttpConsumer)])

    def _left_of(self, holder: str) -> int:
        return self._limits.of_holder - sum([it.held for it in self._of_holder.get(holder, ())])

    def allowed(self, channel: Channel, holder: str, wanted: int) -> int:
        """Return how many of the wanted leases a waiting poll may have.

        A waiting poll doesn't count against the limits. Otherwise a holder that waits on ten channels, for a thousand
        messages each, would have no room for an eleventh. So each message that one poll gets reduces the share of
        the others, which ask here again at each delivery. That must be quick: a turn may serve a thousand polls.
        """
        in_channel = self._left_in_channel.get(channel)
        if in_channel is None:
            in_channel = self._left_in_channel[channel] = self._left_in(channel)
        of_holder = self._left_of_holder.get(holder)
        if of_holder is None:
            of_holder = self._left_of_holder[holder] = self._left_of(holder)
        left = max(0, min(in_channel, of_holder))
        if left >= wanted:
            return wanted
        self._some_starve = True
        return left

    def count_taken(self, consumer: HttpConsumer, count: int) -> None:
        """Count `count` messages that a poll has received."""
        if consumer.channel in self._left_in_channel:
            self._left_in_channel[consumer.channel] -= count
        if consumer.holder in self._left_of_holder:
            self._left_of_holder[consumer.holder] -= count

    def recount(self) -> None:
        """Count all leases again before the next one is granted."""
        self._left_in_channel.clear()
        self._left_of_holder.clear()

    def check_holder(self, holder: str) -> None:
        """Raise TooMany if the holder has no leases left in any channel."""
        if self._left_of(holder) <= 0:
            raise _too_many_leases()

    def begin_waiting(self) -> None:
        """Count another waiting request. Raise TooMany if there are too many."""
        if self.waiting >= self._limits.waiting:
            raise TooMany(f"{self._limits.waiting} requests are waiting for messages already (--max-waiting-subs)")
        self.waiting += 1

    def end_waiting(self) -> None:
        self.waiting -= 1

    # Consumers

    def poll(
        self, channel: Channel, caller: HttpCaller, *, most: int, lease: float, wake: Callable[[], None] = _ignore
    ) -> LeasePoll:
        """Add a poll. Raise TooMany if a limit is reached.

        Its messages arrive at the end of the turn or later, and then `wake` is called.
        """
        poller = self._pollers.get((channel, caller.holder))
        if poller is None or not poller.polls:
            self._check_leases(channel, caller.holder)
        if poller is None:
            self._check_consumers(channel)
            poller = self._pollers[channel, caller.holder] = PollingConsumer(self, channel, caller, self._turn)
            self._note(poller)
        poller.caller, poller.last_request = caller, self._turn.now
        poll = LeasePoll(poller, most, lease, wake)
        poller.add(poll)
        return poll

    def stream(
        self, channel: Channel, caller: HttpCaller, *, most: int, lease: float, after: bytes, wake: Callable[[], None]
    ) -> StreamingConsumer:
        """Start a stream. `after` is the id of the last message that has arrived in the holder's previous stream.

        Raise TooMany if a limit is reached.
        """
        self._resume(channel, caller.holder, after)
        left = self._check_leases(channel, caller.holder)
        replaced = self._ended_streams(channel, caller.holder)
        self._check_consumers(channel, leaving=len(replaced))
        streamer = StreamingConsumer(self, channel, caller, self._turn, lease=lease, after=after, wake=wake)
        self._note(streamer)
        for former in replaced:  # only now, because an ephemeral channel is deleted with its last consumer
            self._leave(former)
        streamer.begin(min(most, left))
        self.recount()
        return streamer

    def _ended_streams(self, channel: Channel, holder: str) -> list[HttpConsumer]:
        """Return the holder's streams in this channel that have ended and have no leases."""
        of_holder = self._of_holder.get(holder, ())
        return [
            it
            for it in of_holder
            if isinstance(it, StreamingConsumer) and it.channel is channel and not it.is_open and not it.in_flight
        ]

    def _note(self, consumer: HttpConsumer) -> None:
        if not self._of_holder:
            self._on_first_consumer()
        self._of_holder.setdefault(consumer.holder, {})[consumer] = None

    def _check_consumers(self, channel: Channel, *, leaving: int = 0) -> None:
        most = self._limits.consumers
        if most and len(channel.consumers) - leaving >= most:
            raise TooMany(f"the channel has {most} consumers already (--max-channel-consumers)")

    def _check_leases(self, channel: Channel, holder: str) -> int:
        left = self.left(channel, holder)
        if not left:
            raise _too_many_leases()
        return left

    def _resume(self, channel: Channel, holder: str, after: bytes) -> None:
        """Close the holder's previous stream, which has sent message `after`.

        Messages up to and including `after` have arrived, so they are finished. The others are requeued.
        """
        for consumer in list(self._of_holder.get(holder, ())):
            if isinstance(consumer, StreamingConsumer) and consumer.channel is channel and after in consumer.sent:
                consumer.end()
                lost = list(consumer.sent)[consumer.sent.index(after) + 1 :]
                consumer.give_back([it for it in lost if channel.in_flight.owner(it) is consumer])
                if arrived := consumer.held_ids():
                    channel.finish(consumer, arrived)
                    channel.ledger.record_progress(urgent=True)
                consumer.sent.clear()

    def forget(self, consumer: HttpConsumer) -> None:
        """Forget a consumer that has left."""
        self.recount()
        of_holder = self._of_holder.get(consumer.holder)
        if of_holder is None:
            return
        of_holder.pop(consumer, None)
        if not of_holder:
            del self._of_holder[consumer.holder]
        if self._pollers.get((consumer.channel, consumer.holder)) is consumer:
            del self._pollers[consumer.channel, consumer.holder]

    def sweep(self) -> None:
        """Remove consumers that have had no request and no lease for a while. Call this every second."""
        gone = self._turn.now - LINGER
        for consumer in self.http_consumers:
            if consumer.in_flight:
                consumer.last_request = self._turn.now
            elif not consumer.is_asking and consumer.last_request <= gone and consumer.has_joined:
                self._leave(consumer)
        self._serve_again()

    def _leave(self, consumer: HttpConsumer) -> None:
        self.forget(consumer)
        consumer.channel.leave(consumer)

    def _serve_again(self) -> None:
        """Serve polls that had to wait because of the limits, now that there may be room."""
        self.recount()
        if self._some_starve:
            self._some_starve = False
            for poller in self._pollers.values():
                if poller.ready_count:
                    poller.channel.schedule_delivery()

    # Answers to messages. Each returns the ids that it couldn't handle, with the reason: usually the holder doesn't
    # have that message.

    def finish(self, channel: Channel, holder: str, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        owned, failures = self._owned(channel, holder, ids)
        for consumer, theirs in owned.items():
            channel.finish(consumer, theirs)
        if owned:
            # Urgent, because our response promises that the messages stay finished after a crash.
            channel.ledger.record_progress(urgent=True)
        self._serve_again()
        return failures

    def requeue(
        self, channel: Channel, holder: str, ids: Sequence[bytes], delay_ms: int, *, counts: bool
    ) -> dict[bytes, bytes]:
        owned, failures = self._owned(channel, holder, ids)
        for consumer, theirs in owned.items():
            for message_id in theirs:
                channel.requeue(consumer, message_id, delay_ms, self._turn.now, counts=counts)
        self._serve_again()
        return failures

    def bury(self, channel: Channel, holder: str, ids: Sequence[bytes], reason: str) -> dict[bytes, bytes]:
        owned, failures = self._owned(channel, holder, ids)
        for consumer, theirs in owned.items():
            for message_id in theirs:
                if refusal := channel.bury(consumer, message_id, reason, self._turn.now):
                    failures[message_id] = refusal
        self._serve_again()
        return failures

    def touch(
        self, channel: Channel, holder: str, ids: Sequence[bytes], lease: float
    ) -> tuple[dict[bytes, bytes], dict[bytes, int]]:
        """Restart the timeouts of messages. Also return when each lease ends now (wall clock, nanoseconds)."""
        owned, failures = self._owned(channel, holder, ids)
        now, timestamp = self._turn.now, self._turn.timestamp
        ends: dict[bytes, int] = {}
        for consumer, theirs in owned.items():
            for message_id in theirs:
                channel.touch(consumer, message_id, msg_timeout=lease, now=now)
                delivery = channel.in_flight.find(consumer, message_id)
                if isinstance(delivery, Delivery):
                    ends[message_id] = timestamp + int((delivery.deadline - now) * NANOSECONDS)
        return failures, ends

    def _owned(
        self, channel: Channel, holder: str, ids: Sequence[bytes]
    ) -> tuple[dict[HttpConsumer, list[bytes]], dict[bytes, bytes]]:
        """Return the holder's messages among these, by consumer, and the reason for the failure of each other one."""
        owned: dict[HttpConsumer, list[bytes]] = {}
        failures: dict[bytes, bytes] = {}
        for message_id in ids:
            owner = channel.in_flight.owner(message_id)
            if owner is None:
                failures[message_id] = NOT_IN_FLIGHT
            elif not isinstance(owner, HttpConsumer) or owner.holder != holder:
                failures[message_id] = NOT_OWNER
            elif owner in owned:
                owned[owner].append(message_id)
            else:
                owner.last_request = self._turn.now
                owned[owner] = [message_id]
        return owned, failures
