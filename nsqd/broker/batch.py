"""A batch: the messages of one large publish, of all small publishes in a turn, or of one record on disk.

We work with whole batches (docs/explanation/life-of-a-message.md): they are appended, checksummed, written, cached and
released to the channels. A message is only a position in its batch until we extract it for sending.

The payload has the same layout as in an MPUB, `(size:4, body) * count`, so neither publishing nor reading from disk has
to convert it.
"""

from __future__ import annotations

import re
from binascii import hexlify
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final

from nsqcommon.wire.equal_pieces import equal_pieces
from nsqcommon.wire.groups import GROUP, valid_group
from nsqcommon.wire.headers import have_equal_shapes, header_offsets, place_of, value_of

if TYPE_CHECKING:
    from nsqcommon.wire.frames import Piece

_FRAME_TYPE_MESSAGE: Final = 2
_FRAME_TYPE_HEADED: Final = 3  # the same, with headers between id and body
_TTL: Final = b"\x07nsq-ttl"  # the encoded name of the header with a message's time to live in milliseconds
_GROUP: Final = bytes((len(GROUP),)) + GROUP.encode()  # the encoded name of the header with a message's group
JUDGED_AT_ONCE: Final = 500  # messages; searching the headers of one takes 10 us if it has all 64
_is_ttl: Final = re.compile(rb"[0-9]{1,15}").fullmatch
_MILLISECOND: Final = 1_000_000  # nanoseconds
_WORTH_A_STRUCT: Final = 8  # from this many messages of equal size on, we extract them together
_EMPTY: Final = 2  # bytes of encoded headers if a message has none
_pack_prefix: Final = Struct(">IIqH").pack  # size, frame type, timestamp, attempts; id and body follow
_pack_start: Final = Struct(">IIqH16s").pack  # the same with the id; the body follows
_MESSAGE_OVERHEAD: Final = 4 + 8 + 2 + 16  # bytes of a frame besides its size field and the body


