"""A topic's log over HTTP: its description, and a range of its messages as a stream (docs/reference/http-history.md).

Clients only see synced messages. Calls that touch the disk run in threads, one piece at a time. We read the next piece
while the connection sends the previous one.
"""

from __future__ import annotations

import json as plain_json
import logging
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from nsqcommon.http_api import V1, ClientGone, HttpError, Request, Response, Stream, json
from nsqcommon.waiting import Waiting, wait_argument
from nsqcommon.wire.edited_copy import mark_in
from nsqcommon.wire.history import (
    MSGPACK,
    NDJSON,
    End,
    Gap,
    LogRange,
    RecordCutter,
    Records,
    StoredBatch,
    encode_end,
    encode_gap,
    encode_range,
    records_prefix,
)
from nsqd.http.names import topic_argument
from nsqd.http.places import AtTime, HistoryEdge, HistoryPlace, parse_place
from nsqd.http.readers import describe_lags

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker
    from nsqd.http.history_source import HistorySource, LogRangeReader, TopicHistory
    from nsqd.readers import Readers

log = logging.getLogger(__name__)

MOST_READERS: Final = 16  # each keeps a few files open and takes some megabytes
MOST_WAITING: Final = 10_000
LONGEST_WAIT: Final = 300.0
POINTS: Final = (6, 1000)  # least and most per request; each costs a small read
CHUNK: Final = 1 << 20
CHUNK_OF_LINES: Final = 64 * 1024  # smaller, because decoding blocks other requests

_is_number: Final = re.compile(r"[0-9]{1,19}", re.ASCII).fullmatch

T = TypeVar("T")


class InThread(Protocol):
    """Runs a blocking function in a thread and awaits it from a handler."""

    async def __call__(self, function: Callable[[], T], /) -> T: ...


class HistoryReads:
    """The daemon's running history reads, and the requests that wait for a log to grow."""

    def __init__(self, history: HistorySource, in_thread: InThread) -> None:
        self.history = history
        self.in_thread = in_thread
        self.waiting = Waiting()
        self.loads = Waiting()  # requests that wait for messages from disk
        self.readers = 0
        self.stopping = False
        history.follow(self.waiting.wake)

    def logs_closed(self) -> None:
        """Wake all waiting requests: the node is draining, so no log will grow any more."""
        self.waiting.wake_all()

    def stop(self) -> None:
        """Answer the waiting requests, and end the running reads with the sequence to continue from."""
        self.stopping = True
        self.waiting.release()
        self.loads.release()


async def find_sequence(reading: HistoryReads, topic: str, place: AtTime) -> int:
    """Return the sequence of the first message published at this time or later, whether it is synced or not."""
    topic_log = reading.history.find(topic, synced=False)
    return await _sequence_at(reading, topic, topic_log, place) if topic_log is not None else 0


async def _sequence_at(reading: HistoryReads, topic: str, topic_log: TopicHistory, place: AtTime) -> int:
    try:
        return await reading.in_thread(lambda: topic_log.sequence_at(place.timestamp))
    except OSError as error:
        raise _cannot_read(topic, error) from error


def _cannot_read(topic: str, error: OSError) -> HttpError:
    log.error("cannot read history topic=%s error=%s", topic, error)
    return HttpError(503, "CANNOT_READ")


def place_argument(request: Request, default: str | None = None) -> HistoryPlace | None:
    text = request.query().get("from", default)
    if text is None:
        return None
    try:
        return parse_place(text)
    except ValueError:
        raise HttpError(400, "INVALID_ARG_FROM") from None


