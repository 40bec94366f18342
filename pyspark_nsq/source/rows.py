"""Turns batches of a log into Arrow columns, without touching single messages in Python.

A batch's payload is `(size:4, body) * count`. The bodies lie in it like the values of a binary array, except for the
sizes between them. So we lay a binary array over the payload whose values are, alternately, a body and the bytes
between two bodies, and Arrow takes every other value. Within a batch, sequences and ids are consecutive, and all
messages have the same time, topic and node.
"""

from __future__ import annotations

from array import array
from binascii import hexlify
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nsqcommon.wire.history import StoredBatch
from nsqcommon.wire.log_record import message_offsets
from pyspark_nsq.lanes import Lane

MOST_ROWS: Final = 20_000  # in one Arrow batch; more doesn't make Spark faster
MOST_BYTES: Final = 4 << 20

_ID_DIGITS: Final = 16
_SIZE: Final = 4
_WALKED: Final = 32  # up to this many messages, walking from one to the next is as fast as a guess

GAP: Final = pa.struct([pa.field("end", pa.int64()), pa.field("reason", pa.string())])
COLUMNS: Final[Mapping[str, pa.DataType]] = {
    "topic": pa.string(),
    "node": pa.string(),
    "sequence": pa.int64(),
    "id": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "body": pa.binary(),
}
HEADERS_COLUMN: Final = "headers"
GAP_COLUMN: Final = "gap"
ALL_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    **COLUMNS,
    HEADERS_COLUMN: pa.map_(pa.string(), pa.binary()),
    GAP_COLUMN: GAP,
}


