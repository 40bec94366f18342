"""A message's headers: names with binary values, which travel next to the body.

    length 2   of all pairs together; 0: the message has none
    (name length 1, name, value length 2, value) * pairs

All numbers are big-endian. Names are lower case and unique. Names that begin with `nsq-` are ours:
`nsq-ttl`, `nsq-group`, `nsq-reply` and `nsq-origin`, and those of edited_copy.py.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Final

MOST_PAIRS: Final = 64
MOST_BYTES: Final = 4096  # of all pairs together
MOST_ENCODED: Final = 2 + MOST_BYTES
NONE: Final = b"\0\0"  # the encoded headers of a message without any

_is_name: Final = re.compile(rb"[a-z0-9][a-z0-9_.-]{0,63}").fullmatch
_pack_length: Final = Struct(">H").pack
_unpack_length: Final = Struct(">H").unpack_from
_SMALLEST_PAIR: Final = 4
_MOST_SHAPES: Final = 256
_MOST_IN_COLUMNS: Final = 64 * 1024  # bytes of columns worth keeping

_Shape = tuple[tuple[int, int, bytes], ...]  # the bytes around the values: start, end and content
_Cut = Callable[[bytes], object]
_shapes: Final[dict[int, _Shape]] = {}  # of valid headers, by their length


class BadHeaders(ValueError):
    """These aren't valid headers, or there are too many. The message says why."""


def encode_headers(headers: Mapping[str, bytes | str]) -> bytes:
    """Encode headers; text becomes UTF-8. Raises BadHeaders."""
    if len(headers) > MOST_PAIRS:
        raise BadHeaders(f"too many headers {len(headers)} > {MOST_PAIRS}")
    pieces: list[bytes] = []
    size = 0
    for name, value in headers.items():
        raw_name = name.encode("utf-8", "replace")
        if _is_name(raw_name) is None:
            raise BadHeaders(f"invalid header name {name[:100]!r}")
        raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        size += 3 + len(raw_name) + len(raw)
        if size > MOST_BYTES:
            raise BadHeaders(f"headers of more than {MOST_BYTES} bytes")
        pieces += (bytes((len(raw_name),)), raw_name, _pack_length(len(raw)), raw)
    return _pack_length(size) + b"".join(pieces)


def decode_headers(data: bytes, at: int = 0) -> dict[str, bytes]:
    """Return the headers encoded at `at`. Raises BadHeaders."""
    end = end_of_headers(data, at)
    headers: dict[str, bytes] = {}
    at += 2
    while at < end:
        start = at + 1
        at = start + data[at]
        raw_name = data[start:at]
        if at + 2 > end or _is_name(raw_name) is None:
            raise BadHeaders(f"invalid header name {raw_name[:100]!r}")
        name = raw_name.decode()
        if name in headers:
            raise BadHeaders(f"header {name!r} comes twice")
        start = at + 2
        at = start + _unpack_length(data, at)[0]
        if at > end:
            raise BadHeaders(f"the value of header {name!r} ends too early")
        headers[name] = data[start:at]
    if len(headers) > MOST_PAIRS:
        raise BadHeaders(f"too many headers {len(headers)} > {MOST_PAIRS}")
    return headers


def value_of(name: bytes, data: bytes, at: int, end: int) -> bytes | None:
    """Return the value of one header from the valid headers in data[at:end], or None if it is missing.

    `name` is encoded, with its length.
    """
    start, stop = place_of(name, data, at, end)
    return data[start:stop] if start >= 0 else None


