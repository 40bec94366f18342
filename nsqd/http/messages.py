"""The endpoints that show what a channel has deferred, and take single messages back or move them.

A message is named by the key with which it was published, or by its id. Where it lies is in memory as long as it is
deferred and nsqd was not restarted since; otherwise a thread looks for it in the log.
"""

from __future__ import annotations

import json as plain_json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from common.http_api import V1, HttpError, Request, Response, Stream, json
from common.wire.extensions import is_valid_key
from common.wire.history import NDJSON
from nsqd.broker.batch import Batch
from nsqd.broker.operated import Found
from nsqd.http.bodies import Bodies, body_members
from nsqd.http.names import channel_argument, check_lasting, check_name, find_channel, find_topic, topic_argument
from nsqd.http.numbers import number_argument

if TYPE_CHECKING:
    from common.wire.log_record import KeyPlace
    from nsqd.broker.broker import Broker
    from nsqd.broker.channel import Channel
    from nsqd.broker.topic import Topic
    from nsqd.http.calls import Calls
    from nsqd.http.history import Reading
    from nsqd.http.past import Past

MOST_LINES: Final = 1_000
_LINES: Final = 100  # unless the request says how many

_is_id: Final = re.compile(r"[0-9a-f]{16}", re.ASCII).fullmatch
_is_place: Final = re.compile(r"[0-9]{1,18},[0-9]{1,19}", re.ASCII).fullmatch
T = TypeVar("T")

_encode: Final = plain_json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class MessageEndpoints:
    def __init__(
        self,
        calls: Calls,
        reading: Reading,
        delay_ms: Callable[[dict[str, str]], int | None],
        clock: Callable[[], float],
    ) -> None:
        """`delay_ms` parses the argument `defer`; `clock` returns monotonic seconds."""
        self._calls = calls
        self._broker = calls.broker
        self._reading = reading
        self._delay_ms = delay_ms
        self._clock = clock

    async def cancel(self, request: Request) -> Response:
        start, end = await self._place(request)
        with self._calls.journaled_turn():
            topic, channels = _asked(self._broker, request)
            found = topic.cancel(start, end, channels)
        await self._calls.durable()
        return json(_counted(Found.CANCELLED, found))

    async def due(self, request: Request) -> Response:
        arguments = request.query()
        delay_ms = self._delay_ms(arguments)
        if "defer" not in arguments or delay_ms is None:
            raise HttpError(400, "INVALID_DEFER" if "defer" in arguments else "MISSING_ARG_DEFER")
        start, end = await self._place(request)
        with self._calls.journaled_turn():
            topic, channels = _asked(self._broker, request)
            found = topic.move(start, end, delay_ms, channels)
        await self._calls.durable()
        return json(_counted(Found.MOVED, found))

    async def deferred(self, request: Request) -> Response | Stream:
        topic_name, name = channel_argument(request)
        channel, arguments = find_channel(self._broker, topic_name, name), request.query()
        limit = number_argument(arguments, "limit", _LINES)
        if limit > MOST_LINES:
            raise HttpError(400, "INVALID_ARG_LIMIT", details={"reason": f"at most {MOST_LINES}"})
        after = arguments.get("after", "")
        if after and _is_place(after) is None:
            raise HttpError(400, "INVALID_ARG_AFTER")
        first = (int(after.split(",")[0]), int(after.split(",")[1])) if after else (-1, -1)
        bodies = Bodies(self._reading, self._clock)
        lines = _Lines(self._broker, channel, channel.deferred.earliest(limit, first), bodies)
        return Stream(((b"content-type", NDJSON.encode()), V1), lines.next_piece, lines.close)

    # Looking for a message

    async def _place(self, request: Request) -> tuple[int, int]:
        """Return the place of the messages that a request names, as [start, end). Raises a 400, 403, 404 or 503."""
        topic, _ = _asked(self._broker, request)
        arguments = request.query()
        if ("key" in arguments) == ("id" in arguments):
            raise HttpError(400, "INVALID_REQUEST", details={"reason": "either key or id"})
        if "id" in arguments:
            if not request.may_operate:  # an id is no secret, so it says nothing about who has published the message
                raise HttpError(403, "FORBIDDEN")
            place = await self._place_of_id(topic, arguments["id"])
        else:
            place = await self._place_of_key(topic, arguments["key"].encode())
        if place is None:
            raise HttpError(404, "MESSAGE_NOT_FOUND")
        return place

    async def _place_of_id(self, topic: Topic, text: str) -> tuple[int, int] | None:
        if _is_id(text) is None:
            raise HttpError(400, "INVALID_ARG_ID")
        sequence = await self._search(topic, lambda past: past.sequence_of(int(text, 16)))
        return (sequence, sequence + 1) if sequence is not None else None

    async def _place_of_key(self, topic: Topic, key: bytes) -> tuple[int, int] | None:
        if not is_valid_key(key):
            raise HttpError(400, "INVALID_ARG_KEY")
        place = topic.deferred_place(key)
        if place is None and not topic.knows_deferred_keys:
            topic.learn_deferred(await self._search(topic, lambda past: list(past.keys(deferred=True))) or ())
            place = topic.deferred_place(key)
        if place is None and topic.knows_key(key):
            since = self._broker.timestamp - self._broker.keys.longest
            found = await self._search(topic, lambda past: _first_of(key, past, since))
            place = (found[1], found[1] + found[2]) if found is not None else None
        return place

    async def _search(self, topic: Topic, look: Callable[[Past], T]) -> T | None:
        past = self._reading.history.find(topic.name, synced=False)
        if past is None:
            return None
        try:
            return await self._reading.in_thread(lambda: look(past))
        except OSError as error:
            raise HttpError(503, "CANNOT_READ") from error


