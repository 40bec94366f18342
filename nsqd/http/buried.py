"""The endpoints that list, kick and discard a channel's buried messages (docs/reference/http.md).

A list is streamed so that it never blocks other clients: we read bodies from disk one by one, and a search for a rare
reason pauses every `_LOOKED_AT` messages.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import HttpError, Request, Response, Stream, json, query_values
from nsqd.broker import operator_actions
from nsqd.broker.buried_queue import BuriedSelection
from nsqd.http.bodies import BodyReader, body_members
from nsqd.http.changes import who_asks
from nsqd.http.lines import LINES, MOST_LINES, Lines
from nsqd.http.message_search import parse_id
from nsqd.http.names import channel_argument, check_lasting, find_channel
from nsqd.http.numbers import limit_argument, number_argument, parse_number
from nsqd.http.places import AtTime, parse_place

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker
    from nsqd.broker.buried import BuriedMessage
    from nsqd.broker.buried_queue import BuriedJob, Verb
    from nsqd.broker.channel import Channel, LongRecall
    from nsqd.http.calls import Calls
    from nsqd.http.history import HistoryReads

MOST_NAMED: Final = 900  # messages per kick or discard; a query has at most 1,000 arguments
MOST_REASONS: Final = 1_000  # in a summary
_LOOKED_AT: Final = 5_000  # messages to check before other tasks run
_MILLISECOND: Final = 1_000_000  # nanoseconds

_is_rate: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII).fullmatch


class BuriedEndpoints:
    def __init__(self, calls: Calls, reading: HistoryReads, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._calls = calls
        self._broker = calls.broker
        self._reading = reading
        self._clock = clock

    async def show(self, request: Request) -> Response | Stream:
        channel, arguments = _channel(self._broker, request), request.query()
        if arguments.get("summary") == "true":
            return json(_summary(channel))
        after, limit = number_argument(arguments, "after", -1), limit_argument(arguments, LINES, most=MOST_LINES)
        found = _matching(channel, after + 1, arguments.get("reason", ""))
        bodies = BodyReader(self._reading, self._clock) if arguments.get("bodies") != "false" else None

        async def describe(burial: BuriedMessage) -> dict[str, object] | None:
            return await _line_members(channel, burial, bodies)

        return Lines(found, limit, describe).stream()

    async def kick(self, request: Request) -> Response:
        return await self._take(request, "kick")

    async def discard(self, request: Request) -> Response:
        return await self._take(request, "discard")

    async def _take(self, request: Request, verb: Verb) -> Response:
        channel = _channel(self._broker, request)
        named, asked = _named(request), _selection_request(request, self._broker.turn.timestamp)
        sequences = await self._sequences(channel, named) if named is not None else set()
        if verb == "kick" and named is None and not asked.force:
            await _check_fit(channel, asked.selection)
        with self._calls.journaled_turn():
            channel = _channel(self._broker, request)
            if named is not None:
                kick = number_argument(request.query(), "kick", -1)
                answer = _take_named(channel, verb, sequences, named.count, kick, force=asked.force)
            else:
                answer = _begin(channel, verb, asked, who_asks(request))
        await self._calls.durable()
        return json(answer)

    async def _sequences(self, channel: Channel, named: _NamedMessages) -> set[int]:
        """Return the sequences of the named messages. To find ids, it scans all buried messages in slices."""
        sequences = set(named.sequences)
        if named.ids:
            for found in channel.buried_queue.buried.find(named.ids):
                sequences.update(found)
                await asyncio.sleep(0)
        return sequences

    async def jobs(self, request: Request) -> Response:
        channel = _channel(self._broker, request)
        jobs = [_job_members(job) for job in (channel.buried_queue.job, channel.buried_queue.ended) if job is not None]
        return json({"jobs": jobs + [_recall_members(it) for it in channel.recalls]})

    async def undo_kick(self, request: Request) -> Response:
        _channel(self._broker, request)
        number = number_argument(request.query(), "kick", -1)
        with self._calls.journaled_turn():
            channel = _channel(self._broker, request)
            current = channel.buried_queue.job
            if current is not None and current.verb != "kick":
                raise _under_way(current)
            kicked = len(channel.buried_queue.kicked or ())
            job = operator_actions.undo_kick(channel, number, who=who_asks(request))
        if job is None:
            raise HttpError(404, "KICK_NOT_FOUND")
        await self._calls.durable()
        return json({"kicked": kicked, "buried": job.done, "job": _job_members(channel.buried_queue.job)})

    async def stop_job(self, request: Request) -> Response:
        with self._calls.journaled_turn():
            channel = _channel(self._broker, request)
            job = channel.buried_queue.job
            channel.buried_queue.stop_job()
            recalls = [it for it in channel.recalls if not it.is_stopped]
            for recall in recalls:
                recall.stop()
        await self._calls.durable()
        stopped = _job_members(job) or next(map(_recall_members, recalls), None)
        return json({"job": stopped})


def _channel(broker: Broker, request: Request) -> Channel:
    topic_name, name = channel_argument(request)
    check_lasting(topic_name, name)
    return find_channel(broker, topic_name, name)


# Listing


def _summary(channel: Channel) -> dict[str, object]:
    buried = channel.buried_queue.buried
    reasons = buried.reasons(MOST_REASONS)
    return {
        "count": len(buried),
        "reasons": [{"reason": note.reason, "client": note.who, "count": count} for note, count in reasons],
        "others": len(buried) - sum(count for _, count in reasons),
        "job": _job_members(channel.buried_queue.job),
        "kick": channel.buried_queue.kicked.number if channel.buried_queue.kicked is not None else None,
        "room": channel.room(),
        "paused_why": channel.paused_why,
    }


def _matching(channel: Channel, first: int, reason: str) -> Iterator[BuriedMessage | None]:
    """Yield the buried messages from sequence `first` on whose reason contains `reason`.

    Yields None now and then so that the caller can let other tasks run.
    """
    for looked_at, burial in enumerate(channel.buried_queue.buried.from_place(first), 1):
        if reason in burial.note.reason:
            yield burial
        if looked_at % _LOOKED_AT == 0:
            yield None


async def _line_members(channel: Channel, burial: BuriedMessage, bodies: BodyReader | None) -> dict[str, object] | None:
    """Return the members of a line, or None if the message has been kicked or discarded in the meantime."""
    if bodies is None:
        return _members(burial)
    sequence, buried = burial.sequence, channel.buried_queue.buried
    found = await bodies.batch(channel, sequence, lambda: sequence in buried)
    return _members(burial) | body_members(found, sequence) if sequence in buried else None


def _members(burial: BuriedMessage) -> dict[str, object]:
    return {
        "sequence": burial.sequence,
        "id": f"{burial.message_id:016x}",
        "attempts": burial.attempts,
        "buried_at": burial.buried_at * _MILLISECOND,
        "reason": burial.note.reason,
        "client": burial.note.who,
    }


# Kick and discard


def _take_named(
    channel: Channel, verb: Verb, sequences: set[int], count: int, kick: int, *, force: bool
) -> dict[str, object]:
    buried = channel.buried_queue.buried
    room = channel.room() if verb == "kick" and not force else None
    if room is not None and sum(sequence in buried for sequence in sequences) > room:
        raise _full(channel, room)
    done = operator_actions.take_buried(channel, verb, sorted(sequences), kick)
    answer = {_DONE[verb]: done, "missing": max(0, count - done), "job": None}
    return answer | _kick_of(channel, verb)


_DONE: Final[dict[Verb, str]] = {"kick": "kicked", "discard": "discarded"}


async def _check_fit(channel: Channel, selection: BuriedSelection) -> None:
    """Refuse a kick of more messages than the channel has room for. Counts in slices, so other tasks keep running."""
    buried, room = channel.buried_queue.buried, channel.room()
    if room is None or min(len(buried), selection.limit or len(buried)) <= room:
        return
    count = 0
    for looked_at, sequence in enumerate(buried.selected(selection.before, selection.reason), 1):
        count += sequence is not None
        if count > room:
            raise _full(channel, room)
        if looked_at % _LOOKED_AT == 0:
            await asyncio.sleep(0)


def _full(channel: Channel, room: int) -> HttpError:
    """Return the 409 for a kick that doesn't fit, with the number of messages that would fit."""
    limits = {"max_messages": channel.policy.rules.max_messages, "max_bytes": channel.policy.rules.max_bytes}
    words = ", ".join(f"{name} = {limit}" for name, limit in limits.items() if limit is not None)
    reason = (
        f"channel {channel.feed.name}:{channel.name} has room for {room} messages that may not be dropped ({words})"
    )
    return HttpError(409, "FULL", details={"reason": reason, "fits": room})


