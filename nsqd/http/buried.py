"""The endpoints about buried messages: list them, kick them back into their channel, or discard them.

Messages that are named one by one are taken at once. Everything else is a job of the channel (nsqd/broker/burials.py),
which takes its first step within the request.
"""

from __future__ import annotations

import json as plain_json
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from common.http_api import V1, HttpError, Request, Response, Stream, json, query_values
from common.wire.history import NDJSON
from nsqd.broker.burials import Selection
from nsqd.http.names import channel_argument, check_lasting, find_channel
from nsqd.http.places import AtTime, parse_place

if TYPE_CHECKING:
    from nsqd.broker.burials import Job, Verb
    from nsqd.broker.buried import Burial
    from nsqd.broker.channel import Channel
    from nsqd.http.calls import Calls

MOST_NAMED: Final = 10_000  # messages that one request names
MOST_LISTED: Final = 10_000
_LISTED: Final = 100
_MOST_REASONS: Final = 1_000
_PIECE: Final = 64 * 1024  # bytes of lines that are sent together
_LONGEST_WAIT: Final = 5.0  # seconds for a body that has to be read from disk
_LOOK_AGAIN: Final = 0.01  # seconds
_HIGHEST: Final = (1 << 63) - 1
_NS_PER_MS: Final = 1_000_000
_PAST_TENSE: Final[dict[Verb, str]] = {"kick": "kicked", "discard": "discarded"}


