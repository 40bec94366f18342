"""The publishes of a turn to one topic, until they are in the log's buffer.

Publishes become *drafts*, which are batches without sequences: one for the PUBs and small MPUBs of the turn, and one
for each DPUB, each large MPUB, and each MPUB with a key or headers. At the end of the turn, `deferrals` lists the
deferred ones for the journal. Then `seal` gives all drafts their sequences, or `fail` rejects them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from nsqcommon.wire.headers import NONE as NO_HEADERS
from nsqcommon.wire.headers import header_offsets
from nsqcommon.wire.log_record import KEYS, split_keys
from nsqd.broker.batch import Batch, Receipt
from nsqd.broker.limits import Usage

if TYPE_CHECKING:
    from nsqd.broker.keys import TopicKeys
    from nsqd.broker.store import TopicLog
    from nsqd.broker.turn_context import TurnContext

_MOST_BYTES_SHARED: Final = 1 << 20  # of a shared batch; larger ones would be slow to read back and send
_LARGEST_SHARING: Final = 16 * 1024  # bytes of an MPUB; copying a larger one costs as much as a record of its own
# Bytes. The record's header has 16 bits for this length. Each message takes at least a byte, even without a key, and
# the last MPUB before we check may have 3,277 messages of five bytes in its 16 KiB.
_LONGEST_KEY_PLACE: Final = 60_000
_RECORD_FRONT: Final = 64  # bytes before the payload of a record, without its key
_LENGTHS: Final = [bytes((length,)) for length in range(256)]  # length bytes, one before each stored key

# Payload, offsets, delay in ms, receipt, keys and flags as in the record, headers of all messages. This is a tuple,
# because a single publish per turn needs one too, and an object with named fields costs half a microsecond more.
_Draft = tuple[bytes, Sequence[int], int, Receipt, bytes, int, bytes]


@final
class PublishBuffer:
    """The drafts of one topic. They are sealed at the turn's end, unless they must wait for the removal of files."""

    def __init__(self, log: TopicLog, keys: TopicKeys, turn: TurnContext[Any, Any]) -> None:
        self._log = log
        self._keys = keys
        self._turn = turn
        self._shared: list[bytes] = []  # PUBs and small MPUBs of this turn, which become one batch
        self._shared_offsets = [0]  # offset of each message in that batch, and the end
        self._shared_receipt = Receipt()
        self._shared_keys: dict[bytes, int] = {}  # key -> number of its message in that batch
        self._shared_key_bytes = 0
        self._shared_headers: list[tuple[int, bytes]] = []  # number and headers of the messages that have any
        self._shared_header_bytes = 0
        self._drafts: list[_Draft] = []

    @property
    def is_empty(self) -> bool:
        """Whether there are no drafts."""
        return not (self._shared or self._drafts)

    def receipt_of(self, key: bytes) -> Receipt | None:
        """Return the receipt of the publish in the shared batch that has this key, or None."""
        return self._shared_receipt if key in self._shared_keys else None

    @property
    def has_keys(self) -> bool:
        """Whether the shared batch has keys."""
        return bool(self._shared_keys)

    def remember_keys(self) -> bool:
        """Add the drafts' keys to the topic's again, which has forgotten all. Return whether there are any."""
        self.close_shared()
        keyed = [(split_keys(key, flags), receipt) for _, _, _, receipt, key, flags, _ in self._drafts if key]
        for keys, receipt in keyed:
            self._keys.add_all(keys, self._turn.timestamp, receipt)
        return bool(keyed)

    # Publishing

    def add_one(self, sized_body: bytes, key: bytes, headers: bytes) -> Receipt:
        """Add one message, which starts with its size in four bytes, to the shared batch."""
        shared, offsets = self._shared, self._shared_offsets
        if not shared:
            self._shared_receipt = Receipt()
        receipt = self._shared_receipt
        if headers:
            self._shared_headers.append((len(offsets) - 1, headers))
            self._shared_header_bytes += len(headers)
        if key:
            self._shared_keys[key] = len(offsets) - 1
            self._shared_key_bytes += len(key)
        end = offsets[-1] + len(sized_body)
        shared.append(sized_body)
        offsets.append(end)
        if (
            end + self._shared_header_bytes > _MOST_BYTES_SHARED
            or self._shared_key_bytes + len(offsets) > _LONGEST_KEY_PLACE
        ):
            self.close_shared()
        return receipt

    def add(
        self, payload: bytes, offsets: Sequence[int], delay_ms: int, key: bytes, headers: bytes, flags: int = 0
    ) -> Receipt:
        """Add the messages of one publish. If it's small, it joins the shared batch, otherwise it gets its own batch.

        A publish with a delay, a key or headers always gets its own batch: the delay and this key apply to all messages
        of a batch. `flags` are those of the record, for a publish with a delay.
        """
        if not delay_ms and not key and not headers and len(payload) <= _LARGEST_SHARING:
            return self._share(payload, offsets)
        self.close_shared()
        receipt = Receipt()
        if key:
            self._keys.add(key, self._turn.timestamp, receipt)
        self._drafts.append((payload, offsets, delay_ms, receipt, key, flags, headers))
        return receipt

    def _share(self, payload: bytes, offsets: Sequence[int]) -> Receipt:
        shared, ends = self._shared, self._shared_offsets
        if not shared:
            self._shared_receipt = Receipt()
        receipt, start = self._shared_receipt, ends[-1]
        shared.append(payload)
        if isinstance(offsets, range):
            ends.extend(range(start + offsets.step, start + offsets.stop, offsets.step))
        else:
            ends.extend([start + offset for offset in offsets[1:]])
        if (
            ends[-1] + self._shared_header_bytes > _MOST_BYTES_SHARED
            or self._shared_key_bytes + len(ends) > _LONGEST_KEY_PLACE
        ):
            self.close_shared()
        return receipt

    def close_shared(self) -> None:
        """Turn the shared batch into a draft. Later publishes in this turn share another batch."""
        shared = self._shared
        if not shared:
            return
        offsets, self._shared, self._shared_offsets = self._shared_offsets, [], [0]
        count = len(offsets) - 1
        if self._shared_keys:
            self._keys.add_all(self._shared_keys, self._turn.timestamp, self._shared_receipt)
            key, flags = self._take_key_place(count)
        else:
            key, flags = b"", 0
        headers = self._take_headers(count) if self._shared_headers else b""
        payload = shared[0] if len(shared) == 1 else b"".join(shared)
        self._drafts.append((payload, offsets, 0, self._shared_receipt, key, flags, headers))

    def _take_headers(self, count: int) -> bytes:
        """Remove the headers of the shared batch, and return them as they are stored in the record."""
        found, self._shared_headers, self._shared_header_bytes = self._shared_headers, [], 0
        area = [NO_HEADERS] * count
        for number, headers in found:
            area[number] = headers
        return b"".join(area)

    def _take_key_place(self, count: int) -> tuple[bytes, int]:
        """Remove the keys of the shared batch. Return them as they are stored in the record, and the record's flags."""
        keys, self._shared_keys, self._shared_key_bytes = self._shared_keys, {}, 0
        if count == 1:
            return next(iter(keys)), 0
        lengths = set(map(len, keys))
        if len(keys) == count and len(lengths) == 1:  # as from our own clients
            return _LENGTHS[lengths.pop()].join([b"", *keys]), KEYS
        place = [b"\0"] * count
        for key, number in keys.items():
            place[number] = _LENGTHS[len(key)] + key
        return b"".join(place), KEYS

    # Size

    def usage(self) -> Usage:
        """Return the number and bytes of this turn's messages."""
        counts, sizes = [len(self._shared_offsets) - 1], [self._shared_offsets[-1] + self._shared_header_bytes]
        for payload, offsets, _, _, _, _, headers in self._drafts:
            counts.append(len(offsets) - 1)
            sizes.append(len(payload) + len(headers))
        return Usage(sum(counts), sum(sizes))

    def usage_in_log(self) -> Usage:
        """Return the same as `usage`, but with the bytes that the messages will take in the log, or a few more."""
        drafted = self.usage()
        fronts = sum(_RECORD_FRONT + len(draft[4]) for draft in self._drafts)
        return Usage(drafted.messages, drafted.size + fronts + self._shared_front())

    def _shared_front(self) -> int:
        """Return the number of bytes before the shared batch's payload.

        If any message has a key, every message gets a key field. The same goes for headers.
        """
        count = len(self._shared_offsets) - 1
        keys = count + self._shared_key_bytes if self._shared_keys else 0
        headers = len(NO_HEADERS) * (count - len(self._shared_headers)) if self._shared_headers else 0
        return _RECORD_FRONT + keys + headers

    # The end of the turn

    def withdraw(self, receipt: Receipt, cause: str) -> None:
        """Fail the draft with this receipt."""
        self._drafts = [draft for draft in self._drafts if draft[3] is not receipt]
        receipt.settle(cause)

    def deferrals(self) -> Iterator[tuple[int, int, int, Receipt]]:
        """Yield the deferred drafts as start, count, delay_ms and receipt, with the sequences that `seal` will give them."""
        self.close_shared()
        sequence = self._log.tail
        for _, offsets, delay_ms, receipt, _, _, _ in self._drafts:
            count = len(offsets) - 1
            if delay_ms:
                yield sequence, count, delay_ms, receipt
            sequence += count

    def seal(self, timestamp: int, dropped: list[Usage] | None = None) -> list[tuple[Batch, Receipt]]:
        """Give the drafts their sequences, append them to the log's buffer, and return the batches with their receipts.

        The log settles a receipt later, with an error if it hasn't accepted the batch. If `dropped` is given, messages
        for which the log has no room are left out, and are counted in it.
        """
        self.close_shared()
        drafts: Iterable[_Draft] = self._drafts
        self._drafts = []
        if dropped is not None:
            drafts = self._fitted(drafts, dropped)
        log, ids, sealed = self._log, self._turn.ids, []
        for payload, offsets, delay_ms, receipt, key, flags, headers in drafts:
            base_sequence = log.tail
            count = len(offsets) - 1
            batch = Batch(base_sequence, ids.take(count), timestamp, payload, offsets, delay_ms, key, flags, headers)
            log.append(batch, receipt)
            sealed.append((batch, receipt))
        return sealed

    def _fitted(self, drafts: Iterable[_Draft], dropped: list[Usage]) -> Iterator[_Draft]:
        """Yield the drafts, truncated to the messages for which the log has room. The rest is counted in `dropped`.

        You must append each draft before you ask for the next one.
        """
        for payload, offsets, delay_ms, receipt, key, flags, headers in drafts:
            count = fitting = len(offsets) - 1
            places = header_offsets(headers, count) if headers else None
            if not self._has_room(count, offsets, places):
                # The largest number of messages that fits: for the next larger one, there is no room.
                counts = range(1, count + 1)
                fitting = bisect_left(counts, True, key=lambda n: not self._has_room(n, offsets, places))
                bodies = len(payload) - offsets[fitting] - 4 * (count - fitting)
                dropped.append(Usage(count - fitting, bodies))
            if fitting == count:
                yield payload, offsets, delay_ms, receipt, key, flags, headers
            elif fitting:  # only a log in memory has no room, and it stores no keys
                headers = headers[: places[fitting]] if places is not None else b""
                yield payload[: offsets[fitting]], offsets[: fitting + 1], delay_ms, receipt, b"", 0, headers
            else:
                receipt.settle()

    def _has_room(self, count: int, offsets: Sequence[int], places: Sequence[int] | None) -> bool:
        """Return whether the log has room for the first `count` messages of a draft with their headers."""
        return self._log.has_room(count, offsets[count] + (places[count] if places is not None else 0))

    def fail(self, cause: str) -> bool:
        """Fail all publishes. Return whether any were deferred, because the journal may already have these."""
        self.close_shared()
        drafts, self._drafts = self._drafts, []
        for _, _, _, receipt, _, _, _ in drafts:
            receipt.settle(cause)
        return any(delay_ms for _, _, delay_ms, _, _, _, _ in drafts)
