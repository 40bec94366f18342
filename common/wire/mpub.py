"""The body of MPUB, as TCP and HTTP carry it: a count, then that many messages of a size and a body each.

+-------+------+----------+------+----------
|  i32  | i32  |   body   | i32  |   body       TCP has an i32 before all this, the body's size
+-------+------+----------+------+----------
 count   size              size
        ^ 0               ^ offsets[1]          offsets are relative to the first size
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, TypeAlias

from common.wire.faults import Fault, ProtocolError

if TYPE_CHECKING:
    from common.wire.limits import Limits

_unpack_size: Final = struct.Struct(">i").unpack_from
_SIZE: Final = 4
_SMALLEST_MESSAGE: Final = 5  # a size and one byte
_OFFSET_SIZE: Final = 36  # bytes of memory that an offset in a list takes: a pointer and a number
_MANY: Final = 20_000  # offsets; letting go of a million numbers would hold everybody up for tens of milliseconds
_WORTH_A_GUESS: Final = 4  # equal messages in a row

Offsets: TypeAlias = "list[int] | array[int]"


def packed(offsets: Offsets) -> Offsets:
    """Return the same offsets, many of them in 8 bytes each: a million are then a block of memory, not a million objects."""
    return array("Q", offsets) if isinstance(offsets, list) and len(offsets) > _MANY else offsets


def memory_of(offsets: Offsets) -> int:
    """Return about how many bytes they take."""
    return len(offsets) * (_OFFSET_SIZE if isinstance(offsets, list) else offsets.itemsize)


def cut_mpub_body(body: bytes, limits: Limits) -> tuple[bytes, list[int]]:
    """What HTTP posts, cut: the payload behind the count, and its offsets. What follows the last message is dropped.

    Raises ProtocolError (BAD_BODY or BAD_MESSAGE).
    """
    if len(body) < _SIZE:
        raise count_missing()
    count = read_count(body, 0, limits)
    offsets = [0]
    if not cut_messages(body, _SIZE, count, offsets, limits):
        raise message_missing(len(body) - _SIZE, offsets)
    return body[_SIZE : _SIZE + offsets[-1]], offsets


def read_count(data: bytes | bytearray, at: int, limits: Limits) -> int:
    count: int = _unpack_size(data, at)[0]
    if not 0 < count <= (limits.max_body - _SIZE) // _SMALLEST_MESSAGE:
        raise ProtocolError(Fault.BAD_BODY, b"MPUB invalid message count %d" % count)
    return count


def cut_messages(data: bytes | bytearray, start: int, count: int, offsets: Offsets, limits: Limits) -> bool:
    """Goes on cutting the `count` messages that begin at data[start]; returns whether all of them are there.

    `offsets` begins as [0] and is the memory between calls: the next call may come with the same data elsewhere,
    and more of them. It gets the end of each message whose size could be read, also when its body is still missing.
    Raises ProtocolError as soon as a size is wrong.
    """
    at = offsets[-1]
    max_message = limits.max_message
    add = offsets.append
    if count - len(offsets) >= _WORTH_A_GUESS - 1:
        at = _cut_equal_messages(data, start, count, offsets, limits)
    try:
        for position in range(len(offsets) - 1, count):
            (size,) = _unpack_size(data, start + at)
            if not 0 < size <= max_message:
                _check_total(offsets, limits)
                raise _bad_size(position, size, max_message)
            at += _SIZE + size
            add(at)
    except struct.error:  # no room for a size: cheaper to hear it from struct once than to ask for each message
        pass
    _check_total(offsets, limits)
    return len(offsets) == count + 1 and start + at <= len(data)


def _cut_equal_messages(data: bytes | bytearray, start: int, count: int, offsets: Offsets, limits: Limits) -> int:
    """Takes as many messages as are here in whole, if all of them are as long as the first.

    Publishers of many messages mostly send equal ones. If the same size stands wherever equal messages would put it,
    then that is what they are, and four strided comparisons find it out at a tenth of reading the sizes one by one.
    """
    at = offsets[-1]
    first = start + at
    size_bytes = data[first : first + _SIZE]
    if len(size_bytes) < _SIZE:
        return at
    size: int = _unpack_size(size_bytes)[0]
    if not 0 < size <= limits.max_message:
        return at
    stride = _SIZE + size
    here = min(count + 1 - len(offsets), (len(data) - first) // stride)
    if here < _WORTH_A_GUESS or data[first + stride : first + stride + _SIZE] != size_bytes:
        return at
    stop = first + here * stride
    for place in range(_SIZE):
        if data[first + place : stop : stride] != size_bytes[place : place + 1] * here:
            return at
    end = at + here * stride
    offsets.extend(range(at + stride, end + 1, stride))
    return end


def _check_total(offsets: Offsets, limits: Limits) -> None:
    # The size that TCP announces is not held against what comes (the original ignores it, and so must we), hence
    # a peer could announce little and send without end. What does come is bounded here.
    allowed = limits.max_body - _SIZE
    if offsets[-1] > allowed:
        # The first one beyond, not the last: the answer must not depend on how much arrived together.
        excess = offsets[bisect_right(offsets, allowed)]
        raise ProtocolError(Fault.BAD_BODY, b"MPUB body too big %d > %d" % (_SIZE + excess, limits.max_body))


def _bad_size(position: int, size: int, max_message: int) -> ProtocolError:
    if size > max_message:
        return ProtocolError(Fault.BAD_MESSAGE, b"MPUB message too big %d > %d" % (size, max_message))
    return ProtocolError(Fault.BAD_MESSAGE, b"MPUB invalid message(%d) body size %d" % (position, size))


def count_missing() -> ProtocolError:
    return ProtocolError(Fault.BAD_BODY, b"MPUB failed to read message count")


def message_missing(length: int, offsets: Offsets) -> ProtocolError:
    """The error of messages that end before their time, `length` bytes behind the first size."""
    if offsets[-1] > length:
        return ProtocolError(Fault.BAD_MESSAGE, b"MPUB failed to read message body")
    return ProtocolError(Fault.BAD_MESSAGE, b"MPUB failed to read message(%d) body size" % (len(offsets) - 1))
