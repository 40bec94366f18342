"""Consumers without a connection, as their channel sees them: a poller for a holder's polls, a streamer for each stream.

See leases.py for what a lease is, and for the bounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from nsqd.broker.consumer import MOST_UNSENT_BYTES, Consumer
from nsqd.broker.snapshot import ClientSnapshot

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.turn_context import TurnContext

VERSION: Final = "HTTP"  # in /stats, where a TCP client has "V2"
NANOSECONDS: Final = 1_000_000_000
_SUBSCRIBED: Final = 3  # the state of a TCP client that has subscribed
_ID: Final = 18  # where the id begins in a frame, behind size, type, timestamp and attempts
_END_OF_ID: Final = 34
_FEW: Final = 64  # ids of what is no longer in flight, which are not worth forgetting


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCaller:
    """Who makes a request."""

    holder: str  # whose the leases are
    remote_address: str
    user_agent: str = ""
    identity: str = ""  # as rights or an AUTH server call it


class LeaseAccounts(Protocol):
    """What consumers without a connection need of `Leases`."""

    def allowed(self, channel: Channel, holder: str, wanted: int) -> int:
        """Return how many of the wanted leases the bounds allow a poll that waits."""

    def took(self, consumer: HttpConsumer, count: int) -> None:
        """Note that a poll has got so many messages."""

    def measure_anew(self) -> None:
        """Count the leases anew before somebody gets another one."""

    def forget(self, consumer: HttpConsumer) -> None:
        """Forget a consumer that has left."""


def ids_in(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the ids of the message frames that these pieces form when joined, wherever they are cut."""
    frames = b"".join(pieces)
    at, end = 0, len(frames)
    while at < end:
        yield frames[at + _ID : at + _END_OF_ID]
        at += 4 + int.from_bytes(frames[at : at + 4], "big")


class HttpConsumer(Consumer):
    """A consumer without a connection."""

    def __init__(
        self, leases: LeaseAccounts, channel: Channel, caller: HttpCaller, turn: TurnContext[Channel, Any]
    ) -> None:
        """Join the channel. The registry of leases has to know of it."""
        super().__init__(
            send=self.receive, close=self.deleted, describe=self.described, msg_timeout=0.0, takes_headers=True
        )
        self.channel = channel
        self.caller = caller  # the latest
        self.holder = caller.holder
        self.seen = turn.now  # when it last asked for something
        self.since = turn.timestamp // NANOSECONDS
        self.leases = leases
        self.turn = turn
        channel.join(self)

    @property
    def held(self) -> int:
        """How many leases count against the bounds."""
        return self.in_flight

    @property
    def most_in_flight(self) -> int:
        """What RDY is for a consumer over TCP."""
        return self.ready_count

    @property
    def is_asking(self) -> bool:
        """Whether a request of it is open."""
        return False

    def receive(self, pieces: list[bytes]) -> None:
        raise NotImplementedError

    def deleted(self) -> None:
        """Take note that the channel is gone."""
        self.leases.forget(self)

    def give_back(self, ids: Sequence[bytes]) -> None:
        """Return messages that have not arrived to the channel. The attempt does not count."""
        if self.has_joined:
            for message_id in ids:
                self.channel.requeue(self, message_id, 0, self.turn.now, counts=False)

    def described(self) -> ClientSnapshot:
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
            connect_ts=self.since,
            user_agent=caller.user_agent,
            authed=bool(caller.identity),
            auth_identity=caller.identity,
        )


class LeasePoll:
    """One request for messages: what it has got, and until when that is leased."""

    def __init__(self, poller: PollingConsumer, most: int, lease: float, wake: Callable[[], None]) -> None:
        self.most = most
        self.lease = lease  # seconds
        self.pieces: list[bytes] = []
        self.count = 0
        self.ends = 0  # of the lease that ends first, wall clock, nanoseconds
        self.is_over = False  # the channel is gone
        self.wake = wake
        self._poller = poller

    @property
    def is_answerable(self) -> bool:
        return self.count > 0 or self.is_over

    @property
    def may_get_more_soon(self) -> bool:
        """Whether messages wait that it may have, and which the disk has still to be read for."""
        channel = self._poller.channel
        return not self.count and not channel.paused and channel.depth > 0 and self._poller.is_served(self)

    def take(self) -> list[bytes]:
        """End the request and return what it has got. The next one of its holder has its turn; so finish a turn."""
        self._poller.end(self)
        pieces, self.pieces = self.pieces, []
        return pieces

    @property
    def others_wait(self) -> bool:
        return bool(self._poller.polls)

    def give_back(self) -> None:
        """End the request, because whoever made it has gone, and give back what it has got."""
        self._poller.give_back(list(ids_in(self.take())))


class PollingConsumer(HttpConsumer):
    """A holder's polls. `ready_count` is what the first of them still wants."""

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
        """How many more messages the first poll may get."""
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
        """Let the first poll have messages, as many as the bounds allow, unless it is served already."""
        if not self.polls or self.ready_count or self.polls[0].count:
            return
        poll = self.polls[0]
        self.msg_timeout = poll.lease
        self.ready_count = poll.most
        self.leases.measure_anew()
        self.channel.schedule_delivery()

    def end(self, poll: LeasePoll) -> None:
        if poll.is_over:
            return
        was_first = self.polls[0] is poll
        self.polls.remove(poll)
        self.seen = self.turn.now
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
        self.leases.took(self, count)
        poll.wake()

    def deleted(self) -> None:
        super().deleted()
        while self.polls:
            poll = self.polls.popleft()
            poll.is_over = True
            poll.wake()


class StreamingConsumer(HttpConsumer):
    """A stream: messages come for as long as it is open, up to `ready_count` in flight."""

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
        # The latest ids, in their order, behind the one that arrived before: a client repeats that if nothing arrives.
        self.sent: deque[bytes] = deque((after,) if after else ())
        self.ends = 0  # of the leases of what is taken next, wall clock, nanoseconds
        self._most = 0
        self._pieces: list[bytes] = []
        self._taken: dict[bytes, None] = {}  # what was taken and is in flight, with some of what is no longer

    def begin(self, most: int) -> None:
        """Let it have messages, up to so many in flight."""
        self._most = self.ready_count = most
        self.channel.schedule_delivery()

    @property
    def held(self) -> int:
        return max(self.in_flight, self.ready_count)  # a stream has its room for as long as it lasts

    @property
    def is_asking(self) -> bool:
        return self.is_open

    def receive(self, pieces: list[bytes]) -> None:
        if not self._pieces:
            self.ends = self.turn.timestamp + int(self.msg_timeout * NANOSECONDS)
        self._pieces += pieces
        self.wake()

    def take(self) -> list[bytes]:
        """Return what is to be sent now, when everything before it was sent."""
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
        while len(self.sent) > self._most + 1:  # what has not arrived is in flight, which is no more
            self.sent.popleft()
        self.seen = self.turn.now
        return pieces

    def held_ids(self) -> list[bytes]:
        """Return what was sent and is in flight. A search in everything that is in flight would take too long."""
        in_flight = self.channel.in_flight
        return [it for it in self._taken if in_flight.owner(it) is self]

    def end(self) -> None:
        """Close the stream. What was not sent goes back, and what was sent stays leased."""
        if not self.is_open:
            return
        self.is_open = False
        self.ready_count = 0
        self.seen = self.turn.now
        self.give_back(list(ids_in(self._pieces)))
        self._pieces = []
        self.wake()

    def deleted(self) -> None:
        super().deleted()
        self.is_open = False
        self.wake()
