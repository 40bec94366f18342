"""The batch: what one large publish, one record on disk or one turn's worth of small publishes has in common.

A batch is the unit of everything (docs/explanation/life-of-a-message.md): it is appended, checksummed, written, cached
and handed to all channels as a whole. A message is only a position in a batch, and is cut out when it is sent.

The payload is kept exactly as MPUB carries it, `(size:4, body) * count`, so that neither publishing nor reading back
from disk has to transform a byte.
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
from nsqcommon.wire.headers import header_offsets, value_of

if TYPE_CHECKING:
    from nsqcommon.wire.frames import Piece

_FRAME_TYPE_MESSAGE: Final = 2
_FRAME_TYPE_HEADED: Final = 3  # the same with the headers between id and body
_TTL: Final = b"\x07nsq-ttl"  # a header, as it is encoded: the milliseconds that a message may wait
JUDGED_AT_ONCE: Final = 500  # messages; each may have 64 headers, through which this takes 10 us
_is_ttl: Final = re.compile(rb"[0-9]{1,15}").fullmatch
_MILLISECOND: Final = 1_000_000  # nanoseconds
_WORTH_A_STRUCT: Final = 8  # equal messages from which on they are cut out together
_EMPTY: Final = 2  # bytes of the encoded headers of a message without any
_pack_prefix: Final = Struct(">IIqH").pack  # size, frame type, timestamp, attempts; id and body follow
_pack_start: Final = Struct(">IIqH16s").pack  # the same with the id; the body follows
_MESSAGE_OVERHEAD: Final = 4 + 8 + 2 + 16  # what a frame's size counts besides the body


class Receipt:
    """What a publisher holds until the log has answered.

    It is settled once: by the log when what `--ack` asks for is done or has failed, or by whoever refuses the batch
    before that. `error` is then None or the reason. Only after a receipt is settled without an error may an OK be sent.
    """

    __slots__ = ("_waiting", "error", "settled", "stays")

    def __init__(self) -> None:
        self.settled = False
        self.error: str | None = None
        self.stays = False  # whether the batch stays in the log in spite of the error
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
        """Call back once the receipt is settled; at once if it already is."""
        if self.settled:
            callback()
        elif self._waiting is None:
            self._waiting = [callback]
        else:
            self._waiting.append(callback)


class Batch:
    """Messages that were published together.

    `offsets` has count + 1 entries: where the size prefix of each message starts, and the end of the payload.
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
        # To recognize a publisher's second try, as it lies in the record, and the record's flags. Only new batches have
        # them: they are not read from disk.
        self.key = key
        self.flags = flags
        self.headers = headers  # of all messages, one after the other as they are encoded; empty: none has any
        self.held = len(payload) + len(headers)  # bytes of memory that its messages and their headers take
        self._places: Sequence[int] | None = None  # where in `headers` those of each message begin, and the end
        self._may_expire: bool | None = None  # None: nobody has asked yet
        self.count = len(offsets) - 1
        self.end_sequence = base_sequence + self.count

    def body(self, sequence: int) -> bytes:
        position = sequence - self.base_sequence
        return self.payload[self.offsets[position] + 4 : self.offsets[position + 1]]

    def headers_between(self, first: int, end: int) -> bytes:
        """Return the headers of the messages [first, end), or nothing if none of the batch has any."""
        if not self.headers:
            return b""
        places = self._header_places()
        return self.headers[places[first - self.base_sequence] : places[end - self.base_sequence]]

    def headers_size(self, first: int, end: int) -> int:
        """Return how many bytes the headers of the messages [first, end) have, if some of the batch have any."""
        places = self._header_places()
        return places[end - self.base_sequence] - places[first - self.base_sequence]

    def _header_places(self) -> Sequence[int]:
        if self._places is None:
            places = header_offsets(self.headers, self.count)
            assert places is not None, "they were looked through when they were published, and are proven when read"
            self._places = places
        return self._places

    @property
    def may_expire(self) -> bool:
        """Whether some of its messages seem to have a time to live of their own."""
        if self._may_expire is None:
            self._may_expire = _TTL in self.headers
        return self._may_expire

    def expired_run(self, first: int, stop: int, timestamp: int) -> tuple[int, bool]:
        """Return up to where the messages from `first` on have all expired by then or all not, and whether they have.

        It looks at some hundreds of messages and stops there, so what follows may be the same.
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
        """Return how many bytes the frames of [first, last) have."""
        position = first - self.base_sequence
        count = last - first
        return self.offsets[position + count] - self.offsets[position] + count * _MESSAGE_OVERHEAD

    def frames(self, first: int, last: int, attempts: int, ids: Sequence[bytes]) -> list[bytes]:
        """Return pieces that form the message frames of [first, last) when joined; `ids` come from `ids()`.

        Messages of equal size share their prefix: a dictionary look-up costs a fifth of packing it anew.
        """
        position = first - self.base_sequence
        offsets, payload, timestamp = self.offsets, self.payload, self.timestamp
        if last - first == 1:  # all that a consumer with RDY 1 ever gets
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
        """Return what `frames` returns, with views of the bodies instead of copies: quicker where bodies are large."""
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
        """Return what `frames` returns, for a consumer that takes headers: messages that have any come with them."""
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
            if end - start != length or stop - begin != headers_length:  # most messages are as long as the one before
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

    def _equal_frames(
        self, first: int, offsets: range, places: range, attempts: int, ids: Sequence[bytes]
    ) -> list[bytes]:
        """Return the frames of messages that are equally long, as well as their headers."""
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


_MOST_IDS_AT_ONCE: Final = 512
# The part of a count that gets a struct of its own. One for each count up to 512 would take 4 MB, these take 140 kB.
_REST: Final = 63


@lru_cache(maxsize=128)
def _id_structs(count: int) -> tuple[Struct, Struct]:
    return Struct(f">{count}Q"), Struct("16s" * count)


def hex_ids(start: int, count: int) -> tuple[bytes, ...]:
    """Return `count` consecutive ids from `start`, each as 16 hex digits. Formatting them one by one is far slower."""
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