class HistoryEndpoints:
    def __init__(self, broker: Broker, reading: HistoryReads, readers: Readers, clock: Callable[[], float]) -> None:
        self._broker = broker
        self._reading = reading
        self._readers = readers
        self._clock = clock

    async def log(self, request: Request) -> Response:
        """Describe the log. With `wait`, first wait until the synced end differs from `next` or the log is closed."""
        arguments = request.query()
        topic = topic_argument(request)
        topic_log = self.find(topic, arguments)
        most = _most_points(arguments)
        if "wait" in arguments:
            topic_log = await self._wait(request, topic, topic_log, arguments)
        points = {} if most is None else {"points": await self._points(topic, topic_log, arguments, most)}
        times = await self._reading.in_thread(topic_log.times) if topic_log.first < topic_log.next else None
        first_time, last_time = times or (None, None)
        readers = {"readers": await self._reader_lags(topic, topic_log)} if arguments.get("readers") == "true" else {}
        return json(
            {
                "topic": topic,
                **self._log_members(topic_log),
                **({"closed": True} if self._is_closed(topic, topic_log) else {}),
                "first_time": first_time,
                "last_time": last_time,
                "segments": topic_log.segments,
                "bytes": topic_log.bytes,
                "retention_time": topic_log.retention_time,
                "retention_bytes": topic_log.retention_bytes,
                **points,
                **readers,
            }
        )

    async def _reader_lags(self, topic: str, topic_log: TopicHistory) -> Sequence[dict[str, object]]:
        readers = self._readers.of(topic)
        return await self._reading.in_thread(lambda: describe_lags(readers, topic_log)) if readers else ()

    async def _points(
        self, topic: str, topic_log: TopicHistory, arguments: dict[str, str], most: int
    ) -> Sequence[tuple[int, int, int]]:
        """Return up to `most` points of [from, to), each as (sequence, time, bytes before it)."""
        start = _number(arguments, "from")
        if start is None:
            start = topic_log.first
        end = _end(arguments, topic_log, start)
        self._check_start(topic_log, start)
        if start >= end:
            return ()
        try:
            return await self._reading.in_thread(lambda: topic_log.points(start, end, most))
        except OSError as error:
            raise _cannot_read(topic, error) from error

    async def _wait(
        self, request: Request, topic: str, topic_log: TopicHistory, arguments: dict[str, str]
    ) -> TopicHistory:
        end = self._clock() + min(wait_argument(arguments), LONGEST_WAIT)
        known = _number(arguments, "next")
        if known is None:
            known = topic_log.next
        waiting = self._reading.waiting
        # If the log is closed, only a reader that sends closed=false gets an early response, because it understands
        # `closed`. Any other reader would retry immediately, forever.
        knows_closed = arguments.get("closed") == "false"
        while topic_log.next == known and not self._reading.stopping and (left := end - self._clock()) > 0:
            if knows_closed and self._is_closed(topic, topic_log):
                break
            if len(waiting) >= MOST_WAITING:
                raise HttpError(503, "TOO_MANY_WAITING")
            await waiting.wait_for_change(topic, seconds=left, gone=request.wait_until_gone)
            if request.is_gone:
                raise ClientGone
            topic_log = self.find(topic, {"log": topic_log.log_id})
        return topic_log

    def _is_closed(self, topic: str, topic_log: TopicHistory) -> bool:
        """Return whether the log won't grow any more: the node is draining and all accepted messages are synced."""
        if self._broker.refusal is None:
            return False
        written = self._reading.history.find(topic, synced=False)
        return written is not None and written.log_id == topic_log.log_id and written.next == topic_log.next

    async def read(self, request: Request) -> Response | Stream:
        arguments = request.query()
        topic = topic_argument(request)
        place = place_argument(request, "earliest")
        topic_log = self.find(topic, arguments)
        start = await self._start(topic, topic_log, place)
        end = _end(arguments, topic_log, start)
        self._check_start(topic_log, start)
        return await self._open(request, topic, topic_log, start, end)

    def _check_start(self, topic_log: TopicHistory, start: int) -> None:
        if start < topic_log.first:
            raise self._gone(topic_log)
        if start > topic_log.next:
            raise HttpError(400, "BEYOND_END", details=self._log_members(topic_log))

    async def _start(self, topic: str, topic_log: TopicHistory, place: HistoryPlace | None) -> int:
        if isinstance(place, AtTime):
            return await _sequence_at(self._reading, topic, topic_log, place)
        if isinstance(place, int):
            return place
        return topic_log.next if place is HistoryEdge.LATEST else topic_log.first

    async def _open(self, request: Request, topic: str, topic_log: TopicHistory, start: int, end: int) -> Stream:
        reading = self._reading
        if reading.readers >= MOST_READERS:
            raise HttpError(503, "TOO_MANY_READERS")
        packed = MSGPACK.encode() in request.headers.get(b"accept", b"")
        reading.readers += 1  # before the await, or others could pass the check above in the meantime
        try:
            reader = await reading.in_thread(lambda: topic_log.open(start, end, CHUNK if packed else CHUNK_OF_LINES))
        except BaseException as error:
            reading.readers -= 1
            if isinstance(error, OSError):
                raise _cannot_read(topic, error) from error
            raise
        log_range = LogRange(reading.history.node, topic_log.log_id, start, reader.end)
        answer = _RangeStream(reading, reader, log_range, packed=packed)
        if start < end and not topic_log.still_has(start):  # removed while we opened the files
            await answer.close()
            raise self._gone(self.find(topic, {"log": topic_log.log_id}))
        content_type = MSGPACK if packed else NDJSON
        return Stream(((b"content-type", content_type.encode()), V1), answer.next_piece, answer.close)

    # Checks that may refuse a request

    def find(self, topic: str, arguments: Mapping[str, str]) -> TopicHistory:
        """Return the topic's log. Raises HttpError, for example if the argument `log` has another log's id."""
        if self._broker.find(topic) is None:
            raise HttpError(404, "TOPIC_NOT_FOUND", details={"node": self._reading.history.node})
        topic_log = self._reading.history.find(topic)
        if topic_log is None:
            raise HttpError(
                400, "EPHEMERAL_TOPIC", details={"reason": "an ephemeral topic is not on disk and has no history"}
            )
        if arguments.get("log", topic_log.log_id) != topic_log.log_id:
            raise HttpError(409, "ANOTHER_LOG", details=self._log_members(topic_log))
        return topic_log

    def _gone(self, topic_log: TopicHistory) -> HttpError:
        return HttpError(410, "GONE", details=self._log_members(topic_log))

    def _log_members(self, topic_log: TopicHistory) -> dict[str, object]:
        return {
            "node": self._reading.history.node,
            "log": topic_log.log_id,
            "first": topic_log.first,
            "next": topic_log.next,
        }