def _first_of(key: bytes, past: Past, since: int) -> KeyPlace | None:
    return next((it for it in past.keys(since=since) if it[0] == key), None)


def _asked(broker: Broker, request: Request) -> tuple[Topic, Sequence[Channel]]:
    """Return the topic of a request, and its channels or the one that the request names."""
    name, arguments = topic_argument(request), request.query()
    check_lasting(name, "")
    topic = find_topic(broker, name)
    if "channel" not in arguments:
        return topic, list(topic.channels.values())
    check_name(arguments["channel"], "INVALID_ARG_CHANNEL")
    return topic, [find_channel(broker, name, arguments["channel"])]


def _counted(done: Found, found: Sequence[Found]) -> dict[str, int]:
    """Return in how many channels the message was found how."""
    outcomes = (done, Found.IN_FLIGHT, Found.BURIED, Found.DONE, Found.UNKNOWN)
    return {outcome: sum(it is outcome for it in found) for outcome in outcomes}


class _Lines:
    """The lines of an answer: deferred messages, the next that is due first."""

    def __init__(self, broker: Broker, channel: Channel, found: list[tuple[int, int, int]], bodies: Bodies) -> None:
        self._broker = broker
        self._channel = channel
        self._found = iter(found)
        self._bodies = bodies

    async def next_piece(self) -> bytes | None:
        for due, sequence, attempts in self._found:
            deferred = self._channel.deferred
            batch = await self._bodies.batch(self._channel, sequence, partial(deferred.__contains__, sequence))
            if sequence not in deferred:  # it is due, or was taken back
                continue
            members: dict[str, object] = {
                "sequence": sequence,
                "due": self._broker.wall_milliseconds(due) * 1_000_000,
                "attempts": attempts,
                "after": f"{due},{sequence}",
            }
            if isinstance(batch, Batch):
                members["id"] = f"{batch.base_id + sequence - batch.base_sequence:016x}"
                if batch.key:
                    members["key"] = batch.key.decode("ascii", "replace")
            return _encode(members | body_members(batch, sequence)).encode("utf-8", "replace") + b"\n"
        return None

    async def close(self) -> None:
        self._found = iter(())
