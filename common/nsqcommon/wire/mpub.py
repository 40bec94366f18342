"""The body of MPUB, over TCP and HTTP: a count, and then the size and the body of each message.

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

from nsqcommon.wire.faults import Fault, ProtocolError

if TYPE_CHECKING:
    from nsqcommon.wire.limits import SizeLimits

_unpack_size: Final = struct.Struct(">i").unpack_from
_unpack_head: Final = struct.Struct(">iii").unpack_from  # size of the body, count, size of the first message
_HEAD: Final = 12
_SIZE: Final = 4
_SMALLEST_MESSAGE: Final = 5  # a size and one byte
_OFFSET_SIZE: Final = 36  # bytes of memory of an offset in a list: a pointer and a number
_MANY: Final = 20_000  # offsets; freeing a million numbers would block all clients for tens of milliseconds
_WORTH_A_GUESS: Final = 4  # from this many messages on, we try the shortcut for equal ones

Offsets: TypeAlias = "list[int] | array[int]"


def packed(offsets: Offsets) -> Offsets:
    """Return the same offsets, but many of them as an array: one block of memory instead of a million objects."""
    return array("Q", offsets) if isinstance(offsets, list) and len(offsets) > _MANY else offsets


def memory_of(offsets: Offsets) -> int:
    """Return the approximate memory that the offsets take, in bytes."""
    return len(offsets) * (_OFFSET_SIZE if isinstance(offsets, list) else offsets.itemsize)


def cut_mpub_body(body: bytes, limits: SizeLimits) -> tuple[bytes, list[int]]:
    """Return the payload of an HTTP request's body, without the count, and the offsets of its messages.

    We ignore bytes after the last message. Raises ProtocolError (BAD_BODY or BAD_MESSAGE).
    """
    if len(body) < _SIZE:
        raise count_missing()
    count = read_count(body, 0, limits)
    offsets = [0]
    if not cut_messages(body, _SIZE, count, offsets, limits):
        raise message_missing(len(body) - _SIZE, offsets)
    return body[_SIZE : _SIZE + offsets[-1]], offsets


def equal_messages(data: bytes, start: int, limits: SizeLimits) -> range | None:
    """Return the message offsets of an MPUB if all of it has arrived and its messages have equal lengths, or else None.

    The MPUB's size is at data[start]. Most MPUBs have messages of equal length. If this returns None, the MPUB may
    still be valid: use `cut_messages` to find out.
    """
    first = start + 2 * _SIZE
    if len(data) - start < _HEAD:
        return None
    size, count, length = _unpack_head(data, start)
    stride = _SIZE + length
    total = stride * count
    if not (0 < length <= limits.max_message and count > 0 and 0 < size <= limits.max_body):
        return None
    stop = first + total
    if total > limits.max_body - _SIZE or stop > len(data):
        return None
    for place in range(first, first + _SIZE):
        if data[place:stop:stride] != data[place : place + 1] * count:
            return None
    return range(0, total + 1, stride)


def read_count(data: bytes | bytearray, at: int, limits: SizeLimits) -> int:
    count: int = _unpack_size(data, at)[0]
    if not 0 < count <= (limits.max_body - _SIZE) // _SMALLEST_MESSAGE:
        raise ProtocolError(Fault.BAD_BODY, b"MPUB invalid message count %d" % count)
    return count


def cut_messages(data: bytes | bytearray, start: int, count: int, offsets: Offsets, limits: SizeLimits) -> bool:
    """Find the offsets of the `count` messages that begin at data[start], and return whether all are complete.

    Pass [0] as `offsets` at first. When more data has arrived, pass all of it with the same offsets; `start` may be
    different then. We add the end of each message whose size we can read, even if its body is still incomplete. Raises
    ProtocolError as soon as a size is wrong.
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
    except struct.error:  # too few bytes for a size; one exception is cheaper than a check per message
        pass
    _check_total(offsets, limits)
    return len(offsets) == count + 1 and start + at <= len(data)


def _cut_equal_messages(data: bytes | bytearray, start: int, count: int, offsets: Offsets, limits: SizeLimits) -> int:
    """Add the offsets of all complete messages if they are as long as the first one. Return the last known offset.

    Publishers of many messages mostly send messages of equal length. They are equal if we find the same size wherever
    equal messages would have one. Four comparisons of strided slices, one for each byte of a size, show that ten times
    as fast as reading the sizes one by one.
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


def _check_total(offsets: Offsets, limits: SizeLimits) -> None:
    # NSQ ignores the size announced over TCP, so we don't compare the data with it. But a peer could announce little
    # and send without end, so we limit the data themselves.
    allowed = limits.max_body - _SIZE
    if offsets[-1] > allowed:
        # The first message beyond the limit, not the last, because the error must not depend on how data arrived.
        excess = offsets[bisect_right(offsets, allowed)]
        raise ProtocolError(Fault.BAD_BODY, b"MPUB body too big %d > %d" % (_SIZE + excess, limits.max_body))


def _bad_size(position: int, size: int, max_message: int) -> ProtocolError:
    if size > max_message:
        return ProtocolError(Fault.BAD_MESSAGE, b"MPUB message too big %d > %d" % (size, max_message))
    return ProtocolError(Fault.BAD_MESSAGE, b"MPUB invalid message(%d) body size %d" % (position, size))


def count_missing() -> ProtocolError:
    return ProtocolError(Fault.BAD_BODY, b"MPUB failed to read message count")


def message_missing(length: int, offsets: Offsets) -> ProtocolError:
    """Return the error for messages that end too early, `length` bytes after the first size."""
    if offsets[-1] > length:
        return ProtocolError(Fault.BAD_MESSAGE, b"MPUB failed to read message body")
    return ProtocolError(Fault.BAD_MESSAGE, b"MPUB failed to read message(%d) body size" % (len(offsets) - 1))