class _RangeStream:
    """Streams one range of a log to one reader."""

    def __init__(self, reading: HistoryReads, reader: LogRangeReader, log_range: LogRange, *, packed: bool) -> None:
        self._reading = reading
        self._reader = reader
        self._encoding: _Encoding = _MsgpackEncoding(log_range) if packed else _LinesEncoding(log_range)
        self._begun = False
        self._ended = False

    async def next_piece(self) -> bytes | None:
        if not self._begun:
            self._begun = True
            if head := self._encoding.head():
                return head
        if self._ended:
            return None
        if not self._reading.stopping and (piece := await self._reading.in_thread(self._read)) is not None:
            return piece
        self._ended = True
        return self._encoding.end(End(min(self._reader.next, self._reader.end)))

    def _read(self) -> bytes | None:
        while (piece := self._reader.read()) is not None:
            encoded = self._encoding.records(piece) if isinstance(piece, Records) else self._encoding.gap(piece)
            if encoded:
                return encoded
        return None

    async def close(self) -> None:
        try:
            await self._reading.in_thread(self._reader.close)
        finally:
            self._reading.readers -= 1


class _Encoding(Protocol):
    def head(self) -> bytes: ...

    def records(self, records: Records) -> bytes: ...

    def gap(self, gap: Gap) -> bytes: ...

    def end(self, end: End) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _MsgpackEncoding:
    log_range: LogRange

    def head(self) -> bytes:
        return encode_range(self.log_range)

    def records(self, records: Records) -> bytes:
        return b"".join((records_prefix(len(records.data)), records.data))

    def gap(self, gap: Gap) -> bytes:
        return encode_gap(gap)

    def end(self, end: End) -> bytes:
        return encode_end(end)


class _LinesEncoding:
    """Encodes a JSON line per message, for people and small tools. Verifies checksums, because these readers can't."""

    def __init__(self, log_range: LogRange) -> None:
        self._log_range = log_range
        self._cutter = RecordCutter(log_range.first, log_range.end)

    def head(self) -> bytes:
        return b""

    def records(self, records: Records) -> bytes:
        lines: list[object] = []
        for event in self._cutter.records(bytes(records.data)):
            lines += _lines_of(event) if isinstance(event, StoredBatch) else [_gap_line(event)]
        # An empty gap at the end makes the cutter report damage in the last records.
        lines += map(_gap_line, self._cutter.gap(Gap(records.end, records.end, "")))
        return _joined(lines)

    def gap(self, gap: Gap) -> bytes:
        return _joined([_gap_line(event) for event in self._cutter.gap(gap)])

    def end(self, end: End) -> bytes:
        return _joined([{"next": end.next, "node": self._log_range.node, "log": self._log_range.log_id}])


def _lines_of(batch: StoredBatch) -> list[object]:
    delay = {"delay_ms": batch.delay_ms} if batch.delay_ms else {}
    lines: list[object] = []
    for (sequence, message_id, body), headers in zip(batch.messages(), batch.headers_of(), strict=True):
        line = {"sequence": sequence, "id": f"{message_id:016x}", "timestamp": batch.timestamp, **delay}
        if batch.is_copy:
            line["channel"] = mark_in(headers).channel  # the only one that gets it
        lines.append({**line, **headers_member(headers), **body_member(body)})
    return lines


def headers_member(headers: Mapping[str, bytes]) -> dict[str, object]:
    """Return the member `headers`, or {} if there are none. A value that isn't UTF-8 becomes {"base64": ...}."""
    return {"headers": {name: _header_value(value) for name, value in headers.items()}} if headers else {}


def _header_value(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def body_member(body: bytes) -> dict[str, str]:
    """Return the member `body`, or `body_base64` if the body isn't UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


def _gap_line(event: object) -> object:
    assert isinstance(event, Gap)
    return {"gap": [event.first, event.end], "reason": event.reason}


def _joined(lines: list[object]) -> bytes:
    encode = plain_json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    return "".join([encode(line) + "\n" for line in lines]).encode()


# Arguments


def _end(arguments: dict[str, str], topic_log: TopicHistory, start: int) -> int:
    end, limit = _number(arguments, "to"), _number(arguments, "limit")
    if end is not None and limit is not None:
        raise HttpError(400, "INVALID_ARG_LIMIT", details={"reason": "either to or limit"})
    if end is not None and end < start:
        raise HttpError(400, "INVALID_ARG_TO")
    if limit is not None:
        end = start + limit
    return topic_log.next if end is None else min(end, topic_log.next)


def _most_points(arguments: dict[str, str]) -> int | None:
    most = _number(arguments, "points")
    if most is not None and not POINTS[0] <= most <= POINTS[1]:
        raise HttpError(400, "INVALID_ARG_POINTS")
    return most


def _number(arguments: dict[str, str], name: str) -> int | None:
    text = arguments.get(name)
    if text is None:
        return None
    if _is_number(text) is None:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return int(text)
