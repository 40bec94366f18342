"""Splits a client's stream into commands. A command is a line of words, followed by a payload in some commands.

    FIN 0123456789abcdef\\n
    PUB topic\\n        i32 size, body
    MPUB topic\\n       i32 body size, i32 count, (i32 size, body) * count
    HPUB topic\\n       i32 size, headers, body

`CommandReader` returns the same commands however the network has split the stream. It doesn't know what a command means
or when it's allowed. So before it accepts a payload, it asks the protocol once, through `admit`.

How the bytes flow through the reader:

    receive() -> _line   an incomplete line, until its newline arrives
              -> _data   received bytes, which next_command() splits without copying them first
                   |
                   +-> _half   an incomplete payload

Most commands arrive whole, and we slice them out of the object that the socket returned. `_line` and `_half` use
bytearrays, so even if a payload arrives in many small pieces, we copy and examine each piece only once.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from nsqcommon.wire.equal_pieces import equal_pieces
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.headers import MOST_ENCODED, BadHeaders, check_headers, have_equal_shapes
from nsqcommon.wire.headers import NONE as NO_HEADERS
from nsqcommon.wire.hot_record import HotRecord
from nsqcommon.wire.limits import SizeLimits
from nsqcommon.wire.mpub import (
    Offsets,
    count_missing,
    cut_messages,
    cut_mpub_body,
    equal_messages,
    memory_of,
    message_missing,
    packed,
    read_count,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "MAGIC",
    "MOST_FINISHES",
    "BodyCommand",
    "Command",
    "CommandReader",
    "Finishes",
    "HeadedPublication",
    "HeadedPublications",
    "LineCommand",
    "LineTooLong",
    "Publications",
    "PublishCommand",
    "SizeLimits",
    "auth",
    "cls",
    "cut_mpub_body",
    "dpub",
    "fin",
    "hdpub",
    "hmpub",
    "hpub",
    "identify",
    "mpub",
    "nop",
    "parse_decimal",
    "pub",
    "rdy",
    "req",
    "sub",
    "to_signed64",
    "touch",
]

MAGIC: Final = b"  V2"  # what a client sends before its first command


class LineCommand(HotRecord):
    """A command without a payload, or an unknown command. params[0] is its name."""

    __slots__ = ("params",)

    def __init__(self, params: list[bytes]) -> None:
        self.params = params


class Finishes(HotRecord):
    """One or more FINs that arrived together, each with just an id of 16 bytes."""

    __slots__ = ("ids",)

    def __init__(self, ids: tuple[bytes, ...]) -> None:
        self.ids = ids


class BodyCommand(HotRecord):
    """An IDENTIFY or AUTH with its payload."""

    __slots__ = ("body", "params")

    def __init__(self, params: list[bytes], body: bytes) -> None:
        self.params = params
        self.body = body


class PublishCommand(HotRecord):
    """A PUB or DPUB. The payload begins with its size, in four bytes, because the log stores it like that."""

    __slots__ = ("params", "payload")

    def __init__(self, params: list[bytes], payload: bytes) -> None:
        self.params = params
        self.payload = payload


class HeadedPublication(PublishCommand):
    """An HPUB or HDPUB. Its headers are separate from the payload, as in the log. params[0] is PUB or DPUB."""

    __slots__ = ("headers",)

    def __init__(self, params: list[bytes], payload: bytes, headers: bytes) -> None:
        super().__init__(params, payload)
        self.headers = headers


class Publications(HotRecord):
    """An MPUB. Its payload is everything after the count.

    `offsets` has count + 1 entries: the position in the payload where each message's size starts, and the end.
    """

    __slots__ = ("offsets", "params", "payload")

    def __init__(self, params: list[bytes], payload: bytes, offsets: Sequence[int]) -> None:
        self.params = params
        self.payload = payload
        self.offsets = offsets

    def _values(self) -> dict[str, object]:
        return {**super()._values(), "offsets": list(self.offsets)}  # a range, a list or an array


class HeadedPublications(Publications):
    """An HMPUB, with MPUB in params[0]. `headers` are the concatenated headers of all messages."""

    __slots__ = ("headers",)

    def __init__(self, params: list[bytes], payload: bytes, offsets: Sequence[int], headers: bytes) -> None:
        super().__init__(params, payload, offsets)
        self.headers = headers


Command = LineCommand | Finishes | BodyCommand | PublishCommand | Publications


class LineTooLong(Exception):
    """There's no newline within the limit. As in NSQ, we close the connection without an error frame."""


