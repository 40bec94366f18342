"""Consumers over HTTP, as their channel sees them: one for all of a holder's polls, and one for each stream.

See leases.py for leases and their limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from nsqd.broker.consumer import MOST_UNSENT_BYTES, Consumer
from nsqd.broker.stats_records import ClientSnapshot

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.turn_context import TurnContext

VERSION: Final = "HTTP"  # in /stats, where TCP clients have "V2"
NANOSECONDS: Final = 1_000_000_000
_SUBSCRIBED: Final = 3  # the state in /stats of a TCP client that has subscribed
_ID: Final = 18  # where the id starts in a frame, after size, type, timestamp and attempts
_END_OF_ID: Final = 34
_FEW: Final = 64  # ids of messages no longer in flight that may stay listed without a clean-up


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCaller:
    """The sender of a request."""

    holder: str  # the owner of the leases: a name or an address
    remote_address: str
    user_agent: str = ""
    identity: str = ""  # the name in the rights file or from the authorization server


class LeaseAccounts(Protocol):
    """The part of `Leases` that the consumers use."""

    def allowed(self, channel: Channel, holder: str, wanted: int) -> int:
        """Return how many of the wanted leases a waiting poll may have."""

    def count_taken(self, consumer: HttpConsumer, count: int) -> None:
        """Count `count` messages that a poll has received."""

    def recount(self) -> None:
        """Count all leases again before the next one is granted."""

    def forget(self, consumer: HttpConsumer) -> None:
        """Forget a consumer that has left."""


def ids_in(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the message ids in these frames. A piece may end in the middle of a frame."""
    frames = b"".join(pieces)
    at, end = 0, len(frames)
    while at < end:
        yield frames[at + _ID : at + _END_OF_ID]
        at += 4 + int.from_bytes(frames[at : at + 4], "big")


class HttpConsumer(Consumer):
    """A consumer over HTTP. It stays in the channel between two requests."""

    def __init__(
        self, leases: LeaseAccounts, channel: Channel, caller: HttpCaller, turn: TurnContext[Channel, Any]
    ) -> None:
        """Join the channel. The caller must register the consumer in `leases`."""
        super().__init__(
            send=self.receive, close=self.on_channel_gone, describe=self.snapshot, msg_timeout=0.0, takes_headers=True
        )
        self.channel = channel
        self.caller = caller  # of its last request
        self.last_request = turn.now  # time of its last request
        self.connected_at = turn.timestamp // NANOSECONDS
        self.leases = leases
        self.turn = turn
        channel.join(self)

    @property
    def holder(self) -> str:
        """The owner of its leases."""
        return self.caller.holder

    @property
    def held(self) -> int:
        """How many leases count against the limits."""
        return self.in_flight

    @property
    def most_in_flight(self) -> int:
        """The equivalent of a TCP consumer's RDY count."""
        return self.ready_count

    @property
    def is_asking(self) -> bool:
        """Whether it has an open request."""
        return False

    def receive(self, pieces: list[bytes]) -> None:
        raise NotImplementedError

    def on_channel_gone(self) -> None:
        """Clean up, because the channel was deleted."""
        self.leases.forget(self)

    def give_back(self, ids: Sequence[bytes]) -> None:
        """Requeue messages that never reached the client. These attempts don't count."""
        if self.has_joined:
            for message_id in ids:
                self.channel.requeue(self, message_id, 0, self.turn.now, counts=False)

    def snapshot(self) -> ClientSnapshot:
        caller = self.caller
        host = caller.remote_address.rpartition(":")[0] or caller.remote_address
        return ClientSnapshot(
            client_id=caller.identity or host,
            hostname=host,
            version=VERSION,
            remote_address=caller.remote_address,
            state=_SUBSCRIBED,
            ready_count=self.most_in_flight,
            in_flight_count=self.in_flight,
            message_count=self.message_count,
            finish_count=self.finish_count,
            requeue_count=self.requeue_count,
            touch_count=self.touches.times,
            last_touch_at=self.touches.last_at,
            connect_ts=self.connected_at,
            user_agent=caller.user_agent,
            authed=bool(caller.identity),
            auth_identity=caller.identity,
        )


class LeasePoll:
    """One request for messages: the messages that it has received so far, and when their leases end."""

    def __init__(self, poller: PollingConsumer, most: int, lease: float, wake: Callable[[], None]) -> None:
        self.most = most
        self.lease = lease  # seconds
        self.pieces: list[bytes] = []
        self.count = 0
        self.ends = 0  # end of the first lease (wall clock, nanoseconds)
        self.is_over = False  # the channel was deleted
        self.wake = wake
        self._poller = poller

    @property
    def is_answerable(self) -> bool:
        return self.count > 0 or self.is_over

    @property
    def may_get_more_soon(self) -> bool:
        """Whether it is this poll's turn, and its messages are still being read from disk."""
        channel = self._poller.channel
        if channel.paused or not channel.depth or channel.policy.is_full(len(channel.in_flight)):
            return False
        if channel.groups is not None and not channel.groups.may_deliver:
            return False
        return not self.count and self._poller.is_served(self)

    def take(self) -> list[bytes]:
        """End the poll and return its messages. This serves the holder's next poll, so call it within a turn."""
        self._poller.end(self)
        pieces, self.pieces = self.pieces, []
        return pieces

    @property
    def others_wait(self) -> bool:
        return bool(self._poller.polls)

    def give_back(self) -> None:
        """End the poll and requeue its messages, because the client is gone."""
        self._poller.give_back(list(ids_in(self.take())))


