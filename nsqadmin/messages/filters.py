"""Filters for searching messages: a piece of text, or conditions on fields of JSON bodies. Nothing is executed.

timeout                            the body or the key contains the text, in any case
"order id"                         quotes, for a text with a space
customer.country = DE              a field of a JSON body; items of lists by number: items.0.price
amount >= 100 and status != paid   several conditions, all of which must hold
header.traceparent ~ 0af7          a header of the message
@size > 4096                       @size, @sequence, @delay, @key: properties of the message itself
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

LONGEST: Final = 500  # characters
_MOST_CONDITIONS: Final = 10

_CONDITION: Final = re.compile(
    r"\s*(?P<path>@?[A-Za-z_][\w-]*(?:\.[\w-]+)*)\s*(?P<operator>!=|>=|<=|=|>|<|~)\s*"
    r"(?:\"(?P<quoted>[^\"]*)\"|(?P<bare>[^\s\"]+))\s*"
)
_AND: Final = re.compile(r"and\s+", re.IGNORECASE)
_WHOLE: Final = re.compile(r"[+-]?\d{1,400}", re.ASCII).fullmatch
_OF_MESSAGE: Final = ("size", "sequence", "delay", "key")
_HEADER: Final = "header."
MISSING: Final = object()

_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class BadFilter(ValueError):
    """The filter is invalid; the message says where the error begins."""


class Matched(Protocol):
    """The properties of a message that a filter can name."""

    @property
    def size(self) -> int: ...

    @property
    def sequence(self) -> int | None: ...

    @property
    def delay(self) -> float: ...

    @property
    def key(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of one field with a value."""

    path: tuple[str, ...]  # the field's name at each level
    operator: str
    value: str
    of_message: bool = False  # the field is a property of the message, not part of its body
    of_header: bool = False  # the path is the name of a header

    def holds(self, document: Any, message: Matched) -> bool:
        if self.of_header:
            found = message.headers.get(self.path[0], MISSING)
        else:
            found = getattr(message, self.path[0]) if self.of_message else field_at(document, self.path)
            found = MISSING if found == "" and self.of_message else found  # a message without a key
        if found is MISSING:
            return self.operator == "!="
        if self.operator == "~":
            return self.value.lower() in text_of(found).lower()
        if self.operator in ("=", "!="):
            return _equals(found, self.value) is (self.operator == "=")
        return _compares(_ORDERS[self.operator], found, self.value)

    @property
    def is_of_body(self) -> bool:
        return not self.of_message and not self.of_header


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter. Without text and conditions it matches every message."""

    text: bytes = b""  # in lower case
    conditions: tuple[Comparison, ...] = ()

    @property
    def terms(self) -> tuple[str, ...]:
        """The texts of a match in a body, for highlighting."""
        if self.text:
            return (self.text.decode(),)
        return tuple(it.value for it in self.conditions if it.operator in ("=", "~") and it.value and it.is_of_body)

    @property
    def is_empty(self) -> bool:
        """True if every message matches."""
        return not self.text and not self.conditions

    @property
    def paths(self) -> frozenset[tuple[str, ...]]:
        """The fields of bodies that the conditions name."""
        return frozenset(it.path for it in self.conditions if it.is_of_body)

    def may_match(self, message: Matched) -> bool:
        """Return False if a message can't match, whatever its body is."""
        return all(it.is_of_body or it.holds(None, message) for it in self.conditions)

    def matches(self, body: bytes, message: Matched) -> bool:
        """Return True if a message matches. `body` must be masked for the user who searches.

        Otherwise the user could discover masked fields by searching for them.
        """
        if self.text:
            return self.text in body.lower() or self.text in message.key.lower().encode()
        if not self.conditions:
            return True
        document = None
        if any(condition.is_of_body for condition in self.conditions):
            try:
                document = json.loads(body)
            except (ValueError, RecursionError):
                return False
        return self.holds(document, message)

    def holds(self, document: Any, message: Matched) -> bool:
        """Return True if all conditions hold for a message whose body is this document."""
        return all(condition.holds(document, message) for condition in self.conditions)


def parse_filter(text: str) -> Filter:
    """Parse a filter as typed by a user. Raise BadFilter."""
    text = text.strip()
    if len(text) > LONGEST:
        raise BadFilter(f"longer than {LONGEST} characters")
    if _CONDITION.match(text) is None:
        quoted = len(text) > 1 and text[0] == text[-1] == '"'
        return Filter(text=(text[1:-1] if quoted else text).lower().encode())
    conditions: list[Comparison] = []
    at = 0
    while at < len(text):
        if conditions:
            joined = _AND.match(text, at)
            if joined is None:
                raise BadFilter(f"expected 'and' at {text[at:]!r}")
            at = joined.end()
        found = _CONDITION.match(text, at)
        if found is None:
            raise BadFilter(f"expected 'field operator value' at {text[at:]!r}")
        conditions.append(_condition(found))
        at = found.end()
    if len(conditions) > _MOST_CONDITIONS:
        raise BadFilter(f"more than {_MOST_CONDITIONS} conditions")
    return Filter(conditions=tuple(conditions))


def by_header(name: str, value: str) -> Filter:
    """Return the filter for messages with this value in a header. As text, it may have no quotes."""
    return Filter(conditions=(Comparison((name,), "=", value, of_header=True),))


def _condition(found: re.Match[str]) -> Comparison:
    path = found["path"]
    value = found["quoted"] if found["quoted"] is not None else found["bare"]
    if path.startswith("@"):
        if path[1:] not in _OF_MESSAGE:
            raise BadFilter(f"unknown {path}; expected one of {', '.join('@' + name for name in _OF_MESSAGE)}")
        return Comparison((path[1:],), found["operator"], value, of_message=True)
    if path.startswith(_HEADER):
        return Comparison((path.removeprefix(_HEADER).lower(),), found["operator"], value, of_header=True)
    return Comparison(tuple(path.split(".")), found["operator"], value)


def field_at(document: Any, path: tuple[str, ...]) -> Any:
    """Return the value of a JSON document at this path, or MISSING."""
    for step in path:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list) and step.isdecimal() and len(step) < 7 and int(step) < len(document):
            document = document[int(step)]
        else:
            return MISSING
    return document


def text_of(value: Any) -> str:
    """Return a JSON value as a user types it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _equals(found: Any, value: str) -> bool:
    if isinstance(found, int | float) and not isinstance(found, bool):
        number = _number(value)
        return number is not None and found == number
    return text_of(found) == value


def _compares(order: Callable[[Any, Any], bool], found: Any, value: str) -> bool:
    """Compare numbers as numbers and texts as texts, which also works for ISO dates."""
    if isinstance(found, bool) or found is None:
        return False
    if isinstance(found, int | float):
        number = _number(value)
        return number is not None and order(found, number)
    return isinstance(found, str) and order(found, value)


def _number(text: str) -> float | None:
    try:
        # A float holds only 15 digits, and ids often have more.
        return int(text) if _WHOLE(text) else float(text)
    except ValueError:
        return None