def place_of(name: bytes, data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where the value of one header begins and ends, or (-1, -1) if it is missing. See `value_of`.

    Another header's value may contain the same bytes, so when we find them, we walk the headers up to there to make sure.
    This is ten times as fast as decoding all headers.
    """
    found = data.find(name, at + 2, end)
    at += 2
    while found >= 0:
        while at < found:
            at += 1 + data[at]
            at += 2 + _unpack_length(data, at)[0]
        if at == found:
            start = at + len(name) + 2
            return start, start + _unpack_length(data, start - 2)[0]
        found = data.find(name, at, end)
    return -1, -1


def check_headers(data: bytes | bytearray, at: int, stop: int) -> int:
    """Check the headers encoded in data[at:stop], and return where they end. Raises BadHeaders.

    Most messages of a publisher have the same names, with values of the same lengths. If headers were valid once,
    others with the same bytes around their values are valid too. Comparing those bytes is five times as fast as
    checking each pair.
    """
    end = end_of_headers(data, at, stop)
    length = end - at
    if _known_shape(data, at, length) is not None:
        return end
    encoded = bytes(data[at:end])
    decode_headers(encoded)
    if len(_shapes) >= _MOST_SHAPES:
        _shapes.clear()
    _shapes[length] = _shape_of(encoded)
    return end


def have_equal_shapes(area: bytes, count: int) -> bool:
    """Return whether `count` headers of equal length all have the names and value lengths of the first, valid one.

    We compare each byte around the values in all of them at once, which is ten times as fast as `check_headers` for
    each message.
    """
    stride = len(area) // count
    shape = _known_shape(area, 0, stride) or _shape_of(area[:stride])
    around = sum([value - start for start, value, _ in shape])
    cut, columns = (_kept_columns if around * count <= _MOST_IN_COLUMNS else _columns)(shape, stride, count)
    return bool(cut(area) == columns)


def _columns(shape: _Shape, stride: int, count: int) -> tuple[_Cut, tuple[bytes, ...]]:
    """Return a function that extracts each byte around the values from `count` headers, and its expected result."""
    around = b"".join([expected for _, _, expected in shape])
    slices = [slice(place, None, stride) for start, value, _ in shape for place in range(start, value)]
    return itemgetter(*slices), tuple([around[place : place + 1] * count for place in range(len(around))])


_kept_columns: Final = lru_cache(maxsize=16)(_columns)


def _known_shape(data: bytes | bytearray, at: int, length: int) -> _Shape | None:
    """Return the shape of the headers in data[at : at + length] if we have seen valid headers of that shape."""
    shape = _shapes.get(length)
    if shape is not None:
        for start, value, expected in shape:
            if data[at + start : at + value] != expected:
                return None
    return shape


def _shape_of(encoded: bytes) -> _Shape:
    """Return the bytes around the values of valid headers, as start, end and content."""
    shape = []
    start, at = 0, 2
    while at < len(encoded):
        at += 1 + encoded[at]
        value = at + 2
        shape.append((start, value, encoded[start:value]))
        start = at = value + _unpack_length(encoded, at)[0]
    return tuple(shape) or ((0, 2, encoded),)


def end_of_headers(data: bytes | bytearray, at: int = 0, stop: int = -1) -> int:
    """Return where the headers encoded in data[at:stop] end, by their length only. Raises BadHeaders."""
    if stop < 0:
        stop = len(data)
    if stop < at + 2:
        raise BadHeaders("no length of headers")
    length: int = _unpack_length(data, at)[0]
    if length > MOST_BYTES:
        raise BadHeaders(f"headers too big {length} > {MOST_BYTES}")
    if at + 2 + length > stop:
        raise BadHeaders("headers end too early")
    return at + 2 + length


def header_offsets(area: bytes, count: int) -> Sequence[int] | None:
    """Return where each message's headers begin in an area of encoded headers, plus the end.

    Returns None unless the headers of exactly `count` messages fill the area.
    """
    length = len(area)
    unpack = _unpack_length
    # Headers of equal length are common. Two slices prove that without a walk, and the offsets are a range.
    if count and length >= 2 * count:
        stride = 2 + unpack(area)[0]
        if stride * count == length and area[::stride] == area[:1] * count and area[1::stride] == area[1:2] * count:
            return range(0, length + 1, stride)
    offsets = array("Q", [0])
    position = 0
    for _ in range(count):
        if position + 2 > length:
            return None
        position += 2 + unpack(area, position)[0]
        offsets.append(position)
    return offsets.tolist() if position == length else None