class PollingConsumer(HttpConsumer):
    """Serves a holder's polls one after the other. `ready_count` is how many messages the first poll still wants."""

    def __init__(
        self, leases: LeaseAccounts, channel: Channel, caller: HttpCaller, turn: TurnContext[Channel, Any]
    ) -> None:
        super().__init__(leases, channel, caller, turn)
        self.polls: deque[LeasePoll] = deque()
        self._counted = 0

    @property
    def room(self) -> int:
        return 0 if self.unsent_bytes > MOST_UNSENT_BYTES else self._allowed

    @property
    def most_in_flight(self) -> int:
        return self.in_flight + self._allowed

    @property
    def _allowed(self) -> int:
        """How many more messages the first poll may get under the limits."""
        return self.leases.allowed(self.channel, self.holder, self.ready_count) if self.ready_count else 0

    @property
    def is_asking(self) -> bool:
        return bool(self.polls)

    def add(self, poll: LeasePoll) -> None:
        self.polls.append(poll)
        self.serve()

    def is_served(self, poll: LeasePoll) -> bool:
        return bool(self.polls) and self.polls[0] is poll and self.room > 0

    def serve(self) -> None:
        """Start delivering to the first poll, within the limits, unless delivery has begun."""
        if not self.polls or self.ready_count or self.polls[0].count:
            return
        poll = self.polls[0]
        self.msg_timeout = poll.lease
        self.ready_count = poll.most
        self.leases.recount()
        self.channel.schedule_delivery()

    def end(self, poll: LeasePoll) -> None:
        if poll.is_over:
            return
        was_first = self.polls[0] is poll
        self.polls.remove(poll)
        self.last_request = self.turn.now
        if was_first:
            self.ready_count = self.unsent_bytes = 0
            self.serve()

    def receive(self, pieces: list[bytes]) -> None:
        poll = self.polls[0]
        count = self.message_count - self._counted
        self._counted = self.message_count
        self.ready_count -= count
        if not poll.count:
            poll.ends = self.turn.timestamp + int(poll.lease * NANOSECONDS)
        poll.count += count
        poll.pieces += pieces
        self.leases.count_taken(self, count)
        poll.wake()

    def on_channel_gone(self) -> None:
        super().on_channel_gone()
        while self.polls:
            poll = self.polls.popleft()
            poll.is_over = True
            poll.wake()


class StreamingConsumer(HttpConsumer):
    """A stream: receives messages while it is open, with at most `ready_count` in flight."""

    def __init__(
        self,
        leases: LeaseAccounts,
        channel: Channel,
        caller: HttpCaller,
        turn: TurnContext[Channel, Any],
        *,
        lease: float,
        after: bytes,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(leases, channel, caller, turn)
        self.msg_timeout = lease
        self.is_open = True
        self.wake = wake
        # The ids of the last messages sent, in order. The first is `after`, the last one of the previous stream that has
        # arrived: if nothing arrives in this stream either, the client sends `after` again when it reconnects.
        self.sent: deque[bytes] = deque((after,) if after else ())
        self.ends = 0  # end of the leases of the next messages that are taken (wall clock, nanoseconds)
        self._most = 0
        self._pieces: list[bytes] = []
        self._taken: dict[bytes, None] = {}  # sent ids: all that are in flight, and some older ones

    def begin(self, most: int) -> None:
        """Start delivering, with at most `most` messages in flight."""
        self._most = self.ready_count = most
        self.channel.schedule_delivery()

    @property
    def held(self) -> int:
        return max(self.in_flight, self.ready_count)  # an open stream keeps its room reserved

    @property
    def is_asking(self) -> bool:
        return self.is_open

    def receive(self, pieces: list[bytes]) -> None:
        if not self._pieces:
            self.ends = self.turn.timestamp + int(self.msg_timeout * NANOSECONDS)
        self._pieces += pieces
        self.wake()

    def take(self) -> list[bytes]:
        """Return the next bytes to send. Call this after everything before them was sent."""
        pieces, self._pieces = self._pieces, []
        had_room = self.room > 0
        self.unsent_bytes = 0
        if not had_room and self.room > 0:
            self.channel.schedule_delivery()
        ids = list(ids_in(pieces))
        self.sent += ids
        self._taken.update(dict.fromkeys(ids))
        if len(self._taken) > 2 * self._most + _FEW:
            self._taken = dict.fromkeys(self.held_ids())
        while len(self.sent) > self._most + 1:  # only messages in flight can have failed to arrive: at most `_most`
            self.sent.popleft()
        self.last_request = self.turn.now
        return pieces

    def held_ids(self) -> list[bytes]:
        """Return the ids that were sent and are in flight. Searching the channel's in-flight messages is too slow."""
        in_flight = self.channel.in_flight
        return [it for it in self._taken if in_flight.owner(it) is self]

    def end(self) -> None:
        """Close the stream. Unsent messages are requeued, and sent ones stay leased."""
        if not self.is_open:
            return
        self.is_open = False
        self.ready_count = 0
        self.last_request = self.turn.now
        self.give_back(list(ids_in(self._pieces)))
        self._pieces = []
        self.wake()

    def on_channel_gone(self) -> None:
        super().on_channel_gone()
        self.is_open = False
        self.wake()
