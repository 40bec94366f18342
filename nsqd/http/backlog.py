"""The endpoints that save and restore a channel's backlog, and deliver finished messages again.

A client gets a document from `GET /channel/state`, and may edit it before sending it back. So we check all of it before
we change anything, and allow at most `MOST` entries.
"""

from __future__ import annotations

import json as plain_json
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from nsqcommon.http_api import HttpError, Request, Response, handler_slices, json
from nsqd.broker import operator_actions
from nsqd.broker.backlog import Backlog, from_place, is_in
from nsqd.http.names import channel_argument, check_lasting, find_channel, find_topic
from nsqd.http.sequences import sequences_argument

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.topic import Topic
    from nsqd.http.calls import Calls
    from nsqd.http.history_source import TopicHistory

MOST: Final = 10_000  # ranges and exceptions in a document
LONGEST: Final = 1 << 20  # bytes in a document; nsqd writes at most half as many
_TOO_LONG: Final = f"more than {MOST} ranges and exceptions"
_MOST_BRACKETS: Final = 2 * MOST  # of one kind, including those in members we don't know
_MOST_COMMAS: Final = 6 * MOST
_CHECKED_AT_ONCE: Final = 1_000  # entries; takes half a millisecond
_HIGHEST: Final = (1 << 63) - 1
_MOST_ATTEMPTS: Final = (1 << 16) - 1
_LATEST: Final = 253_402_300_799_999  # the end of the year 9999, in milliseconds
_NANOSECONDS: Final = 1_000_000_000


class BadDocument(ValueError):
    """The document is malformed or contradicts itself. The message has the details."""


@dataclass(frozen=True, slots=True)
class BacklogDocument:
    """A channel's backlog, the id of the log it refers to, and whether the channel was paused."""

    log: str
    paused: bool
    backlog: Backlog


class BacklogEndpoints:
    def __init__(self, calls: Calls, find: Callable[[str, Mapping[str, str]], TopicHistory]) -> None:
        """`find` returns the topic's log. It raises HttpError if the argument `log` has another log's id."""
        self._calls = calls
        self._broker = calls.broker
        self._find = find

    async def state(self, request: Request) -> Response:
        topic_name, name = channel_argument(request)
        check_lasting(topic_name, name)
        channel = find_channel(self._broker, topic_name, name)
        topic_log = self._find(topic_name, {})
        backlog = operator_actions.backlog(channel, MOST)
        if backlog is None:
            raise HttpError(413, "TOO_MANY", details={"reason": f"more than {MOST} ranges and exceptions"})
        # Sync first: otherwise a power cut could lose messages, and new ones would reuse the sequences we return here.
        paused = channel.paused
        await self._calls.durable()
        time, size = topic_log.retention_time, topic_log.retention_bytes
        return json(
            {
                "log": topic_log.log_id,
                "next": backlog.next,
                "end": backlog.end,
                "finished": backlog.finished,
                "requeued": backlog.requeued,
                "deferred": backlog.deferred,
                **({"buried": backlog.buried} if backlog.buried else {}),
                **({"copies": backlog.copies} if backlog.copies else {}),
                "paused": paused,
                "count": backlog.count,
                "retention": {"kept": bool(time or size), "time": time / _NANOSECONDS, "bytes": size},
            }
        )

    async def restore(self, request: Request) -> Response:
        topic_name, name = channel_argument(request)
        check_lasting(topic_name, name)
        find_topic(self._broker, topic_name)
        body = await request.read(LONGEST)
        if len(body) > LONGEST:
            raise HttpError(413, "BODY_TOO_BIG", details={"reason": f"more than {LONGEST} bytes"})
        try:
            slices = handler_slices()
            (document,) = await slices.all_of(parse_document(body))
            await slices.give_way()  # parsing may have used up this slice, and the change below needs a whole one
        except BadDocument as error:
            raise HttpError(400, "INVALID_BODY", details={"reason": str(error)}) from None
        with self._calls.journaled_turn():
            topic_log = self._find(topic_name, {"log": document.log})
            topic = find_topic(self._broker, topic_name)
            if document.backlog.end > topic.high_watermark:
                raise _beyond_end(topic_log, topic)
            channel, missed = _channel(topic, name, document)
            result = operator_actions.restore_backlog(channel, document.backlog, MOST)
            if result is None:
                reason = f"more than {MOST} messages are in flight, in compacted files, or were buried and wait now"
                raise HttpError(413, "TOO_MANY", details={"reason": reason})
        await self._calls.durable()
        return json({"restored": result.restored, "gone": result.gone + missed})

    async def redeliver(self, request: Request) -> Response:
        topic_name, name = channel_argument(request)
        check_lasting(topic_name, name)
        find_channel(self._broker, topic_name, name)
        sequences = sequences_argument(request)
        topic_log = self._find(topic_name, request.query())
        with self._calls.journaled_turn():
            channel, topic = find_channel(self._broker, topic_name, name), find_topic(self._broker, topic_name)
            if sequences and max(sequences) >= topic.high_watermark:
                raise _beyond_end(topic_log, topic)
            result = operator_actions.redeliver(channel, sequences)
        await self._calls.durable()
        return json(result._asdict())


