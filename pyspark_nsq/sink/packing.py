"""Packs rows into bodies of `POST /mpub`, without touching single messages in Python.

    count   4
    (size 4, body) * count          all numbers big-endian

With a column of headers these are bodies of `POST /hmpub`, and encoded headers precede each body within its size. Arrow
joins the big-endian sizes with the bodies; a request's body is then its count and a slice of the joined buffer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from struct import Struct
from sys import byteorder
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from nsqcommon.wire.extensions import is_valid_key
from nsqcommon.wire.headers import NONE, BadHeaders, encode_headers
from nsqcommon.wire.names import is_valid_name
from pyspark_nsq.errors import BadOption, NsqError

BODY: Final = "body"
TOPIC: Final = "topic"
DEFER: Final = "defer_ms"
KEY: Final = "key"
HEADERS: Final = "headers"


_pack_count: Final = Struct(">I").pack
_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class Limits:
    most_messages: int
    most_bytes: int  # of a request, unless a single message is bigger
    longest_message: int


@dataclass(frozen=True, slots=True)
class Part:
    """One request."""

    topic: str
    defer_ms: int
    count: int  # of messages
    body: bytes
    key: str = ""  # from its single row
    has_headers: bool = False  # headers precede each message


def key_of(task: str, number: int, body: bytes) -> str:
    """Return the key by which nsqd recognizes a repeat of a task's part.

    The key contains a hash of the body. So if rows or options differ in the second run, nsqd doesn't mistake a part for
    one with other messages: messages may be published twice, but none is dropped.
    """
    key = f"{task}/{number}/{blake2b(body, digest_size=8).hexdigest()}"
    return key if is_valid_key(key.encode()) else blake2b(key.encode(), digest_size=32).hexdigest()


def check_columns(schema: pa.Schema, *, topic: str, has_keys: bool = False) -> None:
    """Raise BadOption when rows of this schema can't be published."""
    if BODY not in schema.names:
        raise BadOption(f"the rows have no column {BODY}, binary or string, with what to publish")
    if not topic and TOPIC not in schema.names:
        raise BadOption(
            f"the rows have no column {TOPIC}, and there is no option topic: one of them has to name the topic"
        )
    for name, kinds, what in (
        (BODY, (pa.types.is_binary, pa.types.is_string), "binary or string"),
        (TOPIC, (pa.types.is_string,), "string"),
        (DEFER, (pa.types.is_integer,), "an integer"),
        (HEADERS, (_is_headers,), "map<string, binary> or map<string, string>"),
    ):
        if name in schema.names and not any(kind(schema.field(name).type) for kind in kinds):
            raise BadOption(f"column {name} has to be {what}, not {schema.field(name).type}")
    if has_keys and KEY in schema.names and not pa.types.is_string(schema.field(KEY).type):
        raise BadOption(f"column {KEY} has to be string, not {schema.field(KEY).type}")


def _is_headers(kind: pa.DataType) -> bool:
    values = (pa.binary(), pa.string())
    return pa.types.is_map(kind) and kind.key_type == pa.string() and kind.item_type in values


def parts(rows: pa.RecordBatch, *, topic: str, limits: Limits, has_keys: bool = False) -> Iterator[Part]:
    """Yield the requests for these rows; each topic and delay keeps the order of its rows.

    With `has_keys`, each row is its own request, with the row's key if it has one.

    Raises NsqError for rows that can't be published, before it yields the first request.
    """
    checked = _checked(rows, limits)
    if not topic:
        for name in pc.unique(checked[TOPIC]).to_pylist():
            if not is_valid_name(name):
                raise NsqError(f"a row's topic: {name!r} is not a valid name of a topic")
    if has_keys:
        limits = replace(limits, most_messages=1)
    is_keyed = has_keys and KEY in rows.schema.names
    if is_keyed:
        _check_keys(checked[KEY])
    for name, of_topic in _by(checked, TOPIC) if not topic else ((topic, checked),):
        for defer_ms, bodies in _by(of_topic, DEFER) if DEFER in rows.schema.names else ((0, of_topic),):
            made = _parts(str(name), int(defer_ms), bodies[BODY], limits, has_headers=HEADERS in rows.schema.names)
            if not is_keyed:
                yield from made
                continue
            for part, key in zip(made, bodies[KEY].to_pylist(), strict=True):
                yield replace(part, key=key or "")