def _begin(channel: Channel, verb: Verb, asked: _SelectionRequest, who: str) -> dict[str, object]:
    if channel.buried_queue.job is not None:
        raise _under_way(channel.buried_queue.job)
    job = operator_actions.begin_job(channel, verb, asked.selection, rate=asked.rate, who=who, force=asked.force)
    return {_DONE[verb]: job.done, "job": _job_members(channel.buried_queue.job)} | _kick_of(channel, verb)


def _kick_of(channel: Channel, verb: Verb) -> dict[str, object]:
    """Return the member with the number of the kick, which a client needs to undo the kick."""
    kicked = channel.buried_queue.kicked
    return {"kick": kicked.number} if verb == "kick" and kicked is not None else {}


def _under_way(job: BuriedJob) -> HttpError:
    return HttpError(409, "JOB_UNDER_WAY", details={"job": _job_members(job)})


def _job_members(job: BuriedJob | None) -> dict[str, object] | None:
    if job is None:
        return None
    return {
        "verb": job.verb,
        "done": job.done,
        "limit": job.selection.limit,
        "reason": job.selection.reason,
        "before": job.selection.before * _MILLISECOND,
        "rate": job.rate,
        "force": job.force,
        "who": job.who,
        "started_at": job.started_at * _MILLISECOND,
        "ended_at": None if job.ended_at is None else job.ended_at * _MILLISECOND,
    }