def _channel(topic: Topic, name: str, document: BacklogDocument) -> tuple[Channel, int]:
    """Return the channel and the number of messages it has missed.

    If the channel was deleted, we create it again at the document's end, and pause it if it was paused. It gets all
    messages published since then, and misses the ones that retention has already removed.
    """
    if name in topic.channels:
        return topic.channels[name], 0
    end = document.backlog.end
    cursor = max(end, topic.log.first)
    channel = topic.channel(name, cursor=cursor)
    if document.paused:
        channel.pause()
    return channel, cursor - end


def _beyond_end(topic_log: TopicHistory, topic: Topic) -> HttpError:
    return HttpError(
        400, "BEYOND_END", details={"log": topic_log.log_id, "first": topic_log.first, "end": topic.high_watermark}
    )


# The document


def parse_document(text: bytes) -> Iterator[BacklogDocument | None]:
    """Parse the document, ignoring unknown members. Raises BadDocument.

    Yields None every few milliseconds so that the caller can let other tasks run, and finally the document.
    """
    # Count in the text: decoding a million brackets would take longer than a turn may last.
    if text.count(b"[") > _MOST_BRACKETS or text.count(b"{") > _MOST_BRACKETS or text.count(b",") > _MOST_COMMAS:
        raise BadDocument(_TOO_LONG)
    try:
        found = plain_json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDocument(f"expected JSON: {error}") from error
    yield None
    if not isinstance(found, dict):
        raise BadDocument("expected an object")
    log, paused = found.get("log"), found.get("paused")
    if not isinstance(log, str) or not isinstance(paused, bool):
        raise BadDocument("expected `log`, a text, and `paused`, true or false")
    backlog = yield from _backlog_in(found)
    yield BacklogDocument(log, paused, backlog)


def _backlog_in(found: Mapping[str, Any]) -> Generator[None, None, Backlog]:
    end = _number(found.get("end"), _HIGHEST, "end")
    next_ = _number(found.get("next"), end, "next")
    finished = yield from _entries(found, "finished", (end, end))
    requeued = yield from _entries(found, "requeued", (end - 1, _MOST_ATTEMPTS))
    deferred = yield from _entries(found, "deferred", (end - 1, _MOST_ATTEMPTS, _LATEST))
    buried = (yield from _entries(found, "buried", (end, end))) if "buried" in found else []
    copies: list[list[int]] = []
    if "copies" in found:
        copies = yield from _entries(found, "copies", (_HIGHEST, _MOST_ATTEMPTS, _LATEST))
    if len(finished) + len(requeued) + len(deferred) + len(buried) + len(copies) > MOST:
        raise BadDocument(_TOO_LONG)
    backlog = Backlog(
        next=next_,
        end=end,
        finished=[(it[0], it[1]) for it in finished],
        requeued=[(it[0], it[1]) for it in requeued],
        deferred=[(it[0], it[1], it[2]) for it in deferred],
        buried=[(it[0], it[1]) for it in buried],
        copies=[(it[0], it[1], it[2]) for it in copies],
    )
    yield from _check(backlog)
    return backlog


def _entries(found: Mapping[str, Any], member: str, highest: tuple[int, ...]) -> Generator[None, None, list[list[int]]]:
    """Return the list under `member`. Entries must be as long as `highest`, which has the maximum of each number."""
    entries = found.get(member)
    if not isinstance(entries, list):
        raise BadDocument(f"{member}: expected a list")
    if len(entries) > MOST:
        raise BadDocument(_TOO_LONG)
    for place, entry in enumerate(entries):
        if place % _CHECKED_AT_ONCE == 0:
            yield None
        if not isinstance(entry, list) or len(entry) != len(highest):
            raise BadDocument(f"{member}: expected entries of {len(highest)} numbers")
        for number, most in zip(entry, highest, strict=True):
            _number(number, most, member)
    return entries


def _number(value: object, highest: int, member: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
        raise BadDocument(f"{member}: expected whole numbers from 0 to {highest}")
    return value


def _check(backlog: Backlog) -> Iterator[None]:
    """Raise BadDocument if a message is in two places, or a range is out of bounds or out of order."""
    ranges = backlog.finished
    yield None
    if any(not backlog.next <= start < end for start, end in ranges):
        raise BadDocument("finished: expected ranges between next and end")
    if any(start >= end for start, end in backlog.buried):
        raise BadDocument("buried: expected ranges before end")
    for member, ascending in (("finished", ranges), ("buried", backlog.buried)):
        if any(end > start for (_, end), (start, _) in pairwise(ascending)):
            raise BadDocument(f"{member}: expected ascending ranges that do not overlap")
    yield None
    if backlog.count_among_ranges(from_place(backlog.buried, backlog.next)):
        raise BadDocument("buried: a message from next on is not in finished")
    yield None
    exceptions = backlog.exceptions()
    if len(set(exceptions)) < len(exceptions):
        raise BadDocument("requeued, deferred: a message is listed twice")
    yield None
    if any(is_in(sequence, ranges) for sequence in exceptions):
        raise BadDocument("requeued, deferred: a message is also in finished")
    yield None
    if any(is_in(sequence, backlog.buried) for sequence in exceptions):
        raise BadDocument("requeued, deferred: a message is also in buried")
    numbers = {sequence for sequence, _, _ in backlog.copies}
    if len(numbers) < len(backlog.copies) or any(it < backlog.end for it in numbers):
        raise BadDocument("copies: expected different messages from end on")
    yield None
    if any(not due for _, _, due in backlog.deferred):
        raise BadDocument("deferred: expected a time")
