"""The endpoints that create, delete, empty or pause a channel, and show or set its position in the topic's log."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import EMPTY, HttpError, Request, Response, json
from nsqd.broker import operator_actions
from nsqd.http.history import find_sequence, place_argument
from nsqd.http.names import channel_argument, check_lasting, find_channel, find_topic
from nsqd.http.places import AtTime, FoundSequence, HistoryEdge, HistoryPlace, Pinned

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqd.broker.channel import Channel
    from nsqd.broker.topic import Topic
    from nsqd.http.calls import Calls
    from nsqd.http.history import HistoryReads

_PLACES: Final = 20  # the default `limit` of /channel/position
_MOST_PLACES: Final = 1000
_DIGITS: Final = 10
_LOSES: Final = "some messages before that place are not finished; you need the role admin to skip them"


class ChannelEndpoints:
    def __init__(self, calls: Calls, reading: HistoryReads) -> None:
        self._calls = calls
        self._broker = calls.broker
        self._reading = reading

    async def create(self, request: Request) -> Response:
        topic_name, name = channel_argument(request)
        place = place_argument(request)
        if place is None:
            with self._calls.journaled_turn():
                find_topic(self._broker, topic_name).channel(name)
            return EMPTY
        check_lasting(topic_name, name)
        find_topic(self._broker, topic_name)
        pinned = await self._pinned(topic_name, place)
        with self._calls.journaled_turn():
            topic = find_topic(self._broker, topic_name)
            if name not in topic.channels:
                cursor = _cursor(topic, pinned)
                operator_actions.seek(topic.channel(name), cursor)
        return EMPTY

    async def seek(self, request: Request) -> Response:
        topic_name, name = channel_argument(request)
        place = place_argument(request)
        if place is None:
            raise HttpError(400, "MISSING_ARG_FROM")
        check_lasting(topic_name, name)
        find_channel(self._broker, topic_name, name)
        pinned = await self._pinned(topic_name, place)
        with self._calls.journaled_turn():
            channel = find_channel(self._broker, topic_name, name)
            cursor = _cursor(find_topic(self._broker, topic_name), pinned)
            if not request.may_discard and channel.ledger.waits_before(cursor):
                raise HttpError(403, "FORBIDDEN", details={"reason": _LOSES})
            operator_actions.seek(channel, cursor)
        await self._calls.durable()
        return json({"cursor": cursor})

    async def position(self, request: Request) -> Response:
        topic_name, name = channel_argument(request)
        check_lasting(topic_name, name)
        limit = request.query().get("limit", str(_PLACES))
        if not (limit.isascii() and limit.isdigit() and len(limit) < _DIGITS and int(limit) <= _MOST_PLACES):
            raise HttpError(400, "INVALID_ARG_LIMIT")
        channel = find_channel(self._broker, topic_name, name)
        places = next_places(channel, int(limit))
        return json({"cursor": channel.ledger.cursor, "end": channel.feed.high_watermark, "waiting": places})

    async def _pinned(self, topic: str, place: HistoryPlace) -> Pinned:
        """Convert a time to a sequence. Call this before the turn, because it reads the disk, and a turn can't wait."""
        return FoundSequence(await find_sequence(self._reading, topic, place)) if isinstance(place, AtTime) else place

    async def delete(self, request: Request) -> Response:
        topic_name, name = channel_argument(request)
        with self._calls.journaled_turn():
            found = find_topic(self._broker, topic_name).delete_channel(name)
        if not found:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        await self._calls.durable()
        return EMPTY

    async def empty(self, request: Request) -> Response:
        return await self._do(request, operator_actions.empty)

    async def pause(self, request: Request) -> Response:
        return await self._do(request, lambda channel: channel.pause())

    async def unpause(self, request: Request) -> Response:
        return await self._do(request, lambda channel: channel.unpause())

    async def _do(self, request: Request, action: Callable[[Channel], None]) -> Response:
        topic_name, name = channel_argument(request)
        with self._calls.journaled_turn():
            action(find_channel(self._broker, topic_name, name))
        await self._calls.durable()
        return EMPTY


def _cursor(topic: Topic, place: Pinned) -> int:
    """Return the cursor for a place. Raises a 410 or 400 if a client's own sequence is outside the log."""
    first, last = topic.log.first, topic.last_place
    if isinstance(place, HistoryEdge):
        return first if place is HistoryEdge.EARLIEST else last
    if isinstance(place, FoundSequence):
        return min(max(place.sequence, first), last)
    if place < first:
        raise HttpError(410, "GONE", details={"first": first, "last": last})
    if place > last:
        raise HttpError(400, "BEYOND_END", details={"first": first, "last": last})
    return place


def next_places(channel: Channel, limit: int) -> list[tuple[int, int]]:
    """Return (sequence, attempts so far) of the next messages to deliver: retries first, then held ones, then new ones."""
    places = channel.ledger.retries.next_ones(limit)
    places += [(it, 0) for it in channel.ledger.held.first(limit - len(places), channel.feed.high_watermark)]
    end = channel.feed.high_watermark
    sequence = channel.ledger.cursor
    for start, stop in chain(channel.ledger.skips, [(end, end)]):
        if len(places) >= limit:
            break
        take = range(sequence, min(start, end))
        places += [(it, 0) for it in take[: limit - len(places)]]
        sequence = max(sequence, stop)
    return places
