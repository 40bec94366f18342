"""Consumers without a connection: they take messages with one HTTP request, and finish them with another.

What such a consumer has in flight is a *lease*. It belongs to its holder (a name, or an address), whatever connection
asks for it, and ends by itself when the message's time is over. To the channel a `Lessee` is a consumer like any other.

    Poller      serves the polls of one holder, one after the other. Only the first one has room at the channel.
    Streamer    sends messages to one stream for as long as it lasts. A reconnect finishes what has arrived.

    joined ──► polls or a stream, or leases ──► neither for LINGER seconds ──► left
                        ▲                                   │
                        └──────── another request ──────────┘

Nothing here waits. The HTTP handlers do (nsqd/http/consuming.py): they are woken when something has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqd.broker.consumer import MOST_UNSENT_BYTES, Consumer
from nsqd.broker.in_flight import NOT_IN_FLIGHT, NOT_OWNER, Delivery
from nsqd.broker.snapshot import ClientSnapshot

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.work import ChannelWork

LINGER: Final = 30.0  # seconds between two requests, for which a consumer stays in its channel
VERSION: Final = "HTTP"  # in /stats, where a TCP client has "V2"
_SUBSCRIBED: Final = 3  # the state of a TCP client that has subscribed
_NANOSECONDS: Final = 1_000_000_000
_ID: Final = 18  # where the id begins in a frame, behind size, type, timestamp and attempts
_END_OF_ID: Final = 34


class TooMany(Exception):
    """A bound is reached, so that asking again later may help."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    in_channel: int  # leases
    of_holder: int  # leases
    waiting: int  # polls that wait, and streams
    consumers: int  # of a channel; 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request."""

    holder: str  # whose the leases are
    remote_address: str
    user_agent: str = ""
    identity: str = ""  # as rights or an AUTH server call it


def _ignore() -> None:
    """Do nothing: nobody waits."""