class BuriedEndpoints:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._broker = calls.broker

    # Looking

    async def show(self, request: Request) -> Response | Stream:
        channel = self._channel(request)
        arguments = request.query()
        if arguments.get("summary") == "true":
            return json(_summary(channel))
        after = _number(arguments, "after", -1, most=_HIGHEST)
        limit = _number(arguments, "limit", _LISTED, most=MOST_LISTED)
        with_bodies = arguments.get("bodies", "true") != "false"
        listing = _Listing(self._calls, channel, after + 1, limit, arguments.get("reason", ""), with_bodies=with_bodies)
        return Stream(((b"content-type", NDJSON.encode()), V1), listing.next_piece, _nothing)

    async def jobs(self, request: Request) -> Response:
        burials = self._channel(request).burials
        found = [it for it in (burials.job, burials.ended) if it is not None]
        return json({"jobs": [_described(job) for job in found]})

    # Changing

    async def kick(self, request: Request) -> Response:
        return await self._take(request, "kick")

    async def discard(self, request: Request) -> Response:
        return await self._take(request, "discard")

    async def stop_job(self, request: Request) -> Response:
        self._channel(request)
        with self._calls.journaled_turn():
            burials = self._channel(request).burials
            job = burials.job
            self._channel(request).stop_job()
        await self._calls.durable()
        return json({"job": _described(job) if job is not None else None})

    async def _take(self, request: Request, verb: Verb) -> Response:
        self._channel(request)
        named = _named(request)
        rate = _rate(request.query())
        if named is not None and (rate or {"limit", "reason", "before"} & request.query().keys()):
            raise HttpError(400, "INVALID_ARG_ID", details={"reason": "messages are either named, or selected"})
        with self._calls.journaled_turn():
            channel = self._channel(request)
            job = None
            if named is not None:
                ids, sequences = named
                taken = channel.take_buried(verb, [*sequences, *channel.burials.buried.find(ids)])
            else:
                if channel.burials.job is not None:
                    raise HttpError(409, "JOB_UNDER_WAY", details={"job": _described(channel.burials.job)})
                selection = self._selection(request.query())
                job = channel.begin_job(verb, selection, rate=rate, who=request.holder or request.remote)
                taken = job.done
        await self._calls.durable()
        is_under_way = job is not None and job.ended_at is None
        return json({_PAST_TENSE[verb]: taken, "job": _described(job) if job is not None and is_under_way else None})

    def _selection(self, arguments: dict[str, str]) -> Selection:
        now = self._broker.timestamp // _NS_PER_MS
        before = now + 1
        if "before" in arguments:
            try:
                place = parse_place(arguments["before"])
            except ValueError:
                place = None
            if not isinstance(place, AtTime):
                raise HttpError(400, "INVALID_ARG_BEFORE")
            before = min(before, place.timestamp // _NS_PER_MS)
        return Selection(before, arguments.get("reason", ""), _number(arguments, "limit", 0, most=_HIGHEST))

    def _channel(self, request: Request) -> Channel:
        topic, name = channel_argument(request)
        check_lasting(topic, name)
        return find_channel(self._broker, topic, name)


class _Listing:
    """Lines of buried messages on their way to one client."""

    def __init__(
        self, calls: Calls, channel: Channel, start: int, limit: int, reason: str, *, with_bodies: bool
    ) -> None:
        self._calls = calls
        self._log = channel.topic.log
        self._burials: Iterator[Burial] = channel.burials.buried.from_place(start)
        self._left = limit
        self._reason = reason
        self._with_bodies = with_bodies

    async def next_piece(self) -> bytes | None:
        lines: list[bytes] = []
        size = 0
        while self._left and size < _PIECE:
            burial = next(self._burials, None)
            if burial is None:
                self._left = 0
            elif self._reason in burial.note.reason:
                self._left -= 1
                lines.append(await self._line(burial))
                size += len(lines[-1])
        return b"".join(lines) or None

    async def _line(self, burial: Burial) -> bytes:
        sequence, message_id, attempts, buried_at, note = burial
        described: dict[str, object] = {
            "sequence": sequence,
            "id": f"{message_id:016x}",
            "attempts": attempts,
            "buried_at": buried_at * _NS_PER_MS,
            "reason": note.reason,
            "client": note.who,
        }
        if self._with_bodies:
            described |= await self._stored(sequence)
        return plain_json.dumps(described, separators=(",", ":")).encode() + b"\n"

    async def _stored(self, sequence: int) -> dict[str, object]:
        """Return what the log has of the message, or why it has nothing."""
        waited = 0.0
        while self._log.next_readable(sequence) == sequence:
            batch = self._log.batch_at(sequence)
            if batch is not None:
                return {"timestamp": batch.timestamp, **_encoded(batch.body(sequence))}
            if waited >= _LONGEST_WAIT:
                return {"unread": "the disk has not answered in time"}
            await self._calls.wait(partial(trio.sleep, _LOOK_AGAIN))
            waited += _LOOK_AGAIN
        return {"unread": "the log no longer has it"}


def _encoded(body: bytes) -> dict[str, object]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


def _summary(channel: Channel) -> dict[str, object]:
    burials = channel.burials
    reasons = burials.buried.reasons()
    return {
        "count": len(burials.buried),
        "reasons": [{"reason": note.reason, "client": note.who, "count": n} for note, n in reasons[:_MOST_REASONS]],
        "other_reasons": max(0, len(reasons) - _MOST_REASONS),
        "job": _described(burials.job) if burials.job is not None else None,
        "paused_why": channel.paused_why,
    }


def _described(job: Job) -> dict[str, object]:
    before, reason, limit = job.selection
    return {
        "verb": job.verb,
        "done": job.done,
        "rate": job.rate,
        "reason": reason,
        "before": before * _NS_PER_MS,
        "limit": limit,
        "who": job.who,
        "started_at": job.started_at * _NS_PER_MS,
        "ended_at": job.ended_at * _NS_PER_MS if job.ended_at is not None else None,
    }


def _named(request: Request) -> tuple[list[int], list[int]] | None:
    """Return the ids and sequences that the request names; None: it names none, so it selects."""
    ids = query_values(request.query_string, "id")
    sequences = query_values(request.query_string, "sequence")
    if not ids and not sequences:
        return None
    if len(ids) + len(sequences) > MOST_NAMED:
        raise HttpError(400, "TOO_MANY", details={"reason": f"at most {MOST_NAMED} messages at once"})
    return [_message_id(text) for text in ids], [_whole(text, "SEQUENCE") for text in sequences]


def _message_id(text: str) -> int:
    if len(text) != 16 or not text.isascii():
        raise HttpError(400, "INVALID_ARG_ID")
    try:
        return int.from_bytes(bytes.fromhex(text))
    except ValueError:
        raise HttpError(400, "INVALID_ARG_ID") from None


def _number(arguments: dict[str, str], name: str, default: int, *, most: int) -> int:
    return min(_whole(arguments[name], name.upper()), most) if name in arguments else default


def _whole(text: str, argument: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_HIGHEST))):
        raise HttpError(400, f"INVALID_ARG_{argument}")
    return int(text)


def _rate(arguments: dict[str, str]) -> float:
    """Return the messages a second that are asked for; 0: as many as possible."""
    text = arguments.get("rate", "0")
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1_000_000_000:
        raise HttpError(400, "INVALID_ARG_RATE")
    return rate


async def _nothing() -> None:
    pass
