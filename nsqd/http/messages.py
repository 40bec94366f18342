"""The endpoints that list a channel's deferred messages, and cancel or reschedule messages.

You identify a message by its id, or by the key it was published with. The sequence of a deferred message is in memory,
unless nsqd has been restarted since the publish. In that case, a thread searches the log for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import HttpError, Request, Response, Stream, json
from nsqcommon.wire.extensions import is_valid_key
from nsqd.broker.batch import Batch
from nsqd.broker.cancel_and_reschedule import Recall
from nsqd.broker.operator_actions import CancelOutcome, least_finished
from nsqd.http.bodies import body_members
from nsqd.http.changes import STOPPED, who_asks
from nsqd.http.lines import Lines
from nsqd.http.message_search import parse_id
from nsqd.http.names import channel_argument, check_lasting, check_name, find_channel, find_topic, topic_argument
from nsqd.http.sequences import sequences_argument

if TYPE_CHECKING:
    from nsqcommon.wire.log_record import KeyPlace
    from nsqd.broker.broker import Broker
    from nsqd.broker.channel import Channel
    from nsqd.broker.topic import Topic
    from nsqd.http.bodies import BodyReader
    from nsqd.http.calls import Calls
    from nsqd.http.history_source import TopicHistory
    from nsqd.http.listing import Listing
    from nsqd.http.message_search import MessageSearch

_CANCEL: Final = -1  # instead of a delay
_MILLISECOND: Final = 1_000_000  # nanoseconds
_FREED_AT_ONCE: Final = 10_000  # places; takes some hundreds of microseconds


class MessageEndpoints:
    def __init__(
        self,
        calls: Calls,
        listing: Listing,
        bodies: BodyReader,
        search: MessageSearch,
        delay_ms: Callable[[dict[str, str]], int | None],
        find_log: Callable[[str, Mapping[str, str]], object],
        *,
        node: str,
    ) -> None:
        """`delay_ms` parses the argument `defer`. `find_log` raises HttpError if the argument `log` has another log's id.

        `node` is the id of the data path.
        """
        self._calls = calls
        self._broker = calls.broker
        self._listing = listing
        self._bodies = bodies
        self._search = search
        self._delay_ms = delay_ms
        self._find_log = find_log
        self._node = node

    async def cancel(self, request: Request) -> Response:
        return await self._recall(request, CancelOutcome.CANCELLED, _CANCEL)

    async def due(self, request: Request) -> Response:
        arguments = request.query()
        delay_ms = self._delay_ms(arguments)
        if "defer" not in arguments or delay_ms is None:
            raise HttpError(400, "INVALID_DEFER" if "defer" in arguments else "MISSING_ARG_DEFER")
        return await self._recall(request, CancelOutcome.MOVED, delay_ms)

    async def _recall(self, request: Request, done: CancelOutcome, delay_ms: int) -> Response:
        """Cancel or reschedule the messages of one publish, or the messages with the given sequences in one channel."""
        arguments = request.query()
        # With mapped ports, a client may reach the wrong nsqd, and a 404 from there would be misleading.
        if arguments.get("node", self._node) != self._node:
            raise HttpError(421, "WRONG_NODE", details={"reason": "this nsqd is not the one that `node` names"})
        is_of_publish = arguments.keys().isdisjoint(("sequence", "from", "to"))
        sequences = range(*await self._place(request)) if is_of_publish else self._sequences(request)
        topic, _ = _targets(self._broker, request)
        if not is_of_publish and sequences and sequences[-1] >= topic.high_watermark:
            raise HttpError(400, "BEYOND_END", details={"end": topic.high_watermark})
        recall = Recall(
            topic,
            sequences,
            key=arguments.get("key", "").encode(),
            channel=arguments.get("channel", ""),
            delay_ms=delay_ms,
            who=who_asks(request),
            started_at=self._broker.turn.timestamp // _MILLISECOND,
        )
        await self._calls.in_slices(request, recall)
        await self._calls.durable()
        if topic.closing:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        if recall.is_stopped:
            raise HttpError(409, STOPPED, details={"done": recall.done, "count": recall.count})
        if is_of_publish:  # one count per channel: a channel where one message is in flight is `in_flight` as a whole
            return json(_counted(done, [{least_finished(counts): 1} for counts in recall.found.values() if counts]))
        return json(_counted(done, recall.found.values()))

    def _sequences(self, request: Request) -> list[int]:
        """Return the request's sequences in order. Raises a 400, 403, 404 or 409."""
        topic, _ = _targets(self._broker, request)
        arguments = request.query()
        if not arguments.keys().isdisjoint(("key", "id")):
            raise HttpError(400, "INVALID_REQUEST", details={"reason": "either key, id, or sequences"})
        if "channel" not in arguments:
            raise HttpError(400, "MISSING_ARG_CHANNEL")
        if not request.may_act_for_others:
            raise HttpError(403, "FORBIDDEN")
        self._find_log(topic.name, arguments)
        return sorted(set(sequences_argument(request)))

    async def deferred(self, request: Request) -> Response | Stream:
        topic_name, name = channel_argument(request)
        channel, arguments = find_channel(self._broker, topic_name, name), request.query()
        if arguments.get("summary") == "true":
            return json(self._listing.summary(topic_name, len(channel.ledger.deferred)))
        limit, after = self._listing.page(topic_name, arguments)

        async def describe(place: tuple[int, int, int]) -> dict[str, object] | None:
            return await self._described(channel, place)

        return Lines(_deferred(channel, limit, after), limit, describe).stream()

    async def _described(self, channel: Channel, place: tuple[int, int, int]) -> dict[str, object] | None:
        """Return the members of a line, or None if the message has become due or been cancelled in the meantime."""
        (due, sequence, attempts), deferred = place, channel.ledger.deferred
        batch = await self._bodies.batch(channel, sequence, partial(deferred.__contains__, sequence))
        if sequence not in deferred:
            return None
        members: dict[str, object] = {
            "sequence": sequence,
            "due": self._broker.turn.wall_milliseconds(due) * 1_000_000,
            "attempts": attempts,
            "after": self._listing.place(due, sequence),
        }
        if isinstance(batch, Batch):
            members["id"] = f"{batch.base_id + sequence - batch.base_sequence:016x}"
            if batch.key:
                members["key"] = batch.key.decode("ascii", "replace")
        return members | body_members(batch, sequence)

    # Searching for a message

    async def _place(self, request: Request) -> tuple[int, int]:
        """Return the range [start, end) of the messages with the request's key or id. Raises a 400, 403, 404 or 503."""
        topic, _ = _targets(self._broker, request)
        arguments = request.query()
        if ("key" in arguments) == ("id" in arguments):
            raise HttpError(400, "INVALID_REQUEST", details={"reason": "either key or id"})
        if "id" in arguments:
            if not request.may_act_for_others:  # only a key proves that you are the publisher: ids are no secret
                raise HttpError(403, "FORBIDDEN")
            place = await self._place_of_id(topic, arguments["id"])
        else:
            place = await self._place_of_key(topic, arguments["key"].encode())
        if place is None:
            raise HttpError(404, "MESSAGE_NOT_FOUND")
        return place

    async def _place_of_id(self, topic: Topic, text: str) -> tuple[int, int] | None:
        sequence = await self._search.sequence_of(topic, parse_id(text))
        return (sequence, sequence + 1) if sequence is not None else None

    async def _place_of_key(self, topic: Topic, key: bytes) -> tuple[int, int] | None:
        if not is_valid_key(key):
            raise HttpError(400, "INVALID_ARG_KEY")
        place = topic.deferred_place(key)
        if place is None and not topic.knows_deferred_keys:
            places, own = await self._search.in_log(topic, lambda topic_log: _deferred_of(key, topic_log)) or ([], [])
            for _ in topic.learn_deferred(_drain(places)):
                await asyncio.sleep(0)
            while places:  # these did not fit; free them in slices, see _drain
                del places[-_FREED_AT_ONCE:]
                await asyncio.sleep(0)
            place = topic.deferred_place(key) or topic.waiting_place(own)
        if place is None and topic.knows_key(key):
            place = await self._search.newest_with(topic, key)
        return place or topic.forgotten_place(key)


