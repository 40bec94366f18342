"""The interface of body parsers, and the causes of refused bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from msgspec import Struct


class Cause(StrEnum):
    """Why a row is in the quarantine. Its `error` begins with one of these, followed by a colon."""

    NOT_UTF8 = "not UTF-8"
    NOT_JSON = "not JSON"
    NOT_MSGPACK = "not MessagePack"
    NOT_AVRO = "not Avro"
    NOT_PROTOBUF = "not Protobuf"
    NOT_CONFLUENT = "no Confluent header"
    UNKNOWN_SCHEMA = "unknown schema"
    TRAILING = "trailing data"
    NOT_OBJECT = "not an object"
    MISSING = "missing field"
    WRONG_TYPE = "wrong type"
    OVERFLOW = "overflow"
    BAD_TIME = "bad time"


class Unfit(Exception):
    """A body can't be parsed, or one of its values doesn't fit its field."""

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(cause, detail)
        self.cause = cause
        self.detail = detail


class Parser(Protocol):
    """Parses bodies of one format into Python values."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Its kind and settings, as words, numbers and bytes.

        Two parsers with the same identity parse alike, and it stays the same in all versions: tables keep a hash of it.
        """

    def parse(self, body: bytes) -> object:
        """Return the body's value. Raises `Unfit`."""

    def typed(self, record: type[Struct]) -> Callable[[bytes], object] | None:
        """Return a function that parses bodies into this class, or None if the format has none.

        The function may raise any error for a body that it cannot parse.
        """


Tree = Mapping[str, "Tree"]  # names of fields, with those within; empty: the whole value


def tree_of(paths: Iterable[tuple[str, ...]]) -> Tree:
    """Return a tree that has the fields at these paths."""
    tree: dict[str, Any] = {}
    for path in sorted(paths, key=len, reverse=True):  # a short path comes last, and asks for the whole value
        at = tree
        for step in path[:-1]:
            at = at.setdefault(step, {})
        at[path[-1]] = {}
    return tree