def _recall_members(recall: LongRecall) -> dict[str, object]:
    """Return the members of a recall, in the format of a job. `limit` is the number of messages to recall."""
    return {
        "verb": recall.verb,
        "done": recall.done,
        "limit": recall.count,
        "reason": "",
        "before": recall.started_at * _MILLISECOND,
        "rate": 0.0,
        "force": False,
        "who": recall.who,
        "started_at": recall.started_at * _MILLISECOND,
        "ended_at": None,
    }


# Arguments


@dataclass(frozen=True, slots=True)
class _NamedMessages:
    """The messages a request names by id or sequence."""

    ids: frozenset[int]
    sequences: frozenset[int]

    @property
    def count(self) -> int:
        return len(self.ids) + len(self.sequences)


@dataclass(frozen=True, slots=True)
class _SelectionRequest:
    """A request to kick or discard by selection rather than by name."""

    selection: BuriedSelection
    rate: float  # messages a second; 0: no limit
    force: bool  # even if the channel has no room for them


def _named(request: Request) -> _NamedMessages | None:
    """Return the messages the request names, or None if it selects them by reason and time instead."""
    arguments = request.query()
    if "id" not in arguments and "sequence" not in arguments:
        return None
    if not arguments.keys().isdisjoint(("limit", "rate", "reason", "before")):
        raise HttpError(400, "INVALID_REQUEST", details={"reason": "either id and sequence, or a selection"})
    ids, sequences = (query_values(request.query_string, name) for name in ("id", "sequence"))
    if len(ids) + len(sequences) > MOST_NAMED:
        raise HttpError(400, "TOO_MANY", details={"reason": f"at most {MOST_NAMED} messages at once"})
    return _NamedMessages(
        frozenset(map(parse_id, ids)), frozenset(parse_number(text, "sequence") for text in sequences)
    )


def _selection_request(request: Request, timestamp: int) -> _SelectionRequest:
    arguments = request.query()
    rate = arguments.get("rate", "0")
    if _is_rate(rate) is None:
        raise HttpError(400, "INVALID_ARG_RATE")
    before = timestamp // _MILLISECOND + 1
    if "before" in arguments:
        before = min(before, -(-_time(arguments["before"]) // _MILLISECOND))  # rounded up to whole milliseconds
    selection = BuriedSelection(before, arguments.get("reason", ""), number_argument(arguments, "limit", 0))
    return _SelectionRequest(selection, float(rate), arguments.get("force") == "true")


def _time(text: str) -> int:
    """Parse a time into nanoseconds. Plain digits are nanoseconds already, as in our responses."""
    try:
        place = parse_place(text)
    except ValueError:
        place = None
    if isinstance(place, AtTime):
        return place.timestamp
    if not isinstance(place, int):
        raise HttpError(400, "INVALID_ARG_BEFORE")
    return place