class CommandReader:
    """Splits a client's stream into commands.

    We call `admit` once for each command with a payload, after its line is complete and before we examine the payload.
    It may raise ProtocolError. Don't use the reader after that, nor after a ProtocolError of the reader itself. If
    `admit` raises anything else, we keep the line, and the next call of `next_command` asks again. That's how an MPUB
    waits for an authorization server.

    If `admit` returns True, we don't ask again about the same line until a different one arrives. For example, a client
    that sends `PUB topic` a thousand times costs one call.

    We call `hold` with the memory of an incomplete payload whenever that grows, and with 0 when the payload is complete
    or the reader is closed. `hold` may close the reader.
    """

    __slots__ = (
        "_admit",
        "_admitted",
        "_at",
        "_data",
        "_half",
        "_headed_limits",
        "_hold",
        "_limits",
        "_line",
        "_max_line",
        "_max_message",
        "_payloads",
        "most_finishes",
    )

    def __init__(
        self,
        limits: SizeLimits,
        admit: Callable[[list[bytes]], bool | None],
        hold: Callable[[int], None] | None = None,
    ) -> None:
        self._hold = hold or _hold_nothing
        self._limits = limits
        self._headed_limits = limits  # the limits of an HMPUB, once `take_headers` allows it
        self._max_line = limits.max_line
        self._max_message = limits.max_message
        self._admit = admit
        self._admitted: list[bytes] | None = None  # a line that `admit` has accepted for good
        self._data = b""
        self._at = 0
        self._line = bytearray()
        self._half: _HalfBody | _HalfMpub | None = None
        self._payloads = _PAYLOADS
        self.most_finishes = MOST_FINISHES  # in one command

    def take_headers(self, takes: bool) -> None:
        """Accept HPUB, HDPUB and HMPUB from now on if `takes` is true. Otherwise they are unknown, as in NSQ."""
        self._payloads = _PAYLOADS_WITH_HEADERS if takes else _PAYLOADS
        self._headed_limits = _with_headers(self._limits)

    def receive(self, data: bytes) -> None:
        """Add the next bytes of the stream. Then call `next_command` until it returns None."""
        if self._line:
            self._line += data
            if data.find(b"\n") < 0 and len(self._line) < self._max_line:
                return
            data = bytes(self._line)
            self._line.clear()
        if self._at < len(self._data):  # `receive` was called again before all commands were taken
            data = self._data[self._at :] + data
        self._data = data
        self._at = 0

    def next_command(self) -> Command | None:
        """Return the next complete command, or None if more bytes are needed.

        Raises LineTooLong, or ProtocolError as soon as it finds a bad size, even if the payload isn't complete.
        """
        if self._half is not None:
            return self._resume(self._half)
        data = self._data
        at = self._at
        if at == len(data):
            self._data = b""  # or an idle connection would keep the last buffer in memory
            self._at = 0
            return None
        # Check one byte first, so that other commands don't pay for the slice.
        if data[at] == _F and data[at : at + 4] == b"FIN " and (ids := _cut_finishes(data, at, self.most_finishes)):
            self._at = at + _FIN_SIZE * len(ids)
            return Finishes(ids)
        end = data.find(b"\n", at, at + self._max_line)
        if end < 0:
            self._hold_line()
            return None
        # The byte before an empty line belongs to the previous command.
        params = data[at : end - 1 if at < end and data[end - 1] == _CARRIAGE_RETURN else end].split(b" ")
        start = end + 1
        form = self._payloads.get(params[0])
        if form is None:
            self._at = start
            return LineCommand(params)
        is_headed = form is _HEADED_MESSAGE or form is _HEADED_MESSAGES
        if is_headed:
            params[0] = params[0][1:]
        if params != self._admitted:
            self._admitted = None
            if self._admit(params):
                self._admitted = params
        if form is _MESSAGE:
            # The usual case of a complete and valid payload. This shortcut saves a microsecond per message.
            stop = start + _SIZE
            if stop <= len(data):
                size = _unpack_size(data, start)[0]
                stop += size
                if 0 < size <= self._max_message and stop <= len(data):
                    self._at = stop
                    return PublishCommand(params, data[start:stop])
        elif form is _MESSAGES:
            # The usual case of an MPUB: it's complete and valid, and all messages have the same size.
            offsets = equal_messages(data, start, self._limits)
            if offsets is not None:
                start += 2 * _SIZE
                self._at = stop = start + offsets[-1]
                return Publications(params, data[start:stop], offsets)
        elif form is _HEADED_MESSAGES:
            # The usual case of an HMPUB: the same, and its headers differ only in their values.
            wire_offsets = equal_messages(data, start, self._headed_limits)
            if wire_offsets is not None:
                first = start + 2 * _SIZE
                parted = _part_equal(data, first, len(wire_offsets) - 1, wire_offsets.step, self._max_message)
                if parted is not None:
                    self._at = first + wire_offsets[-1]
                    return _publications(params, *parted)
        self._at = start
        return self._begin(params, form)

    def end(self) -> ProtocolError | None:
        """Return the error to send when the stream has ended or the read deadline has passed.

        Only an incomplete payload is an error. Returns None between commands, and even in the middle of a line.
        """
        return None if self._half is None else self._half.missing()

    def take_rest(self) -> bytes:
        """Remove and return the bytes after the last returned command."""
        rest = self._data[self._at :]
        self._forget_data()
        return rest

    def close(self) -> None:
        """Drop all received bytes, and the references to `admit` and `hold`.

        Their owner may refer to this reader, and such a reference cycle would have to wait for the garbage collector.
        """
        self._admit = _admit_nothing
        if self._half is not None:
            self._half = None
            self._hold(0)
        self._hold = _hold_nothing
        self._line.clear()
        self._forget_data()

    @property
    def buffered(self) -> int:
        """The number of received bytes that haven't been returned in a command yet."""
        held = 0 if self._half is None else len(self._half.held)
        return len(self._data) - self._at + len(self._line) + held

    @property
    def idle(self) -> bool:
        """Whether the stream is between two commands, so that the next byte begins a new one."""
        return self._half is None and not self.buffered

    def _hold_line(self) -> None:
        if len(self._data) - self._at >= self._max_line:
            raise LineTooLong
        self._line += memoryview(self._data)[self._at :]
        self._forget_data()

    def _begin(self, params: list[bytes], form: _Form) -> Command | None:
        """Return the command whose payload starts at `_at`.

        If the payload is incomplete, keep the part that has arrived and return None.
        """
        half: _HalfBody | _HalfMpub
        if form is _MESSAGES:
            half = _HalfMpub(params, self._limits)
        elif form is _HEADED_MESSAGES:
            half = HalfHeadedMpub(params, self._limits)
        else:
            half = _HalfBody(params, form, self._limits)
        command = half.cut(self._data, self._at)
        if command is None:
            half.held += memoryview(self._data)[self._at :]
            self._half = half
            self._forget_data()
            self._hold(half.size)
        else:
            self._at = half.end
        return command

    def _resume(self, half: _HalfBody | _HalfMpub) -> Command | None:
        if self._at == len(self._data):
            return None
        half.held += memoryview(self._data)[self._at :]
        command = half.cut(half.held, 0)
        if command is None:
            self._forget_data()
            self._hold(half.size)
        else:
            self._at = len(self._data) - (len(half.held) - half.end)
            self._half = None
            self._hold(0)
        return command

    def _forget_data(self) -> None:
        self._data = b""  # or an idle connection would keep the last buffer in memory
        self._at = 0