def _deferred_of(key: bytes, topic_log: TopicHistory) -> tuple[list[KeyPlace], list[KeyPlace]]:
    """Return the places of all deferred publishes, oldest first, and the places with this key, newest first."""
    places = list(topic_log.keys(deferred=True))
    own = [place for place in places if place[0] == key]
    places.reverse()
    return places, own


def _drain(places: list[KeyPlace]) -> Iterator[KeyPlace]:
    """Yield and remove the places from the end. Freeing a million of them in one go would take 50 ms."""
    while places:
        yield places.pop()


def _targets(broker: Broker, request: Request) -> tuple[Topic, Sequence[Channel]]:
    """Return the request's topic, and the channel it names or all channels of the topic."""
    name, arguments = topic_argument(request), request.query()
    check_lasting(name, "")
    topic = find_topic(broker, name)
    if "channel" not in arguments:
        return topic, list(topic.channels.values())
    check_name(arguments["channel"], "INVALID_ARG_CHANNEL")
    return topic, [find_channel(broker, name, arguments["channel"])]


def _counted(done: CancelOutcome, found: Iterable[Mapping[CancelOutcome, int]]) -> dict[str, int]:
    """Add up the outcomes: for each channel if the request names a publish, for each message if it has sequences."""
    outcomes = (done, CancelOutcome.IN_FLIGHT, CancelOutcome.BURIED, CancelOutcome.DONE, CancelOutcome.UNKNOWN)
    counts = list(found)
    return {outcome: sum(it.get(outcome, 0) for it in counts) for outcome in outcomes}


def _deferred(channel: Channel, limit: int, after: tuple[int, int]) -> Iterator[tuple[int, int, int] | None]:
    """Yield the deferred messages after a place, and None now and then so that the caller can let other tasks run.

    Yields more than `limit` messages if necessary, because some may be cancelled before they are listed, and a list
    shorter than `limit` means that no more messages follow.
    """
    count = limit
    while count == limit:
        count = 0
        for place in channel.ledger.deferred.earliest(limit, after):
            yield place
            if place is not None:
                count, after = count + 1, place[:2]
