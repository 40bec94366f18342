"""Schemas, and bodies for them, for Hypothesis: good bodies, and bodies that are wrong in every way that we know."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from pyspark_nsq.bodies.ddl import parse_fields

_LEAVES = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "date",
    "timestamp",
    "timestamp_ntz",
)
_SLOW_LEAVES = ("binary", "decimal(6, 2)", "decimal(38, 10)")
_INTEGERS = ("0", "-0", "1", "-1", "127", "128", "-128", "-129", "32767", "32768", "2147483647", "-2147483649")
_LARGE = ("9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 400)
_NUMBERS = ("-0.0", "0.5", "1.0", "1e2", "1E-7", "1e18", "1e19", "3.4028235e38", "3.5e38", "1.7e308", "1e400", "-1e400")
_TIMES = (
    "2026-03-01",
    "2026-03-01T12:00:00Z",
    "2026-03-01T12:00:00.123456789Z",
    "2026-03-01 12:00:00+02:00",
    "2026-03-01T12:00:00",
    "2026-02-30",
    "0001-01-01T00:00:00Z",
    "2026-03-01T25:00:00Z",
    "2026-03-01T12:00:00.1234567",
    "2026-03-01Z",
    "now",
    "",
)
_STRANGE = (
    "null",
    "true",
    "[]",
    "{}",
    "[null]",
    '{"a": null}',
    "NaN",
    "Infinity",
    '"NaN"',
    '"\\ud83d\\ude00"',
    '"\\ud800"',
)


def _leaf_types(leaves: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.sampled_from(leaves)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        inner.map(lambda kind: f"array<{kind}>"),
        inner.map(lambda kind: f"map<string, {kind}>"),
        st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3).map(_struct),
    )


def _struct(parts: list[tuple[str, bool]]) -> str:
    return f"struct<{_fields(parts)}>"


def _fields(parts: list[tuple[str, bool]]) -> str:
    return ", ".join(f"`k{n}` {kind}{' not null' if required else ''}" for n, (kind, required) in enumerate(parts))


def schemas(*, rich: bool = False) -> st.SearchStrategy[pa.StructType]:
    """Generate schemas. With `rich` they may have types for which decoding has no quick way."""
    kinds = st.recursive(_leaf_types(_LEAVES + _SLOW_LEAVES if rich else _LEAVES), _nested, max_leaves=5)
    required = st.sampled_from((False, False, False, True))
    return st.lists(st.tuples(kinds, required), min_size=1, max_size=4).map(_fields).map(parse_fields)


@st.composite
def json_bodies(draw: Any, schema: pa.StructType) -> bytes:
    """Generate one body that mostly fits the schema."""
    text: str = draw(_fitting(schema))
    if draw(st.integers(0, 14)) == 0:
        text = draw(
            st.sampled_from((text[:-1], f"{text} ", f"{text}x", f"{text}{text}", "", " ", "[]", "null", f"[{text}]"))
        )
    body = text.encode()
    if draw(st.integers(0, 19)) == 0:
        place = draw(st.integers(0, len(body)))
        body = (
            body[:place]
            + draw(st.sampled_from((b"\xff", b"\xed\xa0\x80", b"\n", b"\0", b"\xef\xbb\xbf")))
            + body[place:]
        )
    return body


def _value(kind: pa.DataType) -> st.SearchStrategy[str]:
    odd = st.sampled_from((*_STRANGE, *_INTEGERS, *_LARGE, *_NUMBERS, '"text"'))
    return st.one_of(*[_fitting(kind)] * 14, st.just("null"), odd)


def _fitting(kind: pa.DataType) -> st.SearchStrategy[str]:
    if pa.types.is_struct(kind):
        return _object(kind)
    if pa.types.is_list(kind):
        return st.lists(_value(kind.value_type), max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
    if pa.types.is_map(kind):
        pairs = st.lists(st.tuples(st.sampled_from(("a", "b", "ä")), _value(kind.item_type)), max_size=3)
        return pairs.map(_spell)
    if pa.types.is_boolean(kind):
        return st.sampled_from(("true", "false"))
    if pa.types.is_integer(kind):
        return st.one_of(*[st.integers(-100, 100).map(str)] * 3, st.sampled_from((*_INTEGERS, *_LARGE, "1.0", "1e2")))
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        texts = st.sampled_from((*_NUMBERS, *_INTEGERS, *_LARGE))
        return st.one_of(texts, st.floats(allow_nan=False, allow_infinity=False).map(repr))
    if pa.types.is_temporal(kind):
        good = st.sampled_from([json.dumps(text) for text in _TIMES[: 1 if pa.types.is_date(kind) else 5]])
        return st.one_of(good, st.sampled_from((*(json.dumps(text) for text in _TIMES), "1700000000", "1700000000000")))
    return st.text(max_size=5).map(json.dumps)


@st.composite
def _object(draw: Any, kind: pa.StructType) -> str:
    """Generate an object, sometimes with missing, extra and repeated keys."""
    pairs = [(field.name, draw(_value(field.type))) for field in kind if draw(st.integers(0, 7))]
    if draw(st.integers(0, 5)) == 0:
        pairs.append((draw(st.sampled_from(("extra", "k0"))), draw(st.sampled_from((*_STRANGE, "1", "1e400")))))
    return _spell(draw(st.permutations(pairs)))


def _spell(pairs: list[tuple[str, str]]) -> str:
    return f"{{{', '.join(f'{json.dumps(name)}: {value}' for name, value in pairs)}}}"