class Receipt:
    """The result of a publish, for which the publisher waits.

    The log settles it when the batch is written or synced (depending on `--ack`), or when that fails. If the
    publish is rejected earlier, its receipt is settled with an error. Send the OK only once the receipt is settled and
    `error` is None.
    """

    __slots__ = ("_waiting", "error", "settled", "stays")

    def __init__(self) -> None:
        self.settled = False
        self.error: str | None = None
        self.stays = False  # whether the batch is in the log despite the error, for example after a failed sync
        self._waiting: list[Callable[[], None]] | None = None

    def settle(self, error: str | None = None, *, stays: bool = False) -> None:
        if self.settled:
            return
        self.settled = True
        self.error = error
        self.stays = stays
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            for callback in waiting:
                callback()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back when the receipt is settled, or immediately if it already is."""
        if self.settled:
            callback()
        elif self._waiting is None:
            self._waiting = [callback]
        else:
            self._waiting.append(callback)


class Batch:
    """Messages that were published together.

    `offsets` has the offset of each message's size prefix in the payload, followed by the end of the payload.
    """

    __slots__ = (
        "_may_expire",
        "_places",
        "base_id",
        "base_sequence",
        "count",
        "delay_ms",
        "end_sequence",
        "flags",
        "headers",
        "held",
        "key",
        "offsets",
        "payload",
        "timestamp",
    )

    def __init__(
        self,
        base_sequence: int,
        base_id: int,
        timestamp: int,
        payload: bytes,
        offsets: Sequence[int],
        delay_ms: int = 0,
        key: bytes = b"",
        flags: int = 0,
        headers: bytes = b"",
    ) -> None:
        self.base_sequence = base_sequence
        self.base_id = base_id
        self.timestamp = timestamp  # wall clock, nanoseconds
        self.payload = payload
        self.offsets = offsets
        self.delay_ms = delay_ms  # 0: not deferred
        # The idempotence key and the flags, as in the record. Only new batches have them, because we don't read them
        # from disk.
        self.key = key
        self.flags = flags
        self.headers = headers  # concatenated encoded headers; empty if no message has headers
        self.held = len(payload) + len(headers)  # bytes in memory
        self._places: Sequence[int] | None = None  # offset of each message's headers in `headers`, and the end
        self._may_expire: bool | None = None  # None: not checked yet
        self.count = len(offsets) - 1
        self.end_sequence = base_sequence + self.count

    def body(self, sequence: int) -> bytes:
        position = sequence - self.base_sequence
        return self.payload[self.offsets[position] + 4 : self.offsets[position + 1]]

    def body_size(self, sequence: int) -> int:
        position = sequence - self.base_sequence
        return self.offsets[position + 1] - self.offsets[position] - 4

    def headers_between(self, first: int, end: int) -> bytes:
        """Return the headers of the messages [first, end), or b"" if the batch has none."""
        if not self.headers:
            return b""
        places = self._header_places()
        return self.headers[places[first - self.base_sequence] : places[end - self.base_sequence]]

    def headers_size(self, first: int, end: int) -> int:
        """Return the size of the headers of the messages [first, end). Only for a batch with headers."""
        places = self._header_places()
        return places[end - self.base_sequence] - places[first - self.base_sequence]

    def _header_places(self) -> Sequence[int]:
        if self._places is None:
            places = header_offsets(self.headers, self.count)
            assert places is not None, "headers are checked when they are published, and again when they are read"
            self._places = places
        return self._places

    @property
    def may_expire(self) -> bool:
        """Whether any message may have an `nsq-ttl` header."""
        if self._may_expire is None:
            self._may_expire = _TTL in self.headers
        return self._may_expire

    def group_of(self, sequence: int) -> bytes | None:
        """Return a message's group, b"" if it has none, or None if its `nsq-group` is no valid name."""
        return self.groups(sequence, sequence + 1)[0]

    def groups(self, first: int, stop: int) -> list[bytes | None]:
        """Return `group_of` for each of the messages [first, stop).

        Most messages of a publisher have the same names of headers, with values of the same lengths. Then we cut all
        groups at the same place, which is five times as fast as searching each message.
        """
        count = stop - first
        if not self.headers:
            return [b""] * count
        headers, places, position = self.headers, self._header_places(), first - self.base_sequence
        if count < _WORTH_A_STRUCT or not isinstance(places, range):
            return [self._group_at(places[it], places[it + 1]) for it in range(position, position + count)]
        at, stride = places[position], places.step
        if not have_equal_shapes(headers[at : at + count * stride], count):
            return [self._group_at(it, it + stride) for it in range(at, at + count * stride, stride)]
        start, end = place_of(_GROUP, headers, at, at + stride)
        if start < 0:
            return [b""] * count
        groups = equal_pieces(headers, at, count, stride=stride, start=start - at, end=end - at)
        if headers.isascii() and valid_group(groups[0]) is not None:
            return list(groups)  # the others are just as long, and ASCII, too
        return [_group_or_none(group) for group in groups]

    def _group_at(self, at: int, end: int) -> bytes | None:
        """Return the group in the headers of one message, as `group_of` does."""
        group = value_of(_GROUP, self.headers, at, end)
        if group is None:
            return b""
        return _group_or_none(group)

    def expired_run(self, first: int, stop: int, timestamp: int) -> tuple[int, bool]:
        """Return (end, has_expired) of a run from `first`. At `timestamp`, all of its messages have expired, or none.

        We check at most `JUDGED_AT_ONCE` messages, so the next run may have the same `has_expired`.
        """
        position = first - self.base_sequence
        end = min(stop - self.base_sequence, position + JUDGED_AT_ONCE)
        is_over = self._has_expired(position, timestamp)
        position += 1
        while position < end and self._has_expired(position, timestamp) == is_over:
            position += 1
        return self.base_sequence + position, is_over

    def _has_expired(self, position: int, timestamp: int) -> bool:
        places = self._header_places()
        ttl = value_of(_TTL, self.headers, places[position], places[position + 1])
        if ttl is None or _is_ttl(ttl) is None:
            return False
        return self.timestamp + (self.delay_ms + int(ttl)) * _MILLISECOND < timestamp

    def ids(self, first: int, last: int) -> tuple[bytes, ...]:
        """Return the wire ids of the sequences [first, last)."""
        start = self.base_id + first - self.base_sequence
        return hex_ids(start, last - first)

    def frames_size(self, first: int, last: int) -> int:
        """Return the size of the frames of [first, last) in bytes, without headers."""
        position = first - self.base_sequence
        count = last - first
        return self.offsets[position + count] - self.offsets[position] + count * _MESSAGE_OVERHEAD

    def frames(self, first: int, last: int, attempts: int, ids: Sequence[bytes]) -> list[bytes]:
        """Return the message frames of [first, last) in pieces. `ids` come from `ids()`.

        Messages of equal size share their prefix, because looking it up is five times as fast as packing it.
        """
        position = first - self.base_sequence
        offsets, payload, timestamp = self.offsets, self.payload, self.timestamp
        if last - first == 1:  # a consumer with RDY 1 never gets more
            at, end = offsets[position] + 4, offsets[position + 1]
            size = end - at + _MESSAGE_OVERHEAD
            return [_pack_start(size, _FRAME_TYPE_MESSAGE, timestamp, attempts & 0xFFFF, ids[0]) + payload[at:end]]
        pieces: list[bytes] = []
        prefixes: dict[int, bytes] = {}
        for message_id, (start, end) in zip(
            ids, pairwise(offsets[position : position + last - first + 1]), strict=True
        ):
            size = end - start
            prefix = prefixes.get(size)
            if prefix is None:
                prefix = prefixes[size] = _pack_prefix(
                    size - 4 + _MESSAGE_OVERHEAD, _FRAME_TYPE_MESSAGE, timestamp, attempts & 0xFFFF
                )
            pieces += (prefix, message_id, payload[start + 4 : end])
        return pieces

    def frames_of_views(self, first: int, last: int, attempts: int, ids: Sequence[bytes]) -> list[Piece]:
        """Do the same as `frames`, but with views of the bodies. For large bodies, this is faster than copying."""
        position = first - self.base_sequence
        offsets, view, timestamp = self.offsets, memoryview(self.payload), self.timestamp
        pieces: list[Piece] = []
        prefix, length = b"", -1
        start = offsets[position]
        for message_id in ids:
            position += 1
            end = offsets[position]
            if end - start != length:
                length = end - start
                size = length - 4 + _MESSAGE_OVERHEAD
                prefix = _pack_prefix(size, _FRAME_TYPE_MESSAGE, timestamp, attempts & 0xFFFF)
            pieces += (prefix, message_id, view[start + 4 : end])
            start = end
        return pieces

    def frames_with_headers(self, first: int, last: int, attempts: int, ids: Sequence[bytes]) -> list[bytes]:
        """Do the same as `frames`, but include the headers, for a consumer that accepts them."""
        places, headers = self._header_places(), self.headers
        offsets, payload, timestamp = self.offsets, self.payload, self.timestamp
        if (
            last - first >= _WORTH_A_STRUCT
            and isinstance(offsets, range)
            and isinstance(places, range)
            and places.step != _EMPTY
        ):
            return self._equal_frames(first, offsets, places, attempts, ids)
        pieces: list[bytes] = []
        position = first - self.base_sequence
        prefix, length, headers_length = b"", -1, -1
        start, begin = offsets[position], places[position]
        for message_id in ids:
            position += 1
            end, stop = offsets[position], places[position]
            if end - start != length or stop - begin != headers_length:  # rarely: most messages have equal sizes
                length, headers_length = end - start, stop - begin
                size = length - 4 + _MESSAGE_OVERHEAD
                if headers_length == _EMPTY:
                    prefix = _pack_prefix(size, _FRAME_TYPE_MESSAGE, timestamp, attempts & 0xFFFF)
                else:
                    prefix = _pack_prefix(size + headers_length, _FRAME_TYPE_HEADED, timestamp, attempts & 0xFFFF)
            if headers_length == _EMPTY:
                pieces += (prefix, message_id, payload[start + 4 : end])
            else:
                pieces += (prefix, message_id, headers[begin:stop], payload[start + 4 : end])
            start, begin = end, stop
        return pieces

    def scattered_frames(
        self, sequences: Sequence[int], attempts: int, ids: Sequence[bytes], *, with_headers: bool
    ) -> list[bytes]:
        """Do the same as `frames` or `frames_with_headers` for messages that aren't neighbours."""
        offsets, payload, headers = self.offsets, self.payload, self.headers
        places = self._header_places() if with_headers and headers else None
        pieces: list[bytes] = []
        prefix, length, headers_length = b"", -1, 0
        for message_id, sequence in zip(ids, sequences, strict=True):
            position = sequence - self.base_sequence
            start, end = offsets[position] + 4, offsets[position + 1]
            own = headers[places[position] : places[position + 1]] if places is not None else b""
            if end - start != length or len(own) != headers_length:
                length, headers_length = end - start, len(own)
                size, frame_type = length + _MESSAGE_OVERHEAD, _FRAME_TYPE_MESSAGE
                if headers_length > _EMPTY:
                    size, frame_type = size + headers_length, _FRAME_TYPE_HEADED
                prefix = _pack_prefix(size, frame_type, self.timestamp, attempts & 0xFFFF)
            if headers_length > _EMPTY:
                pieces += (prefix, message_id, own, payload[start:end])
            else:
                pieces += (prefix, message_id, payload[start:end])
        return pieces

    def _equal_frames(
        self, first: int, offsets: range, places: range, attempts: int, ids: Sequence[bytes]
    ) -> list[bytes]:
        """Return the frames of messages with bodies of equal size, and headers of equal size."""
        position, count = first - self.base_sequence, len(ids)
        size, headers_size = offsets.step - 4, places.step
        frame_size = size + headers_size + _MESSAGE_OVERHEAD
        prefix = _pack_prefix(frame_size, _FRAME_TYPE_HEADED, self.timestamp, attempts & 0xFFFF)
        bodies = equal_pieces(self.payload, offsets[position], count, stride=4 + size, start=4, end=4 + size)
        headers = equal_pieces(self.headers, places[position], count, stride=headers_size, start=0, end=headers_size)
        pieces = [prefix] * (4 * count)
        pieces[1::4] = ids
        pieces[2::4] = headers
        pieces[3::4] = bodies
        return pieces


def _group_or_none(value: bytes) -> bytes | None:
    """Return the value of an `nsq-group` if it counts as a group, else None."""
    return value if valid_group(value) is not None else None


_MOST_IDS_AT_ONCE: Final = 512
# A count is split so that few structs are needed: multiples of 64, and a rest of up to 63. All structs for counts up to
# 512 would take 4 MB, but these only take 140 kB.
_REST: Final = 63


@lru_cache(maxsize=128)
def _id_structs(count: int) -> tuple[Struct, Struct]:
    return Struct(f">{count}Q"), Struct("16s" * count)


def hex_ids(start: int, count: int) -> tuple[bytes, ...]:
    """Return `count` consecutive ids from `start`, each as 16 hex digits. Much faster than one at a time."""
    if count == 1:
        return (b"%016x" % start,)
    if count > _MOST_IDS_AT_ONCE:
        first = _MOST_IDS_AT_ONCE
        return hex_ids(start, first) + hex_ids(start + first, count - first)
    rest = count & _REST
    if rest != count and rest:
        first = count - rest
        return hex_ids(start, first) + hex_ids(start + first, rest)
    numbers, texts = _id_structs(count)
    return texts.unpack(hexlify(numbers.pack(*range(start, start + count))))