class RowBuilder:
    """Collects consecutive batches of one lane, until `take` makes rows of them."""

    def __init__(self, lane: Lane, schema: pa.Schema) -> None:
        self.rows = 0
        self._lane = lane
        self._schema = schema
        self._columns = [self._maker(name) for name in schema.names]
        self._wants_bodies = "body" in schema.names
        self._wants_ids = "id" in schema.names
        self._wants_headers = HEADERS_COLUMN in schema.names
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._bytes = 0
        self._first = 0
        self._payloads: list[bytes] = []
        self._begins = _Numbers("i")  # of each body in the joined payloads
        self._ends = _Numbers("i")
        self._ids = _Numbers("Q")
        self._timestamps = array("q")
        self._headers: list[list[tuple[str, bytes]] | None] = []  # of each message; None: it has none

    @property
    def is_full(self) -> bool:
        return self.rows >= MOST_ROWS or self._bytes >= MOST_BYTES

    def add(self, batch: StoredBatch) -> None:
        count = batch.end - batch.first
        if not self.rows:
            self._first = batch.first
        if self._wants_bodies:
            self._add_bodies(batch, count)
        if self._wants_ids:
            self._ids.add_evenly(batch.base_id + batch.first - batch.base_sequence, count)
        if self._wants_headers:
            self._headers += [[*it.items()] or None for it in batch.headers_of()] if batch.headers else [None] * count
        self._timestamps += array("q", (batch.timestamp // 1000,)) * count
        self.rows += count

    def _add_bodies(self, batch: StoredBatch, count: int) -> None:
        position = batch.first - batch.base_sequence
        offsets = batch.offsets[position : position + count + 1]
        base = self._bytes
        if isinstance(offsets, range):
            start, step = base + offsets[0], offsets.step
            self._begins.add_evenly(start + _SIZE, count, step)
            self._ends.add_evenly(start + step, count, step)
        elif isinstance(offsets, np.ndarray):
            moved = (offsets + base).astype(np.int32)
            self._begins.add_bytes((moved[:-1] + _SIZE).tobytes())
            self._ends.add_bytes(moved[1:].tobytes())
        else:
            self._begins.add([base + _SIZE + start for start in offsets[:-1]])
            self._ends.add([base + end for end in offsets[1:]])
        self._payloads.append(batch.payload)
        self._bytes += len(batch.payload)

    def take(self) -> pa.RecordBatch:
        """Return the collected rows, and start again. There must be some."""
        taken = pa.RecordBatch.from_arrays([make() for make in self._columns], schema=self._schema)
        self._clear()
        return taken

    def gap(self, first: int, end: int | None, reason: str) -> pa.RecordBatch:
        """Return one row that stands for messages that can't be read."""
        values = {
            "topic": self._lane.topic,
            "node": self._lane.node,
            "sequence": first,
            GAP_COLUMN: {"end": end, "reason": reason},
        }
        return pa.RecordBatch.from_arrays(
            [pa.array([values.get(field.name)], field.type) for field in self._schema], schema=self._schema
        )

    # Columns

    def _maker(self, name: str) -> Callable[[], pa.Array]:
        return {
            "topic": lambda: pa.repeat(pa.scalar(self._lane.topic), self.rows),
            "node": lambda: pa.repeat(pa.scalar(self._lane.node), self.rows),
            "sequence": self._sequence,
            "id": self._id,
            "timestamp": self._timestamp,
            "body": self._body,
            HEADERS_COLUMN: lambda: pa.array(self._headers, ALL_COLUMNS[HEADERS_COLUMN]),
            GAP_COLUMN: lambda: pa.nulls(self.rows, GAP),
        }[name]

    def _sequence(self) -> pa.Array:
        return pc.add(_ramp(pa.int64(), self.rows), self._first)

    def _id(self) -> pa.Array:
        ids = self._ids.take()
        ids.byteswap()
        digits = hexlify(ids)
        borders = _numbers("i", 0, self.rows + 1, _ID_DIGITS)
        return pa.StringArray.from_buffers(self.rows, pa.py_buffer(borders), pa.py_buffer(digits))

    def _timestamp(self) -> pa.Array:
        return pa.Array.from_buffers(COLUMNS["timestamp"], self.rows, [None, pa.py_buffer(self._timestamps)])

    def _body(self) -> pa.Array:
        data = self._payloads[0] if len(self._payloads) == 1 else b"".join(self._payloads)
        bounds = array("i", (0,)) * (2 * self.rows)
        bounds[0::2], bounds[1::2] = self._begins.take(), self._ends.take()
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        spans = pa.Array.from_buffers(pa.binary(), 2 * self.rows - 1, buffers)
        return spans.take(pc.multiply(_ramp(pa.int32(), self.rows), pa.scalar(2, pa.int32())))


class _Numbers:
    """An array of numbers that are mostly evenly spaced, also from one batch to the next.

    Evenly spaced numbers are only counted at first, and then created all at once.
    """

    def __init__(self, code: str) -> None:
        self._code = code
        self._made = array(code)
        self._start = self._step = self._count = 0  # of the evenly spaced numbers not yet created

    def add(self, numbers: Iterable[int]) -> None:
        self._make()
        self._made.extend(numbers)

    def add_bytes(self, numbers: bytes) -> None:
        self._make()
        self._made.frombytes(numbers)

    def add_evenly(self, start: int, count: int, step: int = 1) -> None:
        if self._count and step == self._step and start == self._start + self._count * step:
            self._count += count
            return
        self._make()
        self._start, self._step, self._count = start, step, count

    def take(self) -> array[int]:
        self._make()
        return self._made

    def _make(self) -> None:
        if self._count:
            self._made += _numbers(self._code, self._start, self._count, self._step)
            self._count = 0


# Arrow creates many numbers in a tenth of Python's time.

_FEW: Final = 64  # up to this many numbers, Arrow isn't worth it
_TYPES: Final = {"i": pa.int32(), "Q": pa.uint64()}


def _numbers(code: str, start: int, count: int, step: int = 1) -> array[int]:
    if count < _FEW:
        return array(code, [start + place * step for place in range(count)])
    kind = _TYPES[code]
    made = pc.add(pc.multiply(_ramp(kind, count), pa.scalar(step, kind)), pa.scalar(start, kind))
    found = array(code)
    found.frombytes(memoryview(made.buffers()[1])[: count * found.itemsize])
    return found


def _ramp(kind: pa.DataType, count: int) -> pa.Array:
    """Return 0, 1, 2, ..., as a slice of a cached array."""
    return _whole_ramp(kind, 1 << (count - 1).bit_length()).slice(0, count)


@lru_cache(maxsize=64)
def _whole_ramp(kind: pa.DataType, count: int) -> pa.Array:
    return pa.array(range(count), kind)


def find_offsets(payload: bytes, count: int) -> Sequence[int] | None:
    """Return the result of `message_offsets`, at a fifth of its cost if bodies are texts of different sizes.

    A payload is `(size:4, body) * count`. A size below 65,536 begins with two zero bytes, and a text has no zero bytes,
    so two of them should mark the start of a message. This is a guess until we have checked that each message ends
    where the next one starts; then it is as certain as the result of a walk. If the guess fails, `message_offsets` does
    the walk.
    """
    if count < _WALKED:
        return message_offsets(payload, count)
    data = np.frombuffer(payload, np.uint8)
    is_zero = data == 0
    pairs = np.flatnonzero(is_zero[:-1] & is_zero[1:])
    starts = pairs[np.flatnonzero(np.diff(pairs, prepend=-2) > 1)]  # sizes below 256 begin with three zero bytes
    if len(starts) != count or starts[-1] + 4 > len(payload):
        return message_offsets(payload, count)
    sizes = data[starts + 2].astype(np.int64) << 8 | data[starts + 3]
    offsets = np.append(starts, len(payload))
    if offsets[0] or not np.array_equal(starts + 4 + sizes, offsets[1:]):
        return message_offsets(payload, count)
    return cast(Sequence[int], offsets)  # an array, which `RowBuilder` adds up as such