def _checked(rows: pa.RecordBatch, limits: Limits) -> pa.RecordBatch:
    for name in (BODY, TOPIC):
        if name in rows.schema.names and rows[name].null_count:
            raise NsqError(f"a row has no {name}: it is null")
    sizes = pc.binary_length(rows[BODY])
    longest, shortest = pc.max(sizes).as_py() or 0, pc.min(sizes).as_py()
    if shortest == 0:
        raise NsqError("a row has an empty body, and NSQ has no empty messages")
    if longest > limits.longest_message:
        raise NsqError(f"a row has a body of {longest} bytes, and nsqd takes {limits.longest_message} (--max-msg-size)")
    if DEFER in rows.schema.names:
        delays = pc.fill_null(rows[DEFER], 0)
        if (pc.min(delays).as_py() or 0) < 0:
            raise NsqError(f"a row has a negative {DEFER}")
        rows = rows.set_column(rows.schema.get_field_index(DEFER), DEFER, delays)
    body = rows[BODY].cast(pa.binary())
    if HEADERS in rows.schema.names:
        body = _headed(rows[HEADERS], body)
    return rows.set_column(rows.schema.get_field_index(BODY), BODY, body)


def _headed(headers: pa.Array, bodies: pa.Array) -> pa.Array:
    """Return the bodies, each after the encoded headers of its row."""
    try:
        encoded = [encode_headers(dict(pairs)) if pairs else NONE for pairs in headers.to_pylist()]
    except (BadHeaders, AttributeError, TypeError) as error:  # a value may be null
        raise NsqError(f"a row's {HEADERS}: {error}") from error
    return pc.binary_join_element_wise(pa.array(encoded, pa.binary()), bodies, b"")


def _check_keys(keys: pa.Array) -> None:
    for key in pc.drop_null(keys).to_pylist():
        if not is_valid_key(key.encode()):
            raise NsqError(f"a row's {KEY}: {key[:80]!r} is not 1 to 64 printable ASCII characters without space")


def _by(rows: pa.RecordBatch, column: str) -> Iterator[tuple[str | int, pa.RecordBatch]]:
    """Yield each value of the column, in order of appearance, with its rows."""
    values = pc.unique(rows[column]).to_pylist()
    for value in values:
        yield value, rows if len(values) == 1 else rows.filter(pc.equal(rows[column], value))


def _parts(topic: str, defer_ms: int, bodies: pa.Array, limits: Limits, *, has_headers: bool) -> Iterator[Part]:
    packed, offsets = _packed(bodies)
    first = 0
    while first < len(bodies):
        fitting = bisect_right(offsets, offsets[first] + limits.most_bytes - _SIZE, first) - 1
        end = max(first + 1, min(fitting, first + limits.most_messages))
        body = _pack_count(end - first) + packed[offsets[first] : offsets[end]].tobytes()
        yield Part(topic, defer_ms, end - first, body, has_headers=has_headers)
        first = end


def _packed(bodies: pa.Array) -> tuple[memoryview, memoryview]:
    """Return all bodies, each after its size, in one buffer; and the offset of each, and of the end."""
    sizes = array("i", pc.binary_length(bodies).to_pylist())
    if byteorder == "little":
        sizes.byteswap()
    words = pa.Array.from_buffers(pa.binary(_SIZE), len(bodies), [None, pa.py_buffer(sizes)]).cast(pa.binary())
    joined = pc.binary_join_element_wise(words, bodies, b"")
    _, offsets, data = joined.buffers()
    return memoryview(data), memoryview(offsets).cast("B").cast("i")[joined.offset :]
