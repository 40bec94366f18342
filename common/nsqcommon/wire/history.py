"""The format of the response to `GET /topic/read`, for both ends. See docs/reference/http-history.md.

A stream of msgpack arrays:

    ["log", node, log id, from, to]     first
    ["records", bytes]                  whole records, as in the log (see log_record.py)
    ["gap", from, to, reason]           messages that can no longer be read
    ["end", next]                       last; without it, the response is incomplete

The first and the last record may extend beyond the range. The sender verifies no checksums; `HistoryReader` does, and
turns damaged records into gaps. We encode and decode the few msgpack types that occur ourselves, so that a reader needs
no other library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from nsqcommon.wire.headers import decode_headers, header_offsets
from nsqcommon.wire.log_record import (
    COPY,
    Header,
    UnknownFlags,
    decode_header,
    decode_header_area,
    decode_payload,
    find_header,
    message_offsets,
)

MSGPACK: Final = "application/msgpack"
NDJSON: Final = "application/x-ndjson"

DAMAGED: Final = "damaged"  # reasons for gaps
MISSING: Final = "missing"
REFUSED: Final = "refused"  # the disk can't read them at the moment
NEWER: Final = "newer"  # a later version wrote them, in a form that we don't know

_RECORDS: Final = b"\x92\xa7records\xc6"  # then the length in four bytes, and the records
_u8: Final = Struct(">B")
_u16: Final = Struct(">H")
_u32: Final = Struct(">I")
_u64: Final = Struct(">Q")


@dataclass(frozen=True, slots=True)
class LogRange:
    """The range of the messages that follow: [first, end) of this log."""

    node: str
    log_id: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """Messages that were published together. [first, end) is the part within the range."""

    first: int
    end: int
    base_sequence: int
    base_id: int
    timestamp: int  # wall time in nanoseconds
    delay_ms: int  # 0: not deferred
    payload: bytes
    offsets: Sequence[int]  # of each message's size in the payload, from base_sequence on, plus the end
    headers: bytes = b""  # of all messages, from base_sequence on, encoded as in headers.py; empty if none has any
    # Whether this is an edited copy (edited_copy.py). It repeats an event of the topic for one of the channels, so a
    # reader that collects events passes over it.
    is_copy: bool = False

    def messages(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (sequence, id, body) of each message within the range."""
        offsets, payload = self.offsets, self.payload
        for position in range(self.first - self.base_sequence, self.end - self.base_sequence):
            body = payload[offsets[position] + 4 : offsets[position + 1]]
            yield self.base_sequence + position, self.base_id + position, body

    def headers_of(self) -> Iterator[dict[str, bytes]]:
        """Yield the headers of each message within the range. Raises BadHeaders."""
        places = header_offsets(self.headers, len(self.offsets) - 1) if self.headers else None
        for position in range(self.first - self.base_sequence, self.end - self.base_sequence):
            yield decode_headers(self.headers, places[position]) if places is not None else {}


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages [first, end) that can't be read."""

    first: int
    end: int
    reason: str


class Records(NamedTuple):
    """Whole consecutive records, as the server reads them from the log."""

    data: memoryview
    end: int  # the sequence after their last message


@dataclass(frozen=True, slots=True)
class End:
    next: int  # the sequence at which to continue


Event = LogRange | StoredBatch | Gap | End
FindOffsets = Callable[[bytes, int], Sequence[int] | None]


class BadHistory(Exception):
    """This isn't a valid response of /topic/read, or only a later version can read it."""


# The sending end


def encode_range(log_range: LogRange) -> bytes:
    texts = _text("log") + _text(log_range.node) + _text(log_range.log_id)
    return b"\x95" + texts + _number(log_range.first) + _number(log_range.end)


def records_prefix(length: int) -> bytes:
    """Return the bytes to send before `length` bytes of records."""
    return _RECORDS + _u32.pack(length)


def encode_gap(gap: Gap) -> bytes:
    return b"\x94" + _text("gap") + _number(gap.first) + _number(gap.end) + _text(gap.reason)


def encode_end(end: End) -> bytes:
    return b"\x92" + _text("end") + _number(end.next)


def _text(text: str) -> bytes:
    data = text.encode()
    return b"\xd9" + _u8.pack(len(data)) + data


def _number(number: int) -> bytes:
    return b"\xcf" + _u64.pack(number)


# The reading end


