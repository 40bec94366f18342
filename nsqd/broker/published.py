"""A topic and what is published to it in a turn, from the publisher's receipt to the place in the log.

Publishes become *drafts*, which are batches without a place in the log: one for the PUBs and small MPUBs of the turn, and
one for each DPUB, each large MPUB, and each MPUB with a key or headers. At the end of the turn `record_deferred` tells
the journal which drafts are deferred, and `seal` gives all of them their places; or `refuse` fails them.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from nsqcommon.wire.headers import NONE as NO_HEADERS
from nsqcommon.wire.headers import header_offsets
from nsqcommon.wire.log_record import KEYS
from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.batch import Batch, Receipt
from nsqd.broker.bounded import Bounded, PublishRefused
from nsqd.broker.keys import TopicKeys
from nsqd.broker.limits import Usage

if TYPE_CHECKING:
    from nsqd.broker.change import Change
    from nsqd.broker.channel import Channel
    from nsqd.broker.store import TopicLog
    from nsqd.broker.turn_context import TurnContext

_MOST_BYTES_SHARED: Final = 1 << 20  # of publishes in one batch, because a batch is read and sent as a whole
_LARGEST_SHARING: Final = 16 * 1024  # bytes of an MPUB; copying a larger one costs as much as a record of its own
# Bytes. The length in a record's header has 16 bits, and the last publish may add up to 3,277 messages of five bytes.
_LONGEST_KEY_PLACE: Final = 60_000
_RECORD_FRONT: Final = 64  # bytes before the payload of a record, without its key
_LENGTHS: Final = [bytes((length,)) for length in range(256)]  # before each key in its place

# Payload, offsets, delay in ms, receipt, keys as they lie in the record, its flags, headers of all messages. It is a
# tuple, because every single publish makes one, and an object with named fields would cost half a microsecond more.
_Draft = tuple[bytes, Sequence[int], int, Receipt, bytes, int, bytes]


class Published(Bounded):
    def __init__(self, name: str, log: TopicLog, turn: TurnContext[Channel, Any]) -> None:
        super().__init__(name, log, turn.rules.topic(name), now=turn.now, ephemeral=is_ephemeral(name))
        self._turn = turn
        self.message_count = 0
        self.message_bytes = 0
        self._shared: list[bytes] = []  # PUBs and small MPUBs of this turn; they become one batch
        self._shared_offsets = [0]  # where in that batch each of their messages begins, and the end
        self._shared_receipt = Receipt()
        self._shared_keys: dict[bytes, int] = {}  # which of those messages has which key
        self._shared_key_bytes = 0
        self._shared_headers: list[tuple[int, bytes]] = []  # of those messages that have some
        self._shared_header_bytes = 0
        self._drafts: list[_Draft] = []
        self._sealed: list[tuple[Batch, Receipt]] = []
        self._keys = TopicKeys(turn.keys, log.refusal, is_new=not log.tail)
        keys, forgotten = log.take_keys()
        self._keys.know(keys)
        self._keys.know_forgotten(forgotten)
        self._keys_from = log.keys_from  # as the journal knows it

    @property
    @abstractmethod
    def flowing(self) -> bool:
        """Whether H follows the tail."""

    @abstractmethod
    def waits(self, start: int, end: int) -> bool:
        """Return whether one of the messages [start, end) waits for its time, or for a channel."""

    @abstractmethod
    def record(self, change: Change) -> None:
        """Record a change of this topic in the journal."""

    # Publishing

    def publish_one(self, sized_body: bytes, delay_ms: int = 0, key: bytes = b"", headers: bytes = b"") -> Receipt:
        """Publish one message, given with its four bytes of size. Publishes of one turn share a batch and a receipt.

        `headers` are encoded, as everywhere here.
        """
        if delay_ms:
            return self.publish(sized_body, (0, len(sized_body)), delay_ms, key, headers)
        if key:
            if self.closing:
                raise PublishRefused("exiting")
            if (known := self._find_key(key)) is not None:
                return known
        if self._is_guarded:
            self._admit(1, len(sized_body) + len(headers))
        shared, offsets = self._shared, self._shared_offsets
        if not shared:
            self._shared_receipt = Receipt()
            self._turn.unsealed[self] = None
        receipt = self._shared_receipt
        if headers:
            self._shared_headers.append((len(offsets) - 1, headers))
            self._shared_header_bytes += len(headers)
        if key:
            self._shared_keys[key] = len(offsets) - 1
            self._shared_key_bytes += len(key)
            if self._keys_from < 0:
                self._expect_keys()
        end = offsets[-1] + len(sized_body)
        shared.append(sized_body)
        offsets.append(end)
        if (
            end + self._shared_header_bytes > _MOST_BYTES_SHARED
            or self._shared_key_bytes + len(offsets) > _LONGEST_KEY_PLACE
        ):
            self._close_shared()
        return receipt

    def publish(
        self, payload: bytes, offsets: Sequence[int], delay_ms: int = 0, key: bytes = b"", headers: bytes = b""
    ) -> Receipt:
        """Publish messages in one batch: all of them or none. `headers` are those of all messages, or empty.

        If the key was used not long ago, nothing is published, and the receipt of that time is returned.

        Small publishes share the batch of this turn. Those with a delay, a key or headers get their own, because a
        batch has one delay, and its key means all of its messages.
        """
        if self.closing:
            raise PublishRefused("exiting")
        if key and (known := self._find_key(key)) is not None:
            return known
        if self._is_guarded:
            self._admit(len(offsets) - 1, len(payload) + len(headers))
        if not delay_ms and not key and not headers and len(payload) <= _LARGEST_SHARING:
            return self._share(payload, offsets)
        self._close_shared()
        receipt = Receipt()
        if key:
            if self._keys_from < 0:
                self._expect_keys()
            self._keys.add(key, self._turn.timestamp, receipt)
        self._drafts.append((payload, offsets, delay_ms, receipt, key, 0, headers))
        self._turn.unsealed[self] = None
        if delay_ms:
            self._turn.deferring[self] = None
        return receipt

    def _share(self, payload: bytes, offsets: Sequence[int]) -> Receipt:
        """Add messages to the batch that publishes of this turn share."""
        shared, ends = self._shared, self._shared_offsets
        if not shared:
            self._shared_receipt = Receipt()
            self._turn.unsealed[self] = None
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
            self._close_shared()
        return receipt

    def _has_drafts(self) -> bool:
        return bool(self._shared or self._drafts)

    def _drafted(self) -> Usage:
        counts, sizes = [len(self._shared_offsets) - 1], [self._shared_offsets[-1] + self._shared_header_bytes]
        for payload, offsets, _, _, _, _, headers in self._drafts:
            counts.append(len(offsets) - 1)
            sizes.append(len(payload) + len(headers))
        return Usage(sum(counts), sum(sizes))

    def buffered(self) -> Usage:
        """Return what was published and has no place in the log yet, with the bytes that it will take there, or a few more."""
        drafted = self._drafted()
        fronts = sum(_RECORD_FRONT + len(draft[4]) for draft in self._drafts)
        return Usage(drafted.messages, drafted.size + fronts + self._shared_front())

    def _shared_front(self) -> int:
        """Return what precedes the messages that share a batch: also those without a key or headers have a place there."""
        count = len(self._shared_offsets) - 1
        keys = count + self._shared_key_bytes if self._shared_keys else 0
        headers = len(NO_HEADERS) * (count - len(self._shared_headers)) if self._shared_headers else 0
        return _RECORD_FRONT + keys + headers

    def _find_key(self, key: bytes) -> Receipt | None:
        """Return the receipt of the publish that was made with this key, in this turn or before; None: there is none."""
        if key in self._shared_keys:
            self._keys.repeats += 1
            return self._shared_receipt
        if not self._keys.may_know(key):  # most keys are new, and only a known one needs the time
            return None
        return self._keys.find(key, self._turn.timestamp, self.waits)

    def _expect_keys(self) -> None:
        """Tell the journal that there are keys from here on, before the log has them, so that a start looks for them."""
        self._note_keys_from(self.log.tail)

    def _note_keys_from(self, sequence: int) -> None:
        self._keys_from = sequence
        self.record(("keys", self.name, sequence))

    def _note_no_keys(self) -> None:
        self._note_keys_from(~self.log.tail)  # keys that lie before, in what was emptied, stay forgotten

    def _close_shared(self) -> None:
        """Make a draft of what shares a batch. What is published next in this turn gets another one."""
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

    def _take_drafts(self) -> list[_Draft]:
        self._close_shared()
        drafts, self._drafts = self._drafts, []
        return drafts

    def _take_headers(self, count: int) -> bytes:
        """Return the headers of so many messages as they lie in the record."""
        found, self._shared_headers, self._shared_header_bytes = self._shared_headers, [], 0
        area = [NO_HEADERS] * count
        for number, headers in found:
            area[number] = headers
        return b"".join(area)

    def _take_key_place(self, count: int) -> tuple[bytes, int]:
        """Return the keys of so many messages as they lie in the record, and the record's flags."""
        keys, self._shared_keys, self._shared_key_bytes = self._shared_keys, {}, 0
        if count == 1:
            return next(iter(keys)), 0
        lengths = set(map(len, keys))
        if len(keys) == count and len(lengths) == 1:  # as those of our own clients
            return _LENGTHS[lengths.pop()].join([b"", *keys]), KEYS
        place = [b"\0"] * count
        for key, number in keys.items():
            place[number] = _LENGTHS[len(key)] + key
        return b"".join(place), KEYS

    def seal(self, timestamp: int) -> None:
        """Give this turn's publishes their places in the log, and append them to its buffer."""
        self._room = self._dry_run_room = None
        drafts: Iterable[_Draft] = self._take_drafts()
        if self.ephemeral and not self.flowing:
            drafts = self._fitted(drafts)
        log = self.log
        for payload, offsets, delay_ms, receipt, key, flags, headers in drafts:
            base_sequence = log.tail
            count = len(offsets) - 1
            batch = Batch(
                base_sequence, self._turn.ids.take(count), timestamp, payload, offsets, delay_ms, key, flags, headers
            )
            log.append(batch, receipt)
            self._sealed.append((batch, receipt))

    def _fitted(self, drafts: Iterable[_Draft]) -> Iterator[_Draft]:
        """Yield what the log has room for. The rest is dropped message by message, but counts as published, as in NSQ.

        The caller must append each draft before it asks for the next one.
        """
        for payload, offsets, delay_ms, receipt, key, flags, headers in drafts:
            count = fitting = len(offsets) - 1
            places = header_offsets(headers, count) if headers else None
            if not self._has_room(count, offsets, places):
                # The most messages that fit: the first n for which n + 1 do not.
                counts = range(1, count + 1)
                fitting = bisect_left(counts, True, key=lambda n: not self._has_room(n, offsets, places))
                self.message_count += count - fitting
                self.message_bytes += len(payload) - offsets[fitting] - 4 * (count - fitting)
            if fitting == count:
                yield payload, offsets, delay_ms, receipt, key, flags, headers
            elif fitting:  # the log is in memory, so its records have no keys
                headers = headers[: places[fitting]] if places is not None else b""
                yield payload[: offsets[fitting]], offsets[: fitting + 1], delay_ms, receipt, b"", 0, headers
            else:
                receipt.settle()

    def _has_room(self, count: int, offsets: Sequence[int], places: Sequence[int] | None) -> bool:
        """Return whether the log has room for the first messages of a draft with their headers."""
        return self.log.has_room(count, offsets[count] + (places[count] if places is not None else 0))

    def record_deferred(self, timestamp: int) -> None:
        """Tell the journal which of this turn's publishes are deferred, and where `seal` is going to place them.

        The journal is told before the log has them. So a crash in between leaves nothing that could be delivered early,
        and if the journal cannot be written, nothing has to be taken back. A log that is going to refuse the messages
        gives them no place, so the journal is told nothing.
        """
        if self.ephemeral or self.log.refusal() is not None:
            return
        self._close_shared()
        sequence = self.log.tail
        for _, offsets, delay_ms, _, _, _, _ in self._drafts:
            count = len(offsets) - 1
            if delay_ms and self.flowing:
                self.record(("defer", self.name, sequence, count, timestamp // 1_000_000 + delay_ms + 1))
            elif delay_ms:
                self.record(("park", self.name, sequence, count, delay_ms))
            sequence += count

    def refuse(self, cause: str) -> None:
        """Fail this turn's publishes. A `cut` takes back what the journal was told of them, once it works again."""
        self._room = self._dry_run_room = None
        drafts = self._take_drafts()
        if any(delay_ms for _, _, delay_ms, _, _, _, _ in drafts):
            self.record(("cut", self.name, self.log.tail))
        for _, _, _, receipt, _, _, _ in drafts:
            receipt.settle(cause)
