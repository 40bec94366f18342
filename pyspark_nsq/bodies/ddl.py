"""Parses fields in Spark SQL's syntax, `user string not null, amount double`, into Arrow types without Spark.

Spark's own parser needs a JVM, and we want to refuse a wrong schema before starting one. A text gives the same types
here as in Spark. `not null` is kept as Arrow's `nullable=False`, for decoders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NoReturn

import pyarrow as pa

_TOKEN: Final = re.compile(
    r"""\s*(?: (?P<name>`(?:[^`]|``)+`) | (?P<word>\w+) | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*") | (?P<sign>[<>(),:]) )""",
    re.VERBOSE,
)
_SIMPLE: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL: Final = ("decimal", "dec", "numeric")
_DIGITS: Final = 38  # maximum for a decimal
_DEEPEST: Final = 32  # types within types; deeper schemas aren't written by hand
# For a type with several names, the first one.
_SPELLED: Final[dict[pa.DataType, str]] = dict(zip(reversed(_SIMPLE.values()), reversed(_SIMPLE), strict=True))
_END: Final = ("end", "")


class BadSchema(ValueError):
    """The text isn't a list of fields; the message says where, and what was expected."""


def parse_fields(text: str) -> pa.StructType:
    """Return the fields listed in `text`. Raises `BadSchema`."""
    parser = _Parser(text)
    fields = parser.fields(until=_END)
    parser.expect(_END)
    return fields


def as_nullable(kind: pa.DataType) -> pa.DataType:
    """Return the same type without `not null`, as in a table, where older rows may lack a newer field."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, as_nullable(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", as_nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(pa.field("key", kind.key_type, nullable=False), pa.field("value", as_nullable(kind.item_type)))
    return kind


def spelled(kind: pa.DataType) -> str:
    """Return the type in SQL's words, for messages."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {spelled(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{spelled(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{spelled(kind.key_type)}, {spelled(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return _SPELLED[kind]


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text), _END]
        self._next = 0
        self._depth = 0

    def fields(self, until: tuple[str, str]) -> pa.StructType:
        found = [self._field()]
        while self._peek() == ("sign", ","):
            self._take()
            found.append(self._field())
        if self._peek() != until:
            self._fail("a comma or the end")
        if twice := _repeated(field.name for field in found):
            raise BadSchema(f"there are two fields named {twice}")
        return pa.struct(found)

    def expect(self, token: tuple[str, str]) -> None:
        if self._peek() != token:
            self._fail(repr(token[1]))
        self._take()

    def _field(self) -> pa.Field:
        kind, text = self._peek()
        if kind not in ("name", "word"):
            self._fail("a field's name")
        self._take()
        name = text[1:-1].replace("``", "`") if kind == "name" else text
        if self._peek() == ("sign", ":"):
            self._take()
        found = self._type()
        required = self._takes_words("not", "null")
        if self._takes_words("comment"):
            if self._peek()[0] != "text":
                self._fail("the comment's text in quotes")
            self._take()
        return pa.field(name, found, nullable=not required)

    def _type(self) -> pa.DataType:
        kind, text = self._peek()
        word = text.lower()
        if kind != "word":
            self._fail("a type")
        self._take()
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word in _DECIMAL:
            return self._decimal()
        if word not in ("struct", "array", "map"):
            self._next -= 1
            self._fail(f"a type: {', '.join((*_SIMPLE, 'decimal', 'array', 'map', 'struct'))}")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise BadSchema(f"types are nested deeper than {_DEEPEST}")
        self.expect(("sign", "<"))
        found = self._nested(word)
        self.expect(("sign", ">"))
        self._depth -= 1
        return found

    def _nested(self, word: str) -> pa.DataType:
        if word == "struct":
            return self.fields(until=("sign", ">"))
        if word == "array":
            return pa.list_(pa.field("element", self._type()))
        key = self._type()
        if key != pa.string():
            raise BadSchema(f"a map's keys must be string, not {spelled(key)}")
        self.expect(("sign", ","))
        return pa.map_(pa.field("key", key, nullable=False), pa.field("value", self._type()))

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0  # as in Spark
        if self._peek() == ("sign", "("):
            self._take()
            precision = self._number()
            if self._peek() == ("sign", ","):
                self._take()
                scale = self._number()
            self.expect(("sign", ")"))
        if not (1 <= precision <= _DIGITS and scale <= precision):
            raise BadSchema(f"decimal({precision}, {scale}): at most {_DIGITS} digits, and no more behind the point")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        kind, text = self._peek()
        if kind != "word" or not (text.isascii() and text.isdigit()):
            self._fail("a number")
        self._take()
        return int(text)

    def _takes_words(self, *words: str) -> bool:
        here = self._tokens[self._next : self._next + len(words)]
        if [(kind, text.lower()) for kind, text in here] != [("word", word) for word in words]:
            return False
        self._next += len(words)
        return True

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._next]

    def _take(self) -> None:
        self._next += 1

    def _fail(self, expected: str) -> NoReturn:
        before = "".join(f" {text}" for _, text in self._tokens[: self._next][-3:])
        here = self._peek()[1] or "the end"
        raise BadSchema(f"expected {expected}{f' after{before}' if before else ''}, not {here}")


def _tokens(text: str) -> list[tuple[str, str]]:
    found, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise BadSchema(f"cannot be read from {text[place:].strip()[:20]!r} on")
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        place = match.end()
    return found


def _repeated(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:  # Spark ignores case in names of columns
            return name
        seen.add(name.lower())
    return ""