def _admit_nothing(params: list[bytes]) -> None:
    raise AssertionError("a closed reader admits nothing")


def _hold_nothing(size: int) -> None:
    """Do nothing, for readers whose memory isn't counted."""


# Consumers send a FIN for every message, so we parse a whole run of them together.

_FIN_SIZE: Final = 21  # "FIN ", 16 bytes of id, newline
MOST_FINISHES: Final = 512  # in one command
# We parse a run of FINs with two structs: one for a multiple of 64, one for the rest. For example, 200 FINs take the
# struct for 192 and the one for 8. A struct for each count up to 512 would take 4 MB in all, and these take 140 kB.
_REST: Final = 63
_SHORT_RUN: Final = 16  # up to this number of FINs, the pattern is faster than comparing columns, as measured
_is_fin: Final = re.compile(rb"FIN [^ \r\n]{16}\n").match
_is_fins: Final = re.compile(rb"(?:FIN [^ \r\n]{16}\n)*+").match


def _cut_finishes(data: bytes, at: int, most: int) -> tuple[bytes, ...]:
    """Return the ids of the consecutive FINs from `at` on, or () if the first one is unusual or incomplete."""
    if data[at + _FIN_SIZE - 1 : at + _FIN_SIZE] != b"\n":  # rules out most other input cheaply
        return ()
    candidates = min((len(data) - at) // _FIN_SIZE, most)
    if candidates == 1:  # the usual case of a consumer with few messages in flight
        return (data[at + 4 : at + 20],) if _is_fin(data, at) is not None else ()
    count = _count_finishes(data, at, candidates)
    if count == 1:
        return (data[at + 4 : at + 20],)
    if count == 0:
        return ()
    rest = count & _REST
    if rest == count or not rest:
        return _id_struct(count).unpack_from(data, at)
    first = count - rest
    return _id_struct(first).unpack_from(data, at) + _id_struct(rest).unpack_from(data, at + first * _FIN_SIZE)


def _count_finishes(data: bytes, at: int, candidates: int) -> int:
    if candidates > _SHORT_RUN:
        # Look at the bytes as a table with rows of 21 bytes. If every row is a FIN, the first column is all "F", the
        # second all "I" and so on, the last is all newlines, and there's no other space, CR or newline in the table.
        newlines = data[at + _FIN_SIZE - 1 : at + _FIN_SIZE * candidates : _FIN_SIZE]
        count = candidates - len(newlines.lstrip(b"\n"))
        run = data[at : at + _FIN_SIZE * count]
        if (
            run[::_FIN_SIZE] == b"F" * count
            and run[1::_FIN_SIZE] == b"I" * count
            and run[2::_FIN_SIZE] == b"N" * count
            and run[3::_FIN_SIZE] == b" " * count
            and run.count(b" ") == count
            and run.count(b"\n") == count
            and run.find(b"\r") < 0
        ):
            return count
    match = _is_fins(data, at, at + _FIN_SIZE * candidates)
    return 0 if match is None else (match.end() - at) // _FIN_SIZE


@lru_cache(maxsize=128)
def _id_struct(count: int) -> Struct:
    return Struct("4x16sx" * count)


# Payloads


@dataclass(frozen=True, slots=True)
class _Form:
    """A kind of payload. The kinds differ in their limits and in the wording of errors."""

    fault: Fault
    body: bytes
    whole: bytes


_MESSAGE: Final = _Form(Fault.BAD_MESSAGE, body=b"message body", whole=b"message")
_DOCUMENT: Final = _Form(Fault.BAD_BODY, body=b"body", whole=b"body")
_MESSAGES: Final = _Form(Fault.BAD_BODY, body=b"body", whole=b"body")  # for the first size; messages have other errors

_HEADED_MESSAGE: Final = _Form(Fault.BAD_MESSAGE, body=b"message body", whole=b"message")
_HEADED_MESSAGES: Final = _Form(Fault.BAD_BODY, body=b"body", whole=b"body")

_PAYLOADS: Final = {
    b"PUB": _MESSAGE,
    b"DPUB": _MESSAGE,
    b"MPUB": _MESSAGES,
    b"IDENTIFY": _DOCUMENT,
    b"AUTH": _DOCUMENT,
}

_PAYLOADS_WITH_HEADERS: Final = {
    **_PAYLOADS,
    b"HPUB": _HEADED_MESSAGE,
    b"HDPUB": _HEADED_MESSAGE,
    b"HMPUB": _HEADED_MESSAGES,
}

_CARRIAGE_RETURN: Final = 13
_F: Final = 70  # the first byte of FIN
_SIZE: Final = 4
_WORTH_A_GUESS: Final = 4  # from this many messages on, we try to split them together
_MOST_TOGETHER: Final = 1024  # messages, so that the pieces of a batch of tiny messages don't take much memory
_unpack_size: Final = Struct(">i").unpack_from


class _HalfBody:
    """A command with one body, such as PUB or IDENTIFY. Its line is complete, its payload may still be arriving."""

    __slots__ = ("_form", "_limit", "_max_message", "_params", "end", "held")

    def __init__(self, params: list[bytes], form: _Form, limits: SizeLimits) -> None:
        self.held = bytearray()
        self.end = 0  # the end of the payload in the data of `cut`
        self._params = params
        self._form = form
        self._max_message = limits.max_message
        if form is _MESSAGE:
            self._limit = limits.max_message
        elif form is _HEADED_MESSAGE:
            self._limit = MOST_ENCODED + limits.max_message
        else:
            self._limit = min(limits.max_identify, limits.max_body)

    def cut(self, data: bytes | bytearray, start: int) -> BodyCommand | PublishCommand | None:
        if len(data) < start + _SIZE:
            return None
        size = _read_size(data, start, self._params[0], self._form, self._limit)
        end = start + _SIZE + size
        if len(data) < end:
            return None
        self.end = end
        if self._form is _MESSAGE:
            return PublishCommand(self._params, _copy(data, start, end))
        if self._form is _HEADED_MESSAGE:
            return self._headed(_copy(data, start + _SIZE, end))
        return BodyCommand(self._params, _copy(data, start + _SIZE, end))

    def _headed(self, content: bytes) -> HeadedPublication:
        body = _start_of_body(self._params[0], content, 0, len(content), self._max_message)
        return HeadedPublication(self._params, _sized(content[body:]), content[:body])

    @property
    def size(self) -> int:
        return len(self.held)

    def missing(self) -> ProtocolError:
        return _body_missing(self._params[0], self._form, len(self.held))


class _HalfMpub:
    """An MPUB. Its line is complete, its payload may still be arriving."""

    __slots__ = ("_count", "_limits", "_offsets", "_params", "end", "held")

    def __init__(self, params: list[bytes], limits: SizeLimits) -> None:
        self.held = bytearray()
        self.end = 0
        self._params = params
        self._limits = limits
        self._count = 0  # 0 until it's read
        self._offsets: Offsets = [0]

    def cut(self, data: bytes | bytearray, start: int) -> Publications | None:
        first = start + 2 * _SIZE
        if not self._count:
            if len(data) < start + _SIZE:
                return None
            _read_size(data, start, b"MPUB", _MESSAGES, self._limits.max_body)
            if len(data) < first:
                return None
            self._count = read_count(data, start + _SIZE, self._limits)
        offsets = self._offsets
        if not cut_messages(data, first, self._count, offsets, self._limits):
            self._offsets = packed(offsets)
            return None
        self.end = first + offsets[-1]
        return Publications(self._params, _copy(data, first, self.end), offsets)

    @property
    def size(self) -> int:
        """The memory used, in bytes. For small messages, the offsets take more than the messages."""
        return len(self.held) + memory_of(self._offsets)

    def missing(self) -> ProtocolError:
        length = len(self.held)
        if length < _SIZE:
            return _body_missing(b"MPUB", _MESSAGES, length)
        if length < 2 * _SIZE:
            return count_missing()
        return message_missing(length - 2 * _SIZE, self._offsets)


class HalfHeadedMpub(_HalfMpub):
    """An HMPUB: like an MPUB, but each message has headers and a body, which we split as they arrive."""

    __slots__ = ("_area", "_ends", "_max_message", "_payload")

    def __init__(self, params: list[bytes], limits: SizeLimits) -> None:
        super().__init__(params, _with_headers(limits))
        self._max_message = limits.max_message
        self._area = bytearray()  # the headers of all messages so far
        self._payload = bytearray()  # the bodies, each with its size
        self._ends: Offsets = [0]

    def cut(self, data: bytes | bytearray, start: int) -> Publications | None:
        try:
            whole = super().cut(data, start)
        except ProtocolError:
            self._part(data, start + 2 * _SIZE)  # an earlier message may have bad headers: report the first error
            raise
        self._part(data, start + 2 * _SIZE)
        if whole is None:
            self._ends = packed(self._ends)
            return None
        return _publications(self._params, bytes(self._area), bytes(self._payload), self._ends)

    def _part(self, data: bytes | bytearray, first: int) -> None:
        offsets, ends, area, payload, most = self._offsets, self._ends, self._area, self._payload, self._max_message
        complete = bisect_right(offsets, len(data) - first) - 1
        while complete - len(ends) >= _WORTH_A_GUESS and self._part_alike(data, first, complete):
            pass
        at, known, prefix = ends[-1], -1, b""
        for place in range(len(ends) - 1, complete):
            end = first + offsets[place + 1]
            begin = first + offsets[place] + _SIZE
            body = _start_of_body(b"MPUB", data, begin, end, most)
            size = end - body
            if size != known:  # most messages have the same size as the one before
                known, prefix = size, _pack_size(size)
            area += data[begin:body]
            payload += prefix
            payload += data[body:end]
            at += _SIZE + size
            ends.append(at)

    def _part_alike(self, data: bytes | bytearray, first: int, complete: int) -> bool:
        """Split the next messages before `complete` together, or return False if their headers aren't alike.

        Headers are alike if they differ only in their values, as they mostly do in a large batch. Splitting these
        messages together is five times as fast as checking each message's headers. If anything is wrong with a message,
        this changes nothing and returns False, and `_part` finds the error.
        """
        offsets = self._offsets
        start = len(self._ends) - 1
        complete = min(complete, start + _MOST_TOGETHER)
        at, stride = offsets[start], offsets[start + 1] - offsets[start]
        if list(offsets[start : complete + 1]) == list(range(at, at + stride * (complete - start) + 1, stride)):
            parted = _part_equal(data, first + at, complete - start, stride, self._max_message)
        else:
            parted = self._part_unequal(data, first, complete)
        if parted is None:
            return False
        area, payload, ends = parted
        shift = self._ends[-1]
        self._area += area
        self._payload += payload
        self._ends.extend([shift + end for end in ends[1:]])
        return True

    def _part_unequal(self, data: bytes | bytearray, first: int, complete: int) -> _Parted | None:
        offsets, most = self._offsets, self._max_message
        start = len(self._ends) - 1
        begin = first + offsets[start] + _SIZE
        length = _start_of_body(b"MPUB", data, begin, first + offsets[start + 1], most) - begin
        heads: list[bytes | bytearray] = []
        sized_bodies: list[bytes | bytearray] = []
        ends = [0]
        at, known, prefix = 0, -1, b""
        for place in range(start, complete):
            body = begin + length
            end = first + offsets[place + 1]
            size = end - body
            if size != known:
                if not 0 < size <= most:
                    return None
                known, prefix = size, _pack_size(size)
            heads.append(data[begin:body])
            sized_bodies.append(prefix)
            sized_bodies.append(data[body:end])
            at += _SIZE + size
            ends.append(at)
            begin = end + _SIZE
        area = b"".join(heads)
        return (area, b"".join(sized_bodies), ends) if have_equal_shapes(area, len(heads)) else None

    @property
    def size(self) -> int:
        return super().size + len(self._area) + len(self._payload) + memory_of(self._ends)


_Parted = tuple[bytes, bytes, Sequence[int]]  # headers of all messages, their bodies as in an MPUB, and the offsets


def _part_equal(data: bytes | bytearray, start: int, count: int, stride: int, most: int) -> _Parted | None:
    """Split `count` messages of an HMPUB that start at data[start] and take `stride` bytes each, size included.

    Returns None unless their headers are valid and alike. Raises ProtocolError if the first message isn't valid.
    """
    body = _start_of_body(b"MPUB", data, start + _SIZE, start + stride, most) - start
    area = b"".join(equal_pieces(data, start, count, stride=stride, start=_SIZE, end=body))
    if not have_equal_shapes(area, count):
        return None
    size = _pack_size(stride - body)
    bodies = equal_pieces(data, start, count, stride=stride, start=body, end=stride)
    stride += _SIZE - body
    return area, size.join([b"", *bodies]), range(0, stride * count + 1, stride)


def _publications(params: list[bytes], area: bytes, payload: bytes, offsets: Sequence[int]) -> Publications:
    if len(area) == len(NO_HEADERS) * (len(offsets) - 1):  # none of them has any
        return Publications(params, payload, offsets)
    return HeadedPublications(params, payload, offsets, area)


def _with_headers(limits: SizeLimits) -> SizeLimits:
    """Return the limits for messages that include headers."""
    return replace(limits, max_message=MOST_ENCODED + limits.max_message)


def _start_of_body(word: bytes, data: bytes | bytearray, start: int, end: int, most: int) -> int:
    """Check the headers and the size of the message in data[start:end], and return where its body starts."""
    try:
        body = check_headers(data, start, end)
    except BadHeaders as error:
        raise ProtocolError(Fault.BAD_MESSAGE, word + b" " + str(error).encode("utf-8", "replace")) from None
    if end - body > most:
        raise ProtocolError(Fault.BAD_MESSAGE, b"%b message too big %d > %d" % (word, end - body, most))
    if body == end:
        raise ProtocolError(Fault.BAD_MESSAGE, b"%b invalid message body size 0" % word)
    return body


def _read_size(data: bytes | bytearray, at: int, word: bytes, form: _Form, limit: int) -> int:
    size: int = _unpack_size(data, at)[0]
    if size > limit:
        raise ProtocolError(form.fault, b"%b %b too big %d > %d" % (word, form.whole, size, limit))
    if size <= 0:
        raise ProtocolError(form.fault, b"%b invalid %b size %d" % (word, form.body, size))
    return size


def _body_missing(word: bytes, form: _Form, length: int) -> ProtocolError:
    what = form.body + b" size" if length < _SIZE else form.body
    return ProtocolError(form.fault, b"%b failed to read %b" % (word, what))


def _copy(data: bytes | bytearray, start: int, end: int) -> bytes:
    # Slicing a bytearray copies it, and bytes() would then copy the slice again.
    return data[start:end] if isinstance(data, bytes) else bytes(memoryview(data)[start:end])


# Numbers in parameters

_64_BITS: Final = (1 << 64) - 1


def parse_decimal(raw: bytes) -> int | None:
    """Parse a decimal parameter as NSQ does, or return None if there's anything but digits.

    No digits at all mean 0, and a number of more than 64 bits wraps around.
    """
    if not raw:
        return 0
    if not raw.isdigit():
        return None
    # 10**64 is a multiple of 2**64, so more digits on the left change nothing. int() refuses very long texts.
    return int(raw[-64:]) & _64_BITS


def to_signed64(value: int) -> int:
    """Return the signed integer with the same 64 bits."""
    value &= _64_BITS
    return value - (1 << 64) if value >> 63 else value


# Encoding commands, for clients and tests


def identify(body: bytes) -> bytes:
    return b"IDENTIFY\n" + _sized(body)


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + _sized(secret)


def sub(topic: str, channel: str) -> bytes:
    return b"SUB %b %b\n" % (topic.encode(), channel.encode())


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %b\n" % topic.encode() + _sized(body)


def dpub(topic: str, ms: int, body: bytes) -> bytes:
    return b"DPUB %b %d\n" % (topic.encode(), ms) + _sized(body)


def mpub(topic: str, bodies: Iterable[bytes]) -> bytes:
    messages = [_sized(body) for body in bodies]
    return b"MPUB %b\n" % topic.encode() + _sized(_pack_size(len(messages)) + b"".join(messages))


def hpub(topic: str, headers: bytes, body: bytes) -> bytes:
    """Encode an HPUB. `headers` are already encoded."""
    return b"HPUB %b\n" % topic.encode() + _sized(headers + body)


def hdpub(topic: str, ms: int, headers: bytes, body: bytes) -> bytes:
    return b"HDPUB %b %d\n" % (topic.encode(), ms) + _sized(headers + body)


def hmpub(topic: str, messages: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode an HMPUB. Each message is a pair of encoded headers and body."""
    sized = [_sized(headers + body) for headers, body in messages]
    return b"HMPUB %b\n" % topic.encode() + _sized(_pack_size(len(sized)) + b"".join(sized))


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(message_id: bytes) -> bytes:
    return b"FIN %b\n" % message_id


def req(message_id: bytes, ms: int) -> bytes:
    return b"REQ %b %d\n" % (message_id, ms)


def touch(message_id: bytes) -> bytes:
    return b"TOUCH %b\n" % message_id


def cls() -> bytes:
    return b"CLS\n"


def nop() -> bytes:
    return b"NOP\n"


_pack_size: Final = Struct(">i").pack


def _sized(body: bytes) -> bytes:
    return _pack_size(len(body)) + body