class HistoryReader:
    """Parses a response: pass data to `receive`, then call `next_event` until it returns None.

    `complete` is true once the end was read. You may pass a `find_offsets` that is faster than `message_offsets`.
    """

    def __init__(self, find_offsets: FindOffsets = message_offsets) -> None:
        self._find_offsets = find_offsets
        self.complete = False
        self._buffer = bytearray()
        self._events: Iterator[Event] = iter(())
        self._cutter: RecordCutter | None = None

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data

    def next_event(self) -> Event | None:
        """Return the next event, or None if more bytes are needed or the response is complete. Raises BadHistory."""
        while True:
            event = next(self._events, None)
            if isinstance(event, Gap) and event.reason == NEWER:  # not a gap: the messages are there
                raise BadHistory(
                    f"messages {event.first} to {event.end - 1} have a form that only a later version can read"
                )
            if event is not None:
                return event
            array = self._next_array()
            if array is None:
                return None
            self._events = self._events_of(array)

    def _events_of(self, array: list[int | str | bytes]) -> Iterator[Event]:
        if self.complete:
            raise BadHistory("data after the end")
        match array:
            case ["log", str(node), str(log_id), int(first), int(end)] if self._cutter is None:
                self._cutter = RecordCutter(first, end, self._find_offsets)
                return iter((LogRange(node, log_id, first, end),))
            case ["records", bytes(data)] if self._cutter is not None:
                return self._cutter.records(data)
            case ["gap", int(first), int(end), str(reason)] if self._cutter is not None:
                return self._cutter.gap(Gap(first, end, reason))
            case ["end", int(following)] if self._cutter is not None:
                self.complete = True
                return self._cutter.end(following)
            case [str(word), *_] if self._cutter is not None and word not in ("log", "records", "gap", "end"):
                return iter(())  # from a later version, so ignore it
        raise BadHistory(f"unexpected {array[0]!r:.40}")

    def _next_array(self) -> list[int | str | bytes] | None:
        buffer = self._buffer
        if not buffer:
            return None
        if buffer[0] & 0xF0 != 0x90:
            raise BadHistory("not a msgpack array")
        values: list[int | str | bytes] = []
        position = 1
        for _ in range(buffer[0] & 0x0F):
            found = _value(buffer, position)
            if found is None:
                return None
            value, position = found
            values.append(value)
        if not values:
            raise BadHistory("empty array")
        del buffer[:position]
        return values


def _value(buffer: bytearray, position: int) -> tuple[int | str | bytes, int] | None:
    """Return a value and the position after it, or None if more bytes are needed."""
    if position >= len(buffer):
        return None
    kind = buffer[position]
    position += 1
    if kind < 0x80:
        return kind, position
    if kind & 0xE0 == 0xA0:
        return _string(buffer, position, kind & 0x1F)
    number = {0xCC: _u8, 0xCD: _u16, 0xCE: _u32, 0xCF: _u64}.get(kind)
    length = {0xD9: _u8, 0xDA: _u16, 0xDB: _u32, 0xC4: _u8, 0xC5: _u16, 0xC6: _u32}.get(kind)
    form = number or length
    if form is None:
        raise BadHistory(f"unexpected msgpack type {kind:#04x}")
    if len(buffer) < position + form.size:
        return None
    (value,) = form.unpack_from(buffer, position)
    position += form.size
    if number is not None:
        return int(value), position
    if kind >= 0xD9:
        return _string(buffer, position, value)
    if len(buffer) < position + value:
        return None
    with memoryview(buffer) as view:
        return bytes(view[position : position + value]), position + value


def _string(buffer: bytearray, position: int, length: int) -> tuple[str, int] | None:
    if len(buffer) < position + length:
        return None
    try:
        return buffer[position : position + length].decode(), position + length
    except UnicodeDecodeError:
        raise BadHistory("string is not UTF-8") from None


class RecordCutter:
    """Splits the records of a range into batches, verifies them, and reports missing or damaged records as gaps."""

    def __init__(self, first: int, end: int, find_offsets: FindOffsets = message_offsets) -> None:
        self._next = first
        self._end = end
        self._find_offsets = find_offsets

    def records(self, data: bytes) -> Iterator[Event]:
        """Yield the batches and gaps in whole records. Each record is verified only when you ask for it."""
        position = 0
        while position < len(data):
            header = decode_header(data, position)
            if header is None or header.base_sequence > self._next:
                found = self._next_valid(data, position + (header is None))
                if found is None:
                    return  # the next records, gap or end will show how far the damage reaches
                position, header = found
                yield from self._missing(header.base_sequence, DAMAGED)
            try:
                batch = self._batch(header, data, position)
            except UnknownFlags:
                yield from self._missing(header.base_sequence, DAMAGED)
                yield from self._missing(header.end_sequence, NEWER)
                position += header.size
                continue
            if batch is not None:
                self._next = max(self._next, batch.end)
                if batch.first < batch.end:
                    yield batch
            else:
                yield from self._missing(header.end_sequence, DAMAGED)
            position += header.size

    def gap(self, gap: Gap) -> Iterator[Event]:
        """Yield a gap. If records before it are missing, yield another gap for them first."""
        yield from self._missing(gap.first, DAMAGED)
        yield from self._missing(gap.end, gap.reason)

    def end(self, following: int) -> Iterator[Event]:
        """Yield the end. If records before it are missing, yield a gap for them first."""
        yield from self._missing(following, DAMAGED)
        yield End(following)

    def _missing(self, end: int, reason: str) -> Iterator[Event]:
        end = min(end, self._end)
        if self._next < end:
            first, self._next = self._next, end
            yield Gap(first, end, reason)

    def _next_valid(self, data: bytes, position: int) -> tuple[int, Header] | None:
        while (found := find_header(data, position, not_before=self._next)) is not None:
            position, header = found
            if _is_valid(header, data, position):  # otherwise this may be part of a message that looks like a header
                return found
            position += 1
        return None

    def _batch(self, header: Header, data: bytes, position: int) -> StoredBatch | None:
        payload = decode_payload(header, data, position)
        offsets = self._find_offsets(payload, header.count) if payload is not None else None
        if payload is None or offsets is None:
            return None
        return StoredBatch(
            max(header.base_sequence, self._next),
            min(header.end_sequence, self._end),
            header.base_sequence,
            header.base_id,
            header.timestamp,
            header.delay_ms,
            payload,
            offsets,
            decode_header_area(header, data, position),
            bool(header.flags & COPY),
        )


def _is_valid(header: Header, data: bytes, position: int) -> bool:
    try:
        return decode_payload(header, data, position) is not None
    except UnknownFlags:
        return True
