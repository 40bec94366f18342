"""The endpoint that lists a channel's messages in flight: which consumer has which message, since when and until when.

It takes nothing from anyone. Messages come and go while it lists them; `InFlight.oldest_first` says what you can rely on.

What belongs to a delivery is in memory. Headers, keys and sizes are in the message itself, which may have to be read from
disk. They are of less use here than the rest, so a slow disk delays the answer by seconds at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import Request, Response, Stream, json
from nsqcommon.wire.headers import decode_headers
from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.in_flight import TouchedDelivery
from nsqd.http.history import headers_member
from nsqd.http.lines import Lines
from nsqd.http.names import channel_argument, find_channel

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.channel import Channel
    from nsqd.broker.consumer import Consumer
    from nsqd.broker.in_flight import Delivery, Place
    from nsqd.http.bodies import BodyReader
    from nsqd.http.calls import Calls
    from nsqd.http.listing import Listing

_PAGE: Final = 1_000  # messages of one look at all that are in flight
_LONGEST_READING: Final = 2.0  # seconds for all messages of an answer that have to be read from disk
_NANOSECONDS: Final = 1_000_000_000


class InFlightEndpoint:
    def __init__(self, calls: Calls, listing: Listing, bodies: BodyReader, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._calls = calls
        self._broker = calls.broker
        self._listing = listing
        self._bodies = bodies
        self._clock = clock

    async def show(self, request: Request) -> Response | Stream:
        with self._calls.turn():  # reads the clocks
            moment = _Moment(self._broker.turn.now, self._broker.turn.timestamp)
        topic_name, name = channel_argument(request)
        channel, arguments = find_channel(self._broker, topic_name, name), request.query()
        if arguments.get("summary") == "true":
            return json({**self._listing.summary(topic_name, len(channel.in_flight)), "now": moment.timestamp})
        limit, after = self._listing.page(topic_name, arguments)
        bodies = self._bodies if arguments.get("headers") != "false" else None
        answer = _Answer(channel, moment, self._listing, bodies, self._clock)
        found = _listed(channel, limit, after, _holder_named(client) if (client := arguments.get("client")) else None)
        return Lines(found, limit, answer.line).stream()


@dataclass(frozen=True, slots=True)
class _Moment:
    """The two clocks at the start of an answer. All its times refer to it, so that they can be compared."""

    now: float
    timestamp: int

    def wall(self, at: float) -> int:
        """Convert monotonic seconds to nanoseconds of the wall clock."""
        return self.timestamp + int((at - self.now) * _NANOSECONDS)


@dataclass(slots=True)
class _Answer:
    """What the lines of one answer have in common."""

    channel: Channel
    moment: _Moment
    listing: Listing
    bodies: BodyReader | None  # None: without what is in the messages themselves
    clock: Callable[[], float]
    consumers: dict[Consumer, dict[str, object]] = field(default_factory=dict)
    read_until: float | None = None  # None: nothing had to be read from disk yet

    async def line(self, place: Place) -> dict[str, object] | None:
        """Return the members of a line, or None if this delivery is over."""
        in_flight, (since, sequence, message_id) = self.channel.in_flight, place
        if in_flight.at(place) is None:
            return None
        found = await self._batch(place) if self.bodies is not None else None
        delivery = in_flight.at(place)  # again, because reading takes a while
        if delivery is None:
            return None
        members: dict[str, object] = {"id": message_id.decode("ascii")}
        if not is_ephemeral(self.channel.feed.name):
            members["sequence"] = sequence
        members |= self._delivered(delivery)
        members |= {"consumer": self._consumer(delivery.consumer), "after": self.listing.place(since, sequence)}
        return members | _of_message(found, sequence) if found is not None else members

    def _delivered(self, delivery: Delivery) -> dict[str, object]:
        moment = self.moment
        members: dict[str, object] = {
            "attempts": delivery.attempts,
            "since": moment.wall(delivery.delivered_at),
            "in_flight_ms": max(0, int((moment.now - delivery.delivered_at) * 1000)),
            "deadline": moment.wall(delivery.deadline),
        }
        if isinstance(delivery, TouchedDelivery):
            members["last_touch"] = moment.wall(delivery.touched_at)
        members["timestamp"] = delivery.published_at
        return members

    def _consumer(self, consumer: Consumer) -> dict[str, object]:
        known = self.consumers.get(consumer)
        if known is None:
            client = consumer.describe()
            known = self.consumers[consumer] = {
                "client_id": client.client_id,
                "hostname": client.hostname,
                "remote_address": client.remote_address,
                "user_agent": client.user_agent,
                "version": client.version,
            }
            if not consumer.has_joined:
                known["gone"] = True
        return known

    async def _batch(self, place: Place) -> Batch | str:
        assert self.bodies is not None
        channel, (_, sequence, _) = self.channel, place
        batch = channel.ledger.batch_of(sequence)
        if batch is not None:
            return batch
        if channel.ledger.ephemeral_batches is not None:
            return "it is no longer in memory"
        if self.read_until is None:
            self.read_until = self.clock() + _LONGEST_READING
        left = self.read_until - self.clock()
        if left <= 0:
            return "reading from disk takes too long"
        return await self.bodies.batch(channel, sequence, lambda: channel.in_flight.at(place) is not None, seconds=left)


def _of_message(found: Batch | str, sequence: int) -> dict[str, object]:
    """Return what a message itself says, or `unread` with the reason."""
    if isinstance(found, str):
        return {"unread": found}
    members: dict[str, object] = {"size": found.body_size(sequence)}
    if found.key:
        members["key"] = found.key.decode("ascii", "replace")
    if group := found.group_of(sequence):
        members["group"] = group.decode("utf-8", "replace")
    headers = found.headers_between(sequence, sequence + 1)
    return members | headers_member(decode_headers(headers)) if headers else members


def _listed(
    channel: Channel, limit: int, after: tuple[int, int], wants: Callable[[Consumer], bool] | None
) -> Iterator[Place | None]:
    """Yield the messages after a place, and None now and then so that the caller can let other tasks run.

    Yields more than `limit` messages if necessary, because some may be answered before they are listed, and a list
    shorter than `limit` means that no more messages follow.
    """
    page = count = min(limit, _PAGE)
    while page and count == page:
        count = 0
        for place in channel.in_flight.oldest_first(page, after, wants):
            yield place
            if place is not None:
                count, after = count + 1, place[:2]


def _holder_named(name: str) -> Callable[[Consumer], bool]:
    """Return whether a consumer has this name, in one of the forms in which lists show it."""

    def wants(consumer: Consumer) -> bool:
        client = consumer.describe()
        return name in (client.client_id, client.hostname, client.remote_address)

    return wants
