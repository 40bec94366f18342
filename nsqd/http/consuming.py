"""Consuming over HTTP: `POST /sub` polls, `GET /sub` streams, and four more endpoints finish, requeue, touch or bury.

nsqd/broker/leases.py explains leases. A poll that finds messages gets its response in the same turn,
or in the next if there are many, because delivering many messages has already taken a while.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqcommon.durations import parse_duration, seconds
from nsqcommon.http_api import V1, ClientGone, HttpError, Request, Response, Stream
from nsqcommon.wire.extensions import decode_reason
from nsqcommon.wire.history import NDJSON
from nsqd.broker.in_flight import NOT_IN_FLIGHT
from nsqd.broker.leases import TooMany
from nsqd.http.lease_results import HEARTBEAT, events_of, lines_of, results_of
from nsqd.http.leasing import Refusal, refusal_for, wake
from nsqd.http.names import channel_argument, find_channel
from nsqd.http.numbers import number_argument

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.http_consumers import HttpCaller, LeasePoll, StreamingConsumer
    from nsqd.http.calls import Calls
    from nsqd.http.leasing import Leasing

PATHS: Final = frozenset(("/sub", "/fin", "/req", "/touch", "/bury"))
TAKING: Final = frozenset(("/sub",))  # here even GET changes something, because it takes messages
MOST_MESSAGES: Final = 1000  # messages or ids in one request
LONGEST_WAIT: Final = 60.0  # seconds
SHORTEST_LEASE: Final = 1.0
HEARTBEAT_INTERVAL: Final = 15.0
_STREAMED: Final = 100  # the default `max` of a stream: messages in flight
_TO_LOAD: Final = 0.25  # seconds; even a poll without `wait=` waits up to this long for messages from disk
_MANY: Final = 200  # messages; if there are more, we encode them in the next turn
_MOST_BYTES: Final = 64 * 1024  # in a list of ids
_EVENTS: Final = b"text/event-stream"
_INVALID_ID: Final = b"invalid message ID"
_BEGIN: Final = b"retry: 1000\n\n"

_is_id: Final = re.compile(rb"[0-9a-f]{16}").fullmatch


class ConsumeEndpoints:
    def __init__(self, calls: Calls, leasing: Leasing) -> None:
        self._calls = calls
        self._leasing = leasing

    # Taking messages

    async def poll(self, request: Request) -> Response:
        try:
            return await self._poll(request)
        except Refusal as refusal:
            return refusal.response

    async def _poll(self, request: Request) -> Response:
        arguments = request.query()
        topic, channel = channel_argument(request)
        most = _most(arguments, 1)
        wait, lease = _duration(arguments, "wait", 0.0, 0.0, LONGEST_WAIT), self._lease(arguments)
        caller = await self._leasing.caller(request, topic, channel, self._calls.broker.turn.now)
        poll: LeasePoll | None = None
        try:
            with self._calls.journaled_turn():
                poll = self._begin(topic, channel, caller, most, lease)
            if not poll.is_answerable:
                await self._wait(request, poll, wait)
            elif poll.count > _MANY:
                await asyncio.sleep(0)  # delivering took a while, and so will encoding
            if poll.is_over:
                raise HttpError(404, "CHANNEL_NOT_FOUND")
            pieces, taken, poll = poll.take(), poll, None
        finally:
            if poll is not None:
                with self._calls.turn():
                    poll.give_back()
        if taken.others_wait:
            with self._calls.turn():  # `take` made room for the holder's next poll, and the end of a turn fills it
                pass
        return Response(200, lines_of(pieces, taken.ends), ((b"content-type", NDJSON.encode()), V1))

    def _begin(self, topic: str, channel: str, caller: HttpCaller, most: int, lease: float) -> LeasePoll:
        try:
            found = self._channel(topic, channel, caller)
            return self._leasing.leases.poll(found, caller, most=most, lease=lease)
        except TooMany as error:
            raise refusal_for(error) from error

    def _channel(self, topic: str, channel: str, caller: HttpCaller) -> Channel:
        """Return the channel. Creates it if necessary, as SUB does.

        Raises TooMany rather than create a channel for a request that will be refused. For example, an ephemeral one
        would stay forever: it is deleted when its last consumer leaves, and it would never have had one.
        """
        broker = self._calls.broker
        existing = broker.find(topic)
        if existing is None or channel not in existing.channels:
            self._leasing.leases.check_holder(caller.holder)
        return broker.topic(topic).channel(channel)

    async def _wait(self, request: Request, poll: LeasePoll, wait: float) -> None:
        """Wait until the poll has messages or time is up. Raises ClientGone if the client has disconnected."""
        if not wait and poll.may_get_more_soon:
            wait = _TO_LOAD
        if not wait or self._leasing.stopping:
            return
        async with self._leasing.count_waiting():
            wakeup = self._leasing.new_wakeup()
            poll.wake = partial(wake, wakeup)
            gone = asyncio.ensure_future(request.wait_until_gone())
            try:
                await asyncio.wait((wakeup, gone), timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            finally:
                gone.cancel()
                self._leasing.drop_wakeup(wakeup)
        if request.is_gone:
            raise ClientGone

    async def stream(self, request: Request) -> Response | Stream:
        if _EVENTS not in request.headers.get(b"accept", b""):
            raise HttpError(406, "NOT_ACCEPTABLE", details={"reason": "a stream needs Accept: text/event-stream"})
        arguments = request.query()
        topic, channel = channel_argument(request)
        most, lease = _most(arguments, _STREAMED), self._lease(arguments)
        after = request.headers.get(b"last-event-id", b"")
        if not _is_id(after):
            after = b""
        try:
            caller = await self._leasing.caller(request, topic, channel, self._calls.broker.turn.now)
        except Refusal as refusal:
            return refusal.response
        events = _EventStream(self._calls, self._leasing, request, lease)
        try:
            with self._calls.journaled_turn():
                events.begin(partial(self._channel, topic, channel, caller), caller, most, after)
        except Refusal as refusal:
            return refusal.response
        except HttpError:  # the disk refused the new channel
            await events.close()
            raise
        headers = ((b"cache-control", b"no-store"), (b"content-type", _EVENTS), V1)
        return Stream(headers, events.next_piece, events.close)

    # Answers

    async def finish(self, request: Request) -> Response:
        leases = self._leasing.leases
        return await self._answer(request, b"FIN", leases.finish)

    async def requeue(self, request: Request) -> Response:
        arguments = request.query()
        delay_ms = number_argument(arguments, "defer", 0)
        if delay_ms > self._leasing.settings.longest_delay_ms:
            raise HttpError(400, "INVALID_ARG_DEFER")
        counts = arguments.get("free", "false") in ("false", "0")
        return await self._answer(
            request,
            b"REQ",
            lambda channel, holder, ids: self._leasing.leases.requeue(channel, holder, ids, delay_ms, counts=counts),
        )

    async def bury(self, request: Request) -> Response:
        reason = decode_reason([request.query().get("reason", "").encode("utf-8", "surrogateescape")])
        return await self._answer(
            request,
            b"BURY",
            lambda channel, holder, ids: self._leasing.leases.bury(channel, holder, ids, reason),
        )

    async def touch(self, request: Request) -> Response:
        lease = self._lease(request.query())
        ends: dict[bytes, int] = {}

        def touch(channel: Channel, holder: str, ids: list[bytes]) -> dict[bytes, bytes]:
            failures, found = self._leasing.leases.touch(channel, holder, ids, lease)
            ends.update(found)
            return failures

        return await self._answer(request, b"TOUCH", touch, ends)

    async def _answer(
        self,
        request: Request,
        verb: bytes,
        carry_out: Callable[[Channel, str, list[bytes]], dict[bytes, bytes]],
        ends: dict[bytes, int] | None = None,
    ) -> Response:
        topic, name = channel_argument(request)
        named = await _ids(request)
        try:
            caller = await self._leasing.caller(request, topic, name, self._calls.broker.turn.now)
        except Refusal as refusal:
            return refusal.response
        with self._calls.journaled_turn():
            channel = find_channel(self._calls.broker, topic, name)
            ids = list(dict.fromkeys(filter(_is_id, named)))
            failures = carry_out(channel, caller.holder, ids)
        if len(ids) != len(named):
            body = _results_in_order(verb, named, failures, ends)
        else:
            body = results_of(verb, ids, failures, ends)
        return Response(200, body, ((b"content-type", NDJSON.encode()), V1))

    def _lease(self, arguments: dict[str, str]) -> float:
        settings = self._leasing.settings
        return _duration(arguments, "lease", settings.lease, SHORTEST_LEASE, settings.longest_lease)


def _results_in_order(
    verb: bytes, named: list[bytes], failures: dict[bytes, bytes], ends: dict[bytes, int] | None
) -> bytes:
    """Return a line for each id, where some are invalid or repeated. A repeated id can only succeed once."""
    lines: list[bytes] = []
    seen: set[bytes] = set()
    for message_id in named:
        if _is_id(message_id) is None:
            failure = {message_id: _INVALID_ID}
        elif message_id in seen:
            failure = {message_id: NOT_IN_FLIGHT}
        else:
            failure = failures
        seen.add(message_id)
        lines.append(results_of(verb, [message_id], failure, ends))
    return b"".join(lines)


class _EventStream:
    """One client's stream of events."""

    def __init__(self, calls: Calls, leasing: Leasing, request: Request, lease: float) -> None:
        self._calls = calls
        self._leasing = leasing
        self._request = request
        self._lease = lease
        self._streamer: StreamingConsumer | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] | None = None

    def begin(self, make_channel: Callable[[], Channel], caller: HttpCaller, most: int, after: bytes) -> None:
        """Join the channel, or raise Refusal. Once you have joined, you must call `close`."""
        leases = self._leasing.leases
        try:
            leases.begin_waiting()
            try:
                self._streamer = leases.stream(
                    make_channel(), caller, most=most, lease=self._lease, after=after, wake=self._wake
                )
            except TooMany:
                leases.end_waiting()
                raise
        except TooMany as error:
            raise refusal_for(error) from error

    def _wake(self) -> None:
        if self._wakeup is not None:
            wake(self._wakeup)

    async def next_piece(self) -> bytes | None:
        if self._gone is None:
            self._gone = asyncio.ensure_future(self._request.wait_until_gone())
            return _BEGIN
        streamer = self._streamer
        assert streamer is not None
        # Create this before calling `_piece`: the turn there may deliver new messages at its end, and wake us.
        self._wakeup = self._leasing.new_wakeup()
        try:
            if piece := self._piece(streamer):
                return piece
            if streamer.is_open and not self._leasing.stopping:
                await asyncio.wait(
                    (self._wakeup, self._gone),
                    timeout=HEARTBEAT_INTERVAL,
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            self._leasing.drop_wakeup(self._wakeup)
            self._wakeup = None
        if self._request.is_gone or self._leasing.stopping or not streamer.is_open:
            return None
        return self._piece(streamer) or HEARTBEAT

    def _piece(self, streamer: StreamingConsumer) -> bytes:
        with self._calls.turn():
            pieces, ends = streamer.take(), streamer.ends
        return events_of(pieces, ends)

    async def close(self) -> None:
        if self._gone is not None:
            self._gone.cancel()
        if self._streamer is not None:
            self._leasing.leases.end_waiting()
            with self._calls.turn():
                self._streamer.end()
            self._streamer = None


# Arguments


def _most(arguments: dict[str, str], default: int) -> int:
    most = number_argument(arguments, "max", default)
    if not 1 <= most <= MOST_MESSAGES:
        raise HttpError(400, "INVALID_ARG_MAX", details={"reason": f"from 1 to {MOST_MESSAGES}"})
    return most


def _duration(arguments: dict[str, str], name: str, default: float, least: float, most: float) -> float:
    """Return the seconds in an argument such as `30s`. Raises a 400 unless they are between `least` and `most`."""
    if name not in arguments:
        return default
    try:
        given = seconds(parse_duration(arguments[name]))
    except ValueError:
        given = -1.0
    if not least <= given <= most:
        reason = f"a duration from {least:g}s to {most:g}s"
        raise HttpError(400, f"INVALID_ARG_{name.upper()}", details={"reason": reason})
    return given


async def _ids(request: Request) -> list[bytes]:
    """Return the ids in the body, one on each line."""
    body = await request.read(_MOST_BYTES)
    if len(body) > _MOST_BYTES:
        raise HttpError(413, "BODY_TOO_BIG", close=True)
    ids = body.split()
    if len(ids) > MOST_MESSAGES:
        raise HttpError(400, "TOO_MANY", details={"reason": f"at most {MOST_MESSAGES} ids at once"})
    return ids