def ids_in(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the ids of the message frames that these pieces form when joined, wherever they are cut."""
    frames = b"".join(pieces)
    at, end = 0, len(frames)
    while at < end:
        yield frames[at + _ID : at + _END_OF_ID]
        at += 4 + int.from_bytes(frames[at : at + 4], "big")


class Lessee(Consumer):
    """A consumer without a connection."""

    def __init__(self, leases: Leases, channel: Channel, caller: Caller, work: ChannelWork[Channel]) -> None:
        """Join the channel. The registry of leases has to know of it."""
        super().__init__(
            send=self.receive, close=self.deleted, describe=self.described, msg_timeout=0.0, takes_headers=True
        )
        self.channel = channel
        self.caller = caller  # the latest
        self.holder = caller.holder
        self.seen = work.now  # when it last asked for something
        self.since = work.timestamp // _NANOSECONDS
        self.leases = leases
        self.work = work
        channel.join(self)

    @property
    def held(self) -> int:
        """How many leases count against the bounds."""
        return self.in_flight

    @property
    def most_in_flight(self) -> int:
        """What RDY is for a consumer over TCP."""
        return self.ready_count

    def narrow(self, left: int) -> None:
        """Lower the room to what the bounds leave."""

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
                self.channel.requeue(self, message_id, 0, self.work.now, counts=False)

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


class Poll:
    """One request for messages: what it has got, and until when that is leased."""

    def __init__(self, poller: Poller, most: int, lease: float, wake: Callable[[], None]) -> None:
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


class Poller(Lessee):
    """A holder's polls. `ready_count` is what the first of them may still get."""

    def __init__(self, leases: Leases, channel: Channel, caller: Caller, work: ChannelWork[Channel]) -> None:
        super().__init__(leases, channel, caller, work)
        self.polls: deque[Poll] = deque()
        self._counted = 0

    @property
    def room(self) -> int:
        return 0 if self.unsent_bytes > MOST_UNSENT_BYTES else self.ready_count

    @property
    def most_in_flight(self) -> int:
        return self.in_flight + self.ready_count

    @property
    def is_asking(self) -> bool:
        return bool(self.polls)

    def narrow(self, left: int) -> None:
        if self.ready_count > left:
            self.ready_count = left
            self.leases.some_starve = True

    def add(self, poll: Poll) -> None:
        self.polls.append(poll)
        self.serve()

    def is_served(self, poll: Poll) -> bool:
        return bool(self.polls) and self.polls[0] is poll and self.room > 0

    def serve(self) -> None:
        """Let the first poll have messages, unless it is served already or the bounds leave nothing."""
        if not self.polls or self.ready_count or self.polls[0].count:
            return
        poll = self.polls[0]
        self.msg_timeout = poll.lease
        self.ready_count = min(poll.most, self.leases.left(self.channel, self.holder))
        if self.ready_count:
            self.channel.wants_attention()
        else:
            self.leases.some_starve = True

    def end(self, poll: Poll) -> None:
        if poll.is_over:
            return
        was_first = self.polls[0] is poll
        self.polls.remove(poll)
        self.seen = self.work.now
        if was_first:
            self.ready_count = self.unsent_bytes = 0
            self.serve()

    def receive(self, pieces: list[bytes]) -> None:
        poll = self.polls[0]
        count = self.message_count - self._counted
        self._counted = self.message_count
        self.ready_count -= count
        if not poll.count:
            poll.ends = self.work.timestamp + int(poll.lease * _NANOSECONDS)
        poll.count += count
        poll.pieces += pieces
        self.leases.narrow(self)
        poll.wake()

    def deleted(self) -> None:
        super().deleted()
        while self.polls:
            poll = self.polls.popleft()
            poll.is_over = True
            poll.wake()


class Streamer(Lessee):
    """A stream: messages come for as long as it is open, up to `ready_count` in flight."""

    def __init__(
        self,
        leases: Leases,
        channel: Channel,
        caller: Caller,
        work: ChannelWork[Channel],
        *,
        lease: float,
        after: bytes,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(leases, channel, caller, work)
        self.msg_timeout = lease
        self.is_open = True
        self.wake = wake
        # The latest ids, in their order, behind the one that arrived before: a client repeats that if nothing arrives.
        self.sent: deque[bytes] = deque((after,) if after else ())
        self.ends = 0  # of the leases of what is taken next, wall clock, nanoseconds
        self._most = 0
        self._pieces: list[bytes] = []

    def begin(self, most: int) -> None:
        """Let it have messages, up to so many in flight."""
        self._most = self.ready_count = most
        self.channel.wants_attention()

    @property
    def held(self) -> int:
        return max(self.in_flight, self.ready_count)  # a stream has its room for as long as it lasts

    @property
    def is_asking(self) -> bool:
        return self.is_open

    def receive(self, pieces: list[bytes]) -> None:
        if not self._pieces:
            self.ends = self.work.timestamp + int(self.msg_timeout * _NANOSECONDS)
        self._pieces += pieces
        self.wake()

    def take(self) -> list[bytes]:
        """Return what is to be sent now, when everything before it was sent."""
        pieces, self._pieces = self._pieces, []
        had_room = self.room > 0
        self.unsent_bytes = 0
        if not had_room and self.room > 0:
            self.channel.wants_attention()
        self.sent += ids_in(pieces)
        while len(self.sent) > self._most + 1:  # what has not arrived is in flight, which is no more
            self.sent.popleft()
        self.seen = self.work.now
        return pieces

    def end(self) -> None:
        """Close the stream. What was not sent goes back, and what was sent stays leased."""
        if not self.is_open:
            return
        self.is_open = False
        self.ready_count = 0
        self.seen = self.work.now
        self.give_back(list(ids_in(self._pieces)))
        self._pieces = []
        self.wake()

    def deleted(self) -> None:
        super().deleted()
        self.is_open = False
        self.wake()


def _too_many_leases() -> TooMany:
    return TooMany("too many messages are leased and not finished (--max-channel-leases, --max-holder-leases)")


class Leases:
    """All consumers without a connection, and their bounds."""

    def __init__(
        self, work: ChannelWork[Channel], bounds: Bounds, *, first_has_come: Callable[[], None] = _ignore
    ) -> None:
        """`first_has_come` is called whenever `sweep` has to be called every second from then on."""
        self._work = work
        self._bounds = bounds
        self._first_has_come = first_has_come
        self._pollers: dict[tuple[Channel, str], Poller] = {}
        self._of_holder: dict[str, dict[Lessee, None]] = {}
        self.waiting = 0  # polls that wait, and streams
        self.some_starve = False  # a poll waits because of the bounds alone

    @property
    def lessees(self) -> list[Lessee]:
        return [lessee for lessees in self._of_holder.values() for lessee in lessees]

    # Bounds

    def left(self, channel: Channel, holder: str) -> int:
        """Return how many more leases the bounds allow."""
        return max(0, min(self._left_in(channel), self._left_of(holder)))

    def _left_in(self, channel: Channel) -> int:
        return self._bounds.in_channel - sum([it.held for it in channel.consumers if isinstance(it, Lessee)])

    def _left_of(self, holder: str) -> int:
        return self._bounds.of_holder - sum([it.held for it in self._of_holder.get(holder, ())])

    def narrow(self, lessee: Lessee) -> None:
        """Leave to the polls that wait no more than the bounds do, as this consumer has got something.

        A poll that waits does not count for the bounds. Otherwise a holder that waits on ten channels, for a thousand
        messages each, would have no room for an eleventh.
        """
        left = max(0, self._left_in(lessee.channel))
        for other in lessee.channel.consumers:
            if isinstance(other, Lessee):
                other.narrow(left)
        left = max(0, self._left_of(lessee.holder))
        for mate in self._of_holder[lessee.holder]:
            mate.narrow(left)

    def check_holder(self, holder: str) -> None:
        """Raise TooMany if the holder has no leases left in any channel."""
        if self._left_of(holder) <= 0:
            raise _too_many_leases()

    def begin_waiting(self) -> None:
        """Count a request that waits from now on. Raise TooMany if too many do."""
        if self.waiting >= self._bounds.waiting:
            raise TooMany(f"{self._bounds.waiting} requests are waiting for messages already (--max-waiting-subs)")
        self.waiting += 1

    def end_waiting(self) -> None:
        self.waiting -= 1

    # Consumers

    def poll(
        self, channel: Channel, caller: Caller, *, most: int, lease: float, wake: Callable[[], None] = _ignore
    ) -> Poll:
        """Ask for messages. Raise TooMany. They come when the turn ends, or later; `wake` is called then."""
        poller = self._pollers.get((channel, caller.holder))
        if poller is None or not poller.polls:
            self._check_leases(channel, caller.holder)
        if poller is None:
            self._check_consumers(channel)
            poller = self._pollers[channel, caller.holder] = Poller(self, channel, caller, self._work)
            self._note(poller)
        poller.caller, poller.seen = caller, self._work.now
        poll = Poll(poller, most, lease, wake)
        poller.add(poll)
        return poll

    def stream(
        self, channel: Channel, caller: Caller, *, most: int, lease: float, after: bytes, wake: Callable[[], None]
    ) -> Streamer:
        """Begin a stream, which goes on `after` the message that arrived last. Raise TooMany."""
        self._resume(channel, caller.holder, after)
        left = self._check_leases(channel, caller.holder)
        replaced = self._ended_streams(channel, caller.holder)
        self._check_consumers(channel, leaving=len(replaced))
        streamer = Streamer(self, channel, caller, self._work, lease=lease, after=after, wake=wake)
        self._note(streamer)
        for former in replaced:  # now that another consumer is there: an ephemeral channel goes with its last one
            self._leave(former)
        streamer.begin(min(most, left))
        self.narrow(streamer)
        return streamer

    def _ended_streams(self, channel: Channel, holder: str) -> list[Lessee]:
        """Return the holder's streams in this channel that have ended and have no leases."""
        of_holder = self._of_holder.get(holder, ())
        return [
            it
            for it in of_holder
            if isinstance(it, Streamer) and it.channel is channel and not it.is_open and not it.in_flight
        ]

    def _note(self, lessee: Lessee) -> None:
        if not self._of_holder:
            self._first_has_come()
        self._of_holder.setdefault(lessee.holder, {})[lessee] = None

    def _check_consumers(self, channel: Channel, *, leaving: int = 0) -> None:
        most = self._bounds.consumers
        if most and len(channel.consumers) - leaving >= most:
            raise TooMany(f"the channel has {most} consumers already (--max-channel-consumers)")

    def _check_leases(self, channel: Channel, holder: str) -> int:
        left = self.left(channel, holder)
        if not left:
            raise _too_many_leases()
        return left

    def _resume(self, channel: Channel, holder: str, after: bytes) -> None:
        """End the former stream that has sent this message: what it sent up to there has arrived, the rest has not."""
        for lessee in list(self._of_holder.get(holder, ())):
            if isinstance(lessee, Streamer) and lessee.channel is channel and after in lessee.sent:
                lessee.end()
                lost = list(lessee.sent)[lessee.sent.index(after) + 1 :]
                lessee.give_back([it for it in lost if channel.in_flight.owner(it) is lessee])
                if arrived := channel.in_flight.ids_of(lessee):
                    channel.finish(lessee, arrived)
                    channel.record_progress(urgent=True)
                lessee.sent.clear()

    def forget(self, lessee: Lessee) -> None:
        """Forget a consumer that has left."""
        of_holder = self._of_holder.get(lessee.holder)
        if of_holder is None:
            return
        of_holder.pop(lessee, None)
        if not of_holder:
            del self._of_holder[lessee.holder]
        if self._pollers.get((lessee.channel, lessee.holder)) is lessee:
            del self._pollers[lessee.channel, lessee.holder]

    def sweep(self) -> None:
        """Let those leave that have neither asked nor had a lease for a while. Call this every second."""
        gone = self._work.now - LINGER
        for lessee in self.lessees:
            if lessee.in_flight:
                lessee.seen = self._work.now
            elif not lessee.is_asking and lessee.seen <= gone and lessee.has_joined:
                self._leave(lessee)
        self._serve_again()

    def _leave(self, lessee: Lessee) -> None:
        self.forget(lessee)
        lessee.channel.leave(lessee)

    def _serve_again(self) -> None:
        """Serve the polls that had to wait because of the bounds, as something was finished."""
        if self.some_starve:
            self.some_starve = False
            for poller in list(self._pollers.values()):
                poller.serve()

    # Answers. Each returns the ids that it could do nothing about, with the reason: mostly, they are not the holder's.

    def finish(self, channel: Channel, holder: str, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        owned, failures = self._owned(channel, holder, ids)
        for lessee, of_lessee in owned.items():
            channel.finish(lessee, of_lessee)
        if owned:
            channel.record_progress(urgent=True)  # the answer promises that they are finished, also after a crash
        self._serve_again()
        return failures

    def requeue(
        self, channel: Channel, holder: str, ids: Sequence[bytes], delay_ms: int, *, counts: bool
    ) -> dict[bytes, bytes]:
        owned, failures = self._owned(channel, holder, ids)
        for lessee, of_lessee in owned.items():
            for message_id in of_lessee:
                channel.requeue(lessee, message_id, delay_ms, self._work.now, counts=counts)
        self._serve_again()
        return failures

    def bury(self, channel: Channel, holder: str, ids: Sequence[bytes], reason: str) -> dict[bytes, bytes]:
        owned, failures = self._owned(channel, holder, ids)
        for lessee, of_lessee in owned.items():
            for message_id in of_lessee:
                if refusal := channel.bury(lessee, message_id, reason, self._work.now):
                    failures[message_id] = refusal
        self._serve_again()
        return failures

    def touch(
        self, channel: Channel, holder: str, ids: Sequence[bytes], lease: float
    ) -> tuple[dict[bytes, bytes], dict[bytes, int]]:
        """Give messages more time. Return also when each lease ends now, by the wall clock in nanoseconds."""
        owned, failures = self._owned(channel, holder, ids)
        now, timestamp = self._work.now, self._work.timestamp
        ends: dict[bytes, int] = {}
        for lessee, of_lessee in owned.items():
            for message_id in of_lessee:
                channel.touch(lessee, message_id, msg_timeout=lease, now=now)
                delivery = channel.in_flight.find(lessee, message_id)
                if isinstance(delivery, Delivery):
                    ends[message_id] = timestamp + int((delivery.deadline - now) * _NANOSECONDS)
        return failures, ends

    def _owned(
        self, channel: Channel, holder: str, ids: Sequence[bytes]
    ) -> tuple[dict[Lessee, list[bytes]], dict[bytes, bytes]]:
        """Return which of these messages the holder has, by consumer, and for each of the others why not."""
        owned: dict[Lessee, list[bytes]] = {}
        failures: dict[bytes, bytes] = {}
        for message_id in ids:
            owner = channel.in_flight.owner(message_id)
            if owner is None:
                failures[message_id] = NOT_IN_FLIGHT
            elif not isinstance(owner, Lessee) or owner.holder != holder:
                failures[message_id] = NOT_OWNER
            elif owner in owned:
                owned[owner].append(message_id)
            else:
                owner.seen = self._work.now
                owned[owner] = [message_id]
        return owned, failures
